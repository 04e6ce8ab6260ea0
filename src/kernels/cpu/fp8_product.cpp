#include "kernels/cpu/fp8_product.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/cpu/bf16_parts.hpp"
#include "kernels/cpu/shares.hpp"
#include "kernels/round_up.hpp"
#include "numerics/formats.hpp"

namespace scaledmm::fp8 {
namespace {

constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kItemsPerWorker = 4;  // so that a late thread costs a quarter of its share at most

constexpr std::int64_t kCodeBytes = 2;  // of a code, or of a value of a part, in a packer's row, at most
constexpr float kOne = 1.0f;            // the row scale of W8A16

std::int64_t aligned(std::int64_t bytes) { return round_up(bytes, kCacheLine); }

// Part i of `total` things dealt into `parts` parts that differ by one at most.
std::int64_t part_begin(std::int64_t total, std::int64_t parts, std::int64_t i) {
  return total / parts * i + std::min(i, total % parts);
}

// How the work of one call is cut. Cuts never change a result.
struct Plan {
  const TileKernels& kernels;
  const PackedFp8& packed;
  const ApplyArguments& arguments;
  const Quantizer* quantizer = nullptr;  // W8A8
  std::int64_t parts = 1;                // tile rows of a row of x; rows are rows of x otherwise
  std::int64_t tiles = 0;
  std::int64_t row_blocks = 0;
  std::int64_t group_panels = 0;
  std::int64_t groups = 0;
  PackedX x = {};
  float* factors = nullptr;        // [M]: of the totals; unused where the sums of W8A8 are scaled when stored
  float* row_scales = nullptr;     // [M][blocks], W8A8
  std::byte* row_codes = nullptr;  // for each packer one row of codes, W8A8, or of parts
  std::int64_t row_code_bytes = 0;

  // The sums of the only scale block are scaled and get their bias in one go.
  bool scales_when_stored() const { return quantizer != nullptr && packed.per_channel; }
  std::int64_t row_unit() const { return std::max<std::int64_t>(1, kernels.row_unit / parts); }
  std::int64_t tile_rows() const { return kernels.tile_rows / parts / row_unit() * row_unit(); }  // at most
  std::int64_t tile_begin(std::int64_t tile) const {
    const std::int64_t units = divide_up(arguments.m, row_unit());
    return std::min(arguments.m, part_begin(units, tiles, tile) * row_unit());
  }
  std::int64_t tile_sums() const { return kernels.tile_rows * kPanelColumns; }
  // One tile streams over the whole of K; more share chunks.
  const Chunks& chunks() const { return tiles == 1 ? packed.whole : packed.chunks; }
  std::int64_t panel_kept() const { return kernels.packing.chunk_k * kPanelColumns * kernels.kept_bytes; }
  std::int64_t kept_bytes() const { return kernels.kept_panels * panel_kept(); }
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
        const std::uint8_t byte = codes[code_offset(packed.order, block.position + i, column)];
        sum = std::fma(x, values[code_of(packed.order, packed.dtype, byte)], sum);
      }
      total = std::fma(sum, packed.panel_scales(panel, b)[column], total);
    }
    totals[column] = total;
  }
}

// Where and how outputs of some rows and panels are stored. Their totals are not set.
StoreCall store_call(const Plan& plan, std::int64_t first_row, std::int64_t rows, std::int64_t first_panel,
                     std::int64_t panels) {
  const ApplyArguments& arguments = plan.arguments;
  const std::int64_t column = first_panel * kPanelColumns;
  StoreCall store;
  store.scales = plan.scales_when_stored() ? plan.packed.panel_scales(first_panel, 0) : nullptr;
  store.factors = (store.scales != nullptr ? plan.row_scales : plan.factors) + first_row;
  store.rows = rows;
  store.bias = arguments.bias == nullptr ? nullptr : arguments.bias + column;
  store.y =
      static_cast<std::byte*>(arguments.y) + (first_row * arguments.y_stride + column) * size_bytes(arguments.y_dtype);
  store.y_stride = arguments.y_stride;
  store.dtype = arguments.y_dtype;
  store.columns = std::min(panels * kPanelColumns, plan.packed.n - column);
  return store;
}

