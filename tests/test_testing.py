"""The simulator, the check of extensions, and the hypothesis strategies."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from reference import reverse_complement

from dlasm.errors import OutputExistsError, ParameterError, StoreError
from dlasm.io.fasta import read_contigs
from dlasm.testing import (
    FILES,
    N_SHARE,
    STRAIN_DIVERGENCE,
    Community,
    ContigEnd,
    FastqRecord,
    check_extensions,
    check_walks,
    contig_ends,
    fastq_records,
    simulate_community,
)

READ_LENGTH, INSERT_MEAN, INSERT_SD, ERROR_RATE, DEPTH = 120, 300.0, 30.0, 0.01, 15.0


@pytest.fixture(scope="module")
def community(tmp_path_factory: pytest.TempPathFactory) -> Community:
    return simulate_community(
        tmp_path_factory.mktemp("simulated") / "sample",
        genomes=3,
        genome_length=25_000,
        depth=DEPTH,
        read_length=READ_LENGTH,
        insert_mean=INSERT_MEAN,
        insert_sd=INSERT_SD,
        error_rate=ERROR_RATE,
        seed=5,
    )


def genomes_of(community: Community) -> dict[str, str]:
    lines = (community.path / "genomes.fa").read_text().split()
    return {name[1:]: bases for name, bases in zip(lines[::2], lines[1::2], strict=True)}


def places_of(community: Community) -> list[tuple[str, str, int, int, str]]:
    lines = (community.path / "truth.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["contig", "genome", "start", "end", "strand"]
    rows = [line.split("\t") for line in lines[1:]]
    return [
        (name, genome, int(start), int(end), strand) for name, genome, start, end, strand in rows
    ]


def records(path: Path) -> list[tuple[str, str, str]]:
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert set(lines[2::4]) == {"+"}
    return list(zip(lines[::4], lines[1::4], lines[3::4], strict=True))


def taken(genomes: dict[str, str], name: str, start: int, end: int, strand: str) -> str:
    bases = genomes[name][start:end]
    return bases if strand == "+" else reverse_complement(bases)


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


# -- what is simulated -----------------------------------------------------------------------------


def test_files_and_counts(community: Community) -> None:
    assert sorted(path.name for path in community.path.iterdir()) == sorted(FILES)
    genomes = genomes_of(community)
    assert community.genomes == 3
    assert {name: len(bases) for name, bases in genomes.items()} == dict.fromkeys(
        ("g00", "g01", "g02"), 25_000
    )
    bases = 2 * READ_LENGTH * community.pairs
    assert 0.6 * DEPTH < bases / 75_000 < 1.6 * DEPTH
    assert all(len(records(path)) == community.pairs for path in community.reads_paths)


def test_contigs_are_where_the_truth_says(community: Community) -> None:
    contigs = read_contigs(community.contigs_path)
    genomes, places = genomes_of(community), places_of(community)
    assert contigs.depth_source == "megahit"
    assert len(contigs) == community.contigs == len({place[0] for place in places})
    sequences = {contigs.name(i): contigs.sequence(i).decode() for i in range(len(contigs))}
    for name, *place in places:
        assert taken(genomes, *place) == sequences[name]
    headers = community.contigs_path.read_text().splitlines()[::2]
    for header, bases in zip(headers, sequences.values(), strict=True):
        name, flag, multi, length = header.split()
        assert (flag, length) == ("flag=1", f"len={len(bases)}")
        assert float(multi.removeprefix("multi=")) > 0
    assert {place[4] for place in places} == {"+", "-"}


def test_repeats_have_several_places_within_and_between_genomes(community: Community) -> None:
    places = places_of(community)
    repeated = [p for p in places if sum(p[0] == other[0] for other in places) > 1]
    assert len({p[0] for p in repeated}) >= 2
    by_contig = {
        name: [p[1] for p in repeated if p[0] == name] for name in {p[0] for p in repeated}
    }
    assert any(len(set(genomes)) > 1 for genomes in by_contig.values())
    assert any(len(set(genomes)) < len(genomes) for genomes in by_contig.values())


def test_gaps_and_whole_contigs_alternate(community: Community) -> None:
    """Unrepeated contigs of a genome do not overlap, and something is missing between them."""
    places = places_of(community)
    single = [p for p in places if sum(p[0] == other[0] for other in places) == 1]
    for genome in genomes_of(community):
        spans = sorted((start, end) for _, name, start, end, _ in single if name == genome)
        gaps = [after[0] - before[1] for before, after in pairwise(spans)]
        assert min(gaps) >= 0
        assert max(gaps) > 100
        assert spans[0][0] > 0
        assert spans[-1][1] < 25_000


def test_last_genome_is_a_strain_of_the_first(community: Community) -> None:
    genomes = genomes_of(community)
    first, other, strain = (np.frombuffer(g.encode(), np.uint8) for g in genomes.values())
    assert (first != strain).mean() == pytest.approx(STRAIN_DIVERGENCE, rel=0.3)
    assert (first != other).mean() > 0.5


def test_reads_are_of_the_place_that_their_name_says(community: Community) -> None:
    genomes = genomes_of(community)
    sizes, differences, qualities, unknown, strands = [], [], [], 0, set()
    pairs = zip(*(records(path) for path in community.reads_paths), strict=True)
    for number, ((name_1, *read_1), (name_2, *read_2)) in enumerate(pairs):
        assert name_1.endswith("/1")
        assert name_2 == name_1[:-1] + "2"
        genome, start, end, strand, pair = name_1[1:-2].split("_")
        assert int(pair) == number
        strands.add(strand)
        sizes.append(int(end) - int(start))
        fragment = taken(genomes, genome, int(start), int(end), strand)
        truths = fragment[:READ_LENGTH], reverse_complement(fragment)[:READ_LENGTH]
        for (bases, quality), truth in zip((read_1, read_2), truths, strict=True):
            assert len(bases) == len(quality) == READ_LENGTH
            for base, right, q in zip(bases, truth, quality, strict=True):
                if base == "N":
                    unknown += 1
                    assert q == "#"
                else:
                    differences.append(base != right)
                    qualities.append(ord(q) - 33)
    assert strands == {"+", "-"}
    assert np.mean(sizes) == pytest.approx(INSERT_MEAN, abs=3)
    assert np.std(sizes) == pytest.approx(INSERT_SD, rel=0.1)
    wrong, quality = np.array(differences), np.array(qualities)
    assert wrong.mean() == pytest.approx(ERROR_RATE, rel=0.1)
    assert unknown / len(wrong) == pytest.approx(N_SHARE, rel=0.3)
    rates = [wrong[quality == level].mean() for level in np.unique(quality)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 20 * rates[-1]


def test_coverage_is_that_of_the_header(community: Community) -> None:
    names = [name for name, *_ in records(community.reads_paths[0])]
    for genome in genomes_of(community):
        pairs = sum(name.startswith(f"@{genome}_") for name in names)
        [depth] = {
            header.split()[2]
            for header in community.contigs_path.read_text().splitlines()[::2]
            for place in places_of(community)
            if header.split()[0] == ">" + place[0]
            and place[1] == genome
            and sum(place[0] == other[0] for other in places_of(community)) == 1
        }
        assert 2 * pairs * READ_LENGTH / 25_000 == pytest.approx(float(depth[6:]), rel=0.15)


# -- the same bytes, and nothing overwritten -------------------------------------------------------


def small(path: Path, **options: object) -> Community:
    return simulate_community(
        path,
        **{"genomes": 2, "genome_length": 4_000, "depth": 3.0, **options},  # type: ignore[arg-type]
    )


def test_seed_decides_every_byte(tmp_path: Path) -> None:
    small(tmp_path / "a", seed=3)
    command = (
        "from dlasm.testing import simulate_community as s;"
        f"s({str(tmp_path / 'b')!r}, genomes=2, genome_length=4_000, depth=3.0, seed=3)"
    )
    subprocess.run([sys.executable, "-c", command], check=True)
    small(tmp_path / "c", seed=4)
    first, again, other = (hashes(tmp_path / name) for name in "abc")
    assert first == again
    assert all(first[name] != other[name] for name in FILES)


def test_existing_folder_is_kept_unless_forced(tmp_path: Path) -> None:
    output = tmp_path / "sample"
    small(output, seed=3)
    before = hashes(output)
    with pytest.raises(OutputExistsError, match="sample: is already there"):
        small(output, seed=4)
    assert hashes(output) == before
    small(output, seed=4, force=True)
    assert hashes(output) != before
    assert [path.name for path in tmp_path.iterdir()] == ["sample"]


def test_force_does_not_remove_what_is_not_a_community(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError, match=r"thesis\.txt"):
        small(tmp_path, force=True)
    with pytest.raises(OutputExistsError, match="is not a folder"):
        small(tmp_path / "thesis.txt", force=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    "options",
    [
        {"genomes": 0},
        {"genomes": 100},
        {"genome_length": 1_999},
        {"read_length": 0},
        {"read_length": 400},
        {"insert_mean": 3_000.0},
        {"insert_sd": -1.0},
        {"depth": -1.0},
        {"error_rate": 0.5},
        {"seed": -1},
    ],
)
def test_impossible_parameters(tmp_path: Path, options: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        small(tmp_path / "sample", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"genomes": 1}, {"depth": 0.0}, {"error_rate": 0.0}])
def test_small_communities(tmp_path: Path, options: dict[str, float]) -> None:
    community = small(tmp_path / "sample", **options)
    assert len(read_contigs(community.contigs_path)) == community.contigs > 0
    assert (community.pairs == 0) == (options.get("depth") == 0.0)


def test_does_not_need_hypothesis() -> None:
    command = "import sys, dlasm.testing; assert 'hypothesis' not in sys.modules"
    subprocess.run([sys.executable, "-c", command], check=True)


# -- are extensions right? -------------------------------------------------------------------------


def write_truth(folder: Path, rows: list[str]) -> Path:
    folder.mkdir()
    (folder / "genomes.fa").write_text(">g00\nAAAACCCGGGTTTTACGT\n>g01\nTTGCAACCGG\n")
    header = "contig\tgenome\tstart\tend\tstrand"
    (folder / "truth.tsv").write_text("\n".join([header, *rows]) + "\n")
    return folder


def check(truth: Path, names: list[str], walks: list[str]) -> tuple[int, int, int, int]:
    values = np.frombuffer("".join(walks).encode(), dtype=np.uint8)
    found = check_walks(names, values, np.cumsum([0, *map(len, walks)]), truth)
    return found.ends, found.right_ends, found.bases, found.right_bases


def test_counts_right_bases_from_the_contig_outwards(tmp_path: Path) -> None:
    truth = write_truth(tmp_path / "truth", ["a\tg00\t4\t7\t+", "b\tg00\t4\t7\t-"])
    assert check(truth, ["a"], ["AAAA", "GGGTT"]) == (2, 2, 9, 9)
    assert check(truth, ["b"], ["AACCC", "TTTT"]) == (2, 2, 9, 9)
    assert check(truth, ["a", "b"], ["AACA", "GGGAT", "", ""]) == (2, 0, 9, 4)
    assert check(truth, ["b", "a"], ["AGCCC", "TT", "", "C"]) == (3, 1, 8, 5)
    assert check(truth, [], []) == (0, 0, 0, 0)


def test_no_base_is_right_past_the_end_of_a_genome(tmp_path: Path) -> None:
    truth = write_truth(tmp_path / "truth", ["a\tg00\t0\t14\t+", "b\tg01\t0\t8\t-"])
    assert check(truth, ["a"], ["A", "ACGTTT"]) == (2, 0, 7, 4)
    assert check(truth, ["b"], ["CC", "TT"]) == (2, 1, 4, 2)


def test_any_of_the_places_of_a_repeat_will_do(tmp_path: Path) -> None:
    truth = write_truth(tmp_path / "truth", ["r\tg00\t4\t6\t+", "r\tg01\t6\t8\t+"])
    assert check(truth, ["r"], ["AA", "GG"]) == (2, 2, 4, 4)
    assert check(truth, ["r"], ["CAA", "CGG"]) == (2, 2, 6, 6)


def test_unknown_contigs_and_missing_truth(tmp_path: Path) -> None:
    truth = write_truth(tmp_path / "truth", ["a\tg00\t4\t7\t+"])
    with pytest.raises(ParameterError, match="contig b is not one"):
        check(truth, ["a", "b"], ["", "", "", ""])
    with pytest.raises(StoreError, match=r"truth\.tsv"):
        check(tmp_path, [], [])


def test_a_run_gains_bases_that_are_right(community: Community, tmp_path: Path) -> None:
    import dlasm

    run = dlasm.extend(
        community.contigs_path, reads=community.reads_paths, output=tmp_path / "run", workers=0
    )
    found = check_extensions(run, community)
    assert found == check_extensions(tmp_path / "run", community.path)
    assert found.ends > 0.8 * 2 * community.contigs
    assert found.bases == run.extensions().bases.sum() > 50 * found.ends
    assert found.right_bases > 0.9 * found.bases
    assert found.right_ends > 0.85 * found.ends


# -- strategies ------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(fastq_records(max_length=30))
def test_fastq_records(reads: list[FastqRecord]) -> None:
    assert len({read.name for read in reads}) == len(reads)
    for read in reads:
        name, bases, plus, qualities, rest = str(read).split("\n")
        assert (name, bases, plus, qualities, rest) == (
            "@" + read.name,
            read.bases,
            "+",
            read.qualities,
            "",
        )
        assert len(bases) == len(qualities) <= 30


@settings(max_examples=50)
@given(contig_ends(33))
def test_contig_ends(end: ContigEnd) -> None:
    assert set(end.sequence) <= set("ACGT")
    assert end.depth >= 0
    assert all(len(read.bases) == len(read.qualities) for read in end.reads)


def test_contig_ends_of_an_impossible_k() -> None:
    with pytest.raises(ParameterError, match="k is 20"):
        contig_ends(20)
