#include "linear_object.hpp"

#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>

#include "borrowed.hpp"
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

std::shared_ptr<LinearState> make_state(Linear linear) {
  const std::int64_t handle = handles().add({});
  const std::shared_ptr<LinearState> state(new LinearState(std::move(linear), handle), [](LinearState* self) {
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
Borrowed borrow_weight(nb::handle weight, DType dtype) {
  Borrowed held(weight, {.what = "weight"});
  if (held.view().dtype == DType::kUInt8) return {weight, {.what = "weight", .dtype = dtype}};
  return held;
}

HeldTensors borrow_tensors(const LayerConfig& config, const LayerArguments& arguments) {
  HeldTensors held{borrow_weight(arguments.weight, weight_dtype(config)),
                   Borrowed::array_or_number(arguments.weight_scale, {.what = "weight_scale"}),
                   Borrowed::optional(arguments.bias, {.what = "bias"}),
                   Borrowed::optional(arguments.input_scale, {.what = "input_scale"}),
                   Borrowed::optional(arguments.input_zero_point, {.what = "input_zero_point"}),
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
  const HeldTensors held = borrow_tensors(config, arguments);
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

// Calls fill(y) without the GIL on `out` or on a new array like x, and returns it.
template <class Fill>
nb::object into(nb::handle like, const Shape& x_shape, const LayerConfig& config, nb::handle out, const Fill& fill) {
  if (!out.is_none()) {
    const Borrowed y(out, {.what = "out", .writable = true});
    {
      const nb::gil_scoped_release released;
      fill(y.view());
    }
    return nb::borrow(out);
  }
  Result result(like, out_dtype(config), output_shape(x_shape, weight_shape(config).n));
  {
    const nb::gil_scoped_release released;
    fill(result.view());
  }
  return result.finish();
}

}  // namespace

LinearObject::LinearObject(const LayerConfig& config, const LayerArguments& arguments, const Choice& choice,
                           int threads) {
  LinearOptions options;
  options.select = choice.options();
  options.threading = threading(threads);
  state_ = make_state(make_linear(config, arguments, options));
}

LinearObject::LinearObject(Linear linear) : state_(make_state(std::move(linear))) {}

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
  options.threading = threading(threads);
  Linear fresh = make_linear(state_->linear.config(), arguments, options);
  // The GIL is kept: those who read properties hold it, those who multiply hold the mutex and finish without it.
  const std::unique_lock lock(state_->mutex);
  std::swap(state_->linear, fresh);
}

nb::object LinearObject::apply(nb::handle x, nb::handle out, int threads) const {
  const Borrowed input(x, {.what = "x"});
  return into(x, input.view().shape, state_->linear.config(), out, [&](const TensorView& y) {
    const std::shared_lock lock(state_->mutex);
    state_->linear.apply(input.view(), y, thread_context(threads));
  });
}

nb::object LinearObject::apply_with_bias(nb::handle x, nb::handle bias) const {
  if (state_->linear.bias().defined()) throw InvalidArgument("the layer has a bias of its own, the call has another");
  const Borrowed input(x, {.what = "x"});
  const Borrowed added(bias, {.what = "bias"});
  return into(x, input.view().shape, state_->linear.config(), nb::none(), [&](const TensorView& y) {
    const std::shared_lock lock(state_->mutex);
    state_->linear.kernel().apply_weights(state_->linear.layer(), input.view(), added.view(), y, thread_context(0));
  });
}

nb::object LinearObject::apply_quantized(nb::handle q, nb::handle scale, nb::handle zero_point, nb::handle out,
                                         int threads) const {
  const LinearKernel& kernel = state_->linear.kernel();
  const std::optional<QuantKey> key = kernel.input_quant_key(state_->linear.config());
  if (!key) throw InvalidArgument("kernel " + std::string(kernel.name()) + " takes no quantized activations");
  Borrowed codes(q, {.what = "q"});
  if (codes.view().dtype == DType::kUInt8) codes = Borrowed(q, {.what = "q", .dtype = key->dtype});
  const Borrowed scales = Borrowed::array_or_number(scale, {.what = "scale"});
  const Borrowed zero_points = Borrowed::optional(zero_point, {.what = "zero_point"});
  const QuantizedActivation x{codes.view(), scales.view(), zero_points.view(), *key};
  return into(q, codes.view().shape, state_->linear.config(), out, [&](const TensorView& y) {
    const std::shared_lock lock(state_->mutex);
    kernel.apply_weights(state_->linear.layer(), x, state_->linear.bias(), y, thread_context(threads));
  });
}

}  // namespace scaledmm::python
