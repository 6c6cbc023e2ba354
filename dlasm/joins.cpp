// Native parts of joining: exact overlaps of contig ends, reads placed on junctions, chains.
//
// An end is 2 * contig + side. "Outward" is the extended contig read so that the end comes last:
// the contig itself for its right end, its reverse complement for its left end.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dlasm/kernels/bases.cuh"
#include "dlasm/kernels/parallel.hpp"
#include "dlasm/numpy_arrays.hpp"

namespace nb = nanobind;
using namespace dlasm;

namespace {

template <class T>
using InOut = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = In<std::int64_t>;

constexpr u8 kForeign = 4;  // code of what is not A, C, G or T

u8 code_of(u8 base) {
  switch (base & 0xDF) {
    case 'A':
      return 0;
    case 'C':
      return 1;
    case 'G':
      return 2;
    case 'T':
      return 3;
    default:
      return kForeign;
  }
}

u8 complement(u8 code) { return code < kForeign ? static_cast<u8>(3 - code) : kForeign; }

// Contigs with the bases appended to their ends, read in place.
class Extended {
 public:
  Extended(const In<u8>& bases, const Ints& offsets, const In<u8>& walks, const Ints& walk_offsets)
      : bases_(bases.data()),
        offsets_(offsets.data()),
        walks_(walks.data()),
        walk_offsets_(walk_offsets.data()),
        contigs_(static_cast<i64>(offsets.shape(0)) - 1) {
    require(contigs_ >= 0 && static_cast<i64>(walk_offsets.shape(0)) == 2 * contigs_ + 1,
            "joins: offsets of contigs and walks do not agree");
    require(offsets_[0] >= 0 && offsets_[contigs_] <= static_cast<i64>(bases.shape(0)) &&
                walk_offsets_[0] >= 0 &&
                walk_offsets_[2 * contigs_] <= static_cast<i64>(walks.shape(0)),
            "joins: offsets lie outside the bases");
    for (i64 c = 0; c < contigs_; ++c) {
      require(offsets_[c] <= offsets_[c + 1], "joins: offsets of contigs do not ascend");
    }
    for (i64 e = 0; e < 2 * contigs_; ++e) {
      require(walk_offsets_[e] <= walk_offsets_[e + 1], "joins: offsets of walks do not ascend");
    }
  }

  i64 contigs() const { return contigs_; }
  i64 walk(i64 end) const { return walk_offsets_[end + 1] - walk_offsets_[end]; }
  i64 length(i64 contig) const {
    return offsets_[contig + 1] - offsets_[contig] + walk(2 * contig) + walk(2 * contig + 1);
  }

  // Code of base i of the extended contig.
  u8 at(i64 contig, i64 i) const {
    const i64 left = walk(2 * contig);
    if (i < left) return code_of(walks_[walk_offsets_[2 * contig] + i]);
    i -= left;
    const i64 own = offsets_[contig + 1] - offsets_[contig];
    if (i < own) return code_of(bases_[offsets_[contig] + i]);
    return code_of(walks_[walk_offsets_[2 * contig + 1] + i - own]);
  }

  // Base i before the end, outward: 0 is the last one.
  u8 before(i64 end, i64 i) const {
    const i64 contig = end / 2;
    return end % 2 ? at(contig, length(contig) - 1 - i) : complement(at(contig, i));
  }

  // Base i of what follows when one comes in through the end: the reverse complement of outward.
  u8 inward(i64 end, i64 i) const { return complement(before(end, i)); }

  // Adds the bases as they came, outward, without the first `skip` of them.
  void print(i64 end, i64 skip, std::string& out) const;

  void copy(i64 contig, std::vector<u8>& codes) const {
    codes.clear();
    auto add = [&](const u8* from, i64 begin, i64 stop) {
      for (i64 i = begin; i < stop; ++i) codes.push_back(code_of(from[i]));
    };
    add(walks_, walk_offsets_[2 * contig], walk_offsets_[2 * contig + 1]);
    add(bases_, offsets_[contig], offsets_[contig + 1]);
    add(walks_, walk_offsets_[2 * contig + 1], walk_offsets_[2 * contig + 2]);
  }

 private:
  const u8* bases_;
  const std::int64_t* offsets_;
  const u8* walks_;
  const std::int64_t* walk_offsets_;
  i64 contigs_;
};

// -- hashes of k-mers -----------------------------------------------------------------------------

u64 rotate(u64 x, int n) {
  n &= 63;
  return n ? (x << n) | (x >> (64 - n)) : x;
}

// ntHash (Mohamadi et al. 2016): both strands of a window, updated base by base.
class Rolling {
 public:
  explicit Rolling(int k) : k_(k) {}

