#include "formats/stored_dtype.hpp"

#include <array>

namespace scaledmm {
namespace {

// The order of the format's own enumeration.
constexpr std::array<StoredDType, 22> kStoredDTypes = {{
    {"BOOL", 8, 0, std::nullopt},         {"F4", 4, 1, std::nullopt},
    {"F6_E2M3", 6, 2, std::nullopt},      {"F6_E3M2", 6, 3, std::nullopt},
    {"U8", 8, 4, DType::kUInt8},          {"I8", 8, 5, DType::kInt8},
    {"F8_E5M2", 8, 6, DType::kE5M2},      {"F8_E4M3", 8, 7, DType::kE4M3FN},
    {"F8_E8M0", 8, 8, DType::kE8M0},      {"F8_E4M3FNUZ", 8, 9, DType::kE4M3FNUZ},
    {"F8_E5M2FNUZ", 8, 10, std::nullopt}, {"I16", 16, 11, std::nullopt},
    {"U16", 16, 12, std::nullopt},        {"F16", 16, 13, DType::kF16},
    {"BF16", 16, 14, DType::kBF16},       {"I32", 32, 15, DType::kInt32},
    {"U32", 32, 16, std::nullopt},        {"F32", 32, 17, DType::kF32},
    {"C64", 64, 18, std::nullopt},        {"F64", 64, 19, std::nullopt},
    {"I64", 64, 20, std::nullopt},        {"U64", 64, 21, std::nullopt},
}};

}  // namespace

const StoredDType* find_stored_dtype(std::string_view name) {
  for (const StoredDType& stored : kStoredDTypes) {
    if (stored.name == name) return &stored;
  }
  return nullptr;
}

const StoredDType& stored_dtype(DType dtype) {
  const StoredDType* found = kStoredDTypes.begin();
  while (found->dtype != dtype) ++found;  // every DType is in the table
  return *found;
}

}  // namespace scaledmm
