"""What the GPU engine does on the host: planning, memory, addresses, gathering. No device."""

from __future__ import annotations

import random
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from adversarial import random_case
from ends import pack_cases
from host_device import GARBAGE, HostDevice
from hypothesis import assume, given
from hypothesis import strategies as st

import dlasm
from dlasm.arrays import GROUPS
from dlasm.engines import choose, cpu, gpu
from dlasm.engines.batches import Sizes, next_batch
from dlasm.engines.cpu import Extensions
from dlasm.engines.device import OUT_OF_MEMORY, Device, device_errors
from dlasm.errors import EngineError, ParameterError
from dlasm.kernels import launch_fast, launch_tables
from dlasm.kernels.loader import MODULES, module_source
from dlasm.pack import PackedPartition
from dlasm.params import OUTCOMES, PARTITION_BYTES, WalkParams

K = 33
PARAMS = WalkParams(K, 100)
_rng = random.Random(1)
CASES = [random_case(_rng, K) for _ in range(80)]


@pytest.fixture(scope="module")
def packed() -> PackedPartition:
    return pack_cases(CASES)


@pytest.fixture(scope="module")
def wanted(packed: PackedPartition) -> Extensions:
    return cpu.extend_partition(packed, PARAMS)


def assert_same(found: Extensions, wanted: Extensions) -> None:
    for name in ("walk_offsets", "walk_values", "support", "k", "outcome", "cut"):
        got, want = getattr(found, name), getattr(wanted, name)
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, name)


# -- whole partitions ------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_one_batch(packed: PackedPartition, wanted: Extensions, kernel: str) -> None:
    device = HostDevice()
    run = gpu.run_partition(packed, PARAMS, kernel=kernel, device=device)
    assert_same(run.extensions, wanted)
    assert run.statistics.batches == 1
    assert run.statistics.ends_on_cpu == run.statistics.halved == run.statistics.repeated == 0
    inputs = Sizes(packed).input_bytes(0, len(packed.depth))
    assert inputs <= run.statistics.bytes_in
    assert run.statistics.bytes_out >= len(wanted.walk_values) + 7 * len(wanted.k)
    assert sum(run.statistics.launch_ms.values()) == run.statistics.kernel_ms
    assert device.held == 0


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("batch_bytes", [0, 2000, 30_000])
def test_many_batches(
    packed: PackedPartition, wanted: Extensions, kernel: str, batch_bytes: int
) -> None:
    device = HostDevice()
    run = gpu.run_partition(packed, PARAMS, kernel=kernel, device=device, batch_bytes=batch_bytes)
    assert_same(run.extensions, wanted)
    assert run.statistics.batches > 3
    assert device.held == 0


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("batch_bytes", [2000, 1 << 24])
def test_walks_are_cut_for_want_of_support(
    packed: PackedPartition, kernel: str, batch_bytes: int
) -> None:
    for least in (2, 3, 255):
        params = WalkParams(K, 100, min_support=least)
        run = gpu.run_partition(
            packed, params, kernel=kernel, device=HostDevice(), batch_bytes=batch_bytes
        )
        wanted = cpu.extend_partition(packed, params)
        assert_same(run.extensions, wanted)
        assert wanted.cut.any()
    assert not wanted.walk_values.size


@pytest.mark.parametrize("memory", [0, 20_000, 60_000, 2_000_000])
def test_contigs_that_do_not_fit_go_to_the_cpu(
    packed: PackedPartition, wanted: Extensions, memory: int
) -> None:
    run = gpu.run_partition(packed, PARAMS, kernel="v2", device=HostDevice(), memory=memory)
    assert_same(run.extensions, wanted)
    on_cpu = run.statistics.ends_on_cpu
    assert on_cpu == 2 * len(packed.depth) if memory == 0 else on_cpu < 2 * len(packed.depth)
    assert (on_cpu == 0) == (memory == 2_000_000)


