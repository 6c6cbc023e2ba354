"""Joins of extended contigs: which ends overlap, what speaks for it, and the chains that follow.

Two ends are partners if what is read outward through one ends with what is read inward through the
other, exactly, over at least 51 bases. Overlaps are found by hashing the first 51 bases inward of
every end and looking every 51 bases of every contig up, so work grows with the bases and not with
the pairs of contigs. A candidate join is two ends, each the other's only partner, whose overlap
holds an appended base. What candidate reads say of it is gathered a run of them at a time, so
memory grows with the ends and not with the reads.

False joins are locally perfect: a repeat whose other copy goes on otherwise. Most of these contigs
overlapped by the assembler's k before they were extended, so pairs across say that the junction is
somewhere in the sample, not that it is the only one. What tells is who contradicts: ends that
overlapped the same end before extension (rivals) and share pairs with it, and candidate reads that
reach past the junction and go on otherwise. :func:`decide` has the rules.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import dlasm._joins as _joins
from dlasm.arrays import GROUPS, SIDES
from dlasm.atomic import sync_file, sync_folder, whole_file
from dlasm.params import REASONS, VERDICTS
from dlasm.report import n50
from dlasm.runs import CandidateRun
from dlasm.store import blocks_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FILES",
    "UNKNOWN",
    "Chains",
    "Extended",
    "LibraryInsert",
    "Links",
    "Names",
    "Overlaps",
    "decide",
    "find_joins",
    "find_overlaps",
    "join_figures",
    "join_flags",
    "joins_frame",
    "make_chains",
    "write_joined",
]

UNKNOWN = -1
"""Of counts of evidence: it was not gathered, as the overlap was no candidate; of ``least_reads``
also that the contigs as they were hold every k-mer of the overlap."""

MIN_OVERLAP = 51
"""Shortest overlap of two extended ends that can join them, bases: overlaps of 31 to 50 gave seven
more true joins on a mock community, where those of 51 gave 517."""

MAX_OVERLAP = 5_000
"""Longest overlap that is looked for, bases: more than the k of an assembler and two walks make."""

RIVAL_OVERLAP = 31
"""Shortest overlap of two ends as they were that makes one a rival of the other's partner."""

MAX_OVERLAPS = 64
"""Overlaps of an end that are kept; with more it is crowded, as ends inside a repeat are."""

KMER = 51
"""Length of the k-mers of an overlap that reads must hold."""

FLANK = 300
"""Bases on either side of an overlap, and of the appended ones, where reads are placed."""

LEAST_SHIFT = -1.8
"""A mean insert on the junction that is shorter by more standard errors shows a collapsed tandem
repeat."""

LEAST_READS = 2
"""Fragments that must hold each k-mer of an overlap."""

CAREFUL_ACROSS = 2
CAREFUL_AGREE = 5
CAREFUL_LINKS = 1.0
"""Careful joins: fragments across; how many reads must go on as the junction does for each one that
does otherwise; how many pairs a join must have for each of a rival's. Chosen on MEGAHIT's final
contigs of a mock community of 17 genomes; workflows/benchmarks/joins.py prints what others give."""

FULL_AGREE = 1

REPEAT_LENGTH = 5_000
REPEAT_DEPTH = 1.5
"""A contig shorter than this, bases, and this many times as deep as the contigs on both sides of it
is a repeat: both of its joins may be true, but in different copies."""

REPEAT_CONTIGS = 16
"""Contigs of one repeat that are passed over at most."""

SHORTEST_CIRCLE = 500
"""Bases of the shortest circle; what overlaps itself after fewer is a tandem repeat."""

WINNER_PAIRS = 2
WINNER_FACTOR = 2
"""An ambiguous overlap is taken if so many pairs speak for it, and so many times as many as for any
other of either end."""

FLAG_RATIO = 2.0
FLAG_ERRORS = 3.0
FLAG_AGAINST = 2
FLAG_SHARE = 0.1
READ_LENGTH = 150
"""Two contigs differ in depth if one is so many times as deep as the other and their logarithms
differ by so many standard errors (of Poisson counts of reads of this length, bases). Reads vary at
a junction if so many at one of its ends, and this share of them, go on otherwise. The guide
(guide.md) has what that finds on a mock community with strains."""

FILES = ("joins.tsv", "joined.fasta", "joined.agp", "graph.gfa")
"""What a run with joins writes besides."""


