"""MetaHipMer2 candidate dumps: contigs with the reads of their ends, a line per contig."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

import dlasm.io._parse as _parse
from dlasm.errors import CandidatesError
from dlasm.io.fasta import Contigs
from dlasm.io.streams import BLOCK_BYTES, BlockReader, DamagedStreamError
from dlasm.params import HIGH_QUALITY, LOW_QUALITY, PHRED_OFFSET
from dlasm.runs import OVERHANG, CandidateRun, fragment_ids

__all__ = ["CHUNK_BYTES", "DumpChunk", "iter_dump"]

CHUNK_BYTES = 64 << 20
"""Bytes of a dump that become one chunk."""


@dataclass(frozen=True)
class DumpChunk:
    """The contigs of some lines of a dump and all of their candidate reads.

    Attributes
    ----------
    contigs : Contigs
        The contigs of these lines, in input order; ``depth_source`` is ``dump``.
    run : CandidateRun
        All of their reads, whatever their number; ``end`` counts contigs from the start of the
        file, ``distance`` is :data:`~dlasm.runs.OVERHANG`, ``library`` is 0, and every read is a
        fragment of its own.
    first : int
        Number of the first of these contigs in the file.
    """

    contigs: Contigs
    run: CandidateRun
    first: int


def iter_dump(
    path: str | os.PathLike[str],
    *,
    phred_offset: int = PHRED_OFFSET,
    chunk_bytes: int = CHUNK_BYTES,
    threads: int = 1,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[DumpChunk]:
    """Read a candidate dump chunk by chunk.

    A line is ``id sequence depth n_left n_right``, then ``read_id bases qualities`` for each left
    and then for each right read, separated by blanks; LF or CRLF; plain, gzip, bzip2, zstd or xz.
    Reads are taken as they stand, in the orientation of algorithm section 1.

    Parameters
    ----------
    path : path-like
        The dump.
    phred_offset : int
        ASCII code of quality 0.
    chunk_bytes : int
        Least bytes of text of each chunk but the last; memory is a small multiple of it, or of the
        longest line.
    threads : int
        Threads that parse and pack.
    block_bytes : int
        Bytes read at a time.

    Yields
    ------
    DumpChunk
        At least one contig each; the boundaries depend on the two sizes only.

    Raises
    ------
    CandidatesError
        If the file is missing, a directory, not readable, cut short or damaged; a line has fewer
        or more fields than it promises, counts or a depth that are no numbers, an empty read,
        bases and qualities of different length, a quality or base character that cannot be; an id
        is used twice; or a blank line stands between contigs. Names the file, line and contig.
    """
    path = os.fspath(path)
    parser = _parse.DumpParser(phred_offset, LOW_QUALITY, HIGH_QUALITY)
    buffer = np.empty(chunk_bytes + block_bytes, dtype=np.uint8)
    filled = 0
    wanted = chunk_bytes
    final = False
    reads = 0
    # while a chunk is parsed, which takes as long, all of the next one is read
    ahead = max(2, chunk_bytes // block_bytes)
    with BlockReader(path, CandidatesError, block_bytes, ahead) as reader:
        while not final:
            try:
                while not final and filled < wanted:
                    block = reader.read()
                    if block is None:
                        final = True
                        break
                    if filled + len(block) > len(buffer):
                        buffer = np.concatenate([buffer[:filled], np.empty_like(buffer)])
                    buffer[filled : filled + len(block)] = block
                    filled += len(block)
            except DamagedStreamError as problem:
                _parse_chunk(path, parser, buffer, filled, False, threads)  # counts whole lines
                raise CandidatesError(
                    f"{path}: {problem} after line {parser.lines}; get it again"
                ) from problem
            chunk, used = _parse_chunk(path, parser, buffer, filled, final, threads, reads)
            reads += len(chunk.run.end)
            # a line longer than what is there: read on until it ends
            wanted = chunk_bytes if used else 2 * filled
            filled -= used
            buffer[:filled] = buffer[used : used + filled].copy()
            if len(chunk.contigs):
                yield chunk


def _parse_chunk(
    path: str,
    parser: _parse.DumpParser,
    buffer: np.ndarray,
    filled: int,
    final: bool,
    threads: int,
    reads: int = 0,
) -> tuple[DumpChunk, int]:
    """Parse the whole lines at the start of the buffer, before which there were so many reads.

    Also return the bytes that these lines took.
    """
    first = parser.contigs
    try:
        (
            used,
            bases,
            offsets,
            name_values,
            name_offsets,
            depth,
            end,
            length,
            has_n,
            word_offset,
            words,
            lower_case,
            unknown,
            ambiguous,
        ) = parser.parse(buffer, filled, final, threads)
    except _parse.ParseError as problem:
        raise CandidatesError(f"{path}: {problem}") from None
    counts = {"lower_case_bases": lower_case, "n_bases": unknown, "iupac_bases": ambiguous}
    contigs = Contigs(bases, offsets, name_values, name_offsets, depth, "dump", counts)
    distance = np.full(len(end), OVERHANG, dtype=np.int32)
    # the ids of reads are not looked at, so mates are not known
    fragment = fragment_ids(0, np.arange(reads, reads + len(end), dtype=np.int64))
    run = CandidateRun(end, distance, length, fragment, has_n, word_offset, words, library=0)
    return DumpChunk(contigs, run, first), used
