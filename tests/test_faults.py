"""Processes that are killed lose nothing: others take over, or the run is continued."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import faults
import numpy as np
import pytest
from faults import (
    ENVIRONMENT,
    OPTIONS,
    STAGES,
    Harm,
    deadly_task,
    external_cluster,
    small_batches,
)
from test_extend import fasta_records

import dlasm
from dlasm.arrays import GROUPS
from dlasm.errors import ClusterError, DlasmError, StoreError

MOMENTS = int(os.environ.get("DLASM_MOMENTS", "20"))
FILES = (
    "extended.fasta",
    "extensions.tsv",
    "joined.fasta",
    "joins.tsv",
    "joined.agp",
    "graph.gfa",
)


def program(community, output, **about) -> list[str]:
    """Say the command of a run that is harmed."""
    given = {
        "contigs": str(community.contigs_path),
        "reads": [str(path) for path in community.reads_paths],
        "output": str(output),
        **{"stage": "", "calls": 0, "victim": "", "workers": 0, "scheduler": None},
        **about,
    }
    return [sys.executable, faults.__file__, json.dumps(given)]


def start(community, output, **about) -> subprocess.CompletedProcess:
    """Run it in a process group of its own."""
    return subprocess.run(
        program(community, output, **about),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        check=False,
    )


def extend(community, output, **options):
    given = {"reads": community.reads_paths, "output": output, **OPTIONS, **options}
    with small_batches():
        return dlasm.extend(community.contigs_path, **given)


@pytest.fixture(scope="module")
def unharmed(community, tmp_path_factory):
    """A run that nobody harmed, and how many calls each stage took."""
    output = tmp_path_factory.mktemp("unharmed") / "run"
    with Harm("", 0, lambda: None) as harm:
        run = extend(community, output, workers=0)
    return run, harm.counts


def assert_same(run, whole) -> None:
    """Require the same bytes, and nothing left over."""
    for name in FILES:
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes(), name
    for group in ("contigs", "results"):
        for name in GROUPS[group]:
            ours, theirs = (np.asarray(each.results.array(group, name)[:]) for each in (run, whole))
            assert ours.tobytes() == theirs.tobytes(), name
    joins = [each.results.joins() for each in (run, whole)]
    assert all(joins[0][name].tobytes() == joins[1][name].tobytes() for name in joins[1])
    assert not [path for path in run.path.rglob("*") if path.name.endswith(".wip")]
    assert not list(run.path.glob("work*"))


def assert_nothing_half(output, whole) -> None:
    """Require that what is there under its final name is whole, and the run is not finished."""
    for name in FILES:
        if (output / name).exists():
            assert (output / name).read_bytes() == (whole.path / name).read_bytes(), name
    with suppress(StoreError):
        assert_same(dlasm.open_run(output), whole)  # it was killed after all was done


def moments(victim: str, stage: str, counts: dict[str, int]) -> Iterator[int]:
    """Give random numbers of calls, the same for each victim and stage."""
    rng = random.Random(f"{victim} {stage}")
    for _ in range(MOMENTS):
        yield rng.randint(1, max(1, counts[stage]))


# -- partitions that kill their workers ------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(community, tmp_path_factory):
    """A run that a partition stopped, and what it said."""
    output = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dlasm.pipeline.extend_task", deadly_task)
        with pytest.raises(ClusterError) as caught:
            extend(community, output, workers=2, dashboard=False)
    return output, str(caught.value)


def test_a_partition_that_kills_its_workers_stops_the_run_and_is_named(
    community, unharmed, stopped
):
    output, said = stopped
    assert "extend cpu bin3 2 (" in said or "extend cpu bin2 2 (" in said
    assert "contigs, k141_" in said
    assert "--resume --on-error skip" in said
    assert not (output / "extended.fasta").exists()
    assert_same(extend(community, output, workers=0, resume=True, on_error="skip"), unharmed[0])


@pytest.mark.filterwarnings("ignore:.*its workers died")
def test_a_partition_that_kills_its_workers_can_be_skipped(
    community, unharmed, tmp_path, monkeypatch
):
    monkeypatch.setattr("dlasm.pipeline.extend_task", deadly_task)
    run = extend(community, tmp_path / "o", workers=2, dashboard=False, on_error="skip")
    ends, whole = run.extensions(), unharmed[0].extensions()
    is_skipped = ends.outcome == "skipped"
    assert 0 < is_skipped.sum() < len(ends)
    assert (ends.bases[is_skipped] == 0).all()
    assert (ends.k[is_skipped] == 0).all()
    same = ["contig", "side", "bases", "k", "outcome", "candidates"]
    assert ends[~is_skipped][same].equals(whole[~is_skipped][same])
    summary = run.summary()
    assert summary["outcomes"]["skipped"] == is_skipped.sum()
    assert any("its workers died" in warning for warning in summary["warnings"])
    sequences = run.contigs().set_index("contig").sequence
    before = {c.split()[0]: s for c, s in fasta_records(community.contigs_path)}
    for contig in set(ends.contig[is_skipped]):
        assert sequences[contig] == before[contig]
    assert "skipped" in (run.path / "report.html").read_text()
    # what is finished stays as it is
    assert extend(community, tmp_path / "o", workers=0, resume=True).extensions().equals(ends)


def test_on_error_is_checked(community, tmp_path):
    with pytest.raises(DlasmError, match="on_error is 'go'; there are 'stop', 'skip'"):
        extend(community, tmp_path / "o", on_error="go")
    assert not (tmp_path / "o").exists()


# -- killed at random moments ----------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("victim", ["a worker", "all workers"])
def test_workers_that_are_killed_cost_a_retry(
    community, unharmed, tmp_path, victim, stage, monkeypatch
):
    monkeypatch.setattr("dlasm.dispatch.WORKERS_WAIT_SECONDS", 10.0)
    whole, counts = unharmed
    left = list(enumerate(moments(victim, stage, counts)))
    ended: list[str] = []
    while left:
        with dlasm.local_cluster(2, 1, dashboard=False) as client, suppress(TimeoutError):
            while left:
                # a nanny whose worker dies as it starts may give up; then there is a new cluster
                client.wait_for_workers(2, timeout=20)
                pids = sorted(client.run(os.getpid).values())
                number, calls = left.pop()

                def kill(pids=pids) -> None:
                    for pid in pids[: 1 if victim == "a worker" else None]:
                        os.kill(pid, signal.SIGKILL)

                output = tmp_path / str(number)
                try:
                    with Harm(stage, calls, kill):
                        run = extend(community, output, client=client)
                except ClusterError as error:
                    if victim == "a worker":
                        raise
                    ended.append(str(error))  # both nannies gave up
                    run = extend(community, output, workers=0, resume=True)
                assert_same(run, whole)
    assert all("has had no worker for" in said and "--resume" in said for said in ended)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("victim", ["run of a process", "run with workers", "client"])
def test_a_run_that_is_killed_is_continued(community, unharmed, tmp_path, victim, stage):
    whole, counts = unharmed
    with external_cluster() as (address, _):
        about = {
            "run of a process": {"victim": "run", "workers": 0},
            "run with workers": {"victim": "run", "workers": 2},
            "client": {"victim": "client", "scheduler": address},
        }[victim]
        for number, calls in enumerate(moments(victim, stage, counts)):
            output = tmp_path / str(number)
            done = start(community, output, stage=stage, calls=calls, **about)
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert_nothing_half(output, whole)
            again = start(community, output, **{**about, "victim": ""})
            assert again.returncode == 0, again.stderr
            assert_same(dlasm.open_run(output), whole)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", STAGES)
def test_a_scheduler_that_is_killed_ends_a_run_that_is_continued(
    community, unharmed, tmp_path, stage
):
    whole, counts = unharmed
    ended = 0
    for number, calls in enumerate(moments("scheduler", stage, counts)):
        output = tmp_path / str(number)
        with external_cluster() as (address, processes):
            harm = {"stage": stage, "calls": calls, "victim": "other", "pid": processes[0].pid}
            done = start(community, output, scheduler=address, **harm)
        if done.returncode:
            ended += 1
            assert "--resume" in done.stderr
            assert_nothing_half(output, whole)
        assert_same(extend(community, output, workers=0, resume=True), whole)
    if stage in ("contigs", "plan"):
        assert ended  # workers are needed after these


def test_moments_lie_in_their_stages(unharmed):
    assert all(count > 10 for count in unharmed[1].values())


def test_a_killed_run_is_continued(community, unharmed, tmp_path):
    """One of those above, at a moment in the middle."""
    whole, counts = unharmed
    stage = "extend"
    about = {"victim": "run", "workers": 2, "stage": stage, "calls": counts[stage] // 2}
    begin = time.monotonic()
    assert start(community, tmp_path / "o", **about).returncode == -signal.SIGKILL
    assert time.monotonic() - begin < 60
    assert_nothing_half(tmp_path / "o", whole)
    assert_same(extend(community, tmp_path / "o", workers=0, resume=True), whole)
