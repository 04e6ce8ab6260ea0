#include "formats/shard_index.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <set>
#include <system_error>
#include <utility>

#include "formats/atomic_file.hpp"
#include "formats/input_file.hpp"
#include "formats/json.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".safetensors";

[[noreturn]] void fail(const fs::path& file, const std::string& message) {
  throw CheckpointError(escape(file.string()) + ": " + message);
}

bool is_bare_name(std::string_view name) {
  using namespace std::string_view_literals;
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_of("/\\\0"sv) == std::string_view::npos;
}

bool is_present(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (status.type() == fs::file_type::none) throw_io_error(path, "examine", error.value());
  return fs::exists(status);
}

bool lies_inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first == folder.end();
}

// A link may lead to a place inside the folder, or into the "blobs" folder of a hub cache, whose snapshots are made of
// links.
void check_link(const fs::path& path, const WeightFileOptions& options) {
  if (!fs::is_symlink(fs::symlink_status(path))) return;
  if (!options.follow_symlinks) fail(path, "a symbolic link, and links are not to be followed");
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (error) throw_io_error(path, "follow the link", error.value());
  const fs::path folder = fs::canonical(path.parent_path(), error);
  if (error) throw_io_error(path, "follow the link", error.value());
  if (!lies_inside(target, folder) && target.parent_path().filename() != "blobs") {
    fail(path, "a symbolic link out of the folder, to " + quote(target.string()));
  }
}

SafetensorsFile open_file(const fs::path& path, const WeightFileOptions& options) {
  check_link(path, options);
  return SafetensorsFile::open(path, options.use_mmap);
}

// What the index of a folder names, opened and compared with it.
WeightFiles open_indexed(const fs::path& directory, const WeightFileOptions& options) {
  const fs::path index_path = directory / kIndexFileName;
  check_link(index_path, options);
  const ShardIndex index = read_shard_index(index_path);

  WeightFiles result;
  std::map<std::string_view, std::size_t> numbers;
  for (const auto& [tensor, file] : index.weight_map) numbers.emplace(file, 0);
  for (auto& [file, number] : numbers) {
    if (!is_present(directory / file)) {
      throw IoError(escape(index_path.string()) + ": file " + quote(file) + " does not exist");
    }
    number = result.files.size();
    result.files.push_back(open_file(directory / file, options));
  }
  for (const auto& [tensor, file] : index.weight_map) {
    const std::size_t number = numbers.at(file);
    const TensorEntry* entry = result.files[number].find(tensor);
    if (entry == nullptr) fail(index_path, "tensor " + quote(tensor) + " is not in " + quote(file));
    result.tensors.emplace(tensor, TensorLocation{number, entry});
  }

  std::uint64_t total = 0;
  for (std::size_t i = 0; i < result.files.size(); ++i) {
    std::size_t extra = 0;
    std::string example;
    for (const TensorEntry& entry : result.files[i].tensors()) {
      total += entry.size_bytes();
      const TensorLocation* location = result.find(entry.name);
      if (location != nullptr && location->file == i) continue;
      if (extra++ == 0) example = quote(entry.name);
    }
    if (extra == 0) continue;
    result.warnings.push_back(escape(result.files[i].path().string()) + ": " + std::to_string(extra) +
                              " tensors are ignored because the index does not place them here, such as " + example);
  }
  if (index.total_size && *index.total_size != total) {
    result.warnings.push_back(escape(index_path.string()) + ": total_size is " + std::to_string(*index.total_size) +
                              ", the tensors have " + std::to_string(total) + " bytes");
  }
  return result;
}

