"""One run across several GPUs of a host: whole runs, the stage ``extend``, kernels; on 1, 2, 4 ...

*Strong*: one candidate dump, repeated under new ids, on more and more GPUs. *Weak*: as many times
more of it as there are GPUs. Each in this process and on a cluster, by GPUs alone and with the CPU
pool. Files are compared with those of one GPU; which GPUs were busy is asked of the driver as the
runs go on, and compared with what the run says of them. Start of processes and CUDA not counted.

What limits: ``kernel_ms_max`` is the busiest GPU's kernels; what ``extend_s`` has beyond it is
packing, reading and dispatch (``task_s`` is the sum of the tasks of all GPUs), and what ``whole_s``
has beyond ``extend_s`` is reading the dump and writing results, which no GPU speeds up.

    python workflows/benchmarks/gpu_scaling.py heavy.dat --times 20 -k 77 --output scaling.csv
"""

from __future__ import annotations

import argparse
import csv
import importlib
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from gpu_job import Job, options_of, repeated, restricted

import dlasm
from dlasm.engines.choose import prepare
from dlasm.gpus import Gpu, bare_uuid, choose_gpus

COLUMNS = (
    "scaling",
    "where",
    "pools",
    "gpus",
    "contigs",
    "whole_s",
    "extend_s",
    "kernel_ms",
    "kernel_ms_max",
    "task_s",
    "gpus_of_summary",
    "gpus_seen_busy",
)


@contextmanager
def watched() -> Iterator[set[str]]:
    """Give the UUIDs of GPUs that the driver says are busy, or hold memory of a process."""
    busy: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        while not done.wait(0.02):
            for handle in handles:
                if pynvml.nvmlDeviceGetUtilizationRates(handle).gpu:
                    busy.add(bare_uuid(pynvml.nvmlDeviceGetUUID(handle)))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield busy
    finally:
        done.set()
        thread.join()


def ways(gpus: Sequence[Gpu]) -> Iterator[tuple[str, str, Any]]:
    """Yield the ways to run: where, which pools, a context that gives the options."""
    uuids = [gpu.uuid for gpu in gpus]
    for pools, workers in (("GPU", 0), ("both", None)):
        yield "one process", pools, nullcontext({"workers": 0, "gpus": uuids})
        yield "cluster", pools, dlasm.local_cluster(workers, gpus=uuids, quiet=True)


def measure(job: Job, scaling: str, gpus: Sequence[Gpu], rounds: int) -> Iterator[dict[str, Any]]:
    """Run in all ways on these GPUs; the median of each figure."""
    for where, pools, context in ways(gpus):
        with context as given, restricted(where, pools), watched() as busy:
            taken = job.rounds(f"{where}, {len(gpus)} GPUs", rounds, **options_of(given))
        about = [summary["pools"]["gpu"] for _, summary in taken]
        each = [list(one["gpus"].values()) for one in about]
        yield {
            "scaling": scaling,
            "where": where,
            "pools": pools,
            "gpus": len(gpus),
            "contigs": taken[0][1]["contigs"]["count"],
            "whole_s": statistics.median(seconds for seconds, _ in taken),
            "extend_s": statistics.median(s["stages"]["extend"]["seconds"] for _, s in taken),
            "kernel_ms": statistics.median(one["kernel_ms"] for one in about),
            "kernel_ms_max": statistics.median(max(g["kernel_ms"] for g in all_) for all_ in each),
            "task_s": statistics.median(one["seconds"] for one in about),
            "gpus_of_summary": max(map(len, each)),
            "gpus_seen_busy": len(busy & {bare_uuid(gpu.uuid) for gpu in gpus}),
        }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dump", type=Path, help="candidate dump, plain or gzip")
    parser.add_argument("--times", type=int, default=20, help="of the dump, on one GPU")
    parser.add_argument("-k", type=int, default=77)
    parser.add_argument("--kernel", default="fast")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, help="folder for dumps and runs")
    parser.add_argument("--output", type=Path, help="write the table here as well")
    args = parser.parse_args()

    for module in ("zarr", "pandas", "distributed"):  # the start of Python is not counted
        importlib.import_module(module)
    gpus = choose_gpus("auto").gpus
    if not gpus:
        sys.exit("there is no GPU; dlasm doctor --gpu says what is missing")
    for gpu in gpus:
        prepare("gpu", kernel=args.kernel, gpu=gpu.uuid)
    numbers = sorted({1, *(n for n in (2, 4, 8, 16) if n < len(gpus)), len(gpus)})
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="dlasm-benchmark-", dir=args.scratch) as folder:
        scratch = Path(folder)
        dump = scratch / "dump.dat"
        for scaling in ("strong", "weak"):
            job = None
            for number in numbers:
                if job is None or scaling == "weak":
                    repeated([(args.dump, args.times * (number if scaling == "weak" else 1))], dump)
                    job = Job(dump, args.k, scratch, "auto", args.kernel)
                for row in measure(job, scaling, gpus[:number], args.rounds):
                    rows.append(row)
                    print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if args.output:
        with open(args.output, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
