// The module's table. docs/cuda.md.
#include <cstdio>
#include <memory>

#include "cuda/failure.hpp"
#include "cuda/gemm.hpp"
#include "cuda/quantize.hpp"
#include "cuda/rows.hpp"
#include "cuda/vendor_gemm.hpp"

namespace scaledmm::cuda {

Failure fail(std::string text) {
  thread_local std::string last;
  last = std::move(text);
  return last.c_str();
}

Failure check(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  static_cast<void>(cudaGetLastError());  // the error is reported here, not by the next call
  return fail(std::string(call) + ": " + cudaGetErrorString(error) + " (" + std::to_string(error) + ")");
}

namespace {

// Without a driver, or with one that is too old, the runtime's text is misleading for people who never chose a version.
Failure device_count(int* count) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return fail("no NVIDIA driver is installed (libcuda.so.1)");
  }
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error == cudaErrorNoDevice) {
    *count = 0;
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  return check("cudaGetDeviceCount", error);
}

Failure device_properties(int device, DeviceProperties* properties) {
  cudaDeviceProp found;
  if (const Failure failure = check("cudaGetDeviceProperties", cudaGetDeviceProperties(&found, device))) return failure;
  std::snprintf(properties->name, sizeof properties->name, "%s", found.name);
  properties->capability = found.major * 10 + found.minor;
  properties->multiprocessors = found.multiProcessorCount;
  properties->memory_bytes = static_cast<std::int64_t>(found.totalGlobalMem);
  return nullptr;
}

Failure allocate(int device, std::int64_t bytes, void** memory) {
  return on_device(device, "cudaMalloc", [&] { return cudaMalloc(memory, static_cast<std::size_t>(bytes)); });
}

Failure release(int device, void* memory) {
  return on_device(device, "cudaFree", [&] { return cudaFree(memory); });
}

cudaError_t copy_and_wait(void* destination, const void* source, std::int64_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaDeviceSynchronize();
  return error != cudaSuccess ? error : cudaMemcpy(destination, source, static_cast<std::size_t>(bytes), kind);
}

Failure copy_to_device(int device, void* destination, const void* source, std::int64_t bytes) {
  return on_device(device, "copy to the device",
                   [&] { return copy_and_wait(destination, source, bytes, cudaMemcpyHostToDevice); });
}

Failure copy_to_host(int device, void* destination, const void* source, std::int64_t bytes) {
  return on_device(device, "copy from the device",
                   [&] { return copy_and_wait(destination, source, bytes, cudaMemcpyDeviceToHost); });
}

Failure memory_device(const void* memory, int* device) {
  cudaPointerAttributes attributes;
  if (const Failure failure = check("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, memory))) {
    return failure;
  }
  const bool is_device = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  *device = is_device ? attributes.device : -1;
  return nullptr;
}

Failure create_stream(int device, void** stream) {
  return on_device(device, "cudaStreamCreateWithFlags", [&] {
    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream), cudaStreamNonBlocking);
  });
}

Failure destroy_stream(int device, void* stream) {
  return on_device(device, "cudaStreamDestroy", [&] { return cudaStreamDestroy(static_cast<cudaStream_t>(stream)); });
}

Failure synchronize(Place place) {
  return on_device(place.device, "cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream_of(place)); });
}

Failure is_captured(Place place, bool* captured) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const Failure failure = on_device(place.device, "cudaStreamIsCapturing",
                                    [&] { return cudaStreamIsCapturing(stream_of(place), &status); });
  *captured = status != cudaStreamCaptureStatusNone;
  return failure;
}

Failure begin_capture(Place place) {
  return on_device(place.device, "cudaStreamBeginCapture",
                   [&] { return cudaStreamBeginCapture(stream_of(place), cudaStreamCaptureModeThreadLocal); });
}

Failure end_capture(Place place, void** graph) {
  *graph = nullptr;
  return on_device(place.device, "end of the capture", [&] {
    cudaGraph_t recorded = nullptr;
    cudaError_t error = cudaStreamEndCapture(stream_of(place), &recorded);
    if (error != cudaSuccess) return error;
    cudaGraphExec_t executable = nullptr;
    error = cudaGraphInstantiate(&executable, recorded, 0);
    if (error == cudaSuccess) *graph = executable;
    static_cast<void>(cudaGraphDestroy(recorded));
    return error;
  });
}

Failure launch_graph(Place place, void* graph) {
  return on_device(place.device, "cudaGraphLaunch",
                   [&] { return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(place)); });
}

Failure destroy_graph(int device, void* graph) {
  return on_device(device, "cudaGraphExecDestroy",
                   [&] { return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); });
}

struct Timer {
  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
};

Failure create_timer(int device, void** timer) {
  auto made = std::make_unique<Timer>();
  const Failure failure = on_device(device, "cudaEventCreate", [&] {
    const cudaError_t error = cudaEventCreate(&made->start);
    return error != cudaSuccess ? error : cudaEventCreate(&made->stop);
  });
  if (failure == nullptr) *timer = made.release();
  return failure;
}

Failure destroy_timer(int device, void* timer) {
  const std::unique_ptr<Timer> made(static_cast<Timer*>(timer));
  return on_device(device, "cudaEventDestroy", [&] {
    const cudaError_t error = cudaEventDestroy(made->start);
    return error != cudaSuccess ? error : cudaEventDestroy(made->stop);
  });
}

Failure start_timer(Place place, void* timer) {
  return on_device(place.device, "cudaEventRecord",
                   [&] { return cudaEventRecord(static_cast<Timer*>(timer)->start, stream_of(place)); });
}

