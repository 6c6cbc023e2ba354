// The CPU engine and the packing of reads, as a Python extension. No Python is run while it works.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "dlasm/kernels/packing.hpp"
#include "dlasm/kernels/parallel.hpp"
#include "dlasm/kernels/support.cuh"
#include "dlasm/kernels/walk_cpu.hpp"

namespace nb = nanobind;
using namespace dlasm;

namespace {

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

// An array for Python that owns its memory; not initialised.
template <class T>
struct Owned {
  std::unique_ptr<T[]> data;
  std::size_t size;
  explicit Owned(std::size_t n) : data(new T[n]), size(n) {}
  T& operator[](std::size_t i) { return data[i]; }
  T* begin() { return data.get(); }
  Out<T> give() {
    T* raw = data.release();
    nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    return Out<T>(raw, {size}, owner);
  }
};

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

constexpr i64 kReadBlock = 512;        // reads that a thread takes at a time
constexpr i64 kMostWords = 1ll << 29;  // of an end: its samples are numbered in 32 bits
constexpr i64 kEndBlock = 64;          // contig ends that a thread takes at a time

std::tuple<Out<u32>, Out<std::int64_t>, Out<u8>> pack_reads(
    In<u8> text, In<std::int64_t> base_start, In<std::int64_t> quality_start, In<i32> length,
    In<u8> reverse, int phred_offset, int low, int high, int threads) {
  const std::size_t n = base_start.shape(0);
  require(quality_start.shape(0) == n && length.shape(0) == n && reverse.shape(0) == n,
          "pack_reads: arrays of different lengths");
  const i64 size = static_cast<i64>(text.shape(0));
  Owned<std::int64_t> offset(n + 1);
  offset[0] = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const i64 here = length.data()[i];
    const i64 base = base_start.data()[i], quality = quality_start.data()[i];
    require(here >= 0 && base >= 0 && base + here <= size && quality + here <= size,
            "pack_reads: a read lies outside the text");
    offset[i + 1] = offset[i] + 2 * base_words(here);
  }
  Owned<u32> words(static_cast<std::size_t>(offset[n]));
  Owned<u8> has_n(n);
  {
    nb::gil_scoped_release release;
    const QualityLimits limits{static_cast<u32>(phred_offset + low),
                               static_cast<u32>(phred_offset + high)};
    parallel_blocks(static_cast<i64>(n), kReadBlock, threads, [&](int, i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        const i64 quality = quality_start.data()[i];
        has_n[i] = pack_read(text.data() + base_start.data()[i],
                             quality < 0 ? nullptr : text.data() + quality, length.data()[i],
                             reverse.data()[i] != 0, limits, words.begin() + offset[i]);
      }
    });
  }
  return {words.give(), offset.give(), has_n.give()};
}

template <class T>
using Target = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The first of the ascending values from `first` on that is not under `wanted`, sought in strides
// that double: near when both lists are dense, and quick when one is sparse.
const std::int64_t* gallop(const std::int64_t* first, const std::int64_t* last,
                           std::int64_t wanted) {
  std::ptrdiff_t stride = 1;
  while (last - first > stride && first[stride] < wanted) {
    first += stride;
    stride *= 2;
  }
  return std::lower_bound(first, std::min(last, first + stride + 1), wanted);
}

// Calls visit(e, row) for each candidate of a sorted run that belongs to ends[e] and counts.
template <class Visit>
void each_candidate(const In<std::int64_t>& run_end, const In<i32>& distance, double reach,
                    const In<std::int64_t>& ends, Visit visit) {
  const std::int64_t *row = run_end.data(), *const last_row = row + run_end.shape(0);
  const std::int64_t *end = ends.data(), *const last_end = end + ends.shape(0);
  while (row < last_row && end < last_end) {
    if (*end < *row) {
      end = gallop(end, last_end, *row);
    } else if (*row < *end) {
      row = gallop(row, last_row, *end);
    } else {
      const i64 at = row - run_end.data();
      if (distance.data()[at] < reach) visit(end - ends.data(), at);  // -1 for overhanging reads
      ++row;
    }
  }
}

