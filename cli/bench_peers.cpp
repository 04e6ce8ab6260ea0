#include "cli/bench_peers.hpp"

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "cli/amx_state.hpp"
#include "formats/atomic_file.hpp"
#include "formats/input_file.hpp"

namespace scaledmm::cli {
namespace {

constexpr std::int64_t kColdBytes = std::int64_t{512} << 20;
constexpr double kBurstSeconds = 3e-3;  // of calls in a row: shorter than a spell of the machine, longer than a switch
constexpr int kMaxBurst = 64;
constexpr std::size_t kMinPairs = 11;
constexpr std::size_t kMaxPairs = 1000;
constexpr double kSlowSeconds = 0.5;  // calls that take longer meet in kSlowPairs pairs
constexpr std::size_t kSlowPairs = 3;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double quantile(std::vector<double> values, double q) {
  Samples samples{std::move(values)};
  samples.sort();
  return samples.quantile(q);
}

// Two bursts next to each other.
struct Pair {
  double ours_us = 0;
  double peer_us = 0;
  AmxState state = AmxState::kNone;

  double ratio() const { return peer_us / ours_us; }
};

Json summary(const std::vector<Pair>& pairs) {
  std::vector<double> ratios, ours, peer;
  std::size_t wins = 0;
  for (const Pair& pair : pairs) {
    ratios.push_back(pair.ratio());
    ours.push_back(pair.ours_us);
    peer.push_back(pair.peer_us);
    wins += pair.ratio() > 1 ? 1 : 0;
  }
  return {{"pairs", pairs.size()},
          {"ours_us", median(ours)},
          {"peer_us", median(peer)},
          {"ratio", median(ratios)},
          {"ratio_p10", quantile(ratios, 0.1)},
          {"ratio_p90", quantile(ratios, 0.9)},
          {"wins", static_cast<double>(wins) / static_cast<double>(pairs.size())}};
}

Json states(const std::vector<Pair>& pairs) {
  std::map<AmxState, std::vector<Pair>> by_state;
  for (const Pair& pair : pairs) by_state[pair.state].push_back(pair);
  Json result = Json::object();
  for (const auto& [state, some] : by_state) {
    if (state != AmxState::kNone) result[std::string(name(state))] = summary(some);
  }
  return result;
}

// Outputs at sampled places beside the product of x and the dequantized weights in f64: the difference is what the
// quantization of x and the kernel's own errors make.
class SampledError {
 public:
  SampledError(const BenchLayer& layer, const BenchCall& call) {
    constexpr std::int64_t kColumns = 64;
    const auto [n, k] = layer.shape();
    std::vector<std::int64_t> rows = {0, call.m() / 2, call.m() - 1};
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    const std::int64_t columns = std::min(kColumns, n);
    for (const std::int64_t row : rows) {
      for (std::int64_t c = 0; c < columns; ++c) {
        const std::int64_t column = c * n / columns;
        double sum = 0;
        for (std::int64_t i = 0; i < k; ++i) sum += double{call.x(row, i)} * double{layer.weight(column, i)};
        places_.push_back({row, column, sum});
      }
    }
  }

  // |y - expected| / |expected|, over all places.
  double of(const std::function<double(std::int64_t row, std::int64_t column)>& y) const {
    double difference = 0, size = 0;
    for (const Place& place : places_) {
      const double d = y(place.row, place.column) - place.expected;
      difference += d * d;
      size += place.expected * place.expected;
    }
    return std::sqrt(difference / size);
  }

