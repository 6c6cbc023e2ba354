"""Rounds: a run whose results are extended and joined again."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from reference import reverse_complement
from test_extend import fasta_records

import dlasm
from dlasm import atomic
from dlasm import joins as dj
from dlasm.cli import main
from dlasm.errors import OutputExistsError, ParameterError, ResumeError, StoreError
from dlasm.report import TABLES, contigs_frame
from dlasm.rounds import take_over
from dlasm.store import open_results

FILES = (*TABLES, *dj.FILES)
FIRST, SECOND = "rounds/round1", "rounds/round2"


def files_of(folder: Path) -> dict[str, bytes]:
    """The results of a run as bytes, but for its store."""
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def twice(community, tmp_path_factory):
    output = tmp_path_factory.mktemp("twice") / "run"
    return extend(community, output)


def extend(community, output, **options):
    options = {"join": "full", "rounds": 2} | options
    return dlasm.extend(
        community.contigs_path, reads=community.reads_paths, output=output, **options
    )


def test_a_second_round_is_a_run_on_what_the_first_one_gave(community, twice, tmp_path):
    one = extend(community, tmp_path / "one", rounds=1)
    assert files_of(twice.path / FIRST) == files_of(one.path)
    two = dlasm.extend(
        one.path / "joined.fasta",
        reads=community.reads_paths,
        output=tmp_path / "two",
        join="full",
    )
    assert files_of(twice.path) == files_of(two.path) == files_of(twice.path / SECOND)
    assert twice.extensions().equals(two.extensions())
    assert twice.joins().equals(two.joins())
    begin, first, second = twice.summary()["rounds"]
    for row, run in ((first, one), (second, two)):
        summary = run.summary()
        assert row["appended_bases"] == summary["extended"]["appended_bases"] > 0
        assert row["joins"] == (run.joins().verdict != "refused").sum()
        for name in ("contigs", "bases", "n50", "longest"):
            assert row[name] == summary["joins"][name]
    assert first["joins"] > 0
    before = one.summary()["contigs"]
    assert begin == {
        "round": 0,
        "extended_ends": 0,
        "appended_bases": 0,
        "joins": 0,
        "contigs": before["count"],
        "bases": before["bases"],
        "n50": before["n50"],
        "longest": before["longest"],
    }
    summary = twice.summary()
    assert summary["round"] == summary["parameters"]["rounds"] == 2
    assert summary["inputs"] == one.summary()["inputs"]
    assert summary["depth_source"] == one.summary()["depth_source"]
    each = [dlasm.open_run(twice.path / "rounds" / f"round{n}").summary()["stages"] for n in (1, 2)]
    for name, stage in summary["stages"].items():
        assert stage["seconds"] == pytest.approx(sum(one[name]["seconds"] for one in each))
        assert stage["peak_rss_bytes"] == max(one[name]["peak_rss_bytes"] for one in each)


def test_without_joins_the_extended_contigs_are_extended(community, tmp_path):
    run = extend(community, tmp_path / "run", join=None)
    before = dict(fasta_records(run.path / FIRST / "extended.fasta"))
    after = dict(fasta_records(run.path / "extended.fasta"))
    assert len(before) == len(after)
    for (old, sequence), (new, longer) in zip(before.items(), after.items(), strict=True):
        assert old.split()[0] == new.split()[0]
        assert sequence in longer
    assert not (run.path / "joined.fasta").exists()
    assert [row["joins"] for row in run.summary()["rounds"]] == [0, 0, 0]


@pytest.mark.parametrize("options", [{"threads": 1, "partition_bytes": 1}, {"workers": 1}])
def test_who_computes_changes_no_byte(community, twice, tmp_path, options):
    run = extend(community, tmp_path / "run", **options)
    assert files_of(run.path) == files_of(twice.path)


def test_results_outlast_a_move_and_the_folders_of_the_rounds(twice, tmp_path):
    shutil.copytree(twice.path, tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    shutil.rmtree(tmp_path / "there" / "rounds")
    run = dlasm.open_run(tmp_path / "there")
    assert files_of(run.path) == files_of(twice.path)
    assert run.contigs().equals(twice.contigs())


def test_results_take_no_more_space(twice):
    for path in (twice.path / SECOND).rglob("*"):
        whole = twice.path / path.relative_to(twice.path / SECOND)
        if path.is_file() and (path.name in FILES or "results.zarr" in path.parts):
            assert path.samefile(whole)


def test_where_there_are_no_hard_links_results_are_copied(twice, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    take_over(twice.path / SECOND, tmp_path)
    assert files_of(tmp_path) == files_of(twice.path)
    copied = {path.relative_to(tmp_path) for path in (tmp_path / "results.zarr").rglob("*")}
    assert copied == {
        path.relative_to(twice.path) for path in (twice.path / "results.zarr").rglob("*")
    }
    assert not (tmp_path / "joined.fasta").samefile(twice.path / "joined.fasta")
    assert contigs_frame(open_results(tmp_path / "results.zarr")).equals(twice.contigs())


def test_a_full_disk_while_linking_is_an_error(twice, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(OSError, match="No space left"):
        take_over(twice.path / SECOND, tmp_path)
    assert not list(tmp_path.iterdir())


def test_linking_again_changes_nothing(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    for _ in range(2):
        atomic.link_whole(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two").samefile(tmp_path / "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


# -- when it stops ---------------------------------------------------------------------------------


def random_bases(seed: int, length: int) -> str:
    return "".join(np.random.default_rng(seed).choice(list("ACGT"), length))


def write_input(folder: Path, contigs: dict[str, str], reads: list[str]) -> tuple[Path, Path]:
    paths = folder / "contigs.fa", folder / "reads.fq"
    paths[0].write_text("".join(f">{name}\n{sequence}\n" for name, sequence in contigs.items()))
    quality = "I" * len(reads[0])
    paths[1].write_text("".join(f"@r{i}\n{read}\n+\n{quality}\n" for i, read in enumerate(reads)))
    return paths


def test_it_stops_when_nothing_is_gained(tmp_path):
    genome = random_bases(1, 1_200)
    contigs, reads = write_input(
        tmp_path,
        {"a": genome[:500], "b": reverse_complement(genome[560:])},
        [genome[i : i + 100] for i in range(0, 1_101, 5)],
    )
    run = dlasm.extend(contigs, single=reads, output=tmp_path / "run", join="full", rounds=9)
    rows = run.summary()["rounds"]
    assert [(row["round"], row["joins"], row["contigs"]) for row in rows] == [
        (0, 0, 2),
        (1, 1, 1),
        (2, 0, 1),
    ]
    assert rows[2]["appended_bases"] == 0
    assert run.summary()["round"] == 1  # that of the second one would say that nothing grew
    assert files_of(run.path) == files_of(run.path / FIRST)
    assert not (run.path / "rounds" / "round3").exists()
    ((_, sequence),) = fasta_records(run.path / "joined.fasta")
    assert sequence == genome
    shown = CliRunner().invoke(main, ["inspect", str(run.path)]).output
    assert "results are those of round 1" in shown
    assert "round 2 gained nothing" in shown


def test_it_stops_at_once_when_the_first_round_gains_nothing(tmp_path):
    contigs, reads = write_input(tmp_path, {"a": random_bases(2, 500)}, [random_bases(3, 100)])
    run = dlasm.extend(contigs, single=reads, output=tmp_path / "run", rounds=3)
    assert [row["round"] for row in run.summary()["rounds"]] == [0, 1]
    assert files_of_extension(run.path) == files_of_extension(run.path / FIRST)


def files_of_extension(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in TABLES]


def test_a_circle_stays_as_it_was_closed(tmp_path):
    plasmid, other = random_bases(4, 1_500), random_bases(5, 1_500)
    turns = plasmid + plasmid
    contigs, reads = write_input(
        tmp_path,
        {"p": plasmid[:1_450], "c": other[:1_000]},
        [turns[i : i + 100] for i in range(0, 1_500, 5)]
        + [other[i : i + 100] for i in range(0, 1_401, 5)],
    )
    run = dlasm.extend(contigs, single=reads, output=tmp_path / "run", join="full", rounds=4)
    rows = run.summary()["rounds"]
    assert rows[1]["joins"] == 1
    assert rows[2]["appended_bases"] > 0  # of the other contig, so the circle was there again
    assert not any(row["joins"] for row in rows[2:])
    first, last = (
        dict(fasta_records(run.path / of / "joined.fasta")) for of in ("rounds/round1", "")
    )
    (header,) = (header for header in first if header.startswith("p "))
    assert "circular=yes" in header
    assert last[header] == first[header]
    assert len(first[header]) == 1_500
    assert run.extensions().outcome[:2].tolist() == ["circular", "circular"]
    assert run.extensions().bases[:2].tolist() == [0, 0]
    assert run.summary()["joins"]["circles"] == 1
    (run.path / "joined.fasta").unlink()  # made again from the store, which knows the circle
    again = dlasm.extend(contigs, single=reads, output=run.path, join="full", rounds=4, resume=True)
    assert dict(fasta_records(again.path / "joined.fasta")) == last


def test_a_circle_is_joined_to_nothing():
    text = random_bases(6, 700)
    bases = np.frombuffer((text[:400] + text[380:]).encode(), dtype=np.uint8)
    contigs = dj.Extended(
        bases,
        np.array([0, 400, 720]),
        np.frombuffer(text[400:460].encode(), dtype=np.uint8),
        np.array([0, 0, 60, 60, 60]),
        np.array([10.0, 10.0]),
        circles=np.array([1]),
    )
    joins = dj.find_joins(contigs, [], [], "full")
    assert [dj.REASONS[code] for code in joins["reason"]] == ["circle"]
    assert dj.make_chains(2, joins, contigs.circles).is_circular.tolist() == [0, 1]


# -- interrupted, replaced, refused ----------------------------------------------------------------

KILLED_RUN = """
import os, signal, sys
from importlib import import_module