void check_run(const In<std::int64_t>& run_end, const In<i32>& distance,
               const In<std::int64_t>& word_offset, const In<u32>& words) {
  const std::size_t n = run_end.shape(0);
  require(distance.shape(0) == n && word_offset.shape(0) == n + 1,
          "merge: arrays of different lengths");
  require(word_offset.data()[n] <= static_cast<std::int64_t>(words.shape(0)),
          "merge: a read lies outside the words");
}

void count_candidates(In<std::int64_t> run_end, In<i32> distance, double reach,
                      In<std::int64_t> ends, Target<std::int64_t> count) {
  require(distance.shape(0) == run_end.shape(0) && count.shape(0) == ends.shape(0),
          "count_candidates: arrays of different lengths");
  nb::gil_scoped_release release;
  each_candidate(run_end, distance, reach, ends, [&](std::size_t e, i64) { ++count.data()[e]; });
}

void merge_reads(In<std::int64_t> run_end, In<i32> distance, double reach, In<std::int64_t> ends,
                 In<i32> run_length, In<std::int64_t> run_fragment, In<u8> run_has_n,
                 In<std::int64_t> read_start, Target<std::int64_t> next, Target<i32> length,
                 Target<std::int64_t> fragment, Target<u8> has_n) {
  const std::size_t n = run_end.shape(0);
  require(distance.shape(0) == n && run_length.shape(0) == n && run_fragment.shape(0) == n &&
              run_has_n.shape(0) == n && read_start.shape(0) == ends.shape(0) + 1 &&
              next.shape(0) == ends.shape(0) && length.shape(0) == has_n.shape(0) &&
              fragment.shape(0) == has_n.shape(0),
          "merge_reads: arrays of different lengths");
  const std::int64_t slots = static_cast<std::int64_t>(length.shape(0));
  nb::gil_scoped_release release;
  each_candidate(run_end, distance, reach, ends, [&](std::size_t e, i64 row) {
    const std::int64_t slot = next.data()[e];
    if (slot >= read_start.data()[e + 1]) return;  // above the cap
    require(0 <= slot && slot < slots, "merge_reads: a read lies outside the partition");
    next.data()[e] = slot + 1;
    length.data()[slot] = run_length.data()[row];
    fragment.data()[slot] = run_fragment.data()[row];
    has_n.data()[slot] = run_has_n.data()[row];
  });
}

void merge_words(In<std::int64_t> run_end, In<i32> distance, double reach, In<std::int64_t> ends,
                 In<std::int64_t> run_offset, In<u32> run_words, In<std::int64_t> read_start,
                 Target<std::int64_t> next, In<std::int64_t> word_offset, Target<u32> words) {
  check_run(run_end, distance, run_offset, run_words);
  require(read_start.shape(0) == ends.shape(0) + 1 && next.shape(0) == ends.shape(0),
          "merge_words: arrays of different lengths");
  const std::int64_t slots = static_cast<std::int64_t>(word_offset.shape(0)) - 1;
  const std::int64_t size = static_cast<std::int64_t>(words.shape(0));
  nb::gil_scoped_release release;
  each_candidate(run_end, distance, reach, ends, [&](std::size_t e, i64 row) {
    const std::int64_t slot = next.data()[e];
    if (slot >= read_start.data()[e + 1]) return;
    require(0 <= slot && slot < slots, "merge_words: a read lies outside the partition");
    next.data()[e] = slot + 1;
    const std::int64_t from = run_offset.data()[row], n = run_offset.data()[row + 1] - from;
    const std::int64_t to = word_offset.data()[slot];
    require(from >= 0 && n == word_offset.data()[slot + 1] - to && to >= 0 && to + n <= size,
            "merge_words: a read's words do not fit its length");
    std::memcpy(words.data() + to, run_words.data() + from, sizeof(u32) * n);
  });
}

