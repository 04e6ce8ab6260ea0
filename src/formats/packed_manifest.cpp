#include "formats/packed_manifest.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <set>
#include <span>

#include "formats/config_node.hpp"
#include "formats/content_hash.hpp"
#include "formats/input_file.hpp"
#include "formats/json.hpp"
#include "formats/quote.hpp"
#include "formats/safetensors_header.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr const char* kFormatKey = "scaledmm_packed";
constexpr const char* kLibraryKey = "library";
constexpr const char* kSourceKey = "source";
constexpr const char* kLayersKey = "layers";

std::string time_of_change(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) throw_io_error(file, "examine", errno);
  std::string nanoseconds = std::to_string(status.st_mtim.tv_nsec);
  nanoseconds.insert(0, 9 - nanoseconds.size(), '0');
  return std::to_string(status.st_mtim.tv_sec) + "." + nanoseconds;
}

std::string header_hash(const InputFile& input, const std::filesystem::path& file) {
  std::array<std::byte, kHeaderPrefixBytes> prefix{};
  const std::span first_bytes(prefix.data(), std::min<std::uint64_t>(input.size_bytes(), prefix.size()));
  input.read(first_bytes, 0);
  std::vector<std::byte> header(header_length(first_bytes, input.size_bytes(), file.string()));
  input.read(header, kHeaderPrefixBytes);
  return content_hash(header);
}

const std::string& required(const std::map<std::string, std::string>& metadata, const char* key,
                            const std::filesystem::path& file) {
  const auto found = metadata.find(key);
  if (found != metadata.end()) return found->second;
  throw CheckpointError(escape(file.string()) + ": no " + quote(key) + " in its metadata: not a packed-weight file");
}

std::string required_text(const ConfigNode& node, const char* key) {
  const std::optional<std::string> text = node.text(key);
  if (!text) node.fail(std::string("no ") + key);
  return *text;
}

std::uint64_t required_size(const ConfigNode& node, const char* key) {
  const std::optional<std::int64_t> size = node.integer(key);
  if (!size) node.fail(std::string("no ") + key);
  if (*size < 0 || static_cast<std::uint64_t>(*size) > kMaxDimension) {
    node.fail(std::string(key) + " is " + std::to_string(*size) + ", not in 0.." + std::to_string(kMaxDimension));
  }
  return static_cast<std::uint64_t>(*size);
}

// A member that is a list of objects.
std::vector<ConfigNode> required_objects(const ConfigNode& node, const char* key) {
  const Json* list = node.find(key);
  if (list == nullptr || !list->is_array()) node.fail(std::string(key) + " is not a list");
  std::vector<ConfigNode> objects;
  for (std::size_t i = 0; i < list->size(); ++i) {
    objects.emplace_back((*list)[i], node.path_of(key) + "[" + std::to_string(i) + "]");
  }
  return objects;
}

SourceFingerprint read_source(const ConfigNode& node) {
  SourceFingerprint source;
  const std::optional<ConfigNode> configs = node.object("configs");
  if (!configs) node.fail("no configs");
  for (const auto& [name, hash] : configs->json().items()) source.configs[name] = required_text(*configs, name.c_str());
  for (const ConfigNode& file : required_objects(node, "files")) {
    source.files.push_back({required_text(file, "name"), required_size(file, "size"), required_text(file, "changed"),
                            required_text(file, "header"), required_text(file, "content")});
  }
  return source;
}

PackedLayerEntry read_layer(const ConfigNode& node) {
  PackedLayerEntry layer{required_text(node, "name"), required_text(node, "kernel"), required_text(node, "layout"), {}};
  for (const ConfigNode& section : required_objects(node, "sections")) {
    layer.sections.push_back(
        {required_text(section, "name"), required_size(section, "bytes"), required_text(section, "hash")});
  }
  return layer;
}

std::string changed_field(const std::string& what, const std::string& packed, const std::string& now) {
  return what + " is " + escape(now) + ", it was " + escape(packed) + " when it was packed";
}

std::string shape_difference(const SourceFile& packed, const SourceFile& now) {
  const std::string file = escape(now.name) + ": ";
  if (packed.size_bytes != now.size_bytes) {
    return changed_field(file + "its size", std::to_string(packed.size_bytes), std::to_string(now.size_bytes));
  }
  if (packed.header != now.header) return changed_field(file + "the hash of its header", packed.header, now.header);
  return {};
}

