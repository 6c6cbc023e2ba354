"""A stand-in for a CUDA device in host memory, whose kernels are the CPU engine.

It takes the addresses and records that kernels take, so it tests all that happens around them:
batches, layout of the memory, shifted addresses, running out of memory, the gathering of walks.

As on a device, what is put into a stream is done later: here not before it is waited for, and what
is in other streams before, after or in between, as drawn at random. So memory that is used again
too early gives wrong walks.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from dlasm.engines import cpu
from dlasm.engines.device import Device
from dlasm.kernels import launch_fast, launch_tables
from dlasm.kernels.launch_fast import Launch
from dlasm.pack import PADDING_WORDS, PackedPartition
from dlasm.params import WalkParams

GARBAGE = 0xA5
"""What memory holds before anything is written to it, and after it was given back."""

TABLES = tuple(launch_tables.KERNELS.values())


class Stream:
    """Work in order, of which so much is done."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], None]] = deque()
        self.added = self.done = 0

    def add(self, work: Callable[[], None]) -> int:
        self.work.append(work)
        self.added += 1
        return self.added

    def step(self) -> None:
        self.done += 1  # before it may fail
        self.work.popleft()()


class Event:
    """A place in a stream, and when that was come to."""

    time: float | None = None

    def __init__(self, device: HostDevice, stream: Stream) -> None:
        self.stream = stream
        self.place = stream.add(lambda: setattr(self, "time", float(device.clock)))


class HostDevice(Device):
    """A device of ``memory`` bytes.

    Attributes
    ----------
    failures, load_failures : int
        Allocations and loadings of kernels that fail from now on, as for want of memory.
    pinned_memory : int
        Bytes that can be pinned at all.
    wanted : callable
        Words of walk area and bytes of scratch space without which a batch of so many ends is not
        finished by the fast kernels.
    refused : int
        Packed words of an end above which the fast kernels refuse it.
    reserve : int
        Bytes that neither batches nor the pool may hold when a kernel is launched.
    """

    def __init__(
        self,
        memory: int = 1 << 32,
        failures: int = 0,
        wanted: Callable[[int], tuple[int, int]] = lambda _: (0, 0),
        seed: int = 0,
    ) -> None:
        self.number = 0
        self.lock = threading.Lock()
        self.session = None
        self.multiprocessors = 2
        self.memory = memory
        self.failures = failures
        self.load_failures = 0
        self.pinned_memory = 1 << 40
        self.wanted = wanted
        self.refused = 1 << 60
        self.reserve = 0
        self.held = 0
        self.kept = 0  # by the pool
        self.most_held = 0
        self.clock = 0
        self.launches: list[Launch] = []
        self._streams: list[Stream] = []
        self._random = random.Random(seed)
        self._haste = self._random.choice((0.0, 0.3, 0.7))  # of streams that nobody waits for
        self._pinned: list[np.ndarray] = []

    def activated(self) -> AbstractContextManager[Any]:
        return nullcontext()

    # -- memory

    def free_bytes(self) -> int:
        return self.memory - self.held

    def release(self) -> None:
        self.kept = 0

    def allocate(self, size: int, stream: Stream) -> tuple[int, Any]:
        if self.failures > 0:
            self.failures -= 1
            raise MemoryError(f"{size} bytes, on purpose")
        if size > self.free_bytes():
            raise MemoryError(f"{size} bytes of {self.free_bytes()}")
        owner = _Owner(self, size, stream)
        if size > self.kept:
            self.kept = min(self.kept, self.memory - self.held)
        else:
            self.kept -= size
        return owner.address, owner

    def pinned(self, size: int) -> np.ndarray:
        if sum(map(len, self._pinned)) + size > self.pinned_memory:
            raise MemoryError(f"{size} bytes of pinned memory")
        self._pinned.append(np.full(size, GARBAGE, dtype=np.uint8))
        return self._pinned[-1][:]

    def is_pinned(self, array: np.ndarray) -> bool:
        first, last = array.ctypes.data, array.ctypes.data + array.nbytes
        starts = ((each.ctypes.data, each.ctypes.data + len(each)) for each in self._pinned)
        return any(start <= first and last <= stop for start, stop in starts)

    # -- work in streams

    def new_stream(self) -> Stream:
        self._streams.append(Stream())
        return self._streams[-1]

    def record(self, stream: Stream, *, timed: bool = False) -> Event:
        return Event(self, stream)

    def wait(self, event: Event) -> None:
        self._do(event.stream, event.place)

    def milliseconds(self, start: Event, stop: Event) -> float:
        assert start.time is not None
        assert stop.time is not None
        return stop.time - start.time

    def synchronize(self, stream: Stream) -> None:
        self._do(stream, stream.added)

    def is_idle(self) -> bool:
        """Whether all that was put into streams is done."""
        return not any(stream.work for stream in self._streams)

    def _do(self, stream: Stream, place: int) -> None:
        """Do what is in a stream up to a place, and what happens to be done elsewhere."""
        while stream.done < place:
            others = [other for other in self._streams if other is not stream and other.work]
            if others and self._random.random() < self._haste:
                self._random.choice(others).step()
            else:
                stream.step()

    def copy_in(self, address: int, array: np.ndarray, stream: Stream) -> None:
        if array.nbytes:
            assert self.is_pinned(array)
            stream.add(lambda: void(ctypes.memmove(address, array.ctypes.data, array.nbytes)))

    def copy_out(self, array: np.ndarray, address: int, stream: Stream) -> None:
        if array.nbytes:
            assert self.is_pinned(array)
            stream.add(lambda: void(ctypes.memmove(array.ctypes.data, address, array.nbytes)))

    def clear(self, address: int, size: int, stream: Stream) -> None:
        stream.add(lambda: void(ctypes.memset(address, 0, size)))

    def load(self, module: str) -> None:
        assert module in ("extend_fast", "extend_tables")
        if self.load_failures > 0:
            self.load_failures -= 1
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")

    def launch(self, module: str, launch: Launch, arguments: Sequence[Any], stream: Stream) -> None:
        assert 1 <= launch.grid < 2**31
        assert 32 <= launch.block <= 1024
        if self.memory - self.held - self.kept < self.reserve:
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        self.launches.append(launch)
        values = [np.array(argument) for argument in arguments]  # passed by value

        def work() -> None:
            self.clock += 1
            self.execute(module, launch, values)

        stream.add(work)

    def execute(self, module: str, launch: Launch, arguments: Sequence[np.ndarray]) -> None:
        """Do what a kernel does."""
        batch = Batch(arguments[0])
        if launch.kernel == launch_fast.spell(batch.ends, 0, 0).kernel:
            batch.spell(*(int(address) for address in arguments[1:]))
        elif launch.kernel == launch_fast.count_support(batch.ends, 0, 0, 0).kernel:
            batch.count_support(*(int(address) for address in arguments[1:]))
        elif launch.kernel in TABLES:
            batch.walk_in_tables(arguments[1])
        elif launch.kernel == launch_fast.launches(batch.ends, self.multiprocessors)[0].kernel:
            batch.walk_fast(self.wanted(batch.ends), self.refused)


