"""dlasm's own mapper against plain searches, the rules in numpy, and odd input."""

from __future__ import annotations

import itertools

import dlasm._ends as _ends
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recruit_data import World, make_batch, make_contigs, placement_rows
from reference_recruit import Place, choose, depth_place, reverse_complement

from dlasm.mapping import Aligner, EndsMapper
from dlasm.recruit import Placements

MATCH, MISMATCH, UNSURE, BONUS, LEAST = 2, 8, 1, 10, 40


def random_bases(rng: np.random.Generator, length: int) -> str:
    return "".join(rng.choice(list("ACGT"), length))


def changed(rng: np.random.Generator, bases: str, count: int) -> str:
    """With ``count`` other bases."""
    text = list(bases)
    for i in rng.choice(len(text), count, replace=False):
        text[i] = rng.choice([b for b in "ACGT" if b != text[i]])
    return "".join(text)


def best_part(read: str, contig: str, start: int) -> tuple[int, int, int] | None:
    """Highest score, begin and end of what is aligned of a read that begins at ``start``."""
    n = len(read)
    first, last = max(0, -start), min(n, len(contig) - start)
    worth = []
    for i in range(first, last):
        a, b = read[i], contig[start + i]
        sure = a in "ACGT" and b in "ACGT"
        worth.append((MATCH if a == b else -MISMATCH) if sure else -UNSURE)
    sums = [0, *itertools.accumulate(worth)]
    best, begin = None, 0  # where the sum, less the bonus, is lowest so far
    for end in range(1, len(worth) + 1):
        if sums[end - 1] - BONUS * (first + end == 1) < sums[begin] - BONUS * (first + begin == 0):
            begin = end - 1
        score = sums[end] - sums[begin]
        value = score + BONUS * ((first + begin == 0) + (first + end == n))
        if best is None or value > best[0]:
            best = (value, score, first + begin, first + end)
    return None if best is None or best[1] < LEAST else best[1:]


def search(read: str, contigs: list[str]) -> list[Place]:
    """All places without gaps, by trying all of them."""
    places = []
    for reverse, text in ((False, read), (True, reverse_complement(read))):
        for number, contig in enumerate(contigs):
            for start in range(-len(text) + 1, len(contig)):
                first, last = max(0, -start), min(len(text), len(contig) - start)
                same = sum(
                    a == b for a, b in zip(text[first:last], contig[start + first :], strict=False)
                )
                if MATCH * same < LEAST or same < 0.6 * (last - first):
                    continue  # cannot be the best
                part = best_part(text, contig, start)
                if part is not None:
                    score, begin, end = part
                    places.append(
                        Place(
                            number,
                            start + begin,
                            start + end,
                            begin,
                            len(text) - end,
                            reverse,
                            score,
                        )
                    )
    return places


