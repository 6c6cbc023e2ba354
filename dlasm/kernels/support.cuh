// Support of appended bases: how many fragments (a read and its mate are one) among the candidate
// reads of an end hold exactly the 21 bases that end at each, which reach back into the contig.
//
// Like the walk it needs no table of all k-mers: the samples of the reads (cursors.cuh) are looked
// up among those of the end and its walk, and each match is followed to both of its ends, so that
// all 21-mers in it are known at once. Qualities do not matter; N matches nothing.
//
// Read by the C++ compiler and by NVRTC: no standard header may be included here.
#pragma once

#include "cursors.cuh"

namespace dlasm {

constexpr int kSupportBases = 21;
constexpr int kMostSupport = 255;         // as it is stored; more count as this
constexpr i64 kMaxWalkLimit = 1'000'000;  // MAX_WALK_LIMIT in params.py
static_assert(kSupportBases == kMinK, "a match of so many bases holds a sample");

// Bases of a walk before the first that fewer than `least` fragments support.
template <class SupportOf>
DLASM_HD i64 supported_bases(i64 length, int least, SupportOf support_of) {
  i64 i = 0;
  while (i < length && support_of(i) >= least) ++i;
  return i;
}

// What outcome a walk of `length` bases has when `kept` are left of it.
DLASM_HD u8 outcome_of_cut(u8 outcome, i64 length, i64 kept) {
  if (kept == length) return outcome;
  return kept ? kSupport : kNoWalk;
}

// The stretches of a walk that a fragment holds: disjoint, ascending. There is room for a few;
// those from `until` on are for another round.
struct Stretches {
  static constexpr int kMost = 4;
  i32 first[kMost], last[kMost];
  int count = 0;
  i32 from, until;

  DLASM_HD Stretches(i32 begin, i32 end) : from(begin), until(end) {}

  DLASM_HD void add(i32 begin, i32 end) {
    if (begin < from) begin = from;
    if (end > until) end = until;
    if (begin >= end) return;
    int kept = 0;
    for (int i = 0; i < count; ++i) {
      if (last[i] < begin || first[i] > end) {
        first[kept] = first[i];
        last[kept++] = last[i];
      } else {
        if (first[i] < begin) begin = first[i];
        if (last[i] > end) end = last[i];
      }
    }
    count = kept;
    if (count == kMost) {
      if (begin > first[kMost - 1]) {
        until = begin;
        return;
      }
      until = first[kMost - 1];
      --count;
    }
    int at = count++;
    for (; at > 0 && first[at - 1] > begin; --at) {
      first[at] = first[at - 1];
      last[at] = last[at - 1];
    }
    first[at] = begin;
    last[at] = end;
  }
};

// How one thread changes what it counts in.
struct Alone {
  static constexpr int kSlots = 16;  // for each sample of a context: most lookups find a free one

  DLASM_HD static u32 claim(u32* at, u32 value) {
    const u32 found = *at;
    if (!found) *at = value;
    return found;
  }
  DLASM_HD static void add(u32* at, u32 value) { *at += value; }
};

// What the support of one walk is counted in; `words` are zero at first. `Change` is Alone, or the
// same for threads that share the work.
template <class Change>
struct SupportCount {
  // The context is the last bases of the contig, then the walk.
  static constexpr int kContextTail = kWindow;
  static constexpr int kContextTailWords = kContextTail / kBasesPerWord;
  // Where the first base begins that a 21-mer reaches.
  static constexpr i32 kContextStart = kContextTail - (kSupportBases - 1);
  static constexpr i32 kFirstSampleEnd = kContextStart + kSampleBases;
  static constexpr int kPlaceBits = 21;
  static constexpr u32 kPlaceMask = (1u << kPlaceBits) - 1;
  static_assert(kContextTail + kMaxWalkLimit <= kPlaceMask, "places fit");

  i32 length;    // of the walk
  i32 slots;     // of the table
  u32* context;  // readable up to two words past its end
  u32* table;    // samples of the context: where they end, under a tag of their bases
  u32* steps;    // support of each base less that of the base before

  DLASM_HD SupportCount(u32* words, i32 walk_length)
      : length(walk_length),
        slots(slots_for(walk_length)),
        context(words),
        table(words + context_words() + 2),
        steps(table + slots) {}