  // The hash depends on nothing before the last k bases once `whole`.
  void push(u8 in, u8 out) {
    if (in >= kForeign) {
      size_ = 0;
      forward_ = reverse_ = 0;
      return;
    }
    forward_ = rotate(forward_, 1) ^ kSeeds[in];
    reverse_ = rotate(reverse_, 63) ^ rotate(kSeeds[3 - in], k_ - 1);
    if (size_ < k_) {
      ++size_;
      // the window is shorter than k, so what is rotated out to the right was never added
      return;
    }
    forward_ ^= rotate(kSeeds[out], k_);
    reverse_ ^= rotate(kSeeds[3 - out], 63);
  }

  bool whole() const { return size_ == k_; }
  u64 forward() const { return forward_; }
  // Of the reverse complement of the window.
  u64 reverse() const { return reverse_; }

 private:
  static constexpr u64 kSeeds[4] = {0x3c8bfbb395c60474ull, 0x3193c18562a02b4cull,
                                    0x20323ed082572324ull, 0x295549f54be24456ull};
  int k_;
  int size_ = 0;
  u64 forward_ = 0, reverse_ = 0;
};

// Values by hash: sorted, with a bit for every hash before them.
template <class Value>
class HashTable {
 public:
  using Entry = std::pair<u64, Value>;

  explicit HashTable(std::vector<Entry> entries) : entries_(std::move(entries)) {
    std::sort(entries_.begin(), entries_.end());
    int bits = 10;
    while ((i64{1} << bits) < 64 * static_cast<i64>(entries_.size()) && bits < 40) ++bits;
    shift_ = 64 - bits;
    filter_.resize((std::size_t{1} << bits) / 64);
    for (const Entry& entry : entries_) {
      const u64 at = mixed(entry.first) >> shift_;
      filter_[at / 64] |= u64{1} << (at % 64);
    }
  }

  bool may_hold(u64 hash) const {
    const u64 at = mixed(hash) >> shift_;
    return filter_[at / 64] >> (at % 64) & 1;
  }

  std::pair<const Entry*, const Entry*> find(u64 hash) const {
    const Entry* end = entries_.data() + entries_.size();
    const Entry* begin = std::lower_bound(entries_.data(), end, hash,
                                          [](const Entry& e, u64 h) { return e.first < h; });
    const Entry* stop = begin;
    while (stop != end && stop->first == hash) ++stop;
    return {begin, stop};
  }

