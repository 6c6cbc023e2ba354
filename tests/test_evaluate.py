"""Truth of joins and extensions on small made-up genomes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dlasm.errors import ContigsError, InputError, ParameterError
from dlasm.evaluate import Reference, label_joins
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
