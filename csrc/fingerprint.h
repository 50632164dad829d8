// A fingerprint of some bytes: 128 bits that differ, for bytes that differ, unless two of 2^60 coincide.

#pragma once

#include <cstdint>

struct Fingerprint {
  uint64_t low, high;
};

// Of `count` bytes at any address. Keys are drawn anew in each process; so are the fingerprints of equal bytes.
Fingerprint fingerprint(const void* bytes, int64_t count);
