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
    k : numpy.ndarray
        int16, shape (ends,). k of the accepted walk, bases; 0 without one.
    outcome : numpy.ndarray
        uint8, shape (ends,). Index in :data:`dlasm.params.OUTCOMES`.
    """

    walk_values: np.ndarray
    walk_offsets: np.ndarray
    k: np.ndarray
    outcome: np.ndarray


def extend_partition(packed: PackedPartition, params: WalkParams, threads: int = 1) -> Extensions:
    """Extend every end of a partition (algorithm sections 2 to 5).

    Parameters
    ----------
    packed : PackedPartition
        The ends and their reads.
    params : WalkParams
        Start k and walk limit.
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
        values, offsets, k, outcome = _cpu.extend(
            packed.depth,
            packed.tail,
            packed.tail_length,
            packed.clean_length,
            packed.read_start,
            packed.length,
            packed.has_n,
            packed.word_offset,
            packed.words,
            params.k,
            params.walk_limit,
            threads,
        )
    except ValueError as error:
        raise EngineError(f"the packed partition is not consistent: {error}") from error
    return Extensions(values, offsets, k, outcome)
