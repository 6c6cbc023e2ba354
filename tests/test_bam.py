"""Records of BAM, SAM and CRAM against what pysam says of each, and files that are damaged."""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import numpy as np
import pysam
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlasm.errors import AlignmentsError
from dlasm.io import bam
from dlasm.io.bam import PAIRED, REVERSE, WHOLE, AlignmentsFile, in_order

REFERENCES = {"one": 500, "two": 90, "three": 2000}
HEADER = pysam.AlignmentHeader.from_dict(
    {"SQ": [{"SN": name, "LN": length} for name, length in REFERENCES.items()]}
)
TAKE_READ = {0, 1, 4, 7, 8}


@st.composite
def cigars(draw: st.DrawFn) -> list[tuple[int, int]]:
    size = st.integers(1, 40)
    inside = draw(st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 6, 7, 8]), size), max_size=5))
    hard, soft = st.just(5), st.just(4)
    left = draw(st.lists(st.tuples(hard, size), max_size=1))
    left += draw(st.lists(st.tuples(soft, size), max_size=1))
    right = draw(st.lists(st.tuples(soft, size), max_size=1))
    right += draw(st.lists(st.tuples(hard, size), max_size=1))
    return [*left, (0, draw(size)), *inside, *right]


@st.composite
def segments(draw: st.DrawFn) -> pysam.AlignedSegment:
    record = pysam.AlignedSegment(HEADER)
    name = draw(st.text("abcXYZ:019#", min_size=1, max_size=30))
    record.query_name = name + draw(st.sampled_from(["", "", "/1", "/2", "/3"]))
    record.flag = draw(st.integers(0, 0xFFF)) & draw(st.sampled_from([0xFFF, 0x6FF]))
    length = draw(st.integers(0, 60))
    record.reference_id = draw(st.integers(-1, 2))
    record.reference_start = draw(st.integers(0, 400)) if record.reference_id >= 0 else -1
    record.next_reference_id = draw(st.integers(-1, 2))
    record.next_reference_start = draw(st.integers(-1, 400))
    if draw(st.booleans()):
        cigar = draw(cigars())
        length = sum(size for operation, size in cigar if operation in TAKE_READ)
        record.cigartuples = cigar
    if length and draw(st.integers(0, 4)):
        letters = st.sampled_from("ACGTNacgtRY=")
        record.query_sequence = "".join(draw(st.lists(letters, min_size=length, max_size=length)))
        if draw(st.booleans()):
            quality = draw(st.lists(st.integers(0, 93), min_size=length, max_size=length))
            record.query_qualities = pysam.qualitystring_to_array(
                "".join(chr(33 + q) for q in quality)
            )
    record.set_tag("NM", 3)
    return record


def plain_row(record: pysam.AlignedSegment, number: int) -> tuple[int, ...]:
    """What must be in a row: record, mate, contig, start, end, left, right, length, bits."""
    name = str(record.query_name)
    digit = int(name[-1]) if name[-2:] in ("/1", "/2") else 0
    mate = digit
    if record.is_paired and record.is_read1 != record.is_read2:
        mate = 1 if record.is_read1 else 2
    bits = PAIRED * record.is_paired | REVERSE * record.is_reverse
    cigar = record.cigartuples
    if record.is_unmapped or not cigar:
        length = record.query_length
        return number, mate, -1, 0, 0, 0, 0, length, bits | WHOLE * (length > 0)
    clip = [
        sum(size for _, size in takewhile(lambda part: part[0] in (4, 5), side))
        for side in (cigar, cigar[::-1])
    ]
    whole = record.query_length > 0 and 5 not in {operation for operation, _ in cigar}
    length = record.query_length if whole else record.infer_read_length()
    place = (-1, 0, 0, 0, 0)
    if record.reference_id >= 0:
        place = (2 - record.reference_id, record.reference_start, record.reference_end, *clip)
    return number, mate, *place, length, bits | WHOLE * whole


def rows_of(path: Path, threads: int = 1) -> np.ndarray:
    contig = np.array([2, 1, 0], dtype=np.int32)
    lengths = np.array(list(REFERENCES.values())[::-1], dtype=np.int64)
    chunks = AlignmentsFile(path, threads).records()
    return np.concatenate(
        [np.empty(0, bam.ROW), *(c.rows(contig, lengths, 50.0)[0] for c in chunks)]
    )


def texts_of(path: Path) -> list[tuple[str, str, list[int] | None]]:
    result = []
    for chunk in AlignmentsFile(path).records():
        assert chunk.number.tolist() == list(range(len(result), len(result) + len(chunk)))
        copied = bam.records_of(path, chunk.copy(np.arange(len(chunk))), chunk.number)
        assert copied.offsets[-1] <= chunk.offsets[-1]
        for each in (chunk, copied):
            text, base, quality, length = each.bases(np.arange(len(each)))
            found = [
                (
                    each.name(i),
                    text[base[i] : base[i] + length[i]].tobytes().decode(),
                    None if quality[i] < 0 else text[quality[i] : quality[i] + length[i]].tolist(),
                )
                for i in range(len(each))
            ]
        result += found
    return result