  DLASM_HD static i32 slots_for(i32 walk_length) {
    return Change::kSlots * (walk_length + kContextTail - kFirstSampleEnd + 1);
  }

  // Words that a walk takes.
  DLASM_HD static i64 words_for(i32 walk_length) {
    return kContextTailWords + base_words(walk_length) + 2 + slots_for(walk_length) + walk_length +
           1;
  }

  DLASM_HD i64 context_words() const { return kContextTailWords + base_words(length); }
  DLASM_HD i32 context_end() const { return kContextTail + length; }

  DLASM_HD static u32 hash(u32 sample) { return sample * 0x9E3779B1u; }
  DLASM_HD static u32 tag(u32 hashed) { return hashed << kPlaceBits; }
  DLASM_HD i32 slot(u32 hashed) const {
    return static_cast<i32>((static_cast<u64>(hashed) * static_cast<u32>(slots)) >> 32);
  }
  DLASM_HD i32 slot_after(i32 slot) const { return slot + 1 < slots ? slot + 1 : 0; }

  // Makes the sample that ends at context position `end` known.
  DLASM_HD void add_sample(i32 end) const {
    const u64 window = window_at(context, static_cast<u32>(end - kSampleBases));
    const u32 hashed = hash(static_cast<u32>(window) & kSampleMask);
    i32 at = slot(hashed);
    while (Change::claim(table + at, tag(hashed) | static_cast<u32>(end))) at = slot_after(at);
  }

  // Adds the stretches of the walk that a read holds, given its words.
  DLASM_HD void add_read(const u32* words, i64 read_length, bool has_n, Stretches* held) const {
    const u32* classes = has_n ? words + base_words(read_length) : nullptr;
    const i64 samples = sample_count(read_length);
    for (i64 j = 0; j < samples; ++j) {
      const u32 hashed = hash(sample_at(words, j));
      i32 at = slot(hashed);
      for (u32 entry; (entry = table[at]) != 0; at = slot_after(at)) {
        if ((entry & ~kPlaceMask) != tag(hashed)) continue;
        const i32 end = static_cast<i32>(entry & kPlaceMask);
        const i64 position = j * kSampleStep + kSampleBases;
        i64 limit = end - kContextStart;
        if (position < limit) limit = position;
        if (classes) {
          const i64 clean = clean_back(classes, position);
          if (clean < limit) limit = clean;
        }
        const i64 back = match_back(words, position, context, end, limit);
        // the sample before it gave all of a longer match
        if (back < kSampleBases || back >= kKnownMatch) continue;
        limit = context_end() - end;
        if (read_length - position < limit) limit = read_length - position;
        const i64 on = match_on(words, classes, position, context, end, limit);
        held->add(static_cast<i32>(end - back + kSupportBases - 1 - kContextTail),
                  static_cast<i32>(end + on - kContextTail));
      }
    }
  }

  // Counts the reads [first, last) of one fragment.
  DLASM_HD void add_fragment(const u32* words, const i64* word_offset, const i32* read_length,
                             const u8* has_n, i64 first, i64 last) const {
    for (i32 from = 0; from < length;) {
      Stretches held(from, length);
      for (i64 r = first; r < last; ++r) {
        add_read(words + word_offset[r], read_length[r], has_n[r] != 0, &held);
      }
      for (int i = 0; i < held.count; ++i) {
        Change::add(steps + held.first[i], 1u);
        Change::add(steps + held.last[i], ~0u);
      }
      from = held.until;
    }
  }

  // The end of the reads from `first` on that are of one fragment.
  DLASM_HD static i64 fragment_end(const i64* fragment, i64 first, i64 last) {
    i64 r = first + 1;
    while (r < last && fragment[r] == fragment[first]) ++r;
    return r;
  }

 private:
  // Bases from `position` of a read on that equal those of the context from `end` on.
  DLASM_HD static i64 match_on(const u32* words, const u32* classes, i64 position,
                               const u32* context, i64 end, i64 limit) {
    for (i64 done = 0; done < limit; done += kWindow) {
      u64 x = differences(window_at(words, position + done), window_at(context, end + done));
      if (classes) x |= n_bits(window_at(classes, position + done));
      if (!x) continue;
      const i64 found = done + count_trailing_zeros(x) / 2;
      return found < limit ? found : limit;
    }
    return limit;
  }
};

}  // namespace dlasm
