#include "attention.hpp"

#include <algorithm>
#include <cmath>

#include "vector_math.hpp"

namespace llama {
namespace {

constexpr std::int64_t kBlock = kColumnBlock;
constexpr std::int64_t kTileRows = 8;
constexpr std::int64_t kQueryRows = 16;  // of a task:
constexpr std::int64_t kStoreRows = 16;

}  // namespace

RotaryTable::RotaryTable(const Config& config, std::int64_t positions) : half_(config.head_dim / 2) {
  cosines_.resize(static_cast<std::size_t>(positions * half_));
  sines_.resize(cosines_.size());
  for (std::int64_t i = 0; i < half_; ++i) {
    const double frequency = std::pow(config.rope_theta, -static_cast<double>(i) / static_cast<double>(half_));
    for (std::int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      cosines_[static_cast<std::size_t>(t * half_ + i)] = static_cast<float>(std::cos(angle));
      sines_[static_cast<std::size_t>(t * half_ + i)] = static_cast<float>(std::sin(angle));
    }
  }
}

void RotaryTable::apply(float* head, std::int64_t position) const {
  rotate(head, cosines_.data() + position * half_, sines_.data() + position * half_, half_);
}

KvCache::KvCache(const Config& config, std::int64_t capacity)
    : capacity_((capacity + kBlock - 1) / kBlock * kBlock), head_size_(capacity_ * config.head_dim) {
  keys_.resize(static_cast<std::size_t>(config.layers * config.kv_heads * head_size_));
  values_.resize(keys_.size());
}

void Attention::store_row(std::int64_t layer, float* row, std::int64_t position, KvCache& cache) const {
  const std::int64_t d = config_.head_dim;
  for (std::int64_t head = 0; head < config_.heads + config_.kv_heads; ++head) rotary_.apply(row + head * d, position);
  for (std::int64_t head = 0; head < config_.kv_heads; ++head) {
    const std::int64_t offset = (layer * config_.kv_heads + head) * cache.head_size_;
    const float* key = row + (config_.heads + head) * d;
    float* block = cache.keys_.data() + offset + position / kBlock * kBlock * d + position % kBlock;
    for (std::int64_t i = 0; i < d; ++i) block[i * kBlock] = key[i];
    std::copy_n(key + config_.kv_heads * d, d, cache.values_.data() + offset + position * d);
  }
}

// One head: `rows` queries, the first at `position`, each over the keys up to its own position.
void Attention::attend(const float* keys, const float* values, const float* queries, std::int64_t rows,
                       std::int64_t position, float* out) const {
  thread_local std::vector<float> scores;
  const std::int64_t d = config_.head_dim;
  const std::int64_t qkv_stride = (config_.heads + 2 * config_.kv_heads) * d;
  const std::int64_t out_stride = config_.heads * d;
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  for (std::int64_t row = 0; row < rows; row += kTileRows) {
    const std::int64_t tile_rows = std::min(kTileRows, rows - row);
    const std::int64_t keys_seen = position + row + tile_rows;  // by the last row of the tile
    const std::int64_t stride = (keys_seen + kBlock - 1) / kBlock * kBlock;
    scores.resize(static_cast<std::size_t>(kTileRows * stride));
    multiply({tile_rows, d, stride / kBlock, queries + row * qkv_stride, qkv_stride, keys, kBlock, kBlock * d,
              scores.data(), stride});
    for (std::int64_t i = 0; i < tile_rows; ++i) {
      float* line = scores.data() + i * stride;
      const std::int64_t seen = position + row + i + 1;
      softmax(line, seen, scale);
      std::fill(line + seen, line + keys_seen, 0.0F);
    }
    multiply({tile_rows, keys_seen, d / kBlock, scores.data(), stride, values, d, kBlock, out + row * out_stride,
              out_stride});
  }
}

void Attention::apply(std::int64_t layer, float* qkv, std::int64_t m, KvCache& cache, float* out,
                      scaledmm::Context& context) const {
  const std::int64_t d = config_.head_dim;
  const std::int64_t qkv_stride = (config_.heads + 2 * config_.kv_heads) * d;
  const std::int64_t position = cache.length_;
  context.parallel((m + kStoreRows - 1) / kStoreRows, [&](std::int64_t task) {
    for (std::int64_t i = task * kStoreRows; i < std::min(m, (task + 1) * kStoreRows); ++i) {
      store_row(layer, qkv + i * qkv_stride, position + i, cache);
    }
  });
  const std::int64_t blocks = (m + kQueryRows - 1) / kQueryRows;
  context.parallel(blocks * config_.heads, [&](std::int64_t task) {
    const std::int64_t head = task % config_.heads;
    const std::int64_t begin = (blocks - 1 - task / config_.heads) * kQueryRows;  // the longest first
    const std::int64_t kv_head = head / (config_.heads / config_.kv_heads);
    const std::int64_t offset = (layer * config_.kv_heads + kv_head) * cache.head_size_;
    attend(cache.keys_.data() + offset, cache.values_.data() + offset, qkv + begin * qkv_stride + head * d,
           std::min(kQueryRows, m - begin), position + begin, out + begin * config_.heads * d + head * d);
  });
}

}  // namespace llama