Failure stop_timer(Place place, void* timer, float* microseconds) {
  return on_device(place.device, "end of the measurement", [&] {
    const auto* events = static_cast<Timer*>(timer);
    cudaError_t error = cudaEventRecord(events->stop, stream_of(place));
    if (error == cudaSuccess) error = cudaEventSynchronize(events->stop);
    float milliseconds = 0;
    if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, events->start, events->stop);
    *microseconds = milliseconds * 1000;
    return error;
  });
}

Failure gather_rows(Place place, const StridedRows* from, void* packed, std::int64_t rows, std::int64_t row_bytes,
                    std::int64_t packed_pitch) {
  return on_device(place.device, "gather_rows",
                   [&] { return launch_gather_rows(*from, packed, rows, row_bytes, packed_pitch, stream_of(place)); });
}

Failure scatter_rows(Place place, const void* packed, const StridedRows* to, std::int64_t rows,
                     std::int64_t row_bytes) {
  return on_device(place.device, "scatter_rows",
                   [&] { return launch_scatter_rows(packed, *to, rows, row_bytes, stream_of(place)); });
}

Failure gather_scalars(Place place, const StridedRows* from, DType dtype, bool repeats, void* out, std::int64_t count) {
  return on_device(place.device, "gather_scalars",
                   [&] { return launch_gather_scalars(*from, dtype, repeats, out, count, stream_of(place)); });
}

Failure sum_columns(Place place, const std::int8_t* w, std::int64_t n, std::int64_t k, std::int64_t pitch,
                    std::int32_t* out) {
  return on_device(place.device, "sum_columns",
                   [&] { return launch_sum_columns(w, n, k, pitch, out, stream_of(place)); });
}

Failure quantize_int8(Place place, const QuantizeInt8* arguments) {
  return on_device(place.device, "quantize_int8", [&] { return launch_quantize_int8(*arguments, stream_of(place)); });
}

Failure quantize_fp8(Place place, const QuantizeFp8* arguments) {
  return on_device(place.device, "quantize_fp8", [&] { return launch_quantize_fp8(*arguments, stream_of(place)); });
}

Failure prepare_gemm(int device, bool is_int8, const void* codes, std::int64_t n, std::int64_t k, std::int64_t pitch,
                     void** weights) {
  auto made = std::make_unique<GemmWeights>();
  const GemmType type = is_int8 ? GemmType::kInt8 : GemmType::kFp8E4m3;
  const Failure failure = on_device(device, "prepare_gemm_weights",
                                    [&] { return prepare_gemm_weights(type, codes, n, k, pitch, made.get()); });
  if (failure == nullptr) *weights = made.release();
  return failure;
}

void release_gemm(void* weights) { delete static_cast<GemmWeights*>(weights); }

Failure gemm(Place place, const Gemm* a) {
  const GemmOutput y_type = a->y_dtype == DType::kF32   ? GemmOutput::kFloat32
                            : a->y_dtype == DType::kF16 ? GemmOutput::kFloat16
                                                        : GemmOutput::kBfloat16;
  GemmArguments arguments{};
  arguments.weights = static_cast<const GemmWeights*>(a->weights);
  arguments.x = a->x;
  arguments.m = a->m;
  arguments.x_pitch = a->x_pitch;
  arguments.x_scale = a->x_scale;
  arguments.x_scale_per_token = a->x_scale_per_token;
  arguments.w_scale = a->w_scale;
  arguments.w_scale_per_channel = true;
  arguments.bias = a->bias;
  arguments.y = a->y;
  arguments.y_type = y_type;
  arguments.y_stride = a->y_stride;
  arguments.x_zero_point = a->x_zero_point;
  arguments.x_zero_point_per_token = a->x_zero_point_per_token;
  arguments.x_zero_point_any = a->x_zero_point_any;
  arguments.w_column_sum = a->w_column_sum;
  arguments.accumulate = a->fast ? GemmAccumulate::kFast : GemmAccumulate::kPromoted;
  arguments.fused = a->fused;
  arguments.overlap_previous = true;
  arguments.x_is_new = a->x_is_new;
  return on_device(place.device, "run_gemm", [&] { return run_gemm(arguments, stream_of(place)); });
}

}  // namespace
}  // namespace scaledmm::cuda

extern "C" __attribute__((visibility("default"))) const scaledmm::cuda::ModuleApi* scaledmm_cuda_module() {
  using namespace scaledmm::cuda;
  static constexpr ModuleApi kApi{
      .version = kModuleVersion,
      .device_count = device_count,
      .device_properties = device_properties,
      .allocate = allocate,
      .release = release,
      .copy_to_device = copy_to_device,
      .copy_to_host = copy_to_host,
      .memory_device = memory_device,
      .create_stream = create_stream,
      .destroy_stream = destroy_stream,
      .synchronize = synchronize,
      .is_captured = is_captured,
      .begin_capture = begin_capture,
      .end_capture = end_capture,
      .launch_graph = launch_graph,
      .destroy_graph = destroy_graph,
      .create_timer = create_timer,
      .destroy_timer = destroy_timer,
      .start_timer = start_timer,
      .stop_timer = stop_timer,
      .gather_rows = gather_rows,
      .scatter_rows = scatter_rows,
      .gather_scalars = gather_scalars,
      .sum_columns = sum_columns,
      .quantize_int8 = quantize_int8,
      .quantize_fp8 = quantize_fp8,
      .prepare_gemm = prepare_gemm,
      .release_gemm = release_gemm,
      .gemm = gemm,
      .open_vendor = open_vendor,
      .vendor_gemm = run_vendor_gemm,
  };
  return &kApi;
}
