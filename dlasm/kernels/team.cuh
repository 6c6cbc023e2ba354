// Threads that work on one contig end together: a warp, or all warps of a block.
//
// Read by NVRTC: no standard header may be included here.
#pragma once

#include "batch.cuh"

namespace dlasm {

constexpr int kLanes = 32;
constexpr u32 kAllLanes = 0xFFFFFFFFu;

DLASM_DEVICE int lane_number() { return static_cast<int>(threadIdx.x) % kLanes; }

DLASM_DEVICE u64 shuffle(u64 value, int lane) { return __shfl_sync(kAllLanes, value, lane); }
DLASM_DEVICE u32 shuffle(u32 value, int lane) { return __shfl_sync(kAllLanes, value, lane); }
DLASM_DEVICE i32 shuffle(i32 value, int lane) { return __shfl_sync(kAllLanes, value, lane); }

DLASM_DEVICE u32 warp_max(u32 value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAllLanes, value);
#else
  for (int step = kLanes / 2; step; step /= 2) {
    const u32 other = __shfl_xor_sync(kAllLanes, value, step);
    if (other > value) value = other;
  }
  return value;
#endif
}

// Sum over this lane and those before it.
DLASM_DEVICE u32 warp_running_sum(u32 value) {
  for (int step = 1; step < kLanes; step *= 2) {
    const u32 other = __shfl_up_sync(kAllLanes, value, step);
    if (lane_number() >= step) value += other;
  }
  return value;
}

// How many lanes have a running sum of at most `i`, so that lane is the one to which number `i`
// belongs; at most kLanes - 1.
DLASM_DEVICE int lanes_before(u32 running_sum, u32 i) {
  int lanes = 0;
#pragma unroll
  for (int half = kLanes / 2; half; half /= 2) {
    if (shuffle(running_sum, lanes + half - 1) <= i) lanes += half;
  }
  return lanes;
}

// Bit b of lane i becomes bit i of lane b.
DLASM_DEVICE u32 warp_transpose(u32 bits) {
  u32 mask = 0x0000FFFFu;
  for (int step = kLanes / 2; step; step /= 2) {
    const u32 other = __shfl_xor_sync(kAllLanes, bits, step);
    bits = lane_number() & step ? (bits & ~mask) | ((other >> step) & mask)
                                : (bits & mask) | ((other & mask) << step);
    mask ^= mask << (step / 2);
  }
  return bits;
}

// Adds one to *counter for each lane with `wanted`; returns this lane's number among them.
DLASM_DEVICE u32 warp_append(u32* counter, bool wanted) {
  const u32 lanes = __ballot_sync(kAllLanes, wanted);
  if (lanes == 0) return 0;
  u32 first = 0;
  if (lane_number() == 0) first = atomicAdd(counter, static_cast<u32>(__popc(lanes)));
  first = shuffle(first, 0);
  return first + static_cast<u32>(__popc(lanes & ((1u << lane_number()) - 1)));
}

template <int kWarps>
struct Team {
  static constexpr int kThreads = kWarps * kLanes;

  DLASM_DEVICE static int rank() { return static_cast<int>(threadIdx.x) % kThreads; }
  DLASM_DEVICE static int warp() { return rank() / kLanes; }

  DLASM_DEVICE static void sync() {
    if (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }
};

}  // namespace dlasm
