// scaledmm.h: every function catches everything and leaves its text in this thread.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "capi/convert_desc.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/packed.hpp"
#include "scaledmm/registry.hpp"
#include "scaledmm/version.hpp"

struct scaledmm_checkpoint {
  scaledmm::Checkpoint value;
};
struct scaledmm_linear {
  scaledmm::Linear value;
};
struct scaledmm_context {
  scaledmm::Context value;
};
struct scaledmm_packed {
  std::shared_ptr<const scaledmm::PackedFile> value;
};

namespace scaledmm {
namespace {

thread_local std::string last_error;

scaledmm_status_t failed(scaledmm_status_t status, const char* text) {
  try {
    last_error = text;
  } catch (const std::bad_alloc&) {
    last_error.clear();
  }
  return status;
}

template <class Body>
scaledmm_status_t guarded(const Body& body) {
  try {
    body();
    return SCALEDMM_OK;
  } catch (const InvalidArgument& error) {
    return failed(SCALEDMM_INVALID_ARGUMENT, error.what());
  } catch (const CheckpointError& error) {
    return failed(SCALEDMM_BAD_CHECKPOINT, error.what());
  } catch (const Unsupported& error) {
    return failed(SCALEDMM_UNSUPPORTED, error.what());
  } catch (const IoError& error) {
    return failed(SCALEDMM_IO_ERROR, error.what());
  } catch (const DeviceError& error) {
    return failed(SCALEDMM_DEVICE_ERROR, error.what());
  } catch (const std::bad_alloc&) {
    return failed(SCALEDMM_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return failed(SCALEDMM_INTERNAL_ERROR, error.what());
  }
}

template <class T>
T& required(T* pointer, const char* what) {
  if (pointer == nullptr) throw InvalidArgument(std::string(what) + " is a null pointer");
  return *pointer;
}

LinearOptions options_or_default(const scaledmm_linear_options_t* options) {
  const scaledmm_linear_options_t defaults = SCALEDMM_LINEAR_OPTIONS_INIT;
  const scaledmm_linear_options_t copy = options == nullptr ? defaults : sized_copy(options, defaults, "options");
  LinearOptions result = options_of(copy);
  if (copy.packed != nullptr) result.packed = copy.packed->value;
  return result;
}

// Kernel texts are literals: views that end in a zero byte.
const char* c_string(std::string_view literal) { return literal.data(); }

}  // namespace
}  // namespace scaledmm

using scaledmm::guarded;
using scaledmm::required;

extern "C" {

void scaledmm_version(int32_t* major, int32_t* minor, int32_t* patch) {
  if (major != nullptr) *major = SCALEDMM_VERSION_MAJOR;
  if (minor != nullptr) *minor = SCALEDMM_VERSION_MINOR;
  if (patch != nullptr) *patch = SCALEDMM_VERSION_PATCH;
}

const char* scaledmm_status_string(scaledmm_status_t status) {
  static constexpr const char* kTexts[] = {"ok",        "invalid argument", "bad checkpoint", "unsupported",
                                           "I/O error", "device error",     "out of memory",  "internal error"};
  return status >= SCALEDMM_OK && status <= SCALEDMM_INTERNAL_ERROR ? kTexts[status] : "unknown status";
}

const char* scaledmm_last_error(void) { return scaledmm::last_error.c_str(); }

scaledmm_status_t scaledmm_checkpoint_open(const char* directory, scaledmm_checkpoint_t** out) {
  return guarded([&] {
    required(out, "out") = nullptr;
    *out = new scaledmm_checkpoint{scaledmm::Checkpoint::open(&required(directory, "directory"))};
  });
}

void scaledmm_checkpoint_close(scaledmm_checkpoint_t* checkpoint) { delete checkpoint; }

scaledmm_status_t scaledmm_checkpoint_layer_count(const scaledmm_checkpoint_t* checkpoint, int64_t* out) {
  return guarded(
      [&] { required(out, "out") = static_cast<int64_t>(required(checkpoint, "checkpoint").value.layers().size()); });
}

scaledmm_status_t scaledmm_checkpoint_layer_name(const scaledmm_checkpoint_t* checkpoint, int64_t index,
                                                 const char** out) {
  return guarded([&] {
    const auto& layers = required(checkpoint, "checkpoint").value.layers();
    if (index < 0 || index >= static_cast<int64_t>(layers.size())) {
      throw scaledmm::InvalidArgument("layer " + std::to_string(index) + " of " + std::to_string(layers.size()));
    }
    required(out, "out") = layers[static_cast<std::size_t>(index)].name.c_str();
  });
}

scaledmm_status_t scaledmm_linear_load(const scaledmm_checkpoint_t* checkpoint, const char* layer,
                                       const scaledmm_linear_options_t* options, scaledmm_linear_t** out) {
  return guarded([&] {
    required(out, "out") = nullptr;
    *out = new scaledmm_linear{scaledmm::Linear::load(
        required(checkpoint, "checkpoint").value, &required(layer, "layer"), scaledmm::options_or_default(options))};
  });
}

scaledmm_status_t scaledmm_linear_create(const scaledmm_layer_desc_t* desc, const scaledmm_linear_options_t* options,
                                         scaledmm_linear_t** out) {
  return guarded([&] {
    required(out, "out") = nullptr;
    const scaledmm_layer_desc_t defaults = SCALEDMM_LAYER_DESC_INIT;
    const scaledmm_layer_desc_t copy = scaledmm::sized_copy(desc, defaults, "desc");
    *out = new scaledmm_linear{scaledmm::Linear::create(scaledmm::config_of(copy), scaledmm::weights_of(copy),
                                                        scaledmm::const_view(copy.bias, "bias"),
                                                        scaledmm::options_or_default(options))};
  });
}

void scaledmm_linear_destroy(scaledmm_linear_t* linear) { delete linear; }

scaledmm_status_t scaledmm_linear_get_info(const scaledmm_linear_t* linear, scaledmm_linear_info_t* out) {
  return guarded([&] {
    const scaledmm::Linear& value = required(linear, "linear").value;
    const uint32_t size = required(out, "out").struct_size;
    if (size < sizeof size) throw scaledmm::InvalidArgument("out's struct_size is " + std::to_string(size));
    const scaledmm::KernelInfo& kernel = value.kernel().info();
    scaledmm_linear_info_t info = SCALEDMM_LINEAR_INFO_INIT;
    info.struct_size = size;
    info.n = scaledmm::weight_shape(value.config()).n;
    info.k = scaledmm::weight_shape(value.config()).k;
    info.input_dtype = static_cast<scaledmm_dtype_t>(scaledmm::input_dtype(value.config()));
    info.out_dtype = static_cast<scaledmm_dtype_t>(scaledmm::out_dtype(value.config()));
    info.has_bias = value.bias().defined() ? 1 : 0;
    info.deterministic = kernel.guarantees.deterministic ? 1 : 0;
    info.batch_invariant = kernel.guarantees.batch_invariant ? 1 : 0;
    info.thread_invariant = kernel.guarantees.thread_invariant ? 1 : 0;
    info.packed_bytes = value.layer().packed().size_bytes();
    info.kernel = scaledmm::c_string(kernel.name);
    info.computes = scaledmm::c_string(kernel.computes);
    info.is_mapped = value.is_mapped() ? 1 : 0;
    std::memcpy(out, &info, std::min<std::size_t>(size, sizeof info));
  });
}

scaledmm_status_t scaledmm_linear_explain(const scaledmm_linear_t* linear, char* text, size_t size, size_t* length) {
  return guarded([&] {
    const std::string full = scaledmm::explain(required(linear, "linear").value.config(), scaledmm::this_cpu()).text();
    if (length != nullptr) *length = full.size();
    if (size == 0) return;
    const size_t copied = std::min(size - 1, full.size());
    std::memcpy(&required(text, "text"), full.data(), copied);
    text[copied] = '\0';
  });
}

scaledmm_status_t scaledmm_linear_apply(const scaledmm_linear_t* linear, const scaledmm_tensor_t* x,
                                        const scaledmm_tensor_t* y, scaledmm_context_t* context) {
  return guarded([&] {
    const scaledmm_tensor_t defaults = SCALEDMM_TENSOR_INIT;
    const scaledmm::TensorView x_view = scaledmm::view(scaledmm::sized_copy(x, defaults, "x"), "x");
    const scaledmm::TensorView y_view = scaledmm::view(scaledmm::sized_copy(y, defaults, "y"), "y");
    required(linear, "linear").value.apply(x_view, y_view, required(context, "context").value);
  });
}

scaledmm_status_t scaledmm_packed_write(const char* file, const scaledmm_checkpoint_t* checkpoint,
                                        const scaledmm_linear_t* const* linears, int64_t count, int64_t* stored) {
  return guarded([&] {
    if (count < 0) throw scaledmm::InvalidArgument("count is " + std::to_string(count));
    std::vector<const scaledmm::Linear*> layers;
    if (count > 0) required(linears, "linears");
    for (int64_t i = 0; i < count; ++i) layers.push_back(&required(linears[i], "a linear").value);
    const scaledmm::PackedFileReport report =
        scaledmm::write_packed(&required(file, "file"), required(checkpoint, "checkpoint").value, layers);
    if (stored != nullptr) *stored = static_cast<int64_t>(report.layers.size());
  });
}

scaledmm_status_t scaledmm_packed_open(const char* file, const scaledmm_checkpoint_t* checkpoint, int32_t* stale,
                                       scaledmm_packed_t** out) {
  return guarded([&] {
    required(out, "out") = nullptr;
    if (stale != nullptr) *stale = 0;
    try {
      *out = new scaledmm_packed{std::make_shared<const scaledmm::PackedFile>(
          scaledmm::PackedFile::open(&required(file, "file"), required(checkpoint, "checkpoint").value))};
    } catch (const scaledmm::StalePackedFile&) {
      if (stale != nullptr) *stale = 1;
      throw;
    }
  });
}

void scaledmm_packed_close(scaledmm_packed_t* packed) { delete packed; }

scaledmm_status_t scaledmm_context_create(int32_t threads, scaledmm_parallel_for_t parallel_for, void* pool,
                                          scaledmm_context_t** out) {
  return guarded([&] {
    required(out, "out") = nullptr;
    *out = new scaledmm_context{scaledmm::Context({threads, parallel_for, pool})};
  });
}

void scaledmm_context_destroy(scaledmm_context_t* context) { delete context; }

}  // extern "C"
