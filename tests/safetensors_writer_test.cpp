// The writer: the bytes it gives, the order it asks for, and that a failure leaves nothing behind.
#include "formats/safetensors_writer.hpp"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "child_process.hpp"
#include "formats/safetensors.hpp"
#include "scaledmm/error.hpp"
#include "scratch_folder.hpp"

namespace scaledmm {
namespace {

std::span<const std::byte> as_span(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TensorDeclaration declare(std::string name, std::string_view dtype, const Shape& shape) {
  return {std::move(name), find_stored_dtype(dtype), shape};
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(SafetensorsWriter, WritesTheWorkedExampleByteForByte) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "out.safetensors",
                           {declare("a.weight", "F8_E4M3", {2, 4}), declare("b.weight", "I8", {2, 2}),
                            declare("b.weight_scale", "F32", {1})});
  EXPECT_EQ(writer.data_bytes(), 16U);
  const std::string scale("\0\0\x80\x3f", 4);
  writer.write("b.weight_scale", as_span(scale));
  writer.write("a.weight", as_span("abcdefgh"));
  writer.write("b.weight", as_span("wxyz"));
  writer.finish();
  std::string expected("\xe8\0\0\0\0\0\0\0", 8);
  expected += R"({"__metadata__":{"format":"pt"},"b.weight_scale":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
              R"("a.weight":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[4,12]},)"
              R"("b.weight":{"dtype":"I8","shape":[2,2],"data_offsets":[12,16]}}    )";
  expected += scale;
  expected += "abcdefghwxyz";
  EXPECT_EQ(expected.size(), 256U);
  EXPECT_EQ(read_bytes(folder / "out.safetensors"), expected);
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(SafetensorsWriter, OrdersByTypeThenByName) {
  const ScratchFolder folder;
  const std::vector<std::string> descending = {
      "U64",         "I64",         "F64",     "C64",     "F32",     "U32", "I32", "BF16",    "F16",     "U16", "I16",
      "F8_E5M2FNUZ", "F8_E4M3FNUZ", "F8_E8M0", "F8_E4M3", "F8_E5M2", "I8",  "U8",  "F6_E3M2", "F6_E2M3", "F4",  "BOOL"};
  std::vector<TensorDeclaration> tensors;
  for (auto it = descending.rbegin(); it != descending.rend(); ++it) {
    tensors.push_back(declare("y", *it, {8}));
    tensors.back().name += *it;
    tensors.push_back(declare("x", *it, {8}));
    tensors.back().name += *it;
  }
  const SafetensorsWriter writer(folder / "out.safetensors", tensors);
  ASSERT_EQ(writer.order().size(), 2 * descending.size());
  for (std::size_t i = 0; i < descending.size(); ++i) {
    EXPECT_EQ(writer.order()[2 * i].name, "x" + descending[i]);
    EXPECT_EQ(writer.order()[2 * i + 1].name, "y" + descending[i]);
  }
}

TEST(SafetensorsWriter, IsReadBackWithEveryTypeShapeAndName) {
  const ScratchFolder folder;
  const std::vector<TensorDeclaration> tensors = {declare("plain", "BF16", {3, 5}),
                                                  declare("quote\"back\\slash\x01\xC3\xA9", "F32", {2}),
                                                  declare("empty", "F16", {0, 7}),
                                                  declare("scalar", "I32", {}),
                                                  declare("rank8", "U8", {1, 2, 1, 2, 1, 2, 1, 2}),
                                                  declare("half", "F4", {4}),
                                                  declare("", "I64", {1}),
                                                  declare("last", "BOOL", {3})};
  const auto path = folder / "out.safetensors";
  const std::map<std::string, std::string> metadata = {{"made by", "a \"test\""}, {"format", "np"}};
  SafetensorsWriter writer(path, tensors, metadata);
  std::map<std::string, std::string> contents;
  for (const TensorDeclaration& tensor : writer.order()) {
    std::string data;
    for (std::uint64_t i = 0; i < tensor.size_bytes; ++i) data += static_cast<char>(31 * contents.size() + i);
    // In pieces.
    writer.write(tensor.name, as_span(data.substr(0, data.size() / 3)));
    writer.write(tensor.name, as_span(data.substr(data.size() / 3)));
    contents[tensor.name] = data;
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "before finish()";
  writer.finish();

  for (const bool use_mmap : {true, false}) {
    const SafetensorsFile file = SafetensorsFile::open(path, use_mmap);
    EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"made by", "a \"test\""}}));
    ASSERT_EQ(file.tensors().size(), tensors.size());
    for (const TensorDeclaration& tensor : tensors) {
      const TensorEntry* entry = file.find(tensor.name);
      ASSERT_NE(entry, nullptr) << tensor.name;
      EXPECT_EQ(entry->stored, tensor.stored);
      EXPECT_EQ(entry->shape, tensor.shape);
      EXPECT_EQ(text_of(file.bytes(*entry)), contents[tensor.name]);
      // Natural alignment of the file, not of a copy.
      EXPECT_EQ(entry->begin % std::max(1U, tensor.stored->bits / 8), 0U);
    }
  }
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(SafetensorsWriter, StartsDataAtAMultipleOfEight) {
  const ScratchFolder folder;
  for (std::size_t length = 0; length < 9; ++length) {
    const auto path = folder / "out.safetensors";
    SafetensorsWriter writer(path, {declare(std::string(length, 'n'), "U8", {0})});
    writer.finish();
    EXPECT_EQ(std::filesystem::file_size(path) % 8, 0U);
    EXPECT_EQ(SafetensorsFile::open(path).tensors().size(), 1U);
  }
}

TEST(SafetensorsWriter, RefusesBadDeclarations) {
  const ScratchFolder folder;
  const auto refusal = [&](std::vector<TensorDeclaration> tensors) {
    return message_of<InvalidArgument>([&] { SafetensorsWriter(folder / "out.safetensors", std::move(tensors)); });
  };
  EXPECT_TRUE(contains(refusal({declare("a", "F32", {1}), declare("a", "I8", {1})}), "\"a\": duplicate name"));
  EXPECT_TRUE(contains(refusal({declare("__metadata__", "F32", {1})}), "__metadata__"));
  EXPECT_TRUE(contains(refusal({declare(std::string(4097, 'n'), "F32", {1})}), "4097 bytes, the limit is 4096"));
  EXPECT_TRUE(contains(refusal({declare(std::string("a\0b", 3), "F32", {1})}), "NUL"));
  EXPECT_TRUE(contains(refusal({declare("\xFF", "F32", {1})}), "\"\\xff\" is not UTF-8"));
  EXPECT_TRUE(contains(refusal({declare("a", "F4", {3})}), "misaligned"));
  EXPECT_TRUE(contains(refusal({declare("a", "F32", {std::int64_t{1} << 40, std::int64_t{1} << 40})}), "overflow"));
  EXPECT_TRUE(contains(refusal({declare("a", "Q8", {1})}), "no dtype"));
  EXPECT_EQ(folder.entries(), 0U);
}

TEST(SafetensorsWriter, RefusesBytesOutOfOrderAndOfTheWrongNumber) {
  const ScratchFolder folder;
  const std::string text = "12345";
  {
    SafetensorsWriter writer(folder / "out.safetensors", {declare("a", "F32", {1}), declare("b", "F32", {1})});
    EXPECT_TRUE(
        contains(message_of<InvalidArgument>([&] { writer.write("b", as_span(text).first(4)); }), "\"a\" is next"));
    EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { writer.write("a", as_span(text)); }),
                         "5 bytes, its shape [1] of F32 takes 4"));
    writer.write("a", as_span(text).first(4));
    writer.write("b", as_span(text).first(3));
    EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { writer.finish(); }), "\"b\": 3 of 4 bytes written"));
    writer.write("b", as_span(text).first(1));
    EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { writer.write("b", as_span(text).first(1)); }), "complete"));
    EXPECT_EQ(folder.entries(), 1U) << "the temporary file";
  }
  EXPECT_EQ(folder.entries(), 0U) << "not finished, so nothing is left";
}

