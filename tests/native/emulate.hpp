// The part of CUDA that the kernels use, on the CPU, so that they can be tested without a GPU.
//
// Blocks run one after another; the threads of a block are fibers that give way to each other only
// where they wait (votes, shuffles, syncs), in an order drawn at random, so a missing sync shows as
// a wrong result sooner or later.
//
// Compiled with -fsanitize=thread but linked without it, the accesses to memory come to the hooks
// at the end, and those of two threads with no sync between them, one of them a write, are hazards
// whatever the order was. As on a device, votes and shuffles do not order memory.
//
// Include this before the kernels.
#pragma once

#include <dlfcn.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#define __CUDACC__
#define __CUDA_ARCH__ 900
#define __host__
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static __attribute__((section("emulated_shared")))  // one block at a time
#define __launch_bounds__(...)

// Where the shared memory of this library begins and ends; null if it has none.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_emulated_shared[];
extern "C" __attribute__((weak, visibility("hidden"))) char __stop_emulated_shared[];

#define EMULATED_UNWATCHED __attribute__((no_sanitize("thread")))

namespace emulated {

struct Dim {
  unsigned int x;
};

inline constexpr int kLanes = 32;

// What is known of accesses to memory, four bytes at a time.
class Shadow {
 public:
  enum Kind { kRead, kWrite, kAtomic, kKinds };

  struct Access {
    const void* code = nullptr;
    int block = -1, thread = -1;
    unsigned block_syncs = 0, warp_syncs = 0;  // that the thread has come through
    unsigned bytes = 0;                        // of the four

    EMULATED_UNWATCHED int warp() const { return thread / kLanes; }
  };

  // Takes note of an access to `size` bytes.
  EMULATED_UNWATCHED void add(Kind kind, const void* address, std::size_t size, Access now) {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const bool shared = at >= reinterpret_cast<std::uintptr_t>(__start_emulated_shared) &&
                        at < reinterpret_cast<std::uintptr_t>(__stop_emulated_shared);
    for (std::uintptr_t word = at / 4; word <= (at + size - 1) / 4; ++word) {
      now.bytes = 0;
      for (unsigned i = 0; i < 4; ++i) {
        now.bytes |= 4 * word + i >= at && 4 * word + i < at + size ? 1u << i : 0;
      }
      Word& seen = words_[word];
      if (shared && seen.block != now.block) seen = Word();
      seen.block = now.block;
      for (int other = 0; other < kKinds; ++other) {
        if (other == kind && kind != kWrite) continue;
        for (const auto& warp : seen.recent[other]) {
          for (const Access& before : warp) {
            if (hazard(before, now)) hazards_.insert({{other, before.code}, {kind, now.code}});
          }
        }
      }
      remember(seen.recent[kind], now);
    }
  }

  void clear() { words_.clear(); }

  // A line for each pair of places in the code: what each does, and where it is in the library.
  std::string take_hazards() {
    std::string text;
    for (const auto& [before, now] : hazards_) {
      text += place(before) + " then " + place(now) + "\n";
    }
    hazards_.clear();
    return text;
  }

 private:
  // Of the last two warps the last two threads: when others matter too, one of these does.
  using Recent = Access[2][2];
  using Place = std::pair<int, const void*>;

  struct Word {
    int block = -1;
    Recent recent[kKinds];
  };

  EMULATED_UNWATCHED static bool hazard(const Access& before, const Access& now) {
    if (before.thread < 0 || !(before.bytes & now.bytes)) return false;
    if (before.block != now.block) return true;
    if (before.thread == now.thread || before.block_syncs != now.block_syncs) return false;
    return before.warp() != now.warp() || before.warp_syncs == now.warp_syncs;
  }

  EMULATED_UNWATCHED static void remember(Recent& recent, const Access& now) {
    const auto same_warp = [&](const Access* warp) EMULATED_UNWATCHED {
      return warp->thread >= 0 && warp->block == now.block && warp->warp() == now.warp();
    };
    if (!same_warp(recent[0])) {
      std::swap(recent[0], recent[1]);
      if (!same_warp(recent[0])) recent[0][0] = recent[0][1] = Access();
    }
    Access* warp = recent[0];
    if (warp[0].thread != now.thread) std::swap(warp[0], warp[1]);
    warp[0] = now;
  }

  static std::string place(const Place& place) {
    static const char* const names[kKinds] = {"read", "write", "atomic"};
    Dl_info library{};
    dladdr(place.second, &library);
    char text[64];
    // of the call, not what follows it
    std::snprintf(text, sizeof text, "%s 0x%zx", names[place.first],
                  static_cast<std::size_t>(static_cast<const char*>(place.second) - 1 -
                                           static_cast<const char*>(library.dli_fbase)));
    return text;
  }

  std::unordered_map<std::uintptr_t, Word> words_;
  std::set<std::pair<Place, Place>> hazards_;
};

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
  unsigned block_syncs = 0, warp_syncs = 0;
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
  Shadow shadow;
  std::string hazards;     // what was last asked for
  bool in_kernel = false;  // else accesses are the emulation's own

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

  EMULATED_UNWATCHED void sync_block() {
    in_kernel = false;
    wait(block);
    ++fibers[current].block_syncs;
    in_kernel = true;
  }

