"""Reads from FASTQ and FASTA."""

from __future__ import annotations

import gzip
import io
import pickle
import tempfile
from pathlib import Path

import dnaio
import numpy as np
import pytest
from conftest import shared_data
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dlasm.errors import ParameterError, ReadsError
from dlasm.io.fastq import BATCH_READS, Library, ReadCounts, iter_batches


def write(path: Path, data: bytes | str) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def read(*paths, kind=None, counts=None, **options):
    """Read names, bases and qualities of all reads, in order, checking the batches."""
    kind = kind or ("pairs" if len(paths) == 2 else "single")
    library = Library(kind, tuple(map(str, paths)))
    counts = ReadCounts() if counts is None else counts
    reads, ordinal, sizes = [], 0, []
    for batch in iter_batches(library, counts=counts, **options):
        assert batch.first == ordinal
        assert batch.paired == library.paired
        ordinal += len(batch) * (1 if batch.paired else 2)
        sizes.append(len(batch))
        for i in range(len(batch)):
            length = batch.length[i]
            bases = batch.text[batch.base_start[i] :][:length].tobytes()
            start = batch.quality_start[i]
            quality = batch.text[start:][:length].tobytes() if start >= 0 else None
            assert len(bases) == length
            reads.append((batch.name(i), bases, quality))
    size = options.get("batch_reads", BATCH_READS)
    assert all(found == size for found in sizes[:-1])
    assert all(0 < found <= size for found in sizes)
    assert counts.reads == len(reads)
    return reads


def quirk_pair(name):
    return shared_data("quirks", name % 1), shared_data("quirks", name % 2)


def test_quirk_truncated():
    with pytest.raises(
        ReadsError, match=r"truncated_1.*cut short.*last whole record is number 60 "
    ):
        read(*quirk_pair("truncated_%d.fastq.gz"))
    with pytest.raises(
        ReadsError, match=r"truncated_1.*last whole record is number 60 .*19278:32754"
    ):
        read(shared_data("quirks", "truncated_1.fastq.gz"), piece_bytes=100, batch_reads=7)


def test_quirk_multimember():
    assert len(read(*quirk_pair("multimember_%d.fastq.gz"))) == 200


def test_quirk_count_mismatch():
    for size in (2, 100_000):
        with pytest.raises(
            ReadsError, match=r"count_mismatch_1.* holds 100 reads but .*count_mismatch_2.* 99;"
        ):
            read(*quirk_pair("count_mismatch_%d.fastq.gz"), batch_reads=size)


def test_quirk_out_of_step():
    for size in (2, 100_000):
        with pytest.raises(
            ReadsError, match=r"out of step: pair 11 is .*6484 in .* but .*41598 in"
        ):
            read(*quirk_pair("out_of_step_%d.fastq.gz"), batch_reads=size)


def test_quirk_filtered_apart():
    with pytest.raises(ReadsError, match=r"pair 4 .*filtered separately.*repair.sh"):
        read(*quirk_pair("filtered_apart_%d.fastq.gz"))


def test_quirk_names_underscore():
    paths = quirk_pair("names_underscore_%d.fastq.gz")
    assert [name for name, _, _ in read(*paths)[:2]] == ["437_1", "437_2"]
    (batch,) = iter_batches(Library("pairs", tuple(map(str, paths))), counts=ReadCounts())
    assert (batch.mate_suffix_length == 2).all()


def test_quirk_ragged():
    counts = ReadCounts()
    reads = read(*quirk_pair("ragged_%d.fastq"), counts=counts)
    assert len(reads) == 200
    assert {len(bases) for _, bases, _ in reads} >= {0, 1, 150}
    assert counts.empty == 12
    assert counts.short == 35
    assert min(counts.with_n, counts.with_iupac, counts.lower_case, counts.unequal_mates) > 0
    assert counts.blank_lines == 2
    assert reads[0][0] == "K00188:4:HKVNGBBXX:4:2120:32380:39137"


