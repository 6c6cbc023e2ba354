"""Which engine extends a partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dlasm import pack
from dlasm.engines import cpu
from dlasm.engines.cpu import Extensions
from dlasm.errors import EngineError
from dlasm.pack import PackedPartition
from dlasm.params import DEFAULT_KERNEL, WalkParams

if TYPE_CHECKING:
    from dlasm.engines.device import Device

__all__ = ["ENGINES", "Engine", "EngineRun", "extend_partition", "new_buffer", "prepare"]


@dataclass(frozen=True)
class EngineRun:
    """What an engine found, and what it took.

    Attributes
    ----------
    extensions : Extensions
        In the order of the partition.
    figures : dict
        Numbers that may be summed over partitions, such as ``kernel_ms``.
    gpu : str or None
        UUID of the GPU, without its prefix, if the engine used one.
    """

    extensions: Extensions
    figures: dict[str, float] = field(default_factory=dict)
    gpu: str | None = None


@dataclass(frozen=True)
class Engine:
    """A way to extend partitions; all give the same bytes.

    Attributes
    ----------
    extend, prepare, buffer : callable
        What :func:`extend_partition`, :func:`prepare` and :func:`new_buffer` do; ``kernel`` and
        ``gpu`` are given by name.
    """

    extend: Callable[..., EngineRun]
    prepare: Callable[..., str | None]
    buffer: Callable[..., np.ndarray]


def _extend_on_cpu(
    packed: PackedPartition, params: WalkParams, threads: int, **_: object
) -> EngineRun:
    return EngineRun(cpu.extend_partition(packed, params, threads))


def _extend_on_gpu(
    packed: PackedPartition, params: WalkParams, threads: int, *, kernel: str, gpu: str | None
) -> EngineRun:
    from dlasm.engines.device import Device
    from dlasm.engines.gpu import run_partition

    device = _device(gpu) or Device.current()
    run = run_partition(packed, params, threads, kernel=kernel, device=device)
    names = ("kernel_ms", "batches", "halved", "repeated", "ends_on_cpu")
    figures = {name: getattr(run.statistics, name) for name in names}
    return EngineRun(run.extensions, figures, device.uuid)


def _prepare_gpu(*, kernel: str, gpu: str | None) -> str:
    from dlasm.engines.gpu import prepare

    return prepare(kernel, _device(gpu))


def _buffer_for_gpu(size: int, *, gpu: str | None) -> np.ndarray:
    from dlasm.engines.gpu import new_buffer

    return new_buffer(size, _device(gpu))


def _device(gpu: str | None) -> Device | None:
    from dlasm.engines.device import Device

    return Device.of(gpu) if gpu else None


ENGINES = {
    "cpu": Engine(
        extend=_extend_on_cpu,
        prepare=lambda **_: None,
        buffer=lambda size, **_: pack.new_buffer(size),
    ),
    "gpu": Engine(extend=_extend_on_gpu, prepare=_prepare_gpu, buffer=_buffer_for_gpu),
}
"""Engines by the name of the worker pool that they serve."""


def prepare(engine: str, *, kernel: str = DEFAULT_KERNEL, gpu: str | None = None) -> str | None:
    """Make an engine ready in this process.

    Parameters
    ----------
    engine : str
        A key of :data:`ENGINES`.
    kernel, gpu : str
        As in :func:`extend_partition`.

    Returns
    -------
    str or None
        UUID of the GPU without its prefix, if the engine uses one.

    Raises
    ------
    EngineError
        If there is no such engine, or it cannot be used here.
    """
    return _engine(engine).prepare(kernel=kernel, gpu=gpu)


def new_buffer(engine: str, size: int, *, gpu: str | None = None) -> np.ndarray:
    """Allocate host memory for a partition that an engine is to extend.

    Parameters
    ----------
    engine : str
        A key of :data:`ENGINES`.
    size : int
        Bytes.
    gpu : str, optional
        As in :func:`extend_partition`.

    Returns
    -------
    numpy.ndarray
        uint8, shape (size,).

    Raises
    ------
    EngineError
        If there is no such engine, or it cannot be used here.
    """
    return _engine(engine).buffer(size, gpu=gpu)


def extend_partition(
    engine: str,
    packed: PackedPartition,
    params: WalkParams,
    threads: int = 1,
    *,
    kernel: str = DEFAULT_KERNEL,
    gpu: str | None = None,
) -> EngineRun:
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
    kernel : str
        Kernel of the GPU engine; does not change the result.
    gpu : str, optional
        UUID of the GPU; the current one of this process if not given.

    Returns
    -------
    EngineRun
        The extensions in the order of the partition.

    Raises
    ------
    EngineError
        If there is no such engine, or it cannot extend this partition.
    """
    return _engine(engine).extend(packed, params, threads, kernel=kernel, gpu=gpu)


def _engine(name: str) -> Engine:
    if name not in ENGINES:
        raise EngineError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name]
