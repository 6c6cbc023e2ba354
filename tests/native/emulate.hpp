// The part of CUDA that the kernels use, on the CPU, so that they can be tested without a GPU.
//
// Blocks run one after another; the threads of a block are fibers that give way to each other only
// where they wait (votes, shuffles, syncs), in an order drawn at random, so a missing sync shows as
// a wrong result sooner or later. Include this before the kernels.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#define __CUDACC__
#define __CUDA_ARCH__ 900
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static  // blocks run one after another
#define __launch_bounds__(...)

namespace emulated {

struct Dim {
  unsigned int x;
};

inline constexpr int kLanes = 32;

// What the lanes of a warp, or the threads of a block, meet at.
struct Barrier {
  int members = 0, arrived = 0;
  unsigned generation = 0;
  unsigned long long value[2][kLanes];  // by parity of the generation
};

struct Fiber {
  ucontext_t start;
  jmp_buf here;
  bool begun = false, done = false;
  std::unique_ptr<char[]> stack;
};

struct Machine {
  static constexpr std::size_t kStack = 1 << 16;
  std::vector<Fiber> fibers;
  std::vector<Barrier> warps;
  Barrier block;
  std::function<void()> body;
  ucontext_t start;
  jmp_buf scheduler;
  int current = 0;
  std::mt19937 random{1};

  void yield() {
    if (_setjmp(fibers[current].here) == 0) _longjmp(scheduler, 1);
  }

  void wait(Barrier& barrier) {
    const unsigned generation = barrier.generation;
    if (++barrier.arrived == barrier.members) {
      barrier.arrived = 0;
      ++barrier.generation;
      return;
    }
    while (barrier.generation == generation) yield();
  }

  Barrier& warp() { return warps[current / kLanes]; }

  static void enter();
  void run_block(int threads);
};

inline Machine machine;

}  // namespace emulated

inline emulated::Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

inline void Machine::enter() {
  machine.body();
  machine.fibers[machine.current].done = true;
  _longjmp(machine.scheduler, 1);
}

inline void Machine::run_block(int threads) {
  if (static_cast<int>(fibers.size()) < threads) fibers.resize(threads);
  warps.assign((threads + kLanes - 1) / kLanes, Barrier());
  block = Barrier();
  block.members = threads;
  for (int t = 0; t < threads; ++t) {
    ++warps[t / kLanes].members;
    fibers[t].begun = fibers[t].done = false;
  }
  std::vector<int> alive(threads);
  for (int t = 0; t < threads; ++t) alive[t] = t;
  long idle = 0;
  while (!alive.empty()) {
    // a round in another order each time
    const std::size_t turn = random() % alive.size();
    const bool back = random() & 1;
    std::size_t left = 0;
    const unsigned before = block.generation + static_cast<unsigned>(block.arrived);
    for (std::size_t i = 0; i < alive.size(); ++i) {
      const std::size_t n = alive.size(), at = (turn + (back ? n - i : i)) % n;
      current = alive[at];
      threadIdx.x = static_cast<unsigned>(current);
      Fiber& fiber = fibers[current];
      if (_setjmp(scheduler) == 0) {
        if (fiber.begun) _longjmp(fiber.here, 1);
        fiber.begun = true;
        if (!fiber.stack) fiber.stack.reset(new char[kStack]);
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack.get();
        fiber.start.uc_stack.ss_size = kStack;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, &Machine::enter, 0);
        setcontext(&fiber.start);
      }
    }
    for (const int t : alive) {
      if (fibers[t].done) {
        --block.members;
        --warps[t / kLanes].members;
      } else {
        alive[left++] = t;
      }
    }
    const bool ended = left != alive.size();
    alive.resize(left);
    idle =
        ended || before != block.generation + static_cast<unsigned>(block.arrived) ? 0 : idle + 1;
    if (idle > 10'000'000) {
      std::fprintf(stderr, "emulated block does not go on\n");
      std::abort();
    }
  }
}

// Runs kernel(arguments...) on `grid` blocks of `threads` threads.
template <class Kernel, class... Arguments>
void launch(Kernel kernel, int grid, int threads, const Arguments&... arguments) {
  gridDim.x = static_cast<unsigned>(grid);
  blockDim.x = static_cast<unsigned>(threads);
  machine.body = [&] { kernel(arguments...); };
  for (int b = 0; b < grid; ++b) {
    blockIdx.x = static_cast<unsigned>(b);
    machine.run_block(threads);
  }
}

template <class T>
unsigned long long as_bits(T value) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  return static_cast<unsigned long long>(value);
}

// All lanes of the warp give a value; returns those of this exchange.
inline const unsigned long long* exchange(unsigned long long value) {
  Barrier& warp = machine.warp();
  if (warp.members != kLanes) {
    std::fprintf(stderr, "a lane of the warp has gone\n");
    std::abort();
  }
  unsigned long long* values = warp.value[warp.generation & 1];
  values[machine.current % kLanes] = value;
  machine.wait(warp);
  return values;
}

}  // namespace emulated

inline void __syncthreads() { emulated::machine.wait(emulated::machine.block); }
inline void __syncwarp() { emulated::machine.wait(emulated::machine.warp()); }

template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return static_cast<T>(emulated::exchange(emulated::as_bits(value))[lane & 31]);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const int lane = emulated::machine.current % 32;
  return static_cast<T>(emulated::exchange(emulated::as_bits(value))[lane ^ mask]);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned by) {
  const unsigned lane = static_cast<unsigned>(emulated::machine.current % 32);
  return static_cast<T>(
      emulated::exchange(emulated::as_bits(value))[lane >= by ? lane - by : lane]);
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  const unsigned long long* values = emulated::exchange(predicate);
  unsigned lanes = 0;
  for (int i = 0; i < 32; ++i) lanes |= static_cast<unsigned>(values[i]) << i;
  return lanes;
}
inline unsigned __match_any_sync(unsigned, unsigned long long value) {
  const unsigned long long* values = emulated::exchange(value);
  unsigned lanes = 0;
  for (int i = 0; i < 32; ++i) lanes |= static_cast<unsigned>(values[i] == value) << i;
  return lanes;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  const unsigned long long* values = emulated::exchange(value);
  unsigned most = 0;
  for (int i = 0; i < 32; ++i) most = values[i] > most ? static_cast<unsigned>(values[i]) : most;
  return most;
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) {
  return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  const unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  return static_cast<unsigned>(both >> (shift & 31));
}

template <class T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at = static_cast<T>(old + value);
  return old;
}
template <class T>
T atomicExch(T* at, T value) {
  const T old = *at;
  *at = value;
  return old;
}
template <class T>
T atomicMax(T* at, T value) {
  const T old = *at;
  if (value > old) *at = value;
  return old;
}
template <class T>
T atomicMin(T* at, T value) {
  const T old = *at;
  if (value < old) *at = value;
  return old;
}
template <class T>
T atomicOr(T* at, T value) {
  const T old = *at;
  *at = old | value;
  return old;
}
template <class T>
T atomicCAS(T* at, T compare, T value) {
  const T old = *at;
  if (old == compare) *at = value;
  return old;
}
