"""Which engine extends a partition."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from dlasm.engines import cpu
from dlasm.engines.cpu import Extensions
from dlasm.errors import EngineError
from dlasm.pack import PackedPartition
from dlasm.params import DEFAULT_KERNEL, WalkParams

__all__ = ["ENGINES", "Engine", "EngineRun", "extend_partition", "prepare"]


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


class Engine(Protocol):
    """A way to extend partitions; all give the same bytes."""

    def prepare(self, kernel: str, gpu: str | None) -> str | None:
        """Do what is done once per process; raises EngineError if the engine cannot be used."""

    def extend(
        self,
        packed: PackedPartition,
        params: WalkParams,
        threads: int,
        kernel: str,
        gpu: str | None,
    ) -> EngineRun:
        """Extend a partition; see :func:`extend_partition`."""


class _Cpu:
    def prepare(self, kernel: str, gpu: str | None) -> None:
        """Need nothing."""

    def extend(
        self,
        packed: PackedPartition,
        params: WalkParams,
        threads: int,
        kernel: str,  # noqa: ARG002
        gpu: str | None,  # noqa: ARG002
    ) -> EngineRun:
        """Extend with native threads."""
        return EngineRun(cpu.extend_partition(packed, params, threads))


class _Gpu:
    def prepare(self, kernel: str, gpu: str | None) -> str:
        """Make a CUDA context and compile the kernels."""
        from dlasm.engines import gpu as engine

        return engine.prepare(kernel, gpu)

    def extend(
        self,
        packed: PackedPartition,
        params: WalkParams,
        threads: int,
        kernel: str,
        gpu: str | None,
    ) -> EngineRun:
        """Extend on a CUDA device."""
        from dlasm.engines import gpu as engine
        from dlasm.engines.device import Device

        device = Device.of(gpu) if gpu else Device.current()
        run = engine.run_partition(packed, params, threads, kernel=kernel, device=device)
        about: dict[str, Any] = vars(run.statistics)
        names = ("kernel_ms", "batches", "halved", "repeated", "ends_on_cpu")
        return EngineRun(run.extensions, {name: about[name] for name in names}, device.uuid)


ENGINES: dict[str, Engine] = {"cpu": _Cpu(), "gpu": _Gpu()}
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
    return _engine(engine).prepare(kernel, gpu)


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
    return _engine(engine).extend(packed, params, threads, kernel, gpu)


def _engine(name: str) -> Engine:
    if name not in ENGINES:
        raise EngineError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name]
