#include "scaledmm/dtype.hpp"

#include <array>
#include <utility>

namespace scaledmm {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 10> kNames = {{
    {DType::kF32, "f32"},
    {DType::kBF16, "bf16"},
    {DType::kF16, "f16"},
    {DType::kInt8, "int8"},
    {DType::kInt32, "int32"},
    {DType::kE4M3FN, "e4m3fn"},
    {DType::kE4M3FNUZ, "e4m3fnuz"},
    {DType::kE5M2, "e5m2"},
    {DType::kE8M0, "e8m0"},
    {DType::kUInt8, "uint8"},
}};

}  // namespace

std::string_view name(DType dtype) {
  for (const auto& [known, text] : kNames) {
    if (known == dtype) return text;
  }
  return "unknown";
}

std::optional<DType> dtype_from_name(std::string_view text) {
  for (const auto& [known, spelling] : kNames) {
    if (spelling == text) return known;
  }
  return std::nullopt;
}

}  // namespace scaledmm