def test_a_contig_that_needs_the_whole_memory_runs_alone(packed: PackedPartition) -> None:
    family = gpu.TableKernels(packed, PARAMS, "v2")
    largest = max(range(len(packed.depth)), key=lambda c: family.extra_bytes(c, c + 1))
    memory = family.extra_bytes(largest, largest + 1) + Sizes(packed).input_bytes(
        largest, largest + 1
    )
    device = HostDevice(2 * memory)
    run = gpu.run_partition(packed, PARAMS, kernel="v2", device=device, memory=memory + 20_000)
    assert_same(run.extensions, cpu.extend_partition(packed, PARAMS))
    assert run.statistics.ends_on_cpu == run.statistics.halved == 0


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("failures", [1, 2, 5])
def test_out_of_memory_halves_the_batch(
    packed: PackedPartition, wanted: Extensions, kernel: str, failures: int
) -> None:
    device = HostDevice(failures=failures)
    run = gpu.run_partition(packed, PARAMS, kernel=kernel, device=device)
    assert_same(run.extensions, wanted)
    assert run.statistics.halved == failures
    assert device.held == 0


def test_few_failures_leave_batches_of_several_contigs(
    packed: PackedPartition, wanted: Extensions
) -> None:
    # on a large device nearly all memory of a batch is scratch space, however few its contigs are
    device = HostDevice(failures=4)
    device.multiprocessors = 132
    contigs = len(packed.depth)
    run = gpu.run_partition(packed, PARAMS, device=device)
    assert_same(run.extensions, wanted)
    assert run.statistics.ends_on_cpu == 0
    assert run.statistics.batches <= 2 * 2**4
    assert run.statistics.batches < contigs // 2


def test_memory_that_is_not_what_it_seemed(packed: PackedPartition, wanted: Extensions) -> None:
    device = HostDevice(memory=1_000_000)
    run = gpu.run_partition(packed, PARAMS, kernel="v1", device=device, memory=1 << 30)
    assert_same(run.extensions, wanted)
    assert run.statistics.halved > 0
    assert run.statistics.batches > 1
    assert run.statistics.ends_on_cpu == 0


def test_batches_grow_again_after_a_transient_failure(
    packed: PackedPartition, wanted: Extensions
) -> None:
    how: dict[str, Any] = {"kernel": "v2", "memory": 700_000}
    smooth = gpu.run_partition(packed, PARAMS, device=HostDevice(), **how)
    assert smooth.statistics.batches > 20
    for failures in (1, 2, 3):
        run = gpu.run_partition(packed, PARAMS, device=HostDevice(failures=failures), **how)
        assert_same(run.extensions, wanted)
        assert run.statistics.halved == failures
        # each failure costs a few small batches, not small batches to the end
        assert run.statistics.batches <= smooth.statistics.batches + 4 * failures
        assert smooth.statistics.ends_on_cpu == 0
        assert run.statistics.ends_on_cpu <= 2 * failures  # of contigs that ran out alone


def test_a_lasting_shortage_costs_few_failures(packed: PackedPartition, wanted: Extensions) -> None:
    device = HostDevice(memory=400_000)
    run = gpu.run_partition(packed, PARAMS, kernel="v2", device=device, memory=1 << 30)
    assert_same(run.extensions, wanted)
    assert run.statistics.batches > 20
    assert 0 < run.statistics.halved < run.statistics.batches


def out_of_memory(name: str) -> RuntimeError:
    return RuntimeError(f"{name}: out of memory")


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("fails", [{0}, {1}, {2, 3}, {0, 1, 4, 5, 9}])
@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_out_of_memory_at_a_launch_halves_the_batch(
    packed: PackedPartition, wanted: Extensions, kernel: str, fails: set[int], name: str
) -> None:
    class Failing(HostDevice):
        tried = 0

        def launch(self, *what: Any) -> None:
            self.tried += 1
            if self.tried - 1 in fails:
                raise out_of_memory(name)
            super().launch(*what)

    device = Failing()
    run = gpu.run_partition(packed, PARAMS, kernel=kernel, device=device, batch_bytes=60_000)
    assert_same(run.extensions, wanted)
    assert run.statistics.halved == len(fails)
    assert run.statistics.ends_on_cpu == 0
    assert device.held == 0
    assert device.is_idle()


