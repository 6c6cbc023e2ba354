"""The GPU engine: a partition in batches through one CUDA device, copies beside kernels.

Phases of a batch: *plan* (consecutive contigs that fit into the free memory), *transfer* (through
pinned staging buffers), *launch*, and *gather* (walks spelled out and their support counted on the
device, both copied back, walks cut where they lack support).
Two batches are on their way at any time, each in a stream of its own, so the copies of one overlap
with the kernels of the other. When the device runs out of memory batches are halved, and grow again
as others succeed; a contig that does not fit alone, or that the kernels refuse, goes to the CPU
engine. The result is the CPU engine's, byte for byte.

Offsets and sizes are 64-bit throughout. A batch keeps the partition's own numbers of reads and
words: the addresses that kernels get are moved back by what lies before the batch.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import dlasm.kernels._cpu as _cpu
from dlasm import pack
from dlasm.arrays import GROUPS, validate
from dlasm.engines import cpu
from dlasm.engines.batches import (
    NO_GROWTH,
    Family,
    FastKernels,
    Sizes,
    TableKernels,
    layout,
    next_batch,
)
from dlasm.engines.cpu import Extensions
from dlasm.engines.device import Device, device_errors
from dlasm.errors import EngineError, ParameterError, StoreError
from dlasm.kernels import launch_fast
from dlasm.kernels.launch_tables import TAIL_BASES
from dlasm.pack import ALIGNMENT, BASES_PER_WORD, PADDING_WORDS, PackedPartition
from dlasm.params import DEFAULT_KERNEL, KERNELS, OUTCOMES, WalkParams

__all__ = [
    "KERNELS",
    "GpuRun",
    "GpuStatistics",
    "extend_partition",
    "new_buffer",
    "prepare",
    "run_partition",
]

BATCH_BYTES = 16 << 20
"""Input of a batch, bytes: enough to fill a device, small enough that a partition
(:data:`dlasm.params.PARTITION_BYTES`) has several, whose copies and kernels overlap."""

MEMORY_SHARE = 0.8
"""Part of the free device memory that batches may take; the rest is for walks and other users."""

STREAMS = 2
PIECE_BYTES = 4 << 20
PIECES = 8
"""Pinned staging: so many pieces of so many bytes, filled in turn."""

GROWTH = 1.5
"""How much more than it asked for a batch gets when its scratch space was too small."""

_NO_READS, _SHORT, _NO_WALK = (OUTCOMES.index(x) for x in ("no_reads", "short_contig", "no_walk"))


@dataclass
class GpuStatistics:
    """What it took to extend partitions; one object may gather several.

    Attributes
    ----------
    kernel_ms : float
        Time between the first and the last kernel that walks of each batch, summed, by CUDA events.
    launch_ms, gather_ms : dict of str to float
        The same for each of these kernels, and for those that count support and spell walks out.
    bytes_in, bytes_out : int
        Copied to and from the device.
    batches : int
        Batches that were finished.
    halved : int
        How often the device ran out of memory.
    repeated : int
        Batches run again because their walks needed more scratch space.
    ends_on_cpu : int
        Contig ends that went to the CPU engine because their contig did not fit or was refused.
    """

    kernel_ms: float = 0.0
    launch_ms: dict[str, float] = field(default_factory=dict)
    gather_ms: dict[str, float] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    batches: int = 0
    halved: int = 0
    repeated: int = 0
    ends_on_cpu: int = 0


@dataclass(frozen=True)
class GpuRun:
    """Extensions of a partition and what they took."""

    extensions: Extensions
    statistics: GpuStatistics


def extend_partition(
    packed: PackedPartition, params: WalkParams, threads: int = 1, *, kernel: str = DEFAULT_KERNEL
) -> Extensions:
    """Extend every end of a partition on the current CUDA device.

    Parameters
    ----------
    packed : PackedPartition
        The ends and their reads.
    params : WalkParams
        Start k, walk limit and least support.
    threads : int
        Native threads for contigs that do not fit on the device.
    kernel : str
        One of :data:`KERNELS`; the result does not depend on it.

    Returns
    -------
    Extensions
        In the order of the partition; the same bytes as :func:`dlasm.engines.cpu.extend_partition`.

    Raises
    ------
    EngineError
        If the arrays of ``packed`` contradict each other, or the device or CuPy fails.
    ParameterError
        If there is no such kernel.
    """
    return run_partition(packed, params, threads, kernel=kernel).extensions


def run_partition(
    packed: PackedPartition,
    params: WalkParams,
    threads: int = 1,
    *,
    kernel: str = DEFAULT_KERNEL,
    device: Device | None = None,
    memory: int | None = None,
    batch_bytes: int = BATCH_BYTES,
) -> GpuRun:
    """Extend every end of a partition and say what it took.

    Parameters
    ----------
    packed, params, threads, kernel
        As in :func:`extend_partition`.
    device : Device, optional
        The device; the current one of this process if not given.
    memory : int, optional
        Bytes of device memory to use at most; a share of what is free if not given.
    batch_bytes : int
        Input of a batch, bytes.

    Returns
    -------
    GpuRun
        The extensions, and the statistics of this call.
    """
    if kernel not in KERNELS:
        raise ParameterError(f"there is no kernel {kernel!r}; there are {', '.join(KERNELS)}")
    _check(packed)
    device = device or Device.current()
    with _working(device, kernel) as session:
        return _Run(device, session, packed, params, threads, kernel, memory, batch_bytes).run()


def prepare(kernel: str = DEFAULT_KERNEL, device: Device | None = None) -> str:
    """Make a CUDA context, the pinned memory and the kernels, as far as they are not there yet.

    Parameters
    ----------
    kernel : str
        One of :data:`KERNELS`.
    device : Device, optional
        The device; the current one of this process if not given.

    Returns
    -------
    str
        The UUID of the device, without the prefix that says what it is.

    Raises
    ------
    EngineError
        If CuPy or the device cannot be used.
    """
    device = device or Device.current()
    with _working(device, kernel):
        return device.uuid


def new_buffer(size: int, device: Device | None = None) -> np.ndarray:
    """Allocate host memory for a partition, from which a device copies without staging.

    Parameters
    ----------
    size : int
        Bytes.
    device : Device, optional
        The device; the current one of this process if not given.

    Returns
    -------
    numpy.ndarray
        uint8, shape (size,); memory like any other where no more can be pinned.
    """
    device = device or Device.current()
    with device_errors("the GPU failed"), device.activated():
        try:
            # of few different sizes: what is given back is kept for the next one of the same size
            return device.pinned(-(-size // PIECE_BYTES) * PIECE_BYTES)[:size]
        except MemoryError:
            return pack.new_buffer(size)


def _check(packed: PackedPartition) -> None:
    """Refuse arrays that contradict each other: kernels trust them."""
    try:
        validate("packed", {name: getattr(packed, name) for name in GROUPS["packed"]})
    except StoreError as error:
        raise EngineError(f"the packed partition is not consistent: {error}") from error
    for fault, found in _faults(packed):
        if found:
            raise EngineError(f"the packed partition is not consistent: {fault}")


def _faults(packed: PackedPartition) -> Iterator[tuple[str, bool]]:
    """Say what may be wrong with arrays of the right types, and whether it is."""
    reads = packed.read_start
    yield "arrays of different lengths", len(packed.tail_length) != 2 * len(packed.depth)
    yield "a depth is negative", _any(packed.depth < 0)
    yield (
        f"a tail has not from 0 to {TAIL_BASES} bases",
        _any((packed.tail_length < 0) | (packed.tail_length > TAIL_BASES)),
    )
    yield (
        "a tail has more bases after its last N than in all",
        _any((packed.clean_length < 0) | (packed.clean_length > packed.tail_length)),
    )
    yield "reads of an end are not ascending", _any(reads[1:] < reads[:-1])
    yield "offsets do not cover the reads", int(reads[-1]) - int(reads[0]) != len(packed.length)
    yield "a read has a negative length", _any(packed.length < 0)
    yield "the fragments of an end are not ascending", _fragments_fall(packed)
    words = 2 * -(-packed.length.astype(np.int64) // BASES_PER_WORD)
    first, last = int(packed.word_offset[0]), int(packed.word_offset[-1])
    yield (
        "a read's words do not fit its length",
        _any(np.diff(packed.word_offset) != words) or last - first != words.sum(),
    )
    yield (
        "the words lack two words of padding",
        last - first > len(packed.words) - PADDING_WORDS,
    )


def _fragments_fall(packed: PackedPartition) -> bool:
    falls = packed.fragment[1:] < packed.fragment[:-1]
    begins = packed.read_start - packed.read_start[0]
    falls[begins[(begins > 0) & (begins <= len(falls))] - 1] = False  # from one end to the next
    return _any(falls)


def _any(found: np.ndarray) -> bool:
    return bool(found.any())


# -- what is kept between partitions -------------------------------------------------------------


class _Slot:
    """A stream and what the batch in it holds."""

    def __init__(self, device: Device) -> None:
        self.stream = device.new_stream()
        self.batch: _Batch | None = None
        self._host = np.empty(0, dtype=np.uint8)

    def host(self, size: int, device: Device) -> np.ndarray:
        """Return pinned memory for what comes back; it is used again."""
        if len(self._host) < size:
            self._host = device.pinned(max(size, 2 * len(self._host)))
        return self._host[:size]


class _Session:
    """Streams and pinned memory of a device, used by one partition at a time.

    It is kept by the device, and so does not refer to it.
    """

    def __init__(self, device: Device) -> None:
        self.slots = [_Slot(device) for _ in range(STREAMS)]
        self.growth: dict[str, tuple[float, float]] = {}  # by module
        self._pieces = [device.pinned(PIECE_BYTES) for _ in range(PIECES)]
        self._events: list[Any] = [None] * PIECES
        self._turn = 0

    def copy_in(self, device: Device, address: int, array: np.ndarray, stream: Any) -> None:
        """Queue a copy to the device; ``array`` may change afterwards unless it is pinned."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if device.is_pinned(content):
            device.copy_in(address, content, stream)
            return
        for begin in range(0, len(content), PIECE_BYTES):
            part = content[begin : begin + PIECE_BYTES]
            turn, self._turn = self._turn, (self._turn + 1) % PIECES
            if self._events[turn] is not None:
                device.wait(self._events[turn])
            piece = self._pieces[turn][: len(part)]
            piece[:] = part
            device.copy_in(address + begin, piece, stream)
            self._events[turn] = device.record(stream)