@dataclass(frozen=True)
class Extended:
    """Extended contigs as flat arrays.

    Attributes
    ----------
    bases, offsets
        As in group ``contigs`` of :mod:`dlasm.arrays`.
    walk_values, walk_offsets
        As in group ``results``.
    depth : numpy.ndarray
        float64, shape (contigs,), fold.
    circles : numpy.ndarray
        int64. Contigs that were circles before; they have no ends.
    """

    bases: np.ndarray
    offsets: np.ndarray
    walk_values: np.ndarray
    walk_offsets: np.ndarray
    depth: np.ndarray
    circles: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def walks(self, end: np.ndarray) -> np.ndarray:
        """Bases appended to ends, int64."""
        return self.walk_offsets[end + 1] - self.walk_offsets[end]

    @property
    def lengths(self) -> np.ndarray:
        """Bases of each extended contig, int64, shape (contigs,)."""
        return np.diff(self.offsets) + np.diff(self.walk_offsets).reshape(-1, 2).sum(axis=1)


@dataclass(frozen=True)
class Overlaps:
    """Exact overlaps of contig ends, each once, ascending by ``end``, ``partner``, ``length``.

    Attributes
    ----------
    end, partner : numpy.ndarray
        int64. ``2 * contig + side``; ``end <= partner``.
    length : numpy.ndarray
        int64. Bases that overlap.
    is_crowded : numpy.ndarray
        bool, shape (ends,). Whether an end has more overlaps than are kept.
    count : numpy.ndarray
        int64, shape (ends,). Overlaps of each end.
    """

    end: np.ndarray
    partner: np.ndarray
    length: np.ndarray
    is_crowded: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.end)


def find_overlaps(
    contigs: Extended,
    shortest: int = MIN_OVERLAP,
    longest: int = MAX_OVERLAP,
    *,
    extended: bool = True,
    threads: int = 1,
) -> Overlaps:
    """Find all exact overlaps of ends: a suffix of what is read outward through one is a prefix of
    what is read inward through the other, without N, shorter than either contig.

    Parameters
    ----------
    contigs : Extended
        The contigs.
    shortest : int
        Shortest overlap, bases, 1 to 63.
    longest : int
        Longest overlap, bases.
    extended : bool
        Whether the appended bases are there.
    threads : int
        Native threads.
    """  # noqa: D205
    walks, walk_offsets = contigs.walk_values, contigs.walk_offsets
    if not extended:
        walks, walk_offsets = np.zeros(0, np.uint8), np.zeros(2 * len(contigs) + 1, np.int64)
    end, partner, length, crowded = _joins.find_overlaps(
        contigs.bases,
        contigs.offsets,
        walks,
        walk_offsets,
        shortest,
        longest,
        MAX_OVERLAPS,
        threads,
    )
    count = np.bincount(end, minlength=2 * len(contigs))
    once = end <= partner  # it is found from both ends
    return Overlaps(end[once], partner[once], length[once], crowded.astype(bool), count)


def _is_appended(contigs: Extended, overlaps: Overlaps) -> np.ndarray:
    """Whether each overlap holds a base that was appended to either contig."""
    return (contigs.walks(overlaps.end) > 0) | (contigs.walks(overlaps.partner) > 0)


# -- pairs between ends ----------------------------------------------------------------------------


class Links:
    """How many pairs of reads link ends: each read lies near one and projects its mate.

    Parameters
    ----------
    is_wanted : numpy.ndarray
        bool, shape (ends,). Pairs between two other ends are not counted.
    """

    def __init__(self, is_wanted: np.ndarray) -> None:
        self._is_wanted = is_wanted
        self._ends = len(is_wanted)
        self._key = np.zeros(0, np.int64)
        self._count = np.zeros(0, np.int64)
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting_size = 0

    def add(self, run: CandidateRun, reach: float) -> None:
        """Count the pairs of a run of candidates."""
        rows = np.flatnonzero((run.distance >= 0) & (run.distance < reach))
        fragment, end = run.fragment[rows], run.end[rows]
        order = np.lexsort((end, fragment))
        fragment, end = fragment[order], end[order]
        # a fragment has two reads, and a read projects its mate to one end
        first = np.flatnonzero(fragment[1:] == fragment[:-1])
        first = first[self._is_wanted[end[first]] | self._is_wanted[end[first + 1]]]
        self._waiting.append(
            np.unique(end[first] * self._ends + end[first + 1], return_counts=True)
        )
        self._waiting_size += len(self._waiting[-1][0])
        if self._waiting_size > len(self._key) + (1 << 20):
            self._merge()

    def _merge(self) -> None:
        keys, counts = zip((self._key, self._count), *self._waiting, strict=True)
        self._key, where = np.unique(np.concatenate(keys), return_inverse=True)
        self._count = np.zeros(len(self._key), np.int64)
        np.add.at(self._count, where, np.concatenate(counts))
        self._waiting, self._waiting_size = [], 0

    def between(self, end: np.ndarray, partner: np.ndarray) -> np.ndarray:
        """Pairs between ends, int64, a value per pair of ends."""
        if self._waiting:
            self._merge()
        key = np.minimum(end, partner) * self._ends + np.maximum(end, partner)
        if not len(self._key):
            return np.zeros(len(key), np.int64)
        at = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        return np.where(self._key[at] == key, self._count[at], 0)