def write(path: Path, records: list[pysam.AlignedSegment], mode: str) -> Path:
    with pysam.AlignmentFile(str(path), mode, header=HEADER) as out:
        for record in records:
            out.write(record)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(records=st.lists(segments(), max_size=12), mode=st.sampled_from(["wb", "w", "wbu"]))
def test_records_are_what_pysam_reads(
    records: list[pysam.AlignedSegment], mode: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x", records, mode)
    with bam._quiet(), pysam.AlignmentFile(str(path), check_sq=False) as file:
        known = list(file)  # SAM says less than BAM, and htslib mends what contradicts itself
    assert len(known) == len(records)
    rows = rows_of(path)
    columns = ("record", "contig", "start", "end", "left", "right", "length", "bits")
    found = [
        (int(row["record"]), int(row["name"]) & 3, *(int(row[name]) for name in columns[1:]))
        for row in rows
    ]
    assert found == [
        plain_row(record, i)
        for i, record in enumerate(known)
        if not record.is_secondary and not record.is_supplementary
    ]
    by_name = {}
    for row in rows:
        name = str(known[row["record"]].query_name)
        bare = name[:-2] if name[-2:] in ("/1", "/2") else name
        fragment = int(row["name"]) >> 2
        assert by_name.setdefault(bare, fragment) == fragment
    assert len(set(by_name.values())) == len(by_name)
    assert texts_of(path) == [
        (
            record.query_name,
            record.query_sequence or "",
            None if record.query_qualities is None else list(record.query_qualities),
        )
        for record in known
    ]


@pytest.mark.parametrize("mode", ["w", "wb"])
def test_alignments_of_more_operations_than_a_record_holds_are_not_used(
    mode: str, tmp_path: Path
) -> None:
    record = pysam.AlignedSegment(HEADER)
    record.query_name = "long"
    record.query_sequence = "A" * 70_000
    record.reference_id, record.reference_start = 2, 0
    record.cigartuples = [(0, 1), (1, 1)] * 35_000
    (row,) = rows_of(write(tmp_path / "x", [record], mode))
    assert (row["contig"], row["length"], row["bits"]) == (-1, 65_535, WHOLE)
    ((name, bases, quality),) = texts_of(tmp_path / "x")
    assert (name, bases, quality) == ("long", "A" * 70_000, None)


# ---------------------------------------------------------------- blocks


def block(data: bytes, *, other_field: bool = False) -> bytes:
    """A BGZF block (SAM specification 4.1)."""
    deflate = zlib.compressobj(1, zlib.DEFLATED, -15)
    body = deflate.compress(data) + deflate.flush()
    field = b"ZZ\x03\x00abc" if other_field else b""
    extra = len(field) + 6
    size = 12 + extra + len(body) + 8
    head = b"\x1f\x8b\x08\x04" + bytes(6) + struct.pack("<H", extra) + field
    head += b"BC\x02\x00" + struct.pack("<H", size - 1)
    return head + body + struct.pack("<II", zlib.crc32(data), len(data))


END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def sam_file(path: Path, reads: int = 300) -> Path:
    """Reads of 50 bases, every third mapped."""
    records = []
    for i in range(reads):
        record = pysam.AlignedSegment(HEADER)
        record.query_name = f"read{i}"
        record.query_sequence = "ACGTN" * 10
        record.query_qualities = pysam.qualitystring_to_array("I" * 50)
        record.flag = 4 if i % 3 else 0
        if i % 3 == 0:
            record.reference_id, record.reference_start = 0, i
            record.cigartuples = [(0, 50)]
        records.append(record)
    return write(path, records, "wb")


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 65_280])
@pytest.mark.parametrize("group", [1, 5000, 4 << 20])
def test_blocks_may_end_anywhere(
    size: int, group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bam, "_GROUP", group)
    monkeypatch.setattr(bam, "_PIECE", 1000)
    plain = sam_file(tmp_path / "x.bam", 40)
    data = gzip.decompress(plain.read_bytes())
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    pieces.insert(len(pieces) // 2, b"")  # an empty block is no end
    other = tmp_path / "y.bam"
    other.write_bytes(
        b"".join(block(piece, other_field=i % 2 == 1) for i, piece in enumerate(pieces)) + END
    )
    expected = rows_of(plain)
    assert len(expected) == 40
    for threads in (1, 3):
        assert rows_of(other, threads).tolist() == expected.tolist()
    assert texts_of(other) == texts_of(plain)


def flip(at: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        return bytes(damaged)

    return change


def renewed(at: int, value: bytes) -> Callable[[bytes], bytes]:
    """Change what is compressed, in a block that is whole."""

    def change(data: bytes) -> bytes:
        inside = bytearray(gzip.decompress(data))
        inside[at : at + len(value)] = value
        return block(bytes(inside))

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (flip(3), "other data stand where a compressed block should"),
        (flip(12), "does not say its size"),
        (flip(100), "a compressed block is damaged"),
        (flip(-8), "a compressed block is damaged"),  # checksum
        (lambda data: data[:-4] + struct.pack("<I", 1 << 17), "block is too large"),
        (lambda data: data[:-4] + struct.pack("<I", 5), "a compressed block is damaged"),
        (lambda data: data[:16] + struct.pack("<H", 3) + data[18:], "does not say its size"),
        (lambda data: data[:400], "the file is cut short"),
        (renewed(0, struct.pack("<i", 3)), "a length that cannot be"),
        (renewed(0, struct.pack("<i", 1 << 30)), "the next one is cut short"),
        (renewed(4, struct.pack("<i", 3)), "names no reference"),
        (renewed(4, struct.pack("<i", -2)), "names no reference"),
        (renewed(12, b"\xff"), "do not fit its length|does not end"),
        (renewed(16, struct.pack("<H", 60_000)), "do not fit its length"),
        (renewed(20, struct.pack("<i", -1)), "do not fit its length"),
        (renewed(20, struct.pack("<i", 49)), "lengths differ"),
        (renewed(42, b"x"), "name does not end"),
        (renewed(43, b"\x0f"), "an operation that is not known"),
    ],
)
def test_damage_is_told(change: Callable[[bytes], bytes], problem: str, tmp_path: Path) -> None:
    whole = sam_file(tmp_path / "x.bam").read_bytes()
    first = struct.unpack_from("<H", whole, 16)[0] + 1  # the header ends with its block
    records = gzip.decompress(whole[first:])
    # 99 records, then those where the damage is
    offsets, _ = bam._bam.record_offsets(np.frombuffer(records, dtype=np.uint8))
    half = int(offsets[99])
    path = tmp_path / "y.bam"
    head = whole[:first] + block(records[:half])
    path.write_bytes(head + change(block(records[half:])) + END)
    (tmp_path / "z.bam").write_bytes(head + block(records[half:]) + END)
    assert len(rows_of(tmp_path / "z.bam")) == 300
    with pytest.raises(AlignmentsError, match=r"y\.bam: after \d+ records: .*make it again") as got:
        rows_of(path)
    assert re.search(problem, str(got.value))
    inside = not any(word in problem for word in ("compressed", "its size", "too large", "file is"))
    assert not inside or "after 99 records" in str(got.value)


