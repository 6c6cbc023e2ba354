// The kernel that counts the support of walks (support.cuh), whichever kernel found them.
//
// Read by NVRTC: no standard header may be included here.
#pragma once

#include "support.cuh"
#include "team.cuh"

namespace dlasm {

// Words that the support of the walks of a batch is counted in: for each base, and for each end.
// `SUPPORT_WORDS` in launch_fast.py.
constexpr i64 kSupportWordsPerBase = 4;
constexpr i64 kSupportWordsPerEnd = 20;

// How lanes change what they count in together.
struct Together {
  static constexpr int kSlots = 2;

  DLASM_DEVICE static u32 claim(u32* at, u32 value) { return atomicCAS(at, 0u, value); }
  DLASM_DEVICE static void add(u32* at, u32 value) { atomicAdd(at, value); }
};

}  // namespace dlasm

// Counts the support of the walks of all ends, a warp an end, a lane a fragment; in output order,
// as `walk_offsets` says. `places` are zeros: kSupportWordsPerBase and kSupportWordsPerEnd words.
DLASM_KERNEL count_support(const __grid_constant__ dlasm::Batch batch,
                           const dlasm::i64* walk_offsets, dlasm::u32* places, dlasm::u8* support) {
  using namespace dlasm;
  const i64 end = (static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x) / kLanes;
  if (end >= batch.ends) return;
  const i32 length = batch.walk_length[end];
  if (length == 0) return;
  const int lane = lane_number();
  const SupportCount<Together> count(
      places + kSupportWordsPerBase * walk_offsets[end] + kSupportWordsPerEnd * end, length);
  const u64 head = batch.walk_head[end];
  const u32* walk = length > kWindow ? batch.walk_area + batch.walk_start[end] : nullptr;
  constexpr int kTail = SupportCount<Together>::kContextTailWords;
  for (i32 i = lane; i < count.context_words(); i += kLanes) {
    count.context[i] = i < kTail ? batch.tail[kTailWords * (end + 1) - kTail + i]
                       : walk    ? walk[i - kTail]
                                 : static_cast<u32>(head >> (32 * (i - kTail)));
  }
  __syncwarp();
  for (i32 at = count.kFirstSampleEnd + lane; at <= count.context_end(); at += kLanes) {
    count.add_sample(at);
  }
  __syncwarp();
  const i64 first = batch.read_start[end], last = batch.read_start[end + 1];
  for (i64 r = first + lane; r < last; r += kLanes) {
    if (r > first && batch.fragment[r] == batch.fragment[r - 1]) continue;
    count.add_fragment(batch.words, batch.word_offset, batch.length, batch.has_n, r,
                       count.fragment_end(batch.fragment, r, last));
  }
  __syncwarp();
  u8* out = support + walk_offsets[end];
  u32 before = 0;
  for (i32 begin = 0; begin < length; begin += kLanes) {
    const i32 i = begin + lane;
    const u32 fragments = before + warp_running_sum(i < length ? count.steps[i] : 0u);
    if (i < length) {
      out[end % 2 ? i : length - 1 - i] =
          static_cast<u8>(fragments < kMostSupport ? fragments : kMostSupport);
    }
    before = shuffle(fragments, kLanes - 1);
  }
}
