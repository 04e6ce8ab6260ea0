#include "capi/convert_desc.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "scaledmm/error.hpp"

namespace scaledmm {
namespace {

Shape shape_of(const std::int64_t* sizes, std::int32_t rank) {
  return Shape(std::span<const std::int64_t>(sizes, static_cast<std::size_t>(rank)));
}

// Strides may be negative or zero, which Shape refuses as sizes.
Shape strides_of(const scaledmm_tensor_t& tensor, const Shape& shape) {
  Shape strides = shape;
  for (std::size_t i = 0; i < shape.rank(); ++i) strides[i] = tensor.strides[i];
  return strides;
}

QuantKey activation_key(const scaledmm_layer_desc_t& desc, DType dtype) {
  switch (desc.activations) {
    case SCALEDMM_STATIC_TENSOR:
      return fp8_key(true, GroupShape::per_tensor(), true, DType::kF32, dtype);
    case SCALEDMM_DYNAMIC_TENSOR:
      return fp8_key(false, GroupShape::per_tensor(), true, DType::kF32, dtype);
    case SCALEDMM_DYNAMIC_TOKEN:
      return fp8_key(false, GroupShape::per_token(), true, DType::kF32, dtype);
    case SCALEDMM_DYNAMIC_GROUP:
      return fp8_key(false, {1, desc.block_k}, true, DType::kF32, dtype);
    default:
      throw InvalidArgument("activations = " + std::to_string(desc.activations) + " is no scaledmm_activations_t");
  }
}

GroupShape weight_group(const scaledmm_layer_desc_t& desc) {
  switch (desc.weight_scales) {
    case SCALEDMM_PER_TENSOR:
      return GroupShape::per_tensor();
    case SCALEDMM_PER_CHANNEL:
      return GroupShape::per_channel();
    case SCALEDMM_PER_BLOCK:
      if (desc.block_n < 1 || desc.block_k < 1) {
        throw InvalidArgument("block (" + std::to_string(desc.block_n) + ", " + std::to_string(desc.block_k) +
                              ") is not positive");
      }
      return {desc.block_n, desc.block_k};
    default:
      throw InvalidArgument("weight_scales = " + std::to_string(desc.weight_scales) +
                            " is no scaledmm_weight_scales_t");
  }
}

Int8ScaledMMLinearLayerConfig int8_config(const scaledmm_layer_desc_t& desc) {
  if (desc.activations != SCALEDMM_STATIC_TENSOR && desc.activations != SCALEDMM_DYNAMIC_TOKEN) {
    throw InvalidArgument("int8 layers take SCALEDMM_STATIC_TENSOR or SCALEDMM_DYNAMIC_TOKEN activations");
  }
  Int8ScaledMMLinearLayerConfig config;
  config.is_static_input_scheme = desc.activations == SCALEDMM_STATIC_TENSOR;
  config.is_channelwise = desc.weight_scales == SCALEDMM_PER_CHANNEL;
  config.input_symmetric = desc.asymmetric_input == 0;
  if (desc.weight_scales == SCALEDMM_PER_BLOCK) config.weight_block = weight_group(desc);
  return config;
}

FP8ScaledMMLinearLayerConfig fp8_config(const scaledmm_layer_desc_t& desc, DType dtype) {
  if (desc.asymmetric_input != 0) throw InvalidArgument("asymmetric_input is for int8 layers only");
  FP8ScaledMMLinearLayerConfig config;
  config.weight_quant_key = fp8_key(true, weight_group(desc), true, DType::kF32, dtype);
  config.activation_quant_key.reset();
  if (desc.activations != SCALEDMM_WEIGHT_ONLY) config.activation_quant_key = activation_key(desc, dtype);
  return config;
}

}  // namespace

template <class T>
T sized_copy(const T* caller, const T& defaults, const char* what) {
  if (caller == nullptr) throw InvalidArgument(std::string(what) + " is a null pointer");
  std::uint32_t size = 0;
  std::memcpy(&size, caller, sizeof size);
  if (size < sizeof size) {
    throw InvalidArgument(std::string(what) + "'s struct_size is " + std::to_string(size) +
                          "; begin with its _INIT macro");
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(caller);
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char b) { return b != 0; })) {
    throw InvalidArgument(std::string(what) + " sets fields that this version of the library does not know");
  }
  T copy = defaults;
  std::memcpy(&copy, caller, std::min<std::size_t>(size, sizeof(T)));
  return copy;
}

template scaledmm_layer_desc_t sized_copy(const scaledmm_layer_desc_t*, const scaledmm_layer_desc_t&, const char*);
template scaledmm_linear_options_t sized_copy(const scaledmm_linear_options_t*, const scaledmm_linear_options_t&,
                                              const char*);
template scaledmm_tensor_t sized_copy(const scaledmm_tensor_t*, const scaledmm_tensor_t&, const char*);

DType dtype_of(scaledmm_dtype_t dtype, const char* what) {
  if (dtype < SCALEDMM_F32 || dtype > SCALEDMM_UINT8) {
    throw InvalidArgument(std::string(what) + " = " + std::to_string(dtype) + " is no scaledmm_dtype_t");
  }
  return static_cast<DType>(dtype);
}

TensorView view(const scaledmm_tensor_t& tensor, const char* what) {
  if (tensor.rank < 0 || (tensor.rank > 0 && tensor.shape == nullptr)) {
    throw InvalidArgument(std::string(what) + " has rank " + std::to_string(tensor.rank) + " without a shape");
  }
  const Shape shape = shape_of(tensor.shape, tensor.rank);
  const DType dtype = dtype_of(tensor.dtype, what);
  if (tensor.strides == nullptr) return {tensor.data, dtype, shape};
  return {tensor.data, dtype, shape, strides_of(tensor, shape)};
}

ConstTensorView const_view(const scaledmm_tensor_t& tensor, const char* what) {
  return tensor.data == nullptr ? ConstTensorView() : ConstTensorView(view(tensor, what));
}

LayerConfig config_of(const scaledmm_layer_desc_t& desc) {
  const DType dtype = dtype_of(desc.weight_dtype, "weight_dtype");
  const auto complete = [&](auto config) -> LayerConfig {
    config.weight_shape = {desc.n, desc.k};
    config.input_dtype = dtype_of(desc.input_dtype, "input_dtype");
    config.out_dtype = dtype_of(desc.out_dtype, "out_dtype");
    return config;
  };
  if (dtype == DType::kInt8) return complete(int8_config(desc));
  if (is_fp8(dtype)) return complete(fp8_config(desc, dtype));
  throw InvalidArgument("weight_dtype " + std::string(name(dtype)) + " is neither int8 nor an 8-bit float");
}

LayerWeights weights_of(const scaledmm_layer_desc_t& desc) {
  LayerWeights weights;
  weights.weight = const_view(desc.weight, "weight");
  weights.weight_scale = const_view(desc.weight_scale, "weight_scale");
  weights.input_scale = const_view(desc.input_scale, "input_scale");
  weights.input_zero_point = const_view(desc.input_zero_point, "input_zero_point");
  return weights;
}

LinearOptions options_of(const scaledmm_linear_options_t& options) {
  LinearOptions result;
  if (options.kernel != nullptr) result.select.force = options.kernel;
  if (options.backend != nullptr) result.select.backend = options.backend;
  if (options.disabled != nullptr) result.select.disabled = split_kernel_names(options.disabled);
  result.threading.threads = options.threads;
  return result;
}

}  // namespace scaledmm
