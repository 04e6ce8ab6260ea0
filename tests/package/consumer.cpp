// A program outside the tree: a 2 x 4 INT8 layer, built against the installed package.
#include <cstdio>
#include <cstring>

#include <scaledmm/scaledmm.hpp>

int main() {
  if (std::strcmp(scaledmm::version(), SCALEDMM_VERSION) != 0) return 1;
  const std::int8_t weight[2][4] = {{1, 2, 3, 4}, {-5, 6, -7, 8}};
  const float weight_scale[2] = {0.25F, 0.5F};
  const float x[4] = {127, 0, 127, 0};
  float y[2] = {};

  scaledmm::Int8ScaledMMLinearLayerConfig config;
  config.weight_shape = {2, 4};
  config.input_dtype = config.out_dtype = scaledmm::DType::kF32;
  scaledmm::LayerWeights weights;
  weights.weight = {weight, scaledmm::DType::kInt8, {2, 4}};
  weights.weight_scale = {weight_scale, scaledmm::DType::kF32, {2}};

  scaledmm::Context context;
  scaledmm::Layer layer(config, weights, "demo");
  const scaledmm::LinearKernel& kernel = scaledmm::select(config, scaledmm::this_cpu());
  kernel.process_weights_after_loading(layer, context);
  kernel.apply_weights(layer, {x, scaledmm::DType::kF32, {1, 4}}, {}, {y, scaledmm::DType::kF32, {1, 2}}, context);
  std::printf("%s: %g %g\n", std::string(kernel.name()).c_str(), y[0], y[1]);
  return y[0] == 127.0F && y[1] == -762.0F ? 0 : 1;
}
