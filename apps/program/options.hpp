#pragma once
// The command line: commands and their options, each checked when it is read, so that a wrong value
// ends in one sentence that names the flag, the value and what was expected. The parser's own
// (large) header stays in options.cpp.

#include <longstraw/memory/error.hpp>
#include <longstraw/memory/view.hpp>

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace longstraw::program {

/// A command line that cannot be meant; ends the program with exit code 2.
class usage_error : public error {
 public:
  explicit usage_error(const std::string& sentence) : error(errc::bad_input, sentence) {}
};

/// Which numbers an option takes.
struct limits {
  double least = std::numeric_limits<double>::lowest();
  double most = std::numeric_limits<double>::max();
  bool above_least = false;  ///< `least` itself is not allowed
  bool below_most = false;   ///< `most` itself is not allowed
};
constexpr limits any_number{};
constexpr limits not_negative{0.0};
constexpr limits positive{0.0, std::numeric_limits<double>::max(), true};
constexpr limits below_one{0.0, 1.0, false, true};

enum class need { optional, required };

/// Paths of a command line with the flags that gave them.
using given_paths = std::vector<std::pair<std::string, std::filesystem::path>>;

/// Where a --config file gives an option ("run.toml line 3"), by command and flag ("train
/// --steps").
using config_places = std::map<std::string, std::string>;

/// errc::bad_input if a result (--out, --trace, --report) would replace an input, lie inside an
/// input folder, or share its place with another result.
void check_results_apart(const given_paths& given);

/// The options of one command. Targets must live as long as the command line; an option that is not
/// given leaves its target as it was. What a target holds when its option is declared is shown as
/// the default.
class options {
 public:
  options(CLI::App& app, std::shared_ptr<given_paths> given,
          std::shared_ptr<const config_places> places)
      : app_(&app), given_(std::move(given)), places_(std::move(places)) {}

  /// Following options stand under that title in --help.
  void section(std::string title) { section_ = std::move(title); }

  void number(const std::string& flag, double& into, limits l, const std::string& help);
  /// `otherwise`: what --help says happens without the option.
  void number(const std::string& flag, std::optional<double>& into, limits l,
              const std::string& otherwise, const std::string& help);
  void whole(const std::string& flag, index& into, index least, index most,
             const std::string& help);
  void whole(const std::string& flag, std::optional<index>& into, index least, index most,
             const std::string& otherwise, const std::string& help);
  void text(const std::string& flag, std::string& into, const std::string& help,
            need n = need::optional);
  void text(const std::string& flag, std::optional<std::string>& into, const std::string& help);
  void choice(const std::string& flag, std::string& into, std::vector<std::string> choices,
              const std::string& help);
  void choice(const std::string& flag, std::optional<std::string>& into,
              std::vector<std::string> choices, const std::string& otherwise,
              const std::string& help);
  /// `flag` without dashes is a positional argument.
  void path(const std::string& flag, std::filesystem::path& into, const std::string& help,
            need n = need::optional);
  // Options that take one or more values; what they are given replaces the default.
  void wholes(const std::string& flag, std::vector<index>& into, index least, index most,
              const std::string& help);
  void choices(const std::string& flag, std::vector<std::string>& into,
               std::vector<std::string> choices, const std::string& help);
  void paths(const std::string& flag, std::vector<std::filesystem::path>& into,
             const std::string& help);
  void bytes(const std::string& flag, std::size_t& into, const std::string& help);
  void toggle(const std::string& flag, bool& into, const std::string& help);

 private:
  void add(const std::string& flag, const std::string& kind, const std::string& shown_default,
           const std::string& help, need n, std::function<void(const std::string&)> read);
  void add_list(const std::string& flag, const std::string& kind, const std::string& shown_default,
                const std::string& help, std::function<void(const std::vector<std::string>&)> read);

  CLI::App* app_;
  std::shared_ptr<given_paths> given_;
  std::shared_ptr<const config_places> places_;
  std::string section_ = "Options";
};

class command_line {
 public:
  command_line();
  ~command_line();

  /// Options that stand before or after any command.
  options& global() { return *global_; }
  /// A command; `name` may have two words ("trace summary"). `run` gives the exit code.
  options command(const std::string& name, const std::string& description,
                  std::function<int()> run);

  /// Reads the arguments and a file given by --config. The chosen command, or none if --help or
  /// --version has been answered. Throws usage_error.
  std::function<int()> parse(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  std::shared_ptr<given_paths> given_ = std::make_shared<given_paths>();
  std::shared_ptr<config_places> places_ = std::make_shared<config_places>();
  std::unique_ptr<options> global_;
  std::function<int()> chosen_;
};

}  // namespace longstraw::program
