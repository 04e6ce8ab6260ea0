// Arrays of other frameworks, seen without a copy.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>

#include "dlpack.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm::python {

// The C function table of an object's type, for as long as the process lives; null when it has none of a known version.
const DlExchangeApi* exchange_api(nanobind::handle object);

// Where memory is: the index of a GPU, or one of these.
inline constexpr int kHost = -1;
inline constexpr int kAnywhere = -2;  // as a demand only

// "cuda:0", or "the processor".
std::string place_name(int gpu);

// How an argument is read. `what` names it in messages.
struct BorrowOptions {
  const char* what = "array";
  std::optional<DType> dtype = std::nullopt;  // what the bytes of an integer array hold; nothing: what the array says
  bool writable = false;
  bool outlives_call = false;  // owner() keeps the memory alive; else the caller's reference must
  int gpu = kHost;             // where the memory must be
  void* stream = nullptr;      // of a GPU: where it will be read
};

// A view of an array. Destroy it while holding the GIL.
class Borrowed {
 public:
  // Takes scaledmm.Array, anything with __dlpack__, and numpy arrays of ml_dtypes.
  // Errors: TypeError for an object that is no array; BufferError for one that its framework does not export;
  // ValueError for memory of another place, element types the library does not know, and read-only arrays where
  // `writable`.
  Borrowed(nanobind::handle object, const BorrowOptions& options);
  // Also takes numbers of Python and numpy, as one f32 or int32 element.
  static Borrowed array_or_number(nanobind::handle object, const BorrowOptions& options);
  // Also takes None: an undefined view.
  static Borrowed optional(nanobind::handle object, const BorrowOptions& options);

  const TensorView& view() const { return view_; }
  bool read_only() const { return read_only_; }
  int gpu() const { return gpu_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  Borrowed() = default;
  void take_table(const DlExchangeApi& api, nanobind::handle object, const BorrowOptions& options);
  void take_protocol(nanobind::handle object, const BorrowOptions& options);
  void take_managed(DlManagedTensorVersioned* managed, const BorrowOptions& options);
  void describe(const DlTensor& tensor, const BorrowOptions& options);

  TensorView view_;
  bool read_only_ = false;
  int gpu_ = kHost;
  std::shared_ptr<const void> owner_;
};

// A reference to a Python object that any thread may drop.
std::shared_ptr<const void> hold(nanobind::object object);

}  // namespace scaledmm::python
