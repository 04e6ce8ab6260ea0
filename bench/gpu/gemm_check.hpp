// Checks of the GEMMs on a device: every plan on tails, batch invariance, repeatability, host cost.
#pragma once

namespace scaledmm::bench {

// Prints one line a failure and a summary; returns the number of failures. small: few shapes, for compute-sanitizer.
int check_gemms(bool small);
void print_host_cost();

}  // namespace scaledmm::bench
