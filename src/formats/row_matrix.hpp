// The matrices of the converter: f32, row-major, as tensors lie in a file.
#pragma once

#include <Eigen/Core>

namespace scaledmm {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace scaledmm
