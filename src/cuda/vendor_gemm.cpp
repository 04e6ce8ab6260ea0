// y = x w^T by cuBLASLt, in its column-major terms: D [n, m] = A^T B with A = w [k, n], B = x [k, m].
// Its heuristic chooses an algorithm once for each shape, with the workspace that the caller brings; FP8 sums are not
// accumulated in the fast, short form.
#include "cuda/vendor_gemm.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "cuda/cublaslt_api.hpp"
#include "cuda/failure.hpp"
#include "cuda/scale_sums.hpp"

namespace scaledmm::cuda {
namespace {

using namespace cublaslt;

// What one shape needs, made once.
struct Plan {
  Descriptor descriptor = nullptr;
  Layout a = nullptr, b = nullptr, d = nullptr;
  Algorithm algorithm{};
};

using Key = std::tuple<int, bool, bool, std::int64_t, std::int64_t, std::int64_t, DType, std::int64_t>;

struct Vendor {
  Library library{};
  std::string fault;  // empty when it is usable
  std::mutex mutex;   // guards what follows
  std::map<int, Handle> handles;
  std::map<Key, Plan> plans;
};

template <class Function>
void find_symbol(void* library, const char* name, Function& function, std::string& fault) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && fault.empty()) fault = std::string("cuBLASLt has no ") + name;
}

void open(Vendor& vendor) {
  void* library = nullptr;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (vendor.fault.empty()) vendor.fault = std::string("no cuBLASLt: ") + dlerror();
  }
  if (library == nullptr) return;
  vendor.fault.clear();
  Library& lt = vendor.library;
  find_symbol(library, "cublasLtCreate", lt.create, vendor.fault);
  find_symbol(library, "cublasLtMatmulDescCreate", lt.create_descriptor, vendor.fault);
  find_symbol(library, "cublasLtMatmulDescSetAttribute", lt.set_descriptor, vendor.fault);
  find_symbol(library, "cublasLtMatrixLayoutCreate", lt.create_layout, vendor.fault);
  find_symbol(library, "cublasLtMatmulPreferenceCreate", lt.create_preference, vendor.fault);
  find_symbol(library, "cublasLtMatmulPreferenceDestroy", lt.destroy_preference, vendor.fault);
  find_symbol(library, "cublasLtMatmulPreferenceSetAttribute", lt.set_preference, vendor.fault);
  find_symbol(library, "cublasLtMatmulAlgoGetHeuristic", lt.find, vendor.fault);
  find_symbol(library, "cublasLtMatmul", lt.multiply, vendor.fault);
}

Vendor& vendor() {
  static Vendor* const instance = [] {
    auto* made = new Vendor;
    open(*made);
    return made;
  }();
  return *instance;
}

Failure check_lt(const char* call, int status) {
  return status == kSuccess ? nullptr : fail(std::string(call) + ": cuBLAS status " + std::to_string(status));
}

