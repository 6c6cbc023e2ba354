// Text of results: rows of extended.fasta and extensions.tsv, made by several threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dlasm/kernels/bases.cuh"
#include "dlasm/kernels/parallel.hpp"
#include "dlasm/numpy_arrays.hpp"

namespace nb = nanobind;
using namespace dlasm;

namespace {

using Offsets = In<std::int64_t>;
using Text = nb::ndarray<nb::numpy, u8, nb::ndim<1>>;
using Names = std::vector<std::string>;

constexpr i64 kRowsAtOnce = 256;  // rows that a thread takes at a time

int digits(u64 value) {
  int n = 1;
  for (; value >= 10; value /= 10) ++n;
  return n;
}

// Counts the bytes that rows take.
struct Counter {
  i64 size = 0;
  void text(const void*, i64 length) { size += length; }
  void number(u64 value) { size += digits(value); }
};

// Writes rows to where they belong.
struct Writer {
  u8* to;
  void text(const void* from, i64 length) {
    std::memcpy(to, from, static_cast<std::size_t>(length));
    to += length;
  }
  void number(u64 value) {
    u8* p = to += digits(value);
    do {
      *--p = static_cast<u8>('0' + value % 10);
      value /= 10;
    } while (value);
  }
};

template <class Out>
void put(Out& out, const std::string& text) {
  out.text(text.data(), static_cast<i64>(text.size()));
}

template <class Out, std::size_t n>
void put(Out& out, const char (&text)[n]) {
  out.text(text, n - 1);
}

// Lets row(out, i) make each of `rows` rows: once to count, once to write.
template <class Row>
Text make_text(i64 rows, int threads, Row row) {
  const i64 blocks = (rows + kRowsAtOnce - 1) / kRowsAtOnce;
  std::vector<i64> at(static_cast<std::size_t>(blocks) + 1);
  std::unique_ptr<u8[]> text;
  {
    const nb::gil_scoped_release release;
    parallel_blocks(rows, kRowsAtOnce, threads, [&](int, i64 begin, i64 end) {
      Counter counter;
      for (i64 i = begin; i < end; ++i) row(counter, i);
      at[begin / kRowsAtOnce + 1] = counter.size;
    });
    for (i64 b = 0; b < blocks; ++b) at[b + 1] += at[b];
    text.reset(new u8[static_cast<std::size_t>(at[blocks])]);
    parallel_blocks(rows, kRowsAtOnce, threads, [&](int, i64 begin, i64 end) {
      Writer writer{text.get() + at[begin / kRowsAtOnce]};
      for (i64 i = begin; i < end; ++i) row(writer, i);
    });
  }
  u8* raw = text.release();
  const nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<u8*>(p); });
  return Text(raw, {static_cast<std::size_t>(at[blocks])}, owner);
}

// Requires that offsets of `rows` pieces begin at 0, ascend, and end at `size`.
void check_offsets(const Offsets& offsets, i64 rows, std::size_t size, const char* what) {
  require(static_cast<i64>(offsets.shape(0)) == rows + 1, what);
  const std::int64_t* o = offsets.data();
  require(o[0] == 0 && o[rows] == static_cast<std::int64_t>(size), what);
  for (i64 i = 0; i < rows; ++i) require(o[i] <= o[i + 1], what);
}

void check_codes(const In<u8>& codes, i64 rows, const Names& names, const char* what) {
  require(static_cast<i64>(codes.shape(0)) == rows, what);
  for (i64 i = 0; i < rows; ++i) require(codes.data()[i] < names.size(), what);
}

