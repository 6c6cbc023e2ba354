"""Which pool of workers takes the next task, and how many tasks wait at once.

Placement by Dask resources alone goes wrong where GPU and CPU workers share a scheduler, so tasks
are handed out here: each pool (a kind of engine) is a list of workers, a source says which task a
pool should take next, and each task is submitted for one worker by name. A worker has a task to run
and one that waits, which another worker gets that finds nothing else, so graphs stay small, spooled
inputs few, and nobody is idle at the end. Tasks carry paths and numbers, may run twice, and their
results are a few figures, so a worker that dies loses nothing: its tasks go to another one. From
then on no task waits behind another, so that a task whose workers die again and again is known by
number. A GPU that fails gets no more tasks, and the others do what it had.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
import uuid
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dlasm.errors import ClusterError, EngineError
from dlasm.partition import Plan

if TYPE_CHECKING:
    from distributed import Client, Future, Worker

__all__ = [
    "CPU_POOL",
    "GPU_POOL",
    "PartitionSource",
    "SequenceSource",
    "Task",
    "TaskSource",
    "busy_over_time",
    "killed_error",
    "run_here",
    "run_tasks",
]

log = logging.getLogger("dlasm")

CPU_POOL, GPU_POOL = "cpu", "gpu"
"""Names of the pools: what their workers compute with."""

CPU_SHARE = 0.3
"""A CPU worker takes a partition that takes it at most this part of the time that the GPUs need for
all that is left; two of them may wait for it."""

DEATHS_ALLOWED = 3
"""Workers that may die of a task before the run gives up."""

POLL_SECONDS = 1.0
"""How often the workers are looked at while nothing finishes."""

WORKERS_WAIT_SECONDS = 60.0
"""How long to wait for a worker when none is left."""

RESULT_SECONDS = 10.0
"""How long to wait for a few figures from the worker that computed them."""


TIMELINE_STEPS = 120
"""Parts of the time of a run for which it is kept how many tasks ran."""

STOP_SECONDS = 5.0
"""How long to wait for running tasks, which cannot be stopped, when a run fails."""


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

    def next(self, pool: str, pools: Mapping[str, int]) -> Task | None:
        """Return the task that a worker of ``pool`` should take now, None if there is none for it.

        ``pools`` says how many tasks each pool that has workers can run at a time.
        """

    def give_back(self, task: Task, pool: str, *, died: bool) -> None:
        """Take a task back that a worker did not finish; ``died`` if the task may be the cause."""


class SequenceSource:
    """Tasks in the order of an iterator, whatever the pool."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks
        self._again: deque[Task] = deque()

    def next(self, pool: str, pools: Mapping[str, int]) -> Task | None:  # noqa: ARG002
        """Return the next task."""
        return self._again.popleft() if self._again else next(self._tasks, None)

    def give_back(self, task: Task, pool: str, *, died: bool) -> None:  # noqa: ARG002
        """Let any worker do it."""
        self._again.append(task)


