// Memory, streams and graphs of a GPU, for programs without the vendor's headers. Pointers and handles are the vendor's
// own and mix with those of other libraries.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "scaledmm/device.hpp"

namespace scaledmm {

// Memory of a GPU, owned. Errors: DeviceError, in every function.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const Device& device, std::int64_t bytes);
  // Filled from the host's memory.
  DeviceBuffer(const Device& device, const void* source, std::int64_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::int64_t size_bytes() const { return size_bytes_; }

  // Copies from and to the host's memory. Both wait for all earlier work of the device, and for the copy.
  void copy_from_host(const void* source, std::int64_t bytes, std::int64_t offset = 0);
  void copy_to_host(void* destination, std::int64_t bytes, std::int64_t offset = 0) const;

 private:
  int device_ = 0;
  void* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
};

// A stream of a GPU, owned. It does not wait for the default stream.
class DeviceStream {
 public:
  explicit DeviceStream(const Device& device);
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  int device() const { return device_; }
  // A cudaStream_t.
  void* handle() const { return handle_; }
  void synchronize() const;
  // Microseconds that the device takes for what `work` puts on this stream.
  double measure_us(const std::function<void()>& work) const;

 private:
  int device_ = 0;
  void* handle_ = nullptr;
};

// Work that was recorded once and is launched often.
class DeviceGraph {
 public:
  // Records what `work` puts on the stream. Errors: DeviceError, also when `work` did what cannot be recorded.
  DeviceGraph(const DeviceStream& stream, const std::function<void()>& work);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;

  void launch(const DeviceStream& stream) const;

 private:
  int device_ = 0;
  void* handle_ = nullptr;
};

}  // namespace scaledmm
