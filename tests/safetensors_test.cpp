// The reader: what a sound file gives, and that every broken or hostile one is refused with a line that says why.
#include "formats/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "child_process.hpp"
#include "scaledmm/error.hpp"
#include "scratch_folder.hpp"

namespace scaledmm {
namespace {

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

// One tensor "t" of F32.
std::string f32(const std::string& shape, const std::string& offsets, std::size_t data_bytes) {
  return container("{" + entry("t", "F32", shape, offsets) + "}", filler(data_bytes));
}

// `count` tensors over the same bytes.
std::string stacked(std::size_t count, const std::string& shape, const std::string& offsets, std::size_t data_bytes) {
  std::string header = "{";
  for (std::size_t i = 0; i < count; ++i) {
    header += (i == 0 ? "" : ",") + entry("t" + std::to_string(i), "U8", shape, offsets);
  }
  return container(header + "}", filler(data_bytes));
}

struct HostileFile {
  std::string label;
  std::function<std::string()> bytes;
  std::vector<std::string> fragments;  // of the message
  std::uint64_t sparse_bytes = 0;      // the file is extended to this size
};

std::ostream& operator<<(std::ostream& out, const HostileFile& file) { return out << file.label; }

HostileFile hostile(std::string label, std::string bytes, std::vector<std::string> fragments,
                    std::uint64_t sparse_bytes = 0) {
  return {std::move(label), [bytes = std::move(bytes)] { return bytes; }, std::move(fragments), sparse_bytes};
}

// A header of one tensor "t" with these members.
HostileFile hostile_entry(std::string label, const std::string& members, std::vector<std::string> fragments) {
  fragments.push_back("\"t\"");
  return hostile(std::move(label), container(R"({"t":{)" + members + "}}", filler(4)), std::move(fragments));
}

std::vector<HostileFile> lengths() {
  return {
      hostile("EmptyFile", "", {"header too small", "0 bytes"}),
      hostile("SevenBytes", filler(7), {"header too small", "7 bytes"}),
      hostile("LengthOfAllOnes", framed(~std::uint64_t{0}, "{}", filler(6)),
              {"header too large", "18446744073709551615"}),
      hostile("LengthOf2To63", framed(std::uint64_t{1} << 63, "{}", filler(6)),
              {"header too large", "9223372036854775808"}),
      hostile("LengthOfTheFile", framed(16, "{}", filler(6)), {"invalid header length", "16 bytes", "has 8"}),
      hostile("LengthPastTheEnd", framed(100, "{}", filler(10)), {"invalid header length", "100 bytes", "has 12"}),
      hostile("LengthAboveTheLimit", framed(100'000'001, "{}", ""), {"header too large", "100000001", "100000000"},
              100'000'009),
      hostile("ZipArchive", std::string("PK\x03\x04\x00\x00\x08\x08\x00\x00", 10) + filler(200),
              {"not a safetensors file", "zip"}),
      hostile("Pickle", std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", 10) + filler(200),
              {"not a safetensors file", "pickle"}),
      hostile("ShortPickle", std::string("\x80\x04}\x94.", 5), {"not a safetensors file", "pickle"}),
      hostile("LfsPointer", "version https://git-lfs.github.com/spec/v1\n", {"not a safetensors file", "Git LFS"}),
  };
}

std::vector<HostileFile> headers() {
  return {
      hostile("HeaderOfOneBadByte", container("\xFF"), {"not a JSON object", "\\xff"}),
      hostile("HeaderOfOneBrace", container("{"), {"invalid JSON at byte 2"}),
      hostile("HeaderThatIsAnArray", container("[]"), {"not a JSON object"}),
      hostile("HeaderThatIsNull", container("null"), {"not a JSON object"}),
      hostile("HeaderWithoutAByte", container(""), {"not a JSON object", "empty"}),
      hostile("ByteOrderMark", container("\xEF\xBB\xBF{}"), {"not a JSON object"}),
      hostile("TextAfterTheObject", container("{}{}"), {"invalid JSON at byte 3"}),
      hostile("InvalidUtf8", container("{\"\xC3\x28\":{}}"), {"invalid JSON", "UTF-8"}),
      hostile("NulPadding", container(std::string("{}\0\0\0\0\0\0", 8)), {"byte 3", "NUL", "padded with spaces"}),
      hostile("ManyBrackets", container(std::string(100'000, '[')), {"not a JSON object"}),
      hostile("ManyBracketsInside", container(R"({"t":{"shape":)" + std::string(100'000, '[')), {"\"t\"", "an array"}),
      hostile("ManyBraces", container([] {
                std::string text;
                for (int i = 0; i < 100'000; ++i) text += R"({"t":)";
                return text;
              }()),
              {"\"t\"", "unknown member"}),
      hostile(
          "NameTwice",
          container("{" + entry("t", "F32", "[1]", "[0,4]") + "," + entry("t", "F32", "[1]", "[0,4]") + "}", filler(4)),
          {"\"t\"", "duplicate name"}),
      hostile("NameTwiceInOtherSpelling",
              container("{" + entry("t", "F32", "[1]", "[0,4]") + "," + entry("\\u0074", "F32", "[1]", "[4,8]") + "}",
                        filler(8)),
              {"\"t\"", "duplicate name"}),
      hostile("MetadataTwice", container(R"({"__metadata__":{},"__metadata__":{}})"),
              {"duplicate name", "__metadata__"}),
      hostile("MetadataMemberTwice", container(R"({"__metadata__":{"a":"1","a":"1"}})"), {"duplicate name", "\"a\""}),
      hostile("MetadataWithAnObject", container(R"({"__metadata__":{"a":{}}})"),
              {"__metadata__", "\"a\"", "not a string"}),
      hostile("MetadataWithANumber", container(R"({"__metadata__":{"a":1}})"),
              {"__metadata__", "\"a\"", "not a string"}),
      hostile("MetadataThatIsAString", container(R"({"__metadata__":"pt"})"), {"__metadata__", "instead of an object"}),
      hostile("EntryThatIsANumber", container(R"({"t":1})"), {"\"t\"", "instead of an object"}),
      hostile("NulInAName", container("{" + entry("a\\u0000b", "U8", "[0]", "[0,0]") + "}"), {"\"a\\u0000b\"", "NUL"}),
      hostile("ControlCharacterInAName", container("{" + entry("a\nb", "U8", "[0]", "[0,0]") + "}"), {"invalid JSON"}),
      hostile("InvalidEscapeInAName", container("{" + entry("a\\qb", "U8", "[0]", "[0,0]") + "}"), {"invalid JSON"}),
      hostile("LoneSurrogateInAName", container("{" + entry("\\ud800", "U8", "[0]", "[0,0]") + "}"), {"invalid JSON"}),
      hostile("NameOfAMegabyte", container("{" + entry(std::string(1 << 20, 'n'), "U8", "[0]", "[0,0]") + "}"),
              {"1048576", "4096"}),
      hostile("TerminalControlsAreEscaped",
              container("{" + entry("\\u001b[2J\\u009b", "U8", "[4]", "[0,1]") + "}", filler(1)),
              {"\"\\u001b[2J\\u009b\"", "invalid info"}),
  };
}

std::vector<HostileFile> entries() {
  return {
      hostile_entry("DtypeTwice", R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])",
                    {"duplicate name", "\"dtype\""}),
      hostile_entry("DtypeMissing", R"("shape":[1],"data_offsets":[0,4])", {"\"dtype\"", "missing"}),
      hostile_entry("ShapeMissing", R"("dtype":"F32","data_offsets":[0,4])", {"\"shape\"", "missing"}),
      hostile_entry("OffsetsMissing", R"("dtype":"F32","shape":[1])", {"\"data_offsets\"", "missing"}),
      hostile_entry("OneMemberMore", R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)",
                    {"unknown member", "\"x\""}),
      hostile_entry("DtypeThatIsANumber", R"("dtype":7,"shape":[1],"data_offsets":[0,4])",
                    {"dtype", "7", "not a string"}),
      hostile_entry("UnknownDtype", R"("dtype":"Q8","shape":[1],"data_offsets":[0,99999999])",
                    {"unknown dtype", "\"Q8\""}),
      hostile_entry("DtypeInLowerCase", R"("dtype":"f32","shape":[1],"data_offsets":[0,4])",
                    {"unknown dtype", "\"f32\""}),
      hostile_entry("RankOfNine", R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])",
                    {"more than 8 dimensions"}),
      hostile_entry("OffsetOfOneNumber", R"("dtype":"F32","shape":[1],"data_offsets":[0])",
                    {"data_offsets", "1 number", "2 are needed"}),
      hostile_entry("OffsetOfThreeNumbers", R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])",
                    {"data_offsets", "more than 2"}),
      hostile_entry("OffsetThatIsAString", R"("dtype":"F32","shape":[1],"data_offsets":["0",4])",
                    {"data_offsets", "integer"}),
      hostile_entry("OffsetNegative", R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])",
                    {"data_offsets", "-4", "non-negative"}),
      hostile_entry("OffsetFractional", R"("dtype":"F32","shape":[1],"data_offsets":[0,4.0])",
                    {"data_offsets", "4.0", "integer"}),
      hostile_entry("OffsetWithExponent", R"("dtype":"F32","shape":[1],"data_offsets":[0,4e0])",
                    {"data_offsets", "4e0", "integer"}),
      hostile_entry("OffsetOf65Bits", R"("dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551616])",
                    {"18446744073709551616", "64 bits"}),
      hostile("OffsetThatIsInfinite",
              container(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}})", filler(4)),
              {"invalid JSON at byte 55", "1e999"}),
      hostile_entry("ShapeNegative", R"("dtype":"F32","shape":[-1,4],"data_offsets":[0,4])",
                    {"shape", "-1", "non-negative"}),
      hostile_entry("ShapeFractional", R"("dtype":"F32","shape":[2.5],"data_offsets":[0,4])",
                    {"shape", "2.5", "integer"}),
      hostile_entry("ShapeWithExponent", R"("dtype":"F32","shape":[1e3],"data_offsets":[0,4])",
                    {"shape", "1e3", "integer"}),
      hostile_entry("ShapeThatIsANumber", R"("dtype":"F32","shape":1,"data_offsets":[0,4])", {"shape", "not an array"}),
      hostile_entry("ElementsPast64Bits", R"("dtype":"I32","shape":[2,18446744073709551614],"data_offsets":[0,4])",
                    {"validation overflow"}),
      hostile_entry("BytesPast64Bits", R"("dtype":"I32","shape":[2,9223372036854775807],"data_offsets":[0,4])",
                    {"validation overflow"}),
      hostile_entry("ProductThatWrapsToZero", R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[4,4])",
                    {"validation overflow"}),
      hostile_entry("BytesThatWrapToZero", R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])",
                    {"validation overflow"}),
      hostile_entry("OverflowBehindAZero", R"("dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0])",
                    {"validation overflow"}),
      hostile_entry("DimensionPast48Bits", R"("dtype":"U8","shape":[0,281474976710656],"data_offsets":[0,0])",
                    {"281474976710656", "281474976710655"}),
      hostile_entry("OddNumberOfHalfBytes", R"("dtype":"F4","shape":[3],"data_offsets":[0,2])",
                    {"misaligned", "12 bits"}),
  };
}

