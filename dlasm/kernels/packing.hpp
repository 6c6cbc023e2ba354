// Text to packed bases and vote classes, eight at a time in a 64-bit register.
#pragma once

#include <cstdint>
#include <cstring>

#include "bases.cuh"

namespace dlasm {

constexpr u64 kEveryByte = 0x0101010101010101ull;

// 2-bit codes (one a byte) of eight ASCII bases, and 0x80 in each byte that is not ACGTacgt.
inline u64 codes_of(u64 text, u64* foreign) {
  const u64 upper = text & (0xDF * kEveryByte);
  const u64 low = ((upper >> 1) ^ (upper >> 2)) & kEveryByte;  // 1 for C and T
  const u64 high = (upper >> 2) & kEveryByte;                  // 1 for G and T
  // A 41, C 43, G 47, T 54: what a byte with this code must be
  const u64 expected = 0x41 * kEveryByte + 2 * low + 6 * high + 11 * (low & high);
  const u64 x = upper ^ expected;
  *foreign = (((x & (0x7F * kEveryByte)) + 0x7F * kEveryByte) | x) & (0x80 * kEveryByte);
  return low | (high << 1);
}

// Eight bytes of 0..3 as 16 bits.
inline u32 squeeze(u64 x) {
  x = (x | (x >> 6)) & 0x000F000F000F000Full;
  x = (x | (x >> 12)) & 0x000000FF000000FFull;
  return static_cast<u32>((x | (x >> 24)) & 0xFFFF);
}

// 0x80 in each byte of `x` (all under 0x80) that is at least `limit`.
inline u64 at_least(u64 x, u32 limit) {
  return ((x | (0x80 * kEveryByte)) - limit * kEveryByte) & (0x80 * kEveryByte);
}

struct QualityLimits {
  u32 low;   // ASCII from which a base votes
  u32 high;  // ASCII from which it votes as a high one
};

// Packs one read into `out` (2 * base_words(length) words); returns whether it holds an N.
// `quality` null: every base votes as a high one. `reverse`: the reverse complement is packed.
inline bool pack_read(const u8* base, const u8* quality, i64 length, bool reverse,
                      QualityLimits limits, u32* out) {
  const i64 words = base_words(length);
  u64 any_foreign = 0;
  auto load = [&](const u8* text, i64 i) {
    const i64 here = length - i < 8 ? length - i : 8;
    u64 x = 0;
    if (here == 8) {
      std::memcpy(&x, text + (reverse ? length - i - 8 : i), 8);
      return reverse ? __builtin_bswap64(x) : x;
    }
    for (i64 j = 0; j < here; ++j) {
      x |= static_cast<u64>(text[reverse ? length - 1 - i - j : i + j]) << (8 * j);
    }
    return x;
  };
  for (i64 i = 0; i < length; i += 8) {
    u64 foreign;
    u64 codes = codes_of(load(base, i), &foreign);
    u64 classes = (2 * kEveryByte);
    if (quality) {
      const u64 q = load(quality, i);
      const u64 low = at_least(q, limits.low) >> 7, high = at_least(q, limits.high) >> 7;
      classes = low + high;
    }
    if (reverse) codes ^= 3 * kEveryByte;
    if (i + 8 > length) {
      const u64 keep = (1ull << (8 * (length - i))) - 1;
      foreign &= keep;
      codes &= keep;
      classes &= keep;
    }
    if (foreign) {
      const u64 bad = (foreign >> 7) * 0xFF;
      codes &= ~bad;
      classes |= bad & (3 * kEveryByte);
      any_foreign |= foreign;
    }
    const int shift = i % kBasesPerWord ? 16 : 0;
    const u32 packed_bases = squeeze(codes) << shift, packed_classes = squeeze(classes) << shift;
    u32* word = out + i / kBasesPerWord;
    word[0] = shift ? word[0] | packed_bases : packed_bases;
    word[words] = shift ? word[words] | packed_classes : packed_classes;
  }
  return any_foreign != 0;
}

// Packs the tail of a contig end: its last 128 bases right-aligned, so that base 127 is the last.
// Side 0 takes the reverse complement of the contig's start. Sets the bases after the last N.
inline void pack_tail(const u8* base, i64 length, int side, u32 tail[kTailWords], i32* tail_length,
                      i32* clean_length) {
  const int n = static_cast<int>(length < kTailBases ? length : kTailBases);
  u8 text[kTailBases];
  std::memset(text, side ? 'A' : 'T', sizeof text);  // both become 00 before the contig's start
  if (side) {
    std::memcpy(text + kTailBases - n, base + length - n, n);
  } else {
    std::memcpy(text, base, n);
  }
  int clean = n;
  for (int i = 0; i < kTailBases; i += 8) {  // i = 0 is the first base of the tail
    u64 x, foreign;
    std::memcpy(&x, side ? text + i : text + kTailBases - 8 - i, 8);
    if (!side) x = __builtin_bswap64(x);
    u64 codes = codes_of(x, &foreign);
    if (!side) codes ^= 3 * kEveryByte;
    if (foreign) {
      codes &= ~((foreign >> 7) * 0xFF);
      const int last = i + 7 - count_leading_zeros(foreign) / 8;
      if (kTailBases - 1 - last < clean) clean = kTailBases - 1 - last;
    }
    u32* word = tail + i / kBasesPerWord;
    *word = i % kBasesPerWord ? *word | squeeze(codes) << 16 : squeeze(codes);
  }
  *tail_length = n;
  *clean_length = clean;
}

}  // namespace dlasm
