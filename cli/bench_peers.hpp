// Other people's operators beside ours: both are called in turn in one run, and the ratio of each pair counts.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench_call.hpp"
#include "cli/output.hpp"
#include "cli/peer_process.hpp"

namespace scaledmm::cli {

// The peers' processes. What they are told and answer is in bench/baselines/README.md.
class BenchPeers {
 public:
  // Starts every command. One that cannot run here is kept with its reason.
  BenchPeers(const std::vector<std::string>& commands, int threads);
  ~BenchPeers();

  // Every command was one that cannot run here.
  bool empty() const;

  // [{"command", "library", "ways": [...]} or {"command", "absent": reason}]
  Json description() const;

  // Compares the layer's calls with every way of every peer that knows the scheme, each for at least `seconds` a way
  // and M, and hands every result to `report`: docs/benchmarking.md has the fields. Errors: Error when our output is
  // wrong.
  void compare(const std::string& scheme, const BenchLayer& layer, const std::vector<std::int64_t>& ms, bool cold,
               double seconds, Context& context, const std::function<void(const Json&)>& report);

 private:
  struct Peer;
  struct Way;
  class Folder;

  void compare_way(const Way& way, const std::string& scheme, const BenchLayer& layer,
                   const std::vector<std::int64_t>& ms, bool cold, double seconds, Context& context,
                   const std::function<void(const Json&)>& report);

  std::vector<std::unique_ptr<Peer>> peers_;
  std::unique_ptr<Folder> folder_;
};

}  // namespace scaledmm::cli
