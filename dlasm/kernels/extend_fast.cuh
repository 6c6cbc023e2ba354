// The `fast` kernels: walks by cursors (cursors.cuh), without a k-mer table, as the CPU engine does
// them (walk_cpu.hpp says why that is exact).
//
// A contig end goes to the least that can do it: a thread (few short reads, a short walk), a warp
// with everything in shared memory, or a block with its samples in global memory. Whoever finds an
// end too much for it passes it on, and the next begins afresh.
//
// Read by NVRTC: no standard header may be included here.
#pragma once

#include "cursors.cuh"
#include "team.cuh"

namespace dlasm {

constexpr i64 kMaxEndWords = i64{1} << 22;  // so that the number of a cursor takes 27 bits

constexpr int kTile = 512;          // ends that a block of extend_small sorts by size
constexpr int kSmallThreads = 128;  // of its block
constexpr int kSmallReads = 8;      // most reads of an end that one thread takes
constexpr int kSmallWords = 256;    // and most packed words of them
constexpr int kSmallCursors = 8;    // most cursors it keeps
constexpr int kSmallChunks = 6;     // most steps it walks before it passes the end on
constexpr int kKeys = 8;            // samples looked up at a time by scanning the reads
constexpr int kSmallPiece = 160;    // bases of a read that are scanned at a time
constexpr int kPieceWords = 2 * kSmallPiece / kBasesPerWord;  // packed words of such a piece
constexpr int kSmallPieces = (kSmallWords + kPieceWords - 1) / kPieceWords;
constexpr i64 kMostTouched = 128 << 10;  // bytes that a block asks for before it needs them

constexpr int kMiddleWarps = 2;     // of a block, each with its own end
constexpr int kMiddleWords = 640;   // most packed words of an end that a warp takes
constexpr int kMiddleReads = 128;   // and most reads of them
constexpr int kMiddleCursors = 64;  // most cursors it keeps
constexpr int kMiddleBits = 9;      // of its table of samples
constexpr int kMiddleWalk = 1024;   // most bases it walks
constexpr int kLargeWarps = 8;      // of a block that walks one end
constexpr int kLargeBlocks = 3;     // of them on a multiprocessor
constexpr int kLevels = 8;          // queues of large ends by size
constexpr int kFirstLevelLog = 11;  // words of the ends in the first of them: under 2^11

constexpr int kChunk = 16;  // bases that a team walks at a time

constexpr u32 kNoKey = 0xFFFFFFFFu;         // equals no sample
constexpr u32 kNoEarlierSample = 1u << 16;  // stands for eight bases not all known, in a read
constexpr u32 kNoEarlierContext = 1u << 17;
constexpr i32 kNoPlace = -(1 << 30);

// A cursor in memory.
struct alignas(16) Slot {
  u32 word;      // of the read, counted from the end's first word
  i32 position;  // of the next base in the read
  u32 start;     // context position from which on they agree; above kAtShift, see `at`
  i32 length;    // of the read

  // A cursor that was found within a chunk begins after so many of its bases.
  static constexpr int kAtShift = 24;
  DLASM_HD int at() const { return static_cast<int>(start >> kAtShift); }
  DLASM_HD i32 begin() const { return static_cast<i32>(start & ((1u << kAtShift) - 1)); }
};

// One contig end and its reads, all numbers relative to it.
struct PackedEnd {
  const u32* words;
  const i64* word_offset;
  const i32* length;
  const u8* has_n;
  i64 first_word;
  i32 reads;
  i32 clean_length;
  i32 tail_length;
  u64 tail[kTailBases / kWindow];  // the last 32 bases first

  DLASM_DEVICE PackedEnd(const Batch& batch, i64 end) {
    const i64 first = batch.read_start[end];
    reads = static_cast<i32>(batch.read_start[end + 1] - first);
    word_offset = batch.word_offset + first;
    length = batch.length + first;
    has_n = batch.has_n + first;
    first_word = word_offset[0];
    words = batch.words + first_word;
    clean_length = batch.clean_length[end];
    tail_length = batch.tail_length[end];
    const u64* packed = reinterpret_cast<const u64*>(batch.tail + kTailWords * end);
#pragma unroll
    for (int i = 0; i < kTailBases / kWindow; ++i) tail[i] = packed[kTailBases / kWindow - 1 - i];
  }

  DLASM_DEVICE u32 word_of(i32 read) const {
    return static_cast<u32>(word_offset[read] - first_word);
  }

