// The rules of local assembly: rating, choice, and the ladder over k (algorithm sections 2 and 4).
//
// Read by the C++ compiler and by NVRTC: no standard header may be included here. Constants come
// from MetaHipMer2 and Awan et al., SC'21.
#pragma once

#include "bases.cuh"

namespace dlasm {

constexpr int kMinK = 21;     // MetaHipMer2; paper section 3.2
constexpr int kMaxK = 121;    // MetaHipMer2
constexpr int kShiftK = 8;    // MetaHipMer2
constexpr u32 kMinVotes = 2;  // floor of viable and expected depth, MetaHipMer2

// Why a walk stopped, or why there is none. Names in params.py; stored in array `outcome`.
enum Outcome : u8 {
  kNoOutcome = 0,
  kDeadEnd = 1,
  kFork = 2,
  kRepeat = 3,
  kLimit = 4,
  kSupport = 5,
  kNoReads = 6,
  kShortContig = 7,
  kNoWalk = 8,
  kCircular = 9,  // a circle has no ends; said by the host
  kSkipped = 10   // its partition could not be extended; said by the host
};

// x >= max(0.2 D, 2), x > max(0.2 D, 2) and x >= max(0.3 D, 2) in integers.
DLASM_HD bool at_least_viable(u32 x, u32 depth) { return x >= kMinVotes && 5ull * x >= depth; }
DLASM_HD bool above_viable(u32 x, u32 depth) { return x > kMinVotes && 5ull * x > depth; }
DLASM_HD bool at_least_expected(u32 x, u32 depth) {
  return x >= kMinVotes && 10ull * x >= 3ull * depth;
}

// Rating of a base with n votes, h of them of high quality, at truncated depth `depth`.
DLASM_HD int rating(u32 n, u32 h, u32 depth) {
  if (n == 0) return 0;
  if (n == 1) return 1;
  if (!at_least_viable(n, depth)) return 2;
  const bool viable = at_least_viable(h, depth);
  if (!at_least_expected(n, depth)) return viable ? 4 : 3;
  if (!viable) return 5;
  return above_viable(h, depth) && !at_least_expected(h, depth) ? 6 : 7;
}

constexpr int kChooseFork = 4;
constexpr int kChooseDeadEnd = 5;

// A base and the votes for it, in the order of the choice: by rating, high votes, votes.
struct Rated {
  int rating;
  u32 high, votes;
  int base;

  DLASM_HD bool before(const Rated& other) const {
    if (rating != other.rating) return rating > other.rating;
    if (high != other.high) return high > other.high;
    return votes > other.votes;
  }
};

// Base 0..3 that follows, kChooseFork or kChooseDeadEnd; n and h are the votes for A, C, G, T. No
// array is indexed by what is known only as it runs, so that a GPU keeps all in registers.
DLASM_HD int choose(const u32 n[4], const u32 h[4], u32 depth) {
  Rated first{-1, 0, 0, 0}, second{-1, 0, 0, 0};
  int w = 0;  // rating of the third
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int b = 0; b < 4; ++b) {
    // a full tie never changes the choice
    Rated next{rating(n[b], h[b], depth), h[b], n[b], b};
    if (next.before(first)) {
      const Rated beaten = first;
      first = next;
      next = beaten;
    }
    if (next.before(second)) {
      const Rated beaten = second;
      second = next;
      next = beaten;
    }
    if (next.rating > w) w = next.rating;
  }
  const int t = first.rating, u = second.rating;
  if (t == 0) return kChooseDeadEnd;
  if (t <= 3) return u == 0 ? first.base : kChooseDeadEnd;
  if (t <= 5) return u <= 2 ? first.base : kChooseDeadEnd;
  if (t == 6) return u <= 3 ? first.base : kChooseDeadEnd;
  if (u < 7) return first.base;
  if (w == 7 || first.votes == second.votes) return kChooseFork;
  return first.votes > second.votes ? first.base : second.base;
}

// The ladder over k: down by 8 after a dead end, up by 8 after a fork or repeat, never turning.
struct Ladder {
  int k;
  int top;  // largest k allowed, min(121, length of the contig)
  int step = 0;

  DLASM_HD Ladder(int start, int largest) : k(start), top(largest) {}
  DLASM_HD bool on() const { return kMinK <= k && k <= top; }
  DLASM_HD void leave() { k = 0; }

  // Goes on after `outcome`. Rungs that are known to give the same walk and outcome are passed
  // over: going down those above `below`, going up those at or under `above`.
  DLASM_HD void next(Outcome outcome, int below, int above) {
    if (outcome == kLimit) return leave();
    const int wanted = outcome == kDeadEnd ? -kShiftK : kShiftK;
    if (step == -wanted) return leave();
    step = wanted;
    k += step;
    while (on() && (step < 0 ? k > below : k <= above)) k += step;
  }
};

}  // namespace dlasm
