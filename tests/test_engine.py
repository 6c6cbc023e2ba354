"""The CPU engine against the plain reference, and against published results."""

from __future__ import annotations

import gzip
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from adversarial import Case, random_bases, random_case
from conftest import shared_data
from ends import check_cases, engine_results, pack_cases, reference_results
from hypothesis import example, given, settings
from hypothesis import strategies as st
from reference import K_SHIFT, Read, choose, rating, read_dump, reverse_complement

from dlasm.engines.cpu import extend_partition
from dlasm.errors import EngineError
from dlasm.params import K_MAX, K_MIN, WalkParams
from dlasm.testing import ContigEnd, contig_ends

HIGH, LOW, NONE = 40, 15, 5


def one_end(sequence: str, reads: list[Read], depth: float = 5.0) -> Case:
    """A contig whose right end has these reads, and whose left end has their mirror image."""
    mirrored = [(reverse_complement(bases), list(quality)[::-1]) for bases, quality in reads]
    return Case(sequence, mirrored if len(sequence) % 2 else [], reads, depth)


def high(*reads: str) -> list[Read]:
    return [(bases, [HIGH] * len(bases)) for bases in reads]


# -- published and independent results -------------------------------------------------------------


@pytest.mark.parametrize(
    ("dump", "expected", "walk_limit"),
    [
        ("arcticsynth/candidates_k77.dat.gz", "arcticsynth/expected_k77.txt.gz", 613),
        ("synthetic/branches_k77.dat.gz", "synthetic/branches_k77.expected.txt.gz", 613),
        ("synthetic/branches_k77.dat.gz", "synthetic/branches_k77_limit40.expected.txt.gz", 40),
    ],
)
def test_known_results(dump: str, expected: str, walk_limit: int) -> None:
    contigs = list(read_dump(shared_data(*dump.split("/"))))
    with gzip.open(shared_data(*expected.split("/")), "rt") as lines:
        wanted = [line.split() for line in lines]
    cases = [Case(c.sequence, c.left, c.right, float(c.depth)) for c in contigs]
    results = engine_results(cases, WalkParams(k=77, walk_limit=walk_limit), threads=2)
    extended = [
        [contig.name, reverse_complement(left.walk) + contig.sequence + right.walk]
        for contig, left, right in zip(contigs, results[::2], results[1::2], strict=True)
    ]
    assert extended == wanted


@pytest.mark.parametrize("k", [21, 33, 55, 99])
def test_published_candidates_at_other_k(k: int) -> None:
    contigs = itertools.islice(
        read_dump(shared_data("arcticsynth", "candidates_k77.dat.gz")), 0, None, 5
    )
    cases = [Case(c.sequence, c.left, c.right, float(c.depth)) for c in contigs]
    check_cases(cases, WalkParams(k=k))


# -- random ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(K_MIN, K_MAX + 1))
def test_random_ends_at_every_k(k: int) -> None:
    rng = random.Random(k)
    for walk_limit in (613, rng.randint(1, 40)):
        cases = [random_case(rng, k) for _ in range(6)]
        check_cases(cases, WalkParams(k, walk_limit, min_support=rng.choice((1, 2, 3))))


@pytest.mark.parametrize("k", [21, 29, 37, 45, 33])
def test_random_ends_at_small_k(k: int) -> None:
    rng = random.Random(1000 + k)
    outcomes = set()
    for walk_limit in (613, 613, *rng.sample(range(1, 41), 4)):
        cases = [random_case(rng, k) for _ in range(60)]
        outcomes |= {result.outcome for result in check_cases(cases, WalkParams(k, walk_limit))}
    assert outcomes == {
        "dead_end",
        "fork",
        "repeat",
        "limit",
        "no_reads",
        "short_contig",
        "no_walk",
    }


def ascending(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, size), min_size=size, max_size=size).map(sorted)


@settings(max_examples=300)
@given(data=st.data(), k=st.sampled_from([21, 22, 29, 33, 37, 45, 61]), limit=st.integers(1, 60))
def test_structured_ends(data: st.DataObject, k: int, limit: int) -> None:
    def side() -> tuple[ContigEnd, list[Read]]:
        end = data.draw(contig_ends(k))
        return end, [(bases, [ord(q) - 33 for q in quality]) for _, bases, quality in end.reads]

    end, reads = side()
    fragments = [f for _ in range(2) for f in data.draw(ascending(len(reads)))]
    case = Case(end.sequence, reads[::-1], reads, end.depth, fragments)
    params = WalkParams(k, limit, min_support=data.draw(st.integers(1, 4)))
    check_cases([case], params)


