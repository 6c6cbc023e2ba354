"""Candidates from BAM, SAM, CRAM and PAF against those from the same reads mapped directly."""

from __future__ import annotations

import gzip
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pysam
import pytest
from conftest import shared_data
from hypothesis import given
from hypothesis import strategies as st
from recruit_data import World, decode, make_batch, make_contigs, placement_rows
from reference_recruit import reverse_complement

from dlasm import alignments
from dlasm.alignments import PafPlacer, alignment_warnings, iter_bam_results, write_paf_index
from dlasm.errors import AlignmentsError
from dlasm.io import bam
from dlasm.io.fasta import read_contigs
from dlasm.io.fastq import Library, ReadCounts, iter_batches
from dlasm.mapping import Aligner
from dlasm.recruit import (
    BatchResult,
    Placements,
    add_counts,
    choose,
    recruit_batch,
    summarise_library,
)
from dlasm.runs import FRAGMENT_BITS


@pytest.fixture(scope="module")
def world() -> World:
    return World(21, pairs=1200)


@pytest.fixture(scope="module")
def places(world: World) -> Placements:
    return Aligner(world.contigs).place(world.batch)


@pytest.fixture(scope="module")
def direct(world: World, places: Placements) -> BatchResult:
    return recruit_batch(world.batch, places, world.contigs.lengths, bound=500)


def sam_records(world: World, places: Placements) -> list[str]:
    """A primary record per read at its best place, secondary records at the others."""
    chosen = choose(places, None, world.batch.length, world.contigs.lengths, bound=0)
    best = set(chosen.best.tolist())
    lines: dict[int, list[str]] = {}
    for row, (i, contig, start, end, left, right, reverse, score) in enumerate(
        placement_rows(places)
    ):
        read, quality = world.reads[i], world.qualities[i]
        assert quality is not None
        if reverse:
            read, quality = reverse_complement(read), quality[::-1]
        flag = 0x1 | (0x40 if i % 2 == 0 else 0x80) | (0x10 if reverse else 0)
        clip = "S" if row in best else "H"
        if clip == "H":
            flag |= 0x100
            read, quality = (text[left : len(text) - right] for text in (read, quality))
        span = len(world.reads[i]) - left - right
        assert span == end - start
        cigar = f"{left}{clip}" * (left > 0) + f"{span}M" + f"{right}{clip}" * (right > 0)
        name = world.contigs.name(contig)
        fields = [world.names[i], flag, name, start + 1, 60, cigar, "*", 0, 0, read, quality]
        lines.setdefault(i, []).append("\t".join(map(str, [*fields, f"AS:i:{score}"])))
    for i, (read, quality) in enumerate(zip(world.reads, world.qualities, strict=True)):
        if i not in lines:
            flag = 0x1 | 0x4 | (0x40 if i % 2 == 0 else 0x80)
            fields = [world.names[i], flag, "*", 0, 0, "*", "*", 0, 0, read, quality]
            lines[i] = ["\t".join(map(str, fields))]
    return [line for i in sorted(lines) for line in lines[i]]


def sam_text(world: World, records: list[str]) -> str:
    contigs = world.contigs
    header = [f"@SQ\tSN:{contigs.name(i)}\tLN:{contigs.lengths[i]}" for i in range(len(contigs))]
    return "\n".join(["@HD\tVN:1.6", *header, *records, ""])


def telling_of_mates(records: list[str]) -> list[str]:
    """Records as aligners write them: each says where the primary record of its mate lies."""
    place = {}
    for record in records:
        name, flag, contig, start = record.split("\t")[:4]
        if not int(flag) & 0x900:
            place[name, int(flag) & 0xC0] = (int(flag), contig, start)
    told = []
    for record in records:
        fields = record.split("\t")
        flag, contig, start = place[fields[0], ~int(fields[1]) & 0xC0]
        fields[1] = str(int(fields[1]) | (flag & 0x4) << 1 | (flag & 0x10) << 1)
        fields[6:8] = [contig, start]
        told.append("\t".join(fields))
    return told