 private:
  static u64 mixed(u64 hash) { return hash * 0x9e3779b97f4a7c15ull; }
  std::vector<Entry> entries_;
  std::vector<u64> filter_;
  int shift_;
};

// -- overlaps -------------------------------------------------------------------------------------

struct Overlap {
  i64 end, partner, length;
};

constexpr i64 kContigsAtOnce = 64;
constexpr i64 kTries = 4096;  // comparisons spent on an end before it counts as crowded

using OverlapArrays = std::tuple<Out<std::int64_t>, Out<std::int64_t>, Out<std::int64_t>, Out<u8>>;

OverlapArrays find_overlaps(In<u8> bases, Ints offsets, In<u8> walks, Ints walk_offsets,
                            int shortest, i64 longest, i64 most, int threads) {
  const Extended contigs(bases, offsets, walks, walk_offsets);
  require(shortest >= 1 && shortest < 64, "find_overlaps: the shortest overlap must be 1 to 63");
  require(longest >= shortest, "find_overlaps: the longest overlap is shorter than the shortest");
  require(most >= 1, "find_overlaps: no overlap of an end is kept");
  const i64 n = contigs.contigs();
  std::vector<u8> crowded(static_cast<std::size_t>(2 * n));
  std::vector<std::vector<Overlap>> blocks(
      static_cast<std::size_t>((n + kContigsAtOnce - 1) / kContigsAtOnce));
  {
    const nb::gil_scoped_release release;
    // the first bases of what comes in through each end: every overlap of X begins with those
    std::vector<HashTable<i64>::Entry> first;
    for (i64 end = 0; end < 2 * n; ++end) {
      if (contigs.length(end / 2) <= shortest) continue;
      Rolling window(shortest);
      for (i64 i = 0; i < shortest; ++i) window.push(contigs.inward(end, i), 0);
      if (window.whole()) first.push_back({window.forward(), end});
    }
    const HashTable<i64> table(std::move(first));
    parallel_blocks(n, kContigsAtOnce, threads, [&](int, i64 begin, i64 stop) {
      std::vector<u8> codes;
      std::vector<Overlap>& found = blocks[static_cast<std::size_t>(begin / kContigsAtOnce)];
      for (i64 c = begin; c < stop; ++c) {
        contigs.copy(c, codes);
        const i64 length = static_cast<i64>(codes.size());
        i64 kept[2] = {0, 0}, tries[2] = {0, 0};
        const std::size_t before = found.size();
        auto try_all = [&](u64 hash, int side, i64 overlap) {
          if (overlap >= length || overlap > longest || crowded[2 * c + side] ||
              !table.may_hold(hash))
            return;
          const auto [from, to] = table.find(hash);
          for (const auto* entry = from; entry != to; ++entry) {
            const i64 partner = entry->second;
            if (overlap >= contigs.length(partner / 2)) continue;
            if (++tries[side] > kTries) {
              crowded[2 * c + side] = 1;
              return;
            }
            i64 j = 0;
            for (; j < overlap; ++j) {
              const u8 own =
                  side ? codes[length - overlap + j] : complement(codes[overlap - 1 - j]);
              if (own >= kForeign || own != contigs.inward(partner, j)) break;
            }
            if (j < overlap) continue;
            if (++kept[side] > most) {
              crowded[2 * c + side] = 1;
              return;
            }
            found.push_back({2 * c + side, partner, overlap});
          }
        };
        auto scan = [&](i64 from, i64 to) {
          Rolling window(shortest);
          for (i64 i = from; i < to; ++i) {
            window.push(codes[i], i - from >= shortest ? codes[i - shortest] : u8{0});
            if (!window.whole()) continue;
            try_all(window.forward(), 1, length - (i - shortest + 1));
            try_all(window.reverse(), 0, i + 1);
          }
        };
        if (length <= 2 * longest) {
          scan(0, length);
        } else {  // what is far from both ends is in no overlap
          scan(0, longest);
          scan(length - longest, length);
        }
        std::sort(found.begin() + static_cast<std::ptrdiff_t>(before), found.end(),
                  [](const Overlap& a, const Overlap& b) {
                    return std::tie(a.end, a.partner, a.length) <
                           std::tie(b.end, b.partner, b.length);
                  });
      }
    });
  }
  std::vector<std::int64_t> end, partner, length;
  for (const auto& block : blocks) {
    for (const Overlap& overlap : block) {
      end.push_back(overlap.end);
      partner.push_back(overlap.partner);
      length.push_back(overlap.length);
    }
  }
  return {given(std::move(end)), given(std::move(partner)), given(std::move(length)),
          given(std::move(crowded))};
}

// -- junctions ------------------------------------------------------------------------------------

using Windows = std::tuple<Out<u8>, Out<std::int64_t>, Out<std::int64_t>, Out<std::int64_t>,
                           Out<std::int64_t>, Out<std::int64_t>>;

// The sequence around each junction, and where in it: the first contig's own bases end, the second
// one's begin, the overlap begins and ends.
Windows junction_windows(In<u8> bases, Ints offsets, In<u8> walks, Ints walk_offsets, Ints end,
                         Ints partner, Ints overlap, i64 flank) {
  const Extended contigs(bases, offsets, walks, walk_offsets);
  const i64 joins = static_cast<i64>(end.shape(0));
  require(static_cast<i64>(partner.shape(0)) == joins &&
              static_cast<i64>(overlap.shape(0)) == joins && flank >= 0,
          "junction_windows: arrays of different lengths");
  std::vector<u8> codes;
  std::vector<std::int64_t> start{0}, own_end, own_begin, begin, stop;
  for (i64 j = 0; j < joins; ++j) {
    const i64 e = end.data()[j], f = partner.data()[j], length = overlap.data()[j];
    require(e >= 0 && f >= 0 && e < 2 * contigs.contigs() && f < 2 * contigs.contigs(),
            "junction_windows: there is no such end");
    const i64 first = contigs.length(e / 2), second = contigs.length(f / 2);
    require(length >= 1 && length < first && length < second, "junction_windows: no such overlap");
    // of the first contig the last `left` bases, then of the second from `length` on
    const i64 left = std::min(first, std::max(contigs.walk(e), length) + flank);
    const i64 right = std::min(second, std::max(contigs.walk(f), length) + flank);
    for (i64 i = left - 1; i >= 0; --i) codes.push_back(contigs.before(e, i));
    for (i64 i = length; i < right; ++i) codes.push_back(contigs.inward(f, i));
    start.push_back(static_cast<std::int64_t>(codes.size()));
    own_end.push_back(left - contigs.walk(e));
    begin.push_back(left - length);
    stop.push_back(left);
    own_begin.push_back(left - length + contigs.walk(f));
  }
  return {given(std::move(codes)),     given(std::move(start)), given(std::move(own_end)),
          given(std::move(own_begin)), given(std::move(begin)), given(std::move(stop))};
}

constexpr int kSeed = 20;       // bases that a read must share with a junction to be placed there
constexpr i64 kSeedStep = 5;    // a seed is tried at every fifth base of a read
constexpr i64 kBeyond = 12;     // bases that tell whether a read goes on as the junction does
constexpr i64 kErrorsPer = 20;  // of a read that agrees at most one base in so many differs
constexpr i64 kJoinsAtOnce = 16;

// Rows of a run of candidates; see dlasm.runs.
struct Rows {
  const std::int64_t* end;
  const std::int32_t* distance;
  const std::int32_t* length;
  const std::int64_t* fragment;
  const std::int64_t* word_offset;
  const u32* words;
  i64 count;
  double reach;
};

Rows rows_of(const Ints& end, const In<std::int32_t>& distance, const In<std::int32_t>& length,
             const Ints& fragment, const Ints& word_offset, const In<u32>& words, double reach) {
  const i64 count = static_cast<i64>(end.shape(0));
  require(static_cast<i64>(distance.shape(0)) == count &&
              static_cast<i64>(length.shape(0)) == count &&
              static_cast<i64>(fragment.shape(0)) == count &&
              static_cast<i64>(word_offset.shape(0)) == count + 1,
          "joins: arrays of a run have different lengths");
  for (i64 i = 0; i < count; ++i) {
    require(length.data()[i] >= 0 && word_offset.data()[i] >= 0 &&
                word_offset.data()[i] + 2 * base_words(length.data()[i]) <=
                    static_cast<i64>(words.shape(0)),
            "joins: a read lies outside the words");
  }
  return {end.data(),         distance.data(), length.data(), fragment.data(),
          word_offset.data(), words.data(),    count,         reach};
}

// Bases of a read as codes; those that are N are kForeign.
void decode(const Rows& rows, i64 row, bool turn, std::vector<u8>& codes) {
  const i64 length = rows.length[row];
  const u32* bases = rows.words + rows.word_offset[row];
  const u32* classes = bases + base_words(length);
  codes.resize(static_cast<std::size_t>(length));
  for (i64 i = 0; i < length; ++i) {
    const u8 code = base_at(classes, i) == kClassN ? kForeign : static_cast<u8>(base_at(bases, i));
    codes[turn ? length - 1 - i : i] = turn ? complement(code) : code;
  }
}

struct Placed {
  bool found = false;
  i64 at = 0;                       // of the read's first base in the window
  i64 size[3] = {}, wrong[3] = {};  // before, in and after what is to be crossed

