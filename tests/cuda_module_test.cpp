// What CUDA support must do on every machine: the module's file, selection for described cards, refusals, errors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "child_process.hpp"
#include "device/cuda_module.hpp"
#include "layer_builder.hpp"
#include "scaledmm/device_memory.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/registry.hpp"

namespace scaledmm {
namespace {

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

LayerConfig config_of(const Scheme& scheme, std::int64_t n = 96, std::int64_t k = 320) {
  LayerConfig config = scheme.config;
  set_shape(config, n, k, DType::kBF16, DType::kBF16);
  return config;
}

// What devices() says of CUDA in a process whose environment names `module`.
std::string detail_with(const std::string& module) {
  return run_in_child([&] {
    ::setenv("SCALEDMM_CUDA_MODULE", module.c_str(), 1);
    return cuda_backend().detail;
  });
}

// The module of this build; on a machine that it was carried to, what the environment says.
const std::string kModule = [] {
  const char* path = std::getenv("SCALEDMM_CUDA_MODULE");
  return std::string(path != nullptr ? path : SCALEDMM_CUDA_MODULE_FILE);
}();

// Runs first: children of a process that has looked for the module already would not look again.
TEST(ACudaModule, IsLookedForWhereTheEnvironmentSaysAndTheReasonIsKept) {
  EXPECT_NE(detail_with("/nowhere/libscaledmm_cuda.so").find("/nowhere/libscaledmm_cuda.so"), std::string::npos);
  const std::string other = detail_with("libc.so.6");
  EXPECT_NE(other.find("libc.so.6 is no CUDA module of this library"), std::string::npos) << other;
}

TEST(ACudaModule, LoadsWithoutADriverAndSaysSo) {
  if (kModule.empty()) GTEST_SKIP() << "this build has no CUDA module";
  ASSERT_TRUE(std::filesystem::exists(kModule)) << kModule;
  const std::string detail = detail_with(kModule);
  EXPECT_EQ(detail.find("no CUDA module"), std::string::npos) << detail;
  const bool is_known = detail.find("driver") != std::string::npos || detail.find("device") != std::string::npos;
  EXPECT_TRUE(is_known) << detail;
}

TEST(CudaDevices, AreListedOrTheReasonIs) {
  const BackendStatus& status = cuda_backend();
  EXPECT_FALSE(status.detail.empty());
  EXPECT_EQ(status.available, !status.devices.empty());
  for (const Device& device : status.devices) {
    EXPECT_TRUE(device.found && device.capability && device.memory_bytes > 0) << device.description;
  }
  if (status.available) return;
  EXPECT_NE(message_of([] { device_from_name("cuda"); }).find(status.detail), std::string::npos);
  EXPECT_THROW(device_from_name("cuda:0"), DeviceError);
  EXPECT_THROW(cuda_api(), DeviceError);
  Device claimed = device_from_name("sm90");
  claimed.found = true;
  EXPECT_THROW(DeviceBuffer(claimed, 16), DeviceError);
}

TEST(CudaDevices, OfADescriptionRunNothing) {
  const Device sm90 = device_from_name("sm90");
  EXPECT_NE(message_of([&] { Context context(sm90); }).find("not a device of this machine"), std::string::npos);
  EXPECT_THROW(DeviceStream stream(sm90), InvalidArgument);
  EXPECT_THROW(DeviceBuffer(this_cpu(), 16), InvalidArgument);
  EXPECT_THROW(device_from_name("cuda:"), InvalidArgument);
  EXPECT_THROW(device_from_name("cuda:x"), InvalidArgument);
}

TEST(CudaSelection, TakesTheKernelOfTheCardThenTheVendors) {
  const auto first = [](const std::string& scheme_name, const char* card) -> std::string {
    for (const Scheme& scheme : all_schemes()) {
      if (scheme.name != scheme_name) continue;
      const Selection selection = explain(config_of(scheme), device_from_name(card));
      return selection.kernel == nullptr ? "none" : std::string(selection.kernel->name());
    }
    return "no such scheme";
  };
  for (const char* scheme : {"int8_dynamic_channel", "int8_dynamic_channel_azp", "int8_static_tensor_azp"}) {
    EXPECT_EQ(first(scheme, "sm90"), "int8_w8a8_sm90") << scheme;
    EXPECT_EQ(first(scheme, "sm89"), "cublaslt_int8") << scheme;
    EXPECT_EQ(first(scheme, "sm75"), "none") << scheme;
  }
  for (const char* scheme : {"fp8_w8a8_token_channel", "fp8_w8a8_static_tensor", "fp8_w8a8_dynamic_tensor"}) {
    EXPECT_EQ(first(scheme, "sm90"), "fp8_w8a8_sm90") << scheme;
    EXPECT_EQ(first(scheme, "sm100"), "cublaslt_fp8") << scheme;
    EXPECT_EQ(first(scheme, "sm120"), "cublaslt_fp8") << scheme;
    EXPECT_EQ(first(scheme, "sm80"), "none") << scheme;
  }
}

TEST(CudaSelection, AccumulatesFastOnlyWhereAsked) {
  const LayerConfig config = config_of(fp8_scheme("", GroupShape::per_channel(), kFp8DynamicTokenSym));
  const Device sm90 = device_from_name("sm90");
  const Selection selection = explain(config, sm90);
  EXPECT_EQ(selection.kernel->name(), "fp8_w8a8_sm90");
  EXPECT_EQ(selection.candidates.back().kernel->name(), "fp8_w8a8_sm90_fast");
  EXPECT_TRUE(selection.candidates.back().ok) << selection.candidates.back().reason;
  SelectOptions options;
  options.force = "fp8_w8a8_sm90_fast";
  EXPECT_EQ(explain(config, sm90, options).kernel->name(), "fp8_w8a8_sm90_fast");
  options = {};
  options.backend = "fp8_w8a8_sm90_fast";
  EXPECT_EQ(explain(config, sm90, options).kernel->name(), "fp8_w8a8_sm90_fast");
  options.require_batch_invariant = true;
  EXPECT_EQ(explain(config, sm90, options).kernel->name(), "fp8_w8a8_sm90");
}

TEST(CudaSelection, TakesZeroPointsOfQuantizedActivations) {
  for (const char* kernel : {"int8_w8a8_sm90", "cublaslt_int8"}) {
    const std::optional<QuantKey> key =
        find_kernel(kernel)->input_quant_key(config_of(int8_scheme("", false, true, false)));
    ASSERT_TRUE(key) << kernel;
    EXPECT_FALSE(key->symmetric) << kernel;
  }
}

TEST(CudaSelection, RefusesWithTheValueAndTheLimit) {
  const auto reason = [](const char* kernel, const Scheme& scheme, std::int64_t k = 320) {
    return find_kernel(kernel)->can_implement(config_of(scheme, 96, k)).reason();
  };
  const Scheme int8 = int8_scheme("", false, true, true);
  const auto fp8 = [](GroupShape weight, std::optional<QuantKey> activation, DType dtype = DType::kE4M3FN) {
    return fp8_scheme("", weight, activation, dtype);
  };
  constexpr GroupShape kChannel = GroupShape::per_channel();
  EXPECT_EQ(reason("int8_w8a8_sm90", int8, 131072), "K = 131072 is more than 131071");
  EXPECT_EQ(reason("int8_w8a8_sm90", int8_scheme("", false, true, true, GroupShape{16, 48})),
            "weight scales are (16, 48), must be per tensor or per channel");
  EXPECT_EQ(reason("fp8_w8a8_sm90", int8), "weights are int8, this kernel takes fp8");
  EXPECT_EQ(reason("fp8_w8a8_sm90", fp8(kChannel, std::nullopt)),
            "activations are not quantized, this kernel takes e4m3fn");
  EXPECT_EQ(reason("fp8_w8a8_sm90", fp8({128, 128}, kFp8Dynamic128Sym)),
            "weight scales are (128, 128), must be per tensor or per channel");
  EXPECT_EQ(reason("cublaslt_fp8", fp8(kChannel, kFp8DynamicTokenSym, DType::kE5M2)),
            "weights are e5m2, this kernel takes e4m3fn");
  EXPECT_EQ(reason("cublaslt_fp8", fp8(kChannel, kFp8StaticTokenSym)),
            "static activation scales are per_token, a checkpoint has one per tensor");
  EXPECT_EQ(find_kernel("fp8_w8a8_sm90")->is_supported(device_from_name("sm100")).reason(),
            "compute capability is 10.0, this kernel needs 9.0");
  EXPECT_EQ(find_kernel("cublaslt_int8")->is_supported(device_from_name("sm80")).reason(),
            "compute capability is 8.0, this kernel needs 8.9 or later");
  EXPECT_EQ(find_kernel("int8_w8a8_sm90")->is_supported(this_cpu()).reason(),
            "the device is cpu, this kernel runs on cuda");
}

TEST(CudaLayers, NeedAContextOfTheirDevice) {
  const LayerData data = make_layer(int8_scheme("", false, true, true), 16, 32);
  Context context;
  const LinearKernel& kernel = *find_kernel("int8_w8a8_sm90");
  EXPECT_NE(
      message_of([&] { data.process(kernel, context); }).find("int8_w8a8_sm90 runs on cuda, the context is for cpu"),
      std::string::npos);
}

}  // namespace
}  // namespace scaledmm
