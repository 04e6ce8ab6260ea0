#include "scaledmm/device.hpp"

#include <charconv>

#include "device/cuda_module.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

Device described_gpu(int capability) {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.isa = Isa::kScalar;
  device.capability = capability;
  device.description = "described NVIDIA GPU of compute capability " + std::to_string(capability / 10) + "." +
                       std::to_string(capability % 10);
  return device;
}

// "cuda" or "cuda:1".
std::optional<Device> found_gpu(std::string_view text) {
  if (text == "cuda") text = "cuda:0";
  if (!text.starts_with("cuda:")) return std::nullopt;
  std::size_t index = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + 5, end, index);
  if (error != std::errc() || rest != end) return std::nullopt;
  const BackendStatus& backend = cuda_backend();
  if (!backend.available) throw DeviceError("no CUDA device: " + backend.detail);
  if (index >= backend.devices.size()) {
    throw DeviceError("there is no device " + std::string(text) + ", this machine has " + backend.detail);
  }
  return backend.devices[index];
}

BackendStatus absent(DeviceKind kind, std::string detail) {
  BackendStatus status;
  status.kind = kind;
  status.detail = std::move(detail);
  return status;
}

}  // namespace

std::string_view name(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kHip:
      return "hip";
    case DeviceKind::kOpenCL:
      return "opencl";
  }
  return "unknown";
}

Device device_from_name(std::string_view text) {
  if (text == "cpu") return this_cpu();
  if (text.starts_with("cpu:")) {
    if (const std::optional<Isa> isa = isa_from_name(text.substr(4))) return cpu_device(*isa);
  }
  if (text.starts_with("sm")) {
    int capability = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data() + 2, end, capability);
    if (error == std::errc() && rest == end && capability >= 50 && capability < 200) return described_gpu(capability);
  }
  if (const std::optional<Device> gpu = found_gpu(text)) return *gpu;
  throw InvalidArgument("unknown device " + std::string(text) +
                        "; known are cpu, cuda, cuda:1, cpu:scalar, cpu:avx2, cpu:avx512, cpu:avx512vnni, "
                        "cpu:avx512bf16, cpu:amx, and sm75, sm80, sm89, sm90, sm100, sm120 (a described NVIDIA GPU)");
}

std::vector<BackendStatus> devices() {
  BackendStatus cpu;
  cpu.kind = DeviceKind::kCpu;
  cpu.available = true;
  cpu.devices.push_back(this_cpu());
  cpu.detail = this_cpu().description + ", tier " + std::string(name(this_cpu().isa));
  return {cpu, cuda_backend(), absent(DeviceKind::kHip, "this build has no HIP module"),
          absent(DeviceKind::kOpenCL, "this build has no OpenCL module")};
}

}  // namespace scaledmm
