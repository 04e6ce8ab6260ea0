// write_packed: the packed weights of loaded layers into a packed file.
#include <algorithm>
#include <array>
#include <set>

#include "formats/content_hash.hpp"
#include "formats/packed_manifest.hpp"
#include "formats/quote.hpp"
#include "formats/safetensors_writer.hpp"
#include "scaledmm/packed.hpp"
#include "scaledmm/version.hpp"

namespace scaledmm {
namespace {

// The names of a layer's parts are those of layers of the checkpoint.
void check_name(const Checkpoint& checkpoint, const std::string& name) {
  if (name.empty()) throw InvalidArgument("a layer without a name is not one of a checkpoint");
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = name.find('+', begin);
    const std::string part = name.substr(begin, end == std::string::npos ? end : end - begin);
    const auto known = std::ranges::find(checkpoint.layers(), part, &LayerRecord::name);
    if (known == checkpoint.layers().end()) {
      throw InvalidArgument("layer " + quote(part) + " is not one of " + escape(checkpoint.directory().string()));
    }
  }
}

struct SectionBytes {
  std::span<const std::byte> bytes;
  std::uint64_t fill = 0;  // zeros after them
};

}  // namespace

PackedFileReport write_packed(const std::filesystem::path& file, const Checkpoint& checkpoint,
                              std::span<const Linear* const> layers) {
  PackedFileReport report;
  PackedManifest manifest{kPackedFormatVersion, version(), fingerprint(checkpoint, true), {}};
  std::vector<TensorDeclaration> tensors;
  std::map<std::string, SectionBytes> bytes_of;
  std::set<std::string_view> names;
  for (const Linear* linear : layers) {
    const Layer& layer = linear->layer();
    check_name(checkpoint, layer.name());
    if (!names.insert(layer.name()).second) throw InvalidArgument("layer " + quote(layer.name()) + " comes twice");
    const std::vector<PackedSection> sections = layer.packed().sections();
    if (sections.empty()) {
      report.left_out.push_back(layer.name() + ": " + std::string(linear->kernel().name()) +
                                " keeps no packed weights in files");
      continue;
    }
    PackedLayer& listed = report.layers.emplace_back(
        PackedLayer{layer.name(), std::string(linear->kernel().name()), linear->kernel().packed_layout(), 0});
    PackedLayerEntry& entry =
        manifest.layers.emplace_back(PackedLayerEntry{listed.name, listed.kernel, listed.layout, {}});
    for (const PackedSection& section : sections) {
      const std::uint64_t size = section.bytes.size();
      const std::uint64_t fill = (kSectionAlignment - size % kSectionAlignment) % kSectionAlignment;
      entry.sections.push_back({std::string(section.name), size, content_hash(section.bytes)});
      const std::string tensor = section_tensor(layer.name(), entry.sections.back().name);
      tensors.push_back({tensor, &stored_dtype(DType::kUInt8), {static_cast<std::int64_t>(size + fill)}});
      bytes_of[tensor] = {section.bytes, fill};
      listed.size_bytes += size;
    }
  }
  SafetensorsWriter writer(file, std::move(tensors), manifest_metadata(manifest), kSectionAlignment);
  constexpr std::array<std::byte, kSectionAlignment> kZeros{};
  for (const TensorDeclaration& tensor : writer.order()) {
    const SectionBytes& section = bytes_of.at(tensor.name);
    writer.write(tensor.name, section.bytes);
    writer.write(tensor.name, std::span(kZeros).first(section.fill));
  }
  writer.finish();
  report.file_bytes = std::filesystem::file_size(file);
  return report;
}

}  // namespace scaledmm
