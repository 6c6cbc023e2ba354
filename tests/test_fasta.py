"""Contigs and depths from FASTA."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import shared_data
from hypothesis import given
from hypothesis import strategies as st

from dlasm.errors import ContigsError
from dlasm.io.fasta import read_contigs
from dlasm.work import open_contigs, write_contigs

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def as_dict(contigs):
    return {contigs.name(i): contigs.sequence(i) for i in range(len(contigs))}


def test_quirk_empty_and_short():
    contigs = read_contigs(shared_data("quirks", "empty_and_short.fa"))
    assert as_dict(contigs) == {
        "empty": b"",
        "short": b"ACGT",
        "wrapped": b"ACGTACGTACGTACGTACGTACGTACGGAccgttagcatgcatgcnnnnrygcatcgatcg",
    }
    assert contigs.counts["lower_case_bases"] == 32
    assert contigs.counts["n_bases"] == 4
    assert contigs.counts["iupac_bases"] == 2
    assert contigs.counts["crlf_lines"] == 3
    assert contigs.counts["empty_contigs"] == 1
    assert np.isnan(contigs.depth).all()
    assert contigs.depth_source == "unknown"


def test_quirk_no_contig():
    contigs = read_contigs(shared_data("quirks", "empty.fa"))
    assert len(contigs) == 0
    assert contigs.offsets.tolist() == [0]
    assert contigs.bases.dtype == np.uint8


def test_quirk_duplicate_ids():
    with pytest.raises(ContigsError, match=r"duplicate_ids.fa.* c1 .*records 1 and 3"):
        read_contigs(shared_data("quirks", "duplicate_ids.fa"))


@pytest.mark.parametrize(
    ("parts", "count", "source", "first"),
    [
        (("mock", "megahit_final.fa.gz"), 1720, "megahit", 5.0),
        (("mock", "metaspades.fa.gz"), 1964, "spades", 20.091959),
        (("real", "N5_271", "contigs.fa"), 178, "unknown", np.nan),
    ],
)
def test_assemblies(parts, count, source, first):
    contigs = read_contigs(shared_data(*parts))
    assert len(contigs) == count
    assert contigs.depth_source == source
    assert contigs.depth[0] == pytest.approx(first, nan_ok=True)


@pytest.mark.parametrize(
    ("headers", "source", "depths"),
    [
        (["k1 flag=1 multi=2.5 len=4", "k2 multi=0"], "megahit", [2.5, 0.0]),
        (["NODE_1_length_4_cov_12.5", "NODE_2_length_4_cov_3_ID_7"], "spades", [12.5, 3.0]),
        (["Contig12 1.5e+03", "Contig3 2.25"], "metahipmer", [1500.0, 2.25]),
        (["scaffold_1\t7", "scaffold_2 8.0 "], "metahipmer", [7.0, 8.0]),
        (["a depth=1.5", "b x depth_2", "c depth 3"], "metahipmer", [1.5, 2.0, 3.0]),
        (["NODE_1_length_4_cov_12.5 depth=3", "joined_1 depth=2"], "metahipmer", [3.0, 2.0]),
        (["a multi=1", "b"], "unknown", [np.nan, np.nan]),
        (["a multi=1", "Contig1 2"], "unknown", [np.nan, np.nan]),
        (["a multi=often", "b multi=1"], "unknown", [np.nan, np.nan]),
        (["other7 12.5"], "unknown", [np.nan]),
        (["a depth=1.00x"], "unknown", [np.nan]),  # Unicycler's is relative
    ],
)
def test_depth_of_headers(tmp_path, headers, source, depths):
    text = "".join(f">{header}\nACGT\n" for header in headers)
    contigs = read_contigs(write(tmp_path / "c.fa", text), block_bytes=7)
    assert contigs.depth_source == source
    np.testing.assert_array_equal(contigs.depth, depths)
    if source != "unknown":
        assert contigs.counts["headers_with_depth"] == len(headers)


def test_circles_are_those_whose_header_says_so(tmp_path):
    headers = [
        "a members=a+ circular=yes depth=1.00",
        "b circular=no",
        "circular=yes",
        "d circular=yes",
        "e not_circular=yes circular=yesterday",
        "f\tcircular=yes\tx",
        "g ncircular=yes circular=yes",
    ]
    text = "".join(f">{header}\nACGT\n" for header in headers)
    contigs = read_contigs(write(tmp_path / "c.fa", text), block_bytes=7)
    assert contigs.circles.tolist() == [0, 3, 5, 6]
    write_contigs(tmp_path / "contigs", [contigs, contigs])
    assert open_contigs(tmp_path / "contigs").circles.tolist() == [0, 3, 5, 6, 7, 10, 12, 13]


def test_depth_of_some_headers_only(tmp_path):
    contigs = read_contigs(write(tmp_path / "c.fa", ">a multi=1\nA\n>b\nA\n"))
    assert np.isnan(contigs.depth).all()
    assert contigs.counts["headers_with_depth"] == 1


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e999"])
def test_depth_of_header_out_of_range(tmp_path, value):
    path = write(tmp_path / "c.fa", f">a multi=1\nA\n>b multi={value}\nA\n")
    with pytest.raises(ContigsError, match=rf"c.fa: record 2 \(b\) has the depth {value}"):
        read_contigs(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACGT\n", r"not FASTA: it begins with 'A'.*; give the contigs as FASTA"),
        ("@r\nA\n+\nI\n", r"not FASTA.*looks like FASTQ"),
        (">\nACGT\n", r"record 1 has no id"),
        (">a\nA\n> \nACGT\n", r"record 2 has no id"),
        (">a\nAC1GT\n", r"record 1 \(a\) holds '1' \(character code 49\)"),
        (">a\nACGT\n>b\nACGTACGTACGT@\n", r"record 2 \(b\) holds '@'"),
        (">a\nAC\x00GT\n", r"record 1 \(a\) holds '\\x00' \(character code 0\)"),
        (">a\nACGT ACGT\n", r"record 1 \(a\) holds ' '"),
        (">a\nMKVLE\n", r"record 1 \(a\) holds 'L'"),
        (">a\rACGT\r", r"carriage return in its header"),
        (">a\nAC\rGT\n", r"record 1 \(a\) holds '\\x0d'.*line ends"),
        (">a\nA\n>b x\nA\n>a y\nA\n", r"id a is used twice, by records 1 and 3"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 3, 1 << 20])
def test_not_usable(tmp_path, text, message, block_bytes):
    path = write(tmp_path / "c.fa", text)
    with pytest.raises(ContigsError, match=message) as caught:
        read_contigs(path, block_bytes=block_bytes)
    assert str(path) in str(caught.value)


def test_cannot_be_opened(tmp_path):
    with pytest.raises(ContigsError, match=r"none\.fa: there is no such file"):
        read_contigs(tmp_path / "none.fa")
    with pytest.raises(ContigsError, match=r"is a directory"):
        read_contigs(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_may_not_be_read(tmp_path):
    path = write(tmp_path / "c.fa", ">a\nA\n")
    path.chmod(0)
    with pytest.raises(ContigsError, match=r"c\.fa: may not be read; check its permissions"):
        read_contigs(path)


def test_from_a_pipe(tmp_path):
    """Shells give pipes for ``<(...)``: no seeking, and pieces of any size."""
    path = tmp_path / "c.fifo"
    os.mkfifo(path)
    data = gzip.compress(b">a\n" + b"ACGT" * 100_000 + b"\n")
    writer = threading.Thread(target=path.write_bytes, args=(data,))
    writer.start()
    contigs = read_contigs(path)
    writer.join()
    assert contigs.lengths.tolist() == [400_000]


COMPRESSORS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": zstd.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compressed(tmp_path, kind):
    """Told by content, not by name; several members are read as one; cut short is an error."""
    compress = COMPRESSORS[kind]
    rng = np.random.default_rng(1)
    bases = rng.choice(list(b"ACGT"), 200_000).astype(np.uint8).tobytes()
    data = compress(b">a\n" + bases + b"\n") + compress(b">b\nACGT\n")
    contigs = read_contigs(write(tmp_path / "c.fa", data), block_bytes=1000)
    assert as_dict(contigs) == {"a": bases, "b": b"ACGT"}
    whole = compress(b">a\n" + bases + b"\n")
    for length in (len(whole) // 2, len(whole) - 1):
        with pytest.raises(ContigsError, match=r"c.fa: .*cut short"):
            read_contigs(write(tmp_path / "c.fa", whole[:length]))
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    with pytest.raises(ContigsError, match=r"c.fa"):
        read_contigs(write(tmp_path / "c.fa", damaged))


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compressed_file_padded_and_followed_by_garbage(tmp_path, kind):
    data = COMPRESSORS[kind](b">a\nACGT\n")
    for padding in (1, 4, 1000):
        contigs = read_contigs(write(tmp_path / "c.fa", data + bytes(padding)))
        assert as_dict(contigs) == {"a": b"ACGT"}
    for garbage in (b"garbage and more of it", b"\x1f", b"\x1fand", b"BZ", b"BZand"):
        problem = r"c.fa: .*(trailing garbage|truncated)"
        with pytest.raises(ContigsError, match=problem):
            read_contigs(write(tmp_path / "c.fa", data + garbage))


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_damaged_start_of_a_later_member_does_not_end_the_file(tmp_path, kind):
    """Python's own readers of bzip2 and xz end there and say nothing."""
    member = COMPRESSORS[kind](b">a\nACGT\n")
    for at in range(len(member)):
        damaged = bytearray(member + COMPRESSORS[kind](b"AC\n"))
        damaged[len(member) + min(at, 2)] ^= 1 + at
        with pytest.raises(ContigsError, match=r"c.fa: "):
            read_contigs(write(tmp_path / "c.fa", damaged))
    for length in range(len(member) + 1, len(member) + 8):
        with pytest.raises(ContigsError, match=r"c.fa: .*truncated"):
            read_contigs(write(tmp_path / "c.fa", (member * 2)[:length]))


