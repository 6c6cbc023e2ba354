r"""Time of the kernels v1, v2 and fast on candidate dumps, beside the published kernel's.

Times are of the kernels alone, by CUDA events, the median of several rounds after one that is not
counted; every result is compared with the CPU engine's. Partitions are in pinned memory, as those
of a run are: while a large one is copied all kernels are queued, so the time from the first to the
last has nothing of the host's in it. Needs NumPy, CuPy and dlasm.

    python workflows/benchmarks/gpu_kernels.py --output gpu_kernels.csv \
        --input arcticsynth-x120 candidates_k77.dat.gz 120 --input heavy-tail heavy.dat 1

With ``--sweep`` it times instead, for each size of batches, whole partitions as a run cuts them,
from the packed host buffer to the extensions: plain buffers, which are staged, and pinned ones.

    python workflows/benchmarks/gpu_kernels.py --output gpu_batches.csv --sweep 4 8 16 64 \
        --kernels fast --input arcticsynth-x120 candidates_k77.dat.gz 120

The published kernel (the v2 of Awan et al., SC'21, from MetaHipMer2's repository) was built for
sm_90 and run on an H200, three times each; medians in ms, right-end and left-end launch added:

| input            | k  | bin 2 | bin 3  | together |
|------------------|----|-------|--------|----------|
| arcticsynth-x120 | 21 |  35.5 |    3.0 |     38.4 |
|                  | 33 |  58.8 |    5.8 |     64.6 |
|                  | 55 | 129.3 |   13.8 |    143.0 |
|                  | 77 | 196.0 |   21.4 |    217.5 |
|                  | 99 | 208.5 |   26.0 |    234.5 |
| heavy-tail       | 21 |  16.2 |  857.3 |    873.5 |
|                  | 77 |  28.9 | 1365.5 |   1394.4 |

*arcticsynth-x120* is the candidate dump of the paper's arcticsynth community at k 77, its 1,649
contigs repeated 120 times; *heavy-tail* has 20,000 random contigs, 208 of them in bin 3 and 43 with
over 1000 reads at an end.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dumps import BINS, pack_bin, pack_partitions, read_dump

from dlasm import pack
from dlasm.engines import cpu, gpu
from dlasm.engines.device import Device
from dlasm.kernels import loader
from dlasm.pack import PackedPartition
from dlasm.params import WalkParams

START_K = (21, 33, 55, 77, 99)

PUBLISHED_MS = {
    ("arcticsynth-x120", 21): (35.5, 3.0, 38.4),
    ("arcticsynth-x120", 33): (58.8, 5.8, 64.6),
    ("arcticsynth-x120", 55): (129.3, 13.8, 143.0),
    ("arcticsynth-x120", 77): (196.0, 21.4, 217.5),
    ("arcticsynth-x120", 99): (208.5, 26.0, 234.5),
    ("heavy-tail", 21): (16.2, 857.3, 873.5),
    ("heavy-tail", 77): (28.9, 1365.5, 1394.4),
}
"""By input and k: bin 2, bin 3, together."""

COLUMNS = (
    "input",
    "k",
    "bin",
    "kernel",
    "contigs",
    "reads",
    "rounds",
    "median_ms",
    "least_ms",
    "most_ms",
    "wall_ms",
    "batches",
    "published_ms",
    "times_published",
    "launches",
)

SWEEP_COLUMNS = (
    "input",
    "k",
    "kernel",
    "buffer",
    "batch_mib",
    "partitions",
    "megabytes",
    "rounds",
    "median_ms",
    "least_ms",
    "most_ms",
    "kernel_ms",
    "batches",
)
"""Milliseconds are of all partitions, one after another."""


def measure(
    packed: PackedPartition, params: WalkParams, kernel: str, rounds: int, seconds: float, size: int
) -> dict[str, Any]:
    """Time a kernel; stops early once ``seconds`` have gone."""
    wanted = cpu.extend_partition(packed, params, 16)
    kernel_ms: list[float] = []
    wall_ms: list[float] = []
    launch_ms: dict[str, list[float]] = {}
    started = time.perf_counter()
    timed(packed, params, kernel, size, wanted)  # compiles, allocates; not counted
    while len(kernel_ms) < rounds:
        wall, run = timed(packed, params, kernel, size, wanted)
        wall_ms.append(wall)
        kernel_ms.append(run.statistics.kernel_ms)
        for label, ms in (run.statistics.launch_ms | run.statistics.gather_ms).items():
            launch_ms.setdefault(label, []).append(ms)
        if time.perf_counter() - started > seconds:
            break
    return {
        "contigs": len(packed.contig),
        "reads": len(packed.length),
        "rounds": len(kernel_ms),
        **spread(kernel_ms),
        "wall_ms": round(statistics.median(wall_ms), 3),
        "batches": run.statistics.batches,
        "launches": ", ".join(
            f"{label} {statistics.median(ms):.4f}" for label, ms in launch_ms.items()
        ),
    }


def timed(
    packed: PackedPartition, params: WalkParams, kernel: str, size: int, wanted: cpu.Extensions
) -> tuple[float, gpu.GpuRun]:
    """Extend a partition; gives the milliseconds too. Ends the program if the result is wrong."""
    begin = time.perf_counter()
    run = gpu.run_partition(packed, params, kernel=kernel, batch_bytes=size)
    wall = 1000 * (time.perf_counter() - begin)
    for name in ("walk_offsets", "walk_values", "support", "k", "outcome", "cut"):
        if not np.array_equal(getattr(run.extensions, name), getattr(wanted, name)):
            sys.exit(f"{kernel} at k {params.k}: {name} differ from the CPU engine's")
    return wall, run


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, the least and the most of some milliseconds."""
    found = {
        "median_ms": statistics.median(values),
        "least_ms": min(values),
        "most_ms": max(values),
    }
    return {name: round(value, 4) for name, value in found.items()}


