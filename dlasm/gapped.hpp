// The best alignment with gaps of a read within a band of diagonals of a contig.
//
// Cells are computed along antidiagonals, where none depends on another, in 16-bit lanes: one pass
// gives the score and where the alignment ends, a second one, back from there, where it begins.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "dlasm/contig_index.hpp"

namespace dlasm {

// Scores of minimap2's preset sr, so that places of both mappers compare (minimap2 -x sr: -A2 -B8
// -O12,24 -E2,1 --end-bonus 10, and 1 for an N).
constexpr int kMatch = 2, kMismatch = 8, kAmbiguous = 1;
constexpr int kGapOpen = 12, kGapExtend = 2, kLongGapOpen = 24, kLongGapExtend = 1;
constexpr int kEndBonus = 10;  // for reaching an end of the read; not part of the score

using i16 = std::int16_t;

constexpr i16 kUnknownCode = 4;  // of a base that is not ACGT
constexpr i16 kNoBase = 8;       // outside the contig

// Part of a read and of a contig that are aligned, and the score.
struct Alignment {
  i64 read_begin, read_end;
  i64 contig_begin, contig_end;
  int score;
};

class BandAligner {
 public:
  static constexpr i64 kStep = 32;       // numbers of diagonals are multiples of it
  static constexpr i64 kMaxRead = 6000;  // scores and antidiagonals fit into 16 bits

  // The codes of the read in contig direction and of the contig, to be filled before align; in
  // contig[0] is the contig's base on the lowest diagonal beside the read's first, where the
  // contig does not reach kNoBase.
  std::vector<i16> read, contig;

  // How many bases of contig a read of `n` bases meets on `diagonals` diagonals.
  static i64 contig_bases(i64 n, i64 diagonals) { return n + diagonals - 1; }

  // The end of the best alignment on `diagonals` diagonals from the lowest on, and its score with
  // the bonus for each end of the read that it reaches.
  Alignment find_end(i64 diagonals) {
    const i64 n = static_cast<i64>(read.size());
    extra_.assign(n, 0);
    extra_.front() += kEndBonus;
    extra_.back() += kEndBonus;
    const Cell end = best_cell(read, extra_, contig, diagonals, -1);
    return {0, end.read + 1, 0, end.contig + 1, end.score};
  }

  // The whole of an alignment that find_end gave; its score is without bonus.
  Alignment find_begin(i64 diagonals, const Alignment& found) {
    const i64 n = static_cast<i64>(read.size());
    back_read_.assign(read.rend() - found.read_end, read.rend());
    back_extra_.assign(extra_.rend() - found.read_end, extra_.rend());
    // diagonal d of the band is diagonal `origin` - d on the way back
    const i64 origin = found.contig_end - found.read_end;
    const i64 behind = diagonals - 1 - origin;
    back_contig_.assign(contig_bases(found.read_end, diagonals), kNoBase);
    for (i64 i = 0; i < static_cast<i64>(back_contig_.size()); ++i) {
      const i64 from = found.contig_end - 1 + behind - i;
      if (from >= 0 && from < static_cast<i64>(contig.size())) back_contig_[i] = contig[from];
    }
    const Cell begin = best_cell(back_read_, back_extra_, back_contig_, diagonals, behind);
    const i64 read_begin = found.read_end - 1 - begin.read;
    const i64 contig_begin = found.contig_end - 1 - (begin.contig - behind);
    const int bonus = kEndBonus * ((read_begin == 0) + (found.read_end == n));
    return {read_begin, found.read_end, contig_begin, found.contig_end, begin.score - bonus};
  }

 private:
  struct Cell {
    i64 read, contig;
    int score;
  };
  static constexpr i16 kLow = -12000;  // lower than any score, and far from an overflow

  // What is known of the last antidiagonal of one parity, a lane for every second diagonal.
  struct Lanes {
    std::vector<i16> score, insertion, long_insertion, deletion, long_deletion;
    std::vector<i16> best, best_at;

    void clear(i64 lanes) {
      for (auto* v : {&score, &insertion, &long_insertion, &deletion, &long_deletion, &best}) {
        v->assign(lanes + 2, kLow);  // one beside the first, one beside the last
      }
      best_at.assign(lanes + 2, 0);
    }
  };

