// Calls on a GPU: the stream that they go to, and their scratch memory.
#pragma once

#include <nanobind/nanobind.h>

#include "borrowed.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/linear.hpp"

namespace scaledmm::python {

// The GPU of that index. Errors: DeviceError with the reason.
const Device& gpu_device(int index);

// The cudaStream_t of a call: `stream` as an integer or as an object with __cuda_stream__, cuda_stream or ptr; None:
// the current stream of the framework of `like`, else torch's when it is loaded, else the default stream.
// Errors: InvalidArgument.
void* gpu_stream(nanobind::handle stream, nanobind::handle like, int gpu);

// This thread's context for a stream of a GPU, so that streams share no scratch memory. A stream that torch captures
// and that has none takes over the context that this thread used last: calls before a capture grow it, and none can
// grow under one. Call it with the GIL held.
Context& gpu_context(const Device& device, void* stream);

// Where a call runs. Made and destroyed with the GIL held.
struct Place {
  // kHost: on that many threads. Else the index of a GPU, with the stream of gpu_stream.
  // Errors: InvalidArgument for a stream on the processor.
  Place(int gpu, nanobind::handle stream, nanobind::handle like, int threads = 0);

  // How its arrays are read.
  BorrowOptions array(const char* what) const { return {.what = what, .gpu = gpu, .stream = stream}; }

  int gpu;
  void* stream;
  Context& context;
};

}  // namespace scaledmm::python
