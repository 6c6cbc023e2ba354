"""Several GPUs of different speeds and CPUs share partitions, by a clock that tasks move.

What hands tasks out is real, the workers are not: a task takes its work divided by the speed of its
worker, and whatever ends first ends next. So the order of events is always the same, however busy
this machine is.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import dlasm.dispatch as dispatch
from dlasm.dispatch import PartitionSource, Task, run_here, run_tasks
from dlasm.errors import EngineError
from dlasm.partition import Plan

CPU_SPEED = 0.1
GPUS = (2, 4, 8)


def speeds_of(gpus):
    """Speeds of GPUs, the fastest three times as fast as the slowest."""
    return {f"gpu-{number}": 1.0 + 2.0 * number / (gpus - 1) for number in range(gpus)}


def make_plan(gpus, seed=3):
    """Make 8 partitions of bin 3 for each GPU, and 16 smaller ones of bin 2."""
    random = np.random.default_rng(seed)
    many, few = 8 * gpus, 16 * gpus
    work = np.concatenate([random.integers(500, 1500, many), random.integers(50, 450, few)])
    return Plan(
        contig=np.arange(many + few),
        start=np.arange(many + few + 1),
        bin=np.repeat([3, 2], [many, few]).astype(np.uint8),
        work=work,
    )


class Clock:
    """What happened: which worker took what, when it began, when it ended and whether it failed."""

    def __init__(self, plan, speeds, cpus, fails=None):
        self.plan = plan
        self.speeds = {**speeds, **{f"cpu-{number}": CPU_SPEED for number in range(cpus)}}
        self.fails = fails  # (worker, how many tasks it does before)
        self.now = 0.0
        self.events = []
        self.failures = []
        self.source = PartitionSource(plan, range(len(plan)), self.make)
        self.taken = {2: [], 3: []}  # in the order in which GPUs took them

    def make(self, pool, number):
        if pool == "gpu":
            self.taken[int(self.plan.bin[number])].append(number)
        return Task(pool, number, extend, (pool, number))

    def seconds(self, worker, number):
        return int(self.plan.work[number]) / self.speeds[worker]

    def is_to_fail(self, worker):
        return self.fails == (worker, sum(each[0] == worker for each in self.events))

    def ended(self, worker, number, begun):
        self.events.append((worker, number, begun, self.now))

    def finished(self, result):
        pool, number, seconds = result
        self.source.finished(number, pool, seconds)

    def check(self, gpus):
        """Require what must hold whoever did what."""
        plan, events = self.plan, self.events
        assert sorted(number for _, number, *_ in events) == list(range(len(plan)))
        assert {worker for worker, *_ in events} >= set(gpus)
        if not self.failures:
            assert not [w for w, number, *_ in events if w[0] == "c" and plan.bin[number] == 3]
            for numbers in self.taken.values():  # the largest first
                assert (np.diff(plan.work[numbers]) <= 0).all()
        # every GPU has something to do until what is left is a task each
        last = {gpu: max(end for worker, *_, end in events if worker == gpu) for gpu in gpus}
        longest = max(end - begin for w, _, begin, end in events if w in gpus and end == last[w])
        end = max(last.values())
        assert end - min(last.values()) <= longest + 1e-6
        # nobody waits for a CPU
        assert max((e for w, *_, e in events if w[0] == "c"), default=0) <= end or self.failures


def extend(pool, number):
    raise AssertionError("tasks are done by the clock")


# -- in one process --------------------------------------------------------------------------------


class Threads(Clock):
    """Threads of :func:`run_here`: a task ends when no other ends earlier and all have asked."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.changed = threading.Condition()
        self.running = {}  # end of its task by worker
        self.asking = set(self.speeds)
        self.idle = set()
        self.name_of = {}  # of each thread
        self.take, self.source._take = self.source._take, self.note_taken

    def run(self, gpus):
        cpus = [{"gpu": name} for name in self.speeds if name not in gpus]
        pools = {"gpu": [{"gpu": name} for name in gpus], "cpu": cpus}
        self.source._make = lambda pool, number: Task(pool, number, self.extend, (pool, number))
        run_here(self.source, pools, self.note_finished, self.note_failure)

    def note_taken(self, pool, pools):
        """Note who found nothing; called for one thread at a time."""
        number = self.take(pool, pools)
        if number is None:
            with self.changed:
                name = self.name_of[threading.get_ident()]
                if pool == "gpu":  # only what is not for GPUs is left
                    assert not self.source._waiting[2]
                    assert not self.source._waiting[3]
                self.asking.discard(name)
                self.idle.add(name)
                self.changed.notify_all()
        else:
            self.taken[int(self.plan.bin[number])] += [number] if pool == "gpu" else []
        return number

    def extend(self, pool, number, gpu):
        with self.changed:
            name = self.name_of[threading.get_ident()] = gpu
            begun = self.now
            self.running[name] = begun + self.seconds(name, number)
            self.asking.discard(name)
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self.asking and self.first() == name, 60)
            assert self.first() == name
            self.now = self.running.pop(name)
            self.asking.add(name)
            if self.is_to_fail(name):
                raise EngineError("the GPU fell off")
            self.ended(name, number, begun)
            return pool, number, self.now - begun

    def first(self):
        return min(self.running, key=lambda name: (self.running[name], name))

    def note_finished(self, result):
        self.finished(result)
        self.wake()

    def note_failure(self, worker, error):
        self.failures.append(worker["gpu"])
        self.wake()
        with self.changed:
            self.asking.discard(worker["gpu"])
            self.changed.notify_all()

    def wake(self):
        """Expect those that found nothing to ask again."""
        with self.changed:
            self.asking |= self.idle
            self.idle.clear()