std::vector<HostileFile> layouts() {
  return {
      hostile("TenTensorsOverTheSameBytes", stacked(10, "[16]", "[0,16]", 16), {"invalid offset"}),
      {"HundredThousandTensorsOverOneByte", [] { return stacked(100'000, "[1]", "[0,1]", 1); }, {"invalid offset"}},
      hostile("Overlap",
              container("{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[4,12]") + "}",
                        filler(12)),
              {"\"b\"", "invalid offset", "byte 4", "at 8"}),
      hostile("Hole",
              container("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[8,12]") + "}",
                        filler(12)),
              {"\"b\"", "invalid offset", "byte 8", "at 4"}),
      hostile("FirstTensorAtEight", f32("[1]", "[8,12]", 12), {"\"t\"", "invalid offset", "byte 8", "at 0"}),
      hostile("BeginPastEnd", f32("[1]", "[8,4]", 8), {"\"t\"", "[8, 4]"}),
      hostile("MoreElementsThanBytes", f32("[1000,1000]", "[0,4]", 4), {"\"t\"", "4000000", "hold 4"}),
      hostile("WildOffsets", f32("[1]", "[0,9223372036854775807]", 4), {"\"t\"", "9223372036854775807"}),
      hostile("OffsetsPastTheFile", f32("[100]", "[0,400]", 16), {"\"t\"", "incomplete buffer", "400", "16"}),
      hostile("TrailingBytes", f32("[1]", "[0,4]", 8), {"incomplete buffer", "bytes not covered", "byte 4", "8 bytes"}),
      hostile("TrailingBytesWithoutATensor", container("{}", filler(3)), {"bytes not covered", "byte 0", "3 bytes"}),
      hostile("TwoBytesMissing", f32("[1]", "[0,4]", 2), {"\"t\"", "incomplete buffer", "byte 4", "2 bytes"}),
  };
}

class HostileSafetensors : public testing::TestWithParam<HostileFile> {};

// Empty when the file is refused as it should be, in both reading modes.
std::string judge(const std::filesystem::path& path, const std::vector<std::string>& fragments) {
  for (const bool use_mmap : {true, false}) {
    std::string message;
    try {
      SafetensorsFile::open(path, use_mmap);
      return "not refused";
    } catch (const CheckpointError& error) {
      message = error.what();
    }
    if (!message.starts_with(path.string() + ": ")) return "does not begin with the file: " + message;
    if (message.size() > 1000) return "too long: " + std::to_string(message.size());
    for (const char c : message) {
      if (static_cast<unsigned char>(c) < 0x20) return "control character in: " + message;
    }
    for (const std::string& fragment : fragments) {
      if (!contains(message, fragment)) return '"' + fragment + "\" is not in: " + message;
    }
  }
  return {};
}

TEST_P(HostileSafetensors, IsRefusedWithin64MiB) {
  const ScratchFolder folder;
  const auto path = folder.write("model.safetensors", GetParam().bytes());
  if (GetParam().sparse_bytes != 0) std::filesystem::resize_file(path, GetParam().sparse_bytes);
  EXPECT_EQ(judge(path, GetParam().fragments), "");
  const auto limited = [&] {
    limit_memory(std::uint64_t{64} << 20);
    return judge(path, GetParam().fragments);
  };
  EXPECT_EQ(run_in_child(limited), "");
}

TEST(HostileSafetensorsLimit, Holds) {
  if (kShadowMemory) GTEST_SKIP() << "a sanitizer's shadow memory does not fit under a limit of address space";
  const auto body = [] {
    limit_memory(std::uint64_t{64} << 20);
    try {
      const std::string text(std::size_t{65} << 20, 'x');
      return std::string("65 MiB were given");
    } catch (const std::bad_alloc&) {
      return std::string();
    }
  };
  EXPECT_EQ(run_in_child(body), "");
}

std::string label(const testing::TestParamInfo<HostileFile>& info) { return info.param.label; }
INSTANTIATE_TEST_SUITE_P(Length, HostileSafetensors, testing::ValuesIn(lengths()), label);
INSTANTIATE_TEST_SUITE_P(Header, HostileSafetensors, testing::ValuesIn(headers()), label);
INSTANTIATE_TEST_SUITE_P(Entry, HostileSafetensors, testing::ValuesIn(entries()), label);
INSTANTIATE_TEST_SUITE_P(Layout, HostileSafetensors, testing::ValuesIn(layouts()), label);

class Safetensors : public testing::TestWithParam<bool> {
 protected:
  SafetensorsFile open(const std::string& bytes) const {
    return SafetensorsFile::open(folder_.write("model.safetensors", bytes), GetParam());
  }
  ScratchFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Mode, Safetensors, testing::Bool(),
                         [](const auto& mode) { return std::string(mode.param ? "Mapped" : "Read"); });

TEST_P(Safetensors, ReadsTheWorkedExample) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b.weight_scale":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("a.weight":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[4,12]},)"
      R"("b.weight":{"dtype":"I8","shape":[2,2],"data_offsets":[12,16]}}    )";
  const SafetensorsFile file =
      open(container(header, std::string("\0\0\x80\x3f", 4) + "abcdefgh" + "\x01\x02\xff\x80"));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.tensors()[0].name, "a.weight");
  EXPECT_EQ(file.tensors()[1].name, "b.weight");
  EXPECT_EQ(file.tensors()[2].name, "b.weight_scale");

  const ConstTensorView scale = file.view(*file.find("b.weight_scale"));
  EXPECT_EQ(scale.dtype, DType::kF32);
  EXPECT_EQ(scale.shape, Shape({1}));
  EXPECT_EQ(*static_cast<const float*>(scale.data), 1.0F);
  const ConstTensorView fp8 = file.view(*file.find("a.weight"));
  EXPECT_EQ(fp8.dtype, DType::kE4M3FN);
  EXPECT_EQ(fp8.shape, Shape({2, 4}));
  EXPECT_EQ(std::memcmp(fp8.data, "abcdefgh", 8), 0);
  const ConstTensorView int8 = file.view(*file.find("b.weight"));
  EXPECT_EQ(static_cast<const std::int8_t*>(int8.data)[3], -128);
  EXPECT_EQ(file.find("b"), nullptr);
  EXPECT_EQ(file.find("z"), nullptr);

  const StoredTensor stored = file.stored(*file.find("a.weight"));
  EXPECT_EQ(stored.stored_dtype, "F8_E4M3");
  EXPECT_EQ(stored.size_bytes, 8U);
  EXPECT_EQ(stored.file, file.path());
}

