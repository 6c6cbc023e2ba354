// Which reads belong to which contig end: the rules of dlasm.recruit over flat arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "dlasm/numpy_arrays.hpp"
#include "dlasm/places.hpp"

namespace nb = nanobind;
using namespace dlasm;

namespace {

using i64 = std::int64_t;
using i32 = std::int32_t;
using u8 = std::uint8_t;

constexpr i32 kOverhang = -1;  // dlasm.runs.OVERHANG

// Sums by contig, in an open hash table.
class Sums {
 public:
  explicit Sums(std::size_t most) {
    std::size_t size = 16;
    while (size < 2 * most) size *= 2;
    slots_.assign(size, {-1, 0});
  }

  void add(i64 contig, i64 value) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = (static_cast<std::uint64_t>(contig) * 0x9e3779b97f4a7c15ull >> 20) & mask;
    while (slots_[at].first != contig && slots_[at].first >= 0) at = (at + 1) & mask;
    slots_[at].first = contig;
    slots_[at].second += value;
  }

  // Contigs, ascending, and their sums.
  std::pair<std::vector<i64>, std::vector<i64>> sorted() {
    slots_.erase(std::remove_if(slots_.begin(), slots_.end(),
                                [](const auto& slot) { return slot.first < 0; }),
                 slots_.end());
    std::sort(slots_.begin(), slots_.end());
    std::vector<i64> contig, sum;
    for (const auto& slot : slots_) {
      contig.push_back(slot.first);
      sum.push_back(slot.second);
    }
    return {std::move(contig), std::move(sum)};
  }

 private:
  std::vector<std::pair<i64, i64>> slots_;
};

struct Candidate {
  i64 end;
  i64 rank;
  i64 read;
  i32 distance;
  u8 turn;
};

struct Chosen {
  std::vector<Candidate> candidates;
  std::vector<i32> insert, insert_contig_length;
  i64 orientation[3] = {0, 0, 0};  // facing each other, facing outward, on the same strand
  std::vector<i64> aligned_contig, aligned_bases;
  std::vector<i64> best;  // the place of each read that has one
  std::vector<u8> counted;
};

// A place of each read: where it lies at all for depth, and only if it counts for what follows.
struct Reads {
  const Place* place;  // of all placements
  const i64* contig_length;
  std::vector<i32> row;  // of the counted place of each read, -1 without one

  const Place* of(i64 read) const {
    const i32 at = row[static_cast<std::size_t>(read)];
    return at < 0 ? nullptr : place + at;
  }
  i64 length_of(const Place& p) const { return contig_length[p.contig]; }
};

// Rules 1 and 2.
void choose_places(const std::vector<Place>& places, const i64* read, const i32* length,
                   i32 min_length, Reads& reads, Chosen& out) {
  Sums sums(places.size());
  for (std::size_t begin = 0, end; begin < places.size(); begin = end) {
    end = begin + 1;
    while (end < places.size() && read[end] == read[begin]) ++end;
    if (length[read[begin]] < min_length) continue;
    std::size_t best = begin;
    bool counted = is_counted(places[best], reads.length_of(places[best]));
    for (std::size_t other = begin + 1; other < end; ++other) {
      const bool other_counted = is_counted(places[other], reads.length_of(places[other]));
      if (is_better(places[other], other_counted, reads.length_of(places[other]), places[best],
                    counted, reads.length_of(places[best]))) {
        best = other;
        counted = other_counted;
      }
    }
    out.best.push_back(static_cast<i64>(best));
    out.counted.push_back(counted);
    sums.add(places[best].contig, places[best].end - places[best].start);
    if (counted) reads.row[static_cast<std::size_t>(read[begin])] = static_cast<i32>(best);
  }
  std::tie(out.aligned_contig, out.aligned_bases) = sums.sorted();
}

// Rules 3 to 5. A mate is projected over distances below `bound`.
void find_candidates(const Reads& reads, const i32* length, i32 min_length, const i64* mate,
                     const i64* order, bool project, double bound, Chosen& out) {
  const i64 n = static_cast<i64>(reads.row.size());
  auto offer = [&](i64 read, i64 end, i32 distance, bool turn) {
    if (length[read] < min_length) return;
    out.candidates.push_back({end, order ? order[read] : read, read, distance, turn});
  };
  for (i64 read = 0; read < n; ++read) {
    const Place* p = reads.of(read);
    if (!p) continue;
    const i64 contig_length = reads.length_of(*p);
    if (p->left > p->start) offer(read, 2 * p->contig, kOverhang, !p->reverse);
    if (p->right > contig_length - p->end) offer(read, 2 * p->contig + 1, kOverhang, p->reverse);
    if (!project || !mate || mate[read] < 0) continue;
    const i64 distance = p->reverse ? p->end + p->right : contig_length - (p->start - p->left);
    if (!(static_cast<double>(distance) < bound)) continue;
    const Place* other = reads.of(mate[read]);
    if (other && other->contig == p->contig) continue;
    offer(mate[read], 2 * p->contig + !p->reverse, static_cast<i32>(distance), true);
  }
  std::sort(out.candidates.begin(), out.candidates.end(),
            [](const Candidate& a, const Candidate& b) {
              return std::tie(a.end, a.rank) < std::tie(b.end, b.rank);
            });
}

