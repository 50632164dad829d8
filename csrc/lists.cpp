// Lists of entries, grouped, counted and normalised in one pass each: what kernels/lists.py does in numpy, and
// kernels/pattern.py.
//
// Arrays come as buffers, and carry their sizes with them. What they are asked to write to is checked before anything
// is written: a function gives False where an index is out of range, and raises where arrays do not fit each other.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "fingerprint.h"
#include "spmm.h"

namespace {

// A one-dimensional contiguous array that Python holds; None is an empty one without numbers.
class Array {
 public:
  Array() = default;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() {
    if (held_) PyBuffer_Release(&view_);
  }

  bool take(PyObject* object, bool writable = false) {
    if (object == Py_None) return true;
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &view_, flags) != 0) return false;
    held_ = true;
    return true;
  }

  bool there() const { return held_; }
  int64_t size() const { return held_ ? view_.len / view_.itemsize : 0; }
  int width() const { return held_ ? static_cast<int>(view_.itemsize) : 0; }
  bool is_float() const { return held_ && (*view_.format == 'f' || *view_.format == 'd'); }

  template <typename T>
  T* at() const {
    return static_cast<T*>(view_.buf);
  }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

// Lets other threads of Python run while it lives, where there is much to do.
class Unlocked {
 public:
  explicit Unlocked(int64_t entries) : state_(entries < (1 << 14) ? nullptr : PyEval_SaveThread()) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() {
    if (state_) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_;
};

PyObject* misfit(const char* what) {
  PyErr_SetString(PyExc_ValueError, what);
  return nullptr;
}

// A number of nodes, members or groups, from `least` on and no more than 32 bits tell apart; -1 with an error otherwise.
int64_t size_of(PyObject* object, int64_t least = 0) {
  const int64_t size = PyLong_AsLongLong(object);
  if (size >= least && size <= INT32_MAX) return size;
  if (!PyErr_Occurred()) misfit("sizes: a number that is too small, or more than 32-bit integers tell apart");
  return -1;
}

// The first of the arguments as integers, addresses among them; false with an error where one is none.
template <size_t count>
bool integers_of(PyObject* const* args, int64_t (&into)[count]) {
  for (size_t i = 0; i < count; ++i)
    if ((into[i] = PyLong_AsLongLong(args[i])) == -1 && PyErr_Occurred()) return false;
  return true;
}

// --- narrow(source, target, E, width, M, N, into): the ends of edges, at two addresses and of 4 or 8 bytes each, as 32-bit
// --- integers, the targets behind the sources

template <typename T>
bool narrow_end(const T* end, int64_t count, int64_t limit, int32_t* into) {
  // Of a negative number the unsigned is large: one comparison checks both ends. No early exit, so that it vectorises.
  uint64_t bad = 0;
  for (int64_t e = 0; e < count; ++e) {
    const T node = end[e];  // read once: what is written is what was checked, whoever else writes there
    bad |= static_cast<uint64_t>(static_cast<int64_t>(node)) >= static_cast<uint64_t>(limit);
    into[e] = static_cast<int32_t>(node);
  }
  return bad == 0;
}

PyObject* narrow(PyObject* const* args, Py_ssize_t count) {
  if (count != 7) return misfit("narrow takes 7 arguments");
  int64_t given[6];  // two addresses, E, width, M, N
  if (!integers_of(args, given)) return nullptr;
  const int64_t E = given[2], width = given[3];
  Array into;
  if (!into.take(args[6], true)) return nullptr;
  const bool sized = std::min(given[4], given[5]) >= 0 && std::max(given[4], given[5]) <= INT32_MAX;
  if (E < 0 || into.width() != 4 || into.size() != 2 * E || (width != 4 && width != 8) || !sized)
    return misfit("narrow: arrays of other sizes");
  bool within = true;
  {
    const Unlocked others(E);
    for (int i = 0; i < 2; ++i) {
      int32_t* to = into.at<int32_t>() + i * E;
      within &= width == 8 ? narrow_end(reinterpret_cast<const int64_t*>(given[i]), E, given[4 + i], to)
                           : narrow_end(reinterpret_cast<const int32_t*>(given[i]), E, given[4 + i], to);
    }
  }
  return PyBool_FromLong(within);
}

// --- looped(source, target, N, into_source, into_target): the edges but loops, and a loop of each node behind them

int64_t with_loops(const int32_t* m, const int32_t* n, int64_t E, int64_t N, int32_t* to_m, int32_t* to_n) {
  int64_t kept = 0;
  for (int64_t e = 0; e < E; ++e) {
    to_m[kept] = m[e], to_n[kept] = n[e];
    kept += m[e] != n[e];
  }
  for (int64_t i = 0; i < N; ++i) to_m[kept + i] = to_n[kept + i] = static_cast<int32_t>(i);
  return kept + N;
}

PyObject* looped(PyObject* const* args, Py_ssize_t count) {
  if (count != 5) return misfit("looped takes 5 arguments");
  Array source, target, into_source, into_target;
  if (!source.take(args[0]) || !target.take(args[1])) return nullptr;
  const int64_t N = size_of(args[2]);
  if (N < 0) return nullptr;
  if (!into_source.take(args[3], true) || !into_target.take(args[4], true)) return nullptr;
  const int64_t E = source.size();
  if (target.size() != E || into_source.size() < E + N || into_target.size() < E + N || source.width() != 4 ||
      target.width() != 4 || into_source.width() != 4 || into_target.width() != 4)
    return misfit("looped: arrays of other sizes");
  return PyLong_FromLongLong(with_loops(source.at<int32_t>(), target.at<int32_t>(), E, N, into_source.at<int32_t>(),
                                        into_target.at<int32_t>()));
}

// --- over_degrees(kind, K, source, target, M, N, norm, weight): see the twin in lists.py

// The members of nodes, of K matrices: each edge is of its kind, or all are of the only one.
struct Only {
  int64_t operator()(int32_t node, int64_t) const { return node; }
};

struct Kinds {
  const int32_t* kind;
  int64_t K;

