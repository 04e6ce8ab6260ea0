#include "formats/row_matrix.hpp"

namespace scaledmm {

RowMatrix product(const ConstRows& a, const ConstRows& b) { return a * b; }

RowMatrix transposed_product(const ConstRows& a, const ConstRows& b) { return a.transpose() * b; }

void add_transposed_product(const ConstRows& a, const ConstRows& b, Rows c) { c.noalias() += a.transpose() * b; }

void subtract_product(const ConstRows& a, const ConstRows& b, Rows c) { c.noalias() -= a * b; }

}  // namespace scaledmm
