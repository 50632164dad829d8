// Includes BODY once for each instruction set, within a namespace of its own, where LANE_BYTES is the size of a vector.
// CHOSEN(name) is what BODY defines under a name, for the machine that runs it.

#define LANE_BYTES 16
namespace plain {
#include BODY
}  // namespace plain
#undef LANE_BYTES

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(BASISCONV_PLAIN)

#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LANE_BYTES 32
namespace avx2 {
#include BODY
}  // namespace avx2
#undef LANE_BYTES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,fma")
#define LANE_BYTES 64
namespace avx512 {
#include BODY
}  // namespace avx512
#undef LANE_BYTES
#pragma GCC pop_options

namespace {

template <typename Kernel>
Kernel chosen(Kernel widest, Kernel wide, Kernel any) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw"))
    return widest;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? wide : any;
}

}  // namespace

#define CHOSEN(name) chosen(avx512::name, avx2::name, plain::name)
#else
#define CHOSEN(name) plain::name
#endif
