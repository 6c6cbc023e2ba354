"""How the kernels with k-mer tables (``extend_tables.cu``) are launched: sizes, places, grids.

Sizes are exact: a table has room for every mer that the reads of its end can give on the lowest
rung that the ladder over k can reach, at the load factor of Awan et al., SC'21, section 3.2, and a
prefix sum over the ends says where each begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlasm.pack import BASES_PER_WORD, PADDING_WORDS
from dlasm.params import BIN_LIMIT, K_MIN, K_SHIFT

__all__ = ["KERNELS", "TABLES", "TablePlan", "lowest_rung", "mers_per_end", "plan_tables"]

KERNELS = {"v1": "extend_v1", "v2": "extend_v2"}
"""Entry points by the name of the kernel that a user chooses."""

TABLES = np.dtype(
    [
        ("order", np.uint64),
        ("table_start", np.uint64),
        ("context_start", np.uint64),
        ("keys", np.uint64),
        ("votes", np.uint64),
        ("count", np.int64),
    ]
)
"""``struct Tables`` of ``extend_tables.cu``; the first five are addresses."""

KEY_BYTES = 8
VOTE_BYTES = 32
SLOT_BYTES = KEY_BYTES + VOTE_BYTES
"""Bytes of a slot: its key and eight counters of votes."""

LOAD_PERCENT = 93
"""Fullest that a table gets (paper section 3.2), ``kLoadPercent`` in ``extend_tables.cu``."""

TAIL_BASES = 128
"""Bases of a contig that a context begins with, ``kTailBases`` in ``bases.cuh``."""

BLOCK = 64
"""Threads of a block: few, so that one long end holds up few others."""

WARP = 32


@dataclass(frozen=True)
class TablePlan:
    """Where the tables and contexts of a batch are, and in what order its ends are done.

    Attributes
    ----------
    order : numpy.ndarray
        int64. The ends that can walk, those of contigs in bin 2 first, then those in bin 3; the
        bins of the paper, which are launched one after the other, whatever those of the run are.
    bin_2 : int
        How many of them are in bin 2.
    table_start : numpy.ndarray
        int64, shape (ends + 1,), slots.
    context_start : numpy.ndarray
        int64, shape (ends + 1,), words.
    """

    order: np.ndarray
    bin_2: int
    table_start: np.ndarray
    context_start: np.ndarray

    @property
    def slots(self) -> int:
        """Slots of all tables."""
        return int(self.table_start[-1])

    @property
    def context_words(self) -> int:
        """Words of all contexts."""
        return int(self.context_start[-1])


def lowest_rung(k: int) -> int:
    """Return the smallest k that a ladder from ``k`` can come to.

    Examples
    --------
    >>> lowest_rung(77), lowest_rung(55), lowest_rung(21)
    (21, 23, 21)
    """
    return K_MIN + (k - K_MIN) % K_SHIFT


def mers_per_end(read_start: np.ndarray, length: np.ndarray, k: int) -> np.ndarray:
    """Count the mers with a next base that the reads of each end hold.

    Parameters
    ----------
    read_start : numpy.ndarray
        int64, shape (ends + 1,). First read of each end; may begin at any number.
    length : numpy.ndarray
        int32, shape (reads,). Lengths of these reads, bases.
    k : int
        Length of a mer, bases.

    Returns
    -------
    numpy.ndarray
        int64, shape (ends,).
    """
    total = np.zeros(len(length) + 1, dtype=np.int64)
    np.cumsum(np.maximum(length.astype(np.int64) - k, 0), out=total[1:])
    return np.diff(total[read_start - read_start[0]])


def slots_for(mers: np.ndarray) -> np.ndarray:
    """Return the slots of tables for so many mers; at least one more, so that searches end."""
    return -(-100 * mers // LOAD_PERCENT)


def words_for(mers: np.ndarray, walk_limit: int) -> np.ndarray:
    """Return the words of an end's two contexts: no walk has more bases than there are mers."""
    bases = TAIL_BASES + np.minimum(mers, walk_limit)
    return np.where(mers > 0, 2 * (-(-bases // BASES_PER_WORD) + PADDING_WORDS), 0)


def plan_tables(
    read_start: np.ndarray,
    length: np.ndarray,
    tail_length: np.ndarray,
    k: int,
    walk_limit: int,
) -> TablePlan:
    """Lay out the tables of a batch.

    Parameters
    ----------
    read_start : numpy.ndarray
        int64, shape (ends + 1,). First read of each end; may begin at any number.
    length : numpy.ndarray
        int32, shape (reads,). Lengths of the reads, bases.
    tail_length : numpy.ndarray
        int32, shape (ends,). Bases of the contig, at most 128.
    k, walk_limit : int
        Start k and most bases of a walk.
    """
    mers = mers_per_end(read_start, length, lowest_rung(k))
    reads = np.diff(read_start)
    most = np.repeat(reads.reshape(-1, 2).max(axis=1), 2)
    walks = (mers > 0) & (tail_length >= k)
    mers[~walks] = 0
    bins = [np.flatnonzero(walks & (most < BIN_LIMIT)), np.flatnonzero(walks & (most >= BIN_LIMIT))]
    return TablePlan(
        order=np.concatenate(bins).astype(np.int64),
        bin_2=len(bins[0]),
        table_start=_starts(slots_for(mers)),
        context_start=_starts(words_for(mers, walk_limit)),
    )


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Where pieces of these sizes begin, and the end of the last; int64."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def grid(kernel: str, ends: int) -> int:
    """Return how many blocks of :data:`BLOCK` threads a launch over so many ends takes."""
    per_block = BLOCK if kernel == "v1" else BLOCK // WARP
    return -(-ends // per_block)
