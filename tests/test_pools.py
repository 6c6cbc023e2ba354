"""GPU and CPU workers together: who takes what, deaths, and the same bytes whoever did it.

There is no GPU here: the GPU workers are CPU workers with the resource GPU and a stand-in for the
engine (fake_gpu.py).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import fake_gpu
import numpy as np
import pytest
from pooled import assert_same, extend_small, extend_whole

import dlasm
import dlasm.cluster as cluster
import dlasm.store as store
from dlasm.dispatch import PartitionSource, Task, run_here
from dlasm.engines import choose
from dlasm.errors import ClusterError, EngineError, ParameterError, ReadsError
from dlasm.gpus import Gpu, GpuChoice
from dlasm.partition import Plan
from dlasm.report import Progress

UUIDS = [f"GPU-{number:08d}-0000-0000-0000-000000000000" for number in range(2)]
GPUS = [Gpu(str(number), uuid, "Fake") for number, uuid in enumerate(UUIDS)]


# -- the order of partitions -----------------------------------------------------------------------


def make_source(bins, work):
    plan = Plan(
        contig=np.arange(len(bins)),
        start=np.arange(len(bins) + 1),
        bin=np.array(bins, dtype=np.uint8),
        work=np.array(work),
    )
    numbers = range(len(bins))
    return PartitionSource(plan, numbers, lambda pool, number: Task(pool, number, print))


def take(source, pool, pools):
    task = source.next(pool, pools)
    return None if task is None else task.number


BOTH = {"gpu": 1, "cpu": 1}


def test_gpus_take_bin_3_then_bin_2_from_the_large_end():
    source = make_source([2, 2, 3, 3, 2], [5, 9, 1, 2, 7])
    assert [take(source, "gpu", BOTH) for _ in range(6)] == [3, 2, 1, 4, 0, None]


def test_cpus_take_bin_2_from_the_small_end_and_never_bin_3():
    source = make_source([2, 2, 3, 3, 2], [5, 9, 1, 2, 7])
    assert [take(source, "cpu", BOTH) for _ in range(4)] == [0, 4, 1, None]
    assert len(source) == 2


@pytest.mark.parametrize("pool", ["gpu", "cpu"])
def test_a_pool_alone_takes_everything(pool):
    source = make_source([2, 2, 3, 3, 2], [5, 9, 1, 2, 7])
    assert [take(source, pool, {pool: 3}) for _ in range(6)] == [3, 2, 1, 4, 0, None]


def test_cpus_take_what_they_finish_in_time():
    source = make_source([3, 3, *[2] * 7], [60, 60, 64, 32, 16, 8, 4, 2, 1])
    assert take(source, "gpu", BOTH) == 0
    assert take(source, "cpu", BOTH) == 8
    source.finished(8, "cpu", 1.0)  # a unit a second
    assert take(source, "cpu", BOTH) == 7  # the pace of the GPU is not known
    source.finished(7, "cpu", 2.0)
    source.finished(0, "gpu", 6.0)  # ten a second: 18.4 s for all that is left
    assert take(source, "gpu", BOTH) == 1
    assert take(source, "cpu", BOTH) == 6  # 4 s, less than 0.3 of that
    source.finished(6, "cpu", 4.0)
    source.finished(1, "gpu", 6.0)
    assert take(source, "cpu", BOTH) is None  # 8 s of work, and GPUs need 12
    assert [take(source, "gpu", BOTH) for _ in range(5)] == [2, 3, 4, 5, None]


def test_a_cpu_may_take_large_pieces_while_much_is_left():
    source = make_source([3, *[2] * 4], [10_000, 64, 32, 8, 1])
    assert take(source, "cpu", BOTH) == 4
    assert take(source, "gpu", BOTH) == 0
    source.finished(4, "cpu", 1.0)
    source.finished(0, "gpu", 100.0)
    assert take(source, "cpu", BOTH) is None  # GPUs finish in a second
    source = make_source([3, 3, *[2] * 4], [10_000, 10_000, 64, 32, 8, 1])
    assert take(source, "gpu", BOTH) == 0
    assert take(source, "cpu", BOTH) == 5
    source.finished(5, "cpu", 1.0)
    source.finished(0, "gpu", 200.0)
    assert take(source, "cpu", BOTH) == 3  # the largest that takes less than 60 s
    assert take(source, "cpu", BOTH) == 4


def test_without_gpus_left_the_cpus_take_bin_3():
    source = make_source([2, 3, 3], [5, 9, 1])
    task = source.next("gpu", BOTH)
    assert task.number == 1
    assert take(source, "cpu", BOTH) == 0
    assert take(source, "cpu", BOTH) is None
    source.give_back(task, "gpu", died=False)
    assert [take(source, "cpu", {"cpu": 1}) for _ in range(3)] == [1, 2, None]


def test_a_partition_that_a_gpu_worker_died_of_goes_to_the_cpus():
    source = make_source([2, 3], [5, 9])
    task = source.next("gpu", BOTH)
    source.give_back(task, "gpu", died=True)
    assert take(source, "gpu", BOTH) == 0
    assert take(source, "gpu", BOTH) is None
    assert take(source, "cpu", BOTH) == 1
    source = make_source([3], [9])
    source.give_back(source.next("gpu", {"gpu": 1}), "gpu", died=True)
    assert take(source, "gpu", {"gpu": 1}) == 0  # there is nobody else


# -- without a cluster -----------------------------------------------------------------------------


def run_threads(bins, work, pools, function, failures=None):
    source = make_source(bins, work)
    source._make = lambda pool, number: Task(pool, number, function, (pool, number))
    results = []

    def done(result):
        pool, number = result
        source.finished(number, pool, 0.01)
        results.append(result)

    def failed(worker, error):
        failures.append((worker["gpu"], str(error)))

    run_here(source, pools, done, failed)
    return results


def test_threads_share_the_partitions():
    seen = set()

    def extend(pool, number, gpu=None):
        seen.add((pool, gpu, threading.get_ident()))
        time.sleep(0.01)
        return pool, number

    pools = {"gpu": [{"gpu": "a"}, {"gpu": "b"}], "cpu": [{}]}
    results = run_threads([3, 3, 3, *[2] * 30], range(33), pools, extend)
    assert sorted(number for _, number in results) == list(range(33))
    assert {pool for pool, number in results if number < 3} == {"gpu"}
    assert {(pool, gpu) for pool, gpu, _ in seen} == {("gpu", "a"), ("gpu", "b"), ("cpu", None)}
    assert len({thread for *_, thread in seen}) == 3


@pytest.mark.parametrize(
    ("pool", "error"), [("gpu", ReadsError), ("cpu", ReadsError), ("cpu", EngineError)]
)
def test_an_error_in_any_thread_ends_all(pool, error):
    both = threading.Barrier(2)

    def extend(here, number, gpu=None):
        if number in (0, 1):  # the largest and the smallest, which both pools take first
            both.wait(60)
        if here == pool:
            raise error("it is on fire")
        return here, number

    with pytest.raises(error, match="on fire"):
        run_threads([3, *[2] * 9], [99, *range(9)], {"gpu": [{}], "cpu": [{}]}, extend)


def test_what_a_gpu_failed_at_is_done_by_the_cpus_and_it_gets_no_more():
    tried, failures = [], []
    both = threading.Barrier(2)

    def extend(pool, number, gpu=None):
        if gpu is not None:
            if gpu not in tried:
                both.wait(60)
            tried.append(gpu)
        if gpu == "a":
            raise EngineError("the GPU is on fire")
        return pool, number

    results = run_threads(
        [3] * 20, range(20), {"gpu": [{"gpu": "a"}, {"gpu": "b"}], "cpu": [{}]}, extend, failures
    )
    assert sorted(number for _, number in results) == list(range(20))
    assert tried.count("a") == len(failures) == 1
    assert [pool for pool, _ in results].count("cpu") == 1


def test_when_all_gpus_failed_the_cpus_do_the_rest():
    def extend(pool, number, gpu=None):
        if pool == "gpu":
            raise EngineError("the GPU is on fire")
        return pool, number

    failures = []
    pools = {"gpu": [{"gpu": "a"}, {"gpu": "b"}], "cpu": [{}]}
    results = run_threads([3] * 6, range(6), pools, extend, failures)
    assert sorted(results) == [("cpu", number) for number in range(6)]
    assert sorted(failures) == [("a", "the GPU is on fire"), ("b", "the GPU is on fire")]
    failures = []
    with pytest.raises(
        EngineError, match=r"on fire; no other worker is left.*--resume --gpus none"
    ):
        run_threads([3] * 6, range(6), {"gpu": pools["gpu"]}, extend, failures)
    assert len(failures) == 1


def test_what_a_gpu_failed_at_comes_last_where_there_are_only_gpus():
    source = make_source([3, 3, 2], [9, 5, 1])
    source.give_back(source.next("gpu", {"gpu": 2}), "gpu", died=True)
    assert [take(source, "gpu", {"gpu": 1}) for _ in range(4)] == [1, 2, 0, None]
    source = make_source([3, 3, 2], [9, 5, 1])
    source.give_back(source.next("gpu", BOTH), "gpu", died=True)
    assert [take(source, "cpu", {"cpu": 1}) for _ in range(4)] == [0, 1, 2, None]


@pytest.fixture(scope="module")
def whole(community, tmp_path_factory):
    """A run without a cluster and without a GPU."""
    return extend_whole(community, tmp_path_factory.mktemp("whole") / "run")


def check_pools(run) -> dict:
    """Require that the figures of the pools add up."""
    summary = run.summary()
    pools = summary["pools"]
    assert sum(about["partitions"] for about in pools.values()) == summary["partitions"]
    with_reads = summary["bins"]["2"] + summary["bins"]["3"]
    assert sum(about["contigs"] for about in pools.values()) == with_reads
    return pools


@pytest.fixture
def machine_with_gpus(monkeypatch):
    """Two GPUs whose engine is the CPU engine."""
    monkeypatch.setattr("dlasm.gpus.find_gpus", lambda: (GPUS, ""))
    monkeypatch.setattr("dlasm.gpus._is_installed", lambda package: True)
    for name in ("cpu", "gpu"):
        monkeypatch.setitem(choose.ENGINES, name, fake_gpu.FakeEngine(name))


@pytest.mark.parametrize("gpus", ["0", [1, UUIDS[0]]])
def test_a_gpu_in_one_process(community, whole, tmp_path, machine_with_gpus, gpus):
    run = extend_small(community, tmp_path / "o", gpus=gpus, kernel="v2", workers=0)
    assert_same(run, whole)
    pools = check_pools(run)
    assert pools["gpu"]["kernel"] == "v2"
    check_gpus(pools, UUIDS)
    assert pools["gpu"]["kernel_ms"] == pools["gpu"]["partitions"] > 1
    log = (run.path / "dlasm.log").read_text()
    assert "extend gpu: partition" in log
    assert "extend cpu: partition" in log
    # neither takes part in what a run must have in common with one that it continues
    assert extend_small(community, tmp_path / "o", gpus="none", resume=True).path == run.path


def check_gpus(pools, uuids) -> None:
    """Require that the figures of the GPUs add up to those of their pool."""
    gpus = pools["gpu"]["gpus"]
    assert gpus.keys() <= {uuid.removeprefix("GPU-") for uuid in uuids}
    for name in ("contigs", "partitions", "kernel_ms"):
        assert sum(about[name] for about in gpus.values()) == pools["gpu"][name] > 0


def test_eight_gpus_in_one_process(community, whole, tmp_path, machine_with_gpus, monkeypatch):
    gpus = [Gpu(str(number), f"GPU-{number}000", "Fake") for number in range(8)]
    monkeypatch.setattr("dlasm.gpus.find_gpus", lambda: (gpus, ""))
    run = extend_small(community, tmp_path / "o", gpus=range(8), workers=0, partition_bytes=1_000)
    assert_same(run, whole)
    check_gpus(check_pools(run), [gpu.uuid for gpu in gpus])


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


def test_pools_count_what_earlier_attempts_did(
    community, whole, tmp_path, machine_with_gpus, failures, monkeypatch
):
    write, calls = store.write_partition, 0

    def stop_after_the_third(*arguments):
        nonlocal calls
        calls += 1
        if calls > 3 and (tmp_path / "failures").read_text() == "0":
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("dlasm.store.write_partition", stop_after_the_third)
        with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match="on fire"):
            extend_small(community, tmp_path / "o", gpus="0,1", kernel="v1", workers=0)
    done = [
        store.read_about(path.parent, int(path.stem))
        for path in (tmp_path / "o").glob("work.*/partitions/*.npz")
    ]
    assert len(done) >= 3
    by_gpus = [about for about in done if about["pool"] == "gpu"]
    run = extend_small(community, tmp_path / "o", gpus="none", resume=True)
    pools = check_pools(run)
    assert pools["gpu"]["failed"] == 1
    assert pools["gpu"]["partitions"] == len(by_gpus)
    assert pools["cpu"]["partitions"] > len(done) - len(by_gpus)
    assert pools["gpu"].get("kernel_ms", 0) == len(by_gpus)
    assert pools["gpu"].get("kernel", "v1") == "v1"
    assert "on fire" in run.summary()["warnings"][0]
    assert_same(run, whole)


def test_what_is_left_after_extending_starts_neither_cuda_nor_workers(
    community, whole, tmp_path, machine_with_gpus, monkeypatch
):
    def unexpected(*arguments, **options):
        raise AssertionError("an engine or a cluster is started")

    for name in ("figures", "finalise"):
        output = tmp_path / name
        with monkeypatch.context() as patched:
            patched.setattr(f"dlasm.pipeline.{name}", interrupt)
            with pytest.raises(KeyboardInterrupt):
                extend_small(community, output, gpus="0", workers=0)
        with monkeypatch.context() as patched:
            patched.setattr("dlasm.pipeline.prepare", unexpected)
            patched.setattr("dlasm.cluster.start_cluster", unexpected)
            patched.setattr("dlasm.cluster.check_workers", unexpected)
            options = [{"gpus": "0", "workers": 1}, {"client": object()}, {"gpus": "0"}]
            for more in options:
                shutil.copytree(output, tmp_path / "copy")
                run = extend_small(community, tmp_path / "copy", resume=True, **more)
                assert "gpu" in check_pools(run)
                assert_same(run, whole)
                shutil.rmtree(tmp_path / "copy")


def test_small_inputs_use_no_gpu_by_themselves(community, whole, tmp_path, machine_with_gpus):
    assert set(check_pools(extend_small(community, tmp_path / "o"))) == {"cpu"}


@pytest.mark.parametrize("asked", [{"gpus": "auto"}, {"kernel": "fast"}])
def test_why_no_gpu_is_used_is_told_if_one_was_asked_for(
    community, tmp_path, machine_with_gpus, monkeypatch, asked
):
    def warnings_of(output, **options):
        progress = Warned()
        run = extend_small(community, tmp_path / output, progress=progress, **options)
        assert set(check_pools(run)) == {"cpu"}
        assert all(line in (run.path / "dlasm.log").read_text() for line in progress.warned)
        return progress.warned

    small = "no GPU is used: the input is small; --gpus 0 uses one for it all the same"
    assert warnings_of("a", **asked, workers=0) == [small]
    assert warnings_of("b", workers=0) == []
    assert warnings_of("c", **{**asked, "gpus": "none"}, workers=0) == []
    monkeypatch.setattr("dlasm.gpus.find_gpus", lambda: ([], "there is no NVIDIA driver"))
    assert warnings_of("d", **asked, workers=0) == ["no GPU is used: there is no NVIDIA driver"]
    monkeypatch.setattr("dlasm.pipeline.GPU_BYTES", 1)
    assert warnings_of("e", workers=0) == []
    with cluster.local_cluster(1, 1, gpus="none", dashboard=False) as client:
        said = ["no GPU is used: no worker of the cluster has the resource GPU"]
        assert warnings_of("f", **asked, client=client) == said
        assert warnings_of("g", client=client) == []


def test_large_inputs_do(community, whole, tmp_path, machine_with_gpus, monkeypatch):
    monkeypatch.setattr("dlasm.pipeline.GPU_BYTES", 1)
    run = extend_small(community, tmp_path / "o", workers=0)
    assert "gpu" in check_pools(run)
    assert_same(run, whole)


class Broken(fake_gpu.FakeEngine):
    def prepare(self, kernel, gpu):
        raise EngineError(f"CUDA device {gpu} is gone")


def test_a_gpu_that_does_not_start(community, whole, tmp_path, machine_with_gpus, monkeypatch):
    monkeypatch.setitem(choose.ENGINES, "gpu", Broken("gpu"))
    monkeypatch.setattr("dlasm.pipeline.GPU_BYTES", 1)
    run = extend_small(community, tmp_path / "p", workers=0)
    assert set(check_pools(run)) == {"cpu"}
    assert "no GPU is used" in (run.path / "dlasm.log").read_text()
    assert_same(run, whole)


def test_a_named_gpu_that_does_not_start_is_told_before_reads_are_mapped(
    community, whole, tmp_path, machine_with_gpus, monkeypatch
):
    def unexpected(*arguments, **options):
        raise AssertionError("reads are mapped")

    with monkeypatch.context() as patched:
        patched.setitem(choose.ENGINES, "gpu", Broken("gpu"))
        patched.setattr("dlasm.recruit.recruit_batch", unexpected)
        with pytest.raises(
            EngineError, match=rf"GPU 0 \(.*{UUIDS[0]} is gone.*--resume --gpus none"
        ):
            extend_small(community, tmp_path / "o", gpus="0", workers=0)
    run = extend_small(community, tmp_path / "o", gpus="none", workers=0, resume=True)
    assert_same(run, whole)


@pytest.fixture
def failures(tmp_path, monkeypatch):
    """One GPU is to fail at a partition."""
    (tmp_path / "failures").write_text("1")
    monkeypatch.setenv(fake_gpu.FAILURES, str(tmp_path / "failures"))


def check_failure(run, warned):
    """Require that the failure of a GPU is told everywhere."""
    assert warned
    assert "failed: the GPU is on fire; the run goes on without it" in warned[0]
    summary = run.summary()
    assert summary["warnings"] == warned
    assert summary["pools"]["gpu"]["failed"] == 1
    assert warned[0] in (run.path / "dlasm.log").read_text()


class Warned(Progress):
    def __init__(self):
        self.warned = []

    def warn(self, text):
        self.warned.append(text)


@pytest.mark.parametrize("gpus", ["0", "0,1"])
def test_a_gpu_that_fails_in_the_middle(
    community, whole, tmp_path, machine_with_gpus, failures, gpus
):
    progress = Warned()
    run = extend_small(community, tmp_path / "o", gpus=gpus, workers=0, progress=progress)
    assert_same(run, whole)
    check_pools(run)
    check_failure(run, progress.warned)
    assert re.match("GPU [01] failed", progress.warned[0])


def test_what_cannot_be_meant(community, tmp_path, machine_with_gpus):
    with pytest.raises(ClusterError, match=r"GPU 7 was asked for.*available: 0 \(Fake, GPU-0"):
        extend_small(community, tmp_path / "p", gpus="7", workers=0)
    with pytest.raises(ParameterError, match="kernel is 'v3'"):
        extend_small(community, tmp_path / "p", kernel="v3")
    with pytest.raises(ParameterError, match="give 'auto', 'none'"):
        extend_small(community, tmp_path / "p", gpus="all")
    with pytest.raises(ParameterError, match="whose workers have theirs"):
        extend_small(community, tmp_path / "p", gpus="0", client=object())
    assert not (tmp_path / "p").exists()


def test_instances_of_a_gpu_need_a_process_each(
    community, tmp_path, machine_with_gpus, monkeypatch
):
    parts = [Gpu(f"0:{number}", f"MIG-{number}", "Fake MIG") for number in range(2)]
    monkeypatch.setattr("dlasm.gpus.find_gpus", lambda: (parts, ""))
    with pytest.raises(ParameterError, match=r"GPU 0:1 .*give --workers 1"):
        extend_small(community, tmp_path / "o", gpus="0:0,0:1", workers=0)
    assert not (tmp_path / "o").exists()
    run = extend_small(community, tmp_path / "o", gpus="0:0", workers=0)
    assert "gpu" in check_pools(run)


def test_command_line(community, tmp_path, machine_with_gpus):
    from click.testing import CliRunner

    from dlasm.cli import main

    first, second = map(str, community.reads_paths)
    given = ["extend", str(community.contigs_path), "-1", first, "-2", second, "--workers", "0"]
    done = CliRunner().invoke(main, [*given, "-o", str(tmp_path / "o"), "--gpus", "1"])
    assert done.exit_code == 0, done.output
    assert re.search(
        r"extended by GPU: [\d,]+ contigs in \d+ partitions, \d+\.\d+ s, kernel fast", done.output
    )
    done = CliRunner().invoke(main, [*given, "-o", str(tmp_path / "p"), "--gpus", "7"])
    assert done.exit_code == 1
    assert "GPU 7 was asked for, and 7 is not there; available: 0 (Fake" in done.output
    for wrong in (["--gpus", "all"], ["--kernel", "v9"]):
        done = CliRunner().invoke(main, [*given, "-o", str(tmp_path / "p"), *wrong])
        assert done.exit_code == 2, done.output
    done = CliRunner().invoke(main, [*given, "-o", str(tmp_path / "q"), "-q"])
    assert done.output == ""
    done = CliRunner().invoke(main, [*given, "-o", str(tmp_path / "r"), "-q", "--gpus", "auto"])
    assert done.output.startswith("Warning: no GPU is used: the input is small; --gpus 0")


def test_gpus_are_not_named_for_a_cluster_that_is_joined(community, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from dlasm.cli import main

    def unexpected(*arguments):
        raise AssertionError("a scheduler is looked for")

    monkeypatch.setattr("dlasm.cluster.connect", unexpected)
    given = ["extend", str(community.contigs_path), "-r", str(community.reads_paths[0])]
    for where in (["--scheduler", "tcp://127.0.0.1:1"], ["--scheduler-file", "s.json"]):
        done = CliRunner().invoke(main, [*given, *where, "--gpus", "0", "-o", str(tmp_path / "o")])
        assert done.exit_code == 2
        assert "give --gpus auto or none" in done.output


# -- with a cluster --------------------------------------------------------------------------------


def fake_cuda_cluster(uuids, options):
    """What LocalCUDACluster is, as far as it matters here."""
    from distributed import LocalCluster

    preload = [*options.get("preload", []), fake_gpu.__file__]
    return LocalCluster(
        n_workers=len(uuids), resources={"GPU": 1}, **{**options, "preload": preload}
    )


@contextmanager
def fake_cluster(gpus, cpus, environment=None):
    """Two pools on one scheduler."""
    from distributed import Client

    options = {
        "threads_per_worker": 1,
        "processes": True,
        "host": "127.0.0.1",
        "scheduler_port": 0,
        "dashboard_address": ":0",
        "scheduler_kwargs": {"dashboard": False},
        "silence_logs": logging.ERROR,
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (environment or {}).items():
            patched.setenv(name, value)
        with fake_cuda_cluster(UUIDS[:1] * gpus, options) as pool:
            cluster.add_cpu_workers(pool, cpus, 1)
            with Client(pool) as client:
                yield client


def test_two_gpu_workers_and_two_cpu_workers(community, whole, tmp_path):
    with fake_cluster(2, 2) as client:
        pools = cluster.worker_pools(client)
        assert {pool: len(members) for pool, members in pools.items()} == {"gpu": 2, "cpu": 2}
        assert set(cluster.cpu_pools(client)["cpu"]) == set(pools["cpu"])
        assert set(cluster.worker_pools(client, gpus=False)) == {"cpu"}
        seen = client.run(os.getenv, "CUDA_VISIBLE_DEVICES", workers=list(pools["cpu"]))
        assert set(seen.values()) == {""}
        run = extend_small(community, tmp_path / "o", client=client)
        assert_same(run, whole)
        assert check_pools(run)["gpu"]["partitions"] >= 2
        names = task_names(client)
        assert "extend_gpu_bin3" in names
        assert "extend_cpu_bin2" in names
        assert "extend_cpu_bin3" not in names
        run = extend_small(community, tmp_path / "p", client=client, gpus="none")
        assert set(check_pools(run)) == {"cpu"}
        assert_same(run, whole)


def task_names(client):
    """Names of the tasks that ran."""
    return client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.task_prefixes))


def test_cpus_are_not_waited_for(community, whole, tmp_path):
    """Slow CPU workers take one partition each, and the GPU the rest."""
    with fake_cluster(1, 2, {fake_gpu.SLOW: "cpu:1.0"}) as client:
        client.run(fake_gpu_install, workers=list(cluster.worker_pools(client)["cpu"]))
        run = extend_small(community, tmp_path / "o", client=client)
    pools = check_pools(run)
    assert pools["cpu"]["partitions"] <= 4  # one that runs and one that waits
    assert_same(run, whole)


def fake_gpu_install():
    sys.path.insert(0, str(Path(__file__).parent))
    import fake_gpu

    fake_gpu.install()


@pytest.mark.parametrize("deaths", [1, 3])
def test_gpu_workers_that_die(community, whole, tmp_path, deaths):
    (tmp_path / "deaths").write_text(str(deaths))
    with fake_cluster(2, 1, {fake_gpu.DEATHS: str(tmp_path / "deaths")}) as client:
        run = extend_small(community, tmp_path / "o", client=client)
    # a worker may come back too late to die again
    assert int((tmp_path / "deaths").read_text()) < deaths
    check_pools(run)
    assert_same(run, whole)


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_gpu_of_a_cluster_that_fails_in_the_middle(community, whole, tmp_path, failures, gpus):
    progress = Warned()
    with fake_cluster(gpus, 1) as client:
        addresses = cluster.worker_pools(client)["gpu"]
        run = extend_small(community, tmp_path / "o", client=client, progress=progress)
    assert_same(run, whole)
    check_pools(run)
    check_failure(run, progress.warned)
    assert any(f"the GPU of worker {address} failed" in progress.warned[0] for address in addresses)


def test_gpu_workers_that_share_a_gpu(community, whole, tmp_path):
    progress = Warned()
    with fake_cluster(2, 1, {fake_gpu.GPU: FIRST}) as client:
        addresses = sorted(cluster.worker_pools(client)["gpu"])
        run = extend_small(community, tmp_path / "o", client=client, progress=progress)
        took_part = client.run(took_part_in_extending)
    assert took_part[addresses[0]]
    assert not took_part[addresses[1]]
    (said,) = progress.warned
    assert f"workers {addresses[0]} and {addresses[1]} have the same GPU ({FIRST})" in said
    check_pools(run)
    assert_same(run, whole)


def took_part_in_extending(dask_worker):
    return any(str(entry[0]).startswith("extend_") for entry in dask_worker.state.log)


def test_when_the_only_gpu_fails_the_run_can_go_on_later(community, whole, tmp_path, failures):
    with fake_cluster(1, 0) as client:
        with pytest.raises(EngineError, match="on fire; no other worker is left"):
            extend_small(community, tmp_path / "o", client=client)
        run = extend_small(community, tmp_path / "o", client=client, gpus="none", resume=True)
    assert_same(run, whole)


def test_when_all_gpu_workers_are_gone_the_cpus_do_the_rest(community, whole, tmp_path):
    with fake_cluster(1, 1, {fake_gpu.SLOW: "gpu:0.3"}) as client:
        gpus = list(cluster.worker_pools(client)["gpu"])
        killer = threading.Timer(1.0, client.retire_workers, (gpus,), {"close_workers": True})
        progress = StartOnExtend(killer)
        run = extend_small(community, tmp_path / "o", client=client, progress=progress)
        killer.join()
        assert "gpu" not in cluster.worker_pools(client)
    pools = check_pools(run)
    assert pools["cpu"]["partitions"] > pools.get("gpu", {"partitions": 0})["partitions"]
    assert_same(run, whole)


class StartOnExtend(Progress):
    def __init__(self, timer):
        self.timer = timer

    def stage(self, name, total=None, unit=""):
        if name == "extend":
            self.timer.start()


def test_a_gpu_worker_without_cupy_is_explained(community, tmp_path):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, resources={"GPU": 1}, dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as pool,
        Client(pool) as client,
    ):  # fmt: skip
        if client.submit(has_cupy).result():
            pytest.skip("CuPy is here")
        with pytest.raises(ClusterError, match=r"has the resource GPU.*needs CuPy.*--gpus none"):
            extend_small(community, tmp_path / "o", client=client)
        run = extend_small(community, tmp_path / "o", client=client, gpus="none", resume=True)
        assert set(check_pools(run)) == {"cpu"}


def has_cupy():
    import importlib.util

    return importlib.util.find_spec("cupy") is not None


# -- local_cluster ---------------------------------------------------------------------------------


def test_without_gpus_a_line_says_why(capsys, monkeypatch):
    monkeypatch.setattr("dlasm.gpus.find_gpus", lambda: ([], "there is no NVIDIA driver"))
    with cluster.local_cluster(1, 1, dashboard=False) as client:
        assert set(cluster.worker_pools(client)) == {"cpu"}
    assert capsys.readouterr().out == "no GPU is used: there is no NVIDIA driver\n"
    for workers, gpus, why in (
        (0, None, r" \(there is no NVIDIA driver\)"),
        (0, "none", ""),
        (-1, "none", ""),
    ):
        with (
            pytest.raises(ParameterError, match=f"at least 1 where no GPU is used{why}$"),
            cluster.local_cluster(workers, gpus=gpus),
        ):
            pass
    with pytest.raises(ParameterError, match="threads are 0"), cluster.local_cluster(1, 0):
        pass
    with (
        pytest.raises(ClusterError, match="GPU 0 was asked for, and none can be used: there is no"),
        cluster.local_cluster(1, 1, gpus=[0]),
    ):
        pass
    with cluster.local_cluster(1, 1, dashboard=False, gpus="none"):
        pass
    assert capsys.readouterr().out == ""


def test_local_cluster_with_gpus(machine_with_gpus, monkeypatch, capfd):
    given = []

    def start(uuids, options):
        given.extend(uuids)
        return fake_cuda_cluster(uuids, options)

    checked = []
    monkeypatch.setattr(cluster, "_start_gpu_workers", start)
    monkeypatch.setattr(cluster, "_check_gpus", lambda client, chosen, say: checked.append(chosen))
    with cluster.local_cluster(2, 3, gpus="1", dashboard=False) as client:
        pools = cluster.worker_pools(client)
        assert {pool: len(members) for pool, members in pools.items()} == {"gpu": 1, "cpu": 2}
        threads = client.run(os.getenv, "DLASM_THREADS", workers=list(pools["cpu"]))
        assert set(threads.values()) == {"3"}
        resources = client.run_on_scheduler(
            lambda dask_scheduler: [dict(w.resources) for w in dask_scheduler.workers.values()]
        )
        assert sorted(map(len, resources)) == [0, 0, 1]
    assert given == UUIDS[1:]
    assert [choice.gpus for choice in checked] == [GPUS[1:]]
    assert capfd.readouterr() == ("", "")


def test_gpus_that_do_not_start_leave_it_to_the_cpus(
    community, whole, tmp_path, machine_with_gpus, monkeypatch, capfd
):
    def fail(uuids, options):
        raise RuntimeError("CUDA_ERROR_UNKNOWN")

    monkeypatch.setattr(cluster, "_start_gpu_workers", fail)
    with cluster.local_cluster(1, 1, dashboard=False) as client:
        assert set(cluster.worker_pools(client)) == {"cpu"}
    assert capfd.readouterr() == ("no GPU is used: CUDA_ERROR_UNKNOWN\n", "")
    for workers, gpus in ((1, "0"), (0, None)):
        with (
            pytest.raises(ClusterError, match=r"CUDA_ERROR_UNKNOWN.*--gpus none"),
            cluster.local_cluster(workers, 1, gpus=gpus, dashboard=False),
        ):
            pass
    monkeypatch.setattr("dlasm.pipeline.GPU_BYTES", 1)
    run = extend_small(community, tmp_path / "o", workers=1, dashboard=False)
    assert set(check_pools(run)) == {"cpu"}
    assert "no GPU is used: CUDA_ERROR_UNKNOWN" in (run.path / "dlasm.log").read_text()
    assert_same(run, whole)
    with pytest.raises(ClusterError, match=r"CUDA_ERROR_UNKNOWN.*--gpus none"):
        extend_small(community, tmp_path / "p", workers=1, gpus="0", dashboard=False)
    assert not (tmp_path / "p").exists()


def test_gpu_workers_without_their_gpu_are_closed(machine_with_gpus, monkeypatch, capfd):
    monkeypatch.setattr(cluster, "_start_gpu_workers", fake_cuda_cluster)
    monkeypatch.setattr(cluster, "_own_gpu", only_the_first_has_one)
    with cluster.local_cluster(1, 1, dashboard=False) as client:
        pools = cluster.worker_pools(client)
        assert {pool: len(members) for pool, members in pools.items()} == {"gpu": 1, "cpu": 1}
    said = capfd.readouterr().out
    assert re.fullmatch(r"a GPU is not used: GPU worker \S+ cannot use its GPU: no context\n", said)
    monkeypatch.setattr(cluster, "_own_gpu", nobody_has_one)
    with cluster.local_cluster(1, 1, dashboard=False) as client:
        assert set(cluster.worker_pools(client)) == {"cpu"}
    assert re.fullmatch(r"no GPU is used: GPU worker \S+ .* no context\n", capfd.readouterr().out)


def only_the_first_has_one(dask_worker):
    if dask_worker.name != 0:
        raise EngineError("no context")
    return UUIDS[0].removeprefix("GPU-"), UUIDS[0].removeprefix("GPU-")


def nobody_has_one():
    raise EngineError("no context")


class FakeClient:
    """Answers as GPU workers would."""

    def __init__(self, answers, cpus=()):
        self.answers = answers
        self.cpus = cpus
        self.closed = []

    def scheduler_info(self, n_workers):
        gpus = {address: {"nthreads": 1, "resources": {"GPU": 1.0}} for address in self.answers}
        return {"workers": {**gpus, **{address: {"nthreads": 1} for address in self.cpus}}}

    def run(self, function, workers, on_error):
        return self.answers

    def retire_workers(self, workers, close_workers):
        self.closed += workers


FIRST, SECOND = (uuid.removeprefix("GPU-") for uuid in UUIDS)
FAULTS = [
    ({"a": (FIRST, FIRST), "b": (SECOND, FIRST)}, f"b was given GPU {SECOND} and has {FIRST}"),
    ({"a": (FIRST, FIRST), "b": (FIRST, FIRST)}, f"b was given GPU {FIRST} and has {FIRST}"),
    ({"a": (FIRST, FIRST)}, rf"no worker came up for GPU 1 \(Fake, {UUIDS[1]}"),
    ({"a": (FIRST, FIRST), "b": EngineError("no CuPy")}, "b cannot use its GPU: no CuPy"),
]


@pytest.mark.parametrize(("answers", "said"), FAULTS)
def test_each_gpu_worker_must_have_its_own_gpu(answers, said):
    lines = []
    good = FakeClient({"a": (FIRST, FIRST), "b": (SECOND, SECOND)})
    cluster._check_gpus(good, GpuChoice(GPUS, asked=True), lines.append)
    assert lines == good.closed == []
    client = FakeClient(answers)
    with pytest.raises(ClusterError, match=rf"{said}.* \(--gpus none does without\)"):
        cluster._check_gpus(client, GpuChoice(GPUS, asked=True), lines.append)
    assert lines == client.closed == []
    cluster._check_gpus(client, GpuChoice(GPUS), lines.append)
    assert client.closed == list(answers)[1:]
    assert re.match(f"a GPU is not used: .*{said}", lines[0])


def test_gpu_workers_without_any_gpu_are_an_error_if_nobody_else_is_there():
    answers = {"a": EngineError("no CuPy"), "b": EngineError("no CuPy")}
    lines = []
    with pytest.raises(ClusterError, match="a cannot use its GPU: no CuPy"):
        cluster._check_gpus(FakeClient(answers), GpuChoice(GPUS), lines.append)
    cluster._check_gpus(FakeClient(answers, cpus=["c"]), GpuChoice(GPUS), lines.append)
    assert lines == ["no GPU is used: GPU worker a cannot use its GPU: no CuPy"]


def test_nothing_of_cuda_is_imported_by_the_client():
    program = (
        "import sys, dlasm, dlasm.cli, dlasm.cluster, dlasm.pipeline\n"
        "from dlasm.gpus import find_gpus\n"
        "find_gpus()\n"
        "print([name for name in ('cupy', 'cuda', 'dask_cuda', 'numba') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(dlasm.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.replace("'", '"')) == []