  bool agrees(int from, int to) const {
    i64 bases = 0, errors = 0;
    for (int part = from; part <= to; ++part) bases += size[part], errors += wrong[part];
    return errors * kErrorsPer <= bases;
  }
};

// The sequence around one junction with an index of its k-mers.
class Junction {
 public:
  Junction(const u8* codes, i64 length, i64 begin, i64 stop)
      : codes_(codes), length_(length), begin_(begin), stop_(stop) {
    u64 key = 0;
    i64 size = 0;
    for (i64 i = 0; i < length; ++i) {
      size = codes[i] < kForeign ? size + 1 : 0;
      key = (key << 2 | (codes[i] & 3)) & kMask;
      if (size < kSeed) continue;
      const auto [place, is_new] = seeds_.try_emplace(key, i - kSeed + 1);
      if (!is_new) place->second = -1;  // says nothing
    }
  }

  Placed place(const std::vector<u8>& read) const {
    Placed best;
    i64 most = -1, last = length_;  // no place
    const i64 bases = static_cast<i64>(read.size());
    u64 key = 0;
    i64 size = 0;
    for (i64 i = 0; i < bases; ++i) {
      size = read[i] < kForeign ? size + 1 : 0;
      key = (key << 2 | (read[i] & 3)) & kMask;
      if (size < kSeed || i % kSeedStep) continue;
      const auto seed = seeds_.find(key);
      if (seed == seeds_.end() || seed->second < 0) continue;
      const i64 at = seed->second - (i - kSeed + 1);
      if (best.found && at == last) continue;
      last = at;
      Placed here = compare(read, at);
      i64 right = 0;
      for (int part = 0; part < 3; ++part) right += here.size[part] - here.wrong[part];
      if (right > most) most = right, best = here;
    }
    return best;
  }

  // Calls covered(i) for each k-mer from `begin` on, before `begin + count`, that the read holds.
  template <class Covered>
  void cover(const std::vector<u8>& read, i64 at, i64 k, i64 begin, i64 count,
             Covered covered) const {
    i64 same = 0;
    const i64 stop = std::min(begin + count + k - 1, at + static_cast<i64>(read.size()));
    for (i64 i = std::max(begin, at); i < stop; ++i) {
      same = read[i - at] == codes_[i] ? same + 1 : 0;
      if (same >= k) covered(i - k + 1 - begin);
    }
  }

