// Selections as JSON and as text: what plan and explain print, in the fields that are fixed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/output.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/registry.hpp"

namespace scaledmm::cli {

Json device_json(const Device& device);
// {"name", "scheme", "n", "k", "selected", "candidates": [{"kernel", "upstream", "computes", "ok", "reason"}],
// "warnings"}
Json layer_json(std::string_view name, const Selection& selection, const std::vector<std::string>& warnings);

// "cpu: AMD EPYC 7B13, avx2, 2 threads"
std::string device_line(const Device& device);
// "avx2 avx512 ..."
std::vector<std::string> feature_names(const CpuFeatures& cpu);

// A line for each kernel that was not taken, indented: its name and why.
std::string rejections_text(const Selection& selection);

// Why there is no kernel, on one line: the forced kernel's reason and the names of those that could, or every reason.
std::string no_kernel_text(const Selection& selection, const std::string& forced);

// "model.layers.0.mlp.up_proj" to "model.layers.*.mlp.up_proj": the same for equal layers of all blocks.
std::string layer_pattern(std::string_view name);

}  // namespace scaledmm::cli
