"""The GPU engine: a partition in batches through one CUDA device, copies beside kernels.

Phases of a batch: *plan* (consecutive contigs that fit into the free memory), *transfer* (through
pinned staging buffers), *launch*, and *gather* (walks spelled out on the device and copied back).
Two batches are on their way at any time, each in a stream of its own, so the copies of one overlap
with the kernels of the other. When the device runs out of memory batches are halved; a contig that
does not fit alone goes to the CPU engine. The result is the CPU engine's, byte for byte.

Offsets and sizes are 64-bit throughout. A batch keeps the partition's own numbers of reads and
words: the addresses that kernels get are moved back by what lies before the batch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from dlasm.engines import cpu
from dlasm.engines.batches import Family, FastKernels, Sizes, TableKernels, layout, next_batch
from dlasm.engines.cpu import Extensions
from dlasm.engines.device import Device
from dlasm.errors import EngineError, ParameterError
from dlasm.kernels import launch_fast
from dlasm.pack import ALIGNMENT, BASES_PER_WORD, PADDING_WORDS, PackedPartition
from dlasm.params import DEFAULT_KERNEL, KERNELS, OUTCOMES, WalkParams

__all__ = [
    "KERNELS",
    "GpuRun",
    "GpuStatistics",
    "extend_partition",
    "pinned_buffer",
    "prepare",
    "run_partition",
]

BATCH_BYTES = 64 << 20
"""Input of a batch, bytes: enough to fill a device, small enough that a partition has several."""

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
        Time between the first and the last kernel of each batch, summed, by CUDA events.
    launch_ms : dict of str to float
        The same for each kernel.
    bytes_in, bytes_out : int
        Copied to and from the device.
    batches : int
        Batches that were finished.
    halved : int
        How often the device ran out of memory.
    repeated : int
        Batches run again because their walks needed more scratch space.
    ends_on_cpu : int
        Contig ends that went to the CPU engine because their contig did not fit.
    """

    kernel_ms: float = 0.0
    launch_ms: dict[str, float] = field(default_factory=dict)
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


@contextlib.contextmanager
def _device_errors() -> Iterator[None]:
    """Tell what CuPy and the driver raise as an error of the engine."""
    try:
        yield
    except EngineError:
        raise
    except (
        RuntimeError
    ) as error:  # CuPy's errors of the driver and of the runtime are RuntimeErrors
        raise EngineError(f"the GPU failed: {error}") from error


def extend_partition(
    packed: PackedPartition, params: WalkParams, threads: int = 1, *, kernel: str = DEFAULT_KERNEL
) -> Extensions:
    """Extend every end of a partition on the current CUDA device.

    Parameters
    ----------
    packed : PackedPartition
        The ends and their reads.
    params : WalkParams
        Start k and walk limit.
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
    with _device_errors():
        session = _current_session() if device is None else _session(device)
        with session.lock, session.device.activated():
            return _Run(session, packed, params, threads, kernel, memory, batch_bytes).run()


def prepare(kernel: str = DEFAULT_KERNEL, uuid: str | None = None) -> str:
    """Make a CUDA context, the pinned memory and the kernels, as far as they are not there yet.

    Parameters
    ----------
    kernel : str
        One of :data:`KERNELS`.
    uuid : str, optional
        Of the device; the current one of this process if not given.

    Returns
    -------
    str
        The UUID of the device, without the prefix that says what it is.

    Raises
    ------
    EngineError
        If CuPy or the device cannot be used.
    """
    with _device_errors():
        device = Device.current() if uuid is None else Device.of(uuid)
        with device.activated():
            _session(device)
            device.load(FastKernels.module if kernel == "fast" else TableKernels.module)
        return device.uuid


def pinned_buffer(size: int) -> np.ndarray:
    """Allocate host memory that the current device reads directly; uint8, shape (size,).

    A partition packed into such a buffer is copied without staging.
    """
    return _current_session().device.pinned(size)


def _check(packed: PackedPartition) -> None:
    """Refuse arrays that contradict each other: kernels trust them."""
    ends, reads = len(packed.tail_length), len(packed.length)
    words = 2 * -(-packed.length.astype(np.int64) // BASES_PER_WORD)
    first_read, first_word = packed.read_start[0], packed.word_offset[0]
    faults = {
        "arrays of different lengths": ends != 2 * len(packed.depth)
        or packed.tail.shape != (ends, 8)
        or len(packed.clean_length) != ends
        or len(packed.read_start) != ends + 1
        or len(packed.has_n) != reads
        or len(packed.word_offset) != reads + 1,
        "reads of an end are not ascending": bool((np.diff(packed.read_start) < 0).any()),
        "offsets do not cover the reads": packed.read_start[-1] - first_read != reads,
    }
    if not any(faults.values()):
        faults = {
            "a read has a negative length": bool((packed.length < 0).any()),
            "a read's words do not fit its length": bool(
                (np.diff(packed.word_offset) != words).any()
            ),
            "the words lack two words of padding": packed.word_offset[-1] - first_word
            > len(packed.words) - PADDING_WORDS,
        }
    for fault, found in faults.items():
        if found:
            raise EngineError(f"the packed partition is not consistent: {fault}")


# -- what is kept between partitions -------------------------------------------------------------


class _Slot:
    """A stream and what the batch in it holds."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = device.new_stream()
        self.batch: _Batch | None = None
        self._host = device.pinned(0)

    def host(self, size: int) -> np.ndarray:
        """Return pinned memory for what comes back; it is used again."""
        if len(self._host) < size:
            self._host = self.device.pinned(2 * size)
        return self._host[:size]


