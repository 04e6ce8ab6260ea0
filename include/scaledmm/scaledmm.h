/* scaledmm in C: quantized linear layers from checkpoints or from tensors. Compiles as C11 and C++.
 *
 * Every function returns a status; the text of the last failure in this thread is scaledmm_last_error(). No exception
 * crosses. Handles are opaque. A scaledmm_linear may be used by several threads at once, a scaledmm_context by one.
 * Structs begin with their size, set by their _INIT macro, and may grow at the end in later minor versions. */
#ifndef SCALEDMM_SCALEDMM_H_
#define SCALEDMM_SCALEDMM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t scaledmm_status_t;
enum {
  SCALEDMM_OK = 0,
  SCALEDMM_INVALID_ARGUMENT = 1, /* a shape, dtype, stride, name or null pointer */
  SCALEDMM_BAD_CHECKPOINT = 2,   /* a file breaks a rule of its format */
  SCALEDMM_UNSUPPORTED = 3,      /* no kernel fits; the text has every reason */
  SCALEDMM_IO_ERROR = 4,         /* a file cannot be read, written or mapped */
  SCALEDMM_DEVICE_ERROR = 5,     /* a driver's call failed */
  SCALEDMM_OUT_OF_MEMORY = 6,
  SCALEDMM_INTERNAL_ERROR = 7
};

typedef int32_t scaledmm_dtype_t;
enum {
  SCALEDMM_F32 = 0,
  SCALEDMM_BF16 = 1,
  SCALEDMM_F16 = 2,
  SCALEDMM_INT8 = 3,
  SCALEDMM_INT32 = 4,
  SCALEDMM_E4M3FN = 5,
  SCALEDMM_E4M3FNUZ = 6,
  SCALEDMM_E5M2 = 7,
  SCALEDMM_E8M0 = 8,
  SCALEDMM_UINT8 = 9
};

/* What one weight scale covers. */
typedef int32_t scaledmm_weight_scales_t;
enum { SCALEDMM_PER_TENSOR = 0, SCALEDMM_PER_CHANNEL = 1, SCALEDMM_PER_BLOCK = 2 };

/* What happens to the activations. */
typedef int32_t scaledmm_activations_t;
enum {
  SCALEDMM_WEIGHT_ONLY = 0,   /* kept as they are (FP8 weights, W8A16) */
  SCALEDMM_STATIC_TENSOR = 1, /* one scale from the checkpoint */
  SCALEDMM_DYNAMIC_TENSOR = 2,
  SCALEDMM_DYNAMIC_TOKEN = 3,
  SCALEDMM_DYNAMIC_GROUP = 4 /* groups of block_k along K; block weights only */
};

/* A tensor in memory: rank 1 to 8, strides in elements, strides NULL for packed row-major. data NULL: no tensor. */
typedef struct scaledmm_tensor {
  uint32_t struct_size;
  scaledmm_dtype_t dtype;
  void* data;
  int32_t rank;
  const int64_t* shape;
  const int64_t* strides;
} scaledmm_tensor_t;
#define SCALEDMM_TENSOR_INIT \
  { sizeof(scaledmm_tensor_t), SCALEDMM_F32, NULL, 0, NULL, NULL }

/* A layer given by its tensors, weight [n, k]; they may be freed once the linear is made. */
typedef struct scaledmm_layer_desc {
  uint32_t struct_size;
  int64_t n;
  int64_t k;
  scaledmm_dtype_t weight_dtype;
  scaledmm_weight_scales_t weight_scales;
  int64_t block_n; /* PER_BLOCK only */
  int64_t block_k;
  scaledmm_activations_t activations;
  int32_t asymmetric_input; /* INT8: activations have a zero point */
  scaledmm_dtype_t input_dtype;
  scaledmm_dtype_t out_dtype;
  scaledmm_tensor_t weight;
  scaledmm_tensor_t weight_scale;
  scaledmm_tensor_t input_scale;
  scaledmm_tensor_t input_zero_point;
  scaledmm_tensor_t bias;
} scaledmm_layer_desc_t;
#define SCALEDMM_LAYER_DESC_INIT                                                                               \
  {                                                                                                            \
    sizeof(scaledmm_layer_desc_t), 0, 0, SCALEDMM_INT8, SCALEDMM_PER_CHANNEL, 0, 0, SCALEDMM_DYNAMIC_TOKEN, 0, \
        SCALEDMM_BF16, SCALEDMM_BF16, SCALEDMM_TENSOR_INIT, SCALEDMM_TENSOR_INIT, SCALEDMM_TENSOR_INIT,        \
        SCALEDMM_TENSOR_INIT, SCALEDMM_TENSOR_INIT                                                             \
  }

/* How a layer is loaded. */
typedef struct scaledmm_linear_options {
  uint32_t struct_size;
  const char* kernel;   /* NULL: the selector's choice; else this kernel or SCALEDMM_UNSUPPORTED */
  const char* backend;  /* NULL: none preferred */
  const char* disabled; /* NULL, or comma-separated kernel names */
  int32_t threads;      /* for packing; 0: all */
  /* NULL, or packed weights of the same checkpoint: layers that they hold are mapped instead of packed. May be closed
   * once the linear is made. */
  const struct scaledmm_packed* packed;
} scaledmm_linear_options_t;
#define SCALEDMM_LINEAR_OPTIONS_INIT \
  { sizeof(scaledmm_linear_options_t), NULL, NULL, NULL, 0, NULL }

