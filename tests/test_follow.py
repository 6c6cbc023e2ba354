"""A contig end followed base by base, against the plain reference."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from adversarial import Case, random_bases, random_case
from reference import BASES, count, only_acgtn, reverse_complement, walk_from

import dlasm
from dlasm.arrays import SIDES
from dlasm.errors import InputError, ParameterError, StoreError
from dlasm.follow import FollowedEnd

K = 21


def write_dump(path: Path, cases: list[Case]) -> Path:
    lines = []
    for number, case in enumerate(cases):
        reads = [
            f"r {bases} {''.join(chr(33 + quality) for quality in qualities)}"
            for bases, qualities in [*case.left, *case.right]
        ]
        counts = f"{len(case.left)} {len(case.right)}"
        lines.append(f"c{number} {case.sequence} {case.depth} {counts} {' '.join(reads)}".rstrip())
    path.write_text("\n".join(lines) + "\n")
    return path


def follow_all(cases: list[Case], folder: Path, k: int = K, **more) -> list[FollowedEnd]:
    dump = write_dump(folder / "dump.dat", cases)
    run = dlasm.extend(candidates=dump, k=k, output=folder / "run", **more)
    return [run.follow_end(number, side) for number in range(len(cases)) for side in SIDES]


def check_against_reference(case: Case, end: FollowedEnd, walk_limit: int = 613) -> None:
    is_right = end.side == "right"
    sequence = only_acgtn(case.sequence)
    sequence = sequence if is_right else reverse_complement(sequence)
    stored = case.right if is_right else case.left
    reads = [(only_acgtn(bases), qualities) for bases, qualities in stored]
    assert [bases for bases, _ in reads] == end.reads["bases"].tolist()
    for rung in end.rungs:
        table = count(reads, rung.k)
        expected = walk_from(table, sequence[-rung.k :], end.depth, walk_limit)
        assert (rung.walk, rung.outcome) == expected
        votes = end.votes(rung.k)
        context = sequence + rung.walk
        for position in range(len(rung.walk) + 1):
            last = len(sequence) + position
            normal, high = table.get(context[last - rung.k : last], ({}, {}))
            row = votes.loc[position]
            assert [row[base] for base in BASES] == [normal.get(base, 0) for base in BASES]
            assert [row[f"{base} high"] for base in BASES] == [high.get(base, 0) for base in BASES]


@pytest.mark.parametrize("k", [21, 33, 45])
def test_rungs_and_votes_are_those_of_the_reference(tmp_path: Path, k: int) -> None:
    rng = random.Random(k)
    cases = [forked_case()[0]]
    for case in (random_case(rng, k) for _ in range(25)):  # a dump has no empty reads
        left, right = ([read for read in reads if read[0]] for reads in (case.left, case.right))
        cases.append(Case(case.sequence, left, right, case.depth))
    ends = follow_all(cases, tmp_path, k)
    for number, end in enumerate(ends):
        check_against_reference(cases[number // 2], end)
    outcomes = {rung.outcome for end in ends for rung in end.rungs}
    assert {"dead_end", "fork", "repeat"} <= outcomes


def forked_case() -> tuple[Case, str]:
    rng = random.Random(1)
    genome = random_bases(rng, 200)
    other = genome[:130] + {"A": "C", "C": "G", "G": "T", "T": "A"}[genome[130]] + genome[131:]
    reads = [(each[60:160], [40] * 100) for each in (genome, other, genome, other)]
    return Case(genome[:100], [], reads, 4.0), genome


def test_a_fork_shows_both_ways(tmp_path: Path) -> None:
    case, genome = forked_case()
    _, end = follow_all([case], tmp_path, min_support=2, walk_limit=500)
    assert (end.walk, end.outcome) == (genome[100:130], "fork")
    votes = end.votes()
    last = votes.iloc[-1]
    assert last["follows"] == "fork"
    assert sorted(last[list(BASES)]) == [0, 0, 2, 2]
    assert votes["support"].tolist() == [4] * 30 + [-1]
    pile = end.pile(first=0, last=60).splitlines()
    assert pile[1].strip() == end.walk
    assert [line.split()[0] for line in pile[2:]] == ["0", "1", "2", "3"]
    assert pile[2].split()[1] == "." * 30 + genome[130:160]
    assert end.placed()["start"].tolist() == [-40] * 4
    assert "fork" in end._repr_html_()
    with pytest.raises(ParameterError, match="there are those of 21"):
        end.votes(22)


def test_the_limit_and_ends_without_reads(tmp_path: Path) -> None:
    case, genome = forked_case()
    left, right = follow_all([case], tmp_path, walk_limit=10)
    assert (right.walk, right.outcome) == (genome[100:110], "limit")
    assert right.votes()["follows"].iat[-1] == "limit"
    assert (left.rungs, left.outcome) == ([], "no_reads")
    with pytest.raises(ParameterError, match="none \\(no_reads\\)"):
        left.votes()


@pytest.fixture
def run_and_reads(community, tmp_path):
    paths = [shutil.copy(path, tmp_path) for path in community.reads_paths]
    run = dlasm.extend(community.contigs_path, reads=paths, output=tmp_path / "run")
    return run, paths


def test_an_end_of_a_run_of_reads(run_and_reads) -> None:
    run, _ = run_and_reads
    table = run.extensions()
    sequences = run.contigs().set_index("contig")["sequence"]
    for row in table[table["bases"] > 0].head(6).itertuples():
        end = run.follow_end(row.contig, row.side)
        assert (len(end.walk), end.k, end.outcome) == (row.bases, row.k, row.outcome)
        assert len(end.reads) == row.candidates
        whole = sequences[row.contig]
        assert (whole if row.side == "right" else reverse_complement(whole)).endswith(end.walk)
        votes = end.votes()
        assert "".join(votes["follows"].iloc[: row.bases]) == end.walk
        assert (votes["support"].iloc[: row.bases] >= 2).all()


def test_an_end_that_is_not_there(run_and_reads) -> None:
    run, _ = run_and_reads
    with pytest.raises(ParameterError, match="no contig has the id 'nobody'"):
        run.follow_end("nobody", "left")
    with pytest.raises(ParameterError, match="counted from 0"):
        run.follow_end(10**6, "left")
    with pytest.raises(ParameterError, match="'left' and 'right'"):
        run.follow_end(0, "up")


def test_reads_that_changed_are_refused(run_and_reads) -> None:
    run, paths = run_and_reads
    shutil.copy(paths[1], paths[0])
    with pytest.raises(InputError, match="was made of"):
        run.follow_end(0, "left")


def test_a_result_that_is_not_the_runs_is_refused(run_and_reads) -> None:
    import zarr

    run, _ = run_and_reads
    store = zarr.open_group(run.path / "results.zarr", mode="r+")
    store["results/k"][1] = 99
    with pytest.raises(StoreError, match="other k than the run has"):
        dlasm.open_run(run.path).follow_end(0, "right")