def as_places(places: Placements, reads: int) -> list[list[Place]]:
    found: list[list[Place]] = [[] for _ in range(reads)]
    for read, contig, start, end, left, right, reverse, score in placement_rows(places):
        found[read].append(Place(contig, start, end, left, right, bool(reverse), score))
    return found


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_reads_of_few_mismatches_lie_where_a_plain_search_puts_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    genome = random_bases(rng, 500)
    contigs = [genome[:220], genome[180:260], reverse_complement(genome[150:400]), genome[:220]]
    contigs.append(changed(rng, genome[100:330], 3))
    contigs.append(genome[30:140] + "N" * int(rng.integers(1, 30)) + genome[200:260])
    rng.shuffle(contigs)
    reads = []
    for _ in range(6):
        length = int(rng.choice([70, 100, 150]))
        start = int(rng.integers(0, 500 - length))
        read = changed(rng, genome[start : start + length], int(rng.integers(0, length // 70 + 1)))
        reads.append(read if rng.random() < 0.5 else reverse_complement(read))
    lengths = [len(contig) for contig in contigs]
    found = as_places(EndsMapper(make_contigs(contigs)).place(make_batch(reads)), len(reads))
    for read, places in zip(reads, found, strict=True):
        everything = search(read, contigs)
        expected = choose(everything, lengths)
        # a place that hangs over may share too few bases to be found; whole ones never are missed
        if expected is not None and expected.left == expected.right == 0:
            assert places == [expected]
        elif expected is not None and places and choose(places, lengths):
            assert places[0].score <= expected.score or places[0] not in everything


def test_the_place_given_is_the_best_of_all_that_were_compared() -> None:
    world = World(3, pairs=500)
    rng = np.random.default_rng(5)
    repeat = random_bases(rng, 7) * 40
    sequences = [*world.sequences, repeat, repeat[3:150] + world.genome[:90], world.sequences[1]]
    reads = [changed(rng, read, min(len(read), int(rng.integers(0, 9)))) for read in world.reads]
    reads += [repeat[i : i + 130] for i in range(20)]
    reads += [read[:60] + read[60 + i :] for i, read in enumerate(world.reads[:50])]
    batch = make_batch(reads)
    mapper = EndsMapper(make_contigs(sequences))
    lengths = [len(sequence) for sequence in sequences]
    every = as_places(mapper.place(batch, every=True), len(reads))
    single = as_places(mapper.place(batch), len(reads))
    several = 0
    for places, place in zip(every, single, strict=True):
        assert [depth_place(places, lengths)] == (place or [None])
        several += len(places) > 1
    assert several > 100


def test_reads_without_errors_lie_where_minimap2_puts_them() -> None:
    world = World(2, pairs=1000)
    lengths = world.contigs.lengths.tolist()
    found = as_places(EndsMapper(world.contigs).place(world.batch), len(world.reads))
    expected = as_places(Aligner(world.contigs).place(world.batch), len(world.reads))
    placed = 0
    for ours, theirs in zip(found, expected, strict=True):
        best = choose(theirs, lengths)
        if best is not None:
            assert ours == [best]
            placed += 1
    assert placed > 1000


@pytest.mark.parametrize("size", [1, 2, 5, 30, 60])
@pytest.mark.parametrize("at", [15, 75, 130])
@pytest.mark.parametrize("kind", ["deletion", "insertion"])
@pytest.mark.parametrize("strand", [0, 1])
def test_a_gap_is_found(size: int, at: int, kind: str, strand: int) -> None:
    rng = np.random.default_rng(size * 1000 + at)
    genome = random_bases(rng, 600)
    inserted = random_bases(rng, size) if kind == "insertion" else ""
    after = 200 + at + (size if kind == "deletion" else 0)
    read = genome[200 : 200 + at] + inserted
    read += genome[after : after + 150 - len(read)]
    end = after + 150 - at - len(inserted)
    parts = at, end - after
    cost = min(12 + 2 * size, 24 + size)
    read = reverse_complement(read) if strand else read
    places = EndsMapper(make_contigs([genome])).place(make_batch([read], paired=False))
    (place,) = as_places(places, 1)[0]
    if 2 * min(parts) > cost:
        assert place == Place(0, 200, end, 0, 0, bool(strand), place.score)
        assert place.score >= 2 * sum(parts) - cost
    else:  # the shorter part is hardly worth the gap
        assert place.score >= min(2 * max(parts), 2 * sum(parts) - cost)


def best_global_score(a: str, b: str) -> int:
    """Score of the best alignment of two whole sequences, gaps of two kinds."""
    low = -(10**6)
    gaps = ((12, 2), (24, 1))
    h = {(0, 0): 0}
    e = [dict[tuple[int, int], int]() for _ in gaps]
    f = [dict[tuple[int, int], int]() for _ in gaps]
    for i in range(len(a) + 1):
        for j in range(len(b) + 1):
            best = h.get((i, j), low)
            for k, (opening, extend) in enumerate(gaps):
                for table, at in ((e[k], (i - 1, j)), (f[k], (i, j - 1))):
                    table[i, j] = max(h.get(at, low) - opening, table.get(at, low)) - extend
                    best = max(best, table[i, j])
            if i and j:
                best = max(best, h[i - 1, j - 1] + (2 if a[i - 1] == b[j - 1] else -8))
            h[i, j] = best
    return h[len(a), len(b)]


@pytest.mark.parametrize("seed", range(12))
def test_a_place_with_gaps_scores_what_its_best_alignment_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    genome = random_bases(rng, 500)
    read = genome[150:300]
    for _ in range(2):
        at = int(rng.integers(30, len(read) - 30))
        size = int(rng.integers(1, 8))
        read = (
            read[:at] + (random_bases(rng, size) if rng.random() < 0.5 else "") + read[at + size :]
        )
    read = changed(rng, read, 2)
    contig = genome[200:] if seed % 3 == 0 else genome
    places = EndsMapper(make_contigs([contig])).place(make_batch([read], paired=False))
    (place,) = as_places(places, 1)[0]
    aligned = read[place.left : len(read) - place.right]
    assert place.score == best_global_score(aligned, contig[place.start : place.end])
    assert place.score >= 100


def test_reads_hang_over_both_ends_of_a_short_contig() -> None:
    genome = random_bases(np.random.default_rng(8), 400)
    contigs = [genome[150:200], genome[300:318]]
    for read in (genome[100:250], reverse_complement(genome[100:250])):
        places = EndsMapper(make_contigs(contigs)).place(make_batch([read], paired=False))
        reverse = int(read != genome[100:250])
        assert placement_rows(places) == [(0, 0, 0, 50, 50, 50, reverse, 100)]


def test_ties_go_to_the_shorter_contig_the_lower_index_the_lower_start_the_plus_strand() -> None:
    rng = np.random.default_rng(3)
    read = random_bases(rng, 100)
    other = [random_bases(rng, 50) for _ in range(8)]
    long = other[0] + read + other[1] + read + other[2] + reverse_complement(read) + other[3]
    short = other[4] + reverse_complement(read) + other[5]
    batch = make_batch([read], paired=False)

    def place(*contigs: str) -> tuple[int, ...]:
        (row,) = placement_rows(EndsMapper(make_contigs(contigs)).place(batch))
        return row[1], row[2], row[6]

    assert place(long, short, short) == (1, 50, 1)
    assert place(long) == (0, 50, 0)
    assert place(reverse_complement(long)) == (0, 50, 0)
    palindrome = read + reverse_complement(read)
    assert place(palindrome) == (0, 0, 0)


def test_other_characters_count_little() -> None:
    genome = random_bases(np.random.default_rng(4), 400)
    contig = genome[:200] + "NRY-" + genome[204:300].lower() + genome[300:]
    reads = [genome[150:300], genome[150:300].lower(), "NN" + genome[102:220] + "NNNNN"]
    places = EndsMapper(make_contigs([contig])).place(make_batch(reads, paired=False))
    assert placement_rows(places) == [
        (0, 0, 150, 300, 0, 0, 0, 2 * 146 - 4),
        (1, 0, 150, 300, 0, 0, 0, 2 * 146 - 4),
        (2, 0, 100, 225, 0, 0, 0, 2 * 114 - 11),
    ]


def test_short_and_long_reads() -> None:
    genome = random_bases(np.random.default_rng(9), 5000)
    lengths = [19, 22, 25, 31, 32, 33, 40, 63, 64, 65, 300, 1000, 4000]
    reads = [genome[500 : 500 + length] for length in lengths]
    found = as_places(EndsMapper(make_contigs([genome])).place(make_batch(reads, paired=False)), 13)
    for length, places in zip(lengths, found, strict=True):
        whole = [Place(0, 500, 500 + length, 0, 0, False, 2 * length)]
        assert places == (whole if length >= 32 else places)
        assert places in ([], whole)
    assert found[0] == []  # a score of 38
    assert sum(bool(places) for places in found[1:4]) >= 2


def test_places_do_not_depend_on_threads_or_neighbours() -> None:
    world = World(2, pairs=1500)
    reads = [
        changed(np.random.default_rng(i), r, 4 * (i % 3 == 0)) for i, r in enumerate(world.reads)
    ]
    batch = make_batch(reads)
    one = placement_rows(EndsMapper(world.contigs, threads=1).place(batch))
    mapper = EndsMapper(world.contigs, threads=4)
    assert placement_rows(mapper.place(batch, threads=3)) == one
    half = placement_rows(mapper.place(make_batch(reads[1001:], paired=False)))
    assert [(row[0] + 1001, *row[1:]) for row in half] == [row for row in one if row[0] >= 1001]


@pytest.mark.parametrize("sequences", [[], [""], ["", "ACGT", "A" * 18], ["N" * 500], ["", "x"]])
def test_contigs_without_a_place_for_reads(sequences: list[str]) -> None:
    batch = make_batch(["", "A", "ACGT" * 30, "N" * 200], paired=False)
    places = EndsMapper(make_contigs(sequences), threads=2).place(batch, 2)
    assert placement_rows(places) == []


def test_empty_and_short_contigs_keep_their_numbers() -> None:
    world = World(4, pairs=50)
    padded = ["", "ACGT", *world.sequences, "", "A" * 18]
    found = placement_rows(EndsMapper(make_contigs(padded)).place(world.batch))
    plain = placement_rows(EndsMapper(world.contigs).place(world.batch))
    assert found == [(row[0], row[1] + 2, *row[2:]) for row in plain]


def test_repeats_do_not_take_for_ever() -> None:
    contigs = ["A" * 200_000, "GGAAT" * 40_000]
    batch = make_batch(["A" * 150, "GGAAT" * 30, "T" * 150], paired=False)
    places = EndsMapper(make_contigs(contigs)).place(batch)
    assert {row[:2] for row in placement_rows(places)} == {(0, 0), (1, 1), (2, 0)}
    assert places.score.tolist() == [300, 300, 300]


def test_arrays_that_contradict_each_other_are_refused() -> None:
    mapper = _ends.Mapper(np.zeros(0, np.uint8), np.zeros(1, np.int64))
    text = np.zeros(10, np.uint8)
    with pytest.raises(ValueError, match="outside the text"):
        mapper.place(text, np.array([5]), np.array([6], np.int32), 1)
    with pytest.raises(ValueError, match="different lengths"):
        mapper.place(text, np.array([5]), np.array([2, 2], np.int32), 1)
    with pytest.raises(ValueError, match="outside the bases"):
        _ends.Mapper(text, np.array([0, 11]))
    with pytest.raises(ValueError, match="not ascending"):
        _ends.Mapper(text, np.array([0, 5, 3]))
