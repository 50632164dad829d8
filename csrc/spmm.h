// The product of a sparse matrix, compressed by target, with a dense one, and terms beside it:
//
//   y_n = a sum_e w_e x_index(e) + plus_n + c before_n, over the entries e of each target n, in their order.
//
// Of all dense matrices the rows may be parts of longer ones.

#pragma once

#include <cstdint>

template <typename T>
struct Spmm {
  const T* x;  // (M, W)
  const T* weight;  // (E,), or null for ones
  const int32_t* ptr;  // (N + 1,)
  const int32_t* index;
  T* y;  // (N, W)
  int64_t M, W, N, E;
  int64_t x_stride, y_stride;
  T a = 1, c = 0;
  const T* plus = nullptr;  // (N, W), or null for zeros
  const T* before = nullptr;
  int64_t plus_stride = 0, before_stride = 0;
};

// False where an index, or a pointer, is out of range; what was to be written is without meaning then.
template <typename T>
bool spmm(const Spmm<T>& call);

// The polynomials p_0 = I, p_1 = S, p_{k+1} = a S p_k + c p_{k-1}, K of them, of a square matrix S of N rows, of which
// `ptr`, `index` and `weight` are given as above.
template <typename T>
struct Polynomials {
  const T* weight;
  const int32_t* ptr;
  const int32_t* index;
  int64_t N, E, K;
  T a, c;

  bool expand(const T* x, T* y, int64_t W) const;  // (N, W) -> (N, K W): p_k x for all k
  bool combine(const T* z, T* y, int64_t W) const;  // (N, K W) -> (N, W): the sum of all p_k z_k
};