def _module(kernel: str) -> str:
    return FastKernels.module if kernel == "fast" else TableKernels.module


@contextlib.contextmanager
def _working(device: Device, kernel: str) -> Iterator[_Session]:
    """Take a device, with what is kept for it and a kernel that is loaded."""
    with device_errors("the GPU failed"), device.lock, device.activated():
        _start(device, kernel)
        yield device.session


def _start(device: Device, kernel: str) -> None:
    """Make what is kept for a device and load a kernel, as far as that is not done."""
    for again in (True, False):
        try:
            with device_errors("the GPU failed"):
                if device.session is None:
                    device.session = _Session(device)
                device.load(_module(kernel))
            return
        except MemoryError as error:
            if not again:
                raise EngineError(
                    f"no memory is left to start on CUDA device {device.number}: {error}; end "
                    "other programs that use it, or do without GPUs (--gpus none)"
                ) from error
        device.release()  # what other kernels left


# -- a partition ---------------------------------------------------------------------------------


@dataclass
class _Batch:
    """Contigs [first, last) on the device."""

    first: int
    last: int
    owner: Any  # of the memory
    record: np.ndarray  # struct Batch
    offsets_address: int
    returned: Mapping[str, np.ndarray]  # views of what comes back
    events: list[Any]
    labels: list[str]
    space: tuple[int, int]  # words of walk area and bytes of scratch space

    def wanted(self) -> tuple[int, int] | None:
        """How much space to run it again with, None if it had enough."""
        wanted = int(self.returned["counters"][0]), int(self.returned["counters"][1])
        if wanted[0] <= self.space[0] and wanted[1] <= self.space[1]:
            return None
        return int(GROWTH * wanted[0]), int(GROWTH * wanted[1])


