// gemm_bench: checks and times the GEMMs of src/cuda beside cuBLASLt.
//   gemm_bench check [small]            every plan on tails; small for compute-sanitizer
//   gemm_bench table FILE.json [M,N,K...]   FP8 and INT8 of these shapes, or of design.md 6.1 and more, interleaved
//                                           with cuBLASLt
//   gemm_bench sweep M,N,K [fp8|int8] [alone]   plans of one shape, interleaved, or each alone for 0.7 s with its power
// Method: CUDA graphs of calls that rotate over weights beyond the L2; contenders take turns in each of 13 rounds, in
// random order; medians with 10th and 90th percentiles; normal random codes; every buffer that is timed is checked
// first.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cublaslt_peer.hpp"
#include "gemm_check.hpp"
#include "gemm_layer.hpp"

namespace scaledmm::bench {
namespace {

using cuda::GemmAccumulate;
using cuda::GemmArguments;
using cuda::GemmPlan;
using cuda::GemmType;

constexpr int kRounds = 13;
constexpr double kPeakOps = 1979e12, kPeakBytes = 4.3e12;  // H200: dense FP8 and INT8; what a copy reaches
constexpr std::int64_t kRotation = 400ll << 20;            // bytes of weights, 6 times the L2

struct Shape {
  std::int64_t m, n, k;
};

struct Contender {
  std::string name;
  std::function<void(int copy, cudaStream_t)> run;
  std::vector<double> times = {};  // us a call, one a round
  cudaGraphExec_t graph = nullptr;
  std::string problem = {};
};

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * (values.size() - 1) + 0.5)];
}

// All contenders in turn, `calls` calls in a graph each, in another order each round: the clock follows the power of
// what ran before, which is worth up to 15 %.
void time_interleaved(std::vector<Contender>& contenders, int copies, int calls, cudaStream_t stream) {
  for (Contender& c : contenders) {
    c.run(0, stream);
    cudaGraph_t graph;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; ++i) c.run(i % copies, stream);
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&c.graph, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
  }
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  std::vector<int> order(contenders.size());
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(1);
  for (int round = -2; round < kRounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const int i : order) {
      Contender& c = contenders[i];
      check(cudaEventRecord(start, stream), "record");
      check(cudaGraphLaunch(c.graph, stream), "graph");
      check(cudaEventRecord(stop, stream), "record");
      check(cudaEventSynchronize(stop), c.name.c_str());
      float ms = 0;
      check(cudaEventElapsedTime(&ms, start, stop), "elapsed");
      if (round >= 0) c.times.push_back(ms * 1e3 / calls);
    }
  }
  for (Contender& c : contenders) cudaGraphExecDestroy(c.graph);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
}

// Joules since the driver was loaded, or 0 without NVML.
double energy() {
  using Init = int (*)();
  using Handle = int (*)(unsigned, void**);
  using Energy = int (*)(void*, unsigned long long*);
  static void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == nullptr) return 0;
  static void* device = [] {
    void* handle = nullptr;
    reinterpret_cast<Init>(dlsym(library, "nvmlInit_v2"))();
    reinterpret_cast<Handle>(dlsym(library, "nvmlDeviceGetHandleByIndex_v2"))(0, &handle);
    return handle;
  }();
  unsigned long long millijoules = 0;
  reinterpret_cast<Energy>(dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"))(device, &millijoules);
  return millijoules * 1e-3;
}

// Each contender alone for 0.7 s; the times are those of the last 0.4 s, when the card is at its power limit. Prints
// watts and millijoules a call of that part.
void time_alone(std::vector<Contender>& contenders, int copies, int calls, cudaStream_t stream) {
  using Clock = std::chrono::steady_clock;
  for (Contender& c : contenders) {
    cudaGraph_t graph;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; ++i) c.run(i % copies, stream);
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&c.graph, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
    const auto run_for = [&](double seconds) {
      const auto start = Clock::now();
      std::int64_t launches = 0;
      double passed = 0;
      for (; passed < seconds; passed = std::chrono::duration<double>(Clock::now() - start).count()) {
        for (int i = 0; i < 4; ++i, ++launches) check(cudaGraphLaunch(c.graph, stream), "graph");
        check(cudaStreamSynchronize(stream), c.name.c_str());
      }
      return passed * 1e6 / (launches * calls);
    };
    run_for(0.3);
    const double before = energy();
    const auto start = Clock::now();
    const double us = run_for(0.4);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count(), joules = energy() - before;
    c.times.assign(kRounds, us);
    char text[80];
    std::snprintf(text, sizeof text, " [%.0f W, %.1f mJ]", joules / seconds, joules / seconds * us * 1e-3);
    c.name += text;
    cudaGraphExecDestroy(c.graph);
  }
}

