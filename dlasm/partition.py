"""Bins of contigs and partitions of balanced work (Awan et al. SC'21, section 3.1).

A partition is a piece of one bin: consecutive contigs of that bin in input order. Contigs of bin 1
have no candidate reads and are in no partition. How a run is partitioned never changes its result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlasm.params import BIN_LIMIT, MAX_READS, PARTITION_BYTES

__all__ = ["Plan", "assign_bins", "plan_partitions"]

GRADES = 5
"""Sizes of pieces where CPUs and GPUs share a bin, each half of the one before."""

END_BYTES = 64
"""Work of an end beside its reads, as packed bytes: its tail, offsets and results."""


@dataclass(frozen=True)
class Plan:
    """Which contigs each partition holds.

    Attributes
    ----------
    contig : numpy.ndarray
        int64, contig indices of all partitions, one after another; ascending within each.
    start : numpy.ndarray
        int64, shape (partitions + 1,). Where each partition begins in ``contig``.
    bin : numpy.ndarray
        uint8, shape (partitions,). 2 or 3.
    work : numpy.ndarray
        int64, shape (partitions,). Estimated packed bytes.
    """

    contig: np.ndarray
    start: np.ndarray
    bin: np.ndarray
    work: np.ndarray

    def __len__(self) -> int:
        return len(self.bin)

    def contigs(self, number: int) -> np.ndarray:
        """Return the contigs of partition ``number``; int64, ascending."""
        return self.contig[self.start[number] : self.start[number + 1]]


def assign_bins(candidates: np.ndarray, bin_limit: int = BIN_LIMIT) -> np.ndarray:
    """Put contigs in bins by the candidate reads of their busier side.

    Parameters
    ----------
    candidates : numpy.ndarray
        int64, shape (2 * contigs,). Candidate reads per end, before the cap.
    bin_limit : int
        Candidate reads from which a contig is in bin 3.

    Returns
    -------
    numpy.ndarray
        uint8, shape (contigs,). 1: none, 2: fewer than ``bin_limit``, 3: the others.

    Examples
    --------
    >>> assign_bins(np.array([0, 0, 9, 1, 0, 10]))
    array([1, 2, 3], dtype=uint8)
    """
    most = candidates.reshape(-1, 2).max(axis=1, initial=0)
    return (1 + (most > 0) + (most >= bin_limit)).astype(np.uint8)


def _sizes(total: int, target: int, grades: int) -> np.ndarray:
    """Sizes of pieces of about ``target``; of half of it in each of the following grades.

    The first grade has half of all, the next one a quarter, and so on; the last one has what is
    left.
    """
    sizes = []
    for grade in range(grades):
        share = total / 2 ** min(grade + 1, grades - 1)
        pieces = max(1, round(share * 2**grade / target))
        sizes.append(np.full(pieces, share / pieces))
    return np.concatenate(sizes)


def plan_partitions(
    bins: np.ndarray,
    candidates: np.ndarray,
    words: np.ndarray,
    *,
    max_reads: int = MAX_READS,
    partition_bytes: int = PARTITION_BYTES,
    at_least: int = 1,
    graded: bool = False,
) -> Plan:
    """Cut each bin into consecutive pieces of balanced work.

    Parameters
    ----------
    bins : numpy.ndarray
        uint8, shape (contigs,), from :func:`assign_bins`.
    candidates, words : numpy.ndarray
        int64, shape (2 * contigs,). Candidate reads of each end and the packed words they take,
        before the cap.
    max_reads : int
        Candidate reads used per end.
    partition_bytes : int
        Packed bytes that a partition aims at; a contig is never cut.
    at_least : int
        Partitions wanted in all (a few per worker), as far as there are contigs.
    graded : bool
        Cut bin 2 in ever smaller pieces, so that workers of very different speed can share it.

    Returns
    -------
    Plan
        Partitions of bin 3, then of bin 2, each in input order.
    """
    # reads of an end are taken as equally long where the cap cuts some off
    kept = np.minimum(1.0, max_reads / np.maximum(candidates, 1))
    work = ((4 * words * kept).astype(np.int64) + END_BYTES).reshape(-1, 2).sum(axis=1)
    members = {number: np.flatnonzero(bins == number) for number in (3, 2)}
    total = sum(int(work[contigs].sum()) for contigs in members.values())
    target = max(1, min(partition_bytes, total // max(1, at_least)))
    starts, numbers, works = [np.zeros(1, dtype=np.int64)], [], []
    begin = 0
    for number, contigs in members.items():
        if not len(contigs):
            continue
        until = np.cumsum(work[contigs])
        sizes = _sizes(int(until[-1]), target, GRADES if graded and number == 2 else 1)
        # a piece ends with the contig that reaches its share of the work
        share = np.cumsum(sizes)[:-1]
        cuts = np.minimum(np.searchsorted(until, share) + 1, len(contigs))
        cuts = np.unique(np.append(cuts, len(contigs)))
        starts.append(begin + cuts)
        numbers.append(np.full(len(cuts), number, dtype=np.uint8))
        works.append(np.diff(until[cuts - 1], prepend=0))
        begin += len(contigs)
    return Plan(
        contig=np.concatenate(list(members.values())).astype(np.int64),
        start=np.concatenate(starts).astype(np.int64),
        bin=np.concatenate([np.zeros(0, dtype=np.uint8), *numbers]),
        work=np.concatenate([np.zeros(0, dtype=np.int64), *works]).astype(np.int64),
    )
