"""Joins: overlaps of ends, what speaks for them, chains and their files."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from ends import flat, make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import reverse_complement
from test_extend import fasta_records

import dlasm
from dlasm import joins as dj
from dlasm.arrays import GROUPS, validate
from dlasm.cli import main
from dlasm.errors import ParameterError, ResumeError, StoreError
from dlasm.params import REASONS, VERDICTS
from dlasm.runs import OVERHANG

READ = 100
LIBRARY = dj.LibraryInsert(mean=300.0, sd=30.0, reach=390.0)
NARROW = dj.LibraryInsert(mean=120.0, sd=30.0, reach=390.0)  # of pairs_between, on junctions


def extended(contigs, walks=None, depth=None) -> dj.Extended:
    """Contigs with the bases appended to their left and right ends, in output order."""
    walks = walks or [("", "")] * len(contigs)
    depth = np.full(len(contigs), 10.0) if depth is None else np.array(depth, dtype=float)
    ends = [walk for pair in walks for walk in pair]
    return dj.Extended(*flat(contigs), *flat(ends), depth)


def names_of(count: int) -> dj.Names:
    return dj.Names(*flat([f"c{i}" for i in range(count)]))


def random_bases(rng, length: int) -> str:
    return "".join(rng.choice(list("ACGT"), length))


# -- overlaps --------------------------------------------------------------------------------------


def outward(sequence: str, side: int) -> str:
    return sequence if side else reverse_complement(sequence)


def brute_force(sequences: list[str], shortest: int) -> set[tuple[int, int, int]]:
    """All overlaps of ends, compared with each other one by one."""
    found = set()
    for end in range(2 * len(sequences)):
        for partner in range(end, 2 * len(sequences)):
            x = outward(sequences[end // 2].upper(), end % 2)
            z = reverse_complement(outward(sequences[partner // 2].upper(), partner % 2))
            for length in range(shortest, min(len(x), len(z))):
                suffix = x[len(x) - length :]
                if suffix == z[:length] and set(suffix) <= set("ACGT"):
                    found.add((end, partner, length))
    return found


@st.composite
def overlapping_contigs(draw):
    """Contigs cut from few short texts of a small alphabet: repeats, palindromes, copies, Ns."""
    alphabet = draw(st.sampled_from(["A", "AC", "ACGT", "ACGTN", "acGTR"]))
    text = draw(st.text(alphabet, min_size=0, max_size=40))
    text += draw(st.sampled_from(["", reverse_complement(text.upper().replace("R", "N")), text]))
    pieces = st.tuples(st.integers(0, 60), st.integers(0, 60), st.booleans())
    contigs = []
    for begin, end, turned in draw(st.lists(pieces, max_size=5)):
        piece = text[min(begin, end) : max(begin, end)]
        contigs.append(piece[::-1] if turned else piece)
    return contigs


@settings(max_examples=300)
@given(
    overlapping_contigs(),
    st.integers(3, 9),
    st.sampled_from([9, 12, 1_000]),
    st.integers(0, 9),
    st.integers(1, 3),
)
def test_overlaps_are_those_of_brute_force(contigs, shortest, longest, appended, threads):
    walks = [(c[:appended], c[appended:][-appended:] if appended else "") for c in contigs]
    own = [
        c[len(left) : len(c) - len(right)] for c, (left, right) in zip(contigs, walks, strict=True)
    ]
    overlaps = dj.find_overlaps(extended(own, walks), shortest, longest, threads=threads)
    found = set(
        zip(overlaps.end.tolist(), overlaps.partner.tolist(), overlaps.length.tolist(), strict=True)
    )
    assert not overlaps.is_crowded.any()
    assert found == {each for each in brute_force(contigs, shortest) if each[2] <= longest}
    count = np.zeros(2 * len(contigs), dtype=int)
    for end, partner, _ in found:
        count[end] += 1
        count[partner] += end != partner
    assert overlaps.count.tolist() == count.tolist()


def test_an_end_with_too_many_overlaps_is_crowded():
    rng = np.random.default_rng(1)
    repeat = random_bases(rng, 60)
    before = [random_bases(rng, 100) + repeat for _ in range(2)]
    after = [repeat + random_bases(rng, 100) for _ in range(dj.MAX_OVERLAPS + 1)]
    overlaps = dj.find_overlaps(extended(before + after))
    assert np.flatnonzero(overlaps.is_crowded).tolist() == [1, 3]


def test_overlaps_without_the_appended_bases_are_those_of_the_contigs_as_they_were():
    rng = np.random.default_rng(2)
    text = random_bases(rng, 300)
    contigs = extended([text[:120], text[180:]], [("", text[120:210]), ("", "")])
    overlaps = dj.find_overlaps(contigs, 30)
    assert (overlaps.end.tolist(), overlaps.partner.tolist()) == ([1], [2])
    assert overlaps.length.tolist() == [30]
    assert len(dj.find_overlaps(contigs, 30, extended=False)) == 0


# -- decisions -------------------------------------------------------------------------------------


def candidate(**changes) -> dict[str, np.ndarray]:
    """Group joins with one candidate that everything speaks for, but for the changes."""
    values = {
        "end_a": 1,
        "end_b": 2,
        "overlap": 100,
        "gap": 20,
        "depth_a": 10.0,
        "depth_b": 10.0,
        "links": 10,
        "pairs": 10,
        "insert_shift": 0.0,
        "reads": 3,
        "least_reads": 5,
        **{f"{name}_{side}": 0 for name in ("against", "rivals", "rival_links") for side in "ab"},
        "agree_a": 10,
        "agree_b": 10,
        "verdict": 0,
        "reason": 0,
    }
    assert set(changes) <= set(values)
    values |= changes
    specs = GROUPS["joins"]
    joins = {name: np.array([values[name]], dtype=spec.dtype) for name, spec in specs.items()}
    validate("joins", joins)
    return joins


CIRCLE = {"end_a": 0, "end_b": 1, "pairs": 0, "links": 0, "insert_shift": np.nan, "reads": 0}


@pytest.mark.parametrize(
    ("changes", "careful", "full"),
    [
        ({}, "", ""),
        ({"insert_shift": -1.9}, "insert", "insert"),
        ({"insert_shift": -1.7}, "", ""),
        ({"insert_shift": np.nan, "pairs": 0, "reads": 2}, "", ""),
        ({"least_reads": 1}, "kmers", "kmers"),
        ({"least_reads": 2}, "", ""),
        ({"least_reads": dj.UNKNOWN}, "", ""),
        ({"against_a": 2}, "", ""),
        ({"against_b": 3}, "contradicted", ""),
        ({"against_a": 11}, "contradicted", "contradicted"),
        ({"pairs": 1, "reads": 1}, "few_pairs", ""),
        ({"pairs": 1, "reads": 2}, "", ""),
        ({"rivals_a": 1, "rival_links_a": 10}, "", ""),
        ({"rivals_b": 1, "rival_links_b": 11}, "rival", ""),
        (CIRCLE, "", ""),
        ({**CIRCLE, "rivals_a": 1}, "rival", ""),
        ({**CIRCLE, "overlap": 700}, "short", "short"),
        ({"links": dj.UNKNOWN, "reason": REASONS.index("ambiguous")}, "ambiguous", "ambiguous"),
    ],
)
def test_each_rule_refuses_what_it_is_for(changes, careful, full):
    lengths = np.array([1_000, 1_000])
    for mode, expected in (("careful", careful), ("full", full)):
        verdict, reason = dj.decide(candidate(**changes), lengths, mode)
        assert REASONS[reason[0]] == expected
        made = "circular" if "end_a" in changes else "joined"
        assert VERDICTS[verdict[0]] == ("refused" if expected else made)


def chain_of(depths: list[float], lengths: list[int]) -> list[str]:
    """Reasons of the joins of a chain of contigs of these depths and lengths."""
    n = len(depths) - 1
    each = [
        candidate(end_a=2 * i + 1, end_b=2 * i + 2, depth_a=depths[i], depth_b=depths[i + 1])
        for i in range(n)
    ]
    joins = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    return [REASONS[code] for code in dj.decide(joins, np.array(lengths), "full")[1]]


def test_chains_do_not_pass_through_repeats():
    assert chain_of([10, 20, 10], [9_000, 900, 9_000]) == ["repeat", "repeat"]
    assert chain_of([10, 14, 10], [9_000, 900, 9_000]) == ["", ""]
    assert chain_of([10, 20, 14], [9_000, 900, 9_000]) == ["", ""]
    assert chain_of([10, 20, 10], [9_000, 5_000, 9_000]) == ["", ""]
    assert chain_of([10, 20], [9_000, 900]) == [""]


def test_chains_do_not_pass_through_repeats_of_several_contigs():
    assert chain_of([8, 21, 17, 6], [1_200, 1_000, 900, 1_400]) == ["repeat"] * 3
    assert chain_of([8, 21, 17, 6], [1_200, 1_000, 9_000, 1_400]) == [""] * 3


def test_of_ambiguous_overlaps_the_clear_winner_is_taken():
    rng = np.random.default_rng(3)
    repeat = random_bases(rng, 60)
    a, b, c = (random_bases(rng, 400) for _ in range(3))
    contigs = extended([a + repeat, b + repeat, c], [("", ""), ("", ""), (repeat, "")])
    run = pairs_between([(1, 4)] * 6 + [(3, 4)] * 2, contigs)
    for ambiguous, expected in ((False, {}), (True, {(1, 4)})):
        joins = dj.find_joins(contigs, [run], [NARROW], "full", ambiguous=ambiguous)
        made = joins["verdict"] == VERDICTS.index("joined")
        pairs = zip(joins["end_a"][made].tolist(), joins["end_b"][made].tolist(), strict=True)
        assert set(pairs) == set(expected)


# -- evidence --------------------------------------------------------------------------------------


def pairs_between(ends: list[tuple[int, int]], contigs: dj.Extended):
    """A run of pairs, whose reads lie 120 bases from two ends each and project their mates."""
    reads: list[list] = [[] for _ in range(2 * len(contigs))]
    fragments: list[list[int]] = [[] for _ in reads]
    text = contigs.bases.tobytes().decode()
    for fragment, pair in enumerate(ends):
        for end, mate_end in (pair, pair[::-1]):
            contig = mate_end // 2
            own = outward(text[contigs.offsets[contig] : contigs.offsets[contig + 1]], mate_end % 2)
            mate = reverse_complement(own[len(own) - 120 : len(own) - 20])
            reads[end].append((mate, [30] * READ))
            fragments[end].append(fragment)
    run = make_run(reads, [f for each in fragments for f in each])
    return replace(run, distance=np.full(len(run.end), 120, dtype=np.int32))


def test_evidence_of_a_junction():
    """Two contigs that overlapped by 40, each extended by 50 into the other."""
    rng = np.random.default_rng(4)
    genome = random_bases(rng, 1_000)
    contigs = extended(
        [genome[:500], reverse_complement(genome[460:])],
        [("", genome[500:550]), ("", reverse_complement(genome[410:460]))],
    )
    good = [30] * READ
    right = [  # read, distance of the mate that projects it, fragment
        (genome[520:620], 140, 0),  # its mate begins at 360: an insert of 260
        (genome[440:540], OVERHANG, 1),  # crosses by itself
        (genome[440:500] + random_bases(rng, 40), OVERHANG, 2),  # goes on otherwise
    ]
    left = [(genome[360:460], 160, 0), (genome[380:480], 140, 3)]
    run = make_run(
        [
            [],
            [(bases, good) for bases, _, _ in right],
            [],
            [(reverse_complement(bases), good) for bases, _, _ in left],
        ],
        [fragment for _, _, fragment in right + left],
    )
    distance = np.array([d for _, d, _ in right + left], dtype=np.int32)
    joins = dj.find_joins(contigs, [replace(run, distance=distance)], [LIBRARY], "full")
    one = {name: values[0] for name, values in joins.items()}
    assert len(joins["end_a"]) == 1
    assert (one["end_a"], one["end_b"], one["overlap"], one["gap"]) == (1, 3, 140, -40)
    assert (one["links"], one["pairs"], one["reads"]) == (1, 2, 1)
    # fragment 0 from 360 to 620, fragment 3 from 380 to 600
    assert one["insert_shift"] == pytest.approx(((260 - 300) + (220 - 300)) / 30 / np.sqrt(2))
    assert (one["agree_a"], one["against_a"]) == (2, 1)
    assert (one["agree_b"], one["against_b"]) == (2, 0)
    assert one["least_reads"] == 1  # ten 51-mers reach over the 40 bases that both had
    assert (one["rivals_a"], one["rivals_b"]) == (0, 0)


def test_appended_kmers_are_counted_by_fragment():
    """Two contigs 60 apart; both walks close the gap. A read and its mate count once."""
    rng = np.random.default_rng(5)
    genome = random_bases(rng, 1_060)
    gap = genome[500:560]
    contigs = extended([genome[:500], genome[560:]], [("", gap), (gap, "")])
    read = (genome[480:580], [30] * READ)
    turned = (reverse_complement(read[0]), read[1])
    for fragments, expected in (([0, 1, 2], 3), ([0, 1, 0], 2)):
        run = make_run([[], [read, read], [turned], []], fragments)
        joins = dj.find_joins(contigs, [run], [LIBRARY], "full")
        assert joins["least_reads"].tolist() == [expected]
        assert joins["reads"].tolist() == [expected]


def test_rivals_are_ends_that_overlapped_before_extension():
    rng = np.random.default_rng(6)
    text, other = random_bases(rng, 1_000), random_bases(rng, 400)
    shared = text[460:500]
    contigs = extended(
        [text[:500], text[460:], shared + other],
        [("", text[500:560]), ("", ""), ("", "")],
    )
    run = pairs_between([(1, 2)] * 5 + [(1, 4)] * 7, contigs)
    joins = dj.find_joins(contigs, [run], [NARROW], "careful")
    (row,) = np.flatnonzero(joins["links"] != dj.UNKNOWN)
    assert (joins["end_a"][row], joins["end_b"][row]) == (1, 2)
    assert (joins["rivals_a"][row], joins["rivals_b"][row]) == (1, 0)
    assert (joins["links"][row], joins["rival_links_a"][row]) == (5, 7)
    assert REASONS[joins["reason"][row]] == "contradicted"  # mates that lie in the rival say so
    assert joins["against_a"][row] == 0 or joins["agree_a"][row] < 5 * joins["against_a"][row]


# -- chains and files ------------------------------------------------------------------------------


def made(rows, contigs: int) -> dict[str, np.ndarray]:
    """Joins that were made: end, partner, overlap."""
    each = [candidate(end_a=a, end_b=b, overlap=n) for a, b, n in rows] or [candidate()]
    joins = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    if not rows:
        joins = {name: values[:0] for name, values in joins.items()}
    circle = joins["end_a"] // 2 == joins["end_b"] // 2
    joins["verdict"] = np.where(
        circle, VERDICTS.index("circular"), VERDICTS.index("joined")
    ).astype(np.uint8)
    return joins


def test_chains_come_where_their_lowest_contig_was():
    # 2 reversed, then 0 as it came, then 3; 1 alone; 4 a circle of itself; 5 and 6 one together
    joins = made([(0, 4, 5), (1, 6, 5), (8, 9, 5), (10, 12, 5), (11, 13, 5)], 7)
    chains = dj.make_chains(7, joins)
    members = np.split(chains.member, chains.start[1:-1])
    assert [each.tolist() for each in members] == [[4 ^ 1 ^ 1, 1, 7], [3], [9], [11, 12]]
    assert chains.is_circular.tolist() == [0, 0, 1, 1]
    assert chains.number.tolist() == [1, 0, 0, 2]
    assert chains.skip.tolist() == [0, 5, 5, 0, 5, 5, 5]
    assert len(dj.make_chains(0, made([], 0))) == 0


def parse_agp(text: str, components: dict[str, str]) -> dict[str, str]:
    """Build the objects of an AGP file, checking its columns."""
    lines = text.splitlines()
    assert lines[0] == "##agp-version 2.1"
    objects: dict[str, str] = {}
    parts: dict[str, int] = {}
    for line in lines[1:]:
        name, begin, end, part, kind, component, first, last, strand = line.split("\t")
        piece = components[component][int(first) - 1 : int(last)]
        assert kind == "W"
        assert strand in "+-"
        assert len(piece) == int(last) - int(first) + 1 == int(end) - int(begin) + 1 > 0
        assert int(begin) == len(objects.get(name, "")) + 1
        parts[name] = parts.get(name, 0) + 1
        assert int(part) == parts[name]
        objects[name] = objects.get(name, "") + (
            piece if strand == "+" else reverse_complement(piece)
        )
    return objects


def check_gfa(text: str, sequences: dict[str, str]) -> int:
    """Check the syntax of a GFA file and that its overlaps are there; returns their number."""
    lines = text.splitlines()
    assert lines[0] == "H\tVN:Z:1.0"
    segments = {}
    overlaps = 0
    for line in lines[1:]:
        kind, *fields = line.split("\t")
        if kind == "S":
            name, sequence, *tags = fields
            segments[name] = "" if sequence == "*" else sequence
            assert f"LN:i:{len(segments[name])}" in tags
            assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9]:[AifZJHB]:[ -~]+", tag) for tag in tags)
        else:
            assert kind == "L"
            one, from_strand, two, to_strand, cigar = fields[:5]
            size = int(re.fullmatch(r"([0-9]+)M", cigar)[1])
            x = outward(segments[one].upper(), from_strand == "+")
            z = outward(segments[two].upper(), to_strand == "+")
            assert x[-size:] == z[:size]
            assert all(re.fullmatch(r"[a-z]{2}:Z:[a-z_]+", tag) for tag in fields[5:])
            overlaps += 1
    assert segments == sequences
    return overlaps


def test_files_of_joins(tmp_path):
    rng = np.random.default_rng(7)
    text, circle = random_bases(rng, 600), random_bases(rng, 300)
    contigs = extended(
        [text[200:380], text[:220].lower(), "ACGTN", reverse_complement(text[360:]), circle, ""],
        [("", ""), ("", ""), ("", ""), ("", ""), ("", circle[:60]), ("", "")],
        depth=[10, 20, 1, 30, 5, 0],
    )
    joins = made([(0, 3, 20), (1, 7, 20), (8, 9, 60)], 6)
    names = names_of(6)
    dj.write_joined(tmp_path, contigs, joins, names)
    records = dict(fasta_records(tmp_path / "joined.fasta"))
    assert list(records) == [
        "joined_1 members=c1+,c0+,c3- circular=no depth=20.94",
        "c2 members=c2+ circular=no depth=1.00",
        "c4 members=c4+ circular=yes depth=5.00",
        "c5 members=c5+ circular=no depth=0.00",
    ]
    joined, alone, round_, empty = records.values()
    assert joined == text[:220].lower() + text[220:]
    assert (alone, empty) == ("ACGTN", "")
    assert round_ in circle + circle
    assert len(round_) == 300
    ends = contigs.walk_values.tobytes().decode()
    own = contigs.bases.tobytes().decode()
    components = {
        f"c{i}": own[contigs.offsets[i] : contigs.offsets[i + 1]] for i in range(len(contigs))
    }
    components["c4"] += ends
    by_agp = parse_agp((tmp_path / "joined.agp").read_text(), components)
    assert by_agp == {header.split()[0]: s for header, s in records.items() if s}
    assert check_gfa((tmp_path / "graph.gfa").read_text(), components) == 3
    table = (tmp_path / "joins.tsv").read_text().splitlines()
    assert table[0].split("\t")[:6] == [
        "contig_a",
        "side_a",
        "contig_b",
        "side_b",
        "overlap",
        "gap",
    ]
    assert table[1].split("\t")[:5] == ["c0", "left", "c1", "right", "20"]
    assert table[0].split("\t")[-3:] == ["verdict", "reason", "flags"]
    assert [line.split("\t")[-3] for line in table[1:]] == ["joined", "joined", "circular"]
    found = dj.join_figures(contigs, joins)
    assert (found["joined"], found["circles"], found["chains"]) == (2, 1, 1)
    assert (found["contigs"], found["bases"]) == (4, 600 + 5 + 300)


def test_flags_hint_at_strains():
    joins = made([(1, 2, 60), (3, 4, 60), (5, 6, 60), (7, 8, 60), (9, 10, 60)], 6)
    n = len(joins["end_a"])
    # twice as deep; twice, but by chance; reads that vary; too few of many; no candidate
    joins["depth_a"] = np.array([10.0, 2.0, 10.0, 10.0, 10.0])
    joins["depth_b"] = np.array([21.0, 4.2, 11.0, 0.0, 30.0])
    joins["links"] = np.array([3, 3, 3, 3, dj.UNKNOWN])
    for side in "ab":
        joins[f"agree_{side}"] = np.full(n, 18)
        joins[f"against_{side}"] = np.zeros(n, np.int64)
    joins["against_b"] = np.array([0, 1, 2, 0, 9])
    lengths = np.full(6, 1000)
    flags = dj.join_flags(joins, lengths)
    assert flags["depth"].tolist() == [True, False, False, False, False]
    assert flags["variants"].tolist() == [False, False, True, False, False]
    joins["agree_b"][2] = 19  # two of 21
    assert not dj.join_flags(joins, lengths)["variants"].any()
    assert dj.join_flags(joins, np.full(6, 10_000))["depth"].tolist()[:2] == [True, True]


def test_new_ids_are_no_contigs_ids(tmp_path):
    names = dj.Names(*flat(["joined_1", "joined_joined_", "x"]))
    assert names.unused_prefix() == "joined_joined_joined_"
    assert dj.Names(*flat([])).unused_prefix() == "joined_"


def test_ids_that_are_not_utf8_stay_as_they_are(tmp_path):
    values = np.frombuffer(b"a\xffb", dtype=np.uint8)
    names = dj.Names(values, np.array([0, 2, 3]))
    text = random_bases(np.random.default_rng(8), 300)
    dj.write_joined(tmp_path, extended([text[:180], text[120:]]), made([(1, 2, 60)], 2), names)
    for name in dj.FILES:
        assert b"a\xff" in (tmp_path / name).read_bytes()


# -- whole runs ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def joined(community, tmp_path_factory):
    output = tmp_path_factory.mktemp("joined") / "run"
    return dlasm.extend(
        community.contigs_path, reads=community.reads_paths, output=output, join="full"
    )


def test_a_run_joins_what_is_adjacent(joined, community):
    table = joined.joins()
    figures = joined.summary()["joins"]
    assert list(table.columns[:4]) == ["contig_a", "side_a", "contig_b", "side_b"]
    assert set(table.columns[4:]) == set(GROUPS["joins"]) - {"end_a", "end_b"} | {"flags"}
    assert figures["joined"] == (table.verdict == "joined").sum() > 0
    assert figures["overlaps"] == len(table)
    assert sum(figures["refused"].values()) == (table.verdict == "refused").sum()
    records = fasta_records(joined.path / "joined.fasta")
    assert figures["contigs"] == len(records)
    assert figures["bases"] == sum(len(sequence) for _, sequence in records)
    before = {h.split()[0]: s for h, s in fasta_records(joined.path / "extended.fasta")}
    by_agp = parse_agp((joined.path / "joined.agp").read_text(), before)
    assert by_agp == {header.split()[0]: sequence for header, sequence in records}
    assert check_gfa((joined.path / "graph.gfa").read_text(), before) == len(table)
    genomes = {h.split()[0]: s for h, s in read_fasta(community.path / "genomes.fa")}
    for header, sequence in records:
        if header.startswith("joined_") and "circular=no" in header:
            # a join is right if the bases around it are in a genome
            middle = len(sequence) // 2
            probe = sequence[max(0, middle - 60) : middle + 60].upper()
            assert any(
                probe in genome or reverse_complement(probe) in genome
                for genome in genomes.values()
            )


def read_fasta(path) -> list[tuple[str, str]]:
    records = path.read_text().split(">")[1:]
    return [(r.split("\n", 1)[0], "".join(r.split("\n", 1)[1].split())) for r in records]


def test_joins_do_not_change_the_extension(joined, whole):
    for name in ("extended.fasta", "extensions.tsv"):
        assert (joined.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert not [name for name in dj.FILES if (whole.path / name).exists()]
    with pytest.raises(StoreError, match="were not joined in this run"):
        whole.joins()


@pytest.mark.parametrize(("threads", "partition_bytes"), [(1, 1), (3, 1 << 20)])
def test_threads_change_no_byte_of_joins(joined, community, tmp_path, threads, partition_bytes):
    run = dlasm.extend(
        community.contigs_path,
        reads=community.reads_paths,
        output=tmp_path / "run",
        join="full",
        threads=threads,
        partition_bytes=partition_bytes,
    )
    for name in dj.FILES:
        assert (run.path / name).read_bytes() == (joined.path / name).read_bytes()


def test_missing_files_of_joins_are_written_again(community, tmp_path):
    options = {"reads": community.reads_paths, "output": tmp_path / "run", "join": "careful"}
    run = dlasm.extend(community.contigs_path, **options)
    before = {name: (run.path / name).read_bytes() for name in dj.FILES}
    for name in dj.FILES:
        (run.path / name).unlink()
    dlasm.extend(community.contigs_path, **options, resume=True)
    assert {name: (run.path / name).read_bytes() for name in dj.FILES} == before


def test_a_run_is_not_continued_with_other_joins(community, tmp_path):
    options = {"reads": community.reads_paths, "output": tmp_path / "run"}
    dlasm.extend(community.contigs_path, **options)
    with pytest.raises(ResumeError, match="join was not given, is full"):
        dlasm.extend(community.contigs_path, **options, join="full", resume=True)


def test_a_run_killed_at_the_join_goes_on(joined, community, tmp_path, monkeypatch):
    options = {"reads": community.reads_paths, "output": tmp_path / "run", "join": "full"}
    with monkeypatch.context() as patch:
        patch.setattr(dj, "find_joins", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dlasm.extend(community.contigs_path, **options)
    run = dlasm.extend(community.contigs_path, **options, resume=True)
    for name in dj.FILES:
        assert (run.path / name).read_bytes() == (joined.path / name).read_bytes()


def test_joins_of_a_dump_and_of_no_contigs(tmp_path):
    genome = random_bases(np.random.default_rng(9), 800)
    reads = [genome[i : i + 100] for i in range(350, 460, 5)]
    quality = "I" * 100
    left = [f"l{i} {reverse_complement(r)} {quality}" for i, r in enumerate(reads)]
    right = [f"r{i} {read} {quality}" for i, read in enumerate(reads)]
    lines = [f"a {genome[:400]} 10 0 {len(right)}", *right]
    lines += [f"b {genome[500:]} 10 {len(left)} 0", *left]
    dump = tmp_path / "dump.dat"
    records = [" ".join([lines[0], *right]), " ".join([lines[len(right) + 1], *left])]
    dump.write_text("\n".join(records) + "\n")
    run = dlasm.extend(candidates=dump, k=33, output=tmp_path / "run", join="full")
    assert run.joins().verdict.tolist() == ["joined"]
    ((_, sequence),) = fasta_records(run.path / "joined.fasta")
    assert sequence in (genome, reverse_complement(genome))
    empty = tmp_path / "empty.dat"
    empty.write_text("")
    run = dlasm.extend(candidates=empty, k=33, output=tmp_path / "none", join="full")
    assert len(run.joins()) == 0
    assert (run.path / "joined.fasta").read_bytes() == b""


def test_parameters_of_joins():
    with pytest.raises(ParameterError, match="join is 'all'"):
        dlasm.extend("c.fa", single="r.fq", output="x", join="all")
    with pytest.raises(ParameterError, match="only where contigs are joined"):
        dlasm.extend("c.fa", single="r.fq", output="x", join_ambiguous=True)


def test_the_command_joins_and_says_so(community, tmp_path):
    r1, r2 = map(str, community.reads_paths)
    arguments = ["extend", str(community.contigs_path), "-1", r1, "-2", r2]
    arguments += ["-o", str(tmp_path / "run"), "--join", "full", "--join-ambiguous"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "contigs after joins" in done.output
    assert "overlaps of ends, refused:" in done.output
    shown = CliRunner().invoke(main, ["inspect", "--json", str(tmp_path / "run")])
    assert json.loads(shown.output)["parameters"]["join_ambiguous"] is True