void pack_tails(In<u8> bases, In<std::int64_t> offsets, In<std::int64_t> contig,
                nb::ndarray<u32, nb::shape<-1, kTailWords>, nb::c_contig, nb::device::cpu> tail,
                Target<i32> tail_length, Target<i32> clean_length) {
  const std::size_t n = contig.shape(0);
  require(tail.shape(0) == 2 * n && tail_length.shape(0) == 2 * n && clean_length.shape(0) == 2 * n,
          "pack_tails: arrays of different lengths");
  const i64 contigs = static_cast<i64>(offsets.shape(0)) - 1;
  const i64 size = bases.shape(0);
  for (std::size_t i = 0; i < n; ++i) {
    const i64 c = contig.data()[i];
    require(c >= 0 && c < contigs, "pack_tails: no such contig");
    const i64 begin = offsets.data()[c], end = offsets.data()[c + 1];
    require(0 <= begin && begin <= end && end <= size, "pack_tails: a contig outside the bases");
    for (int side = 0; side < 2; ++side) {
      const std::size_t e = 2 * i + side;
      pack_tail(bases.data() + begin, end - begin, side, tail.data() + kTailWords * e,
                tail_length.data() + e, clean_length.data() + e);
    }
  }
}

// Counts the support of walks, one after another; all memory is kept between them.
class SupportCounter {
 public:
  SupportCounter(const Reads& reads, const i64* fragment) : reads_(reads), fragment_(fragment) {}

  // Support of each base of a walk, 0 <= length <= kMaxWalkLimit, in the direction of the walk.
  const std::vector<u8>& count(const End& end, const u32* walk, i64 length) {
    support_.resize(static_cast<std::size_t>(length));
    if (length == 0) return support_;
    using Count = SupportCount<Alone>;
    places_.assign(static_cast<std::size_t>(Count::words_for(static_cast<i32>(length))), 0);
    const Count count(places_.data(), static_cast<i32>(length));
    std::copy_n(end.tail + kTailWords - Count::kContextTailWords, Count::kContextTailWords,
                count.context);
    std::copy_n(walk, base_words(length), count.context + Count::kContextTailWords);
    for (i32 at = Count::kFirstSampleEnd; at <= count.context_end(); ++at) count.add_sample(at);
    for (i64 r = end.first_read, last; r < end.last_read; r = last) {
      last = Count::fragment_end(fragment_, r, end.last_read);
      count.add_fragment(reads_.words, reads_.word_offset, reads_.length, reads_.has_n, r, last);
    }
    u32 fragments = 0;
    for (i64 i = 0; i < length; ++i) {
      fragments += count.steps[i];
      support_[static_cast<std::size_t>(i)] =
          static_cast<u8>(std::min<u32>(fragments, kMostSupport));
    }
    return support_;
  }

 private:
  const Reads reads_;
  const i64* fragment_;
  std::vector<u32> places_;
  std::vector<u8> support_;
};

using Extended =
    std::tuple<Out<u8>, Out<std::int64_t>, Out<u8>, Out<std::int16_t>, Out<u8>, Out<i32>>;

using Tails = nb::ndarray<const u32, nb::shape<-1, kTailWords>, nb::c_contig>;

// The arrays of a packed partition that the walks read, checked against each other.
struct Packed {
  In<i32> depth;
  Tails tail;
  In<i32> tail_length, clean_length;
  In<std::int64_t> read_start;
  In<i32> length;
  In<u8> has_n;
  In<std::int64_t> word_offset;
  In<u32> words;

  i64 ends() const { return static_cast<i64>(tail_length.shape(0)); }
  i64 read_count() const { return static_cast<i64>(length.shape(0)); }
  Reads reads() const {
    return {words.data(), reinterpret_cast<const i64*>(word_offset.data()), length.data(),
            has_n.data()};
  }

