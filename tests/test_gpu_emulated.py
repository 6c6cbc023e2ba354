"""The kernels themselves, run on the CPU by an emulation of CUDA, against the CPU engine."""

from __future__ import annotations

import ctypes
import random
import re
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
from ends import pack_cases, with_long_read
from host_device import HostDevice
from reference import Read, read_dump, reverse_complement
from test_gpu_host import assert_same

from dlasm.engines import cpu, gpu
from dlasm.kernels import launch_fast
from dlasm.kernels.launch_fast import Launch
from dlasm.kernels.loader import FOLDER, MODULES
from dlasm.pack import PackedPartition
from dlasm.params import WalkParams

NATIVE = Path(__file__).parent / "native"


def build(name: str, folder: Path) -> ctypes.CDLL:
    """Compile a file of ``native`` with watched memory; ``emulate.hpp`` says how that works."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not there")
    compiled, library = folder / f"{name}.o", folder / f"{name}.so"
    options = [
        "-std=c++17",
        "-O1",
        "-g",
        "-fPIC",
        "-fsanitize=thread",
        f"-I{FOLDER}",
        f"-I{NATIVE}",
    ]
    subprocess.run([compiler, *options, "-c", "-o", compiled, NATIVE / f"{name}.cpp"], check=True)
    subprocess.run([compiler, "-shared", "-o", library, compiled], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.take_hazards.restype = ctypes.c_char_p
    return loaded


def hazards(library: ctypes.CDLL) -> str:
    """Say where accesses since the last call were not ordered, with lines if binutils is there."""
    found: str = library.take_hazards().decode()
    tool = shutil.which("addr2line")
    if not found or tool is None:
        return found

    def line(address: re.Match[str]) -> str:
        command = [tool, "-ise", library._name, address[0]]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return " < ".join(re.sub(r" \(.*\)", "", said).split())

    return re.sub("0x[0-9a-f]+", line, found)


class EmulatedDevice(HostDevice):
    """A device whose kernels are the real ones, emulated."""

    def __init__(self, libraries: dict[str, ctypes.CDLL]) -> None:
        super().__init__()
        self.libraries = libraries

    def execute(self, module: str, launch: Launch, arguments: Sequence[np.ndarray]) -> None:
        places = (ctypes.c_void_p * len(arguments))(*(value.ctypes.data for value in arguments))
        kernel = launch.kernel
        status = self.libraries[module].launch(kernel.encode(), launch.grid, launch.block, places)
        assert status == 0, f"{module} has no kernel {kernel}"
        found = hazards(self.libraries[module])
        if found:
            pytest.fail(f"{kernel} has memory hazards:\n{found}")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> EmulatedDevice:
    folder = tmp_path_factory.mktemp("emulated")
    libraries = {module: build(module.replace("extend", "emulated"), folder) for module in MODULES}
    return EmulatedDevice(libraries)


def test_hazards_are_found(tmp_path: Path) -> None:
    library = build("emulated_hazards", tmp_path)
    wanted = {
        "reverse_block": "write .* then read ",
        "read_then_write": "read .* then write ",
        "reverse_warp": "(read|write) .* then (read|write) ",
        "add_up": "atomic .* then read |read .* then atomic ",
        "write_blocks": "write .* then write ",
    }
    out = (ctypes.c_int * 64)()
    for name, pattern in wanted.items():
        assert library.launch(name.encode(), 0, out) == 0
        assert re.search(pattern, hazards(library)), name
        assert library.launch(name.encode(), 1, out) == 0
        assert hazards(library) == "", name
    assert library.launch(b"write_bytes", 0, out) == 0
    assert hazards(library) == ""


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
        check(device, packed, WalkParams(k, walk_limit, min_support=rng.choice((1, 2))), kernel)


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
    contigs = list(read_dump(shared_data(*dump.split("/"))))[:: 40 if "arctic" in dump else 400]
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


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_support_of_fragments_of_many_reads(device: EmulatedDevice, kernel: str) -> None:
    rng = random.Random(9)
    genome = random_bases(rng, 600)
    long = [(genome[start : start + 150], [40] * 150) for start in range(60, 400, 30)]
    short = [(genome[start : start + 28], [40] * 28) for start in range(80, 520, 31)]
    rng.shuffle(short)
    many = [(genome[60:160], [2] * 100)] * 300
    fragments = [*range(len(long)), *[len(long)] * len(short), *range(100, 400)]
    packed = pack_cases([Case(genome[:100], [], [*long, *short, *many], 2.0, fragments)])
    run = check(device, packed, WalkParams(33), kernel)
    assert run.extensions.support.max() == 255
    assert run.extensions.support.min() < 4


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


def test_ends_that_the_kernels_refuse_go_to_the_cpu(
    device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(8)
    packed = with_long_read(pack_cases([random_case(rng, 33) for _ in range(6)]), 5)
    params = WalkParams(33, 100)
    wanted = cpu.extend_partition(packed, params)
    for limit in (launch_fast.MAX_END_WORDS, 1 << 40):  # known before, and found by the kernels
        monkeypatch.setattr(launch_fast, "MAX_END_WORDS", limit)
        run = gpu.run_partition(packed, params, device=device)
        assert_same(run.extensions, wanted)
        assert run.statistics.ends_on_cpu == 2
