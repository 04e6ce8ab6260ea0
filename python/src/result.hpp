// Results in the framework that the input came from.
#pragma once

#include <nanobind/nanobind.h>

#include "borrowed.hpp"
#include "dlpack.hpp"
#include "scaledmm/tensor.hpp"

namespace scaledmm::python {

// New packed memory for a result: torch for torch, numpy for numpy, jax for jax, scaledmm.Array for the rest. On a GPU:
// torch for torch, cupy for cupy. Errors: InvalidArgument for other frameworks there.
class Result {
 public:
  Result(nanobind::handle like, DType dtype, const Shape& shape, int gpu = kHost);
  ~Result();
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;

  const TensorView& view() const { return view_; }
  // The object to return. Call it once, when the memory is filled.
  nanobind::object finish();

 private:
  TensorView view_;
  nanobind::object object_;             // numpy, Array, older torch
  const DlExchangeApi* api_ = nullptr;  // frameworks that allocate for us
  DlManagedTensorVersioned* managed_ = nullptr;
  bool as_jax_ = false;
};

}  // namespace scaledmm::python
