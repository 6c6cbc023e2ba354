// Walks through k-mer tables, as in Awan et al., SC'21, sections 3.2 to 3.4: a yardstick and a
// readable baseline for the kernel that needs no tables (extend_fast.cuh).
//
// extend_v1  one thread builds the table of a contig end and walks
// extend_v2  a warp builds it and its first lane walks
//
// A table has an exact number of slots, known from the lengths of the reads and k, and begins where
// a prefix sum over the ends says. A slot's key is a place in the packed reads, so a mer of any k
// takes 8 bytes; mers are compared base by base. The table is built anew on each rung of the ladder
// over k.
#include "count_support.cuh"

namespace dlasm {

constexpr i64 kLoadPercent = 93;   // fullest that a table gets; paper section 3.2
constexpr u64 kEmpty = ~0ull;      // key of a free slot
constexpr u64 kSeen = 1ull << 63;  // set in the key of a mer that the walk has come by
constexpr i64 kNowhere = -1;       // slot of a mer that is not in the table
constexpr int kVoteCounters = 8;   // a slot's votes: low ones for A, C, G, T, then high ones
constexpr int kHighCounters = 4;   // where the high ones begin
constexpr u64 kMixer = 0x9E3779B97F4A7C15ull;  // 2^64 / golden ratio

// What the tables need besides the batch. `walk_area` of the batch holds two contexts an end: the
// tail of the contig and the bases appended to it.
struct Tables {
  const i64* order;          // [count] the ends to do
  const i64* table_start;    // [ends + 1] where the table of each end begins, in slots
  const i64* context_start;  // [ends + 1] where its contexts begin in the walk area, in words
  u64* keys;                 // a key per slot
  u32* votes;                // kVoteCounters per slot
  i64 count;
};

struct Walk {
  Outcome outcome;
  i64 length;
};

DLASM_HD u64 high_product(u64 a, u64 b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<u64>((static_cast<unsigned __int128>(a) * b) >> 64);
#endif
}

// Slots for so many mers, at least one more than there are mers, so that a search always ends.
DLASM_HD i64 slots_for(i64 mers) { return (100 * mers + kLoadPercent - 1) / kLoadPercent; }

// The windows of 32 bases that a mer of k bases is made of, one after the other.
DLASM_HD u64 mer_window(const u32* words, i64 first, int i, int k) {
  return window_at(words, first + i) & first_bases(k - i);
}

DLASM_HD u64 hash_mer(const u32* words, i64 first, int k) {
  u64 hash = 0;
  for (int i = 0; i < k; i += kWindow) {
    hash = (hash ^ mer_window(words, first, i, k)) * kMixer;
    hash ^= hash >> 32;
  }
  return hash * kMixer;
}

DLASM_HD bool same_mer(const u32* a, i64 first_a, const u32* b, i64 first_b, int k) {
  for (int i = 0; i < k; i += kWindow) {
    if (mer_window(a, first_a, i, k) != mer_window(b, first_b, i, k)) return false;
  }
  return true;
}

DLASM_HD bool holds_n(const u32* classes, i64 first, int k) {
  for (int i = 0; i < k; i += kWindow) {
    if (n_bits(mer_window(classes, first, i, k))) return true;
  }
  return false;
}

// The table of one end on one rung.
struct Table {
  u64* keys;
  u32* votes;  // kVoteCounters a slot
  i64 slots;
  const u32* words;
  int k;

  __device__ i64 first_slot(const u32* mer_words, i64 first) const {
    return static_cast<i64>(high_product(hash_mer(mer_words, first, k), static_cast<u64>(slots)));
  }

  __device__ i64 next_slot(i64 slot) const { return slot + 1 < slots ? slot + 1 : 0; }

  // Slot of the mer at base `at` of the packed reads; claims one if need be. `claim(key, at)` puts
  // `at` where the key is free and returns what it found.
  template <class Claim>
  __device__ i64 slot_of(i64 at, Claim claim) const {
    i64 slot = first_slot(words, at);
    while (true) {
      const u64 found = claim(keys + slot, static_cast<u64>(at));
      if (found == kEmpty || same_mer(words, static_cast<i64>(found), words, at, k)) return slot;
      slot = next_slot(slot);
    }
  }

  // Slot of the mer at base `first` of the context, or kNowhere.
  __device__ i64 find(const u32* context, i64 first) const {
    if (slots == 0) return kNowhere;
    i64 slot = first_slot(context, first);
    while (true) {
      const u64 key = keys[slot];
      if (key == kEmpty) return kNowhere;
      if (same_mer(words, static_cast<i64>(key & ~kSeen), context, first, k)) return slot;
      slot = next_slot(slot);
    }
  }

