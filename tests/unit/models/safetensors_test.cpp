#include "support/compare.hpp"
#include "support/files.hpp"

#include <longstraw/models/safetensors.hpp>

#include <cmath>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;

const std::string good_tensor = R"({"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";

/// Opens a file of that header and data size, and returns the sentence of the refusal.
std::string refusal(const std::string& header, std::size_t data_bytes) {
  temporary_folder folder;
  const auto path = write_file(folder / "x.safetensors", safetensors_bytes(header, data_bytes));
  const std::string sentence = failure_of([&] { safetensors_file file(path); });
  CHECK_THAT(sentence, ContainsSubstring("x.safetensors"));
  return sentence;
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

}  // namespace

TEST_CASE("what is written is read back bit for bit, in every float format", "[unit]") {
  temporary_folder folder;
  const auto values = random_values<float>(1000, 3);
  const std::vector<float> one{std::nanf("")};
  std::vector<tensor_source> tensors;
  tensors.push_back(from_floats("half", {10, 100}, values, dtype::f16));
  tensors.push_back(from_floats("brain \"float\"\xc3\xa9", {1000}, values, dtype::bf16));
  tensors.push_back(from_floats("full", {5, 2, 100}, values));
  tensors.push_back(from_floats("scalar", {}, one));
  tensors.push_back(from_floats("empty", {0, 4}, {}));
  write_safetensors(folder / "x.safetensors", tensors, {{"format", "pt"}});
  CHECK(names_in(folder.path()) == std::vector<std::string>{"x.safetensors"});

  const safetensors_file file(folder / "x.safetensors");
  CHECK(file.metadata().at("format") == "pt");
  CHECK(file.tensors().size() == 5);
  CHECK(file.find("full")->shape == std::vector<index>{5, 2, 100});
  CHECK(file.find("nothing") == nullptr);
  std::vector<float> read(1000);
  file.read_floats("full", read);
  CHECK(read == values);
  file.read_floats("half", read);
  CHECK(relative_error(read, values) < 1e-3);
  file.read_floats("brain \"float\"\xc3\xa9", read);
  CHECK(relative_error(read, values) < 1e-2);
  std::vector<float> scalar(1);
  file.read_floats("scalar", scalar);
  CHECK(std::isnan(scalar[0]));
  // Each tensor begins at a multiple of its element size.
  for (const auto& [name, info] : file.tensors()) CHECK(info.begin % bytes_of(info.type) == 0);
}