 private:
  static constexpr u64 kMask = (u64{1} << (2 * kSeed)) - 1;

  Placed compare(const std::vector<u8>& read, i64 at) const {
    Placed here;
    here.found = true;
    here.at = at;
    const i64 stop = std::min(length_, at + static_cast<i64>(read.size()));
    for (i64 i = std::max<i64>(0, at); i < stop; ++i) {
      const int part = (i >= begin_) + (i >= stop_);
      ++here.size[part];
      here.wrong[part] += read[i - at] != codes_[i];
    }
    return here;
  }

  const u8* codes_;
  i64 length_, begin_, stop_;
  std::unordered_map<u64, i64> seeds_;
};

// Adds what a run of candidates says of each junction.
//
// begin, stop: what must be crossed. pairs, insert_sum: fragments across it and the sum of their
// inserts on the junction. agree, against: reads of either end (row 2 j, 2 j + 1) that go on past
// it as the junction does, or otherwise. reads: fragments with a read that crosses it. kmers: for
// each k-mer from kmer_begin on the fragments that hold it.
void place_reads(In<u8> codes, Ints start, Ints own_end, Ints own_begin, Ints begin, Ints stop,
                 Ints end, Ints partner, Ints run_end, In<std::int32_t> distance,
                 In<std::int32_t> length, Ints fragment, Ints word_offset, In<u32> words,
                 double reach, int k, Ints kmer_begin, Ints kmer_start, InOut<std::int64_t> pairs,
                 InOut<std::int64_t> insert_sum, InOut<std::int64_t> agree,
                 InOut<std::int64_t> against, InOut<std::int64_t> reads, InOut<std::int32_t> kmers,
                 int threads) {
  const i64 joins = static_cast<i64>(end.shape(0));
  require(static_cast<i64>(start.shape(0)) == joins + 1 &&
              static_cast<i64>(own_end.shape(0)) == joins &&
              static_cast<i64>(own_begin.shape(0)) == joins &&
              static_cast<i64>(begin.shape(0)) == joins &&
              static_cast<i64>(stop.shape(0)) == joins &&
              static_cast<i64>(partner.shape(0)) == joins &&
              static_cast<i64>(kmer_begin.shape(0)) == joins &&
              static_cast<i64>(kmer_start.shape(0)) == joins + 1 &&
              static_cast<i64>(pairs.shape(0)) == joins &&
              static_cast<i64>(insert_sum.shape(0)) == joins &&
              static_cast<i64>(reads.shape(0)) == joins &&
              static_cast<i64>(agree.shape(0)) == 2 * joins &&
              static_cast<i64>(against.shape(0)) == 2 * joins,
          "place_reads: arrays of different lengths");
  for (i64 j = 0; j < joins; ++j) {
    require(start.data()[j] <= start.data()[j + 1] &&
                start.data()[j + 1] <= static_cast<i64>(codes.shape(0)) && begin.data()[j] >= 0 &&
                stop.data()[j] <= start.data()[j + 1] - start.data()[j] &&
                kmer_start.data()[j] <= kmer_start.data()[j + 1] && kmer_begin.data()[j] >= 0 &&
                (kmer_start.data()[j + 1] == kmer_start.data()[j] ||
                 kmer_begin.data()[j] + kmer_start.data()[j + 1] - kmer_start.data()[j] + k - 1 <=
                     start.data()[j + 1] - start.data()[j]) &&
                kmer_start.data()[j + 1] <= static_cast<i64>(kmers.shape(0)),
            "place_reads: a junction is not what it should be");
  }
  const Rows rows = rows_of(run_end, distance, length, fragment, word_offset, words, reach);
  const nb::gil_scoped_release release;
  parallel_blocks(joins, kJoinsAtOnce, threads, [&](int, i64 from, i64 to) {
    std::vector<std::pair<i64, i64>> here;  // fragment, row and side
    std::vector<u8> read;
    std::vector<i64> seen;
    for (i64 j = from; j < to; ++j) {
      here.clear();
      for (int side = 0; side < 2; ++side) {
        const i64 e = (side ? partner : end).data()[j];
        const auto* low = std::lower_bound(rows.end, rows.end + rows.count, e);
        for (i64 row = low - rows.end; row < rows.count && rows.end[row] == e; ++row) {
          if (rows.distance[row] < rows.reach) here.push_back({rows.fragment[row], 2 * row + side});
        }
      }
      if (here.empty()) continue;
      std::sort(here.begin(), here.end());
      const i64 left = begin.data()[j], right = stop.data()[j];
      const Junction junction(codes.data() + start.data()[j], start.data()[j + 1] - start.data()[j],
                              left, right);
      std::int32_t* counts = kmers.data() + kmer_start.data()[j];
      for (std::size_t i = 0, next; i < here.size(); i = next) {
        bool anchored[2] = {}, placed[2] = {};
        i64 edge[2] = {}, other[2] = {};
        bool crossing = false;
        seen.clear();
        for (next = i; next < here.size() && here[next].first == here[i].first; ++next) {
          const i64 row = here[next].second / 2;
          const int side = here[next].second % 2;
          decode(rows, row, side, read);
          const Placed at = junction.place(read);
          const bool projected = rows.distance[row] >= 0;
          if (projected) {
            anchored[side] = true;
            edge[side] = side ? own_begin.data()[j] + rows.distance[row]
                              : own_end.data()[j] - rows.distance[row];
          }
          if (!at.found) continue;
          junction.cover(read, at.at, k, kmer_begin.data()[j],
                         kmer_start.data()[j + 1] - kmer_start.data()[j],
                         [&](i64 kmer) { seen.push_back(kmer); });
          const bool whole = at.agrees(0, 2);
          if (projected && whole) {
            placed[side] = true;  // the other read of the pair, on the far side of the anchor
            other[side] = side ? at.at : at.at + static_cast<i64>(read.size());
          }
          // parts before and after the overlap as this end sees them
          const int far = side ? 0 : 2, near = side ? 2 : 0;
          if (at.size[far] >= kBeyond) {
            if (whole) {
              ++agree.data()[2 * j + side];
            } else if (at.wrong[far] * 4 >= at.size[far] &&
                       at.agrees(std::min(near, 1), std::max(near, 1)) &&
                       at.size[near] + at.size[1] >= kSeed) {
              ++against.data()[2 * j + side];
            }
          }
          crossing |= whole && at.size[0] >= kBeyond && at.size[2] >= kBeyond;
        }
        reads.data()[j] += crossing;
        std::sort(seen.begin(), seen.end());
        seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
        for (const i64 kmer : seen) ++counts[kmer];
        const bool has_first = anchored[0] || (anchored[1] && placed[1]);
        const bool has_last = anchored[1] || (anchored[0] && placed[0]);
        if (!has_first || !has_last) continue;
        const i64 first = anchored[0] ? edge[0] : other[1];
        const i64 last = anchored[1] ? edge[1] : other[0];
        if (first < left && last > right) {
          ++pairs.data()[j];
          insert_sum.data()[j] += last - first;
        }
      }
    }
  });
}

// -- chains ---------------------------------------------------------------------------------------

// Contigs in the order of their chains: each member by the end through which one leaves it. A chain
// comes where its lowest contig is in the input, which is in it as it came.
std::tuple<Out<std::int64_t>, Out<std::int64_t>, Out<u8>> chains(Ints partner) {
  const i64 ends = static_cast<i64>(partner.shape(0));
  require(ends % 2 == 0, "chains: a contig has two ends");
  const std::int64_t* to = partner.data();
  for (i64 e = 0; e < ends; ++e) {
    require(to[e] >= -1 && to[e] < ends && (to[e] < 0 || (to[to[e]] == e && to[e] != e)),
            "chains: ends are not partners of each other");
  }
  std::vector<std::int64_t> member, start{0};
  std::vector<u8> circular;
  std::vector<u8> done(static_cast<std::size_t>(ends / 2));
  for (i64 c = 0; c < ends / 2; ++c) {
    if (done[c]) continue;
    // back from the left end to where the chain begins
    i64 first = 2 * c;
    bool is_circle = false;
    while (to[first] >= 0) {
      const i64 other = to[first] ^ 1;
      if (other / 2 == c) {
        is_circle = true;
        first = 2 * c;
        break;
      }
      first = other;
    }
    for (i64 in = first;;) {
      const i64 out = in ^ 1;
      done[out / 2] = 1;
      member.push_back(out);
      if (to[out] < 0 || to[out] == first) break;
      in = to[out];
    }
    start.push_back(static_cast<std::int64_t>(member.size()));
    circular.push_back(is_circle);
  }
  return {given(std::move(member)), given(std::move(start)), given(std::move(circular))};
}

// -- text -----------------------------------------------------------------------------------------

u8 complement_base(u8 base) {
  static const auto table = [] {
    std::array<u8, 256> t{};
    for (int i = 0; i < 256; ++i) t[i] = static_cast<u8>(i);
    const char* pairs = "ATCGRYKMBVDH";  // S, W and N are their own
    for (const char* p = pairs; *p; p += 2) {
      t[p[0]] = p[1], t[p[1]] = p[0];
      t[p[0] | 32] = p[1] | 32, t[p[1] | 32] = p[0] | 32;
    }
    t['U'] = 'A', t['u'] = 'a';
    return t;
  }();
  return table[base];
}

void Extended::print(i64 end, i64 skip, std::string& out) const {
  const std::size_t before = out.size();
  const i64 contig = end / 2;
  auto add = [&](const u8* from, i64 begin, i64 stop) {
    out.append(reinterpret_cast<const char*>(from) + begin, static_cast<std::size_t>(stop - begin));
  };
  add(walks_, walk_offsets_[2 * contig], walk_offsets_[2 * contig + 1]);
  add(bases_, offsets_[contig], offsets_[contig + 1]);
  add(walks_, walk_offsets_[2 * contig + 1], walk_offsets_[2 * contig + 2]);
  if (end % 2 == 0) {
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
    for (std::size_t i = before; i < out.size(); ++i) {
      out[i] = static_cast<char>(complement_base(static_cast<u8>(out[i])));
    }
  }
  out.erase(before, static_cast<std::size_t>(skip));
}

// Chains of contigs as they are printed.
class Chains {
 public:
  Chains(In<u8> names, Ints name_offsets, In<u8> bases, Ints offsets, In<u8> walks,
         Ints walk_offsets, Ints member, Ints start, Ints skip, Ints number, In<u8> circular,
         In<double> depth, const std::string& prefix)
      : contigs_(bases, offsets, walks, walk_offsets),
        names_(names),
        name_offsets_(name_offsets),
        member_(member),
        start_(start),
        skip_(skip),
        number_(number),
        circular_(circular),
        depth_(depth),
        prefix_(prefix) {
    const i64 n = static_cast<i64>(start.shape(0)) - 1;
    require(n >= 0 && static_cast<i64>(number.shape(0)) == n &&
                static_cast<i64>(circular.shape(0)) == n && static_cast<i64>(depth.shape(0)) == n &&
                static_cast<i64>(skip.shape(0)) == static_cast<i64>(member.shape(0)) &&
                static_cast<i64>(name_offsets.shape(0)) == contigs_.contigs() + 1,
            "chains: arrays of different lengths");
    require(start.data()[0] == 0 && start.data()[n] == static_cast<i64>(member.shape(0)),
            "chains: starts do not cover the members");
    for (i64 c = 0; c < n; ++c) {
      require(start.data()[c] < start.data()[c + 1], "chains: one has no member");
    }
    for (i64 i = 0; i < static_cast<i64>(member.shape(0)); ++i) {
      const i64 end = member.data()[i];
      require(end >= 0 && end < 2 * contigs_.contigs(), "chains: there is no such contig");
      require(skip.data()[i] >= 0 && skip.data()[i] <= contigs_.length(end / 2),
              "chains: more is left out than there is");
    }
  }