struct Session {
  cudaStream_t stream = nullptr;
  cublasLtHandle_t cublas = nullptr;
  Buffer workspace{64 << 20};
  std::ofstream json;
  bool first_row = true;
  int failures = 0;

  Session() {
    check(cudaStreamCreate(&stream), "stream");
    if (cublasLtCreate(&cublas) != CUBLAS_STATUS_SUCCESS) std::exit(1);
  }
};

int copies_for(const Shape& s) {
  return static_cast<int>(std::clamp<std::int64_t>(kRotation / (s.n * s.k) + 1, 2, 40));
}

int calls_for(const Shape& s, int copies) {
  const double us = std::max(2e6 * s.m * s.n * s.k / kPeakOps, 1e6 * s.n * s.k / kPeakBytes);
  const int calls = static_cast<int>(std::clamp(2500.0 / us, 4.0, 200.0));
  return (calls + copies - 1) / copies * copies;
}

// Ours under `arguments`: poisoned, run and checked, then a contender.
void add_ours(Session& session, std::vector<Contender>& contenders, GemmLayer& layer, const std::string& name,
              const GemmPlan& plan, bool overlap) {
  GemmArguments arguments = layer.arguments();
  layer.poison();
  const cudaError_t error = run_gemm_plan(arguments, plan, session.stream);
  check(cudaStreamSynchronize(session.stream), name.c_str());
  const bool fast = layer.shape().type == GemmType::kFp8E4m3 && plan.interval == 0;
  GemmLayer::Result result{false, 0, cudaGetErrorString(error)};
  if (error == cudaSuccess) result = layer.verify(0, 24, fp8_bound(layer.shape().k, fast));
  Contender contender{name, [&layer, plan, overlap](int copy, cudaStream_t stream) {
                        GemmArguments a = layer.arguments(copy);
                        a.overlap_previous = overlap;
                        check(run_gemm_plan(a, plan, stream), "run_gemm_plan");
                      }};
  if (!result.ok) {
    ++session.failures;
    std::printf("WRONG %s: %s\n", name.c_str(), result.problem.c_str());
    return;
  }
  contenders.push_back(std::move(contender));
}

void report(Session& session, const Shape& s, const std::string& type, const std::vector<Contender>& contenders,
            const std::string& base) {
  double base_us = 0;
  for (const Contender& c : contenders) {
    if (c.name.rfind(base + " [", 0) == 0 || c.name == base) base_us = percentile(c.times, 0.5);
  }
  const double floor =
      std::max(2e6 * s.m * s.n * s.k / kPeakOps, 1e6 * (s.n * s.k + s.m * s.k + 2.0 * s.m * s.n) / kPeakBytes);
  std::printf("%s %ld,%ld,%ld floor %.1f\n", type.c_str(), long(s.m), long(s.n), long(s.k), floor);
  for (const Contender& c : contenders) {
    const double us = percentile(c.times, 0.5), low = percentile(c.times, 0.1), high = percentile(c.times, 0.9);
    std::printf("  %-44s %8.2f us (%.2f-%.2f) x%.3f\n", c.name.c_str(), us, low, high, base_us / us);
    if (!session.json.is_open()) continue;
    char line[500];
    std::snprintf(line, sizeof line,
                  "%s\n{\"type\": \"%s\", \"m\": %ld, \"n\": %ld, \"k\": %ld, \"contender\": \"%s\", \"us\": %.3f, "
                  "\"p10_us\": %.3f, \"p90_us\": %.3f, \"tops\": %.1f, \"gb_per_s\": %.0f, \"share_of_floor\": %.3f, "
                  "\"speed_against_cublaslt\": %.3f}",
                  session.first_row ? "" : ",", type.c_str(), long(s.m), long(s.n), long(s.k), c.name.c_str(), us, low,
                  high, 2e-6 * s.m * s.n * s.k / us, 1e-3 * s.n * s.k / us, floor / us, base_us / us);
    session.json << line;
    session.first_row = false;
  }
  std::fflush(stdout);
}