import dlasm.pipeline
import dlasm.rounds

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
    contigs, reads=(first, second), output=output, join="full", rounds=2,
    resume=mode == "resume", force=mode == "force",
)
"""

MOMENTS = {
    "first round": ("dlasm.pipeline:write_job", 1),
    "first round's end": ("dlasm.pipeline:_write_page", 1),
    "between rounds": ("dlasm.rounds:next_contigs", 1),
    "second round's state": ("dlasm.state:_not_begun", 3),
    "second round's contigs": ("dlasm.pipeline:write_contigs", 2),
    "second round's joins": ("dlasm.pipeline:write_joins", 2),
    "first link": ("dlasm.atomic:_link", 1),
    "fourth link": ("dlasm.atomic:_link", 4),
    "last folder": ("dlasm.rounds:sync_folder", 1),
    "summary": ("dlasm.rounds:combined_summary", 1),
    "page": ("dlasm.pipeline:_write_page", 3),
    "end": ("dlasm.state:sync_folder", 3),
}


def run_until_killed(community, output, where, count, mode="") -> None:
    arguments = [where, count, community.contigs_path, *community.reads_paths, output, mode]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_RUN, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(dlasm.__file__).parents[1])},
        stderr=subprocess.PIPE,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def assert_same(run, twice) -> None:
    assert files_of(run.path) == files_of(twice.path)
    assert run.contigs().equals(twice.contigs())
    assert run.summary()["rounds"] == twice.summary()["rounds"]
    names = {path.name for path in twice.path.iterdir()}
    assert {path.name for path in run.path.iterdir()} == names
    assert not [path for path in run.path.rglob("*") if path.name.endswith(".wip")]
    assert not list(run.path.rglob("work.*"))


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at(community, twice, tmp_path, moment):
    output = tmp_path / "run"
    run_until_killed(community, output, *MOMENTS[moment])
    with pytest.raises(StoreError, match="not finished"):
        dlasm.open_run(output)
    assert_same(extend(community, output, resume=True), twice)


def test_a_round_that_is_finished_is_not_run_again(community, twice, tmp_path, monkeypatch):
    output = tmp_path / "run"
    run_until_killed(community, output, *MOMENTS["second round's joins"])
    shown = CliRunner().invoke(main, ["inspect", str(output)]).output
    assert "round 1: done" in shown
    assert "results: done in" in shown.split("round 2:")[1]

    def unexpected(*_, **__):
        raise AssertionError("a stage that was finished is run again")

    monkeypatch.setattr("dlasm.pipeline.write_contigs", unexpected)
    monkeypatch.setattr("dlasm.pipeline.plan_partitions", unexpected)
    assert_same(extend(community, output, resume=True), twice)
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.fasta")}
    assert_same(extend(community, output, resume=True), twice)
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*.fasta")} == before


def test_a_run_of_rounds_is_replaced_as_a_whole(community, twice, tmp_path):
    output = tmp_path / "run"
    shutil.copytree(twice.path, output)
    (output / "notes.txt").write_text("mine")
    run_until_killed(community, output, *MOMENTS["second round's contigs"], mode="force")
    assert files_of(output / ".previous" / FIRST) == files_of(twice.path / FIRST)
    with pytest.raises(OutputExistsError, match="holds a run already"):
        extend(community, output)
    run = extend(community, output, rounds=1, force=True)
    assert not (run.path / "rounds").exists()
    assert not (output / ".previous").exists()
    assert (output / "notes.txt").read_text() == "mine"
    assert files_of(run.path) == files_of(twice.path / FIRST)


def test_nobody_else_writes_in_the_folder_meanwhile(community, tmp_path, monkeypatch):
    import dlasm.rounds

    tried = []
    next_contigs = dlasm.rounds.next_contigs

    def between_rounds(folder):
        with pytest.raises(OutputExistsError, match="another dlasm run is writing here"):
            extend(community, tmp_path / "run", resume=True)
        tried.append(folder)
        return next_contigs(folder)

    monkeypatch.setattr(dlasm.rounds, "next_contigs", between_rounds)
    extend(community, tmp_path / "run")
    assert tried == [tmp_path / "run" / FIRST]


def test_other_rounds_are_refused(community, twice):
    with pytest.raises(ResumeError, match="rounds was 2, is 3"):
        extend(community, twice.path, rounds=3, resume=True)
    with pytest.raises(ResumeError, match="rounds was 2, is not given"):
        extend(community, twice.path, rounds=1, resume=True)


def test_bad_input_leaves_no_round(community, tmp_path):
    reads = tmp_path / "reads.fq"
    reads.write_text("@r\nACGT\n+\nII\n")
    with pytest.raises(dlasm.errors.ReadsError, match="No result was written"):
        dlasm.extend(community.contigs_path, single=reads, output=tmp_path / "run", rounds=2)
    assert not (tmp_path / "run").exists()


def test_rounds_that_are_finished_outlast_bad_input(community, twice, tmp_path, monkeypatch):
    import dlasm.rounds

    first, second = (tmp_path / path.name for path in community.reads_paths)
    for path in community.reads_paths:
        shutil.copy(path, tmp_path / path.name)
    whole, next_contigs = second.read_bytes(), dlasm.rounds.next_contigs

    def damaged(folder):
        second.write_bytes(whole[:-100])
        return next_contigs(folder)

    options = {"reads": (first, second), "output": tmp_path / "run", "join": "full", "rounds": 2}
    with monkeypatch.context() as patch:
        patch.setattr(dlasm.rounds, "next_contigs", damaged)
        with pytest.raises(dlasm.errors.ReadsError):
            dlasm.extend(community.contigs_path, **options)
    assert dlasm.open_run(tmp_path / "run" / FIRST)
    second.write_bytes(whole)
    run = dlasm.extend(community.contigs_path, **options, resume=True)
    assert files_of(run.path) == files_of(twice.path)


def test_parameters_of_rounds(tmp_path):
    with pytest.raises(ParameterError, match="rounds are 0"):
        dlasm.extend("c.fa", single="r.fq", output="x", rounds=0)
    with pytest.raises(ParameterError, match=r"rounds is 1\.5; it must be a whole number"):
        dlasm.extend("c.fa", single="r.fq", output="x", rounds=1.5)
    for given in ({"bam": "a.bam"}, {"paf": "a.paf", "single": "r.fq"}):
        with pytest.raises(ParameterError, match=f"and {next(iter(given))} tells of reads"):
            dlasm.extend("c.fa", output="x", rounds=2, **given)
    with pytest.raises(ParameterError, match="and candidates tells of reads"):
        dlasm.extend(candidates="d.dat", k=33, output="x", rounds=2)
    (tmp_path / "c.fa").write_text(">a\nACGT\n")
    os.mkfifo(tmp_path / "r.fq")
    with pytest.raises(ParameterError, match="is a pipe, and 2 rounds read the reads as often"):
        dlasm.extend(tmp_path / "c.fa", single=tmp_path / "r.fq", output="x", rounds=2)


def test_the_commands_on_a_run_of_rounds(community, tmp_path):
    r1, r2 = map(str, community.reads_paths)
    output = tmp_path / "run"
    arguments = ["extend", str(community.contigs_path), "-1", r1, "-2", r2, "-o", str(output)]
    done = CliRunner().invoke(main, [*arguments, "--join", "careful", "--rounds", "2"])
    assert done.exit_code == 0, done.output
    assert "round 2 of 2: " in done.output
    assert "results are those of round 2" in done.output
    shown = CliRunner().invoke(main, ["inspect", "--json", str(output)])
    assert [row["round"] for row in json.loads(shown.output)["rounds"]] == [0, 1, 2]
    page = (output / "report.html").read_text()
    assert "2 rounds: +" in page
    (output / "report.html").unlink()
    assert CliRunner().invoke(main, ["report", str(output)]).exit_code == 0
    assert (output / "report.html").read_text() == page
    genomes = str(community.path / "genomes.fa")
    done = CliRunner().invoke(main, ["evaluate", str(output), "--reference", genomes])
    assert done.exit_code == 0, done.output
    assert json.loads((output / "evaluation.json").read_text())["contiguity"]["joined"]["nga50"]
    assert not (output / SECOND / "evaluation.json").exists()
