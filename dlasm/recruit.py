"""Which reads belong to which contig end.

Reads are mapped to the contigs (:mod:`dlasm.mapping`), one place is chosen for each, and those that
hang over a contig end, or whose mate lies near one, become candidates of that end. All of it works
on flat arrays, a batch of reads at a time; a batch gives one run of candidates (:mod:`dlasm.runs`)
and a few facts (insert sizes, orientations, aligned bases) for when all batches are there.

The rules, for an alignment to a contig of length L that covers ``[start, end)`` of it and leaves
``left`` and ``right`` bases of the read unaligned, in contig direction, clips included:

1. It counts if ``min(left, start) <= 1`` and ``min(right, L - end) <= 1``.
2. A read has one place: of those that count the one of highest score, then of the shorter contig,
   the lower contig index, the lower start, the + strand.
3. ``left > start``: candidate of the left end; ``right > L - end``: of the right end.
4. In forward-reverse libraries a read on the + strand offers its mate to the right end if
   ``L - (start - left) < reach``, one on the - strand to the left end if ``end + right < reach``;
   not if the mate's own (chosen) place is on the same contig.
5. Candidates of an end are in the order of the input.

The reach (insert mean + 3 sd) is known only when all reads have been placed. So runs hold the
projected mates up to a generous ``bound``, each with its distance, and the reach is applied when
candidates are packed; :func:`bound_suffices` says whether the bound was generous enough.

minimap2's own primary alignment of a paired read is pair-aware; here each read is mapped by itself
and the highest score decides, so reads and a BAM file of them give slightly different candidates.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import dlasm._choose as _choose
import dlasm.kernels._cpu as _cpu
from dlasm.atomic import whole_file
from dlasm.errors import DlasmError, StoreError
from dlasm.params import DEFAULT_INSERT, HIGH_QUALITY, LOW_QUALITY, MIN_READ_LENGTH
from dlasm.runs import OVERHANG, CandidateRun, fragment_ids, write_run_file

if TYPE_CHECKING:
    from dlasm.io.fastq import ReadBatch

__all__ = [
    "MIN_PAIRS",
    "BatchFacts",
    "BatchResult",
    "Chosen",
    "InsertSize",
    "LibrarySummary",
    "Placements",
    "add_counts",
    "bound_suffices",
    "choose",
    "facts_path",
    "first_bound",
    "join_results",
    "measure_insert",
    "read_facts",
    "recruit_batch",
    "summarise_library",
    "write_batch_result",
]

MIN_PAIRS = 100
"""Pairs needed to measure the insert size, and to say that a library is not forward-reverse."""

INSERT_BARS = 50
"""Bins at most of the histogram of insert sizes."""

BOUND_FACTOR = 1.5
"""How much further than the first batch's reach mates are kept; costs a little disk space only."""


# ---------------------------------------------------------------- placing reads


@dataclass(frozen=True)
class Placements:
    """Where reads lie on contigs: flat arrays, a row per place, ``read`` ascending.

    A read may have several places, or none.

    Attributes
    ----------
    read : numpy.ndarray
        int64. Index of the read in its batch.
    contig : numpy.ndarray
        int64. Index of the contig.
    contig_start, contig_end : numpy.ndarray
        int64. The part of the contig that is aligned, 0-based, half-open.
    left, right : numpy.ndarray
        int32. Bases of the read left and right of the aligned part, in contig direction.
    reverse : numpy.ndarray
        uint8. 1 for a read on the - strand.
    score : numpy.ndarray
        int32. Alignment score of the read by itself (``AS``).
    """

    read: np.ndarray
    contig: np.ndarray
    contig_start: np.ndarray
    contig_end: np.ndarray
    left: np.ndarray
    right: np.ndarray
    reverse: np.ndarray
    score: np.ndarray


# ---------------------------------------------------------------- candidates of ends


