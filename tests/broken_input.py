"""What must hold of every reader whatever bytes a file holds: a correct result, or one clear error.

``python tests/broken_input.py READER [options of libFuzzer] CORPUS`` fuzzes a reader with atheris,
which must be installed; the readers are the keys of :data:`CHECKS`.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pysam
from recruit_data import make_batch, make_contigs

from dlasm import alignments
from dlasm.alignments import PafPlacer, iter_bam_results, write_paf_index
from dlasm.errors import DlasmError
from dlasm.io.bam import AlignmentsFile
from dlasm.io.candidates import iter_dump
from dlasm.io.fasta import read_contigs
from dlasm.io.fastq import Library, ReadCounts, iter_batches

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAGICS = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zst"}

CONTIGS = make_contigs(["A" * 5000, "", "ACGT" * 25, "G" * 40], ["k141_0", "none", "b", "c"])


def decompressed(data: bytes) -> bytes | None:
    """Return the text of a file; None if it is not wholly that of whole members."""
    kind = next((kind for magic, kind in MAGICS.items() if data.startswith(magic)), None)
    if kind is None:
        return data
    new: Callable[[], Any] = {
        "bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor, "zst": zstd.ZstdDecompressor
    }.get(kind, object)  # fmt: skip
    text = b""
    try:
        if kind == "gz":
            return gzip.decompress(data)
        while data := data.lstrip(b"\0"):
            member = new()
            text += member.decompress(data)
            if not member.eof:
                return None
            data = member.unused_data
    except Exception:
        return None
    return text


def outcome(path: Path, function: Callable[[Path], Any]) -> Any:
    """Return what a function gives, or the text of its error; other errors pass through."""
    try:
        return function(path)
    except DlasmError as error:
        text = str(error)
        assert str(path) in text, text
        assert len(text) > len(str(path)) + 10
        return text


def of_contigs(contigs: Any) -> Any:
    """Return what contigs hold as values that can be compared."""
    return (
        [(contigs.name(i), contigs.sequence(i)) for i in range(len(contigs))],
        [str(depth) for depth in contigs.depth],
        contigs.depth_source,
    )


def contigs_at(path: Path, block_bytes: int) -> Any:
    """Read contigs."""
    contigs = read_contigs(path, block_bytes=block_bytes)
    return of_contigs(contigs), contigs.counts


def depths_at(path: Path, block_bytes: int) -> Any:
    """Read a table of depths."""
    contigs = path.with_name("contigs.fa")
    contigs.write_text(">k141_0\n>k141_1\n>a\n")
    return of_contigs(read_contigs(contigs, path, block_bytes=block_bytes))


def reads_at(path: Path, batch_reads: int, piece_bytes: int, kind: str = "single") -> Any:
    """Read reads."""
    counts = ReadCounts()
    reads: list[Any] = []
    library = Library(kind, (str(path),) * (2 if kind == "pairs" else 1))
    for batch in iter_batches(
        library, counts=counts, batch_reads=batch_reads, piece_bytes=piece_bytes
    ):
        text = batch.text.tobytes()
        for i in range(len(batch)):
            base, quality, length = batch.base_start[i], batch.quality_start[i], batch.length[i]
            assert 0 <= base <= base + length <= len(text)
            assert quality + length <= len(text)
            bases = text[base : base + length]
            qualities = None if quality < 0 else text[quality : quality + length]
            reads.append((batch.name(i), bases, qualities, int(batch.mate_suffix_length[i])))
    assert counts.reads == len(reads)
    return reads, vars(counts)


def dump_at(path: Path, chunk_bytes: int, block_bytes: int, threads: int) -> Any:
    """Read a candidate dump."""
    contigs: list[Any] = []
    reads: list[Any] = []
    for chunk in iter_dump(path, chunk_bytes=chunk_bytes, block_bytes=block_bytes, threads=threads):
        assert chunk.first == len(contigs)
        names, depths, _ = of_contigs(chunk.contigs)
        contigs += zip(names, depths, strict=True)
        run = chunk.run
        for i in range(len(run.end)):
            words = run.words[run.word_offset[i] : run.word_offset[i + 1]]
            reads.append((int(run.end[i]), int(run.length[i]), words.tobytes()))
    return contigs, reads


def paf_at(path: Path, block_bytes: int) -> Any:
    """Read PAF."""
    before = alignments._PAF_BLOCK
    alignments._PAF_BLOCK = block_bytes
    try:
        placer = PafPlacer(write_paf_index(path, CONTIGS, path.with_name("index")), str(path))
    finally:
        alignments._PAF_BLOCK = before
    rows = np.array(placer.rows)
    assert (rows["start"] >= 0).all()
    assert (rows["start"] <= rows["end"]).all()
    assert (rows["end"] <= CONTIGS.lengths[rows["contig"]]).all()
    placer = PafPlacer(path.with_name("index"), str(path))
    batch = make_batch(["A" * 100] * 4, names=["r/1", "r/2", "s/1", "s/2"])
    placed = outcome(path, lambda _: len(placer.place(batch).read))
    return rows.tolist(), placed


def check_text(read: Callable[..., Any], *settings: tuple[Any, ...]) -> Callable[..., None]:
    """Make a check of a reader of text: all settings give the same, compressed or not."""

    def check(data: bytes, folder: Path) -> None:
        path = folder / "x"
        path.write_bytes(data)
        found = outcome(path, lambda path: read(path, *settings[0]))
        text = decompressed(data)
        if text is None:
            assert isinstance(found, str), found
        elif text is data:
            for more in settings[1:]:
                again = outcome(path, lambda path, more=more: read(path, *more))
                assert again == found, (found, again)
        elif decompressed(text) is text:
            path.write_bytes(text)
            again = outcome(path, lambda path: read(path, *settings[0]))
            assert again == found, (found, again)

    return check


def check_alignments(data: bytes, folder: Path) -> None:
    """Check a BAM or SAM file: as many records as pysam reads, none if they are malformed."""
    path = folder / "x"
    path.write_bytes(data)

    def rows(path: Path) -> list[Any]:
        source = AlignmentsFile(path)
        contig = np.arange(len(source.references), dtype=np.int32)
        lengths = np.array(source.lengths, dtype=np.int64)
        found = []
        for chunk in source.records():
            found += chunk.rows(contig, lengths, 300.0)[0].tolist()
            _, base_start, _, length = chunk.bases(np.arange(len(chunk)))
            assert len(base_start) == len(length) == len(chunk)
        return found

    def count_by_pysam() -> int | None:
        try:
            with pysam.AlignmentFile(str(path), check_sq=False) as file:
                return sum(not r.is_secondary and not r.is_supplementary for r in file)
        except OSError:
            return None
        except (ValueError, NotImplementedError):  # of the header, which dlasm does not look at
            return -1

    verbosity = pysam.set_verbosity(0)
    try:
        found = outcome(path, rows)
        expected = count_by_pysam()
        if not isinstance(found, str):
            assert expected in (len(found), -1), (len(found), expected)
        for threads in (1, 2):
            outcome(
                path,
                lambda path, threads=threads: len(
                    list(
                        iter_bam_results(
                            path, CONTIGS, scratch=folder / "scratch", bound=300.0, threads=threads
                        )
                    )
                ),
            )
    finally:
        pysam.set_verbosity(verbosity)


CHECKS: dict[str, Callable[[bytes, Path], None]] = {
    "contigs": check_text(contigs_at, (1 << 20,), (7,)),
    "depths": check_text(depths_at, (1 << 20,), (7,)),
    "reads": check_text(reads_at, (1000, 1 << 18), (2, 5)),
    # of two faults, which one is told depends on the size of batches
    "interleaved": check_text(reads_at, (2, 1 << 18, "interleaved"), (2, 5, "interleaved")),
    "dump": check_text(dump_at, (1 << 16, 1 << 16, 2), (7, 5, 1)),
    "paf": check_text(paf_at, (1 << 20,), (7,)),
    "alignments": check_alignments,
}
"""Reader to what must hold of it, given the bytes of a file and an empty folder."""


def check(reader: str, data: bytes) -> None:
    """Check a reader in a folder of its own."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    try:
        CHECKS[reader](data, folder)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Fuzz one reader."""
    import atheris

    reader = sys.argv.pop(1)
    atheris.instrument_all()
    atheris.Setup(sys.argv, lambda data: check(reader, bytes(data)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