class _Session:
    """Streams and pinned memory of a device, used by one partition at a time."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.lock = threading.Lock()
        with device.activated():
            self.slots = [_Slot(device) for _ in range(STREAMS)]
            self.pieces = [device.pinned(PIECE_BYTES) for _ in range(PIECES)]
        self.events: list[Any] = [None] * PIECES
        self.turn = 0

    def copy_in(self, address: int, array: np.ndarray, stream: Any) -> None:
        """Queue a copy to the device; ``array`` may change afterwards unless it is pinned."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if self.device.is_pinned(content):
            self.device.copy_in(address, content, stream)
            return
        for begin in range(0, len(content), PIECE_BYTES):
            part = content[begin : begin + PIECE_BYTES]
            if self.events[self.turn] is not None:
                self.device.wait(self.events[self.turn])
            piece = self.pieces[self.turn][: len(part)]
            piece[:] = part
            self.device.copy_in(address + begin, piece, stream)
            self.events[self.turn] = self.device.record(stream)
            self.turn = (self.turn + 1) % PIECES


@cache
def _session(device: Device) -> _Session:
    return _Session(device)


def _current_session() -> _Session:
    return _session(Device.current())


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
    wanted: tuple[int, int]


_OUT = ("walk_length", "walk_k", "outcome", "counters")