  i64 size() const { return static_cast<i64>(start_.shape(0)) - 1; }

  void fasta(i64 chain, std::string& out) const {
    out += '>';
    id(chain, out);
    out += " members=";
    for (i64 i = start_.data()[chain]; i < start_.data()[chain + 1]; ++i) {
      if (i > start_.data()[chain]) out += ',';
      name(member_.data()[i] / 2, out);
      out += member_.data()[i] % 2 ? '+' : '-';
    }
    out += circular_.data()[chain] ? " circular=yes depth=" : " circular=no depth=";
    char number[48];
    std::snprintf(number, sizeof number, "%.2f\n", depth_.data()[chain]);
    out += number;
    for (i64 i = start_.data()[chain]; i < start_.data()[chain + 1]; ++i) {
      contigs_.print(member_.data()[i], skip_.data()[i], out);
    }
    out += '\n';
  }

  void agp(i64 chain, std::string& out) const {
    i64 at = 0, part = 0;
    for (i64 i = start_.data()[chain]; i < start_.data()[chain + 1]; ++i) {
      const i64 end = member_.data()[i], skipped = skip_.data()[i];
      const i64 length = contigs_.length(end / 2), used = length - skipped;
      if (used == 0) continue;  // a contig without bases has no place in an AGP file
      id(chain, out);
      out += '\t' + std::to_string(at + 1) + '\t' + std::to_string(at + used) + '\t' +
             std::to_string(++part) + "\tW\t";
      name(end / 2, out);
      const i64 first = end % 2 ? skipped + 1 : 1;  // what is left out comes first, outward
      out += '\t' + std::to_string(first) + '\t' + std::to_string(first + used - 1) +
             (end % 2 ? "\t+\n" : "\t-\n");
      at += used;
    }
  }

