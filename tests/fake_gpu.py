"""A preload for Dask workers without a GPU: their GPU engine is the CPU engine under that name.

With DLASM_TEST_SLOW=engine:seconds, an engine takes so much longer for each partition. A file named
by DLASM_TEST_DEATHS holds how many GPU workers are still to die of a partition.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time

import dlasm.engines.choose as choose
from dlasm import pack
from dlasm.engines import cpu

SLOW, DEATHS = "DLASM_TEST_SLOW", "DLASM_TEST_DEATHS"


class FakeEngine:
    """The CPU engine, slower if wanted."""

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, kernel, gpu):
        pass

    def buffer(self, size, gpu):
        return pack.new_buffer(size)

    def extend(self, packed, params, threads, kernel, gpu):
        slow, _, seconds = os.environ.get(SLOW, "").partition(":")
        if slow == self.name:
            time.sleep(float(seconds))
        if self.name == "cpu":
            return choose.EngineRun(cpu.extend_partition(packed, params, threads))
        if path := os.environ.get(DEATHS):
            die_if_wanted(path)
        return choose.EngineRun(cpu.extend_partition(packed, params, threads), {"kernel_ms": 1.0})


def die_if_wanted(path):
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        deaths = int(file.read())
        if not deaths:
            return
        file.seek(0)
        file.truncate()
        file.write(str(deaths - 1))
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def dask_setup(worker):
    install()


def install():
    for name in ("cpu", "gpu"):
        choose.ENGINES[name] = FakeEngine(name)