# -- evidence --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LibraryInsert:
    """Insert size of a library and the distance under which its mates project, bases."""

    mean: float
    sd: float
    reach: float


def _gather_evidence(
    contigs: Extended,
    end: np.ndarray,
    partner: np.ndarray,
    length: np.ndarray,
    runs: Iterable[CandidateRun],
    libraries: Sequence[LibraryInsert],
    rivals: Overlaps,
    links: Links,
    threads: int = 1,
) -> dict[str, np.ndarray]:
    """Gather what candidate reads say of joins of ``end`` and ``partner``.

    To cross a junction is to reach from what only the first contig held, as it was, to what only
    the second one did.

    Returns
    -------
    dict of str to numpy.ndarray
        The arrays of group ``joins`` from ``links`` to ``rival_links_b``: pairs whose reads lie
        near one end each; pairs that cross the junction and their mean insert minus the library's,
        in standard errors; fragments with a read that crosses it by itself; of the 51-mers of the
        overlap that neither contig held as it was the fewest fragments that hold one; candidate
        reads of either end that reach past the junction and go on as it does, or otherwise; ends,
        but for the partner, that overlapped the end as it was, and the most links of one of them.
    """
    n = len(end)
    codes, start, own_end, own_begin, begin, stop = _joins.junction_windows(
        contigs.bases,
        contigs.offsets,
        contigs.walk_values,
        contigs.walk_offsets,
        end,
        partner,
        length,
        FLANK,
    )
    # k-mers of the overlap that neither contig held as it was
    kmer_begin = np.maximum(begin, own_end - KMER + 1)
    kmer_stop = np.minimum(stop - KMER + 1, own_begin)
    kmer_start = np.zeros(n + 1, np.int64)
    np.cumsum(np.maximum(kmer_stop - kmer_begin, 0), out=kmer_start[1:])
    kmers = np.zeros(kmer_start[-1], np.int32)
    pairs = np.zeros((len(libraries), n), np.int64)
    insert_sum = np.zeros((len(libraries), n), np.int64)
    agree, against = np.zeros(2 * n, np.int64), np.zeros(2 * n, np.int64)
    reads = np.zeros(n, np.int64)
    for run in runs:
        _joins.place_reads(
            codes,
            start,
            own_end,
            own_begin,
            np.minimum(own_end, own_begin),  # what lies between the contigs as they were, or in
            np.maximum(own_end, own_begin),  # both of them, is to be crossed
            end,
            partner,
            run.end,
            run.distance,
            run.length,
            run.fragment,
            run.word_offset,
            run.words,
            libraries[run.library].reach,
            KMER,
            kmer_begin,
            kmer_start,
            pairs[run.library],
            insert_sum[run.library],
            agree,
            against,
            reads,
            kmers,
            threads,
        )
    shift = np.zeros(n)
    for library, about in enumerate(libraries):
        shift += (insert_sum[library] - pairs[library] * about.mean) / max(about.sd, 1.0)
    total = pairs.sum(axis=0)
    least = np.full(n, UNKNOWN, np.int64)
    has_kmers = np.flatnonzero(np.diff(kmer_start))
    if len(has_kmers):
        least[has_kmers] = np.minimum.reduceat(kmers, kmer_start[has_kmers])
    sides = np.stack([end, partner], axis=1)
    rival_count, rival_links = _rivals(sides, rivals, links)
    return {
        "links": links.between(end, partner),
        "pairs": total,
        "insert_shift": np.where(total > 0, shift / np.sqrt(np.maximum(total, 1)), np.nan),
        "reads": reads,
        "least_reads": least,
        "agree_a": agree[0::2],
        "agree_b": agree[1::2],
        "against_a": against[0::2],
        "against_b": against[1::2],
        "rivals_a": rival_count[:, 0],
        "rivals_b": rival_count[:, 1],
        "rival_links_a": rival_links[:, 0],
        "rival_links_b": rival_links[:, 1],
    }


