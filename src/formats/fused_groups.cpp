#include "formats/fused_groups.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string_view>

#include "formats/quote.hpp"

namespace scaledmm {
namespace {

// packed_modules_mapping of vLLM's models; an empty name stands for none.
using Names = std::array<std::string_view, 3>;
constexpr std::array<Names, 4> kGroups = {{{"q_proj", "k_proj", "v_proj"},
                                           {"gate_proj", "up_proj", ""},
                                           {"w1", "w3", ""},
                                           {"q_a_proj", "kv_a_proj_with_mqa", ""}}};

std::string listed(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + std::string(names[i]);
  }
  return text;
}

// "model.layers.*.mlp." of "model.layers.12.mlp."
std::string pattern_of(std::string_view parent) {
  std::string pattern;
  for (std::size_t i = 0; i < parent.size(); ++i) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(parent[i])) != 0;
    if (!is_digit) {
      pattern += parent[i];
    } else if (!pattern.ends_with('*')) {
      pattern += '*';
    }
  }
  return pattern;
}

struct Split {
  std::string parent;
  std::vector<std::string_view> dense;
  std::vector<std::string_view> quantized;
  std::size_t others = 0;  // groups like it
};

}  // namespace

std::vector<std::string> split_groups(const std::set<std::string, std::less<>>& quantized,
                                      const std::vector<std::string>& dense) {
  const std::set<std::string_view> left(dense.begin(), dense.end());
  std::vector<Split> splits;
  std::map<std::string, std::size_t> known;  // by what they have in common
  for (const std::string& layer : dense) {
    const std::size_t own = layer.rfind('.') + 1;  // 0 without a dot
    const std::string_view name = std::string_view(layer).substr(own);
    const auto* group = std::ranges::find_if(
        kGroups, [&](const Names& names) { return std::ranges::find(names, name) != names.end(); });
    if (name.empty() || group == kGroups.end()) continue;
    Split split{layer.substr(0, own), {}, {}, 0};
    for (const std::string_view member : *group) {
      if (member.empty()) continue;
      const std::string full = split.parent + std::string(member);
      if (left.contains(full)) split.dense.push_back(member);
      if (quantized.contains(full)) split.quantized.push_back(member);
    }
    // Every dense member comes by here; the first one speaks for the group.
    if (split.quantized.empty() || split.dense.front() != name) continue;
    const auto [at, is_new] = known.try_emplace(
        pattern_of(split.parent) + listed(split.dense) + "/" + listed(split.quantized), splits.size());
    if (is_new) {
      splits.push_back(std::move(split));
    } else {
      ++splits[at->second].others;
    }
  }
  std::vector<std::string> lines;
  for (const Split& split : splits) {
    const std::string group =
        split.parent.empty() ? "" : " of " + quote(split.parent.substr(0, split.parent.size() - 1));
    std::string line = listed(split.dense) + group + (split.dense.size() == 1 ? " is" : " are") + " dense and " +
                       listed(split.quantized) + (split.quantized.size() == 1 ? " is" : " are") + " quantized";
    if (split.others > 0) {
      line += " (and " + std::to_string(split.others) + (split.others == 1 ? " group" : " groups") + " like it)";
    }
    lines.push_back(line + ": vLLM runs them as one layer and refuses such a checkpoint");
  }
  return lines;
}

}  // namespace scaledmm
