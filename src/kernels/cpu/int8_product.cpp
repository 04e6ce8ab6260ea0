#include "kernels/cpu/int8_product.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/shares.hpp"
#include "kernels/round_up.hpp"

namespace scaledmm {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kPassBytes = 32 << 20;  // codes of x that are kept at a time
constexpr std::int64_t kTasksPerThread = 8;    // enough that a slow thread does not hold up the rest
constexpr std::int64_t kSharedBlocks = 4;      // blocks and threads a block from which smaller blocks are faster
constexpr std::int64_t kSharingThreads = 4;

// How rows and columns are cut. Column tiles are `panels` wide, row tiles `rows` high, in rectangles and tasks alike.
struct Schedule {
  Schedule(const Int8Weights& weights, const CodeRows& codes, const Int8Method& method, std::int64_t m,
           std::int64_t threads, std::int64_t l2_bytes) {
    const auto blocks_of = [&](std::int64_t eighths) {
      const std::int64_t rows_in_cache = l2_bytes / 8 * eighths / codes.row_bytes / method.rows;
      return divide_up(m, std::max<std::int64_t>(1, rows_in_cache) * method.rows);
    };
    std::int64_t blocks = blocks_of(method.block_eighths);
    // The codes of a block come from the caches of the threads that quantized them, to every thread that shares it.
    if (method.shared_block_eighths > 0 && blocks >= kSharedBlocks && threads >= blocks * kSharingThreads) {
      blocks = blocks_of(method.shared_block_eighths);
    }
    block_m = round_up(divide_up(m, blocks), method.row_step);
    m_blocks = divide_up(m, block_m);
    panels = method.panels;
    // Panels that are all padding, past N, are nobody's.
    const std::int64_t used_panels = divide_up(weights.n, kInt8PanelN);
    const std::int64_t wanted = divide_up(kTasksPerThread * threads, m_blocks);
    // Narrower rectangles where the layer is too small to give every thread its share.
    while (threads > 1 && panels > method.least_panels && divide_up(used_panels, panels) < wanted) panels /= 2;
    column_tiles = divide_up(used_panels, panels);
    tiles_per_task = std::max<std::int64_t>(1, column_tiles / wanted);
    column_tasks = divide_up(column_tiles, tiles_per_task);
    workers = std::min(threads, tasks());
    const std::int64_t rows = round_up(std::min(block_m, method.rows), method.row_step);
    sums_bytes = round_up(rows * panels * kInt8PanelN * 4, kAlignment);
  }
  std::int64_t tasks() const { return m_blocks * column_tasks; }

  std::int64_t block_m, m_blocks;
  std::int64_t panels;
  std::int64_t column_tiles, tiles_per_task, column_tasks;
  std::int64_t workers;
  std::int64_t sums_bytes;
};

// What one thread does.
class Worker {
 public:
  Worker(const Int8Weights& weights, const ApplyArguments& arguments, const Int8Method& method,
         const Schedule& schedule, const CodeRows& codes, const Int8RowScale* scales, std::int64_t first_row,
         std::int64_t index, std::byte* memory)
      : weights_(weights),
        arguments_(arguments),
        method_(method),
        rows_(method.row_functions()),
        schedule_(schedule),
        scales_(scales),
        first_row_(first_row),
        index_(index),
        totals_(reinterpret_cast<float*>(memory + schedule.sums_bytes)),
        other_sums_(reinterpret_cast<std::int32_t*>(memory + schedule.sums_bytes)) {
    rectangle_.codes = &codes;
    rectangle_.weights = &weights;
    rectangle_.sums = reinterpret_cast<std::int32_t*>(memory);
  }

  // Block scales need totals, methods that write behind a second rectangle of sums.
  static std::int64_t bytes(const Schedule& schedule, const Int8Weights& weights, const Int8Method& method) {
    return schedule.sums_bytes * (weights.block_scaled || method.writes_behind ? 2 : 1);
  }

