// Checks, tensor maps, the choice of a plan and the launch of the GEMMs of gemm.hpp.
#include "cuda/gemm.hpp"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>

#include "cuda/fused_quantize.cuh"
#include "cuda/gemm_kernels.hpp"
#include "cuda/gemm_swap.cuh"
#include "cuda/gemm_tile.cuh"
#include "cuda/gemm_tile_carry.cuh"

namespace scaledmm::cuda {
namespace {

using Kernel = GemmPlan::Kernel;
static_assert(sizeof(CUtensorMap) == sizeof(GemmWeights::maps[0]));

constexpr int kSharedLimit = 232448;              // bytes a block may have on sm_90
constexpr int kFusedBytes = 4096;                 // of these, what quantizing in a gemm_swap takes at most
constexpr std::int64_t kMaxRows = INT_MAX - 128;  // rows of tiles are counted in int
// Corrected INT8 sums stay inside int32 up to this K: 255 * 128 * K < 2^31.
constexpr std::int64_t kMaxNarrowK = 65793;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(address)
                                                                         : nullptr;
  }();
  return function;
}

// columns and rows of elements, rows `pitch` bytes apart; boxes of 128 bytes by box_rows rows under the 128-byte
// swizzle.
cudaError_t encode_map(void* map, CUtensorMapDataType type, int element_bytes, const void* base, std::int64_t columns,
                       std::int64_t rows, std::int64_t pitch, int box_rows, CUtensorMapL2promotion promotion) {
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr) return cudaErrorNotSupported;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(pitch)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result =
      encode(static_cast<CUtensorMap*>(map), type, 2, const_cast<void*>(base), dims, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t encode_codes(void* map, const void* base, std::int64_t k, std::int64_t rows, std::int64_t pitch,
                         int box_rows) {
  return encode_map(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, base, k, rows, pitch, box_rows,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

// Rows of w a tile, at most `most`, that spread N over `ctas` in equal turns.
int balanced_rows(std::int64_t n, std::int64_t ctas, int most) {
  const std::int64_t turns = divide_up(n, most * ctas);
  const std::int64_t rows = divide_up(divide_up(n, turns * ctas), 8) * 8;
  return static_cast<int>(std::clamp<std::int64_t>(rows, 16, most));
}

const GemmFunction* functions(GemmType type) {
  return type == GemmType::kInt8 ? gemm_functions_int8() : gemm_functions_fp8();
}

// Ring of `bytes` of shared memory in stages of `boxes` blocks of 128 of K: the more, the longer the pieces of a row
// that memory reads at once (16 x 28672 x 4096: 28.8 us with 4, 29.9 with 2).
void size_ring(GemmPlan& plan, std::int64_t k, int boxes, int bytes) {
  plan.boxes = boxes;
  const auto stage = [&plan] { return plan.boxes * (plan.rows + plan.cols) * 128; };
  while (plan.boxes > 2 && (3 * stage() > bytes || divide_up(k, 128 * plan.boxes) < plan.split)) plan.boxes /= 2;
  plan.stages = std::clamp(bytes / stage(), 2, 16);
}

// Where two runs of K meet: at a multiple of 8 blocks of 128, so that every plan can cut there. `step`, which divides
// 8, is the plan's own for K that is shorter.
int middle_block(std::int64_t k, int step) {
  const int blocks = static_cast<int>(divide_up(k, 128));
  const int middle = (blocks / 2 + 4) / 8 * 8;
  return middle > 0 && middle < blocks ? middle : std::max(step, blocks / 2 / step * step);
}

const GemmFunction* find_function(GemmType type, const GemmPlan& plan, Quantize quantize) {
  const int rows = plan.kernel == Kernel::kSwap ? (plan.rows <= 64 ? 64 : 128) : plan.rows;
  const int interval = type == GemmType::kInt8 ? 0 : plan.interval;
  const bool keeps_run = plan.kernel == Kernel::kTile && plan.split == 1 && interval == 1 && plan.runs == 2;
  for (const GemmFunction* f = functions(type); f->function != nullptr; ++f) {
    if (f->kernel == plan.kernel && f->rows == rows && f->cols == plan.cols && f->interval == interval &&
        f->turns == plan.turns && f->quantize == quantize && f->runs == keeps_run && f->carry == plan.carry) {
      return f;
    }
  }
  return nullptr;
}

// Rows of w in a tile where two CTAs share it, or 0 where one CTA for each tile fills the SMs already. More than two do
// not pay: 128 CTAs in clusters of four do not fit on the card at once.
int rows_of_split(const GemmWeights& w, bool may_split) {
  const int clusters = w.sm_count / 2;
  if (!may_split || w.n > clusters * 128 || w.k < 1024) return 0;
  return std::max(64, balanced_rows(w.n, clusters, 128));
}

GemmPlan swap_plan(const GemmWeights& w, std::int64_t m, int interval, int runs, bool may_split, bool x_is_new) {
  constexpr int kFullRing = 208 * 1024, kSmallRing = 104 * 1024;
  GemmPlan plan{Kernel::kSwap, w.map_rows[1], 8, 1, 0, 0, false, interval};
  while (plan.cols < m) plan.cols *= 2;
  const std::int64_t bytes_per_sm = divide_up(w.n * w.k, w.sm_count);
  const bool small = bytes_per_sm <= 160 * 1024;
  if (m <= 8) {
    // Small layers: a ring that leaves room for the next kernel's CTA, which then fetches its weights already.
    size_ring(plan, w.k, plan.rows <= 40 && !small ? 8 : 4, small ? kSmallRing : kFullRing);
    return plan;
  }
  if (m <= 16) {
    const bool split = may_split && w.k >= 8192 && w.n <= w.sm_count / 2 * 64;
    // 16 x 4096 x 4096: 5.9 us with tiles of 32 rows in a small ring, 6.6 with 64 in the whole one. But behind the
    // kernel that quantizes x 8.0 and 7.6 with it: what is left to fetch when that ends counts, and tiles of 64 fetch x
    // once.
    const bool small_ring = small && !split && !x_is_new;
    if (split || (small && x_is_new)) plan.rows = 64;
    plan.split = split ? 2 : 1;
    size_ring(plan, w.k, plan.rows <= 40 && !small_ring ? 8 : 4, small_ring ? kSmallRing : kFullRing);
    return plan;
  }
  // 64 x 4096 x 4096, INT8: 8.0 us, with a split 8.3.
  const bool enough = small && w.k < 8192 && divide_up(w.n, 64) * 3 > w.sm_count;
  if (const int rows = rows_of_split(w, may_split); rows > 0 && !enough) {
    plan.split = 2;
    plan.rows = rows;
    size_ring(plan, w.k, small ? 2 : 4, small && m <= 64 ? 132 * 1024 : kFullRing);
    return plan;
  }
  if (w.n > w.sm_count * 64 && runs == 1) {
    plan.rows = w.map_rows[2];
  } else if (small) {
    plan.rows = 64;
  }
  size_ring(plan, w.k, 4, kFullRing);
  return plan;
}

// Columns of a tile and the time of one of them in thousandths of that of a tile of 128.
struct Width {
  int columns, price;
};

std::int64_t time_of(const GemmWeights& w, std::int64_t m, const Width& width) {
  return width.columns * width.price * divide_up(divide_up(m, 128) * divide_up(w.n, width.columns), w.sm_count);
}

// Pairs of blocks of 128 of K in the shorter run.
std::int64_t pairs_of_run(std::int64_t k, int runs) {
  const std::int64_t pairs = divide_up(k, 256), middle = middle_block(k, 2) / 2;
  return runs == 1 ? pairs : std::min(middle, pairs - middle);
}

// Promoted: whether a CTA has several tiles of long K. There straight code for 8 pairs of blocks pays (8192 x 8192 x
// 8192: 896 us, with 2 pairs 906), and nowhere else (4096 x 24576 x 1536: 296 us, with 2 pairs 284).
bool is_long(const GemmWeights& w, std::int64_t m) {
  return w.k >= 4096 && divide_up(m, 128) * divide_up(w.n, 128) > w.sm_count;
}

// Of tiles of promoted sums: less than 128 where that takes fewer turns of all SMs (256 x 28672 x 4096: 56 us with 112,
// 61 with 128).
Width carry_width(const GemmWeights& w, std::int64_t m, int runs) {
  constexpr Width kWidths[] = {{128, 1000}, {112, 1070}, {96, 1130}};
  const int widths = is_long(w, m) ? (runs == 1 ? 3 : 1) : runs;  // the instances of gemm_fp8.cu
  return *std::min_element(kWidths, kWidths + widths, [&](const Width& one, const Width& other) {
    return time_of(w, m, one) < time_of(w, m, other);
  });
}

GemmPlan tile_plan(const GemmWeights& w, std::int64_t m, int interval, int runs, bool may_split) {
  const std::int64_t tiles = divide_up(m, 128) * divide_up(w.n, 128);
  const bool split = may_split && tiles * 2 <= w.sm_count && w.k >= 4096;
  if (interval == 1 && !split && pairs_of_run(w.k, runs) >= 2) {
    return {Kernel::kTile, 128, carry_width(w, m, runs).columns, 1, 6, 1, false, 1, runs, is_long(w, m) ? 8 : 2};
  }
  return {Kernel::kTile, 128, 128, split ? 2 : 1, 6, 1, interval == 0 && !split && tiles > w.sm_count, interval};
}

// Whether tiles of 128 x 64 take fewer turns of all SMs: 128 x 4096 x 4096 takes 7.8 us with 64 of them, and 12.2 with
// 32 of 128 x 128. Not for half of their rows (64 x 4096 x 4096: 10.4 us, gemm_swap 7.2), nor where CTAs may share a
// long K, which moves fewer bytes, unless one turn of them fills most SMs (128 x 7168 x 16384, INT8: 36.1 us, with a
// split 37.8).
bool prefers_narrow(const GemmWeights& w, std::int64_t m, bool promoted, bool may_split) {
  if (m <= 64) return false;
  if (may_split && w.k > 8192 && (m > 128 || divide_up(w.n, 64) * 4 < w.sm_count * 3)) return false;
  if (promoted && is_long(w, m)) return time_of(w, m, {64, 1250}) < time_of(w, m, carry_width(w, m, 1));
  return time_of(w, m, {64, 1150}) < time_of(w, m, {128, 1000});
}

struct Launch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2];

  Launch(int blocks, int threads, int shared_bytes, int cluster, bool overlap, cudaStream_t stream) {
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    if (cluster > 1) {
      attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    }
    if (overlap) {
      attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
  }
};

GemmEpilogue make_epilogue(const GemmArguments& a) {
  const GemmWeights& w = *a.weights;
  const bool zero_points = w.type == GemmType::kInt8 && a.x_zero_point != nullptr;
  return {.sx = a.x_scale,
          .sw = a.w_scale,
          .bias = a.bias,
          .zx = zero_points ? a.x_zero_point : nullptr,
          .column_sum = zero_points ? a.w_column_sum : nullptr,
          .y = a.y,
          .y_stride = a.y_stride,
          .m = static_cast<int>(a.m),
          .n = static_cast<int>(w.n),
          .sx_step = a.x_scale_per_token ? 1 : 0,
          .sw_step = a.w_scale_per_channel ? 1 : 0,
          .zx_step = a.x_zero_point_per_token ? 1 : 0,
          .y_type = a.y_type,
          .wide = w.k > kMaxNarrowK || a.x_zero_point_any};
}

FusedQuantize fused_quantize(const GemmArguments& a) {
  FusedQuantize q{};
  if (a.fused == nullptr) return q;
  const FusedRows& f = *a.fused;
  q.x = activations(f.x);
  q.codes = codes_of(const_cast<void*>(a.x), a.x_pitch, a.x_pitch, a.m);
  q.dtype = f.x.dtype;
  q.is_static = f.is_static;
  q.symmetric = f.symmetric;
  q.fp8 = static_fp8(f.scale);
  q.int8 = f.symmetric ? static_symmetric_int8(f.scale) : static_asymmetric_int8(f.scale, f.zero_point);
  q.upper_bound = f.upper_bound;
  q.scale = const_cast<float*>(a.x_scale);
  q.zero_point = const_cast<std::int32_t*>(a.x_zero_point);
  q.counters = f.counters;
  return q;
}

cudaError_t run_swap(const GemmArguments& a, const GemmPlan& plan, const GemmFunction& f, cudaStream_t stream) {
  const GemmWeights& w = *a.weights;
  CUtensorMap map_w, map_x;
  const int* known = std::find(w.map_rows, w.map_rows + 4, plan.rows);
  if (known != w.map_rows + 4) {
    std::memcpy(&map_w, w.maps[known - w.map_rows], sizeof map_w);
  } else if (cudaError_t error = encode_codes(&map_w, w.codes, w.k, w.n, w.pitch, plan.rows); error != cudaSuccess) {
    return error;
  }
  const bool alone = f.quantize == Quantize::kAlone;
  if (cudaError_t error = encode_codes(&map_x, a.x, w.k, a.m, a.x_pitch, plan.cols); error != cudaSuccess) {
    return error;
  }
  SwapProblem p{make_epilogue(a)};
  p.tiles = static_cast<int>(divide_up(w.n, plan.rows));
  p.rows = plan.rows;
  p.boxes = plan.boxes;
  p.stages = plan.stages;
  p.k_stages = static_cast<int>(divide_up(w.k, 128 * plan.boxes));
  p.middle = middle_block(w.k, plan.boxes) / plan.boxes;
  p.runs = plan.runs;
  p.split = plan.split;
  p.quantize = fused_quantize(a);
  const int staged = alone ? 0 : plan.cols;  // rows of x in a stage
  p.slack = std::max(0, (f.rows - plan.rows - plan.boxes * staged) * 128);
  p.row_bytes = p.k_stages * plan.boxes * 128;
  const int ring = plan.stages * plan.boxes * (plan.rows + staged) * 128 + p.slack + (alone ? p.row_bytes + 128 : 0);
  const int partial = plan.split > 1 ? plan.cols * (f.rows + 4) * 4 : 0;
  const int shared = 1024 + ring + 16 * plan.stages + 8;
  const int blocks = plan.split > 1 ? p.tiles * plan.split : std::min(p.tiles, w.sm_count);
  // SwapKernel::kHoldRun
  const bool holds = plan.runs == 1 || plan.split == 2 || (plan.cols <= 64 && plan.rows <= 64);
  if (shared > kSharedLimit - kFusedBytes || partial > ring || plan.boxes % 2 != 0 || a.m > plan.cols || !holds ||
      (plan.split > 1 && p.middle >= p.k_stages) || (alone && (plan.split > 1 || blocks > kFusedCopies))) {
    return cudaErrorInvalidValue;
  }
  const Launch launch(blocks, 2 * f.rows * (f.quantize != Quantize::kNo ? 2 : 1) + 32, shared, plan.split,
                      a.overlap_previous, stream);
  void* arguments[] = {&p, &map_w, &map_x};
  return cudaLaunchKernelExC(&launch.config, f.function, arguments);
}

// The copy engine stores y.
bool takes_boxes(const GemmArguments& a) {
  return a.y_type != GemmOutput::kFloat32 && aligned(a.y, 0, 16) && a.y_stride % 8 == 0 && a.weights->n % 8 == 0;
}

cudaError_t run_tile(const GemmArguments& a, const GemmPlan& plan, const GemmFunction& f, cudaStream_t stream) {
  const GemmWeights& w = *a.weights;
  CUtensorMap map_w, map_x, map_y{};
  cudaError_t error = encode_codes(&map_x, a.x, w.k, a.m, a.x_pitch, 128);
  const bool known = plan.cols == 128 || plan.cols == 64;
  if (error == cudaSuccess && !known) error = encode_codes(&map_w, w.codes, w.k, w.n, w.pitch, plan.cols);
  if (known) std::memcpy(&map_w, w.maps[plan.cols == 128 ? 0 : 3], sizeof map_w);
  if (error != cudaSuccess) return error;
  TileProblem p{make_epilogue(a)};
  p.tiles_m = static_cast<int>(divide_up(a.m, 128));
  p.tiles_n = static_cast<int>(divide_up(w.n, plan.cols));
  const int unit = f.interval == 1 ? 2 : 1;  // TileShape::kUnit
  p.k_units = static_cast<int>(divide_up(w.k, 128 * unit));
  p.middle = middle_block(w.k, unit) / unit;
  p.split = plan.split;
  // The copy engine clips boxes at multiples of 16 bytes only: of other N it would write behind the row's end.
  p.store_boxes = plan.split == 1 && takes_boxes(a);
  if (p.store_boxes) {
    error = encode_map(&map_y, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, a.y, w.n, a.m, 2 * a.y_stride, f.carry > 0 ? 16 : 64,
                       CU_TENSOR_MAP_L2_PROMOTION_NONE);
    if (error != cudaSuccess) return error;
  }
  const std::int64_t tiles = static_cast<std::int64_t>(p.tiles_m) * p.tiles_n;
  if ((plan.split > 1 && (plan.turns || plan.cols != 128 || p.middle >= p.k_units)) || tiles > INT_MAX / 8 ||
      (plan.carry > 0 && (!p.store_boxes || plan.carry > pairs_of_run(w.k, plan.runs)))) {
    return cudaErrorInvalidValue;
  }
  const int blocks = plan.split > 1 ? static_cast<int>(tiles) * plan.split
                                    : static_cast<int>(std::min<std::int64_t>(tiles, w.sm_count));
  using Tile = TileShape<1, false, false, 128>;
  using TwoRuns = TileShape<1, false, true, 128>;
  using Carry = CarryShape<128, 1>;
  static_assert(TileShape<1, false, false, 64>::kSharedBytes <= Tile::kSharedBytes &&
                CarryShape<128, 2>::kSharedBytes <= Carry::kSharedBytes && Carry::kThreads == Tile::kThreads);
  const int shared = f.carry > 0 ? Carry::kSharedBytes : f.runs ? TwoRuns::kSharedBytes : Tile::kSharedBytes;
  const Launch launch(blocks, Tile::kThreads, shared, plan.split, a.overlap_previous, stream);
  void* arguments[] = {&p, &map_x, &map_w, &map_y};
  return cudaLaunchKernelExC(&launch.config, f.function, arguments);
}

bool valid(const FusedRows& f, const GemmArguments& a) {
  return a.m <= (f.alone ? 1 : kMaxFusedRows) && f.x.m == a.m && f.x.k == a.weights->k && size_bytes(f.x.dtype) == 2 &&
         f.x.k % kVector == 0 && activations(f.x).is_aligned && f.counters != nullptr &&
         (f.is_static || f.symmetric || a.x_zero_point != nullptr);
}

bool valid(const GemmArguments& a) {
  const GemmWeights& w = *a.weights;
  const std::uintptr_t y_bytes = a.y_type == GemmOutput::kFloat32 ? 4 : 2;
  return a.m >= 0 && a.m <= kMaxRows && (a.fused == nullptr || valid(*a.fused, a)) && a.x != nullptr &&
         aligned(a.x, 0, 16) && a.x_pitch % 16 == 0 && a.x_pitch >= w.k && a.x_scale != nullptr &&
         a.w_scale != nullptr && a.y != nullptr && aligned(a.y, 0, y_bytes) && a.y_stride >= w.n &&
         (a.x_zero_point == nullptr || w.type != GemmType::kInt8 || a.w_column_sum != nullptr);
}

}  // namespace

cudaError_t prepare_gemm_weights(GemmType type, const void* codes, std::int64_t n, std::int64_t k, std::int64_t pitch,
                                 GemmWeights* weights) {
  if (codes == nullptr || !aligned(codes, 0, 16) || n < 1 || n > kMaxRows || k < 1 || k > INT_MAX - 1024 || pitch < k ||
      pitch % 16 != 0 || (type == GemmType::kInt8 && k > kMaxInt8K)) {
    return cudaErrorInvalidValue;
  }
  int device = 0, major = 0, minor = 0, sm_count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  if (major != 9 || minor != 0) return cudaErrorInvalidDevice;
  *weights = {type,  codes,    n,  k,
              pitch, sm_count, {}, {128, balanced_rows(n, sm_count, 64), balanced_rows(n, sm_count, 128), 64}};
  for (int i = 0; i < 4; ++i) {
    error = encode_codes(weights->maps[i], codes, k, n, pitch, weights->map_rows[i]);
    if (error != cudaSuccess) return error;
  }
  for (const GemmFunction* f = functions(type); f->function != nullptr; ++f) {
    error = cudaFuncSetAttribute(f->function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kSharedLimit - (f->quantize != Quantize::kNo ? kFusedBytes : 0));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Where w is low, tiles of it that fill all SMs are so low that fetching x for each of them takes longer than w: 64
// rows of 14336 take 22.9 us on 4096 rows of w and 17.8 with a split, 128 of 16384 on 7168 48 and 37. At K = 4096 a
// split gains 10 to 15 %, at N = 8192 up to 12 %, of which a second run costs large M a part.
int gemm_runs(std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kLowN = 7168, kLongK = 8192;
  return n <= kLowN && k >= kLongK ? 2 : 1;
}

GemmPlan choose_gemm_plan(const GemmWeights& weights, std::int64_t m, GemmAccumulate accumulate, bool x_is_new) {
  const bool promoted = weights.type == GemmType::kFp8E4m3 && accumulate == GemmAccumulate::kPromoted;
  const int runs = promoted ? gemm_runs(weights.n, weights.k) : 1;
  const bool may_split = !promoted || runs == 2;
  const bool few = m <= 64 || (m <= 128 && rows_of_split(weights, may_split) > 0);
  GemmPlan plan = runs == 1 && prefers_narrow(weights, m, promoted, may_split)
                      ? GemmPlan{Kernel::kTile, 128, 64, 1, 8, 1, false, promoted}
                  : few ? swap_plan(weights, m, promoted, runs, may_split, x_is_new)
                        : tile_plan(weights, m, promoted, runs, may_split);
  plan.runs = runs;
  return plan;
}

cudaError_t run_gemm_plan(const GemmArguments& a, const GemmPlan& asked, cudaStream_t stream) {
  if (!valid(a)) return cudaErrorInvalidValue;
  if (a.m == 0) return cudaSuccess;
  GemmPlan plan = asked;
  if (plan.carry > 0 && !takes_boxes(a)) plan = {Kernel::kTile, 128, 128, 1, 6, 1, false, 1, plan.runs};
  const GemmFunction* f = find_function(a.weights->type, plan,
                                        !a.fused         ? Quantize::kNo
                                        : a.fused->alone ? Quantize::kAlone
                                                         : Quantize::kShared);
  if (f == nullptr) return cudaErrorInvalidValue;
  return plan.kernel == Kernel::kSwap ? run_swap(a, plan, *f, stream) : run_tile(a, plan, *f, stream);
}

cudaError_t run_gemm(const GemmArguments& a, cudaStream_t stream) {
  return run_gemm_plan(a, choose_gemm_plan(*a.weights, a.m, a.accumulate, a.x_is_new), stream);
}

}  // namespace scaledmm::cuda