// Rows that the tiles could not take. `totals` has room for one row.
void store_plain_rows(const Plan& plan, std::int64_t first_row, std::int64_t rows, std::int64_t first_panel,
                      std::int64_t panels, float* totals) {
  if (plan.quantizer != nullptr) return;  // tiles take codes of any row
  for (std::int64_t row = first_row; row < first_row + rows; ++row) {
    if (plan.factors[row] != 0.0f) continue;
    for (std::int64_t p = 0; p < panels; ++p) {
      multiply_plainly(plan, row, first_panel + p, totals);
      StoreCall store = store_call(plan, row, 1, first_panel + p, 1);
      store.totals = totals;
      store.factors = &kOne;
      store_rows(store);
    }
  }
}

// `totals` are [panel][tile][row][16].
void store_panels(const Plan& plan, std::int64_t first_tile, std::int64_t tiles, std::int64_t first_panel,
                  std::int64_t panels, float* totals) {
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t first_row = plan.tile_begin(first_tile + tile);
    const std::int64_t rows = plan.tile_begin(first_tile + tile + 1) - first_row;
    StoreCall store = store_call(plan, first_row, rows, first_panel, panels);
    float* of_tile = totals + tile * plan.tile_sums();
    store.totals = of_tile;
    store.panel_totals = tiles * plan.tile_sums();
    if (plan.parts > 1) bf16::add_parts(plan.parts, panels, rows, of_tile, store.panel_totals);
    store_rows(store);
  }
}

void multiply_panels(const Plan& plan, std::int64_t first_tile, std::int64_t tiles, std::int64_t first_panel,
                     std::int64_t panels, const Workspace& workspace) {
  const PackedFp8& packed = plan.packed;
  const TileKernels& kernels = plan.kernels;
  const bool one_tile = plan.tiles == 1;
  const std::int64_t most_panels =
      one_tile ? kernels.panels_at_once((plan.tile_begin(first_tile + 1) - plan.tile_begin(first_tile)) * plan.parts)
               : kernels.kept_panels;

  TileCall call;
  call.x_dtype = plan.quantizer != nullptr ? plan.quantizer->dtype : plan.arguments.x_dtype;
  call.panel_codes = packed.padded_k * kPanelColumns;
  call.kept = workspace.kept;
  call.panel_kept = plan.panel_kept();
  call.panel_sums = tiles * plan.tile_sums();
  const auto blocks = static_cast<std::int64_t>(packed.blocks.size());
  call.panel_scales = blocks * kPanelColumns;
  call.inverse_power = 1.0f / power_of(packed.order, packed.dtype);
  call.row_scales = &kOne;
  call.parts = plan.parts;
  if (plan.quantizer != nullptr) {
    call.row_scales_stride = blocks;
    call.row_scales_step = 1;
  }
  const Chunks& chunks = plan.chunks();
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    call.pieces = chunks[c];
    for (std::int64_t panel = 0, width = most_panels; panel < panels; panel += width) {
      while (width > panels - panel) width /= 2;
      call.codes = packed.panel_codes(first_panel + panel, chunk_begin(chunks[c]));
      call.scales = plan.scales_when_stored() ? nullptr : packed.panel_scales(first_panel + panel, 0);
      for (std::int64_t tile = 0; tile < tiles; ++tile) {
        const std::int64_t first_row = plan.tile_begin(first_tile + tile);
        const std::int64_t rows = plan.tile_begin(first_tile + tile + 1) - first_row;
        if (plan.quantizer != nullptr) call.row_scales = plan.row_scales + first_row * blocks;
        const Weights source = one_tile ? Weights::kCodes : tile == 0 ? Weights::kCodesAndKeep : Weights::kKept;
        call.x = plan.x.tile(first_tile + tile, chunks[c]);
        call.sums = workspace.sums + (panel * tiles + tile) * plan.tile_sums();
        call.totals = workspace.totals + (panel * tiles + tile) * plan.tile_sums();
        StoreCall store;
        if (kernels.stores_outputs && c + 1 == chunks.size()) {
          store = store_call(plan, first_row, rows, first_panel + panel, width);
          call.store = &store;
        }
        kernels.multiply(packed.dtype, source, rows * plan.parts, width, call);
      }
    }
  }
  if (!kernels.stores_outputs) store_panels(plan, first_tile, tiles, first_panel, panels, workspace.totals);
  const std::int64_t first_row = plan.tile_begin(first_tile);
  store_plain_rows(plan, first_row, plan.tile_begin(first_tile + tiles) - first_row, first_panel, panels,
                   workspace.totals);
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