  // Empties the table; `lane` of `lanes` threads that share the work.
  __device__ void clear(int lane, int lanes) const {
    for (i64 i = lane; i < slots; i += lanes) keys[i] = kEmpty;
    for (i64 i = lane; i < kVoteCounters * slots; i += lanes) votes[i] = 0;
  }
};

// One read as the tables see it.
struct Read {
  i64 length;
  i64 first;           // its first base, counted in bases from the beginning of all words
  const u32* classes;  // vote classes
  bool has_n;

  __device__ Read(const Batch& batch, i64 r)
      : length(batch.length[r]),
        first(batch.word_offset[r] * kBasesPerWord),
        classes(batch.words + batch.word_offset[r] + base_words(length)),
        has_n(batch.has_n[r]) {}

  // Whether the mer of k bases at `p` has a next base that votes. One that has not need not be in
  // the table: a mer without votes and a mer that is missing mean the same.
  __device__ bool votes(i64 p, int k) const {
    if (p + k >= length || !vote_bits(base_at(classes, p + k))) return false;
    return !has_n || !holds_n(classes, p, k);
  }

  // Which of a slot's counters that vote goes to.
  __device__ int counter(const u32* words, i64 p, int k) const {
    const int base = static_cast<int>(base_at(words, first + p + k));
    return base_at(classes, p + k) == kClassHigh ? kHighCounters + base : base;
  }
};

// Mers with a next base in the reads of end `e`, of those that fall to `lane` of `lanes`.
DLASM_DEVICE i64 count_mers(const Batch& batch, i64 e, int k, int lane, int lanes) {
  i64 mers = 0;
  for (i64 r = batch.read_start[e] + lane; r < batch.read_start[e + 1]; r += lanes) {
    const i64 length = batch.length[r];
    if (length > k) mers += length - k;
  }
  return mers;
}

// Walks from the end of the contig, whose tail is in `context`, and appends to it. One thread. A
// mer was seen before exactly when its slot says so, since a walk goes on only from mers that are
// in the table.
DLASM_DEVICE Walk walk_table(const Table& table, u32* context, const Batch& batch, i64 e) {
  // an N in the mer at the end of the contig, which no read can hold
  if (batch.clean_length[e] < table.k) return {kDeadEnd, 0};
  const u32 depth = static_cast<u32>(batch.depth[e / 2]);
  for (i64 length = 0; length < batch.walk_limit; ++length) {
    const i64 end = kTailBases + length;
    const i64 slot = table.find(context, end - table.k);
    if (slot == kNowhere) return {kDeadEnd, length};
    if (table.keys[slot] & kSeen) return {kRepeat, length};
    table.keys[slot] |= kSeen;
    const u32* const votes = table.votes + kVoteCounters * slot;
    u32 n[4], h[4];
    for (int base = 0; base < 4; ++base) {
      h[base] = votes[kHighCounters + base];
      n[base] = votes[base] + h[base];
    }
    const int chosen = choose(n, h, depth);
    if (chosen == kChooseFork) return {kFork, length};
    if (chosen == kChooseDeadEnd) return {kDeadEnd, length};
    u32& word = context[end / kBasesPerWord];
    const int shift = 2 * static_cast<int>(end % kBasesPerWord);
    word = (word & ~(~0u << shift)) | (static_cast<u32>(chosen) << shift);
  }
  return {kLimit, batch.walk_limit};
}

// One thread that does all the work of an end: v1.
struct OneThread {
  __device__ int lane() const { return 0; }
  __device__ int lanes() const { return 1; }
  __device__ i64 sum(i64 x) const { return x; }

  __device__ void build(const Table& table, const Batch& batch, i64 e) const {
    const auto claim = [](u64* key, u64 at) {
      const u64 found = *key;
      if (found == kEmpty) *key = at;
      return found;
    };
    table.clear(0, 1);
    for (i64 r = batch.read_start[e]; r < batch.read_start[e + 1]; ++r) {
      const Read read(batch, r);
      for (i64 p = 0; p + table.k < read.length; ++p) {
        if (!read.votes(p, table.k)) continue;
        const i64 slot = table.slot_of(read.first + p, claim);
        ++table.votes[kVoteCounters * slot + read.counter(batch.words, p, table.k)];
      }
    }
  }

  __device__ Walk walk(const Table& table, u32* context, const Batch& batch, i64 e) const {
    return walk_table(table, context, batch, e);
  }
};

// A warp that builds the tables of an end together, of which the first lane walks: v2.
struct OneWarp {
  __device__ int lane() const { return static_cast<int>(threadIdx.x % kLanes); }
  __device__ int lanes() const { return kLanes; }