TEST_P(Safetensors, ReadsAFileWithoutTensors) { EXPECT_TRUE(open(container("{}")).tensors().empty()); }

TEST_P(Safetensors, ReadsEmptyTensorsAndScalars) {
  const SafetensorsFile file =
      open(container("{" + entry("rows", "F32", "[2,0]", "[0,0]") + "," + entry("columns", "F32", "[0,16]", "[0,0]") +
                         "," + entry("last", "I8", "[0]", "[4,4]") + "," + entry("scalar", "I32", "[]", "[0,4]") + "}",
                     std::string("\x07\0\0\0", 4)));
  EXPECT_EQ(file.view(*file.find("rows")).shape, Shape({2, 0}));
  EXPECT_EQ(file.view(*file.find("columns")).shape, Shape({0, 16}));
  EXPECT_EQ(file.bytes(*file.find("last")).size(), 0U);
  EXPECT_EQ(file.view(*file.find("scalar")).shape.rank(), 0U);
  EXPECT_EQ(*static_cast<const std::int32_t*>(file.view(*file.find("scalar")).data), 7);
}

TEST_P(Safetensors, ReadsMisalignedDataAtAlignedAddresses) {
  for (std::size_t padding = 0; padding < 8; ++padding) {
    const std::string header = "{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "U8", "[1]", "[8,9]") + "," +
                               entry("c", "BF16", "[1]", "[9,11]") + "}" + std::string(padding, ' ');
    const SafetensorsFile file = open(container(header, std::string("\0\0\x80\x3f\0\0\0\x40\x07\x80\x3f", 11)));
    const ConstTensorView view = file.view(*file.find("a"));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 4, 0U);
    EXPECT_EQ(static_cast<const float*>(view.data)[0], 1.0F);
    EXPECT_EQ(static_cast<const float*>(view.data)[1], 2.0F);
    const ConstTensorView half = file.view(*file.find("c"));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(half.data) % 2, 0U);
    EXPECT_EQ(*static_cast<const std::uint16_t*>(half.data), 0x3F80);
    EXPECT_EQ(file.view(*file.find("a")).data, view.data) << "a second view is the same copy";
  }
}

