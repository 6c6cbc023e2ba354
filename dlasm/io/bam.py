"""BAM, SAM and CRAM files to flat arrays, in bulk.

The blocks of a BAM file are inflated by several threads, with ISA-L, and their records are parsed
natively. SAM and CRAM, and BAM that is not in blocks, go through the htslib inside ``pysam``, which
gives the same bytes.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import pysam
from isal import isal_zlib

import dlasm.io._bam as _bam
from dlasm.errors import AlignmentsError, is_want_of_memory

__all__ = [
    "PAIRED",
    "REVERSE",
    "ROW",
    "WHOLE",
    "AlignmentsFile",
    "Records",
    "in_order",
    "records_of",
]

ROW = np.dtype(
    [
        ("name", "u8"),  # hash of the name; the mate in the last two bits: 1, 2, or 0: single
        ("record", "i8"),  # number of the record in the file, from 0
        ("contig", "i4"),  # -1: unmapped
        ("start", "i4"),
        ("end", "i4"),
        ("left", "i4"),  # clipped bases, contig direction
        ("right", "i4"),
        ("length", "u2"),  # of the read, hard-clipped bases included; 65535: at least that
        ("bits", "u1"),
        ("unused", "u1"),
    ]
)
"""Where a read lies by its primary record; must match ``Row`` in ``bam.cpp``."""

PAIRED, REVERSE, WHOLE = 1, 2, 4
"""Bits of a row: of a pair, mapped to the - strand, all bases of the read are in the record."""

_PIECE = 1 << 20
"""Bytes read from a file at a time."""

_GROUP = 4 << 20
"""Bytes of records handled at a time, from 256 KB to 4 MB made no difference."""

_BLOCK_HEAD = struct.Struct("<4s6xH")  # magic bytes, size of the extra fields
_BLOCK_TAIL = struct.Struct("<II")  # checksum, size when inflated
_GZIP_WITH_EXTRA = b"\x1f\x8b\x08\x04"
_BLOCK_LIMIT = 1 << 16  # bytes of a BGZF block, compressed or not (SAM specification 4.1)

_Block = tuple[int, int]  # where its compressed data begin and end
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _DamagedError(Exception):
    """Says what is wrong with a file."""


def in_order(
    function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> Generator[_Result, None, None]:
    """Apply a function in threads, few items ahead; give results in the order of the items."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Result]] = deque()
        source = iter(items)
        try:
            while True:
                while len(waiting) <= threads:
                    try:
                        waiting.append(pool.submit(function, next(source)))
                    except StopIteration:
                        break
                    except Exception:  # of the source: what came before it is given first
                        while waiting:
                            yield waiting.popleft().result()
                        raise
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


