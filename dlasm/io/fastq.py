"""Reads from FASTQ and FASTA: pairs of files, interleaved files, single reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

import dlasm.io._parse as _parse
from dlasm.errors import ParameterError, ReadsError
from dlasm.io.streams import BLOCK_BYTES, BlockReader, DamagedStreamError
from dlasm.params import MIN_READ_LENGTH, PHRED_OFFSET

__all__ = ["BATCH_READS", "Library", "ReadBatch", "ReadCounts", "iter_batches"]

BATCH_READS = 32_768
"""Reads of a batch (mates count one each)."""

_KINDS = {"pairs": 2, "interleaved": 1, "single": 1}

# Qualities look like phred 64 if, among this many or more, none is below ';' (the lowest that any
# phred 64 or Solexa pipeline wrote) and some are above 'J' (the highest of Illumina's phred 33).
_PHRED64_QUALITIES = 10_000
_PHRED64_LOWEST = 59
_PHRED33_HIGHEST = 74


@dataclass(frozen=True)
class Library:
    """Where the reads of one library are.

    Parameters
    ----------
    kind : str
        ``pairs`` (two files, mates at the same place in both), ``interleaved`` (one file, mates one
        after the other) or ``single``.
    paths : tuple of str
        Two files for ``pairs``, otherwise one.
    index : int
        Number of the library.

    Raises
    ------
    ParameterError
        If the kind is unknown or the number of files does not fit it.
    """

    kind: str
    paths: tuple[str, ...]
    index: int = 0

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ParameterError(f"library kind is {self.kind!r}; it must be one of {list(_KINDS)}")
        if len(self.paths) != _KINDS[self.kind]:
            raise ParameterError(
                f"a library of kind {self.kind} has {_KINDS[self.kind]} file(s), "
                f"not {len(self.paths)}"
            )

    @property
    def paired(self) -> bool:
        """Whether its reads have mates."""
        return self.kind != "single"


@dataclass
class ReadCounts:
    """What was found among the reads; grows as they are read.

    Attributes
    ----------
    reads, bases : int
        All reads and their bases.
    empty, short : int
        Reads without bases; reads of fewer than 22 bases, the empty ones too, which cannot vote.
    with_n, with_iupac, lower_case : int
        Reads that hold N (or ``.``), another ambiguity code, a lower-case letter.
    crlf, blank_lines : int
        Records with CRLF line ends; blank lines at the end of files.
    unequal_mates : int
        Pairs whose mates differ in length.
    empty_files : int
        Files without any read.
    warnings : list of str
        What the user should be told.
    """

    reads: int = 0
    bases: int = 0
    empty: int = 0
    short: int = 0
    with_n: int = 0
    with_iupac: int = 0
    lower_case: int = 0
    crlf: int = 0
    blank_lines: int = 0
    unequal_mates: int = 0
    empty_files: int = 0
    warnings: list[str] = field(default_factory=list)

    def add(self, other: ReadCounts | dict[str, int]) -> None:
        """Add the counts, and the warnings not yet here, of ``other``."""
        if isinstance(other, ReadCounts):
            self.warnings += [text for text in other.warnings if text not in self.warnings]
            other = {name: value for name, value in vars(other).items() if name != "warnings"}
        for name, value in other.items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class ReadBatch:
    """Some reads of a library as places in a text; a row per read, mates in adjacent rows.

    Attributes
    ----------
    text : numpy.ndarray
        uint8. What all places below point into; every quality character is from the phred offset
        to 126.
    base_start : numpy.ndarray
        int64, shape (reads,). Where the bases begin.
    quality_start : numpy.ndarray
        int64, shape (reads,). Where the qualities begin; -1 for reads of FASTA.
    length : numpy.ndarray
        int32, shape (reads,). Bases.
    name_start : numpy.ndarray
        int64, shape (reads,). Where the name begins: the first word of the header.
    name_length : numpy.ndarray
        int32, shape (reads,). Bytes of the name, the mate suffix included.
    mate_suffix_length : numpy.ndarray
        int32, shape (reads,). Bytes of the mate suffix (``/1``, ``_1``, ``.1``) in which the names
        of two mates differ; 0 where they do not.
    first : int
        Ordinal of the first read in its library: ``2 * pair + mate``, or ``2 * read`` for single
        reads.
    paired : bool
        Whether rows ``2i`` and ``2i + 1`` are mates.
    """

    text: np.ndarray
    base_start: np.ndarray
    quality_start: np.ndarray
    length: np.ndarray
    name_start: np.ndarray
    name_length: np.ndarray
    mate_suffix_length: np.ndarray
    first: int
    paired: bool

    def __len__(self) -> int:
        return len(self.length)

    def name(self, i: int) -> str:
        """Return the name of read ``i`` of the batch, for messages."""
        begin = self.name_start[i]
        name = self.text[begin : begin + self.name_length[i]]
        return name.tobytes().decode(errors="backslashreplace")


_ROW_TYPES = (np.int64, np.int64, np.int32, np.int64, np.int32)
"""Types of base start, quality start, length, name start and name length."""

_PLACES = (0, 1, 3)
"""Which of those are places in the text."""


class _ReadFile:
    """One file of reads, taken a fixed number of records at a time."""

    def __init__(self, path: str, phred_offset: int, block_bytes: int) -> None:
        self.path = path
        self.parser = _parse.ReadParser(phred_offset, MIN_READ_LENGTH)
        self._block_bytes = block_bytes
        self.reader = BlockReader(path, ReadsError, block_bytes)
        self._rest = np.empty(0, dtype=np.uint8)
        self._capacity = 2 * block_bytes
        self._final = False
        self._damage: DamagedStreamError | None = None

    def take(self, count: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the text and the rows of the next ``count`` records, fewer at the end."""
        rows = [np.empty(count, dtype=dtype) for dtype in _ROW_TYPES]
        buffer = np.empty(max(self._capacity, len(self._rest)), dtype=np.uint8)
        filled = len(self._rest)
        buffer[:filled] = self._rest
        used = row = 0
        while True:
            try:
                used, row = self.parser.parse(buffer, used, filled, self._final, *rows, row)
            except _parse.ParseError as problem:
                raise ReadsError(f"{self.path}: {problem}") from None
            if row == count or self._final:
                break
            if self._damage:
                raise self._damaged(self._damage)
            block = self._next_block()
            if block is not None:
                if filled + len(block) > len(buffer):
                    buffer = np.concatenate([buffer[:filled], np.empty_like(buffer)])
                buffer[filled : filled + len(block)] = block
                filled += len(block)
        self._rest = buffer[used:filled].copy()
        self._capacity = max(self._capacity, filled + filled // 8 + self._block_bytes)
        return buffer[:used], [values[:row] for values in rows]

    def count_rest(self) -> int:
        """Read to the end; return the number of records in the file."""
        while len(self.take(BATCH_READS)[1][0]):
            pass
        return self.parser.records

    def _next_block(self) -> np.ndarray | None:
        try:
            block = self.reader.read()
        except DamagedStreamError as problem:
            self._damage = problem
            return None
        if block is None:
            self._final = True
        return block

    def _damaged(self, problem: DamagedStreamError) -> ReadsError:
        number = self.parser.records
        last = (
            f"the last whole record is number {number} ({self.parser.last_name})"
            if number
            else "it holds no whole record"
        )
        return ReadsError(f"{self.path}: {problem}; {last}; get the file again")


def iter_batches(
    library: Library,
    *,
    counts: ReadCounts,
    phred_offset: int = PHRED_OFFSET,
    batch_reads: int = BATCH_READS,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[ReadBatch]:
    """Read a library batch by batch.

    FASTQ (records of four lines) or FASTA, told by the first character, and plain, gzip, bzip2,
    zstd or xz, told by the first bytes. Names of mates must be the same but for ``/1 /2``,
    ``_1 _2`` or ``.1 .2`` at the end of the first word; the Casava 1.8 part after it is not looked
    at. Memory is bounded by the batch.

    Parameters
    ----------
    library : Library
        What to read.
    counts : ReadCounts
        Grows by what is found; its warnings are complete after the last batch.
    phred_offset : int
        ASCII code of quality 0.
    batch_reads : int
        Reads of every batch but the last; even for pairs.
    block_bytes : int
        Bytes read at a time; does not change the batches.

    Yields
    ------
    ReadBatch
        At least one read each.

    Raises
    ------
    ReadsError
        If a file is missing, a directory, not readable, cut short or damaged; a record is not
        FASTQ or FASTA, has no name, another number of qualities than bases, or a character that
        cannot be; mates have different names, or files different numbers of records.
    ParameterError
        If ``batch_reads`` is not positive, or odd for a paired library.
    """
    if batch_reads < 1 or (library.paired and batch_reads % 2):
        raise ParameterError(
            f"batch_reads is {batch_reads}; it must be positive, and even for pairs"
        )
    with ExitStack() as stack:
        files = []
        for path in library.paths:
            file = _ReadFile(os.fspath(path), phred_offset, block_bytes)
            stack.callback(file.reader.close)
            files.append(file)
        if library.kind == "pairs":
            _refuse_same_file(files)
        first = 0
        while True:
            batch = (_take_pairs if library.kind == "pairs" else _take_one)(
                files, library, first, batch_reads
            )
            for file in files:
                counts.add(file.parser.take_counts())
            if not len(batch):
                break
            if batch.paired:
                counts.unequal_mates += int(
                    np.count_nonzero(batch.length[0::2] != batch.length[1::2])
                )
            yield batch
            first += len(batch) * (1 if batch.paired else 2)
    for file in files:
        counts.empty_files += file.parser.records == 0
        if warning := _phred64_warning(file, phred_offset):
            counts.add(ReadCounts(warnings=[warning]))


def _refuse_same_file(files: list[_ReadFile]) -> None:
    first, second = (file.path for file in files)
    if os.path.isfile(first) and os.path.samefile(first, second):
        raise ReadsError(
            f"{first} and {second} are the same file; give the file of the second mates, or use "
            "--interleaved if it holds both"
        )


def _phred64_warning(file: _ReadFile, phred_offset: int) -> str | None:
    parser = file.parser
    if (
        phred_offset == PHRED_OFFSET
        and parser.qualities >= _PHRED64_QUALITIES
        and parser.lowest_quality >= _PHRED64_LOWEST
        and parser.highest_quality > _PHRED33_HIGHEST
    ):
        return (
            f"{file.path}: qualities look like phred 64 (from {chr(parser.lowest_quality)!r} to "
            f"{chr(parser.highest_quality)!r}); use --phred 64"
        )
    return None


def _take_one(files: list[_ReadFile], library: Library, first: int, batch_reads: int) -> ReadBatch:
    """Take the next reads of an interleaved or single library."""
    text, rows = files[0].take(batch_reads)
    count = len(rows[0])
    if library.paired and count % 2:
        name = _name(text, rows, count - 1)
        raise ReadsError(
            f"{files[0].path}: holds {first + count} reads, an odd number, so the last, {name}, "
            "has no mate; use --single if these are not interleaved pairs"
        )
    return _batch(files, library, text, rows, first)


def _take_pairs(
    files: list[_ReadFile], library: Library, first: int, batch_reads: int
) -> ReadBatch:
    """Take the next pairs of two files, in step."""
    (text_1, rows_1), (text_2, rows_2) = (file.take(batch_reads // 2) for file in files)
    both = min(len(rows_1[0]), len(rows_2[0]))
    rows = []
    for column, (mates_1, mates_2) in enumerate(zip(rows_1, rows_2, strict=True)):
        values = np.empty(2 * both, dtype=mates_1.dtype)
        values[0::2] = mates_1[:both]
        values[1::2] = mates_2[:both]
        if column in _PLACES:
            values[1::2] += (values[1::2] >= 0) * len(text_1)
        rows.append(values)
    batch = _batch(files, library, np.concatenate([text_1, text_2]), rows, first)
    if len(rows_1[0]) != len(rows_2[0]):
        total_1, total_2 = (file.count_rest() for file in files)
        raise ReadsError(
            f"{files[0].path} holds {total_1} reads but {files[1].path} {total_2}; mates must "
            "stand at the same place in both files, so one of them is incomplete or they were "
            "filtered separately: get them again or bring them back in step (e.g. repair.sh of "
            "BBTools, or seqkit pair)"
        )
    return batch


def _batch(
    files: list[_ReadFile],
    library: Library,
    text: np.ndarray,
    rows: list[np.ndarray],
    first: int,
) -> ReadBatch:
    """Make a batch, checking that mates have the same name."""
    base_start, quality_start, length, name_start, name_length = rows
    mate_suffix_length = np.zeros(len(length), dtype=np.int32)
    if library.paired:
        pair = _parse.match_mates(text, name_start, name_length, mate_suffix_length)
        if pair >= 0:
            names = [_name(text, rows, 2 * pair + mate) for mate in (0, 1)]
            where = [f"{name} in {file.path}" for name, file in zip(names, files, strict=False)]
            if len(files) == 1:
                where = [f"{names[0]} and then {names[1]} in {files[0].path}"]
            raise ReadsError(
                f"mates are out of step: pair {first // 2 + pair + 1} is {' but '.join(where)}; "
                "were the mates filtered separately? Bring them back in step (e.g. repair.sh of "
                "BBTools, or seqkit pair), or use --single"
            )
    return ReadBatch(
        text,
        base_start,
        quality_start,
        length,
        name_start,
        name_length,
        mate_suffix_length,
        first,
        library.paired,
    )


def _name(text: np.ndarray, rows: list[np.ndarray], row: int) -> str:
    begin = rows[3][row]
    return text[begin : begin + rows[4][row]].tobytes().decode(errors="backslashreplace")