  // The sample that ends `d` bases before the end of the contig.
  DLASM_DEVICE u32 start_key(int d) const {
    if (clean_length < d + kSampleBases) return kNoKey;
    return static_cast<u32>(tail[0] >> (2 * (kWindow - d - kSampleBases))) & kSampleMask;
  }
};

// Bases before `position` of a read that agree with the tail of the contig, at most `limit`; N
// agrees with nothing.
DLASM_DEVICE i32 match_tail(const PackedEnd& end, const u32* read, const u32* classes, i32 position,
                            i32 limit) {
  i32 done = 0;
#pragma unroll
  for (int i = 0; i < kTailBases / kWindow; ++i) {
    if (done < kWindow * i || done >= limit) break;
    u64 x = differences(end.tail[i], window_before(read, position - kWindow * i));
    if (classes) x |= n_bits(window_before(classes, position - kWindow * i));
    done += x ? count_leading_zeros(x) / 2 : kWindow;
  }
  return done < limit ? done : limit;
}

// The same with the last 32 bases of the context.
DLASM_DEVICE i32 match_recent(u64 recent, const u32* read, const u32* classes, i32 position,
                              i32 limit) {
  u64 x = differences(recent, window_before(read, position));
  if (classes) x |= n_bits(window_before(classes, position));
  const i32 done = x ? count_leading_zeros(x) / 2 : kWindow;
  return done < limit ? done : limit;
}

DLASM_DEVICE i32 smaller(i32 a, i32 b) { return a < b ? a : b; }
DLASM_DEVICE i32 larger(i32 a, i32 b) { return a > b ? a : b; }

// What follows the context at a slot.
DLASM_DEVICE Ahead look_ahead(const u32* words, const Slot& slot) {
  Ahead ahead;
  const u32* read = words + slot.word;
  ahead.left = smaller(slot.length - slot.position, kWindow);
  ahead.bases = window_at(read, static_cast<u32>(slot.position));
  ahead.classes = window_at(read + base_words(slot.length), static_cast<u32>(slot.position));
  return ahead;
}

// The context's last 32 bases after the first `n` of `bases` were appended to it, 0 < n < 32.
DLASM_DEVICE u64 appended(u64 recent, u64 bases, int n) {
  return (recent >> (2 * n)) | (bases << (2 * (kWindow - n)));
}

// From which of the next bases on a match of so many bases votes on rung k.
DLASM_DEVICE int votes_from(int k, i32 match) {
  return match >= k ? 0 : smaller(k - match, kWindow);
}

// ---- queues of ends, in scratch

DLASM_DEVICE u32* warp_queue(const Batch& batch) { return reinterpret_cast<u32*>(batch.scratch); }
DLASM_DEVICE u32* block_queue(const Batch& batch, int level) {
  return warp_queue(batch) + (1 + level) * batch.ends;
}
DLASM_DEVICE i64 queue_bytes(const Batch& batch) {
  return (static_cast<i64>(sizeof(u32)) * (1 + kLevels) * batch.ends + 255) / 256 * 256;
}

DLASM_DEVICE void pass_to_warp(const Batch& batch, i64 end) {
  warp_queue(batch)[atomicAdd(batch.counters + kWarpTail, 1ull)] = static_cast<u32>(end);
}

DLASM_DEVICE void pass_to_block(const Batch& batch, i64 end, i64 words) {
  int level = 0;
  while (level < kLevels - 1 && words >> (kFirstLevelLog + level)) ++level;
  const u64 at = atomicAdd(batch.counters + kBlockTail + level, 1ull);
  block_queue(batch, level)[at] = static_cast<u32>(end);
}

DLASM_DEVICE i64 words_of(const Batch& batch, i64 end) {
  return batch.word_offset[batch.read_start[end + 1]] - batch.word_offset[batch.read_start[end]];
}

// ---- one thread, one end

// Arrays of a thread. Not members of SmallWalker, which is then kept in registers.
struct SmallPlace {
  static constexpr int kMaxHits = 16;
  Slot cursor[kSmallCursors];
  u32 hit[kMaxHits];       // samples that equal a key: read, then number in the read
  i32 place[kSmallReads];  // by read, where it matched last
};

// Walks one end alone, as Walker of walk_cpu.hpp does, by scanning the reads for samples.
class SmallWalker {
 public:
  DLASM_DEVICE SmallWalker(const Batch& batch, i64 end, SmallPlace& place)
      : batch_(batch), end_number_(end), end_(batch, end), place_(place) {}

  // Stores what the end comes to; false: it is too much for a thread.
  DLASM_DEVICE bool extend() {
    if (!find_start()) return false;
    i32 best_length = 0, best_k = 0;
    Outcome best_outcome = kNoWalk;
    const int start_k = static_cast<int>(batch_.start_k);
    Ladder ladder(start_k, smaller(end_.tail_length, kMaxK));
    if (ladder.k > start_match_) ladder.next(kDeadEnd, start_match_, 0);
    // the rungs that go on where the last one stopped
    while (ladder.on() && ladder.k <= start_match_) {
      Outcome outcome;
      bool here = false;  // whether the next rung goes on from here
      do {
        if (here) waiting_ = 0;
        if (!walk_on(ladder.k, &outcome)) return false;
        if (walked_ > best_length) {
          best_length = walked_;
          best_k = ladder.k;
          best_outcome = outcome;
        }
        here = outcome == kDeadEnd && ladder.step <= 0 && undisputed_;
        if (here) {
          ladder.next(kDeadEnd, waiting_here_, 0);
          if (!ladder.on()) break;
        }
      } while (here);
      if (!ladder.on()) break;
      ladder.next(outcome, waiting_, outcome == kFork ? shortest_vote_ : 0);
      if (ladder.on() && ladder.k <= start_match_) return false;  // begins anew: not here
    }
    store_outcome(batch_, end_number_, best_outcome, best_k, best_length);
    if (best_length) batch_.walk_head[end_number_] = walk_ & first_bases(best_length);
    return true;
  }

 private:
  // Samples of the reads that equal one of the keys; false when there are too many. A single loop
  // over the pieces of all reads: lanes with few long reads do not wait for those with many short.
  DLASM_DEVICE bool scan(const u32 (&keys)[kKeys]) {
    constexpr int kPairs = kSmallPiece / kWindow;
    hits_ = 0;
    i32 r = 0, first = 0, length = end_.length[0];
    u32 word = 0;
#pragma unroll 1
    while (r < end_.reads) {
      const i32 samples = static_cast<i32>(sample_count(length));
      const i32 words = static_cast<i32>(base_words(length));
      const i32 pairs = (words + 1) / 2;
      const u64* read = reinterpret_cast<const u64*>(end_.words + word);
      u64 pair[kPairs + 1];
#pragma unroll
      for (int i = 0; i <= kPairs; ++i) {
        const i32 at = first / 4 + i;
        pair[i] = at < pairs ? read[at] : 0;
      }
      const i32 next_length = end_.length[smaller(r + 1, end_.reads - 1)];  // asked for with these
#pragma unroll
      for (int i = 0; i < 4 * kPairs; ++i) {
        const u64 low = pair[i / 4] >> (16 * (i % 4));
        const u64 high = i % 4 == 3 ? pair[i / 4 + 1] << 16 : 0;
        const u32 key = static_cast<u32>(low | high) & kSampleMask;
        bool equal = false;
#pragma unroll
        for (int d = 0; d < kKeys; ++d) equal |= key == keys[d];
        if (equal && first + i < samples) {
          if (hits_ == SmallPlace::kMaxHits) return false;
          place_.hit[hits_++] = static_cast<u32>(r) << 24 | static_cast<u32>(first + i);
        }
      }
      first += 4 * kPairs;
      if (first >= samples) {
        first = 0;
        ++r;
        word += 2 * static_cast<u32>(words);
        length = next_length;
      }
    }
    return true;
  }