 private:
  struct Place {
    std::int64_t row, column;
    double expected;
  };
  std::vector<Place> places_;
};

// One call before the clock starts: threads are awake and the weights where they will be.
double our_burst(BenchCall& call, bool gemm, int calls) {
  call.time(gemm);
  std::vector<double> us;
  for (int i = 0; i < calls; ++i) us.push_back(call.time(gemm) * 1e6);
  return median(us);
}

double peer_burst(PeerProcess& peer, int calls) {
  const Json answer = peer.ask({{"op", "run"}, {"calls", calls}});
  const auto us = answer.find("us");
  if (us == answer.end() || !us->is_array() || us->empty()) throw PeerError("its answer to run has no list us");
  std::vector<double> times;
  for (const Json& time : *us) {
    if (!time.is_number() || time.get<double>() <= 0) throw PeerError("its list us holds what is no time");
    times.push_back(time.get<double>());
  }
  return median(times);
}

int calls_in_burst(double us) { return std::clamp(static_cast<int>(kBurstSeconds * 1e6 / us), 1, kMaxBurst); }

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) throw PeerError(std::string("its answer has no text ") + key);
  return found->get<std::string>();
}

}  // namespace

// Weights, activations and outputs pass through files of this folder, in memory where the system has such a place.
class BenchPeers::Folder {
 public:
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    std::string name =
        ((std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path()) / "scaledmm-XXXXXX")
            .string();
    if (::mkdtemp(name.data()) == nullptr) throw_io_error(name, "create", errno);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const char* name) const { return (path_ / name).string(); }
  template <class T>
  std::string write(const char* name, const std::vector<T>& values) const {
    write_file(file(name), {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
    return file(name);
  }
  std::vector<float> read(const char* name, std::int64_t count) const {
    std::vector<float> values(static_cast<std::size_t>(count));
    InputFile(file(name)).read(std::as_writable_bytes(std::span(values)), 0);
    return values;
  }

 private:
  std::filesystem::path path_;
};

struct BenchPeers::Way {
  PeerProcess* process;
  std::string name;
  std::string library;
  std::string what;  // apply or gemm
  std::vector<std::string> schemes;
};

struct BenchPeers::Peer {
  std::string command;
  std::string absent;  // why
  std::string library;
  std::unique_ptr<PeerProcess> process;
  std::vector<Way> ways;

  void start(int threads) {
    process = std::make_unique<PeerProcess>(command);
    const Json hello = process->ask({{"op", "hello"}, {"threads", threads}});
    library = text_of(hello, "library");
    const auto list = hello.find("ways");
    if (list == hello.end() || !list->is_array()) throw PeerError("its answer to hello has no list ways");
    for (const Json& item : *list) {
      Way way{process.get(), text_of(item, "name"), library, text_of(item, "what"), {}};
      if (way.what != "apply" && way.what != "gemm") throw PeerError("its way does neither apply nor gemm");
      const auto schemes = item.find("schemes");
      if (schemes == item.end() || !schemes->is_array()) throw PeerError("its way has no list schemes");
      for (const Json& scheme : *schemes) {
        if (!scheme.is_string()) throw PeerError("its list schemes holds what is no text");
        way.schemes.push_back(scheme.get<std::string>());
      }
      ways.push_back(std::move(way));
    }
  }
};

BenchPeers::BenchPeers(const std::vector<std::string>& commands, int threads) : folder_(std::make_unique<Folder>()) {
  for (const std::string& command : commands) {
    Peer& peer = *peers_.emplace_back(std::make_unique<Peer>());
    peer.command = command;
    try {
      peer.start(threads);
    } catch (const PeerError& error) {
      peer.absent = error.what();
      peer.ways.clear();
      peer.process.reset();
    }
  }
}

BenchPeers::~BenchPeers() = default;

bool BenchPeers::empty() const {
  return std::ranges::all_of(peers_, [](const auto& peer) { return !peer->absent.empty(); });
}

Json BenchPeers::description() const {
  Json list = Json::array();
  for (const auto& peer : peers_) {
    if (!peer->absent.empty()) {
      list.push_back({{"command", peer->command}, {"absent", peer->absent}});
      continue;
    }
    Json ways = Json::array();
    for (const Way& way : peer->ways) ways.push_back(way.name);
    list.push_back({{"command", peer->command}, {"library", peer->library}, {"ways", ways}});
  }
  return list;
}

void BenchPeers::compare(const std::string& scheme, const BenchLayer& layer, const std::vector<std::int64_t>& ms,
                         bool cold, double seconds, Context& context, const std::function<void(const Json&)>& report) {
  folder_->write("codes", layer.codes());
  folder_->write("scales", layer.scales());
  for (const auto& peer : peers_) {
    for (const Way& way : peer->ways) {
      if (std::ranges::find(way.schemes, scheme) == way.schemes.end()) continue;
      Json row = {{"peer", way.name}, {"library", way.library}, {"scheme", scheme}};
      try {
        compare_way(way, scheme, layer, ms, cold, seconds, context, report);
      } catch (const PeerError& error) {
        row["n"] = layer.shape().n;
        row["k"] = layer.shape().k;
        row["failed"] = error.what();
        report(row);
      }
    }
  }
}

void BenchPeers::compare_way(const Way& way, const std::string& scheme, const BenchLayer& layer,
                             const std::vector<std::int64_t>& ms, bool cold, double seconds, Context& context,
                             const std::function<void(const Json&)>& report) {
  const auto [n, k] = layer.shape();
  PeerProcess& peer = *way.process;
  peer.ask({{"op", "layer"},
            {"way", way.name},
            {"scheme", scheme},
            {"n", n},
            {"k", k},
            {"codes", folder_->file("codes")},
            {"scales", folder_->file("scales")},
            {"min_bytes", cold ? std::max(kColdBytes, 4 * this_cpu().l3_bytes) : 0}});
  for (const std::int64_t m : ms) {
    BenchCall call(layer, m, context);
    const bool gemm = way.what == "gemm" && call.has_gemm();
    std::vector<float> x;
    for (std::int64_t i = 0; i < m * k; ++i) x.push_back(call.x(i / k, i % k));
    peer.ask({{"op", "input"}, {"m", m}, {"x", folder_->write("x", x)}});
    const int our_calls = calls_in_burst(our_burst(call, gemm, 1));
    const int peer_calls = calls_in_burst(peer_burst(peer, 1));

    std::vector<Pair> pairs;
    const auto start = Clock::now();
    AmxState before = probe_amx(context);
    double spent = 0;
    const auto enough = [&] {
      if (pairs.size() >= kMaxPairs) return true;
      const bool slow = !pairs.empty() && (pairs[0].ours_us + pairs[0].peer_us) * 1e-6 > kSlowSeconds;
      return pairs.size() >= (slow ? kSlowPairs : kMinPairs) && spent >= seconds;
    };
    while (!enough()) {
      Pair pair;
      pair.ours_us = our_burst(call, gemm, our_calls);
      const AmxState middle = probe_amx(context);
      pair.peer_us = peer_burst(peer, peer_calls);
      const AmxState after = probe_amx(context);
      pair.state = between(between(before, middle), after);
      before = after;
      pairs.push_back(pair);
      spent = seconds_since(start);
    }
    call.check();
    peer.ask({{"op", "output"}, {"y", folder_->file("y")}});
    const std::vector<float> y = folder_->read("y", m * n);
    const SampledError error(layer, call);

    Json row = {{"kernel", layer.kernel().name()},
                {"peer", way.name},
                {"library", way.library},
                {"scheme", scheme},
                {"m", m},
                {"n", n},
                {"k", k},
                {"threads", context.threads()},
                {"cold", cold},
                {"what", way.what}};
    row.update(summary(pairs));
    row["ours_error"] = error.of([&](std::int64_t r, std::int64_t c) { return double{call.y(r, c)}; });
    row["peer_error"] =
        error.of([&](std::int64_t r, std::int64_t c) { return double{y[static_cast<std::size_t>(r * n + c)]}; });
    row["states"] = states(pairs);
    report(row);
  }
}

}  // namespace scaledmm::cli