def test_zstd_frames_that_are_to_be_skipped(tmp_path):
    """pzstd writes one before each of its frames."""
    skipped = b"\x50\x2a\x4d\x18\4\0\0\0size"
    data = skipped + zstd.compress(b">a\nAC") + skipped + zstd.compress(b"GT\n") + skipped
    assert as_dict(read_contigs(write(tmp_path / "c.fa", data))) == {"a": b"ACGT"}
    with pytest.raises(ContigsError, match=r"c.fa: .*truncated"):
        read_contigs(write(tmp_path / "c.fa", data[:-1]))


IDS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_categories=("Z", "C")), min_size=1
)
BASES = st.text("ACGTNacgtnRYKMSWBDHV")


@given(
    records=st.lists(st.tuples(IDS, st.sampled_from(["", " x", "\tx y"]), BASES), max_size=8),
    width=st.integers(1, 30),
    newline=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    blank=st.integers(0, 2),
    block_bytes=st.integers(1, 50),
)
def test_against_a_plain_parser(records, width, newline, last, blank, block_bytes):
    records = list({name: (name, rest, bases) for name, rest, bases in records}.values())
    text = ""
    for name, rest, bases in records:
        text += f">{name}{rest}{newline}"
        text += "".join(bases[i : i + width] + newline for i in range(0, len(bases), width))
        text += newline * blank
    if not last:
        text = text.removesuffix(newline)
    with tempfile.TemporaryDirectory() as folder:
        contigs = read_contigs(write(Path(folder) / "c.fa", text), block_bytes=block_bytes)
    assert as_dict(contigs) == {name: bases.encode() for name, _, bases in records}
    joined = "".join(bases for _, _, bases in records)
    assert contigs.counts["lower_case_bases"] == sum(c.islower() for c in joined)
    assert contigs.counts["n_bases"] == sum(c in "nN" for c in joined)
    assert contigs.counts["iupac_bases"] == sum(c in "RYKMSWBDHV" for c in joined)


