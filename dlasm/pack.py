"""A partition of contigs and their candidate reads as one compact host buffer.

The buffer holds every array of group ``packed`` (:mod:`dlasm.arrays`) at an offset that a GPU can
read directly, so an engine copies one block, whatever is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlasm.arrays import GROUPS
from dlasm.io.fasta import Contigs
from dlasm.kernels import _cpu
from dlasm.params import MAX_READS
from dlasm.runs import OVERHANG, CandidateRun

__all__ = ["PackedPartition", "count_candidates", "pack_partition", "packed_words_per_end"]

ALIGNMENT = 256
"""Bytes to whose multiples arrays are aligned; what ``cudaMalloc`` guarantees."""

TAIL_WORDS = 8
"""Words of a packed contig end: 128 bases, ``kTailWords`` in ``kernels/bases.cuh``."""

PADDING_WORDS = 2
"""Words after the last read, which 64-bit windows may look at (``window_at``)."""


@dataclass(frozen=True)
class PackedPartition:
    """Contig ends and reads in one buffer; the other attributes are views of it.

    Attributes
    ----------
    buffer : numpy.ndarray
        uint8, everything below one after another, each aligned to 256 bytes.
    contig, depth, tail, tail_length, clean_length, read_start, length, has_n, word_offset, words
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
    has_n: np.ndarray
    word_offset: np.ndarray
    words: np.ndarray


def allocate(contigs: int, reads: int, words: int) -> PackedPartition:
    """Make an uninitialised partition.

    Parameters
    ----------
    contigs, reads, words : int
        Number of contigs, of reads, and of words that the reads take.
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
    buffer = np.empty(total, dtype=np.uint8)
    views = {
        name: np.ndarray(shapes[name], np.dtype(spec.dtype), buffer, places[name])
        for name, spec in GROUPS["packed"].items()
    }
    return PackedPartition(buffer=buffer, **views)


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
        end = run.end[_within_reach(run, slice(None), reach)]
        counts += np.bincount(end, minlength=2 * n_contigs)
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
        keep = _within_reach(run, slice(None), reach)
        size = np.diff(run.word_offset)[keep]
        # float64 weights are exact up to 2^53 words
        words += np.bincount(run.end[keep], weights=size, minlength=2 * n_contigs).astype(np.int64)
    return words


def pack_partition(
    contig_index: np.ndarray,
    contigs: Contigs,
    runs: Sequence[CandidateRun],
    reach: Sequence[float],
    depth: np.ndarray,
    max_reads: int = MAX_READS,
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

    Returns
    -------
    PackedPartition
        The reads of an end in input order.
    """
    contig_index = np.ascontiguousarray(contig_index, dtype=np.int64)
    ends = (2 * contig_index[:, None] + np.arange(2)).ravel()
    rows, local_end, run_of = [], [], []
    for number, run in enumerate(runs):
        first = np.searchsorted(run.end, ends, side="left")
        count = np.searchsorted(run.end, ends, side="right") - first
        row = _ranges(first, count)
        keep = _within_reach(run, row, reach)
        rows.append(row[keep])
        local_end.append(np.repeat(np.arange(len(ends)), count)[keep])
        run_of.append(np.full(len(rows[-1]), number, dtype=np.int64))
    # stable, so that runs stay in input order within an end
    all_ends = np.concatenate(local_end) if runs else np.empty(0, dtype=np.int64)
    order = np.argsort(all_ends, kind="stable")
    all_ends = all_ends[order]
    rank = np.arange(len(order)) - np.searchsorted(all_ends, all_ends, side="left")
    order, all_ends = order[rank < max_reads], all_ends[rank < max_reads]
    place = np.full(len(rank), -1, dtype=np.int64)
    place[order] = np.arange(len(order))

    length = np.empty(len(order), dtype=np.int32)
    has_n = np.empty(len(order), dtype=np.uint8)
    size = np.empty(len(order), dtype=np.int64)
    begin = 0
    sources = []
    for run, row in zip(runs, rows, strict=True):
        target = place[begin : begin + len(row)]
        begin += len(row)
        row, target = row[target >= 0], target[target >= 0]
        length[target] = run.length[row]
        has_n[target] = run.has_n[row]
        start = run.word_offset[row]
        size[target] = run.word_offset[row + 1] - start
        sources.append((run, start, target))

    packed = allocate(len(contig_index), len(order), int(size.sum()))
    packed.word_offset[0] = 0
    np.cumsum(size, out=packed.word_offset[1:])
    for run, start, target in sources:
        _cpu.gather_words(run.words, start, size[target], packed.words, packed.word_offset[target])
    packed.words[len(packed.words) - PADDING_WORDS :] = 0
    packed.contig[:] = contig_index
    # a depth is finite and at least 0 by now; truncated and capped as algorithm section 1 says
    packed.depth[:] = np.minimum(np.trunc(depth[contig_index]), 2**31 - 1).astype(np.int32)
    packed.length[:] = length
    packed.has_n[:] = has_n
    packed.read_start[:] = np.searchsorted(all_ends, np.arange(len(ends) + 1), side="left")
    _cpu.pack_tails(
        contigs.bases,
        contigs.offsets,
        contig_index,
        packed.tail,
        packed.tail_length,
        packed.clean_length,
    )
    return packed


def _within_reach(
    run: CandidateRun, rows: slice | np.ndarray, reach: Sequence[float]
) -> np.ndarray:
    """Whether candidates count, now that the insert size is known; bool, a value per row."""
    distance = run.distance[rows]
    return (distance == OVERHANG) | (distance < reach[run.library])


def _ranges(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Concatenate ``arange(f, f + c)`` for each pair; int64."""
    starts = np.repeat(first - (np.cumsum(count) - count), count)
    return starts + np.arange(len(starts))
