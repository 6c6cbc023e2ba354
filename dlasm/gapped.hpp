// The best alignment with gaps of a read within a band of diagonals of a contig.
//
// Cells are computed along antidiagonals, where none depends on another, in 16-bit lanes: one pass
// gives the score and where the alignment ends, a second one, back from there, where it begins.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
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

  static constexpr i16 kOutside = -4000;  // for a pair of bases that is none
  static constexpr i16 kOpen = kGapOpen + kGapExtend, kLongOpen = kLongGapOpen + kLongGapExtend;

  // Sixteen lanes; a lane for every second diagonal. Lanes are loaded as they were stored, and
  // shifted in registers: a load across two recent stores would wait for both.
  typedef i16 Vector __attribute__((vector_size(32), aligned(16)));
  static constexpr i64 kWidth = 16;

  // What is known of a vector of lanes on the last antidiagonal of one parity.
  struct Lanes {
    Vector score, insertion, long_insertion, deletion, long_deletion;
    Vector best, best_at;
  };

  // The cell of the highest score, the first of several. Alignments begin anywhere, or only at the
  // first base of the read on diagonal `origin`.
  Cell best_cell(const std::vector<i16>& read, const std::vector<i16>& extra,
                 const std::vector<i16>& contig, i64 diagonals, i64 origin) {
    const i64 n = static_cast<i64>(read.size());
    const i64 lanes = diagonals / 2;
    // lanes that are outside the read or the contig compute there what never is the best
    read_.assign(n + 2 * lanes, 0);
    extra_low_.assign(n + 2 * lanes, kOutside);
    std::reverse_copy(read.begin(), read.end(), read_.begin() + lanes);
    std::reverse_copy(extra.begin(), extra.end(), extra_low_.begin() + lanes);
    contig_.assign(n + 4 * lanes, kNoBase);
    std::copy(contig.begin(), contig.end(), contig_.begin() + lanes);
    const Vector low = Vector{} + kLow;
    for (auto& l : lanes_) {  // one vector more on each side
      l.assign(lanes / kWidth + 2, {low, low, low, low, low, low, Vector{}});
    }
    i64 first = 0;
    if (origin >= 0) {
      lanes_[origin % 2][1 + origin / 2 / kWidth].score[origin / 2 % kWidth] = 0;
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
      const Lanes& l = lanes_[d % 2][1 + d / 2 / kWidth];
      const int score = l.best[d / 2 % kWidth];
      const i64 at = l.best_at[d / 2 % kWidth];
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
      const i16* const contig = contig_.data() + lanes + i + parity;
      Lanes *const now = lanes_[parity].data() + 1, *const before = lanes_[1 - parity].data() + 1;
      for (i64 v = 0; v < lanes / kWidth; ++v) {
        const i64 t = v * kWidth;
        if (parity == 0) {
          step(now[v], shift_up(before[v - 1], before[v]), before[v], read_.data() + from + t,
               extra_low_.data() + from + t, contig + t, static_cast<i16>(at), floor);
        } else {
          step(now[v], before[v], shift_down(before[v], before[v + 1]), read_.data() + from + t,
               extra_low_.data() + from + t, contig + t, static_cast<i16>(at), floor);
        }
      }
    }
  }
#ifdef __x86_64__
  __attribute__((target("avx2"))) void sweep_avx2(i64 n, i64 lanes, i64 first, i16 floor) {
    sweep(n, lanes, first, floor);
  }
#endif

#define DLASM_INLINE __attribute__((always_inline)) static inline

  DLASM_INLINE void raise(Vector& a, const Vector& b) { a = a > b ? a : b; }

  // The lane before each one, as far as left neighbours need it.
  DLASM_INLINE Lanes shift_up(const Lanes& a, const Lanes& b) {
    Lanes out;
    auto shift = [](const Vector& x, const Vector& y, Vector& z) __attribute__((always_inline)) {
      z = __builtin_shufflevector(x, y, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29,
                                  30);
    };
    shift(a.score, b.score, out.score);
    shift(a.deletion, b.deletion, out.deletion);
    shift(a.long_deletion, b.long_deletion, out.long_deletion);
    return out;
  }

  // The lane after each one, as far as upper neighbours need it.
  DLASM_INLINE Lanes shift_down(const Lanes& a, const Lanes& b) {
    Lanes out;
    auto shift = [](const Vector& x, const Vector& y, Vector& z) __attribute__((always_inline)) {
      z = __builtin_shufflevector(x, y, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16);
    };
    shift(a.score, b.score, out.score);
    shift(a.insertion, b.insertion, out.insertion);
    shift(a.long_insertion, b.long_insertion, out.long_insertion);
    return out;
  }

  DLASM_INLINE void load(const i16* from, Vector& to) { std::memcpy(&to, from, sizeof to); }

  DLASM_INLINE void step(Lanes& now, const Lanes& left, const Lanes& up, const i16* read,
                         const i16* extra, const i16* contig, i16 at, i16 floor) {
    Vector a, b, value;
    load(read, a);
    load(contig, b);
    load(extra, value);
    const Vector either = a | b;
    const Vector none{};
    Vector pair = a == b ? none + kMatch : none - kMismatch;
    pair = either >= kUnknownCode ? none - kAmbiguous : pair;
    pair = either >= kNoBase ? none + kOutside : pair;
    raise(now.score, none + floor);
    value += pair + now.score;
    now.deletion = left.deletion - kGapExtend;
    raise(now.deletion, left.score - kOpen);
    now.long_deletion = left.long_deletion - kLongGapExtend;
    raise(now.long_deletion, left.score - kLongOpen);
    now.insertion = up.insertion - kGapExtend;
    raise(now.insertion, up.score - kOpen);
    now.long_insertion = up.long_insertion - kLongGapExtend;
    raise(now.long_insertion, up.score - kLongOpen);
    raise(value, now.deletion);
    raise(value, now.long_deletion);
    raise(value, now.insertion);
    raise(value, now.long_insertion);
    now.score = value;
    now.best_at = value > now.best ? none + at : now.best_at;
    raise(now.best, value);
  }
#undef DLASM_INLINE

  std::vector<i16> extra_, back_read_, back_extra_, back_contig_;
  std::vector<i16> read_, extra_low_, contig_;  // with room for all lanes
  std::array<std::vector<Lanes>, 2> lanes_;
};

}  // namespace dlasm
