// Which files of a folder are opened, the rules of the shard index, and the JSON reader beneath it.
#include "formats/shard_index.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "child_process.hpp"
#include "formats/json.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"
#include "scratch_folder.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;

// A file of one-byte tensors with these names, one letter each.
std::string weights(std::string_view names) {
  std::string header = "{";
  for (std::size_t i = 0; i < names.size(); ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::string(1, names[i]) + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
              std::to_string(i) + "," + std::to_string(i + 1) + "]}";
  }
  return container(header + "}", names);
}

std::string index_of(std::string_view weight_map, std::string_view metadata = "{}") {
  return R"({"metadata":)" + std::string(metadata) + R"(,"weight_map":{)" + std::string(weight_map) + "}}";
}

std::string refusal(const fs::path& folder, const WeightFileOptions& options = {}) {
  const std::string message = message_of<CheckpointError>([&] { open_weight_files(folder, options); });
  EXPECT_TRUE(message.starts_with(folder.string())) << message;
  EXPECT_FALSE(contains(message, "\n")) << message;
  return message;
}

char value_of(const WeightFiles& files, std::string_view name) {
  const TensorLocation* location = files.find(name);
  return location == nullptr ? '?' : static_cast<char>(files.files[location->file].bytes(*location->entry)[0]);
}

TEST(WeightFiles, PrefersTheIndexAndOpensOnlyWhatItNames) {
  const ScratchFolder folder;
  folder.write("model-00001-of-00002.safetensors", weights("ac"));
  folder.write("model-00002-of-00002.safetensors", weights("b"));
  folder.write("model.safetensors", "broken");
  folder.write("consolidated.safetensors", "broken");
  folder.write("model.safetensors.index.json",
               index_of(R"("a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors",
                           "c":"model-00001-of-00002.safetensors")",
                        R"({"total_size":3})"));
  const WeightFiles files = open_weight_files(folder.path());
  EXPECT_EQ(files.files.size(), 2U);
  EXPECT_EQ(files.tensors.size(), 3U);
  for (const char name : {'a', 'b', 'c'}) EXPECT_EQ(value_of(files, std::string(1, name)), name);
  EXPECT_EQ(files.find("d"), nullptr);
  EXPECT_TRUE(files.warnings.empty()) << files.warnings[0];
}

TEST(WeightFiles, PrefersTheUsualNameWithoutAnIndex) {
  const ScratchFolder folder;
  folder.write("model.safetensors", weights("m"));
  folder.write("other.safetensors", weights("o"));
  EXPECT_EQ(value_of(open_weight_files(folder.path()), "m"), 'm');
}

TEST(WeightFiles, TakesTheOneOtherFile) {
  const ScratchFolder folder;
  folder.write("other.safetensors", weights("o"));
  folder.write("consolidated.safetensors", "broken");
  folder.write("pytorch_model.bin", "pickle");
  EXPECT_EQ(value_of(open_weight_files(folder.path()), "o"), 'o');
}

TEST(WeightFiles, ListsWhatIsThereWhenNothingFits) {
  const ScratchFolder folder;
  const auto absent = [&] { return message_of<IoError>([&] { open_weight_files(folder.path()); }); };
  EXPECT_TRUE(contains(absent(), "found nothing"));
  folder.write("pytorch_model.bin", "pickle");
  folder.write("consolidated.safetensors", weights("c"));
  std::string message = absent();
  EXPECT_TRUE(contains(message, "0 other .safetensors files")) << message;
  EXPECT_TRUE(contains(message, R"(found "consolidated.safetensors", "pytorch_model.bin")")) << message;
  folder.write("a.safetensors", weights("a"));
  folder.write("b\n.safetensors", weights("b"));
  message = refusal(folder.path());
  EXPECT_TRUE(contains(message, "2 other .safetensors files")) << message;
  EXPECT_TRUE(contains(message, R"("b\n.safetensors")")) << message;
}

TEST(WeightFiles, NamesAFolderThatIsNotThere) {
  const ScratchFolder folder;
  EXPECT_TRUE(contains(message_of<IoError>([&] { open_weight_files(folder / "absent"); }),
                       "absent: cannot open: No such file"));
  const fs::path file = folder.write("file", "");
  EXPECT_TRUE(contains(message_of<IoError>([&] { open_weight_files(file); }), "file: cannot list: Not a directory"));
}

