// Runs a part of a test in a process of its own, under a resource limit.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>

namespace scaledmm {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kShadowMemory = true;
#else
inline constexpr bool kShadowMemory = false;
#endif

// `body` gives an empty string, or what was wrong, which is returned. A child that dies is described.
template <class Body>
std::string run_in_child(Body&& body) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child < 0) return "no child";
  if (child == 0) {
    std::string complaint;
    try {
      complaint = body();
    } catch (const std::exception& error) {
      complaint = std::string("exception: ") + error.what();
    }
    const ssize_t written = ::write(pipe_ends[1], complaint.data(), complaint.size());
    ::_exit(written == static_cast<ssize_t>(complaint.size()) ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  std::string complaint;
  char buffer[512];
  for (ssize_t got; (got = ::read(pipe_ends[0], buffer, sizeof(buffer))) > 0;) {
    complaint.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) complaint += "killed by signal " + std::to_string(WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0) complaint += "exit code " + std::to_string(WEXITSTATUS(status));
  return complaint;
}

// Allows `bytes` of address space more than what is in use. Without effect under a sanitizer with shadow memory.
inline void limit_memory(std::uint64_t bytes) {
  if (kShadowMemory) return;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit value{limit, limit};
  ::setrlimit(RLIMIT_AS, &value);
}

// Files may not grow past `bytes`: writing fails, as on a full disk.
inline void limit_file_size(std::uint64_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit value{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &value);
}

}  // namespace scaledmm
