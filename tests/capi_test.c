/* scaledmm.h from C: a layer made of tensors, its result, and every kind of refusal. */
#define _XOPEN_SOURCE 700 /* mkdtemp */
#include "scaledmm/scaledmm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

#define EXPECT(condition)                                                                        \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      printf("%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition, scaledmm_last_error()); \
      ++failures;                                                                                \
    }                                                                                            \
  } while (0)

static const int8_t kWeight[2][4] = {{1, 2, 3, 4}, {-5, 6, -7, 8}};
static const float kScale[2] = {0.25f, 0.5f};
static const float kBias[2] = {1, -1};
static const int64_t kWeightShape[2] = {2, 4};
static const int64_t kChannelShape[1] = {2};

static scaledmm_tensor_t tensor(const void* data, scaledmm_dtype_t dtype, int32_t rank, const int64_t* shape) {
  scaledmm_tensor_t t = SCALEDMM_TENSOR_INIT;
  t.data = (void*)data;
  t.dtype = dtype;
  t.rank = rank;
  t.shape = shape;
  return t;
}

static scaledmm_layer_desc_t small_layer(void) {
  scaledmm_layer_desc_t desc = SCALEDMM_LAYER_DESC_INIT;
  desc.n = 2;
  desc.k = 4;
  desc.input_dtype = SCALEDMM_F32;
  desc.out_dtype = SCALEDMM_F32;
  desc.weight = tensor(kWeight, SCALEDMM_INT8, 2, kWeightShape);
  desc.weight_scale = tensor(kScale, SCALEDMM_F32, 1, kChannelShape);
  desc.bias = tensor(kBias, SCALEDMM_F32, 1, kChannelShape);
  return desc;
}

static void runs_a_layer(void) {
  const scaledmm_layer_desc_t desc = small_layer();
  scaledmm_linear_t* linear = NULL;
  scaledmm_context_t* context = NULL;
  EXPECT(scaledmm_linear_create(&desc, NULL, &linear) == SCALEDMM_OK);
  EXPECT(scaledmm_context_create(2, NULL, NULL, &context) == SCALEDMM_OK);

  scaledmm_linear_info_t info = SCALEDMM_LINEAR_INFO_INIT;
  EXPECT(scaledmm_linear_get_info(linear, &info) == SCALEDMM_OK);
  EXPECT(info.n == 2 && info.k == 4 && info.has_bias && info.packed_bytes > 0);
  EXPECT(strcmp(info.computes, "w8a8") == 0 && strlen(info.kernel) > 0);

  const float x[2][4] = {{127, 0, 127, 0}, {0, 0, 0, 0}};
  float y[2][2] = {{0}};
  const int64_t x_shape[2] = {2, 4}, y_shape[2] = {2, 2};
  const scaledmm_tensor_t x_tensor = tensor(x, SCALEDMM_F32, 2, x_shape);
  const scaledmm_tensor_t y_tensor = tensor(y, SCALEDMM_F32, 2, y_shape);
  EXPECT(scaledmm_linear_apply(linear, &x_tensor, &y_tensor, context) == SCALEDMM_OK);
  EXPECT(y[0][0] == 128 && y[0][1] == -763 && y[1][0] == 1 && y[1][1] == -1);

  char text[64];
  size_t length = 0;
  EXPECT(scaledmm_linear_explain(linear, text, sizeof text, &length) == SCALEDMM_OK);
  EXPECT(length > sizeof text && strlen(text) == sizeof text - 1 && strncmp(text, "int8 W8A8", 9) == 0);

  const int64_t wrong_shape[2] = {2, 3};
  const scaledmm_tensor_t wrong = tensor(x, SCALEDMM_F32, 2, wrong_shape);
  EXPECT(scaledmm_linear_apply(linear, &wrong, &y_tensor, context) == SCALEDMM_INVALID_ARGUMENT);
  EXPECT(strstr(scaledmm_last_error(), "[2, 3]") != NULL && strstr(scaledmm_last_error(), "4") != NULL);
  EXPECT(scaledmm_linear_apply(linear, &x_tensor, &y_tensor, NULL) == SCALEDMM_INVALID_ARGUMENT);

  scaledmm_context_destroy(context);
  scaledmm_linear_destroy(linear);
}

static void refuses_what_cannot_be(void) {
  scaledmm_linear_t* linear = (scaledmm_linear_t*)&failures;
  scaledmm_layer_desc_t desc = small_layer();
  scaledmm_linear_options_t options = SCALEDMM_LINEAR_OPTIONS_INIT;
  options.kernel = "fp8_w8a16_avx2";
  EXPECT(scaledmm_linear_create(&desc, &options, &linear) == SCALEDMM_UNSUPPORTED);
  EXPECT(linear == NULL);
  EXPECT(strstr(scaledmm_last_error(), "fp8_w8a16_avx2 was forced") != NULL);
  options.kernel = "abacus";
  EXPECT(scaledmm_linear_create(&desc, &options, &linear) == SCALEDMM_INVALID_ARGUMENT);
  desc.struct_size = 2;
  EXPECT(scaledmm_linear_create(&desc, NULL, &linear) == SCALEDMM_INVALID_ARGUMENT);
  desc = small_layer();
  desc.weight_scale.data = NULL;
  EXPECT(scaledmm_linear_create(&desc, NULL, &linear) == SCALEDMM_INVALID_ARGUMENT);
  EXPECT(scaledmm_linear_create(NULL, NULL, &linear) == SCALEDMM_INVALID_ARGUMENT);

  scaledmm_checkpoint_t* checkpoint = NULL;
  EXPECT(scaledmm_checkpoint_open("no/such/folder", &checkpoint) != SCALEDMM_OK);
  EXPECT(checkpoint == NULL && strstr(scaledmm_last_error(), "no/such/folder") != NULL);
}

