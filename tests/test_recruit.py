"""Choosing candidates, insert sizes and facts, against a plain implementation."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recruit_data import HIGH, LOW, NONE, World, decode, make_batch, make_placements
from reference_recruit import (
    Place,
    candidates,
    depth_place,
    insert_size,
    inserts,
    reverse_complement,
)

from dlasm.errors import DlasmError, ResourceError, StoreError
from dlasm.mapping import Aligner
from dlasm.recruit import (
    BatchFacts,
    bound_suffices,
    facts_path,
    first_bound,
    join_results,
    measure_insert,
    read_facts,
    recruit_batch,
    summarise_library,
    write_batch_result,
)
from dlasm.runs import FRAGMENT_BITS, fragment_ids, open_run_file


def random_places(rng: np.random.Generator, length: int, contigs: list[int]) -> list[Place]:
    """Places of a read, many of them within a base or two of where rules change."""
    places = []
    for _ in range(int(rng.choice([0, 1, 1, 1, 2, 4]))):
        contig = int(rng.integers(len(contigs)))
        if length < 4 or contigs[contig] < 4:
            continue
        size = int(rng.integers(2, min(length, contigs[contig]) + 1))
        start = int(rng.choice([0, 1, 2, contigs[contig] - size, rng.integers(0, 400)]))
        start = max(0, min(start, contigs[contig] - size))
        left = int(rng.choice([0, 1, 2, length - size, rng.integers(0, 400)]))
        left = max(0, min(left, length - size))
        places.append(
            Place(
                contig,
                start,
                start + size,
                left,
                length - size - left,
                bool(rng.integers(2)),
                int(rng.choice([10, 10, 11, 12, -3])),
            )
        )
    return places


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), paired=st.booleans(), bound=st.sampled_from([0, 60, 199.5, 1e9]))
def test_candidates_are_those_of_the_plain_rules(seed: int, paired: bool, bound: float) -> None:
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.choice([0, 5, 60, 61, 200, 400], int(rng.integers(1, 6)))]
    reads = [
        "".join(rng.choice(list("ACGTACGTACGTNacgtRY"), int(rng.choice([0, 1, 21, 22, 50, 150]))))
        for _ in range(2 * int(rng.integers(0, 20)))
    ]
    places = [random_places(rng, len(read), lengths) for read in reads]
    rows = [
        (i, p.contig, p.start, p.end, p.left, p.right, p.reverse, p.score)
        for i, of_read in enumerate(places)
        for p in of_read
    ]
    result = recruit_batch(
        make_batch(reads, paired=paired),
        make_placements(rows),
        np.array(lengths),
        library=3,
        bound=bound,
    )
    expected = candidates(reads, places, lengths, paired, bound)
    assert [(end, distance, bases) for end, distance, bases, _ in decode(result.run)] == [
        (end, distance, bases) for end in sorted(expected) for _, bases, distance in expected[end]
    ]
    assert result.run.library == 3

    pairs, orientations = inserts(places, reads, lengths) if paired else ([], [0, 0, 0])
    assert list(zip(result.inserts, result.insert_contig_length, strict=True)) == pairs
    assert result.orientations.tolist() == orientations

    covered = np.zeros(len(lengths), dtype=np.int64)
    for read, of_read in zip(reads, places, strict=True):
        place = depth_place(of_read, lengths) if len(read) > 21 else None
        if place is not None:
            covered[place.contig] += place.end - place.start
    found = np.zeros(len(lengths), dtype=np.int64)
    found[result.aligned_contig] = result.aligned_bases
    assert (found == covered).all()


def test_batches_of_any_size_give_the_same_candidates() -> None:
    world = World(5)
    aligner = Aligner(world.contigs)
    whole = decode(
        recruit_batch(world.batch, aligner.place(world.batch), world.contigs.lengths, bound=500).run
    )
    parts = []
    for begin in range(0, len(world.reads), 62):
        part = make_batch(
            world.reads[begin : begin + 62], world.qualities[begin : begin + 62], first=begin
        )
        places = aligner.place(part)
        run = recruit_batch(part, places, world.contigs.lengths, bound=500, threads=3).run
        parts += decode(run)
    assert whole
    # runs one after another keep the input order within an end
    assert sorted(parts, key=lambda candidate: candidate[0]) == whole


@pytest.mark.parametrize("seed", range(4))
def test_stored_reads_lie_beyond_the_contig_in_its_direction(seed: int) -> None:
    world = World(seed, pairs=1500)
    reach = 450
    result = recruit_batch(
        world.batch,
        Aligner(world.contigs).place(world.batch),
        world.contigs.lengths,
        bound=reach,
    )
    kinds = set()
    for end, distance, bases, _ in decode(result.run):
        contig, side = divmod(end, 2)
        genome, sequence = world.genome, world.sequences[contig]
        if side == 0:  # left reads follow the reverse complement of the contig
            sequence = reverse_complement(sequence)
        if (side == 0) != world.turned[contig]:
            genome = reverse_complement(genome)
        tail = genome.index(sequence) + len(sequence)
        at = genome.find(bases)
        assert at >= 0, "not in the direction of the contig"
        if distance < 0:
            assert at < tail < at + len(bases)
        else:
            assert tail - reach < at < tail + reach
        kinds.add((side, distance < 0, world.turned[contig]))
    assert len(kinds) == 8


def test_qualities_turn_with_the_bases() -> None:
    read = "ACGTTGCAAC" * 3
    quality = "#" * 10 + "1" * 10 + "I" * 10
    rows = [(0, 0, 0, 20, 10, 0, 0, 40), (1, 0, 80, 100, 0, 10, 0, 40)]
    batch = make_batch([read, read], [quality, None], paired=False)
    result = recruit_batch(batch, make_placements(rows), np.array([100]), bound=0)
    assert decode(result.run) == [
        (0, -1, reverse_complement(read), "2" * 10 + "1" * 10 + "0" * 10),
        (1, -1, read, "2" * 30),
    ]


def test_mates_are_not_projected_in_other_libraries() -> None:
    world = World(9)
    places = Aligner(world.contigs).place(world.batch)
    lengths = world.contigs.lengths
    alone = recruit_batch(world.batch, places, lengths, paired_fr=False, bound=500).run
    both = recruit_batch(world.batch, places, lengths, bound=500).run
    assert (alone.distance == -1).all()
    assert len(alone.end) == (both.distance == -1).sum() < len(both.end)


def test_a_batch_that_divides_a_pair_is_refused() -> None:
    batch = make_batch(["ACGT"] * 3)
    with pytest.raises(DlasmError, match="divides a pair"):
        recruit_batch(batch, make_placements([]), np.array([10]), bound=0)


def facts_of(pairs: list[tuple[int, int]], orientations: tuple[int, int, int]) -> BatchFacts:
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    none = np.empty(0, dtype=np.int64)
    return BatchFacts(
        table[:, 0].copy(), table[:, 1].copy(), np.array(orientations), none, none, {"reads": 2}
    )


@settings(max_examples=100, deadline=None)
@given(
    pairs=st.lists(
        st.tuples(st.integers(1, 700), st.sampled_from([300, 900, 1050, 5000])), max_size=700
    ),
    parts=st.integers(1, 5),
)
def test_insert_size_is_that_of_the_plain_rules(pairs: list[tuple[int, int]], parts: int) -> None:
    facts = [facts_of(pairs[i::parts], (0, 0, 0)) for i in range(parts)]
    measured = measure_insert(facts)
    expected = insert_size(pairs)
    if expected is None:
        assert (measured.mean, measured.sd, measured.source) == (350, 100, "default")
    else:
        assert measured.source == "measured"
        assert (measured.mean, measured.sd, measured.pairs) == pytest.approx(expected)


def test_insert_size_of_simulated_pairs() -> None:
    world = World(11, pairs=3000)
    result = recruit_batch(
        world.batch, Aligner(world.contigs).place(world.batch), world.contigs.lengths, bound=0
    )
    summary = summarise_library([result], paired=True)
    assert summary.insert.mean == pytest.approx(350, abs=3)
    assert summary.insert.sd == pytest.approx(30, abs=3)
    assert summary.reach == summary.insert.mean + 3 * summary.insert.sd
    assert summary.forward_reverse
    assert summary.warnings == []
    assert summary.counts["reads"] == len(world.reads)
    assert bound_suffices(summary.reach, first_bound(result))


def test_few_pairs_give_the_default_and_a_warning() -> None:
    summary = summarise_library([facts_of([(300, 9000)] * 99, (99, 0, 0))], paired=True, name="L1")
    assert (summary.insert.mean, summary.insert.sd, summary.insert.pairs) == (350, 100, 99)
    assert summary.reach == 650
    (warning,) = summary.warnings
    assert warning.startswith("L1: only 99 pairs")
    assert "--insert" in warning


def test_joined_results_of_parts_are_the_result_of_the_whole() -> None:
    world = World(5)
    aligner = Aligner(world.contigs)

    def recruit(batch):
        return recruit_batch(batch, aligner.place(batch), world.contigs.lengths, bound=500)

    whole = recruit(world.batch)
    cuts = [0, 10, 10, 64, 700, len(world.batch)]
    parts = [
        recruit(make_batch(world.reads[a:b], world.qualities[a:b], first=a))
        for a, b in itertools.pairwise(cuts)
    ]
    joined = join_results(parts)
    assert len(whole.run.end) > 20
    assert decode(joined.run) == decode(whole.run)
    assert joined.run.fragment.tolist() == whole.run.fragment.tolist()
    for name in ("orientations", "aligned_contig", "aligned_bases", "counts"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert sorted(joined.inserts) == sorted(whole.inserts)
    assert measure_insert([joined]) == measure_insert([whole])


@pytest.mark.parametrize("paired", [True, False])
def test_mates_share_a_fragment_that_no_other_read_has(paired: bool) -> None:
    world = World(5)
    aligner = Aligner(world.contigs)
    of_read: dict[tuple[str, str], set[int]] = {}  # some short reads are the same
    for number, (read, quality) in enumerate(zip(world.reads, world.qualities, strict=True)):
        classes = str(quality).translate(str.maketrans(HIGH + LOW + NONE, "210"))
        for key in ((read, classes), (reverse_complement(read), classes[::-1])):
            of_read.setdefault(key, set()).add(number // 2 if paired else number)
    for size in (62, len(world.reads)):
        seen = 0
        for begin in range(0, len(world.reads), size):
            first = begin if paired else 2 * begin
            part = slice(begin, begin + size)
            batch = make_batch(world.reads[part], world.qualities[part], first=first, paired=paired)
            places = aligner.place(batch)
            run = recruit_batch(
                batch, places, world.contigs.lengths, library=3, paired_fr=paired, bound=500
            ).run
            for fragment, (_, _, *read) in zip(run.fragment.tolist(), decode(run), strict=True):
                assert fragment >> FRAGMENT_BITS == 3
                assert fragment & ((1 << FRAGMENT_BITS) - 1) in of_read[tuple(read)]
            seen += len(run.end)
        assert seen > 20


def test_numbers_of_fragments_have_a_range() -> None:
    largest = (1 << FRAGMENT_BITS) - 1
    assert fragment_ids(2, np.array([largest])).tolist() == [(2 << FRAGMENT_BITS) + largest]
    assert fragment_ids((1 << 23) - 1, np.array([largest])).tolist() == [2**63 - 1]
    with pytest.raises(ResourceError, match="library 3: holds more than"):
        fragment_ids(2, np.array([largest + 1]))
    with pytest.raises(ResourceError, match="no more than 8,388,608 libraries"):
        fragment_ids(1 << 23, np.array([0]))


def test_given_insert_size_is_used() -> None:
    facts = [facts_of([(300, 9000)] * 200, (200, 0, 0))]
    summary = summarise_library(facts, paired=True, given=(500, 20.5))
    assert (summary.insert.source, summary.reach) == ("given", 561.5)
    assert first_bound(given=(500, 20.5)) == 562
    assert summary.warnings == []


def test_other_orientations_switch_projection_off() -> None:
    facts = [facts_of([(300, 9000)] * 40, (40, 55, 5))] * 2
    summary = summarise_library(facts, paired=True, name="mate pairs")
    assert not summary.forward_reverse
    assert summary.reach == 0
    (warning,) = summary.warnings
    assert "110 face outward" in warning
    # too few to say
    assert summarise_library([facts_of([], (20, 70, 9))], paired=True).forward_reverse


def test_single_reads_have_no_reach() -> None:
    summary = summarise_library([facts_of([], (0, 0, 0))], paired=False)
    assert (summary.reach, summary.forward_reverse, summary.warnings) == (0, False, [])


def test_bound_grows_with_the_first_batch() -> None:
    assert first_bound() == 975
    facts = facts_of([(1000 + i, 90_000) for i in range(200)], (200, 0, 0))
    assert first_bound(facts) > 1.5 * 1100
    assert not bound_suffices(1000.5, 1000)
    assert bound_suffices(1000, 1000)


def test_results_are_saved_and_read_again(tmp_path) -> None:
    world = World(3)
    result = recruit_batch(
        world.batch,
        Aligner(world.contigs).place(world.batch),
        world.contigs.lengths,
        library=2,
        bound=500,
    )
    path = tmp_path / "run_00001"
    write_batch_result(path, result)
    facts = read_facts(path)
    for field in dataclasses.fields(BatchFacts):
        np.testing.assert_array_equal(getattr(facts, field.name), getattr(result, field.name))
    assert decode(open_run_file(path)) == decode(result.run)
    assert open_run_file(path).fragment.tolist() == result.run.fragment.tolist()
    assert sorted(p.name for p in path.parent.iterdir()) == ["run_00001", "run_00001.facts.npz"]
    whole = path.read_bytes()
    for broken in (b"", whole[:40], whole[:-1], whole + b"x", b"x" + whole[1:]):
        path.write_bytes(broken)
        with pytest.raises(StoreError, match="not a whole run"):
            open_run_file(path)
    path.unlink()
    with pytest.raises(StoreError, match="not a whole run"):
        open_run_file(path)
    facts_path(path).write_bytes(facts_path(path).read_bytes()[:100])
    with pytest.raises(DlasmError, match="not the facts of a run"):
        read_facts(path)
