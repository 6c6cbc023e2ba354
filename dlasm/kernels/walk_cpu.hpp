// The CPU engine: walks of one contig end by cursors (cursors.cuh), one thread an end.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cursors.cuh"

namespace dlasm {

// One contig end as the engine sees it.
struct End {
  const u32* tail;  // kTailWords
  i32 tail_length;
  i32 clean_length;
  i32 depth;
  i64 first_read, last_read;
};

struct Reads {
  const u32* words;
  const i64* word_offset;
  const i32* length;
  const u8* has_n;
};

// A sample with the 8 bases before it: 22 bases, of which the first may be unknown (N or no base).
struct LongKey {
  static constexpr u64 kUnknown = 1ull << 63;
  static constexpr u64 kSample = kSampleMask;

  // The 22 bases that end at `end`; `clean` of the bases before it are known.
  static u64 before(const u32* words, i64 end, i64 clean) {
    const u64 sample = window_at(words, end - kSampleBases) & kSampleMask;
    if (clean < kKnownMatch) return sample | kUnknown;
    const u64 earlier = window_at(words, end - kKnownMatch) & first_bases(kSampleStep);
    return sample | earlier << (2 * kSampleBases);
  }
};

// Where the samples of an end's reads are, by key: chains of equal hash.
class SampleTable {
 public:
  struct Sample {
    u64 key;       // LongKey
    i32 read;      // of the end's reads
    i32 position;  // in the read, of the base after the sample
    i32 number;    // of the end's samples
    i32 next;
  };

  void clear() { samples_.clear(); }
  void add(const Sample& sample) { samples_.push_back(sample); }

  void link() {
    int bits = 4;
    while ((std::size_t{1} << bits) < 2 * samples_.size() && bits < 30) ++bits;
    shift_ = 32 - bits;
    heads_.assign(std::size_t{1} << bits, -1);
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      i32& head = heads_[bucket(samples_[i].key)];
      samples_[i].next = head;
      head = static_cast<i32>(i);
    }
  }

  // Calls found(sample) for each sample with the 14 bases of this key.
  template <class Found>
  void each(u64 key, Found found) {
    for (i32 i = heads_[bucket(key)]; i >= 0; i = samples_[i].next) {
      if (!((samples_[i].key ^ key) & LongKey::kSample)) found(samples_[i]);
    }
  }

 private:
  std::size_t bucket(u64 key) const {
    return (static_cast<u32>(key & LongKey::kSample) * 0x9E3779B1u) >> shift_;
  }

  std::vector<Sample> samples_;
  std::vector<i32> heads_;
  int shift_ = 28;
};

// The set of mers that a walk has seen, kept only once a repeat is possible.
class SeenMers {
 public:
  void clear() {
    places_.clear();
    heads_.assign(kStart, -1);
  }

  // Adds the mer that ends at context position `end`; returns whether it was there.
  bool add(const u32* context, i64 end, int k) {
    if (2 * places_.size() >= heads_.size()) grow(context);
    const std::size_t b = bucket(context, end);
    for (i32 i = heads_[b]; i >= 0; i = places_[i].next) {
      if (match_back(context, places_[i].end, context, end, k) == k) return true;
    }
    places_.push_back({end, heads_[b]});
    heads_[b] = static_cast<i32>(places_.size()) - 1;
    return false;
  }

 private:
  static constexpr std::size_t kStart = 256;
  struct Place {
    i64 end;
    i32 next;
  };

  std::size_t bucket(const u32* context, i64 end) const {
    const u64 mer = window_at(context, end - kMinK) & first_bases(kMinK);
    return (mer * 0x9E3779B97F4A7C15ull >> 32) & (heads_.size() - 1);
  }

  void grow(const u32* context) {
    heads_.assign(2 * heads_.size(), -1);
    for (std::size_t i = 0; i < places_.size(); ++i) {
      i32& head = heads_[bucket(context, places_[i].end)];
      places_[i].next = head;
      head = static_cast<i32>(i);
    }
  }

  std::vector<Place> places_;
  std::vector<i32> heads_;
};

// Is told of every walk of an end, and does nothing about it.
struct NotTold {
  void operator()(Outcome, int, const u32*, i64) const {}
};

// Walks ends, one after another; all memory is kept between them.
class Walker {
 public:
  struct Result {
    Outcome outcome;
    int k;
    i64 length;  // of walk()
  };

  Walker(const Reads& reads, int start_k, i64 walk_limit)
      : reads_(reads), start_k_(start_k), walk_limit_(walk_limit) {
    context_.resize(base_words(kTailBases + walk_limit) + 4);
    best_.resize(base_words(walk_limit) + 4);
  }

