"""Parameters of local assembly, with units, ranges and sources."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlasm.errors import ParameterError

__all__ = [
    "BIN_LIMIT",
    "DEFAULT_INSERT",
    "DEFAULT_KERNEL",
    "DEFAULT_MAPPER",
    "DUMP_WALK_LIMIT",
    "FASTA_QUALITY",
    "HIGH_QUALITY",
    "JOIN_MODES",
    "KERNELS",
    "K_MAX",
    "K_MIN",
    "K_SHIFT",
    "LOW_K",
    "LOW_QUALITY",
    "MAPPERS",
    "MAX_READS",
    "MAX_SUPPORT",
    "MAX_WALK_LIMIT",
    "MIN_READ_LENGTH",
    "OUTCOMES",
    "PARTITION_BYTES",
    "PHRED_OFFSET",
    "PRESETS",
    "REASONS",
    "VERDICTS",
    "Preset",
    "WalkParams",
    "walk_limit_from_insert",
]

K_MIN = 21
"""Smallest k of the ladder, bases (MetaHipMer2; Awan et al. SC'21, section 3.2)."""

K_MAX = 121
"""Largest k of the ladder, bases (MetaHipMer2)."""

K_SHIFT = 8
"""Change of k after a fork or a dead end, bases (MetaHipMer2)."""

LOW_K = 29
"""Walks of a smaller k are flagged: 89 % of their bases were right on a mock community, of others
97 to 100 %."""

MAX_SUPPORT = 255
"""Support of a base as it is stored; more counts as this."""

PHRED_OFFSET = 33
"""ASCII code of quality 0 (Sanger, Illumina 1.8 and later)."""

LOW_QUALITY = 10
"""A base of at least this phred quality votes (MetaHipMer2)."""

HIGH_QUALITY = 20
"""A base of at least this phred quality votes as a high one (MetaHipMer2)."""

FASTA_QUALITY = 40
"""Phred quality of bases that came without one."""

MAX_READS = 3000
"""Candidate reads used per end; the list is cut to its first (Awan et al. SC'21, section 3.1)."""

BIN_LIMIT = 10
"""Candidate reads from which a contig is in bin 3 (Awan et al. SC'21, section 3.1)."""

MIN_READ_LENGTH = K_MIN + 1
"""A shorter read holds no k-mer with a next base; MetaHipMer2 drops reads under 121."""

DEFAULT_INSERT = (350.0, 100.0)
"""Mean and sd of the insert size when fewer than 100 pairs tell it, bases."""

DUMP_WALK_LIMIT = 613
"""Walk limit for dumps, bases: 121 + 2 * 246, as in MetaHipMer2's published test runs."""

MAX_WALK_LIMIT = 1_000_000
"""Largest walk limit, bases."""

KERNELS = ("v1", "v2", "fast")
"""Kernels of the GPU engine: a thread or a warp builds a k-mer table (Awan et al. SC'21, sections
3.2 to 3.4), or walks by cursors without one. All give the same bytes."""

DEFAULT_KERNEL = "fast"
"""The kernel to use: the others are there to be compared with."""

MAPPERS = ("ends", "minimap2")
"""What says where reads lie on contigs: dlasm's own mapper, or minimap2."""

DEFAULT_MAPPER = "ends"

OUTCOMES = (
    "",
    "dead_end",
    "fork",
    "repeat",
    "limit",
    "support",
    "no_reads",
    "short_contig",
    "no_walk",
    "circular",
    "skipped",
)
"""Names of the codes in array ``outcome``; must match ``Outcome`` in ``kernels/rules.cuh``."""


PARTITION_BYTES = 32 << 20
"""Packed bytes that a partition aims at: much longer work than a task's overhead."""

ON_ERROR = ("stop", "skip")
"""What a run does with a partition whose workers died again and again."""

JOIN_MODES = ("careful", "full")
"""How much must speak for a join of two contigs."""

VERDICTS = ("refused", "joined", "circular")
"""Names of the codes in array ``verdict`` of joins."""

REASONS = (
    "",
    "itself",  # the end overlaps itself
    "crowded",  # an end overlaps too many others
    "not_extended",  # no base was appended to either
    "ambiguous",  # an end has other partners, or this one at several lengths
    "insert",
    "kmers",
    "contradicted",
    "few_pairs",
    "rival",
    "short",
    "repeat",
    "circle",  # one contig was a circle before, and has no ends
)
"""Names of the codes in array ``reason`` of joins; :func:`dlasm.joins.decide` explains the later
ones."""


@dataclass(frozen=True)
class Preset:
    """Parameters for a purpose; those that are given by themselves take their place.

    Attributes
    ----------
    k : int or None
        Start k, bases; None: it must be given.
    min_support : int
        Least support of an appended base, fragments.
    """

    k: int | None
    min_support: int


PRESETS = {"paper": Preset(k=None, min_support=1), "careful": Preset(k=33, min_support=2)}
"""``paper``: as MetaHipMer2, for candidate dumps. ``careful``: for contigs from another assembler,
with a start k on which yield hardly depends, accuracy and time do; on a mock community 98.9 to
100 % of the bases appended were right, against 97.5 % without a least support."""


@dataclass(frozen=True)
class WalkParams:
    """What the engines need to know to walk.

    Parameters
    ----------
    k : int
        Start k, bases, 21 to 121.
    walk_limit : int
        Most bases appended to an end; insert mean + 2 * insert sd, or 613 for dumps.
    max_reads : int
        Candidate reads used per end.
    min_support : int
        Fragments that must hold each appended base and the 20 before it, 1 to 255; a walk is cut
        before the first base with fewer.

    Raises
    ------
    ParameterError
        If a value is out of its range.
    """

    k: int = 33
    walk_limit: int = DUMP_WALK_LIMIT
    max_reads: int = MAX_READS
    min_support: int = 1

    def __post_init__(self) -> None:
        if not K_MIN <= self.k <= K_MAX:
            raise ParameterError(f"k is {self.k}; it must be from {K_MIN} to {K_MAX}")
        if not 1 <= self.walk_limit <= MAX_WALK_LIMIT:
            raise ParameterError(
                f"walk limit is {self.walk_limit}; it must be from 1 to {MAX_WALK_LIMIT:,} bases"
            )
        if not 1 <= self.max_reads <= 1_000_000:
            raise ParameterError(
                f"reads per end are {self.max_reads}; they must be from 1 to 1,000,000"
            )
        if not 1 <= self.min_support <= MAX_SUPPORT:
            raise ParameterError(
                f"least support is {self.min_support}; it must be from 1 to {MAX_SUPPORT} fragments"
            )


def walk_limit_from_insert(mean: float, sd: float) -> int:
    """Return the walk limit for an insert size.

    Parameters
    ----------
    mean, sd : float
        Insert mean and standard deviation, bases.

    Returns
    -------
    int
        mean + 2 * sd, both rounded half up first (MetaHipMer2).

    Examples
    --------
    >>> walk_limit_from_insert(349.5, 50.4)
    450
    """
    return max(1, math.floor(mean + 0.5) + 2 * math.floor(sd + 0.5))
