"""What a GPU does at most: warp instructions, and sectors of 32 bytes of L1, L2 and memory.

These are the ceilings of an instruction roofline (Ding and Williams, 2019), measured as their
article does, by kernels that do nothing else. Writes one row per ceiling; the best of all rounds
counts.

    python workflows/benchmarks/gpu_ceilings.py --output gpu_ceilings.csv
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import cupy as cp

SECTOR = 32
THREADS = 1024
STEPS = 256
SOURCE = r"""
extern "C" __global__ void issue(float* out, int steps) {
  float a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3, x = out[0];
  for (int i = 0; i < steps; ++i) {
#pragma unroll
    for (int j = 0; j < 64; ++j) {
      a = fmaf(a, x, x); b = fmaf(b, x, x); c = fmaf(c, x, x); d = fmaf(d, x, x);
    }
  }
  if (a + b + c + d == 12345.f) out[1] = a;
}

__device__ __forceinline__ float4 cached(const float4* p) {
  float4 v;
  asm volatile("ld.global.ca.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

__device__ __forceinline__ float4 past_l1(const float4* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

// each block reads its own 16 KiB again and again
extern "C" __global__ void read_l1(const float4* in, float* out, int steps) {
  float sum = 0;
  const float4* own = in + blockIdx.x % 64 * 1024;
  for (int i = 0; i < steps; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      // elsewhere each time, or the compiler reads only once
      const float4 v = cached(own + ((threadIdx.x + 32 * (i + j)) & 1023));
      sum += v.x + v.y + v.z + v.w;
    }
  }
  if (sum == 12345.f) out[0] = sum;
}

// all blocks read `size` float4 together, each from elsewhere on, `steps` times
extern "C" __global__ void read_past_l1(const float4* in, float* out, long long size, int steps) {
  float sum = 0;
  const long long stride = (long long)gridDim.x * blockDim.x;
  for (int i = 0; i < steps; ++i) {
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + 3 * stride < size; at += 4 * stride) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float4 v = past_l1(in + at + j * stride);
        sum += v.x + v.y + v.z + v.w;
      }
    }
  }
  if (sum == 12345.f) out[0] = sum;
}
"""


def best_seconds(launch: Callable[[], None], rounds: int) -> float:
    """Seconds of the quickest of some launches, by events."""
    launch()
    times = []
    for _ in range(rounds):
        begin, end = cp.cuda.Event(), cp.cuda.Event()
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(cp.cuda.get_elapsed_time(begin, end) / 1e3)
    return min(times)


def main() -> None:
    """Measure and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("gpu_ceilings.csv"))
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    about = cp.cuda.runtime.getDeviceProperties(0)
    device, processors = about["name"].decode(), about["multiProcessorCount"]
    module = cp.RawModule(code=SOURCE, options=("--std=c++17",))
    out = cp.zeros(2, dtype=cp.float32)
    blocks = 2 * processors
    warps = blocks * THREADS // 32
    rows: list[tuple[str, str, float]] = []

    def measure(name: str, unit: str, amount: float, kernel: str, *arguments: object) -> None:
        function = module.get_function(kernel)
        seconds = best_seconds(lambda: function((blocks,), (THREADS,), arguments), options.rounds)
        rows.append((name, unit, amount / seconds / 1e9))
        print(f"{device}: {name} {rows[-1][2]:.1f} {unit}", flush=True)

    measure("issue", "warp GIPS", warps * STEPS * 256, "issue", out, cp.int32(STEPS))
    data = cp.zeros(1 << 20, dtype=cp.float32)
    sectors = warps * 32 * 16 // SECTOR
    measure("L1", "GTXN/s", sectors * STEPS * 8, "read_l1", data, out, cp.int32(STEPS))
    for name, size, steps in (("L2", 32 << 20, 64), ("HBM", 8 << 30, 1)):
        data = cp.zeros(size // 4, dtype=cp.float32)
        stride = blocks * THREADS * 16
        each = size // (4 * stride) * 4 * stride  # whole turns of four
        arguments = (data, out, cp.int64(each // 16), cp.int32(steps))
        measure(name, "GTXN/s", each * steps // SECTOR, "read_past_l1", *arguments)
        del data, arguments
    with options.output.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("device", "ceiling", "unit", "value"))
        table.writerows((device, name, unit, f"{value:.4g}") for name, unit, value in rows)


if __name__ == "__main__":
    main()