/* A caller that was compiled against a later version: accepted while the unknown tail is zero. */
static void takes_longer_structs(void) {
  struct {
    scaledmm_linear_options_t options;
    int64_t later;
  } longer = {SCALEDMM_LINEAR_OPTIONS_INIT, 0};
  longer.options.struct_size = sizeof longer;
  const scaledmm_layer_desc_t desc = small_layer();
  scaledmm_linear_t* linear = NULL;
  EXPECT(scaledmm_linear_create(&desc, &longer.options, &linear) == SCALEDMM_OK);
  scaledmm_linear_destroy(linear);
  longer.later = 1;
  EXPECT(scaledmm_linear_create(&desc, &longer.options, &linear) == SCALEDMM_INVALID_ARGUMENT);
}

static void write_text(const char* path, const char* text) {
  FILE* file = fopen(path, "w");
  EXPECT(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* A checkpoint folder with the small layer. */
static void write_checkpoint(const char* folder) {
  static const char kHeader[] =
      "{\"up.weight_scale\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
      "\"up.weight\":{\"dtype\":\"I8\",\"shape\":[2,4],\"data_offsets\":[8,16]}}";
  char path[128];
  snprintf(path, sizeof path, "%s/config.json", folder);
  write_text(path,
             "{\"torch_dtype\":\"float32\",\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
             "\"format\":\"int-quantized\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],"
             "\"weights\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"},"
             "\"input_activations\":{\"num_bits\":8,\"type\":\"int\",\"strategy\":\"token\",\"dynamic\":true}}}}}");
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  FILE* file = fopen(path, "wb");
  const uint64_t length = sizeof kHeader - 1;
  EXPECT(file != NULL && fwrite(&length, 8, 1, file) == 1 && fwrite(kHeader, length, 1, file) == 1 &&
         fwrite(kScale, sizeof kScale, 1, file) == 1 && fwrite(kWeight, sizeof kWeight, 1, file) == 1 &&
         fclose(file) == 0);
}

static void maps_packed_weights(void) {
  char folder[] = "/tmp/scaledmm_capi_XXXXXX", path[128], packed_path[128];
  EXPECT(mkdtemp(folder) != NULL);
  write_checkpoint(folder);
  snprintf(packed_path, sizeof packed_path, "%s/packed", folder);
  scaledmm_checkpoint_t* checkpoint = NULL;
  scaledmm_linear_t *packed_here = NULL, *mapped = NULL;
  scaledmm_packed_t* packed = NULL;
  int64_t stored = -1;
  int32_t stale = -1;
  EXPECT(scaledmm_checkpoint_open(folder, &checkpoint) == SCALEDMM_OK);
  EXPECT(scaledmm_linear_load(checkpoint, "up", NULL, &packed_here) == SCALEDMM_OK);
  const scaledmm_linear_t* linears[1] = {packed_here};
  EXPECT(scaledmm_packed_write(packed_path, checkpoint, linears, 1, &stored) == SCALEDMM_OK);
  EXPECT(scaledmm_packed_open(packed_path, checkpoint, &stale, &packed) == SCALEDMM_OK && stale == 0);
  scaledmm_linear_options_t options = SCALEDMM_LINEAR_OPTIONS_INIT;
  options.packed = packed;
  EXPECT(scaledmm_linear_load(checkpoint, "up", &options, &mapped) == SCALEDMM_OK);
  scaledmm_packed_close(packed);
  scaledmm_linear_info_t info = SCALEDMM_LINEAR_INFO_INIT, mapped_info = SCALEDMM_LINEAR_INFO_INIT;
  EXPECT(scaledmm_linear_get_info(packed_here, &info) == SCALEDMM_OK && info.is_mapped == 0);
  EXPECT(scaledmm_linear_get_info(mapped, &mapped_info) == SCALEDMM_OK && mapped_info.is_mapped == (stored == 1));
  EXPECT(strcmp(info.kernel, mapped_info.kernel) == 0 && info.packed_bytes == mapped_info.packed_bytes);
  EXPECT(stored == 1 || strcmp(info.kernel, "reference") == 0);

  EXPECT(scaledmm_packed_write(packed_path, checkpoint, NULL, 1, NULL) == SCALEDMM_INVALID_ARGUMENT);
  snprintf(path, sizeof path, "%s/hf_quant_config.json", folder);
  write_text(path, "{}");
  EXPECT(scaledmm_packed_open(packed_path, checkpoint, &stale, &packed) == SCALEDMM_BAD_CHECKPOINT && stale == 1);
  EXPECT(packed == NULL && strstr(scaledmm_last_error(), "hf_quant_config.json") != NULL);
  remove(path);
  write_text(packed_path, "nothing");
  EXPECT(scaledmm_packed_open(packed_path, checkpoint, &stale, &packed) == SCALEDMM_BAD_CHECKPOINT && stale == 0);

  scaledmm_linear_destroy(mapped);
  scaledmm_linear_destroy(packed_here);
  scaledmm_checkpoint_close(checkpoint);
  remove(packed_path);
  snprintf(path, sizeof path, "%s/config.json", folder);
  remove(path);
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  remove(path);
  remove(folder);
}

int main(void) {
  int32_t major = -1, minor = -1, patch = -1;
  scaledmm_version(&major, &minor, &patch);
  EXPECT(major >= 0 && minor >= 0 && patch >= 0);
  EXPECT(strcmp(scaledmm_status_string(SCALEDMM_IO_ERROR), "I/O error") == 0);
  runs_a_layer();
  refuses_what_cannot_be();
  takes_longer_structs();
  maps_packed_weights();
  printf("%d failed\n", failures);
  return failures == 0 ? 0 : 1;
}
