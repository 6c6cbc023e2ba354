"""Dask clusters: same bytes as without one, workers that die, clusters that are joined."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import dask
import numpy as np
import pytest
from faults import ENVIRONMENT, external_cluster

import dlasm
from dlasm.cluster import check_workers, cpu_pools, dashboard_hint, local_cluster
from dlasm.dispatch import PartitionSource, SequenceSource, Task, run_tasks
from dlasm.errors import ClusterError, ParameterError, ReadsError
from dlasm.partition import Plan

WORKFLOWS = Path(__file__).resolve().parents[1] / "workflows"


@pytest.fixture(scope="module")
def client():
    with local_cluster(2, 1, dashboard=False) as client:
        yield client


def assert_same(run, whole) -> None:
    for name in ("extended.fasta", "extensions.tsv"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert run.summary()["libraries"] == whole.summary()["libraries"]


# -- runs ------------------------------------------------------------------------------------------


def extend_small(community, output, monkeypatch, **options):
    """Run with many small batches and partitions."""
    import dlasm.io.fastq as fastq

    with monkeypatch.context() as patched:
        small = functools.partial(fastq.iter_batches, batch_reads=200)
        patched.setattr(fastq, "iter_batches", small)
        patched.setattr("dlasm.pipeline.BATCHES_PER_RUN", 2)
        return dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=output,
            partition_bytes=20_000,
            **options,
        )


def test_two_workers_give_the_same_bytes(community, whole, client, tmp_path, monkeypatch):
    run = extend_small(community, tmp_path / "o", monkeypatch, client=client)
    assert_same(run, whole)
    summary = run.summary()
    assert summary["partitions"] > 4
    assert summary["stages"]["extend"]["worker_peak_rss_bytes"] > 1 << 20
    assert summary["stages"]["candidates"]["worker_peak_rss_bytes"] > 1 << 20


@pytest.mark.parametrize("workers", [1, 4])
def test_other_numbers_of_workers_give_the_same_bytes(
    community, whole, tmp_path, monkeypatch, workers
):
    run = extend_small(
        community, tmp_path / "o", monkeypatch, workers=workers, dashboard=False, threads=2
    )
    assert_same(run, whole)


def test_a_cluster_goes_on_with_what_was_begun_without(
    community, whole, client, tmp_path, monkeypatch
):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dlasm.pipeline.plan_partitions", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extend_small(community, tmp_path / "o", monkeypatch)
    run = extend_small(community, tmp_path / "o", monkeypatch, client=client, resume=True)
    assert_same(run, whole)


def test_bad_reads_leave_nothing_behind(community, client, tmp_path):
    first, _ = community.reads_paths
    with pytest.raises(ReadsError, match="No result was written"):
        dlasm.extend(
            community.contigs_path,
            reads=(first, community.contigs_path),
            output=tmp_path / "o",
            client=client,
        )
    assert not (tmp_path / "o").exists()


# -- tasks -----------------------------------------------------------------------------------------


def make_tasks(function, numbers):
    return SequenceSource(iter([Task("some", n, function, (n,)) for n in numbers]))


def double(number):
    return 2 * number


def fail(number):
    raise ReadsError(f"file {number} is bad")


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(folder, number):
    """Kill the worker at the first call for each number."""
    mark = Path(folder) / str(number)
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def wait_a_moment(number):
    time.sleep(0.05)
    return number


def test_all_tasks_run_and_few_are_in_flight(client):
    taken, results = [], []

    def numbers():
        for number in range(40):
            taken.append(number)
            assert len(taken) - len(results) <= 2 * 2 + 1
            yield Task("some", number, wait_a_moment, (number,))

    run_tasks(
        client, SequenceSource(numbers()), functools.partial(cpu_pools, client), results.append
    )
    assert sorted(results) == list(range(40))


def wait_for_mark(path, number):
    until = time.monotonic() + 60
    while not Path(path).exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    return number


def make_mark(path, number):
    Path(path).touch()
    return number


def test_what_waits_behind_a_long_task_goes_to_who_has_nothing_to_do(client, tmp_path):
    """The first task ends only after the third, which waits behind it."""
    functions = [wait_for_mark, wait_a_moment_after, make_mark, wait_a_moment_after]
    path = str(tmp_path / "mark")
    tasks = (Task("some", n, function, (path, n)) for n, function in enumerate(functions))
    results = []
    run_tasks(client, SequenceSource(tasks), functools.partial(cpu_pools, client), results.append)
    assert sorted(results) == [0, 1, 2, 3]


def wait_a_moment_after(path, number):
    return wait_a_moment(number)


def test_an_error_of_a_task_is_raised_as_it_is(client):
    with pytest.raises(ReadsError, match="file 0 is bad"):
        run_tasks(
            client, make_tasks(fail, [0]), functools.partial(cpu_pools, client), lambda _: None
        )
    results = []
    run_tasks(client, make_tasks(double, [4]), functools.partial(cpu_pools, client), results.append)
    assert results == [8]


def wait_then_touch(path):
    time.sleep(0.5)
    Path(path).touch()


def fail_when_the_other_runs(path):
    time.sleep(0.2)
    raise ReadsError("file is bad")


def test_running_tasks_are_waited_for_when_a_run_fails(client, tmp_path):
    mark = tmp_path / "mark"
    tasks = [
        Task("some", n, function, (str(mark),))
        for n, function in enumerate((wait_then_touch, fail_when_the_other_runs))
    ]
    with pytest.raises(ReadsError):
        run_tasks(
            client, SequenceSource(iter(tasks)), functools.partial(cpu_pools, client), lambda _: 0
        )
    assert mark.exists()


def test_threads_of_one_process_share_an_index(community, tmp_path, monkeypatch):
    import threading

    import dlasm.tasks as tasks
    from dlasm.io.fasta import read_contigs
    from dlasm.work import folder_version, write_contigs

    made = []

    def make(*arguments):
        time.sleep(0.05)
        made.append(arguments)
        return object()

    write_contigs(tmp_path / "contigs", [read_contigs(community.contigs_path)])
    monkeypatch.setattr(tasks, "make_placer", make)
    key = (tmp_path, folder_version(tmp_path / "contigs"), None, "minimap2", 1)
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(tasks._worker_placer(*key))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len({id(each) for each in got}) == 1
    tasks._forget_placer(tmp_path / "other")
    assert tasks._worker_placer(*key) is got[0]
    tasks._forget_placer(tmp_path)
    assert not tasks._placers


def test_workers_that_die_lose_nothing(tmp_path):
    with local_cluster(2, 1, dashboard=False) as client:
        source = SequenceSource(
            iter([Task("some", n, die_once, (str(tmp_path), n)) for n in range(3)])
        )
        results = []
        run_tasks(client, source, functools.partial(cpu_pools, client), results.append)
        assert sorted(results) == [0, 1, 2]
        with pytest.raises(ClusterError, match=r"some 7: its workers died.* memory"):
            run_tasks(
                client, make_tasks(die, [7]), functools.partial(cpu_pools, client), results.append
            )


def test_tasks_of_workers_that_are_gone_go_to_others(client):
    """A pool may lose all workers that a task was bound to, and get new ones."""
    workers = dict(client.nthreads())
    gone = {"tcp://127.0.0.1:1": 1}
    answers = iter([{"cpu": gone}])
    results = []
    run_tasks(
        client,
        make_tasks(double, [1, 2, 3]),
        lambda: next(answers, {"cpu": workers}),
        results.append,
    )
    assert sorted(results) == [2, 4, 6]


def test_a_scheduler_of_which_nothing_is_known_is_gone():
    class Lost:
        def scheduler_info(self, n_workers):
            return {"type": "Scheduler"}

    with pytest.raises(ClusterError, match=r"the Dask scheduler is gone .*--resume"):
        cpu_pools(Lost())


def test_no_worker_at_all_is_an_error(client, monkeypatch):
    monkeypatch.setattr("dlasm.dispatch.WORKERS_WAIT_SECONDS", 0.3)
    with pytest.raises(ClusterError, match="has had no worker"):
        run_tasks(client, make_tasks(double, [1]), dict, lambda _: None)


def test_partitions_go_out_largest_of_bin_3_first():
    plan = Plan(
        contig=np.arange(5),
        start=np.arange(6),
        bin=np.array([2, 3, 3, 2, 3], dtype=np.uint8),
        work=np.array([9, 1, 5, 10, 3]),
    )
    source = PartitionSource(plan, [0, 1, 2, 3, 4], lambda pool, number: Task(pool, number, double))
    order = []
    while (task := source.next("cpu", {"cpu": 2})) is not None:
        order.append(task.number)
    assert order == [2, 4, 1, 3, 0]


# -- clusters --------------------------------------------------------------------------------------


def test_the_folder_of_workers_is_made_and_dasks_own_setting_counts(tmp_path):
    base = tmp_path / "not" / "there"
    with dask.config.set({"temporary-directory": str(base)}):
        with local_cluster(1, 1, dashboard=False) as client:
            [folder] = client.run(lambda dask_worker: dask_worker.local_directory).values()
            assert Path(folder).is_relative_to(base)
        assert list(base.iterdir()) == []
        assert dask.config.get("temporary-directory") == str(base)


def test_dashboard_takes_a_free_port(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        with (
            pytest.MonkeyPatch.context() as patched,
        ):
            patched.setattr("dlasm.cluster.DASHBOARD_PORT", port)
            with local_cluster(1, 1) as client:
                hint = dashboard_hint(client, own=True)
    assert f":{port}/" not in hint
    assert "ssh -L" in hint
    assert hint in capsys.readouterr().out


def test_workers_are_checked(client, tmp_path, monkeypatch):
    check_workers(client, tmp_path)
    with pytest.raises(ClusterError, match="does not see"):
        check_workers(client, tmp_path / "elsewhere")
    monkeypatch.setattr("dlasm.cluster.__version__", "9.9")
    with pytest.raises(ClusterError, match=r"has dlasm \S+ and this is 9\.9"):
        check_workers(client, tmp_path)


def test_joining_a_running_cluster(community, whole, client, tmp_path):
    with dlasm.connect(client.scheduler.address) as joined:
        run = dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=tmp_path / "o",
            client=joined,
        )
    assert_same(run, whole)
    about = json.dumps({"address": client.scheduler.address})
    (tmp_path / "scheduler.json").write_text(about)
    with dlasm.connect(scheduler_file=tmp_path / "scheduler.json") as joined:
        assert len(joined.nthreads()) == 2


def test_joining_nothing_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("dlasm.cluster.CONNECT_SECONDS", 1)
    with (
        pytest.raises(ClusterError, match="no Dask scheduler answers"),
        dlasm.connect("tcp://127.0.0.1:1"),
    ):
        pass
    with (
        pytest.raises(ClusterError, match="no such scheduler file"),
        dlasm.connect(scheduler_file=tmp_path / "s.json"),
    ):
        pass
    with pytest.raises(ClusterError, match="either"), dlasm.connect():
        pass


def run_script(path, *arguments, **options):
    home = str(Path(dlasm.__file__).parents[1])
    return subprocess.run(
        [sys.executable, str(path), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def test_a_missing_guard_is_explained(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import dlasm\nwith dlasm.local_cluster(1, dashboard=False) as client:\n    pass\n"
    )
    done = run_script(script)
    assert done.returncode != 0
    assert 'if __name__ == "__main__":' in done.stderr
    assert "Nanny" not in done.stderr  # those of Dask before 2026.7 try for minutes


def test_a_script_that_is_slow_to_import_may_start_a_cluster(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(
        "import time, dlasm.cluster\n"
        "if __name__ == '__main__':\n"
        "    dlasm.cluster.IMPORT_SECONDS = 0.1\n"
        "    with dlasm.local_cluster(1, dashboard=False) as client:\n"
        "        print(len(client.scheduler_info()['workers']))\n"
        "else:\n"
        "    time.sleep(1)\n"
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1"


def test_a_missing_guard_leaves_no_folder(community, tmp_path):
    first, second = map(str, community.reads_paths)
    script = tmp_path / "unguarded.py"
    script.write_text(
        f"import dlasm\ndlasm.extend({str(community.contigs_path)!r}, reads=({first!r}, "
        f"{second!r}), output='o', workers=1, dashboard=False)\n"
    )
    done = run_script(script, cwd=tmp_path)
    assert done.returncode != 0
    last = done.stderr[done.stderr.rindex("dlasm.errors.ClusterError: ") :]
    assert 'if __name__ == "__main__":' in last
    assert not (tmp_path / "o").exists()


def test_the_workflow_script(community, whole, tmp_path):
    first, second = community.reads_paths
    done = run_script(
        WORKFLOWS / "extend_contigs.py",
        community.contigs_path, first, second, tmp_path / "o", "--workers", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "appended" in done.stdout
    assert_same(dlasm.open_run(tmp_path / "o"), whole)


# -- what can be told at the start, and ends that are not the run's --------------------------------


@pytest.mark.parametrize("text", ["", "junk", "{}", "[]", '{"address": 3}'])
def test_a_file_that_is_no_scheduler_file_is_told(tmp_path, text):
    (tmp_path / "scheduler.json").write_text(text)
    with (
        pytest.raises(ClusterError, match=r"scheduler\.json: .*address"),
        dlasm.connect(scheduler_file=tmp_path / "scheduler.json"),
    ):
        pass


@pytest.mark.parametrize("memory", ["1MB", "much", "-1GB"])
def test_memory_that_no_worker_can_do_with_is_refused_at_once(community, tmp_path, memory):
    with pytest.raises(ParameterError, match="memory"):
        dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=tmp_path / "o",
            workers=1,
            memory=memory,
        )
    assert not (tmp_path / "o").exists()


def test_a_scheduler_that_dies_ends_the_run_with_what_to_do():
    program = """