  void check(int threads) const {
    require(static_cast<i64>(depth.shape(0)) * 2 == ends() &&
                static_cast<i64>(tail.shape(0)) == ends() &&
                static_cast<i64>(clean_length.shape(0)) == ends() &&
                static_cast<i64>(read_start.shape(0)) == ends() + 1 &&
                static_cast<i64>(has_n.shape(0)) == read_count() &&
                static_cast<i64>(word_offset.shape(0)) == read_count() + 1,
            "extend: arrays of different lengths");
    const i64 size = words.shape(0);
    require(read_start.data()[0] == 0 && read_start.data()[ends()] == read_count() &&
                word_offset.data()[0] == 0,
            "extend: offsets do not cover the reads");
    // windows look up to two words past a read
    require(word_offset.data()[read_count()] + 2 <= size,
            "extend: the words lack two words of padding");
    parallel_blocks(read_count(), kReadBlock, threads, [&](int, i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        require(length.data()[r] >= 0 && word_offset.data()[r + 1] - word_offset.data()[r] ==
                                             2 * base_words(length.data()[r]),
                "extend: a read's words do not fit its length");
      }
    });
  }

  End end(i64 e) const {
    const i64 first = read_start.data()[e], last = read_start.data()[e + 1];
    require(first <= last && last <= read_count(), "extend: reads of an end are not ascending");
    require(word_offset.data()[last] - word_offset.data()[first] < kMostWords,
            "extend: the reads of an end hold too many bases");
    return {tail.data() + kTailWords * e,
            tail_length.data()[e],
            clean_length.data()[e],
            depth.data()[e / 2],
            first,
            last};
  }
};

void check_walk(int k, i64 walk_limit) {
  require(k >= kMinK && k <= kMaxK && walk_limit > 0 && walk_limit <= kMaxWalkLimit,
          "extend: k or walk limit out of range");
}

Extended extend(In<i32> depth, Tails tail, In<i32> tail_length, In<i32> clean_length,
                In<std::int64_t> read_start, In<i32> length, In<std::int64_t> fragment,
                In<u8> has_n, In<std::int64_t> word_offset, In<u32> words, int k, i64 walk_limit,
                int min_support, int threads) {
  const Packed packed{depth,  tail,  tail_length, clean_length, read_start,
                      length, has_n, word_offset, words};
  const i64 ends = packed.ends();
  check_walk(k, walk_limit);
  require(static_cast<i64>(fragment.shape(0)) == packed.read_count(),
          "extend: arrays of different lengths");

  struct Piece {
    int thread;
    std::size_t at;
  };
  std::vector<Piece> piece(ends);
  std::vector<std::vector<u8>> arena(std::max(1, threads)), support_arena(arena.size());
  Owned<std::int64_t> offsets(ends + 1);
  Owned<std::int16_t> walk_k(ends);
  Owned<u8> outcome(ends);
  Owned<i32> cut(ends);
  std::unique_ptr<Owned<u8>> values, support;
  {
    nb::gil_scoped_release release;
    packed.check(threads);
    std::vector<std::unique_ptr<Walker>> walkers(arena.size());
    const i64* fragments = reinterpret_cast<const i64*>(fragment.data());
    std::vector<SupportCounter> counters(arena.size(), SupportCounter(packed.reads(), fragments));
    parallel_blocks(ends, kEndBlock, threads, [&](int thread, i64 begin, i64 end) {
      if (!walkers[thread])
        walkers[thread] = std::make_unique<Walker>(packed.reads(), k, walk_limit);
      Walker& walker = *walkers[thread];
      for (i64 e = begin; e < end; ++e) {
        const End here = packed.end(e);
        require(std::is_sorted(fragments + here.first_read, fragments + here.last_read),
                "extend: the fragments of an end are not ascending");
        const Walker::Result result = walker.extend(here);
        const std::vector<u8>& found = counters[thread].count(here, walker.walk(), result.length);
        const i64 kept =
            supported_bases(result.length, min_support, [&](i64 i) { return found[i]; });
        cut[e] = static_cast<i32>(result.length - kept);
        outcome[e] = outcome_of_cut(result.outcome, result.length, kept);
        walk_k[e] = static_cast<std::int16_t>(kept ? result.k : 0);
        offsets[e + 1] = kept;
        piece[e] = {thread, arena[thread].size()};
        for (i64 i = 0; i < kept; ++i) {  // in output order
          const i64 at = e % 2 ? i : kept - 1 - i;
          const u32 base = base_at(walker.walk(), at);
          arena[thread].push_back("ACGT"[e % 2 ? base : 3 - base]);
          support_arena[thread].push_back(found[at]);
        }
      }
    });
    offsets[0] = 0;
    for (i64 e = 0; e < ends; ++e) offsets[e + 1] += offsets[e];
    values = std::make_unique<Owned<u8>>(static_cast<std::size_t>(offsets[ends]));
    support = std::make_unique<Owned<u8>>(static_cast<std::size_t>(offsets[ends]));
    parallel_blocks(ends, kReadBlock, threads, [&](int, i64 begin, i64 end) {
      for (i64 e = begin; e < end; ++e) {
        const i64 n = offsets[e + 1] - offsets[e];
        if (!n) continue;
        const auto [thread, at] = piece[e];
        std::memcpy(values->begin() + offsets[e], arena[thread].data() + at, n);
        std::memcpy(support->begin() + offsets[e], support_arena[thread].data() + at, n);
      }
    });
  }
  return {values->give(), offsets.give(), support->give(),
          walk_k.give(),  outcome.give(), cut.give()};
}

