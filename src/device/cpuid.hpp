// Reads what this processor and this operating system report.
#pragma once

#include <cstdint>
#include <string>

#include "scaledmm/device.hpp"

namespace scaledmm {

// CPUID leaves 1, 7 and 1E, XCR0, and the permission call for tile state. Source: Intel SDM vol. 1 ch. 13, 18.
CpuReport read_cpu_report();

// The brand string of CPUID leaves 80000002-80000004, without outer spaces.
std::string read_cpu_brand();

}  // namespace scaledmm
