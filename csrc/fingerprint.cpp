// See fingerprint.h. Each block of bytes becomes two sums of products of halves of words, each half with a key added (NH,
// of J. Black and others, UMAC: fast and secure message authentication, 1999): two different blocks have the same sums
// with a probability of 2^-64, whatever they are. The sums are bytes again, and so on until one pair is left.

#include "fingerprint.h"

#include <cstring>
#include <random>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int WORDS = 128, SHIFT = 8, LEVELS = 10;  // a block of 1 KB becomes 16 bytes; the second sum has other keys
constexpr int64_t BLOCK = WORDS * sizeof(uint64_t), MUCH = 1 << 20;  // MUCH: bytes from which on several threads pay

struct Keys {
  uint64_t of[LEVELS][WORDS + SHIFT];

  Keys() {
    std::random_device seed;
    std::mt19937_64 draw((static_cast<uint64_t>(seed()) << 32) ^ seed());
    for (auto& level : of)
      for (auto& key : level) key = draw();
  }
};

}  // namespace

#define BODY "fingerprint_body.h"
#include "instruction_sets.h"

namespace {

std::vector<Fingerprint> sums(const unsigned char* bytes, int64_t count, const uint64_t* key) {
  static Fingerprint (*const run)(const unsigned char*, const uint64_t*) = CHOSEN(Block::sums);
  const int64_t whole = count / BLOCK, left = count % BLOCK;
  std::vector<Fingerprint> found(whole);
  int64_t done = 0;
#ifdef _OPENMP
  if (count > MUCH && omp_get_max_threads() > 1 && !omp_in_parallel()) {
#pragma omp parallel for
    for (int64_t k = 0; k < whole; ++k) found[k] = run(bytes + k * BLOCK, key);
    done = whole;
  }
#endif
  for (; done < whole; ++done) found[done] = run(bytes + done * BLOCK, key);
  if (left || !whole) {  // the last one is filled up with zeros
    unsigned char rest[BLOCK] = {};
    if (left) std::memcpy(rest, bytes + whole * BLOCK, left);
    found.push_back(run(rest, key));
  }
  return found;
}

}  // namespace

Fingerprint fingerprint(const void* bytes, int64_t count) {
  static const Keys keys;
  std::vector<Fingerprint> found = sums(static_cast<const unsigned char*>(bytes), count, keys.of[0]);
  for (int level = 1; found.size() > 1; ++level) {
    const auto* again = reinterpret_cast<const unsigned char*>(found.data());
    found = sums(again, found.size() * sizeof(Fingerprint), keys.of[level]);
  }
  return found[0];
}
