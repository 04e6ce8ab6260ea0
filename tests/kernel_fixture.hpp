// The fixture of every test that runs over the kernels.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "layer_builder.hpp"
#include "tested_kernels.hpp"

namespace scaledmm {

inline constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16};

// Schemes that each tested kernel was compared with its reference on, by label.
inline std::map<std::string, int>& compared_schemes() {
  static std::map<std::string, int> counts;
  return counts;
}

class KernelTest : public testing::TestWithParam<TestedKernel> {
 protected:
  const LinearKernel& kernel() const { return *GetParam().kernel; }
  Context& context() { return context_; }

  bool accepts(const Scheme& scheme, std::int64_t n, std::int64_t k, DType x = DType::kBF16,
               DType y = DType::kF32) const {
    LayerConfig config = scheme.config;
    set_shape(config, n, k, x, y);
    return kernel().can_implement(config).ok();
  }

  // Runs a check on every scheme that the kernel takes at this size.
  template <class Check>
  void for_each_scheme(std::int64_t n, std::int64_t k, const Check& check) {
    for (const Scheme& scheme : all_schemes()) {
      if (!accepts(scheme, n, k)) continue;
      SCOPED_TRACE(scheme.name);
      check(scheme);
    }
  }

  // The same with every type of x that it takes.
  template <class Check>
  void for_each_scheme_and_input(std::int64_t n, std::int64_t k, const Check& check) {
    for_each_scheme(n, k, [&](const Scheme& scheme) {
      for (const DType x : kFloats) {
        if (!accepts(scheme, n, k, x)) continue;
        SCOPED_TRACE(name(x));
        check(scheme, x);
      }
    });
  }

 private:
  Context context_{Threading{.threads = 3}};
};

inline std::string kernel_label(const testing::TestParamInfo<TestedKernel>& info) { return info.param.label(); }

}  // namespace scaledmm