TEST(SafetensorsWriter, ReplacesAFileThatAReaderHasMapped) {
  const ScratchFolder folder;
  const auto path = folder / "out.safetensors";
  const auto write = [&](const std::string& data) {
    SafetensorsWriter writer(path, {declare("a", "U8", {4})});
    writer.write("a", as_span(data));
    writer.finish();
  };
  write("old!");
  const SafetensorsFile before = SafetensorsFile::open(path);
  write("new!");
  EXPECT_EQ(text_of(before.bytes(before.tensors()[0])), "old!");
  const SafetensorsFile after = SafetensorsFile::open(path);
  EXPECT_EQ(text_of(after.bytes(after.tensors()[0])), "new!");
}

TEST(SafetensorsWriter, ReportsAFullDiskAndLeavesTheOldFile) {
  const ScratchFolder folder;
  const auto path = folder.write("out.safetensors", "old");
  const auto body = [&]() -> std::string {
    limit_file_size(4096);
    SafetensorsWriter writer(path, {declare("a", "U8", {10'000})});
    const std::string data(10'000, 'x');
    try {
      writer.write("a", as_span(data));
      writer.finish();
    } catch (const IoError& error) {
      return contains(error.what(), path.string() + ": cannot write: File too large") ? "" : error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(run_in_child([&] { return body(); }), "");
  EXPECT_EQ(folder.entries(), 1U);
  EXPECT_EQ(read_bytes(path), "old");
}

TEST(SafetensorsWriter, NamesAFolderThatIsNotThere) {
  const ScratchFolder folder;
  const std::string message =
      message_of<IoError>([&] { SafetensorsWriter(folder / "absent/out.safetensors", {declare("a", "U8", {1})}); });
  EXPECT_TRUE(contains(message, "absent/out.safetensors: cannot create: No such file")) << message;
}

TEST(AtomicFile, LeavesADestinationThatCannotBeReplaced) {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "out/full");
  EXPECT_TRUE(
      contains(message_of<IoError>([&] { write_file(folder / "out", "text"); }), "out: is there and not a regular"));
  EXPECT_EQ(folder.entries(), 1U);
}

TEST(AtomicFile, FollowsALink) {
  const ScratchFolder folder;
  folder.write("real", "old");
  std::filesystem::create_symlink("real", folder / "link");
  write_file(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_bytes(folder / "real"), "new");
}

TEST(AtomicDirectory, AppearsWholeOrNotAtAll) {
  const ScratchFolder folder;
  const auto destination = folder / "out/";
  {
    const AtomicDirectory directory(destination);
    write_file(directory.path() / "a", "1");
    std::filesystem::create_directory(directory.path() / "deep");
  }
  EXPECT_EQ(folder.entries(), 0U);
  {
    AtomicDirectory directory(destination);
    write_file(directory.path() / "a", "1");
    EXPECT_FALSE(std::filesystem::exists(destination));
    directory.commit();
  }
  EXPECT_EQ(read_bytes(folder / "out/a"), "1");
  EXPECT_EQ(folder.entries(), 1U);
  EXPECT_TRUE(
      contains(message_of<InvalidArgument>([&] { AtomicDirectory again(destination); }), "out: exists already"));
  std::filesystem::create_symlink("nowhere", folder / "link");
  EXPECT_TRUE(contains(message_of<InvalidArgument>([&] { AtomicDirectory again(folder / "link"); }), "exists already"));
}

TEST(AtomicDirectory, GivesWayToADestinationThatAppearsMeanwhile) {
  const ScratchFolder folder;
  {
    AtomicDirectory directory(folder / "out");
    write_file(directory.path() / "a", "mine");
    std::filesystem::create_directory(folder / "out");
    folder.write("out/a", "theirs");
    EXPECT_TRUE(contains(message_of<IoError>([&] { directory.commit(); }), "out: cannot rename"));
  }
  EXPECT_EQ(read_bytes(folder / "out/a"), "theirs");
  EXPECT_EQ(folder.entries(), 1U);
}

}  // namespace
}  // namespace scaledmm