  // The accepted walk, packed, in the direction of the walk.
  const u32* walk() const { return best_.data(); }

  // Calls told(outcome, k, walk, length) after the walk of each rung that is not passed over.
  template <class Told = NotTold>
  Result extend(const End& end, const Told& told = {}) {
    if (end.first_read == end.last_read) return {kNoReads, 0, 0};
    if (end.tail_length < start_k_) return {kShortContig, 0, 0};
    end_ = &end;
    table_built_ = false;
    scans_ = 0;
    find_start();
    Result best{kNoWalk, 0, 0};
    Ladder ladder(start_k_, end.tail_length < kMaxK ? end.tail_length : kMaxK);
    if (ladder.k > start_match_) ladder.next(kDeadEnd, start_match_, 0);
    while (ladder.on()) {
      if (ladder.k > start_match_) break;  // going up: a dead end, which ends the ladder
      begin_walk();
      Outcome outcome = walk_on(ladder.k);
      told(outcome, ladder.k, context_.data() + kTailWords, walked());
      keep_if_longer(outcome, ladder.k, &best);
      // Going down, a walk that nobody disputed is the start of the next rung's walk.
      while (outcome == kDeadEnd && ladder.step <= 0 && undisputed_ && !suspicious_) {
        ladder.next(kDeadEnd, static_cast<int>(here_.waiting), 0);
        if (!ladder.on()) return best;
        waiting_ = 0;
        outcome = walk_on(ladder.k);
        told(outcome, ladder.k, context_.data() + kTailWords, walked());
        keep_if_longer(outcome, ladder.k, &best);
      }
      ladder.next(outcome, waiting_, outcome == kFork ? shortest_vote_ : 0);
    }
    return best;
  }

 private:
  static constexpr int kRefillBelow = 8;
  static constexpr int kFilterBits = 10;
  // Most walks end in their first chunk, which a scan of the samples serves without a table.
  static constexpr int kScansBeforeTable = 1;

  static u32 filter_slot(u32 key) { return (key * 0x9E3779B1u) >> (32 - kFilterBits); }

  // Calls found(number, read, j, i) for each sample j of the end's reads that equals keys[i];
  // returns how many samples there are.
  template <class Found>
  i64 scan_samples(const u32* keys, int count, Found found) {
    for (int i = 0; i < count; ++i) filter_[filter_slot(keys[i])] = 1;
    i64 number = 0;
    for (i64 read = end_->first_read; read < end_->last_read; ++read) {
      const u32* words = reads_.words + reads_.word_offset[read];
      const i64 samples = sample_count(reads_.length[read]);
      for (i64 j = 0; j < samples; ++j, ++number) {
        const u32 key = sample_at(words, j);
        if (!filter_[filter_slot(key)]) continue;
        for (int i = 0; i < count; ++i) {
          if (keys[i] == key && clean_sample(read, j)) found(number, read, j, i);
        }
      }
    }
    for (int i = 0; i < count; ++i) filter_[filter_slot(keys[i])] = 0;
    return number;
  }

  bool clean_sample(i64 read, i64 j) const {
    if (!reads_.has_n[read]) return true;
    const u32* words = reads_.words + reads_.word_offset[read];
    return !n_bits(sample_at(words + base_words(reads_.length[read]), j));
  }

  // Match length of a read before `position` with the context before `context_end`.
  i64 match_length(i64 read, i64 position, i64 context_end) const {
    const u32* words = reads_.words + reads_.word_offset[read];
    const i64 clean = context_end - (kTailBases - end_->clean_length);
    i64 limit = position < clean ? position : clean;
    if (reads_.has_n[read]) {
      const i64 read_clean = clean_back(words + base_words(reads_.length[read]), position);
      if (read_clean < limit) limit = read_clean;
    }
    return match_back(words, position, context_.data(), context_end, limit);
  }

  Cursor make_cursor(i64 read, i64 position, i64 start) const {
    Cursor cursor;
    cursor.position = position;
    cursor.start = start;
    cursor.word = reads_.word_offset[read];
    cursor.length = reads_.length[read];
    cursor.refill(reads_.words);
    return cursor;
  }

