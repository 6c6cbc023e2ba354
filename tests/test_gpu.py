"""The kernels on a CUDA device against the CPU engine; run with ``pytest -m gpu``."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from adversarial import (
    Case,
    broken_run_case,
    random_bases,
    random_case,
    random_genome,
    simple_genome,
)
from conftest import shared_data
from ends import pack_cases, with_long_read
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Read, read_dump, reverse_complement

import dlasm.doctor as doctor
from dlasm.engines import cpu, gpu
from dlasm.engines.batches import TableKernels
from dlasm.engines.cpu import Extensions
from dlasm.engines.device import Device, device_errors
from dlasm.errors import EngineError
from dlasm.gpus import find_gpus
from dlasm.kernels import launch_fast
from dlasm.pack import PackedPartition
from dlasm.params import K_MAX, K_MIN, WalkParams
from dlasm.testing import ContigEnd, contig_ends

pytestmark = pytest.mark.gpu

START_K = (21, 33, 55, 77, 99)


def _why_no_device() -> str:
    try:
        Device.current()
    except EngineError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module", autouse=True)
def device() -> Device:
    why = _why_no_device()
    if why:
        pytest.skip(why)
    return Device.current()


def assert_same(found: Extensions, wanted: Extensions, what: object = "") -> None:
    for name in ("walk_offsets", "walk_values", "support", "k", "outcome", "cut"):
        got, want = getattr(found, name), getattr(wanted, name)
        assert got.dtype == want.dtype
        if name == "walk_offsets" and not np.array_equal(got, want):
            end = int(np.flatnonzero(np.diff(got) != np.diff(want))[0])
            ends = slice(end, end + 1)
            pytest.fail(
                f"{what}: end {end} has {np.diff(got)[end]} bases, k {found.k[ends]}, outcome "
                f"{found.outcome[ends]}; wanted {np.diff(want)[end]}, {wanted.k[ends]}, "
                f"{wanted.outcome[ends]}"
            )
        np.testing.assert_array_equal(got, want, f"{what} {name}")


def check(packed: PackedPartition, params: WalkParams, kernel: str, **how: Any) -> gpu.GpuRun:
    """Require the bytes of the CPU engine."""
    run = gpu.run_partition(packed, params, kernel=kernel, **how)
    assert_same(run.extensions, cpu.extend_partition(packed, params, 4), (kernel, params))
    return run


def cases_of(dump: Path) -> list[Case]:
    return [Case(c.sequence, c.left, c.right, float(c.depth)) for c in read_dump(dump)]


@pytest.fixture(scope="module")
def arcticsynth() -> PackedPartition:
    return pack_cases(cases_of(shared_data("arcticsynth", "candidates_k77.dat.gz")))


@pytest.fixture(scope="module")
def branches() -> PackedPartition:
    return pack_cases(cases_of(shared_data("synthetic", "branches_k77.dat.gz")))


@pytest.fixture(scope="module")
def few_branches() -> PackedPartition:
    """Some of them: v1 and v2 take long for each batch, however small it is."""
    return pack_cases(cases_of(shared_data("synthetic", "branches_k77.dat.gz"))[::40])


@cache
def random_partition(
    k: int, seed: int, draw: Callable[[random.Random, int], str]
) -> PackedPartition:
    """A partition of random ends, packed once for all kernels."""
    rng = random.Random(1000 * k + seed)
    return pack_cases([random_case(rng, k, draw) for _ in range(20)])


@pytest.fixture(scope="module")
def heavy_tail(tmp_path_factory: pytest.TempPathFactory) -> PackedPartition:
    """Few contigs with up to 3000 reads at an end among many with few or none."""
    dump = tmp_path_factory.mktemp("heavy") / "heavy.dat"
    tool = shared_data("..", "tools", "synthetic_candidates.py")
    shares = ["--frac0", "0.5", "--frac-mid", "0.48", "--frac-hi", "0.02"]
    size = ["--contigs", "1000", "--max-reads", "3000", "--seed", "7"]
    subprocess.run([sys.executable, tool, dump, *size, *shares], check=True)
    return pack_cases(cases_of(dump))


# -- the same bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("k", START_K)
def test_arcticsynth(arcticsynth: PackedPartition, kernel: str, k: int) -> None:
    run = check(arcticsynth, WalkParams(k), kernel)
    assert run.statistics.ends_on_cpu == 0


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("walk_limit", [613, 40])
@pytest.mark.parametrize("k", START_K)
def test_branches(branches: PackedPartition, kernel: str, k: int, walk_limit: int) -> None:
    run = check(branches, WalkParams(k, walk_limit), kernel)
    assert run.statistics.ends_on_cpu == 0


@pytest.mark.slow
@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("k", [21, 77])
def test_heavy_tail(heavy_tail: PackedPartition, kernel: str, k: int) -> None:
    run = check(heavy_tail, WalkParams(k), kernel)
    assert run.statistics.ends_on_cpu == 0


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_published_results(kernel: str) -> None:
    contigs = list(read_dump(shared_data("arcticsynth", "candidates_k77.dat.gz")))
    with gzip.open(shared_data("arcticsynth", "expected_k77.txt.gz"), "rt") as lines:
        wanted = [line.split() for line in lines]
    packed = pack_cases([Case(c.sequence, c.left, c.right, float(c.depth)) for c in contigs])
    found = gpu.extend_partition(packed, WalkParams(77), kernel=kernel)
    text, at = found.walk_values.tobytes().decode(), found.walk_offsets.tolist()
    for i, (contig, line) in enumerate(zip(contigs, wanted, strict=True)):
        left, right = text[at[2 * i] : at[2 * i + 1]], text[at[2 * i + 1] : at[2 * i + 2]]
        assert [contig.name, left + contig.sequence + right] == line


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("k", range(K_MIN, K_MAX + 1))
def test_random_ends_at_every_k(kernel: str, k: int) -> None:
    for seed, walk_limit in enumerate((613, 1 + 7 * k % 40)):
        packed = random_partition(k, seed, random_genome)
        check(packed, WalkParams(k, walk_limit), kernel)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("k", range(K_MIN, K_MAX + 1, 4))
def test_simple_ends(kernel: str, k: int) -> None:
    for seed, walk_limit in enumerate((613, 1 + 7 * k % 40)):
        packed = random_partition(k, seed, simple_genome)
        check(packed, WalkParams(k, walk_limit), kernel)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("k", [21, 34, 77, 121])
def test_a_run_that_one_read_leaves(kernel: str, k: int) -> None:
    run = check(pack_cases([broken_run_case(k)]), WalkParams(k), kernel)
    assert run.statistics.ends_on_cpu == 0


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@settings(max_examples=30)
@given(data=st.data(), k=st.sampled_from([21, 22, 29, 33, 37, 45, 61]), limit=st.integers(1, 60))
def test_structured_ends(kernel: str, data: st.DataObject, k: int, limit: int) -> None:
    ends: list[ContigEnd] = data.draw(st.lists(contig_ends(k), min_size=1, max_size=4))
    cases = []
    for end in ends:
        reads = [(bases, [ord(q) - 33 for q in quality]) for _, bases, quality in end.reads]
        cases.append(Case(end.sequence, reads[::-1], reads, end.depth))
    check(pack_cases(cases), WalkParams(k, limit), kernel)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_many_reads_of_a_repeat(kernel: str) -> None:
    rng = random.Random(5)
    cases = []
    for unit in (1, 2, 8, 30, 77, 140):
        genome = random_bases(rng, 150) + random_bases(rng, unit) * (900 // unit)
        starts = [rng.randint(0, 500) for _ in range(700)]
        reads: list[Read] = [(genome[s : s + 150], [40] * 150) for s in starts]
        mirrored = [(reverse_complement(bases), quality) for bases, quality in reads]
        cases.append(Case(genome[:200], mirrored, reads, 20.0))
    packed = pack_cases(cases)
    for k in (21, 45, 99):
        check(packed, WalkParams(k), kernel)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_long_reads_and_long_walks(kernel: str) -> None:
    rng = random.Random(6)
    genome = random_bases(rng, 120_000)
    reads: list[Read] = [
        (genome[s : s + 60_000], [40] * 60_000) for s in (100, 5_000, 30_000, 59_000)
    ]
    packed = pack_cases([Case(genome[:6_000], [], reads, 4.0)])
    run = check(packed, WalkParams(77, 100_000), kernel)
    assert len(run.extensions.walk_values) == 100_000


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("batch_bytes", [10_000, 25_000])
def test_small_batches(few_branches: PackedPartition, kernel: str, batch_bytes: int) -> None:
    run = check(few_branches, WalkParams(77), kernel, batch_bytes=batch_bytes)
    assert run.statistics.batches > 10


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_offsets_past_32_bits(branches: PackedPartition, kernel: str) -> None:
    far = replace(
        branches,
        read_start=branches.read_start + (1 << 33),
        word_offset=branches.word_offset + (1 << 36),
    )
    wanted = cpu.extend_partition(branches, WalkParams(77), 4)
    for batch_bytes in (3_000_000, gpu.BATCH_BYTES):
        run = gpu.run_partition(far, WalkParams(77), kernel=kernel, batch_bytes=batch_bytes)
        assert_same(run.extensions, wanted)
        assert run.statistics.ends_on_cpu == 0


@pytest.mark.parametrize("kernel", ["v1", "v2"])
def test_little_memory(few_branches: PackedPartition, kernel: str) -> None:
    params, contigs = WalkParams(77), len(few_branches.depth)
    tables = TableKernels(few_branches, params, kernel)
    sizes = sorted(tables.extra_bytes(contig, contig + 1) for contig in range(contigs))
    run = check(few_branches, params, kernel, memory=sizes[9 * contigs // 10])
    assert contigs // 10 <= run.statistics.ends_on_cpu // 2 < contigs // 2
    assert run.statistics.batches > 1


class FailingDevice(Device):
    """A device of which the first allocations fail, as they do when others use it too."""

    failures = 0

    def allocate(self, size: int, stream: Any) -> tuple[int, Any]:
        if self.failures > 0:
            self.failures -= 1
            raise MemoryError
        return super().allocate(size, stream)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("failures", [1, 4])
def test_out_of_memory(few_branches: PackedPartition, kernel: str, failures: int) -> None:
    device = FailingDevice(Device.current().number)
    device.failures = failures
    run = check(few_branches, WalkParams(77), kernel, device=device, batch_bytes=250_000)
    assert run.statistics.halved == failures
    assert run.statistics.ends_on_cpu == 0


def test_really_out_of_memory(branches: PackedPartition, device: Device) -> None:
    import cupy

    gpu.run_partition(branches, WalkParams(77), kernel="v2")  # loads the kernels
    hog = cupy.cuda.alloc(device.free_bytes() - (256 << 20))  # tables take 700 MB
    try:
        run = check(branches, WalkParams(77), "v2", memory=100 << 30, batch_bytes=1 << 30)
        assert run.statistics.halved > 0
        assert run.statistics.ends_on_cpu == 0
    finally:
        del hog
        cupy.get_default_memory_pool().free_all_blocks()


def test_ends_that_the_kernels_refuse(
    few_branches: PackedPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = with_long_read(few_branches, 7)
    monkeypatch.setattr(launch_fast, "MAX_END_WORDS", 1 << 40)  # so that they come there
    run = check(packed, WalkParams(77), "fast")
    assert run.statistics.ends_on_cpu == 2
    assert run.statistics.batches > 0


def test_want_of_memory_is_told_from_other_errors(device: Device) -> None:
    import cupy

    for error in (cupy.cuda.driver.CUDADriverError(2), cupy.cuda.runtime.CUDARuntimeError(2)):
        with pytest.raises(MemoryError, match="a test"), device_errors("a test"):
            raise error
    for error in (cupy.cuda.driver.CUDADriverError(1), cupy.cuda.runtime.CUDARuntimeError(1)):
        with pytest.raises(EngineError, match="a test"), device_errors("a test"):
            raise error
    with device.activated():
        with pytest.raises(MemoryError, match="pinned memory could not be allocated"):
            device.pinned(1 << 50)
        with pytest.raises(MemoryError):
            device.allocate(1 << 50, device.new_stream())
        cupy.cuda.runtime.deviceSynchronize()  # nothing of it lingers


def test_a_device_without_any_memory() -> None:
    """Another program has it all before the kernels are loaded."""
    code = """