  // The cell of the highest score, the first of several. Alignments begin anywhere, or only at the
  // first base of the read on diagonal `origin`.
  Cell best_cell(const std::vector<i16>& read, const std::vector<i16>& extra,
                 const std::vector<i16>& contig, i64 diagonals, i64 origin) {
    const i64 n = static_cast<i64>(read.size());
    const i64 lanes = diagonals / 2;
    // lanes that are outside the read or the contig compute there what never is the best
    read_.assign(n + 2 * lanes, 0);
    extra_low_.assign(n + 2 * lanes, kLow / 3);
    std::reverse_copy(read.begin(), read.end(), read_.begin() + lanes);
    std::reverse_copy(extra.begin(), extra.end(), extra_low_.begin() + lanes);
    contig_.assign(n + 4 * lanes, kNoBase);
    std::copy(contig.begin(), contig.end(), contig_.begin() + lanes);
    for (Lanes& l : lanes_) l.clear(lanes);
    i64 first = 0;
    if (origin >= 0) {
      lanes_[origin % 2].score[1 + origin / 2] = 0;
      first = origin;
    }
#ifdef __x86_64__
    static const bool has_avx2 = __builtin_cpu_supports("avx2");
    if (has_avx2) {
      sweep_avx2(n, lanes, first, origin >= 0 ? kLow : 0);
    } else
#endif
      sweep(n, lanes, first, origin >= 0 ? kLow : 0);
    Cell best{0, 0, kLow};
    i64 best_at = 0;
    for (i64 d = 0; d < diagonals; ++d) {
      const int score = lanes_[d % 2].best[1 + d / 2];
      const i64 at = lanes_[d % 2].best_at[1 + d / 2];
      if (score > best.score || (score == best.score && at < best_at)) {
        best = {(at - d) / 2, (at + d) / 2, score};
        best_at = at;
      }
    }
    return best;
  }

  // Antidiagonal `at` holds the cells whose base of the read and of `contig` add up to it.
  __attribute__((always_inline)) inline void sweep(i64 n, i64 lanes, i64 first, i16 floor) {
    for (i64 at = first; at < 2 * (n + lanes - 1); ++at) {
      const i64 parity = at % 2, i = at / 2;  // base of the read in the first lane
      const i64 from = n - 1 - i + lanes;     // where it is in read_
      Lanes &now = lanes_[parity], &before = lanes_[1 - parity];
      step(now.score.data() + 1, now.insertion.data() + 1, now.long_insertion.data() + 1,
           now.deletion.data() + 1, now.long_deletion.data() + 1, now.best.data() + 1,
           now.best_at.data() + 1, before.score.data() + parity, before.deletion.data() + parity,
           before.long_deletion.data() + parity, before.score.data() + parity + 1,
           before.insertion.data() + parity + 1, before.long_insertion.data() + parity + 1,
           read_.data() + from, extra_low_.data() + from, contig_.data() + lanes + i + parity,
           lanes, static_cast<i16>(at), floor);
    }
  }
#ifdef __x86_64__
  __attribute__((target("avx2"))) void sweep_avx2(i64 n, i64 lanes, i64 first, i16 floor) {
    sweep(n, lanes, first, floor);
  }
#endif

  __attribute__((always_inline)) static inline void step(
      i16* __restrict score, i16* __restrict insertion, i16* __restrict long_insertion,
      i16* __restrict deletion, i16* __restrict long_deletion, i16* __restrict best,
      i16* __restrict best_at, const i16* __restrict left, const i16* __restrict left_deletion,
      const i16* __restrict left_long_deletion, const i16* __restrict up,
      const i16* __restrict up_insertion, const i16* __restrict up_long_insertion,
      const i16* __restrict read, const i16* __restrict extra, const i16* __restrict contig,
      i64 lanes, i16 at, i16 floor) {
#pragma GCC ivdep
    for (i64 t = 0; t < lanes; ++t) {
      const i16 a = read[t], b = contig[t], either = a | b;
      i16 pair = a == b ? kMatch : -kMismatch;
      pair = either >= kUnknownCode ? -kAmbiguous : pair;
      pair = either >= kNoBase ? kLow / 3 : pair;
      i16 value = std::max(score[t], floor) + pair + extra[t];
      const i16 d = std::max<i16>(left[t] - kGapOpen - kGapExtend, left_deletion[t] - kGapExtend);
      const i16 dl = std::max<i16>(left[t] - kLongGapOpen - kLongGapExtend,
                                   left_long_deletion[t] - kLongGapExtend);
      const i16 s = std::max<i16>(up[t] - kGapOpen - kGapExtend, up_insertion[t] - kGapExtend);
      const i16 sl = std::max<i16>(up[t] - kLongGapOpen - kLongGapExtend,
                                   up_long_insertion[t] - kLongGapExtend);
      value = std::max(std::max(std::max(d, dl), std::max(s, sl)), value);
      deletion[t] = d;
      long_deletion[t] = dl;
      insertion[t] = s;
      long_insertion[t] = sl;
      score[t] = value;
      best_at[t] = value > best[t] ? at : best_at[t];
      best[t] = std::max(best[t], value);
    }
  }

  std::vector<i16> extra_, back_read_, back_extra_, back_contig_;
  std::vector<i16> read_, extra_low_, contig_;  // with room for all lanes
  std::array<Lanes, 2> lanes_;
};

}  // namespace dlasm
