// Whole layers against tests/golden/layers.json: INT8 bit for bit in every output type, FP8 within its bound.
#include <gtest/gtest.h>

#include "exact.hpp"
#include "golden.hpp"
#include "kernel_fixture.hpp"

namespace scaledmm {
namespace {

class GoldenLayers : public KernelTest {};

LayerData golden_layer(const nlohmann::json& entry, DType out) {
  const std::int64_t n = entry["n"], k = entry["k"];
  LayerData data;
  Scheme scheme;
  if (entry["scheme"] == "int8") {
    scheme = int8_scheme("golden", entry["static"], true, entry["symmetric"]);
    if (!entry["block"].empty()) {
      std::get<Int8ScaledMMLinearLayerConfig>(scheme.config).weight_block =
          GroupShape{entry["block"][0], entry["block"][1]};
    }
    if (entry["static"]) data.input_scale = golden_float(entry["sx"]);
    if (entry["static"] && !entry["symmetric"]) data.input_zero_point = entry["zx"].get<std::int32_t>();
  } else {
    const std::vector<std::int64_t> block = entry["block"];
    const std::string kind = entry["activation"];
    const DType dtype = *dtype_from_name(entry["dtype"].get<std::string>());
    std::optional<QuantKey> key;
    if (kind == "tensor_static") key = kFp8StaticTensorSym;
    if (kind == "tensor") key = kFp8DynamicTensorSym;
    if (kind == "token") key = kFp8DynamicTokenSym;
    if (kind == "group") key = fp8_key(false, {1, block[1]});
    scheme =
        fp8_scheme("golden", block.empty() ? GroupShape::per_channel() : GroupShape{block[0], block[1]}, key, dtype);
    data.offset_n = entry["offset"][0];
    data.offset_k = entry["offset"][1];
    if (entry.contains("sx")) data.input_scale = golden_float(entry["sx"]);
  }
  const std::int64_t rows = entry["grid"][0], columns = entry["grid"][1];
  data.config = scheme.config;
  set_shape(data.config, n, k, DType::kBF16, out);
  const DType dtype = scheme.is_int8() ? DType::kInt8 : scheme.fp8().weight_quant_key.dtype;
  data.weight = make_codes(dtype, n, k, [&](std::int64_t i, std::int64_t j) {
    return entry["w"][static_cast<std::size_t>(i * k + j)].get<std::uint8_t>();
  });
  data.scale = make_matrix(DType::kF32, rows, columns, [&](std::int64_t i, std::int64_t j) {
    return golden_float(entry["sw"][static_cast<std::size_t>(i * columns + j)]);
  });
  return data;
}

TEST_P(GoldenLayers, AreWhatEveryKernelGives) {
  for (const nlohmann::json& entry : golden("layers")) {
    const std::int64_t m = entry["m"], n = entry["n"], k = entry["k"];
    const bool is_int8 = entry["scheme"] == "int8";
    const bool keeps_activations = !is_int8 && kernel().info().computes == "w8a16";
    if (keeps_activations && entry["activation"] != "none") continue;
    const Matrix x = make_matrix(DType::kBF16, m, k, [&](std::int64_t i, std::int64_t j) {
      return golden_float(entry["x"][static_cast<std::size_t>(i * k + j)]);
    });
    const std::vector<float> bias_values = golden_floats(entry["bias"]);
    const Matrix bias = make_matrix(DType::kF32, 1, n, [&](std::int64_t, std::int64_t j) {
      return bias_values.empty() ? 0.0f : bias_values[static_cast<std::size_t>(j)];
    });
    for (const DType out : kFloats) {
      const LayerData data = golden_layer(entry, out);
      if (!kernel().can_implement(data.config)) continue;
      const Matrix y =
          apply(kernel(), data.process(kernel(), context()), x, bias_values.empty() ? nullptr : &bias, context());
      const std::int64_t blocks = data.scale.columns;
      std::vector<Exact> exact;
      for (std::size_t i = 0; i < static_cast<std::size_t>(m * n); ++i) {
        const double value = entry["y_f64"][i];
        const double units = static_cast<double>(k + 4 * blocks + 8);
        exact.push_back({value, is_int8 ? std::fabs(value) * 0x1p-20 + 1e-5
                                        : std::ldexp(units * entry["sum_abs"][i].get<double>(), -24) +
                                              std::ldexp(std::fabs(value), -23)});
        if (!is_int8) continue;
        const char* key = out == DType::kF32 ? "y" : out == DType::kBF16 ? "y_bf16" : "y_f16";
        std::uint32_t bits = 0;
        std::memcpy(&bits, y.bytes.data() + i * static_cast<std::size_t>(size_bytes(out)),
                    static_cast<std::size_t>(size_bytes(out)));
        ASSERT_EQ(bits, entry[key][i].get<std::uint32_t>()) << name(out) << " " << i;
      }
      ASSERT_EQ(first_outside(y, exact), "") << entry["scheme"] << " " << name(out);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GoldenLayers, testing::ValuesIn(tested_kernels()), kernel_label);

}  // namespace
}  // namespace scaledmm