  // Calls found(read, its words, words of classes if it holds N, length, position after the
  // sample, i) for each hit and each key i that it equals; false as soon as one gives false.
  template <class Found>
  DLASM_DEVICE bool each_hit(const u32 (&keys)[kKeys], Found found) {
#pragma unroll 1
    for (int i = 0; i < hits_; ++i) {
      const i32 r = static_cast<i32>(place_.hit[i] >> 24),
                j = static_cast<i32>(place_.hit[i] & 0xFFFFFF);
      const u32 word = end_.word_of(r);
      const u32* read = end_.words + word;
      const i32 length = end_.length[r];
      const u32* classes = end_.has_n[r] ? read + base_words(length) : nullptr;
      if (classes && n_bits(sample_at(classes, j))) continue;
      const u32 key = sample_at(read, j);
      u32 equal = 0;
#pragma unroll
      for (int d = 0; d < kKeys; ++d) equal |= key == keys[d] ? 1u << d : 0;
#pragma unroll 1
      for (; equal; equal &= equal - 1) {
        const int d = __ffs(static_cast<int>(equal)) - 1;
        if (!found(r, word, classes, length, j * kSampleStep + kSampleBases, d)) return false;
      }
    }
    return true;
  }

  // Takes note that a read matches at `place` (context position less position in the read): at two
  // places, a mer may be repeated.
  DLASM_DEVICE void note_place(i32 read, i32 place) {
    if (placed_ >> read & 1 && place_.place[read] != place) doubled_ = true;
    placed_ |= 1u << read;
    place_.place[read] = place;
  }

  DLASM_DEVICE bool add_cursor(u32 word, i32 position, u32 start, i32 length) {
    if (cursors_ == kSmallCursors) return false;
    place_.cursor[cursors_++] = {word, position, start, length};
    return true;
  }

  DLASM_DEVICE bool find_start() {
    u32 keys[kKeys];
#pragma unroll
    for (int d = 0; d < kStartSamples; ++d) keys[d] = end_.start_key(d);
    if (!scan(keys)) return false;
    return each_hit(
        keys, [&](i32 r, u32 word, const u32* classes, i32 length, i32 position, int d) {
          position += d;
          if (position >= length) return true;
          const i32 match = match_tail(end_, end_.words + word, classes, position,
                                       smaller(position, end_.clean_length));
          if (match < d + kSampleBases) return true;  // the tail after the sample must agree too
          note_place(r, kTailBases - position);
          if (match >= kMinK && match > start_match_) {
            const u32* all_classes = end_.words + word + base_words(length);
            if (vote_bits(base_at(all_classes, position)) & 1) start_match_ = match;
          }
          return add_cursor(word, position, static_cast<u32>(kTailBases - match), length);
        });
  }

  // Walks on rung k from where the context ends now; false: too much for a thread.
  DLASM_DEVICE bool walk_on(int k, Outcome* outcome) {
    for (;;) {
      if (doubled_) return false;
      *outcome = kLimit;
      if (walked_ >= batch_.walk_limit) return true;
      if (chunks_++ == kSmallChunks) return false;
      int taken = 1;
      u64 bases;
      *outcome = look_around(k, &bases, &taken);
      if (*outcome != kNoOutcome) return true;
      if (walked_ + taken > kWindow) return false;
      if (!look_up(k, bases, &taken)) return false;
      advance(k, bases, taken);
    }
  }

  // What all cursors say: the next bases, how many of them are sure, or how the walk ends.
  DLASM_DEVICE Outcome look_around(int k, u64* bases, int* taken) {
    const i32 context_end = kTailBases + walked_;
    u32 votes = 0, high_votes = 0, voters = 0;  // a byte for each base
    int sight = 0;
    waiting_here_ = 0;
#pragma unroll 1
    for (int i = 0; i < cursors_; ++i) {
      const Slot slot = place_.cursor[i];
      const Ahead ahead = look_ahead(end_.words, slot);
      const u32 vote = static_cast<u32>(ahead.classes) & 3u;
      if (vote == kClassNone || vote == kClassN) continue;
      const i32 match = context_end - slot.begin();
      if (match < k) {
        waiting_here_ = larger(waiting_here_, match);
        continue;
      }
      const int byte = 8 * static_cast<int>(ahead.bases & 3u);
      ++voters;
      votes += 1u << byte;
      high_votes += vote == kClassHigh ? 1u << byte : 0;
      shortest_vote_ = smaller(shortest_vote_, match);
      if (ahead.left > sight) {
        sight = ahead.left;
        *bases = ahead.bases;
      }
    }
    waiting_ = larger(waiting_, waiting_here_);
    if (voters == 0) return kDeadEnd;
    if (votes != voters << (8 * (*bases & 3u))) {
      u32 n[4], h[4];
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        n[b] = votes >> (8 * b) & 0xFFu;
        h[b] = high_votes >> (8 * b) & 0xFFu;
      }
      const int chosen = choose(n, h, static_cast<u32>(batch_.depth[end_number_ / 2]));
      if (chosen == kChooseFork) return kFork;
      if (chosen == kChooseDeadEnd) return kDeadEnd;
      *bases = static_cast<u64>(chosen);
      return kNoOutcome;
    }
    *taken = smaller(sight, kKeys);
    const i64 room = batch_.walk_limit - walked_;
    if (*taken > room) *taken = static_cast<int>(room);
    u64 covered = 0;
#pragma unroll 1
    for (int i = 0; i < cursors_; ++i) {
      const Slot slot = place_.cursor[i];
      const Ahead ahead = look_ahead(end_.words, slot);
      const i32 match = context_end - slot.begin();
      const int from = votes_from(k, match);
      if (from >= *taken) continue;
      const int agreed = ahead.agreed(*bases);
      if (agreed < from) continue;
      shortest_vote_ = smaller(shortest_vote_, match + from);
      const u64 says = ahead.votes() & ~first_bases(from);
      covered |= says & first_bases(agreed);
      if (agreed < *taken && (says >> (2 * agreed) & 1)) *taken = agreed;
    }
    const u64 open = ~covered & kLowBits & first_bases(*taken);
    if (open) *taken = count_trailing_zeros(open) / 2;
    return kNoOutcome;
  }

  // Makes cursors of new matches that end within the next bases, and cuts these where one of them
  // votes for another base.
  DLASM_DEVICE bool look_up(int k, u64 bases, int* taken) {
    u32 keys[kKeys];
#pragma unroll
    for (int t = 0; t < kKeys; ++t) {
      keys[t] =
          t < *taken
              ? static_cast<u32>(appended(recent_, bases, t + 1) >> (2 * (kWindow - kSampleBases)))
              : kNoKey;
    }
    if (!scan(keys)) return false;
    const i32 context_end = kTailBases + walked_;
    return each_hit(
        keys, [&](i32 r, u32 word, const u32* classes, i32 length, i32 position, int t) {
          if (t >= *taken || position == length) return true;
          const i32 clean = end_.clean_length + walked_ + t + 1;
          const i32 match = match_recent(appended(recent_, bases, t + 1), end_.words + word,
                                         classes, position, smaller(position, clean));
          if (match >= kKnownMatch) return true;
          const i32 context_here = context_end + t + 1;
          const Slot slot{word, position, static_cast<u32>(context_here - match), length};
          const Ahead ahead = look_ahead(end_.words, slot);
          const int agreed = ahead.agreed(bases >> (2 * (t + 1)));
          if (agreed < *taken - (t + 1) && agreed >= votes_from(k, match) && agreed < ahead.left &&
              (ahead.votes() >> (2 * agreed) & 1)) {
            *taken = t + 1 + agreed;
          }
          note_place(r, context_here - position);
          return add_cursor(word, position, slot.start | static_cast<u32>(t + 1) << Slot::kAtShift,
                            length);
        });
  }

