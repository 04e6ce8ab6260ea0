#include "dtypes.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "scaledmm/error.hpp"

namespace nb = nanobind;

namespace scaledmm::python {
namespace {

struct Row {
  DType dtype;
  const char* framework;
  DlDataType dl;
};

constexpr std::array<Row, 10> kRows{{
    {DType::kF32, "float32", {kDlFloat, 32, 1}},
    {DType::kBF16, "bfloat16", {kDlBfloat, 16, 1}},
    {DType::kF16, "float16", {kDlFloat, 16, 1}},
    {DType::kInt8, "int8", {kDlInt, 8, 1}},
    {DType::kInt32, "int32", {kDlInt, 32, 1}},
    {DType::kE4M3FN, "float8_e4m3fn", {kDlE4M3FN, 8, 1}},
    {DType::kE4M3FNUZ, "float8_e4m3fnuz", {kDlE4M3FNUZ, 8, 1}},
    {DType::kE5M2, "float8_e5m2", {kDlE5M2, 8, 1}},
    {DType::kE8M0, "float8_e8m0fnu", {kDlE8M0, 8, 1}},
    {DType::kUInt8, "uint8", {kDlUInt, 8, 1}},
}};

const Row& row_of(DType dtype) { return *std::ranges::find(kRows, dtype, &Row::dtype); }

// The last word of "torch.bfloat16" or "<class 'ml_dtypes.bfloat16'>".
std::string last_word(std::string_view text) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  auto end = text.size();
  while (end > 0 && !is_word(text[end - 1])) --end;
  auto begin = end;
  while (begin > 0 && is_word(text[begin - 1])) --begin;
  return std::string(text.substr(begin, end - begin));
}

}  // namespace

std::optional<DType> dtype_from_any_name(std::string_view text) {
  if (const std::optional<DType> dtype = dtype_from_name(text)) return dtype;
  const auto row = std::ranges::find_if(kRows, [&](const Row& r) { return text == r.framework; });
  if (row == kRows.end()) return std::nullopt;
  return row->dtype;
}

DType dtype_from(nb::handle object) {
  const nb::str written(object);
  const std::string word = last_word(written.c_str());
  if (const std::optional<DType> dtype = dtype_from_any_name(word)) return *dtype;
  std::string known;
  for (const Row& row : kRows) known += (known.empty() ? "" : ", ") + std::string(name(row.dtype));
  throw InvalidArgument(word + " is no dtype of this library; known are " + known +
                        ", and numpy's and torch's dtypes of these kinds");
}

std::optional<DType> optional_dtype_from(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  return dtype_from(object);
}

const char* framework_name(DType dtype) { return row_of(dtype).framework; }

DlDataType dl_type(DType dtype) { return row_of(dtype).dl; }

DlDataType carrier_type(DType dtype) { return {kDlUInt, static_cast<std::uint8_t>(8 * size_bytes(dtype)), 1}; }

std::optional<DType> dtype_from_dl(DlDataType type) {
  const auto row = std::ranges::find_if(kRows, [&](const Row& r) {
    return r.dl.code == type.code && r.dl.bits == type.bits && r.dl.lanes == type.lanes;
  });
  if (row == kRows.end()) return std::nullopt;
  return row->dtype;
}

std::string text(DlDataType type) {
  if (const std::optional<DType> dtype = dtype_from_dl(type)) return std::string(name(*dtype));
  constexpr std::array<const char*, 18> kKinds{
      "int",         "uint",        "float",       "handle",        "bfloat",        "complex",
      "bool",        "float8_e3m4", "float8_e4m3", "float8_b11",    "float8_e4m3fn", "float8_e4m3fnuz",
      "float8_e5m2", "e5m2fnuz",    "float8_e8m0", "float6_e2m3fn", "float6_e3m2",   "float4_e2m1fn"};
  std::string result = type.code < kKinds.size() ? kKinds[type.code] : "DLPack type " + std::to_string(type.code);
  if (type.code < 6) result += std::to_string(type.bits);
  if (type.lanes != 1) result += " in vectors of " + std::to_string(type.lanes);
  return result;
}

bool is_carrier(DlDataType type, DType dtype) {
  const bool integer = type.code == kDlInt || type.code == kDlUInt;
  return integer && type.lanes == 1 && type.bits <= 16 && type.bits == 8 * size_bytes(dtype);
}

}  // namespace scaledmm::python
