"""CPU seconds of packing and extending a candidate dump, and how threads scale.

The dump is read once, repeated in memory, and extended several times; the median counts.
MetaHipMer2's own CPU code takes 20 s of one Zen 5 core for the arcticsynth dump repeated 40 times
(k 77); ``--reference-seconds 20`` puts that beside.

    python workflows/benchmarks/cpu_engine.py candidates_k77.dat.gz -k 77 --repeat 40
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np

from dlasm.engines.cpu import extend_partition
from dlasm.io.candidates import iter_dump
from dlasm.io.fasta import Contigs
from dlasm.pack import PackedPartition, pack_partition
from dlasm.params import WalkParams
from dlasm.runs import CandidateRun


def load(path: str, repeat: int) -> tuple[list[Contigs], list[CandidateRun]]:
    """Read a dump and give each repetition its own contig numbers."""
    chunks = list(iter_dump(path))
    contigs = [chunk.contigs for chunk in chunks] * repeat
    size = sum(len(chunk.contigs) for chunk in chunks)
    runs = [
        replace(chunk.run, end=chunk.run.end + 2 * size * number)
        for number in range(repeat)
        for chunk in chunks
    ]
    return contigs, runs


def pack(contigs: list[Contigs], runs: list[CandidateRun]) -> PackedPartition:
    """Pack everything as one partition."""
    lengths = np.concatenate([part.lengths for part in contigs])
    whole = replace(
        contigs[0],
        bases=np.concatenate([part.bases for part in contigs]),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        depth=np.concatenate([part.depth for part in contigs]),
    )
    return pack_partition(np.arange(len(lengths)), whole, runs, [np.inf], whole.depth)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dump")
    parser.add_argument("-k", type=int, nargs="+", default=[77])
    parser.add_argument("--walk-limit", type=int, default=613)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--reference-seconds", type=float, default=0.0)
    args = parser.parse_args()

    started = time.process_time()
    contigs, runs = load(args.dump, args.repeat)
    parsing = time.process_time() - started
    started = time.process_time()
    packed = pack(contigs, runs)
    packing = time.process_time() - started
    print(f"{len(packed.contig)} contigs, {len(packed.length)} reads")
    print(f"parse and pack the dump once {parsing:.3f} CPU s, merge all of it {packing:.3f} CPU s")
    print("k  threads  CPU s  wall s  times one thread  times the reference (CPU)")
    for k in args.k:
        alone = 0.0
        for threads in args.threads:
            cpu, wall = [], []
            for _ in range(args.rounds):
                begin_cpu, begin_wall = time.process_time(), time.perf_counter()
                extend_partition(packed, WalkParams(k, args.walk_limit), threads)
                cpu.append(time.process_time() - begin_cpu)
                wall.append(time.perf_counter() - begin_wall)
            median_cpu, median_wall = statistics.median(cpu), statistics.median(wall)
            alone = alone or median_wall
            times = f"{args.reference_seconds / median_cpu:.0f}" if args.reference_seconds else "-"
            print(
                f"{k}  {threads}  {median_cpu:.4f}  {median_wall:.4f}  "
                f"{alone / median_wall:.2f}  {times}"
            )


if __name__ == "__main__":
    main()