  // Rows [begin, end) of this pass against one column tile. The tile after it comes next, or none.
  void run(std::int64_t begin, std::int64_t end, std::int64_t column_tile, bool is_last) {
    rectangle_.first_panel = column_tile * schedule_.panels;
    rectangle_.panels = std::min(schedule_.panels, weights_.panels() - rectangle_.first_panel);
    rectangle_.stride = rectangle_.panels * kInt8PanelN;
    const std::int64_t next_panel = rectangle_.first_panel + rectangle_.panels;
    const std::int64_t next_panels = is_last ? 0 : std::min(schedule_.panels, weights_.panels() - next_panel);
    const std::int64_t next_bytes = next_panels * kInt8PanelN * weights_.packed_k;
    const std::int64_t y_bytes = size_bytes(arguments_.y_dtype);
    rectangle_.y_stride_bytes = arguments_.y_stride * y_bytes;
    const std::int64_t tiles = divide_up(end - begin, method_.rows);
    rectangle_.streams = tiles == 1;
    // Threads begin at different rows, whose codes lie in the caches of the threads that quantized them.
    const std::int64_t turn = index_ * tiles / schedule_.workers;
    for (std::int64_t t = 0; t < tiles; ++t) {
      rectangle_.first_row = begin + (t + turn) % tiles * method_.rows;
      rectangle_.rows = std::min(method_.rows, end - rectangle_.first_row);
      rectangle_.y = static_cast<const std::byte*>(arguments_.y) +
                     (first_row_ + rectangle_.first_row) * rectangle_.y_stride_bytes +
                     rectangle_.first_panel * kInt8PanelN * y_bytes;
      const std::int64_t done = next_bytes * t / tiles;
      fill(weights_.panel(next_panel) + done, next_bytes * (t + 1) / tiles - done);
    }
  }

  // Writes what still waits.
  void finish() {
    for (std::int64_t row = 0; row < pending_.sums.rows; ++row) pending_.write(row);
  }

 private:
  void fill(const std::int8_t* next, std::int64_t next_bytes) {
    const Int8Sums sums{rectangle_.sums,   rectangle_.stride,
                        rectangle_.rows,   rectangle_.first_panel * kInt8PanelN,
                        rectangle_.stride, scales_ + rectangle_.first_row,
                        method_.offset};
    const std::int64_t m = first_row_ + rectangle_.first_row;
    if (!weights_.block_scaled) {
      rectangle_.pending = &pending_;
      multiply_segment(0, next, next_bytes);
      if (!method_.writes_behind) return rows_.write_sums(weights_, arguments_, m, sums);
      pending_ = {&rows_, &weights_, &arguments_, m, sums};
      return std::swap(rectangle_.sums, other_sums_);
    }
    const std::int64_t rows = round_up(rectangle_.rows, method_.row_step);
    std::memset(totals_, 0, static_cast<std::size_t>(rows * rectangle_.stride) * sizeof(float));
    const bool is_symmetric =
        std::all_of(sums.scales, sums.scales + sums.rows, [](const Int8RowScale& row) { return row.zero_point == 0; });
    const bool adds_to_totals = method_.adds_to_totals && is_symmetric;
    const bool at_once = method_.multiply_blocks != nullptr && is_symmetric;
    rectangle_.totals = adds_to_totals || at_once ? totals_ : nullptr;
    if (at_once) {
      place_segment(0, next, next_bytes);
      method_.multiply_blocks(rectangle_);
      return rows_.write_totals(weights_, arguments_, m, sums, totals_);
    }
    const auto segments = static_cast<std::int64_t>(weights_.segments.size());
    for (std::int64_t s = 0; s < segments; ++s) {
      rectangle_.sw = weights_.scales_of(s) + sums.n;
      multiply_segment(s, next + next_bytes * s / segments, next_bytes / segments);
      if (!adds_to_totals) rows_.add_segment(weights_, s, sums, totals_);
    }
    rows_.write_totals(weights_, arguments_, m, sums, totals_);
  }

  void place_segment(std::int64_t segment, const std::int8_t* next, std::int64_t next_bytes) {
    rectangle_.place = weights_.segments[static_cast<std::size_t>(segment)].place;
    rectangle_.length = weights_.segments[static_cast<std::size_t>(segment)].padded;
    rectangle_.next = next;
    rectangle_.next_bytes = next_bytes;
  }

