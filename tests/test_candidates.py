"""MetaHipMer2 candidate dumps."""

from __future__ import annotations

import gzip
import math
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from conftest import shared_data
from hypothesis import given
from hypothesis import strategies as st

from dlasm.arrays import validate
from dlasm.errors import CandidatesError
from dlasm.io.candidates import iter_dump
from dlasm.runs import OVERHANG

CLASSES = {"none": 0, "low": 1, "high": 2, "n": 3}


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def unpack(run, i):
    """Bases (N where there is none) and vote classes of candidate ``i``."""
    words = run.words[run.word_offset[i] : run.word_offset[i + 1]]
    length = int(run.length[i])
    assert len(words) == 2 * math.ceil(length / 16)
    values = [int(words[j // 16]) >> 2 * (j % 16) & 3 for j in range(length)]
    half = len(words) // 2
    classes = [int(words[half + j // 16]) >> 2 * (j % 16) & 3 for j in range(length)]
    bases = "".join("N" if c == 3 else "ACGT"[v] for v, c in zip(values, classes, strict=True))
    return bases, classes


def load(path, **options):
    """All contigs (id, sequence, depth) and candidates (end, bases, classes) of a dump."""
    contigs, candidates = [], []
    for chunk in iter_dump(path, **options):
        assert chunk.first == len(contigs)
        part, run = chunk.contigs, chunk.run
        assert len(part) > 0
        assert part.depth_source == "dump"
        validate(
            "contigs",
            {
                name: getattr(part, name)
                for name in ("bases", "offsets", "name_values", "name_offsets", "depth")
            },
        )
        assert (np.diff(run.end) >= 0).all()
        assert (run.distance == OVERHANG).all()
        assert len(run.distance) == len(run.length) == len(run.has_n) == len(run.end)
        contigs += [(part.name(i), part.sequence(i), part.depth[i]) for i in range(len(part))]
        for i in range(len(run.end)):
            bases, classes = unpack(run, i)
            assert run.has_n[i] == ("N" in bases)
            candidates.append((int(run.end[i]), bases, classes))
    return contigs, candidates


def plain(text, phred_offset=33):
    """Parse the plain way: what the dump says, by splitting its lines."""
    contigs, candidates = [], []
    for number, line in enumerate(text.splitlines()):
        fields = line.split()
        if not fields:
            continue
        left, right = int(fields[3]), int(fields[4])
        contigs.append((fields[0], fields[1].encode(), float(fields[2])))
        reads = fields[5:]
        assert len(reads) == 3 * (left + right)
        for i in range(left + right):
            _, bases, qualities = reads[3 * i : 3 * i + 3]
            bases = "".join(base if base in "ACGT" else "N" for base in bases.upper())
            classes = [
                3 if base == "N" else (q >= 10) + (q >= 20)
                for base, q in zip(bases, (ord(c) - phred_offset for c in qualities), strict=True)
            ]
            candidates.append((2 * number + (i >= left), bases, classes))
    return contigs, candidates


@pytest.mark.parametrize(
    ("parts", "contigs", "reads"),
    [
        (("arcticsynth", "candidates_k77.dat.gz"), 1649, 3943),
        (("synthetic", "branches_k77.dat.gz"), 4000, 129_109),
    ],
)
def test_shared_dumps(parts, contigs, reads):
    """Chunks and threads do not change what comes out."""
    path = shared_data(*parts)
    whole = list(iter_dump(path))
    pieces = list(iter_dump(path, chunk_bytes=300_000, block_bytes=10_000, threads=2))
    assert len(whole) == 1
    assert len(pieces) > 5
    assert sum(len(chunk.contigs) for chunk in pieces) == len(whole[0].contigs) == contigs
    assert len(whole[0].run.end) == reads
    assert whole[0].run.fragment.tolist() == list(range(reads))
    for group, name in [
        *(("contigs", name) for name in ("bases", "name_values", "depth")),
        *(("run", name) for name in ("end", "length", "fragment", "has_n", "words")),
    ]:
        joined = np.concatenate([getattr(getattr(chunk, group), name) for chunk in pieces])
        np.testing.assert_array_equal(joined, getattr(getattr(whole[0], group), name))


def test_arcticsynth_against_a_plain_parser():
    path = shared_data("arcticsynth", "candidates_k77.dat.gz")
    assert load(path) == plain(gzip.decompress(path.read_bytes()).decode())


def test_quirk_short_line():
    with pytest.raises(
        CandidatesError,
        match=r"short_dump_line.dat: line 1 \(contig 7\) promises 0 left and 2 right reads but "
        r"ends after 1 whole reads",
    ):
        list(iter_dump(shared_data("quirks", "short_dump_line.dat")))


GOOD = "c0 ACGT 1 1 1 r ACG III s AC II\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("c1", r"ends too early"),
        ("c1 ACGT 1 0", r"ends too early"),
        ("c1 ACGT 1 1 0", r"promises 1 left and 0 right reads but ends after 0 whole reads"),
        ("c1 ACGT 1 1 0 r", r"ends after 0 whole reads"),
        ("c1 ACGT 1 1 1 r A I", r"ends after 1 whole reads \(1 left, 0 right\)"),
        ("c1 ACGT 1 1 0 r ACG", r"read r has no qualities"),
        ("c1 ACGT 1 0 0 r", r"promises 0 left and 0 right reads but goes on with 'r'"),
        ("c1 ACGT 1 0 1 r A I s A I", r"goes on with 's'"),
        ("c1 ACGT 1 -1 0", r"promises -1 left and 0 right reads; these must be whole"),
        ("c1 ACGT 1 1.0 0 r A I", r"promises 1.0 left"),
        ("c1 ACGT 1 0 99999999999999999999", r"these must be whole"),
        ("c1 ACGT 1 0 999999999", r"ends after 0 whole reads"),
        ("c1 ACGT x 0 0", r"has the depth x"),
        ("c1 ACGT -1 0 0", r"has the depth -1"),
        ("c1 ACGT nan 0 0", r"has the depth nan"),
        ("c1 ACGT inf 0 0", r"has the depth inf"),
        ("c1 ACGT 1e999 0 0", r"has the depth 1e999"),
        ("c1 ACGT 0x1 0 0", r"has the depth 0x1"),
        ("c1 ACGT 1 1 0 r ACG II", r"read r has 3 bases but 2 qualities"),
        ("c1 ACGT 1 1 0 r ACG IIII", r"read r has 3 bases but 4 qualities"),
        ("c1 ACGT 1 2 0 r ACG II s A I", r"read r has 3 bases but 2 qualities"),
        ("c1 ACGT 1 1 0 r  ", r"ends after 0 whole reads"),
        ("c1 ACGT 1 1 0 r AC I\x7f", r"read r holds the quality character '\\x7f'"),
        (
            "c1 ACGT 1 1 0 r A1 II",
            r"holds '1' \(character code 49\) in the bases of its read number 1",
        ),
        ("c1 AC1T 1 0 0", r"holds '1' \(character code 49\) in the contig's sequence"),
        ("c1 ACGT 1 0 0 \x01", r"control character|goes on with"),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_not_usable(tmp_path, line, message, threads):
    others = "".join(f"d{i} ACGT 1 0 0\n" for i in range(100))
    path = write(tmp_path / "c.dat", GOOD + line + "\n" + others + line.replace("c1", "c2") + "\n")
    for chunk_bytes in (1, 1 << 20):
        with pytest.raises(CandidatesError, match=message) as caught:
            list(iter_dump(path, threads=threads, chunk_bytes=chunk_bytes, block_bytes=64))
        assert str(caught.value).startswith(f"{path}: line 2 (contig c1) ")


def test_duplicate_ids_in_other_chunks(tmp_path):
    lines = [f"c{i} ACGT 1 0 0\n" for i in range(3000)]
    path = write(tmp_path / "c.dat", "".join(lines) + "c17 ACGT 1 0 0\n")
    for chunk_bytes in (10, 1 << 20):
        with pytest.raises(CandidatesError, match=r"line 3001 has the contig id c17 of line 18"):
            list(iter_dump(path, chunk_bytes=chunk_bytes, block_bytes=500))


def test_blank_lines(tmp_path):
    contigs, _ = load(write(tmp_path / "c.dat", GOOD + "\n\r\n"), block_bytes=1, chunk_bytes=1)
    assert len(contigs) == 1
    with pytest.raises(CandidatesError, match=r"line 3 comes after a blank line"):
        load(write(tmp_path / "c.dat", GOOD + "\n" + GOOD))
    assert load(write(tmp_path / "c.dat", "")) == ([], [])


def test_cannot_be_read(tmp_path):
    with pytest.raises(CandidatesError, match=r"none.dat: there is no such file"):
        load(tmp_path / "none.dat")
    with pytest.raises(CandidatesError, match=r"is a directory"):
        load(tmp_path)
    data = gzip.compress(b"".join(b"c%d ACGT 1 0 0\n" % i for i in range(1000)))
    with pytest.raises(CandidatesError, match=r"c.dat: .*cut short.* after line \d+; get it again"):
        load(write(tmp_path / "c.dat", data[:-20]))


@pytest.mark.parametrize(
    "depth",
    [
        "2.98",
        "2.99999999999999999999",
        "0000000000000000002.99999999999999999999",
        "3",
        "3.0",
        "0",
        "0.0",
        "0.99999999999999999999",
        "1e3",
        "2.5e+02",
        "29999999999999999999999e-22",
        "100e-2",
        "2147483647.9999999999999",
        "99999999999999999999",
        "1e-400",
        ".5",
        "5.",
    ],
)
def test_depth_truncates_as_written(tmp_path, depth):
    """2.999... is 2 although the nearest double is 3."""
    ((_, _, found),), _ = load(write(tmp_path / "c.dat", f"c ACGT {depth} 0 0\n"))
    if Decimal(depth) < 2**50:
        assert int(found) == int(Decimal(depth))
    assert found == pytest.approx(float(depth))


READS = st.lists(
    st.tuples(
        st.text("ACGTNacgtRn.", min_size=1, max_size=40),
        st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=40, max_size=40),
    ),
    max_size=5,
)


@given(
    lines=st.lists(
        st.tuples(st.text("ACGTNacgtR", min_size=1), st.integers(0, 10_000), READS, READS),
        max_size=6,
    ),
    gap=st.sampled_from([" ", "\t", "  "]),
    newline=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    phred_offset=st.sampled_from([33]),
    block_bytes=st.integers(1, 100),
    chunk_bytes=st.integers(1, 500),
    threads=st.integers(1, 2),
)
def test_against_a_plain_parser(
    lines, gap, newline, last, phred_offset, block_bytes, chunk_bytes, threads
):
    text = ""
    for number, (sequence, depth, left, right) in enumerate(lines):
        fields = [f"c{number}", sequence, str(depth / 100), str(len(left)), str(len(right))]
        for i, (bases, quality) in enumerate(left + right):
            fields += [f"@r{i}/1", bases, quality[: len(bases)]]
        text += gap.join(fields) + newline
    if not last:
        text = text.removesuffix(newline)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "c.dat", text)
        found = load(path, block_bytes=block_bytes, chunk_bytes=chunk_bytes, threads=threads)
    assert found == plain(text, phred_offset)


PIECES = [b" ", b"\t", b"\n", b"\r", b"7", b"ACGT", b"I", b"", b"\x00", b"\xff", b"\x1a", b"x"]


@given(
    at=st.integers(0, 200),
    cut=st.integers(0, 20),
    piece=st.sampled_from(PIECES),
    block_bytes=st.integers(1, 40),
    chunk_bytes=st.integers(1, 60),
)
def test_blocks_do_not_matter(at, cut, piece, block_bytes, chunk_bytes):
    """Any text gives the same candidates or the same error, however it is cut into blocks."""
    text = (GOOD + "c1 AAAAACCCCC 2.5 2 1 r/1 ACGTACGTAC IIIIIIIIII s A I t/2 NNC ABC\n").encode()
    at %= len(text)
    text = text[:at] + piece + text[at + cut :]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "c.dat", text)
        for sizes in ((block_bytes, chunk_bytes), (1 << 20, 1 << 20)):
            try:
                outcomes.append(load(path, block_bytes=sizes[0], chunk_bytes=sizes[1]))
            except CandidatesError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