// Row `row` of x, the parts of which are rows of the tile. Returns what the totals are multiplied by.
float pack_parts(const Plan& plan, TileRows rows, std::int64_t row, std::int64_t first, std::byte* memory) {
  const ApplyArguments& arguments = plan.arguments;
  const auto* x = static_cast<const std::byte*>(arguments.x) + row * arguments.x_stride * size_bytes(arguments.x_dtype);
  auto* parts = reinterpret_cast<std::uint16_t*>(memory);
  const float factor = bf16::split_row(x, arguments.x_dtype, plan.packed.k, parts);
  rows.dtype = DType::kBF16;
  rows.stride = 0;
  rows.rows *= plan.parts;
  rows.finds_power = false;
  for (std::int64_t part = 0; part < plan.parts; ++part) {
    rows.x = parts + part * plan.packed.k;
    plan.kernels.pack_row(rows, (row - first) * plan.parts + part);
  }
  return factor;
}

// `codes` is the packer's row of codes or parts.
void pack_rows_of_tile(const Plan& plan, std::int64_t tile, std::int64_t begin, std::int64_t end, std::byte* codes) {
  const std::int64_t first = plan.tile_begin(tile);
  TileRows rows;
  rows.rows = plan.tile_begin(tile + 1) - first;
  rows.blocks = plan.packed.blocks;
  rows.chunks = plan.chunks();
  rows.packed = plan.x;
  rows.tile = tile;
  rows.weight_dtype = plan.packed.dtype;
  if (plan.quantizer != nullptr) {
    rows.x = codes;  // every row of the tile in its turn
    rows.dtype = plan.kernels.code_form == CodeForm::kBF16 ? DType::kBF16 : plan.quantizer->dtype;
    const auto blocks = static_cast<std::int64_t>(plan.packed.blocks.size());
    for (std::int64_t row = begin; row < end; ++row) {
      quantize_row(*plan.quantizer, plan.packed, plan.arguments, row, plan.kernels.code_form, codes,
                   plan.row_scales + row * blocks);
      plan.factors[row] = plan.kernels.pack_row(rows, row - first);
    }
    return;
  }
  if (plan.parts > 1) {
    for (std::int64_t row = begin; row < end; ++row) plan.factors[row] = pack_parts(plan, rows, row, first, codes);
    return;
  }
  rows.x = static_cast<const std::byte*>(plan.arguments.x) +
           first * plan.arguments.x_stride * size_bytes(plan.arguments.x_dtype);
  rows.dtype = plan.arguments.x_dtype;
  rows.stride = plan.arguments.x_stride;
  for (std::int64_t row = begin; row < end; ++row) {
    plan.factors[row] = plan.kernels.pack_row(rows, row - first);
  }
}

// Part `part` of `parts` of the rows.
void pack_x(const Plan& plan, std::int64_t part, std::int64_t parts) {
  const std::int64_t begin = part_begin(plan.arguments.m, parts, part);
  const std::int64_t end = part_begin(plan.arguments.m, parts, part + 1);
  for (std::int64_t tile = 0; tile < plan.tiles; ++tile) {
    pack_rows_of_tile(plan, tile, std::max(begin, plan.tile_begin(tile)), std::min(end, plan.tile_begin(tile + 1)),
                      plan.row_codes + part * plan.row_code_bytes);
  }
}

// The largest finite magnitude of x, by parts that may use the packers' rows.
float tensor_absmax(const Plan& plan, std::int64_t parts, Context& context) {
  const auto largest = [&](std::int64_t part) {
    return reinterpret_cast<float*>(plan.row_codes + part * plan.row_code_bytes);
  };
  context.parallel(parts, [&](std::int64_t part) {
    *largest(part) = finite_absmax(plan.arguments, plan.packed.k, part_begin(plan.arguments.m, parts, part),
                                   part_begin(plan.arguments.m, parts, part + 1));
  });
  float result = 0.0f;
  for (std::int64_t part = 0; part < parts; ++part) result = std::max(result, *largest(part));
  return result;
}

