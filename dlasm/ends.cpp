// Where reads lie on contigs: dlasm's own mapper. It only has to find the best place of each read,
// so seeds are few, places are verified on packed words, and gaps are allowed only where needed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "dlasm/contig_index.hpp"
#include "dlasm/gapped.hpp"
#include "dlasm/places.hpp"

namespace nb = nanobind;
using namespace dlasm;

namespace {

using u16 = std::uint16_t;

template <class T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <class T>
Out<T> empty(std::size_t n) {
  T* data = new T[n];
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return Out<T>(data, {n}, owner);
}

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

constexpr int kMinScore = 40;  // minimap2 -x sr: -s
constexpr int kWorst = INT_MIN / 2;

// Chosen by measurement; see dlasm.mapping.
struct Limits {
  int hits = 4096;     // places that seeds of a read give, rarest seeds first
  int ungapped = 256;  // hits that are all looked at without gaps
  int bands = 64;      // alignments with gaps per read
  int width = 63;      // how far apart diagonals of seeds in one alignment are
  int margin = 16;     // diagonals beside those that a gap may lead to
  int good = 44;       // no gaps are tried where a score lacks at most so much to a full one
};

// A read, packed in both directions.
struct PackedRead {
  i64 length = 0;
  std::vector<u64> words[2];      // as sequenced, reverse complement
  std::vector<u64> ambiguous[2];  // the lower bit of each base that is not ACGT; empty if none is
  bool has_n = false;

  void set(const u8* text, i64 n) {
    length = n;
    const i64 count = packed_words(n);
    for (auto& w : words) {
      if (static_cast<i64>(w.size()) < count + 1) w.resize(count + 1);
    }
    has_n = pack_bases(text, n, words[0].data());
    words[0][count] = 0;
    turn(words[0].data(), words[1].data(), true);
    if (!has_n) return;
    for (auto& w : ambiguous) w.assign(count + 1, 0);
    for (i64 i = 0; i < n; ++i) {
      if (is_base(text[i])) continue;
      ambiguous[0][i / kWindow] |= 1ull << (2 * (i % kWindow));
      const i64 j = n - 1 - i;
      ambiguous[1][j / kWindow] |= 1ull << (2 * (j % kWindow));
    }
  }
  const u64* ambiguous_or_null(int strand) const {
    return has_n ? ambiguous[strand].data() : nullptr;
  }

 private:
  void turn(const u64* from, u64* to, bool) const {
    const i64 count = packed_words(length), odd = count * kWindow - length;
    // word i of the reverse complement holds the bases that end 32 i before the end
    for (i64 i = 0; i < count; ++i) {
      const i64 end = length - kWindow * i, begin = end - kWindow;
      const u64 x = begin >= 0 ? bases_at(from, begin) : from[0] << (2 * odd);
      to[i] = reverse_complement(x);
    }
    if (odd) to[count - 1] &= ~0ull >> (2 * odd);
    to[count] = 0;
  }
};

// Part [begin, end) of a read that is aligned, and its score.
struct Segment {
  i64 begin = 0, end = 0;
  int score = kWorst;
};

struct Diagonal {
  i64 contig;
  i64 start;     // global place of the read's first base in contig direction
  i64 from, to;  // the part of the read on the contig
  int strand;
  Segment segment;
};

struct Band;

constexpr i64 kReadBlock = 1024;  // reads that a thread takes at a time
constexpr i64 kInFlight = 32;     // reads whose memory accesses overlap

// The best place of a read so far.
struct Best {
  Place place;
  bool counted = false;
  bool any = false;
  std::vector<Place>* all = nullptr;  // if every place is wanted
};

class EndsMapper {
 public:
  EndsMapper(const u8* bases, const std::int64_t* offsets, i64 contigs, int threads,
             const Limits& limits)
      : index_(bases, offsets, contigs, threads), limits_(limits) {}

  i64 bytes() const { return index_.bytes(); }

