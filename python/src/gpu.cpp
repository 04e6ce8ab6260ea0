#include "gpu.hpp"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "frameworks.hpp"
#include "scaledmm/error.hpp"

namespace nb = nanobind;

namespace scaledmm::python {
namespace {

void* handle_of(nb::handle integer) { return reinterpret_cast<void*>(nb::cast<std::uintptr_t>(nb::int_(integer))); }

void* named_stream(nb::handle stream) {
  if (PyIndex_Check(stream.ptr()) != 0) return handle_of(stream);
  if (nb::hasattr(stream, "__cuda_stream__")) return handle_of(stream.attr("__cuda_stream__")()[1]);
  for (const char* name : {"cuda_stream", "ptr"}) {
    if (nb::hasattr(stream, name)) return handle_of(stream.attr(name));
  }
  throw InvalidArgument("stream is a " + std::string(nb::type_name(stream.type()).c_str()) +
                        ", must be an integer or an object with __cuda_stream__, cuda_stream or ptr");
}

bool torch_captures() {
  const nb::object torch = loaded_module("torch");
  return torch.is_valid() && nb::cast<bool>(torch.attr("cuda").attr("is_current_stream_capturing")());
}

using Contexts = std::map<void*, std::unique_ptr<Context>>;

// What a thread has for a GPU.
struct Streams {
  Contexts contexts;
  Contexts::iterator last = contexts.end();
};

Contexts::iterator add_context(Streams& streams, const Device& device, void* stream) {
  if (streams.last != streams.contexts.end() && torch_captures()) {
    auto node = streams.contexts.extract(streams.last);
    node.key() = stream;
    return streams.contexts.insert(std::move(node)).position;
  }
  return streams.contexts.emplace(stream, std::make_unique<Context>(device)).first;
}

}  // namespace

const Device& gpu_device(int index) {
  thread_local std::map<int, Device> known;
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  return known.emplace(index, device_from_name("cuda:" + std::to_string(index))).first->second;
}

void* gpu_stream(nb::handle stream, nb::handle like, int gpu) {
  if (!stream.is_none()) return named_stream(stream);
  if (const DlExchangeApi* api = exchange_api(like); api != nullptr && api->current_stream != nullptr) {
    void* current = nullptr;
    if (api->current_stream(kDlCuda, gpu, &current) != 0) throw nb::python_error();
    return current;
  }
  if (is_instance_of(like, "cupy", "ndarray")) {
    return handle_of(loaded_module("cupy").attr("cuda").attr("get_current_stream")().attr("ptr"));
  }
  const nb::object torch = loaded_module("torch");
  if (!torch.is_valid()) return nullptr;
  return handle_of(torch.attr("cuda").attr("current_stream")(gpu).attr("cuda_stream"));
}

Place::Place(int index, nb::handle wanted, nb::handle like, int threads)
    : gpu(index),
      stream(gpu == kHost ? nullptr : gpu_stream(wanted, like, gpu)),
      context(gpu == kHost ? thread_context(threads) : gpu_context(gpu_device(gpu), stream)) {
  if (gpu == kHost && !wanted.is_none()) throw InvalidArgument("stream must be None: the call runs on the CPU");
}

Context& gpu_context(const Device& device, void* stream) {
  thread_local std::map<int, Streams> gpus;
  Streams& streams = gpus[device.index];
  auto found = streams.contexts.find(stream);
  if (found == streams.contexts.end()) {
    found = add_context(streams, device, stream);
    found->second->set_stream(stream);
  }
  streams.last = found;
  return *found->second;
}

}  // namespace scaledmm::python