  EMULATED_UNWATCHED void sync_warp() {
    in_kernel = false;
    wait(warp());
    ++fibers[current].warp_syncs;
    in_kernel = true;
  }

  Barrier& warp() { return warps[current / kLanes]; }

  void accessed(Shadow::Kind kind, const void* address, std::size_t size, const void* code);

  static void enter();
  void run_block(int threads);
};

inline Machine machine;

}  // namespace emulated

inline emulated::Dim threadIdx, blockIdx, blockDim, gridDim;

namespace emulated {

// Takes note of what a thread of a kernel does with memory that is not its own.
EMULATED_UNWATCHED inline void Machine::accessed(Shadow::Kind kind, const void* address,
                                                 std::size_t size, const void* code) {
  if (!in_kernel || size == 0) return;
  in_kernel = false;
  const Fiber& fiber = fibers[current];
  const char* at = static_cast<const char*>(address);
  if (at < fiber.stack.get() || at >= fiber.stack.get() + kStack) {
    shadow.add(
        kind, address, size,
        {code, static_cast<int>(blockIdx.x), current, fiber.block_syncs, fiber.warp_syncs, 0});
  }
  in_kernel = true;
}

EMULATED_UNWATCHED inline void Machine::enter() {
  machine.in_kernel = true;
  machine.body();
  machine.in_kernel = false;
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
    fibers[t].block_syncs = fibers[t].warp_syncs = 0;
  }
  if (__start_emulated_shared) {
    std::memset(__start_emulated_shared, 0xA5,
                static_cast<std::size_t>(__stop_emulated_shared - __start_emulated_shared));
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
  machine.shadow.clear();
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
EMULATED_UNWATCHED inline const unsigned long long* exchange(unsigned long long value) {
  machine.in_kernel = false;
  Barrier& warp = machine.warp();
  if (warp.members != kLanes) {
    std::fprintf(stderr, "a lane of the warp has gone\n");
    std::abort();
  }
  unsigned long long* values = warp.value[warp.generation & 1];
  values[machine.current % kLanes] = value;
  machine.wait(warp);
  machine.in_kernel = true;
  return values;
}

// What an atomic function does: *at becomes change(*at); returns what it was.
template <class T, class Change>
EMULATED_UNWATCHED __attribute__((noinline)) T atomically(T* at, Change change) {
  machine.accessed(Shadow::kAtomic, at, sizeof(T), __builtin_return_address(0));
  machine.in_kernel = false;
  const T old = *at;
  *at = change(old);
  machine.in_kernel = true;
  return old;
}

}  // namespace emulated

inline void __syncthreads() { emulated::machine.sync_block(); }
inline void __syncwarp() { emulated::machine.sync_warp(); }

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
  return emulated::atomically(at, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicExch(T* at, T value) {
  return emulated::atomically(at, [=](T) { return value; });
}
template <class T>
T atomicMax(T* at, T value) {
  return emulated::atomically(at, [=](T old) { return value > old ? value : old; });
}
template <class T>
T atomicMin(T* at, T value) {
  return emulated::atomically(at, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomicOr(T* at, T value) {
  return emulated::atomically(at, [=](T old) { return old | value; });
}
template <class T>
T atomicCAS(T* at, T compare, T value) {
  return emulated::atomically(at, [=](T old) { return old == compare ? value : old; });
}

// Lines on the hazards since the last call; see Shadow::take_hazards.
extern "C" inline __attribute__((used)) const char* take_hazards() {
  emulated::machine.hazards = emulated::machine.shadow.take_hazards();
  return emulated::machine.hazards.c_str();
}

// What -fsanitize=thread calls before accesses to memory.
#define EMULATED_HOOK extern "C" EMULATED_UNWATCHED __attribute__((visibility("hidden"))) void
#define EMULATED_ACCESS(kind, address, size) \
  emulated::machine.accessed(emulated::Shadow::kind, address, size, __builtin_return_address(0))
#define EMULATED_HOOKS(size)                                                                \
  EMULATED_HOOK __tsan_read##size(void* at) { EMULATED_ACCESS(kRead, at, size); }           \
  EMULATED_HOOK __tsan_write##size(void* at) { EMULATED_ACCESS(kWrite, at, size); }         \
  EMULATED_HOOK __tsan_unaligned_read##size(void* at) { EMULATED_ACCESS(kRead, at, size); } \
  EMULATED_HOOK __tsan_unaligned_write##size(void* at) { EMULATED_ACCESS(kWrite, at, size); }
EMULATED_HOOKS(1)
EMULATED_HOOKS(2)
EMULATED_HOOKS(4)
EMULATED_HOOKS(8)
EMULATED_HOOKS(16)
EMULATED_HOOK __tsan_read_range(void* at, unsigned long size) { EMULATED_ACCESS(kRead, at, size); }
EMULATED_HOOK __tsan_write_range(void* at, unsigned long size) {
  EMULATED_ACCESS(kWrite, at, size);
}
EMULATED_HOOK __tsan_init() {}
EMULATED_HOOK __tsan_func_entry(void*) {}
EMULATED_HOOK __tsan_func_exit() {}
EMULATED_HOOK __tsan_vptr_update(void*, void*) {}
