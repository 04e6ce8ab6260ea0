// Exceptions of the public boundary. "A kernel cannot do this layer" is never an exception: see Support.
#pragma once

#include <stdexcept>
#include <string>

namespace scaledmm {

// Base of everything the library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument of a call is wrong: a shape, dtype, stride or name. The text has both numbers.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A checkpoint breaks a rule of its format, or contradicts itself. The text names the file and the tensor.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

// The input is understood, but nothing here can run it: an unknown scheme, or no kernel fits. The text has every
// reason.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// A file could not be read, written, mapped or renamed. The text names the file and the system's reason.
class IoError : public Error {
 public:
  using Error::Error;
};

// A call into a device's driver or runtime failed. The text has the call, its code and its message.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace scaledmm