  struct Found {
    i64 read;
    Place place;
  };

  // The best place of each read that has one, or every place that was looked at, in read order.
  std::vector<std::vector<Found>> map(const u8* text, const std::int64_t* base_start,
                                      const std::int32_t* length, i64 reads, int threads,
                                      bool every) const {
    std::vector<std::vector<Found>> blocks((reads + kReadBlock - 1) / kReadBlock);
    if (index_.contigs() == 0) return blocks;
    std::vector<Worker> workers(std::max(1, threads));
    parallel_blocks(reads, kReadBlock, threads, [&](int thread, i64 begin, i64 end) {
      Worker& worker = workers[thread];
      std::vector<Found>& found = blocks[begin / kReadBlock];
      for (i64 i = begin; i < end; i += kInFlight) {
        map_few(worker, text, base_start, length, i, std::min(end, i + kInFlight), every, found);
      }
    });
    return blocks;
  }

  struct Worker;

 private:
  void map_few(Worker& w, const u8* text, const std::int64_t* base_start,
               const std::int32_t* length, i64 begin, i64 end, bool every,
               std::vector<Found>& found) const;
  void map_thoroughly(Worker& w, const PackedRead& read, Best& best) const;
  void map_quickly(Worker& w, i64 count) const;
  void verify(Worker& w, const PackedRead& read, i64 contig, i64 start, int strand,
              Diagonal* out) const;
  void offer_ungapped(Best& best, const PackedRead& read, const Diagonal& d) const;
  void offer(Best& best, const Place& place) const;
  void find_bands(Worker& w, const PackedRead& read) const;
  void align_with_gaps(Worker& w, const PackedRead& read, const Band& band, Best& best) const;
  void try_gaps(Worker& w, const PackedRead& read, Best& best) const;

  ContigIndex index_;
  Limits limits_;
};

struct Seed {
  ContigIndex::Range range;
  i64 at;  // first base of the k-mer in the read as sequenced
  bool reverse;
};

// What a seed says: strand, where the read begins, and where in the read (in contig direction) the
// seed is, in one number, so that they sort by diagonal.
struct Hit {
  static constexpr int kAtBits = 20, kStrandBit = 63;
  u64 value;