def void(_: object) -> None:
    pass


class _Owner:
    """Memory of a device, given back in the order of a stream."""

    def __init__(self, device: HostDevice, size: int, stream: Stream) -> None:
        self.device, self.size, self.stream = device, size, stream
        self.memory = np.full(size + 256, GARBAGE, dtype=np.uint8)
        self.address = -(-self.memory.ctypes.data // 256) * 256
        device.held += size
        device.most_held = max(device.most_held, device.held)

    def __del__(self) -> None:
        self.device.held -= self.size
        self.device.kept += self.size
        memory = self.memory
        self.stream.add(lambda: memory.fill(GARBAGE))
        if len(self.stream.work) == 1:
            self.stream.step()


class Batch:
    """A filled ``struct Batch``, read as kernels would read it."""

    def __init__(self, record: np.ndarray) -> None:
        assert record.dtype == launch_fast.BATCH
        self.record = record[0]
        self.ends = int(self.record["ends"])

    def array(self, name: str, dtype: type, first: int, count: int) -> np.ndarray:
        """Elements [first, first + count) of an array, as a view."""
        size = np.dtype(dtype).itemsize
        return view((int(self.record[name]) + size * first) % 2**64, dtype, count)

    def results(self) -> list[np.ndarray]:
        types = (np.int32, np.int16, np.uint8, np.uint64, np.int64)
        names = ("walk_length", "walk_k", "outcome", "walk_head", "walk_start")
        return [
            self.array(name, dtype, 0, self.ends) for name, dtype in zip(names, types, strict=True)
        ]

    def partition(self) -> PackedPartition:
        read_start = self.array("read_start", np.int64, 0, self.ends + 1)
        reads, first = int(read_start[-1] - read_start[0]), int(read_start[0])
        word_offset = self.array("word_offset", np.int64, first, reads + 1)
        first_word, words = int(word_offset[0]), int(word_offset[-1] - word_offset[0])
        return PackedPartition(
            buffer=np.empty(0, dtype=np.uint8),
            contig=np.arange(self.ends // 2),
            depth=self.array("depth", np.int32, 0, self.ends // 2),
            tail=self.array("tail", np.uint32, 0, 8 * self.ends).reshape(-1, 8),
            tail_length=self.array("tail_length", np.int32, 0, self.ends),
            clean_length=self.array("clean_length", np.int32, 0, self.ends),
            read_start=read_start - first,
            length=self.array("length", np.int32, first, reads),
            fragment=self.array("fragment", np.int64, first, reads),
            has_n=self.array("has_n", np.uint8, first, reads),
            word_offset=word_offset - first_word,
            words=self.array("words", np.uint32, first_word, words + PADDING_WORDS),
        )

    def walk(self, ends: Sequence[int], starts: dict[int, int]) -> None:
        """Do some ends; walks go to words ``starts[end]`` of the walk area."""
        params = WalkParams(int(self.record["start_k"]), int(self.record["walk_limit"]))
        found = cpu.extend_partition(self.partition(), params)
        walk_length, walk_k, outcome, head, start = self.results()
        for end in ends:
            values = found.walk_values[found.walk_offsets[end] : found.walk_offsets[end + 1]]
            codes = np.searchsorted(np.frombuffer(b"ACGT", np.uint8), values).astype(np.uint64)
            codes = codes if end % 2 else np.uint64(3) - codes[::-1]
            walk_length[end], walk_k[end], outcome[end] = (
                len(codes),
                found.k[end],
                found.outcome[end],
            )
            head[end] = sum(int(code) << 2 * i for i, code in enumerate(codes[:32]))
            if len(codes) > 32:
                words = -(-len(codes) // 16)
                assert starts[end] + words <= self.record["walk_area_words"]
                area = self.array("walk_area", np.uint32, starts[end], words)
                area[:] = 0
                np.bitwise_or.at(
                    area,
                    np.arange(len(codes)) // 16,
                    (codes << np.uint64(2) * (np.arange(len(codes), dtype=np.uint64) % 16)).astype(
                        np.uint32
                    ),
                )
                start[end] = starts[end]

    def walk_fast(self, wanted: tuple[int, int], refused: int) -> None:
        counters = self.array("counters", np.uint64, 0, launch_fast.COUNTERS)
        assert not counters.any()
        counters[:2] = wanted
        if (
            wanted[0] <= self.record["walk_area_words"]
            and wanted[1] <= self.record["scratch_bytes"]
        ):
            words = -(-int(self.record["walk_limit"]) // 16)
            packed = self.partition()
            large = np.diff(packed.word_offset[packed.read_start]) > refused
            self.results()[2][large] = launch_fast.TOO_LARGE
            ends = np.flatnonzero(~large).tolist()
            self.walk(ends, {end: end * words for end in ends})

    def walk_in_tables(self, tables: np.ndarray) -> None:
        assert tables.dtype == launch_tables.TABLES
        order = view(int(tables["order"][0]), np.int64, int(tables["count"][0]))
        table, context = (
            view(int(tables[name][0]), np.int64, self.ends + 1)
            for name in ("table_start", "context_start")
        )
        scratch = self.record["scratch"], self.record["scratch"] + self.record["scratch_bytes"]
        for name, size in (
            ("keys", launch_tables.KEY_BYTES),
            ("votes", launch_tables.VOTE_BYTES),
        ):
            assert scratch[0] <= tables[name][0] <= scratch[1] - size * int(table[-1])
        assert context[-1] <= self.record["walk_area_words"]
        packed = self.partition()
        lowest = launch_tables.lowest_rung(int(self.record["start_k"]))
        for end in order:
            lengths = packed.length[packed.read_start[end] : packed.read_start[end + 1]]
            mers = int(np.maximum(lengths.astype(np.int64) - lowest, 0).sum())
            slots = int(table[end + 1] - table[end])
            assert 0 < mers < slots
            assert mers <= 0.93 * slots or slots == mers + 1
        # the walk follows the 8 words of the tail
        self.walk(order.tolist(), {int(end): int(context[end]) + 8 for end in order})

    def count_support(self, offsets: int, places: int, support: int) -> None:
        walk_length = self.results()[0]
        offset = view(offsets, np.int64, self.ends + 1)
        assert (np.diff(offset) == walk_length).all()
        walked = int(offset[-1])
        assert not view(places, np.uint8, launch_fast.support_bytes(self.ends, walked)).any()
        params = WalkParams(int(self.record["start_k"]), int(self.record["walk_limit"]))
        found = cpu.extend_partition(self.partition(), params)
        ends = np.repeat(walk_length > 0, np.diff(found.walk_offsets))  # but for refused ones
        view(support, np.uint8, walked)[:] = found.support[ends]

    def spell(self, offsets: int, values: int) -> None:
        walk_length, _, _, head, start = self.results()
        offset = view(offsets, np.int64, self.ends + 1)
        assert (np.diff(offset) == walk_length).all()
        text = view(values, np.uint8, int(offset[-1]))
        for end, length in enumerate(walk_length.tolist()):
            if length > 32:
                words = self.array("walk_area", np.uint32, int(start[end]), -(-length // 16))
            else:
                words = np.array([head[end]], dtype=np.uint64).view(np.uint32)
            at = np.arange(length)
            codes = words[at // 16] >> (2 * (at % 16)).astype(np.uint32) & 3
            codes = codes if end % 2 else 3 - codes[::-1]
            text[offset[end] : offset[end + 1]] = np.frombuffer(b"ACGT", np.uint8)[codes]


def view(address: int, dtype: type, count: int) -> np.ndarray:
    """Memory at an address."""
    size = np.dtype(dtype).itemsize * count
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype, count=count)