class Chosen(NamedTuple):
    """What the places of reads tell; flat arrays.

    Attributes
    ----------
    read : numpy.ndarray
        int64, shape (candidates,). Indices of the candidate reads, sorted by ``end``, then input
        order.
    end : numpy.ndarray
        int64. ``2 * contig + side``.
    distance : numpy.ndarray
        int32. Bases to compare with the reach; :data:`~dlasm.runs.OVERHANG` for overhanging reads.
    turn : numpy.ndarray
        uint8. 1 where the reverse complement of the read as sequenced is stored.
    inserts, insert_contig_length, orientations, aligned_contig, aligned_bases : numpy.ndarray
        As in :class:`BatchFacts`.
    best : numpy.ndarray
        int64, shape (reads with a place,). Row of the place of each (rule 2).
    counted : numpy.ndarray
        uint8, same shape. Whether it counts (rule 1).
    """

    read: np.ndarray
    end: np.ndarray
    distance: np.ndarray
    turn: np.ndarray
    inserts: np.ndarray
    insert_contig_length: np.ndarray
    orientations: np.ndarray
    aligned_contig: np.ndarray
    aligned_bases: np.ndarray
    best: np.ndarray
    counted: np.ndarray


def choose(
    places: Placements,
    mate: np.ndarray | None,
    length: np.ndarray,
    contig_lengths: np.ndarray,
    *,
    bound: float,
    project: bool = True,
    order: np.ndarray | None = None,
) -> Chosen:
    """Apply the rules to the places of some reads and their mates.

    Reads shorter than 22 bases take no part at all: they are neither stored nor do they project
    their mates.

    A pair faces each other if the 5' end of its read on the + strand lies left of the 5' end of
    the one on the - strand (as Picard and samtools have it); the insert is what lies between.

    Parameters
    ----------
    places : Placements
        Any number of places for each read.
    mate : numpy.ndarray or None
        int64, shape (reads,). Index of each read's mate, -1 without one; None: there are none.
    length : numpy.ndarray
        int32, shape (reads,). Bases of the reads.
    contig_lengths : numpy.ndarray
        int64, shape (contigs,).
    bound : float
        Mates are projected over distances below this, bases.
    project : bool
        Whether mates are projected.
    order : numpy.ndarray or None
        int64, shape (reads,). Rank of a read in the input; None: its index.
    """
    return Chosen(
        *_choose.choose(
            *(getattr(places, each.name) for each in fields(Placements)),
            length,
            mate,
            order,
            contig_lengths,
            MIN_READ_LENGTH,
            project,
            bound,
        )
    )


# ---------------------------------------------------------------- a batch


@dataclass(frozen=True)
class BatchFacts:
    """What a batch tells apart from its candidates.

    Attributes
    ----------
    inserts : numpy.ndarray
        int32, shape (pairs,). Insert sizes, bases, of pairs whose reads both lie counted and wholly
        inside the same contig and face each other.
    insert_contig_length : numpy.ndarray
        int32, shape (pairs,). Length of the contig of each of them, 2^31 - 1 if it is longer.
    orientations : numpy.ndarray
        int64, shape (3,). Pairs wholly inside one contig: facing each other, facing outward, on the
        same strand.
    aligned_contig, aligned_bases : numpy.ndarray
        int64, shape (contigs met,). Bases of each contig covered by reads, each read at its best
        place (the best that counts, else the best), overlaps counted twice: depth is this divided
        by the contig's length.
    counts : dict of str to int
        Tallies for the summary; add them up over batches.
    """

    inserts: np.ndarray
    insert_contig_length: np.ndarray
    orientations: np.ndarray
    aligned_contig: np.ndarray
    aligned_bases: np.ndarray
    counts: dict[str, int]


@dataclass(frozen=True)
class BatchResult(BatchFacts):
    """Candidates and facts of a batch of reads."""

    run: CandidateRun


