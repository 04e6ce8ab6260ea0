// The list, its order, and every way to steer a selection.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "scaledmm/error.hpp"
#include "scaledmm/registry.hpp"

namespace scaledmm {
namespace {

// Sets an environment variable for one test.
class ScopedVariable {
 public:
  ScopedVariable(const char* variable, const char* value) : variable_(variable) { setenv(variable, value, 1); }
  ~ScopedVariable() { unsetenv(variable_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* variable_;
};

LayerConfig int8_layer() {
  Int8ScaledMMLinearLayerConfig config;
  config.weight_shape = {96, 320};
  return config;
}

LayerConfig fp8_layer() {
  FP8ScaledMMLinearLayerConfig config;
  config.weight_shape = {96, 320};
  return config;
}

std::string message_of(const LayerConfig& config, const Device& device, const SelectOptions& options) {
  try {
    select(config, device, options);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(Registry, NamesAreUniqueAndReferenceIsLast) {
  std::set<std::string_view> names;
  for (const LinearKernel* kernel : kernels()) {
    EXPECT_TRUE(names.insert(kernel->name()).second) << kernel->name();
    EXPECT_EQ(find_kernel(kernel->name()), kernel);
    EXPECT_FALSE(kernel->info().upstream.empty()) << kernel->name();
    EXPECT_FALSE(kernel->info().guarantees.exactness.empty()) << kernel->name();
  }
  EXPECT_EQ(kernels().back()->name(), "reference");
  EXPECT_EQ(find_kernel("int8_w8a8_abacus"), nullptr);
}

TEST(Registry, TheBestKernelOfEachTierComesFirst) {
  const auto first = [](const LayerConfig& config, Isa isa) { return select(config, cpu_device(isa)).name(); };
  EXPECT_EQ(first(int8_layer(), Isa::kAmx), "int8_w8a8_amx");
  EXPECT_EQ(first(int8_layer(), Isa::kAvx512Vnni), "int8_w8a8_avx512vnni");
  EXPECT_EQ(first(int8_layer(), Isa::kAvx512), "int8_w8a8_avx2");
  EXPECT_EQ(first(int8_layer(), Isa::kScalar), "reference");
  EXPECT_EQ(first(fp8_layer(), Isa::kAmx), "fp8_w8a16_amx");
  EXPECT_EQ(first(fp8_layer(), Isa::kAvx512), "fp8_w8a16_avx512");
  EXPECT_EQ(first(fp8_layer(), Isa::kAvx2), "fp8_w8a16_avx2");
}

// docs/quantization.md 4: which kernel runs a W8A8 layer.
TEST(Registry, QuantizedActivationsComeFirstWhereFp8IsAnInstructionOrWhenAskedFor) {
  Device diamond = cpu_device(Isa::kAmx);
  diamond.cpu.amx_fp8 = true;
  EXPECT_EQ(select(fp8_layer(), diamond).name(), "fp8_w8a8_amxfp8");
  FP8ScaledMMLinearLayerConfig half = std::get<FP8ScaledMMLinearLayerConfig>(fp8_layer());
  half.input_dtype = DType::kF16;
  EXPECT_EQ(select(half, cpu_device(Isa::kAmx)).name(), "fp8_w8a8_amx");
  const Selection selection = explain(half, cpu_device(Isa::kAmx));
  const auto after = std::ranges::find(selection.candidates, find_kernel("fp8_w8a16_amx"), &Candidate::kernel);
  EXPECT_TRUE(after->ok);
  EXPECT_EQ(std::ranges::find(selection.candidates, true, &Candidate::ok)->kernel, selection.kernel);
  EXPECT_EQ(after->better, "fp8_w8a8_amx");
  EXPECT_NE(after->reason.find("2 bf16 products"), std::string::npos) << after->reason;
  EXPECT_NE(selection.text().find("; after fp8_w8a8_amx: " + after->reason), std::string::npos) << selection.text();
  for (const DType input : {DType::kF16, DType::kF32}) {
    half.input_dtype = input;
    SelectOptions without;
    without.disabled = std::vector<std::string>{"fp8_w8a8_amx"};
    EXPECT_EQ(select(half, cpu_device(Isa::kAmx), without).name(), "fp8_w8a16_amx");
    without.disabled.reset();
    without.backend = "w8a16";
    EXPECT_EQ(select(half, cpu_device(Isa::kAmx), without).name(), "fp8_w8a16_amx");
    without.backend.reset();
    without.force = "fp8_w8a16_amx";
    EXPECT_EQ(select(half, cpu_device(Isa::kAmx), without).name(), "fp8_w8a16_amx");
  }
  FP8ScaledMMLinearLayerConfig weight_only = std::get<FP8ScaledMMLinearLayerConfig>(fp8_layer());
  weight_only.activation_quant_key.reset();
  EXPECT_EQ(select(weight_only, diamond).name(), "fp8_w8a16_amx");
  weight_only.input_dtype = DType::kF32;
  EXPECT_EQ(select(weight_only, diamond).name(), "fp8_w8a16_amx");
  SelectOptions asked;
  asked.backend = "w8a8";
  EXPECT_EQ(select(fp8_layer(), cpu_device(Isa::kAmx), asked).name(), "fp8_w8a8_amx");
  EXPECT_EQ(select(fp8_layer(), cpu_device(Isa::kAvx512), asked).name(), "fp8_w8a8_avx512");
  EXPECT_EQ(select(fp8_layer(), cpu_device(Isa::kAvx2), asked).name(), "fp8_w8a8_avx2");
}

TEST(Select, EveryTierHasAKernelForEveryScheme) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx}) {
    for (const LayerConfig& config : {int8_layer(), fp8_layer()}) {
      const LinearKernel& kernel = select(config, cpu_device(isa));
      EXPECT_LE(kernel.info().isa, isa);
      EXPECT_EQ(kernel.name() == "reference", isa == Isa::kScalar) << name(isa) << " took " << kernel.name();
    }
  }
}

TEST(Select, EveryRefusalHasAReasonInTheHouseForm) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAmx}) {
    for (const LayerConfig& config : {int8_layer(), fp8_layer()}) {
      for (const Candidate& candidate : explain(config, cpu_device(isa)).candidates) {
        EXPECT_EQ(candidate.ok, candidate.reason.empty()) << candidate.kernel->name();
        if (candidate.ok) continue;
        EXPECT_FALSE(candidate.reason.ends_with('.')) << candidate.reason;
        EXPECT_EQ(candidate.reason.find("internal error"), std::string::npos);
      }
    }
  }
}

