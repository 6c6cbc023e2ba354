"""How the ``fast`` kernels are launched: what they are handed, grids, blocks, memory to work in.

No GPU library is imported here. Constants repeat those of ``extend_fast.cuh`` and ``batch.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dlasm.pack import ALIGNMENT

__all__ = [
    "BATCH",
    "COUNTERS",
    "MAX_END_WORDS",
    "TOO_LARGE",
    "Launch",
    "count_support",
    "launches",
    "scratch_bytes",
    "spell",
    "support_bytes",
    "walk_area_words",
]

BATCH = np.dtype(
    [
        *(
            (name, np.uint64)
            for name in (
                "depth",
                "tail",
                "tail_length",
                "clean_length",
                "read_start",
                "length",
                "fragment",
                "has_n",
                "word_offset",
                "words",
                "walk_length",
                "walk_k",
                "outcome",
                "walk_head",
                "walk_start",
                "walk_area",
                "scratch",
                "counters",
            )
        ),
        *(
            (name, np.int64)
            for name in ("ends", "start_k", "walk_limit", "walk_area_words", "scratch_bytes")
        ),
    ]
)
"""``struct Batch`` of ``batch.cuh``: pointers to device arrays, then numbers."""

COUNTERS = 16
"""uint64 counters that must be zero before the first kernel (``kBatchCounters``). The first two say
afterwards how many words of walk area and how many bytes of scratch were wanted."""

TOO_LARGE = 255
"""Outcome of an end that the kernels refuse (``kTooLarge``)."""

MAX_END_WORDS = 1 << 22
"""Packed words of an end's reads above which it is too large (``kMaxEndWords``)."""

SMALL_TILE = 512  # ends that a block of extend_small sorts by size, kTile
SMALL_THREADS = 128  # kSmallThreads
WARP_WARPS = 2  # ends that a block of extend_middle walks at a time, kMiddleWarps
WARP_BLOCKS = 6  # of extend_middle on a multiprocessor: what their shared memory allows
BLOCK_THREADS = 256  # kLargeWarps * 32
BLOCK_BLOCKS = 3  # of extend_large on a multiprocessor, kLargeBlocks

SUPPORT_THREADS = 128  # a warp an end
SUPPORT_WORDS = (4, 20)
"""Words for each base of a walk, and for each end (``kSupportWordsPerBase`` and ``-PerEnd``)."""

QUEUES = 9  # of u32 end numbers in scratch, one for warps and kLevels for blocks


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Attributes
    ----------
    kernel : str
        Name in the module.
    grid, block : int
        Blocks, and threads of a block.
    more : tuple
        Arguments after the batch.
    label : str
        What it is called in statistics, if not by its kernel.
    """

    kernel: str
    grid: int
    block: int
    more: tuple[Any, ...] = ()
    label: str = ""


def launches(ends: int, multiprocessors: int) -> list[Launch]:
    """Return the launches that walk a batch, to be made in this order in one stream.

    Parameters
    ----------
    ends : int
        Contig ends of the batch, at least 1.
    multiprocessors : int
        Multiprocessors of the device.
    """
    return [
        Launch("extend_small", -(-ends // SMALL_TILE), SMALL_THREADS),
        Launch("extend_middle", WARP_BLOCKS * multiprocessors, 32 * WARP_WARPS),
        Launch("extend_large", BLOCK_BLOCKS * multiprocessors, BLOCK_THREADS),
    ]


def spell(ends: int, offsets: int, text: int) -> Launch:
    """Return the launch that writes the walks as text, from addresses of its offsets and itself."""
    return Launch("spell_walks", -(-ends // 256), 256, (np.uint64(offsets), np.uint64(text)))


def count_support(ends: int, offsets: int, places: int, support: int) -> Launch:
    """Return the launch that counts the support of the walks.

    Parameters
    ----------
    ends : int
        Contig ends of the batch.
    offsets, places, support : int
        Addresses: of where each walk begins, of :func:`support_bytes` that are zero, and of the
        result.
    """
    addresses = (np.uint64(offsets), np.uint64(places), np.uint64(support))
    return Launch("count_support", -(-ends // (SUPPORT_THREADS // 32)), SUPPORT_THREADS, addresses)


def support_bytes(ends: int, walked: int) -> int:
    """Return the bytes that the support of walks is counted in, given the bases of all."""
    return 4 * (SUPPORT_WORDS[0] * walked + SUPPORT_WORDS[1] * ends)


def scratch_bytes(ends: int, words: int, walk_limit: int, multiprocessors: int) -> int:
    """Return how much scratch memory to begin with; the kernels say when they want more.

    Parameters
    ----------
    ends, words : int
        Contig ends of the batch and packed words of its reads.
    walk_limit : int
        Most bases appended to an end.
    multiprocessors : int
        Multiprocessors of the device.

    Returns
    -------
    int
        Bytes: the queues, and for each block that runs at a time room for an end of ordinary size
        or, if that is less, for all of the batch.
    """
    queues = -(-QUEUES * 4 * ends // ALIGNMENT) * ALIGNMENT
    blocks = BLOCK_BLOCKS * multiprocessors
    block = min(64 * words, 1 << 18) + walk_limit
    return queues + blocks * block + (16 << 20)


def walk_area_words(ends: int, words: int) -> int:
    """Return how many words for long walks to begin with; the kernels say when they want more."""
    return ends + words // 16 + 1024