LayerShape layer_shape(GemmType type, const Shape& s, int copies) {
  LayerShape shape{type, s.m, s.n, s.k};
  shape.copies = copies;
  return shape;
}

void add_peer(Session& session, std::vector<Contender>& contenders, const std::string& name, PeerKind kind,
              const Shape& s, const void* x, std::function<const void*(int)> w, const float* sx, const float* sw,
              std::vector<Buffer>& outputs, std::vector<std::unique_ptr<CublasLtPeer>>& peers) {
  std::unique_ptr<CublasLtPeer> peer = CublasLtPeer::create(session.cublas, kind, s.m, s.n, s.k, sx, sw);
  if (peer == nullptr) {
    std::printf("%s: no algorithm\n", name.c_str());
    return;
  }
  std::printf("algorithm of %s: %s\n", name.c_str(), peer->algorithm().c_str());
  outputs.emplace_back(peer->y_bytes());
  contenders.push_back(
      {name, [&session, p = peer.get(), x, w, y = outputs.back().data()](int copy, cudaStream_t stream) {
         p->run(x, w(copy), y, session.workspace, stream);
       }});
  peers.push_back(std::move(peer));
}

// The peer is there twice, so that what chance does shows.
void bench_row(Session& session, GemmType type, const Shape& s, bool bf16) {
  const int copies = copies_for(s), calls = calls_for(s, copies);
  const bool int8 = type == GemmType::kInt8;
  LayerShape shape = layer_shape(type, s, copies);
  GemmLayer layer(shape, 11);
  std::vector<Contender> contenders;
  std::vector<Buffer> outputs, wide_codes;
  std::vector<std::unique_ptr<CublasLtPeer>> peers;
  const Buffer one_scale(4);
  fill_uniform(one_scale.as<float>(), 1, 0.01f, 0.0100001f, 1);
  Buffer padded_x((s.m + 15) / 16 * 16 * s.k);
  fill_codes(type, padded_x.data(), (s.m + 15) / 16 * 16, s.k, s.k, 11);
  const auto w = [&layer](int copy) { return layer.weights(copy).codes; };
  const float* one = one_scale.as<float>();
  const std::string base = int8 ? "cublaslt int8" : "cublaslt fp8";
  add_peer(session, contenders, base, int8 ? PeerKind::kInt8 : PeerKind::kFp8, s, padded_x.data(), w, one, one, outputs,
           peers);
  if (!int8) {
    add_peer(session, contenders, "cublaslt fp8 fast", PeerKind::kFp8Fast, s, padded_x.data(), w, one, one, outputs,
             peers);
    add_peer(session, contenders, "cublaslt fp8 row-wise", PeerKind::kFp8RowWise, s, padded_x.data(), w,
             layer.x_scale(), layer.w_scale(), outputs, peers);
  }
  const cuda::GemmWeights& weights = layer.weights();
  const auto ours = [&](const std::string& name, GemmAccumulate accumulate, bool overlap) {
    add_ours(session, contenders, layer, name, choose_gemm_plan(weights, s.m, accumulate), overlap);
  };
  if (int8) {
    ours("int8_w8a8_sm90", GemmAccumulate::kPromoted, true);
    ours("int8_w8a8_sm90, no overlap", GemmAccumulate::kPromoted, false);
  } else {
    ours("fp8_w8a8_sm90", GemmAccumulate::kPromoted, true);
    ours("fp8_w8a8_sm90, no overlap", GemmAccumulate::kPromoted, false);
    ours("fp8_w8a8_sm90_fast", GemmAccumulate::kFast, true);
  }
  LayerShape azp_shape = shape;
  azp_shape.zero_points = 2;
  azp_shape.bias = true;
  azp_shape.copies = int8 ? copies : 0;
  GemmLayer azp_layer(azp_shape, 11);
  if (int8) {
    add_ours(session, contenders, azp_layer, "int8_w8a8_sm90, azp and bias",
             choose_gemm_plan(azp_layer.weights(), s.m, GemmAccumulate::kPromoted), true);
  }
  if (bf16) {
    for (int i = 0; i < std::max(2, copies / 2); ++i) {
      wide_codes.emplace_back(s.n * s.k * 2);
      fill_bf16(wide_codes.back().data(), s.n * s.k, 50 + i);
    }
    wide_codes.emplace_back(s.m * s.k * 2);
    fill_bf16(wide_codes.back().data(), s.m * s.k, 49);
    add_peer(
        session, contenders, "cublaslt bf16", PeerKind::kBfloat16, s, wide_codes.back().data(),
        [&wide_codes](int copy) -> const void* { return wide_codes[copy % (wide_codes.size() - 1)].data(); }, nullptr,
        nullptr, outputs, peers);
  }
  add_peer(session, contenders, base + ", last", int8 ? PeerKind::kInt8 : PeerKind::kFp8, s, padded_x.data(), w, one,
           one, outputs, peers);
  check(cudaDeviceSynchronize(), "prepare");
  time_interleaved(contenders, copies, calls, session.stream);
  report(session, s, int8 ? "int8" : "fp8", contenders, base);
}