TEST(Select, AForcedKernelIsTakenOrItsReasonIsGiven) {
  SelectOptions options;
  options.force = "reference";
  EXPECT_EQ(select(int8_layer(), cpu_device(Isa::kAvx2), options).name(), "reference");

  options.force = "int8_w8a8_avx2";
  const std::string text = message_of(fp8_layer(), cpu_device(Isa::kAvx2), options);
  EXPECT_NE(text.find("int8_w8a8_avx2 was forced"), std::string::npos) << text;
  EXPECT_NE(text.find("these could: fp8_w8a16_avx2"), std::string::npos) << text;
  EXPECT_THROW(select(fp8_layer(), cpu_device(Isa::kAvx2), options), Unsupported);
}

TEST(Select, AForcedKernelOfAHigherTierIsRefusedWithTheTier) {
  SelectOptions options;
  options.force = "int8_w8a8_avx512vnni";
  const std::string text = message_of(int8_layer(), cpu_device(Isa::kAvx2), options);
  EXPECT_NE(text.find("avx512vnni"), std::string::npos) << text;
  EXPECT_NE(text.find("int8_w8a8_avx2"), std::string::npos) << text;
}

TEST(Select, UnknownNamesAreRefusedWithTheKnownOnes) {
  SelectOptions options;
  options.force = "int8_w8a8_abacus";
  EXPECT_THROW(explain(int8_layer(), this_cpu(), options), InvalidArgument);
  options.force.reset();
  options.disabled = {{"abacus"}};
  EXPECT_NE(message_of(int8_layer(), this_cpu(), options).find("reference"), std::string::npos);
}

TEST(Select, DisabledKernelsSayWho) {
  SelectOptions options;
  options.disabled = {{"int8_w8a8_avx2"}};
  const Selection selection = explain(int8_layer(), cpu_device(Isa::kAvx2), options);
  EXPECT_EQ(selection.kernel->name(), "reference");
  const auto it = std::ranges::find_if(selection.candidates,
                                       [](const Candidate& c) { return c.kernel->name() == "int8_w8a8_avx2"; });
  EXPECT_EQ(it->reason, "disabled by the user");
}