  // Finds the cursors at the end of the contig and the longest match among those with a vote.
  void find_start() {
    std::memcpy(context_.data(), end_->tail, sizeof(u32) * kTailWords);
    start_.clear();
    start_match_ = 0;
    start_keys_ = 0;
    start_hits_.clear();
    for (int d = 0; d < kStartSamples; ++d) {
      if (end_->clean_length < d + kSampleBases) break;
      const u64 window = window_at(context_.data(), kTailBases - d - kSampleBases);
      start_key_[d] = static_cast<u32>(window) & kSampleMask;
      start_keys_ = d + 1;
    }
    const i64 samples =
        scan_samples(start_key_, start_keys_, [&](i64 number, i64 read, i64 j, int d) {
          start_hits_.push_back(number);
          const i64 position = j * kSampleStep + kSampleBases + d;
          if (position >= reads_.length[read]) return;
          const i64 match = match_length(read, position, kTailBases);
          if (match < d + kSampleBases) return;  // the tail after the sample must agree too
          start_.push_back(make_cursor(read, position, kTailBases - match));
          if (match >= kMinK && (start_.back().votes() & 1) && match > start_match_) {
            start_match_ = static_cast<int>(match);
          }
        });
    if (samples > static_cast<i64>(marks_.size())) marks_.resize(2 * samples, 0);
  }

  void build_table() {
    table_built_ = true;
    table_.clear();
    i32 number = 0;
    for (i64 read = end_->first_read; read < end_->last_read; ++read) {
      const u32* words = reads_.words + reads_.word_offset[read];
      const i64 samples = sample_count(reads_.length[read]);
      for (i64 j = 0; j < samples; ++j, ++number) {
        if (!clean_sample(read, j)) continue;
        const i64 position = j * kSampleStep + kSampleBases;
        const i64 clean = j && clean_sample(read, j - 1) ? position : kSampleBases;
        table_.add({LongKey::before(words, position, clean),
                    static_cast<i32>(read - end_->first_read), static_cast<i32>(position), number,
                    -1});
      }
    }
    table_.link();
  }

  // Sets everything back to the end of the contig.
  void begin_walk() {
    cursors_ = start_;
    context_end_ = kTailBases;
    ++walk_number_;
    undisputed_ = true;
    suspicious_ = doubled_ = false;
    waiting_ = 0;
    shortest_vote_ = kMaxK + kShiftK;
    for (const i64 number : start_hits_) mark(number);
  }

  // Marks a sample as hit in this walk; hit twice, a mer may have been repeated.
  void mark(i64 number) {
    if (marks_[number] == walk_number_) doubled_ = true;
    marks_[number] = walk_number_;
  }

  void append(int base) {
    u32& word = context_[context_end_ / kBasesPerWord];
    const int shift = 2 * (context_end_ % kBasesPerWord);
    word = (word & ~(~0u << shift)) | (static_cast<u32>(base) << shift);
    ++context_end_;
  }

  void append(u64 bases, int n) {
    for (int i = 0; i < n; ++i) append(static_cast<int>(bases >> (2 * i)) & 3);
  }

  i64 walked() const { return context_end_ - kTailBases; }

  // Walks on rung k from where the context ends now.
  Outcome walk_on(int k) {
    k_ = k;
    here_ = {};
    for (std::size_t i = 0; i < cursors_.size(); ++i) survey(i);
    while (walked() < walk_limit_) {
      settle_survey();
      int taken = 1;
      u64 bases;
      if (here_.voters == 0) return kDeadEnd;
      if (here_.disputed()) {
        const int chosen = choose(here_.n, here_.h, static_cast<u32>(end_->depth));
        if (chosen == kChooseFork) return kFork;
        if (chosen == kChooseDeadEnd) return kDeadEnd;
        bases = static_cast<u64>(chosen);
      } else {
        bases = cursors_[here_.reference].bases;
        taken = undisputed_prefix(bases, cursors_[here_.reference].left);
        const i64 room = walk_limit_ - walked();
        if (taken > room) taken = static_cast<int>(room);
      }
      const i64 before = context_end_;
      append(bases, taken);
      arrivals_.clear();
      taken = look_up(before, bases, taken);
      context_end_ = before + taken;
      advance(bases, taken);
      if (repeated(before)) return kRepeat;
    }
    return kLimit;
  }

  // What the cursors say at the end of the context.
  struct Survey {
    u32 n[4] = {0, 0, 0, 0}, h[4] = {0, 0, 0, 0};
    u32 voters = 0;
    std::size_t reference = 0;  // the voter that sees furthest
    int sight = 0;
    i64 waiting = 0;  // longest match with a vote that is too short for this rung
    i64 shortest = kMaxK + kShiftK;

    bool disputed() const {
      return n[0] != voters && n[1] != voters && n[2] != voters && n[3] != voters;
    }
  };

