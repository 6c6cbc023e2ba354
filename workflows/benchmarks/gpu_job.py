"""Time of the whole job on a GPU host by stage, and of both pools together against either alone.

*Whole job*: a candidate dump, repeated under new ids, from the opening of the dump to the files
written, in this process and on a cluster of GPU and CPU workers; the start of processes, of the
cluster and of CUDA is not counted. The published program (Awan et al., SC'21) takes 2.8 to 3.9 s
for arcticsynth x 120 on an H200, its start included.

*Overlap*: an input with much of both bins is extended by the GPU alone, by the CPUs alone, and by
both, on a cluster and in this process; the time is that of the stage ``extend``.

Every run's files are compared with those of the first one. Needs dlasm, dask-cuda and CuPy.

    python workflows/benchmarks/gpu_job.py candidates_k77.dat.gz --heavy heavy.dat
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dlasm
import dlasm.dispatch as dispatch
import dlasm.pipeline as pipeline
from dlasm.cluster import usable_cpus, worker_pools
from dlasm.engines.choose import prepare
from dlasm.gpus import choose_gpus

STAGES = ("candidates", "plan", "extend", "results", "report")
POOLS = {"GPU": ("gpu",), "CPUs": ("cpu",), "both": ("gpu", "cpu")}


def repeated(sources: Iterable[tuple[Path, int]], target: Path) -> int:
    """Write lines of dumps, each dump so many times, under new ids; returns the contigs."""
    contigs = 0
    with open(target, "wb") as out:
        for source, times in sources:
            data = source.read_bytes()
            text = gzip.decompress(data) if source.suffix == ".gz" else data
            rest = [line.split(maxsplit=1)[1] for line in text.splitlines()]
            for _ in range(times):
                numbered = (b"%d %s\n" % (contigs + i, line) for i, line in enumerate(rest))
                out.write(b"".join(numbered))
                contigs += len(rest)
    return contigs


def digest(run: dlasm.Run) -> str:
    """Hash of what a run wrote."""
    both = hashlib.blake2b(digest_size=16)
    for name in ("extended.fasta", "extensions.tsv"):
        both.update((run.path / name).read_bytes())
    return both.hexdigest()


def only(pools: Sequence[str]) -> Callable[..., None]:
    """Make what runs tasks in this process use these pools only."""

    def run_here(source: Any, workers: Any, *calls: Any) -> None:
        dispatch.run_here(source, {pool: workers[pool] for pool in pools}, *calls)

    return run_here


class Job:
    """A dump that is extended again and again."""

    def __init__(self, dump: Path, k: int, scratch: Path, gpus: str, kernel: str) -> None:
        self.dump, self.k, self.scratch, self.gpus, self.kernel = dump, k, scratch, gpus, kernel
        self.digest = ""

    def run(self, name: str, **options: Any) -> tuple[float, dict[str, Any]]:
        """Return the seconds of a whole job and its summary."""
        output = self.scratch / "run"
        shutil.rmtree(output, ignore_errors=True)
        started = time.perf_counter()
        run = dlasm.extend(
            candidates=self.dump,
            k=self.k,
            output=output,
            kernel=self.kernel,
            **options,
        )
        seconds = time.perf_counter() - started
        found = digest(run)
        self.digest = self.digest or found
        if found != self.digest:
            sys.exit(f"{name}: the files differ from those of the first run")
        return seconds, run.summary()

    def rounds(self, name: str, count: int, **options: Any) -> list[tuple[float, dict[str, Any]]]:
        """Run several times; the first, which fills caches, is not given."""
        return [self.run(name, **options) for _ in range(count + 1)][1:]

    def settings(self, clusters: bool) -> Iterator[tuple[str, str, Any]]:
        """Yield the ways to run: where, which pools, a context that gives the options."""
        for pools in POOLS:
            gpus = "none" if pools == "CPUs" else self.gpus
            yield "one process", pools, nullcontext({"workers": 0, "gpus": gpus})
            if clusters:
                workers = 0 if pools == "GPU" else None
                yield "cluster", pools, dlasm.local_cluster(workers, gpus=gpus, quiet=True)


def options_of(given: Any) -> dict[str, Any]:
    """Return the options of :func:`dlasm.extend` that a setting stands for."""
    return given if isinstance(given, dict) else {"client": given}


def print_pools(summary: dict[str, Any]) -> None:
    """Print what each pool did."""
    for pool, about in summary["pools"].items():
        kernels = f", kernels {about['kernel_ms']:.1f} ms" if "kernel_ms" in about else ""
        print(
            f"    {pool}: {about['contigs']:,} contigs, {about['partitions']} partitions, tasks "
            f"{about['seconds']:.3f} s{kernels}"
        )


def whole_job(job: Job, rounds: int, clusters: bool) -> None:
    """Print the seconds of each stage, of the median round."""
    print("| where | pools | " + " | ".join(STAGES) + " | rest | whole |")
    print("|---" * (len(STAGES) + 4) + "|")
    for where, pools, context in job.settings(clusters):
        with context as given, restricted(where, pools):
            taken = job.rounds(f"{where}, {pools}", rounds, **options_of(given))
        seconds, summary = sorted(taken, key=lambda each: each[0])[len(taken) // 2]
        stages = [summary["stages"][name]["seconds"] for name in STAGES]
        row = [*stages, seconds - sum(stages), seconds]
        print(f"| {where} | {pools} | " + " | ".join(f"{value:.3f}" for value in row) + " |")
        print_pools(summary)


def overlap(job: Job, rounds: int, clusters: bool) -> None:
    """Print the seconds of the stage extend with either pool and with both."""
    found: dict[tuple[str, str], float] = {}
    for where, pools, context in job.settings(clusters):
        with context as given, restricted(where, pools):
            if where == "cluster":
                members = worker_pools(given)
                print(f"  cluster: { {name: len(each) for name, each in members.items()} }")
            taken = job.rounds(f"{where}, {pools}", rounds, **options_of(given))
        times = [summary["stages"]["extend"]["seconds"] for _, summary in taken]
        found[where, pools] = statistics.median(times)
        print(f"  {where}, {pools}: {found[where, pools]:.3f} s (least {min(times):.3f})")
        print_pools(taken[-1][1])
    print("| where | GPU alone | CPUs alone | both | both / best alone |")
    print("|---|---|---|---|---|")
    for where in dict.fromkeys(where for where, _ in found):
        gpu, cpu, both = (found[where, pools] for pools in POOLS)
        print(f"| {where} | {gpu:.3f} | {cpu:.3f} | {both:.3f} | {both / min(gpu, cpu):.2f} |")


class restricted:  # noqa: N801 (used as a function)
    """In this process only some pools run tasks, while the block lasts."""

    def __init__(self, where: str, pools: str) -> None:
        self.function = only(POOLS[pools]) if where == "one process" else None

    def __enter__(self) -> None:
        if self.function is not None:
            pipeline.run_here = self.function  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        pipeline.run_here = dispatch.run_here


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dump", type=Path, help="candidate dump, plain or gzip")
    parser.add_argument("--times", type=int, default=120, help="of the dump, for the whole job")
    parser.add_argument("--heavy", type=Path, help="dump with much in bin 3, for the overlap")
    parser.add_argument(
        "--mixture", type=int, nargs=2, default=(240, 4), help="times of the dump and of --heavy"
    )
    parser.add_argument("-k", type=int, default=77)
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--kernel", default="fast")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-cluster", action="store_true")
    parser.add_argument("--scratch", type=Path, help="folder for dumps and runs")
    args = parser.parse_args()

    for module in ("zarr", "pandas", "distributed"):  # the start of Python is not counted
        importlib.import_module(module)
    begin = time.perf_counter()
    for gpu in choose_gpus(args.gpus).gpus:
        prepare("gpu", kernel=args.kernel, gpu=gpu.uuid)
    print(f"{usable_cpus()} CPUs; start of CUDA {time.perf_counter() - begin:.2f} s")
    if args.scratch:
        args.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dlasm-benchmark-", dir=args.scratch) as folder:
        scratch = Path(folder)
        dump = scratch / "dump.dat"
        contigs = repeated([(args.dump, args.times)], dump)
        size = dump.stat().st_size / 1e6
        print(f"\nwhole job: {args.dump.name} x {args.times}, {contigs:,} contigs, {size:.0f} MB")
        job = Job(dump, args.k, scratch, args.gpus, args.kernel)
        whole_job(job, args.rounds, not args.no_cluster)
        if args.heavy:
            sources = list(zip((args.dump, args.heavy), args.mixture, strict=True))
            contigs = repeated(sources, dump)
            names = " + ".join(f"{path.name} x {times}" for path, times in sources)
            print(f"\noverlap: {names}, {contigs:,} contigs, {dump.stat().st_size / 1e6:.0f} MB")
            job = Job(dump, args.k, scratch, args.gpus, args.kernel)
            overlap(job, args.rounds, not args.no_cluster)


if __name__ == "__main__":
    main()
