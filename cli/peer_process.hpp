// A program that times somebody else's operators: a child process that answers JSON lines, see
// bench/baselines/README.md.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>

#include "cli/output.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm::cli {

// The peer cannot do what was asked, or is gone. The text has its reason.
class PeerError : public Error {
 public:
  using Error::Error;
};

class PeerProcess {
 public:
  // Starts `command` with the shell. Errors: IoError.
  explicit PeerProcess(std::string command);
  // Ends it: first by the end of its input, then by force.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const std::string& command() const { return command_; }
  // Sends one line, waits for one line. Errors: PeerError for an answer {"error": ...}, for one that is not a JSON
  // object, for a process that ended (with the last line of its standard error) or does not answer for ten minutes.
  Json ask(const Json& request);

 private:
  std::string read_line();
  [[noreturn]] void fail_with_last_words(const char* what);

  std::string command_;
  pid_t pid_ = -1;
  int input_ = -1;   // its standard input
  int output_ = -1;  // its standard output
  int errors_ = -1;  // a file in memory
  std::string buffer_;
};

}  // namespace scaledmm::cli
