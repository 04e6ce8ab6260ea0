// Everything: quantized linear layers on CPUs and GPUs, without PyTorch.
#pragma once

#include "scaledmm/calibration.hpp"
#include "scaledmm/checkpoint.hpp"
#include "scaledmm/device.hpp"
#include "scaledmm/device_memory.hpp"
#include "scaledmm/dtype.hpp"
#include "scaledmm/error.hpp"
#include "scaledmm/linear.hpp"
#include "scaledmm/quantize.hpp"
#include "scaledmm/registry.hpp"
#include "scaledmm/rotate.hpp"
#include "scaledmm/scheme.hpp"
#include "scaledmm/support.hpp"
#include "scaledmm/tensor.hpp"
#include "scaledmm/tensor_parallel.hpp"
#include "scaledmm/threads.hpp"
#include "scaledmm/version.hpp"
