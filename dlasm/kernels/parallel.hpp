// Work shared between threads: blocks of indices taken from one counter.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace dlasm {

// Calls body(thread, begin, end) for blocks that cover 0..count; the first exception is rethrown.
template <class Body>
void parallel_blocks(std::int64_t count, std::int64_t block, int threads, Body body) {
  const std::int64_t blocks = (count + block - 1) / block;
  threads = static_cast<int>(std::max<std::int64_t>(1, std::min<std::int64_t>(threads, blocks)));
  std::atomic<std::int64_t> next{0};
  std::exception_ptr failed;
  std::mutex lock;
  auto work = [&](int thread) {
    try {
      for (;;) {
        const std::int64_t begin = next.fetch_add(block);
        if (begin >= count) return;
        body(thread, begin, std::min(count, begin + block));
      }
    } catch (...) {
      const std::lock_guard<std::mutex> guard(lock);
      if (!failed) failed = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> others;
  try {
    for (int t = 1; t < threads; ++t) others.emplace_back(work, t);
  } catch (const std::system_error&) {
    // no more threads to be had here (a process limit): those there are do the work
  }
  work(0);
  for (auto& other : others) other.join();
  if (failed) std::rethrow_exception(failed);
}

}  // namespace dlasm