  int64_t operator()(int32_t node, int64_t e) const { return node * K + kind[e]; }
};

// Of each member: 1 over the number of edges at it, or over its root; 0 where there are none.
template <typename T, bool roots, typename Member>
std::vector<T> inverses(const int32_t* end, int64_t E, int64_t members, Member member) {
  std::vector<int32_t> found(members, 0);
  int32_t* __restrict count = found.data();
  for (int64_t e = 0; e < E; ++e) ++count[member(end[e], e)];
  std::vector<T> out(members);
  for (int64_t i = 0; i < members; ++i) {
    const T some = static_cast<T>(count[i] > 1 ? count[i] : 1), any = static_cast<T>(count[i] > 0);
    out[i] = any / (roots ? std::sqrt(some) : some);  // without a branch, so that it vectorises
  }
  return out;
}

template <typename T, typename Member>
void weigh(const int32_t* m, const int32_t* n, int64_t E, int64_t of_sources, int64_t of_targets, char norm,
           T* __restrict weight, Member member) {
  if (norm == 's' || norm == 'e') {  // over the roots of the degrees of both ends
    const auto into = inverses<T, true>(n, E, of_targets, member);
    const auto out = norm == 's' ? std::vector<T>() : inverses<T, true>(m, E, of_sources, member);
    const T *left = (norm == 's' ? into : out).data(), *right = into.data();
    for (int64_t e = 0; e < E; ++e) weight[e] = left[member(m[e], e)] * right[member(n[e], e)];
    return;
  }
  const int32_t* end = norm == 'r' ? m : n;  // over the number of edges out of the source, or into the target
  const auto inverse = inverses<T, false>(end, E, norm == 'r' ? of_sources : of_targets, member);
  const T* one = inverse.data();
  for (int64_t e = 0; e < E; ++e) weight[e] = one[member(end[e], e)];
}

template <typename T>
void weigh(const int32_t* kind, int64_t K, const int32_t* m, const int32_t* n, int64_t E, int64_t M, int64_t N,
           char norm, T* weight) {
  if (kind)
    weigh(m, n, E, M * K, N * K, norm, weight, Kinds{kind, K});
  else
    weigh(m, n, E, M, N, norm, weight, Only{});
}

bool below(const int32_t* index, int64_t count, int64_t limit) {
  uint32_t bad = 0;
  const uint32_t size = static_cast<uint32_t>(limit);
  for (int64_t e = 0; e < count; ++e) bad |= static_cast<uint32_t>(index[e]) >= size;
  return bad == 0;
}

PyObject* over_degrees(PyObject* const* args, Py_ssize_t count) {
  if (count != 8) return misfit("over_degrees takes 8 arguments");
  Array kind, source, target, weight;
  if (!kind.take(args[0]) || !source.take(args[2]) || !target.take(args[3]) || !weight.take(args[7], true))
    return nullptr;
  const int64_t K = size_of(args[1], 1), M = size_of(args[4]), N = size_of(args[5]), E = source.size();
  if (K < 0 || M < 0 || N < 0) return nullptr;
  Py_ssize_t length = 0;
  const char* norm = PyUnicode_AsUTF8AndSize(args[6], &length);
  if (norm == nullptr || PyErr_Occurred()) return nullptr;
  if (source.width() != 4 || target.width() != 4 || target.size() != E || weight.size() != E || !weight.is_float() ||
      (kind.there() && (kind.width() != 4 || kind.size() != E)) || (*norm == 's' && M != N))
    return misfit("over_degrees: arrays of other sizes");
  const int32_t *k = kind.there() ? kind.at<int32_t>() : nullptr, *m = source.at<int32_t>(), *n = target.at<int32_t>();
  bool within;
  {
    const Unlocked others(E);
    within = below(m, E, M) && below(n, E, N) && (!k || below(k, E, K));
    if (within && weight.width() == 4)
      weigh<float>(k, K, m, n, E, M, N, *norm, weight.at<float>());
    else if (within)
      weigh<double>(k, K, m, n, E, M, N, *norm, weight.at<double>());
  }
  return PyBool_FromLong(within);
}

// --- Where groups start, of the number of entries of each, which stand one further on; and these again after each start
// --- has moved on to where the next group starts.

void starts(int32_t* ptr, int64_t groups) {
  int32_t sum = 0;
  for (int64_t g = 0; g <= groups; ++g) ptr[g] = sum += ptr[g];
}

void moved_on(int32_t* ptr, int64_t groups) {
  std::memmove(ptr + 1, ptr, groups * sizeof(int32_t));
  ptr[0] = 0;
}

// --- compressed(lists, K, at_target, M, N, ptr, index, values): entries of K matrices, grouped by target, as they come

struct Entries {
  const int32_t *source, *target;
  const void* weight = nullptr;
  const int32_t* kind = nullptr;
  int64_t size, start = 0;  // how many; and the matrix of all, where each has none of its own
};

// The same in arrays that Python holds.
struct List {
  Array kind, source, target, weight;
  int64_t start = 0;

