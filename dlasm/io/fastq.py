"""Reads from FASTQ and FASTA: pairs of files, interleaved files, single reads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread

import numpy as np

import dlasm.io._parse as _parse
from dlasm.errors import ParameterError, ReadsError
from dlasm.io.streams import DamagedStreamError, TextStream
from dlasm.params import MIN_READ_LENGTH, PHRED_OFFSET

__all__ = ["BATCH_READS", "Library", "ReadBatch", "ReadCounts", "iter_batches"]

BATCH_READS = 32_768
"""Reads of a batch (mates count one each)."""

BATCHES_AHEAD = 2
"""Batches that are read while one is used."""

PIECE_BYTES = 256 << 10
"""Bytes decompressed and then parsed at a time: what stays in the cache."""

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
    position : int
        Bytes of the files of the library, compressed as they are, that were read until then; 0 if
        that is not known.
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
    position: int = 0

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


@dataclass(frozen=True)
class _Take:
    """Some records of a file."""

    text: np.ndarray  # the buffer that was given, or a larger one
    used: int
    rows: list[np.ndarray]
    counts: dict[str, int]
    position: int  # in the file


class _ReadFile:
    """One file of reads, taken a fixed number of records at a time by a thread of its own.

    The thread decompresses into the buffer that the records stay in and parses what it has just
    written, so a byte is copied once and parsed while it is in the cache.
    """

    def __init__(self, path: str, phred_offset: int, piece_bytes: int) -> None:
        self.path = path
        self.parser = _parse.ReadParser(phred_offset, MIN_READ_LENGTH)
        self.capacity = 2 * piece_bytes  # later as much as records needed
        self._piece_bytes = piece_bytes
        self._stream = TextStream(path, ReadsError)
        self._rest = np.empty(0, dtype=np.uint8)
        self._final = False
        self._damage: DamagedStreamError | None = None
        self._asked: SimpleQueue[tuple[Future[_Take], int, np.ndarray] | None] = SimpleQueue()
        # not an executor's thread: a pipe that nobody writes to must not keep the process alive
        self._thread = Thread(target=self._serve, name="dlasm-read", daemon=True)
        self._thread.start()

    def ask(self, count: int, buffer: np.ndarray) -> Future[_Take]:
        """Let the thread take the next ``count`` records, fewer at the end, into ``buffer``."""
        answer: Future[_Take] = Future()
        self._asked.put((answer, count, buffer))
        return answer

    def count_rest(self) -> int:
        """Read to the end; return the number of records in the file."""
        buffer = np.empty(self.capacity, dtype=np.uint8)
        while len(self.ask(BATCH_READS, buffer).result().rows[0]):
            pass
        return self.parser.records

    def close(self) -> None:
        """End the thread and close the file."""
        self._asked.put(None)
        self._thread.join(timeout=1)
        if not self._thread.is_alive():  # else it waits for a pipe that nobody writes to
            self._stream.close()

    def _serve(self) -> None:
        failed: BaseException | None = None
        while (asked := self._asked.get()) is not None:
            answer, count, buffer = asked
            try:
                if failed is not None:  # what follows a fault is not told
                    raise failed
                answer.set_result(self._take(count, buffer))
            except BaseException as problem:
                failed = problem
                answer.set_exception(problem)

    def _take(self, count: int, buffer: np.ndarray) -> _Take:
        rows = [np.empty(count, dtype=dtype) for dtype in _ROW_TYPES]
        filled = len(self._rest)
        if filled > len(buffer):
            buffer = np.empty(filled + self._piece_bytes, dtype=np.uint8)
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
            if filled == len(buffer):
                buffer = np.concatenate([buffer, np.empty_like(buffer, shape=(filled + 1,))])
            filled += self._read(buffer[filled : filled + self._piece_bytes])
        self._rest = buffer[used:filled].copy()
        self.capacity = max(self.capacity, filled + filled // 8 + self._piece_bytes)
        rows = [values[:row] for values in rows]
        return _Take(buffer, used, rows, self.parser.take_counts(), self._stream.position())

    def _read(self, buffer: np.ndarray) -> int:
        """Fill the start of ``buffer`` with text; 0 bytes at the end or before a fault."""
        filled = 0
        try:
            while filled < len(buffer):
                got = self._stream.readinto(buffer.data[filled:])
                if not got:
                    self._final = True
                    break
                filled += got
        except DamagedStreamError as problem:  # what came before it is still good
            self._damage = problem
        return filled

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
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[ReadBatch]:
    """Read a library batch by batch.

    FASTQ (records of four lines) or FASTA, told by the first character, and plain, gzip, bzip2,
    zstd or xz, told by the first bytes. Names of mates must be the same but for ``/1 /2``,
    ``_1 _2`` or ``.1 .2`` at the end of the first word; the Casava 1.8 part after it is not looked
    at. Each file is decompressed and parsed by a thread of its own, a batch ahead; memory is
    bounded by three batches.

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
    piece_bytes : int
        Bytes decompressed and then parsed at a time; does not change the batches.

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
            file = _ReadFile(os.fspath(path), phred_offset, piece_bytes)
            stack.callback(file.close)
            files.append(file)
        if library.kind == "pairs":
            _refuse_same_file(files)
        of_each = batch_reads // len(files)
        asked: deque[list[Future[_Take]]] = deque()
        first = 0
        while True:
            while len(asked) < BATCHES_AHEAD:
                asked.append(_ask(files, of_each))
            taken = [answer.result() for answer in asked.popleft()]
            for take in taken:
                counts.add(take.counts)
            batch = _batch(files, library, taken, first)
            if not len(batch):
                break
            if batch.paired:
                counts.unequal_mates += int(
                    np.count_nonzero(batch.length[0::2] != batch.length[1::2])
                )
            yield batch
            first += len(batch) * (1 if batch.paired else 2)
            del batch, taken
        for answers in asked:  # nothing is left; the threads must be done with the files
            for answer in answers:
                answer.result()
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


