// Contigs as packed bases, and an index of their minimizers: where reads may lie.
//
// A minimizer is the k-mer of least order among those that begin in kSpan consecutive places, so
// 32 bases that a read and a contig have in common give at least one common minimizer.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "dlasm/kernels/bases.cuh"
#include "dlasm/kernels/packing.hpp"
#include "dlasm/kernels/parallel.hpp"

namespace dlasm {

// Memory in large pages, where the system has them: what is read here and there would otherwise
// miss the table of pages as often as the cache.
template <class T>
struct HugeAllocator {
  using value_type = T;
  HugeAllocator() = default;
  template <class U>
  HugeAllocator(const HugeAllocator<U>&) {}
  T* allocate(std::size_t n) {
    const std::size_t page = 2 << 20, size = (n * sizeof(T) + page - 1) / page * page;
    if (size < 2 * page) return static_cast<T*>(::operator new(n * sizeof(T)));
    void* memory = std::aligned_alloc(page, size);
    if (!memory) throw std::bad_alloc();
    madvise(memory, size, MADV_HUGEPAGE);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t n) {
    const std::size_t page = 2 << 20;
    if ((n * sizeof(T) + page - 1) / page < 2) {
      ::operator delete(memory);
    } else {
      std::free(memory);
    }
  }
  bool operator==(const HugeAllocator&) const { return true; }
  bool operator!=(const HugeAllocator&) const { return false; }
};
template <class T>
using HugeVector = std::vector<T, HugeAllocator<T>>;

constexpr int kSeed = 19;  // k of the minimizers; odd, so no k-mer is its own reverse complement
constexpr int kSpan = 14;  // k-mers that a minimizer is the least of
static_assert(kSeed + kSpan - 1 == kWindow, "a window is one 64-bit word");
constexpr u64 kSeedMask = (1ull << (2 * kSeed)) - 1;
constexpr u32 kNoOrder = 0xFFFFFFFFu;  // of a k-mer that holds an N

// The 32 bases of packed 64-bit words from `first` on; words[first / 32 + 1] must be readable.
inline u64 bases_at(const u64* words, i64 first) {
  const u64* w = words + (first >> 5);
  const int shift = 2 * static_cast<int>(first & 31);
  return (w[0] >> shift) | (w[1] << 1 << (63 - shift));
}

// The reverse complement of 32 bases.
inline u64 reverse_complement(u64 x) {
  x = __builtin_bswap64(~x);
  x = ((x >> 4) & 0x0F0F0F0F0F0F0F0Full) | ((x & 0x0F0F0F0F0F0F0F0Full) << 4);
  return ((x >> 2) & 0x3333333333333333ull) | ((x & 0x3333333333333333ull) << 2);
}

inline i64 packed_words(i64 length) { return (length + kWindow - 1) / kWindow; }

inline bool is_base(u8 c) {
  c &= 0xDF;
  return c == 'A' || c == 'C' || c == 'G' || c == 'T';
}

// 32 characters as packed bases; `foreign` is set where one is not ACGTacgt, which becomes A.
inline u64 pack_window(const u8* text, bool* foreign) {
  u64 word = 0;
  for (int i = 0; i < kWindow; i += 8) {
    u64 x, bad;
    std::memcpy(&x, text + i, 8);
    u64 codes = codes_of(x, &bad);
    if (bad) {
      *foreign = true;
      codes &= ~((bad >> 7) * 0xFF);
    }
    word |= static_cast<u64>(squeeze(codes)) << (2 * i);
  }
  return word;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) inline u64 pack_window_avx2(const u8* text, bool* foreign) {
  // by the low four bits of A 41, C 43, G 47, T 54: the whole byte, and its code
  const __m256i whole = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x41, 0, 0x43, 0x54, 0, 0, 0x47, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i code =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 1, 3, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i upper = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(text)),
                                         _mm256_set1_epi8(static_cast<char>(0xDF)));
  const __m256i low = _mm256_and_si256(upper, _mm256_set1_epi8(0x0F));
  const __m256i known = _mm256_cmpeq_epi8(_mm256_shuffle_epi8(whole, low), upper);
  *foreign |= _mm256_movemask_epi8(known) != -1;
  return squeeze_avx2(_mm256_and_si256(_mm256_shuffle_epi8(code, low), known));
}

__attribute__((target("avx2"))) inline i64 pack_windows_avx2(const u8* text, i64 length, u64* words,
                                                             bool* foreign) {
  i64 i = 0;
  for (; i + kWindow <= length; i += kWindow) {
    words[i / kWindow] = pack_window_avx2(text + i, foreign);
  }
  return i;
}
#endif