TEST_P(Safetensors, AcceptsWhitespaceAroundTheHeader) {
  const SafetensorsFile file = open(container("\n\t {" + entry("a", "U8", "[1]", "[0,1]") + "}\r\n  ", filler(1)));
  EXPECT_EQ(file.tensors().size(), 1U);
}

TEST_P(Safetensors, TakesANameForAKeyAndNeverForAPath) {
  const SafetensorsFile file = open(container("{" + entry("../../etc/passwd", "U8", "[1]", "[0,1]") + "}", filler(1)));
  ASSERT_NE(file.find("../../etc/passwd"), nullptr);
  EXPECT_EQ(file.stored(file.tensors()[0]).file, file.path());
}

TEST_P(Safetensors, GivesBytesButNoViewOfTypesThatLayersDoNotUse) {
  const SafetensorsFile file = open(
      container("{" + entry("n", "I64", "[1]", "[0,8]") + "," + entry("p", "F4", "[2]", "[8,9]") + "}", filler(9)));
  EXPECT_EQ(file.bytes(*file.find("n")).size(), 8U);
  EXPECT_EQ(file.bytes(*file.find("p")).size(), 1U);
  EXPECT_FALSE(file.stored(*file.find("n")).dtype.has_value());
  const std::string message = message_of<CheckpointError>([&] { file.view(*file.find("n")); });
  EXPECT_TRUE(contains(message, "model.safetensors: tensor \"n\": dtype I64")) << message;
}

