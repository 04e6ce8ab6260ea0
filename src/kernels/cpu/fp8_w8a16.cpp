#include "kernels/cpu/fp8_w8a16.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "numerics/formats.hpp"

namespace scaledmm::fp8_w8a16 {
namespace {

constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kGroupPanels = 8;     // panels that reuse a chunk of x from L2 before it is left
constexpr std::int64_t kItemsPerWorker = 4;  // so that a late thread costs a quarter of its share at most
// Multiplications below which waking a thread costs more than it brings: about 10 us of one core.
constexpr std::int64_t kWorkPerThread = 1 << 17;
constexpr std::int64_t kPackPerThread = 1 << 14;  // the same for activations to pack

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t aligned(std::int64_t bytes) { return divide_up(bytes, kCacheLine) * kCacheLine; }

// Part i of `total` things dealt into `parts` parts that differ by one at most.
std::int64_t part_begin(std::int64_t total, std::int64_t parts, std::int64_t i) {
  return total / parts * i + std::min(i, total % parts);
}

std::vector<KBlock> k_blocks(const CheckedWeights& weights, std::int64_t k_step) {
  std::vector<KBlock> blocks;
  std::int64_t position = 0;
  for (std::int64_t begin = 0; begin < weights.k;) {
    const std::int64_t to_edge = weights.block_k - (begin + weights.offset_k) % weights.block_k;
    const std::int64_t count = std::min(to_edge, weights.k - begin);
    blocks.push_back({begin, count, position});
    position += divide_up(count, k_step) * k_step;
    begin += count;
  }
  return blocks;
}

// Chunks of at most chunk_k. Only scale blocks longer than that are cut.
Chunks cut_chunks(const std::vector<KBlock>& blocks, std::int64_t k_step, std::int64_t chunk_k) {
  Chunks chunks;
  std::int64_t room = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const KBlock& block = blocks[b];
    const std::int64_t padded = divide_up(block.count, k_step) * k_step;
    for (std::int64_t done = 0, steps; done < padded; done += steps) {
      if (room < std::min(padded - done, chunk_k)) {
        chunks.emplace_back();
        room = chunk_k;
      }
      steps = std::min(padded - done, room);
      chunks.back().push_back(
          {block.position + done, steps, static_cast<std::int64_t>(b), done == 0, done + steps == padded});
      room -= steps;
    }
  }
  return chunks;
}

void pack_panel(const CheckedWeights& weights, const PackedFp8& packed, std::int64_t panel, std::uint8_t* codes,
                float* scales) {
  const std::array<float, 256>& values = fp8_values(packed.dtype);
  const std::int64_t first = panel * kPanelColumns;
  const std::int64_t columns = std::min(kPanelColumns, packed.n - first);
  for (std::int64_t column = 0; column < columns; ++column) {
    const std::uint8_t* row = weights.bytes + (first + column) * weights.row_pitch;
    bool has_nan = false;
    for (std::size_t b = 0; b < packed.blocks.size(); ++b) {
      const KBlock& block = packed.blocks[b];

      for (std::int64_t i = 0; i < block.count; ++i) {
        const std::uint8_t code = row[block.begin + i];
        has_nan |= values[code] != values[code];
        codes[code_offset(packed.order, block.position + i, column)] = code;
      }
      scales[static_cast<std::int64_t>(b) * kPanelColumns + column] = weights.scale(first + column, block.begin);
    }
    if (has_nan) scales[column] = std::numeric_limits<float>::quiet_NaN();
  }
}

// How the work of one call is cut. Cuts never change a result.
struct Plan {
  const TileKernels& kernels;
  const PackedFp8& packed;
  const ApplyArguments& arguments;
  std::int64_t tiles = 0;
  std::int64_t row_blocks = 0;
  std::int64_t group_panels = 0;
  std::int64_t groups = 0;
  std::byte* x = nullptr;
  std::int64_t x_tile_bytes = 0;
  float* factors = nullptr;

