// What the host hands to every kernel, and the text of the walks.
//
// Read by NVRTC: no standard header may be included here.
#pragma once

#include "rules.cuh"

#define DLASM_KERNEL extern "C" __global__ void
#define DLASM_DEVICE __device__ __forceinline__

namespace dlasm {

using i16 = short;
using u16 = unsigned short;

// Outcome of an end that is too large for 32-bit numbers within it. The host keeps such ends to
// itself, so that none is expected.
constexpr u8 kTooLarge = 255;

// Numbers that the kernels add to; all zero before the first one.
enum Counter : int {
  kAreaWanted = 0,     // words of walk_area wanted so far, more than there are when it is too small
  kScratchWanted = 1,  // bytes of scratch wanted so far, likewise
  kWarpTail = 2,       // ends put into the queue of warps, and taken from it
  kWarpHead = 3,
  kBlockHead = 4,  // ends taken from the queues of blocks
  kBlockTail = 5,  // ends put into each of them
  kBatchCounters = 16
};

// Device arrays of one batch of contig ends; layout known to launch_fast.py, 8 bytes a field.
struct Batch {
  // group "packed" of arrays.py; pointers may be shifted so that numbers past a part's start fit
  const i32* depth;
  const u32* tail;
  const i32* tail_length;
  const i32* clean_length;
  const i64* read_start;
  const i32* length;
  const i64* fragment;
  const u8* has_n;
  const i64* word_offset;
  const u32* words;
  // results, a value per end
  i32* walk_length;
  i16* walk_k;
  u8* outcome;
  u64* walk_head;   // first 32 bases of a walk
  i64* walk_start;  // of a longer one in walk_area
  u32* walk_area;
  // memory to work in
  u8* scratch;
  u64* counters;
  // values
  i64 ends;
  i64 start_k;
  i64 walk_limit;
  i64 walk_area_words;
  i64 scratch_bytes;
};

// What an end has come to when there is nothing to walk with.
DLASM_DEVICE Outcome outcome_without_walk(const Batch& batch, i64 end) {
  if (batch.read_start[end] == batch.read_start[end + 1]) return kNoReads;
  return batch.tail_length[end] < batch.start_k ? kShortContig : kNoOutcome;
}

DLASM_DEVICE void store_outcome(const Batch& batch, i64 end, int outcome, int k, int length) {
  batch.walk_length[end] = length;
  batch.walk_k[end] = static_cast<i16>(k);
  batch.outcome[end] = static_cast<u8>(outcome);
}

// Words of walk_area for a walk; null, and the host is told, where there are too few.
DLASM_DEVICE u32* take_area(const Batch& batch, i64 end, int length) {
  const i64 words = base_words(length);
  const i64 at = static_cast<i64>(atomicAdd(batch.counters + kAreaWanted, static_cast<u64>(words)));
  if (at + words > batch.walk_area_words) return nullptr;
  batch.walk_start[end] = at;
  return batch.walk_area + at;
}

}  // namespace dlasm

// Writes the walks of all ends, a thread an end, in output order: those of left ends (even) reverse
// complemented. `walk_offsets` says where each begins in `walk_values`.
DLASM_KERNEL spell_walks(const __grid_constant__ dlasm::Batch batch, const dlasm::i64* walk_offsets,
                         dlasm::u8* walk_values) {
  using namespace dlasm;
  const i64 end = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (end >= batch.ends) return;
  const i32 length = batch.walk_length[end];
  if (length == 0) return;
  const bool right = end % 2;
  const u64 head = batch.walk_head[end];
  const u32* words = length > kWindow ? batch.walk_area + batch.walk_start[end] : nullptr;
  u8* text = walk_values + walk_offsets[end];
#pragma unroll 1
  for (i32 i = 0; i < length; ++i) {
    const i32 at = right ? i : length - 1 - i;
    const u32 base = words ? base_at(words, at) : static_cast<u32>(head >> (2 * at)) & 3u;
    text[i] = "ACGT"[right ? base : 3 - base];
  }
}