@settings(max_examples=200)
@given(
    period=st.integers(1, 60),
    copies=st.integers(2, 12),
    flank=st.integers(0, 60),
    k=st.integers(K_MIN, 60),
    seed=st.integers(0, 2**32),
    alphabet=st.sampled_from(["A", "AC", "ACGT"]),
)
@example(period=1, copies=12, flank=0, k=21, seed=0, alphabet="A")
@example(period=8, copies=12, flank=30, k=21, seed=0, alphabet="AC")
def test_tandem_repeats(
    period: int, copies: int, flank: int, k: int, seed: int, alphabet: str
) -> None:
    rng = random.Random(seed)
    unit = random_bases(rng, period, alphabet)
    genome = random_bases(rng, k + 30) + unit * copies + random_bases(rng, flank)
    end = rng.randint(k, len(genome))
    starts = [rng.randint(max(0, end - k - 20), end) for _ in range(8)]
    reads = high(*(genome[start : start + k + rng.randint(0, 60)] for start in starts))
    check_cases([one_end(genome[:end], reads, 3.0)], WalkParams(k, rng.choice((10, 613))))


def test_homopolymers() -> None:
    for k, length, base in itertools.product((21, 29, 50), (20, 21, 60, 128, 140), "ACGT"):
        sequence, read = base * length, base * (k + 30)
        check_cases([one_end(sequence, high(read, read[: k + 1]))], WalkParams(k))


@pytest.mark.parametrize("extra", [-1, 0, 1, 2])
@pytest.mark.parametrize("k", [21, 22, 77, 113, 120, 121])
def test_reads_about_as_long_as_k(k: int, extra: int) -> None:
    """Reads of at most k bases give nothing and disturb nothing."""
    rng = random.Random(k)
    genome = random_bases(rng, 300)
    short = [genome[start : start + k + extra] for start in range(150 - k - 3, 153)]
    long = genome[100:260]
    sequence = genome[:150]
    for reads in (high(*short), high(*short, long), high(long, *short), high("", "A", long)):
        check_cases([one_end(sequence, reads)], WalkParams(k))


@pytest.mark.parametrize("length", [1, 20, 21, 22, 76, 77, 78, 120, 121, 122, 127, 128, 129, 300])
@pytest.mark.parametrize("k", [21, 77, 121])
def test_contig_lengths(k: int, length: int) -> None:
    rng = random.Random(length)
    genome = random_bases(rng, length + 400)
    reads = high(*(genome[start : start + 160] for start in range(max(0, length - 140), length, 9)))
    [_, right] = check_cases([one_end(genome[:length], reads)], WalkParams(k))
    assert right.outcome == ("short_contig" if length < k else "dead_end")


@pytest.mark.parametrize("letter", ["N", "n", "R", "-", "*"])
def test_n_in_the_contig(letter: str) -> None:
    rng = random.Random(7)
    genome = random_bases(rng, 500)
    reads = high(*(genome[start : start + 150] for start in range(160, 240, 10)))
    for back, k in itertools.product(
        (0, 1, 13, 14, 20, 21, 22, 28, 29, 60, 127, 128), (21, 29, 77)
    ):
        at = 249 - back
        sequence = genome[:at] + letter + genome[at + 1 : 250]
        check_cases([one_end(sequence, reads)], WalkParams(k))


def test_n_in_the_reads() -> None:
    rng = random.Random(8)
    genome = random_bases(rng, 400)
    for at in range(60, 140):
        read = genome[40:190]
        reads = high(read[:at] + "N" + read[at + 1 :], genome[100:180], genome[30 + at : 150 + at])
        check_cases([one_end(genome[:140], reads)], WalkParams(29))


def test_cuts_the_list_of_reads_before_anything_else() -> None:
    rng = random.Random(9)
    genome = random_bases(rng, 300)
    useless, useful = high("A"), high(genome[60:210])
    for before in (2998, 2999, 3000, 3001):
        case = Case(genome[:150], [], useless * before + useful, 2.0)
        [_, right] = check_cases([case], WalkParams(33))
        assert (right.outcome == "no_walk") == (before >= 3000)


@pytest.mark.parametrize("max_reads", [1, 2, 7])
def test_other_caps(max_reads: int) -> None:
    rng = random.Random(max_reads)
    cases = [random_case(rng, 33) for _ in range(40)]
    check_cases(cases, WalkParams(33, 613, max_reads))


