// The data that the public cases share, and their fixture.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "exact.hpp"
#include "kernel_fixture.hpp"

namespace scaledmm {

using Code = std::function<std::uint8_t(std::int64_t, std::int64_t)>;
using Value = std::function<float(std::int64_t, std::int64_t)>;

inline constexpr std::uint8_t kOne = 0x38;  // 1 in e4m3fn
inline constexpr GroupShape kTensor = GroupShape::per_tensor(), kChannel = GroupShape::per_channel(), kBlock{128, 128};

inline std::uint8_t int8(std::int64_t value) { return static_cast<std::uint8_t>(value); }

// A layer of a scheme with the given codes and scales.
inline LayerData layer_of(const Scheme& scheme, std::int64_t n, std::int64_t k, const Code& code, const Value& scale,
                          DType x = DType::kBF16, DType y = DType::kF32) {
  LayerData data = make_layer(scheme, n, k, x, y);
  const Matrix grid = data.scale;
  data.weight = make_codes(data.weight.dtype, n, k, code);
  data.scale = make_matrix(DType::kF32, grid.rows, grid.columns, scale);
  return data;
}

inline Value constant(float value) {
  return [value](std::int64_t, std::int64_t) { return value; };
}
inline Code all(std::uint8_t code) {
  return [code](std::int64_t, std::int64_t) { return code; };
}

// DATA-F: everything is exactly representable.
inline float data_f_x(std::int64_t m, std::int64_t k) {
  constexpr float kValues[] = {-7, -3.5f, -2, -1, 0, 1, 2, 3.5f, 7};
  return std::ldexp(kValues[(5 * m + 2 * k) % 9], static_cast<int>(m % 4));
}
inline std::uint8_t data_f_w(std::int64_t n, std::int64_t k) {
  return f32_to_e4m3fn(static_cast<float>((3 * n + 4 * k) % 7 - 3));
}

// DATA-8: each row of x holds +127 and -127, so its scale is 1.
inline float data_8_x(std::int64_t m, std::int64_t k) { return static_cast<float>((11 * m + 7 * k) % 255 - 127); }
inline std::uint8_t data_8_w(std::int64_t n, std::int64_t k) { return int8((5 * n + 3 * k) % 255 - 127); }
inline float data_8_scale(std::int64_t n, std::int64_t) { return std::ldexp(1.0f, -static_cast<int>(n % 4)); }

// DATA-R
inline float data_r_x(std::int64_t m, std::int64_t k, std::int64_t width) {
  return uniform(static_cast<std::uint64_t>(m * width + k));
}

class PublicCase : public KernelTest {
 protected:
  bool takes(const LayerData& data) const { return kernel().can_implement(data.config).ok(); }
  Matrix run(const LayerData& data, const Matrix& x, const Matrix* bias = nullptr) {
    return apply(kernel(), data.process(kernel(), context()), x, bias, context());
  }
};

inline const Scheme& int8_dynamic() {
  static const Scheme scheme = int8_scheme("int8", false, true, true);
  return scheme;
}

inline std::vector<Scheme> block_schemes() {
  return {fp8_scheme("fp8_w8a8_block", kBlock, kFp8Dynamic128Sym), fp8_scheme("fp8_w8a16_block", kBlock, std::nullopt)};
}

inline LayerData data_f_layer(const Scheme& scheme, std::int64_t n, std::int64_t k, int k_weight) {
  return layer_of(scheme, n, k, data_f_w,
                  [=](auto nb, auto kb) { return std::exp2f(-static_cast<float>(nb + k_weight * kb)); });
}

inline double sum_of(const Matrix& y) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < y.rows * y.columns; ++i) sum += y.at(i / y.columns, i % y.columns);
  return sum;
}

}  // namespace scaledmm