def test_quirk_crlf():
    counts = ReadCounts()
    reads = read(shared_data("quirks", "crlf.fastq.gz"), counts=counts)
    assert len(reads) == counts.crlf == 10
    assert all(len(bases) == len(quality) == 126 for _, bases, quality in reads)


def test_quirk_invalid():
    with pytest.raises(ReadsError, match=r"invalid_record.*record 1 \(NB5.*four lines.*seqtk"):
        read(shared_data("quirks", "invalid_record.fastq"))
    with pytest.raises(ReadsError, match=r"invalid_character.*record 1 \(NB5.*'\\x1a'"):
        read(shared_data("quirks", "invalid_character.fastq"))


@pytest.mark.parametrize("name", ["interleaved.fa.gz", "interleaved.fa.bz2"])
def test_quirk_interleaved_fasta(name):
    reads = read(shared_data("quirks", name), kind="interleaved")
    assert len(reads) == 200
    assert all(len(bases) == 100 and quality is None for _, bases, quality in reads)
    assert reads[0][0].endswith("/1")
    assert reads[1][0].endswith("/2")


def test_quirk_phred64():
    path = shared_data("quirks", "phred64.fq.gz")
    counts = ReadCounts()
    read(path, counts=counts)
    assert len(counts.warnings) == 1
    assert "look like phred 64" in counts.warnings[0]
    assert "--phred 64" in counts.warnings[0]
    counts = ReadCounts()
    assert len(read(path, counts=counts, phred_offset=64)) == 500
    assert not counts.warnings


def test_mock_reads_look_like_phred_33():
    counts = ReadCounts()
    folder = shared_data("real", "N5_271")
    reads = read(folder / "reads_1.fastq.gz", folder / "reads_2.fastq.gz", counts=counts)
    assert len(reads) == 2 * 13_051
    assert not counts.warnings


def fastq(*records):
    return "".join(f"@{name}\n{bases}\n+\n{quality}\n" for name, bases, quality in records)


def test_phred_64_given_by_mistake(tmp_path):
    path = write(tmp_path / "r.fq", fastq(("a", "AC", "hh"), ("b", "ACG", "h#h")))
    with pytest.raises(ReadsError, match=r"r.fq: record 2 \(b\).*'#'.*leave out --phred 64"):
        read(path, phred_offset=64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACGT\n", r"neither FASTQ nor FASTA: it begins with 'A'.*; give reads as FASTQ or FASTA"),
        ("\x1f\x1f", r"neither FASTQ nor FASTA: it begins with '\\x1f'"),
        ("@r1\nACGT\n+\nIII\n@r2\nA\n+\nI\n", r"record 1 \(r1\) has 4 bases but 3 qualities"),
        ("@r1\nACGT\n+\nIIIII\n", r"record 1 \(r1\) has 4 bases but 5 qualities"),
        (
            "@r1\nA\n+\nI\n@r2\nACGT\n+\nIII",
            r"record 2 is cut short.*whole record is number 1 \(r1\)",
        ),
        ("@r1\nA\n+\nI\n@r2\nACGT\n+\n", r"record 2 is cut short"),
        ("@r1\nA\n+\nI\n@r2\nACGT", r"record 2 is cut short"),
        ("@r1\nA\n+\nI\n@r2", r"record 2 is cut short"),
        ("@r1\nA\n+\nI\nr2\nA\n+\nI\n", r"record 2 begins with 'r' \(.*not with '@'.*get it again"),
        ("@r1\nA\n+\nI\n\n@r2\nA\n+\nI\n", r"blank line stands before record 2"),
        ("\n@r1\nA\n+\nI\n", r"blank line stands before record 1"),
        ("@r1\nA\n\n+\nI\n", r"record 1 \(r1\).*third line begins with '\\x0a'"),
        ("@r1\nACGT\n+\nII I\n", r"record 1 \(r1\) holds the quality character ' '"),
        ("@r1\nACGT\n+\nII\x7fI\n", r"quality character '\\x7f' \(character code 127\)"),
        (
            "@r1\nAC1T\n+\nIIII\n",
            r"record 1 \(r1\) holds '1' \(character code 49\).* remove the read",
        ),
        ("@r1\nAC-T\n+\nIIII\n", r"record 1 \(r1\) holds '-'"),
        ("@\nA\n+\nI\n", r"record 1 has no name"),
        (">r1\nAC\n@r2\nA\n", r"record 1 \(r1\) holds '@'"),
        (">r1\nAC\nA\x00\n", r"record 1 \(r1\) holds '\\x00'"),
        ("> r1\nAC\n", r"record 1 has no name"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 5, 1 << 20])
