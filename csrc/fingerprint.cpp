// See fingerprint.h. Each block of bytes becomes two sums of products of halves of words, each half with a key added (NH,
// of J. Black and others, UMAC: fast and secure message authentication, 1999): two different blocks have the same sums
// with a probability of 2^-64, whatever they are. The sums are bytes again, and so on until one pair is left.

#include "fingerprint.h"

#include <cstring>
#include <random>
#include <vector>

#define INLINE inline __attribute__((always_inline))

namespace {

constexpr int WORDS = 128, SHIFT = 8, LEVELS = 10;  // a block of 1 KB becomes 16 bytes; the second sum has other keys
constexpr int64_t BLOCK = WORDS * sizeof(uint64_t);

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
  std::vector<Fingerprint> found;
  found.reserve(count / BLOCK + 1);
  for (; count >= BLOCK; bytes += BLOCK, count -= BLOCK) found.push_back(run(bytes, key));
  if (count || found.empty()) {  // the last one is filled up with zeros
    unsigned char rest[BLOCK] = {};
    if (count) std::memcpy(rest, bytes, count);
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