constexpr Shape kDesignRows[] = {{1, 4096, 4096},    {1, 28672, 4096},   {16, 28672, 4096},  {16, 8192, 8192},
                                 {64, 4096, 14336},  {128, 7168, 16384}, {512, 4096, 14336}, {2048, 8192, 8192},
                                 {8192, 8192, 8192}, {8192, 4096, 7168}};
// Llama-3.1-8B and 70B, Qwen2.5-7B and DeepSeek-V3 layers (test-matrix.md 10 and 11) where the rows above have no
// neighbour.
constexpr Shape kMoreRows[] = {{1, 8192, 8192},   {1, 4096, 14336},   {1, 6144, 4096},    {16, 4096, 4096},
                               {16, 4096, 14336}, {16, 37888, 3584},  {32, 28672, 4096},  {64, 28672, 4096},
                               {64, 7168, 16384}, {128, 4096, 4096},  {128, 24576, 1536}, {256, 28672, 4096},
                               {256, 4096, 4096}, {1024, 6144, 4096}, {4096, 24576, 1536}};
// More M of these layers and more layers of them, FP8 only.
constexpr Shape kFp8Rows[] = {{1, 57344, 8192},    {1, 8192, 28672},   {1, 10240, 8192},    {1, 4608, 3584},
                              {1, 24576, 1536},    {1, 7168, 2048},    {16, 6144, 4096},    {16, 57344, 8192},
                              {16, 7168, 16384},   {16, 24576, 1536},  {32, 4096, 4096},    {32, 4096, 14336},
                              {64, 4096, 4096},    {64, 8192, 8192},   {64, 10240, 8192},   {64, 24576, 1536},
                              {128, 4096, 14336},  {128, 28672, 4096}, {128, 8192, 8192},   {256, 4096, 14336},
                              {256, 8192, 8192},   {256, 7168, 16384}, {256, 24576, 1536},  {512, 4096, 4096},
                              {512, 28672, 4096},  {512, 6144, 4096},  {1024, 4096, 14336}, {1024, 8192, 8192},
                              {2048, 28672, 4096}, {4096, 4096, 4096}, {4096, 7168, 2048}};