class PartitionSource:
    """Partitions of contigs, for GPUs and CPUs together or for either alone.

    GPUs take bin 3, the largest first, then bin 2 from the large end, until all is done. CPUs take
    bin 2 at the same time: the smallest until it is known how fast both are, then the largest that
    they will have finished well before the GPUs could have done everything, so that nobody ever
    waits for them. Where there are no GPUs, or no longer, the CPUs take everything, the long ones
    first.

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
        self._plan = plan
        self._make = make
        self._waiting: dict[int, list[int]] = {3: [], 2: []}  # by bin, the largest last
        for number in sorted(missing, key=self._order):
            self._waiting[self._bin(number)].append(number)
        self._for_cpu: list[int] = []  # those that a GPU failed at
        self._out: dict[int, str] = {}  # pool of each partition that is being extended
        self._done: dict[tuple[str, int], tuple[int, float]] = {}  # work and seconds by pool, bin
        # work by bin that waits, or that GPUs have
        self._left = {b: sum(map(self._size, numbers)) for b, numbers in self._waiting.items()}

    def __len__(self) -> int:
        """Partitions that wait."""
        return len(self._for_cpu) + sum(map(len, self._waiting.values()))

    def waiting(self) -> dict[int, int]:
        """Return how many partitions wait, by bin."""
        waiting = {of_bin: len(numbers) for of_bin, numbers in self._waiting.items()}
        for number in self._for_cpu:
            waiting[self._bin(number)] += 1
        return waiting

    def next(self, pool: str, pools: Mapping[str, int]) -> Task | None:
        """Return the task of the partition that a worker of ``pool`` should take now."""
        number = self._take(pool, pools)
        if number is None:
            return None
        self._out[number] = pool
        if pool != GPU_POOL:
            self._left[self._bin(number)] -= self._size(number)
        return self._make(pool, number)

    def give_back(self, task: Task, pool: str, *, died: bool) -> None:
        """Let another worker do it: one of the CPU pool if a GPU failed at it."""
        number = task.number
        self._out.pop(number, None)
        if died and pool == GPU_POOL:
            self._for_cpu.append(number)
            return
        if pool != GPU_POOL:
            self._left[self._bin(number)] += self._size(number)
        waiting = self._waiting[self._bin(number)]
        waiting.append(number)
        waiting.sort(key=self._order)

    def finished(self, number: int, pool: str, seconds: float) -> None:
        """Learn how long a partition took."""
        self.dropped(number)
        key = (pool, self._bin(number))
        work, before = self._done.get(key, (0, 0.0))
        self._done[key] = work + self._size(number), before + seconds

    def dropped(self, number: int) -> None:
        """Learn that a partition is not to be extended."""
        if self._out.pop(number, None) == GPU_POOL:
            self._left[self._bin(number)] -= self._size(number)

    def _bin(self, number: int) -> int:
        return int(self._plan.bin[number])

    def _size(self, number: int) -> int:
        return int(self._plan.work[number])

    def _order(self, number: int) -> tuple[int, int]:
        return self._size(number), -number

    def _take(self, pool: str, pools: Mapping[str, int]) -> int | None:
        many, few = self._waiting[3], self._waiting[2]
        shared = pools.get(GPU_POOL) and pools.get(CPU_POOL)
        if not shared or pool == GPU_POOL:
            lists = [many, few]
            if not shared:  # among GPUs alone, what one of them failed at comes last
                lists.insert(2 if pool == GPU_POOL else 0, self._for_cpu)
            return next((numbers.pop() for numbers in lists if numbers), None)
        if self._for_cpu:
            return self._for_cpu.pop()
        if not few:
            return None
        pace = self._pace(CPU_POOL, 2)
        left = self._seconds_of_gpus(pools[GPU_POOL])
        if pace is None or left is None:
            return few.pop(0)
        suits = bisect_right(few, CPU_SHARE * left * pace, key=self._size)
        return few.pop(suits - 1) if suits else None

    def _pace(self, pool: str, of_bin: int) -> float | None:
        """Work that a worker of a pool does in a second, None while that is not known."""
        work, seconds = self._done.get((pool, of_bin)) or self._done.get(
            (pool, 5 - of_bin), (0, 0.0)
        )
        return work / seconds if work and seconds else None

    def _seconds_of_gpus(self, gpus: int) -> float | None:
        """How long GPUs would take for all that waits or that they have, None if unknown."""
        seconds = 0.0
        for of_bin, work in self._left.items():
            pace = self._pace(GPU_POOL, of_bin)
            if work and pace is None:
                return None
            seconds += work / (pace or 1.0)
        return seconds / gpus


def busy_over_time(tasks: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """Say how many tasks of each pool ran at a time, however many there were.

    Parameters
    ----------
    tasks : sequence of tuple
        Pool, when it started and how long it ran, seconds.

    Returns
    -------
    dict
        ``step_seconds``, and under ``pools`` the mean number of tasks in each of
        :data:`TIMELINE_STEPS` steps from the first start to the last end. Empty without tasks.

    Examples
    --------
    >>> busy = busy_over_time([("gpu", 10.0, 12.0), ("cpu", 10.0, 6.0), ("cpu", 13.0, 3.0)])
    >>> busy["step_seconds"], busy["pools"]["cpu"][:2], busy["pools"]["cpu"][-1]
    (0.1, [1.0, 1.0], 0.0)
    """
    if not tasks:
        return {}
    begin = min(start for _, start, _ in tasks)
    width = max((max(s + n for _, s, n in tasks) - begin) / TIMELINE_STEPS, 1e-9)
    edges = np.arange(TIMELINE_STEPS + 1) * width
    pools = {}
    for pool in sorted({pool for pool, _, _ in tasks}):
        start, seconds = np.array([(s - begin, n) for p, s, n in tasks if p == pool]).T
        done = [np.clip(edge - start, 0, seconds).sum() for edge in edges]
        pools[pool] = [round(busy, 3) for busy in (np.diff(done) / width).tolist()]
    return {"step_seconds": round(width, 9), "pools": pools}


@contextmanager
def _scheduler_needed() -> Iterator[None]:
    """Say what it means that a cluster cancels what nobody cancelled."""
    try:
        yield
    except (asyncio.CancelledError, CancelledError) as error:
        raise ClusterError(
            f"the Dask scheduler is gone, or dropped the tasks ({error}); start it and its workers "
            "again and continue with --resume"
        ) from error


@_scheduler_needed()
def run_tasks(
    client: Client,
    source: TaskSource,
    pools: Callable[[], Mapping[str, Mapping[str, int]]],
    on_result: Callable[[Any], None],
    on_failure: Callable[[str, EngineError], None] = lambda _worker, _error: None,
    on_deaths: Callable[[Task], None] | None = None,
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
    on_failure : callable
        Called here with the address of a worker whose GPU failed, and the error.
    on_deaths : callable, optional
        Called here with a task whose workers died again and again; the others go on. Without it the
        run ends.

    Raises
    ------
    ClusterError
        If a task's workers died again and again, or no worker is left.
    EngineError
        If the GPUs failed and no other worker is left.
    DlasmError
        What a task raised.
    """
    flying: dict[Future, tuple[Task, str, str]] = {}
    run = uuid.uuid4().hex[:8]
    submitted = 0
    deaths: Counter[int] = Counter()
    tasks_per_thread = 2
    looked_at = -math.inf
    members: Mapping[str, Mapping[str, int]] = {}
    slots: dict[str, int] = {}
    load: Counter[str] = Counter()  # tasks of each worker
    failed: set[str] = set()  # workers whose GPU failed

    def usable() -> dict[str, dict[str, int]]:
        return {
            pool: {address: n for address, n in workers.items() if address not in failed}
            for pool, workers in pools().items()
        }

    def submit(task: Task, pool: str, address: str) -> None:
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
        flying[future] = (task, pool, address)

    def take_back(future: Future) -> tuple[Task, str, str]:
        client.cancel([future], force=True)
        return flying.pop(future)

    def waiting_in(workers: Mapping[str, int]) -> Future | None:
        """Return the last task that waits behind others on one of these workers."""
        for future in reversed(flying):
            address = flying[future][2]
            if address in workers and load[address] > workers[address]:
                return future
        return None

    def worker_is_gone(future: Future) -> None:
        """Let another worker do what a dead one had."""
        task, pool, address = take_back(future)
        log.warning("worker %s is gone; %s goes to another one", address, task)
        died = tasks_per_thread == 1
        if died:
            deaths[task.number] += 1
            if deaths[task.number] >= DEATHS_ALLOWED:
                give_up(task)
                return
        source.give_back(task, pool, died=died)

    def give_up(task: Task) -> None:
        if on_deaths is None:
            raise killed_error(task)
        on_deaths(task)

    def gpu_failed(future: Future, error: EngineError) -> None:
        """Let others do what a worker had whose GPU failed."""
        nonlocal looked_at
        _, _, address = flying[future]
        failed.add(address)
        for each in [f for f, (_, _, where) in flying.items() if where == address]:
            task, pool, _ = take_back(each)
            source.give_back(task, pool, died=each is future)
        if not any(usable().values()):
            raise _nobody_left(error) from error
        on_failure(address, error)
        looked_at = -math.inf

    try:
        while True:
            if time.monotonic() - looked_at > POLL_SECONDS:
                members = _wait_for_workers(usable)
                looked_at = time.monotonic()
                slots = {pool: sum(workers.values()) for pool, workers in members.items()}
                alive = {address for workers in members.values() for address in workers}
                lost = [f for f, (_, _, address) in flying.items() if address not in alive]
                for future in lost:
                    worker_is_gone(future)
                if lost:
                    tasks_per_thread = 1
            load = Counter(address for _, _, address in flying.values())
            for pool, workers in members.items():
                # one each before the second for any
                for depth in range(tasks_per_thread):
                    for address, threads in workers.items():
                        while load[address] < (depth + 1) * threads:
                            following = source.next(pool, slots)
                            if following is None:
                                break
                            submit(following, pool, address)
                            load[address] += 1
                # who has nothing to do, as nothing is left, takes what waits behind another task
                for address, threads in workers.items():
                    while load[address] < threads and (waits := waiting_in(workers)):
                        following, _, other = take_back(waits)
                        load[other] -= 1
                        submit(following, pool, address)
                        load[address] += 1
            if not flying:
                return
            for future in _finished(list(flying)):
                if future not in flying:  # its worker's GPU failed at another one
                    continue
                task, pool, _ = flying[future]
                try:
                    result = _result(future, task)
                except _LostError:
                    worker_is_gone(future)
                    continue
                except _KilledError:
                    take_back(future)
                    give_up(task)
                    continue
                except EngineError as error:
                    if pool != GPU_POOL:
                        raise
                    gpu_failed(future, error)
                    continue
                del flying[future]
                future.release()
                on_result(result)
    finally:
        if flying:
            with suppress(asyncio.CancelledError, CancelledError, OSError, RuntimeError):
                client.cancel(list(flying), force=True)
            _wait_until_idle(client, {address for _, _, address in flying.values()}, run)