TEST_P(Safetensors, RefusesWhatIsNotARegularFile) {
  const bool use_mmap = GetParam();
  EXPECT_TRUE(contains(message_of<IoError>([&] { SafetensorsFile::open(folder_ / "absent", use_mmap); }),
                       "absent: cannot open"));
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { SafetensorsFile::open(folder_.path(), use_mmap); }), "not a regular file"));
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { SafetensorsFile::open("/dev/zero", use_mmap); }), "not a regular file"));
}

TEST(SafetensorsRead, ReportsAFileThatShrinksWhileItIsOpen) {
  const ScratchFolder folder;
  const auto path = folder.write("model.safetensors", f32("[2]", "[0,8]", 8));
  const SafetensorsFile file = SafetensorsFile::open(path, false);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 4);
  const std::string message = message_of<IoError>([&] { file.bytes(file.tensors()[0]); });
  EXPECT_TRUE(contains(message, path.string())) << message;
  EXPECT_TRUE(contains(message, "8 bytes expected")) << message;
  EXPECT_TRUE(contains(message, "after 4")) << message;
}

TEST(SafetensorsHeader, HasALimitOnTheNumberOfTensors) {
  std::string header = "{";
  for (std::size_t i = 0; i <= kMaxTensors; ++i) {
    header += (i == 0 ? "" : ",") + entry(std::to_string(i), "U8", "[0]", "[0,0]");
  }
  header += "}";
  ASSERT_LT(header.size(), kMaxHeaderBytes);
  const std::string message = message_of<CheckpointError>([&] { parse_safetensors_header(header, 0, "f"); });
  EXPECT_EQ(message, "f: more than 1000000 tensors");
}