 private:
  void name(i64 contig, std::string& out) const {
    const std::int64_t* at = name_offsets_.data() + contig;
    out.append(reinterpret_cast<const char*>(names_.data()) + at[0],
               static_cast<std::size_t>(at[1] - at[0]));
  }
  void id(i64 chain, std::string& out) const {
    if (number_.data()[chain]) {
      out += prefix_ + std::to_string(number_.data()[chain]);
    } else {
      name(member_.data()[start_.data()[chain]] / 2, out);
    }
  }

  Extended contigs_;
  In<u8> names_;
  Ints name_offsets_, member_, start_, skip_, number_;
  In<u8> circular_;
  In<double> depth_;
  std::string prefix_;
};

nb::bytes text_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

template <class Print>
nb::bytes rows_of_chains(const Chains& chains, i64 begin, i64 end, Print print) {
  require(begin >= 0 && begin <= end && end <= chains.size(), "chains: there are not so many");
  std::string out;
  {
    const nb::gil_scoped_release release;
    for (i64 chain = begin; chain < end; ++chain) (chains.*print)(chain, out);
  }
  return text_of(out);
}

// Segments of a GFA file.
nb::bytes segments(In<u8> names, Ints name_offsets, In<u8> bases, Ints offsets, In<u8> walks,
                   Ints walk_offsets, In<double> depth, i64 begin, i64 end) {
  const Extended contigs(bases, offsets, walks, walk_offsets);
  require(begin >= 0 && begin <= end && end <= contigs.contigs() &&
              static_cast<i64>(depth.shape(0)) == contigs.contigs() &&
              static_cast<i64>(name_offsets.shape(0)) == contigs.contigs() + 1,
          "segments: arrays of different lengths");
  std::string out;
  {
    const nb::gil_scoped_release release;
    for (i64 c = begin; c < end; ++c) {
      out += "S\t";
      out.append(reinterpret_cast<const char*>(names.data()) + name_offsets.data()[c],
                 static_cast<std::size_t>(name_offsets.data()[c + 1] - name_offsets.data()[c]));
      out += '\t';
      if (contigs.length(c) == 0) out += '*';
      contigs.print(2 * c + 1, 0, out);
      char tags[80];
      std::snprintf(tags, sizeof tags, "\tLN:i:%lld\tDP:f:%.2f\n", contigs.length(c),
                    depth.data()[c]);
      out += tags;
    }
  }
  return text_of(out);
}

}  // namespace