std::string content_difference(const SourceFile& packed, const SourceFile& now, bool by_content) {
  const std::string file = escape(now.name) + ": ";
  if (by_content && packed.content != now.content) {
    return changed_field(file + "the hash of its content", packed.content, now.content);
  }
  if (!by_content && packed.changed != now.changed) {
    return changed_field(file + "the time of its last change", packed.changed, now.changed);
  }
  return {};
}

}  // namespace

SourceFingerprint fingerprint(const Checkpoint& checkpoint, bool with_content) {
  SourceFingerprint source;
  for (const char* name : {"config.json", "hf_quant_config.json"}) {
    const std::filesystem::path file = checkpoint.directory() / name;
    if (std::filesystem::exists(file)) source.configs[name] = content_hash(read_text_file(file));
  }
  std::set<std::filesystem::path> files;
  for (const StoredTensor& tensor : checkpoint.tensors()) files.insert(tensor.file);
  for (const std::filesystem::path& file : files) {
    const InputFile input(file);
    source.files.push_back({file.filename().string(), input.size_bytes(), time_of_change(file),
                            header_hash(input, file), with_content ? content_hash_of(file) : ""});
  }
  return source;
}

std::string difference(const SourceFingerprint& packed, const SourceFingerprint& now, bool by_content) {
  for (const auto& [name, hash] : now.configs) {
    const auto before = packed.configs.find(name);
    if (before == packed.configs.end()) return name + " was not there when it was packed";
    if (before->second != hash) return changed_field(name + ": the hash of its content", before->second, hash);
  }
  for (const auto& [name, hash] : packed.configs) {
    if (!now.configs.contains(name)) return escape(name) + " is not there any more";
  }
  if (packed.files.size() != now.files.size()) {
    return changed_field("the number of weight files", std::to_string(packed.files.size()),
                         std::to_string(now.files.size()));
  }
  for (std::size_t i = 0; i < now.files.size(); ++i) {
    if (packed.files[i].name != now.files[i].name) {
      return changed_field("weight file " + std::to_string(i), packed.files[i].name, now.files[i].name);
    }
    std::string text = shape_difference(packed.files[i], now.files[i]);
    if (!text.empty()) return text;
  }
  // After all sizes and headers, which say more.
  for (std::size_t i = 0; i < now.files.size(); ++i) {
    std::string text = content_difference(packed.files[i], now.files[i], by_content);
    if (!text.empty()) return text;
  }
  return {};
}

std::string section_tensor(const std::string& layer, const std::string& section) { return layer + "/" + section; }

std::map<std::string, std::string> manifest_metadata(const PackedManifest& manifest) {
  Json source;
  source["configs"] = Json::object();
  for (const auto& [name, hash] : manifest.source.configs) source["configs"][name] = hash;
  source["files"] = Json::array();
  for (const SourceFile& file : manifest.source.files) {
    source["files"].push_back({{"name", file.name},
                               {"size", file.size_bytes},
                               {"changed", file.changed},
                               {"header", file.header},
                               {"content", file.content}});
  }
  Json layers = Json::array();
  for (const PackedLayerEntry& layer : manifest.layers) {
    Json sections = Json::array();
    for (const PackedSectionEntry& section : layer.sections) {
      sections.push_back({{"name", section.name}, {"bytes", section.size_bytes}, {"hash", section.hash}});
    }
    layers.push_back(
        {{"name", layer.name}, {"kernel", layer.kernel}, {"layout", layer.layout}, {"sections", std::move(sections)}});
  }
  return {{kFormatKey, manifest.format_version},
          {kLibraryKey, manifest.library},
          {kSourceKey, source.dump()},
          {kLayersKey, Json{{"layers", std::move(layers)}}.dump()}};
}

PackedManifest read_manifest(const std::map<std::string, std::string>& metadata, const std::filesystem::path& file) {
  PackedManifest manifest;
  manifest.format_version = required(metadata, kFormatKey, file);
  if (manifest.format_version != kPackedFormatVersion) return manifest;
  manifest.library = required(metadata, kLibraryKey, file);
  const std::string source_path = escape(file.string()) + ": " + kSourceKey;
  const Json source = parse_json(required(metadata, kSourceKey, file), source_path);
  manifest.source = read_source(ConfigNode(source, source_path));
  const std::string layers_path = escape(file.string()) + ": " + kLayersKey;
  const Json layers = parse_json(required(metadata, kLayersKey, file), layers_path);
  for (const ConfigNode& layer : required_objects(ConfigNode(layers, layers_path), "layers")) {
    manifest.layers.push_back(read_layer(layer));
  }
  return manifest;
}

}  // namespace scaledmm
