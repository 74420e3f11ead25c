#include "options.hpp"

#include "config_file.hpp"
#include "size_text.hpp"
#include "text_output.hpp"
#include "versions.hpp"

#include <longstraw/models/json_text.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

namespace longstraw::program {
namespace {

/// Of a list; more than any command line holds.
constexpr int values_max = 1 << 20;

std::string expected_text(const limits& l, const char* kind) {
  const bool low = l.least > std::numeric_limits<double>::lowest(),
             high = l.most < std::numeric_limits<double>::max();
  if (low && high)
    return fmt::format("{} from {}{} to {}{}", kind, l.above_least ? "above " : "", l.least,
                       l.below_most ? "below " : "", l.most);
  if (low) return fmt::format("{} {} {}", kind, l.above_least ? "above" : "of at least", l.least);
  if (high) return fmt::format("{} {} {}", kind, l.below_most ? "below" : "of at most", l.most);
  return kind;
}

double read_number(const std::string& flag, const std::string& text, const limits& l) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, value);
  const bool inside = (l.above_least ? value > l.least : value >= l.least) &&
                      (l.below_most ? value < l.most : value <= l.most);
  if (failure != std::errc() || rest != end || !std::isfinite(value) || !inside)
    throw usage_error(fmt::format("{} is {}; expected {}", flag, models::in_quotes(text),
                                  expected_text(l, "a number")));
  return value;
}

index read_whole(const std::string& flag, const std::string& text, index least, index most) {
  index value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc() || rest != end || value < least || value > most)
    throw usage_error(most == std::numeric_limits<index>::max()
                          ? fmt::format("{} is {}; expected a whole number of at least {}", flag,
                                        models::in_quotes(text), least)
                          : fmt::format("{} is {}; expected a whole number from {} to {}", flag,
                                        models::in_quotes(text), least, most));
  return value;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string all;
  for (const std::string& w : words) all += (all.empty() ? "" : between) + w;
  return all;
}

std::string read_choice(const std::string& flag, const std::string& text,
                        const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), text) == choices.end())
    throw usage_error(fmt::format("{} is {}; expected one of {}", flag, models::in_quotes(text),
                                  joined(choices, ", ")));
  return text;
}

std::string place_key(const CLI::App& command, const std::string& flag) {
  return command.get_name() + " " + flag;
}

/// A file for one command needs no section: names before the first section belong to the command
/// that runs. Faults are told with the line they stand in.
class command_config : public CLI::ConfigTOML {
 public:
  command_config(const CLI::App& app, std::shared_ptr<config_places> places)
      : app_(app), places_(std::move(places)) {}

  /// Before the parser opens it.
  void check(const std::string& path) { file_ = read_config_file(path); }

  std::vector<CLI::ConfigItem> from_config(std::istream& in) const override {
    std::vector<CLI::ConfigItem> all = CLI::ConfigTOML::from_config(in);
    std::vector<std::string> path;
    for (const CLI::App* at = &app_; !at->get_subcommands().empty();) {
      at = at->get_subcommands().front();
      path.push_back(at->get_name());
    }
    for (CLI::ConfigItem& item : all) {
      if (item.name == "++" || item.name == "--") continue;
      const std::string place = file_.place(item.fullname());
      if (item.parents.empty() && !app_.get_option_no_throw("--" + item.name)) item.parents = path;
      check_item(item, place);
    }
    return all;
  }

 private:
  void check_item(const CLI::ConfigItem& item, const std::string& place) const {
    const CLI::App* command = &app_;
    std::string words = "longstraw";
    for (const std::string& parent : item.parents) {
      const auto inner =
          command->get_subcommands([&](const CLI::App* one) { return one->get_name() == parent; });
      words += " " + parent;
      if (inner.empty())
        throw usage_error(fmt::format("{}: there is no command \"{}\"", place, words));
      command = inner.front();
    }
    const std::string flag = "--" + item.name;
    const CLI::Option* option = command->get_option_no_throw(flag);
    if (!option || !option->get_configurable())
      throw usage_error(fmt::format("{}: \"{}\" is no option of {}; see {} --help", place,
                                    item.name, words, words));
    const std::string value = item.inputs.size() == 1 ? item.inputs.front() : "";
    if (item.inputs.size() != 1)
      throw usage_error(fmt::format("{}: \"{}\" has {} values; expected one", place, item.name,
                                    item.inputs.size()));
    if (option->get_expected_min() == 0 && value != "true" && value != "false")
      throw usage_error(
          fmt::format("{}: \"{}\" is \"{}\"; expected true or false", place, item.name, value));
    if (option->count() == 0) (*places_)[place_key(*command, flag)] = place;  // else it is not used
  }

