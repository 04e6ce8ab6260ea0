#include "device/cuda_module.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <vector>

#include "device/environment.hpp"
#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

constexpr const char* kFileName = "libscaledmm_cuda.so";

// Where the module is looked for: where the environment says, and nowhere else; or beside the program or library that
// holds this code, in the folders beside it, and where the dynamic loader looks.
std::vector<std::string> candidates() {
  if (const auto path = environment_variable("SCALEDMM_CUDA_MODULE")) return {*path};
  std::vector<std::string> paths;
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&cuda_backend), &info) != 0 && info.dli_fname != nullptr) {
    std::error_code error;
    const std::filesystem::path self = std::filesystem::weakly_canonical(info.dli_fname, error);
    const std::filesystem::path folder = error ? std::filesystem::path() : self.parent_path();
    for (const auto& place : {folder, folder.parent_path() / "lib", folder.parent_path()}) {
      if (!folder.empty() && std::filesystem::exists(place / kFileName, error)) paths.push_back(place / kFileName);
    }
  }
  paths.emplace_back(kFileName);
  return paths;
}

// The module's table; otherwise the reason.
const cuda::ModuleApi* open_module(std::string& reason) {
  for (const std::string& path : candidates()) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reason = std::string("no CUDA module: ") + dlerror();
      continue;
    }
    auto* function = reinterpret_cast<decltype(&scaledmm_cuda_module)>(dlsym(library, "scaledmm_cuda_module"));
    if (function == nullptr) {
      reason = path + " is no CUDA module of this library: " + dlerror();
      return nullptr;
    }
    const cuda::ModuleApi* api = function();
    if (api->version != cuda::kModuleVersion) {
      reason = path + " has version " + std::to_string(api->version) +
               " of the module's interface, this library needs " + std::to_string(cuda::kModuleVersion);
      return nullptr;
    }
    return api;
  }
  return nullptr;
}

struct Module {
  const cuda::ModuleApi* api = nullptr;
  BackendStatus status;
};

Device make_device(int index, const cuda::DeviceProperties& properties) {
  Device device;
  device.kind = DeviceKind::kCuda;
  device.index = index;
  device.description = properties.name;
  device.capability = properties.capability;
  device.found = true;
  device.multiprocessors = properties.multiprocessors;
  device.memory_bytes = properties.memory_bytes;
  return device;
}

Module load() {
  Module module;
  module.status.kind = DeviceKind::kCuda;
  module.api = open_module(module.status.detail);
  if (module.api == nullptr) return module;
  int count = 0;
  if (const cuda::Failure failure = module.api->device_count(&count)) {
    module.status.detail = failure;
    return module;
  }
  for (int index = 0; index < count; ++index) {
    cuda::DeviceProperties properties;
    if (const cuda::Failure failure = module.api->device_properties(index, &properties)) {
      module.status.detail = failure;
      return module;
    }
    module.status.devices.push_back(make_device(index, properties));
  }
  module.status.available = count > 0;
  module.status.detail =
      count == 0 ? "the driver finds no device" : std::to_string(count) + (count == 1 ? " device" : " devices");
  return module;
}

// Never closed: layers and buffers may outlive every other static.
const Module& module() {
  static const Module* const instance = new Module(load());
  return *instance;
}

}  // namespace

const BackendStatus& cuda_backend() { return module().status; }

const cuda::ModuleApi& cuda_api() {
  if (!module().status.available) throw DeviceError("no CUDA device: " + module().status.detail);
  return *module().api;
}

void check_cuda(cuda::Failure failure) {
  if (failure != nullptr) throw DeviceError(failure);
}

void require_found_gpu(const Device& device) {
  if (device.kind != DeviceKind::kCuda) {
    throw InvalidArgument("device " + device.description + " is " + std::string(name(device.kind)) + ", not cuda");
  }
  if (!device.found) throw InvalidArgument(device.description + " is a description, not a device of this machine");
}

}  // namespace scaledmm
