// The layers of a quantized checkpoint: scaledmm::Linear.
#include <algorithm>
#include <cstdlib>
#include <variant>

#include "linear_op.hpp"
#include "scaledmm/device_memory.hpp"
#include "scaledmm/error.hpp"

namespace llama {
namespace {

// A block of scales that the next part would share keeps the parts from being one layer.
bool can_fuse(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts) {
  for (std::size_t i = 0; i + 1 < parts.names.size(); ++i) {
    const scaledmm::LayerConfig& config = checkpoint.layer(parts.names[i]).config;
    const auto* fp8 = std::get_if<scaledmm::FP8ScaledMMLinearLayerConfig>(&config);
    const auto* int8 = std::get_if<scaledmm::Int8ScaledMMLinearLayerConfig>(&config);
    std::int64_t block = 1;
    if (fp8 != nullptr && fp8->weight_quant_key.scale.group_shape.is_block()) {
      block = fp8->weight_quant_key.scale.group_shape.row;
    }
    if (int8 != nullptr && int8->weight_block) block = int8->weight_block->row;
    if (parts.widths[i] % block != 0) return false;
  }
  return true;
}

// On the CPU FP8 layers run with their activations unquantized, unless the environment wants something else.
scaledmm::LinearOptions linear_options(const scaledmm::LayerConfig& config, const scaledmm::Device& device,
                                       int threads) {
  scaledmm::LinearOptions options;
  options.device = device;
  options.threading.threads = threads;
  if (device.kind != scaledmm::DeviceKind::kCpu) return options;
  const bool is_fp8 = std::holds_alternative<scaledmm::FP8ScaledMMLinearLayerConfig>(config);
  if (is_fp8 && std::getenv("SCALEDMM_BACKEND") == nullptr) options.select.backend = "w8a16";
  return options;
}

// A GPU's context and its copies of x and y. Layers run one after the other, so one serves each of them.
struct GpuSide {
  scaledmm::Context context;
  scaledmm::DeviceBuffer x, y;

  explicit GpuSide(const scaledmm::Device& device) : context(device) {}
  void reserve(std::int64_t x_bytes, std::int64_t y_bytes) {
    if (x.size_bytes() < x_bytes) x = scaledmm::DeviceBuffer(context.device(), x_bytes);
    if (y.size_bytes() < y_bytes) y = scaledmm::DeviceBuffer(context.device(), y_bytes);
  }
};

class QuantizedLinear final : public LinearOp {
 public:
  QuantizedLinear(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts, const scaledmm::Device& device,
                  int threads)
      : k_(parts.k) {
    if (device.kind != scaledmm::DeviceKind::kCpu) gpu_ = std::make_unique<GpuSide>(device);
    for (std::size_t i = 0; i < parts.names.size(); ++i) check(checkpoint, parts.names[i], parts.widths[i], k_);
    const scaledmm::LinearOptions options =
        linear_options(checkpoint.layer(parts.names.front()).config, device, threads);
    if (can_fuse(checkpoint, parts)) {
      linears_.push_back(scaledmm::Linear::load_fused(checkpoint, parts.names, options));
    } else {
      for (const std::string& name : parts.names) linears_.push_back(scaledmm::Linear::load(checkpoint, name, options));
    }
    for (const scaledmm::Linear& linear : linears_) n_ += scaledmm::weight_shape(linear.config()).n;
  }

  void apply(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const override {
    if (gpu_ == nullptr) return run(x, m, y, context);
    const std::int64_t x_bytes = m * k_ * 4, y_bytes = m * n_ * 4;
    gpu_->reserve(x_bytes, y_bytes);
    gpu_->x.copy_from_host(x, x_bytes);
    run(gpu_->x.as<float>(), m, gpu_->y.as<float>(), gpu_->context);
    gpu_->y.copy_to_host(y, y_bytes);
  }

  std::string kernel() const override { return std::string(linears_.front().kernel().name()); }

 private:
  void run(const float* x, std::int64_t m, float* y, scaledmm::Context& context) const {
    for (const scaledmm::Linear& linear : linears_) {
      const std::int64_t n = scaledmm::weight_shape(linear.config()).n;
      linear.apply({x, scaledmm::DType::kF32, {m, k_}}, {y, scaledmm::DType::kF32, {m, n}, {n_, 1}}, context);
      y += n;
    }
  }

  static void check(const scaledmm::Checkpoint& checkpoint, const std::string& name, std::int64_t n, std::int64_t k) {
    const scaledmm::LayerRecord& record = checkpoint.layer(name);
    if (record.n == n && record.k == k) return;
    throw scaledmm::CheckpointError(checkpoint.directory().string() + ": " + name + " is [" + std::to_string(record.n) +
                                    ", " + std::to_string(record.k) + "], config.json says [" + std::to_string(n) +
                                    ", " + std::to_string(k) + "]");
  }

  std::vector<scaledmm::Linear> linears_;
  std::unique_ptr<GpuSide> gpu_;
  std::int64_t n_ = 0;
  std::int64_t k_;
};

}  // namespace

std::unique_ptr<LinearOp> load_quantized(const scaledmm::Checkpoint& checkpoint, const LinearParts& parts,
                                         const scaledmm::Device& device, int threads) {
  return std::make_unique<QuantizedLinear>(checkpoint, parts, device, threads);
}

}  // namespace llama