  std::int64_t tile_begin(std::int64_t tile) const {
    const std::int64_t units = divide_up(arguments.m, kernels.row_unit);
    return std::min(arguments.m, part_begin(units, tiles, tile) * kernels.row_unit);
  }
  std::int64_t tile_sums() const { return kernels.tile_rows * kPanelColumns; }
  std::int64_t kept_bytes() const { return kernels.kept_panels * kernels.chunk_k * kPanelColumns * kernels.kept_bytes; }
  std::int64_t sums_bytes() const {
    return group_panels * divide_up(tiles, row_blocks) * tile_sums() * static_cast<std::int64_t>(sizeof(float));
  }
};

// Memory of one worker.
struct Workspace {
  std::byte* kept;
  float* sums;
  float* totals;
};

std::int64_t workspace_bytes(const Plan& plan) { return aligned(plan.kept_bytes()) + 2 * aligned(plan.sums_bytes()); }

Workspace workspace_at(const Plan& plan, std::byte* memory) {
  std::byte* sums = memory + aligned(plan.kept_bytes());
  return {memory, reinterpret_cast<float*>(sums), reinterpret_cast<float*>(sums + aligned(plan.sums_bytes()))};
}

// The totals of one row and panel by the definition, for a row that the tiles cannot take.
void multiply_plainly(const Plan& plan, std::int64_t row, std::int64_t panel, float* totals) {
  const PackedFp8& packed = plan.packed;
  const ApplyArguments& arguments = plan.arguments;
  const std::array<float, 256>& values = fp8_values(packed.dtype);
  const std::uint8_t* codes = packed.panel_codes(panel, 0);
  for (std::int64_t column = 0; column < kPanelColumns; ++column) {
    float total = 0;
    for (std::size_t b = 0; b < packed.blocks.size(); ++b) {
      const KBlock& block = packed.blocks[b];
      float sum = 0;
      for (std::int64_t i = 0; i < block.count; ++i) {
        const float x = load_f32(arguments.x, arguments.x_dtype, row * arguments.x_stride + block.begin + i);
        sum = std::fma(x, values[codes[code_offset(packed.order, block.position + i, column)]], sum);
      }
      total = std::fma(sum, packed.panel_scales(panel, b)[column], total);
    }
    totals[column] = total;
  }
}

void store_panel(const Plan& plan, std::int64_t first_tile, std::int64_t tiles, std::int64_t panel, float* totals) {
  const ApplyArguments& arguments = plan.arguments;
  const std::int64_t column = panel * kPanelColumns;
  StoreCall store;
  store.bias = arguments.bias == nullptr ? nullptr : arguments.bias + column;
  store.dtype = arguments.y_dtype;
  store.columns = std::min(kPanelColumns, plan.packed.n - column);
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t first_row = plan.tile_begin(first_tile + tile);
    const std::int64_t end_row = plan.tile_begin(first_tile + tile + 1);
    for (std::int64_t row = first_row; row < end_row; ++row) {
      float* row_totals = totals + tile * plan.tile_sums() + (row - first_row) * kPanelColumns;
      store.factor = plan.factors[row];
      if (store.factor == 0.0f) {
        multiply_plainly(plan, row, panel, row_totals);
        store.factor = 1.0f;
      }
      store.totals = row_totals;
      store.y =
          static_cast<std::byte*>(arguments.y) + (row * arguments.y_stride + column) * size_bytes(arguments.y_dtype);
      store_row(store);
    }
  }
}

void multiply_panels(const Plan& plan, std::int64_t first_tile, std::int64_t tiles, std::int64_t first_panel,
                     std::int64_t panels, const Workspace& workspace) {
  const PackedFp8& packed = plan.packed;
  const TileKernels& kernels = plan.kernels;
  const bool one_tile = tiles == 1;
  const std::int64_t most_panels =
      one_tile ? kernels.panels_at_once(plan.tile_begin(first_tile + 1) - plan.tile_begin(first_tile))
               : kernels.kept_panels;

  TileCall call;
  call.padded_k = packed.padded_k;
  call.panel_codes = packed.padded_k * kPanelColumns;
  call.kept = workspace.kept;
  call.panel_kept = kernels.chunk_k * kPanelColumns * kernels.kept_bytes;
  call.panel_sums = tiles * plan.tile_sums();
  call.panel_scales = static_cast<std::int64_t>(packed.blocks.size()) * kPanelColumns;
  // With one tile nothing is kept, so all of K is one chunk.
  for (const std::vector<Piece>& chunk : one_tile ? packed.whole : packed.chunks) {
    call.pieces = chunk;
    for (std::int64_t panel = 0, width = most_panels; panel < panels; panel += width) {
      while (width > panels - panel) width /= 2;
      call.codes = packed.panel_codes(first_panel + panel, chunk.front().position);
      call.scales = packed.panel_scales(first_panel + panel, 0);
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const std::int64_t rows = plan.tile_begin(first_tile + tile + 1) - plan.tile_begin(first_tile + tile);
        const Weights source = one_tile ? Weights::kCodes : tile == 0 ? Weights::kCodesAndKeep : Weights::kKept;
        call.x = plan.x + (first_tile + tile) * plan.x_tile_bytes;
        call.sums = workspace.sums + (panel * tiles + tile) * plan.tile_sums();
        call.totals = workspace.totals + (panel * tiles + tile) * plan.tile_sums();
        kernels.multiply(packed.dtype, source, rows, width, call);
      }
    }
  }
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    store_panel(plan, first_tile, tiles, first_panel + panel, workspace.totals + panel * call.panel_sums);
  }
}