def test_many_reads_on_one_end() -> None:
    rng = random.Random(10)
    genome = random_bases(rng, 700)
    other = genome[:420] + random_bases(rng, 280)
    reads = []
    for _ in range(1500):
        start = rng.randint(150, 550)
        read = rng.choice((genome, other))[start : start + 150]
        bases = "".join(rng.choice("ACGTN") if rng.random() < 0.02 else base for base in read)
        reads.append((bases, rng.choices((2, 10, 20, 40), k=len(bases))))
    for k, depth in ((21, 3.0), (45, 400.0), (101, 900.0)):
        check_cases([Case(genome[:300], [], reads, depth)], WalkParams(k))


# -- votes and ratings -----------------------------------------------------------------------------


def vote_case(rng: random.Random, n: list[int], h: list[int], depth: float) -> Case:
    """One base that all agree on after the contig, then the given votes for A, C, G and T."""
    sequence = random_bases(rng, 60)
    reads = []
    for base, (votes, high_votes) in enumerate(zip(n, h, strict=True)):
        for vote in range(votes):
            quality = HIGH if vote < high_votes else LOW
            reads.append((sequence[-21:] + "G" + "ACGT"[base], [HIGH] * 22 + [quality]))
    reads += [(sequence[-21:] + "GA", [HIGH] * 22 + [NONE])] * 2
    rng.shuffle(reads)
    return Case(sequence, [], reads, depth)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), depth=st.integers(0, 60), top=st.sampled_from([3, 6, 20]))
def test_ratings(seed: int, depth: int, top: int) -> None:
    rng = random.Random(seed)
    cases = []
    for _ in range(50):
        n = [rng.randint(0, top) for _ in range(rng.randint(1, 4))]
        n += [0] * (4 - len(n))
        rng.shuffle(n)
        if rng.random() < 0.3:
            n[rng.randrange(4)] = n[rng.randrange(4)]
        h = [rng.randint(0, votes) if rng.random() < 0.5 else votes for votes in n]
        cases.append(vote_case(rng, n, h, depth + rng.choice((0, 0.98))))
    check_cases(cases, WalkParams(21))


def test_every_rating_boundary() -> None:
    """Votes just under, at and over the viable and the expected depth, alone and against others."""
    rng = random.Random(11)
    cases, ratings = [], set()
    for depth in (0, 1, 7, 10, 11, 14, 20, 40):
        near = {0, 1, 2, 3}
        for share in (0.2, 0.3):
            near |= {int(share * depth) + change for change in (0, 1, 2)}
        pairs = [(n, h) for n in sorted(near) for h in sorted(near) if h <= n]
        ratings |= {rating(n, h, depth) for n, h in pairs}
        for (n1, h1), (n2, h2) in itertools.product(pairs, pairs):
            if n1 >= n2:
                cases.append(vote_case(rng, [n1, n2, 0, 0], [h1, h2, 0, 0], depth))
    assert ratings == set(range(8))
    check_cases(rng.sample(cases, 3000), WalkParams(21))


@pytest.mark.parametrize(
    ("n", "h", "depth", "outcome"),
    [
        ([2, 0, 0, 0], [2, 0, 0, 0], 2, "A"),
        ([2, 2, 0, 0], [2, 2, 0, 0], 2, "fork"),
        ([2, 3, 0, 0], [2, 3, 0, 0], 2, "C"),
        ([2, 3, 0, 0], [2, 0, 0, 0], 2, "A"),  # 7 against 5: low qualities do not fork
        ([4, 4, 3, 0], [3, 2, 2, 0], 2, "fork"),  # three of rating 7
        ([1, 1, 0, 0], [1, 1, 0, 0], 2, "dead_end"),
        ([1, 0, 0, 0], [0, 0, 0, 0], 2, "A"),
        ([3, 4, 0, 0], [3, 2, 0, 0], 2, "C"),  # sorted by h, decided by n
    ],
)
def test_choices(n: list[int], h: list[int], depth: int, outcome: str) -> None:
    rng = random.Random(12)
    votes, high_votes = (dict(zip("ACGT", counts, strict=True)) for counts in (n, h))
    assert choose(votes, high_votes, depth) == outcome
    case = vote_case(rng, n, h, depth)
    [_, right] = check_cases([case], WalkParams(21))
    chosen = right.walk[1:] or right.outcome
    assert chosen == outcome


@pytest.mark.parametrize("depth", [2.98, 9.99, 2**31 - 1, 2**31, 2**40, 1e300])
def test_depth_is_truncated_and_capped(depth: float) -> None:
    rng = random.Random(13)
    cases = [vote_case(rng, [n, 1, 0, 0], [n, 1, 0, 0], depth) for n in range(1, 5)]
    packed = pack_cases(cases)
    assert set(packed.depth.tolist()) == {min(int(depth), 2**31 - 1)}
    check_cases(cases, WalkParams(21))


