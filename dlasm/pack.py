"""A partition of contigs and their candidate reads as one compact host buffer.

The buffer holds every array of group ``packed`` (:mod:`dlasm.arrays`) at an offset that a GPU can
read directly, so an engine copies one block, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dlasm.arrays import GROUPS
from dlasm.kernels import _cpu
from dlasm.params import MAX_READS
from dlasm.runs import CandidateRun

if TYPE_CHECKING:
    from dlasm.io.fasta import Contigs

__all__ = ["PackedPartition", "count_candidates", "pack_partition", "packed_words_per_end"]

ALIGNMENT = 256
"""Bytes to whose multiples arrays are aligned; what ``cudaMalloc`` guarantees."""

BASES_PER_WORD = 16
"""Bases in a packed 32-bit word, ``kBasesPerWord`` in ``kernels/bases.cuh``."""

PADDING_WORDS = 2
"""Words after the last read, which 64-bit windows may look at (``window_at``)."""


@dataclass(frozen=True)
class PackedPartition:
    """Contig ends and reads in one buffer; the other attributes are views of it.

    Attributes
    ----------
    buffer : numpy.ndarray
        uint8, everything below one after another, each aligned to 256 bytes.
    contig, depth, tail, tail_length, clean_length, read_start, length, fragment, has_n, \
