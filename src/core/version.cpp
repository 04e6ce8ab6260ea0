#include "scaledmm/version.hpp"

namespace scaledmm {

const char* version() { return SCALEDMM_BUILD_VERSION; }

}  // namespace scaledmm
