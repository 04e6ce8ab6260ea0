#include "gemm_check.hpp"

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "gemm_layer.hpp"

namespace scaledmm::bench {
namespace {

using cuda::GemmAccumulate;
using cuda::GemmArguments;
using cuda::GemmOutput;
using cuda::GemmPlan;
using cuda::GemmType;

struct Tally {
  int runs = 0, failures = 0;
  double worst = 0;
};

std::string describe(const LayerShape& s, const GemmPlan& p) {
  char text[200];
  std::snprintf(text, sizeof text,
                "%s %ldx%ldx%ld out %d %s rows %d cols %d split %d stages %d boxes %d turns %d carry %d interval %d",
                s.type == GemmType::kInt8 ? "int8" : "fp8", static_cast<long>(s.m), static_cast<long>(s.n),
                static_cast<long>(s.k), static_cast<int>(s.y_type),
                p.kernel == GemmPlan::Kernel::kSwap ? "swap" : "tile", p.rows, p.cols, p.split, p.stages, p.boxes,
                p.turns, p.carry, p.interval);
  return text;
}

// Every plan that can compute the shape, and one more that run_gemm would choose.
std::vector<GemmPlan> plans_for(const LayerShape& s, const cuda::GemmWeights& w) {
  using Kernel = GemmPlan::Kernel;
  std::vector<GemmPlan> plans;
  const bool int8 = s.type == GemmType::kInt8;
  plans.push_back(choose_gemm_plan(w, s.m, GemmAccumulate::kPromoted));
  plans.push_back(choose_gemm_plan(w, s.m, GemmAccumulate::kFast));
  for (const int interval : {1, 0}) {
    if (int8 && interval != 0) continue;
    if (interval == 0) plans.push_back({Kernel::kTile, 128, 128, 1, 6, 1, true, 0});
    plans.push_back({Kernel::kTile, 128, 64, 1, 8, 1, false, interval});
    for (const int split : {1, 2}) {
      if (s.k > 256 * (split - 1)) plans.push_back({Kernel::kTile, 128, 128, split, 6, 1, false, interval});
      if (split == 1 && interval == 1) {
        if (s.k > 256) plans.push_back({Kernel::kTile, 128, 128, 1, 6, 1, false, 1, 2});
        for (const int carry : {2, 8}) {
          if (s.k > 512 * carry - 256) plans.push_back({Kernel::kTile, 128, 128, 1, 6, 1, false, 1, 1, carry});
          if (s.k >= 512 * carry) plans.push_back({Kernel::kTile, 128, 128, 1, 6, 1, false, 1, 2, carry});
        }
        if (s.k >= 1024) plans.push_back({Kernel::kTile, 128, 112, 1, 6, 1, false, 1, 2, 2});
        for (const int cols : {96, 112}) {
          if (s.k > 1792) plans.push_back({Kernel::kTile, 128, cols, 1, 6, 1, false, 1, 1, 8});
        }
      }
      for (int cols = 8; cols <= 128 && s.m <= 128; cols *= 2) {
        if (cols < s.m) continue;
        for (const int rows : {16, 40, 64, 104, 128}) {
          if (rows > 64 && cols < 32) continue;
          const int boxes = rows <= 40 ? 4 : 2;
          if (s.k > 128 * boxes * (split - 1)) {
            plans.push_back({Kernel::kSwap, rows, cols, split, 2, boxes, false, interval});
            if (split == 1 && interval == 1 && cols <= 64 && rows <= 64 && s.k > 128 * boxes) {
              plans.push_back({Kernel::kSwap, rows, cols, 1, 2, boxes, false, 1, 2});
            }
          }
        }
      }
    }
  }
  return plans;
}

void run_one(GemmLayer& layer, const GemmPlan& plan, Tally& tally) {
  GemmArguments arguments = layer.arguments();
  layer.poison();
  const cudaError_t error = run_gemm_plan(arguments, plan, nullptr);
  check(cudaDeviceSynchronize(), describe(layer.shape(), plan).c_str());
  const bool fast = layer.shape().type == GemmType::kFp8E4m3 && plan.interval == 0;
  GemmLayer::Result result{false, 0, cudaGetErrorString(error)};
  if (error == cudaSuccess) result = layer.verify(0, 0, fp8_bound(layer.shape().k, fast));
  ++tally.runs;
  if (layer.shape().type == GemmType::kFp8E4m3 && !fast) tally.worst = std::max(tally.worst, result.worst);
  if (result.ok) return;
  if (++tally.failures <= 12) {
    std::printf("FAIL %s: %s\n", describe(layer.shape(), plan).c_str(), result.problem.c_str());
  }
}

std::vector<unsigned char> output_of(GemmLayer& layer, const GemmPlan& plan, std::int64_t m) {
  GemmArguments arguments = layer.arguments();
  arguments.m = m;
  layer.poison();
  check(run_gemm_plan(arguments, plan, nullptr), "run_gemm_plan");
  const int size = layer.shape().y_type == GemmOutput::kFloat32 ? 4 : 2;
  std::vector<unsigned char> y(static_cast<std::size_t>(m) * layer.shape().n * size);
  check(cudaMemcpy(y.data(), layer.y().data(), y.size(), cudaMemcpyDefault), "copy y");
  return y;
}

// Rows of every M against those of the largest M, for layers of one run of K and of two, few columns and many; and each
// plan of fast accumulation against itself.
void check_invariance(Tally& tally, std::int64_t n, std::int64_t k, GemmOutput y_type = GemmOutput::kFloat32) {
  GemmLayer layer({.type = GemmType::kFp8E4m3, .m = 600, .n = n, .k = k, .y_type = y_type}, 77);
  const cuda::GemmWeights& w = layer.weights();
  const auto all = output_of(layer, choose_gemm_plan(w, 600, GemmAccumulate::kPromoted), 600);
  for (const std::int64_t m : {1, 3, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 300, 512, 600}) {
    const GemmPlan plan = choose_gemm_plan(w, m, GemmAccumulate::kPromoted);
    const auto part = output_of(layer, plan, m);
    ++tally.runs;
    if (!std::equal(part.begin(), part.end(), all.begin())) {
      ++tally.failures;
      std::printf("FAIL rows of M = %ld differ from those of M = 600 (%s)\n", static_cast<long>(m),
                  describe(layer.shape(), plan).c_str());
    }
    const GemmPlan split = choose_gemm_plan(w, m, GemmAccumulate::kFast);
    const auto first = output_of(layer, split, m);
    for (int i = 0; i < 20; ++i) {
      ++tally.runs;
      if (output_of(layer, split, m) == first) continue;
      ++tally.failures;
      std::printf("FAIL run %d of M = %ld differs from the first\n", i, static_cast<long>(m));
    }
  }
}

}  // namespace

int check_gemms(bool small) {
  Tally tally;
  const std::vector<std::int64_t> ms = small ? std::vector<std::int64_t>{1, 17, 130}
                                             : std::vector<std::int64_t>{1, 2, 8, 9, 16, 31, 33, 64, 65, 127, 200, 257};
  struct Nk {
    std::int64_t n, k;
  };
  const std::vector<Nk> nks =
      small ? std::vector<Nk>{{130, 656}} : std::vector<Nk>{{1, 16}, {7, 100}, {392, 640}, {391, 1641}, {576, 2048}};
  int variant = 0;
  for (const GemmType type : {GemmType::kFp8E4m3, GemmType::kInt8}) {
    const Tally before = tally;
    for (const std::int64_t m : ms) {
      for (const Nk nk : nks) {
        // Layouts and scales rotate with a period prime to those of the lists.
        const int v = variant++ % 7;
        LayerShape shape{type, m, nk.n, nk.k};
        shape.y_type = static_cast<GemmOutput>(variant % 3);
        shape.x_padding = v % 2 * 32;
        shape.w_padding = v % 3 * 16;
        shape.y_padding = v == 1 ? 1 : v == 2 ? 8 - nk.n % 8 : v == 4 ? 8 : 0;
        shape.per_token = v != 3;
        shape.per_channel = v != 5;
        shape.bias = v % 2 == 0;
        shape.zero_points = type == GemmType::kInt8 ? v % 3 : 0;
        GemmLayer layer(shape, variant);
        for (const GemmPlan& plan : plans_for(shape, layer.weights())) run_one(layer, plan, tally);
      }
    }
    if (type == GemmType::kInt8) {
      // Corrected sums beyond int32 need the wide correction.
      GemmLayer layer({.type = type, .m = 5, .n = 40, .k = 131071, .y_type = GemmOutput::kFloat32, .zero_points = 2},
                      5);
      for (const GemmPlan& plan : plans_for(layer.shape(), layer.weights())) run_one(layer, plan, tally);
    }
    if (!small) {
      // More tiles than SMs: every CTA computes several.
      for (const std::int64_t k : {700, 1500, 4400}) {
        GemmLayer layer({.type = type, .m = 2100, .n = 4104, .k = k}, 6);
        for (const GemmPlan& plan : plans_for(layer.shape(), layer.weights())) run_one(layer, plan, tally);
      }
    }
    std::printf("%s: %d runs, %d failures", type == GemmType::kInt8 ? "int8" : "fp8", tally.runs - before.runs,
                tally.failures - before.failures);
    if (type == GemmType::kFp8E4m3) std::printf(", promoted: worst error / sum |x w| sx sw = %.2e", tally.worst);
    std::printf("\n");
  }
  if (!small) {
    const Tally before = tally;
    check_invariance(tally, 520, 2176);
    check_invariance(tally, 520, 8400);
    check_invariance(tally, 4096, 14336);
    check_invariance(tally, 8208, 2176, GemmOutput::kBfloat16);
    check_invariance(tally, 28672, 1536, GemmOutput::kFloat16);
    std::printf("batch invariance and repeatability: %d runs, %d failures\n", tally.runs - before.runs,
                tally.failures - before.failures);
  }
  return tally.failures;
}

void print_host_cost() {
  GemmLayer layer({.type = GemmType::kFp8E4m3, .m = 16, .n = 1024, .k = 1024}, 3);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  for (const std::int64_t m : {1, 16}) {
    GemmArguments arguments = layer.arguments();
    arguments.m = m;
    double best = 1e9;
    for (int round = 0; round < 20; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < 100; ++i) check(run_gemm(arguments, stream), "run_gemm");
      const auto end = std::chrono::steady_clock::now();
      check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      best = std::min(best, std::chrono::duration<double, std::micro>(end - start).count() / 100);
    }
    std::printf("host cost of run_gemm, M = %ld: %.2f us a call\n", static_cast<long>(m), best);
  }
  cudaStreamDestroy(stream);
}

}  // namespace scaledmm::bench
