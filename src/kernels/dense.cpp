#include "scaledmm/dense.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "kernels/cpu/dense_tiles.hpp"
#include "kernels/cpu/huge_buffer.hpp"
#include "kernels/cpu/shares.hpp"
#include "kernels/operand_layout.hpp"
#include "kernels/round_up.hpp"
#include "numerics/formats.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/to_f32.hpp"

namespace scaledmm {
namespace {

using dense::kPanelColumns;

constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kFloatBytes = sizeof(float);

constexpr std::array<float, dense::kMostBlockRows> kOnes = [] {
  std::array<float, dense::kMostBlockRows> ones{};
  ones.fill(1.0f);
  return ones;
}();

const dense::Kernel& kernel_for(const Device& device) {
  for (const dense::Kernel* kernel : {&native::bf16_amx(), &native::bf16_avx2()}) {
    if (kernel->runs_on(device.cpu)) return *kernel;
  }
  return native::bf16_reference();
}

[[noreturn]] void fail(const std::string& text) { throw InvalidArgument("dense layer: " + text); }

void check_matrix(const char* what, const ConstTensorView& view, std::int64_t columns, const char* letter) {
  const std::string name = what;
  if (view.shape.rank() != 2 || view.shape[1] != columns) {
    fail(name + " has shape " + view.shape.text() + ", its second dimension must be " + letter + " = " +
         std::to_string(columns));
  }
  if (!is_float16_or_32(view.dtype))
    fail(name + " is " + std::string(scaledmm::name(view.dtype)) + ", not f32, bf16 or f16");
  if (view.shape.elements() == 0) return;
  if (const std::string fault = layout_fault(name, view); !fault.empty()) fail(fault);
}

// One call, cut into blocks of rows and groups of panels. Cuts never change a result.
struct Plan {
  const dense::Kernel& kernel;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t padded_k = 0;
  const std::uint16_t* weights = nullptr;
  ConstTensorView x;
  TensorView y;
  std::int64_t m = 0;
  std::int64_t parts = 1;          // prepared rows of a row of x
  std::int64_t prepared_rows = 0;  // rows of x, and of zeros, that fill the last unit of prepared rows
  std::int64_t row_blocks = 0;
  std::int64_t group_panels = 0;
  std::int64_t groups = 0;
  std::byte* prepared = nullptr;
  const float* bias = nullptr;