int run_table(const char* path, const std::vector<Shape>& asked) {
  Session session;
  session.json.open(path);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "properties");
  session.json << "{\"device\": \"" << properties.name << "\", \"cublaslt\": " << cublasLtGetVersion()
               << ", \"rounds\": " << kRounds << ", \"rows\": [";
  const auto both = [&session](const auto& shapes, bool bf16) {
    for (const Shape& s : shapes) {
      bench_row(session, GemmType::kFp8E4m3, s, bf16);
      bench_row(session, GemmType::kInt8, s, false);
    }
  };
  if (asked.empty()) {
    both(kDesignRows, true);
    both(kMoreRows, false);
    for (const Shape& s : kFp8Rows) bench_row(session, GemmType::kFp8E4m3, s, false);
  } else {
    both(asked, false);
  }
  session.json << "\n]}\n";
  return session.failures;
}

std::string plan_name(const GemmPlan& p, bool overlap) {
  char text[100];
  std::snprintf(text, sizeof text, "%s %dx%d split %d stages %d boxes %d%s%s int %d%s",
                p.kernel == GemmPlan::Kernel::kSwap ? "swap" : "tile", p.rows, p.cols, p.split, p.stages, p.boxes,
                p.turns        ? " turns"
                : p.carry == 2 ? " carry 2"
                : p.carry == 8 ? " carry 8"
                               : "",
                p.runs > p.split ? " two runs" : "", p.interval, overlap ? "" : " serial");
  return text;
}

// Rings of several depths, heights of tiles and splits around the chosen plan.
std::vector<GemmPlan> sweep_plans(const cuda::GemmWeights& w, const Shape& s, GemmType type) {
  using Kernel = GemmPlan::Kernel;
  std::vector<GemmPlan> plans;
  const int interval = type == GemmType::kInt8 ? 0 : 1;
  for (int cols = 8; cols <= 128 && s.m <= 128; cols *= 2) {
    if (s.m > cols || (s.m <= cols / 2 && cols > 8)) continue;
    std::vector<int> heights{w.map_rows[1], 64, 32};
    if (cols >= 32) heights = {w.map_rows[1], w.map_rows[2], 64, 96, 112, 128};
    std::sort(heights.begin(), heights.end());
    heights.erase(std::unique(heights.begin(), heights.end()), heights.end());
    for (const int rows : heights) {
      if (cols == 128 && rows < 56) continue;
      for (const int split : {1, 2}) {
        const std::int64_t ctas = (s.n + rows - 1) / rows * split;
        if ((split > 1 && ctas > w.sm_count) || ctas < w.sm_count / 3) continue;
        for (const int boxes : {2, 4, 8}) {
          const int stage = boxes * (rows + cols) * 128;
          if (stage < 12 * 1024 || stage > 100 * 1024) continue;
          for (const int ring : {104, 208}) {
            const int stages = ring * 1024 / stage;
            if (stages < 2 || stages > 12) continue;
            for (int runs = split; runs <= (cols <= 64 && rows <= 64 && interval == 1 ? 2 : split); ++runs) {
              plans.push_back({Kernel::kSwap, rows, cols, split, stages, boxes, false, interval, runs});
            }
          }
        }
      }
    }
  }
  if (s.m >= 33) {
    plans.push_back({Kernel::kTile, 128, 64, 1, 8, 1, false, interval});
    for (const int split : {1, 2}) {
      const std::int64_t tiles = (s.m + 127) / 128 * ((s.n + 127) / 128);
      if (split > 1 && tiles * split > w.sm_count) continue;
      for (int runs = split; runs <= std::max(split, interval + 1); ++runs) {
        plans.push_back({Kernel::kTile, 128, 128, split, 6, 1, false, interval, runs});
      }
    }
  }
  for (const int carry : {2, 8}) {
    if (s.m <= 64 || interval == 0 || s.k < 512 * carry) continue;
    for (const int runs : {1, 2}) plans.push_back({Kernel::kTile, 128, 128, 1, 6, 1, false, 1, runs, carry});
    if (carry == 2) plans.push_back({Kernel::kTile, 128, 112, 1, 6, 1, false, 1, 2, carry});
    for (const int cols : {96, 112}) {
      if (carry == 8) plans.push_back({Kernel::kTile, 128, cols, 1, 6, 1, false, 1, 1, carry});
    }
  }
  if (s.m > 128) {
    for (const bool turns : {false, true}) plans.push_back({Kernel::kTile, 128, 128, 1, 6, 1, turns, 0});
  }
  return plans;
}