_OUT = ("walk_length", "walk_k", "outcome", "counters")


class _Run:
    """One partition on its way through a device."""

    def __init__(
        self,
        device: Device,
        session: _Session,
        packed: PackedPartition,
        params: WalkParams,
        threads: int,
        kernel: str,
        memory: int | None,
        batch_bytes: int,
    ) -> None:
        self.device = device
        self.session = session
        self.packed = packed
        self.params = params
        self.threads = threads
        self.sizes = Sizes(packed)
        self.family: Family = (
            FastKernels(self.sizes, params, self.device.multiprocessors)
            if kernel == "fast"
            else TableKernels(packed, params, kernel)
        )
        self.family.growth = session.growth.get(self.family.module, NO_GROWTH)
        self.fits = self.family.fits()
        if memory is None:
            memory = int(MEMORY_SHARE * self.device.free_bytes())
        self.memory = memory
        self.budget = memory // STREAMS
        self.successes = 0  # since the budget was last changed
        self.batch_bytes = batch_bytes
        self.statistics = GpuStatistics()
        self.parts: dict[int, Extensions] = {}
        self.left: list[tuple[int, int]] = [(0, self.sizes.contigs)]  # the next ones at the end

    def run(self) -> GpuRun:
        """Go through all contigs."""
        turn = 0
        try:
            while self.left or any(slot.batch for slot in self.session.slots):
                slot = self.session.slots[turn]
                turn = (turn + 1) % STREAMS
                if slot.batch:
                    self.finish(slot)
                self.start_next(slot)
        except BaseException:
            self._abandon()
            raise
        return GpuRun(self._joined(), self.statistics)

    # -- plan ----------------------------------------------------------------------------------

    def cost(self, first: int, last: int, wanted: tuple[int, int] = (0, 0)) -> int:
        """Device memory that contigs [first, last) take, bytes."""
        return (
            self.sizes.input_bytes(first, last)
            + self.sizes.result_bytes(first, last)
            + self.family.extra_bytes(first, last, wanted)
            + 32 * ALIGNMENT
        )

    def start_next(self, slot: _Slot) -> None:
        """Put the next contigs into a slot, or into the CPU engine those that do not fit."""
        while self.left:
            first, end = self.left.pop()
            if first == end:
                continue
            if not self.fits[first]:
                self.left.append((first + 1, end))
                self.extend_on_cpu(first, first + 1)
                continue
            barred = np.flatnonzero(~self.fits[first:end])
            stop = first + int(barred[0]) if len(barred) else end
            last = self.plan_batch(first, stop)
            if last == first and self.family.growth != NO_GROWTH:
                self.remember(NO_GROWTH)  # not all need as much as those that needed most
                last = self.plan_batch(first, stop)
            alone = last == first
            if alone:  # it may have the whole memory
                last = first + 1
            self.left.append((last, end))
            if self.cost(first, last) > self.memory:
                self.extend_on_cpu(first, last)
                continue
            if alone:
                self.free_all()
            if self.start(slot, first, last):
                if not alone:
                    return
                self.finish(slot)

    def plan_batch(self, first: int, stop: int) -> int:
        """Return where the next batch from ``first`` on ends; ``first`` if nothing fits."""
        last = next_batch(lambda stop: self.cost(first, stop), first, stop, self.budget)
        by_input = next_batch(
            lambda stop: self.sizes.input_bytes(first, stop), first, last, self.batch_bytes
        )
        return min(last, max(by_input, first + 1))

    def remember(self, growth: tuple[float, float]) -> None:
        """Give following batches, those of other partitions too, so much more space."""
        self.family.growth = self.session.growth[self.family.module] = growth

    def ran_out(self, first: int, last: int) -> None:
        """Put contigs back for which the device has no memory; smaller batches from now on.

        Batches get half of the contigs, or half of what contigs cost if that is more: most of the
        cost may be of one contig, and scratch space for few contigs is nearly that for many. A
        contig that ran out alone, with nothing else on the device, goes to the CPU engine.
        """
        gc.collect()  # of the error: Python 3.13 keeps its frames, and their memory, in a cycle
        alone = not any(slot.batch for slot in self.session.slots)
        self.free_all()  # what is on the device may be all that is missing
        self.statistics.halved += 1
        self.successes = 0
        fixed = self.cost(first, first)
        half_of_cost = fixed + (self.cost(first, last) - fixed) // 2
        half_of_contigs = self.cost(first, (first + last) // 2)
        self.budget = min(self.budget, max(half_of_cost, half_of_contigs))
        if alone and last - first == 1:
            self.extend_on_cpu(first, last)
        else:
            self.put_back(first, last)

    def put_back(self, first: int, last: int) -> None:
        """Put contigs back, to be done in two batches at least unless it is one."""
        middle = (first + last + 1) // 2
        self.left += [(middle, last), (first, middle)]

    def succeeded(self) -> None:
        """Let batches grow again when the device has had memory for some.

        The more often it ran out, the more must succeed, so that a lasting shortage costs little.
        """
        self.successes += 1
        if self.successes >= self.statistics.halved:
            self.budget = min(2 * self.budget, self.memory // STREAMS)
            self.successes = 0

    # -- transfer and launch -------------------------------------------------------------------

    def start(self, slot: _Slot, first: int, last: int, wanted: tuple[int, int] = (0, 0)) -> bool:
        """Queue a batch; False if there was no memory, and its contigs were put back."""
        try:
            with device_errors("the GPU failed"):
                slot.batch = self._queue(slot, first, last, wanted)
            return True
        except MemoryError:
            self.device.synchronize(slot.stream)  # what was queued still uses the batch's memory
        self.ran_out(first, last)  # only now, as the error kept that memory
        return False

    def start_again(self, slot: _Slot, first: int, last: int, wanted: tuple[int, int]) -> None:
        """Run a batch with the space that it was found to want, if there is so much."""
        self.statistics.repeated += 1
        cost = self.cost(first, last, wanted)
        if cost > self.memory:
            if last - first == 1:
                self.extend_on_cpu(first, last)
            else:
                self.put_back(first, last)
            return
        self.family.learn(first, last, wanted)
        self.remember(self.family.growth)
        if cost > self.budget:
            self.free_all()
        if self.start(slot, first, last, wanted):
            self.finish(slot)

    def _inputs(self, first: int, last: int) -> dict[str, tuple[np.ndarray, int]]:
        """Arrays of a batch, and the number of the first element as the kernels count."""
        packed = self.packed
        ends = slice(2 * first, 2 * last)
        first_read, last_read = (int(packed.read_start[2 * c]) for c in (first, last))
        reads = slice(*(r - int(packed.read_start[0]) for r in (first_read, last_read)))
        first_word = int(packed.word_offset[reads.start])
        begin, stop = (
            int(packed.word_offset[r] - packed.word_offset[0]) for r in (reads.start, reads.stop)
        )
        return {
            "depth": (packed.depth[first:last], 0),
            "tail": (packed.tail[ends], 0),
            "tail_length": (packed.tail_length[ends], 0),
            "clean_length": (packed.clean_length[ends], 0),
            "read_start": (packed.read_start[2 * first : 2 * last + 1], 0),
            "length": (packed.length[reads], first_read),
            "fragment": (packed.fragment[reads], first_read),
            "has_n": (packed.has_n[reads], first_read),
            "word_offset": (packed.word_offset[reads.start : reads.stop + 1], first_read),
            "words": (packed.words[begin : stop + PADDING_WORDS], first_word),
        }

    def _queue(self, slot: _Slot, first: int, last: int, wanted: tuple[int, int]) -> _Batch:
        """Queue the copies and kernels of contigs [first, last)."""
        device, stream = self.device, slot.stream
        ends = 2 * (last - first)
        work = self.family.prepare(first, last, wanted)
        inputs = self._inputs(first, last)
        sizes = {name: array.nbytes for name, (array, _) in inputs.items()}
        sizes |= {"walk_length": 4 * ends, "walk_k": 2 * ends, "outcome": ends}
        sizes |= {"counters": 8 * launch_fast.COUNTERS}  # up to here it is cleared and comes back
        sizes |= {"walk_head": 8 * ends, "walk_start": 8 * ends, "walk_offsets": 8 * (ends + 1)}
        sizes |= {"walk_area": 4 * work.walk_area_words, "scratch": work.scratch_bytes}
        places, total = layout(sizes)
        base, owner = device.allocate(total, stream)

        record = np.zeros(1, dtype=launch_fast.BATCH)
        for name, place in places.items():
            if name != "walk_offsets":
                record[name] = base + place
        for name, (array, number) in inputs.items():
            self.session.copy_in(device, base + places[name], array, stream)
            self.statistics.bytes_in += array.nbytes
            # element `number` is the first one there
            record[name] = (base + places[name] - array.itemsize * number) % 2**64
        for place, array in work.uploads.items():
            self.session.copy_in(device, base + places["scratch"] + place, array, stream)
            self.statistics.bytes_in += array.nbytes
        record["ends"] = ends
        record["start_k"], record["walk_limit"] = self.params.k, self.params.walk_limit
        record["walk_area_words"] = work.walk_area_words
        record["scratch_bytes"] = work.scratch_bytes

        begin, stop = places["walk_length"], places["walk_head"]
        device.clear(base + begin, stop - begin, stream)
        launches = work.launches(base + places["scratch"])
        host = slot.host(stop - begin, device)
        events = [device.record(stream, timed=True)]  # nothing but launches from here on
        for launch in launches:
            device.launch(self.family.module, launch, (record, *launch.more), stream)
            events.append(device.record(stream, timed=True))
        device.copy_out(host, base + begin, stream)
        self.statistics.bytes_out += len(host)
        types = {
            "walk_length": np.int32,
            "walk_k": np.int16,
            "outcome": np.uint8,
            "counters": np.uint64,
        }
        returned = {
            name: host[places[name] - begin :][: sizes[name]].view(types[name]) for name in _OUT
        }
        return _Batch(
            first=first,
            last=last,
            owner=owner,
            record=record,
            offsets_address=base + places["walk_offsets"],
            returned=returned,
            events=events,
            labels=[launch.label or launch.kernel for launch in launches],
            space=(work.walk_area_words, work.scratch_bytes),
        )

    # -- gather --------------------------------------------------------------------------------

    def free_all(self) -> None:
        """Finish what is on the device, so that all of its memory is free for whatever it is."""
        for slot in self.session.slots:
            if slot.batch:
                self.finish(slot)
        self.device.release()

    def finish(self, slot: _Slot) -> None:
        """Wait for a batch and take its walks; run it again if its scratch space was too small."""
        batch, slot.batch = slot.batch, None
        assert batch is not None
        first, last = batch.first, batch.last
        found = wanted = None
        try:
            with device_errors("the GPU failed"):
                self.device.synchronize(slot.stream)
                wanted = batch.wanted()
                if wanted is None:
                    found = self._gather(slot, batch)
        except MemoryError:
            self.device.synchronize(slot.stream)
        if found is None:
            del batch  # and its memory
            if wanted is None:
                self.ran_out(first, last)
            else:
                self.start_again(slot, first, last, wanted)
            return
        self.succeeded()
        self.statistics.batches += 1
        events = batch.events
        self.statistics.kernel_ms += self.device.milliseconds(events[0], events[-1])
        self._add_times(self.statistics.launch_ms, batch.labels, events)
        self._keep(first, found)

    def _add_times(self, taken: dict[str, float], labels: list[str], events: list[Any]) -> None:
        """Add the time between events to what the launches between them took."""
        for label, start, stop in zip(labels, events, events[1:], strict=False):
            taken[label] = taken.get(label, 0.0) + self.device.milliseconds(start, stop)

    def _keep(self, first: int, found: Extensions) -> None:
        """Keep the walks of contigs from ``first`` on; refused ones go to the CPU engine."""
        refused = (found.outcome == launch_fast.TOO_LARGE).reshape(-1, 2).any(axis=1)
        begin = 0
        for contig in [*np.flatnonzero(refused).tolist(), len(refused)]:
            if contig > begin:
                self.parts[first + begin] = _contigs_of(found, begin, contig)
            if contig < len(refused):
                self.extend_on_cpu(first + contig, first + contig + 1)
            begin = contig + 1

    def _gather(self, slot: _Slot, batch: _Batch) -> Extensions:
        """Spell the walks of a batch out on the device, count their support, and copy both back."""
        device, stream = self.device, slot.stream
        lengths, k, outcome = (batch.returned[name].copy() for name in _OUT[:3])
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        values, support = (np.empty(total, dtype=np.uint8) for _ in range(2))
        if total:
            counted_in = launch_fast.support_bytes(len(lengths), total)
            places, size = layout({"counted_in": counted_in, "support": total, "values": total})
            base, owner = device.allocate(size, stream)
            at = {name: base + place for name, place in places.items()}
            self.session.copy_in(device, batch.offsets_address, offsets, stream)
            device.clear(base, counted_in, stream)
            host = slot.host(size - places["support"], device)
            where = len(lengths), batch.offsets_address
            count = launch_fast.count_support(*where, at["counted_in"], at["support"])
            spell = launch_fast.spell(*where, at["values"])
            events = [device.record(stream, timed=True)]
            for launch in (count, spell):
                device.launch(self.family.module, launch, (batch.record, *launch.more), stream)
                events.append(device.record(stream, timed=True))
            device.copy_out(host, at["support"], stream)
            device.synchronize(stream)
            support[:] = host[:total]
            values[:] = host[places["values"] - places["support"] :][:total]
            del owner
            self._add_times(self.statistics.gather_ms, [count.kernel, spell.kernel], events)
            self.statistics.bytes_in += offsets.nbytes
            self.statistics.bytes_out += len(host)
        ends = slice(2 * batch.first, 2 * batch.last)
        reads = np.diff(self.packed.read_start[ends.start : ends.stop + 1])
        short = self.packed.tail_length[ends] < self.params.k
        without = np.where(reads == 0, _NO_READS, np.where(short, _SHORT, _NO_WALK))
        outcome = np.where(outcome == 0, without, outcome).astype(np.uint8)
        cut = np.zeros(len(lengths), dtype=np.int32)
        if self.params.min_support > 1:
            _cpu.cut_walks(values, offsets, support, k, outcome, cut, self.params.min_support)
            values, support = (array[: offsets[-1]] for array in (values, support))
        return Extensions(values, offsets, support, k, outcome, cut)

    def extend_on_cpu(self, first: int, last: int) -> None:
        """Give contigs to the CPU engine."""
        self.statistics.ends_on_cpu += 2 * (last - first)
        arrays = {name: array for name, (array, _) in self._inputs(first, last).items()}
        arrays["contig"] = self.packed.contig[first:last]
        for name in ("read_start", "word_offset"):
            arrays[name] = arrays[name] - arrays[name][0]
        part = PackedPartition(buffer=self.packed.buffer, **arrays)
        self.parts[first] = cpu.extend_partition(part, self.params, self.threads)

    def _joined(self) -> Extensions:
        """Join the parts in the order of the partition."""
        parts = [self.parts[first] for first in sorted(self.parts)]
        lengths = [np.diff(part.walk_offsets) for part in parts]
        offsets = np.zeros(2 * self.sizes.contigs + 1, dtype=np.int64)
        if parts:
            np.cumsum(np.concatenate(lengths), out=offsets[1:])
        types = {
            name: np.dtype(spec.dtype)
            for name, spec in GROUPS["extensions"].items()
            if name != "walk_offsets"
        }
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts] or [np.empty(0, dtype)])
            for name, dtype in types.items()
        }
        return Extensions(walk_offsets=offsets, **joined)

    def _abandon(self) -> None:
        """Wait for what is queued, as far as that is possible, and let go of its memory."""
        for slot in self.session.slots:
            # a batch that could not be queued whole may still be copying from the caller's memory
            with contextlib.suppress(RuntimeError):  # the error under way says more
                self.device.synchronize(slot.stream)
            slot.batch = None


def _contigs_of(found: Extensions, first: int, last: int) -> Extensions:
    """Return what was found for contigs [first, last) of those in ``found``."""
    ends = slice(2 * first, 2 * last)
    offsets = found.walk_offsets[ends.start : ends.stop + 1]
    return Extensions(
        walk_values=found.walk_values[offsets[0] : offsets[-1]],
        walk_offsets=offsets - offsets[0],
        support=found.support[offsets[0] : offsets[-1]],
        k=found.k[ends],
        outcome=found.outcome[ends],
        cut=found.cut[ends],
    )