  // Moves all cursors over the bases accepted; those that disagree are gone.
  DLASM_DEVICE void advance(int k, u64 bases, int taken) {
    const i32 before = kTailBases + walked_;
    int kept = 0;
#pragma unroll 1
    for (int i = 0; i < cursors_; ++i) {
      Slot slot = place_.cursor[i];
      const int at = slot.at();
      if (at > taken) continue;  // another arrival cut the bases before it
      const int steps = taken - at;
      const Ahead ahead = look_ahead(end_.words, slot);
      const int agreed = ahead.agreed(bases >> (2 * at));
      const i32 match = before + at - slot.begin();
      if (match < k) {
        const int until = agreed < steps ? agreed + 1 : steps;
        const u64 waited = ahead.votes() & first_bases(smaller(votes_from(k, match), until));
        if (waited) waiting_ = larger(waiting_, match + (63 - count_leading_zeros(waited)) / 2);
      }
      if (agreed >= steps) {
        slot.position += steps;
        slot.start = static_cast<u32>(slot.begin());
        if (slot.position < slot.length) place_.cursor[kept++] = slot;
      } else if (agreed < ahead.left && (ahead.votes() >> (2 * agreed) & 1) &&
                 match + agreed >= kMinK) {
        undisputed_ = false;
      }
    }
    cursors_ = kept;
    walk_ |= (bases & first_bases(taken)) << (2 * walked_);
    walked_ += taken;
    recent_ = appended(recent_, bases, taken);
  }

  const Batch& batch_;
  const i64 end_number_;
  const PackedEnd end_;
  SmallPlace& place_;
  u64 walk_ = 0;
  u64 recent_ = end_.tail[0];
  i32 walked_ = 0;
  i32 start_match_ = 0;
  i32 waiting_ = 0, waiting_here_ = 0, shortest_vote_ = kMaxK + kShiftK;
  bool undisputed_ = true, doubled_ = false;
  int chunks_ = 0;
  int cursors_ = 0, hits_ = 0;
  u32 placed_ = 0;
};

// ---- a team, one end

// A 14-mer of a read, and the eight bases before it, by which most hits prove to belong to a
// cursor that is known.
struct alignas(16) TableSample {
  u32 key;
  u32 earlier;
  u32 read;
  i32 position;  // after the sample
};

// What a team works in.
struct Workplace {
  Slot* start;    // cursors at the end of the contig
  Slot* list[2];  // cursors now, and after the next step
  u32* note;      // by cursor, what the votes said of it
  TableSample* samples;
  u32* buckets;      // where in the samples each bucket ends
  i32* start_place;  // by read, where it matches the end of the contig
  i32* place;        // and where it matched last
  u32* context[2];   // the contig's tail and the walk: now, and the best one if that is another
  u32 capacity;      // of each list of cursors
  int bucket_bits;
  i32 walk_capacity;  // bases of a walk that fit into a context
};

// What a team shares. Each number is written between two syncs and read between others; the
// comments of TeamWalker::step() number them.
struct TeamState {
  u32 count[2 * kChunk];                            // votes for each base of the chunk, high ones
  u32 against[kChunk][4], against_high[kChunk][4];  // votes for other bases there
  u32 arrivals;
  u32 cursors[2];
  u32 reference;  // a cursor to follow: how far it sees, and its number + 1
  u32 start_count;
  i32 start_match;
  i32 waiting, waiting_here, shortest_vote;
  u32 doubled, start_doubled, disputed;
  i32 repeat;
  alignas(16) u32 warp_sum[kLanes];  // no other word is read along with it
};

template <int kWarps>
class TeamWalker {
 public:
  using T = Team<kWarps>;

  DLASM_DEVICE TeamWalker(const Batch& batch, i64 end, TeamState& state, const Workplace& place)
      : batch_(batch), end_number_(end), end_(batch, end), state_(state), place_(place) {
    list_ = place.list[0];
    next_list_ = place.list[1];
    context_ = place.context[0];
    other_context_ = place.context[1];
  }

  // Stores what the end comes to; false: the workplace is too small.
  DLASM_DEVICE bool extend() {
    find_start();
    if (state_.start_count > place_.capacity) return false;
    const i32 start_match = state_.start_match;
    const int start_k = static_cast<int>(batch_.start_k);
    best_length_ = best_k_ = 0;
    best_outcome_ = kNoWalk;
    Ladder ladder(start_k, smaller(end_.tail_length, kMaxK));
    if (ladder.k > start_match) ladder.next(kDeadEnd, start_match, 0);
    if (ladder.on() && ladder.k <= start_match) build_table();
    while (ladder.on() && ladder.k <= start_match) {
      begin_walk();
      Outcome outcome;
      if (!walk_on(ladder.k, true, &outcome)) return false;
      keep_if_longer(outcome, ladder.k);
      while (outcome == kDeadEnd && ladder.step <= 0 && !state_.disputed && !suspicious_) {
        ladder.next(kDeadEnd, state_.waiting_here, 0);
        if (!ladder.on()) break;
        if (!walk_on(ladder.k, false, &outcome)) return false;
        keep_if_longer(outcome, ladder.k);
      }
      if (!ladder.on()) break;
      ladder.next(outcome, larger(state_.waiting, state_.waiting_here),
                  outcome == kFork ? state_.shortest_vote : 0);
    }
    T::sync();
    store();
    return true;
  }

 private:
  static constexpr u32 kDisputeNote = 1u << 8;

  DLASM_DEVICE static bool leads() { return T::rank() == 0; }

  DLASM_DEVICE u32 bucket_of(u32 key) const {
    return (key * 0x9E3779B1u) >> (32 - place_.bucket_bits);
  }