@dataclass(frozen=True)
class Records:
    """Some records of a file, as BAM has them.

    Attributes
    ----------
    path : Path
        The file.
    text : numpy.ndarray
        uint8. Bytes of the records, and perhaps more.
    offsets : numpy.ndarray
        int64, shape (records + 1,). Where each record begins in ``text``, and where the last ends.
    number : numpy.ndarray
        int64, shape (records,). Of each record in the file, from 0, ascending.
    """

    path: Path
    text: np.ndarray
    offsets: np.ndarray
    number: np.ndarray

    def __len__(self) -> int:
        return len(self.number)

    def rows(
        self, contig: np.ndarray, contig_lengths: np.ndarray, bound: float, threads: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a row for each primary record of records that follow each other.

        Parameters
        ----------
        contig : numpy.ndarray
            int32. Index of the contig that each reference is.
        contig_lengths : numpy.ndarray
            int64. Bases of each contig.
        bound : float
            Mates are projected over distances below this, bases.
        threads : int
            Threads that parse.

        Returns
        -------
        rows : numpy.ndarray
            :data:`ROW`.
        kept : numpy.ndarray
            int64. Indices of the records that may become candidates, if what they say of their
            mates is right and whole.

        Raises
        ------
        AlignmentsError
            If a record is malformed.
        """
        first = int(self.number[0])
        rows, kept, bad, problem = _bam.record_rows(
            self.text, self.offsets, first, contig, contig_lengths, bound, threads
        )
        if bad >= 0:
            raise damaged(self.path, first + bad, f"record {first + bad + 1}: {problem}")
        return rows.view(ROW), kept

    def copy(self, index: np.ndarray) -> np.ndarray:
        """Return the bytes of the records of these indices, without their tags."""
        return _bam.copy_records(self.text, self.offsets, index)

    def bases(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return bases and qualities of some records.

        Parameters
        ----------
        index : numpy.ndarray
            int64. Their indices here.

        Returns
        -------
        text : numpy.ndarray
            uint8. Bases in ASCII and qualities from 0, as they are in the records.
        base_start, quality_start : numpy.ndarray
            int64. Where those of each record begin; a quality_start of -1: no qualities.
        length : numpy.ndarray
            int32. Bases of each record.
        """
        return _bam.record_bases(self.text, self.offsets, index)

    def name(self, index: int) -> str:
        """Return the name of a record."""
        at = int(self.offsets[index])
        begin = at + 36
        text = self.text[begin : begin + int(self.text[at + 12]) - 1]
        return text.tobytes().decode(errors="replace")


def records_of(path: Path, text: np.ndarray, number: np.ndarray) -> Records:
    """Return records of a file that lie one after another in ``text``."""
    return Records(path, text, _bam.record_offsets(text)[0], number)


class AlignmentsFile:
    """A BAM, SAM or CRAM file, which can be read more than once.

    Parameters
    ----------
    path : path-like
        The file.
    threads : int
        Threads that decompress.

    Attributes
    ----------
    references : tuple of str
        Names of the references, from the header.
    lengths : tuple of int
        Their lengths, bases.
    is_cram : bool
        Whether it is CRAM; then :attr:`reference` must be set before records are read.
    reference : Path or None
        FASTA file of the references, with an index (``.fai``).

    Raises
    ------
    AlignmentsError
        If the file is missing, truncated, or has no header that can be read.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 1) -> None:
        self.path = Path(path)
        self.threads = max(1, threads)
        self.reference: Path | None = None
        if self.path.is_dir():
            raise AlignmentsError(f"{self.path}: is a folder, not a BAM, SAM or CRAM file")
        if self.path.exists() and not self.path.is_file():
            raise AlignmentsError(
                f"{self.path}: is a pipe or device, and alignments are read twice; write them to a "
                "file first"
            )
        try:
            with open(self.path, "rb"):
                pass
        except OSError as error:
            raise AlignmentsError(f"{self.path}: cannot be read: {error.strerror}") from error
        try:
            with _quiet(), pysam.AlignmentFile(str(self.path), "r", check_sq=False) as header:
                if not (header.is_bam or header.is_sam or header.is_cram):
                    raise ValueError("it is something else")
                self.references: tuple[str, ...] = header.references
                self.lengths: tuple[int, ...] = header.lengths
                self.is_cram = bool(header.is_cram)
                # offset of a block in the file, and of the first record in the block
                self._start = None
                if header.is_bam and header.compression == "BGZF":
                    self._start = divmod(header.tell(), 1 << 16)
        except (OSError, ValueError, NotImplementedError) as error:
            raise AlignmentsError(
                f"{self.path}: cannot be read as BAM, SAM or CRAM: {error}; "
                "if it is truncated, make it again"
            ) from error

    def records(self) -> Iterator[Records]:
        """Read all records, some at a time.

        Raises
        ------
        AlignmentsError
            If the file is damaged, after all records before the damage.
        """
        first = 0
        rest = b""
        try:
            for piece in self._htslib() if self._start is None else self._blocks(*self._start):
                # htslib, whatever it writes, lets records end with a block
                text = np.frombuffer(rest + piece if rest else piece, dtype=np.uint8)
                offsets, malformed = _bam.record_offsets(text)
                before, first = first, first + len(offsets) - 1
                if first > before:
                    yield Records(self.path, text, offsets, np.arange(before, first))
                if malformed:
                    raise _DamagedError("the next one has a length that cannot be")
                rest = text[offsets[-1] :].tobytes()
            if rest:
                raise _DamagedError("the next one is cut short")
        except _DamagedError as problem:
            raise damaged(self.path, first, str(problem)) from problem

    def _blocks(self, begin: int, skip: int) -> Generator[bytes, None, None]:
        """Inflate the blocks from an offset in the file on, without the first bytes."""
        with open(self.path, "rb", buffering=0) as file:
            file.seek(begin)
            groups = in_order(_inflate, _groups(file), self.threads)
            try:
                for piece in groups:
                    yield piece[skip:]
                    skip -= min(skip, len(piece))
            finally:
                groups.close()  # no thread reads the file on

    def _htslib(self) -> Generator[np.ndarray, None, None]:
        """Read what is not in blocks of BAM through htslib."""
        reference = "" if self.reference is None else str(self.reference)
        library = str(pysam.libchtslib.__file__)
        with _quiet():
            try:
                reader = _bam.HtsReader(library, str(self.path), reference, self.threads)
            except RuntimeError as error:
                raise _DamagedError(str(error)) from error
            problem, more = "", True
            try:
                while more and not problem:
                    text, problem = reader.read(_GROUP)
                    more = len(text) > 0
                    if more:
                        yield text
            finally:
                closed = reader.close()
            if problem:
                raise _DamagedError(problem)
            if not closed:
                raise _DamagedError("the file does not end as it should")


def damaged(path: Path, records: int, problem: str) -> AlignmentsError:
    """Return the error for a file that cannot be read on after so many records."""
    return AlignmentsError(
        f"{path}: after {records} records: {problem}; the file is truncated or malformed, "
        "make it again"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep htslib from writing to the terminal: the error says it all."""
    verbosity = pysam.set_verbosity(0)
    try:
        yield
    finally:
        pysam.set_verbosity(verbosity)


def _groups(file: BinaryIO) -> Iterator[tuple[bytes, list[_Block]]]:
    """Read a BGZF file; give bytes and the whole blocks in them."""
    rest = b""
    while piece := file.read(_PIECE):
        data = rest + piece
        at = size = 0
        group: list[_Block] = []
        while (block := _block_at(data, at)) is not None:
            at = block[1] + _BLOCK_TAIL.size
            _, inflated = _BLOCK_TAIL.unpack_from(data, block[1])
            if inflated > _BLOCK_LIMIT:
                raise _DamagedError("a compressed block is too large")
            if group and size + inflated > _GROUP:
                yield data, group
                group, size = [], 0
            group.append(block)
            size += inflated
        if group:
            yield data, group
        rest = data[at:]
    if rest:
        raise _DamagedError("the file is cut short")


def _block_at(data: bytes, at: int) -> _Block | None:
    """Return what is compressed in the block at an offset; None if it is not whole."""
    if len(data) - at < _BLOCK_HEAD.size:
        return None
    magic, extra = _BLOCK_HEAD.unpack_from(data, at)
    if magic != _GZIP_WITH_EXTRA:
        raise _DamagedError("other data stand where a compressed block should")
    field = at + _BLOCK_HEAD.size
    begin = field + extra
    if begin > len(data):
        return None
    while field + 6 <= begin:
        if data[field : field + 4] == b"BC\x02\x00":
            end = at + int.from_bytes(data[field + 4 : field + 6], "little") + 1 - _BLOCK_TAIL.size
            if end < begin:
                break
            return (begin, end) if end + _BLOCK_TAIL.size <= len(data) else None
        field += 4 + int.from_bytes(data[field + 2 : field + 4], "little")
    raise _DamagedError("a compressed block does not say its size")


def _inflate(group: tuple[bytes, list[_Block]]) -> bytes:
    """Inflate blocks and compare their checksums."""
    data = memoryview(group[0])
    pieces = []
    for begin, end in group[1]:
        checksum, size = _BLOCK_TAIL.unpack_from(data, end)
        try:
            piece = isal_zlib.decompress(data[begin:end], -isal_zlib.MAX_WBITS, max(1, size))
        except isal_zlib.error as error:  # type: ignore[misc]  # its stub says an instance
            if is_want_of_memory(error):
                raise MemoryError(str(error)) from error
            raise _DamagedError(f"a compressed block is damaged ({error})") from error
        if len(piece) != size or isal_zlib.crc32(piece) != checksum:
            raise _DamagedError("a compressed block is damaged (other checksum)")
        pieces.append(piece)
    return b"".join(pieces)