class _Run:
    """One partition on its way through a device."""

    def __init__(
        self,
        session: _Session,
        packed: PackedPartition,
        params: WalkParams,
        threads: int,
        kernel: str,
        memory: int | None,
        batch_bytes: int,
    ) -> None:
        self.session = session
        self.device = session.device
        self.packed = packed
        self.params = params
        self.threads = threads
        self.sizes = Sizes(packed)
        self.family: Family = (
            FastKernels(self.sizes, params, self.device.multiprocessors)
            if kernel == "fast"
            else TableKernels(packed, params, kernel)
        )
        self.fits = self.family.fits()
        if memory is None:
            memory = int(MEMORY_SHARE * self.device.free_bytes())
        self.memory = memory
        self.budget = memory // STREAMS
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

    def cost(self, first: int, last: int) -> int:
        """Device memory that contigs [first, last) take, bytes."""
        return (
            self.sizes.input_bytes(first, last)
            + self.sizes.result_bytes(first, last)
            + self.family.extra_bytes(first, last)
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
            alone = last == first
            if alone:  # it may have the whole memory
                last = first + 1
            self.left.append((last, end))
            if self.cost(first, last) > self.memory:
                self.extend_on_cpu(first, last)
                continue
            if alone:
                self.finish_all()
            if self.start(slot, first, last, (0, 0)):
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

    def ran_out(self, first: int, last: int) -> None:
        """Put contigs back for which the device has no memory; smaller batches from now on.

        Batches get half of the contigs, or half of what contigs cost if that is more: most of the
        cost may be of one contig, and scratch space for few contigs is nearly that for many. A
        contig that ran out alone, with nothing else on the device, goes to the CPU engine.
        """
        self.statistics.halved += 1
        fixed = self.cost(first, first)
        half_of_cost = fixed + (self.cost(first, last) - fixed) // 2
        self.budget = max(half_of_cost, self.cost(first, (first + last) // 2))
        alone = not any(slot.batch for slot in self.session.slots)
        if alone and last - first == 1:
            self.extend_on_cpu(first, last)
            return
        self.finish_all()  # what is on the device may be all that is missing
        self.left.append((first, last))

    # -- transfer and launch -------------------------------------------------------------------

    def start(self, slot: _Slot, first: int, last: int, wanted: tuple[int, int]) -> bool:
        """Queue a batch; False if there was no memory, and its contigs were put back."""
        try:
            slot.batch = self._queue(slot, first, last, wanted)
        except MemoryError:
            self.ran_out(first, last)
            return False
        return True

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
            self.session.copy_in(base + places[name], array, stream)
            self.statistics.bytes_in += array.nbytes
            # element `number` is the first one there
            record[name] = (base + places[name] - array.itemsize * number) % 2**64
        for place, array in work.uploads.items():
            self.session.copy_in(base + places["scratch"] + place, array, stream)
            self.statistics.bytes_in += array.nbytes
        record["ends"] = ends
        record["start_k"], record["walk_limit"] = self.params.k, self.params.walk_limit
        record["walk_area_words"] = work.walk_area_words
        record["scratch_bytes"] = work.scratch_bytes

        begin, stop = places["walk_length"], places["walk_head"]
        device.clear(base + begin, stop - begin, stream)
        device.load(self.family.module)
        kernels = work.kernels(base + places["scratch"])
        events = [device.record(stream, timed=True)]  # nothing but launches from here on
        for kernel in kernels:
            device.launch(
                self.family.module,
                kernel.kernel,
                kernel.grid,
                kernel.block,
                (record, *kernel.more),
                stream,
                kernel.shared,
            )
            events.append(device.record(stream, timed=True))
        host = slot.host(stop - begin)
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
            labels=[kernel.label for kernel in kernels],
            wanted=(work.walk_area_words, work.scratch_bytes),
        )

    # -- gather --------------------------------------------------------------------------------

    def finish_all(self) -> None:
        """Finish what is on the device, so that all of its memory is free."""
        for slot in self.session.slots:
            if slot.batch:
                self.finish(slot)

    def finish(self, slot: _Slot) -> None:
        """Wait for a batch and take its walks; run it again if its scratch space was too small."""
        batch, slot.batch = slot.batch, None
        assert batch is not None
        self.device.synchronize(slot.stream)
        counters = batch.returned["counters"]
        wanted = int(counters[0]), int(counters[1])
        if wanted[0] > batch.wanted[0] or wanted[1] > batch.wanted[1]:
            self.statistics.repeated += 1
            first, last = batch.first, batch.last
            larger = int(GROWTH * wanted[0]), int(GROWTH * wanted[1])
            del batch  # and its memory
            if self.start(slot, first, last, larger):
                self.finish(slot)
            return
        part = None
        with contextlib.suppress(MemoryError):
            part = self._gather(slot, batch)
        if part is None:
            first, last = batch.first, batch.last
            del batch  # and its memory
            self.ran_out(first, last)
            return
        self.parts[batch.first] = part
        self.statistics.batches += 1
        events = batch.events
        self.statistics.kernel_ms += self.device.milliseconds(events[0], events[-1])
        for label, start, stop in zip(batch.labels, events, events[1:], strict=False):
            before = self.statistics.launch_ms.get(label, 0.0)
            self.statistics.launch_ms[label] = before + self.device.milliseconds(start, stop)

    def _gather(self, slot: _Slot, batch: _Batch) -> Extensions:
        """Spell the walks of a batch out on the device and copy them back."""
        device, stream = self.device, slot.stream
        lengths, k, outcome = (batch.returned[name].copy() for name in _OUT[:3])
        if (outcome == launch_fast.TOO_LARGE).any():
            raise EngineError("the device refused a contig end that should have fitted")
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        total = int(offsets[-1])
        values = np.empty(total, dtype=np.uint8)
        if total:
            address, owner = device.allocate(total, stream)
            self.session.copy_in(batch.offsets_address, offsets, stream)
            spell = launch_fast.spell(len(lengths))
            device.launch(
                self.family.module,
                spell.kernel,
                spell.grid,
                spell.block,
                (batch.record, np.uint64(batch.offsets_address), np.uint64(address)),
                stream,
            )
            host = slot.host(total)
            device.copy_out(host, address, stream)
            device.synchronize(stream)
            values[:] = host
            del owner
            self.statistics.bytes_in += offsets.nbytes
            self.statistics.bytes_out += total
        ends = slice(2 * batch.first, 2 * batch.last)
        reads = np.diff(self.packed.read_start[ends.start : ends.stop + 1])
        short = self.packed.tail_length[ends] < self.params.k
        without = np.where(reads == 0, _NO_READS, np.where(short, _SHORT, _NO_WALK))
        outcome = np.where(outcome == 0, without, outcome).astype(np.uint8)
        return Extensions(values, offsets, k, outcome)

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
        types = {"walk_values": np.uint8, "k": np.int16, "outcome": np.uint8}
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