@pytest.mark.parametrize("cpus", [0, 1])
@pytest.mark.parametrize("gpus", GPUS)
def test_gpus_of_one_process_are_busy_to_the_end(gpus, cpus):
    speeds = speeds_of(gpus)
    clock = Threads(make_plan(gpus), speeds, cpus)
    clock.run(speeds)
    clock.check(speeds)


@pytest.mark.parametrize("gpus", GPUS)
def test_a_gpu_of_one_process_is_lost_in_the_middle(gpus):
    speeds = speeds_of(gpus)
    clock = Threads(make_plan(gpus), speeds, 1, ("gpu-1", 4))
    clock.run(speeds)
    assert clock.failures == ["gpu-1"]
    assert sum(worker == "gpu-1" for worker, *_ in clock.events) == 4
    clock.check(speeds.keys() - {"gpu-1"})


# -- on a cluster ----------------------------------------------------------------------------------


class FakeFuture:
    def __init__(self, args, worker):
        self.pool, self.number = args
        self.worker = worker
        self.status = "pending"

    def result(self, timeout):
        return self.pool, self.number, self.took

    def exception(self):
        return self.error

    def release(self):
        pass


class Cluster(Clock):
    """A client of workers that do their tasks in the order in which they came."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.queues = {name: [] for name in self.speeds}
        self.begun = {}

    def run(self, gpus, monkeypatch):
        cpus = [name for name in self.speeds if name not in gpus]
        pools = {"gpu": dict.fromkeys(gpus, 1), "cpu": dict.fromkeys(cpus, 1)}
        self.gpus = gpus
        monkeypatch.setattr(dispatch, "_finished", self.next_that_ends)
        run_tasks(self, self.source, lambda: pools, self.finished, self.note_failure)

    def submit(self, function, *args, key, workers, pure):
        (worker,) = workers
        future = FakeFuture(args, worker)
        self.queues[worker].append(future)
        self.begun.setdefault(worker, self.now)
        return future

    def cancel(self, futures, force):
        for future in futures:
            queue = self.queues[future.worker]
            if future in queue:
                queue.remove(future)

    def next_that_ends(self, flying):
        assert set(flying) == {future for queue in self.queues.values() for future in queue}
        self.check_queues()
        ends = {
            worker: (self.begun[worker] + self.seconds(worker, queue[0].number), worker)
            for worker, queue in self.queues.items()
            if queue
        }
        worker = min(ends, key=ends.get)
        self.now = ends[worker][0]
        future = self.queues[worker].pop(0)
        begun = self.begun.pop(worker)
        if self.queues[worker]:
            self.begun[worker] = self.now
        if self.is_to_fail(worker):
            future.status, future.error = "error", EngineError("the GPU fell off")
        else:
            future.status, future.took = "finished", self.now - begun
            self.ended(worker, future.number, begun)
        return [future]

    def check_queues(self):
        """No GPU is idle while a task waits for another one, or nobody has it."""
        alive = [self.queues[gpu] for gpu in self.gpus if gpu not in self.failures]
        assert max(map(len, self.queues.values())) <= 2
        if not all(alive):
            assert max(map(len, alive)) <= 1
            assert not self.source._waiting[2]
            assert not self.source._waiting[3]

    def note_failure(self, worker, error):
        self.failures.append(worker)


@pytest.mark.parametrize("cpus", [0, 2])
@pytest.mark.parametrize("gpus", GPUS)
def test_gpus_of_a_cluster_are_busy_to_the_end(gpus, cpus, monkeypatch):
    speeds = speeds_of(gpus)
    clock = Cluster(make_plan(gpus), speeds, cpus)
    clock.run(speeds, monkeypatch)
    clock.check(speeds)


@pytest.mark.parametrize("cpus", [0, 2])
@pytest.mark.parametrize("gpus", GPUS)
def test_a_gpu_of_a_cluster_is_lost_in_the_middle(gpus, cpus, monkeypatch):
    speeds = speeds_of(gpus)
    clock = Cluster(make_plan(gpus), speeds, cpus, ("gpu-1", 4))
    clock.run(speeds, monkeypatch)
    assert clock.failures == ["gpu-1"]
    assert sum(worker == "gpu-1" for worker, *_ in clock.events) == 4
    clock.check(speeds.keys() - {"gpu-1"})