TEST(WeightFiles, RefusesIndexedNamesThatAreNotBareFileNames) {
  for (const std::string name :
       {"/etc/passwd", "/x.safetensors", "../x.safetensors", "sub/x.safetensors", "..", ".safetensors", "x.bin",
        "x.safetensors.bin", "", "..\\\\x.safetensors", "x\\u0000.safetensors"}) {
    const ScratchFolder folder;
    fs::create_directory(folder / "sub");
    folder.write("sub/x.safetensors", weights("a"));
    folder.write("model.safetensors.index.json", index_of("\"a\":\"" + name + "\""));
    const std::string message = refusal(folder.path());
    EXPECT_TRUE(contains(message, "index.json: weight_map: tensor \"a\"")) << message;
    EXPECT_TRUE(contains(message, "not a file name that ends in .safetensors")) << message;
  }
}

TEST(WeightFiles, RefusesABrokenIndex) {
  const ScratchFolder folder;
  const auto refused = [&](const std::string& text) {
    folder.write("model.safetensors.index.json", text);
    return refusal(folder.path());
  };
  EXPECT_TRUE(contains(refused("[]"), "no weight_map"));
  EXPECT_TRUE(contains(refused(R"({"metadata":{}})"), "no weight_map"));
  EXPECT_TRUE(contains(refused(R"({"weight_map":[]})"), "no weight_map, or not an object"));
  EXPECT_TRUE(contains(refused(index_of("")), "weight_map is empty"));
  EXPECT_TRUE(contains(refused(index_of(R"("a":1)")), "tensor \"a\": not a string"));
  EXPECT_TRUE(contains(refused(index_of(R"("a":"x.safetensors","a":"y.safetensors")")), "duplicate name \"a\""));
  EXPECT_TRUE(contains(refused(R"({"weight_map":)"), "invalid JSON at byte 15"));
  EXPECT_TRUE(contains(refused(std::string("{}\0", 3)), "invalid JSON at byte 3: NUL byte"));

  std::string many;
  for (std::size_t i = 0; i <= kMaxShards; ++i) {
    many += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"" + std::to_string(i) + ".safetensors\"";
  }
  EXPECT_TRUE(contains(refused(index_of(many)), "more than 10000 files"));
}

TEST(WeightFiles, RefusesATensorThatIsNotWhereTheIndexSays) {
  const ScratchFolder folder;
  folder.write("x.safetensors", weights("a"));
  folder.write("model.safetensors.index.json", index_of(R"("a":"x.safetensors","b":"x.safetensors")"));
  EXPECT_TRUE(contains(refusal(folder.path()), "index.json: tensor \"b\" is not in \"x.safetensors\""));
}

TEST(WeightFiles, RefusesABrokenShard) {
  const ScratchFolder folder;
  folder.write("x.safetensors", "short");
  folder.write("model.safetensors.index.json", index_of(R"("a":"x.safetensors")"));
  EXPECT_TRUE(contains(refusal(folder.path()), "x.safetensors: header too small"));
  fs::remove(folder / "x.safetensors");
  fs::create_directory(folder / "x.safetensors");
  const auto unread = [&] { return message_of<IoError>([&] { open_weight_files(folder.path()); }); };
  EXPECT_TRUE(contains(unread(), "x.safetensors: cannot read: not a regular file"));
  fs::remove(folder / "x.safetensors");
  EXPECT_TRUE(contains(unread(), "index.json: file \"x.safetensors\" does not exist"));
}

TEST(WeightFiles, NotesWhatTheIndexLeavesOutAndAStaleTotal) {
  const ScratchFolder folder;
  folder.write("x.safetensors", weights("abz"));
  folder.write("y.safetensors", weights("b"));
  folder.write("model.safetensors.index.json",
               index_of(R"("a":"x.safetensors","b":"y.safetensors")", R"({"total_size":9})"));
  const WeightFiles files = open_weight_files(folder.path());
  EXPECT_EQ(files.tensors.size(), 2U);
  EXPECT_EQ(files.find("z"), nullptr);
  EXPECT_EQ(files.files[files.find("b")->file].path(), folder / "y.safetensors");
  ASSERT_EQ(files.warnings.size(), 2U);
  EXPECT_TRUE(contains(files.warnings[0], "x.safetensors: 2 tensors are ignored")) << files.warnings[0];
  EXPECT_TRUE(contains(files.warnings[1], "total_size is 9, the tensors have 4 bytes")) << files.warnings[1];
}