NB_MODULE(_joins, m) {
  using namespace nb::literals;
  nb::set_leak_warnings(false);  // a run that failed may hold objects to the end
  m.doc() = "Joins of contig ends; see dlasm.joins.";
  m.def("find_overlaps", &find_overlaps, "bases"_a, "offsets"_a, "walks"_a, "walk_offsets"_a,
        "shortest"_a, "longest"_a, "most"_a, "threads"_a = 1,
        "Exact overlaps of ends: end, partner, length, and whether an end has too many.");
  m.def("junction_windows", &junction_windows, "bases"_a, "offsets"_a, "walks"_a, "walk_offsets"_a,
        "end"_a, "partner"_a, "overlap"_a, "flank"_a, "Sequences around junctions.");
  m.def("place_reads", &place_reads, "codes"_a, "start"_a, "own_end"_a, "own_begin"_a, "begin"_a,
        "stop"_a, "end"_a, "partner"_a, "run_end"_a, "distance"_a, "length"_a, "fragment"_a,
        "word_offset"_a, "words"_a, "reach"_a, "k"_a, "kmer_begin"_a, "kmer_start"_a, "pairs"_a,
        "insert_sum"_a, "agree"_a, "against"_a, "reads"_a, "kmers"_a, "threads"_a = 1,
        "Adds what candidate reads say of junctions.");
  nb::class_<Chains>(m, "Chains", "Chains of contigs as text.")
      .def(nb::init<In<u8>, Ints, In<u8>, Ints, In<u8>, Ints, Ints, Ints, Ints, Ints, In<u8>,
                    In<double>, const std::string&>(),
           "names"_a, "name_offsets"_a, "bases"_a, "offsets"_a, "walks"_a, "walk_offsets"_a,
           "member"_a, "start"_a, "skip"_a, "number"_a, "circular"_a, "depth"_a, "prefix"_a)
      .def("fasta", [](const Chains& c, i64 begin,
                       i64 end) { return rows_of_chains(c, begin, end, &Chains::fasta); })
      .def("agp", [](const Chains& c, i64 begin, i64 end) {
        return rows_of_chains(c, begin, end, &Chains::agp);
      });
  m.def("segments", &segments, "names"_a, "name_offsets"_a, "bases"_a, "offsets"_a, "walks"_a,
        "walk_offsets"_a, "depth"_a, "begin"_a, "end"_a, "Segments of a GFA file.");
  m.def("chains", &chains, "partner"_a, "Chains of joined contigs: members, starts, circles.");
}
