#include "linear_object.hpp"

#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>

#include "borrowed.hpp"
#include "frameworks.hpp"
#include "gpu.hpp"
#include "result.hpp"
#include "scaledmm/error.hpp"

namespace nb = nanobind;

namespace scaledmm::python {
namespace {

// Layers by number. Numbers are random, so that one kept from another process never names a layer of this one.
class Handles {
 public:
  std::int64_t add(const std::weak_ptr<LinearState>& state) {
    const std::lock_guard lock(mutex_);
    while (true) {
      const std::int64_t handle = numbers_(device_);
      if (states_.emplace(handle, state).second) return handle;
    }
  }
  void set(std::int64_t handle, const std::weak_ptr<LinearState>& state) {
    const std::lock_guard lock(mutex_);
    states_[handle] = state;
  }
  void remove(std::int64_t handle) {
    const std::lock_guard lock(mutex_);
    states_.erase(handle);
  }
  std::shared_ptr<LinearState> find(std::int64_t handle) {
    const std::lock_guard lock(mutex_);
    const auto found = states_.find(handle);
    return found == states_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::random_device device_;
  std::uniform_int_distribution<std::int64_t> numbers_{1};
  std::unordered_map<std::int64_t, std::weak_ptr<LinearState>> states_;
};

Handles& handles() {
  static Handles* const table = new Handles;  // layers may outlive static objects
  return *table;
}

std::shared_ptr<LinearState> make_state(Linear linear, std::optional<Device> device) {
  const std::int64_t handle = handles().add({});
  auto* const made = new LinearState(std::move(linear), std::move(device), handle);
  const std::shared_ptr<LinearState> state(made, [](LinearState* self) {
    handles().remove(self->handle);
    delete self;
  });
  handles().set(handle, state);
  return state;
}

DType weight_dtype(const LayerConfig& config) {
  if (std::holds_alternative<Int8ScaledMMLinearLayerConfig>(config)) return DType::kInt8;
  return std::get<FP8ScaledMMLinearLayerConfig>(config).weight_quant_key.dtype;
}

// The tensors of a layer, held while it is packed.
struct HeldTensors {
  Borrowed weight, weight_scale, bias, input_scale, input_zero_point;
  LayerWeights weights;
};

// uint8 bytes are what the configuration says; the dtype of a typed weight is checked against it.
Borrowed borrow_weight(nb::handle weight, DType dtype, int gpu) {
  Borrowed held(weight, {.what = "weight", .gpu = gpu});
  if (held.view().dtype == DType::kUInt8) return {weight, {.what = "weight", .dtype = dtype, .gpu = gpu}};
  return held;
}

// A bias of torch or cupy on a GPU as a copy in the processor's memory, where layers read it once; others as they are.
nb::object bias_on_host(const nb::object& bias) {
  if (is_instance_of(bias, "torch", "Tensor")) return bias.attr("cpu")();
  if (is_instance_of(bias, "cupy", "ndarray")) return bias.attr("get")();
  return bias;
}

HeldTensors borrow_tensors(const LayerConfig& config, const LayerArguments& arguments, bool on_gpu) {
  const int gpu = on_gpu ? kAnywhere : kHost;
  const nb::object bias = on_gpu ? bias_on_host(arguments.bias) : arguments.bias;
  HeldTensors held{borrow_weight(arguments.weight, weight_dtype(config), gpu),
                   Borrowed::array_or_number(arguments.weight_scale, {.what = "weight_scale", .gpu = gpu}),
                   Borrowed::optional(bias, {.what = "bias", .outlives_call = on_gpu}),
                   Borrowed::optional(arguments.input_scale, {.what = "input_scale", .gpu = gpu}),
                   Borrowed::optional(arguments.input_zero_point, {.what = "input_zero_point", .gpu = gpu}),
                   {}};
  LayerWeights& weights = held.weights;
  weights.weight = held.weight.view();
  weights.weight_scale = held.weight_scale.view();
  weights.input_scale = held.input_scale.view();
  weights.input_zero_point = held.input_zero_point.view();
  weights.input_scale_ub = arguments.input_scale_ub;
  weights.ue8m0_input_scales = arguments.ue8m0_input_scales;
  weights.logical_widths = arguments.logical_widths;
  weights.block_offset_n = arguments.block_offset_n;
  weights.block_offset_k = arguments.block_offset_k;
  return held;
}

Linear make_linear(const LayerConfig& config, const LayerArguments& arguments, const LinearOptions& options) {
  const bool on_gpu = options.device && options.device->kind == DeviceKind::kCuda;
  const HeldTensors held = borrow_tensors(config, arguments, on_gpu);
  const nb::gil_scoped_release released;
  return Linear::create(config, held.weights, held.bias.view(), options);
}

// x's shape with N in the place of K.
Shape output_shape(const Shape& x, std::int64_t n) {
  if (x.rank() == 0) throw InvalidArgument("x has rank 0, must be at least 1");
  Shape shape = x;
  shape[x.rank() - 1] = n;
  return shape;
}

// "cpu", "cuda:1" or torch.device("cuda"); None: where the weight is.
std::optional<Device> device_of_layer(nb::handle device, nb::handle weight) {
  if (!device.is_none()) {
    const nb::str name(device);
    if (std::string_view(name.c_str()) == "cpu") return std::nullopt;
    return device_from_name(name.c_str());
  }
  const int gpu = Borrowed(weight, {.what = "weight", .gpu = kAnywhere}).gpu();
  if (gpu == kHost) return std::nullopt;
  return gpu_device(gpu);
}

// Calls fill(y) without the GIL on `out` or on a new array like x, and returns it.
template <class Fill>
nb::object into(nb::handle like, const Shape& x_shape, const LayerConfig& config, nb::handle out, const Place& place,
                const Fill& fill) {
  if (!out.is_none()) {
    BorrowOptions options = place.array("out");
    options.writable = true;
    const Borrowed y(out, options);
    {
      const nb::gil_scoped_release released;
      fill(y.view());
    }
    return nb::borrow(out);
  }
  Result result(like, out_dtype(config), output_shape(x_shape, weight_shape(config).n), place.gpu);
  {
    const nb::gil_scoped_release released;
    fill(result.view());
  }
  return result.finish();
}

DeviceBuffer bias_buffer(const Linear& linear, const std::optional<Device>& device) {
  const ConstTensorView bias = linear.bias();
  if (!bias.defined() || !device || device->kind == DeviceKind::kCpu) return {};
  return {*device, bias.data, bias.shape.elements() * size_bytes(bias.dtype)};
}

}  // namespace

LinearState::LinearState(Linear made, std::optional<Device> place, std::int64_t number)
    : device(std::move(place)), linear(std::move(made)), bias_on_gpu(bias_buffer(linear, device)), handle(number) {}

ConstTensorView LinearState::bias() const {
  ConstTensorView view = linear.bias();
  if (bias_on_gpu.data() != nullptr) view.data = bias_on_gpu.data();
  return view;
}

LinearObject::LinearObject(const LayerConfig& config, const LayerArguments& arguments, const Choice& choice,
                           nb::handle device, int threads) {
  LinearOptions options;
  options.select = choice.options();
  options.device = device_of_layer(device, arguments.weight);
  options.threading = threading(threads);
  Linear made = make_linear(config, arguments, options);
  state_ = make_state(std::move(made), options.device);
}

LinearObject::LinearObject(Linear linear, std::optional<Device> device)
    : state_(make_state(std::move(linear), std::move(device))) {}

LinearObject LinearObject::find(std::int64_t handle) {
  std::shared_ptr<LinearState> state = handles().find(handle);
  if (state == nullptr) {
    throw InvalidArgument("no layer of this process has the handle " + std::to_string(handle) +
                          "; keep the Linear alive, and take its handle anew in each process");
  }
  return LinearObject(std::move(state));
}

void LinearObject::refill(const LayerArguments& arguments, int threads) {
  LinearOptions options;
  options.select.force = std::string(state_->linear.kernel().name());
  options.select.disabled.emplace();
  options.device = state_->device;
  options.threading = threading(threads);
  Linear fresh = make_linear(state_->linear.config(), arguments, options);
  // The GIL is kept: those who read properties hold it, those who multiply hold the mutex and finish without it.
  DeviceBuffer fresh_bias = bias_buffer(fresh, state_->device);
  const std::unique_lock lock(state_->mutex);
  std::swap(state_->linear, fresh);
  std::swap(state_->bias_on_gpu, fresh_bias);
}

nb::object LinearObject::apply(nb::handle x, nb::handle out, int threads, nb::handle stream) const {
  const Place place(state_->gpu(), stream, x, threads);
  const Borrowed input(x, place.array("x"));
  return into(x, input.view().shape, state_->linear.config(), out, place, [&](const TensorView& y) {
    const std::shared_lock lock(state_->mutex);
    state_->linear.apply(input.view(), y, place.context);
  });
}

nb::object LinearObject::apply_with_bias(nb::handle x, nb::handle bias) const {
  if (state_->linear.bias().defined()) throw InvalidArgument("the layer has a bias of its own, the call has another");
  const Place place(state_->gpu(), nb::none(), x);
  const Borrowed input(x, place.array("x"));
  const Borrowed added(bias, place.array("bias"));
  return into(x, input.view().shape, state_->linear.config(), nb::none(), place, [&](const TensorView& y) {
    const std::shared_lock lock(state_->mutex);
    state_->linear.kernel().apply_weights(state_->linear.layer(), input.view(), added.view(), y, place.context);
  });
}

nb::object LinearObject::apply_quantized(nb::handle q, nb::handle scale, nb::handle zero_point, nb::handle out,
                                         int threads, nb::handle stream) const {
  const LinearKernel& kernel = state_->linear.kernel();
  const std::optional<QuantKey> key = kernel.input_quant_key(state_->linear.config());
  if (!key) throw InvalidArgument("kernel " + std::string(kernel.name()) + " takes no quantized activations");
  const Place place(state_->gpu(), stream, q, threads);
  BorrowOptions as_codes = place.array("q");
  Borrowed codes(q, as_codes);
  if (codes.view().dtype == DType::kUInt8) {
    as_codes.dtype = key->dtype;
    codes = Borrowed(q, as_codes);
  }
  const Borrowed scales = Borrowed::array_or_number(scale, place.array("scale"));
  const Borrowed zero_points = Borrowed::optional(zero_point, place.array("zero_point"));
  const QuantizedActivation x{codes.view(), scales.view(), zero_points.view(), *key};
  return into(q, codes.view().shape, state_->linear.config(), out, place, [&](const TensorView& y) {
    const std::shared_lock lock(state_->mutex);
    kernel.apply_weights(state_->linear.layer(), x, state_->bias(), y, place.context);
  });
}

}  // namespace scaledmm::python
