#include "formats/target_matcher.hpp"

#include <re2/re2.h>

#include <algorithm>
#include <array>

#include "formats/quote.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr std::size_t kMaxPatternBytes = 1024;
constexpr std::size_t kMaxEntryBytes = 4096;
constexpr std::size_t kMaxSegments = 64;  // names with more are matched as a whole only: runs grow with the square

struct FusedName {
  std::string_view fused;
  std::array<std::string_view, 3> parts;
};
constexpr std::array<FusedName, 3> kFusedNames = {{
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
    {"gate_up_proj", {"gate_proj", "up_proj", ""}},
    {"fused_qkv_a_proj", {"q_a_proj", "kv_a_proj_with_mqa", ""}},
}};
constexpr std::array<std::string_view, 3> kWrapperSegments = {"language_model", "module", "_orig_mod"};
constexpr std::array<std::string_view, 3> kWrapperSuffixes = {".linear", ".base_layer", ".weight"};

// One "[...]" set of a shell pattern at pattern[i], which is past the bracket. Moves i past the set.
// Without a closing bracket the "[" stands for itself, and nothing is returned.
std::optional<bool> match_set(std::string_view pattern, std::size_t& i, char c) {
  const bool negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  std::size_t at = i + (negated ? 1 : 0);
  const std::size_t close = pattern.find(']', at + 1);  // a bracket right at the start is a member
  if (close == std::string_view::npos) return std::nullopt;
  bool member = false;
  while (at < close) {
    if (at + 2 < close && pattern[at + 1] == '-') {
      member = member || (pattern[at] <= c && c <= pattern[at + 2]);
      at += 3;
    } else {
      member = member || pattern[at] == c;
      ++at;
    }
  }
  i = close + 1;
  return member != negated;
}

// Does the single-character element of the pattern at p take c? Moves p past the element when it does.
bool match_element(std::string_view pattern, std::size_t& p, char c) {
  if (pattern[p] == '?') {
    ++p;
    return true;
  }
  if (pattern[p] == '[') {
    std::size_t after = p + 1;
    if (const std::optional<bool> member = match_set(pattern, after, c)) {
      if (*member) p = after;
      return *member;
    }
  }
  if (pattern[p] != c) return false;
  ++p;
  return true;
}

// Shell pattern over the whole text: "*", "?", "[...]". Goes back to the last star only: time is pattern x text at
// most.
bool match_wildcard(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (p < pattern.size() && match_element(pattern, p, text[t])) {
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Start positions of the path's segments, and one past the last separator.
std::vector<std::size_t> segment_starts(std::string_view name) {
  std::vector<std::size_t> starts = {0};
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '.') starts.push_back(i + 1);
  }
  starts.push_back(name.size() + 1);
  return starts;
}

void append(std::vector<std::size_t>& to, const std::vector<std::size_t>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

struct TargetMatcher::Patterns {
  std::vector<std::pair<std::size_t, std::unique_ptr<RE2>>> list;
};

std::vector<std::string> fused_parts(std::string_view module) {
  const std::size_t dot = module.rfind('.');
  const std::size_t last = dot == std::string_view::npos ? 0 : dot + 1;
  std::vector<std::string> parts;
  for (const FusedName& name : kFusedNames) {
    if (module.substr(last) != name.fused) continue;
    for (const std::string_view part : name.parts) {
      if (!part.empty()) parts.push_back(std::string(module.substr(0, last)).append(part));
    }
  }
  return parts;
}

std::string unwrapped_name(std::string_view module) {
  for (const std::string_view suffix : kWrapperSuffixes) {
    if (module.size() > suffix.size() && module.ends_with(suffix)) {
      module.remove_suffix(suffix.size());
      break;
    }
  }
  const std::vector<std::size_t> starts = segment_starts(module);
  std::string name;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    const std::string_view segment = module.substr(starts[i], starts[i + 1] - starts[i] - 1);
    const bool last = i + 2 == starts.size();
    if (!last && std::ranges::find(kWrapperSegments, segment) != kWrapperSegments.end()) continue;
    if (!name.empty()) name += '.';
    name += segment;
  }
  return name;
}

