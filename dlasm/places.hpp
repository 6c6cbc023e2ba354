// A place of a read on a contig, and which of several places a read has: rules 1 and 2 of
// dlasm.recruit, used by the mapper and by the choice of candidates.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dlasm {

struct Place {
  std::int64_t contig;
  std::int64_t start, end;   // aligned part of the contig
  std::int32_t left, right;  // unaligned bases of the read, in contig direction
  std::int32_t score;
  std::uint8_t reverse;
};

// Rule 1: on each side the alignment runs, within a base, to the end of the read or the contig.
inline bool is_counted(const Place& p, std::int64_t contig_length) {
  return std::min<std::int64_t>(p.left, p.start) <= 1 &&
         std::min<std::int64_t>(p.right, contig_length - p.end) <= 1;
}

// Rule 2: whether `a` is a better place than `b` for the same read. A total order but for places
// that differ only in where they end.
inline bool is_better(const Place& a, bool a_counted, std::int64_t a_length, const Place& b,
                      bool b_counted, std::int64_t b_length) {
  if (a_counted != b_counted) return a_counted;
  if (a.score != b.score) return a.score > b.score;
  if (a_length != b_length) return a_length < b_length;
  if (a.contig != b.contig) return a.contig < b.contig;
  if (a.start != b.start) return a.start < b.start;
  return a.reverse < b.reverse;
}

}  // namespace dlasm