def results(path: Path, world: World, tmp_path: Path, **options) -> list[BatchResult]:
    options.setdefault("bound", 500)
    found = list(iter_bam_results(path, world.contigs, scratch=tmp_path / "scratch", **options))
    assert list((tmp_path / "scratch").iterdir()) == []
    return found


def totals(found: list[BatchResult]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for result in found:
        add_counts(counts, result.counts)
    return counts


def in_order(found: list[BatchResult]) -> list[tuple[int, int, str, str]]:
    """All candidates as packing reads them: runs merged, those of an end in order."""
    everything = [candidate for result in found for candidate in decode(result.run)]
    return sorted(everything, key=lambda candidate: candidate[0])


def templates(found: list[BatchResult]) -> list[list[tuple[int, int, str, str]]]:
    """Candidates of the same fragment together, whatever its number."""
    groups: dict[int, list[tuple[int, int, str, str]]] = {}
    for result in found:
        for fragment, candidate in zip(
            result.run.fragment.tolist(), decode(result.run), strict=True
        ):
            groups.setdefault(fragment, []).append(candidate)
    return sorted(sorted(group) for group in groups.values())


def write_sam(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "form",
    ["sam", "sam_gz", "bam", "bam_plain", "cram", "by_name", "by_coordinate", "shuffled"],
)
def test_any_order_and_format_gives_the_same(
    form: str, world: World, places: Placements, direct: BatchResult, tmp_path: Path
) -> None:
    records = sam_records(world, places)
    if form == "shuffled":
        np.random.default_rng(1).shuffle(records)
    path = write_sam(tmp_path / "x.sam", sam_text(world, records))
    if form in ("bam", "bam_plain", "shuffled"):
        pysam.samtools.view("-b", "-o", str(tmp_path / "x.bam"), str(path), catch_stdout=False)
        path = tmp_path / "x.bam"
    if form == "bam_plain":
        path.write_bytes(gzip.decompress(path.read_bytes()))
    elif form == "sam_gz":
        data = path.read_bytes()
        path = tmp_path / "x.sam.gz"
        path.write_bytes(gzip.compress(data))
    elif form == "cram":
        fasta = tmp_path / "c.fa"
        fasta.write_text(
            "".join(f">contig{i}\n{bases}\n" for i, bases in enumerate(world.sequences))
        )
        pysam.samtools.view(
            "-C", "-T", str(fasta), "-o", str(tmp_path / "x.cram"), str(path), catch_stdout=False
        )
        fasta.unlink()
        path = tmp_path / "x.cram"
    elif form in ("by_name", "by_coordinate"):
        options = ["-n"] if form == "by_name" else []
        pysam.sort(*options, "-o", str(tmp_path / "x.bam"), str(path))
        path = tmp_path / "x.bam"
    found = results(path, world, tmp_path, library=4)
    candidates = in_order(found)
    assert sorted(candidates) == sorted(decode(direct.run))
    if form not in ("by_name", "by_coordinate", "shuffled"):  # in the order of the reads
        assert candidates == decode(direct.run)
    assert {result.run.library for result in found} == {4}
    fragments = np.concatenate([result.run.fragment for result in found])
    assert (fragments >> FRAGMENT_BITS == 4).all()
    assert templates(found) == templates([direct])
    ours, theirs = (summarise_library(x, paired=True) for x in (found, [direct]))
    assert (ours.insert, ours.orientations) == (theirs.insert, theirs.orientations)
    for name in ("reads", "reads_placed", "reads_counted", "overhanging", "projected_within_bound"):
        assert ours.counts[name] == theirs.counts[name]
    assert alignment_warnings(ours.counts, "x") == []
    depth = np.zeros(len(world.contigs), dtype=np.int64)
    for result in found:
        depth[result.aligned_contig] += result.aligned_bases
    assert depth[direct.aligned_contig].tolist() == direct.aligned_bases.tolist()


def test_many_scratch_files_and_runs_change_nothing(
    world: World,
    places: Placements,
    direct: BatchResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_sam(tmp_path / "x.sam", sam_text(world, sam_records(world, places)))
    monkeypatch.setattr(alignments, "_PART_BYTES", 40_000)
    monkeypatch.setattr(alignments, "_CANDIDATES_PER_RUN", 37)
    monkeypatch.setattr(alignments, "_GATHERED", 10)
    monkeypatch.setattr(bam, "_GROUP", 10_000)
    found = results(path, world, tmp_path, memory=20_000, threads=3)
    assert len(found) > 8
    assert in_order(found) == decode(direct.run)
    assert templates(found) == templates([direct])
    assert summarise_library(found, paired=True).insert.pairs > 0


@pytest.mark.parametrize("told", ["all", "half", "wrong", "nothing"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_file_is_read_once_if_records_tell_of_mates(
    told: str,
    shuffled: bool,
    world: World,
    places: Placements,
    direct: BatchResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = sam_records(world, places)
    telling = telling_of_mates(plain)
    records = {
        "all": telling,
        "half": [*telling[: len(plain) // 2], *plain[len(plain) // 2 :]],
        "wrong": ["\t".join([*r.split("\t")[:6], "contig4", "1900", *r.split("\t")[8:]])
                  for r in telling],
        "nothing": plain,
    }[told]  # fmt: skip
    if shuffled:
        np.random.default_rng(3).shuffle(records)
    read = []
    whole = bam.AlignmentsFile.records
    monkeypatch.setattr(bam.AlignmentsFile, "records", lambda f: read.append(f) or whole(f))
    monkeypatch.setattr(bam, "_GROUP", 20_000)
    monkeypatch.setattr(alignments, "_PART_BYTES", 40_000)
    found = results(write_sam(tmp_path / "x.sam", sam_text(world, records)), world, tmp_path)
    assert sorted(in_order(found)) == sorted(decode(direct.run))
    if not shuffled:
        assert in_order(found) == decode(direct.run)
    assert len(read) == (1 if told == "all" else 2)


def test_file_that_changes_between_passes_is_refused(
    world: World, places: Placements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sam(tmp_path / "x.sam", sam_text(world, sam_records(world, places)))
    whole = bam.AlignmentsFile.records
    passes = iter([whole, lambda f: list(whole(f))[:1]])
    monkeypatch.setattr(bam.AlignmentsFile, "records", lambda f: next(passes)(f))
    monkeypatch.setattr(bam, "_GROUP", 20_000)
    with pytest.raises(AlignmentsError, match=r"x\.sam: the file changed while it was read"):
        results(path, world, tmp_path)


@given(
    pieces=st.lists(st.lists(st.integers(0, 4), max_size=20), max_size=8),
    memory=st.sampled_from([1, 60, 1000]),
)
def test_rows_of_a_part_keep_their_order(pieces: list[list[int]], memory: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spill = alignments._Spill(
            Path(folder) / "x", np.dtype([("a", "i8"), ("b", "i4")]), 5, memory
        )
        number = 0
        expected: list[list[int]] = [[] for _ in range(5)]
        for piece in pieces:
            rows = np.zeros(len(piece), dtype=spill.dtype)
            rows["a"] = np.arange(number, number + len(piece))
            for part in piece:
                expected[part].append(number)
                number += 1
            spill.add(rows, np.array(piece, dtype=np.int64))
        assert len(spill) == number
        assert [spill.part(i)["a"].tolist() for i in range(5)] == expected
        spill.close()
        assert list(Path(folder).iterdir()) == []


def test_order_is_that_of_first_appearance(
    world: World, places: Placements, tmp_path: Path
) -> None:
    records = sam_records(world, places)
    turned = records[::-1]  # read 2 of the last pair comes first
    path = write_sam(tmp_path / "x.sam", sam_text(world, turned))
    names = list(dict.fromkeys(line.split("\t")[0] for line in turned))
    rank = {name: number for number, name in enumerate(names)}
    order = sorted(
        range(len(world.reads)), key=lambda i: (rank[world.names[i]], i % 2)
    )  # reads in the order of the rules
    batch = make_batch(
        [world.reads[i] for i in order],
        [world.qualities[i] for i in order],
        [world.names[i] for i in order],
    )
    expected = recruit_batch(
        batch, Aligner(world.contigs).place(batch), world.contigs.lengths, bound=500
    )
    assert in_order(results(path, world, tmp_path)) == decode(expected.run)


def test_references_in_another_order_are_found_by_name(
    world: World, places: Placements, direct: BatchResult, tmp_path: Path
) -> None:
    lines = sam_text(world, sam_records(world, places)).split("\n")
    n = len(world.contigs)
    lines[1 : n + 1] = lines[1 : n + 1][::-1]
    path = write_sam(tmp_path / "x.sam", "\n".join(lines))
    assert in_order(results(path, world, tmp_path)) == decode(direct.run)


def test_mates_are_bounded(world: World, places: Placements, tmp_path: Path) -> None:
    path = write_sam(tmp_path / "x.sam", sam_text(world, sam_records(world, places)))
    found = results(path, world, tmp_path, bound=975)
    assert in_order(found) != in_order(results(path, world, tmp_path, bound=200))


def test_mates_are_not_projected_if_so_asked(
    world: World, places: Placements, tmp_path: Path
) -> None:
    path = write_sam(tmp_path / "x.sam", sam_text(world, sam_records(world, places)))
    found = results(path, world, tmp_path, paired_fr=False)
    assert {distance for _, distance, _, _ in in_order(found)} == {-1}


def test_file_without_unmapped_mates_is_warned_of(
    world: World, places: Placements, direct: BatchResult, tmp_path: Path
) -> None:
    records = [r for r in sam_records(world, places) if not int(r.split("\t")[1]) & 0x4]
    found = results(write_sam(tmp_path / "x.sam", sam_text(world, records)), world, tmp_path)
    assert set(in_order(found)) < set(decode(direct.run))
    (warning,) = alignment_warnings(totals(found), "x.sam")
    assert warning.startswith("x.sam: ")
    assert "mates are not in the file" in warning


def test_qualities_may_be_missing(
    world: World, places: Placements, direct: BatchResult, tmp_path: Path
) -> None:
    records = []
    for record in sam_records(world, places):
        fields = record.split("\t")
        fields[10] = "*"
        records.append("\t".join(fields))
    found = results(write_sam(tmp_path / "x.sam", sam_text(world, records)), world, tmp_path)
    assert [(c[:3]) for c in in_order(found)] == [c[:3] for c in decode(direct.run)]
    assert all(set(classes) == {"2"} for *_, classes in in_order(found))


@pytest.mark.parametrize("how", ["missing", "hard_clipped"])
def test_reads_without_their_bases_are_left_out_and_counted(
    how: str, world: World, places: Placements, direct: BatchResult, tmp_path: Path
) -> None:
    records = []
    lost = 0
    for record in sam_records(world, places):
        fields = record.split("\t")
        if how == "missing":
            fields[9] = fields[10] = "*"
            lost += 1
        elif not int(fields[1]) & 0x104 and "S" in fields[5]:
            pieces = fields[5].replace("M", "M ").replace("S", "S ").split()
            left = int(pieces[0][:-1]) if pieces[0][-1] == "S" else 0
            right = int(pieces[-1][:-1]) if pieces[-1][-1] == "S" else 0
            end = len(fields[9]) - right
            fields[9], fields[10] = fields[9][left:end], fields[10][left:end]
            fields[5] = fields[5].replace("S", "H")
            lost += 1
        records.append("\t".join(fields))
    assert lost
    found = results(write_sam(tmp_path / "x.sam", sam_text(world, records)), world, tmp_path)
    counts = totals(found)
    whole = in_order(found)
    # where a read lies is still known: its mate is projected, pairs tell the insert size
    assert counts["reads_counted"] == direct.counts["reads_counted"] or how == "missing"
    assert counts["candidates_without_bases"] > 0
    assert set(whole) < set(decode(direct.run))
    if how == "hard_clipped":
        assert counts["candidates_without_bases"] + len(whole) == len(direct.run.end)
    assert any("no whole sequence" in w for w in alignment_warnings(counts, "x"))


def test_single_reads_have_no_mates(world: World, places: Placements, tmp_path: Path) -> None:
    records = []
    for record in sam_records(world, places):
        fields = record.split("\t")
        fields[1] = str(int(fields[1]) & ~0xC1)
        records.append("\t".join(fields))
    found = results(write_sam(tmp_path / "x.sam", sam_text(world, records)), world, tmp_path)
    single = make_batch(world.reads, world.qualities, paired=False)
    expected = recruit_batch(single, places, world.contigs.lengths, bound=500)
    assert in_order(found) == decode(expected.run)
    assert totals(found)["mates_missing"] == 0


def test_mates_named_by_suffix_alone(
    world: World, places: Placements, direct: BatchResult, tmp_path: Path
) -> None:
    records = []
    for record in sam_records(world, places):
        fields = record.split("\t")
        fields[0] += "/1" if int(fields[1]) & 0x40 else "/2"
        fields[1] = str(int(fields[1]) & ~0xC1)
        records.append("\t".join(fields))
    found = results(write_sam(tmp_path / "x.sam", sam_text(world, records)), world, tmp_path)
    assert in_order(found) == decode(direct.run)


def test_files_without_reads_or_contigs(tmp_path: Path) -> None:
    world = World(1, pairs=0)
    assert (
        in_order(results(write_sam(tmp_path / "x.sam", sam_text(world, [])), world, tmp_path)) == []
    )
    world.contigs = make_contigs([])
    record = "a\t4\t*\t0\t0\t*\t*\t0\t0\tACGT\tIIII"
    path = write_sam(tmp_path / "y.sam", sam_text(world, [record]))
    assert results(path, world, tmp_path) == []


def test_names_that_occur_twice_are_refused(
    world: World, places: Placements, tmp_path: Path
) -> None:
    records = sam_records(world, places)
    path = write_sam(tmp_path / "x.sam", sam_text(world, [*records, records[0]]))
    name = records[0].split("\t")[0]
    pattern = rf"records 1 and {len(records) + 1} are both primary alignments of read 1 of '{name}'"
    with pytest.raises(AlignmentsError, match=pattern):
        results(path, world, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names, lengths: (["other", *names[1:]], lengths), "reference 1, 'other' .* is not"),
        (lambda names, lengths: (names, [5, *lengths[1:]]), "'contig0', has 5 bases, but .* 2800"),
        (lambda names, lengths: (names[:-1], lengths[:-1]), "contig 5, 'contig4' .* not among"),
        (lambda names, lengths: ([], []), "contig 1, 'contig0' .* not among the 0 references"),
    ],
)
def test_other_references_are_refused(change, message: str, world: World, tmp_path: Path) -> None:
    names, lengths = change(
        [world.contigs.name(i) for i in range(len(world.contigs))], world.contigs.lengths.tolist()
    )
    text = "@HD\tVN:1.6\n" + "".join(
        f"@SQ\tSN:{name}\tLN:{length}\n" for name, length in zip(names, lengths, strict=True)
    )
    with pytest.raises(AlignmentsError, match=message):
        results(write_sam(tmp_path / "x.sam", text), world, tmp_path)


def test_line_feed_in_the_name_of_a_reference_is_told(tmp_path: Path) -> None:
    """SAM cannot hold one, but damaged BAM can."""
    name = b"b\nc\0"
    header = b"BAM\1" + bytes(4) + struct.pack("<ii", 1, len(name)) + name + struct.pack("<i", 4)
    path = tmp_path / "x.bam"
    path.write_bytes(header)
    contigs = make_contigs(["ACGT"], ["b"])
    with pytest.raises(AlignmentsError, match=r"(?s)x.bam: reference 1, .* is not one"):
        list(iter_bam_results(path, contigs, scratch=tmp_path, bound=9.0))


def test_contigs_without_bases_may_be_absent(
    world: World, places: Placements, tmp_path: Path
) -> None:
    path = write_sam(tmp_path / "x.sam", sam_text(world, sam_records(world, places)))
    plain = in_order(results(path, world, tmp_path))
    longer = World(21, pairs=0)
    longer.contigs = make_contigs([*world.sequences, ""])
    assert in_order(results(path, longer, tmp_path)) == plain


def test_damaged_files_are_refused(world: World, places: Placements, tmp_path: Path) -> None:
    sam = write_sam(tmp_path / "x.sam", sam_text(world, sam_records(world, places)))
    bam = tmp_path / "x.bam"
    pysam.samtools.view("-b", "-o", str(bam), str(sam), catch_stdout=False)
    whole = bam.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 28, len(whole) - 1):
        bam.write_bytes(whole[:size])
        with pytest.raises(AlignmentsError, match=r"x\.bam"):
            results(bam, world, tmp_path)
    text = sam.read_text()
    sam.write_text(text[: len(text) * 3 // 4 - 100])
    if not text[: len(text) * 3 // 4 - 100].endswith("\n"):
        with pytest.raises(AlignmentsError, match=r"x\.sam: after \d+ records"):
            results(sam, world, tmp_path)
    other = tmp_path / "contigs.fa"
    other.write_text(">a\nACGT\n")
    no_blocks = tmp_path / "y.bam"
    no_blocks.write_bytes(gzip.compress(gzip.decompress(whole)))
    for path in (other, no_blocks, tmp_path, tmp_path / "missing.bam"):
        with pytest.raises(AlignmentsError, match=str(path)):
            results(path, world, tmp_path)


@pytest.mark.parametrize("form", ["bam", "sam"])
def test_damage_in_the_middle_is_told_once_and_as_such(
    form: str, world: World, places: Placements, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_sam(tmp_path / "x.sam", sam_text(world, sam_records(world, places)))
    if form == "bam":
        sam, path = path, tmp_path / "x.bam"
        pysam.samtools.view("-b", "-o", str(path), str(sam), catch_stdout=False)
    data = bytearray(path.read_bytes())
    for middle in (len(data) // 2, len(data) * 9 // 10):
        damaged = bytearray(data)
        damaged[middle : middle + 2000] = b"\tx" * 1000
        path.write_bytes(damaged)
        with pytest.raises(AlignmentsError, match=r"truncated or malformed, make it again"):
            results(path, world, tmp_path)
    assert capfd.readouterr().err == ""
    assert pysam.get_verbosity() > 0


# ---------------------------------------------------------------- PAF


def paf_lines(world: World, places: Placements, names: list[str], tags: bool = True) -> list[str]:
    lines = []
    for i, contig, start, end, left, right, reverse, score in placement_rows(places):
        length = len(world.reads[i])
        query = (right, length - left) if reverse else (left, length - right)
        target = (world.contigs.name(contig), world.contigs.lengths[contig], start, end)
        span = end - start
        fields = [names[i], length, *query, "-" if reverse else "+", *target, span, span, 60]
        lines.append("\t".join(map(str, [*fields, *([f"AS:i:{score}"] if tags else [])])))
    return lines


def paf_places(lines: list[str], world: World, batch, tmp_path: Path) -> Placements:
    path = tmp_path / "x.paf"
    path.write_text("\n".join([*lines, ""]))
    return PafPlacer(write_paf_index(path, world.contigs, tmp_path / "index")).place(batch)


@pytest.mark.parametrize("naming", ["slash", "underscore", "single"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_paf_gives_the_places(
    naming: str, shuffled: bool, world: World, places: Placements, tmp_path: Path
) -> None:
    separator = {"slash": "/", "underscore": "_", "single": "-"}[naming]
    names = [f"{name}{separator}{1 + i % 2}" for i, name in enumerate(world.names)]
    lines = paf_lines(world, places, names)
    if shuffled:
        np.random.default_rng(2).shuffle(lines)
    batch = make_batch(world.reads, world.qualities, names, paired=naming != "single")
    found = paf_places(lines, world, batch, tmp_path)
    assert sorted(placement_rows(found)) == sorted(placement_rows(places))
    assert [p.name for p in (tmp_path / "index").iterdir()] == ["places.npy"]
    lengths = world.contigs.lengths
    theirs, ours = (recruit_batch(batch, p, lengths, bound=500) for p in (places, found))
    assert decode(ours.run) == decode(theirs.run)


def test_paf_of_an_aligner_that_adds_the_mate(
    world: World, places: Placements, tmp_path: Path
) -> None:
    lines = paf_lines(world, places, [f"{name}/{1 + i % 2}" for i, name in enumerate(world.names)])
    found = paf_places(lines, world, world.batch, tmp_path)
    assert sorted(placement_rows(found)) == sorted(placement_rows(places))


def test_paf_in_many_parts_compressed(
    world: World, places: Placements, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{name}/{1 + i % 2}" for i, name in enumerate(world.names)]
    path = tmp_path / "x.paf.gz"
    lines = [f"{line}\r" for line in paf_lines(world, places, names)]
    with gzip.open(path, "wt", newline="") as out:
        out.write("\n".join(["", *lines]))  # an empty line, CRLF, no line end at the end
    monkeypatch.setattr(alignments, "_BUCKET_BYTES", 1000)
    monkeypatch.setattr(alignments, "_PAF_BLOCK", 777)
    found = PafPlacer(write_paf_index(path, world.contigs, tmp_path / "index")).place(world.batch)
    assert sorted(placement_rows(found)) == sorted(placement_rows(places))
    damaged = tmp_path / "y.paf.gz"
    damaged.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(AlignmentsError, match=r"y\.paf\.gz"):
        write_paf_index(damaged, world.contigs, tmp_path / "index2")


def test_paf_takes_the_best_primary_line(tmp_path: Path) -> None:
    world = World(1, pairs=0)
    world.contigs = make_contigs(["A" * 100, "C" * 100])

    def line(name: str, contig: int, start: int, *tags: str) -> str:
        fields = [name, 50, 0, 50, "+", f"contig{contig}", 100, start, start + 50, 40, 50, 60]
        return "\t".join(map(str, [*fields, *tags]))

    lines = [
        line("a", 0, 1, "tp:A:S", "AS:i:99"),
        line("a", 0, 2, "tp:A:P", "AS:i:50"),
        line("a", 1, 3, "tp:A:P", "AS:i:60"),
        line("a", 1, 4, "tp:A:P", "AS:i:60"),
        line("b", 0, 5),
        line("b", 1, 6),
        line("c", 0, 7, "AS:i:-5"),
        "d\t50\t0\t0\t*\t*\t0\t0\t0\t0\t0\t0",
    ]
    batch = make_batch(["G" * 50] * 4, names=["a", "b", "c", "d"], paired=False)
    found = placement_rows(paf_places(lines, world, batch, tmp_path))
    assert [(row[0], row[1], row[2], row[7]) for row in found] == [
        (0, 1, 3, 60),
        (1, 0, 5, 40),
        (1, 1, 6, 40),
        (2, 0, 7, -5),
    ]
    assert placement_rows(paf_places([], world, batch, tmp_path)) == []


GOOD = "a\t50\t0\t50\t+\tcontig0\t100\t10\t60\t50\t50\t60"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\t50\t0\t50\t+", "line 3 has 5 of the 12 fields"),
        ("some text", "line 3 has 1 of the 12 fields"),
        (GOOD.replace("\t50\t0", "\tx\t0"), "line 3 has a read length that is not a number"),
        (GOOD.replace("+", "?"), "line 3 has a strand"),
        (GOOD.replace("\t10\t60", "\t10\t101"), "line 3 has an alignment that lies outside"),
        (GOOD.replace("\t0\t50", "\t0\t51"), "line 3 has an alignment that lies outside"),
        (GOOD.replace("contig0", "other"), "line 3: target 'other' is not one of the contigs"),
        (GOOD.replace("\t100\t", "\t99\t"), "line 3: target 'contig0' has 99 bases there, .* 100"),
        (GOOD + "\tAS:i:x", "line 3 has a tag AS"),
        (GOOD + "\ttp:A:P\tcm:i:3\ts1:i:30", "line 3 tells roughly .* option -c"),
    ],
)
def test_malformed_paf_is_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.paf"
    path.write_text(f"{GOOD}\n\n{line}\n{GOOD}\n")
    with pytest.raises(AlignmentsError, match=message):
        write_paf_index(path, make_contigs(["A" * 100]), tmp_path / "index")
    assert not (tmp_path / "index" / "places.npy").exists()


def test_first_fault_of_paf_is_told(tmp_path: Path) -> None:
    contigs = make_contigs(["A" * 50])
    good = "r\t4\t0\t4\t+\tcontig0\t50\t5\t9\t4\t4\t60"
    unknown, rough = good.replace("contig0", "other"), good + "\ts1:i:4"
    path = tmp_path / "x.paf"
    for faults, message in (
        ([unknown, rough, "r"], "line 2: target 'other'"),
        ([rough, unknown, "r"], "line 2 tells roughly"),
        (["r", unknown, rough], "line 2 has 1 of the 12 fields"),
    ):
        path.write_text("\n".join([good, *faults, ""]))
        with pytest.raises(AlignmentsError, match=message):
            write_paf_index(path, contigs, tmp_path / "index")


def test_paf_that_does_not_fit_the_reads_is_refused(tmp_path: Path) -> None:
    world = World(1, pairs=0)
    world.contigs = make_contigs(["A" * 100])
    with pytest.raises(AlignmentsError, match="'a' does not say which mate"):
        paf_places([GOOD], world, make_batch(["C" * 50] * 2, names=["a", "a"]), tmp_path)
    with pytest.raises(AlignmentsError, match="'a/1' does not say which mate"):
        paf_places([GOOD], world, make_batch(["C" * 50] * 2, names=["a/1", "a/2"]), tmp_path)
    with pytest.raises(AlignmentsError, match=r"line 1 says that 'a' has 50 bases, .* 51"):
        paf_places([GOOD], world, make_batch(["C" * 51], names=["a"], paired=False), tmp_path)
    for path in (tmp_path / "missing.paf", tmp_path):
        with pytest.raises(AlignmentsError, match=str(path)):
            write_paf_index(path, world.contigs, tmp_path / "index")


# ---------------------------------------------------------------- with the real programs


@pytest.mark.skipif(
    shutil.which("minimap2") is None or shutil.which("samtools") is None,
    reason="minimap2 and samtools are not installed",
)
def test_files_that_minimap2_and_samtools_make(tmp_path: Path) -> None:
    contigs_path = str(shared_data("mock_tiny", "megahit_final.fa.gz"))
    reads = tuple(str(shared_data("mock_tiny", f"reads_{mate}.fq.gz")) for mate in (1, 2))
    contigs = read_contigs(contigs_path)
    (batch,) = iter_batches(Library("pairs", reads, 0), counts=ReadCounts(), batch_reads=100_000)

    def candidates(found: list[BatchResult]) -> set[tuple[int, str]]:
        reach = summarise_library(found, paired=True).reach
        return {
            (end, bases)
            for result in found
            for end, distance, bases, _ in decode(result.run)
            if distance < reach
        }

    def minimap2(*options: str, path: Path) -> None:
        with open(path, "wb") as out:
            subprocess.run(
                ["minimap2", *options, contigs_path, *reads],
                stdout=out, stderr=subprocess.DEVNULL, check=True,
            )  # fmt: skip

    minimap2("-ax", "sr", path=tmp_path / "x.sam")
    subprocess.run(
        ["samtools", "sort", "-o", tmp_path / "x.bam", tmp_path / "x.sam"],
        stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    from_sam, from_bam = (
        list(iter_bam_results(tmp_path / name, contigs, scratch=tmp_path / "s", bound=1000))
        for name in ("x.sam", "x.bam")
    )
    assert candidates(from_sam) == candidates(from_bam)

    minimap2("-cx", "sr", path=tmp_path / "x.paf")
    placer = PafPlacer(write_paf_index(tmp_path / "x.paf", contigs, tmp_path / "index"))
    from_paf = [recruit_batch(batch, placer.place(batch), contigs.lengths, bound=1000)]
    # of several primary lines of a read PAF does not tell which is the pair's
    assert len(candidates(from_paf) ^ candidates(from_sam)) < 0.02 * len(candidates(from_sam))

    mapped = [recruit_batch(batch, Aligner(contigs).place(batch, 2), contigs.lengths, bound=1000)]
    ours, theirs = candidates(mapped), candidates(from_sam)
    # minimap2's primary alignment is pair-aware, ours is the one of highest score, at a tie on the
    # shorter contig: mates in repeats lie on different contigs more often and are projected
    assert len(ours & theirs) > 0.95 * len(theirs)
    assert len(ours & theirs) > 0.75 * len(ours)

    minimap2("-x", "sr", path=tmp_path / "rough.paf")
    with pytest.raises(AlignmentsError, match="option -c"):
        write_paf_index(tmp_path / "rough.paf", contigs, tmp_path / "index2")