  __device__ i64 sum(i64 x) const {
    for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
  }

  // The lanes take neighbouring mers of a read. Nobody else touches the table, so a slot is claimed
  // by compare and swap, but votes are counted without: lanes with the same vote for the same mer
  // find each other, and the first of them adds up.
  __device__ void build(const Table& table, const Batch& batch, i64 e) const {
    const auto claim = [](u64* key, u64 at) { return atomicCAS(key, kEmpty, at); };
    table.clear(lane(), kLanes);
    __syncwarp();
    for (i64 r = batch.read_start[e]; r < batch.read_start[e + 1]; ++r) {
      const Read read(batch, r);
      for (i64 begin = 0; begin + table.k < read.length; begin += kLanes) {
        const i64 p = begin + lane();
        const bool votes = read.votes(p, table.k);
        i64 counter = kNowhere - lane();  // matches no other lane's
        if (votes) {
          const i64 slot = table.slot_of(read.first + p, claim);
          counter = kVoteCounters * slot + read.counter(batch.words, p, table.k);
        }
        const u32 same = __match_any_sync(kAllLanes, static_cast<u64>(counter));
        if (votes && lane() == __ffs(static_cast<int>(same)) - 1) {
          table.votes[counter] += static_cast<u32>(__popc(same));
        }
        __syncwarp();  // the next mers may have the same slots
      }
    }
  }

  __device__ Walk walk(const Table& table, u32* context, const Batch& batch, i64 e) const {
    Walk walk{kDeadEnd, 0};
    if (lane() == 0) walk = walk_table(table, context, batch, e);
    __syncwarp();  // a shuffle does not order memory, and the table is cleared next
    const int verdict = __shfl_sync(kAllLanes, static_cast<int>(walk.outcome), 0);
    const i64 length = __shfl_sync(kAllLanes, walk.length, 0);
    return {static_cast<Outcome>(verdict), length};
  }
};

// Extends end `e`: the ladder over k. `Workers` are the threads that do it together.
template <class Workers>
DLASM_DEVICE void extend_end(const Batch& batch, const Tables& tables, i64 e,
                             const Workers& workers) {
  const int lane = workers.lane();
  const i64 context_words = (tables.context_start[e + 1] - tables.context_start[e]) / 2;
  u32* next = batch.walk_area + tables.context_start[e];  // takes the next walk
  u32* kept = next + context_words;                       // holds the best one so far
  for (int i = lane; i < kTailWords; i += workers.lanes()) {
    next[i] = kept[i] = batch.tail[kTailWords * e + i];
  }
  const i64 first_slot = tables.table_start[e];
  Walk best{kNoWalk, 0};
  int best_k = 0;
  const i32 tail_length = batch.tail_length[e];
  Ladder ladder(static_cast<int>(batch.start_k), tail_length < kMaxK ? tail_length : kMaxK);
  while (ladder.on()) {
    const i64 mers = workers.sum(count_mers(batch, e, ladder.k, lane, workers.lanes()));
    const Table table{tables.keys + first_slot, tables.votes + kVoteCounters * first_slot,
                      slots_for(mers), batch.words, ladder.k};
    workers.build(table, batch, e);
    const Walk walk = workers.walk(table, next, batch, e);
    if (walk.length > best.length) {  // strictly longer: the earliest k wins a tie
      best = walk;
      best_k = ladder.k;
      u32* const walked = next;
      next = kept;
      kept = walked;
    }
    ladder.next(walk.outcome, kMaxK, 0);
  }
  if (lane != 0) return;
  batch.walk_length[e] = static_cast<i32>(best.length);
  batch.walk_k[e] = static_cast<i16>(best_k);
  batch.outcome[e] = best.outcome;
  batch.walk_start[e] = kept + kTailWords - batch.walk_area;
  batch.walk_head[e] = window_at(kept, kTailBases);
}

}  // namespace dlasm

DLASM_KERNEL extend_v1(const dlasm::Batch batch, const dlasm::Tables tables) {
  const dlasm::i64 i = static_cast<dlasm::i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < tables.count) dlasm::extend_end(batch, tables, tables.order[i], dlasm::OneThread());
}

DLASM_KERNEL extend_v2(const dlasm::Batch batch, const dlasm::Tables tables) {
  const dlasm::i64 thread = static_cast<dlasm::i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const dlasm::i64 i = thread / dlasm::kLanes;  // the same for all lanes of a warp
  if (i < tables.count) dlasm::extend_end(batch, tables, tables.order[i], dlasm::OneWarp());
}