// Pairs whose reads both lie wholly inside the same contig.
void measure_pairs(const Reads& reads, const i64* mate, Chosen& out) {
  auto inside = [&](i64 read) -> const Place* {
    const Place* p = reads.of(read);
    return p && p->left <= p->start && p->right <= reads.length_of(*p) - p->end ? p : nullptr;
  };
  const i64 n = static_cast<i64>(reads.row.size());
  for (i64 read = 0; read < n; ++read) {
    if (mate[read] <= read) continue;
    const Place* one = inside(read);
    const Place* two = one ? inside(mate[read]) : nullptr;
    if (!two || one->contig != two->contig) continue;
    if (one->reverse == two->reverse) {
      ++out.orientation[2];
      continue;
    }
    const Place* plus = one->reverse ? two : one;
    const Place* minus = one->reverse ? one : two;
    const i64 insert = (minus->end + minus->right) - (plus->start - plus->left);
    ++out.orientation[insert > 0 ? 0 : 1];
    if (insert <= 0) continue;
    out.insert.push_back(static_cast<i32>(std::min<i64>(insert, INT32_MAX)));
    out.insert_contig_length.push_back(
        static_cast<i32>(std::min<i64>(reads.length_of(*one), INT32_MAX)));
  }
}

using Arrays = std::tuple<Out<i64>, Out<i64>, Out<i32>, Out<u8>, Out<i32>, Out<i32>, Out<i64>,
                          Out<i64>, Out<i64>, Out<i64>, Out<u8>>;

Arrays choose(In<i64> read, In<i64> contig, In<i64> start, In<i64> end, In<i32> left, In<i32> right,
              In<u8> reverse, In<i32> score, In<i32> length, std::optional<In<i64>> mate,
              std::optional<In<i64>> order, In<i64> contig_lengths, i32 min_length, bool project,
              double bound) {
  const std::size_t n = read.shape(0), reads = length.shape(0);
  for (std::size_t size : {contig.shape(0), start.shape(0), end.shape(0), left.shape(0),
                           right.shape(0), reverse.shape(0), score.shape(0)}) {
    require(size == n, "choose: arrays of different lengths");
  }
  require(n < static_cast<std::size_t>(INT32_MAX), "choose: too many places at once");
  require(!mate || mate->shape(0) == reads, "choose: not a mate per read");
  require(!order || order->shape(0) == reads, "choose: not a rank per read");
  Chosen out;
  {
    nb::gil_scoped_release release;
    std::vector<Place> places(n);
    for (std::size_t i = 0; i < n; ++i) {
      require(read.data()[i] >= (i ? read.data()[i - 1] : 0) &&
                  read.data()[i] < static_cast<i64>(reads),
              "choose: reads are not ascending, or there is none of this number");
      require(contig.data()[i] >= 0 && contig.data()[i] < static_cast<i64>(contig_lengths.shape(0)),
              "choose: no such contig");
      places[i] = {contig.data()[i], start.data()[i], end.data()[i],    left.data()[i],
                   right.data()[i],  score.data()[i], reverse.data()[i]};
    }
    const i64* mates = mate ? mate->data() : nullptr;
    for (std::size_t i = 0; mates && i < reads; ++i) {
      require(mates[i] >= -1 && mates[i] < static_cast<i64>(reads), "choose: no such mate");
    }
    Reads chosen{places.data(), contig_lengths.data(), std::vector<i32>(reads, -1)};
    choose_places(places, read.data(), length.data(), min_length, chosen, out);
    find_candidates(chosen, length.data(), min_length, mates, order ? order->data() : nullptr,
                    project, bound, out);
    if (mates) measure_pairs(chosen, mates, out);
  }
  const std::size_t m = out.candidates.size();
  Out<i64> read_out = empty<i64>(m), end_out = empty<i64>(m);
  Out<i32> distance_out = empty<i32>(m);
  Out<u8> turn_out = empty<u8>(m);
  for (std::size_t i = 0; i < m; ++i) {
    read_out.data()[i] = out.candidates[i].read;
    end_out.data()[i] = out.candidates[i].end;
    distance_out.data()[i] = out.candidates[i].distance;
    turn_out.data()[i] = out.candidates[i].turn;
  }
  return {read_out,
          end_out,
          distance_out,
          turn_out,
          given(std::move(out.insert)),
          given(std::move(out.insert_contig_length)),
          given(std::vector<i64>(out.orientation, out.orientation + 3)),
          given(std::move(out.aligned_contig)),
          given(std::move(out.aligned_bases)),
          given(std::move(out.best)),
          given(std::move(out.counted))};
}

}  // namespace

NB_MODULE(_choose, m) {
  using namespace nb::literals;
  m.doc() = "Choice of candidate reads; see dlasm.recruit.";
  m.def("choose", &choose, "read"_a, "contig"_a, "contig_start"_a, "contig_end"_a, "left"_a,
        "right"_a, "reverse"_a, "score"_a, "length"_a, "mate"_a.none(), "order"_a.none(),
        "contig_lengths"_a, "min_length"_a, "project"_a, "bound"_a,
        "Candidates (read, end, distance, turn), inserts and the lengths of their contigs, "
        "orientations, contigs met and their aligned bases, the row of each read and whether it "
        "counts.");
}