  // Calls visit(read, word, length, classes or null, j, key) for all samples without N: a warp
  // takes a group of reads and each of its lanes one of their samples, whichever read that is of.
  template <class Visit>
  DLASM_DEVICE void each_sample(Visit visit) {
    constexpr int kGroup = kWarps == 1 ? kLanes : 8;
    const int lane = lane_number();
#pragma unroll 1
    for (i32 group = kGroup * T::warp(); group < end_.reads; group += kGroup * kWarps) {
      const i32 own = group + lane;
      const bool has_read = lane < kGroup && own < end_.reads;
      const u32 own_word = has_read ? end_.word_of(own) : 0;
      const i32 own_length = has_read ? end_.length[own] : 0;
      const u32 own_n = has_read ? end_.has_n[own] : 0;
      const u32 own_samples = static_cast<u32>(sample_count(own_length));
      const u32 until = warp_running_sum(own_samples);
      const u32 total = shuffle(until, kLanes - 1);
#pragma unroll 1
      for (u32 base = 0; base < total; base += kLanes) {
        const u32 i = base + lane;
        const int t = lanes_before(until, i);
        const u32 word = shuffle(own_word, t);
        const i32 length = shuffle(own_length, t);
        const bool holds_n = shuffle(own_n, t) != 0;
        const i32 j = static_cast<i32>(i - shuffle(until - own_samples, t));
        if (i >= total) continue;
        const u32* read = end_.words + word;
        const u32* classes = holds_n ? read + base_words(length) : nullptr;
        if (classes && n_bits(sample_at(classes, j))) continue;
        visit(group + t, word, length, classes, j, sample_at(read, j));
      }
    }
  }

  // Finds the cursors at the end of the contig and the longest match among those with a vote, and
  // counts the samples of each bucket.
  DLASM_DEVICE void find_start() {
    const u32 buckets = 1u << place_.bucket_bits;
#pragma unroll 1
    for (u32 i = T::rank(); i < buckets; i += T::kThreads) place_.buckets[i] = 0;
#pragma unroll 1
    for (i32 r = T::rank(); r < end_.reads; r += T::kThreads) place_.start_place[r] = kNoPlace;
    if (leads()) {
      state_.start_count = 0;
      state_.start_match = 0;
      state_.start_doubled = 0;
    }
    u32 keys[kStartSamples];
#pragma unroll
    for (int d = 0; d < kStartSamples; ++d) keys[d] = end_.start_key(d);
    T::sync();
    each_sample([&](i32 r, u32 word, i32 length, const u32* classes, i32 j, u32 key) {
      atomicAdd(place_.buckets + bucket_of(key), 1u);
      u32 equal = 0;
#pragma unroll
      for (int d = 0; d < kStartSamples; ++d) equal |= key == keys[d] ? 1u << d : 0;
#pragma unroll 1
      for (; equal; equal &= equal - 1) {
        const int d = __ffs(static_cast<int>(equal)) - 1;
        const i32 position = j * kSampleStep + kSampleBases + d;
        if (position >= length) continue;
        const i32 match = match_tail(end_, end_.words + word, classes, position,
                                     smaller(position, end_.clean_length));
        if (match < d + kSampleBases) continue;
        const i32 here = kTailBases - position;
        const i32 other = atomicExch(place_.start_place + r, here);
        if (other != kNoPlace && other != here) atomicOr(&state_.start_doubled, 1u);
        const u32* all_classes = end_.words + word + base_words(length);
        if (match >= kMinK && (vote_bits(base_at(all_classes, position)) & 1)) {
          atomicMax(&state_.start_match, match);
        }
        const u32 at = atomicAdd(&state_.start_count, 1u);
        if (at < place_.capacity) {
          place_.start[at] = {word, position, static_cast<u32>(kTailBases - match), length};
        }
      }
    });
    T::sync();
  }

  // Sorts the samples by bucket.
  DLASM_DEVICE void build_table() {
    sum_buckets();
    each_sample([&](i32 r, u32 word, i32, const u32* classes, i32 j, u32 key) {
      const u32* read = end_.words + word;
      u32 earlier = kNoEarlierSample;
      if (j > 0 && !(classes && n_bits(sample_at(classes, j - 1)))) {
        earlier = read[(j - 1) / 2] >> (16 * ((j - 1) % 2)) & 0xFFFFu;
      }
      const u32 at = atomicAdd(place_.buckets + bucket_of(key), 1u);
      place_.samples[at] = {key, earlier, static_cast<u32>(r), j * kSampleStep + kSampleBases};
    });
    T::sync();
  }

  // Makes of the number of samples in each bucket the number of those in the buckets before it.
  DLASM_DEVICE void sum_buckets() {
    constexpr u32 kEach = 4;  // buckets that a thread takes at a time
    const u32 buckets = 1u << place_.bucket_bits;
    u32 all = 0;  // of the buckets done, known to every thread
#pragma unroll 1
    for (u32 first = 0; first < buckets; first += kEach * T::kThreads) {
      u32* bucket = place_.buckets + first + kEach * T::rank();
      const bool own = first + kEach * T::rank() < buckets;
      u32 count[kEach], sum = 0;
#pragma unroll
      for (u32 i = 0; i < kEach; ++i) sum += count[i] = own ? bucket[i] : 0;
      const u32 until = warp_running_sum(sum);
      u32 before = until - sum;
      if (lane_number() == kLanes - 1) state_.warp_sum[T::warp()] = until;
      T::sync();
      for (int w = 0; w < kWarps; ++w) {
        if (w == T::warp()) before += all;
        all += state_.warp_sum[w];
      }
#pragma unroll
      for (u32 i = 0; i < kEach; ++i) {
        if (own) bucket[i] = before;
        before += count[i];
      }
      T::sync();
    }
  }

  // Sets everything back to the end of the contig.
  DLASM_DEVICE void begin_walk() {
    T::sync();
    if (context_ == best_context_) {
      context_ = other_context_;
      other_context_ = best_context_;
    }
    const u32* tail = batch_.tail + kTailWords * end_number_;
    if (T::rank() < kTailWords) context_[T::rank()] = tail[T::rank()];
#pragma unroll 1
    for (i32 r = T::rank(); r < end_.reads; r += T::kThreads) {
      place_.place[r] = place_.start_place[r];
    }
    if (leads()) {
      state_.doubled = state_.start_doubled;
      state_.disputed = 0;
      state_.shortest_vote = kMaxK + kShiftK;
    }
    recent_ = end_.tail[0];
    walked_ = 0;
    suspicious_ = false;
    current_ = 0;
  }