int run_sweep(const Shape& s, GemmType type, bool alone) {
  Session session;
  const int copies = copies_for(s), calls = calls_for(s, copies);
  GemmLayer layer(layer_shape(type, s, copies), 11);
  std::vector<Contender> contenders;
  std::vector<Buffer> outputs;
  std::vector<std::unique_ptr<CublasLtPeer>> peers;
  const Buffer one_scale(4);
  fill_uniform(one_scale.as<float>(), 1, 0.01f, 0.0100001f, 1);
  Buffer padded_x((s.m + 15) / 16 * 16 * s.k);
  fill_codes(type, padded_x.data(), (s.m + 15) / 16 * 16, s.k, s.k, 11);
  const bool int8 = type == GemmType::kInt8;
  const std::string base = int8 ? "cublaslt int8" : "cublaslt fp8";
  add_peer(
      session, contenders, base, int8 ? PeerKind::kInt8 : PeerKind::kFp8, s, padded_x.data(),
      [&layer](int copy) { return layer.weights(copy).codes; }, one_scale.as<float>(), one_scale.as<float>(), outputs,
      peers);
  if (!int8) {
    add_peer(
        session, contenders, "cublaslt fp8 fast", PeerKind::kFp8Fast, s, padded_x.data(),
        [&layer](int copy) { return layer.weights(copy).codes; }, one_scale.as<float>(), one_scale.as<float>(), outputs,
        peers);
  }
  const GemmPlan chosen = choose_gemm_plan(layer.weights(), s.m, GemmAccumulate::kPromoted);
  add_ours(session, contenders, layer, "chosen: " + plan_name(chosen, true), chosen, true);
  for (const GemmPlan& plan : sweep_plans(layer.weights(), s, type)) {
    add_ours(session, contenders, layer, plan_name(plan, true), plan, true);
  }
  if (alone) {
    time_alone(contenders, copies, calls, session.stream);
  } else {
    time_interleaved(contenders, copies, calls, session.stream);
  }
  std::stable_sort(contenders.begin(), contenders.end(), [](const Contender& a, const Contender& b) {
    return percentile(a.times, 0.5) < percentile(b.times, 0.5);
  });
  report(session, s, int8 ? "int8" : "fp8", contenders, base);
  return session.failures;
}

int usage() {
  std::fprintf(stderr,
               "usage: gemm_bench check [small] | table FILE.json [M,N,K...] | sweep M,N,K [fp8|int8] [alone]\n");
  return 2;
}

int main_of(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "check") {
    const bool small = argc > 2 && std::strcmp(argv[2], "small") == 0;
    const int failures = check_gemms(small);
    if (!small) print_host_cost();
    return failures ? 1 : 0;
  }
  const auto shape_of = [](const char* text) -> std::optional<Shape> {
    long m, n, k;
    if (std::sscanf(text, "%ld,%ld,%ld", &m, &n, &k) != 3) return std::nullopt;
    return Shape{m, n, k};
  };
  if (command == "table" && argc >= 3) {
    std::vector<Shape> shapes;
    for (int i = 3; i < argc; ++i) {
      const std::optional<Shape> shape = shape_of(argv[i]);
      if (!shape) return usage();
      shapes.push_back(*shape);
    }
    return run_table(argv[2], shapes) ? 1 : 0;
  }
  if (command == "sweep" && argc >= 3) {
    const std::optional<Shape> shape = shape_of(argv[2]);
    if (!shape) return usage();
    const bool int8 = argc > 3 && std::strcmp(argv[3], "int8") == 0;
    const bool alone = argc > 4 && std::strcmp(argv[4], "alone") == 0;
    return run_sweep(*shape, int8 ? GemmType::kInt8 : GemmType::kFp8E4m3, alone) ? 1 : 0;
  }
  return usage();
}

}  // namespace
}  // namespace scaledmm::bench

int main(int argc, char** argv) { return scaledmm::bench::main_of(argc, argv); }