@given(
    text=st.lists(
        st.sampled_from([b">", b"a", b"b1", b"ACGT", b"\n", b"\r", b"\n", b" ", b"@"])
    ).map(b"".join),
    block_bytes=st.integers(1, 20),
)
def test_blocks_do_not_matter(text, block_bytes):
    """Any text gives the same contigs or the same error, however it is cut into blocks."""
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "c.fa", text)
        for size in (block_bytes, 1 << 20):
            try:
                contigs = read_contigs(path, block_bytes=size)
                outcomes.append((as_dict(contigs), contigs.counts))
            except ContigsError as error:
                outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


HEADER = "contigName\tcontigLen\ttotalAvgDepth\ta.bam\ta.bam-var\n"


def depth_files(tmp_path, rows, header=HEADER):
    contigs = write(tmp_path / "c.fa", ">a multi=9\nACGT\n>b multi=9\nACGT\n")
    return contigs, write(tmp_path / "depths.tsv", header + "".join(rows))


def test_depth_table(tmp_path):
    rows = ["b\t4\t2.5\t2.5\t1\n", "other\t4\tnan\t1\t1\n", "\n", "a\t4\t0\t0\t0"]
    contigs = read_contigs(*depth_files(tmp_path, rows), block_bytes=5)
    assert contigs.depth.tolist() == [0.0, 2.5]
    assert contigs.depth_source == "table"
    assert contigs.counts["extra_depth_rows"] == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a\t4\t1\t1\t1\n"], r"has no row for 1 of 2 contigs of .*c.fa, first b"),
        (["a\t4\t1\n", "b\t4\tnan\n"], r"line 3: contig b has the depth 'nan'"),
        (["a\t4\t1\n", "b\t4\t-1\n"], r"line 3: contig b has the depth '-1'"),
        (["a\t4\t1\n", "b\t4\t\n"], r"line 3: contig b has the depth ''"),
        (["a\t4\t1\n", "b\t4\n"], r"line 3 has fewer columns"),
        (["a\t4\t1\n", "b\t4\t1\n", "a\t4\t1\n"], r"line 4: contig a has a row already, in line 2"),
    ],
)
def test_depth_table_not_usable(tmp_path, rows, message):
    with pytest.raises(ContigsError, match=message) as caught:
        read_contigs(*depth_files(tmp_path, rows))
    assert "depths.tsv" in str(caught.value)


@pytest.mark.parametrize("header", ["", "contig\tdepth\n", "contigName\tcontigLen\n"])
def test_depth_table_without_the_columns(tmp_path, header):
    with pytest.raises(ContigsError, match=r"depths.tsv: has no column (contigName|totalAvgDepth)"):
        read_contigs(*depth_files(tmp_path, [], header))


def test_many_contigs(tmp_path):
    """Ids by the hundred thousand; the last one is there already."""
    names = [f"k141_{i}" for i in range(200_000)]
    path = write(tmp_path / "c.fa", "".join(f">{name} multi=1.5\nAC\n" for name in names))
    contigs = read_contigs(path)
    assert len(contigs) == len(names)
    assert contigs.name(199_999) == names[-1]
    assert (contigs.lengths == 2).all()
    with path.open("a") as file:
        file.write(">k141_77777\nA\n")
    with pytest.raises(ContigsError, match="k141_77777 is used twice, by records 77778 and 200001"):
        read_contigs(path)