  // Looks at all cursors of `from` at the end of the context, and puts them into the current list.
  DLASM_DEVICE void survey(const Slot* from, u32 count, int k) {
    T::sync();
    if (leads()) {
      state_.reference = 0;
      state_.waiting_here = 0;
      state_.waiting = 0;
      state_.arrivals = 0;
      state_.cursors[current_] = count;
    }
    clear_votes();
    T::sync();
    Slot* list = list_;
    u32 reference = 0;
#pragma unroll 1
    for (u32 i = T::rank(); i < count; i += T::kThreads) {
      const Slot slot = from[i];
      if (from != list) list[i] = slot;
      look_at(slot, i, kTailBases + walked_, k, -1, &reference);
    }
    give_reference(reference);
    T::sync();
  }

  DLASM_DEVICE void clear_votes() {
#pragma unroll 1
    for (int i = T::rank(); i < 2 * kChunk; i += T::kThreads) state_.count[i] = 0;
#pragma unroll 1
    for (int i = T::rank(); i < 4 * kChunk; i += T::kThreads) {
      state_.against[i / 4][i % 4] = 0;
      state_.against_high[i / 4][i % 4] = 0;
    }
  }

  // Whether a cursor at the end of the context votes or waits there, and whether to follow it:
  // those that vote for `wanted` (any base if negative) and see furthest.
  DLASM_DEVICE void look_at(const Slot& slot, u32 number, i32 context_end, int k, int wanted,
                            u32* reference) {
    const u32* read = end_.words + slot.word;
    const u32 vote = base_at(read + base_words(slot.length), static_cast<u32>(slot.position));
    if (vote == kClassNone || vote == kClassN) return;
    const i32 match = context_end - slot.begin();
    if (match < k) {
      atomicMax(&state_.waiting_here, match);
      return;
    }
    atomicMin(&state_.shortest_vote, match);
    if (wanted >= 0 && base_at(read, static_cast<u32>(slot.position)) != static_cast<u32>(wanted)) {
      return;
    }
    const u32 sight = static_cast<u32>(smaller(slot.length - slot.position, kChunk));
    const u32 here = sight << kSightShift | (number + 1);
    if (here > *reference) *reference = here;
  }

  DLASM_DEVICE void give_reference(u32 reference) {
    reference = warp_max(reference);
    if (lane_number() == 0 && reference) atomicMax(&state_.reference, reference);
  }

  // Walks on rung k, from the end of the contig or from where the context ends now; false: the
  // workplace is too small.
  DLASM_DEVICE bool walk_on(int k, bool anew, Outcome* outcome) {
    if (anew) {
      survey(place_.start, state_.start_count, k);
    } else {
      survey(list_, state_.cursors[current_], k);
    }
    int choice = -1;  // the next base where it is known already
    for (;;) {
      *outcome = kLimit;
      if (walked_ >= batch_.walk_limit) return true;
      *outcome = choice == kChooseFork ? kFork : kDeadEnd;
      if (choice >= kChooseFork || state_.reference == 0) return true;
      if (walked_ + kChunk > place_.walk_capacity) return false;
      const i32 before = kTailBases + walked_;
      bool doubled;
      if (!step(k, &choice, &doubled)) return false;
      if (doubled && repeated(before, k)) {
        *outcome = kRepeat;
        return true;
      }
    }
  }

  // Walks up to kChunk bases. The reads that agree so far are taken to follow one of them; all say
  // what they vote for if it goes on like that, and the first base that is not what the rules make
  // of the votes ends the chunk. False: the workplace is too small.
  DLASM_DEVICE bool step(int k, int* choice, bool* doubled) {
    // before the first sync: the bases of the reference, and new matches along them
    Slot* list = list_;
    const i32 context_end = kTailBases + walked_;
    const u32 cursors = state_.cursors[current_];
    const Slot reference = list[(state_.reference & ((1u << kSightShift) - 1)) - 1];
    i32 sight = smaller(reference.length - reference.position, kChunk);
    const i64 room = batch_.walk_limit - walked_;
    if (sight > room) sight = static_cast<i32>(room);
    const u64 bases = window_at(end_.words + reference.word, static_cast<u32>(reference.position)) &
                      first_bases(sight);
    if (leads()) state_.cursors[1 - current_] = 0;
    look_up(list, cursors, bases, sight);
    T::sync();

    // before the second sync: votes
    const u32 total = cursors + state_.arrivals;
    if (total > place_.capacity) return false;
    if (leads()) {
      state_.reference = 0;
      state_.waiting_here = 0;
    }
    u32 count = 0;  // of bit lane_number() of what the cursors say
    i32 waiting = 0, shortest = kMaxK + kShiftK;
#pragma unroll 1
    for (u32 first = kLanes * T::warp(); first < total; first += T::kThreads) {
      const u32 i = first + lane_number();
      u32 says = 0;
      if (i < total) {
        says = vote(list[i], i, bases, sight, context_end, k, &waiting, &shortest);
      }
      count += __popc(warp_transpose(says));
    }
    if (count) atomicAdd(state_.count + lane_number(), count);
    if (waiting) atomicMax(&state_.waiting, waiting);
    if (shortest < kMaxK + kShiftK) atomicMin(&state_.shortest_vote, shortest);
    T::sync();

    // before the third sync: how far it goes, and the cursors that go on
    *doubled = state_.doubled;
    const int taken = settle(bases, sight, choice);
    if (leads()) {
      state_.arrivals = 0;
      append(bases, taken);
    }
    Slot* next = next_list_;
    u32 follow = 0;
    bool disputed = false;
#pragma unroll 1
    for (u32 first = kLanes * T::warp(); first < total; first += T::kThreads) {
      const u32 i = first + lane_number();
      Slot slot{0, 0, 0, 0};
      bool stays = false;
      if (i < total) {
        slot = list[i];
        const int steps = taken - slot.at();
        const u32 note = place_.note[i];
        const int agreed = static_cast<int>(note & (kDisputeNote - 1));
        if (steps >= 0) {
          stays = agreed >= steps && slot.position + steps < slot.length;
          disputed |= agreed < steps && note & kDisputeNote;
          slot.position += steps;
          slot.start = static_cast<u32>(slot.begin());
        }
      }
      const u32 at = warp_append(state_.cursors + (1 - current_), stays);
      if (stays) {
        next[at] = slot;
        look_at(slot, at, context_end + taken, k, *choice, &follow);
      }
    }
    if (disputed) atomicOr(&state_.disputed, 1u);
    give_reference(follow);
    recent_ = taken ? appended(recent_, bases, taken) : recent_;
    walked_ += taken;
    current_ = 1 - current_;
    next_list_ = list;
    list_ = next;
    T::sync();
    clear_votes();
    return true;
  }