# -- the ladder ------------------------------------------------------------------------------------


def test_ladder_goes_down_after_a_dead_end() -> None:
    rng = random.Random(14)
    genome = random_bases(rng, 400)
    reads = high(genome[200 - 40 : 260], genome[260 - 25 : 330])
    [_, right] = check_cases([Case(genome[:200], [], reads, 2.0)], WalkParams(77))
    assert (right.walk, right.k) == (genome[200:330], 21)


def test_ladder_goes_up_after_a_fork() -> None:
    """A repeat of 40 bases at the end of the contig forks at k 33 and is resolved at k 41."""
    rng = random.Random(15)
    repeat = random_bases(rng, 40)
    before, after = random_bases(rng, 200), "A" + random_bases(rng, 99)
    elsewhere = random_bases(rng, 80) + repeat + "C" + random_bases(rng, 99)
    sequence = before + repeat
    genome = sequence + after
    reads = high(*[genome[150:290]] * 2, *[elsewhere[10:180]] * 2)
    [_, right] = check_cases([Case(sequence, [], reads, 2.0)], WalkParams(33))
    assert (right.walk, right.k) == (genome[240:290], 33 + K_SHIFT)


def test_first_k_wins_a_tie() -> None:
    rng = random.Random(16)
    genome = random_bases(rng, 300)
    [_, right] = check_cases([Case(genome[:150], [], high(genome[50:220]), 2.0)], WalkParams(77))
    assert (right.walk, right.k) == (genome[150:220], 77)


@pytest.mark.parametrize("limit", [*range(1, 41), 613])
def test_walk_limits(limit: int) -> None:
    rng = random.Random(17)
    genome = random_bases(rng, 200) + random_bases(rng, 12) * 20
    reads = high(*(genome[start : start + 100] for start in range(130, 330, 7)))
    cases = [one_end(genome[:length], reads) for length in (170, 201, 230)]
    cases += [random_case(rng, 29) for _ in range(5)]
    results = check_cases(cases, WalkParams(29, limit))
    assert max(len(result.walk) for result in results) <= limit


# -- support ---------------------------------------------------------------------------------------


def supports(case: Case, params: WalkParams) -> list[int]:
    """Support of the bases of the right walk."""
    return list(check_cases([case], params)[1].support)


def test_support_is_of_the_bases_before_too_and_reaches_the_end_of_reads() -> None:
    rng = random.Random(19)
    genome = random_bases(rng, 300)
    long = genome[60:200]
    for first, last in ((80, 101), (79, 101), (81, 101), (100, 121), (110, 131), (110, 130)):
        found = supports(
            Case(genome[:100], [], high(long, genome[first:last]), 2.0), WalkParams(33)
        )
        held = range(max(first + 20, 100), last)  # bases at the end of 21 that the second one has
        assert found == [2 if base in held else 1 for base in range(100, 200)]


def test_support_does_not_look_at_qualities_but_at_n() -> None:
    rng = random.Random(20)
    genome = random_bases(rng, 300)
    silent = (genome[90:150], [NONE] * 60)
    for at in (0, 1, 10, 29, 30, 31, 59):
        bases = silent[0][:at] + "N" + silent[0][at + 1 :]
        reads = [*high(genome[60:200]), silent, (bases, silent[1])]
        found = supports(Case(genome[:100], [], reads, 2.0), WalkParams(33))
        for base, support in zip(range(100, 200), found, strict=True):
            held = range(110, 150)
            spoiled = 90 + at in range(base - 20, base + 1)
            assert support == 1 + (base in held) * (1 if spoiled else 2)


def test_a_read_and_its_mate_are_one_fragment() -> None:
    rng = random.Random(21)
    genome = random_bases(rng, 300)
    reads = high(genome[60:200], genome[70:150], genome[110:180], genome[60:200])
    for fragments, wanted in (
        ([0, 1, 2, 3], {120: 3, 140: 4, 160: 3, 190: 2}),
        ([0, 1, 1, 2], {120: 3, 140: 3, 160: 3, 190: 2}),
        ([0, 0, 0, 0], {120: 1, 140: 1, 160: 1, 190: 1}),
        ([5, 5, 9, 9], {120: 2, 140: 2, 160: 2, 190: 2}),
    ):
        found = supports(Case(genome[:100], [], reads, 2.0, fragments), WalkParams(33))
        assert {base: found[base - 100] for base in wanted} == wanted


