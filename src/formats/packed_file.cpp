// class PackedFile: a safetensors file of packed sections, mapped, with a manifest in its metadata.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "formats/content_hash.hpp"
#include "formats/packed_manifest.hpp"
#include "formats/quote.hpp"
#include "formats/safetensors.hpp"
#include "scaledmm/packed.hpp"
#include "scaledmm/version.hpp"

namespace scaledmm {
namespace {

std::uint64_t padded(std::uint64_t bytes) {
  return (bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}

// The bytes of a section, where they lie in the mapping.
std::span<const std::byte> find_section(const SafetensorsFile& file, const std::string& layer,
                                        const PackedSectionEntry& section) {
  const std::string name = section_tensor(layer, section.name);
  const auto fail = [&](const std::string& text) {
    throw CheckpointError(escape(file.path().string()) + ": tensor " + quote(name) + " " + text);
  };
  const TensorEntry* entry = file.find(name);
  if (entry == nullptr) fail("is missing, the list of layers names it");
  if (entry->stored->dtype != DType::kUInt8) fail("is " + std::string(entry->stored->name) + ", not U8");
  if (entry->size_bytes() != padded(section.size_bytes)) {
    fail("has " + std::to_string(entry->size_bytes()) + " bytes, the list of layers says " +
         std::to_string(padded(section.size_bytes)));
  }
  const std::span<const std::byte> bytes = file.bytes(*entry);
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kSectionAlignment != 0) {
    fail("does not begin at a multiple of " + std::to_string(kSectionAlignment) + " bytes");
  }
  return bytes.first(section.size_bytes);
}

// Advice only: the system reads ahead what will be needed, or does not.
void read_ahead(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / page * page;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size();
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

}  // namespace

struct PackedFile::Impl {
  SafetensorsFile file;
  std::filesystem::path checkpoint_directory;
  std::vector<PackedLayer> layers;
  std::unordered_map<std::string, std::vector<PackedSection>> sections;  // by layer; their names point into `manifest`
  PackedManifest manifest;

  explicit Impl(const std::filesystem::path& path) : file(SafetensorsFile::open(path)) {}

  [[noreturn]] void stale(const std::string& text) const {
    throw StalePackedFile(escape(file.path().string()) + ": stale: " + text);
  }

  void check_origin(const Checkpoint& checkpoint, SourceCheck source) const {
    if (manifest.format_version != kPackedFormatVersion) {
      stale("its format is version " + escape(manifest.format_version) + ", this library has version " +
            kPackedFormatVersion);
    }
    if (manifest.library != version()) {
      stale("it was written by version " + escape(manifest.library) + " of the library, this is version " + version());
    }
    const bool by_content = source == SourceCheck::kContent;
    const std::string text = difference(manifest.source, fingerprint(checkpoint, by_content), by_content);
    if (!text.empty()) stale(text);
  }

  const PackedLayer* find(std::string_view name) const {
    const auto found = std::ranges::lower_bound(layers, name, {}, &PackedLayer::name);
    return found != layers.end() && found->name == name ? &*found : nullptr;
  }

  // Every section is a tensor and every tensor a section.
  void find_sections(bool check_hashes) {
    std::set<std::string, std::less<>> known;
    for (const PackedLayerEntry& layer : manifest.layers) {
      const auto fail = [&](const std::string& text) {
        throw CheckpointError(escape(file.path().string()) + ": layer " + quote(layer.name) + " " + text);
      };
      auto [at, is_new] = sections.try_emplace(layer.name);
      if (!is_new) fail("is listed twice");
      PackedLayer listed{layer.name, layer.kernel, layer.layout, 0};
      for (const PackedSectionEntry& section : layer.sections) {
        const std::span<const std::byte> bytes = find_section(file, layer.name, section);
        if (!known.insert(section_tensor(layer.name, section.name)).second) {
          fail("lists section " + quote(section.name) + " twice");
        }
        if (check_hashes && content_hash(bytes) != section.hash) {
          fail("section " + quote(section.name) + " is damaged: its bytes do not have the hash that was stored");
        }
        at->second.push_back({section.name, bytes});
        listed.size_bytes += bytes.size();
      }
      layers.push_back(std::move(listed));
    }
    for (const TensorEntry& entry : file.tensors()) {
      if (known.contains(entry.name)) continue;
      throw CheckpointError(escape(file.path().string()) + ": tensor " + quote(entry.name) +
                            " is no section of a listed layer");
    }
    std::ranges::sort(layers, {}, &PackedLayer::name);
  }
};

PackedFile::PackedFile() = default;
PackedFile::~PackedFile() = default;
PackedFile::PackedFile(PackedFile&&) noexcept = default;
PackedFile& PackedFile::operator=(PackedFile&&) noexcept = default;

PackedFile PackedFile::open(const std::filesystem::path& file, const Checkpoint& checkpoint,
                            const PackedFileOptions& options) {
  PackedFile packed;
  packed.impl_ = std::make_shared<Impl>(file);
  Impl& impl = *packed.impl_;
  impl.checkpoint_directory = checkpoint.directory();
  impl.manifest = read_manifest(impl.file.metadata(), file);
  impl.check_origin(checkpoint, options.source);
  impl.find_sections(options.check_sections);
  return packed;
}

const std::filesystem::path& PackedFile::path() const { return impl_->file.path(); }
const std::filesystem::path& PackedFile::checkpoint_directory() const { return impl_->checkpoint_directory; }
const std::vector<PackedLayer>& PackedFile::layers() const { return impl_->layers; }

bool PackedFile::holds(std::string_view layer) const { return impl_->find(layer) != nullptr; }

bool PackedFile::adopt(Layer& layer, const LinearKernel& kernel) const {
  const PackedLayer* listed = impl_->find(layer.name());
  if (listed == nullptr) return false;
  const auto check = [&](const std::string& what, const std::string& packed, const std::string& wanted) {
    if (packed == wanted) return;
    impl_->stale("layer " + quote(layer.name()) + " was packed for " + what + escape(packed) + ", wanted is " + wanted);
  };
  check("kernel ", listed->kernel, std::string(kernel.name()));
  check("layout ", listed->layout, kernel.packed_layout());
  const std::vector<PackedSection>& sections = impl_->sections.at(layer.name());
  try {
    kernel.adopt_packed_weights(layer, sections, impl_);
  } catch (const InvalidArgument& error) {
    throw CheckpointError(escape(path().string()) + ": " + error.what());
  }
  for (const PackedSection& section : sections) read_ahead(section.bytes);
  return true;
}

}  // namespace scaledmm
