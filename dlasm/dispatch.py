"""Which pool of workers takes the next task, and how many tasks wait at once.

Placement by Dask resources alone goes wrong where GPU and CPU workers share a scheduler, so tasks
are handed out here: each pool (a kind of engine) is a list of workers, a source says which task a
pool should take next, and each task is submitted for one worker by name. A worker has a task to run
and one that waits, so graphs stay small and spooled inputs few. Tasks carry paths and numbers, may
run twice, and their results are a few figures, so a worker that dies loses nothing: its tasks go to
another one. From then on no task waits behind another, so that a task whose workers die again and
again is known by number.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dlasm.errors import ClusterError
from dlasm.partition import Plan

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["PartitionSource", "SequenceSource", "Task", "TaskSource", "run_tasks"]

log = logging.getLogger("dlasm")

DEATHS_ALLOWED = 3
"""Workers that may die of a task before the run gives up."""

POLL_SECONDS = 1.0
"""How often the workers are looked at while nothing finishes."""

WORKERS_WAIT_SECONDS = 60.0
"""How long to wait for a worker when none is left."""

RESULT_SECONDS = 10.0
"""How long to wait for a few figures from the worker that computed them."""


@dataclass(frozen=True)
class Task:
    """A call of a function on a worker.

    Attributes
    ----------
    name : str
        What the dashboard calls it; no hyphens, at which Dask cuts names.
    number : int
        Which of its kind it is, for messages.
    function : callable
        Defined in a module, as it is pickled by name.
    args, kwargs
        Its arguments: paths and numbers.
    """

    name: str
    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.name.replace('_', ' ')} {self.number}"


class TaskSource(Protocol):
    """Gives tasks to pools."""

    def next(self, pool: str) -> Task | None:
        """Return the task that ``pool`` should take next, None if there is none for it."""


class SequenceSource:
    """Tasks in the order of an iterator, whatever the pool."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks

    def next(self, pool: str) -> Task | None:  # noqa: ARG002
        """Return the next task."""
        return next(self._tasks, None)


class PartitionSource:
    """Partitions of contigs: the largest of bin 3 first, then those of bin 2.

    The long ones go first so that no worker is left with one at the end.

    Parameters
    ----------
    plan : Plan
        The partitions.
    missing : sequence of int
        Those that are to be done.
    make : callable
        Makes the task of a partition for a pool: ``make(pool, number)``.
    """

    def __init__(
        self, plan: Plan, missing: Sequence[int], make: Callable[[str, int], Task]
    ) -> None:
        ordered = sorted(missing, key=lambda n: (-int(plan.bin[n]), -int(plan.work[n])))
        self._waiting = deque(ordered)
        self._make = make

    def next(self, pool: str) -> Task | None:
        """Return the task of the next partition."""
        return self._make(pool, self._waiting.popleft()) if self._waiting else None


def run_tasks(
    client: Client,
    source: TaskSource,
    pools: Callable[[], Mapping[str, Mapping[str, int]]],
    on_result: Callable[[Any], None],
) -> None:
    """Run all tasks of a source.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    source : TaskSource
        The tasks.
    pools : callable
        Gives the workers there are now: by pool, address to threads.
    on_result : callable
        Called here with what each task returned, in the order in which they finish.

    Raises
    ------
    ClusterError
        If a task's workers died again and again, or no worker is left.
    DlasmError
        What a task raised.
    """
    flying: dict[Future, tuple[Task, str]] = {}
    run = uuid.uuid4().hex[:8]
    submitted = 0
    again: deque[Task] = deque()
    deaths: Counter[Task] = Counter()
    exhausted: set[str] = set()
    tasks_per_thread = 2
    looked_at = 0.0
    members: Mapping[str, Mapping[str, int]] = {}

    def take(pool: str) -> Task | None:
        if again:
            return again.popleft()
        if pool not in exhausted:
            task = source.next(pool)
            if task is not None:
                return task
            exhausted.add(pool)
        return None

    def submit(task: Task, address: str) -> None:
        nonlocal submitted
        future = client.submit(
            task.function,
            *task.args,
            **task.kwargs,
            key=f"{task.name}-{task.number}-{submitted}-{run}",
            workers=[address],
            pure=False,
        )
        submitted += 1
        flying[future] = (task, address)

    def take_back(future: Future) -> None:
        """Let another worker do what a dead one had."""
        task, address = flying.pop(future)
        log.warning("worker %s is gone; %s goes to another one", address, task)
        client.cancel([future], force=True)
        if tasks_per_thread == 1:
            deaths[task] += 1
            if deaths[task] >= DEATHS_ALLOWED:
                raise _killed(task)
        again.append(task)

    try:
        while True:
            if time.monotonic() - looked_at > POLL_SECONDS:
                members = _wait_for_workers(pools)
                looked_at = time.monotonic()
                alive = {address for workers in members.values() for address in workers}
                lost = [f for f, (_, address) in flying.items() if address not in alive]
                for future in lost:
                    take_back(future)
                if lost:
                    tasks_per_thread = 1
            load = Counter(address for _, address in flying.values())
            for pool, workers in members.items():
                # one each before the second for any
                for depth in range(tasks_per_thread):
                    for address, threads in workers.items():
                        while load[address] < (depth + 1) * threads:
                            following = take(pool)
                            if following is None:
                                break
                            submit(following, address)
                            load[address] += 1
            if not flying and not again:
                return
            for future in _finished(list(flying)):
                try:
                    result = _result(future, flying[future][0])
                except _LostError:
                    take_back(future)
                    continue
                del flying[future]
                future.release()
                on_result(result)
    finally:
        if flying:
            client.cancel(list(flying), force=True)


class _LostError(Exception):
    """The worker that had a result died before it could be fetched."""


def _wait_for_workers(
    pools: Callable[[], Mapping[str, Mapping[str, int]]],
) -> Mapping[str, Mapping[str, int]]:
    """Return the pools as soon as a worker is in one."""
    until = time.monotonic() + WORKERS_WAIT_SECONDS
    while True:
        members = {pool: dict(workers) for pool, workers in pools().items() if workers}
        if members:
            return members
        if time.monotonic() > until:
            raise ClusterError(
                f"the cluster has had no worker for {WORKERS_WAIT_SECONDS:.0f} s; start workers "
                "and continue with --resume"
            )
        time.sleep(0.2)


def _finished(futures: Sequence[Future]) -> list[Future]:
    """Wait until a future is done, or for a moment; returns those that are."""
    from distributed import wait

    try:
        return list(wait(futures, timeout=POLL_SECONDS, return_when="FIRST_COMPLETED").done)
    except TimeoutError:
        return []


def _result(future: Future, task: Task) -> Any:
    """Return what a task returned or raise what it raised, in terms of the run."""
    from distributed import KilledWorker

    if future.status == "cancelled":
        raise ClusterError(f"{task} was cancelled; is the scheduler still there?")
    if future.status == "error":
        error = future.exception()
        raise _killed(task) if isinstance(error, KilledWorker) else error
    try:
        return future.result(timeout=RESULT_SECONDS)
    except TimeoutError:
        raise _LostError from None


def _killed(task: Task) -> ClusterError:
    return ClusterError(
        f"{task}: its workers died, one after the other, probably for want of memory. Give the "
        "workers more, take fewer workers, or smaller partitions (--partition-size), and continue "
        "with --resume"
    )