def recruit_batch(
    batch: ReadBatch,
    placements: Placements,
    contig_lengths: np.ndarray,
    *,
    library: int = 0,
    paired_fr: bool = True,
    bound: float,
    phred_offset: int = 33,
    threads: int = 1,
) -> BatchResult:
    """Choose the candidates of contig ends among the reads of a batch.

    Parameters
    ----------
    batch : ReadBatch
        The reads; of a paired batch the reads 2i and 2i + 1 are mates.
    placements : Placements
        Their places, any number for each.
    contig_lengths : numpy.ndarray
        int64, shape (contigs,).
    library : int
        Number of the library.
    paired_fr : bool
        Whether mates are projected; False for single reads and for libraries that are not
        forward-reverse.
    bound : float
        Mates are projected over distances below this, bases; see :func:`first_bound`.
    phred_offset : int
        ASCII code of quality 0.
    threads : int
        Threads that pack the reads.

    Returns
    -------
    BatchResult
        Candidates sorted by end, then input order, and the facts of the batch.
    """
    reads = len(batch)
    if batch.paired and (batch.first % 2 or reads % 2):
        raise DlasmError(
            f"batch of {reads} reads from {batch.first} on divides a pair; this is a fault of dlasm"
        )
    chosen = choose(
        placements,
        np.arange(reads, dtype=np.int64) ^ 1 if batch.paired else None,
        batch.length,
        contig_lengths,
        bound=bound,
        project=paired_fr,
    )
    words, word_offset, has_n = _cpu.pack_reads(
        batch.text,
        batch.base_start[chosen.read],
        batch.quality_start[chosen.read],
        batch.length[chosen.read],
        chosen.turn,
        phred_offset,
        LOW_QUALITY,
        HIGH_QUALITY,
        threads,
    )
    overhanging = int(np.count_nonzero(chosen.distance == OVERHANG))
    return BatchResult(
        run=CandidateRun(
            end=chosen.end,
            distance=chosen.distance,
            length=batch.length[chosen.read],
            fragment=fragment_ids(library, _fragment_numbers(batch, chosen.read)),
            has_n=has_n,
            word_offset=word_offset,
            words=words,
            library=library,
        ),
        inserts=chosen.inserts,
        insert_contig_length=chosen.insert_contig_length,
        orientations=chosen.orientations,
        aligned_contig=chosen.aligned_contig,
        aligned_bases=chosen.aligned_bases,
        counts={
            "reads": reads,
            "reads_too_short": int(np.count_nonzero(batch.length < MIN_READ_LENGTH)),
            "reads_placed": len(chosen.best),
            "reads_counted": int(np.count_nonzero(chosen.counted)),
            "overhanging": overhanging,
            "projected_within_bound": len(chosen.read) - overhanging,
        },
    )


def _fragment_numbers(batch: ReadBatch, read: np.ndarray) -> np.ndarray:
    """Return the number in its library of each read's pair, or of the read if it is single."""
    first = batch.first // 2  # ordinals leave room for a mate of every read
    return first + (read // 2 if batch.paired else read)


def join_results(results: Sequence[BatchResult]) -> BatchResult:
    """Make one result of those of consecutive batches of a library.

    Parameters
    ----------
    results : sequence of BatchResult
        At least one, in input order.
    """
    if len(results) == 1:
        return results[0]

    def all_of(name: str, of: Sequence[Any]) -> np.ndarray:
        return np.concatenate([getattr(each, name) for each in of])

    runs = [result.run for result in results]
    end = all_of("end", runs)
    order = np.argsort(end, kind="stable")  # so input order within an end
    size = np.concatenate([np.diff(run.word_offset) for run in runs])
    begin = (np.cumsum(size) - size)[order]
    word_offset = np.zeros(len(size) + 1, dtype=np.int64)
    np.cumsum(size[order], out=word_offset[1:])
    word = np.arange(word_offset[-1]) + np.repeat(begin - word_offset[:-1], size[order])
    contig, which = np.unique(all_of("aligned_contig", results), return_inverse=True)
    aligned = np.zeros(len(contig), dtype=np.int64)
    np.add.at(aligned, which, all_of("aligned_bases", results))
    counts: dict[str, int] = {}
    for result in results:
        add_counts(counts, result.counts)
    return BatchResult(
        run=CandidateRun(
            end=end[order],
            distance=all_of("distance", runs)[order],
            length=all_of("length", runs)[order],
            fragment=all_of("fragment", runs)[order],
            has_n=all_of("has_n", runs)[order],
            word_offset=word_offset,
            words=all_of("words", runs)[word],
            library=runs[0].library,
        ),
        inserts=all_of("inserts", results),
        insert_contig_length=all_of("insert_contig_length", results),
        orientations=np.sum([result.orientations for result in results], axis=0),
        aligned_contig=contig,
        aligned_bases=aligned,
        counts=counts,
    )


def facts_path(path: str | os.PathLike[str]) -> Path:
    """Return where the facts that belong to the run ``path`` are."""
    path = Path(path)
    return path.with_name(f"{path.name}.facts.npz")


def write_batch_result(path: str | os.PathLike[str], result: BatchResult) -> None:
    """Write the run to the file ``path`` and the facts beside it.

    The facts are whole before the run appears, so a run that is there has its facts.
    """
    arrays = {f.name: getattr(result, f.name) for f in fields(BatchFacts) if f.name != "counts"}
    counts = np.frombuffer(json.dumps(result.counts).encode(), dtype=np.uint8)
    with whole_file(facts_path(path)) as stream:
        np.savez(stream, counts=counts, **arrays)
    write_run_file(path, result.run)


def read_facts(path: str | os.PathLike[str]) -> BatchFacts:
    """Read the facts that belong to the run ``path``.

    Raises
    ------
    StoreError
        If they are missing or damaged.
    """
    source = facts_path(path)
    try:
        with np.load(source, allow_pickle=False) as arrays:
            values = {f.name: arrays[f.name] for f in fields(BatchFacts)}
        counts = {str(k): int(v) for k, v in json.loads(values.pop("counts").tobytes()).items()}
    except (FileNotFoundError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise StoreError(
            f"{source}: not the facts of a run of candidate reads ({error}); "
            "remove the run and start again"
        ) from error
    return BatchFacts(counts=counts, **values)


# ---------------------------------------------------------------- insert size and reach


@dataclass(frozen=True)
class InsertSize:
    """Insert size of a library.

    Attributes
    ----------
    mean, sd : float
        Bases.
    pairs : int
        Pairs that could tell it, before the extremes are left out.
    source : str
        "measured", "given" or "default".
    histogram : dict, optional
        Of the pairs that tell it, for a figure: ``first`` (smallest insert), ``width`` of a bin,
        bases, and ``counts``, pairs in each of at most :data:`INSERT_BARS` bins.
    """

    mean: float
    sd: float
    pairs: int
    source: str
    histogram: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def reach(self) -> float:
        """How far from a contig end a read may lie and still project its mate: mean + 3 sd."""
        return self.mean + 3 * self.sd


class _Histogram:
    """Counts of whole numbers, as many as there are different ones."""

    def __init__(self) -> None:
        self.values = np.empty(0, dtype=np.int64)
        self.counts = np.empty(0, dtype=np.int64)

    def add(self, values: np.ndarray) -> None:
        """Count ``values``."""
        new, counts = np.unique(values, return_counts=True)
        merged, where = np.unique(np.concatenate([self.values, new]), return_inverse=True)
        total = np.zeros(len(merged), dtype=np.int64)
        np.add.at(total, where, np.concatenate([self.counts, counts]))
        self.values, self.counts = merged, total

    def __len__(self) -> int:
        return int(self.counts.sum())

    def at(self, rank: int) -> int:
        """Return the value of this rank, from 0, in ascending order."""
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank, side="right")])


