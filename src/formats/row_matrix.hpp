// The matrices of the converter: f32, row-major, as tensors lie in a file.
#pragma once

#include <Eigen/Core>

namespace scaledmm {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
// A matrix or some of its rows and columns, without a copy.
using ConstRows = Eigen::Ref<const RowMatrix, 0, Eigen::OuterStride<>>;
using Rows = Eigen::Ref<RowMatrix, 0, Eigen::OuterStride<>>;

// Products, compiled once: each costs a file that writes it out ten seconds of a sanitizer's compiler.
RowMatrix product(const ConstRows& a, const ConstRows& b);                    // a b
RowMatrix transposed_product(const ConstRows& a, const ConstRows& b);         // a^T b
void add_transposed_product(const ConstRows& a, const ConstRows& b, Rows c);  // c += a^T b
void subtract_product(const ConstRows& a, const ConstRows& b, Rows c);        // c -= a b

}  // namespace scaledmm
