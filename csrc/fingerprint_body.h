// A block's sums for one instruction set; included once for each, within a namespace of its own, where LANE_BYTES is the
// size of a vector; so it has no guard, and includes nothing. See fingerprint.cpp.

struct Block {
  typedef uint64_t V __attribute__((vector_size(LANE_BYTES)));
  typedef uint32_t Halves __attribute__((vector_size(LANE_BYTES)));
  static constexpr int L = LANE_BYTES / sizeof(uint64_t);

  static INLINE V product(Halves word, const uint64_t* key) {
    Halves some;
    std::memcpy(&some, key, sizeof some);
    const V both = reinterpret_cast<V>(word + some);
    return (both & 0xffffffffu) * (both >> 32);
  }

  static Fingerprint sums(const unsigned char* bytes, const uint64_t* key) {
    V low = {}, high = {};
    for (int i = 0; i < WORDS; i += L) {
      Halves word;
      std::memcpy(&word, bytes + i * sizeof(uint64_t), sizeof word);
      low += product(word, key + i), high += product(word, key + i + SHIFT);
    }
    Fingerprint all = {0, 0};
    for (int l = 0; l < L; ++l) all.low += low[l], all.high += high[l];
    return all;
  }
};