// The one file to open in a folder without an index. Errors with what was found: IoError without a file that could be
// it, CheckpointError with several.
fs::path single_file(const fs::path& directory) {
  if (is_present(directory / kSingleFileName)) return directory / kSingleFileName;
  constexpr std::size_t kMaxListed = 20;
  std::vector<std::string> candidates;
  std::vector<std::string> found;
  std::error_code error;
  for (auto it = fs::directory_iterator(directory, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    found.push_back(name);
    // consolidated*.safetensors holds the same weights once more, in another layout.
    if (is_bare_name(name) && !name.starts_with("consolidated")) candidates.push_back(name);
  }
  if (error) throw_io_error(directory, "list", error.value());
  if (candidates.size() == 1) return directory / candidates[0];
  std::sort(found.begin(), found.end());
  std::string list;
  for (std::size_t i = 0; i < std::min(found.size(), kMaxListed); ++i) list += (i == 0 ? "" : ", ") + quote(found[i]);
  if (found.size() > kMaxListed) list += " and " + std::to_string(found.size() - kMaxListed) + " more";
  const std::string message = "no weights: neither " + std::string(kIndexFileName) + " nor " +
                              std::string(kSingleFileName) + ", and " + std::to_string(candidates.size()) +
                              " other .safetensors files where one is needed; found " +
                              (list.empty() ? "nothing" : list);
  if (candidates.empty()) throw IoError(escape(directory.string()) + ": " + message);
  fail(directory, message);
}

}  // namespace

ShardIndex read_shard_index(const std::filesystem::path& file) {
  const Json json = read_json_file(file);
  const Json* weight_map = find_member(json, "weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) fail(file, "no weight_map, or not an object");
  if (weight_map->empty()) fail(file, "weight_map is empty");
  ShardIndex index;
  std::set<std::string_view> files;
  for (const auto& [tensor, value] : weight_map->items()) {
    if (!value.is_string()) fail(file, "weight_map: tensor " + quote(tensor) + ": not a string");
    const auto& name = value.get_ref<const std::string&>();
    if (!is_bare_name(name)) {
      fail(file, "weight_map: tensor " + quote(tensor) + ": " + quote(name) +
                     " is not a file name that ends in .safetensors");
    }
    if (files.insert(name).second && files.size() > kMaxShards) {
      fail(file, "weight_map: more than " + std::to_string(kMaxShards) + " files");
    }
    index.weight_map.emplace(tensor, name);
  }
  if (const Json* metadata = find_member(json, "metadata")) {
    const Json* total = find_member(*metadata, "total_size");
    if (total != nullptr && total->is_number_unsigned()) index.total_size = total->get<std::uint64_t>();
  }
  return index;
}

void write_shard_index(const std::filesystem::path& file, const ShardIndex& index) {
  Json json = Json::object();
  json["metadata"] = Json::object();
  if (index.total_size) json["metadata"]["total_size"] = *index.total_size;
  Json::object_t weight_map;
  weight_map.reserve(index.weight_map.size());
  // The vector underneath: ordered_map's own insertion searches all members.
  for (const auto& [tensor, name] : index.weight_map) {
    weight_map.emplace_back(tensor, name);
  }
  json["weight_map"] = std::move(weight_map);
  write_file(file, json.dump(2) + "\n");
}

std::string shard_file_name(std::size_t number, std::size_t count) {
  std::array<char, 80> text{};
  std::snprintf(text.data(), text.size(), "model-%05zu-of-%05zu.safetensors", number, count);
  return text.data();
}

const TensorLocation* WeightFiles::find(std::string_view name) const {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

WeightFiles open_weight_files(const std::filesystem::path& directory, const WeightFileOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (!fs::exists(status)) throw_io_error(directory, "open", error ? error.value() : ENOENT);
  if (!fs::is_directory(status)) throw_io_error(directory, "list", ENOTDIR);
  if (is_present(directory / kIndexFileName)) return open_indexed(directory, options);

  WeightFiles result;
  result.files.push_back(open_file(single_file(directory), options));
  for (const TensorEntry& entry : result.files[0].tensors())
    result.tensors.emplace(entry.name, TensorLocation{0, &entry});
  return result;
}

}  // namespace scaledmm