TEST_CASE("a tensor longer than a read block arrives whole", "[unit]") {
  temporary_folder folder;
  std::vector<float> values(700'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251);
  const std::vector tensors{
      from_floats("x", {static_cast<index>(values.size())}, values, dtype::bf16)};
  write_safetensors(folder / "x.safetensors", tensors);
  std::vector<float> read(values.size());
  safetensors_file(folder / "x.safetensors").read_floats("x", read);
  CHECK(read == values);
}

TEST_CASE("a header of megabytes loads", "[unit]") {
  temporary_folder folder;
  const std::vector<float> one{1.0f};
  std::vector<tensor_source> tensors;
  for (int i = 0; i < 20'000; ++i)
    tensors.push_back(from_floats(fmt::format("model.layers.{}.a_long_name.weight", i), {1}, one));
  write_safetensors(folder / "x.safetensors", tensors);
  CHECK(safetensors_file(folder / "x.safetensors").tensors().size() == 20'000);
}

TEST_CASE("a file too short for its header is refused before anything is allocated",
          "[unit][negative]") {
  temporary_folder folder;
  const auto open = [&](std::string_view bytes) {
    const auto path = write_file(folder / "x.safetensors", bytes);
    return failure_of([&] { safetensors_file file(path); });
  };
  CHECK_THAT(open(""), ContainsSubstring("has 0 bytes"));
  CHECK_THAT(open("1234567"), ContainsSubstring("has 7 bytes"));
  CHECK_THAT(open(std::string("\x10\0\0\0\0\0\0\0{}", 10)),
             ContainsSubstring("header of 16 bytes"));
  CHECK_THAT(open(std::string(8, '\xff') + "{}"), ContainsSubstring("18446744073709551615"));
  CHECK_THAT(open(std::string(8, '\0')), ContainsSubstring("not JSON"));
}

TEST_CASE("a header that is not the format's JSON is refused", "[unit][negative]") {
  CHECK_THAT(refusal("{", 0), ContainsSubstring("not JSON"));
  CHECK_THAT(refusal("[]", 0), ContainsSubstring("expected a JSON object"));
  CHECK_THAT(refusal("{\"a\":" + good_tensor + "} x", 16), ContainsSubstring("not JSON"));
  CHECK_THAT(refusal("{\"\xff\":" + good_tensor + "}", 16), ContainsSubstring("not JSON"));
  CHECK_THAT(refusal(R"({"a":3})", 0), ContainsSubstring("tensor \"a\" is 3"));
  CHECK_THAT(refusal(R"({"a":{}})", 0), ContainsSubstring("has no dtype"));
  CHECK_THAT(refusal(R"({"a":{"dtype":7}})", 0), ContainsSubstring("dtype 7"));
  CHECK_THAT(refusal(R"({"a":{"dtype":"F32","colour":1}})", 0), ContainsSubstring("\"colour\""));
  CHECK_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), ContainsSubstring("expected a text"));
  CHECK_THAT(refusal(tensor("F33", "[1]", "[0,4]"), 4), ContainsSubstring("\"F33\""));
  CHECK_THAT(refusal(tensor("F32", "[-1]", "[0,4]"), 4), ContainsSubstring("-1"));
  CHECK_THAT(refusal(tensor("F32", "[1.5]", "[0,4]"), 4), ContainsSubstring("1.5"));
  CHECK_THAT(refusal(tensor("F32", "[[1]]", "[0,4]"), 4), ContainsSubstring("an array"));
  CHECK_THAT(refusal(tensor("F32", "[1]", "[0]"), 4), ContainsSubstring("1 data_offsets"));
  CHECK_THAT(refusal(tensor("F32", "[1]", "[0,4,8]"), 4), ContainsSubstring("more than two"));
  CHECK_THAT(refusal(std::string(1'000'000, '['), 0), ContainsSubstring("header"));
  CHECK_THAT(refusal("{\"a\":" + std::string(1'000'000, '{'), 0), ContainsSubstring("header"));
}

TEST_CASE("names that appear twice are refused", "[unit][negative]") {
  CHECK_THAT(refusal("{\"a\":" + good_tensor + ",\"a\":" + good_tensor + "}", 16),
             ContainsSubstring("tensor \"a\" is there twice"));
  CHECK_THAT(refusal(R"({"__metadata__":{"k":"1","k":"2"}})", 0), ContainsSubstring("twice"));
  CHECK_THAT(refusal(R"({"__metadata__":{},"__metadata__":{}})", 0), ContainsSubstring("twice"));
  CHECK_THAT(refusal(R"({"a":{"dtype":"F32","dtype":"F32"}})", 0), ContainsSubstring("each once"));
}

TEST_CASE("byte ranges that do not fit shape, file or each other are refused", "[unit][negative]") {
  CHECK_THAT(refusal(tensor("F32", "[2]", "[0,4]"), 4), ContainsSubstring("expected 8"));
  CHECK_THAT(refusal(tensor("F32", "[1]", "[4,0]"), 4), ContainsSubstring("begin <= end"));
  CHECK_THAT(refusal(tensor("F32", "[2]", "[0,8]"), 4), ContainsSubstring("has 4 bytes of data"));
  CHECK_THAT(refusal(tensor("F32", "[1]", "[4,8]"), 8), ContainsSubstring("bytes 0 to 4"));
  CHECK_THAT(refusal(tensor("F32", "[1]", "[0,4]"), 8), ContainsSubstring("end at byte 4"));
  const std::string two = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                          R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  CHECK_THAT(refusal(two, 12), ContainsSubstring("overlap at byte 4"));
  CHECK_THAT(refusal(tensor("F32", "[4294967296,4294967296,4294967296]", "[0,4]"), 4),
             ContainsSubstring("more than 64 bits"));
  CHECK_THAT(refusal(tensor("F32", "[4611686018427387904,4,0]", "[0,0]"), 0),
             ContainsSubstring("more than 64 bits"));
  CHECK_THAT(refusal(tensor("F32", "[18446744073709551615]", "[0,4]"), 4),
             ContainsSubstring("63 bits"));
  CHECK_THAT(refusal(tensor("F32", "[1]", "[0,99999999999999999999999]"), 4),
             ContainsSubstring("data_offsets"));
}

TEST_CASE("reading with the wrong size or type is refused", "[unit][negative]") {
  temporary_folder folder;
  const auto path =
      write_file(folder / "x.safetensors", safetensors_bytes(tensor("I64", "[2]", "[0,16]"), 16));
  const safetensors_file file(path);
  std::vector<float> floats(2);
  std::vector<std::int64_t> integers(3);
  CHECK_THAT(failure_of([&] { file.read_floats("a", floats); }), ContainsSubstring("dtype I64"));
  CHECK_THAT(failure_of([&] { file.read_integers("a", integers); }),
             ContainsSubstring("expected 3 values"));
  CHECK_THAT(failure_of([&] { file.read_floats("b", floats); }), ContainsSubstring("missing"));
}

TEST_CASE("what is no regular file is refused without waiting for it", "[unit][negative]") {
  temporary_folder folder;
  CHECK_THAT(failure_of([&] { safetensors_file file(folder.path()); }),
             ContainsSubstring("a folder"));
  CHECK_THAT(failure_of([&] { safetensors_file file("/dev/zero"); }),
             ContainsSubstring("not a regular file"));
  CHECK_THAT(failure_of([&] { safetensors_file file(folder / "none"); }, errc::io_failed),
             ContainsSubstring("No such file"));
}

TEST_CASE("a write that fails leaves neither a file nor a partial one", "[unit][negative]") {
  temporary_folder folder;
  tensor_source broken;
  broken.name = "x";
  broken.shape = {4};
  broken.fill = [](std::uint64_t, std::span<std::byte>) { fail(errc::io_failed, "no more"); };
  failure_of([&] { write_safetensors(folder / "x.safetensors", std::span(&broken, 1)); },
             errc::io_failed);
  CHECK(names_in(folder.path()).empty());
  CHECK_THAT(
      failure_of([&] { write_safetensors(folder / "no" / "x.safetensors", {}); }, errc::io_failed),
      ContainsSubstring("No such file"));
}

}  // namespace longstraw::models