  const CLI::App& app_;
  const std::shared_ptr<config_places> places_;
  config_file file_;
};

}  // namespace

void options::add(const std::string& flag, const std::string& kind,
                  const std::string& shown_default, const std::string& help, need n,
                  std::function<void(const std::string&)> read) {
  CLI::Option* o = app_->add_option(
      flag,
      [read = std::move(read), places = places_,
       key = place_key(*app_, flag)](const CLI::results_t& values) {
        try {
          read(values.front());
        } catch (const usage_error& e) {
          const auto place = places->find(key);
          if (place == places->end()) throw;
          throw usage_error(fmt::format("{}: {}", place->second, e.what()));
        }
        return true;
      },
      help);
  o->type_name(kind)->group(section_)->expected(1);
  if (!shown_default.empty()) o->default_str(shown_default);
  if (n == need::required) o->required();
}

void options::add_list(const std::string& flag, const std::string& kind,
                       const std::string& shown_default, const std::string& help,
                       std::function<void(const std::vector<std::string>&)> read) {
  app_->add_option(
          flag,
          [read = std::move(read)](const CLI::results_t& values) {
            read(values);
            return true;
          },
          help)
      ->type_name(kind)
      ->group(section_)
      ->expected(1, values_max)
      ->allow_extra_args()
      ->default_str(shown_default);
}

void options::number(const std::string& flag, double& into, limits l, const std::string& help) {
  add(flag, "NUMBER", fmt::format("{}", into), help, need::optional,
      [=, &into](const std::string& v) { into = read_number(flag, v, l); });
}

void options::number(const std::string& flag, std::optional<double>& into, limits l,
                     const std::string& otherwise, const std::string& help) {
  add(flag, "NUMBER", otherwise, help, need::optional,
      [=, &into](const std::string& v) { into = read_number(flag, v, l); });
}

void options::whole(const std::string& flag, index& into, index least, index most,
                    const std::string& help) {
  add(flag, "N", fmt::format("{}", into), help, need::optional,
      [=, &into](const std::string& v) { into = read_whole(flag, v, least, most); });
}

void options::whole(const std::string& flag, std::optional<index>& into, index least, index most,
                    const std::string& otherwise, const std::string& help) {
  add(flag, "N", otherwise, help, need::optional,
      [=, &into](const std::string& v) { into = read_whole(flag, v, least, most); });
}

void options::text(const std::string& flag, std::string& into, const std::string& help, need n) {
  add(flag, "TEXT", into, help, n, [&into](const std::string& v) { into = v; });
}

void options::text(const std::string& flag, std::optional<std::string>& into,
                   const std::string& help) {
  add(flag, "TEXT", "", help, need::optional, [&into](const std::string& v) { into = v; });
}

void options::choice(const std::string& flag, std::string& into, std::vector<std::string> choices,
                     const std::string& help) {
  const std::string kind = joined(choices, "|");
  add(flag, kind, into, help, need::optional,
      [flag, &into, choices = std::move(choices)](const std::string& v) {
        into = read_choice(flag, v, choices);
      });
}

void options::choice(const std::string& flag, std::optional<std::string>& into,
                     std::vector<std::string> choices, const std::string& otherwise,
                     const std::string& help) {
  const std::string kind = joined(choices, "|");
  add(flag, kind, otherwise, help, need::optional,
      [flag, &into, choices = std::move(choices)](const std::string& v) {
        into = read_choice(flag, v, choices);
      });
}

void options::path(const std::string& flag, std::filesystem::path& into, const std::string& help,
                   need n) {
  add(flag, "PATH", into.string(), help, n, [flag, &into, given = given_](const std::string& v) {
    if (v.empty()) throw usage_error(fmt::format("{} is empty; expected a path", flag));
    into = v;
    given->emplace_back(flag, v);
  });
}

void options::wholes(const std::string& flag, std::vector<index>& into, index least, index most,
                     const std::string& help) {
  add_list(flag, "N ...", fmt::format("{}", fmt::join(into, " ")), help,
           [=, &into](const std::vector<std::string>& values) {
             into.clear();
             for (const std::string& v : values) into.push_back(read_whole(flag, v, least, most));
           });
}

void options::choices(const std::string& flag, std::vector<std::string>& into,
                      std::vector<std::string> choices, const std::string& help) {
  const std::string kind = joined(choices, "|") + " ...";
  add_list(flag, kind, joined(into, " "), help,
           [flag, &into, choices = std::move(choices)](const std::vector<std::string>& values) {
             into.clear();
             for (const std::string& v : values) into.push_back(read_choice(flag, v, choices));
           });
}

