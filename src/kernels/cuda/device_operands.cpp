// Operands in a GPU's memory: nothing here reads them, all copies are put on the context's stream.
#include <array>

#include "device/cuda_module.hpp"
#include "kernels/cuda/gpu_activations.hpp"
#include "kernels/operand_copies.hpp"

namespace scaledmm {
namespace {

// -1 for the host's memory.
int device_of(const void* data) {
  int device = -1;
  check_cuda(cuda_api().memory_device(data, &device));
  return device;
}

// The same for the operands of a call. Asking costs a good part of a launch, and callers come back with the same
// memory, so what lay on a device is remembered: a host's pointer never has the value of a device's.
int device_of_operand(const void* data) {
  struct Known {
    const void* data = nullptr;
    int device = -1;
  };
  constexpr std::size_t kKnown = 64;
  thread_local std::array<Known, kKnown> known;
  Known& place = known[reinterpret_cast<std::uintptr_t>(data) / 256 % kKnown];
  if (place.data == data) return place.device;
  const int device = device_of(data);
  if (device >= 0) place = {data, device};
  return device;
}

std::string memory_fault(const ConstTensorView& view, const Context& context) {
  const std::int64_t bytes = size_bytes(view.dtype);
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) != 0) {
    return "is not aligned to its " + std::to_string(bytes) + "-byte elements";
  }
  const int device = device_of_operand(view.data);
  if (device == context.device().index) return {};
  const std::string place = device < 0 ? "the host's memory" : "the memory of cuda:" + std::to_string(device);
  return "lies in " + place + ", the layer runs on cuda:" + std::to_string(context.device().index);
}

// The first `dimensions` dimensions as rows.
cuda::StridedRows strided_rows(const void* data, const Shape& shape, const Shape& strides, std::size_t dimensions,
                               DType dtype) {
  static_assert(cuda::kMaxDimensions >= static_cast<int>(Shape::kMaxRank));
  cuda::StridedRows rows{};
  rows.data = const_cast<void*>(data);
  rows.dimensions = static_cast<int>(dimensions);
  for (std::size_t i = 0; i < dimensions; ++i) {
    rows.sizes[i] = shape[i];
    rows.stride_bytes[i] = strides[i] * size_bytes(dtype);
  }
  return rows;
}

std::int64_t row_count(const Shape& shape) { return shape.back() == 0 ? 0 : shape.elements() / shape.back(); }

void gather_rows(const ConstTensorView& from, std::byte* packed, Context& context) {
  const cuda::StridedRows rows = strided_rows(from.data, from.shape, from.strides, from.shape.rank() - 1, from.dtype);
  check_cuda(cuda_api().gather_rows(place_of(context), &rows, packed, row_count(from.shape),
                                    from.shape.back() * size_bytes(from.dtype),
                                    from.shape.back() * size_bytes(from.dtype)));
}

void scatter_rows(const std::byte* packed, const TensorView& to, Context& context) {
  const cuda::StridedRows rows = strided_rows(to.data, to.shape, to.strides, to.shape.rank() - 1, to.dtype);
  check_cuda(cuda_api().scatter_rows(place_of(context), packed, &rows, row_count(to.shape),
                                     to.shape.back() * size_bytes(to.dtype)));
}

void gather(const ConstTensorView& from, void* out, std::int64_t count, Context& context) {
  const cuda::StridedRows rows = strided_rows(from.data, from.shape, from.strides, from.shape.rank(), from.dtype);
  const bool repeats = from.shape.elements() == 1;
  check_cuda(cuda_api().gather_scalars(place_of(context), &rows, from.dtype, repeats, out, count));
}

void widen(const ConstTensorView& vector, float* out, std::int64_t count, Context& context) {
  gather(vector, out, count, context);
}

// Elements between the first and the last one of a tensor, both included.
std::int64_t extent(const ConstTensorView& view) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < view.shape.rank(); ++i) last += (view.shape[i] - 1) * view.strides[i];
  return last + 1;
}

}  // namespace

const OperandCopies& cuda_copies() {
  static constexpr OperandCopies kCopies{memory_fault, gather_rows, scatter_rows, gather, widen};
  return kCopies;
}

LayerWeights weights_on_host(const LayerWeights& weights, std::vector<std::vector<std::byte>>& storage) {
  LayerWeights result = weights;
  const auto bring = [&](ConstTensorView& view) {
    if (view.data == nullptr || view.shape.elements() == 0) return;
    const int device = device_of(view.data);
    if (device < 0) return;
    std::vector<std::byte>& copy =
        storage.emplace_back(static_cast<std::size_t>(extent(view) * size_bytes(view.dtype)));
    check_cuda(cuda_api().copy_to_host(device, copy.data(), view.data, static_cast<std::int64_t>(copy.size())));
    view.data = copy.data();
  };
  bring(result.weight);
  bring(result.weight_scale);
  bring(result.input_scale);
  bring(result.input_zero_point);
  return result;
}

}  // namespace scaledmm
