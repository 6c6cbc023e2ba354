"""One CUDA device as the GPU engine sees it: memory, copies, streams and launches, through CuPy.

Everything that touches CuPy on behalf of the engine is here. CuPy is imported, and a context made,
when a :class:`Device` is, never before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np

from dlasm.errors import EngineError
from dlasm.gpus import INSTALL, uuid_text
from dlasm.kernels.launch_fast import Launch
from dlasm.kernels.loader import load_kernel, load_module

__all__ = ["Device", "device_errors"]

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2  # cudaMemcpyKind
PINNED = 1  # cudaMemoryTypeHost

OUT_OF_MEMORY = ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation")
"""What the driver and the runtime call it; messages of CuPy's errors begin with that."""

NO_DRIVER = (
    "there is no NVIDIA driver here: install one, so that nvidia-smi lists a GPU, or do without "
    "GPUs (--gpus none)"
)


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Tell errors of the driver and the runtime, which CuPy raises as RuntimeErrors, as dlasm's.

    Parameters
    ----------
    what : str
        What was tried.

    Raises
    ------
    MemoryError
        If there was no memory for it, on the device or pinned; CuPy's own OutOfMemoryError is one.
    EngineError
        If it failed otherwise.
    """
    try:
        yield
    except EngineError:
        raise
    except RuntimeError as error:
        if str(error).startswith(OUT_OF_MEMORY):
            raise MemoryError(f"{what}: {error}") from error
        raise EngineError(f"{what}: {error}") from error


class Device:
    """A CUDA device.

    Parameters
    ----------
    number : int
        Number of the device among those visible to this process.

    Attributes
    ----------
    lock : threading.Lock
        Held by who works with the device.
    session : object
        What the engine keeps for the device, as long as this object lives.

    Raises
    ------
    EngineError
        If CuPy cannot be imported or the device cannot be used.
    """

    def __init__(self, number: int = 0) -> None:
        self._cupy = _import_cupy()
        self._runtime = self._cupy.cuda.runtime
        self.number = number
        self.lock = threading.Lock()
        self.session: Any = None
        with device_errors(f"CUDA device {number} cannot be used"):
            attributes = self._cupy.cuda.Device(number).attributes
            self.multiprocessors = int(attributes["MultiProcessorCount"])

    @staticmethod
    def current() -> Device:
        """Return the current device of this process; the same object each time.

        Raises
        ------
        EngineError
            If there is none; the message says what is missing and what to do.
        """
        return _device(_ask_runtime("getDevice"))

    @staticmethod
    def of(uuid: str) -> Device:
        """Return the device with a UUID, as the driver writes it; the same object each time.

        Raises
        ------
        EngineError
            If this process does not see that device, or none at all.
        """
        seen = [_uuid(number) for number in range(_ask_runtime("getDeviceCount"))]
        kind, _, wanted = uuid.partition("-")
        if wanted in seen:
            return _device(seen.index(wanted))
        why = f"it sees {', '.join(seen) or 'none'}"
        if kind == "MIG":
            # CUDA shows a process the first instance it may use, and no other device beside it
            why += (
                ", and of GPUs that are split (MIG) a process sees one instance; use --workers, "
                "which starts a process for each"
            )
        raise EngineError(f"CUDA device {uuid} is not visible to this process: {why}")

    @property
    def uuid(self) -> str:
        """UUID without the ``GPU-`` or ``MIG-`` that the driver puts before it."""
        return _uuid(self.number)

    def activated(self) -> AbstractContextManager[Any]:
        """Make this the current device of this thread for a while."""
        return self._cupy.cuda.Device(self.number)

    # -- memory ------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        """Return the bytes that can still be allocated, those that CuPy's pool keeps included."""
        free, _ = self._runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())

    def release(self) -> None:
        """Give back to the driver what CuPy's pool keeps, which kernels and others may lack."""
        self._cupy.get_default_memory_pool().free_all_blocks()

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
        """Allocate pinned host memory; uint8, shape (size,).

        Raises
        ------
        MemoryError
            If the host has not that much left that can be pinned.
        """
        with device_errors(f"{size:,} bytes of pinned memory could not be allocated"):
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
        """Compile a module of kernels and load it, unless that is done.

        Raises
        ------
        MemoryError
            If the device has no memory left for it.
        EngineError
            If it does not compile or cannot be loaded.
        """
        with device_errors(f"kernels {module} could not be loaded on CUDA device {self.number}"):
            load_module(module, self.number)

    def launch(self, module: str, launch: Launch, arguments: Sequence[Any], stream: Any) -> None:
        """Queue a kernel.

        Parameters
        ----------
        module : str
            As in :func:`dlasm.kernels.loader.load_kernel`.
        launch : Launch
            Which kernel, its blocks and their threads.
        arguments : sequence
            NumPy scalars, and arrays of one element that are passed by value.
        stream : cupy.cuda.Stream
            Where to queue it.

        Raises
        ------
        MemoryError
            If the device has no memory left for its code or its threads' own memory.
        EngineError
            If the device refuses it.
        """
        grid, block = launch.grid, launch.block
        with device_errors(
            f"kernel {launch.kernel} could not be started on CUDA device {self.number} with "
            f"{grid:,} blocks of {block} threads"
        ):
            loaded = load_kernel(module, launch.kernel, self.number)
            with stream:
                loaded((grid,), (block,), tuple(arguments))

    def _checked(self, wait: Callable[[], None]) -> None:
        """Wait; a failure now is one of what was queued."""
        try:
            with device_errors(f"work on CUDA device {self.number} failed"):
                wait()
        except EngineError as error:
            raise EngineError(f"{error}; this process cannot use the device any more") from error


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        if "libcuda" in str(error):  # up to version 13 it cannot be imported without
            raise EngineError(NO_DRIVER) from error
        raise EngineError(f"the GPU engine needs CuPy ({error}); {INSTALL}") from error
    return cupy


def _ask_runtime(function: str) -> int:
    """Ask the CUDA runtime for a number; if there is no device, say why and what to do."""
    runtime = _import_cupy().cuda.runtime
    try:
        return int(getattr(runtime, function)())
    except RuntimeError as error:
        driver, cuda = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        why = f"there is no usable CUDA device: {error}"
        if driver == 0:
            why = NO_DRIVER
        elif str(error).startswith("cudaErrorInsufficientDriver"):
            why = (
                f"the NVIDIA driver is of CUDA {_version(driver)} and CuPy is for CUDA "
                f"{_version(cuda)}: update the driver, or {INSTALL}"
            )
        elif str(error).startswith("cudaErrorNoDevice"):
            why = (
                "the NVIDIA driver shows this process no GPU; CUDA_VISIBLE_DEVICES is "
                f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}, and nvidia-smi -L lists all"
            )
        raise EngineError(why) from error


def _version(number: int) -> str:
    """Write a version of CUDA as people do.

    Examples
    --------
    >>> _version(12040)
    '12.4'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


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


_devices: dict[int, Device] = {}
_devices_lock = threading.Lock()


def _device(number: int) -> Device:
    """One object for each device, whichever thread asks first."""
    with _devices_lock:
        if number not in _devices:
            _devices[number] = Device(number)
        return _devices[number]