  bool take(PyObject* list) {
    PyObject* part[4];
    for (int i = 0; i < 4; ++i)
      if ((part[i] = PyTuple_GetItem(list, i)) == nullptr) return false;
    if (PyLong_Check(part[0])) {
      if ((start = size_of(part[0])) < 0) return false;
    } else if (!kind.take(part[0])) {
      return false;
    }
    return source.take(part[1]) && target.take(part[2]) && weight.take(part[3]);
  }

  bool fits(int64_t K, int64_t M, int64_t N, int width) const {
    const int64_t E = source.size();
    return source.width() == 4 && target.width() == 4 && target.size() == E && start >= 0 && start < K &&
           (!kind.there() || (kind.width() == 4 && kind.size() == E && below(kind.at<int32_t>(), E, K))) &&
           (!weight.there() || (weight.size() == E && weight.width() == width && weight.is_float())) &&
           below(source.at<int32_t>(), E, M) && below(target.at<int32_t>(), E, N);
  }

  Entries entries() const {
    return {source.at<int32_t>(), target.at<int32_t>(), weight.there() ? weight.at<void>() : nullptr,
            kind.there() ? kind.at<int32_t>() : nullptr, source.size(), start};
  }
};

// The lists of a sequence, in `held`, and how many entries they have together, -1 with an error where they cannot be read;
// `within` becomes false where an index is out of range, or weights are not of `width` bytes.
int64_t take_lists(PyObject* given, int64_t K, int64_t M, int64_t N, int width, std::vector<List>& held,
                   std::vector<Entries>& lists, bool& within) {
  const Py_ssize_t L = PySequence_Size(given);
  if (L < 0) return -1;
  held = std::vector<List>(L);
  int64_t E = 0;
  for (Py_ssize_t i = 0; i < L; ++i) {
    PyObject* list = PySequence_GetItem(given, i);
    const bool taken = list != nullptr && held[i].take(list);
    Py_XDECREF(list);  // its arrays stay, as buffers
    if (!taken) return -1;
    within &= held[i].fits(K, M, N, width);
    lists.push_back(held[i].entries());
    E += lists[i].size;
  }
  return E;
}

// Where the entries of a list begin and end, among K members of each node at one of the ends.
template <bool Typed, bool AtTarget>
struct Ends {
  const int32_t *source, *target, *kind;
  int32_t K, start;

