"""Truth of joins, extensions and contiguity on small made-up genomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dlasm
from dlasm.cli import main
from dlasm.errors import ContigsError, InputError, ParameterError, StoreError
from dlasm.evaluate import LABELS, Reference, evaluate_run, label_joins
from dlasm.io.fasta import Contigs, read_contigs

LEFT, RIGHT = 0, 1


def random_bases(seed: int, length: int) -> str:
    codes = np.random.default_rng(seed).integers(0, 4, length)
    return "".join("ACGT"[code] for code in codes)


def mutated(sequence: str, rate: float, seed: int) -> str:
    rng = np.random.default_rng(seed)
    other = {"A": "C", "C": "G", "G": "T", "T": "A"}
    return "".join(other[b] if rng.random() < rate else b for b in sequence)


def reverse(sequence: str) -> str:
    return sequence.translate(str.maketrans("ACGT", "TGCA"))[::-1]


def write_fasta(path: Path, sequences: list[str]) -> Path:
    path.write_text("".join(f">s{i}\n{s}\n" for i, s in enumerate(sequences)))
    return path


def made(tmp_path: Path, contigs: list[str]) -> Contigs:
    return read_contigs(write_fasta(tmp_path / "contigs.fa", contigs))


def genomes(tmp_path: Path, sequences: list[str], **options: bool) -> Reference:
    return Reference(write_fasta(tmp_path / "genomes.fa", sequences), **options)


G = random_bases(1, 20_000)
H = random_bases(2, 20_000)

# contigs 200 bases apart, each end extended by 150: they overlap by 100
JOIN = (0, RIGHT, 1, LEFT, 100, 150, 150)


def test_adjacent_contigs_are_a_true_join_in_any_orientation(tmp_path: Path) -> None:
    reference = genomes(tmp_path, [H, G])
    first, second = G[1000:5000], G[5200:9000]
    contigs = made(tmp_path, [first, second, reverse(first), reverse(second)])
    joins = [
        JOIN,
        (1, LEFT, 0, RIGHT, 100, 150, 150),
        (2, LEFT, 1, LEFT, 100, 150, 150),
        (0, RIGHT, 3, RIGHT, 100, 150, 150),
        (2, LEFT, 3, RIGHT, 100, 150, 150),
        (0, RIGHT, 1, LEFT, 280, 200, 280),  # the overlap reaches into contig 0
        (0, RIGHT, 1, LEFT, 60, 60, 200),
        (0, LEFT, 1, LEFT, 100, 150, 150),  # the wrong end of contig 0
        (0, RIGHT, 2, LEFT, 100, 150, 150),  # contig 0 with itself, so to say
    ]
    labels = label_joins(contigs, np.array(joins), reference)
    assert labels.tolist() == ["true"] * 7 + ["false"] * 2


def test_overlap_longer_than_a_short_contig_is_judged_by_its_place(tmp_path: Path) -> None:
    # contig 1 lies wholly within the overlap, which goes on into what was appended beyond it
    contigs = made(tmp_path, [G[1000:5000], G[5100:5350]])
    join = (0, RIGHT, 1, LEFT, 480, 500, 80)
    reference = genomes(tmp_path, [G, H])
    assert label_joins(contigs, np.array([join]), reference).tolist() == ["true"]


def test_collapsed_tandem_repeat_is_local(tmp_path: Path) -> None:
    unit = random_bases(3, 60)
    genome = G[:5000] + 3 * unit + G[5000:10_000]
    contigs = made(tmp_path, [genome[:4950], genome[5230:]])
    right, lost = (0, RIGHT, 1, LEFT, 100, 230, 150), (0, RIGHT, 1, LEFT, 160, 230, 150)
    labels = label_joins(contigs, np.array([right, lost]), genomes(tmp_path, [genome, H]))
    assert labels.tolist() == ["true", "local"]


@pytest.mark.parametrize("genome_of_second", [0, 1])
def test_join_through_a_repeat_is_false(tmp_path: Path, genome_of_second: int) -> None:
    repeat = random_bases(4, 400)
    one = G[:5000] + repeat + G[5000:10_000] + repeat + G[10_000:15_000]
    other = H[:5000] + repeat + H[5000:]
    after = [one[10_800:14_000], other[5400:9000]][genome_of_second]
    contigs = made(tmp_path, [one[1000:5000], after])
    labels = label_joins(
        contigs, np.array([(0, RIGHT, 1, LEFT, 200, 300, 300)]), genomes(tmp_path, [one, other])
    )
    assert labels.tolist() == ["false"]


def test_contig_of_a_repeat_with_its_flank_is_false_beside_another_copy(tmp_path: Path) -> None:
    # the whole contig lies at one copy, and its inner part, the repeat, at the other just as well
    repeat = random_bases(4, 1000)
    genome = G[:5000] + repeat + G[5000:10_000] + repeat + G[10_000:15_000]
    contigs = made(tmp_path, [genome[1000:4800], genome[11_000:11_900] + genome[11_900:13_000]])
    labels = label_joins(
        contigs, np.array([(0, RIGHT, 1, LEFT, 100, 150, 150)]), genomes(tmp_path, [genome])
    )
    assert labels.tolist() == ["false"]


def test_join_of_two_strains_is_a_switch(tmp_path: Path) -> None:
    strain = mutated(G, 0.02, seed=5)
    contigs = made(tmp_path, [G[1000:5000], strain[5200:9000], G[5200:9000]])
    joins = np.array([JOIN, (0, RIGHT, 2, LEFT, 100, 150, 150)])
    labels = label_joins(contigs, joins, genomes(tmp_path, [G, strain]))
    assert labels.tolist() == ["switch", "true"]


def test_contig_that_was_chimeric_before_is_told_apart(tmp_path: Path) -> None:
    chimera = H[:3000] + G[2000:5000]
    contigs = made(tmp_path, [chimera, G[5200:9000]])
    assert label_joins(contigs, np.array([JOIN]), genomes(tmp_path, [G, H])) == ["chimeric"]


def test_mosaic_of_strains_is_chimeric_where_the_other_strain_has_no_such_place(
    tmp_path: Path,
) -> None:
    # outer part of one strain alone, inner of the other
    strain = H[:2000] + mutated(G[2000:5000], 0.02, seed=5) + H[5000:]
    mosaic = H[1000:2000] + G[2000:5000]
    contigs = made(tmp_path, [mosaic, G[5200:9000]])
    assert label_joins(contigs, np.array([JOIN]), genomes(tmp_path, [G, strain])) == ["chimeric"]


def test_contig_of_no_genome_is_unplaced(tmp_path: Path) -> None:
    contigs = made(tmp_path, [G[1000:5000], random_bases(9, 3000)])
    assert label_joins(contigs, np.array([JOIN]), genomes(tmp_path, [G])) == ["unplaced"]


def test_join_over_the_origin_is_true_on_a_circle_only(tmp_path: Path) -> None:
    contigs = made(tmp_path, [G[15_000:19_900], G[100:4000], G[19_950:] + G[:70]])
    joins = np.array([JOIN, (0, RIGHT, 2, LEFT, 60, 90, 20)])
    linear = label_joins(contigs, joins, genomes(tmp_path, [G, H]))
    circular = label_joins(contigs, joins, genomes(tmp_path, [G, H], circular=True))
    assert linear.tolist()[0] == "false"
    assert circular.tolist() == ["true", "true"]


def test_lower_case_and_short_contigs_are_placed(tmp_path: Path) -> None:
    contigs = made(tmp_path, [G[1000:1050].lower(), G[1250:1320]])
    assert label_joins(contigs, np.array([JOIN]), genomes(tmp_path, [G, H])) == ["true"]


def test_labels_do_not_depend_on_threads(tmp_path: Path) -> None:
    contigs = made(tmp_path, [G[a : a + 900] for a in range(0, 19_000, 1000)])
    joins = [(i, RIGHT, i + 1, LEFT, 60, 80, 80) for i in range(18)]
    path = write_fasta(tmp_path / "genomes.fa", [G])
    one, four = (
        label_joins(contigs, np.array(joins), Reference(path, threads=n)).tolist() for n in (1, 4)
    )
    assert one == four == ["true"] * 18


def test_no_joins_have_no_labels(tmp_path: Path) -> None:
    contigs = made(tmp_path, [G[1000:5000]])
    assert len(label_joins(contigs, np.zeros((0, 7), dtype=np.int64), genomes(tmp_path, [G]))) == 0


def test_join_of_a_contig_that_is_not_there_is_refused(tmp_path: Path) -> None:
    contigs = made(tmp_path, [G[1000:5000]])
    with pytest.raises(ParameterError, match="no contig 1 with side 0"):
        label_joins(contigs, np.array([JOIN]), genomes(tmp_path, [G]))


def test_reference_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContigsError, match=r"nowhere\.fa"):
        Reference(tmp_path / "nowhere.fa")
    (tmp_path / "empty.fa").write_text("")
    with pytest.raises(InputError, match="holds no bases"):
        Reference(tmp_path / "empty.fa")


# -- whole runs ------------------------------------------------------------------------------------


class MadeResults:
    """The arrays of a store, without one."""

    def __init__(self, contigs: Contigs, walks: list[tuple[str, str]]) -> None:
        ends = [walk for pair in walks for walk in pair]
        self.walk_offsets = np.cumsum([0, *map(len, ends)], dtype=np.int64)
        self._arrays = {"walk_values": np.frombuffer("".join(ends).encode(), dtype=np.uint8)}
        for name in ("bases", "offsets", "name_values", "name_offsets", "depth"):
            self._arrays[name] = getattr(contigs, name)

    def array(self, group: str, name: str) -> np.ndarray:
        return self._arrays[name]


def evaluated(
    tmp_path: Path, contigs: list[tuple[str, str, str]], reference: Reference
) -> dict[str, Any]:
    """Evaluate contigs, each given with what is appended left and right."""
    results = MadeResults(
        made(tmp_path, [contig for _, contig, _ in contigs]),
        [(left, right) for left, _, right in contigs],
    )
    return evaluate_run(tmp_path, results, reference)  # type: ignore[arg-type]


def flip(base: str) -> str:
    return {"A": "C", "C": "G", "G": "T", "T": "A"}[base]


def counts(ends: int, right_ends: int, bases: int, right_bases: int) -> dict[str, int]:
    return {"ends": ends, "bases": bases, "right_ends": right_ends, "right_bases": right_bases}


@pytest.mark.parametrize("backward", [False, True])
def test_appended_bases_are_right_up_to_the_first_mismatch(tmp_path: Path, backward: bool) -> None:
    left = G[930:939] + flip(G[939]) + G[940:1000]  # 60 right ones next to the contig, then 10
    contig = (left, G[1000:5000], G[5000:5080])
    if backward:
        contig = (reverse(contig[2]), reverse(contig[1]), reverse(contig[0]))
    found = evaluated(tmp_path, [contig], genomes(tmp_path, [H, G]))["extensions"]
    assert (found["ends"], found["bases"]) == (2, 150)
    assert found["judged"] == counts(2, 1, 150, 140)
    assert [found[s]["ends"] for s in ("wrong_end", "chimeric", "unplaced")] == [0, 0, 0]


def test_best_of_all_places_counts_even_much_worse_ones(tmp_path: Path) -> None:
    # the contig is exact in the first genome, and of the strain only what is appended
    strain = mutated(G[:5000], 0.03, seed=5) + H[:5000]
    strain = strain[:4970] + G[4970:5000] + H[:5000]  # the end itself is as in the contig
    contigs = [("", G[1000:5000], G[5000:5040]), ("", G[1000:5000], H[:40])]
    found = evaluated(tmp_path, contigs, genomes(tmp_path, [G, strain]))["extensions"]
    assert found["judged"] == counts(2, 2, 80, 80)
    alone = evaluated(tmp_path, contigs, genomes(tmp_path, [G]))["extensions"]
    assert alone["judged"]["right_ends"] == 1


def test_contigs_that_were_wrong_before_are_told_apart(tmp_path: Path) -> None:
    contigs = [
        ("", H[:3000] + G[2000:5000], G[5000:5010]),
        ("", random_bases(9, 3000), "ACGT"),
        ("", G[6000:8000] + random_bases(8, 15), "ACGT"),
        ("", G[6000:7990] + flip(G[7990]) + G[7991:8000], G[8000:8010]),
        ("", G[9000:19_000] + random_bases(7, 300), "ACG"),
        ("", G[1000:5000], G[5000:5010]),
    ]
    found = evaluated(tmp_path, contigs, genomes(tmp_path, [G, H]))["extensions"]
    assert found["judged"] == counts(1, 1, 10, 10)
    assert (found["wrong_end"]["ends"], found["wrong_end"]["bases"]) == (3, 17)
    assert found["wrong_end"]["right_bases"] >= 10  # after a wrong base what is appended is right
    assert found["chimeric"] == {"ends": 1, "bases": 10}
    assert found["unplaced"] == {"ends": 1, "bases": 4}


def test_nothing_follows_a_genome_unless_it_is_a_circle(tmp_path: Path) -> None:
    contigs = [("", G[15_000:19_990], G[19_990:] + G[:15]), (G[19_980:], G[:4000], "")]
    linear = evaluated(tmp_path, contigs, genomes(tmp_path, [G]))["extensions"]
    circular = evaluated(tmp_path, contigs, genomes(tmp_path, [G], circular=True))["extensions"]
    assert linear["judged"] == counts(2, 0, 45, 10)
    assert circular["judged"] == counts(2, 2, 45, 45)


def test_contigs_without_bases_and_without_extension_are_no_trouble(tmp_path: Path) -> None:
    found = evaluated(
        tmp_path, [("", "", ""), ("", "ACGT", ""), ("", G[1000:5000], "")], genomes(tmp_path, [G])
    )
    assert found["extensions"]["judged"] == counts(0, 0, 0, 0)
    assert found["contiguity"]["before"]["contigs"] == 3
    assert "joins" not in found


def test_contiguity_breaks_contigs_where_they_are_wrong(tmp_path: Path) -> None:
    chimera = G[:8000] + reverse(H[:6000])
    inserted = G[8000:12_000] + G[14_000:20_000]  # 2,000 bases are missing
    near = H[6000:12_000] + H[12_500:20_000]  # 500 are
    contigs = [("", chimera, ""), ("", inserted, ""), ("", near, "")]
    found = evaluated(tmp_path, contigs, genomes(tmp_path, [G, H]))["contiguity"]
    assert found["before"] == found["extended"]
    before = found["before"]
    assert before["misassemblies"] == 2
    assert (before["n50"], before["ng50"]) == (13_500, 13_500)
    assert before["nga50"] == 8000
    assert before["aligned_bases"] == pytest.approx(37_500, abs=20)


def test_ng50_of_too_few_bases_is_none(tmp_path: Path) -> None:
    found = evaluated(tmp_path, [("", G[:4000], "")], genomes(tmp_path, [G, H]))["contiguity"]
    assert (found["before"]["n50"], found["before"]["ng50"]) == (4000, None)
    assert found["before"]["nga50"] is None


def write_joins(
    tmp_path: Path, rows: list[tuple[int, str, int, str, int, str]], joined: list[str]
) -> None:
    lines = ["contig_a\tside_a\tcontig_b\tside_b\tgap\toverlap\tverdict"]
    for a, side_a, b, side_b, overlap, verdict in rows:
        lines.append(f"s{a}\t{side_a}\ts{b}\t{side_b}\t0\t{overlap}\t{verdict}")
    (tmp_path / "joins.tsv").write_text("\n".join(lines) + "\n")
    text = "".join(f">j{i}\n{sequence}\n" for i, sequence in enumerate(joined))
    (tmp_path / "joined.fasta").write_text(text)


def test_joins_that_were_made_and_refused_are_labelled(tmp_path: Path) -> None:
    contigs = [
        ("", G[1000:5000], G[5000:5100]),
        (G[4950:5200], G[5200:9000], G[9000:9100]),
        (G[9050:9200], G[9200:12_000], ""),
        (G[9050:9100], H[5000:9000], ""),
    ]
    write_joins(
        tmp_path,
        [
            (0, "right", 1, "left", 150, "joined"),
            (1, "right", 2, "left", 50, "refused"),
            (1, "right", 3, "left", 50, "joined"),
        ],
        [G[1000:9100] + H[5000:9000], G[9050:12_000]],
    )
    found = evaluated(tmp_path, contigs, genomes(tmp_path, [G, H]))
    none = dict.fromkeys(LABELS, 0)
    assert found["joins"] == {
        "joined": none | {"true": 1, "false": 1},
        "refused": none | {"true": 1},
        "chains": 1,
        "false_chains": 0,
    }
    joined = found["contiguity"]["joined"]
    assert (joined["contigs"], joined["misassemblies"]) == (2, 1)


@pytest.mark.parametrize("turned", [False, True])
def test_chain_through_a_repeat_is_false_though_each_join_is_true(
    tmp_path: Path, turned: bool
) -> None:
    repeat = random_bases(4, 1500)
    genome = G[:5000] + repeat + G[5000:10_000] + repeat + G[10_000:15_000]
    middle = repeat[100:1400]
    right = ("left", "right")[not turned]
    left = ("left", "right")[turned]
    walks = (repeat[:100], repeat[1400:])
    within = (reverse(walks[1]), reverse(middle), reverse(walks[0])) if turned else None
    contigs = [
        ("", genome[1000:4900], genome[4900:5100]),
        within or (walks[0], middle, walks[1]),
        (genome[12_900:13_100], genome[13_100:16_000], ""),
        (genome[6400:6600], genome[6600:10_000], ""),
    ]
    reference = genomes(tmp_path, [genome])
    false = [(0, "right", 1, left, 100, "joined"), (2, "left", 1, right, 100, "joined")]
    write_joins(tmp_path, false, [genome[1000:6500] + genome[13_000:16_000], contigs[3][1]])
    found = evaluated(tmp_path, contigs, reference)
    assert found["joins"]["joined"]["true"] == 2
    assert (found["joins"]["chains"], found["joins"]["false_chains"]) == (1, 1)
    assert found["contiguity"]["joined"]["misassemblies"] == 1

    true = [(0, "right", 1, left, 100, "joined"), (3, "left", 1, right, 100, "joined")]
    write_joins(tmp_path, true, [genome[1000:10_000]])
    found = evaluated(tmp_path, contigs, reference)
    assert found["joins"]["joined"]["true"] == 2
    assert (found["joins"]["chains"], found["joins"]["false_chains"]) == (1, 0)
    assert found["contiguity"]["joined"]["misassemblies"] == 0


def test_contig_joined_with_itself_is_true_on_a_circle(tmp_path: Path) -> None:
    plasmid = random_bases(6, 5000)
    contigs = [(plasmid[-60:], plasmid[:4900], plasmid[4900:])]
    write_joins(tmp_path, [(0, "left", 0, "right", 60, "circular")], [plasmid])
    reference = genomes(tmp_path, [plasmid], circular=True)
    found = evaluated(tmp_path, contigs, reference)
    assert found["joins"]["joined"]["true"] == 1
    assert (found["joins"]["chains"], found["joins"]["false_chains"]) == (1, 0)


def test_chain_that_closes_to_a_circle_is_one_chain(tmp_path: Path) -> None:
    plasmid = random_bases(6, 9000)
    contigs = [
        (plasmid[-60:], plasmid[:4900], plasmid[4900:5000]),
        (plasmid[4940:5000], plasmid[5000:8900], plasmid[8900:]),
    ]
    rows = [(0, "left", 1, "right", 60, "circular"), (0, "right", 1, "left", 60, "joined")]
    write_joins(tmp_path, rows, [plasmid])
    found = evaluated(tmp_path, contigs, genomes(tmp_path, [plasmid], circular=True))
    assert found["joins"]["joined"]["true"] == 2
    assert (found["joins"]["chains"], found["joins"]["false_chains"]) == (1, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contig_a\tside_a\n", "has no column contig_b"),
        (None, "line 2 is not a join"),
    ],
)
def test_damaged_table_of_joins_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    write_joins(tmp_path, [(7, "right", 0, "left", 60, "joined")], [G])
    if text is not None:
        (tmp_path / "joins.tsv").write_text(text)
    with pytest.raises(StoreError, match=message):
        evaluated(tmp_path, [("", G[:5000], "")], genomes(tmp_path, [G]))


def test_no_contig_on_the_genomes_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="none of the 1 contigs"):
        evaluated(tmp_path, [("", H[:5000], "")], genomes(tmp_path, [G]))


# -- the command -----------------------------------------------------------------------------------


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("evaluate")
    # one genome: with strains what fits another one of them counts as right here
    community = dlasm.testing.simulate_community(folder / "sample", genomes=1, genome_length=60_000)
    reads = [tuple(community.reads_paths)]
    dlasm.extend(community.contigs_path, reads=reads, output=folder / "run")
    return folder / "run", community


def test_command_agrees_with_the_known_places_of_a_simulated_community(
    extended: tuple[Path, Any],
) -> None:
    run, community = extended
    genomes_path = community.path / "genomes.fa"
    result = invoke("evaluate", run, "--reference", genomes_path, "--threads", 1)
    assert result.exit_code == 0, result.output
    assert "NGA50" in result.stdout
    assert "wholly right" in result.stdout
    written = json.loads((run / "evaluation.json").read_text())
    again = invoke("evaluate", run, "--reference", genomes_path, "--threads", 3, "--json")
    assert json.loads(again.stdout) == written
    known = dlasm.testing.check_extensions(run, community)
    found = written["extensions"]
    assert (found["ends"], found["bases"]) == (known.ends, known.bases)
    right = sum(found[state]["right_bases"] for state in ("judged", "wrong_end"))
    assert right == known.right_bases
    assert found["judged"]["ends"] == known.ends


def test_command_says_what_is_wrong(extended: tuple[Path, Any], tmp_path: Path) -> None:
    run, community = extended
    result = invoke("evaluate", run, "--reference", tmp_path / "nowhere.fa")
    assert result.exit_code == 1
    assert "nowhere.fa: there is no such file" in result.stderr
    stranger = write_fasta(tmp_path / "stranger.fa", [G])
    result = invoke("evaluate", run, "--reference", stranger)
    assert result.exit_code == 2
    assert "has a place on these genomes" in result.stderr
    result = invoke("evaluate", tmp_path, "--reference", community.path / "genomes.fa")
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    state = json.loads((run / "run.json").read_text()) | {"state": "running"}
    (unfinished / "run.json").write_text(json.dumps(state))
    result = invoke("evaluate", unfinished, "--reference", community.path / "genomes.fa")
    assert "not finished" in result.stderr
