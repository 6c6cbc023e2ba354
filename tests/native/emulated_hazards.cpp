// Small kernels with and without hazards, to test that the emulation finds them.
#include <cstring>

#include "emulate.hpp"

template <bool kSync>
void reverse_block(int* out) {
  __shared__ int value[64];
  const unsigned i = threadIdx.x;
  value[i] = static_cast<int>(i);
  if (kSync) __syncthreads();
  out[i] = value[63 - i];
}

template <bool kSync>
void read_then_write(int* out) {
  __shared__ int value;
  if (threadIdx.x == 0) value = 1;
  __syncthreads();
  out[threadIdx.x] = value;
  if (kSync) __syncthreads();
  if (threadIdx.x == 0) value = 2;
}

template <bool kSync>
void reverse_warp(int* out) {
  const unsigned lane = threadIdx.x % 32, begin = threadIdx.x - lane;
  out[begin + lane] = __shfl_sync(~0u, static_cast<int>(lane), 31);  // orders no memory
  if (kSync) __syncwarp();
  const int other = out[begin + 31 - lane];
  if (kSync) __syncwarp();
  out[begin + lane] = other;
}

template <bool kSync>
void add_up(int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, 1);
  if (kSync) __syncthreads();
  if (threadIdx.x == 0) *out = sum;
}

// Each block writes the same place in global memory, or its own.
template <bool kOwn>
void write_blocks(int* out) {
  if (threadIdx.x == 0) out[kOwn ? blockIdx.x : 0] = 1;
}

// Neighbouring bytes are different places.
void write_bytes(int* out) { reinterpret_cast<unsigned char*>(out)[threadIdx.x] = 1; }

extern "C" int launch(const char* name, int sync, int* out) {
  const struct {
    const char* name;
    void (*kernel[2])(int*);
  } kernels[] = {
      {"reverse_block", {reverse_block<false>, reverse_block<true>}},
      {"read_then_write", {read_then_write<false>, read_then_write<true>}},
      {"reverse_warp", {reverse_warp<false>, reverse_warp<true>}},
      {"add_up", {add_up<false>, add_up<true>}},
      {"write_blocks", {write_blocks<false>, write_blocks<true>}},
      {"write_bytes", {write_bytes, write_bytes}},
  };
  for (const auto& each : kernels) {
    if (std::strcmp(name, each.name)) continue;
    emulated::launch(each.kernel[sync], std::strcmp(name, "write_blocks") ? 1 : 2, 64, out);
    return 0;
  }
  return 1;
}