def test_not_usable(tmp_path, text, message, piece_bytes):
    path = write(tmp_path / "r.fq", text)
    with pytest.raises(ReadsError, match=message) as caught:
        read(path, piece_bytes=piece_bytes)
    assert path in str(caught.value)


def test_cannot_be_opened(tmp_path):
    good = write(tmp_path / "r.fq", fastq(("a", "A", "I")))
    with pytest.raises(ReadsError, match=r"none\.fq: there is no such file"):
        read(good, tmp_path / "none.fq")
    with pytest.raises(ReadsError, match=r"is a directory"):
        read(tmp_path)
    with pytest.raises(ReadsError, match=r"are the same file"):
        read(good, good)


def test_library_and_batch_size_are_checked(tmp_path):
    with pytest.raises(ParameterError, match="kind is 'both'"):
        Library("both", ("a",))
    with pytest.raises(ParameterError, match="2 file"):
        Library("pairs", ("a",))
    path = write(tmp_path / "r.fq", "")
    with pytest.raises(ParameterError, match="batch_reads is 3"):
        read(path, kind="interleaved", batch_reads=3)


def test_empty_files(tmp_path):
    empty = write(tmp_path / "0.fq", "")
    empty_too = write(tmp_path / "1.fq", gzip.compress(b""))
    blank = write(tmp_path / "2.fq", "\n\r\n")
    full = write(tmp_path / "3.fq", fastq(("a", "A", "I"), ("b", "A", "I")))
    counts = ReadCounts()
    assert read(empty, empty_too, counts=counts) == []
    assert counts.empty_files == 2
    assert read(blank, kind="interleaved") == []
    with pytest.raises(ReadsError, match=r"0.fq holds 0 reads but .*3.fq 2;"):
        read(empty, full)


@pytest.mark.parametrize(
    ("first", "second", "suffix"),
    [
        ("r/1", "r/2", 2),
        ("r_1", "r_2", 2),
        ("r.1", "r.2", 2),
        ("SRR1.1", "SRR1.1", 0),
        ("SRR1.1.1", "SRR1.1.2", 2),
        ("r 1:N:0:ACGT", "r 2:N:0:ACGT", 0),
        ("r/1 x", "r/2\ty", 2),
        ("r", "r", 0),
        ("r/1", "r/1", 0),
        ("r/2", "r/1", None),
        ("r1", "r2", None),
        ("/1", "/2", 2),
        ("1", "2", None),
        ("r/1", "s/2", None),
        ("r", "rr", None),
        ("r-1", "r-2", None),
    ],
)
def test_names_of_mates(tmp_path, first, second, suffix):
    one, two = fastq((first, "A", "I")), fastq((second, "CC", "II"))
    paths = write(tmp_path / "1.fq", one), write(tmp_path / "2.fq", two)
    both = write(tmp_path / "both.fq", one + two)
    for library in (Library("pairs", paths), Library("interleaved", (both,))):
        batches = iter_batches(library, counts=ReadCounts())
        if suffix is None:
            with pytest.raises(ReadsError, match=r"out of step: pair 1 is"):
                next(batches)
        else:
            batch = next(batches)
            assert batch.mate_suffix_length.tolist() == [suffix, suffix]
            assert batch.length.tolist() == [1, 2]
    single = next(iter_batches(Library("single", (both,)), counts=ReadCounts()))
    assert single.mate_suffix_length.tolist() == [0, 0]