  explicit Ends(const Entries& list, int64_t members)
      : source(list.source),
        target(list.target),
        kind(list.kind),
        K(static_cast<int32_t>(members)),
        start(static_cast<int32_t>(list.start)) {}

  int32_t member(int32_t node, int64_t e) const { return node * K + (Typed ? kind[e] : start); }
  int32_t group(int64_t e) const { return AtTarget ? member(target[e], e) : target[e]; }
  int32_t other(int64_t e) const { return AtTarget ? source[e] : member(source[e], e); }
};

// Calls `visit` with the ends of each list, in loops of their own for each kind of list.
template <typename Visit>
void for_each(const std::vector<Entries>& lists, int64_t K, bool at_target, Visit visit) {
  for (const auto& list : lists) {
    const bool typed = list.kind != nullptr;
    if (at_target)
      typed ? visit(list, Ends<true, true>(list, K)) : visit(list, Ends<false, true>(list, K));
    else
      typed ? visit(list, Ends<true, false>(list, K)) : visit(list, Ends<false, false>(list, K));
  }
}

template <typename T>
void place(const std::vector<Entries>& lists, int64_t K, bool at_target, int64_t groups, int32_t* ptr, int32_t* index,
           T* values) {
  std::memset(ptr, 0, (groups + 1) * sizeof(int32_t));
  for_each(lists, K, at_target, [=](const Entries& list, auto ends) {
    int32_t* __restrict next = ptr;
    for (int64_t e = 0; e < list.size; ++e) ++next[ends.group(e) + 1];
  });
  starts(ptr, groups);
  for_each(lists, K, at_target, [=](const Entries& list, auto ends) {
    int32_t *__restrict next = ptr, *__restrict to = index;
    T* __restrict weights = values;
    const T* w = static_cast<const T*>(list.weight);
    const int64_t E = list.size;
    if (!weights)
      for (int64_t e = 0; e < E; ++e) to[next[ends.group(e)]++] = ends.other(e);
    else
      for (int64_t e = 0; e < E; ++e) {
        const int32_t at = next[ends.group(e)]++;
        to[at] = ends.other(e);
        weights[at] = w ? w[e] : T(1);
      }
  });
  moved_on(ptr, groups);
}

PyObject* compressed(PyObject* const* args, Py_ssize_t count) {
  if (count != 8) return misfit("compressed takes 8 arguments");
  Array ptr, index, values;
  if (!ptr.take(args[5], true) || !index.take(args[6], true) || !values.take(args[7], true)) return nullptr;
  const int64_t K = size_of(args[1], 1), M = size_of(args[3]), N = size_of(args[4]);
  if (K < 0 || M < 0 || N < 0) return nullptr;
  const int at_target = PyObject_IsTrue(args[2]);
  if (at_target < 0) return nullptr;
  std::vector<List> held;
  std::vector<Entries> lists;
  bool within = true;
  const int64_t E = take_lists(args[0], K, M, N, values.width(), held, lists, within);
  if (E < 0) return nullptr;
  const int64_t groups = at_target ? N * K : N, limit = INT32_MAX;  // products of two such numbers fit 64 bits
  if (E > limit || M * K > limit || N * K > limit) return misfit("compressed: more than 32-bit integers tell apart");
  if (ptr.width() != 4 || index.width() != 4 || ptr.size() != groups + 1 || index.size() != E ||
      (values.there() && (values.size() != E || !values.is_float())))
    return misfit("compressed: arrays of other sizes");
  if (!within) Py_RETURN_FALSE;
  int32_t *at = ptr.at<int32_t>(), *to = index.at<int32_t>();
  {
    const Unlocked others(E);
    if (values.width() == 8)
      place<double>(lists, K, at_target, groups, at, to, values.at<double>());
    else
      place<float>(lists, K, at_target, groups, at, to, values.there() ? values.at<float>() : nullptr);
  }
  Py_RETURN_TRUE;
}

// --- paired(lists, K, M, N, pair, at, counts): see the twin in lists.py; the number of pairs, or False where an index is
// --- out of range

PyObject* paired(PyObject* const* args, Py_ssize_t count) {
  if (count != 7) return misfit("paired takes 7 arguments");
  Array pair, at, counts;
  if (!pair.take(args[4], true) || !at.take(args[5], true) || !counts.take(args[6], true)) return nullptr;
  const int64_t K = size_of(args[1], 1), M = size_of(args[2]), N = size_of(args[3]);
  if (K < 0 || M < 0 || N < 0) return nullptr;
  std::vector<List> held;
  std::vector<Entries> lists;
  bool within = true;
  const int64_t E = take_lists(args[0], K, M, N, 0, held, lists, within);
  if (E < 0) return nullptr;
  if (E > INT32_MAX || N * K > INT32_MAX) return misfit("paired: more than 32-bit integers tell apart");
  for (const Array* array : {&pair, &at, &counts})
    if (array->width() != 4) return misfit("paired: integers of other sizes");
  if (pair.size() != E || at.size() != std::min(E, N * K) || counts.size() != K)
    return misfit("paired: arrays of other sizes");
  if (!within) Py_RETURN_FALSE;
  int64_t pairs = 0;
  {
    const Unlocked others(E);
    std::vector<int32_t> found(N * K, 0);
    int32_t *__restrict number = found.data(), *__restrict group = pair.at<int32_t>();
    for (const auto& list : lists) {
      const int64_t size = list.size, start = list.start * N;
      const int32_t *n = list.target, *k = list.kind;
      for (int64_t e = 0; e < size; ++e) group[e] = static_cast<int32_t>((k ? k[e] * N : start) + n[e]);
      for (int64_t e = 0; e < size; ++e) number[group[e]] = 1;
      group += size;
    }
    int32_t *target = at.at<int32_t>(), *of_member = counts.at<int32_t>();
    for (int64_t k = 0; k < K; ++k) {
      const int64_t before = pairs;
      for (int64_t n = 0; n < N; ++n) {
        int32_t& here = number[k * N + n];
        if (!here) continue;
        target[pairs] = static_cast<int32_t>(n);
        here = static_cast<int32_t>(pairs++);
      }
      of_member[k] = static_cast<int32_t>(pairs - before);
    }
    group = pair.at<int32_t>();
    for (int64_t e = 0; e < E; ++e) group[e] = number[group[e]];
  }
  return PyLong_FromLongLong(pairs);
}

// --- summed(source, target, letters, K, N, turned, at_target, x, y, W, width): the product of rows with a family that is
// --- made of a square graph's edges and forgotten again; see transient.py for the letters, one for each matrix, or for each
// --- term of the only one. At which end a node's K members stand apart is as in `compressed`; x and y are addresses.

// The entries of one matrix of such a family, as `looped` and `over_degrees` make them.
template <typename T>
struct Made {
  std::vector<int32_t> source, target;
  std::vector<T> weight;
  Entries entries{};

