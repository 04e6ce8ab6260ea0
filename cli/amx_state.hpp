// How fast AMX is at this moment. The same tile code runs at full or at half speed, as an unseen neighbour on the
// core's other hardware thread lets it, and changes between them within tens of milliseconds; a comparison must not mix
// the two.
#pragma once

#include <cstdint>
#include <string_view>

#include "scaledmm/linear.hpp"

namespace scaledmm::cli {

// kNone: this CPU has no AMX. kMixed: between the two, or not the same on all threads.
enum class AmxState : std::uint8_t { kNone, kFull, kHalf, kMixed };

std::string_view name(AmxState state);

// A register-only loop of some 25 microseconds on every thread of the context.
AmxState probe_amx(Context& context);
// Of a time span with this state before and after it.
AmxState between(AmxState before, AmxState after);

}  // namespace scaledmm::cli
