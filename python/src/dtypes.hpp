// Element types at the border to Python: our names, the frameworks' names and DLPack's codes.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "dlpack.hpp"
#include "scaledmm/dtype.hpp"

namespace scaledmm::python {

// A dtype given by name ("bf16", "bfloat16", "float8_e4m3fn") or as a dtype object of numpy, ml_dtypes, torch or jax.
// Errors: InvalidArgument for anything else, with the known names.
DType dtype_from(nanobind::handle object);
std::optional<DType> optional_dtype_from(nanobind::handle object);
// Nothing for a name that is no dtype of ours.
std::optional<DType> dtype_from_any_name(std::string_view text);

// "float8_e4m3fn": the name of a dtype in numpy, ml_dtypes and torch.
const char* framework_name(DType dtype);

DlDataType dl_type(DType dtype);
// The unsigned integer that carries a dtype which a framework lacks: uint8 or uint16.
DlDataType carrier_type(DType dtype);
// Nothing for a type that the library does not know.
std::optional<DType> dtype_from_dl(DlDataType type);
// "float64", "bool", "uint16": a DLPack type in words, for messages.
std::string text(DlDataType type);
// Whether elements of the type may be read as another dtype of the same size: integers of 8 and 16 bits.
bool is_carrier(DlDataType type, DType dtype);

}  // namespace scaledmm::python