void options::paths(const std::string& flag, std::vector<std::filesystem::path>& into,
                    const std::string& help) {
  add_list(flag, "PATH ...", "", help,
           [flag, &into, given = given_](const std::vector<std::string>& values) {
             into.clear();
             for (const std::string& v : values) {
               if (v.empty()) throw usage_error(fmt::format("{} is empty; expected a path", flag));
               into.emplace_back(v);
               given->emplace_back(flag, v);
             }
           });
}

void options::bytes(const std::string& flag, std::size_t& into, const std::string& help) {
  add(flag, "SIZE", into == 0 ? "no limit" : fmt::format("{}", into), help, need::optional,
      [flag, &into](const std::string& v) {
        const auto size = parse_size(v);
        if (!size || *size == 0)
          throw usage_error(
              fmt::format("{} is {}; expected a size such as 512MiB, 8GiB or a number of bytes",
                          flag, models::in_quotes(v)));
        into = *size;
      });
}

void options::toggle(const std::string& flag, bool& into, const std::string& help) {
  app_->add_flag(flag, into, help)->group(section_);
}

void check_results_apart(const given_paths& given) {
  namespace fs = std::filesystem;
  const auto is_result = [](const std::string& flag) {
    return flag == "--out" || flag == "--trace" || flag == "--report";
  };
  const auto place = [](const fs::path& p) {
    std::error_code ignored;
    fs::path whole = fs::weakly_canonical(fs::absolute(p), ignored);
    return whole.filename().empty() ? whole.parent_path() : whole;
  };
  for (const auto& [flag, path] : given) {
    if (!is_result(flag)) continue;
    for (const auto& [other_flag, other] : given) {
      if (&other == &path) continue;
      const fs::path relative = place(path).lexically_relative(place(other));
      const bool same = relative == ".";
      const bool folder =
          other_flag == "--model" || other_flag == "--reference" || other_flag == "--golden";
      const bool in = folder && !relative.empty() && !same && *relative.begin() != "..";
      if (same || in)
        fail(errc::bad_input, "{} {} {} {} {}; results must not replace it", flag, path.string(),
             same ? "is the same as" : "lies inside", other_flag, other.string());
    }
  }
}

command_line::command_line()
    : app_(std::make_unique<CLI::App>("LongStraw: GRPO post-training on very long prompts.",
                                      "longstraw")) {
  app_->fallthrough();
  app_->require_subcommand(1);
  app_->set_version_flag("--version", [] { return version_lines(); });
  const auto config = std::make_shared<command_config>(*app_, places_);
  app_->set_config(
          "--config", "",
          "read options from a TOML file; [COMMAND] sections, or none for the command that runs")
      ->check(CLI::Validator(
          [config](std::string& path) {
            config->check(path);
            return std::string();
          },
          "FILE"));
  app_->config_formatter(config);
  app_->allow_config_extras(CLI::config_extras_mode::error);
  app_->footer("Run longstraw COMMAND --help for the options of a command.");
  global_ = std::make_unique<options>(*app_, given_, places_);
}

command_line::~command_line() = default;

options command_line::command(const std::string& name, const std::string& description,
                              std::function<int()> run) {
  CLI::App* at = app_.get();
  std::string word = name;
  if (const auto space = name.find(' '); space != std::string::npos) {
    const std::string outer = name.substr(0, space);
    word = name.substr(space + 1);
    at = app_->get_subcommand_ptr(outer).get();
  }
  CLI::App* made = at->add_subcommand(word, description);
  if (!run) {  // a word that only holds others
    made->require_subcommand(1);
    return options(*made, given_, places_);
  }
  made->footer(
      "Also before or after the command: --config FILE (the same options in TOML, without the "
      "dashes), --log LEVEL, "
      "--quiet.");
  made->final_callback([this, run = std::move(run)] {
    chosen_ = [given = given_, run] {
      check_results_apart(*given);
      return run();
    };
  });
  return options(*made, given_, places_);
}

std::function<int()> command_line::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& e) {  // help or version is asked for
    std::ostringstream text;
    app_->exit(e, text, text);
    text_output({}).write(text.str());
    return {};
  } catch (const CLI::ParseError& e) {
    if (app_->get_subcommands().empty() && !app_->remaining().empty()) {
      std::vector<std::string> names;
      for (const CLI::App* c : app_->get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(c->get_name());
      throw usage_error(fmt::format("there is no command \"{}\"; expected one of {}",
                                    app_->remaining().front(), joined(names, ", ")));
    }
    std::string sentence = e.what();
    std::replace(sentence.begin(), sentence.end(), '\n', ' ');
    std::string help = "longstraw";
    for (const CLI::App* at = app_.get(); !at->get_subcommands().empty();) {
      at = at->get_subcommands().front();
      help += " " + at->get_name();
    }
    throw usage_error(fmt::format("{}; see {} --help", sentence, help));
  }
  return chosen_;
}

}  // namespace longstraw::program