def _rivals(sides: np.ndarray, overlaps: Overlaps, links: Links) -> tuple[np.ndarray, np.ndarray]:
    """Rivals of each side's partner, and the most links that one has with the side."""
    key = np.unique(overlaps.end * len(overlaps.count) + overlaps.partner)  # whatever the length
    one, two = np.divmod(key, len(overlaps.count))
    end, other = np.concatenate([one, two]), np.concatenate([two, one])
    partner_of = np.full(len(overlaps.count), -1, np.int64)
    partner_of[sides[:, 0]], partner_of[sides[:, 1]] = sides[:, 1], sides[:, 0]
    keep = (partner_of[end] >= 0) & (partner_of[end] != other)
    end, other = end[keep], other[keep]
    most = np.zeros(len(partner_of), np.int64)
    np.maximum.at(most, end, links.between(end, other))
    return np.bincount(end, minlength=len(partner_of))[sides], most[sides]


# -- decisions -------------------------------------------------------------------------------------


def decide(
    joins: Mapping[str, np.ndarray], lengths: np.ndarray, mode: str
) -> tuple[np.ndarray, np.ndarray]:
    """Decide which candidates are joined.

    The first reason that holds refuses a candidate:

    ============ ==================================================================================
    insert       pairs across are too short on the junction (:data:`LEAST_SHIFT`)
    kmers        a k-mer of the overlap is in fewer than :data:`LEAST_READS` fragments
    contradicted at either end more reads go on otherwise than as the junction does; ``careful``
                 wants five that agree for each one against
    few_pairs    ``careful``: fewer than two fragments cross the junction
    rival        ``careful``: a rival has more links with either end than the join has
    short        a circle of fewer than :data:`SHORTEST_CIRCLE` bases
    repeat       of those that are left it is one of two joins of a repeat (:data:`REPEAT_DEPTH`)
    ============ ==================================================================================

    A circle has no pairs across: mates inside one contig are nobody's candidates.

    Parameters
    ----------
    joins : mapping of str to numpy.ndarray
        Group ``joins`` of :mod:`dlasm.arrays`. Overlaps whose ``links`` are unknown are no
        candidates; their reasons stay.
    lengths : numpy.ndarray
        int64. Bases of each extended contig.
    mode : str
        One of :data:`dlasm.params.JOIN_MODES`.

    Returns
    -------
    verdict, reason : numpy.ndarray
        uint8, codes of :data:`dlasm.params.VERDICTS` and :data:`dlasm.params.REASONS`.
    """
    is_careful = mode == "careful"
    agree = CAREFUL_AGREE if is_careful else FULL_AGREE
    one, two = joins["end_a"], joins["end_b"]
    is_circle = one // 2 == two // 2
    least = joins["least_reads"]
    beaten, contradicted = np.zeros((2, len(one)), dtype=bool)
    for side in "ab":
        rival = np.where(is_circle, joins[f"rivals_{side}"], joins[f"rival_links_{side}"])
        beaten |= rival > np.where(is_circle, 0, CAREFUL_LINKS * joins["links"])
        contradicted |= joins[f"agree_{side}"] < agree * joins[f"against_{side}"]
    across = np.maximum(joins["pairs"], joins["reads"])
    rules = {
        "insert": joins["insert_shift"] <= LEAST_SHIFT,  # not if it is NaN
        "kmers": (least != UNKNOWN) & (least < LEAST_READS),
        "contradicted": contradicted,
        "few_pairs": is_careful & ~is_circle & (across < CAREFUL_ACROSS),
        "rival": is_careful & beaten,
        "short": is_circle & (lengths[one // 2] - joins["overlap"] < SHORTEST_CIRCLE),
    }
    is_candidate = joins["links"] != UNKNOWN
    reason = np.where(is_candidate, 0, joins["reason"]).astype(np.uint8)
    for name, holds in reversed(rules.items()):
        reason[is_candidate & holds] = REASONS.index(name)
    left = np.flatnonzero((reason == 0) & ~is_circle)
    depth = np.zeros(len(lengths))
    depth[one // 2], depth[two // 2] = joins["depth_a"], joins["depth_b"]
    reason[left[_through_repeats(one[left], two[left], lengths, depth)]] = REASONS.index("repeat")
    made = np.where(is_circle, VERDICTS.index("circular"), VERDICTS.index("joined"))
    verdict = np.where(reason == 0, made, VERDICTS.index("refused")).astype(np.uint8)
    return verdict, reason


def _through_repeats(
    end: np.ndarray, partner: np.ndarray, lengths: np.ndarray, depth: np.ndarray
) -> np.ndarray:
    """Whether each join is one of a repeat between two contigs: see :data:`REPEAT_DEPTH`.

    Contigs that are about as deep and as short belong to the repeat: the ones that count are those
    beyond them.
    """
    partner_of = np.full(2 * len(lengths), -1, np.int64)
    partner_of[end], partner_of[partner] = partner, end
    joined = (partner_of.reshape(-1, 2) >= 0).all(axis=1)
    contig = np.flatnonzero(joined & (lengths < REPEAT_LENGTH))
    is_repeat = np.zeros(len(lengths), bool)
    is_repeat[contig] = True
    for side in range(2):
        at = partner_of[2 * contig + side]
        for _ in range(REPEAT_CONTIGS):
            on = np.flatnonzero(at >= 0)
            other = at[on] // 2
            is_deep = REPEAT_DEPTH * depth[other] > depth[contig[on]]
            on = on[is_deep & (lengths[other] < REPEAT_LENGTH)]
            if not len(on):
                break
            at[on] = partner_of[at[on] ^ 1]
        is_repeat[contig] &= (at >= 0) & (REPEAT_DEPTH * depth[at // 2] <= depth[contig])
    return is_repeat[end // 2] | is_repeat[partner // 2]


def _most_of_others(end: np.ndarray, between: np.ndarray) -> np.ndarray:
    """Of each row the largest value of the other rows of the same end, 0 if there is none."""
    order = np.lexsort((-between, end))
    ordered, value = end[order], np.append(between[order], 0)
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    size = np.diff(np.append(first, len(ordered)))
    most = np.repeat(value[first], size)
    most[first] = np.where(size > 1, value[first + 1], 0)
    result = np.empty_like(between)
    result[order] = most
    return result


def _winners(overlaps: Overlaps, links: Links) -> np.ndarray:
    """Which overlaps have so many more links than any other of either end that they win.

    Several lengths for the same partner rule each other out.
    """
    between = links.between(overlaps.end, overlaps.partner)
    others = _most_of_others(
        np.concatenate([overlaps.end, overlaps.partner]), np.tile(between, 2)
    ).reshape(2, -1)
    return (between >= WINNER_PAIRS) & (between >= WINNER_FACTOR * others).all(axis=0)


# -- the stage -------------------------------------------------------------------------------------


def find_joins(
    contigs: Extended,
    runs: Sequence[CandidateRun],
    libraries: Sequence[LibraryInsert],
    mode: str,
    *,
    ambiguous: bool = False,
    threads: int = 1,
) -> dict[str, np.ndarray]:
    """Find all overlaps of ends and decide which of them join contigs.

    Parameters
    ----------
    contigs : Extended
        The extended contigs with the depths to compare.
    runs : sequence of CandidateRun
        All runs; gone through twice.
    libraries : sequence of LibraryInsert
        Their insert sizes.
    mode : str
        One of :data:`dlasm.params.JOIN_MODES`.
    ambiguous : bool
        Whether ends with several partners are joined to the one that most pairs speak for.
    threads : int
        Native threads.

    Returns
    -------
    dict of str to numpy.ndarray
        Group ``joins`` of :mod:`dlasm.arrays`: a value per overlap of two ends, refused ones too.
    """
    overlaps = find_overlaps(contigs, threads=threads)
    rivals = find_overlaps(contigs, RIVAL_OVERLAP, extended=False, threads=threads)
    end, partner = overlaps.end, overlaps.partner
    is_wanted = np.zeros(len(overlaps.count), bool)
    is_wanted[end] = is_wanted[partner] = True
    links = Links(is_wanted)
    for run in runs:
        links.add(run, libraries[run.library].reach)

    is_crowded = overlaps.is_crowded[end] | overlaps.is_crowded[partner]
    only = (overlaps.count[end] == 1) & (overlaps.count[partner] == 1)
    is_other = end // 2 != partner // 2
    if ambiguous:
        only |= is_other & _winners(overlaps, links)
    reason = np.zeros(len(overlaps), np.uint8)
    for name, holds in (
        ("ambiguous", ~only),
        ("not_extended", ~_is_appended(contigs, overlaps)),
        ("crowded", is_crowded),
        ("itself", end == partner),
        ("circle", np.isin(end // 2, contigs.circles) | np.isin(partner // 2, contigs.circles)),
    ):
        reason[holds] = REASONS.index(name)

    joins = {
        "end_a": end,
        "end_b": partner,
        "overlap": overlaps.length,
        "gap": contigs.walks(end) + contigs.walks(partner) - overlaps.length,
        "depth_a": contigs.depth[end // 2],
        "depth_b": contigs.depth[partner // 2],
    }
    rows = np.flatnonzero(reason == 0)
    evidence = _gather_evidence(
        contigs,
        end[rows],
        partner[rows],
        overlaps.length[rows],
        runs,
        libraries,
        rivals,
        links,
        threads,
    )
    for name, values in evidence.items():
        joins[name] = np.full(len(overlaps), np.nan if values.dtype == float else UNKNOWN)
        joins[name] = joins[name].astype(values.dtype)
        joins[name][rows] = values
    joins["reason"] = reason
    joins["verdict"], joins["reason"] = decide(joins, contigs.lengths, mode)
    return {name: joins[name] for name in GROUPS["joins"]}


# -- chains and files ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chains:
    """Contigs in the order in which joins put them; one alone is a chain too.

    A chain comes where its lowest contig is in the input, and begins so that this contig is in it
    as it came; a circle begins with it.

    Attributes
    ----------
    member : numpy.ndarray
        int64. The end through which a chain leaves each of its contigs.
    start : numpy.ndarray
        int64, shape (chains + 1,). Where each chain begins in ``member``.
    skip : numpy.ndarray
        int64. Bases of each member that overlap the one before it, and are left out.
    is_circular : numpy.ndarray
        uint8, shape (chains,).
    number : numpy.ndarray
        int64, shape (chains,). From 1, in chains of several contigs; 0 in those of one.
    """

    member: np.ndarray
    start: np.ndarray
    skip: np.ndarray
    is_circular: np.ndarray
    number: np.ndarray

    def __len__(self) -> int:
        return len(self.start) - 1


def make_chains(
    contigs: int, joins: Mapping[str, np.ndarray], circles: Sequence[int] | np.ndarray = ()
) -> Chains:
    """Follow the joins that were made; ``circles`` were some before. See :class:`Chains`."""
    made = joins["verdict"] != VERDICTS.index("refused")
    partner = np.full(2 * contigs, -1, np.int64)
    overlap = np.zeros(2 * contigs, np.int64)
    for one, two in (("end_a", "end_b"), ("end_b", "end_a")):
        partner[joins[one][made]] = joins[two][made]
        overlap[joins[one][made]] = joins["overlap"][made]
    member, start, is_circular = _joins.chains(partner)
    skip = overlap[member ^ 1]
    first = start[:-1][is_circular == 0]
    skip[first] = 0
    is_circular[np.isin(member[start[:-1]] // 2, circles)] = 1
    several = np.diff(start) > 1
    return Chains(member, start, skip, is_circular, np.where(several, np.cumsum(several), 0))


def join_figures(contigs: Extended, joins: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Count what joins did.

    Parameters
    ----------
    contigs : Extended
        The extended contigs.
    joins : mapping of str to numpy.ndarray
        From :func:`find_joins`.
    """
    lengths = contigs.lengths
    chains = make_chains(len(lengths), joins, contigs.circles)
    of_chain = _chain_lengths(lengths, chains)
    reasons = np.bincount(joins["reason"], minlength=len(REASONS))
    verdicts = np.bincount(joins["verdict"], minlength=len(VERDICTS))
    return {
        "overlaps": len(joins["verdict"]),
        "candidates": int(np.count_nonzero(joins["links"] != UNKNOWN)),
        "joined": int(verdicts[VERDICTS.index("joined")]),
        "circles": int(np.count_nonzero(chains.is_circular)),
        "refused": {
            name: int(count) for name, count in zip(REASONS, reasons, strict=True) if name and count
        },
        "flagged": {
            name: int(np.count_nonzero(holds & (joins["verdict"] != VERDICTS.index("refused"))))
            for name, holds in join_flags(joins, lengths).items()
        },
        "chains": int(chains.number.max(initial=0)),
        "contigs": len(chains),
        "bases": int(of_chain.sum()),
        "n50": n50(of_chain),
        "n50_of_input_size": n50(of_chain, int(contigs.offsets[-1])),
        "longest": int(of_chain.max(initial=0)),
    }


def _chain_lengths(lengths: np.ndarray, chains: Chains) -> np.ndarray:
    used = lengths[chains.member // 2] - chains.skip
    return np.add.reduceat(used, chains.start[:-1]) if len(chains) else used


def join_flags(joins: Mapping[str, np.ndarray], lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Say at which candidates depths or reads hint at two strains, or at two copies of a repeat.

    Parameters
    ----------
    joins : mapping of str to numpy.ndarray
        Group ``joins`` of :mod:`dlasm.arrays`.
    lengths : numpy.ndarray
        int64. Bases of each extended contig.

    Returns
    -------
    dict of str to numpy.ndarray
        bool: ``depth`` where the contigs differ in it (:data:`FLAG_RATIO`), ``variants`` where
        reads go on otherwise (:data:`FLAG_AGAINST`).
    """
    depth = np.maximum(np.stack([joins["depth_a"], joins["depth_b"]]), 1e-9)
    reads = depth * lengths[np.stack([joins["end_a"], joins["end_b"]]) // 2] / READ_LENGTH
    ratio = np.abs(np.log(depth[0] / depth[1]))
    error = np.sqrt((1 / np.maximum(reads, 1e-9)).sum(axis=0))
    against = np.stack([joins["against_a"], joins["against_b"]])
    total = against + np.stack([joins["agree_a"], joins["agree_b"]])
    is_candidate = joins["links"] != UNKNOWN
    varies = ((against >= FLAG_AGAINST) & (against >= FLAG_SHARE * total)).any(axis=0)
    differs = (ratio >= np.log(FLAG_RATIO)) & (ratio >= FLAG_ERRORS * error)
    return {"depth": is_candidate & differs, "variants": is_candidate & varies}


def joins_frame(joins: Mapping[str, np.ndarray], names: Names, lengths: np.ndarray) -> pd.DataFrame:
    """Return what ``joins.tsv`` holds as a pandas DataFrame; ``lengths`` as :func:`join_flags`."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for letter in "ab":
        end = joins[f"end_{letter}"]
        columns[f"contig_{letter}"] = names.of(end // 2)
        columns[f"side_{letter}"] = np.array(SIDES)[end % 2]
    for name, values in joins.items():
        if name in ("end_a", "end_b"):
            continue
        if name == "verdict":
            columns[name] = np.array(VERDICTS)[values]
        elif name == "reason":
            columns[name] = np.array(REASONS)[values]
        elif values.dtype == np.int64 and name != "gap":
            columns[name] = pd.array(np.where(values == UNKNOWN, 0, values), dtype="Int64")
            columns[name][values == UNKNOWN] = pd.NA
        else:
            columns[name] = values
    flags = join_flags(joins, lengths)
    each = zip(*(np.where(holds, name, "").tolist() for name, holds in flags.items()), strict=True)
    columns["flags"] = [",".join(filter(None, held)) or "." for held in each]
    return pd.DataFrame(columns)


class Names:
    """Ids of contigs, made strings only when they are asked for."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray) -> None:
        self.values, self.offsets = values, offsets

    def of(self, contig: np.ndarray) -> list[str]:
        """Return the ids of some contigs; bytes that are not UTF-8 are escaped as Python does."""
        begin, end = self.offsets[contig].tolist(), self.offsets[contig + 1].tolist()
        return [
            self.values[b:e].tobytes().decode(errors="surrogateescape")
            for b, e in zip(begin, end, strict=True)
        ]

    def unused_prefix(self) -> str:
        """Return a prefix that no id has: ``joined_`` unless some do."""
        prefix = "joined_"
        while self._any_begins(prefix.encode()):
            prefix = f"joined_{prefix}"
        return prefix

    def _any_begins(self, prefix: bytes) -> bool:
        begin = self.offsets[:-1][np.diff(self.offsets) >= len(prefix)]
        for i, byte in enumerate(prefix):
            begin = begin[self.values[begin + i] == byte]
        return len(begin) > 0


def write_joined(
    folder: str | os.PathLike[str],
    contigs: Extended,
    joins: Mapping[str, np.ndarray],
    names: Names,
    files: Iterable[str] = FILES,
) -> None:
    """Write what joins gave; each file appears when it is whole.

    ``joins.tsv``: a tab-separated row for each overlap of two extended ends, refused ones too:
    ``contig_a``, ``side_a``, ``contig_b``, ``side_b``, group ``joins`` of :mod:`dlasm.arrays`, and
    ``flags`` (:func:`join_flags`).

    ``joined.fasta``: the contigs after joining, those that were not joined too. A chain of several
    has a new id; the header says its members in order with their orientation (``members=a+,b-``),
    whether it is a circle (``circular=yes``, the overlap of its ends is there once) and its depth.

    ``joined.agp``: how the records of ``extended.fasta`` make those of ``joined.fasta``; AGP 2.1.

    ``graph.gfa``: extended contigs and all of their overlaps, with the verdict (``vd``) and reason
    (``rs``); GFA 1.0.

    Parameters
    ----------
    folder : path-like
        Where they appear.
    contigs : Extended
        The extended contigs.
    joins : mapping of str to numpy.ndarray
        From :func:`find_joins`.
    names : Names
        Ids of the contigs.
    files : iterable of str
        Which of :data:`FILES`.
    """
    folder = Path(folder)
    chains = make_chains(len(contigs), joins, contigs.circles)
    lengths = contigs.lengths
    sequences = (contigs.bases, contigs.offsets, contigs.walk_values, contigs.walk_offsets)
    weight = lengths[chains.member // 2].astype(float)
    depth = contigs.depth.astype(float)
    if len(chains):
        sums = np.add.reduceat(weight * depth[chains.member // 2], chains.start[:-1])
        chain_depth = sums / np.maximum(np.add.reduceat(weight, chains.start[:-1]), 1)
    else:
        chain_depth = np.zeros(0)
    printed = _joins.Chains(
        names.values,
        names.offsets,
        *sequences,
        chains.member,
        chains.start,
        chains.skip,
        chains.number,
        chains.is_circular,
        chain_depth,
        names.unused_prefix(),
    )
    for name in files:
        with whole_file(folder / name) as file:
            if name == "joins.tsv":
                joins_frame(joins, names, lengths).round(2).to_csv(
                    file, sep="\t", index=False, quoting=csv.QUOTE_NONE, errors="surrogateescape"
                )
            elif name == "graph.gfa":
                file.write(b"H\tVN:Z:1.0\n")
                for begin, end in _blocks(lengths):
                    file.write(
                        _joins.segments(names.values, names.offsets, *sequences, depth, begin, end)
                    )
                file.writelines(_links(joins, names))
            else:
                if name == "joined.agp":
                    file.write(b"##agp-version 2.1\n")
                for begin, end in _blocks(_chain_lengths(lengths, chains)):
                    text = printed.fasta if name == "joined.fasta" else printed.agp
                    file.write(text(begin, end))
            sync_file(file)
    sync_folder(folder)


def _blocks(lengths: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut chains or contigs into blocks of bounded number and bases."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return blocks_of(offsets)


def _links(joins: Mapping[str, np.ndarray], names: Names) -> Iterator[bytes]:
    """Give the lines of overlaps of a GFA file."""
    one, two = joins["end_a"], joins["end_b"]
    rows = zip(
        names.of(one // 2),
        np.array(["-", "+"])[one % 2].tolist(),  # leaving through the right end: as it came
        names.of(two // 2),
        np.array(["+", "-"])[two % 2].tolist(),
        joins["overlap"].tolist(),
        np.array(VERDICTS)[joins["verdict"]].tolist(),
        np.array(REASONS)[joins["reason"]].tolist(),
        strict=True,
    )
    for a, from_strand, b, to_strand, overlap, verdict, reason in rows:
        why = f"\trs:Z:{reason}" if reason else ""
        line = f"L\t{a}\t{from_strand}\t{b}\t{to_strand}\t{overlap}M\tvd:Z:{verdict}{why}\n"
        yield line.encode(errors="surrogateescape")