Text fasta(In<u8> names, Offsets name_offsets, In<u8> bases, Offsets offsets, In<double> depth,
           In<u8> walks, Offsets walk_offsets, In<u8> outcome, const Names& outcomes, int threads) {
  const i64 contigs = static_cast<i64>(depth.shape(0));
  check_offsets(name_offsets, contigs, names.shape(0), "fasta: names");
  check_offsets(offsets, contigs, bases.shape(0), "fasta: bases");
  check_offsets(walk_offsets, 2 * contigs, walks.shape(0), "fasta: walks");
  check_codes(outcome, 2 * contigs, outcomes, "fasta: outcomes");
  return make_text(contigs, threads, [&](auto& out, i64 i) {
    const std::int64_t *name = name_offsets.data() + i, *contig = offsets.data() + i;
    const std::int64_t* walk = walk_offsets.data() + 2 * i;
    const u8* code = outcome.data() + 2 * i;
    // beyond 9e15 a double has no decimals, and no depth is
    const double fold = depth.data()[i] > 0 ? std::min(depth.data()[i], 9e15) : 0;
    const u64 hundredths = static_cast<u64>(std::nearbyint(fold * 100));
    put(out, ">");
    out.text(names.data() + name[0], name[1] - name[0]);
    put(out, " left=");
    out.number(static_cast<u64>(walk[1] - walk[0]));
    put(out, " right=");
    out.number(static_cast<u64>(walk[2] - walk[1]));
    put(out, " left_reason=");
    put(out, outcomes[code[0]]);
    put(out, " right_reason=");
    put(out, outcomes[code[1]]);
    put(out, " depth=");
    out.number(hundredths / 100);
    put(out, ".");
    out.number(hundredths / 10 % 10);
    out.number(hundredths % 10);
    put(out, "\n");
    out.text(walks.data() + walk[0], walk[1] - walk[0]);
    out.text(bases.data() + contig[0], contig[1] - contig[0]);
    out.text(walks.data() + walk[1], walk[2] - walk[1]);
    put(out, "\n");
  });
}

Text extensions(In<u8> names, Offsets name_offsets, Offsets walk_offsets, In<std::int16_t> k,
                In<u8> outcome, Offsets candidates, In<u8> bin, In<u8> flags, const Names& sides,
                const Names& outcomes, const Names& flag_names, int threads) {
  const i64 contigs = static_cast<i64>(bin.shape(0)), ends = 2 * contigs;
  check_offsets(name_offsets, contigs, names.shape(0), "extensions: names");
  check_codes(outcome, ends, outcomes, "extensions: outcomes");
  check_codes(flags, ends, flag_names, "extensions: flags");
  require(sides.size() == 2 && static_cast<i64>(walk_offsets.shape(0)) == ends + 1 &&
              static_cast<i64>(k.shape(0)) == ends && static_cast<i64>(candidates.shape(0)) == ends,
          "extensions: arrays of different lengths");
  return make_text(ends, threads, [&](auto& out, i64 e) {
    const std::int64_t *name = name_offsets.data() + e / 2, *walk = walk_offsets.data() + e;
    out.text(names.data() + name[0], name[1] - name[0]);
    put(out, "\t");
    put(out, sides[static_cast<std::size_t>(e % 2)]);
    put(out, "\t");
    out.number(static_cast<u64>(walk[1] - walk[0]));
    put(out, "\t");
    out.number(static_cast<u64>(k.data()[e]));
    put(out, "\t");
    put(out, outcomes[outcome.data()[e]]);
    put(out, "\t");
    out.number(static_cast<u64>(candidates.data()[e]));
    put(out, "\t");
    out.number(bin.data()[e / 2]);
    put(out, "\t");
    put(out, flag_names[flags.data()[e]]);
    put(out, "\n");
  });
}

}  // namespace

NB_MODULE(_text, m) {
  using namespace nb::literals;
  m.doc() = "Text of results; see dlasm.report.";
  m.def("fasta", &fasta, "names"_a, "name_offsets"_a, "bases"_a, "offsets"_a, "depth"_a, "walks"_a,
        "walk_offsets"_a, "outcome"_a, "outcomes"_a, "threads"_a = 1,
        "Records of extended contigs, their sequences on a line each.");
  m.def("extensions", &extensions, "names"_a, "name_offsets"_a, "walk_offsets"_a, "k"_a,
        "outcome"_a, "candidates"_a, "bin"_a, "flags"_a, "sides"_a, "outcomes"_a, "flag_names"_a,
        "threads"_a = 1, "A tab-separated row for each contig end.");
}