word_offset, words
        As in group ``packed`` of :mod:`dlasm.arrays`.
    """

    buffer: np.ndarray
    contig: np.ndarray
    depth: np.ndarray
    tail: np.ndarray
    tail_length: np.ndarray
    clean_length: np.ndarray
    read_start: np.ndarray
    length: np.ndarray
    fragment: np.ndarray
    has_n: np.ndarray
    word_offset: np.ndarray
    words: np.ndarray


def new_buffer(size: int) -> np.ndarray:
    """Allocate host memory; uint8, shape (size,)."""
    return np.empty(size, dtype=np.uint8)


def allocate(
    contigs: int,
    reads: int,
    words: int,
    buffer: Callable[[int], np.ndarray] = new_buffer,
) -> PackedPartition:
    """Make an uninitialised partition.

    Parameters
    ----------
    contigs, reads, words : int
        Number of contigs, of reads, and of words that the reads take.
    buffer : callable
        Allocates so many bytes; uint8.
    """
    sizes = {"contigs": contigs, "ends": 2 * contigs, "reads": reads, "words": words}
    sizes["words"] += PADDING_WORDS
    shapes: dict[str, tuple[int, ...]] = {}
    places: dict[str, int] = {}
    total = 0
    for name, spec in GROUPS["packed"].items():
        shape = []
        for dim in spec.dims:
            base, _, extra = dim.partition("+")
            shape.append(int(base) if base.isdigit() else sizes[base] + int(extra or 0))
        shapes[name] = tuple(shape)
        places[name] = total
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        total += -(-size // ALIGNMENT) * ALIGNMENT
    memory = buffer(total)
    views = {
        name: np.ndarray(shapes[name], np.dtype(spec.dtype), memory, places[name])
        for name, spec in GROUPS["packed"].items()
    }
    return PackedPartition(buffer=memory, **views)


def count_candidates(
    runs: Sequence[CandidateRun], reach: Sequence[float], n_contigs: int
) -> np.ndarray:
    """Count the candidate reads of every contig end, before the cap.

    Parameters
    ----------
    runs : sequence of CandidateRun
        All runs.
    reach : sequence of float
        Per library, the distance under which a mate projects, bases (insert mean + 3 sd).
    n_contigs : int
        Number of contigs.

    Returns
    -------
    numpy.ndarray
        int64, shape (2 * n_contigs,).
    """
    counts = np.zeros(2 * n_contigs, dtype=np.int64)
    for run in runs:
        end, first = _groups(run.end[_within_reach(run, reach)])
        counts[end] += np.diff(first)
    return counts


def packed_words_per_end(
    runs: Sequence[CandidateRun], reach: Sequence[float], n_contigs: int
) -> np.ndarray:
    """Sum the packed words of the candidate reads of every contig end, before the cap.

    Parameters
    ----------
    runs, reach, n_contigs
        As in :func:`count_candidates`.

    Returns
    -------
    numpy.ndarray
        int64, shape (2 * n_contigs,).
    """
    words = np.zeros(2 * n_contigs, dtype=np.int64)
    for run in runs:
        keep = _within_reach(run, reach)
        end, first = _groups(run.end[keep])
        words[end] += np.diff(_offsets(np.diff(run.word_offset)[keep])[first])
    return words


def pack_partition(
    contig_index: np.ndarray,
    contigs: Contigs,
    runs: Sequence[CandidateRun],
    reach: Sequence[float],
    depth: np.ndarray,
    max_reads: int = MAX_READS,
    candidates: np.ndarray | None = None,
    buffer: Callable[[int], np.ndarray] = new_buffer,
) -> PackedPartition:
    """Gather the ends of some contigs and their candidate reads.

    Parameters
    ----------
    contig_index : numpy.ndarray
        int64, shape (contigs,), ascending: the contigs to pack.
    contigs : Contigs
        All contigs.
    runs : sequence of CandidateRun
        All runs, in input order.
    reach : sequence of float
        Per library, the distance under which a mate projects, bases.
    depth : numpy.ndarray
        float64, shape of all contigs: mean read coverage.
    max_reads : int
        Candidate reads used per end, the first ones.
    candidates : numpy.ndarray, optional
        int64, shape (2 * all contigs,), from :func:`count_candidates`; counted again by default.
    buffer : callable
        Allocates the memory to pack into, as an engine likes it best.

    Returns
    -------
    PackedPartition
        The reads of an end in input order.
    """
    contig_index = np.ascontiguousarray(contig_index, dtype=np.int64)
    ends = (2 * contig_index[:, None] + np.arange(2)).ravel()
    if candidates is not None:
        count = candidates[ends]
    else:
        count = np.zeros(len(ends), dtype=np.int64)
        for run in runs:
            _cpu.count_candidates(run.end, run.distance, reach[run.library], ends, count)
    read_start = _offsets(np.minimum(count, max_reads))

    length = np.empty(read_start[-1], dtype=np.int32)
    fragment = np.empty(read_start[-1], dtype=np.int64)
    has_n = np.empty(read_start[-1], dtype=np.uint8)
    following = read_start[:-1].copy()
    for run in runs:
        _cpu.merge_reads(
            run.end,
            run.distance,
            reach[run.library],
            ends,
            run.length,
            run.fragment,
            run.has_n,
            read_start,
            following,
            length,
            fragment,
            has_n,
        )
    word_offset = _offsets(2 * -(-length.astype(np.int64) // BASES_PER_WORD))

    packed = allocate(len(contig_index), len(length), int(word_offset[-1]), buffer)
    packed.read_start[:] = read_start
    packed.length[:] = length
    packed.fragment[:] = fragment
    packed.has_n[:] = has_n
    packed.word_offset[:] = word_offset
    following[:] = read_start[:-1]
    for run in runs:
        _cpu.merge_words(
            run.end,
            run.distance,
            reach[run.library],
            ends,
            run.word_offset,
            run.words,
            read_start,
            following,
            packed.word_offset,
            packed.words,
        )
    packed.words[len(packed.words) - PADDING_WORDS :] = 0
    packed.contig[:] = contig_index
    # a depth is finite and at least 0 by now; truncated and capped as algorithm section 1 says
    packed.depth[:] = np.minimum(np.trunc(depth[contig_index]), 2**31 - 1).astype(np.int32)
    _cpu.pack_tails(
        contigs.bases,
        contigs.offsets,
        contig_index,
        packed.tail,
        packed.tail_length,
        packed.clean_length,
    )
    return packed


def _within_reach(run: CandidateRun, reach: Sequence[float]) -> np.ndarray:
    """Whether candidates count, now that the insert size is known; bool, a value per candidate."""
    return run.distance < reach[run.library]  # overhanging reads have distance -1


def _groups(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different values of ascending ends, where each begins, and the end of the last.

    What is done per run must not cost time per contig: there are many of both.
    """
    first = np.flatnonzero(np.diff(ends, prepend=-1))
    return ends[first], np.append(first, len(ends))


def _offsets(sizes: np.ndarray) -> np.ndarray:
    """Where each piece of these sizes begins, and the end of the last; int64."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