// Packs text into packed_words(length) words; returns whether a character is not ACGTacgt. Such a
// base is packed as A, and so are those after the last.
inline bool pack_bases(const u8* text, i64 length, u64* words) {
  bool foreign = false;
  i64 i = 0;
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) i = pack_windows_avx2(text, length, words, &foreign);
#endif
  for (; i < length; i += kWindow) {
    u8 last[kWindow];
    const i64 here = std::min<i64>(kWindow, length - i);
    if (here < kWindow) std::memset(last, 'A', sizeof last);
    std::memcpy(last, text + i, here);
    words[i / kWindow] = pack_window(last, &foreign);
  }
  return foreign;
}

// The order of a k-mer among its neighbours, from the lower 16 bases of it and of its reverse
// complement: the same for both strands. Between 0 and 2^31.
inline u32 seed_order(u32 forward, u32 reverse) { return ((forward + reverse) * 0x9E3779B1u) >> 1; }

struct SeedKey {
  u64 hash;
  bool reverse;  // whether the reverse complement is the one that is looked up
};

// The key of the k-mer in the lowest bits of `x`.
inline SeedKey seed_key(u64 x) {
  const u64 forward = x & kSeedMask;
  const u64 reverse = reverse_complement(x) >> (2 * (kWindow - kSeed));
  return {std::min(forward, reverse) * 0x9E3779B97F4A7C15ull, reverse < forward};
}

// Marks which of `count` k-mers, of these orders, are minimizers: the least in one of the windows
// of kSpan k-mers, or of all where there are fewer. All of equal order are marked. `order` has room
// for kSpan more; the others grow to its size.
struct MinimizerScratch {
  std::vector<u32> order, low, high;
  std::vector<u8> marked;

  void resize(i64 count) {
    if (static_cast<i64>(order.size()) >= count + 2 * kSpan) return;
    for (auto* v : {&order, &low, &high}) v->resize(count + 2 * kSpan);
    marked.resize(count + 2 * kSpan);
  }
};

__attribute__((always_inline)) inline void mark_minimizers_body(const u32* __restrict order,
                                                                u32* __restrict low,
                                                                u32* __restrict high,
                                                                u8* __restrict marked, i64 count) {
  const i64 span = std::min<i64>(count, kSpan), windows = count - span + 1;
  // the least of each window, by doubling: of 2, 4, ... k-mers
  std::copy(order, order + count, low);
  i64 width = 1;
  while (width < span) {
    const i64 step = std::min(width, span - width);
    for (i64 i = 0; i + width + step <= count; ++i) low[i] = std::min(low[i], low[i + step]);
    width += step;
  }
  // the greatest of those over the windows that hold a k-mer; it is its order if it is a minimizer
  std::fill(high, high + span - 1, 0);
  std::copy(low, low + windows, high + span - 1);
  std::fill(high + count, high + count + span - 1, 0);
  width = 1;
  while (width < span) {
    const i64 step = std::min(width, span - width);
    const i64 last = count + span - 1 - width - step;
    for (i64 i = 0; i <= last; ++i) high[i] = std::max(high[i], high[i + step]);
    width += step;
  }
  for (i64 i = 0; i < count; ++i) marked[i] = (high[i] == order[i]) & (order[i] != kNoOrder);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) inline void mark_minimizers_avx2(MinimizerScratch& s, i64 count) {
  mark_minimizers_body(s.order.data(), s.low.data(), s.high.data(), s.marked.data(), count);
}
#endif

inline void mark_minimizers(MinimizerScratch& s, i64 count) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return mark_minimizers_avx2(s, count);
#endif
  mark_minimizers_body(s.order.data(), s.low.data(), s.high.data(), s.marked.data(), count);
}

struct Gap {  // bases that are not ACGT, in global places
  i64 begin, end;
};

struct ContigRow {
  i64 start;      // global place of its first base, a multiple of 32
  i64 number;     // in the input
  i64 first_gap;  // index of its first gap; the next contig's is the end
  i64 length;
};

class ContigIndex {
 public:
  // Contigs shorter than the seeds are left out.
  ContigIndex(const u8* bases, const std::int64_t* offsets, i64 contigs, int threads);

  // Entries of a minimizer: tag, place, strand; ascending, so by place.
  struct Range {
    const u64 *begin, *end;
  };
  i64 bucket_of(u64 hash) const { return static_cast<i64>(hash >> (64 - bucket_bits_)); }
  void prefetch_bucket(u64 hash) const { __builtin_prefetch(&bucket_[bucket_of(hash)]); }
  void prefetch_entries(u64 hash) const { __builtin_prefetch(&entry_[bucket_[bucket_of(hash)]]); }
  Range find(u64 hash) const {
    const i64 b = bucket_of(hash);
    const u64 *begin = &entry_[bucket_[b]], *end = &entry_[0] + bucket_[b + 1];
    const u64 tag = tag_of(hash);
    if (end - begin > 32) {
      begin = std::lower_bound(begin, end, tag << kTagShift);
      return {begin, std::upper_bound(begin, end, tag << kTagShift | (kTagBit - 1))};
    }
    while (begin < end && (*begin >> kTagShift) < tag) ++begin;
    const u64* last = begin;
    while (last < end && (*last >> kTagShift) == tag) ++last;
    return {begin, last};
  }
  static i64 place_of(u64 entry) { return static_cast<i64>((entry >> 1) & kPlaceMask); }
  static bool reverse_of(u64 entry) { return entry & 1; }