TEST(WeightFiles, IgnoresOtherMembersOfTheIndex) {
  const ScratchFolder folder;
  folder.write("x.safetensors", weights("a"));
  for (const std::string metadata :
       {"null", "{}", R"({"total_size":"1"})", R"({"total_size":1,"total_parameters":1})"}) {
    folder.write("model.safetensors.index.json", index_of(R"("a":"x.safetensors")", metadata));
    EXPECT_TRUE(open_weight_files(folder.path()).warnings.empty()) << metadata;
  }
}

TEST(WeightFiles, FollowsLinksInsideTheFolderAndIntoAHubCache) {
  const ScratchFolder folder;
  fs::create_directories(folder / "models--a--b/blobs");
  fs::create_directories(folder / "models--a--b/snapshots/1");
  const fs::path snapshot = folder / "models--a--b/snapshots/1";
  folder.write("models--a--b/blobs/0123", weights("a"));
  folder.write("models--a--b/blobs/4567", index_of(R"("a":"x.safetensors","b":"y.safetensors")"));
  folder.write("models--a--b/snapshots/1/real.safetensors", weights("b"));
  fs::create_symlink("../../blobs/0123", snapshot / "x.safetensors");
  fs::create_symlink("../../blobs/4567", snapshot / "model.safetensors.index.json");
  fs::create_symlink("real.safetensors", snapshot / "y.safetensors");
  const WeightFiles files = open_weight_files(snapshot);
  EXPECT_EQ(value_of(files, "a"), 'a');
  EXPECT_EQ(value_of(files, "b"), 'b');

  fs::create_directory_symlink(snapshot, folder / "link");
  EXPECT_EQ(open_weight_files(folder / "link").tensors.size(), 2U) << "the folder itself may be a link";

  WeightFileOptions options;
  options.follow_symlinks = false;
  EXPECT_TRUE(contains(refusal(snapshot, options), "links are not to be followed"));
}

TEST(WeightFiles, RefusesLinksOutOfTheFolderAndIntoNothing) {
  const ScratchFolder folder;
  fs::create_directory(folder / "model");
  fs::create_directory(folder / "model2");
  folder.write("model2/secret.safetensors", weights("a"));
  folder.write("model/model.safetensors.index.json", index_of(R"("a":"x.safetensors")"));
  fs::create_symlink("../model2/secret.safetensors", folder / "model/x.safetensors");
  std::string message = refusal(folder / "model");
  EXPECT_TRUE(contains(message, "x.safetensors: a symbolic link out of the folder")) << message;

  fs::remove(folder / "model/x.safetensors");
  fs::create_symlink("/etc/passwd", folder / "model/x.safetensors");
  message = refusal(folder / "model");
  EXPECT_TRUE(contains(message, "out of the folder, to \"/etc/passwd\"")) << message;

  fs::remove(folder / "model/x.safetensors");
  fs::create_symlink("nowhere", folder / "model/x.safetensors");
  message = message_of<IoError>([&] { open_weight_files(folder / "model"); });
  EXPECT_TRUE(contains(message, "x.safetensors: cannot follow the link: No such file")) << message;

  fs::remove(folder / "model/model.safetensors.index.json");
  EXPECT_TRUE(contains(message_of<IoError>([&] { open_weight_files(folder / "model"); }),
                       "x.safetensors: cannot follow the link"));
}

TEST(ShardIndex, IsReadBackAsItWasWritten) {
  const ScratchFolder folder;
  ShardIndex index;
  index.total_size = 16'060'522'496;
  index.weight_map = {{"b", shard_file_name(2, 12)}, {"a\"\n\xC3\xA9", shard_file_name(1, 12)}};
  const fs::path path = folder / "model.safetensors.index.json";
  write_shard_index(path, index);
  EXPECT_EQ(read_bytes(path),
            "{\n  \"metadata\": {\n    \"total_size\": 16060522496\n  },\n  \"weight_map\": {\n"
            "    \"a\\\"\\n\xC3\xA9\": \"model-00001-of-00012.safetensors\",\n"
            "    \"b\": \"model-00002-of-00012.safetensors\"\n  }\n}\n");
  const ShardIndex read = read_shard_index(path);
  EXPECT_EQ(read.weight_map, index.weight_map);
  EXPECT_EQ(read.total_size, index.total_size);
}

