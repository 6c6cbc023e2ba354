"""Runs that are harmed at a chosen moment: programs and workers of test_faults.py.

A moment is a stage and a number of Python calls since it began, which does not depend on how fast
the machine is.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import dlasm
import dlasm.io.fastq as fastq
import dlasm.pipeline as pipeline
from dlasm.tasks import extend_task

HERE = Path(__file__).parent
FOUND_AT = str(Path(dlasm.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{FOUND_AT}"}

STAGES = ("contigs", "candidates", "plan", "extend", "results", "join", "report")
OPTIONS = {"bin_limit": 26, "partition_bytes": 4_000, "threads": 1, "gpus": "none", "join": "full"}
TASK_SECONDS = 0.02
SLACK = (12, 16, 24, 32, 48)


def slow_task(*arguments: Any, **options: Any) -> Any:
    """Extend a partition, not at once."""
    time.sleep(TASK_SECONDS)
    return extend_task(*arguments, **options)


def deadly_task(work: str, number: int, **options: Any) -> Any:
    """Extend a partition, unless it is the third, which kills the worker."""
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return extend_task(work, number, **options)


@contextmanager
def small_batches() -> Iterator[None]:
    """Read few reads at a time: constants of a version, so the same when a run is continued."""
    before = fastq.iter_batches, pipeline.BATCHES_PER_RUN
    fastq.iter_batches, pipeline.BATCHES_PER_RUN = partial(before[0], batch_reads=500), 2
    try:
        yield
    finally:
        fastq.iter_batches, pipeline.BATCHES_PER_RUN = before


@contextmanager
def external_cluster(
    workers: int = 2, protocol: str = "tcp", more: Mapping[str, str] | None = None
) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """Start a scheduler and workers, with more environment; gives its address and the processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    address = f"{protocol}://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**ENVIRONMENT, **(more or {})}
    run = [sys.executable, "-m"]
    at = ["--protocol", protocol, "--host", "127.0.0.1", "--port", port, "--no-dashboard"]
    joining = [address, "--no-dashboard", "--no-nanny", "--nthreads", "1", "--death-timeout", "20"]
    commands = [[*run, "distributed.cli.dask_scheduler", *at]]
    commands += [[*run, "distributed.cli.dask_worker", *joining] for _ in range(workers)]
    processes = [subprocess.Popen(command, env=environment, **quiet) for command in commands]
    try:
        yield address, processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Harm:
    """Counts the calls of each stage, and does something at one of them.

    Parameters
    ----------
    stage : str
        When; empty for never.
    calls : int
        After so many calls, or when the stage ends.
    action : callable
        What to do.
    """

    def __init__(self, stage: str, calls: int, action: Callable[[], None]) -> None:
        self.counts = dict.fromkeys(STAGES, 0)
        self._wanted = (stage, calls)
        self._action = action
        self._now = ""
        self._done = False

    def __enter__(self) -> Harm:
        self._stage = pipeline._Stages._stage
        self._task = pipeline.extend_task
        harm = self

        def stage(stages: Any, name: str, function: Any) -> None:
            harm._now = name
            try:
                harm._stage(stages, name, function)
            finally:
                if name == harm._wanted[0]:
                    harm._do()
                harm._now = ""

        pipeline._Stages._stage = stage
        pipeline.extend_task = slow_task
        threading.setprofile(self._count)
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        pipeline._Stages._stage = self._stage
        pipeline.extend_task = self._task

    def _count(self, _frame: object, event: str, _argument: object) -> None:
        if event == "call" and self._now:
            self.counts[self._now] += 1
            if (self._now, self.counts[self._now]) == self._wanted:
                self._do()

    def _do(self) -> None:
        if not self._done:
            self._done = True
            self._action()


def fill(place: str) -> None:
    """Leave no room on a disk."""
    with open(Path(place) / "filler", "wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 4096):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def limit_memory(slack: int) -> None:
    """Let this process have no more memory than it has, but for a few MB.

    With none at all Python hangs where it starts a thread.
    """
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (slack << 20), resource.RLIM_INFINITY))


def main() -> None:
    """Extend; the arguments are a JSON object."""
    about = json.loads(sys.argv[1])
    victims = {
        "": lambda: None,
        "client": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "run": lambda: os.killpg(0, signal.SIGKILL),
        "other": lambda: os.kill(about["pid"], signal.SIGKILL),
        "disk": lambda: fill(about["pid"]),
        "quota": lambda: fill(about["pid"]),
        "address space": lambda: limit_memory(SLACK[about["calls"] % len(SLACK)]),
    }
    if about.get("cgroup"):
        Path(about["cgroup"]).write_text(str(os.getpid()))
    with (
        small_batches(),
        dlasm.connect(about["scheduler"]) if about["scheduler"] else nullcontext() as client,
        Harm(about["stage"], about["calls"], victims[about["victim"]]) as harm,
    ):
        options = {"client": client} if client else {"workers": about["workers"]}
        pipeline.extend(
            about["contigs"],
            reads=tuple(about["reads"]),
            output=about["output"],
            resume=Path(about["output"]).exists(),
            dashboard=False,
            **OPTIONS,
            **options,
        )
    print(json.dumps(harm.counts))


if __name__ == "__main__":
    main()
