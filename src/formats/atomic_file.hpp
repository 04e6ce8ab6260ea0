// Files and folders that appear under their name complete, or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace scaledmm {

// Written under a temporary name in the destination's folder, renamed by commit(). Readers that have the old file open
// or mapped keep it. Destroyed without commit(): the temporary file is removed.
class AtomicFile {
 public:
  // A link is followed. Errors: IoError, also where something that is no regular file stands at the destination.
  explicit AtomicFile(const std::filesystem::path& destination);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  const std::filesystem::path& destination() const { return destination_; }
  // Errors: IoError that names the destination and the system's reason.
  void write(std::span<const std::byte> data);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  // Flushes to the disk and renames. Errors: IoError; the destination is then as it was.
  void commit();

 private:
  std::filesystem::path destination_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

// A whole file at once. Errors: IoError.
void write_file(const std::filesystem::path& destination, std::string_view text);

// A folder that is filled under a temporary name beside the destination, and renamed by commit(). Destroyed without
// commit(): removed with everything in it.
class AtomicDirectory {
 public:
  // Errors: InvalidArgument when the destination exists; IoError.
  explicit AtomicDirectory(const std::filesystem::path& destination);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to put files until commit().
  const std::filesystem::path& path() const { return temporary_; }
  const std::filesystem::path& destination() const { return destination_; }
  // Errors: IoError; the destination is then as it was.
  void commit();

 private:
  std::filesystem::path destination_;
  std::filesystem::path temporary_;
};

}  // namespace scaledmm