def test_a_fragment_may_hold_many_stretches_of_a_walk() -> None:
    """More than an engine keeps at a time, in any order, some of them again and overlapping."""
    rng = random.Random(22)
    genome = random_bases(rng, 800)
    long = [genome[start : start + 150] for start in range(60, 600, 40)]
    for step in (25, 34, 60):
        short = [genome[start : start + 28] for start in range(80, 700, step)]
        short += [genome[start : start + 40] for start in range(80, 700, 4 * step)]
        rng.shuffle(short)
        fragments = [*range(len(long)), *[len(long)] * len(short)]
        supports(Case(genome[:100], [], high(*long, *short), 2.0, fragments), WalkParams(33))


def test_support_stops_at_255() -> None:
    rng = random.Random(23)
    genome = random_bases(rng, 200)
    for count in (254, 255, 256, 600):
        reads = high(*[genome[60:160]] * count)
        found = supports(Case(genome[:100], [], reads, 2.0), WalkParams(33, min_support=255))
        assert found == [255] * 60 * (count >= 255)


def test_only_reads_under_the_cap_support() -> None:
    rng = random.Random(24)
    genome = random_bases(rng, 200)
    case = Case(genome[:100], [], high(*[genome[60:160]] * 9), 2.0)
    assert supports(case, WalkParams(33, 613, max_reads=7)) == [7] * 60


def test_walks_are_cut_before_the_first_base_with_too_little_support() -> None:
    rng = random.Random(25)
    genome = random_bases(rng, 300)
    # two fragments up to 150, one up to 180, two again after that
    reads = high(genome[60:150], genome[60:230], genome[155:230])
    wanted = {1: (130, "dead_end", 33, 0), 2: (50, "support", 33, 80), 3: (0, "no_walk", 0, 130)}
    for least, (length, outcome, k, cut) in wanted.items():
        params = WalkParams(33, min_support=least)
        [_, right] = check_cases([Case(genome[:100], [], reads, 2.0)], params)
        assert (len(right.walk), right.outcome, right.k, right.cut) == (length, outcome, k, cut)
        mirrored = [(reverse_complement(bases), quality) for bases, quality in reads]
        turned = Case(reverse_complement(genome[:100]), reads, mirrored, 2.0)
        [left, _] = check_cases([turned], params)
        assert left == right


# -- the shape of the work -------------------------------------------------------------------------


def test_threads_and_companions_do_not_matter() -> None:
    rng = random.Random(18)
    cases = [random_case(rng, 33) for _ in range(700)]
    params = WalkParams(33, 300)
    alone = extend_partition(pack_cases(cases), params, 1)
    for threads in (2, 3, 8):
        found = extend_partition(pack_cases(cases), params, threads)
        for name in ("walk_values", "walk_offsets", "support", "k", "outcome", "cut"):
            np.testing.assert_array_equal(getattr(found, name), getattr(alone, name), name)
    results = engine_results(cases, params)
    order = rng.sample(range(len(cases)), len(cases))
    shuffled = engine_results([cases[i] for i in order], params)
    assert shuffled == [results[2 * i + side] for i in order for side in (0, 1)]


def test_nothing_to_do() -> None:
    params = WalkParams(33)
    assert engine_results([], params) == []
    cases = [Case("", [], [], 0.0), Case("ACGT" * 30, [], [], 1.0), Case("", high("ACGT"), [], 0.0)]
    assert [r.outcome for r in engine_results(cases, params)] == [
        *["no_reads"] * 4,
        "short_contig",
        "no_reads",
    ]
    assert engine_results(cases, params) == reference_results(cases, params)


def test_inconsistent_arrays_are_refused() -> None:
    packed = pack_cases([Case("ACGT" * 30, [], high("ACGT" * 20), 1.0)])
    packed.length[0] += 40
    with pytest.raises(EngineError, match="not consistent"):
        extend_partition(packed, WalkParams(33))


def test_fragments_that_are_not_ascending_are_refused() -> None:
    reads = high(*["ACGT" * 20] * 3)
    packed = pack_cases([Case("ACGT" * 30, reads, reads, 1.0, [5, 5, 7, 2, 2, 9])])
    extend_partition(packed, WalkParams(33))
    packed.fragment[4:] = [3, 2]
    with pytest.raises(EngineError, match="fragments of an end are not ascending"):
        extend_partition(packed, WalkParams(33))


def test_reference_prints_the_dump_extended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import reference

    contig = "ACGTTGCATCGATTTGACCAGTACG"
    (tmp_path / "dump.dat").write_text(f"c1 {contig} 2.5 0 1 r/1 {contig}TTA {'I' * 28}\r\n")
    monkeypatch.setattr("sys.argv", ["reference", str(tmp_path / "dump.dat"), "-k", "21"])
    reference.main()
    assert capsys.readouterr().out == f"c1 {contig}TTA\n"
