#include "formats/safetensors.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "formats/input_file.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// A whole file, read-only. The descriptor is not needed afterwards.
class Mapping {
 public:
  Mapping(const InputFile& file, const std::filesystem::path& path) : size_(file.size_bytes()) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
    if (address == MAP_FAILED) throw_io_error(path, "map", errno);
    data_ = static_cast<const std::byte*>(address);
  }
  ~Mapping() { ::munmap(const_cast<std::byte*>(data_), size_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

std::size_t alignment(const StoredDType& stored) { return std::max<std::size_t>(stored.bits / 8, 1); }

bool is_aligned(const std::byte* data, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

}  // namespace

struct SafetensorsFile::Impl {
  std::filesystem::path path;
  SafetensorsHeader header;
  std::uint64_t data_begin = 0;       // in the file
  std::unique_ptr<Mapping> mapping;   // or
  std::unique_ptr<InputFile> opened;  // when tensors are read into memory
  std::mutex mutex;                   // guards copies
  std::unordered_map<const TensorEntry*, std::unique_ptr<std::byte[]>> copies;
};

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path, bool use_mmap) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  auto file = std::make_unique<InputFile>(path);
  std::array<std::byte, kHeaderPrefixBytes> prefix{};
  const std::span first_bytes(prefix.data(), std::min<std::uint64_t>(file->size_bytes(), prefix.size()));
  file->read(first_bytes, 0);
  const std::uint64_t length = header_length(first_bytes, file->size_bytes(), path.string());
  impl->data_begin = kHeaderPrefixBytes + length;
  const std::uint64_t data_bytes = file->size_bytes() - impl->data_begin;

  if (use_mmap) {
    impl->mapping = std::make_unique<Mapping>(*file, path);
    const auto* text = reinterpret_cast<const char*>(impl->mapping->data() + kHeaderPrefixBytes);
    impl->header = parse_safetensors_header({text, length}, data_bytes, path.string());
  } else {
    std::string text(length, '\0');
    file->read(std::as_writable_bytes(std::span(text)), kHeaderPrefixBytes);
    impl->header = parse_safetensors_header(text, data_bytes, path.string());
    impl->opened = std::move(file);
  }
  return SafetensorsFile(std::move(impl));
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::filesystem::path& SafetensorsFile::path() const { return impl_->path; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return impl_->header.metadata; }
const std::vector<TensorEntry>& SafetensorsFile::tensors() const { return impl_->header.tensors; }

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto& all = tensors();
  const auto found =
      std::lower_bound(all.begin(), all.end(), name,
                       [](const TensorEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorEntry& entry) const {
  const std::size_t size = entry.size_bytes();
  const std::byte* mapped =
      impl_->mapping == nullptr ? nullptr : impl_->mapping->data() + impl_->data_begin + entry.begin;
  if (mapped != nullptr && (size == 0 || is_aligned(mapped, alignment(*entry.stored)))) return {mapped, size};

  const std::lock_guard lock(impl_->mutex);
  auto& copy = impl_->copies[&entry];
  if (copy == nullptr) {
    auto fresh = std::make_unique<std::byte[]>(std::max<std::size_t>(size, 1));
    if (mapped != nullptr) {
      std::memcpy(fresh.get(), mapped, size);
    } else {
      impl_->opened->read({fresh.get(), size}, impl_->data_begin + entry.begin);
    }
    copy = std::move(fresh);
  }
  return {copy.get(), size};
}

ConstTensorView SafetensorsFile::view(const TensorEntry& entry) const {
  if (!entry.stored->dtype) {
    throw CheckpointError(escape(impl_->path.string()) + ": tensor " + quote(entry.name) + ": dtype " +
                          std::string(entry.stored->name) + " is not one that linear layers use");
  }
  return {bytes(entry).data(), *entry.stored->dtype, entry.shape};
}

StoredTensor SafetensorsFile::stored(const TensorEntry& entry) const {
  return {entry.name, std::string(entry.stored->name), entry.stored->dtype, entry.shape, entry.size_bytes(),
          impl_->path};
}

}  // namespace scaledmm
