// Element types: names, sizes, and which of them may stand where.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace scaledmm {

// Storage types. The 8-bit floats are the OCP types, fnuz the variants of AMD's MI300 family.
enum class DType : std::uint8_t { kF32, kBF16, kF16, kInt8, kInt32, kE4M3FN, kE4M3FNUZ, kE5M2, kE8M0, kUInt8 };

// Bytes of one element.
constexpr std::int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kInt32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    default:
      return 1;
  }
}

// f32, bf16, f16, int8, int32, e4m3fn, e4m3fnuz, e5m2, e8m0, uint8: the spelling of the command line and of JSON.
std::string_view name(DType dtype);

// The inverse of name(); nothing for an unknown name.
std::optional<DType> dtype_from_name(std::string_view text);

// f32, bf16 or f16: what activations, outputs and biases may be.
constexpr bool is_float16_or_32(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// e4m3fn, e4m3fnuz or e5m2: what FP8 weights may be.
constexpr bool is_fp8(DType dtype) {
  return dtype == DType::kE4M3FN || dtype == DType::kE4M3FNUZ || dtype == DType::kE5M2;
}

}  // namespace scaledmm