  bool one_tile() const { return m * parts <= kernel.tile_rows; }
  std::int64_t panels() const { return divide_up(n, kPanelColumns); }
  std::int64_t panel_sums() const {
    return round_up(std::min(m, kernel.block_rows) * parts, kernel.row_unit) * kPanelColumns;
  }
  std::int64_t sums_bytes() const { return group_panels * panel_sums() * kFloatBytes; }
};

void prepare_rows(const Plan& plan, std::int64_t begin, std::int64_t end) {
  dense::RowCall call;
  call.dtype = plan.x.dtype;
  call.k = plan.k;
  call.padded_k = plan.padded_k;
  call.prepared = plan.prepared;
  const std::int64_t x_bytes = plan.x.strides[0] * size_bytes(plan.x.dtype);
  for (call.row = begin; call.row < end; ++call.row) {
    call.x = call.row < plan.m ? static_cast<const std::byte*>(plan.x.data) + call.row * x_bytes : nullptr;
    plan.kernel.prepare(call);
  }
}

void store(const Plan& plan, std::int64_t first_row, std::int64_t rows, std::int64_t first_panel, std::int64_t panels,
           const float* sums, std::int64_t panel_sums) {
  const std::int64_t column = first_panel * kPanelColumns;
  const std::int64_t columns = std::min(panels * kPanelColumns, plan.n - column);
  const std::int64_t bytes = size_bytes(plan.y.dtype);
  auto* y = static_cast<std::byte*>(plan.y.data) + (first_row * plan.y.strides[0] + column) * bytes;
  fp8::StoreCall call;
  call.totals = sums;
  call.panel_totals = panel_sums;
  call.factors = kOnes.data();
  call.rows = rows;
  call.bias = plan.bias == nullptr ? nullptr : plan.bias + column;
  call.y = y;
  call.y_stride = plan.y.strides[0];
  call.dtype = plan.y.dtype;
  call.columns = columns;
  plan.kernel.store(call);
}

void multiply_item(const Plan& plan, std::int64_t item, float* sums) {
  const dense::Kernel& kernel = plan.kernel;
  const std::int64_t first_row = item / plan.groups * kernel.block_rows;
  const std::int64_t rows = std::min(kernel.block_rows, plan.m - first_row);
  const std::int64_t first_panel = item % plan.groups * plan.group_panels;
  const std::int64_t panels = std::min(plan.group_panels, plan.panels() - first_panel);
  dense::TileCall call;
  call.x = plan.prepared;
  call.padded_k = plan.padded_k;
  call.panel_sums = plan.panel_sums();
  call.streams = plan.one_tile();
  const std::int64_t chunk = plan.one_tile() ? plan.padded_k : kernel.chunk;
  for (call.k = 0; call.k < plan.padded_k; call.k += chunk) {
    call.count = std::min(chunk, plan.padded_k - call.k);
    call.adds = call.k > 0;
    for (std::int64_t row = 0; row < rows * plan.parts; row += kernel.tile_rows) {
      call.first_row = first_row * plan.parts + row;
      call.rows = std::min(kernel.tile_rows, rows * plan.parts - row);
      for (std::int64_t panel = 0, width = kernel.panels_at_once(call.rows); panel < panels; panel += width) {
        while (width > panels - panel) width /= 2;
        call.weights = plan.weights + (first_panel + panel) * plan.padded_k * kPanelColumns;
        call.sums = sums + panel * call.panel_sums + row * kPanelColumns;
        kernel.multiply(width, call);
      }
    }
  }
  if (plan.parts > 1) kernel.add_parts(plan.parts, panels, rows, sums, call.panel_sums);
  store(plan, first_row, rows, first_panel, panels, sums, call.panel_sums);
}

void run(Plan& plan, const ConstTensorView& bias, Context& context) {
  const dense::Kernel& kernel = plan.kernel;
  if (kernel.parts != nullptr) plan.parts = kernel.parts(plan.x.dtype);
  plan.prepared_rows = divide_up(round_up(plan.m * plan.parts, kernel.row_unit), plan.parts);
  plan.row_blocks = divide_up(plan.m, kernel.block_rows);
  const std::int64_t threads = std::min<std::int64_t>(
      context.threads(), std::max<std::int64_t>(1, plan.m * plan.padded_k * plan.n / kWorkPerThread));
  plan.group_panels = std::min(plan.one_tile() ? kernel.panels_at_once(plan.m * plan.parts) : kernel.group_panels,
                               divide_up(plan.panels(), threads));
  plan.groups = divide_up(plan.panels(), plan.group_panels);
  const std::int64_t items = plan.row_blocks * plan.groups;
  const std::int64_t workers = std::min(threads, items);

  const std::int64_t x_bytes =
      round_up(plan.prepared_rows * plan.parts, kernel.row_unit) * kernel.row_bytes(plan.padded_k);
  const std::int64_t bias_bytes = bias.defined() ? round_up(plan.n * kFloatBytes, kCacheLine) : 0;
  const std::int64_t worker_bytes = round_up(plan.sums_bytes(), kCacheLine);
  std::byte* scratch =
      context.scratch(round_up(x_bytes, kCacheLine) + bias_bytes + workers * worker_bytes + Shares::bytes(workers));
  const auto take = [&scratch](std::int64_t bytes) { return std::exchange(scratch, scratch + bytes); };
  plan.prepared = take(round_up(x_bytes, kCacheLine));
  if (auto* wide = reinterpret_cast<float*>(take(bias_bytes)); bias.defined()) {
    to_f32(bias, TensorView(wide, DType::kF32, bias.shape));
    plan.bias = wide;
  }
  std::byte* sums = take(workers * worker_bytes);
  const std::int64_t packers = std::clamp<std::int64_t>(plan.m * plan.padded_k / kPackPerThread, 1, workers);
  const auto prepare = [&](std::int64_t part) {
    prepare_rows(plan, plan.prepared_rows * part / packers, plan.prepared_rows * (part + 1) / packers);
  };
  const Shares shares(items, workers, take(Shares::bytes(workers)));
  const auto work = [&](std::int64_t worker) {
    if (kernel.begin != nullptr) kernel.begin();
    shares.run(
        [&](std::int64_t item) { multiply_item(plan, item, reinterpret_cast<float*>(sums + worker * worker_bytes)); });
    if (kernel.end != nullptr) kernel.end();
  };
  if (packers == 1) {
    prepare(0);
  } else {
    context.parallel(packers, prepare);
  }
  if (workers == 1) return work(0);
  context.parallel(workers, work);
}

}  // namespace

struct DenseLinear::Packed {
  const dense::Kernel& kernel;
  std::int64_t n;
  std::int64_t k;
  std::int64_t padded_k;
  HugeBuffer weights;
};

DenseLinear::DenseLinear(ConstTensorView weight, Context& context) {
  if (context.device().kind != DeviceKind::kCpu) fail("dense layers run on CPUs, the context's device is a GPU");
  if (weight.dtype != DType::kBF16) fail("the weight is " + std::string(name(weight.dtype)) + ", not bf16");
  const std::int64_t k = weight.shape.rank() == 2 ? weight.shape[1] : 0;
  check_matrix("the weight", weight, k, "K");
  if (weight.shape.elements() == 0) fail("the weight has shape " + weight.shape.text());
  const std::int64_t n = weight.shape[0], padded_k = round_up(k, dense::kStep);
  const std::int64_t panels = divide_up(n, kPanelColumns);
  HugeBuffer buffer(panels * padded_k * kPanelColumns * scaledmm::size_bytes(DType::kBF16));
  auto* packed = buffer.as<std::uint16_t>();
  const auto* from = static_cast<const std::uint16_t*>(weight.data);
  share_panels(panels, context, [&](std::int64_t panel) {
    for (std::int64_t column = 0; column < std::min(kPanelColumns, n - panel * kPanelColumns); ++column) {
      const std::uint16_t* row = from + (panel * kPanelColumns + column) * weight.strides[0];
      std::uint16_t* out = packed + panel * padded_k * kPanelColumns + 2 * column;
      for (std::int64_t i = 0; i < k; ++i) out[i / 2 * 2 * kPanelColumns + i % 2] = row[i];
    }
  });
  packed_ = std::make_unique<const Packed>(kernel_for(context.device()), n, k, padded_k, std::move(buffer));
}

DenseLinear::~DenseLinear() = default;
DenseLinear::DenseLinear(DenseLinear&&) noexcept = default;
DenseLinear& DenseLinear::operator=(DenseLinear&&) noexcept = default;

std::int64_t DenseLinear::n() const { return packed_->n; }
std::int64_t DenseLinear::k() const { return packed_->k; }
std::string_view DenseLinear::kernel() const { return packed_->kernel.name; }
std::int64_t DenseLinear::size_bytes() const { return packed_->weights.size_bytes(); }

void DenseLinear::apply(ConstTensorView x, ConstTensorView bias, TensorView y, Context& context) const {
  check_matrix("x", x, packed_->k, "K");
  check_matrix("y", y, packed_->n, "N");
  if (x.shape[0] != y.shape[0]) {
    fail("x has shape " + x.shape.text() + " and y " + y.shape.text() + ": their rows differ");
  }
  if (bias.defined() && (bias.shape != Shape{packed_->n} || !is_float16_or_32(bias.dtype) || bias.data == nullptr)) {
    fail("bias must be f32, bf16 or f16 of shape " + Shape{packed_->n}.text() + ", it is " +
         std::string(name(bias.dtype)) + " of shape " + bias.shape.text());
  }
  if (x.shape[0] > 1 && y.strides[0] < packed_->n) {
    fail("y's row stride " + std::to_string(y.strides[0]) + " is less than N = " + std::to_string(packed_->n));
  }
  if (!packed_->kernel.runs_on(context.device().cpu)) {
    fail("it was packed for " + std::string(kernel()) + ", which the context's CPU cannot run");
  }
  if (x.shape[0] == 0) return;
  Plan plan{packed_->kernel, packed_->n, packed_->k, packed_->padded_k, packed_->weights.as<std::uint16_t>(), x, y};
  plan.m = x.shape[0];
  run(plan, bias, context);
}

}  // namespace scaledmm