import os, signal, threading, time
from functools import partial
from dlasm.cluster import cpu_pools
from dlasm.dispatch import SequenceSource, Task, run_tasks
from dlasm.errors import ClusterError
from distributed import Client

client = Client(os.environ["ADDRESS"], timeout=20)
client.wait_for_workers(1)
threading.Timer(2, os.kill, (int(os.environ["SCHEDULER"]), signal.SIGKILL)).start()
tasks = (Task("sleep", n, time.sleep, (0.5,)) for n in range(1000))
try:
    run_tasks(client, SequenceSource(tasks), partial(cpu_pools, client), print)
except ClusterError as error:
    print("ClusterError:", error, flush=True)
os._exit(0)
"""
    with external_cluster(1) as (address, processes):
        about = {"ADDRESS": address, "SCHEDULER": str(processes[0].pid)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**ENVIRONMENT, **about},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert "ClusterError" in done.stdout, done.stderr
    assert "--resume" in done.stdout


def test_an_interrupt_from_the_terminal_is_told_in_a_line(community, tmp_path):
    first, second = map(str, community.reads_paths)
    files = [str(community.contigs_path), "-1", first, "-2", second]
    program = f"""
import signal
import time

import dlasm.pipeline
from dlasm.cli import main

def slow(*arguments, **options):
    print("now", flush=True)
    time.sleep(60)

if __name__ == "__main__":
    # what runs the tests may ignore it, as shells do for what they start in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dlasm.pipeline.plan_partitions = slow
    main({["extend", *files, "-o", "o", "--workers", "2", "--no-dashboard"]!r})
"""
    (tmp_path / "program.py").write_text(program)
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        env={**os.environ, "PYTHONPATH": str(Path(dlasm.__file__).parents[1])},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "now\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, said = process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "Error: interrupted; continue with --resume"
    assert "Traceback" not in said