def test_what_the_pool_keeps_is_given_back_for_kernels(
    packed: PackedPartition, wanted: Extensions
) -> None:
    device = HostDevice(memory=1_400_000)
    device.reserve = 600_000
    run = gpu.run_partition(packed, PARAMS, kernel="v2", device=device, memory=1_400_000)
    assert_same(run.extensions, wanted)
    assert run.statistics.halved > 0
    assert run.statistics.ends_on_cpu == 0


def test_kernels_that_never_start_leave_all_to_the_cpu(
    packed: PackedPartition, wanted: Extensions
) -> None:
    device = HostDevice()
    device.reserve = 1 << 40
    run = gpu.run_partition(packed, PARAMS, device=device)
    assert_same(run.extensions, wanted)
    assert run.statistics.ends_on_cpu == 2 * len(packed.depth)
    assert run.statistics.batches == 0
    assert device.is_idle()  # so that the partition's memory may go


def test_no_memory_for_the_kernels(packed: PackedPartition, wanted: Extensions) -> None:
    device = HostDevice()
    device.load_failures = 1  # until what others left is given back
    assert_same(gpu.run_partition(packed, PARAMS, device=device).extensions, wanted)
    device.load_failures = 2
    with pytest.raises(EngineError, match=r"no memory is left to start on CUDA device 0: .*--gpus"):
        gpu.run_partition(packed, PARAMS, device=device)
    assert_same(gpu.run_partition(packed, PARAMS, device=device).extensions, wanted)


def test_no_pinned_memory(packed: PackedPartition, wanted: Extensions) -> None:
    device = HostDevice()
    device.pinned_memory = 3 * gpu.PIECE_BYTES
    with pytest.raises(EngineError, match=r"no memory is left to start on CUDA device 0: .*pinned"):
        gpu.run_partition(packed, PARAMS, device=device)
    assert device.session is None
    # enough for staging and for the results of a few contigs at a time
    device = HostDevice()
    device.pinned_memory = gpu.PIECES * gpu.PIECE_BYTES + 3000
    run = gpu.run_partition(packed, PARAMS, device=device)
    assert_same(run.extensions, wanted)
    assert run.statistics.halved > 0
    assert device.held == 0


SCRATCH = 1 << 26


@pytest.mark.parametrize("more", [(1 << 20, 0), (0, SCRATCH), (1 << 20, SCRATCH)])
def test_too_little_scratch_space_repeats_the_batch(
    packed: PackedPartition, wanted: Extensions, more: tuple[int, int]
) -> None:
    run = gpu.run_partition(packed, PARAMS, device=HostDevice(wanted=lambda _: more))
    assert_same(run.extensions, wanted)
    assert run.statistics.repeated == 1
    assert run.statistics.batches == 1


def test_later_batches_begin_with_the_scratch_space_that_earlier_ones_wanted(
    packed: PackedPartition, wanted: Extensions
) -> None:
    device = HostDevice(memory=1 << 40, wanted=lambda _: (1 << 20, SCRATCH))
    for repeated in (gpu.STREAMS, 0):  # those under way at the same time; none in the next one
        run = gpu.run_partition(packed, PARAMS, device=device, batch_bytes=20_000)
        assert_same(run.extensions, wanted)
        assert run.statistics.batches > 3
        assert run.statistics.repeated == repeated


def test_what_one_batch_wanted_is_forgotten_where_the_others_would_not_fit(
    packed: PackedPartition, wanted: Extensions
) -> None:
    first = iter([(0, 3 * SCRATCH)])
    device = HostDevice(memory=1 << 40, wanted=lambda _: next(first, (0, 0)))
    how: dict[str, Any] = {"memory": 5 * SCRATCH, "batch_bytes": 20_000}
    run = gpu.run_partition(packed, PARAMS, device=device, **how)
    assert_same(run.extensions, wanted)
    assert run.statistics.repeated == 1
    smooth = gpu.run_partition(packed, PARAMS, device=HostDevice(), **how)
    assert run.statistics.batches == smooth.statistics.batches


