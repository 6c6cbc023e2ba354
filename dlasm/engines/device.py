"""One CUDA device as the GPU engine sees it: memory, copies, streams and launches, through CuPy.

Everything that touches CuPy on behalf of the engine is here. CuPy is imported, and a context made,
when a :class:`Device` is, never before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np

from dlasm.errors import EngineError
from dlasm.gpus import INSTALL, uuid_text
from dlasm.kernels.loader import load_kernel, load_module

__all__ = ["Device"]

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2  # cudaMemcpyKind
PINNED = 1  # cudaMemoryTypeHost


class Device:
    """A CUDA device.

    Parameters
    ----------
    number : int
        Number of the device among those visible to this process.

    Raises
    ------
    EngineError
        If CuPy cannot be imported or the device cannot be used.
    """

    def __init__(self, number: int = 0) -> None:
        self._cupy = _import_cupy()
        self._runtime = self._cupy.cuda.runtime
        self.number = number
        try:
            self._device = self._cupy.cuda.Device(number)
            self.multiprocessors = int(self._device.attributes["MultiProcessorCount"])
        except self._runtime.CUDARuntimeError as error:
            raise EngineError(f"CUDA device {number} cannot be used: {error}") from error

    @staticmethod
    def current() -> Device:
        """Return the current device of this process; the same object each time."""
        try:
            return _device(int(_import_cupy().cuda.runtime.getDevice()))
        except RuntimeError as error:  # what CuPy's errors derive from
            raise EngineError(f"there is no usable CUDA device: {error}") from error

    @staticmethod
    def of(uuid: str) -> Device:
        """Return the device with a UUID, as the driver writes it; the same object each time.

        Raises
        ------
        EngineError
            If this process does not see that device.
        """
        try:
            count = int(_import_cupy().cuda.runtime.getDeviceCount())
        except RuntimeError as error:
            raise EngineError(f"there is no usable CUDA device: {error}") from error
        seen = [_uuid(number) for number in range(count)]
        wanted = uuid.split("-", 1)[-1]
        if wanted not in seen:
            raise EngineError(
                f"CUDA device {uuid} is not visible to this process; it sees "
                f"{', '.join(seen) or 'none'}"
            )
        return _device(seen.index(wanted))

    @property
    def uuid(self) -> str:
        """UUID without the ``GPU-`` or ``MIG-`` that the driver puts before it."""
        return _uuid(self.number)

    def activated(self) -> AbstractContextManager[Any]:
        """Make this the current device for a while."""
        return self._device

    # -- memory ------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        """Return the bytes that can still be allocated, those that CuPy's pool keeps included."""
        free, _ = self._runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def allocate(self, size: int, stream: Any) -> tuple[int, Any]:
        """Allocate ``size`` bytes for work in ``stream``.

        Returns
        -------
        address : int
            Aligned to 256 bytes.
        owner : object
            The memory is given back when this is no longer referred to.

        Raises
        ------
        MemoryError
            If the device has not that much left.
        """
        with stream:
            memory = self._cupy.cuda.alloc(max(1, size))
        return int(memory.ptr), memory

    def pinned(self, size: int) -> np.ndarray:
        """Allocate pinned host memory; uint8, shape (size,)."""
        memory = self._cupy.cuda.alloc_pinned_memory(max(1, size))
        return np.frombuffer(memory, dtype=np.uint8, count=size)

    def is_pinned(self, array: np.ndarray) -> bool:
        """Say whether the device can read an array's memory directly."""
        return int(self._runtime.pointerGetAttributes(array.ctypes.data).type) == PINNED

    # -- work in streams ---------------------------------------------------------------------------

    def new_stream(self) -> Any:
        """Make a stream that does not wait for the default one."""
        return self._cupy.cuda.Stream(non_blocking=True)

    def record(self, stream: Any, *, timed: bool = False) -> Any:
        """Record an event in a stream."""
        event = self._cupy.cuda.Event(disable_timing=not timed)
        event.record(stream)
        return event

    def wait(self, event: Any) -> None:
        """Wait until everything before an event is done."""
        self._checked(event.synchronize)

    def milliseconds(self, start: Any, stop: Any) -> float:
        """Return the time between two timed events that have happened."""
        return float(self._cupy.cuda.get_elapsed_time(start, stop))

    def synchronize(self, stream: Any) -> None:
        """Wait until a stream is done.

        Raises
        ------
        EngineError
            If a kernel or a copy in it failed.
        """
        self._checked(stream.synchronize)

    def copy_in(self, address: int, array: np.ndarray, stream: Any) -> None:
        """Queue a copy of a contiguous array in pinned memory to the device."""
        if array.nbytes:
            self._runtime.memcpyAsync(
                address, array.ctypes.data, array.nbytes, HOST_TO_DEVICE, stream.ptr
            )

    def copy_out(self, array: np.ndarray, address: int, stream: Any) -> None:
        """Queue a copy from the device to a contiguous array in pinned memory."""
        if array.nbytes:
            self._runtime.memcpyAsync(
                array.ctypes.data, address, array.nbytes, DEVICE_TO_HOST, stream.ptr
            )

    def clear(self, address: int, size: int, stream: Any) -> None:
        """Queue the clearing of device memory."""
        self._runtime.memsetAsync(address, 0, size, stream.ptr)

    def load(self, module: str) -> None:
        """Compile a module of kernels, unless that is done."""
        load_module(module, self.number)

    def launch(
        self,
        module: str,
        kernel: str,
        grid: int,
        block: int,
        arguments: Sequence[Any],
        stream: Any,
        shared: int = 0,
    ) -> None:
        """Queue a kernel.

        Parameters
        ----------
        module, kernel : str
            As in :func:`dlasm.kernels.loader.load_kernel`.
        grid, block : int
            Blocks, and threads of a block.
        arguments : sequence
            NumPy scalars, and arrays of one element that are passed by value.
        stream : cupy.cuda.Stream
            Where to queue it.
        shared : int
            Bytes of dynamic shared memory of a block.

        Raises
        ------
        EngineError
            If the device refuses it.
        """
        loaded = load_kernel(module, kernel, self.number)
        try:
            with stream:
                loaded((grid,), (block,), tuple(arguments), shared_mem=shared)
        except Exception as error:  # CuPy has one class of errors per library it calls
            raise EngineError(
                f"kernel {kernel} could not be started on CUDA device {self.number} with {grid:,} "
                f"blocks of {block} threads: {error}"
            ) from error

    def _checked(self, wait: Any) -> None:
        """Wait, and turn a failure on the device into an error that says what it means."""
        try:
            wait()
        except self._runtime.CUDARuntimeError as error:
            raise EngineError(
                f"work on CUDA device {self.number} failed: {error}; this process cannot use the "
                "device any more"
            ) from error


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise EngineError(f"the GPU engine needs CuPy ({error}); {INSTALL}") from error
    return cupy


@cache
def _uuid(number: int) -> str:
    """UUID of a device; of the instance if a GPU is split."""
    from cuda.bindings import driver  # CuPy gives no UUID of an instance

    status, device = driver.cuDeviceGet(number)
    if status == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED:
        driver.cuInit(0)
        status, device = driver.cuDeviceGet(number)
    if status == driver.CUresult.CUDA_SUCCESS:
        # before CUDA 13 the name without _v2 is the one that does not know instances
        ask = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
        status, uuid = ask(device)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise EngineError(f"CUDA device {number} does not tell its UUID: {status.name}")
    return uuid_text(bytes(uuid.bytes))


@cache
def _device(number: int) -> Device:
    return Device(number)
