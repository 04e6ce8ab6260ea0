// scaledmm.Linear: a layer that is packed and ready, and the table of those that graphs refer to by number.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>

#include "bindings.hpp"
#include "borrowed.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/device_memory.hpp"

namespace scaledmm::python {

// What threads share. refill() swaps the layer while others wait.
struct LinearState {
  LinearState(Linear made, std::optional<Device> place, std::int64_t number);

  int gpu() const { return device && device->kind == DeviceKind::kCuda ? device->index : kHost; }
  // The bias where the layer runs.
  ConstTensorView bias() const;

  std::optional<Device> device;  // nothing: this machine's processor
  Linear linear;
  DeviceBuffer bias_on_gpu;
  std::int64_t handle;
  mutable std::shared_mutex mutex;
};

// The tensors that a layer is made of; unset arguments are None.
struct LayerArguments {
  nanobind::object weight;
  nanobind::object weight_scale;
  nanobind::object bias;
  nanobind::object input_scale;
  nanobind::object input_zero_point;
  std::optional<float> input_scale_ub;
  bool ue8m0_input_scales = false;
  std::vector<std::int64_t> logical_widths;
  std::int64_t block_offset_n = 0;
  std::int64_t block_offset_k = 0;
};

class LinearObject {
 public:
  // device: its name or torch.device, None: where the weight is.
  LinearObject(const LayerConfig& config, const LayerArguments& arguments, const Choice& choice,
               nanobind::handle device, int threads);
  LinearObject(Linear linear, std::optional<Device> device);

  // The layer with this number. Errors: InvalidArgument when there is none any more.
  static LinearObject find(std::int64_t handle);

  void refill(const LayerArguments& arguments, int threads);
  // y = x W^T (+ bias) in x's framework, or in `out`; on a GPU on `stream`, see gpu_stream.
  nanobind::object apply(nanobind::handle x, nanobind::handle out, int threads, nanobind::handle stream) const;
  // The same with a bias [N] of this call, for a layer that has none of its own.
  nanobind::object apply_with_bias(nanobind::handle x, nanobind::handle bias) const;
  nanobind::object apply_quantized(nanobind::handle q, nanobind::handle scale, nanobind::handle zero_point,
                                   nanobind::handle out, int threads, nanobind::handle stream) const;
  const LinearState& state() const { return *state_; }

 private:
  explicit LinearObject(std::shared_ptr<LinearState> state) : state_(std::move(state)) {}

  std::shared_ptr<LinearState> state_;
};

}  // namespace scaledmm::python
