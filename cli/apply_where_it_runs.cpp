#include "cli/apply_where_it_runs.hpp"

#include "scaledmm/device_memory.hpp"

namespace scaledmm::cli {

void apply_where_it_runs(const Linear& linear, ConstTensorView x, TensorView y, Context& context) {
  if (context.device().kind == DeviceKind::kCpu) return linear.apply(x, y, context);
  const std::int64_t y_bytes = y.shape.elements() * size_bytes(y.dtype);
  const DeviceBuffer gpu_x(context.device(), x.data, x.shape.elements() * size_bytes(x.dtype));
  const DeviceBuffer gpu_y(context.device(), y_bytes);
  linear.apply({gpu_x.data(), x.dtype, x.shape}, {gpu_y.data(), y.dtype, y.shape}, context);
  gpu_y.copy_to_host(y.data, y_bytes);
}

}  // namespace scaledmm::cli
