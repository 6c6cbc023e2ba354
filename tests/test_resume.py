"""A run that is killed goes on and ends with the same bytes; a changed one is refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dlasm
from dlasm.errors import OutputExistsError, ResumeError, StoreError
from dlasm.tasks import extend_task

OPTIONS = {"partition_bytes": 20_000, "threads": 2}

KILLED_RUN = """
import functools, os, signal, sys
from importlib import import_module

import dlasm.pipeline
import dlasm.io.fastq as fastq

fastq.iter_batches = functools.partial(fastq.iter_batches, batch_reads=500)
dlasm.pipeline.BATCHES_PER_RUN = 2
where, count, contigs, first, second, output, mode = sys.argv[1:]
module, name = where.split(":")
function = getattr(import_module(module), name)
calls = 0

def killed(*args, **kwargs):
    global calls
    calls += 1
    if calls == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*args, **kwargs)

setattr(import_module(module), name, killed)
dlasm.pipeline.extend(
    contigs, reads=(first, second), output=output, partition_bytes=20_000, threads=2,
    resume=mode == "resume", force=mode == "force",
)
"""

MOMENTS = {
    "state": ("dlasm.state:write_json", 1),
    "contigs": ("dlasm.pipeline:write_contigs", 1),
    "first batch": ("dlasm.recruit:write_batch_result", 1),
    "third batch": ("dlasm.recruit:write_run_file", 3),
    "plan": ("dlasm.pipeline:write_job", 1),
    "first partition": ("dlasm.store:write_partition", 1),
    "third partition": ("dlasm.store:validate", 3),
    "results": ("dlasm.store:_gather_block", 1),
    "files begun": ("dlasm.report:sync_file", 1),
    "files whole": ("dlasm.report:sync_folder", 1),
    "figures": ("dlasm.pipeline:figures", 1),
    "summary": ("dlasm.pipeline:_versions", 1),
}


def run_until_killed(community, output, where, count, mode="") -> None:
    home = str(Path(dlasm.__file__).parents[1])
    arguments = [where, count, community.contigs_path, *community.reads_paths, output, mode]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_RUN, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": home},
        stderr=subprocess.PIPE,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def resume(community, output, monkeypatch, **options):
    import functools

    import dlasm.io.fastq as fastq

    with monkeypatch.context() as patched:
        small = functools.partial(fastq.iter_batches, batch_reads=500)
        patched.setattr(fastq, "iter_batches", small)
        patched.setattr("dlasm.pipeline.BATCHES_PER_RUN", 2)
        return dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=output,
            resume=True,
            **OPTIONS,
            **options,
        )


def assert_same(run, whole) -> None:
    for name in ("extended.fasta", "extensions.tsv"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert run.extensions().equals(whole.extensions())
    same = ("contigs", "extended", "bins", "outcomes", "candidates", "libraries", "parameters")
    ours, theirs = run.summary(), whole.summary()
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert not [path for path in run.path.rglob("*") if path.name.endswith(".wip")]
    assert not list(run.path.glob("work*"))
    assert not (run.path / ".previous").exists()


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at(community, whole, tmp_path, monkeypatch, moment):
    output = tmp_path / "o"
    run_until_killed(community, output, *MOMENTS[moment])
    assert not (output / "summary.json").exists()
    with pytest.raises(StoreError):
        dlasm.open_run(output)
    assert_same(resume(community, output, monkeypatch), whole)


def test_killed_twice(community, whole, tmp_path, monkeypatch):
    output = tmp_path / "o"
    run_until_killed(community, output, *MOMENTS["third batch"])
    run_until_killed(community, output, *MOMENTS["third partition"], mode="resume")
    assert_same(resume(community, output, monkeypatch), whole)


def test_killed_while_replacing_a_run(community, whole, tmp_path, monkeypatch):
    output = tmp_path / "o"
    shutil.copytree(whole.path, output)
    run_until_killed(community, output, "dlasm.state:write_json", 1, mode="force")
    with pytest.raises(StoreError, match="was interrupted"):
        dlasm.open_run(output)
    assert_same(resume(community, output, monkeypatch), whole)


def test_what_is_there_is_used(community, whole, tmp_path, monkeypatch):
    output = tmp_path / "o"
    run_until_killed(community, output, *MOMENTS["third batch"])
    kept = sorted(output.glob("work.*/candidates/*/*.run"))
    assert 1 <= len(kept) <= 2  # another thread may be at the second
    times = [path.stat().st_mtime_ns for path in kept]

    def interrupt(*arguments, **options):
        assert [path.stat().st_mtime_ns for path in kept] == times
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dlasm.pipeline.finalise", interrupt)
        with pytest.raises(KeyboardInterrupt):
            resume(community, output, monkeypatch)
    partitions = sorted(output.glob("work.*/partitions/*.npz"))
    assert len(partitions) > 2
    partitions[1].unlink()
    computed = []

    def note(work, number, **options):
        computed.append(number)
        return extend_task(work, number, **options)

    def unexpected(*arguments, **options):
        raise AssertionError("a stage that was finished is run again")

    monkeypatch.setattr("dlasm.pipeline.extend_task", note)
    for name in ("write_contigs", "plan_partitions"):
        monkeypatch.setattr(f"dlasm.pipeline.{name}", unexpected)
    monkeypatch.setattr("dlasm.recruit.recruit_batch", unexpected)
    assert_same(resume(community, output, monkeypatch), whole)
    assert computed == [1]


def test_a_finished_run_is_left_as_it_is(community, whole, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in whole.path.rglob("*") if path.is_file()}
    again = dlasm.extend(
        community.contigs_path, reads=community.reads_paths, output=whole.path, resume=True
    )
    after = {path: path.stat().st_mtime_ns for path in whole.path.rglob("*") if path.is_file()}
    changed = {path.name for path in after if after[path] != before.get(path)}
    assert changed <= {"dlasm.log", "run.json"}
    assert again.summary() == whole.summary()


def test_resume_of_nothing_is_a_new_run(community, whole, tmp_path, monkeypatch):
    assert_same(resume(community, tmp_path / "o", monkeypatch), whole)


# -- refused ---------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(community, tmp_path):
    """A copy of the input, and a run of it that was killed."""
    path = tmp_path / "sim"
    shutil.copytree(community.path, path)
    copy = type(community)(path, community.genomes, community.pairs, community.contigs)
    run_until_killed(copy, tmp_path / "o", *MOMENTS["first partition"])
    return copy, tmp_path / "o"


def test_changed_options_are_refused_with_all_differences(interrupted):
    community, output = interrupted
    with pytest.raises(ResumeError) as caught:
        dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=output,
            resume=True,
            k=55,
            insert="300:30",
            min_support=3,
        )
    assert "k was 33, is 55" in str(caught.value)
    assert "insert was not given, is [300.0, 30.0]" in str(caught.value)
    assert "min support was 2, is 3" in str(caught.value)


def test_changed_inputs_are_refused(interrupted):
    community, output = interrupted
    contigs = community.contigs_path.read_bytes()
    community.contigs_path.write_bytes(contigs.replace(b"A", b"C", 1))
    first, second = community.reads_paths
    with pytest.raises(ResumeError, match=r"contigs \S+ has other content"):
        dlasm.extend(community.contigs_path, reads=(first, second), output=output, resume=True)
    community.contigs_path.write_bytes(contigs + b"\n")
    with pytest.raises(ResumeError, match=r"contigs \S+ had [\d,]+ bytes, has"):
        dlasm.extend(community.contigs_path, reads=(first, second), output=output, resume=True)
    community.contigs_path.write_bytes(contigs)
    more = first.with_name("more.fq.gz")
    more.write_bytes(first.read_bytes())
    with pytest.raises(ResumeError, match=r"reads \S+more.fq.gz was not given"):
        dlasm.extend(
            community.contigs_path, reads=(first, second), single=more, output=output, resume=True
        )
    with pytest.raises(ResumeError, match=r"had .* bytes|other content"):
        dlasm.extend(community.contigs_path, reads=(second, first), output=output, resume=True)


def test_another_version_is_refused(interrupted, monkeypatch):
    community, output = interrupted
    monkeypatch.setattr("dlasm.state.__version__", "9.9")
    with pytest.raises(ResumeError, match=r"dlasm was \S+, is 9\.9"):
        dlasm.extend(
            community.contigs_path, reads=community.reads_paths, output=output, resume=True
        )


def test_another_run_in_the_same_folder_is_refused(community, tmp_path, monkeypatch):
    import dlasm.pipeline as pipeline

    entered, leave = threading.Event(), threading.Event()
    plan = pipeline.plan_partitions

    def wait(*arguments, **options):
        entered.set()
        assert leave.wait(60)
        return plan(*arguments, **options)

    monkeypatch.setattr(pipeline, "plan_partitions", wait)
    arguments = {
        "contigs": community.contigs_path,
        "reads": community.reads_paths,
        "output": tmp_path / "o",
    }
    runs = []
    thread = threading.Thread(target=lambda: runs.append(dlasm.extend(**arguments)))
    thread.start()
    try:
        assert entered.wait(60)
        for options in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(OutputExistsError, match="another dlasm run is writing here"):
                dlasm.extend(**arguments, **options)
    finally:
        leave.set()
        thread.join()
    assert len(runs) == 1