cudaDataType_t sum_type(const VendorGemm& g) {
  if (g.is_int8) return CUDA_R_32I;
  if (!g.is_direct || g.y_dtype == DType::kF32) return CUDA_R_32F;
  return g.y_dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

std::int64_t d_stride(const VendorGemm& g) { return g.is_direct ? g.y_stride : g.n; }

Failure make_plan(const VendorGemm& g, Handle handle, const Library& lt, Plan& plan) {
  const cudaDataType_t code = g.is_int8 ? CUDA_R_8I : CUDA_R_8F_E4M3;
  const auto m = static_cast<std::uint64_t>(g.padded_m), n = static_cast<std::uint64_t>(g.n),
             k = static_cast<std::uint64_t>(g.k);
  Failure failure =
      check_lt("cublasLtMatmulDescCreate", lt.create_descriptor(&plan.descriptor, g.is_int8 ? kCompute32I : kCompute32F,
                                                                g.is_int8 ? CUDA_R_32I : CUDA_R_32F));
  const std::int32_t transposed = kTransposed;
  if (failure == nullptr) {
    failure = check_lt("cublasLtMatmulDescSetAttribute",
                       lt.set_descriptor(plan.descriptor, kTransposeA, &transposed, sizeof transposed));
  }
  const auto layout = [&](Layout& made, cudaDataType_t type, std::uint64_t rows, std::uint64_t columns,
                          std::int64_t stride) {
    if (failure == nullptr) {
      failure = check_lt("cublasLtMatrixLayoutCreate", lt.create_layout(&made, type, rows, columns, stride));
    }
  };
  layout(plan.a, code, k, n, g.k);
  layout(plan.b, code, k, m, g.k);
  layout(plan.d, sum_type(g), n, m, d_stride(g));
  Preference preference = nullptr;
  if (failure == nullptr) failure = check_lt("cublasLtMatmulPreferenceCreate", lt.create_preference(&preference));
  if (failure != nullptr) return failure;
  const auto workspace = static_cast<std::uint64_t>(g.workspace_bytes);
  failure = check_lt("cublasLtMatmulPreferenceSetAttribute",
                     lt.set_preference(preference, kMaxWorkspaceBytes, &workspace, sizeof workspace));
  Heuristic best{};
  int found = 0;
  if (failure == nullptr) {
    failure = check_lt("cublasLtMatmulAlgoGetHeuristic",
                       lt.find(handle, plan.descriptor, plan.a, plan.b, plan.d, plan.d, preference, 1, &best, &found));
  }
  static_cast<void>(lt.destroy_preference(preference));
  if (failure == nullptr && found == 0) {
    failure = fail("cuBLASLt has no algorithm for M = " + std::to_string(g.m) + ", N = " + std::to_string(g.n) +
                   ", K = " + std::to_string(g.k));
  }
  plan.algorithm = best.algorithm;
  return failure;
}

Failure multiply(int device, const VendorGemm& g, cudaStream_t stream) {
  Vendor& v = vendor();
  const std::lock_guard lock(v.mutex);
  Handle& handle = v.handles[device];
  if (handle == nullptr) {
    if (const Failure failure = check_lt("cublasLtCreate", v.library.create(&handle))) return failure;
  }
  const Key key{device, g.is_int8, g.is_direct, g.padded_m, g.n, g.k, g.y_dtype, d_stride(g)};
  auto at = v.plans.find(key);
  if (at == v.plans.end()) {
    Plan made;
    if (const Failure failure = make_plan(g, handle, v.library, made)) return failure;
    at = v.plans.emplace(key, made).first;
  }
  const Plan& plan = at->second;
  if (g.is_direct) {  // the scales of this call
    const void* w_scale = g.w_scale;
    const void* x_scale = g.x_scale;
    Failure failure = check_lt("cublasLtMatmulDescSetAttribute",
                               v.library.set_descriptor(plan.descriptor, kScaleA, &w_scale, sizeof w_scale));
    if (failure == nullptr) {
      failure = check_lt("cublasLtMatmulDescSetAttribute",
                         v.library.set_descriptor(plan.descriptor, kScaleB, &x_scale, sizeof x_scale));
    }
    if (failure != nullptr) return failure;
  }
  const float one = 1, zero = 0;
  const std::int32_t one_int = 1, zero_int = 0;
  const void* alpha = g.is_int8 ? static_cast<const void*>(&one_int) : &one;
  const void* beta = g.is_int8 ? static_cast<const void*>(&zero_int) : &zero;
  void* d = g.is_direct ? g.y : g.sums;
  return check_lt("cublasLtMatmul", v.library.multiply(handle, plan.descriptor, alpha, g.w, plan.a, g.x, plan.b, beta,
                                                       d, plan.d, d, plan.d, &plan.algorithm, g.workspace,
                                                       static_cast<std::size_t>(g.workspace_bytes), stream));
}

}  // namespace

Failure open_vendor() {
  const Vendor& v = vendor();
  return v.fault.empty() ? nullptr : v.fault.c_str();
}

Failure run_vendor_gemm(Place place, const VendorGemm* gemm) {
  if (const Failure failure = open_vendor()) return failure;
  const DeviceScope scope(place.device);
  if (const Failure failure = check("cudaSetDevice", scope.error())) return failure;
  if (const Failure failure = multiply(place.device, *gemm, stream_of(place))) return failure;
  if (gemm->is_direct) return nullptr;
  return check("scale_sums", launch_scale_sums(*gemm, gemm->n, stream_of(place)));
}

}  // namespace scaledmm::cuda