void multiply_item(const Plan& plan, std::int64_t item, const Workspace& workspace) {
  const std::int64_t row_block = item / plan.groups;
  const std::int64_t group = item % plan.groups;
  const std::int64_t first_tile = part_begin(plan.tiles, plan.row_blocks, row_block);
  const std::int64_t end_tile = part_begin(plan.tiles, plan.row_blocks, row_block + 1);
  const std::int64_t first_panel = group * plan.group_panels;
  const std::int64_t panels = std::min(plan.group_panels, plan.packed.panels - first_panel);
  multiply_panels(plan, first_tile, end_tile - first_tile, first_panel, panels, workspace);
}

void pack_rows_of_tile(const Plan& plan, std::int64_t tile, std::int64_t begin, std::int64_t end) {
  const std::int64_t first = plan.tile_begin(tile);
  TileRows rows;
  rows.x = static_cast<const std::byte*>(plan.arguments.x) +
           first * plan.arguments.x_stride * size_bytes(plan.arguments.x_dtype);
  rows.dtype = plan.arguments.x_dtype;
  rows.stride = plan.arguments.x_stride;
  rows.rows = plan.tile_begin(tile + 1) - first;
  rows.blocks = plan.packed.blocks;
  rows.padded_k = plan.packed.padded_k;
  rows.weight_dtype = plan.packed.dtype;
  for (std::int64_t row = begin; row < end; ++row) {
    plan.factors[row] = plan.kernels.pack_row(rows, row - first, plan.x + tile * plan.x_tile_bytes);
  }
}

// Part `part` of `parts` of the rows.
void pack_x(const Plan& plan, std::int64_t part, std::int64_t parts) {
  const std::int64_t begin = part_begin(plan.arguments.m, parts, part);
  const std::int64_t end = part_begin(plan.arguments.m, parts, part + 1);
  for (std::int64_t tile = 0; tile < plan.tiles; ++tile) {
    pack_rows_of_tile(plan, tile, std::max(begin, plan.tile_begin(tile)), std::min(end, plan.tile_begin(tile + 1)));
  }
}

}  // namespace

std::int64_t PackedFp8::size_bytes() const {
  return codes.size_bytes() + scales.size_bytes() +
         static_cast<std::int64_t>(sizeof(*this) + blocks.size() * sizeof(KBlock));
}

std::unique_ptr<PackedFp8> pack(const TileKernels& kernels, const CheckedWeights& weights, Context& context) {
  const std::int64_t k_step = kernels.k_step;
  auto packed = std::make_unique<PackedFp8>();
  packed->n = weights.n;
  packed->k = weights.k;
  packed->dtype = weights.dtype;
  packed->order = kernels.order;
  packed->panels = divide_up(weights.n, kPanelColumns);
  packed->blocks = k_blocks(weights, k_step);
  const KBlock& last = packed->blocks.back();
  packed->padded_k = last.position + divide_up(last.count, k_step) * k_step;
  packed->whole = cut_chunks(packed->blocks, k_step, packed->padded_k);
  packed->chunks = cut_chunks(packed->blocks, k_step, kernels.chunk_k);
  const auto blocks = static_cast<std::int64_t>(packed->blocks.size());
  packed->codes = HugeBuffer(packed->panels * packed->padded_k * kPanelColumns);
  packed->scales = HugeBuffer(packed->panels * blocks * kPanelColumns * static_cast<std::int64_t>(sizeof(float)));
  auto* codes = packed->codes.as<std::uint8_t>();
  auto* scales = packed->scales.as<float>();
  context.parallel(packed->panels, [&](std::int64_t panel) {
    pack_panel(weights, *packed, panel, codes + panel * packed->padded_k * kPanelColumns,
               scales + panel * blocks * kPanelColumns);
  });
  return packed;
}

std::vector<std::uint8_t> unpack(const PackedFp8& packed) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(packed.n * packed.k));
  for (std::int64_t n = 0; n < packed.n; ++n) {
    for (const KBlock& block : packed.blocks) {
      const std::uint8_t* codes = packed.panel_codes(n / kPanelColumns, 0);
      for (std::int64_t i = 0; i < block.count; ++i) {
        bytes[static_cast<std::size_t>(n * packed.k + block.begin + i)] =
            codes[code_offset(packed.order, block.position + i, n % kPanelColumns)];
      }
    }
  }
  return bytes;
}