  // Looks up the samples that end within the next bases and puts new matches after the cursors.
  DLASM_DEVICE void look_up(Slot* list, u32 cursors, u64 bases, i32 sight) {
    const int lane = lane_number();
    const i32 clean = end_.clean_length + walked_;
    // each warp by itself: lane t the sample that ends with base t
    u32 key = 0, earlier = 0, first = 0, count = 0;
    u64 recent = 0;
    if (lane < sight) {
      recent = appended(recent_, bases, lane + 1);
      key = static_cast<u32>(recent >> (2 * (kWindow - kSampleBases)));
      earlier = clean + lane + 1 < kKnownMatch
                    ? kNoEarlierContext
                    : static_cast<u32>(recent >> (2 * (kWindow - kKnownMatch))) & 0xFFFFu;
      const u32 bucket = bucket_of(key);
      first = bucket ? place_.buckets[bucket - 1] : 0;
      count = place_.buckets[bucket] - first;
    }
    const u32 until = warp_running_sum(count);
    const u32 total = shuffle(until, kLanes - 1);
    const u32 shift = first - (until - count);  // from a number among all hits to the sample
#pragma unroll 1
    for (u32 base = kLanes * T::warp(); base < total; base += T::kThreads) {
      const u32 i = base + lane;
      const int t = lanes_before(until, i);
      const u32 wanted = shuffle(key, t), wanted_earlier = shuffle(earlier, t);
      const u32 number = i + shuffle(shift, t);
      const u64 here = shuffle(recent, t);
      if (i >= total) continue;
      const TableSample sample = place_.samples[number];
      if (sample.key != wanted || sample.earlier == wanted_earlier) continue;
      const i32 length = end_.length[sample.read];
      if (sample.position == length) continue;
      const u32 word = end_.word_of(static_cast<i32>(sample.read));
      const u32* read = end_.words + word;
      const u32* classes = end_.has_n[sample.read] ? read + base_words(length) : nullptr;
      const i32 match = match_recent(here, read, classes, sample.position,
                                     smaller(sample.position, clean + t + 1));
      if (match >= kKnownMatch) continue;
      const i32 context_end = kTailBases + walked_ + t + 1;
      const i32 place = context_end - sample.position;
      const i32 other = atomicExch(place_.place + sample.read, place);
      if (other != kNoPlace && other != place) atomicOr(&state_.doubled, 1u);
      const u32 at = cursors + atomicAdd(&state_.arrivals, 1u);
      if (at < place_.capacity) {
        const u32 start = static_cast<u32>(context_end - match);
        list[at] = {word, sample.position, start | static_cast<u32>(t + 1) << Slot::kAtShift,
                    length};
      }
    }
  }

  // What cursor `i` says to the next bases: two bits each, that it votes for it, and highly. Votes
  // for other bases it adds up itself.
  DLASM_DEVICE u32 vote(const Slot& slot, u32 i, u64 bases, i32 sight, i32 context_end, int k,
                        i32* waiting, i32* shortest) {
    const int at = slot.at();
    const int steps = sight - at;
    const Ahead ahead = look_ahead(end_.words, slot);
    const u64 votes = ahead.votes();
    const int agreed = ahead.agreed(bases >> (2 * at));
    const i32 match = context_end + at - slot.begin();
    const int from = votes_from(k, match);
    const bool against = agreed < ahead.left && (votes >> (2 * agreed) & 1);
    place_.note[i] =
        static_cast<u32>(agreed) | (against && match + agreed >= kMinK ? kDisputeNote : 0);
    const int until = agreed < steps ? agreed + 1 : steps;
    if (from > 0) {
      const u64 waited = votes & first_bases(smaller(from, until));
      if (waited) {
        *waiting = larger(*waiting, match + (63 - count_leading_zeros(waited)) / 2);
      }
    }
    if (from >= until) return 0;
    *shortest = smaller(*shortest, match + from);
    if (against && agreed < steps) {
      const int step = at + agreed;
      const u32 base = static_cast<u32>(ahead.bases >> (2 * agreed)) & 3u;
      const bool high = ahead.classes >> (2 * agreed + 1) & 1;
      atomicAdd(&state_.against[step][base], 1u);
      if (high) atomicAdd(&state_.against_high[step][base], 1u);
    }
    const u64 agree = votes & first_bases(smaller(agreed, steps)) & ~first_bases(from);
    const u64 high = agree & (ahead.classes >> 1);
    return static_cast<u32>(agree | (high << 1)) << (2 * at);
  }

  // How many of the next bases stand, and in `choice` what follows them, -1 if that is not known.
  DLASM_DEVICE int settle(u64 bases, i32 sight, int* choice) {
    const int j = lane_number() % kChunk;
    const u32 expected = static_cast<u32>(bases >> (2 * j)) & 3u;
    u32 n[4], h[4];
    bool disputed = false;
#pragma unroll
    for (u32 b = 0; b < 4; ++b) {
      n[b] = state_.against[j][b];
      h[b] = state_.against_high[j][b];
      disputed |= n[b] != 0;
      if (b == expected) {
        n[b] += state_.count[2 * j];
        h[b] += state_.count[2 * j + 1];
      }
    }
    int chosen = state_.count[2 * j] ? static_cast<int>(expected) : kChooseDeadEnd;
    if (disputed && j < sight) {
      chosen = choose(n, h, static_cast<u32>(batch_.depth[end_number_ / 2]));
    }
    const u32 stand = __ballot_sync(kAllLanes, chosen == static_cast<int>(expected) && j < sight);
    const int taken = __ffs(static_cast<int>(~stand)) - 1;  // lanes past kChunk repeat the first
    const int all = stand == kAllLanes ? kChunk : taken;
    const int next = shuffle(chosen, all % kLanes);
    *choice = all < sight ? next : -1;
    return all;
  }

  DLASM_DEVICE void append(u64 bases, int n) {
    u32* word = context_ + (kTailBases + walked_) / kBasesPerWord;
    const int used = 2 * (walked_ % kBasesPerWord);
    const u64 kept = used ? word[0] & ((1u << used) - 1) : 0;
    const u64 both = kept | (bases & first_bases(n)) << used;
    word[0] = static_cast<u32>(both);
    word[1] = static_cast<u32>(both >> 32);
  }