@pytest.mark.parametrize(
    ("memory", "on_cpu"), [(3 * SCRATCH, 0.0), (2 * SCRATCH, 0.0), (SCRATCH, 1.0)]
)
def test_scratch_space_that_is_wanted_is_held_against_the_memory(
    packed: PackedPartition, wanted: Extensions, memory: int, on_cpu: float
) -> None:
    device = HostDevice(memory=1 << 40, wanted=lambda _: (0, SCRATCH))
    run = gpu.run_partition(packed, PARAMS, device=device, memory=memory, batch_bytes=40_000)
    assert_same(run.extensions, wanted)
    assert device.most_held <= memory
    assert run.statistics.ends_on_cpu == on_cpu * 2 * len(packed.depth)


def test_contigs_that_want_too_much_together_are_parted(
    packed: PackedPartition, wanted: Extensions
) -> None:
    device = HostDevice(memory=1 << 40, wanted=lambda ends: (0, ends * SCRATCH // 32))
    run = gpu.run_partition(packed, PARAMS, device=device, memory=2 * SCRATCH)
    assert_same(run.extensions, wanted)
    assert device.most_held <= 2 * SCRATCH
    assert run.statistics.repeated > 0
    assert run.statistics.ends_on_cpu == 0


@pytest.mark.parametrize("refused", [0, 60, 200])
@pytest.mark.parametrize("batch_bytes", [5000, gpu.BATCH_BYTES])
def test_ends_that_the_kernels_refuse_go_to_the_cpu(
    packed: PackedPartition, wanted: Extensions, refused: int, batch_bytes: int
) -> None:
    device = HostDevice()
    device.refused = refused
    run = gpu.run_partition(packed, PARAMS, device=device, batch_bytes=batch_bytes)
    assert_same(run.extensions, wanted)
    contigs = (Sizes(packed).largest_end_words > refused).sum()
    assert run.statistics.ends_on_cpu == 2 * contigs > 0
    assert contigs < len(packed.depth)


def test_ends_too_large_for_the_fast_kernels(
    packed: PackedPartition, wanted: Extensions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_fast, "MAX_END_WORDS", 100)
    sizes = Sizes(packed).largest_end_words
    run = gpu.run_partition(packed, PARAMS, device=HostDevice())
    assert_same(run.extensions, wanted)
    assert run.statistics.ends_on_cpu == 2 * (sizes > 100).sum() > 0


@pytest.mark.parametrize("kernel", gpu.KERNELS)
@pytest.mark.parametrize("batch_bytes", [5000, gpu.BATCH_BYTES])
def test_offsets_past_32_bits(
    packed: PackedPartition, wanted: Extensions, kernel: str, batch_bytes: int
) -> None:
    shifted = replace(
        packed,
        read_start=packed.read_start + (1 << 33),
        word_offset=packed.word_offset + (1 << 35),
    )
    run = gpu.run_partition(
        shifted, PARAMS, kernel=kernel, device=HostDevice(), batch_bytes=batch_bytes
    )
    assert_same(run.extensions, wanted)
    run = gpu.run_partition(shifted, PARAMS, kernel=kernel, device=HostDevice(), memory=0)
    assert_same(run.extensions, wanted)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_nothing_to_do(packed: PackedPartition, kernel: str) -> None:
    empty = pack_cases([])
    run = gpu.run_partition(empty, PARAMS, kernel=kernel, device=HostDevice())
    assert_same(run.extensions, cpu.extend_partition(empty, PARAMS))
    assert run.statistics == gpu.GpuStatistics()
    bare = replace(packed, read_start=np.zeros_like(packed.read_start), **_no_reads())
    run = gpu.run_partition(bare, PARAMS, kernel=kernel, device=HostDevice())
    assert_same(run.extensions, cpu.extend_partition(bare, PARAMS))
    assert set(run.extensions.outcome) == {OUTCOMES.index("no_reads")}


def _no_reads() -> dict[str, np.ndarray]:
    return {
        "length": np.zeros(0, np.int32),
        "fragment": np.zeros(0, np.int64),
        "has_n": np.zeros(0, np.uint8),
        "word_offset": np.zeros(1, np.int64),
        "words": np.zeros(2, np.uint32),
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_staging_memory_is_used_again_only_when_it_was_copied(
    packed: PackedPartition,
    wanted: Extensions,
    kernel: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "PIECE_BYTES", 1000)
    device = HostDevice(seed=seed)
    for batch_bytes in (5000, 50_000, gpu.BATCH_BYTES):
        run = gpu.run_partition(
            packed, PARAMS, kernel=kernel, device=device, batch_bytes=batch_bytes
        )
        assert_same(run.extensions, wanted)


@pytest.mark.parametrize("kernel", gpu.KERNELS)
def test_a_partition_packed_into_pinned_memory_is_not_staged(
    packed: PackedPartition, wanted: Extensions, kernel: str
) -> None:
    device = HostDevice()
    pinned = pack_cases(CASES, buffer=partial(gpu.new_buffer, device=device))
    assert device.is_pinned(pinned.words)
    assert not device.is_pinned(packed.words)
    for each in (packed, pinned):
        assert_same(
            gpu.run_partition(each, PARAMS, kernel=kernel, device=device).extensions, wanted
        )
        staged = any((piece != GARBAGE).sum() > 10_000 for piece in device.session._pieces)
        assert staged == (each is packed)
        device.session = None
    device.pinned_memory = 0
    plain = gpu.new_buffer(1000, device)
    assert (plain.dtype, plain.shape) == (np.uint8, (1000,))
    assert not device.is_pinned(plain)


def test_tasks_pack_into_memory_of_the_engine(
    community: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, taken = [], []
    engine = choose.ENGINES["cpu"]

    def buffer(size: int, *, gpu: str | None) -> np.ndarray:
        given.append(engine.buffer(size, gpu=gpu))
        return given[-1]

    def extend(packed: PackedPartition, *what: Any, **options: Any) -> choose.EngineRun:
        taken.append(packed.words.base)
        return engine.extend(packed, *what, **options)

    changed = replace(engine, extend=extend, buffer=buffer)
    monkeypatch.setitem(choose.ENGINES, "cpu", changed)
    dlasm.extend(community.contigs_path, reads=community.reads_paths, output=tmp_path / "o")
    assert len(taken) == len(given) > 0
    for each in taken:
        assert any(each is one for one in given)


def test_what_is_kept_for_a_device_goes_with_it(packed: PackedPartition) -> None:
    device, other = HostDevice(), HostDevice()
    for each in (device, other, device):
        gpu.run_partition(packed, PARAMS, device=each)
    assert device.session is not other.session
    kept = weakref.ref(device.session)
    del device, each
    assert kept() is None
    assert other.session is not None


def test_a_device_serves_one_thread_at_a_time(packed: PackedPartition, wanted: Extensions) -> None:
    device = HostDevice()
    with ThreadPoolExecutor(4) as threads:
        runs = [
            threads.submit(
                gpu.run_partition, packed, PARAMS, kernel=kernel, device=device, batch_bytes=9000
            )
            for kernel in gpu.KERNELS * 2
        ]
    for run in runs:
        assert_same(run.result().extensions, wanted)


def test_a_partition_has_several_batches() -> None:
    assert PARTITION_BYTES >= gpu.STREAMS * gpu.BATCH_BYTES


def test_a_failing_launch_leaves_nothing_behind(
    packed: PackedPartition, wanted: Extensions
) -> None:
    class Failing(HostDevice):
        broken = True

        def launch(self, *what: Any) -> None:
            if self.broken and len(self.launches) > 3:
                raise EngineError("on purpose")
            super().launch(*what)

    device = Failing()
    with pytest.raises(EngineError, match="on purpose"):
        gpu.run_partition(packed, PARAMS, device=device, batch_bytes=2000)
    assert device.held == 0
    assert device.is_idle()
    device.broken = False
    run = gpu.run_partition(packed, PARAMS, device=device, batch_bytes=2000)
    assert_same(run.extensions, wanted)


def test_errors_of_the_driver_are_errors_of_the_engine(packed: PackedPartition) -> None:
    class Failing(HostDevice):
        def free_bytes(self) -> int:
            raise RuntimeError("cudaErrorDevicesUnavailable")

    with pytest.raises(EngineError, match="the GPU failed: cudaErrorDevicesUnavailable"):
        gpu.run_partition(packed, PARAMS, device=Failing())


def _break(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., PackedPartition]:
    return lambda packed: replace(packed, **{name: change(getattr(packed, name))})


@pytest.mark.parametrize(
    ("breaks", "message"),
    [
        (_break("clean_length", lambda x: x[:-1]), "clean_length: 159 ends where tail has 160"),
        (_break("depth", lambda x: x[:-2]), "78 contigs where contig has 80"),
        (_break("depth", lambda x: x.astype(np.int64)), "depth: type is int64, must be int32"),
        (_break("read_start", lambda x: x[:0]), "read_start: -1 ends where tail has 160"),
        (_break("tail_length", lambda x: x + 1), "0 to 128 bases"),
        (_break("clean_length", lambda x: x + 1), "after its last N"),
        (_break("read_start", lambda x: np.append(x[:-2], [x[-1] + 1, x[-1]])), "not ascending"),
        (_break("read_start", lambda x: np.append(x[:-1], x[-1] + 1)), "do not cover"),
        (_break("length", lambda x: x + 40), "do not fit"),
        (_break("length", lambda x: -x), "negative"),
        (_break("words", lambda x: x[:-1]), "padding"),
    ],
)
def test_partitions_that_contradict_themselves(
    packed: PackedPartition, breaks: Callable[..., PackedPartition], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        gpu.run_partition(breaks(packed), PARAMS, device=HostDevice())


DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint32", "float64", ">i4", ">i8")


def _broken_value(packed: PackedPartition, name: str, data: st.DataObject) -> np.ndarray:
    """An array of the right type and shape with a value that cannot be."""
    array = getattr(packed, name).copy()
    at = data.draw(st.integers(0, len(array) - 1))
    limits = np.iinfo(array.dtype)
    if name in ("depth", "length", "tail_length", "clean_length"):
        array[at] = data.draw(st.integers(limits.min, -1))
    if name == "tail_length":
        array[at] = data.draw(st.one_of(st.just(array[at]), st.integers(129, limits.max)))
    if name == "clean_length":
        array[at] = data.draw(st.one_of(st.just(array[at]), st.integers(129, limits.max)))
    if name == "length":
        array[at] = data.draw(st.one_of(st.just(array[at]), st.integers(2**16, limits.max)))
    if name == "fragment":
        end = int(np.searchsorted(packed.read_start, at, side="right")) - 1
        assume(at > packed.read_start[end])
        array[at] = data.draw(st.integers(limits.min, int(array[at - 1]) - 1))
    if name in ("read_start", "word_offset"):
        least = 1 if name == "word_offset" or at in (0, len(array) - 1) else len(array) * 2**10
        change = data.draw(st.integers(least, limits.max - int(array[at])))
        array[at] += data.draw(st.sampled_from((1, -1))) * change
    return array


@given(data=st.data())
def test_broken_partitions_are_refused(packed: PackedPartition, data: st.DataObject) -> None:
    names = sorted(GROUPS["packed"])
    how = data.draw(st.sampled_from(("type", "length", "dimensions", "value")))
    valued = {*names} - {"contig", "tail", "has_n", "words"}
    name = data.draw(st.sampled_from(sorted(valued) if how == "value" else names))
    array = getattr(packed, name)
    if how == "type":
        others = [dtype for dtype in DTYPES if np.dtype(dtype) != array.dtype]
        array = array.astype(data.draw(st.sampled_from(others)))
    elif how == "length":
        shorter, longer = range(len(array)), range(len(array) + 1, len(array) + 4)
        if name == "words":  # longer does no harm
            longer = range(0)
        length = data.draw(st.sampled_from([0, *shorter, *longer]))
        array = np.resize(array, (length, *array.shape[1:]))
    elif how == "dimensions":
        array = data.draw(st.sampled_from((array[None], array[..., None], array.ravel()[0])))
    else:
        array = _broken_value(packed, name, data)
    device = HostDevice()
    with pytest.raises(EngineError, match="the packed partition is not consistent"):
        gpu.run_partition(replace(packed, **{name: array}), PARAMS, device=device)
    assert device.session is None  # nothing was done


def test_unknown_kernel(packed: PackedPartition) -> None:
    with pytest.raises(ParameterError, match="v1, v2, fast"):
        gpu.extend_partition(packed, PARAMS, kernel="v3")


# -- planning --------------------------------------------------------------------------------------


@given(
    costs=st.lists(st.integers(0, 2**40), max_size=40),
    budget=st.integers(0, 2**42),
    data=st.data(),
)
def test_batches_are_as_long_as_they_may_be(
    costs: list[int], budget: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(costs)))
    last = next_batch(lambda stop: sum(costs[first:stop]), first, len(costs), budget)
    assert first <= last <= len(costs)
    assert sum(costs[first:last]) <= budget
    assert last == len(costs) or sum(costs[first : last + 1]) > budget


def test_sizes_past_32_bits(packed: PackedPartition) -> None:
    # as if every word were 2^20 words
    far = replace(packed, word_offset=packed.word_offset << 20)
    sizes, contigs = Sizes(far), len(packed.depth)
    assert sizes.words_of(0, contigs) == int(packed.word_offset[-1]) << 20 > 2**31
    assert sizes.input_bytes(0, contigs) > 4 * sizes.words_of(0, contigs)
    assert sizes.largest_end_words.dtype == np.int64


@given(
    lengths=st.lists(st.lists(st.integers(0, 300), max_size=12), min_size=2, max_size=12),
    k=st.integers(21, 121),
    limit=st.integers(1, 400),
)
def test_tables_have_room_for_every_mer(lengths: list[list[int]], k: int, limit: int) -> None:
    lengths = lengths[: len(lengths) // 2 * 2]
    read_start = np.cumsum([0, *map(len, lengths)], dtype=np.int64) + 2**33
    length = np.array([x for end in lengths for x in end], dtype=np.int32)
    tail_length = np.full(len(lengths), 128, dtype=np.int32)
    plan = launch_tables.plan_tables(read_start, length, tail_length, k, limit)
    lowest = launch_tables.lowest_rung(k)
    assert 21 <= lowest < 29
    assert (k - lowest) % 8 == 0
    slots, words = np.diff(plan.table_start), np.diff(plan.context_start)
    most = np.repeat(
        [max(len(a), len(b)) for a, b in zip(lengths[::2], lengths[1::2], strict=True)], 2
    )
    for end, reads in enumerate(lengths):
        mers = sum(max(0, x - lowest) for x in reads)
        if mers == 0:
            assert end not in plan.order
            assert slots[end] == words[end] == 0
            continue
        assert mers < slots[end] <= mers / 0.93 + 1
        assert words[end] == 2 * (-(-(128 + min(mers, limit)) // 16) + 2)
        at = plan.order.tolist().index(end)
        assert (at >= plan.bin_2) == (most[end] >= 10)
    assert plan.slots == slots.sum()
    assert len(set(plan.order.tolist())) == len(plan.order)


def test_table_sizes_past_32_bits() -> None:
    read_start = np.array([0, 3000, 3000], dtype=np.int64)
    length = np.full(3000, 2**30, dtype=np.int32)
    plan = launch_tables.plan_tables(
        read_start, length, np.array([128, 128], dtype=np.int32), 77, 613
    )
    assert plan.slots == -(-100 * 3000 * (2**30 - 21) // 93) > 2**41


# -- sources ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_sources_hold_their_headers_once(module: str) -> None:
    source = module_source(module)
    assert "#include" not in source
    assert "#pragma once" not in source
    assert source.count("struct Ladder {") == 1
    assert 'extern "C"' in source


def test_unknown_module() -> None:
    with pytest.raises(EngineError, match="extend_tables"):
        module_source("extend")


def test_importing_the_engine_touches_no_gpu_library() -> None:
    code = (
        "import sys; import dlasm.engines.gpu, dlasm.kernels.loader; "
        "print([m for m in ('cupy', 'cuda') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# -- devices that cannot be used -------------------------------------------------------------------


def asked() -> list[Callable[[], object]]:
    """Ways to ask for a device."""
    return [
        Device.current,
        partial(Device.of, "GPU-1"),
        partial(gpu.extend_partition, pack_cases([]), PARAMS),
        partial(choose.prepare, "gpu"),
        partial(choose.new_buffer, "gpu", 100, gpu="GPU-1"),
    ]


def test_without_cupy_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for ask in asked():
        with pytest.raises(
            EngineError,
            match=r"^the GPU engine needs CuPy.*pip install '\.\[gpu\]'.*\.\[gpu-cuda13\]",
        ):
            ask()


def fake_cupy(monkeypatch: pytest.MonkeyPatch, answer: Any, driver: int = 13000) -> None:
    """A CuPy for CUDA 13.2 whose runtime gives an answer, or fails."""

    def ask() -> int:
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return int(answer)

    runtime = SimpleNamespace(
        getDevice=ask,
        getDeviceCount=ask,
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: 13020,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))


TOO_OLD = (
    "cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version"
)


@pytest.mark.parametrize(
    ("answer", "driver", "message"),
    [
        (TOO_OLD, 0, r"^there is no NVIDIA driver here: install one.*--gpus none"),
        (TOO_OLD, 12020, "driver is of CUDA 12.2 and CuPy is for CUDA 13.2: update the driver"),
        ("cudaErrorNoDevice: none", 13000, r"shows this process no GPU; CUDA_VISIBLE_DEVICES is 7"),
        ("cudaErrorUnknown: unknown", 13000, "no usable CUDA device: cudaErrorUnknown"),
    ],
)
def test_without_a_device_the_error_says_why(
    answer: str, driver: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    fake_cupy(monkeypatch, answer, driver)
    for ask in asked():
        with pytest.raises(EngineError, match=message):
            ask()


def test_a_cupy_that_needs_the_driver_to_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libcuda.so.1: cannot open')")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EngineError, match=r"^there is no NVIDIA driver here"):
        Device.current()


def test_devices_that_this_process_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy(monkeypatch, 1)
    monkeypatch.setattr("dlasm.engines.device._uuid", lambda number: f"{number}1-f2")
    with pytest.raises(EngineError, match="CUDA device GPU-7 is not visible to this process: it"):
        Device.of("GPU-7")
    with pytest.raises(
        EngineError, match=r"MIG-11-f2 is not.* one instance; use --workers"
    ) as told:
        Device.of("MIG-11-f2")
    assert "it sees 01-f2" in str(told.value)


@pytest.mark.parametrize("name", OUT_OF_MEMORY)
def test_want_of_memory_is_told_from_other_errors(name: str) -> None:
    with pytest.raises(MemoryError, match=f"a test failed: {name}"), device_errors("a test failed"):
        raise out_of_memory(name)
    for error in ("CUDA_ERROR_LAUNCH_FAILED: out of memory", "cudaErrorUnknown: ", ""):
        with pytest.raises(EngineError, match="a test failed"), device_errors("a test failed"):
            raise RuntimeError(error)
    for error in (MemoryError("as it is"), EngineError("as it is"), TypeError("as it is")):
        with pytest.raises(type(error), match=r"^as it is$"), device_errors("a test failed"):
            raise error