// One change to a header: a byte, a piece cut out, a piece repeated, a number replaced.
void mutate(std::string& text, std::mt19937& random) {
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  static const std::vector<std::string> pieces = {
      "0",       "-1",   "1e3", "18446744073709551615", "4294967296", "[", "]", "{", "}", ",", ":", "\"",
      "\\u0000", "null", "F4",  "__metadata__",         "\xFF",       " "};
  const std::size_t at = below(text.size());
  switch (below(4)) {
    case 0:
      text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, 1 + below(12));
      break;
    case 2:
      text.insert(at, std::string(text.substr(below(text.size()), 1 + below(80))));
      break;
    default:
      text.replace(at, below(6), pieces[below(pieces.size())]);
  }
  if (text.empty()) text = "{";
}

TEST(SafetensorsHeader, LoadsOrRefusesEveryMutation) {
  const std::string base = R"({"__metadata__":{"format":"pt"},)" + entry("a", "F32", "[2,2]", "[0,16]") + "," +
                           entry("b", "I8", "[4]", "[16,20]") + "," + entry("c", "BF16", "[0,3]", "[20,20]") + "}  ";
  std::mt19937 random(20240607);
  int loaded = 0;
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = base;
    for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) mutate(text, random);
    try {
      const SafetensorsHeader header = parse_safetensors_header(text, 20, "fuzz");
      std::uint64_t covered = 0;
      for (const TensorEntry& tensor : header.tensors) covered += tensor.size_bytes();
      ASSERT_EQ(covered, 20U) << text;
      ++loaded;
    } catch (const CheckpointError& error) {
      ASSERT_TRUE(std::string_view(error.what()).starts_with("fuzz: ")) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 10'000);
}

}  // namespace
}  // namespace scaledmm
