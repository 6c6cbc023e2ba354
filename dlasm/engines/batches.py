"""Batches of a partition: how large each may be, and what its kernels need of a device.

Nothing here touches a device; sizes are Python integers or int64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dlasm.kernels import launch_fast, launch_tables
from dlasm.kernels.launch_fast import Launch
from dlasm.pack import ALIGNMENT, PADDING_WORDS, PackedPartition
from dlasm.params import WalkParams

__all__ = [
    "Family",
    "FastKernels",
    "Sizes",
    "TableKernels",
    "Work",
    "layout",
    "next_batch",
]


class Sizes:
    """How much of a partition each run of consecutive contigs is."""

    def __init__(self, packed: PackedPartition) -> None:
        self.contigs = len(packed.depth)
        read = packed.read_start - packed.read_start[0]
        word = packed.word_offset[read] - packed.word_offset[0]
        self.largest_end_words = np.diff(word).reshape(-1, 2).max(axis=1, initial=0)
        self._read, self._word = read[::2], word[::2]

    def words_of(self, first: int, last: int) -> int:
        """Words of the reads of contigs [first, last)."""
        return int(self._word[last] - self._word[first])

    def input_bytes(self, first: int, last: int) -> int:
        """Bytes of the packed arrays of contigs [first, last)."""
        reads = int(self._read[last] - self._read[first])
        per_contig = 4 + 2 * (32 + 4 + 4 + 8)
        per_read = 4 + 8 + 1 + 8
        words = self.words_of(first, last) + PADDING_WORDS
        return per_contig * (last - first) + 8 + per_read * reads + 8 + 4 * words

    def result_bytes(self, first: int, last: int) -> int:
        """Bytes of the results of contigs [first, last), those for each base left out."""
        ends = 2 * (last - first)
        per_end = 4 + 2 + 1 + 8 + 8 + 8
        return (
            per_end * ends
            + 8 * (launch_fast.COUNTERS + 1)
            + launch_fast.support_bytes(ends, walked=0)
        )


def next_batch(cost: Callable[[int], int], first: int, end: int, budget: int) -> int:
    """Return where the longest batch from ``first`` on that costs at most ``budget`` ends.

    Parameters
    ----------
    cost : callable
        Bytes of the contigs from ``first`` to before its argument; never falls.
    first, end : int
        The contigs left to do.
    budget : int
        Bytes.

    Returns
    -------
    int
        From ``first`` (nothing fits) to ``end``.
    """
    low, high = first, end  # cost(low) fits; nothing above high need be looked at
    while low < high:
        middle = (low + high + 1) // 2
        if cost(middle) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def layout(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Place arrays of these bytes one after another; where each begins, and the bytes of all."""
    places, total = {}, 0
    for name, size in sizes.items():
        places[name] = total
        total += -(-size // ALIGNMENT) * ALIGNMENT
    return places, total


@dataclass(frozen=True)
class Work:
    """What a batch needs of a device.

    Attributes
    ----------
    scratch_bytes, walk_area_words : int
        Space that its kernels work in, and that long walks are left in.
    uploads : mapping of int to numpy.ndarray
        Arrays to copy into the scratch space, by the byte where they begin.
    launches : callable
        Gives the launches, in order, for scratch space at an address.
    """

    scratch_bytes: int
    walk_area_words: int
    uploads: Mapping[int, np.ndarray]
    launches: Callable[[int], Sequence[Launch]]


NO_GROWTH = (1.0, 1.0)


class Family:
    """The kernels of one way to walk, for contigs of one partition.

    Attributes
    ----------
    module : str
        A key of :data:`dlasm.kernels.loader.MODULES`.
    growth : tuple of float
        How many times the space of :meth:`guess` batches get, from what earlier ones wanted.
    """

    module: str
    growth: tuple[float, float] = NO_GROWTH

    def fits(self) -> np.ndarray:
        """Whether the kernels take each contig at all; bool, shape (contigs,)."""
        raise NotImplementedError

    def guess(self, first: int, last: int) -> tuple[int, int]:
        """Words of walk area and bytes of scratch space for contigs [first, last)."""
        raise NotImplementedError

    def prepare(self, first: int, last: int, wanted: tuple[int, int]) -> Work:
        """Prepare a batch with at least so many words of walk area and bytes of scratch space."""
        raise NotImplementedError

    def space(self, first: int, last: int, wanted: tuple[int, int]) -> tuple[int, int]:
        """Return what a batch gets: what it is known to want, and no less than the others got."""
        guess = self.guess(first, last)
        area, scratch = (max(int(self.growth[i] * guess[i]), wanted[i]) for i in range(2))
        return area, scratch

    def extra_bytes(self, first: int, last: int, wanted: tuple[int, int] = (0, 0)) -> int:
        """Device memory for contigs [first, last) beyond input and results, bytes."""
        area, scratch = self.space(first, last, wanted)
        return 4 * area + scratch

    def learn(self, first: int, last: int, wanted: tuple[int, int]) -> None:
        """Give batches as much more than is guessed as these contigs wanted."""
        guess = self.guess(first, last)
        area, scratch = (max(self.growth[i], wanted[i] / guess[i]) for i in range(2))
        self.growth = area, scratch


class FastKernels(Family):
    """No table: ``extend_fast.cu``."""

    module = "extend_fast"

    def __init__(self, sizes: Sizes, params: WalkParams, multiprocessors: int) -> None:
        self._sizes = sizes
        self._params = params
        self._multiprocessors = multiprocessors

    def fits(self) -> np.ndarray:
        """Whether the reads of both ends are few enough for 32-bit numbers within an end."""
        return self._sizes.largest_end_words <= launch_fast.MAX_END_WORDS

    def guess(self, first: int, last: int) -> tuple[int, int]:
        """Space that is mostly enough; the kernels say when it is not."""
        ends, words = 2 * (last - first), self._sizes.words_of(first, last)
        scratch = launch_fast.scratch_bytes(
            ends, words, self._params.walk_limit, self._multiprocessors
        )
        return launch_fast.walk_area_words(ends, words), scratch

    def prepare(self, first: int, last: int, wanted: tuple[int, int]) -> Work:
        """Nothing to lay out: the kernels do it themselves."""
        area, scratch = self.space(first, last, wanted)
        launches = launch_fast.launches(2 * (last - first), self._multiprocessors)
        return Work(scratch, area, {}, lambda _: launches)


class TableKernels(Family):
    """K-mer tables: ``extend_tables.cu``, a launch for each bin."""

    module = "extend_tables"

    def __init__(self, packed: PackedPartition, params: WalkParams, kernel: str) -> None:
        self._packed = packed
        self._params = params
        self._kernel = kernel
        self._whole = self._plan(0, len(packed.depth))

    def _plan(self, first: int, last: int) -> launch_tables.TablePlan:
        packed = self._packed
        read_start = packed.read_start[2 * first : 2 * last + 1]
        reads = read_start[[0, -1]] - packed.read_start[0]
        return launch_tables.plan_tables(
            read_start,
            packed.length[reads[0] : reads[1]],
            packed.tail_length[2 * first : 2 * last],
            self._params.k,
            self._params.walk_limit,
        )

    def fits(self) -> np.ndarray:
        """Every contig: all numbers have 64 bits."""
        return np.ones(len(self._packed.depth), dtype=bool)

    def guess(self, first: int, last: int) -> tuple[int, int]:
        """Contexts; tables, and where they begin. Sizes are exact, so nothing more is wanted."""
        slots = np.diff(self._whole.table_start[[2 * first, 2 * last]])[0]
        words = np.diff(self._whole.context_start[[2 * first, 2 * last]])[0]
        ends = 2 * (last - first)
        return int(words), launch_tables.SLOT_BYTES * int(slots) + 24 * ends + 8 * ALIGNMENT

    def prepare(self, first: int, last: int, wanted: tuple[int, int]) -> Work:
        """Lay out the tables."""
        plan = self._plan(first, last)
        places, size = layout(
            {
                "order": plan.order.nbytes,
                "table_start": plan.table_start.nbytes,
                "context_start": plan.context_start.nbytes,
                "keys": launch_tables.KEY_BYTES * plan.slots,
                "votes": launch_tables.VOTE_BYTES * plan.slots,
            }
        )
        uploaded = ("order", "table_start", "context_start")

        def launches(scratch: int) -> list[Launch]:
            found = []
            counts = {"bin 2": plan.bin_2, "bin 3": len(plan.order) - plan.bin_2}
            for (label, count), begin in zip(counts.items(), (0, plan.bin_2), strict=True):
                tables = np.zeros(1, dtype=launch_tables.TABLES)
                for name, place in places.items():
                    tables[name] = scratch + place
                tables["order"] += np.uint64(plan.order.itemsize * begin)
                tables["count"] = count
                if count:
                    found.append(
                        Launch(
                            kernel=launch_tables.KERNELS[self._kernel],
                            grid=launch_tables.grid(self._kernel, count),
                            block=launch_tables.BLOCK,
                            more=(tables,),
                            label=f"{launch_tables.KERNELS[self._kernel]} {label}",
                        )
                    )
            return found

        return Work(
            scratch_bytes=max(size, wanted[1]),
            walk_area_words=max(plan.context_words, wanted[0]),
            uploads={places[name]: getattr(plan, name) for name in uploaded},
            launches=launches,
        )