// The walks of one end, in the order of the ladder: k, outcome, and the bases away from the contig.
nb::list walks(In<i32> depth, Tails tail, In<i32> tail_length, In<i32> clean_length,
               In<std::int64_t> read_start, In<i32> length, In<u8> has_n,
               In<std::int64_t> word_offset, In<u32> words, i64 end, int k, i64 walk_limit) {
  const Packed packed{depth,  tail,  tail_length, clean_length, read_start,
                      length, has_n, word_offset, words};
  check_walk(k, walk_limit);
  packed.check(1);
  require(0 <= end && end < packed.ends(), "walks: no such end");
  nb::list found;
  Walker(packed.reads(), k, walk_limit)
      .extend(packed.end(end), [&](Outcome outcome, int at_k, const u32* walk, i64 bases) {
        std::string text;
        for (i64 i = 0; i < bases; ++i) text.push_back("ACGT"[base_at(walk, i)]);
        found.append(nb::make_tuple(at_k, static_cast<int>(outcome), text));
      });
  return found;
}

using Votes = nb::ndarray<const u32, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;

// What follows by the votes for A, C, G and T: 0 to 3, 4 for a fork, 5 for a dead end.
Out<u8> choose_bases(Votes votes, Votes high, u32 depth) {
  require(votes.shape(0) == high.shape(0), "choose_bases: arrays of different lengths");
  Owned<u8> chosen(votes.shape(0));
  for (std::size_t i = 0; i < votes.shape(0); ++i) {
    chosen[i] = static_cast<u8>(choose(votes.data() + 4 * i, high.data() + 4 * i, depth));
  }
  return chosen.give();
}