def _ask(files: list[_ReadFile], count: int) -> list[Future[_Take]]:
    """Let every file take its next records into its part of a new buffer."""
    buffer = np.empty(sum(file.capacity for file in files), dtype=np.uint8)
    parts = np.split(buffer, np.cumsum([file.capacity for file in files])[:-1])
    return [file.ask(count, part) for file, part in zip(files, parts, strict=True)]


def _batch(files: list[_ReadFile], library: Library, taken: list[_Take], first: int) -> ReadBatch:
    """Make a batch of what was taken from the files of a library."""
    if library.kind == "pairs":
        text, rows = _mates_in_turn(taken)
    else:
        text, rows = taken[0].text[: taken[0].used], taken[0].rows
    base_start, quality_start, length, name_start, name_length = rows
    batch = ReadBatch(
        text=text,
        base_start=base_start,
        quality_start=quality_start,
        length=length,
        name_start=name_start,
        name_length=name_length,
        mate_suffix_length=np.zeros(len(length), dtype=np.int32),
        first=first,
        paired=library.paired,
        position=sum(take.position for take in taken),
    )
    if library.kind == "interleaved" and len(batch) % 2:
        raise ReadsError(
            f"{files[0].path}: holds {first + len(batch)} reads, an odd number, so the last, "
            f"{batch.name(len(batch) - 1)}, has no mate; use --single if these are not interleaved "
            "pairs"
        )
    if library.paired:
        _match_mates(files, batch)
    if library.kind == "pairs" and len(taken[0].rows[0]) != len(taken[1].rows[0]):
        total_1, total_2 = (file.count_rest() for file in files)
        raise ReadsError(
            f"{files[0].path} holds {total_1} reads but {files[1].path} {total_2}; mates must "
            "stand at the same place in both files, so one of them is incomplete or they were "
            "filtered separately: get them again or bring them back in step (e.g. repair.sh of "
            "BBTools, or seqkit pair)"
        )
    return batch


def _mates_in_turn(taken: list[_Take]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the text and rows of pairs, of which two files hold a mate each."""
    one, two = taken
    buffer = one.text.base
    if buffer is not None and buffer is two.text.base:  # that which was made for both
        shift = len(one.text)
        text = buffer[: shift + two.used]
    else:
        text = np.concatenate([one.text[: one.used], two.text[: two.used]])
        shift = one.used
    both = min(len(one.rows[0]), len(two.rows[0]))
    rows = []
    for column, (mates_1, mates_2) in enumerate(zip(one.rows, two.rows, strict=True)):
        values = np.empty(2 * both, dtype=mates_1.dtype)
        values[0::2] = mates_1[:both]
        values[1::2] = mates_2[:both]
        if column in _PLACES:
            values[1::2] += (values[1::2] >= 0) * shift
        rows.append(values)
    return text, rows


def _match_mates(files: list[_ReadFile], batch: ReadBatch) -> None:
    """Require that mates have the same name; note the suffixes in which names differ."""
    pair = _parse.match_mates(
        batch.text, batch.name_start, batch.name_length, batch.mate_suffix_length
    )
    if pair < 0:
        return
    names = [batch.name(2 * pair + mate) for mate in (0, 1)]
    where = [f"{name} in {file.path}" for name, file in zip(names, files, strict=False)]
    if len(files) == 1:
        where = [f"{names[0]} and then {names[1]} in {files[0].path}"]
    raise ReadsError(
        f"mates are out of step: pair {batch.first // 2 + pair + 1} is {' but '.join(where)}; "
        "were the mates filtered separately? Bring them back in step (e.g. repair.sh of "
        "BBTools, or seqkit pair), or use --single"
    )