  // Adds cursor `i` to the survey.
  void survey(std::size_t i) {
    Cursor& cursor = cursors_[i];
    if (cursor.left < kRefillBelow && !cursor.ends_in_window()) cursor.refill(reads_.words);
    const u32 vote = static_cast<u32>(cursor.classes) & 3u;
    if (vote == kClassNone || vote == kClassN) return;
    const i64 match = context_end_ - cursor.start;
    if (match < k_) {
      if (match > here_.waiting) here_.waiting = match;
      return;
    }
    const u32 base = static_cast<u32>(cursor.bases) & 3u;
    ++here_.voters;
    ++here_.n[base];
    here_.h[base] += vote == kClassHigh;
    if (match < here_.shortest) here_.shortest = match;
    if (cursor.left > here_.sight) {
      here_.sight = cursor.left;
      here_.reference = i;
    }
  }

  void settle_survey() {
    if (here_.waiting > waiting_) waiting_ = static_cast<int>(here_.waiting);
    if (here_.shortest < shortest_vote_) shortest_vote_ = static_cast<int>(here_.shortest);
  }

  // From which of the next bases on a cursor votes on this rung.
  int active_from(const Cursor& cursor, i64 context_end) const {
    const i64 from = k_ - (context_end - cursor.start);
    return from < 0 ? 0 : from > kWindow ? kWindow : static_cast<int>(from);
  }

  // How many of `bases` get at least one vote each and none against.
  int undisputed_prefix(u64 bases, int taken) {
    u64 covered = 0;
    for (const Cursor& cursor : cursors_) {
      const int from = active_from(cursor, context_end_);
      if (!cursor.ends_in_window() && cursor.left < taken) taken = cursor.left;
      if (from >= taken) continue;
      const int agreed = cursor.agreed(bases);
      if (agreed < from) continue;
      const i64 match = context_end_ + from - cursor.start;
      if (match < shortest_vote_) shortest_vote_ = static_cast<int>(match);
      const u64 votes = cursor.votes() & ~first_bases(from);
      covered |= votes & first_bases(agreed);
      if (agreed < taken && (votes >> (2 * agreed) & 1)) taken = agreed;
    }
    const u64 open = ~covered & kLowBits & first_bases(taken);
    return open ? count_trailing_zeros(open) / 2 : taken;
  }

  // Looks up the samples that end within the bases just appended, makes cursors of new matches, and
  // returns how many bases stand when these have voted. `appended` bases begin at context `before`.
  int look_up(i64 before, u64 bases, int taken) {
    hits_.clear();
    if (!table_built_ && ++scans_ > kScansBeforeTable) build_table();
    if (table_built_) {
      const i64 clean = before - (kTailBases - end_->clean_length);
      for (int t = 0; t < taken; ++t) {
        const u64 key = LongKey::before(context_.data(), before + t + 1, clean + t + 1);
        table_.each(key, [&](const SampleTable::Sample& sample) {
          // all 22 bases equal: a cursor that is known
          const i64 position =
              key == sample.key && !(key & LongKey::kUnknown) ? kKnown : sample.position;
          hits_.push_back({sample.number, end_->first_read + sample.read, position, t});
        });
      }
    } else {
      u32 keys[kWindow];
      for (int t = 0; t < taken; ++t) {
        const i64 first = before + t + 1 - kSampleBases;
        keys[t] = static_cast<u32>(window_at(context_.data(), first)) & kSampleMask;
      }
      scan_samples(keys, taken, [&](i64 number, i64 read, i64 j, int t) {
        hits_.push_back({number, read, j * kSampleStep + kSampleBases, t});
      });
    }
    for (const Hit& hit : hits_) {
      if (hit.position == kKnown || hit.t >= taken || hit.position == reads_.length[hit.read])
        continue;
      const i64 end = before + hit.t + 1;
      const i64 match = match_length(hit.read, hit.position, end);
      if (match >= kKnownMatch) continue;
      const Cursor cursor = make_cursor(hit.read, hit.position, end - match);
      const u64 rest = hit.t + 1 < kWindow ? bases >> (2 * (hit.t + 1)) : 0;
      const int ahead = taken - (hit.t + 1);
      const int agreed = cursor.agreed(rest);
      if (agreed < ahead && agreed < cursor.left && agreed >= active_from(cursor, end) &&
          (cursor.votes() >> (2 * agreed) & 1)) {
        taken = hit.t + 1 + agreed;
      }
      arrivals_.push_back({cursor, hit.t + 1});
    }
    for (const Hit& hit : hits_) {
      if (hit.t < taken) mark(hit.number);
    }
    return taken;
  }