def sweep(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time whole partitions for each size of batches; rounds of all sizes in turn."""
    buffers = {"plain": pack.new_buffer, "pinned": gpu.new_buffer}
    settings = [(buffer, mib) for buffer in buffers for mib in options.sweep]
    for name, path, repeat in options.input:
        dump = read_dump(Path(path), int(repeat))
        packed = {buffer: list(pack_partitions(dump, new)) for buffer, new in buffers.items()}
        for k in options.k:
            params = WalkParams(k, options.walk_limit)
            wanted = [cpu.extend_partition(each, params, 16) for each in packed["plain"]]
            for kernel in options.kernels:
                wall_ms: dict[tuple[str, int], list[float]] = {each: [] for each in settings}
                found: dict[tuple[str, int], list[gpu.GpuRun]] = {}
                for counted in range(-1, options.rounds):  # the first round is not
                    for buffer, mib in settings:
                        done = [
                            timed(each, params, kernel, mib << 20, want)
                            for each, want in zip(packed[buffer], wanted, strict=True)
                        ]
                        found[buffer, mib] = [run for _, run in done]
                        if counted >= 0:
                            wall_ms[buffer, mib].append(sum(wall for wall, _ in done))
                for buffer, mib in settings:
                    runs = [run.statistics for run in found[buffer, mib]]
                    yield {
                        "input": name,
                        "k": k,
                        "kernel": kernel,
                        "buffer": buffer,
                        "batch_mib": mib,
                        "partitions": len(runs),
                        "megabytes": round(
                            sum(len(each.buffer) for each in packed[buffer]) / 1e6, 1
                        ),
                        "rounds": options.rounds,
                        **spread(wall_ms[buffer, mib]),
                        "kernel_ms": round(sum(each.kernel_ms for each in runs), 4),
                        "batches": sum(each.batches for each in runs),
                    }


def rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure everything asked for."""
    for name, path, repeat in options.input:
        dump = read_dump(Path(path), int(repeat))
        for which in options.bins:
            packed = pack_bin(dump, which, buffer=gpu.new_buffer)
            for k in options.k:
                for kernel in options.kernels:
                    params = WalkParams(k, options.walk_limit)
                    row = {"input": name, "k": k, "bin": which, "kernel": kernel}
                    row |= measure(
                        packed, params, kernel, options.rounds, options.seconds, options.batch_bytes
                    )
                    published = PUBLISHED_MS.get((name, k))
                    if published:
                        row["published_ms"] = published[BINS.index(which)]
                        row["times_published"] = round(row["published_ms"] / row["median_ms"], 1)
                    yield row


def write(path: Path, columns: Sequence[str], found: Iterable[dict[str, Any]]) -> None:
    """Write rows as they come, so that what was measured is kept."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        for row in found:
            table.writerow(row)
            file.flush()
            print("  ".join(f"{name} {row[name]}" for name in columns if name in row), flush=True)


def main() -> None:
    """Measure and write a table."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--input",
        nargs=3,
        action="append",
        required=True,
        metavar=("NAME", "DUMP", "REPEAT"),
        help="a candidate dump and how often its contigs are repeated; may be given again",
    )
    parser.add_argument("--output", type=Path, default=Path("gpu_kernels.csv"))
    parser.add_argument("-k", type=int, nargs="+", default=list(START_K))
    parser.add_argument("--kernels", nargs="+", choices=gpu.KERNELS, default=list(gpu.KERNELS))
    parser.add_argument("--bins", nargs="+", choices=BINS, default=list(BINS))
    parser.add_argument("--walk-limit", type=int, default=613)
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of one measurement, after which it ends"
    )
    parser.add_argument(
        "--batch-bytes", type=int, default=1 << 40, help="input of a batch; default: all in one"
    )
    parser.add_argument(
        "--sources",
        type=Path,
        default=loader.FOLDER,
        help="folder with the sources of the kernels, which may be those of another version",
    )
    parser.add_argument(
        "--define",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a macro to compile the kernels with; may be given again",
    )
    parser.add_argument(
        "--sweep",
        type=int,
        nargs="+",
        metavar="MIB",
        help="time whole partitions with batches of these sizes instead",
    )
    options = parser.parse_args()
    loader.FOLDER = options.sources
    loader.OPTIONS += tuple(f"-D{define}" for define in options.define)
    device = Device.current()
    print(f"CUDA device {device.number}, {device.multiprocessors} multiprocessors", flush=True)
    if options.sweep:
        write(options.output, SWEEP_COLUMNS, sweep(options))
    else:
        write(options.output, COLUMNS, rows(options))


if __name__ == "__main__":
    main()
