#include "cli/peer_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace scaledmm::cli {
namespace {

constexpr int kAnswerMilliseconds = 600'000;

[[noreturn]] void fail(const std::string& command, const char* action) {
  throw IoError(command + ": cannot " + action + ": " + std::strerror(errno));
}

}  // namespace

PeerProcess::PeerProcess(std::string command) : command_(std::move(command)) {
  std::array<int, 2> to{}, from{};
  if (::pipe2(to.data(), O_CLOEXEC) != 0) fail(command_, "make a pipe");
  if (::pipe2(from.data(), O_CLOEXEC) != 0) fail(command_, "make a pipe");
  errors_ = ::memfd_create("peer", MFD_CLOEXEC);
  if (errors_ < 0) fail(command_, "make a file in memory");
  pid_ = ::fork();
  if (pid_ < 0) fail(command_, "start");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(to[0], STDIN_FILENO);
    ::dup2(from[1], STDOUT_FILENO);
    ::dup2(errors_, STDERR_FILENO);
    ::execl("/bin/sh", "sh", "-c", command_.c_str(), nullptr);
    ::_exit(1);
  }
  ::close(to[0]);
  ::close(from[1]);
  input_ = to[1];
  output_ = from[0];
  // A peer that is gone is an error of write(), not the end of this process.
  ::signal(SIGPIPE, SIG_IGN);
}

PeerProcess::~PeerProcess() {
  ::close(input_);
  constexpr std::chrono::milliseconds kPatience(5000), kNap(10);
  bool ended = false;
  for (auto waited = kNap; !ended && waited < kPatience; waited += kNap) {
    ended = ::waitpid(pid_, nullptr, WNOHANG) == pid_;
    if (!ended) std::this_thread::sleep_for(kNap);
  }
  if (!ended) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(output_);
  ::close(errors_);
}

Json PeerProcess::ask(const Json& request) {
  std::string line = request.dump() + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t written = ::write(input_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_last_words("has ended");
    done += static_cast<std::size_t>(written);
  }
  const std::string answer = read_line();
  const Json parsed = Json::parse(answer, nullptr, false);
  if (!parsed.is_object()) throw PeerError("it answers what is no JSON object: " + answer.substr(0, 200));
  if (const auto error = parsed.find("error"); error != parsed.end()) {
    throw PeerError(error->is_string() ? error->get<std::string>() : error->dump());
  }
  return parsed;
}

std::string PeerProcess::read_line() {
  while (true) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    pollfd readable{output_, POLLIN, 0};
    const int ready = ::poll(&readable, 1, kAnswerMilliseconds);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) fail_with_last_words("does not answer");
    std::array<char, 65536> piece;
    const ssize_t got = ::read(output_, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail_with_last_words("has ended");
    buffer_.append(piece.data(), static_cast<std::size_t>(got));
  }
}

void PeerProcess::fail_with_last_words(const char* what) {
  std::array<char, 4096> tail{};
  const off_t size = ::lseek(errors_, 0, SEEK_END);
  const off_t begin = std::max<off_t>(0, size - static_cast<off_t>(tail.size()));
  const ssize_t got = ::pread(errors_, tail.data(), tail.size(), begin);
  std::string text(tail.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const std::size_t line = text.rfind('\n');
  if (line != std::string::npos) text.erase(0, line + 1);
  throw PeerError(std::string(what) + (text.empty() ? "" : ": " + text));
}

}  // namespace scaledmm::cli
