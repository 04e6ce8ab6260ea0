// Which modules the entries of a config list mean: "ignore", "targets", "modules_to_not_convert", "exclude".
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace scaledmm {

// How a dialect reads its entries, beside full names and "re:" patterns, which all of them take.
struct MatchRules {
  bool segments = false;   // any run of whole path segments: "self_attn.o_proj", "visual"
  bool wildcards = false;  // shell patterns over the whole name: "model.layers.0*"
};

// The unfused modules of a fused one: "a.qkv_proj" -> "a.q_proj", "a.k_proj", "a.v_proj". Empty: not a fused name.
std::vector<std::string> fused_parts(std::string_view module);

// The name without wrappers: the segments "language_model", "module" and "_orig_mod" anywhere, ".linear", ".base_layer"
// and ".weight" at the end. "model.language_model.layers.0.mlp.gate" -> "model.layers.0.mlp.gate".
std::string unwrapped_name(std::string_view module);

// A list of entries, each known by its position.
//   "re:PATTERN"  Python's re.match: anchored at the start, free at the end; matched in linear time
//   a name        exact, also after the wrappers are dropped; the name of a fused module means its parts too
class TargetMatcher {
 public:
  explicit TargetMatcher(MatchRules rules = {});
  ~TargetMatcher();
  TargetMatcher(TargetMatcher&&) noexcept;
  TargetMatcher& operator=(TargetMatcher&&) noexcept;

  // Errors: CheckpointError that begins with `where`, for an empty entry, one that is too long, and for a pattern that
  // the engine does not take (lookaround, back references).
  void add(const std::string& entry, std::string_view where);

  // Positions of every entry that means the module, ascending. Fused modules are not taken apart here.
  std::vector<std::size_t> find_all(std::string_view module) const;
  std::optional<std::size_t> find(std::string_view module) const;

  std::span<const std::string> entries() const { return entries_; }

 private:
  struct Patterns;
  using Positions = std::unordered_map<std::string, std::vector<std::size_t>>;

  MatchRules rules_;
  std::vector<std::string> entries_;
  Positions names_;
  std::vector<std::pair<std::size_t, std::string>> wildcards_;
  std::unique_ptr<Patterns> patterns_;
};

}  // namespace scaledmm
