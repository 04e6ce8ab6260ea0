#include "cli/amx_state.hpp"

#include <algorithm>
#include <chrono>
#include <vector>

#include "cli/amx_registers.hpp"
#include "device/target.hpp"
#include "scaledmm/device.hpp"

namespace scaledmm::cli {
namespace {

constexpr int kSteps = 900;
constexpr double kProductOps = 16.0 * 16 * 64 * 2;  // of one TDPBSSD
// Operations a second of one core. Eight live tiles of real data take 16-17 cycles a product at full speed and 36-40 at
// half, which is 4.6e12 and 2.1e12 at 2.4 GHz; at other clocks the distance stays.
constexpr double kFullOps = 3.2e12;
constexpr double kHalfOps = 2.6e12;

SCALEDMM_TARGET_BEGIN("amx-tile,amx-int8")
void multiply_registers() {
  load_registers<8>();
  for (int step = 0; step < kSteps; ++step) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
}
SCALEDMM_TARGET_END

}  // namespace

std::string_view name(AmxState state) {
  switch (state) {
    case AmxState::kNone:
      return "none";
    case AmxState::kFull:
      return "full";
    case AmxState::kHalf:
      return "half";
    default:
      return "mixed";
  }
}

AmxState probe_amx(Context& context) {
  if (!this_cpu().cpu.amx_int8) return AmxState::kNone;
  std::vector<double> rates(static_cast<std::size_t>(context.threads()));
  context.parallel(context.threads(), [&](std::int64_t task) {
    const auto start = std::chrono::steady_clock::now();
    multiply_registers();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rates[static_cast<std::size_t>(task)] = 4 * kSteps * kProductOps / seconds.count();
  });
  const auto [least, most] = std::ranges::minmax(rates);
  if (least >= kFullOps) return AmxState::kFull;
  if (most <= kHalfOps) return AmxState::kHalf;
  return AmxState::kMixed;
}

AmxState between(AmxState before, AmxState after) { return before == after ? before : AmxState::kMixed; }

}  // namespace scaledmm::cli
