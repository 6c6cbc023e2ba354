"""Which engine extends a partition."""

from __future__ import annotations

from dlasm.engines import cpu
from dlasm.engines.cpu import Extensions
from dlasm.errors import EngineError
from dlasm.pack import PackedPartition
from dlasm.params import WalkParams

__all__ = ["ENGINES", "extend_partition"]

ENGINES = {"cpu": cpu.extend_partition}
"""Engines by the name of the worker pool that they serve; all give the same bytes."""


def extend_partition(
    engine: str, packed: PackedPartition, params: WalkParams, threads: int = 1
) -> Extensions:
    """Extend a partition with the engine of a pool.

    Parameters
    ----------
    engine : str
        A key of :data:`ENGINES`.
    packed : PackedPartition
        The ends and their reads.
    params : WalkParams
        Start k, walk limit and reads per end.
    threads : int
        Native threads.

    Returns
    -------
    Extensions
        In the order of the partition.

    Raises
    ------
    EngineError
        If there is no such engine, or it cannot extend this partition.
    """
    if engine not in ENGINES:
        raise EngineError(f"there is no engine {engine!r}; there are {', '.join(ENGINES)}")
    return ENGINES[engine](packed, params, threads)
