#include "formats/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {

void throw_io_error(const std::filesystem::path& path, const char* action, int error_number) {
  throw IoError(escape(path.string()) + ": cannot " + action + ": " + std::system_category().message(error_number));
}

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a pipe would wait for a writer. Regular files ignore it.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw_io_error(path, "open", errno);
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  const int error_number = errno;
  if (known && S_ISREG(status.st_mode)) {
    size_bytes_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  ::close(descriptor_);
  if (!known) throw_io_error(path, "examine", error_number);
  throw IoError(escape(path.string()) + ": cannot read: not a regular file");
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(std::span<std::byte> out, std::uint64_t offset) const {
  constexpr std::size_t kMaxReadBytes = std::size_t{1} << 30;  // Linux moves at most 2 GiB - 4096 in one call
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t count = std::min(out.size() - done, kMaxReadBytes);
    const ssize_t got = ::pread(descriptor_, out.data() + done, count, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io_error(path_, "read", errno);
    if (got == 0) {
      throw IoError(escape(path_.string()) + ": cannot read: " + std::to_string(out.size()) +
                    " bytes expected at offset " + std::to_string(offset) + ", the file ends after " +
                    std::to_string(done) + "; it has become shorter since it was opened");
    }
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace scaledmm
