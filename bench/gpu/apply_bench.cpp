// apply_bench [all|quantizers|apply] [FILE.json]: what a user of the library gets on a GPU.
//   quantizers   bytes read and written a second, beside a copy on the device
//   apply        dynamic quantization and GEMM, and the GEMM alone (activations quantized before), for each kernel
//   host         microseconds of the calling thread for one apply
// Method: graphs of calls that rotate over more memory than the L2 holds; contenders take turns in each of 11 rounds;
// medians; normal random activations and weights.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "numerics/formats.hpp"
#include "scaledmm/scaledmm.hpp"

namespace scaledmm::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 11;
constexpr std::int64_t kRotation = std::int64_t{400} << 20;  // bytes, 6 times the L2

std::vector<std::uint16_t> normal_bf16(std::int64_t count) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> few(1 << 20), values(static_cast<std::size_t>(count));
  for (std::uint16_t& value : few) value = f32_to_bf16(normal(random));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = few[(i * 7 + i / few.size()) % few.size()];
  return values;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Contender {
  std::string name;
  std::function<void(int copy, Context&)> call;
  double us = 0;
};

// Sets `us`, the time of one call.
void time_in_turn(std::vector<Contender>& contenders, int copies, int calls, const DeviceStream& stream,
                  Context& context) {
  std::vector<std::unique_ptr<DeviceGraph>> graphs;
  std::vector<std::vector<double>> times(contenders.size());
  for (const Contender& c : contenders) {
    c.call(0, context);
    graphs.push_back(std::make_unique<DeviceGraph>(stream, [&] {
      for (int i = 0; i < calls; ++i) c.call(i % copies, context);
    }));
  }
  for (int round = -2; round < kRounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const double us = stream.measure_us([&] { graphs[i]->launch(stream); }) / calls;
      if (round >= 0) times[i].push_back(us);
    }
  }
  for (std::size_t i = 0; i < contenders.size(); ++i) contenders[i].us = median(times[i]);
}

struct Bench {
  const Device& gpu;
  DeviceStream stream;
  Context context;
  Json document;

  explicit Bench(const Device& device) : gpu(device), stream(device), context(device) {
    context.set_stream(stream.handle());
    document["device"] = device.description;
  }
};

void bench_quantizers(Bench& b, std::int64_t m, std::int64_t k) {
  const auto copies = static_cast<int>(std::max<std::int64_t>(2, kRotation / (3 * m * k)));
  const std::vector<std::uint16_t> values = normal_bf16(m * k);
  std::vector<DeviceBuffer> x, q;
  for (int i = 0; i < copies; ++i) {
    x.emplace_back(b.gpu, values.data(), 2 * m * k);
    q.emplace_back(b.gpu, 2 * m * k);
  }
  const std::int64_t groups = (k + 127) / 128;
  const DeviceBuffer scale(b.gpu, 4 * m * groups), zero(b.gpu, 4 * m);
  const TensorView row_scale(scale.data(), DType::kF32, {m, 1}), one(scale.data(), DType::kF32, {1}),
      zeros(zero.data(), DType::kInt32, {m}), group_scale(scale.data(), DType::kF32, {m, groups}),
      column_major(scale.data(), DType::kF32, {m, groups}, {1, m});
  const auto x_view = [&](int i) {
    return ConstTensorView(x[static_cast<std::size_t>(i)].data(), DType::kBF16, {m, k});
  };
  const auto q_view = [&](int i, DType dtype) {
    return TensorView(q[static_cast<std::size_t>(i)].data(), dtype, {m, k});
  };
  const auto fp8 = [&](std::string name, Fp8QuantOptions options, TensorView scales) {
    return Contender{std::move(name), [=](int i, Context& c) {
                       scaled_fp8_quant(x_view(i), options, q_view(i, DType::kE4M3FN), scales, c);
                     }};
  };
  const auto int8 = [&](std::string name, Int8QuantOptions options) {
    return Contender{std::move(name), [=](int i, Context& c) {
                       scaled_int8_quant(x_view(i), options, q_view(i, DType::kInt8), row_scale, zeros, c);
                     }};
  };
  std::vector<Contender> contenders{
      {"copy of 2 bytes a value",
       [&](int i, Context& c) {
         if (cudaMemcpyAsync(q[static_cast<std::size_t>(i)].data(), x[static_cast<std::size_t>(i)].data(),
                             static_cast<std::size_t>(2 * m * k), cudaMemcpyDeviceToDevice,
                             static_cast<cudaStream_t>(c.stream())) != cudaSuccess) {
           throw DeviceError("cudaMemcpyAsync");
         }
       }},
      fp8("fp8 static", {.scale = 0.02f}, {}),
      fp8("fp8 per tensor", {.group = GroupShape::per_tensor()}, one),
      fp8("fp8 per token", {}, row_scale),
      fp8("fp8 per 128", {.group = {1, 128}}, group_scale),
      fp8("fp8 per 128, column-major", {.group = {1, 128}}, column_major),
      fp8("fp8 per 128, ue8m0", {.group = {1, 128}, .ue8m0 = true}, group_scale),
      int8("int8 static", {0.03f, std::nullopt, true}),
      int8("int8 static azp", {0.03f, 3, false}),
      int8("int8 per token", {}),
      int8("int8 per token azp", {std::nullopt, std::nullopt, false}),
  };
  time_in_turn(contenders, copies, 2 * copies, b.stream, b.context);
  const double copy = 4.0 * static_cast<double>(m * k) / contenders[0].us / 1e6;
  std::printf("\nquantizers, x [%ld, %ld] bf16\n  %-28s %9s %7s %6s\n", static_cast<long>(m), static_cast<long>(k), "",
              "us", "TB/s", "share");
  for (const Contender& c : contenders) {
    const double bytes = static_cast<double>(m * k) * (&c == &contenders[0] ? 4 : 3);
    const double rate = bytes / c.us / 1e6;
    std::printf("  %-28s %9.2f %7.2f %5.0f%%\n", c.name.c_str(), c.us, rate, 100 * rate / copy);
    b.document["quantizers"].push_back(
        {{"name", c.name}, {"m", m}, {"k", k}, {"us", c.us}, {"tb_per_s", rate}, {"share_of_copy", rate / copy}});
  }
}