void multiply(const TileKernels& kernels, const PackedFp8& packed, const ApplyArguments& arguments, Context& context) {
  const std::int64_t m = arguments.m;
  if (m == 0) return;
  Plan plan{kernels, packed, arguments};
  plan.tiles = divide_up(m, kernels.tile_rows);
  plan.row_blocks = divide_up(plan.tiles, kernels.block_rows / kernels.tile_rows);
  const std::int64_t work = m * packed.panels * kPanelColumns * packed.padded_k;
  const std::int64_t useful_threads =
      std::min<std::int64_t>(context.threads(), std::max<std::int64_t>(1, work / kWorkPerThread));
  // Few rows stay in L2 over the whole of K, and a panel's codes are then best read in one go.
  const std::int64_t least_panels = plan.tiles == 1 ? kernels.panels_at_once(m) : kernels.kept_panels;
  const std::int64_t block_rows = divide_up(plan.tiles, plan.row_blocks) * kernels.tile_rows;
  plan.group_panels = least_panels;
  if (plan.tiles > 1 && block_rows * packed.padded_k * kernels.x_bytes > kernels.small_x_bytes) {
    const std::int64_t balanced = packed.panels * plan.row_blocks / (useful_threads * kItemsPerWorker);
    plan.group_panels = std::clamp(balanced, least_panels, kGroupPanels) / least_panels * least_panels;
  }
  plan.group_panels = std::min(plan.group_panels, divide_up(packed.panels, useful_threads));
  plan.groups = divide_up(packed.panels, plan.group_panels);
  const std::int64_t items = plan.row_blocks * plan.groups;
  const std::int64_t workers = std::min(useful_threads, items);

  plan.x_tile_bytes = aligned(kernels.tile_rows * packed.padded_k * kernels.x_bytes);
  const std::int64_t x_bytes = plan.tiles * plan.x_tile_bytes;
  const std::int64_t factor_bytes = aligned(m * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t worker_bytes = workspace_bytes(plan);
  std::byte* scratch = context.scratch(x_bytes + factor_bytes + workers * worker_bytes);
  plan.x = scratch;
  plan.factors = reinterpret_cast<float*>(scratch + x_bytes);
  std::byte* workspaces = scratch + x_bytes + factor_bytes;

  // Workers, not items, are the tasks: each has a workspace, and takes the next item that nobody has.
  std::atomic<std::int64_t> next{0};
  const auto work_on_items = [&](std::int64_t worker) {
    const Workspace workspace = workspace_at(plan, workspaces + worker * worker_bytes);
    if (kernels.begin != nullptr) kernels.begin();
    for (std::int64_t item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
      multiply_item(plan, item, workspace);
    }
    if (kernels.end != nullptr) kernels.end();
  };
  if (workers == 1) {
    pack_x(plan, 0, 1);
    work_on_items(0);
    return;
  }
  const std::int64_t packers = std::clamp<std::int64_t>(m * packed.padded_k / kPackPerThread, 1, workers);
  if (packers == 1) {
    pack_x(plan, 0, 1);
  } else {
    context.parallel(packers, [&](std::int64_t part) { pack_x(plan, part, packers); });
  }
  context.parallel(workers, work_on_items);
}

Support can_implement(const LayerConfig& config) {
  const auto* fp8 = std::get_if<FP8ScaledMMLinearLayerConfig>(&config);
  if (fp8 == nullptr) return Support::no("weights are int8, this kernel takes fp8");
  const auto [n, k] = fp8->weight_shape;
  if (n < 1) return Support::no("N = " + std::to_string(n) + " is less than 1");
  if (k < 1) return Support::no("K = " + std::to_string(k) + " is less than 1");
  const QuantKey& key = fp8->weight_quant_key;
  if (!is_fp8(key.dtype)) {
    return Support::no("weights are " + std::string(name(key.dtype)) + ", this kernel takes e4m3fn, e4m3fnuz or e5m2");
  }
  if (key.scale2) return Support::no("weights have a second level of scales, this kernel takes one");
  if (!key.symmetric) return Support::no("weights are asymmetric, this kernel takes symmetric ones");
  if (!is_float16_or_32(fp8->input_dtype)) {
    return Support::no("input is " + std::string(name(fp8->input_dtype)) + ", this kernel takes f32, bf16 or f16");
  }
  if (!is_float16_or_32(fp8->out_dtype)) {
    return Support::no("output is " + std::string(name(fp8->out_dtype)) + ", this kernel gives f32, bf16 or f16");
  }
  return Support::yes();
}

Support can_implement_bf16(const LayerConfig& config) {
  const Support any = can_implement(config);
  if (any && input_dtype(config) != DType::kBF16) {
    return Support::no("input is " + std::string(name(input_dtype(config))) + ", which bf16 products would round");
  }
  return any;
}

}  // namespace scaledmm::fp8_w8a16
