// The figures of a benchmark run as one HTML page that needs nothing else.
#pragma once

#include <string>

#include "cli/output.hpp"

namespace scaledmm::cli {

// `document`: what bench --output writes, or the rows of bench/gpu (see docs/benchmarking.md). Draws, for each scheme
// and weight, latency and operations a second over M; for all together the roofline; for each peer the speed-ups over M
// and weight. Errors: UsageError for a document without rows of either kind.
std::string html_report(const Json& document, const std::string& title);

}  // namespace scaledmm::cli