void multiply_by(const TileKernels& kernels, const PackedFp8& packed, const ApplyArguments& arguments,
                 Quantizer* quantizer, Context& context) {
  const std::int64_t m = arguments.m;
  if (m == 0) return;
  Plan plan{kernels, packed, arguments, quantizer};
  if (quantizer == nullptr && kernels.parts != nullptr) plan.parts = kernels.parts(arguments.x_dtype);
  plan.tiles = divide_up(m, plan.tile_rows());
  // The rest of the second-level cache is for the sums and the weights that come next.
  const std::int64_t x_share = context.device().l2_bytes * kernels.x_eighths / 8;
  const std::int64_t chunk_k = std::min(kernels.packing.chunk_k, packed.padded_k);
  const std::int64_t chunk_tile_bytes = kernels.tile_rows * chunk_k * kernels.x_bytes;
  plan.row_blocks = divide_up(plan.tiles, std::max<std::int64_t>(1, x_share / chunk_tile_bytes));
  const std::int64_t work = m * plan.parts * packed.panels * kPanelColumns * packed.padded_k;
  const std::int64_t useful_threads =
      std::min<std::int64_t>(context.threads(), std::max<std::int64_t>(1, work / kWorkPerThread));
  // Few rows stay in L2 over the whole of K, and a panel's codes are then best read in one go.
  const std::int64_t least_panels = plan.tiles == 1 ? kernels.panels_at_once(m * plan.parts) : kernels.kept_panels;
  const std::int64_t block_rows = divide_up(plan.tiles, plan.row_blocks) * kernels.tile_rows;
  plan.group_panels = least_panels;
  if (plan.tiles > 1 && block_rows * packed.padded_k * kernels.x_bytes > x_share) {
    const std::int64_t balanced = packed.panels * plan.row_blocks / (useful_threads * kItemsPerWorker);
    plan.group_panels = std::clamp(balanced, least_panels, kernels.group_panels) / least_panels * least_panels;
  }
  plan.group_panels = std::min(plan.group_panels, divide_up(packed.panels, useful_threads));
  plan.groups = divide_up(packed.panels, plan.group_panels);
  const std::int64_t items = plan.row_blocks * plan.groups;
  const std::int64_t workers = std::min(useful_threads, items);

  plan.x.tiles = plan.tiles;
  plan.x.k_bytes = kernels.tile_rows * kernels.x_bytes;
  const std::int64_t x_bytes = aligned(plan.tiles * packed.padded_k * plan.x.k_bytes);
  const std::int64_t packers = std::clamp<std::int64_t>(m * packed.padded_k / kPackPerThread, 1, workers);
  const std::int64_t factor_bytes = aligned(m * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t blocks = quantizer == nullptr ? 0 : static_cast<std::int64_t>(packed.blocks.size());
  const std::int64_t scale_bytes = aligned(m * blocks * static_cast<std::int64_t>(sizeof(float)));
  if (quantizer != nullptr || plan.parts > 1) plan.row_code_bytes = aligned(plan.parts * packed.k * kCodeBytes);
  const std::int64_t worker_bytes = workspace_bytes(plan);
  std::byte* scratch = context.scratch(x_bytes + factor_bytes + scale_bytes + packers * plan.row_code_bytes +
                                       workers * worker_bytes + Shares::bytes(workers));
  const auto take = [&scratch](std::int64_t bytes) { return std::exchange(scratch, scratch + bytes); };
  plan.x.data = take(x_bytes);
  plan.factors = reinterpret_cast<float*>(take(factor_bytes));
  plan.row_scales = reinterpret_cast<float*>(take(scale_bytes));
  plan.row_codes = take(packers * plan.row_code_bytes);
  std::byte* workspaces = take(workers * worker_bytes);
  if (quantizer != nullptr && quantizer->needs_absmax) {
    quantizer->tensor = dynamic_tensor_fp8(tensor_absmax(plan, packers, context), quantizer->dtype);
  }

  // Workers, not items, are the tasks: each has a workspace, and takes items until none is left.
  const Shares shares(items, workers, take(Shares::bytes(workers)));
  const auto work_on_items = [&](std::int64_t worker) {
    const Workspace workspace = workspace_at(plan, workspaces + worker * worker_bytes);
    if (kernels.begin != nullptr) kernels.begin();
    shares.run([&](std::int64_t item) { multiply_item(plan, item, workspace); });
    if (kernels.end != nullptr) kernels.end();
  };
  if (workers == 1) {
    pack_x(plan, 0, 1);
    work_on_items(0);
    return;
  }
  if (packers == 1) {
    pack_x(plan, 0, 1);
  } else {
    context.parallel(packers, [&](std::int64_t part) { pack_x(plan, part, packers); });
  }
  context.parallel(workers, work_on_items);
}

}  // namespace

void multiply(const TileKernels& kernels, const PackedFp8& packed, const ApplyArguments& arguments, Context& context) {
  multiply_by(kernels, packed, arguments, nullptr, context);
}

void multiply_quantized(const TileKernels& kernels, const LayerConfig& config, const PackedFp8& packed,
                        const ApplyArguments& arguments, Context& context) {
  Quantizer quantizer = quantizer_of(config, packed, arguments);
  multiply_by(kernels, packed, arguments, &quantizer, context);
}

}  // namespace scaledmm::fp8
