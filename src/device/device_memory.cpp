#include "scaledmm/device_memory.hpp"

#include <utility>

#include "device/cuda_module.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

void check_range(std::int64_t bytes, std::int64_t offset, std::int64_t size) {
  if (bytes >= 0 && offset >= 0 && offset <= size - bytes) return;
  throw InvalidArgument("bytes " + std::to_string(offset) + " to " + std::to_string(offset + bytes) +
                        " of a device buffer of " + std::to_string(size));
}

}  // namespace

DeviceBuffer::DeviceBuffer(const Device& device, std::int64_t bytes) : device_(device.index), size_bytes_(bytes) {
  require_found_gpu(device);
  check_range(bytes, 0, bytes);
  if (bytes > 0) check_cuda(cuda_api().allocate(device_, bytes, &data_));
}

DeviceBuffer::DeviceBuffer(const Device& device, const void* source, std::int64_t bytes) : DeviceBuffer(device, bytes) {
  copy_from_host(source, bytes);
}

// A failed cudaFree leaks; a destructor has nobody to tell, and the next call reports the device's state.
DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) static_cast<void>(cuda_api().release(device_, data_));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void DeviceBuffer::copy_from_host(const void* source, std::int64_t bytes, std::int64_t offset) {
  check_range(bytes, offset, size_bytes_);
  if (bytes > 0) check_cuda(cuda_api().copy_to_device(device_, static_cast<std::byte*>(data_) + offset, source, bytes));
}

void DeviceBuffer::copy_to_host(void* destination, std::int64_t bytes, std::int64_t offset) const {
  check_range(bytes, offset, size_bytes_);
  if (bytes > 0)
    check_cuda(cuda_api().copy_to_host(device_, destination, static_cast<std::byte*>(data_) + offset, bytes));
}

DeviceStream::DeviceStream(const Device& device) : device_(device.index) {
  require_found_gpu(device);
  check_cuda(cuda_api().create_stream(device_, &handle_));
}

DeviceStream::~DeviceStream() { static_cast<void>(cuda_api().destroy_stream(device_, handle_)); }

void DeviceStream::synchronize() const { check_cuda(cuda_api().synchronize({device_, handle_})); }

double DeviceStream::measure_us(const std::function<void()>& work) const {
  const cuda::ModuleApi& api = cuda_api();
  void* timer = nullptr;
  check_cuda(api.create_timer(device_, &timer));
  const std::unique_ptr<void, std::function<void(void*)>> guard(
      timer, [&](void* made) { static_cast<void>(api.destroy_timer(device_, made)); });
  float microseconds = 0;
  check_cuda(api.start_timer({device_, handle_}, timer));
  work();
  check_cuda(api.stop_timer({device_, handle_}, timer, &microseconds));
  return static_cast<double>(microseconds);
}

DeviceGraph::DeviceGraph(const DeviceStream& stream, const std::function<void()>& work) : device_(stream.device()) {
  const cuda::ModuleApi& api = cuda_api();
  const cuda::Place place{device_, stream.handle()};
  check_cuda(api.begin_capture(place));
  try {
    work();
  } catch (...) {
    void* incomplete = nullptr;
    static_cast<void>(api.end_capture(place, &incomplete));  // the first error is the one that counts
    if (incomplete != nullptr) static_cast<void>(api.destroy_graph(device_, incomplete));
    throw;
  }
  check_cuda(api.end_capture(place, &handle_));
}

DeviceGraph::~DeviceGraph() {
  if (handle_ != nullptr) static_cast<void>(cuda_api().destroy_graph(device_, handle_));
}

void DeviceGraph::launch(const DeviceStream& stream) const {
  check_cuda(cuda_api().launch_graph({device_, stream.handle()}, handle_));
}

}  // namespace scaledmm
