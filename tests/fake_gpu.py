"""A preload for Dask workers without a GPU: their GPU engine is the CPU engine under that name.

With DLASM_TEST_SLOW=engine:seconds, an engine takes so much longer for each partition. Files named
by DLASM_TEST_DEATHS and DLASM_TEST_FAILURES hold how many GPU workers are still to die of a
partition, and how many GPUs to fail at one. DLASM_TEST_GPU is the UUID of a worker's GPU.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time

import dlasm.engines.choose as choose
from dlasm import pack
from dlasm.engines import cpu
from dlasm.errors import EngineError
from dlasm.gpus import bare_uuid

SLOW, DEATHS, FAILURES = "DLASM_TEST_SLOW", "DLASM_TEST_DEATHS", "DLASM_TEST_FAILURES"
GPU = "DLASM_TEST_GPU"


class FakeEngine:
    """The CPU engine, slower if wanted."""

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, kernel, gpu):
        return os.environ.get(GPU)

    def buffer(self, size, gpu):
        return pack.new_buffer(size)

    def extend(self, packed, params, threads, kernel, gpu):
        slow, _, seconds = os.environ.get(SLOW, "").partition(":")
        if slow == self.name:
            time.sleep(float(seconds))
        if self.name == "cpu":
            return choose.EngineRun(cpu.extend_partition(packed, params, threads))
        if is_due(DEATHS):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_due(FAILURES):
            raise EngineError("the GPU is on fire")
        extensions = cpu.extend_partition(packed, params, threads)
        uuid = bare_uuid(gpu) if gpu else os.environ.get(GPU)
        return choose.EngineRun(extensions, {"kernel_ms": 1.0}, uuid)


def is_due(variable):
    """Whether a file that an environment variable names holds a number over 0; counts it down."""
    if variable not in os.environ:
        return False
    with open(os.environ[variable], "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        left = int(file.read())
        if left:
            file.seek(0)
            file.truncate()
            file.write(str(left - 1))
        return left > 0


def dask_setup(worker):
    install()


def install():
    for name in ("cpu", "gpu"):
        choose.ENGINES[name] = FakeEngine(name)
