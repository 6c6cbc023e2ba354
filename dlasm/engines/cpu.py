"""The CPU engine: walks by cursors in native code, threads inside, no k-mer table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlasm.errors import EngineError
from dlasm.kernels import _cpu
from dlasm.pack import PackedPartition
from dlasm.params import WalkParams

__all__ = ["Extensions", "extend_partition"]


@dataclass(frozen=True)
class Extensions:
    """What an engine found for the ends of a partition, two per contig, left before right.

    Attributes
    ----------
    walk_values : numpy.ndarray
        uint8, ASCII bases appended to all ends, in the orientation of the contig.
    walk_offsets : numpy.ndarray
        int64, shape (ends + 1,).
    support : numpy.ndarray
        uint8, of each of these bases: fragments among the candidate reads of its end that hold it
        and the 20 bases before it on the walk, at most 255.
    k : numpy.ndarray
        int16, shape (ends,). k of the accepted walk, bases; 0 without one.
    outcome : numpy.ndarray
        uint8, shape (ends,). Index in :data:`dlasm.params.OUTCOMES`.
    cut : numpy.ndarray
        int32, shape (ends,). Bases cut from the accepted walk for want of support.
    """

    walk_values: np.ndarray
    walk_offsets: np.ndarray
    support: np.ndarray
    k: np.ndarray
    outcome: np.ndarray
    cut: np.ndarray


def extend_partition(packed: PackedPartition, params: WalkParams, threads: int = 1) -> Extensions:
    """Extend every end of a partition (algorithm sections 2 to 5, and 7).

    Parameters
    ----------
    packed : PackedPartition
        The ends and their reads.
    params : WalkParams
        Start k, walk limit and least support.
    threads : int
        Native threads; the result does not depend on it.

    Returns
    -------
    Extensions
        In the order of the partition.

    Raises
    ------
    EngineError
        If the arrays of ``packed`` contradict each other.
    """
    try:
        found = _cpu.extend(
            packed.depth,
            packed.tail,
            packed.tail_length,
            packed.clean_length,
            packed.read_start,
            packed.length,
            packed.fragment,
            packed.has_n,
            packed.word_offset,
            packed.words,
            params.k,
            params.walk_limit,
            params.min_support,
            threads,
        )
    except ValueError as error:
        raise EngineError(f"the packed partition is not consistent: {error}") from error
    return Extensions(*found)
