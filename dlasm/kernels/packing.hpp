// Text to packed bases and vote classes, eight at a time in a 64-bit register or 32 with AVX2.
#pragma once

#include <cstdint>
#include <cstring>

#include "bases.cuh"

#ifdef __x86_64__
#include <immintrin.h>
#endif

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

#ifdef __x86_64__
// 32 bytes of 0..3 as 64 bits.
__attribute__((target("avx2"))) inline u64 squeeze_avx2(__m256i x) {
  x = _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x0401));
  x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x00100001));
  const __m256i low_bytes =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                       -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  x = _mm256_shuffle_epi8(x, low_bytes);
  return static_cast<u32>(_mm256_extract_epi32(x, 0)) |
         static_cast<u64>(static_cast<u32>(_mm256_extract_epi32(x, 4))) << 32;
}

// Packs the first bases of a read, in blocks of 32, as pack_read does; returns how many.
__attribute__((target("avx2"))) inline i64 pack_blocks_avx2(const u8* base, const u8* quality,
                                                            i64 length, bool reverse,
                                                            QualityLimits limits, u32* out,
                                                            bool* any_foreign) {
  // by the low four bits of A 41, C 43, G 47, T 54: the whole byte, and its code
  const __m256i whole = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x41, 0, 0x43, 0x54, 0, 0, 0x47, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i code =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 1, 3, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i backwards = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  const __m256i below_low = _mm256_set1_epi8(static_cast<char>(limits.low - 1));
  const __m256i below_high = _mm256_set1_epi8(static_cast<char>(limits.high - 1));
  const __m256i three = _mm256_set1_epi8(3);
  const i64 words = base_words(length);
  i64 i = 0;
  for (; i + kWindow <= length; i += kWindow) {
    const i64 from = reverse ? length - i - kWindow : i;
    const __m256i text = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(base + from));
    const __m256i upper = _mm256_and_si256(text, _mm256_set1_epi8(static_cast<char>(0xDF)));
    const __m256i low = _mm256_and_si256(upper, _mm256_set1_epi8(0x0F));
    const __m256i known = _mm256_cmpeq_epi8(_mm256_shuffle_epi8(whole, low), upper);
    __m256i codes = _mm256_shuffle_epi8(code, low);
    if (reverse) codes = _mm256_xor_si256(codes, three);
    codes = _mm256_and_si256(codes, known);
    __m256i classes = _mm256_set1_epi8(kClassHigh);
    if (quality) {
      const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quality + from));
      classes = _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_cmpgt_epi8(q, below_low));
      classes = _mm256_sub_epi8(classes, _mm256_cmpgt_epi8(q, below_high));
    }
    classes = _mm256_or_si256(classes, _mm256_andnot_si256(known, three));
    *any_foreign |= _mm256_movemask_epi8(known) != -1;
    if (reverse) {
      codes = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(codes, backwards), 0x4E);
      classes = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(classes, backwards), 0x4E);
    }
    const u64 packed_bases = squeeze_avx2(codes), packed_classes = squeeze_avx2(classes);
    std::memcpy(out + i / kBasesPerWord, &packed_bases, 8);
    std::memcpy(out + words + i / kBasesPerWord, &packed_classes, 8);
  }
  return i;
}
#endif

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
  i64 i = 0;
  bool any_in_blocks = false;
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");  // 2.6 times as fast, measured
  if (has_avx2) i = pack_blocks_avx2(base, quality, length, reverse, limits, out, &any_in_blocks);
#endif
  for (; i < length; i += 8) {
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
  return any_in_blocks || any_foreign != 0;
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
