#include "formats/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "formats/input_file.hpp"
#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

// A name in the same folder that no other writer takes. It does not hold the destination's name, which may be as long
// as the file system allows.
std::filesystem::path temporary_name(const std::filesystem::path& destination) {
  if (destination.empty()) throw InvalidArgument("the name of what is to be written is empty");
  static std::atomic<unsigned> counter{0};
  const std::string name =
      ".scaledmm-" + std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1)) + ".tmp";
  return destination.parent_path() / name;
}

// "out/" names the same folder as "out", but has no file name to rename to.
std::filesystem::path without_trailing_slash(const std::filesystem::path& path) {
  std::filesystem::path normal = path.lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// Where a link points to, even when nothing is there yet. A file that takes the place of a device or pipe would break
// it for everybody.
std::filesystem::path replaceable(const std::filesystem::path& destination) {
  constexpr int kMaxLinks = 40;  // as many as Linux follows
  std::filesystem::path target = destination;
  std::error_code error;
  for (int links = 0;; ++links) {
    const std::filesystem::file_status status = std::filesystem::symlink_status(target, error);
    if (status.type() == std::filesystem::file_type::none) throw_io_error(destination, "examine", error.value());
    if (!std::filesystem::is_symlink(status)) break;
    if (links == kMaxLinks) throw_io_error(destination, "follow the link", ELOOP);
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) throw_io_error(destination, "follow the link", error.value());
    target = target.parent_path() / next;  // next alone when it is absolute
  }
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw IoError(escape(destination.string()) + ": is there and not a regular file, it is not replaced");
  }
  return target;
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& destination) : destination_(replaceable(destination)) {
  // A name left over by a killed process with the same number is passed over.
  do {
    temporary_ = temporary_name(destination_);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) throw_io_error(destination_, "create", errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> data) {
  constexpr std::size_t kMaxWriteBytes = std::size_t{1} << 30;  // Linux moves at most 2 GiB - 4096 in one call
  while (!data.empty()) {
    const ssize_t written = ::write(descriptor_, data.data(), std::min(data.size(), kMaxWriteBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_io_error(destination_, "write", errno);
    data = data.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) throw_io_error(destination_, "write", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) throw_io_error(destination_, "write", errno);
  if (std::rename(temporary_.c_str(), destination_.c_str()) != 0) throw_io_error(destination_, "rename to it", errno);
  temporary_.clear();
}

void write_file(const std::filesystem::path& destination, std::string_view text) {
  AtomicFile file(destination);
  file.write(text);
  file.commit();
}

AtomicDirectory::AtomicDirectory(const std::filesystem::path& destination)
    : destination_(without_trailing_slash(destination)) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(destination_, error);
  if (std::filesystem::exists(status)) throw InvalidArgument(escape(destination_.string()) + ": exists already");
  if (status.type() == std::filesystem::file_type::none) throw_io_error(destination_, "examine", error.value());
  int result = 0;
  do {
    temporary_ = temporary_name(destination_);
    result = ::mkdir(temporary_.c_str(), 0777);
  } while (result != 0 && errno == EEXIST);
  if (result != 0) throw_io_error(destination_, "create", errno);
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  // rename() replaces nothing here but an empty folder: it refuses files and folders with something in them.
  if (std::rename(temporary_.c_str(), destination_.c_str()) != 0) throw_io_error(destination_, "rename to it", errno);
  temporary_.clear();
}

}  // namespace scaledmm
