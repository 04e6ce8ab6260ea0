// How a command ends: exit codes, and the errors that only the command has.
#pragma once

#include <string>

#include "scaledmm/error.hpp"

namespace scaledmm::cli {

// What the process gives back. Documented in `scaledmm --help`.
enum ExitCode : int { kOk = 0, kFailedCheck = 1, kUsage = 2, kUnsupported = 3, kIo = 4, kDevice = 5 };

// The command line asks for something that does not exist: a kernel, a layer.
class UsageError : public Error {
 public:
  using Error::Error;
};

// The command has printed what it was asked for, and that is bad news: a layer without a kernel, a broken checkpoint.
class Failed : public Error {
 public:
  Failed(ExitCode code, const std::string& text) : Error(text), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// The user or the system wants the command to end.
class Interrupted : public Error {
 public:
  explicit Interrupted(int signal) : Error("interrupted, nothing was written"), signal_(signal) {}
  int signal() const { return signal_; }

 private:
  int signal_;
};

}  // namespace scaledmm::cli
