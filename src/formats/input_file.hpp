// A regular file open for reading, and the one spelling of system errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace scaledmm {

// Throws IoError: "PATH: cannot ACTION: the system's reason". `action` is a verb such as "open".
[[noreturn]] void throw_io_error(const std::filesystem::path& path, const char* action, int error_number);

class InputFile {
 public:
  // Never blocks on a pipe or device. Errors: IoError, also for what is not a regular file.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return descriptor_; }
  // When it was opened.
  std::uint64_t size_bytes() const { return size_bytes_; }
  // Fills `out` from `offset` on. Safe from several threads. Errors: IoError, also for a file that has become shorter.
  void read(std::span<std::byte> out, std::uint64_t offset) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace scaledmm