import random
import cupy
import numpy as np
from adversarial import random_case
from ends import pack_cases
import dlasm.doctor as doctor
from dlasm.engines import cpu, gpu
from dlasm.errors import EngineError
from dlasm.params import WalkParams

runtime, size, taken = cupy.cuda.runtime, 1 << 34, []
while size >= 1 << 20:
    try:
        taken.append(runtime.malloc(size))
    except runtime.CUDARuntimeError:
        size //= 2
rng = random.Random(1)
packed = pack_cases([random_case(rng, 33) for _ in range(30)])
for kernel in gpu.KERNELS:
    try:
        run = gpu.run_partition(packed, WalkParams(33, 100), kernel=kernel)
    except EngineError as error:
        assert str(error).startswith("no memory is left to start on CUDA device"), error
        print(error)
        continue
    wanted = cpu.extend_partition(packed, WalkParams(33, 100))
    for name in ("walk_offsets", "walk_values", "support", "k", "outcome", "cut"):
        assert np.array_equal(getattr(run.extensions, name), getattr(wanted, name)), name
    print(run.statistics.ends_on_cpu, "of 60 ends on the CPU")
    assert run.statistics.ends_on_cpu > 0
print("good")
"""
    here = Path(__file__).parent
    # dlasm is where it was found first, or in this checkout
    path = os.pathsep.join(filter(None, [str(here), os.getenv("PYTHONPATH"), str(here.parent)]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    print(done.stdout)
    assert done.stdout.endswith("good\n"), done.stderr


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_pinned_partitions_are_copied_as_they_are(kernel: str) -> None:
    cases = cases_of(shared_data("synthetic", "branches_k77.dat.gz"))[::10]
    pinned = pack_cases(cases, buffer=gpu.new_buffer)
    plain = pack_cases(cases)
    assert Device.current().is_pinned(pinned.words)
    assert not Device.current().is_pinned(plain.words)
    for batch_bytes in (100_000, gpu.BATCH_BYTES):
        check(pinned, WalkParams(77), kernel, batch_bytes=batch_bytes)


# -- several devices, several threads --------------------------------------------------------------


def test_threads_share_a_device(few_branches: PackedPartition) -> None:
    params = WalkParams(77)
    wanted = cpu.extend_partition(few_branches, params)
    with ThreadPoolExecutor(4) as threads:
        runs = [
            threads.submit(gpu.run_partition, few_branches, params, batch_bytes=100_000)
            for _ in range(12)
        ]
    for run in runs:
        assert_same(run.result().extensions, wanted)


def test_all_devices_of_one_process_at_once(few_branches: PackedPartition) -> None:
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip(f"{count} CUDA device is visible to this process, and this test takes two")
    uuids = [Device(number).uuid for number in range(count)]
    assert len(set(uuids)) == count
    begin = Barrier(count)

    def work(number: int) -> list[Extensions]:
        current = cupy.cuda.runtime.getDevice()
        device = Device.of(f"GPU-{uuids[number]}")
        assert device.number == number
        begin.wait(60)
        found = []
        for round_ in range(8):
            kernel = gpu.KERNELS[round_ % len(gpu.KERNELS)]
            how: dict[str, Any] = {"kernel": kernel, "batch_bytes": 100_000 << round_ % 3}
            run = gpu.run_partition(few_branches, WalkParams(77), device=device, **how)
            assert run.statistics.ends_on_cpu == 0
            found.append(run.extensions)
        assert cupy.cuda.runtime.getDevice() == current
        return found

    wanted = cpu.extend_partition(few_branches, WalkParams(77), 4)
    with ThreadPoolExecutor(count) as threads:
        for number, found in enumerate(threads.map(work, range(count))):
            for extensions in found:
                assert_same(extensions, wanted, f"device {number}")
    sessions = [Device.of(f"GPU-{uuid}").session for uuid in uuids]
    assert len({id(session) for session in sessions}) == count


def test_a_device_that_is_not_there(device: Device) -> None:
    with pytest.raises(EngineError, match=f"not visible to this process: it sees.*{device.uuid}"):
        Device.of("GPU-00000000-0000-0000-0000-000000000000")


# -- statistics and start --------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_statistics(branches: PackedPartition, kernel: str) -> None:
    gpu.run_partition(branches, WalkParams(77), kernel=kernel)
    started = time.perf_counter()
    run = gpu.run_partition(branches, WalkParams(77), kernel=kernel, batch_bytes=1 << 30)
    wall_ms = 1000 * (time.perf_counter() - started)
    figures = run.statistics
    assert 0 < figures.kernel_ms < wall_ms
    assert sum(figures.launch_ms.values()) == pytest.approx(figures.kernel_ms, rel=0.1)
    assert figures.bytes_in >= branches.words.nbytes
    assert figures.bytes_out >= len(run.extensions.walk_values)
    assert figures.batches == 1


@pytest.fixture
def kernel_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_kernels_are_compiled_once_for_all_processes(kernel_cache: Path) -> None:
    code = """