// Cuts walks that are in output order, in place.
void cut_walks(Target<u8> values, Target<std::int64_t> offsets, Target<u8> support,
               Target<std::int16_t> k, Target<u8> outcome, Target<i32> cut, int min_support) {
  const i64 ends = static_cast<i64>(k.shape(0));
  std::int64_t* const o = offsets.data();
  require(static_cast<i64>(offsets.shape(0)) == ends + 1 &&
              static_cast<i64>(outcome.shape(0)) == ends &&
              static_cast<i64>(cut.shape(0)) == ends && values.shape(0) == support.shape(0) &&
              o[0] == 0 && o[ends] == static_cast<std::int64_t>(values.shape(0)) &&
              std::is_sorted(o, o + ends + 1),
          "cut_walks: arrays of different lengths");
  const nb::gil_scoped_release release;
  i64 begin = 0, to = 0;
  for (i64 e = 0; e < ends; ++e) {
    const i64 next = o[e + 1], length = next - begin;
    const u8* const found = support.data() + begin;
    const i64 kept = supported_bases(length, min_support,
                                     [&](i64 i) { return found[e % 2 ? i : length - 1 - i]; });
    const i64 from = e % 2 ? begin : next - kept;
    std::memmove(values.data() + to, values.data() + from, kept);
    std::memmove(support.data() + to, support.data() + from, kept);
    cut.data()[e] = static_cast<i32>(length - kept);
    outcome.data()[e] = outcome_of_cut(outcome.data()[e], length, kept);
    if (!kept) k.data()[e] = 0;
    begin = next;
    o[e + 1] = to += kept;
  }
}

}  // namespace

NB_MODULE(_cpu, m) {
  using namespace nb::literals;
  m.doc() = "The CPU engine and the packing of reads; see dlasm.pack and dlasm.engines.cpu.";
  m.def("pack_reads", &pack_reads, "text"_a, "base_start"_a, "quality_start"_a, "length"_a,
        "reverse"_a, "phred_offset"_a, "low"_a, "high"_a, "threads"_a = 1,
        "Pack reads that lie in text; a negative quality_start: all votes are high.");
  m.def("count_candidates", &count_candidates, "run_end"_a, "distance"_a, "reach"_a, "ends"_a,
        "count"_a, "Add to count the candidates of each of the ascending ends.");
  m.def("merge_reads", &merge_reads, "run_end"_a, "distance"_a, "reach"_a, "ends"_a, "run_length"_a,
        "run_fragment"_a, "run_has_n"_a, "read_start"_a, "next"_a, "length"_a, "fragment"_a,
        "has_n"_a, "Put facts of a run's candidates after those of the runs before.");
  m.def("merge_words", &merge_words, "run_end"_a, "distance"_a, "reach"_a, "ends"_a, "run_offset"_a,
        "run_words"_a, "read_start"_a, "next"_a, "word_offset"_a, "words"_a,
        "Put words of a run's candidates after those of the runs before.");
  m.def("pack_tails", &pack_tails, "bases"_a, "offsets"_a, "contig"_a, "tail"_a, "tail_length"_a,
        "clean_length"_a, "Fill the tails of both ends of each of the contigs.");
  m.def("extend", &extend, "depth"_a, "tail"_a, "tail_length"_a, "clean_length"_a, "read_start"_a,
        "length"_a, "fragment"_a, "has_n"_a, "word_offset"_a, "words"_a, "k"_a, "walk_limit"_a,
        "min_support"_a, "threads"_a = 1,
        "Walk every end; gives walk values, offsets, support, k, outcome and bases cut.");
  m.def("walks", &walks, "depth"_a, "tail"_a, "tail_length"_a, "clean_length"_a, "read_start"_a,
        "length"_a, "has_n"_a, "word_offset"_a, "words"_a, "end"_a, "k"_a, "walk_limit"_a,
        "The walk of each rung of one end: k, outcome, bases away from the contig.");
  m.def("choose_bases", &choose_bases, "votes"_a, "high"_a, "depth"_a,
        "What follows by the votes for A, C, G, T: 0 to 3, 4 for a fork, 5 for a dead end.");
  m.def("cut_walks", &cut_walks, "values"_a, "offsets"_a, "support"_a, "k"_a, "outcome"_a, "cut"_a,
        "min_support"_a, "Cut walks for want of support, in place; offsets end where values do.");
}