  void make(char letter, const int32_t* m, const int32_t* n, int64_t E, int64_t N, int64_t number) {
    const char norm = static_cast<char>(letter | 32);  // in lower case
    entries = {m, n, nullptr, nullptr, E, number};
    if (letter != norm) {
      const int64_t some = letter == 'I' ? 0 : E;
      source.resize(some + N), target.resize(some + N);
      entries.size = with_loops(m, n, some, N, source.data(), target.data());
      entries.source = source.data(), entries.target = target.data();
    }
    if (norm != 'm' && norm != 'r' && norm != 's') return;
    weight.resize(entries.size);
    weigh<T>(nullptr, 1, entries.source, entries.target, entries.size, N, N, norm, weight.data());
    entries.weight = weight.data();
  }
};

template <typename T>
bool summed(const int32_t* m, const int32_t* n, int64_t E, const char* letters, int64_t terms, int64_t K, int64_t N,
            bool turned, bool at_target, const T* x, T* y, int64_t W) {
  std::vector<Made<T>> matrices(terms);
  std::vector<Entries> lists;
  int64_t size = 0;
  bool weighted = false;
  for (int64_t i = 0; i < terms; ++i) {
    matrices[i].make(letters[i], m, n, E, N, K == 1 ? 0 : i);
    Entries list = matrices[i].entries;
    if (turned) std::swap(list.source, list.target);
    size += list.size, weighted |= list.weight != nullptr;
    lists.push_back(list);
  }
  const int64_t groups = at_target ? N * K : N;
  std::vector<int32_t> ptr(groups + 1), index(size);
  std::vector<T> weight(weighted ? size : 0);
  T* weights = weighted ? weight.data() : nullptr;
  place<T>(lists, K, at_target, groups, ptr.data(), index.data(), weights);
  return spmm<T>({x, weights, ptr.data(), index.data(), y, at_target ? N : N * K, W, groups, size, W, W});
}

PyObject* summed(PyObject* const* args, Py_ssize_t count) {
  if (count != 11) return misfit("summed takes 11 arguments");
  Array source, target;
  if (!source.take(args[0]) || !target.take(args[1])) return nullptr;
  Py_ssize_t terms = 0;
  const char* letters = PyUnicode_AsUTF8AndSize(args[2], &terms);
  const int64_t K = size_of(args[3], 1), N = size_of(args[4]), E = source.size();
  const int turned = PyObject_IsTrue(args[5]), at_target = PyObject_IsTrue(args[6]);
  int64_t given[4];  // x, y, W, width
  if (letters == nullptr || K < 0 || N < 0 || turned < 0 || at_target < 0 || !integers_of(args + 7, given)) return nullptr;
  const int64_t W = given[2], width = given[3];
  if (source.width() != 4 || target.width() != 4 || target.size() != E || terms < 1 || (K != 1 && K != terms) || W < 0 ||
      (width != 4 && width != 8))
    return misfit("summed: arrays of other sizes");
  if (terms > INT32_MAX || N * K > INT32_MAX || terms * (E + N) > INT32_MAX)
    return misfit("summed: more than 32-bit integers tell apart");
  const int32_t *m = source.at<int32_t>(), *n = target.at<int32_t>();
  bool within;
  {
    const Unlocked others(E * W / 16);
    within = below(m, E, N) && below(n, E, N);
    if (within && width == 4)
      within = summed(m, n, E, letters, terms, K, N, turned, at_target, reinterpret_cast<const float*>(given[0]),
                      reinterpret_cast<float*>(given[1]), W);
    else if (within)
      within = summed(m, n, E, letters, terms, K, N, turned, at_target, reinterpret_cast<const double*>(given[0]),
                      reinterpret_cast<double*>(given[1]), W);
  }
  return PyBool_FromLong(within);
}

// --- add_rows(z, at, y, rows, N, W, width): y_at(i) += z_i, of floating point numbers of `width` bytes at two addresses;
// --- False, and nothing is added, where one of the places is out of range

template <typename T>
void add_rows(const T* z, const int32_t* at, T* y, int64_t rows, int64_t W) {
#pragma omp parallel for schedule(static) if (rows * W > (1 << 16))
  for (int64_t i = 0; i < rows; ++i) {
    const T* from = z + i * W;
    T* __restrict to = y + at[i] * W;
    for (int64_t w = 0; w < W; ++w) to[w] += from[w];
  }
}

PyObject* add_rows(PyObject* const* args, Py_ssize_t count) {
  if (count != 7) return misfit("add_rows takes 7 arguments");
  int64_t given[7];
  if (!integers_of(args, given)) return nullptr;
  const auto* at = reinterpret_cast<const int32_t*>(given[1]);
  const int64_t rows = given[3], N = given[4], W = given[5], width = given[6];
  if (rows < 0 || W < 0 || N < 0 || N > INT32_MAX || (width != 4 && width != 8))
    return misfit("add_rows: arrays of other sizes");
  bool within;
  {
    const Unlocked others(rows * W / 16);
    within = below(at, rows, N);
    if (within && width == 4)
      add_rows(reinterpret_cast<const float*>(given[0]), at, reinterpret_cast<float*>(given[2]), rows, W);
    else if (within)
      add_rows(reinterpret_cast<const double*>(given[0]), at, reinterpret_cast<double*>(given[2]), rows, W);
  }
  return PyBool_FromLong(within);
}

// --- grouped(group, other, G, ptr, index, order): entries by group, in their order, and where each stood
//
// Gives None where a group is out of range; True where the entries stood so already, and only ptr is written.

PyObject* grouped(PyObject* const* args, Py_ssize_t count) {
  if (count != 6) return misfit("grouped takes 6 arguments");
  Array group, other, ptr, index, order;
  if (!group.take(args[0]) || !other.take(args[1]) || !ptr.take(args[3], true) || !index.take(args[4], true) ||
      !order.take(args[5], true))
    return nullptr;
  const int64_t G = size_of(args[2]), E = group.size();
  if (G < 0) return nullptr;
  for (const Array* array : {&group, &other, &ptr, &index, &order})
    if (array->width() != 4) return misfit("grouped: integers of other sizes");
  if (other.size() != E || index.size() != E || order.size() != E || ptr.size() != G + 1 || E > INT32_MAX)
    return misfit("grouped: arrays of other sizes");
  const int32_t *g = group.at<int32_t>(), *from = other.at<int32_t>();
  if (!below(g, E, G)) Py_RETURN_NONE;
  int32_t *at = ptr.at<int32_t>(), *to = index.at<int32_t>(), *stood = order.at<int32_t>();
  std::memset(at, 0, (G + 1) * sizeof(int32_t));
  bool in_order = true;
  {
    const Unlocked others(E);
    for (int64_t e = 0; e < E; ++e) {
      ++at[g[e] + 1];
      in_order &= e == 0 || g[e - 1] <= g[e];
    }
    starts(at, G);
    if (!in_order) {
      for (int64_t e = 0; e < E; ++e) {
        const int32_t place = at[g[e]]++;
        to[place] = from[e];
        stood[place] = static_cast<int32_t>(e);
      }
      moved_on(at, G);
    }
  }
  return PyBool_FromLong(in_order);
}

// --- translated(order, other_order, there, back): the places in one order of entries, as places in another; and back

PyObject* translated(PyObject* const* args, Py_ssize_t count) {
  if (count != 4) return misfit("translated takes 4 arguments");
  Array order, other, there, back;
  if (!order.take(args[0]) || !other.take(args[1]) || !there.take(args[2], true) || !back.take(args[3], true))
    return nullptr;
  const int64_t E = there.size();
  for (const Array* array : {&order, &other})
    if (array->there() && (array->width() != 4 || array->size() != E || !below(array->at<int32_t>(), E, E)))
      return misfit("translated: other orders");
  if (there.width() != 4 || back.width() != 4 || back.size() != E) return misfit("translated: other arrays");
  const int32_t *from = order.at<int32_t>(), *into = other.at<int32_t>();
  std::vector<int32_t> place(other.there() ? E : 0, 0);
  for (int64_t e = 0; e < static_cast<int64_t>(place.size()); ++e) place[into[e]] = static_cast<int32_t>(e);
  std::memset(back.at<int32_t>(), 0, E * sizeof(int32_t));  // which an order with repetitions would leave unwritten
  for (int64_t e = 0; e < E; ++e) {
    const int64_t entry = order.there() ? from[e] : e, found = other.there() ? place[entry] : entry;
    there.at<int32_t>()[e] = static_cast<int32_t>(found);
    back.at<int32_t>()[found] = static_cast<int32_t>(e);
  }
  Py_RETURN_NONE;
}

// --- spmm(x, weight, ptr, index, y, M, W, N, E, width): see spmm.h, of numbers of `width` bytes; the first five are
// addresses

template <typename T>
bool multiplied(const int64_t* given) {
  const auto numbers = [&](int i) { return reinterpret_cast<T*>(given[i]); };
  const auto integers = [&](int i) { return reinterpret_cast<const int32_t*>(given[i]); };
  const int64_t M = given[5], W = given[6], N = given[7], E = given[8];
  const Unlocked others(E * W / 16);
  return spmm<T>({numbers(0), numbers(1), integers(2), integers(3), numbers(4), M, W, N, E, W, W});
}

PyObject* product(PyObject* const* args, Py_ssize_t count) {
  if (count != 10) return misfit("spmm takes 10 arguments");
  int64_t given[10];
  if (!integers_of(args, given)) return nullptr;
  if (given[9] != 4 && given[9] != 8) return misfit("spmm: numbers of other widths");
  return PyBool_FromLong(given[9] == 4 ? multiplied<float>(given) : multiplied<double>(given));
}

// --- polynomials(x, y, weight, ptr, index, W, N, E, K, a, c, width, combines): see spmm.h, of numbers of `width` bytes

template <typename T>
bool evaluated(const int64_t* given, double a, double c, bool combines) {
  const auto at = [&](int i) { return reinterpret_cast<T*>(given[i]); };
  const Polynomials<T> family{
      at(2),    reinterpret_cast<const int32_t*>(given[3]), reinterpret_cast<const int32_t*>(given[4]), given[6], given[7],
      given[8], static_cast<T>(a),                          static_cast<T>(c)};
  return combines ? family.combine(at(0), at(1), given[5]) : family.expand(at(0), at(1), given[5]);
}

PyObject* polynomials(PyObject* const* args, Py_ssize_t count) {
  if (count != 13) return misfit("polynomials takes 13 arguments");
  int64_t given[9];
  if (!integers_of(args, given)) return nullptr;
  const double a = PyFloat_AsDouble(args[9]), c = PyFloat_AsDouble(args[10]);
  const int64_t width = PyLong_AsLongLong(args[11]);
  const int combines = PyObject_IsTrue(args[12]);
  if (PyErr_Occurred() || combines < 0) return nullptr;
  const int64_t W = given[5], N = given[6], E = given[7], K = given[8];
  if (std::min({W, N, E}) < 0 || K < 2 || std::max({N, E}) > INT32_MAX || (width != 4 && width != 8))
    return misfit("polynomials: sizes that do not fit");
  bool fine;
  {
    const Unlocked others(E * W / 16);
    fine = width == 4 ? evaluated<float>(given, a, c, combines) : evaluated<double>(given, a, c, combines);
  }
  return PyBool_FromLong(fine);
}

// --- fingerprint(address, bytes): see fingerprint.h

PyObject* marked(PyObject* const* args, Py_ssize_t count) {
  if (count != 2) return misfit("fingerprint takes 2 arguments");
  const int64_t address = PyLong_AsLongLong(args[0]), bytes = PyLong_AsLongLong(args[1]);
  if (PyErr_Occurred()) return nullptr;
  if (bytes < 0 || (bytes && !address)) return misfit("fingerprint: no bytes at this address");
  Fingerprint found;
  {
    const Unlocked others(bytes / 16);
    found = fingerprint(reinterpret_cast<const void*>(address), bytes);
  }
  return Py_BuildValue("KK", static_cast<unsigned long long>(found.low), static_cast<unsigned long long>(found.high));
}

// As Python calls it; what C++ throws for want of memory becomes Python's error.
template <PyObject* (*function)(PyObject* const*, Py_ssize_t)>
PyObject* called(PyObject*, PyObject* const* args, Py_ssize_t count) {
  try {
    return function(args, count);
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

template <PyObject* (*function)(PyObject* const*, Py_ssize_t)>
PyMethodDef method(const char* name) {
  const auto any = reinterpret_cast<void (*)()>(called<function>);  // METH_FASTCALL says how it is called
  return {name, reinterpret_cast<PyCFunction>(any), METH_FASTCALL, nullptr};
}

PyMethodDef functions[] = {
    method<narrow>("narrow"),
    method<grouped>("grouped"),
    method<translated>("translated"),
    method<looped>("looped"),
    method<over_degrees>("over_degrees"),
    method<compressed>("compressed"),
    method<paired>("paired"),
    method<summed>("summed"),
    method<add_rows>("add_rows"),
    method<product>("spmm"),
    method<polynomials>("polynomials"),
    method<marked>("fingerprint"),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

}  // namespace

// `sources` is a fingerprint of the files that it is built from, see setup.py.
PyMODINIT_FUNC PyInit__kernels() {
  PyObject* made = PyModule_Create(&module);
  if (made && PyModule_AddStringConstant(made, "sources", BASISCONV_SOURCES) != 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
