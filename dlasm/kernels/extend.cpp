// The CPU engine and the packing of reads, as a Python extension. No Python is run while it works.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "dlasm/kernels/packing.hpp"
#include "dlasm/kernels/parallel.hpp"
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

constexpr i64 kReadBlock = 512;  // reads that a thread takes at a time
constexpr i64 kEndBlock = 64;    // contig ends that a thread takes at a time

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

void gather_words(In<u32> source, In<std::int64_t> source_start, In<std::int64_t> count,
                  nb::ndarray<u32, nb::ndim<1>, nb::c_contig, nb::device::cpu> target,
                  In<std::int64_t> target_start) {
  const std::size_t n = source_start.shape(0);
  require(count.shape(0) == n && target_start.shape(0) == n,
          "gather_words: arrays of different lengths");
  const i64 source_size = source.shape(0), target_size = target.shape(0);
  nb::gil_scoped_release release;
  for (std::size_t i = 0; i < n; ++i) {
    const i64 from = source_start.data()[i], to = target_start.data()[i], m = count.data()[i];
    require(m >= 0 && from >= 0 && to >= 0 && from + m <= source_size && to + m <= target_size,
            "gather_words: a read lies outside the words");
    std::memcpy(target.data() + to, source.data() + from, sizeof(u32) * m);
  }
}

void pack_tails(In<u8> bases, In<std::int64_t> offsets, In<std::int64_t> contig,
                nb::ndarray<u32, nb::shape<-1, kTailWords>, nb::c_contig, nb::device::cpu> tail,
                nb::ndarray<i32, nb::ndim<1>, nb::c_contig, nb::device::cpu> tail_length,
                nb::ndarray<i32, nb::ndim<1>, nb::c_contig, nb::device::cpu> clean_length) {
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

std::tuple<Out<u8>, Out<std::int64_t>, Out<std::int16_t>, Out<u8>> extend(
    In<i32> depth, nb::ndarray<const u32, nb::shape<-1, kTailWords>, nb::c_contig> tail,
    In<i32> tail_length, In<i32> clean_length, In<std::int64_t> read_start, In<i32> length,
    In<u8> has_n, In<std::int64_t> word_offset, In<u32> words, int k, i64 walk_limit, int threads) {
  const i64 ends = static_cast<i64>(tail_length.shape(0));
  const i64 reads = static_cast<i64>(length.shape(0));
  require(k >= kMinK && k <= kMaxK && walk_limit > 0, "extend: k or walk limit out of range");
  require(static_cast<i64>(depth.shape(0)) * 2 == ends && static_cast<i64>(tail.shape(0)) == ends &&
              static_cast<i64>(clean_length.shape(0)) == ends &&
              static_cast<i64>(read_start.shape(0)) == ends + 1 &&
              static_cast<i64>(has_n.shape(0)) == reads &&
              static_cast<i64>(word_offset.shape(0)) == reads + 1,
          "extend: arrays of different lengths");
  const i64 size = words.shape(0);
  require(
      read_start.data()[0] == 0 && read_start.data()[ends] == reads && word_offset.data()[0] == 0,
      "extend: offsets do not cover the reads");
  for (i64 r = 0; r < reads; ++r) {
    require(length.data()[r] >= 0 && word_offset.data()[r + 1] - word_offset.data()[r] ==
                                         2 * base_words(length.data()[r]),
            "extend: a read's words do not fit its length");
  }
  // windows look up to two words past a read
  require(word_offset.data()[reads] + 2 <= size, "extend: the words lack two words of padding");

  struct Piece {
    int thread;
    std::size_t at;
  };
  std::vector<Piece> piece(ends);
  std::vector<std::vector<u8>> arena(std::max(1, threads));
  Owned<std::int64_t> offsets(ends + 1);
  Owned<std::int16_t> walk_k(ends);
  Owned<u8> outcome(ends);
  std::unique_ptr<Owned<u8>> values;
  {
    nb::gil_scoped_release release;
    const Reads packed{words.data(), reinterpret_cast<const i64*>(word_offset.data()),
                       length.data(), has_n.data()};
    std::vector<std::unique_ptr<Walker>> walkers(arena.size());
    parallel_blocks(ends, kEndBlock, threads, [&](int thread, i64 begin, i64 end) {
      if (!walkers[thread]) walkers[thread] = std::make_unique<Walker>(packed, k, walk_limit);
      Walker& walker = *walkers[thread];
      for (i64 e = begin; e < end; ++e) {
        const i64 first = read_start.data()[e], last = read_start.data()[e + 1];
        require(first <= last && last <= reads, "extend: reads of an end are not ascending");
        const Walker::Result result =
            walker.extend({tail.data() + kTailWords * e, tail_length.data()[e],
                           clean_length.data()[e], depth.data()[e / 2], first, last});
        outcome[e] = result.outcome;
        walk_k[e] = static_cast<std::int16_t>(result.k);
        offsets[e + 1] = result.length;
        piece[e] = {thread, arena[thread].size()};
        for (i64 i = 0; i < result.length; ++i) {  // in output order
          const u32 base = base_at(walker.walk(), e % 2 ? i : result.length - 1 - i);
          arena[thread].push_back("ACGT"[e % 2 ? base : 3 - base]);
        }
      }
    });
    offsets[0] = 0;
    for (i64 e = 0; e < ends; ++e) offsets[e + 1] += offsets[e];
    values = std::make_unique<Owned<u8>>(static_cast<std::size_t>(offsets[ends]));
    for (i64 e = 0; e < ends; ++e) {
      const i64 n = offsets[e + 1] - offsets[e];
      if (n)
        std::memcpy(values->begin() + offsets[e], arena[piece[e].thread].data() + piece[e].at, n);
    }
  }
  return {values->give(), offsets.give(), walk_k.give(), outcome.give()};
}

}  // namespace

NB_MODULE(_cpu, m) {
  using namespace nb::literals;
  m.doc() = "The CPU engine and the packing of reads; see dlasm.pack and dlasm.engines.cpu.";
  m.def("pack_reads", &pack_reads, "text"_a, "base_start"_a, "quality_start"_a, "length"_a,
        "reverse"_a, "phred_offset"_a, "low"_a, "high"_a, "threads"_a = 1,
        "Pack reads that lie in text; a negative quality_start: all votes are high.");
  m.def("gather_words", &gather_words, "source"_a, "source_start"_a, "count"_a, "target"_a,
        "target_start"_a, "Copy the words of reads from one array into another.");
  m.def("pack_tails", &pack_tails, "bases"_a, "offsets"_a, "contig"_a, "tail"_a, "tail_length"_a,
        "clean_length"_a, "Fill the tails of both ends of each of the contigs.");
  m.def("extend", &extend, "depth"_a, "tail"_a, "tail_length"_a, "clean_length"_a, "read_start"_a,
        "length"_a, "has_n"_a, "word_offset"_a, "words"_a, "k"_a, "walk_limit"_a, "threads"_a = 1,
        "Walk every end; gives walk values, offsets, k and outcome.");
}