  Hit(int strand, i64 start, i64 at)
      : value(static_cast<u64>(strand) << kStrandBit | static_cast<u64>(start) << kAtBits |
              static_cast<u64>(at)) {}
  int strand() const { return static_cast<int>(value >> kStrandBit); }
  i64 start() const { return static_cast<i64>((value & ((1ull << kStrandBit) - 1)) >> kAtBits); }
  i64 at() const { return static_cast<i64>(value & ((1ull << kAtBits) - 1)); }
  bool operator<(const Hit& o) const { return value < o.value; }
};

// Neighbouring diagonals that seeds lie on.
struct Band {
  i64 contig;
  int strand;
  i64 lowest, highest;  // where reads on them begin, global places
  int promise;          // ranks bands: what an alignment scores, about, if gaps cost nothing
};

constexpr int kQuickHits = 8;  // places of a read that are looked at in passing

// What map_quickly knows of a read.
struct Glance {
  struct Tested {
    i64 start, contig;
    int strand;
  };
  SeedKey key;
  ContigIndex::Range range;
  i64 at;      // of the k-mer in the read
  i64 active;  // whether it is still looked at here
  bool settled;
  i64 tested;
  std::array<Tested, 4 * kQuickHits> hits;
};

struct EndsMapper::Worker {
  std::array<PackedRead, kInFlight> reads;
  std::array<Best, kInFlight> best;
  std::array<Glance, kInFlight> glance;
  std::vector<Place> all;
  std::vector<u64> mismatch, unsure;
  MinimizerScratch scratch;
  std::vector<Seed> seeds;
  std::vector<Hit> hits;
  std::vector<Band> bands;
  std::vector<u32> fewest, mismatches;  // of each block: in a band, on a diagonal
  BandAligner aligner;
};

// The part of a diagonal of the highest score, given where its mismatches are. Reaching an end of
// the read is worth kEndBonus, which is not part of the score.
Segment best_segment(const u64* mismatch, const u64* unsure, i64 from, i64 to, i64 length) {
  Segment best;
  int best_with_bonus = kWorst;
  int bonus = from == 0 ? kEndBonus : 0;
  i64 start = from, at = from;  // of the segment and of the stretch without mismatches
  int score = 0;
  auto stretch_until = [&](i64 end) {
    score += kMatch * static_cast<int>(end - at);
    const int total = score + bonus + (end == length ? kEndBonus : 0);
    if (end > start && total > best_with_bonus) {
      best_with_bonus = total;
      best = {start, end, score};
    }
  };
  for (i64 w = from / kWindow; w <= (to - 1) / kWindow; ++w) {
    for (u64 m = mismatch[w] | (unsure ? unsure[w] : 0); m; m &= m - 1) {
      const i64 i = kWindow * w + __builtin_ctzll(m) / 2;
      stretch_until(i);
      score -= unsure && (unsure[w] & m & -m) ? kAmbiguous : kMismatch;
      at = i + 1;
      if (score + bonus <= 0) score = 0, bonus = 0, start = at;
    }
  }
  stretch_until(to);
  return best;
}

// Looks at all bases of a read on a diagonal.
void EndsMapper::verify(Worker& w, const PackedRead& read, i64 contig, i64 start, int strand,
                        Diagonal* out) const {
  const ContigRow& row = index_.row(contig);
  const i64 n = read.length, words = packed_words(n);
  const i64 from = std::max<i64>(0, row.start - start);
  const i64 to = std::min(n, row.start + row.length - start);
  if (static_cast<i64>(w.mismatch.size()) < words) {
    w.mismatch.resize(words);
    w.unsure.resize(words);
  }
  const u64* const packed = read.words[strand].data();
  const u64* const ambiguous = read.ambiguous_or_null(strand);
  const i64 first = from / kWindow, last = (to - 1) / kWindow;
  for (i64 i = first; i <= last; ++i) {
    const u64 x = packed[i] ^ bases_at(index_.words(), start + kWindow * i);
    w.mismatch[i] = (x | (x >> 1)) & kLowBits;
  }
  const bool gaps = index_.has_gaps(contig);
  const u64* unsure = nullptr;
  if (ambiguous || gaps) {
    for (i64 i = first; i <= last; ++i) w.unsure[i] = ambiguous ? ambiguous[i] : 0;
    if (gaps) {
      const Gap *g = index_.gaps(contig), *end = index_.gaps(contig + 1);
      g = std::lower_bound(g, end, start + from,
                           [](const Gap& gap, i64 place) { return gap.end <= place; });
      for (; g < end && g->begin < start + to; ++g) {
        for (i64 i = std::max(from, g->begin - start); i < std::min(to, g->end - start); ++i) {
          w.unsure[i / kWindow] |= 1ull << (2 * (i % kWindow));
        }
      }
    }
    unsure = w.unsure.data();
  }
  auto clip = [&](u64* values) {
    values[first] &= ~0ull << (2 * (from % kWindow));
    if (to % kWindow) values[last] &= ~(~0ull << (2 * (to % kWindow)));
  };
  clip(w.mismatch.data());
  if (unsure) clip(w.unsure.data());
  out->contig = contig;
  out->start = start;
  out->from = from;
  out->to = to;
  out->strand = strand;
  out->segment = best_segment(w.mismatch.data(), unsure, from, to, n);
}

void EndsMapper::offer(Best& best, const Place& place) const {
  if (best.all) best.all->push_back(place);
  auto length_of = [&](const Place& p) { return index_.row(p.contig).length; };
  const bool counted = is_counted(place, length_of(place));
  if (!best.any || is_better(place, counted, length_of(place), best.place, best.counted,
                             length_of(best.place))) {
    best.place = place;
    best.counted = counted;
    best.any = true;
  }
}

// Offers the ungapped place on a diagonal if its score suffices.
void EndsMapper::offer_ungapped(Best& best, const PackedRead& read, const Diagonal& d) const {
  if (d.segment.score < kMinScore) return;
  const i64 at = d.start - index_.row(d.contig).start;
  offer(best, {d.contig, at + d.segment.begin, at + d.segment.end,
               static_cast<std::int32_t>(d.segment.begin),
               static_cast<std::int32_t>(read.length - d.segment.end), d.segment.score,
               static_cast<std::uint8_t>(d.strand)});
}

void EndsMapper::align_with_gaps(Worker& w, const PackedRead& read, const Band& band,
                                 Best& best) const {
  const ContigRow& row = index_.row(band.contig);
  const i64 n = read.length;
  const i64 wanted = band.highest - band.lowest + 1 + 2 * limits_.margin;
  const i64 diagonals = (wanted + BandAligner::kStep - 1) / BandAligner::kStep * BandAligner::kStep;
  const i64 first = band.lowest - limits_.margin - (diagonals - wanted) / 2;
  std::vector<i16>& contig = w.aligner.contig;
  contig.assign(BandAligner::contig_bases(n, diagonals), kNoBase);
  const i64 begin = std::max(first, row.start);
  const i64 end = std::min(first + static_cast<i64>(contig.size()), row.start + row.length);
  for (i64 i = begin; i < end; ++i) {
    contig[i - first] = (index_.words()[i / kWindow] >> (2 * (i % kWindow))) & 3;
  }
  for (const Gap *g = index_.gaps(band.contig), *last = index_.gaps(band.contig + 1); g < last;
       ++g) {
    for (i64 i = std::max(begin, g->begin); i < std::min(end, g->end); ++i) {
      contig[i - first] = kUnknownCode;
    }
  }
  w.aligner.read.resize(n);
  const u64* const ambiguous = read.ambiguous_or_null(band.strand);
  for (i64 i = 0; i < n; ++i) {
    const int shift = 2 * (i % kWindow);
    const bool unknown = ambiguous && (ambiguous[i / kWindow] >> shift & 1);
    w.aligner.read[i] =
        unknown ? kUnknownCode : (read.words[band.strand][i / kWindow] >> shift) & 3;
  }
  const Alignment found = w.aligner.find_end(diagonals);
  const i64 at = first - row.start;
  // the score without bonus is no higher
  if (found.score < kMinScore ||
      (best.counted && found.score - kEndBonus * (found.read_end == n) < best.place.score))
    return;
  const Alignment whole = w.aligner.find_begin(diagonals, found);
  if (whole.score < kMinScore) return;
  offer(best,
        {band.contig, at + whole.contig_begin, at + whole.contig_end,
         static_cast<std::int32_t>(whole.read_begin), static_cast<std::int32_t>(n - whole.read_end),
         whole.score, static_cast<std::uint8_t>(band.strand)});
}

// All minimizers of the read (all k-mers of one that is shorter than a window), every diagonal that
// they give, and alignments with gaps if no good place was found.
void EndsMapper::map_thoroughly(Worker& w, const PackedRead& read, Best& best) const {
  const i64 n = read.length, count = n - kSeed + 1;
  w.scratch.resize(count);
  u32* const order = w.scratch.order.data();
  for (i64 p = 0; p < count; ++p) {
    const u64 x = bases_at(read.words[0].data(), p);
    order[p] = seed_order(static_cast<u32>(x),
                          static_cast<u32>(bases_at(read.words[1].data(), n - kSeed - p)));
  }
  if (read.has_n) {
    for (i64 i = 0; i < n; ++i) {
      if (!(read.ambiguous[0][i / kWindow] >> (2 * (i % kWindow)) & 1)) continue;
      for (i64 p = std::max<i64>(0, i - kSeed + 1); p < std::min(count, i + 1); ++p) {
        order[p] = kNoOrder;
      }
    }
  }
  if (count >= kSpan) {
    mark_minimizers(w.scratch, count);
  } else {
    for (i64 p = 0; p < count; ++p) w.scratch.marked[p] = order[p] != kNoOrder;
  }
  std::array<SeedKey, 64> key;
  std::array<i64, 64> at;
  i64 pending = 0;
  w.seeds.clear();
  auto look_up = [&] {
    for (i64 i = 0; i < pending; ++i) index_.prefetch_entries(key[i].hash);
    for (i64 i = 0; i < pending; ++i) {
      const ContigIndex::Range range = index_.find(key[i].hash);
      if (range.begin < range.end) w.seeds.push_back({range, at[i], key[i].reverse});
    }
    pending = 0;
  };
  for (i64 p = 0; p < count; ++p) {
    if (!w.scratch.marked[p]) continue;
    key[pending] = seed_key(bases_at(read.words[0].data(), p));
    at[pending] = p;
    index_.prefetch_bucket(key[pending].hash);
    if (++pending == static_cast<i64>(key.size())) look_up();
  }
  look_up();
  i64 total = 0;
  for (const Seed& s : w.seeds) total += s.range.end - s.range.begin;
  if (total > limits_.hits) {  // the rarest first
    std::stable_sort(w.seeds.begin(), w.seeds.end(), [](const Seed& a, const Seed& b) {
      return a.range.end - a.range.begin < b.range.end - b.range.begin;
    });
  }
  w.hits.clear();
  total = 0;
  for (const Seed& s : w.seeds) {
    total += s.range.end - s.range.begin;
    if (total > limits_.hits && !w.hits.empty()) break;
    const u64* end = std::min(s.range.end, s.range.begin + limits_.hits);
    for (const u64* entry = s.range.begin; entry < end; ++entry) {
      const int strand = ContigIndex::reverse_of(*entry) != s.reverse;
      const i64 at = strand ? n - kSeed - s.at : s.at;
      if (at >> Hit::kAtBits) continue;  // of a read of more than a million bases
      w.hits.emplace_back(strand, ContigIndex::place_of(*entry) - at + n, at);
    }
  }
  std::sort(w.hits.begin(), w.hits.end());
  if (static_cast<i64>(w.hits.size()) <= limits_.ungapped) {
    Diagonal d{-1, 0, 0, 0, 0, {}};
    for (const Hit& hit : w.hits) {
      const i64 start = hit.start() - n, contig = index_.contig_at(start + hit.at());
      // a diagonal may pass over two short contigs
      if (d.contig == contig && d.start == start && d.strand == hit.strand()) continue;
      verify(w, read, contig, start, hit.strand(), &d);
      offer_ungapped(best, read, d);
    }
  }
  if (n > BandAligner::kMaxRead ||
      (best.counted && best.place.score >= kMatch * n - limits_.good)) {
    return;
  }
  find_bands(w, read);
  try_gaps(w, read, best);
}

// The number of lower bits that are set in each half.
inline u64 count_by_block(u64 x) {
  x = (x & 0x1111111111111111ull) + ((x >> 2) & 0x1111111111111111ull);
  x = (x & 0x0F0F0F0F0F0F0F0Full) + ((x >> 4) & 0x0F0F0F0F0F0F0F0Full);
  x = (x & 0x00FF00FF00FF00FFull) + ((x >> 8) & 0x00FF00FF00FF00FFull);
  return (x & 0x0000FFFF0000FFFFull) + ((x >> 16) & 0x0000FFFF0000FFFFull);
}

constexpr int kBlock = 16;  // bases

// Puts hits that are sorted into bands. A band promises what each block of the read scores on the
// best of its diagonals, or nothing; half a match for each base outside the contig, since places
// that hang over are what this is for, and would come last.
void EndsMapper::find_bands(Worker& w, const PackedRead& read) const {
  const i64 n = read.length, words = packed_words(n);
  w.bands.clear();
  w.fewest.resize(2 * words);
  w.mismatches.resize(2 * words);
  i64 over = 0;  // bases outside the contig
  auto finish = [&] {
    if (w.bands.empty()) return;
    w.bands.back().promise = static_cast<int>(kMatch / 2 * over);
    over = 0;
    for (const int count : w.fewest) {
      w.bands.back().promise += std::max(0, kMatch * kBlock - (kMatch + kMismatch) * count);
    }
  };
  i64 before = -1;
  for (const Hit& hit : w.hits) {
    const i64 start = hit.start() - n, place = start + hit.at();
    const bool same = !w.bands.empty() && w.bands.back().strand == hit.strand() &&
                      start <= w.bands.back().lowest + limits_.width &&
                      index_.contains(w.bands.back().contig, place);
    if (same && start == before) continue;
    before = start;
    if (!same) {
      finish();
      w.bands.push_back({index_.contig_at(place), hit.strand(), start, start, 0});
      std::fill(w.fewest.begin(), w.fewest.end(), kBlock);
    }
    Band& band = w.bands.back();
    band.highest = start;
    const ContigRow& row = index_.row(band.contig);
    const i64 from = std::max<i64>(0, row.start - start);
    const i64 to = std::min(n, row.start + row.length - start);
    const u64* const packed = read.words[band.strand].data();
    const i64 first = from / kWindow, last = (to - 1) / kWindow;
    over = std::max(over, n - (to - from));
    for (i64 i = first; i <= last; ++i) {
      u64 x = packed[i] ^ bases_at(index_.words(), start + kWindow * i);
      x = (x | (x >> 1)) & kLowBits;
      if (i == first) x |= kLowBits & ~(~0ull << (2 * (from % kWindow)));
      if (i == last && to % kWindow) x |= kLowBits & (~0ull << (2 * (to % kWindow)));
      x = count_by_block(x);
      std::memcpy(&w.mismatches[2 * i], &x, sizeof x);
    }
    for (i64 i = 2 * first; i < 2 * (last + 1); ++i) {
      w.fewest[i] = std::min(w.fewest[i], w.mismatches[i]);
    }
  }
  finish();
}

// Aligns with gaps in the bands that promise most.
void EndsMapper::try_gaps(Worker& w, const PackedRead& read, Best& best) const {
  std::stable_sort(w.bands.begin(), w.bands.end(),
                   [](const Band& a, const Band& b) { return a.promise > b.promise; });
  int left = limits_.bands;
  for (const Band& band : w.bands) {
    // no more bases can match than the band has on the contig
    const ContigRow& row = index_.row(band.contig);
    const i64 overlap = std::min(row.start + row.length, band.highest + read.length) -
                        std::max(row.start, band.lowest);
    const i64 full = kMatch * std::min(overlap, read.length);
    if (best.counted && best.place.score >= full - limits_.good) continue;
    if (left-- == 0) break;
    align_with_gaps(w, read, band, best);
  }
}

// Windows that do not overlap, one after the other from the middle of the read, until what was
// found cannot be beaten: a place that was not seen differs from the read in each of them, or lies
// outside the contig there, so it lacks at least a match and a mismatch for each window.
void EndsMapper::map_quickly(Worker& w, i64 count) const {
  constexpr i64 kRounds = 4;
  for (i64 i = 0; i < count; ++i) {
    Glance& g = w.glance[i];
    const PackedRead& read = w.reads[i];
    g.active = read.length >= kWindow && !read.has_n;
    g.settled = read.length < kSeed;
    g.tested = 0;
  }
  for (i64 round = 0; round < kRounds; ++round) {
    for (i64 i = 0; i < count; ++i) {
      Glance& g = w.glance[i];
      if (!g.active) continue;
      const i64 n = w.reads[i].length, windows = n / kWindow;
      if (round == windows) {
        g.active = false;
        continue;
      }
      // from the middle outward: 0, 1, -1, 2 ... windows from there
      const i64 middle = (windows - 1) / 2;
      const i64 window = round % 2 ? middle + (round + 1) / 2 : middle - round / 2;
      const i64 begin = (n - windows * kWindow) / 2 + window * kWindow;
      const u64 x = bases_at(w.reads[i].words[0].data(), begin), reverse = reverse_complement(x);
      u32 least = kNoOrder, best_j = 0;
      for (u32 j = 0; j < kSpan; ++j) {
        const u32 order = seed_order(static_cast<u32>(x >> (2 * j)),
                                     static_cast<u32>(reverse >> (2 * (kSpan - 1 - j))));
        best_j = order < least ? j : best_j;
        least = std::min(order, least);
      }
      g.key = seed_key(x >> (2 * best_j));
      g.at = begin + best_j;
      index_.prefetch_bucket(g.key.hash);
    }
    for (i64 i = 0; i < count; ++i) {
      if (w.glance[i].active) index_.prefetch_entries(w.glance[i].key.hash);
    }
    for (i64 i = 0; i < count; ++i) {
      Glance& g = w.glance[i];
      if (!g.active) continue;
      g.range = index_.find(g.key.hash);
      if (g.range.end - g.range.begin > kQuickHits) {
        g.active = false;
        continue;
      }
      for (const u64* e = g.range.begin; e < g.range.end; ++e) {
        index_.prefetch_contig(std::max<i64>(0, ContigIndex::place_of(*e) - g.at));
      }
    }
    for (i64 i = 0; i < count; ++i) {
      Glance& g = w.glance[i];
      if (!g.active) continue;
      const PackedRead& read = w.reads[i];
      for (const u64* e = g.range.begin; e < g.range.end; ++e) {
        const i64 place = ContigIndex::place_of(*e);
        const int strand = ContigIndex::reverse_of(*e) != g.key.reverse;
        const Glance::Tested hit{place - (strand ? read.length - kSeed - g.at : g.at),
                                 index_.contig_at(place), strand};
        bool known = false;
        for (i64 t = 0; t < g.tested; ++t) {
          known |= g.hits[t].start == hit.start && g.hits[t].strand == hit.strand &&
                   g.hits[t].contig == hit.contig;
        }
        if (known) continue;
        g.hits[g.tested++] = hit;
        Diagonal d;
        verify(w, read, hit.contig, hit.start, hit.strand, &d);
        offer_ungapped(w.best[i], read, d);
      }
      const Best& best = w.best[i];
      if (best.any && best.counted &&
          best.place.score > kMatch * read.length - (kMatch + kMismatch) * (round + 1)) {
        g.settled = true;
        g.active = false;
      } else if (round == 1 && !best.any) {
        g.active = false;
      }
    }
  }
}

void EndsMapper::map_few(Worker& w, const u8* text, const std::int64_t* base_start,
                         const std::int32_t* length, i64 begin, i64 end, bool every,
                         std::vector<Found>& found) const {
  for (i64 i = begin; i < end; ++i) {
    w.reads[i - begin].set(text + base_start[i], length[i]);
    w.best[i - begin] = Best{};
  }
  if (!every) map_quickly(w, end - begin);
  for (i64 i = begin; i < end; ++i) {
    const PackedRead& read = w.reads[i - begin];
    Best& best = w.best[i - begin];
    if (every) {
      w.all.clear();
      best.all = &w.all;
    }
    if (read.length >= kSeed && (every || !w.glance[i - begin].settled)) {
      map_thoroughly(w, read, best);
    }
    if (!best.any) continue;
    auto give = [&](Place place) {
      place.contig = index_.row(place.contig).number;
      found.push_back({i, place});
    };
    if (every) {
      for (const Place& place : w.all) give(place);
    } else {
      give(best.place);
    }
  }
}

std::unique_ptr<EndsMapper> make_mapper(In<u8> bases, In<std::int64_t> offsets, int threads,
                                        int hits, int ungapped, int bands, int width, int margin,
                                        int good) {
  const i64 contigs = static_cast<i64>(offsets.shape(0)) - 1;
  require(contigs >= 0, "EndsMapper: no offsets");
  for (i64 c = 0; c < contigs; ++c) {
    require(0 <= offsets.data()[c] && offsets.data()[c] <= offsets.data()[c + 1],
            "EndsMapper: offsets are not ascending");
  }
  require(offsets.data()[contigs] <= static_cast<i64>(bases.shape(0)),
          "EndsMapper: a contig lies outside the bases");
  nb::gil_scoped_release release;
  return std::make_unique<EndsMapper>(bases.data(), offsets.data(), contigs, threads,
                                      Limits{hits, ungapped, bands, width, margin, good});
}

using PlaceArrays = std::tuple<Out<std::int64_t>, Out<std::int64_t>, Out<std::int64_t>,
                               Out<std::int64_t>, Out<i32>, Out<i32>, Out<u8>, Out<i32>>;

PlaceArrays place(const EndsMapper& mapper, In<u8> text, In<std::int64_t> base_start,
                  In<i32> length, int threads, bool every) {
  const i64 reads = static_cast<i64>(base_start.shape(0));
  require(static_cast<i64>(length.shape(0)) == reads, "place: arrays of different lengths");
  for (i64 i = 0; i < reads; ++i) {
    require(length.data()[i] >= 0 && base_start.data()[i] >= 0 &&
                base_start.data()[i] + length.data()[i] <= static_cast<i64>(text.shape(0)),
            "place: a read lies outside the text");
  }
  std::vector<std::vector<EndsMapper::Found>> blocks;
  {
    nb::gil_scoped_release release;
    blocks = mapper.map(text.data(), base_start.data(), length.data(), reads, threads, every);
  }
  std::size_t n = 0;
  for (const auto& block : blocks) n += block.size();
  PlaceArrays out{empty<std::int64_t>(n), empty<std::int64_t>(n), empty<std::int64_t>(n),
                  empty<std::int64_t>(n), empty<i32>(n),          empty<i32>(n),
                  empty<u8>(n),           empty<i32>(n)};
  std::size_t at = 0;
  for (const auto& block : blocks) {
    for (const auto& [read, p] : block) {
      std::get<0>(out).data()[at] = read;
      std::get<1>(out).data()[at] = p.contig;
      std::get<2>(out).data()[at] = p.start;
      std::get<3>(out).data()[at] = p.end;
      std::get<4>(out).data()[at] = p.left;
      std::get<5>(out).data()[at] = p.right;
      std::get<6>(out).data()[at] = p.reverse;
      std::get<7>(out).data()[at] = p.score;
      ++at;
    }
  }
  return out;
}

}  // namespace

NB_MODULE(_ends, m) {
  using namespace nb::literals;
  nb::set_leak_warnings(false);  // a run that failed may hold objects to the end
  m.doc() = "dlasm's own mapper; see dlasm.mapping.";
  nb::class_<EndsMapper>(m, "Mapper", "An index of minimizers of the contigs.")
      .def(nb::new_(&make_mapper), "bases"_a, "offsets"_a, "threads"_a = 1,
           "hits"_a = Limits().hits, "ungapped"_a = Limits().ungapped, "bands"_a = Limits().bands,
           "width"_a = Limits().width, "margin"_a = Limits().margin, "good"_a = Limits().good)
      .def_prop_ro("bytes", &EndsMapper::bytes, "Memory of packed contigs and index.")
      .def("place", &place, "text"_a, "base_start"_a, "length"_a, "threads"_a, "every"_a = false,
           "Places of the reads: read, contig, start, end, left, right, reverse, score.");
}
