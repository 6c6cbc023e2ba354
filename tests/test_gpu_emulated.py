"""The kernels themselves, run on the CPU by an emulation of CUDA, against the CPU engine."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adversarial import Case, broken_run_case, random_bases, random_case, simple_genome
from conftest import shared_data
from ends import pack_cases
from host_device import HostDevice
from reference import Read, read_dump, reverse_complement
from test_gpu_host import assert_same

from dlasm.engines import cpu, gpu
from dlasm.kernels import launch_fast
from dlasm.kernels.loader import FOLDER, MODULES
from dlasm.pack import PackedPartition
from dlasm.params import WalkParams

NATIVE = Path(__file__).parent / "native"


class EmulatedDevice(HostDevice):
    """A device whose kernels are the real ones, emulated."""

    def __init__(self, libraries: dict[str, ctypes.CDLL]) -> None:
        super().__init__()
        self.libraries = libraries

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
        values = [np.atleast_1d(argument) for argument in arguments]
        places = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
        status = self.libraries[module].launch(kernel.encode(), grid, block, places)
        assert status == 0, f"{module} has no kernel {kernel}"
        self.launches.append((kernel, grid, block))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not there")
    folder = tmp_path_factory.mktemp("emulated")
    libraries = {}
    for module in MODULES:
        source = NATIVE / f"{module.replace('extend', 'emulated')}.cpp"
        library = folder / f"{module}.so"
        options = ["-std=c++17", "-O1", "-g", "-fPIC", "-shared", f"-I{FOLDER}", f"-I{NATIVE}"]
        subprocess.run([compiler, *options, "-o", library, source], check=True)
        libraries[module] = ctypes.CDLL(str(library))
    return EmulatedDevice(libraries)


def check(
    device: EmulatedDevice, packed: PackedPartition, params: WalkParams, kernel: str, **how: Any
) -> gpu.GpuRun:
    run = gpu.run_partition(packed, params, kernel=kernel, device=device, **how)
    assert_same(run.extensions, cpu.extend_partition(packed, params))
    assert run.statistics.ends_on_cpu == 0
    return run


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("k", [21, 33, 45, 77, 99, 121])
def test_random_ends(device: EmulatedDevice, kernel: str, k: int) -> None:
    rng = random.Random(k)
    for walk_limit in (200, rng.randint(1, 40)):
        packed = pack_cases([random_case(rng, k) for _ in range(12)])
        check(device, packed, WalkParams(k, walk_limit), kernel)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("k", [21, 34, 61])
def test_simple_ends(device: EmulatedDevice, kernel: str, k: int) -> None:
    rng = random.Random(k)
    for walk_limit in (200, rng.randint(1, 40)):
        packed = pack_cases([random_case(rng, k, simple_genome) for _ in range(6)])
        check(device, packed, WalkParams(k, walk_limit), kernel)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_a_run_that_one_read_leaves(device: EmulatedDevice, kernel: str) -> None:
    for k in (21, 34):
        check(device, pack_cases([broken_run_case(k)]), WalkParams(k, 34), kernel)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize(
    "dump", ["arcticsynth/candidates_k77.dat.gz", "synthetic/branches_k77.dat.gz"]
)
def test_dumps(device: EmulatedDevice, kernel: str, dump: str) -> None:
    contigs = list(read_dump(shared_data(*dump.split("/"))))[:: 40 if "arctic" in dump else 200]
    packed = pack_cases([Case(c.sequence, c.left, c.right, float(c.depth)) for c in contigs])
    for k in (21, 77):
        check(device, packed, WalkParams(k), kernel)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_batches_and_shifted_addresses(device: EmulatedDevice, kernel: str) -> None:
    rng = random.Random(3)
    packed = pack_cases([random_case(rng, 33) for _ in range(12)])
    far = replace(
        packed,
        read_start=packed.read_start + (1 << 33),
        word_offset=packed.word_offset + (1 << 36),
    )
    params = WalkParams(33, 100)
    run = gpu.run_partition(far, params, kernel=kernel, device=device, batch_bytes=10_000)
    assert_same(run.extensions, cpu.extend_partition(packed, params))
    assert run.statistics.batches > 1
    assert run.statistics.ends_on_cpu == 0


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_an_end_with_many_reads(device: EmulatedDevice, kernel: str) -> None:
    rng = random.Random(4)
    genome = random_bases(rng, 400)
    other = genome[:260] + random_bases(rng, 140)
    reads: list[Read] = []
    for _ in range(120):
        start = rng.randint(100, 240)
        reads.append(((genome if rng.random() < 0.7 else other)[start : start + 150], [40] * 150))
    mirrored = [(reverse_complement(bases), quality) for bases, quality in reads[:30]]
    packed = pack_cases([Case(genome[:220], mirrored, reads, 30.0)])
    check(device, packed, WalkParams(33, 150), kernel)


def test_scratch_space_grows_until_all_ends_fit(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = launch_fast.QUEUES * 4 * 2 * 4 + launch_fast.ALIGNMENT
    monkeypatch.setattr(launch_fast, "scratch_bytes", lambda *_: queues)
    monkeypatch.setattr(launch_fast, "walk_area_words", lambda *_: 1)
    rng = random.Random(7)
    genome = random_bases(rng, 500)
    reads: list[Read] = [(genome[s : s + 150], [40] * 150) for s in range(100, 350, 2)]
    cases = [Case(genome[:200], [], reads, 30.0), broken_run_case(33)]
    run = check(device, pack_cases(cases), WalkParams(33, 200), "fast")
    assert run.statistics.repeated > 1