def test_odd_number_interleaved(tmp_path):
    path = write(tmp_path / "r.fq", fastq(*[(f"r{i // 2}", "A", "I") for i in range(5)]))
    for size in (2, 4, 100):
        with pytest.raises(ReadsError, match=r"r.fq: holds 5 reads, an odd number.*r2"):
            read(path, kind="interleaved", batch_reads=size)


def test_pairs_of_fastq_and_fasta(tmp_path):
    """Each file has a format of its own."""
    one = write(tmp_path / "1.fq", fastq(("r", "AC", "IJ")))
    two = write(tmp_path / "2.fa", ">r x\nG\nT\nA\n")
    assert read(one, two) == [("r", b"AC", b"IJ"), ("r", b"GTA", None)]


def test_names_need_not_be_ascii(tmp_path):
    for text in (fastq(("é1", "A", "I")), ">é1 x\nA\n"):
        assert read(write(tmp_path / "r", text))[0][0] == "é1"
    path = write(tmp_path / "r", b"@\xff\nA1\n+\nII\n")
    with pytest.raises(ReadsError, match=r"record 1 \(\\xff\) holds '1'"):
        read(path)


def test_batches_can_be_pickled(tmp_path):
    path = write(tmp_path / "r.fq", fastq(("r", "AC", "IJ")))
    (batch,) = iter_batches(Library("single", (path,)), counts=ReadCounts())
    again = pickle.loads(pickle.dumps(batch))
    assert len(again) == 1
    assert again.text.tobytes() == batch.text.tobytes()


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)
BASES = st.text("ACGTNacgtnRYKMSWBDHVU.", max_size=40)
QUALITIES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=40, max_size=40)
RECORDS = st.lists(st.tuples(NAMES, st.sampled_from(["", " 1:N:0:A", "\tx"]), BASES, QUALITIES))


@given(
    records=RECORDS,
    newline=st.sampled_from(["\n", "\r\n"]),
    repeat_name=st.booleans(),
    last=st.booleans(),
    blank=st.integers(0, 2),
    piece_bytes=st.integers(1, 200),
    batch_reads=st.integers(1, 5),
)
def test_fastq_against_dnaio(records, newline, repeat_name, last, blank, piece_bytes, batch_reads):
    text = ""
    for name, rest, bases, quality in records:
        lines = (
            f"@{name}{rest}",
            bases,
            f"+{name}{rest}" * repeat_name or "+",
            quality[: len(bases)],
        )
        text += "".join(line + newline for line in lines)
    # without the newline after it an empty quality line would not be there
    if records and not last and records[-1][2]:
        text = text.removesuffix(newline)
        blank = 0
    with dnaio.open(io.BytesIO(text.encode()), fileformat="fastq") as file:
        expected = [(record.name.split()[0], record.sequence, record.qualities) for record in file]
    counts = ReadCounts()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "r.fq", text + blank * newline)
        found = read(path, counts=counts, piece_bytes=piece_bytes, batch_reads=batch_reads)
    assert found == [(name, bases.encode(), quality.encode()) for name, bases, quality in expected]
    sequences = [bases for _, bases, _ in expected]
    assert counts.bases == sum(map(len, sequences))
    assert counts.empty == sequences.count("")
    assert counts.short == sum(len(bases) < 22 for bases in sequences)
    assert counts.with_n == sum(any(c in "nN." for c in bases) for bases in sequences)
    assert counts.with_iupac == sum(any(c in "RYKMSWBDHVU" for c in bases) for bases in sequences)
    assert counts.lower_case == sum(any(c.islower() for c in bases) for bases in sequences)
    assert counts.crlf == (len(records) if newline == "\r\n" else 0)
    assert counts.blank_lines == blank


