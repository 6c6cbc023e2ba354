// Packed bases: two bits a base, 16 bases a 32-bit word, the first base in the lowest bits.
//
// A read is ceil(length / 16) words of bases, then as many words of vote classes, also two bits
// each. A base that is not A, C, G or T has class kClassN and bits 00.
//
// Read by the C++ compiler and by NVRTC: no standard header may be included here.
#pragma once

#ifdef __CUDACC__
#define DLASM_HD __host__ __device__ __forceinline__
#else
#define DLASM_HD inline
#endif

namespace dlasm {

using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u32) == 4 && sizeof(u64) == 8, "packed words need these sizes");

// Vote class of a base: no vote (q < 10), a low one (q < 20), a high one, or N.
enum VoteClass : u32 { kClassNone = 0, kClassLow = 1, kClassHigh = 2, kClassN = 3 };

constexpr int kBasesPerWord = 16;
constexpr int kWindow = 32;      // bases in a 64-bit window
constexpr int kTailBases = 128;  // bases kept of a contig end
constexpr int kTailWords = kTailBases / kBasesPerWord;
constexpr u64 kLowBits = 0x5555555555555555ull;  // the lower bit of every base

// Words of bases (or of classes) of a read.
DLASM_HD i64 base_words(i64 length) { return (length + kBasesPerWord - 1) / kBasesPerWord; }

DLASM_HD u32 base_at(const u32* words, i64 i) {
  return (words[i / kBasesPerWord] >> (2 * (i % kBasesPerWord))) & 3u;
}

// The 32 bases from `first` on, first base in the lowest bits; `words` must be readable up to two
// words past the one that holds `first`.
template <class Index>
DLASM_HD u64 window_at(const u32* words, Index first) {
  const u32* w = words + first / kBasesPerWord;
  const int shift = 2 * static_cast<int>(first % kBasesPerWord);
#ifdef __CUDA_ARCH__
  return __funnelshift_r(w[0], w[1], shift) |
         (static_cast<u64>(__funnelshift_r(w[1], w[2], shift)) << 32);
#else
  const u64 low = w[0] | (static_cast<u64>(w[1]) << 32);
  return shift ? (low >> shift) | (static_cast<u64>(w[2]) << (64 - shift)) : low;
#endif
}

// The 32 bases before `end`, the last of them in the highest bits; 0 stands for those before the
// first base of `words`.
DLASM_HD u64 window_before(const u32* words, i32 end) {
  if (end >= kWindow) return window_at(words, static_cast<u32>(end - kWindow));
  return end > 0 ? window_at(words, 0u) << (2 * (kWindow - end)) : 0;
}

DLASM_HD int count_trailing_zeros(u64 x) {  // x must not be 0
#ifdef __CUDA_ARCH__
  return __ffsll(static_cast<long long>(x)) - 1;
#else
  return __builtin_ctzll(x);
#endif
}

DLASM_HD int count_leading_zeros(u64 x) {  // x must not be 0
#ifdef __CUDA_ARCH__
  return __clzll(static_cast<long long>(x));
#else
  return __builtin_clzll(x);
#endif
}

// One bit (the lower of each base) where the windows differ.
DLASM_HD u64 differences(u64 a, u64 b) {
  const u64 x = a ^ b;
  return (x | (x >> 1)) & kLowBits;
}

// One bit where a window of classes votes, and where it is N.
DLASM_HD u64 vote_bits(u64 classes) { return (classes ^ (classes >> 1)) & kLowBits; }
DLASM_HD u64 n_bits(u64 classes) { return classes & (classes >> 1) & kLowBits; }

// The lower bits of the first `n` bases, 0 <= n <= 32.
DLASM_HD u64 first_bases(int n) { return n >= kWindow ? ~0ull : (1ull << (2 * n)) - 1; }

}  // namespace dlasm