/* What a loaded layer is. Strings live as long as the library. */
typedef struct scaledmm_linear_info {
  uint32_t struct_size;
  int64_t n;
  int64_t k;
  scaledmm_dtype_t input_dtype;
  scaledmm_dtype_t out_dtype;
  int32_t has_bias;
  int32_t deterministic;
  int32_t batch_invariant;
  int32_t thread_invariant;
  int64_t packed_bytes;
  const char* kernel;
  const char* computes; /* w8a8 or w8a16 */
  int32_t is_mapped;    /* its packed weights lie in a packed file */
} scaledmm_linear_info_t;
#define SCALEDMM_LINEAR_INFO_INIT \
  { sizeof(scaledmm_linear_info_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0 }

typedef struct scaledmm_checkpoint scaledmm_checkpoint_t;
typedef struct scaledmm_linear scaledmm_linear_t;
typedef struct scaledmm_context scaledmm_context_t;
typedef struct scaledmm_packed scaledmm_packed_t;

/* Runs fn(context, task) for every task in [0, tasks) on any threads, and returns when all have run. */
typedef void (*scaledmm_parallel_for_t)(void* pool, int64_t tasks, void (*fn)(void* context, int64_t task),
                                        void* context);

/* The library's version; compare with SCALEDMM_VERSION_MAJOR... of scaledmm/version.hpp. */
void scaledmm_version(int32_t* major, int32_t* minor, int32_t* patch);
const char* scaledmm_status_string(scaledmm_status_t status);
/* Text of the last failure in this thread; "" before the first. Valid until the thread's next failing call. */
const char* scaledmm_last_error(void);

scaledmm_status_t scaledmm_checkpoint_open(const char* directory, scaledmm_checkpoint_t** out);
void scaledmm_checkpoint_close(scaledmm_checkpoint_t* checkpoint);
scaledmm_status_t scaledmm_checkpoint_layer_count(const scaledmm_checkpoint_t* checkpoint, int64_t* out);
/* The name lives as long as the checkpoint. */
scaledmm_status_t scaledmm_checkpoint_layer_name(const scaledmm_checkpoint_t* checkpoint, int64_t index,
                                                 const char** out);

/* A layer of a checkpoint, or given by tensors: selected, packed, ready. options NULL: defaults. */
scaledmm_status_t scaledmm_linear_load(const scaledmm_checkpoint_t* checkpoint, const char* layer,
                                       const scaledmm_linear_options_t* options, scaledmm_linear_t** out);
scaledmm_status_t scaledmm_linear_create(const scaledmm_layer_desc_t* desc, const scaledmm_linear_options_t* options,
                                         scaledmm_linear_t** out);
void scaledmm_linear_destroy(scaledmm_linear_t* linear);
scaledmm_status_t scaledmm_linear_get_info(const scaledmm_linear_t* linear, scaledmm_linear_info_t* out);
/* Which kernels could run the layer on this machine and why the others cannot, as text. Writes at most size bytes with
 * the final 0 and the text's length to *length. */
scaledmm_status_t scaledmm_linear_explain(const scaledmm_linear_t* linear, char* text, size_t size, size_t* length);

/* Packed weights in a file, so that a second start maps them. Writing: linears of this checkpoint, as they were loaded;
 * the file appears whole or not at all, and *stored (may be NULL) is how many it holds: kernels without a stored form
 * are left out. Opening: SCALEDMM_BAD_CHECKPOINT for a broken file and for a stale one, and then *stale (may be NULL)
 * is 1: write it again. */
scaledmm_status_t scaledmm_packed_write(const char* file, const scaledmm_checkpoint_t* checkpoint,
                                        const scaledmm_linear_t* const* linears, int64_t count, int64_t* stored);
scaledmm_status_t scaledmm_packed_open(const char* file, const scaledmm_checkpoint_t* checkpoint, int32_t* stale,
                                       scaledmm_packed_t** out);
void scaledmm_packed_close(scaledmm_packed_t* packed);

/* y[..., n] = x[..., k] W^T (+ bias). */
scaledmm_status_t scaledmm_linear_apply(const scaledmm_linear_t* linear, const scaledmm_tensor_t* x,
                                        const scaledmm_tensor_t* y, scaledmm_context_t* context);

/* threads 0: SCALEDMM_NUM_THREADS, else every CPU of the affinity mask. parallel_for NULL: the library's pool. */
scaledmm_status_t scaledmm_context_create(int32_t threads, scaledmm_parallel_for_t parallel_for, void* pool,
                                          scaledmm_context_t** out);
void scaledmm_context_destroy(scaledmm_context_t* context);

#ifdef __cplusplus
}
#endif

#endif /* SCALEDMM_SCALEDMM_H_ */