# ---------------------------------------------------------------- threads


def test_alignment_to_an_unknown_reference_is_not_taken_as_an_unmapped_read(tmp_path: Path) -> None:
    """As htslib does, which only logs it."""
    path = tmp_path / "x.sam"
    lines = [f"r\t0\t{name}\t5\t60\t4M\t*\t0\t0\tACGT\tIIII\n" for name in ("one", "other")]
    path.write_text("".join(["@SQ\tSN:one\tLN:100\n", *lines]))
    with pytest.raises(AlignmentsError, match=r"x.sam: after 1 records: .* a reference that"):
        texts_of(path)


@pytest.mark.parametrize("text", [">r\nACGT\n", "@r\nACGT\n+\nIIII\n", "chr1\t1\t2\n", ">H", ""])
def test_other_formats_that_htslib_reads_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bam"
    path.write_text(text)
    with pytest.raises(AlignmentsError, match=r"x.bam: cannot be read as BAM, SAM or CRAM"):
        AlignmentsFile(path)


def test_results_come_in_order_and_errors_after_what_came_before() -> None:
    def items() -> Iterator[int]:
        yield from range(20)
        raise ValueError("of the source")

    found: list[int] = []
    with pytest.raises(ValueError, match="of the source"):
        found.extend(in_order(lambda x: x * x, items(), 4))
    assert found == [x * x for x in range(20)]

    def fails(x: int) -> int:
        return x // (x - 7)

    found = []
    with pytest.raises(ZeroDivisionError):
        found.extend(in_order(fails, range(20), 4))
    assert len(found) == 7


def test_few_items_are_taken_ahead() -> None:
    taken = []

    def items() -> Iterator[int]:
        for i in range(100):
            taken.append(i)
            yield i

    results = in_order(lambda x: x, items(), 2)
    assert next(results) == 0
    results.close()
    assert len(taken) <= 4