LayerConfig config_for(const LinearKernel& kernel, std::int64_t n, std::int64_t k, bool azp) {
  if (kernel.name().find("int8") != std::string_view::npos) {
    Int8ScaledMMLinearLayerConfig config;
    config.weight_shape = {n, k};
    config.input_symmetric = !azp;
    return config;
  }
  FP8ScaledMMLinearLayerConfig config;
  config.weight_shape = {n, k};
  return config;
}

// One kernel on one width: its layers, enough to exceed the L2.
struct Layers {
  const LinearKernel* kernel;
  std::string name;
  std::vector<Layer> layers;
};

Layers make_layers(Bench& b, const LinearKernel& kernel, std::int64_t n, std::int64_t k, bool azp, int copies) {
  Layers result{&kernel, std::string(kernel.name()) + (azp ? " azp" : ""), {}};
  const LayerConfig config = config_for(kernel, n, k, azp);
  const std::vector<std::uint16_t> values = normal_bf16(n * k);
  const DType dtype = std::holds_alternative<FP8ScaledMMLinearLayerConfig>(config) ? DType::kE4M3FN : DType::kInt8;
  std::vector<std::uint8_t> codes(values.size());
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float value = bf16_to_f32(values[i]);
    codes[i] = dtype == DType::kInt8
                   ? static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(value * 30, -120.0f, 120.0f)))
                   : f32_to_e4m3fn(value * 100);
  }
  const std::vector<float> scales(static_cast<std::size_t>(n), 0.01f);
  LayerWeights weights;
  weights.weight = ConstTensorView(codes.data(), dtype, {n, k});
  weights.weight_scale = ConstTensorView(scales.data(), DType::kF32, {n, 1});
  for (int i = 0; i < copies; ++i) {
    kernel.process_weights_after_loading(result.layers.emplace_back(config, weights), b.context);
  }
  return result;
}

// Microseconds of the calling thread for one call of `call`.
double host_us(const Bench& b, const std::function<void()>& call) {
  constexpr int kCalls = 300;  // fewer than a stream queues
  std::vector<double> times;
  for (int round = 0; round < 7; ++round) {
    b.stream.synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
                    kCalls);
  }
  b.stream.synchronize();
  return median(times);
}

void bench_host(Bench& b, const std::vector<Layers>& all, std::int64_t n, std::int64_t k) {
  const DeviceBuffer x(b.gpu, normal_bf16(k).data(), 2 * k), y(b.gpu, 2 * n), q(b.gpu, k), scale(b.gpu, 4);
  const ConstTensorView x_view(x.data(), DType::kBF16, {1, k});
  const TensorView y_view(y.data(), DType::kBF16, {1, n}), scale_view(scale.data(), DType::kF32, {1, 1});
  std::printf("  host cost, M = 1, us: a quantizer alone %.2f\n", host_us(b, [&] {
                scaled_fp8_quant(x_view, {}, {q.data(), DType::kE4M3FN, {1, k}}, scale_view, b.context);
              }));
  for (const Layers& layers : all) {
    const Layer& layer = layers.layers[0];
    const double apply = host_us(b, [&] { layer.kernel()->apply_weights(layer, x_view, {}, y_view, b.context); });
    std::printf("  %-20s apply %.2f", layers.name.c_str(), apply);
    const std::optional<QuantKey> key = layer.kernel()->input_quant_key(layer.config());
    Json entry = {{"kernel", layers.name}, {"n", n}, {"k", k}, {"apply_us", apply}};
    if (key && key->symmetric) {
      const QuantizedActivation activation{{q.data(), key->dtype, {1, k}}, scale_view, {}, *key};
      const double gemm = host_us(b, [&] { layer.kernel()->apply_weights(layer, activation, {}, y_view, b.context); });
      std::printf(", quantized before %.2f", gemm);
      entry["gemm_us"] = gemm;
    }
    std::printf("\n");
    b.document["host"].push_back(entry);
  }
}