def measure_insert(facts: Iterable[BatchFacts]) -> InsertSize:
    """Measure the insert size from all batches of a library.

    The first estimate is the median insert of all pairs of :attr:`BatchFacts.inserts`. Then only
    pairs on contigs of at least three times that are taken (on shorter ones long inserts do not
    fit), ``pairs // 100`` are left out at either extreme, and mean and sd (n - 1) are exact.

    Parameters
    ----------
    facts : iterable of BatchFacts
        Gone through twice, so not an iterator. Memory grows with the number of different sizes.

    Returns
    -------
    InsertSize
        The measured one, or the default if fewer than :data:`MIN_PAIRS` pairs can tell it.
    """
    everything = _Histogram()
    for batch in facts:
        everything.add(batch.inserts)
    pairs = len(everything)
    taken = _Histogram()
    if pairs >= MIN_PAIRS:
        twice_median = everything.at((pairs - 1) // 2) + everything.at(pairs // 2)
        for batch in facts:
            long_enough = batch.insert_contig_length >= math.ceil(3 * twice_median / 2)
            taken.add(batch.inserts[long_enough])
        pairs = len(taken)
    if pairs < MIN_PAIRS:
        return InsertSize(*DEFAULT_INSERT, pairs=pairs, source="default")
    cut = pairs // 100
    until = np.cumsum(taken.counts)
    counts = np.minimum(until, pairs - cut) - np.maximum(until - taken.counts, cut)
    kept = [
        (int(value), int(count))
        for value, count in zip(taken.values, counts, strict=True)
        if count > 0
    ]
    n = pairs - 2 * cut
    total = sum(value * count for value, count in kept)
    squares = sum(value * value * count for value, count in kept)
    variance = (n * squares - total * total) / (n * (n - 1))  # whole numbers until here
    return InsertSize(
        total / n, math.sqrt(variance), pairs=pairs, source="measured", histogram=_bars(kept)
    )


def _bars(kept: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Count inserts, given as ascending values and their counts, in few bins of equal width."""
    values, counts = np.array(kept, dtype=np.int64).T
    width = -(-int(values[-1] - values[0] + 1) // INSERT_BARS)
    bars = np.zeros(int(values[-1] - values[0]) // width + 1, dtype=np.int64)
    np.add.at(bars, (values - values[0]) // width, counts)
    return {"first": int(values[0]), "width": width, "counts": bars.tolist()}


@dataclass(frozen=True)
class LibrarySummary:
    """What all batches of a library tell.

    Attributes
    ----------
    insert : InsertSize
        Its insert size.
    forward_reverse : bool
        Whether its mates face each other, so that they are projected.
    reach : float
        Candidates with ``distance < reach`` are used, bases; 0: overhanging reads alone.
    orientations : dict of str to int
        Pairs wholly inside one contig, by orientation.
    counts : dict of str to int
        Tallies of all batches.
    warnings : list of str
        What the user must be told.
    """

    insert: InsertSize
    forward_reverse: bool
    reach: float
    orientations: dict[str, int]
    counts: dict[str, int]
    warnings: list[str] = field(default_factory=list)


def summarise_library(
    facts: Iterable[BatchFacts],
    *,
    paired: bool,
    given: tuple[float, float] | None = None,
    name: str = "library",
) -> LibrarySummary:
    """Sum up a library: insert size, orientation, reach, tallies, and what to warn of.

    A library is forward-reverse unless at least :data:`MIN_PAIRS` pairs lie wholly inside one
    contig and fewer than half of them face each other.

    Parameters
    ----------
    facts : iterable of BatchFacts
        Gone through several times, so not an iterator.
    paired : bool
        Whether the reads come in pairs.
    given : tuple of float, optional
        Insert mean and sd that the user gave, bases; nothing is measured then.
    name : str
        How messages call the library.
    """
    orientations = np.zeros(3, dtype=np.int64)
    counts: dict[str, int] = {}
    for batch in facts:
        orientations += batch.orientations
        add_counts(counts, batch.counts)
    facing, outward, same_strand = (int(n) for n in orientations)
    total = facing + outward + same_strand
    forward_reverse = paired and (total < MIN_PAIRS or 2 * facing >= total)
    warnings = []
    if given is not None:
        insert = InsertSize(*given, pairs=0, source="given")
    elif paired and forward_reverse:
        insert = measure_insert(facts)
        if insert.source == "default":
            warnings.append(
                f"{name}: only {insert.pairs} pairs tell the insert size ({MIN_PAIRS} are needed); "
                f"mean {insert.mean:g} and sd {insert.sd:g} are used; --insert MEAN:SD sets them"
            )
    else:
        insert = InsertSize(*DEFAULT_INSERT, pairs=0, source="default")
    if paired and not forward_reverse:
        warnings.append(
            f"{name}: of {total} pairs inside a contig only {facing} face each other ({outward} "
            f"face outward, {same_strand} lie on the same strand), so it is not a forward-reverse "
            "library; mates are not used, only reads that hang over contig ends"
        )
    return LibrarySummary(
        insert=insert,
        forward_reverse=forward_reverse,
        reach=insert.reach if forward_reverse else 0.0,
        orientations={"facing": facing, "outward": outward, "same_strand": same_strand},
        counts=counts,
        warnings=warnings,
    )


def add_counts(total: dict[str, int], more: Mapping[str, int]) -> None:
    """Add tallies to ``total``, in place."""
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


def first_bound(facts: BatchFacts | None = None, given: tuple[float, float] | None = None) -> float:
    """Return up to which distance runs keep projected mates.

    Parameters
    ----------
    facts : BatchFacts, optional
        Those of the library's first batch, recruited with any bound (0 will do).
    given : tuple of float, optional
        Insert mean and sd that the user gave; then the reach is known.

    Returns
    -------
    float
        Bases, whole: one and a half times the reach estimated so far, at least the default's
        reach; exactly the reach if the insert size was given.
    """
    if given is not None:
        return float(math.ceil(InsertSize(*given, pairs=0, source="given").reach))
    default = InsertSize(*DEFAULT_INSERT, pairs=0, source="default").reach
    reach = default if facts is None else max(default, measure_insert([facts]).reach)
    return float(math.ceil(BOUND_FACTOR * reach))


def bound_suffices(reach: float, bound: float) -> bool:
    """Return whether runs recruited with ``bound`` hold every mate within ``reach``.

    If not, the library must be recruited again, with ``reach`` rounded up as the bound.
    """
    return reach <= bound
