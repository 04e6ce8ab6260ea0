// Tensors of a dense checkpoint that a converted one cannot have beside its own.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "scaledmm/scaledmm.hpp"
#include "scratch_folder.hpp"
#include "toy_checkpoint.hpp"
#include "toy_dense_model.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;

// Adds tensors to a dense model in a file of their own; returns that file.
fs::path add_shard(const fs::path& directory, const std::vector<ToyTensor>& tensors) {
  ShardIndex index;
  const Checkpoint dense = Checkpoint::open(directory);
  for (const StoredTensor& tensor : dense.tensors()) {
    index.weight_map[tensor.name] = "model.safetensors";
  }
  for (const ToyTensor& tensor : tensors) index.weight_map[tensor.name] = "more.safetensors";
  write_toy_file(directory / "more.safetensors", tensors);
  write_shard_index(directory / kIndexFileName, index);
  return directory / "more.safetensors";
}

TEST(ConvertSource, RefusesWeightsOfATypeThatItDoesNotRead) {
  for (const char* dtype : {"F64", "I32"}) {
    const ScratchFolder folder;
    write_model(folder / "dense", toy_model());
    const fs::path file = add_shard(folder / "dense", {toy("model.layers.0.q_proj.weight", dtype, {8, 16}, 1),
                                                       toy("model.layers.0.router.weight", dtype, {8, 16}, 1)});
    const auto text = message_of<Unsupported>([&] { convert(folder / "dense", folder / "out", {}); });
    EXPECT_TRUE(contains(text, file.string() + ": tensor \"model.layers.0.q_proj.weight\": ")) << text;
    EXPECT_TRUE(contains(text, std::string(dtype) + " is not supported")) << text;
    EXPECT_EQ(folder.entries(), 1U);
    ConvertOptions options;
    options.ignore = {"model.layers.0.q_proj"};
    convert(folder / "dense", folder / "out", options);
    EXPECT_TRUE(Checkpoint::open(folder / "out").has_tensor("model.layers.0.router.weight"));
  }
}

TEST(ConvertSource, RefusesScalesBesideDenseWeightsBeforeTheWork) {
  for (const char* scale : {"weight_scale", "weight_scale_inv", "input_scale", "weight_zero_point"}) {
    const ScratchFolder folder;
    write_model(folder / "dense", toy_model());
    const std::string name = std::string("model.layers.0.mlp.up_proj.") + scale;
    const fs::path file = add_shard(folder / "dense", {toy(name, "F32", {1}, 1)});
    ConvertOptions options;
    options.progress = [](std::size_t, std::size_t, std::string_view) { ADD_FAILURE() << "work was done"; };
    const auto text = message_of<CheckpointError>([&] { convert(folder / "dense", folder / "out", options); });
    EXPECT_TRUE(contains(text, file.string() + ": tensor \"" + name + "\"")) << text;
    EXPECT_EQ(folder.entries(), 1U);
  }
}

}  // namespace
}  // namespace scaledmm