  // Which contig a global place is in.
  i64 contig_at(i64 place) const {
    i64 c = block_[place >> kBlockShift];
    while (row_[c + 1].start <= place) ++c;
    return c;
  }
  bool contains(i64 contig, i64 place) const {
    return row_[contig].start <= place && place < row_[contig + 1].start;
  }
  void prefetch_contig(i64 place) const {
    __builtin_prefetch(&word_[place >> 5]);
    __builtin_prefetch(&word_[(place >> 5) + 5]);
    __builtin_prefetch(&block_[place >> kBlockShift]);
  }
  const ContigRow& row(i64 c) const { return row_[c]; }
  bool has_gaps(i64 c) const { return row_[c].first_gap != row_[c + 1].first_gap; }
  const Gap* gaps(i64 c) const { return gap_.data() + row_[c].first_gap; }
  const u64* words() const { return word_.data(); }
  i64 contigs() const { return static_cast<i64>(row_.size()) - 1; }
  i64 bytes() const {
    return static_cast<i64>(sizeof(u64) * (word_.size() + entry_.size() + bucket_.size()) +
                            sizeof(u32) * block_.size() + sizeof(ContigRow) * row_.size() +
                            sizeof(Gap) * gap_.size());
  }

 private:
  static constexpr int kTagShift = 40;
  static constexpr u64 kTagBit = 1ull << kTagShift;
  static constexpr u64 kTagMask = 0xFFFFFFull;
  static constexpr u64 kPlaceMask = (1ull << 39) - 1;
  static constexpr int kBlockShift = 8;

  u64 tag_of(u64 hash) const { return (hash >> (kTagShift - bucket_bits_)) & kTagMask; }
  void pack(const u8* bases, const std::int64_t* offsets, int threads);
  void add_seeds(int threads);

  int bucket_bits_ = 1;
  std::vector<ContigRow> row_;  // and one more, where the last ends
  std::vector<Gap> gap_;
  HugeVector<u64> word_;  // one word before the first contig, two after the last
  HugeVector<u64> entry_;
  HugeVector<u64> bucket_;  // where the entries of each bucket begin, and where the last ends
  std::vector<u32> block_;  // the contig that the first base of a block is in
};

inline ContigIndex::ContigIndex(const u8* bases, const std::int64_t* offsets, i64 contigs,
                                int threads) {
  i64 place = kWindow;
  for (i64 c = 0; c < contigs; ++c) {
    const i64 length = offsets[c + 1] - offsets[c];
    if (length < kSeed) continue;
    row_.push_back({place, c, 0, length});
    place += kWindow * packed_words(length);
  }
  if (static_cast<u64>(place) > kPlaceMask) {
    throw std::invalid_argument("the contigs hold more than 2^39 bases");
  }
  if (row_.size() >= (1ull << 32)) throw std::invalid_argument("more than 2^32 contigs");
  row_.push_back({place, contigs, 0, 0});
  word_.assign(place / kWindow + 2, 0);
  block_.resize((place >> kBlockShift) + 1);
  i64 at = 0;
  for (i64 b = 0; b < static_cast<i64>(block_.size()); ++b) {
    while (at + 2 < static_cast<i64>(row_.size()) && row_[at + 1].start <= b << kBlockShift) ++at;
    block_[b] = static_cast<u32>(at);
  }
  if (this->contigs() == 0) {
    bucket_.assign(3, 0);
    entry_.assign(1, 0);
    return;
  }
  pack(bases, offsets, threads);
  add_seeds(threads);
}

inline void ContigIndex::pack(const u8* bases, const std::int64_t* offsets, int threads) {
  std::vector<u8> foreign(contigs());
  parallel_blocks(contigs(), 64, threads, [&](int, i64 begin, i64 end) {
    for (i64 c = begin; c < end; ++c) {
      foreign[c] = pack_bases(bases + offsets[row_[c].number], row_[c].length,
                              word_.data() + row_[c].start / kWindow);
    }
  });
  for (i64 c = 0; c < contigs(); ++c) {
    row_[c].first_gap = static_cast<i64>(gap_.size());
    if (!foreign[c]) continue;
    const u8* text = bases + offsets[row_[c].number];
    for (i64 i = 0; i < row_[c].length; ++i) {
      if (is_base(text[i])) continue;
      const i64 begin = i;
      while (i < row_[c].length && !is_base(text[i])) ++i;
      gap_.push_back({row_[c].start + begin, row_[c].start + i});
    }
  }
  row_.back().first_gap = static_cast<i64>(gap_.size());
}