void bench_apply(Bench& b, std::int64_t n, std::int64_t k, const std::vector<std::int64_t>& batches) {
  const auto copies = static_cast<int>(std::max<std::int64_t>(2, kRotation / (n * k)));
  std::vector<Layers> all;
  for (const LinearKernel* kernel : kernels()) {
    if (kernel->info().device != DeviceKind::kCuda || !kernel->is_supported(b.gpu)) continue;
    for (const bool azp : {false, true}) {
      const LayerConfig config = config_for(*kernel, n, k, azp);
      if (azp && !std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config)) continue;
      if (kernel->can_implement(config)) all.push_back(make_layers(b, *kernel, n, k, azp, copies));
    }
  }
  std::printf("\napply, x bf16 [M, %ld], w [%ld, %ld], y bf16, us: quantize + GEMM | GEMM alone | ratio\n  %-20s",
              static_cast<long>(k), static_cast<long>(n), static_cast<long>(k), "M");
  for (const std::int64_t m : batches) std::printf(" %24ld", static_cast<long>(m));
  std::vector<std::string> lines(all.size());
  for (const std::int64_t m : batches) {
    const DeviceBuffer x(b.gpu, normal_bf16(m * k).data(), 2 * m * k), y(b.gpu, 2 * m * n), scale(b.gpu, 4 * m);
    const ConstTensorView x_view(x.data(), DType::kBF16, {m, k});
    const TensorView y_view(y.data(), DType::kBF16, {m, n}), scale_view(scale.data(), DType::kF32, {m, 1});
    std::vector<DeviceBuffer> codes;
    std::vector<Contender> contenders;
    for (const Layers& layers : all) {
      const auto layer = [&layers](int i) -> const Layer& { return layers.layers[static_cast<std::size_t>(i)]; };
      contenders.push_back(
          {layers.name, [=](int i, Context& c) { layer(i).kernel()->apply_weights(layer(i), x_view, {}, y_view, c); }});
      const std::optional<QuantKey> key = layers.kernel->input_quant_key(layer(0).config());
      if (!key || !key->symmetric) continue;
      const TensorView q(codes.emplace_back(b.gpu, m * k).data(), key->dtype, {m, k});
      if (key->dtype == DType::kInt8) {
        scaled_int8_quant(x_view, {}, q, scale_view, {}, b.context);
      } else {
        scaled_fp8_quant(x_view, {}, q, scale_view, b.context);
      }
      const QuantizedActivation activation{q, scale_view, {}, *key};
      contenders.push_back({layers.name + " gemm", [=](int i, Context& c) {
                              layer(i).kernel()->apply_weights(layer(i), activation, {}, y_view, c);
                            }});
    }
    time_in_turn(contenders, copies, std::max(copies, 8), b.stream, b.context);
    std::size_t at = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double apply = contenders[at++].us;
      const bool has_gemm = at < contenders.size() && contenders[at].name == all[i].name + " gemm";
      const double gemm = has_gemm ? contenders[at++].us : 0;
      char cell[64];
      std::snprintf(cell, sizeof cell, has_gemm ? " %9.1f %8.1f %5.2f" : " %9.1f               ", apply, gemm,
                    has_gemm ? apply / gemm : 0.0);
      lines[i] += cell;
      b.document["apply"].push_back({{"kernel", all[i].name},
                                     {"m", m},
                                     {"n", n},
                                     {"k", k},
                                     {"apply_us", apply},
                                     {"gemm_us", has_gemm ? Json(gemm) : Json(nullptr)}});
    }
  }
  std::printf("\n");
  for (std::size_t i = 0; i < all.size(); ++i) std::printf("  %-20s%s\n", all[i].name.c_str(), lines[i].c_str());

  bench_host(b, all, n, k);
}

int run(const std::string& what, const char* file) {
  const Device gpu = device_from_name("cuda");
  std::printf("%s\n", gpu.description.c_str());
  Bench b(gpu);
  if (what != "apply") {
    for (const auto& [m, k] : {std::pair<std::int64_t, std::int64_t>{4096, 4096}, {8192, 8192}, {16384, 7168}}) {
      bench_quantizers(b, m, k);
    }
  }
  if (what != "quantizers") {
    bench_apply(b, 4096, 4096, {1, 16, 64, 512, 4096});
    bench_apply(b, 28672, 4096, {1, 16, 64, 2048});
  }
  if (file != nullptr) std::ofstream(file) << b.document.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace scaledmm::bench

int main(int argc, char** argv) {
  try {
    return scaledmm::bench::run(argc > 1 ? argv[1] : "all", argc > 2 ? argv[2] : nullptr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "apply_bench: %s\n", error.what());
    return 1;
  }
}