  // Whether the walk from `before` to the end of the context came to a mer it had seen; cuts it
  // there.
  DLASM_DEVICE bool repeated(i32 before, int k) {
    suspicious_ = true;
    const u32* context = context_;
    const i32 end = kTailBases + walked_;
    i32 last = end;  // at the limit nothing is looked at any more
    if (walked_ >= batch_.walk_limit) last = static_cast<i32>(kTailBases + batch_.walk_limit - 1);
    T::sync();
    if (leads()) state_.repeat = end + 1;
    T::sync();
#pragma unroll 1
    for (i32 earlier = kTailBases + T::rank(); earlier < last; earlier += T::kThreads) {
      const u64 mer = window_before(context, earlier) >> (2 * (kWindow - kMinK));
#pragma unroll 1
      for (i32 here = larger(before, earlier) + 1; here <= last; ++here) {
        if (window_before(context, here) >> (2 * (kWindow - kMinK)) != mer) continue;
        if (match_back(context, earlier, context, here, k) == k) atomicMin(&state_.repeat, here);
      }
    }
    T::sync();
    const i32 repeat = state_.repeat;
    if (repeat > end) return false;
    walked_ = repeat - kTailBases;
    return true;
  }

  DLASM_DEVICE void keep_if_longer(Outcome outcome, int k) {
    if (walked_ <= best_length_) return;
    best_length_ = walked_;
    best_k_ = k;
    best_outcome_ = outcome;
    best_context_ = context_;
  }

  DLASM_DEVICE void store() {
    const u32* walk = best_context_ + kTailWords;
    if (leads()) {
      store_outcome(batch_, end_number_, best_outcome_, best_k_, best_length_);
      if (best_length_) {
        batch_.walk_head[end_number_] = window_at(walk, 0u) & first_bases(best_length_);
      }
    }
    if (best_length_ <= kWindow) return;
    if (T::warp() != 0) return;
    u64 area = 0;
    if (leads()) area = reinterpret_cast<u64>(take_area(batch_, end_number_, best_length_));
    u32* words = reinterpret_cast<u32*>(shuffle(area, 0));
    if (!words) return;
#pragma unroll 1
    for (i32 i = lane_number(); i < base_words(best_length_); i += kLanes) words[i] = walk[i];
  }

  static constexpr int kSightShift = 27;

  const Batch& batch_;
  const i64 end_number_;
  const PackedEnd end_;
  TeamState& state_;
  const Workplace place_;
  u64 recent_ = 0;
  i32 walked_ = 0;
  bool suspicious_ = false;
  int current_ = 0;  // which of the numbers of cursors
  Slot *list_, *next_list_;
  u32 *context_, *other_context_;
  i32 best_length_ = 0;
  int best_k_ = 0;
  u32* best_context_ = nullptr;  // the one that holds the best walk
  Outcome best_outcome_ = kNoWalk;
};

// ---- workplaces

// Shared memory of a warp.
struct MiddlePlace {
  TeamState state;
  TableSample samples[kMiddleWords];  // a read has no more samples than packed words
  Slot cursors[3][kMiddleCursors];
  u32 note[kMiddleCursors];
  u32 buckets[1 << kMiddleBits];
  i32 place[2][kMiddleReads];
  u32 context[2][(kTailBases + kMiddleWalk) / kBasesPerWord + 4];

  DLASM_DEVICE Workplace workplace() {
    return {cursors[0], {cursors[1], cursors[2]}, note,           samples,     buckets,    place[0],
            place[1],   {context[0], context[1]}, kMiddleCursors, kMiddleBits, kMiddleWalk};
  }
};

// Scratch memory of a block for one end.
struct LargePlace {
  i64 samples, buckets, reads, capacity, context_words;
  int bucket_bits;

  DLASM_DEVICE LargePlace(const Batch& batch, i64 end, bool all_cursors) {
    samples = words_of(batch, end);
    reads = batch.read_start[end + 1] - batch.read_start[end];
    bucket_bits = 10;
    while (bucket_bits < 20 && (i64{1} << bucket_bits) < samples) ++bucket_bits;
    buckets = i64{1} << bucket_bits;
    // Most cursors there can be in a step: for each place in a read one that came into it, and one
    // that begins within the chunk, where what was to come broke off the first. Few ends but those
    // of reads of one base come near it.
    const i64 most = kBasesPerWord * samples;  // at least twice the bases
    capacity =
        all_cursors ? most : smaller(static_cast<i32>(most), static_cast<i32>(2 * reads + 1024));
    context_words = base_words(kTailBases + batch.walk_limit) + 4;
  }

  DLASM_DEVICE i64 bytes() const {
    const i64 total = sizeof(TableSample) * samples + 3 * sizeof(Slot) * capacity +
                      sizeof(u32) * (capacity + buckets + 2 * reads + 2 * context_words);
    return (total + 255) / 256 * 256;
  }

  DLASM_DEVICE Workplace workplace(u8* at, i64 walk_limit) const {
    Workplace place;
    auto take = [&at](i64 bytes) {
      u8* here = at;
      at += bytes;
      return here;
    };
    place.samples = reinterpret_cast<TableSample*>(take(sizeof(TableSample) * samples));
    place.start = reinterpret_cast<Slot*>(take(sizeof(Slot) * capacity));
    place.list[0] = reinterpret_cast<Slot*>(take(sizeof(Slot) * capacity));
    place.list[1] = reinterpret_cast<Slot*>(take(sizeof(Slot) * capacity));
    place.note = reinterpret_cast<u32*>(take(sizeof(u32) * capacity));
    place.buckets = reinterpret_cast<u32*>(take(sizeof(u32) * buckets));
    place.start_place = reinterpret_cast<i32*>(take(sizeof(i32) * reads));
    place.place = reinterpret_cast<i32*>(take(sizeof(i32) * reads));
    place.context[0] = reinterpret_cast<u32*>(take(sizeof(u32) * context_words));
    place.context[1] = reinterpret_cast<u32*>(take(sizeof(u32) * context_words));
    place.capacity = static_cast<u32>(capacity);
    place.bucket_bits = bucket_bits;
    place.walk_capacity = static_cast<i32>(walk_limit) + kChunk;
    return place;
  }
};

}  // namespace dlasm