TEST(Json, KeepsTheOrderOfMembers) {
  const Json json = parse_json(R"({"z":{"b":1,"a":[true,null,"x",-2,0.5]},"a":18446744073709551615})", "f");
  EXPECT_EQ(json.dump(), R"({"z":{"b":1,"a":[true,null,"x",-2,0.5]},"a":18446744073709551615})");
  ASSERT_NE(find_member(json, "z"), nullptr);
  EXPECT_EQ(find_member(*find_member(json, "z"), "c"), nullptr);
  EXPECT_EQ(find_member(*find_member(json, "a"), "c"), nullptr) << "not an object";
}

TEST(Json, RefusesDuplicateNamesAtAnyDepth) {
  EXPECT_EQ(message_of<CheckpointError>([] { parse_json(R"({"a":[{"b":1,"b":2}]})", "dir/f.json"); }),
            "dir/f.json: duplicate name \"b\"");
  EXPECT_EQ(parse_json(R"([{"b":1},{"b":1}])", "f").size(), 2U);
}

TEST(Json, SaysWhichByteIsWrong) {
  const std::string message = message_of<CheckpointError>([] { parse_json("{\"a\": nul}", "f\x1b.json"); });
  EXPECT_TRUE(message.starts_with("f\\u001b.json: invalid JSON at byte 10: syntax error")) << message;
  const std::string bounded = message_of<CheckpointError>([] { parse_json('"' + std::string(1 << 20, 'x'), "f"); });
  EXPECT_LT(bounded.size(), 400U);
}

TEST(Json, LimitsDepthAndSize) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth), "f").is_array());
  EXPECT_TRUE(
      contains(message_of<CheckpointError>([&] { parse_json(nested(kMaxJsonDepth + 1), "f"); }), "more than 64 deep"));
  EXPECT_TRUE(
      contains(message_of<CheckpointError>([&] { parse_json(std::string(100'000, '['), "f"); }), "more than 64 deep"));
  const ScratchFolder folder;
  const fs::path path = folder.write("f.json", "[1,2]");
  EXPECT_EQ(read_json_file(path, 5).size(), 2U);
  EXPECT_TRUE(
      contains(message_of<CheckpointError>([&] { read_json_file(path, 4); }), "f.json: 5 bytes, the limit is 4"));
}

TEST(Json, LoadsOrRefusesEveryMutation) {
  const std::string base =
      R"({"metadata":{"total_size":20},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}} )";
  std::mt19937 random(7);
  for (int i = 0; i < 5'000; ++i) {
    std::string text = base;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = static_cast<char>(random());
      } else {
        text.insert(at, text, random() % text.size(), random() % 20);
      }
    }
    try {
      parse_json(text, "fuzz");
    } catch (const CheckpointError& error) {
      ASSERT_TRUE(std::string_view(error.what()).starts_with("fuzz: ")) << error.what();
    }
  }
}

TEST(Quote, EscapesWhatATerminalWouldActOn) {
  EXPECT_EQ(quote("a.weight"), "\"a.weight\"");
  EXPECT_EQ(quote("\x1b[2J\n\t\"\\\x7f"), R"("\u001b[2J\n\t\"\\\u007f")");
  EXPECT_EQ(quote("\xC3\xA9\xC2\x9B"), "\"\xC3\xA9\\u009b\"");
  EXPECT_EQ(quote("\xFF\xC3"), R"("\xff\xc3")");
  EXPECT_EQ(quote("\xC0\x80\xED\xA0\x80\xF5\x80\x80\x80"), R"("\xc0\x80\xed\xa0\x80\xf5\x80\x80\x80")");
  EXPECT_EQ(quote(std::string(199, 'x') + "\xC3\xA9" + std::string(50, 'y')),
            '"' + std::string(199, 'x') + "...\" (251 bytes)");
}

}  // namespace
}  // namespace scaledmm