TargetMatcher::TargetMatcher(MatchRules rules) : rules_(rules), patterns_(std::make_unique<Patterns>()) {}
TargetMatcher::~TargetMatcher() = default;
TargetMatcher::TargetMatcher(TargetMatcher&&) noexcept = default;
TargetMatcher& TargetMatcher::operator=(TargetMatcher&&) noexcept = default;

void TargetMatcher::add(const std::string& entry, std::string_view where) {
  const std::size_t position = entries_.size();
  if (entry.empty()) throw CheckpointError(std::string(where) + ": an entry is empty");
  if (entry.starts_with("re:")) {
    const std::string pattern = entry.substr(3);
    if (pattern.size() > kMaxPatternBytes) {
      throw CheckpointError(std::string(where) + ": a pattern of " + std::to_string(pattern.size()) +
                            " bytes is longer than " + std::to_string(kMaxPatternBytes));
    }
    RE2::Options options;
    options.set_log_errors(false);
    auto compiled = std::make_unique<RE2>(pattern, options);
    if (!compiled->ok()) {
      throw CheckpointError(std::string(where) + ": pattern " + scaledmm::quote(entry) +
                            " cannot be used: " + escape(compiled->error()) +
                            " (patterns are matched in linear time: no lookaround, no back references)");
    }
    patterns_->list.emplace_back(position, std::move(compiled));
  } else {
    if (entry.size() > kMaxEntryBytes) {
      throw CheckpointError(std::string(where) + ": an entry of " + std::to_string(entry.size()) +
                            " bytes is longer than " + std::to_string(kMaxEntryBytes));
    }
    if (rules_.wildcards && entry.find_first_of("*?[") != std::string::npos) wildcards_.emplace_back(position, entry);
    std::vector<std::string> names = fused_parts(entry);
    names.push_back(entry);
    for (const std::string& name : names) {
      names_[name].push_back(position);
      const std::string unwrapped = unwrapped_name(name);
      if (unwrapped != name) names_[unwrapped].push_back(position);
    }
  }
  entries_.push_back(entry);
}

std::vector<std::size_t> TargetMatcher::find_all(std::string_view module) const {
  std::vector<std::size_t> found;
  const std::string unwrapped = unwrapped_name(module);
  const auto look_up = [&](std::string_view name) {
    const auto hit = names_.find(std::string(name));
    if (hit != names_.end()) append(found, hit->second);
  };
  look_up(module);
  if (unwrapped != module) look_up(unwrapped);
  if (rules_.segments) {
    const std::vector<std::size_t> starts = segment_starts(unwrapped);
    const std::size_t count = starts.size() <= kMaxSegments + 1 ? starts.size() : 0;
    for (std::size_t first = 0; first + 1 < count; ++first) {
      for (std::size_t end = first + 1; end < count; ++end) {
        look_up(std::string_view(unwrapped).substr(starts[first], starts[end] - starts[first] - 1));
      }
    }
  }
  for (const auto& [position, pattern] : wildcards_) {
    if (match_wildcard(pattern, module)) found.push_back(position);
  }
  for (const auto& [position, pattern] : patterns_->list) {
    if (pattern->Match(re2::StringPiece(module.data(), module.size()), 0, module.size(), RE2::ANCHOR_START, nullptr,
                       0)) {
      found.push_back(position);
    }
  }
  std::ranges::sort(found);
  const auto repeated = std::ranges::unique(found);
  found.erase(repeated.begin(), repeated.end());
  return found;
}

std::optional<std::size_t> TargetMatcher::find(std::string_view module) const {
  const std::vector<std::size_t> found = find_all(module);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

}  // namespace scaledmm