inline void ContigIndex::add_seeds(int threads) {
  constexpr i64 kPiece = 1 << 15;  // places that a thread takes at a time
  const i64 places = row_.back().start;
  std::vector<u64> marks(places / 64 + 1, 0);  // where minimizers begin
  i64 bases = 0;
  for (i64 c = 0; c < contigs(); ++c) bases += row_[c].length;
  const i64 wanted = 2 * bases / (kSpan + 1) / 4;  // two to four entries a bucket
  while (bucket_bits_ < 38 && (1ll << bucket_bits_) < wanted) ++bucket_bits_;
  bucket_.assign((1ull << bucket_bits_) + 2, 0);
  u64* const count = bucket_.data() + 2;  // becomes the next free entry, then the end

  // A word of marks at a time: counting is atomic, so that only what is in the cache is quick.
  auto each_mark = [&](i64 begin, i64 end, auto visit) {
    i64 place[64];
    SeedKey key[64];
    for (i64 w = begin / 64; w < (end + 63) / 64; ++w) {
      int n = 0;
      for (u64 m = marks[w]; m; m &= m - 1, ++n) {
        place[n] = 64 * w + __builtin_ctzll(m);
        key[n] = seed_key(bases_at(word_.data(), place[n]));
        __builtin_prefetch(&count[bucket_of(key[n].hash)], 1);
      }
      for (int i = 0; i < n; ++i) visit(place[i], key[i]);
    }
  };
  std::vector<MinimizerScratch> scratch(std::max(1, threads));
  parallel_blocks(places, kPiece, threads, [&](int thread, i64 begin, i64 end) {
    MinimizerScratch& s = scratch[thread];
    s.resize(kPiece + 2 * kSpan);
    for (i64 c = contig_at(std::max(begin, row_[0].start)); c < contigs(); ++c) {
      const i64 first = row_[c].start, last = first + row_[c].length - kSeed + 1;
      if (first >= end) break;
      // what windows over the k-mers of this piece hold
      const i64 from = std::max(first, begin - kSpan + 1), to = std::min(last, end + kSpan - 1);
      if (from >= to) continue;
      for (i64 p = from; p < to; ++p) {
        const u64 x = bases_at(word_.data(), p);
        const u64 reverse = reverse_complement(x) >> (2 * (kWindow - kSeed));
        s.order[p - from] = seed_order(static_cast<u32>(x), static_cast<u32>(reverse));
      }
      for (const Gap *g = gaps(c), *g_end = gaps(c + 1); g < g_end; ++g) {
        const i64 b = std::max(from, g->begin - kSeed + 1), e = std::min(to, g->end);
        for (i64 p = b; p < e; ++p) s.order[p - from] = kNoOrder;
      }
      mark_minimizers(s, to - from);
      for (i64 p = std::max(first, begin); p < std::min(last, end); ++p) {
        if (s.marked[p - from]) marks[p / 64] |= 1ull << (p % 64);
      }
    }
    each_mark(begin, end, [&](i64, SeedKey key) {
      __atomic_fetch_add(&count[bucket_of(key.hash)], 1, __ATOMIC_RELAXED);
    });
  });
  // count[b] is bucket_[b + 2]; after the sums bucket_[b + 1] is where bucket b begins, and once
  // its entries are there, where it ends
  for (std::size_t b = 2; b < bucket_.size(); ++b) bucket_[b] += bucket_[b - 1];
  entry_.resize(bucket_.back() + 1);
  u64* const next = bucket_.data() + 1;
  parallel_blocks(places, kPiece, threads, [&](int, i64 begin, i64 end) {
    each_mark(begin, end, [&](i64 place, SeedKey key) {
      const u64 at = __atomic_fetch_add(&next[bucket_of(key.hash)], 1, __ATOMIC_RELAXED);
      entry_[at] = tag_of(key.hash) << kTagShift | static_cast<u64>(place) << 1 | key.reverse;
    });
  });
  bucket_.pop_back();
  // whatever the order in which threads came, entries are in order after this
  parallel_blocks(static_cast<i64>(bucket_.size()) - 1, 1 << 14, threads,
                  [&](int, i64 begin, i64 end) {
                    for (i64 b = begin; b < end; ++b) {
                      std::sort(entry_.begin() + bucket_[b], entry_.begin() + bucket_[b + 1]);
                    }
                  });
}

}  // namespace dlasm