  void multiply_segment(std::int64_t segment, const std::int8_t* next, std::int64_t next_bytes) {
    place_segment(segment, next, next_bytes);
    method_.multiply(rectangle_);
  }

  const Int8Weights& weights_;
  const ApplyArguments& arguments_;
  const Int8Method& method_;
  const Int8RowFunctions& rows_;
  const Schedule& schedule_;
  const Int8RowScale* scales_;
  std::int64_t first_row_;
  std::int64_t index_;
  float* totals_;
  std::int32_t* other_sums_;
  Int8Outputs pending_;
  Int8Rectangle rectangle_;
};

void multiply_pass(const LayerConfig& config, const Int8Weights& weights, const ApplyArguments& arguments,
                   const Int8Method& method, std::int64_t first, std::int64_t last, Context& context) {
  const std::int64_t rows = last - first;
  CodeRows codes = CodeRows::plan(method.layout, weights);
  const Schedule schedule(weights, codes, method, rows, context.threads(), context.device().l2_bytes);
  const std::int64_t scales_bytes = round_up(rows * static_cast<std::int64_t>(sizeof(Int8RowScale)), kAlignment);
  const std::int64_t codes_bytes = round_up(rows, method.row_step) * codes.row_bytes;
  const std::int64_t worker_bytes = Worker::bytes(schedule, weights, method);
  const std::int64_t workers_bytes = schedule.workers * worker_bytes;
  std::byte* memory = context.scratch(scales_bytes + codes_bytes + workers_bytes + Shares::bytes(schedule.workers));
  auto* scales = reinterpret_cast<Int8RowScale*>(memory);
  codes.data = memory + scales_bytes;
  std::byte* worker_memory = codes.data + codes_bytes;

  const Int8RowFunctions& functions = method.row_functions();
  const std::int64_t row_tasks = std::min<std::int64_t>(rows, kTasksPerThread * context.threads());
  context.parallel(row_tasks, [&](std::int64_t task) {
    for (std::int64_t m = task * rows / row_tasks; m < (task + 1) * rows / row_tasks; ++m) {
      scales[m] = functions.quantize_row(config, weights, arguments, first + m, codes.layout, codes.row(m));
    }
  });

  const Shares shares(schedule.tasks(), schedule.workers, worker_memory + workers_bytes);
  context.parallel(schedule.workers, [&](std::int64_t index) {
    Worker worker(weights, arguments, method, schedule, codes, scales, first, index,
                  worker_memory + index * worker_bytes);
    if (method.enter != nullptr) method.enter();
    shares.run([&](std::int64_t task) {
      const std::int64_t begin = task / schedule.column_tasks * schedule.block_m;
      const std::int64_t end = std::min(begin + schedule.block_m, rows);
      const std::int64_t tile = task % schedule.column_tasks * schedule.tiles_per_task;
      const std::int64_t end_tile = std::min(tile + schedule.tiles_per_task, schedule.column_tiles);
      for (std::int64_t t = tile; t < end_tile; ++t) worker.run(begin, end, t, t + 1 == end_tile);
    });
    worker.finish();
    if (method.leave != nullptr) method.leave();
  });
}

}  // namespace

void Int8Outputs::write(std::int64_t row) const {
  Int8Sums one = sums;
  one.sums += row * sums.stride;
  one.scales += row;
  one.rows = 1;
  functions->write_sums(*weights, *arguments, m + row, one);
}

void multiply_int8(const LayerConfig& config, const Int8Weights& weights, const ApplyArguments& arguments,
                   const Int8Method& method, Context& context) {
  const std::int64_t row_bytes = CodeRows::plan(method.layout, weights).row_bytes;
  const std::int64_t step = round_up(std::max<std::int64_t>(1, kPassBytes / row_bytes), method.rows);
  for (std::int64_t m = 0; m < arguments.m; m += step) {
    multiply_pass(config, weights, arguments, method, m, std::min(m + step, arguments.m), context);
  }
}

}  // namespace scaledmm