@given(
    records=RECORDS,
    newline=st.sampled_from(["\n", "\r\n"]),
    width=st.integers(1, 50),
    last=st.booleans(),
    piece_bytes=st.integers(1, 200),
    batch_reads=st.integers(1, 5),
)
def test_fasta_against_what_was_written(records, newline, width, last, piece_bytes, batch_reads):
    text = ""
    for name, rest, bases, _ in records:
        text += f">{name}{rest}{newline}"
        text += "".join(bases[i : i + width] + newline for i in range(0, len(bases), width))
    if not last:
        text = text.removesuffix(newline)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "r.fa", text)
        found = read(path, piece_bytes=piece_bytes, batch_reads=batch_reads)
    assert found == [(name, bases.encode(), None) for name, _, bases, _ in records]


@given(
    lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12),
    kind=st.sampled_from(["pairs", "interleaved"]),
    batch_reads=st.integers(1, 5).map(lambda n: 2 * n),
    piece_bytes=st.integers(1, 200),
)
def test_pairs_stay_in_step(lengths, kind, batch_reads, piece_bytes):
    pairs = [
        [(f"r{i}/{mate + 1}", "ACGT"[i % 4] * n, "IJ"[mate] * n) for mate, n in enumerate(both)]
        for i, both in enumerate(lengths)
    ]
    flat = [read for pair in pairs for read in pair]
    with tempfile.TemporaryDirectory() as folder:
        if kind == "pairs":
            paths = [
                write(Path(folder) / f"{mate}.fq", fastq(*[pair[mate] for pair in pairs]))
                for mate in (0, 1)
            ]
        else:
            paths = [write(Path(folder) / "r.fq", fastq(*flat))]
        counts = ReadCounts()
        found = read(
            *paths, kind=kind, counts=counts, batch_reads=batch_reads, piece_bytes=piece_bytes
        )
    assert found == [(name, bases.encode(), quality.encode()) for name, bases, quality in flat]
    assert counts.unequal_mates == sum(a != b for a, b in lengths)


PIECES = [
    b"@",
    b">",
    b"r1",
    b" x",
    b"ACGT",
    b"acgn",
    b"IIII",
    b"+",
    b"\n",
    b"\r\n",
    b"\r",
    b"\n+\n",
    b"-",
]


@given(
    text=st.one_of(
        st.lists(st.sampled_from(PIECES)).map(b"".join),
        st.builds(
            lambda text, at, piece: text[: at % len(text)] + piece + text[at % len(text) :],
            st.just(b"@a\nACGT\n+\nIIII\n@b\n\n+\n\n@c\nAC\n+c\n@@\n"),
            st.integers(0, 100),
            st.sampled_from([*PIECES, b"\x00", b"\xff"]),
        ),
    ),
    piece_bytes=st.integers(1, 20),
    batch_reads=st.integers(1, 3),
)
@example(text=b"@a\nA\n+\nI\r", piece_bytes=1, batch_reads=1)
@example(text=b"@a\nA\n+\nI\n\r", piece_bytes=1, batch_reads=1)
@example(text=b">a\nA\n\r", piece_bytes=1, batch_reads=1)
@example(text=b"@a\nACG\n+\n@@\n", piece_bytes=1, batch_reads=1)
def test_blocks_do_not_matter(text, piece_bytes, batch_reads):
    """Any text gives the same reads or the same error, however it is cut into blocks."""
    assume(not text.startswith((b"\x1f\x8b", b"BZh")))
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "r.fq", text)
        for size in (piece_bytes, 1 << 20):
            counts = ReadCounts()
            try:
                reads = read(path, counts=counts, piece_bytes=size, batch_reads=batch_reads)
                outcomes.append((reads, counts))
            except ReadsError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_memory_is_bounded_by_the_batch(tmp_path):
    """A batch holds its own text only, not that of the file."""
    path = write(
        tmp_path / "r.fq", fastq(*[(f"r{i}", "ACGT" * 25, "I" * 100) for i in range(5000)])
    )
    for batch in iter_batches(
        Library("single", (path,)), counts=ReadCounts(), batch_reads=100, piece_bytes=1000
    ):
        assert len(batch.text) < 100 * 300
        base = batch.text.base if batch.text.base is not None else batch.text
        assert np.asarray(base).nbytes < 100_000