  // Moves all cursors over the `taken` bases accepted; those that disagree are gone.
  void advance(u64 bases, int taken) {
    std::size_t kept = 0;
    const i64 before = context_end_ - taken;
    here_ = {};
    for (std::size_t i = 0; i < cursors_.size(); ++i) {
      if (!advance(cursors_[i], before, bases, taken)) continue;
      if (kept != i) cursors_[kept] = cursors_[i];
      survey(kept++);
    }
    cursors_.resize(kept);
    for (Arrival& arrival : arrivals_) {
      if (arrival.at > taken) continue;  // another arrival cut the bases before it
      const u64 rest = arrival.at < kWindow ? bases >> (2 * arrival.at) : 0;
      if (advance(arrival.cursor, before + arrival.at, rest, taken - arrival.at)) {
        cursors_.push_back(arrival.cursor);
        survey(kept++);
      }
    }
  }

  // Moves one cursor; says whether it goes on. Notes what lower rungs would have made of it.
  bool advance(Cursor& cursor, i64 before, u64 bases, int taken) {
    const int agreed = cursor.agreed(bases);
    const i64 match = before - cursor.start;
    if (match < k_) {
      const int from = active_from(cursor, before);
      const int until = agreed < taken ? agreed + 1 : taken;  // steps at which it was there
      const u64 waited = cursor.votes() & first_bases(from < until ? from : until);
      if (waited) {
        const i64 longest = match + (63 - count_leading_zeros(waited)) / 2;
        if (longest > waiting_) waiting_ = static_cast<int>(longest);
      }
    }
    if (agreed >= taken) {
      cursor.step(taken);
      return cursor.position < cursor.length;
    }
    if (agreed < cursor.left && (cursor.votes() >> (2 * agreed) & 1) && match + agreed >= kMinK) {
      undisputed_ = false;
    }
    return false;
  }

  // Whether the walk from `before` to the end of the context came to a mer it had seen; cuts it
  // there.
  bool repeated(i64 before) {
    if (!doubled_) return false;
    if (!suspicious_) {
      suspicious_ = true;
      collect_seen(before);
    }
    const i64 last = kTailBases + walk_limit_ - 1;  // at the limit nothing is looked at any more
    for (i64 end = before + 1; end <= context_end_ && end <= last; ++end) {
      if (seen_.add(context_.data(), end, k_)) {
        context_end_ = end;
        return true;
      }
    }
    return false;
  }

  void collect_seen(i64 last) {
    seen_.clear();
    for (i64 end = kTailBases; end <= last; ++end) seen_.add(context_.data(), end, k_);
  }

  void keep_if_longer(Outcome outcome, int k, Result* best) {
    if (walked() <= best->length) return;
    *best = {outcome, k, walked()};
    const u32* from = context_.data() + kTailWords;
    std::memcpy(best_.data(), from, sizeof(u32) * base_words(walked()));
  }

  struct Arrival {
    Cursor cursor;
    int at;  // bases of the chunk before it
  };
  struct Hit {
    i64 number, read, position;
    int t;  // the chunk's base with which its sample ends
  };
  static constexpr i64 kKnown = -1;  // position of a hit that belongs to a cursor there is

  const Reads reads_;
  const int start_k_;
  const i64 walk_limit_;

  const End* end_ = nullptr;
  std::vector<u32> context_, best_;
  i64 context_end_ = 0;
  u8 filter_[1 << kFilterBits] = {};
  u32 start_key_[kStartSamples];
  int start_keys_ = 0;
  std::vector<Cursor> start_, cursors_;
  std::vector<Arrival> arrivals_;
  std::vector<Hit> hits_;
  std::vector<i64> start_hits_;  // samples that equal one at the end of the contig
  std::vector<u64> marks_;       // by sample: the walk in which it was last hit
  int start_match_ = 0;          // longest match with a vote at the end of the contig
  SampleTable table_;
  SeenMers seen_;
  bool table_built_ = false;
  int scans_ = 0;
  u64 walk_number_ = 0;

  // of the walk under way
  int k_ = 0;
  Survey here_;
  bool doubled_ = false;     // a sample was hit twice
  bool suspicious_ = false;  // so all mers are being compared
  bool undisputed_ = true;   // no match of kMinK or more voted for another base
  int waiting_ = 0;          // longest match with a vote that was too short for this rung
  int shortest_vote_ = 0;    // shortest match that had a say
};

}  // namespace dlasm
