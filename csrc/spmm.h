// The product of a sparse matrix, compressed by target, with a dense one: y_n = sum_e w_e x_index(e), over the entries e
// of each target n, in their order. In double precision, for which torch has no sum of embeddings that is fast.

#pragma once

#include <cstdint>

struct Spmm {
  const double* x;  // (M, W)
  const double* weight;  // (E,), or null for ones
  const int32_t* ptr;  // (N + 1,)
  const int32_t* index;
  double* y;  // (N, W)
  int64_t M, W, N, E;
};

// False where an index, or a pointer, is out of range; what was to be written is without meaning then.
bool spmm(const Spmm& call);