def _wait_until_idle(client: Client, addresses: set[str], run: str) -> None:
    """Wait for a while until no worker has a task of this run any more."""
    until = time.monotonic() + STOP_SECONDS

    def wait() -> None:
        try:
            while time.monotonic() < until:
                left = client.run(_count_active, run, workers=list(addresses), on_error="ignore")
                if not any(left.values()):
                    return
                time.sleep(0.1)
        except Exception:
            log.info("the workers were not waited for", exc_info=True)

    # a worker that does not answer must not keep the run from ending
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(STOP_SECONDS)


def _count_active(run: str, dask_worker: Worker) -> int:
    """On a worker: how many tasks of a run are running."""
    return sum(str(key).endswith(run) for key in list(dask_worker.active_keys))


def run_here(
    source: PartitionSource,
    pools: Mapping[str, Sequence[Mapping[str, Any]]],
    on_result: Callable[[Any], None],
    on_failure: Callable[[Mapping[str, Any], EngineError], None] = lambda _worker, _error: None,
) -> None:
    """Run all tasks of a source in this process: a thread for each worker of a pool.

    Parameters
    ----------
    source : PartitionSource
        The tasks.
    pools : mapping
        Of each pool, more keyword arguments for each of its workers.
    on_result : callable
        Called with what each task returned, by one thread at a time.
    on_failure : callable
        Called, by one thread at a time, with the arguments of a worker whose GPU failed, and the
        error.

    Raises
    ------
    EngineError
        If the GPUs failed and no other worker is left.
    DlasmError
        What a task raised; those under way are finished first.
    """
    slots = {pool: len(workers) for pool, workers in pools.items() if workers}
    changed = threading.Condition()
    running = 0
    failed: list[BaseException] = []

    def next_task(pool: str) -> Task | None:
        """Wait for a task, None when there will be none."""
        nonlocal running
        with changed:
            while not failed:
                task = source.next(pool, slots)
                if task is not None:
                    running += 1
                    return task
                if not len(source) and not running:
                    break
                changed.wait()
            return None

    def gpu_failed(task: Task, more: Mapping[str, Any], error: EngineError) -> None:
        nonlocal running
        with changed:
            running -= 1
            source.give_back(task, GPU_POOL, died=True)
            slots[GPU_POOL] -= 1
            if not any(slots.values()):
                raise _nobody_left(error) from error
            on_failure(more, error)
            changed.notify_all()

    def work(pool: str, more: Mapping[str, Any]) -> None:
        nonlocal running
        try:
            while (task := next_task(pool)) is not None:
                try:
                    result = task.function(*task.args, **task.kwargs, **more)
                except EngineError as error:
                    if pool != GPU_POOL:
                        raise
                    gpu_failed(task, more, error)
                    return
                with changed:
                    running -= 1
                    on_result(result)
                    changed.notify_all()
        except BaseException as error:  # told to the caller below
            with changed:
                failed.append(error)
                changed.notify_all()

    workers = [(pool, more) for pool in sorted(slots) for more in pools[pool]]
    others = [threading.Thread(target=work, args=each, daemon=True) for each in workers[1:]]
    for thread in others:
        thread.start()
    try:
        if workers:
            work(*workers[0])
        for thread in others:
            thread.join()
    except BaseException as error:  # an interrupt
        failed.insert(0, error)
        raise
    if failed:
        raise failed[0]


class _LostError(Exception):
    """The worker that had a result died before it could be fetched."""


class _KilledError(Exception):
    """The scheduler gave a task up whose workers died."""


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
        raise ClusterError(
            f"{task} was cancelled; is the scheduler still there? If not, start it and its workers "
            "again; then continue with --resume"
        )
    if future.status == "error":
        error = future.exception()
        raise _KilledError if isinstance(error, KilledWorker) else error
    try:
        return future.result(timeout=RESULT_SECONDS)
    except TimeoutError:
        raise _LostError from None


def _nobody_left(error: EngineError) -> EngineError:
    return EngineError(
        f"{error}; no other worker is left. Put the GPU right and continue with --resume, or go on "
        "without GPUs: --resume --gpus none"
    )


def killed_error(task: Task, of: str = "", hint: str = "") -> ClusterError:
    """Return the error that ends a run whose workers died of a task.

    Parameters
    ----------
    task : Task
        The task.
    of : str
        What it was about.
    hint : str
        What else helps.
    """
    return ClusterError(
        f"{task}{of}: its workers died, one after the other, probably for want of memory. Give the "
        "workers more, take fewer workers, or smaller partitions (--partition-size), and continue "
        f"with --resume{hint}"
    )