TEST(Select, ABackendIsAPreferenceThatIsReportedWhenItFails) {
  SelectOptions options;
  options.backend = "reference";
  EXPECT_EQ(explain(int8_layer(), cpu_device(Isa::kAvx2), options).kernel->name(), "reference");
  options.backend = "avx2";
  EXPECT_EQ(explain(int8_layer(), cpu_device(Isa::kAmx), options).kernel->name(), "int8_w8a8_avx2");
  options.backend = "cutlass";
  const Selection selection = explain(int8_layer(), cpu_device(Isa::kAvx2), options);
  EXPECT_EQ(selection.kernel->name(), "int8_w8a8_avx2");
  ASSERT_EQ(selection.warnings.size(), 1U);
  EXPECT_NE(selection.warnings[0].find("no usable kernel of backend cutlass"), std::string::npos);
}

TEST(Select, TheEnvironmentSteersAndTheApiWins) {
  const ScopedVariable force("SCALEDMM_FORCE_KERNEL", "reference");
  EXPECT_EQ(select(int8_layer(), cpu_device(Isa::kAvx2)).name(), "reference");
  SelectOptions options;
  options.force = "int8_w8a8_avx2";
  EXPECT_EQ(select(int8_layer(), cpu_device(Isa::kAvx2), options).name(), "int8_w8a8_avx2");
  options.force = "";
  EXPECT_EQ(select(int8_layer(), cpu_device(Isa::kAvx2), options).name(), "int8_w8a8_avx2");
}

TEST(Select, TheEnvironmentDisablesAndPrefers) {
  {
    const ScopedVariable disabled("SCALEDMM_DISABLED_KERNELS", "int8_w8a8_avx2, fp8_w8a16_avx2");
    EXPECT_EQ(select(int8_layer(), cpu_device(Isa::kAvx2)).name(), "reference");
    SelectOptions options;
    options.disabled.emplace();
    EXPECT_EQ(select(int8_layer(), cpu_device(Isa::kAvx2), options).name(), "int8_w8a8_avx2");
  }
  const ScopedVariable backend("SCALEDMM_BACKEND", "reference");
  EXPECT_EQ(select(int8_layer(), cpu_device(Isa::kAvx2)).name(), "reference");
}

TEST(Select, RequiredGuaranteesFilter) {
  SelectOptions options;
  options.require_batch_invariant = true;
  options.require_thread_invariant = true;
  options.require_deterministic = true;
  for (const LayerConfig& config : {int8_layer(), fp8_layer()}) {
    const Guarantees& guarantees = select(config, this_cpu(), options).info().guarantees;
    EXPECT_TRUE(guarantees.batch_invariant && guarantees.thread_invariant && guarantees.deterministic);
  }
}

TEST(Select, SaysThatADeviceHasNoKernel) {
  Device device;
  device.kind = DeviceKind::kHip;
  device.description = "made-up card";
  const std::string text = message_of(int8_layer(), device, {});
  EXPECT_EQ(text, "this build has no kernel for made-up card");
}

TEST(Select, GivesEveryReasonWhenNothingFits) {
  SelectOptions options;
  options.disabled.emplace();
  for (const LinearKernel* kernel : kernels()) options.disabled->emplace_back(kernel->name());
  const std::string text = message_of(int8_layer(), cpu_device(Isa::kAvx2), options);
  for (const LinearKernel* kernel : kernels()) {
    if (kernel->info().device != DeviceKind::kCpu) continue;
    EXPECT_NE(text.find("\n  " + std::string(kernel->name()) + ": disabled by the user"), std::string::npos) << text;
  }
}

TEST(Select, ExplainsItselfAsText) {
  const std::string text = explain(int8_layer(), cpu_device(Isa::kAvx2)).text();
  EXPECT_NE(text.find("* int8_w8a8_avx2"), std::string::npos) << text;
  EXPECT_NE(text.find("stands for CPUInt8ScaledMMLinearKernel"), std::string::npos) << text;
  EXPECT_NE(text.find("- int8_w8a8_avx512vnni"), std::string::npos) << text;
}

TEST(Verbose, SaysWhatWasChosenAndWhyNotTheOnesBefore) {
  std::vector<std::string> lines;
  set_verbose([&](const std::string& line) { lines.push_back(line); });
  select(int8_layer(), cpu_device(Isa::kAvx2));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("[96, 320]: int8_w8a8_avx2; not int8_w8a8_amx: "), std::string::npos) << lines[0];
  set_verbose(SelectionLog{});  // silent, whatever the environment says
  const ScopedVariable verbose("SCALEDMM_VERBOSE", "1");
  testing::internal::CaptureStderr();
  select(int8_layer(), cpu_device(Isa::kAvx2));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  set_verbose(std::nullopt);
  testing::internal::CaptureStderr();
  select(int8_layer(), cpu_device(Isa::kAvx2));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "scaledmm: " + lines[0] + "\n");
}

}  // namespace
}  // namespace scaledmm
