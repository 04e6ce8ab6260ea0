// Layers that engines run as one: q, k and v; gate and up.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace scaledmm {

// A line for each such group of which some layers are quantized and others dense; groups alike but for the block's
// number share one. vLLM refuses such a checkpoint: "all shards of fused layers" must have "the same precision".
std::vector<std::string> split_groups(const std::set<std::string, std::less<>>& quantized,
                                      const std::vector<std::string>& dense);

}  // namespace scaledmm
