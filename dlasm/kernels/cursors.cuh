// Cursors: reads that match the growing context, and what they say about its next bases.
//
// A walk needs no k-mer table. The context is the end of the contig and what was appended to it; a
// cursor is a read, a place in it, and the context position from which on the two agree. A cursor
// with match length L votes on rung k exactly when L >= k, which is what counting all k-mers of all
// reads and looking one up would give. Cursors are found by samples, the 14-mers that start at a
// multiple of 8 in a read: every match of 21 bases or more holds exactly one that starts in the
// first 8 of its last 21 bases.
//
// Read by the C++ compiler and by NVRTC: no standard header may be included here.
#pragma once

#include "rules.cuh"

namespace dlasm {

constexpr int kSampleBases = 14;
constexpr int kSampleStep = 8;
constexpr int kStartSamples = kSampleStep;               // looked up at the end of the contig
constexpr int kKnownMatch = kSampleBases + kSampleStep;  // at least: an earlier sample was hit
constexpr u32 kSampleMask = (1u << (2 * kSampleBases)) - 1;
static_assert(kSampleBases + kSampleStep - 1 == kMinK, "one sample in the last kMinK bases");

// Samples of a read without regard to N.
DLASM_HD i64 sample_count(i64 length) {
  return length < kSampleBases ? 0 : (length - kSampleBases) / kSampleStep + 1;
}

// Sample `j` of packed words (of bases or of classes).
DLASM_HD u32 sample_at(const u32* words, i64 j) {
  const u32* w = words + j / 2;
  return (j % 2 ? (w[0] >> 16) | (w[1] << 16) : w[0]) & kSampleMask;
}

// Bases before `end_a` in a that equal those before `end_b` in b, at most `limit` (<= both ends).
DLASM_HD i64 match_back(const u32* a, i64 end_a, const u32* b, i64 end_b, i64 limit) {
  i64 done = 0;
  while (limit - done >= kWindow) {
    const u64 x = window_at(a, end_a - done - kWindow) ^ window_at(b, end_b - done - kWindow);
    if (x) return done + count_leading_zeros(x) / 2;
    done += kWindow;
  }
  const int rest = static_cast<int>(limit - done);
  if (rest == 0) return done;
  // windows that begin `rest` bases back, so that nothing before the arrays is read
  const u64 x = (window_at(a, end_a - limit) ^ window_at(b, end_b - limit)) & first_bases(rest);
  return x ? done + rest - 1 - (63 - count_leading_zeros(x)) / 2 : limit;
}

// Bases before `end` in a read after its last N there.
DLASM_HD i64 clean_back(const u32* classes, i64 end) {
  for (i64 i = end; i > 0; --i) {
    if (base_at(classes, i - 1) == kClassN) return end - i;
  }
  return end;
}

// The next bases of a read.
struct Ahead {
  u64 bases;
  u64 classes;  // their vote classes
  i32 left;     // bases in the windows, at most 32

  // One bit for each of the next bases that votes.
  DLASM_HD u64 votes() const { return vote_bits(classes) & first_bases(left); }

  // How many of the next bases agree with `reference`, at most `left`; N agrees with nothing.
  DLASM_HD int agreed(u64 reference) const {
    const u64 x = (differences(bases, reference) | n_bits(classes)) & first_bases(left);
    return x ? count_trailing_zeros(x) / 2 : left;
  }
};

struct Cursor : Ahead {
  i64 position;  // of the next base in the read
  i64 start;     // context position from which on read and context agree
  i64 word;      // of the read in the packed words
  i32 length;    // of the read

  DLASM_HD bool ends_in_window() const { return position + left == length; }

  DLASM_HD void refill(const u32* words) {
    const i64 rest = length - position;
    left = rest < kWindow ? static_cast<i32>(rest) : kWindow;
    if (left == 0) return;
    bases = window_at(words + word, position);
    classes = window_at(words + word + base_words(length), position);
  }

  // Steps over `n` bases, 0 <= n <= left.
  DLASM_HD void step(int n) {
    position += n;
    left -= n;
    bases = n < kWindow ? bases >> (2 * n) : 0;
    classes = n < kWindow ? classes >> (2 * n) : 0;
  }
};

}  // namespace dlasm
