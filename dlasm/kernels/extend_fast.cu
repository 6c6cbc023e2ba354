// Entry points of the `fast` kernels (extend_fast.cuh), launched one after another on a batch.
#include "count_support.cuh"
#include "extend_fast.cuh"

#ifndef DLASM_TOUCH
#define DLASM_TOUCH 1
#endif

namespace dlasm {

// Asks for memory that the threads of a block are about to read piece by piece, so that they wait
// for it once, all together. What it gives must be used, or nothing is read.
DLASM_DEVICE u32 touch(const void* begin, i64 bytes) {
  constexpr int kSector = 32;  // what the device reads at least
  constexpr int kEach = 8;     // sectors that a thread asks for at a time
  if (!DLASM_TOUCH || bytes > kMostTouched) return 0;
  const u32* words = static_cast<const u32*>(begin);
  u32 seen = 0;
#pragma unroll 1
  for (i64 first = threadIdx.x; first * kSector < bytes; first += kEach * kSmallThreads) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const i64 sector = first + i * kSmallThreads;
      if (sector * kSector < bytes) seen ^= words[sector * (kSector / 4)];
    }
  }
  return seen;
}

// The same for the reads and tails of some ends.
DLASM_DEVICE u32 touch_ends(const Batch& batch, i64 first, i64 last) {
  const i64 read = batch.read_start[first], reads = batch.read_start[last] - read;
  const i64 word = batch.word_offset[read], words = batch.word_offset[read + reads] - word;
  return touch(batch.words + word, 4 * words) ^ touch(batch.length + read, 4 * reads) ^
         touch(batch.word_offset + read, 8 * reads) ^
         touch(batch.tail + kTailWords * first, 4 * kTailWords * (last - first));
}

}  // namespace dlasm

// Settles the ends without a walk and the small ones, a thread an end; a block takes kTile ends and
// sorts them by the pieces of their reads, so that the threads of a warp have alike work. Passes on
// the others.
DLASM_KERNEL __launch_bounds__(dlasm::kSmallThreads)
    extend_small(const __grid_constant__ dlasm::Batch batch) {
  using namespace dlasm;
  __shared__ u16 order[kTile];
  __shared__ u32 count[kSmallPieces + 1];  // from 1 on
  const i64 first = static_cast<i64>(blockIdx.x) * kTile;
  if (first == 0 && threadIdx.x == 0) {
    atomicAdd(batch.counters + kScratchWanted, static_cast<u64>(queue_bytes(batch)));
  }
  if (threadIdx.x <= kSmallPieces) count[threadIdx.x] = 0;
  __syncthreads();
  constexpr int kRounds = kTile / kSmallThreads;
  u32 pieces_of[kRounds], rank_of[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const i64 end = first + round * kSmallThreads + threadIdx.x;
    pieces_of[round] = 0;
    if (end >= batch.ends) continue;
    const Outcome outcome = outcome_without_walk(batch, end);
    if (outcome != kNoOutcome) {
      store_outcome(batch, end, outcome, 0, 0);
      continue;
    }
    const i64 reads = batch.read_start[end + 1] - batch.read_start[end];
    const i64 words = words_of(batch, end);
    if (words > kMaxEndWords) {
      store_outcome(batch, end, kTooLarge, 0, 0);
    } else if (words > kMiddleWords || reads > kMiddleReads) {
      pass_to_block(batch, end, words);
    } else if (words > kSmallWords || reads > kSmallReads) {
      pass_to_warp(batch, end);
    } else {
      pieces_of[round] =
          words > kPieceWords ? static_cast<u32>(words + kPieceWords - 1) / kPieceWords : 1;
      rank_of[round] = atomicAdd(count + pieces_of[round], 1u);
    }
  }
  const i64 last = first + kTile < batch.ends ? first + kTile : batch.ends;
  if (touch_ends(batch, first, last) == kNoKey) atomicAdd(count, 1u);  // count[0] is never read
  __syncthreads();
  u32 total = 0;
#pragma unroll 1
  for (u32 pieces = kSmallPieces; pieces > 0; --pieces) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      if (pieces_of[round] == pieces) {
        order[total + rank_of[round]] = static_cast<u16>(round * kSmallThreads + threadIdx.x);
      }
    }
    total += count[pieces];
  }
  __syncthreads();
#pragma unroll 1
  for (u32 i = threadIdx.x; i < total; i += kSmallThreads) {
    const i64 end = first + order[i];
    SmallPlace place;
    SmallWalker walker(batch, end, place);
    if (!walker.extend()) pass_to_warp(batch, end);
  }
}

// Walks the ends of the middle size and the small ones that were passed on, a warp an end.
DLASM_KERNEL __launch_bounds__(dlasm::kMiddleWarps* dlasm::kLanes)
    extend_middle(const __grid_constant__ dlasm::Batch batch) {
  using namespace dlasm;
  __shared__ MiddlePlace places[kMiddleWarps];
  MiddlePlace& place = places[threadIdx.x / kLanes];
  const u64 ends = batch.counters[kWarpTail];
  for (;;) {
    u64 ticket = 0;
    if (lane_number() == 0) ticket = atomicAdd(batch.counters + kWarpHead, 1ull);
    ticket = shuffle(ticket, 0);
    if (ticket >= ends) return;
    const i64 end = warp_queue(batch)[ticket];
    TeamWalker<1> walker(batch, end, place.state, place.workplace());
    const bool done = walker.extend();
    if (!done && lane_number() == 0) pass_to_block(batch, end, words_of(batch, end));
    __syncwarp();
  }
}

// Walks the large ends, a block an end, largest first.
DLASM_KERNEL __launch_bounds__(dlasm::kLargeWarps* dlasm::kLanes, dlasm::kLargeBlocks)
    extend_large(const __grid_constant__ dlasm::Batch batch) {
  using namespace dlasm;
  __shared__ TeamState state;
  __shared__ u64 shared_ticket;
  __shared__ i64 place_at, place_bytes;
  if (threadIdx.x == 0) place_at = place_bytes = 0;
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) shared_ticket = atomicAdd(batch.counters + kBlockHead, 1ull);
    __syncthreads();
    u64 ticket = shared_ticket;
    int level = kLevels - 1;
    while (level >= 0 && ticket >= batch.counters[kBlockTail + level]) {
      ticket -= batch.counters[kBlockTail + level];
      --level;
    }
    if (level < 0) return;
    const i64 end = block_queue(batch, level)[ticket];
#pragma unroll 1
    for (int all_cursors = 0; all_cursors < 2; ++all_cursors) {
      const LargePlace large(batch, end, all_cursors);
      __syncthreads();
      if (threadIdx.x == 0 && large.bytes() > place_bytes) {
        // the place of the end before serves as long as it is large enough
        place_bytes = large.bytes();
        place_at = static_cast<i64>(
            atomicAdd(batch.counters + kScratchWanted, static_cast<u64>(place_bytes)));
      }
      __syncthreads();
      if (place_at + place_bytes > batch.scratch_bytes) break;  // the host sees it and tries again
      TeamWalker<kLargeWarps> walker(batch, end, state,
                                     large.workplace(batch.scratch + place_at, batch.walk_limit));
      if (walker.extend()) break;
      // never a result that nobody has written
      if (all_cursors && threadIdx.x == 0) store_outcome(batch, end, kTooLarge, 0, 0);
    }
  }
}