import time
from dlasm.engines.device import Device
from dlasm.kernels.loader import load_module
device = Device.current()
with device.activated():
    device.free_bytes()  # makes the context
    started = time.perf_counter()
    load_module("extend_fast", device.number)
    print(time.perf_counter() - started)
"""
    compiled = []
    for start in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=dict(os.environ),
        )
        print(f"{start} start: {float(done.stdout):.3f} s")
        compiled.append({path: path.stat().st_mtime_ns for path in kernel_cache.rglob("*")})
    assert compiled[0]
    assert compiled[1] == compiled[0]


def test_the_doctor_compiles_and_runs_a_kernel(tmp_path: Path) -> None:
    gpus, why = find_gpus()
    assert not why
    answer = doctor._ask_gpu(gpus[0], str(tmp_path))
    assert answer.get("seconds", 0) > 0, answer
    assert list(tmp_path.iterdir())  # nothing was taken from the cache of the user
    found = {each.name: each for each in doctor.diagnose(tmp_path).findings}
    said = found[f"GPU {gpus[0].index}"].found
    assert gpus[0].name in said
    assert " GB free" in said or find_spec("pynvml") is None
    assert found[f"kernels on GPU {gpus[0].index}"].state == "ok"


def test_no_such_device() -> None:
    with pytest.raises(EngineError, match="CUDA device 99"):
        Device(99)
