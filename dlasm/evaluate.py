"""What is right in a run, where the genomes are known.

A contig is placed on the genomes by minimap2 with its whole flanks, up to 20 kb of them, and every
place counts: short anchors call true joins false and false ones true. What is right already where a
contig as a whole fits best needs no closer look, which takes most of the time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlasm.arrays import GROUPS, SIDES
from dlasm.errors import DlasmError, InputError, ParameterError, StoreError
from dlasm.io.fasta import Contigs, read_contigs
from dlasm.report import n50

if TYPE_CHECKING:
    from dlasm.store import Results

__all__ = [
    "LABELS",
    "Reference",
    "evaluate_run",
    "label_joins",
    "outward_walks",
    "right_bases",
]

LABELS = ("true", "switch", "chimeric", "local", "false", "unplaced")
"""What a join can be.

======== ===========================================================================================
true     both flanks have a best place, and there the genome has them as far apart as the join says
switch   it has so where one of them has a place worse than its best: the join goes over from one
         strain to another
chimeric a flank has no place as a whole, or its inner part alone fits far better elsewhere, at the
         place that the join says: it was wrong before
local    on one sequence and strand, but the distance is wrong by more than 20 and up to 1,000 bases
false    nothing of these
unplaced no part of a flank has a place
======== ===========================================================================================
"""

FLANK = 20_000
"""Bases of a contig that place it; longer than repeats of bacteria (rRNA operons, 5 to 7 kb)."""

SHORTEST = 100
"""Bases of a flank that are kept though they are in the overlap; fewer would lie anywhere."""

WHOLE = 0.9
"""Share of a flank that one alignment must cover to be a place of the whole flank."""

REACH = 100
"""Unaligned bases at the end of a flank up to which a place still says where the end lies."""

NEAR = 20
"""Bases by which the distance at a true junction may differ: indels of strains. Collapsed tandem
repeats on the mocks were off by 22 and more."""

LOCAL = 1_000
"""Bases by which a local misassembly is off at most: QUAST's threshold of extensive ones."""

BEST_SLACK = 0.001
"""Differences per base by which a place may be worse than the best one and still count as best,
besides :data:`BEST_DIFFERENCES`."""

BEST_DIFFERENCES = 2
"""Differences by which it may be worse however short the flank is: errors of the assembler."""

EXACT = 500
"""Flanks up to this length that minimap2 does not place are searched for as they are."""

ALL_CHAINS = 0x800000
"""Flag of minimap2 (MM_F_ALL_CHAINS, ``-P``): give places however much worse than the best."""

TAIL = 21
"""Last bases of a contig that must be right, lest its end was wrong before: the smallest k."""

BREAK = (50, 250)
"""Matches that a further alignment of a contig must bring to be worth a misassembly: a twentieth of
the contig within these bounds, which finds about as many as QUAST."""

PLACES_AT_ONCE = 1 << 14
"""Places at which bases are compared together, a few hundred bases each."""

JOINS_COLUMNS = ("contig_a", "side_a", "contig_b", "side_b", "overlap", "verdict")
"""Columns of ``joins.tsv`` that are read."""

_COMPLEMENT = bytes.maketrans(b"ACGTacgt", b"TGCAtgca")


_COMPLEMENT_CODES = np.frombuffer(_COMPLEMENT, dtype=np.uint8)


def _reversed(sequence: bytes) -> bytes:
    return sequence.translate(_COMPLEMENT)[::-1]


@dataclass(frozen=True)
class Place:
    """Where a flank lies; it is read outward, towards the end of its contig.

    Attributes
    ----------
    sequence : int
        Sequence of the reference.
    backward : bool
        Whether outward is towards smaller coordinates.
    boundary : int
        Where the flank ends: outward follows base ``boundary``, or ``boundary - 1`` if backward.
    aligned : int
        Bases of the flank in the alignment.
    before : int
        Bases before the alignment.
    differences : int
        Bases from the begin of the alignment to the end of the flank that differ, are missing,
        surplus, or not aligned.
    """

    sequence: int
    backward: bool
    boundary: int
    aligned: int
    before: int
    differences: int

    @property
    def errors(self) -> int:
        """Differences of the whole flank."""
        return self.differences + self.before


@dataclass(frozen=True)
class Placed:
    """All places of a flank.

    Attributes
    ----------
    length : int
        Bases of the flank.
    whole : list of Place
        Those of the whole flank.
    inner : list of Place
        Those of its inner part alone, which reaches the end.
    is_found : bool
        Whether any part of it has a place.
    is_covered : bool
        Whether one alignment covers it, be it without its end.
    """

    length: int
    whole: list[Place]
    inner: list[Place]
    is_found: bool
    is_covered: bool

    @cached_property
    def allowed(self) -> float:
        """Errors up to which a place is one of the best."""
        return min((place.errors for place in self.whole), default=0) + self.slack(self.length)

    @property
    def best(self) -> list[Place]:
        """The best places of the whole flank."""
        return [place for place in self.whole if place.errors <= self.allowed]

    @staticmethod
    def slack(length: int) -> float:
        """Differences that do not matter in so many bases."""
        return max(BEST_DIFFERENCES, BEST_SLACK * length)

    def is_explained_by(self, place: Place) -> bool:
        """Whether the inner part fits far better at ``place`` than where the whole flank lies."""
        best = min((whole.errors for whole in self.whole), default=self.length)
        here = best * place.aligned / self.length
        return here > place.differences + self.slack(place.aligned)


@dataclass(frozen=True)
class Hit:
    """An alignment of a part of a contig, without an insertion or deletion above ``LOCAL``.

    Attributes
    ----------
    begin, end : int
        The part of the contig.
    sequence : int
        Sequence of the reference.
    backward : bool
        Whether the contig's reverse complement is aligned.
    ref_begin, ref_end : int
        The part of the reference.
    matches : int
        Bases of the contig that are aligned, less the differences.
    """

    begin: int
    end: int
    sequence: int
    backward: bool
    ref_begin: int
    ref_end: int
    matches: int


def _covered(hits: Iterable[Hit]) -> int:
    """Count the bases of a contig that alignments cover."""
    covered = last = 0
    for hit in sorted(hits, key=lambda hit: hit.begin):
        covered += max(0, hit.end - max(hit.begin, last))
        last = max(last, hit.end)
    return covered


def _cut(found: Any) -> list[Hit]:
    """Make hits of one of mappy's."""
    backward = found.strand < 0
    pieces = []
    begin, at = (found.q_st, found.r_st), [found.q_st, found.r_st]
    gaps = 0
    for length, operation in found.cigar:
        is_gap = operation in (1, 2)
        if is_gap and length > LOCAL:
            pieces.append((*begin, *at))
        if operation != 2:
            at[0] += length
        if operation != 1:
            at[1] += length
        if is_gap and length > LOCAL:
            gaps += length
            begin = (at[0], at[1])
    pieces.append((*begin, *at))
    hits = []
    rate = (found.NM - gaps) / max(1, found.q_en - found.q_st)
    for q_begin, r_begin, q_end, r_end in pieces:
        if backward:  # the cigar runs along the reference
            q_begin, q_end = (found.q_st + found.q_en - at for at in (q_end, q_begin))
        matches = (q_end - q_begin) - round(rate * (q_end - q_begin))
        hits.append(Hit(q_begin, q_end, int(found.ctg), backward, r_begin, r_end, matches))
    return hits


class Reference:
    """Genomes, indexed for minimap2 (preset ``asm10``).

    Parameters
    ----------
    path : path-like
        FASTA of all genomes, plain or compressed.
    circular : bool
        Whether the sequences are circles.
    threads : int
        Threads that place flanks.

    Raises
    ------
    InputError
        If the file is missing or not usable.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, circular: bool = False, threads: int = 1
    ) -> None:
        import mappy

        self.path = os.fspath(path)
        self.sequences = read_contigs(path)
        self.circular = circular
        self.lengths = self.sequences.lengths
        if not self.lengths.sum():
            raise InputError(f"{self.path}: holds no bases; give the genomes as FASTA")
        self._bases = [self.sequences.sequence(i).upper() for i in range(len(self.sequences))]
        self._threads = threads
        self.text = np.frombuffer(b"".join(self._bases), dtype=np.uint8)
        with tempfile.TemporaryDirectory(prefix="dlasm-reference-") as folder:
            fasta = os.path.join(folder, "reference.fa")
            with open(fasta, "wb") as file:
                for i, bases in enumerate(self._bases):
                    file.write(b">%d\n%s%s\n" % (i, bases, self._around(bases)))
            # asm10 wants 200 matches, and contigs may be shorter
            self._aligner = mappy.Aligner(fasta, preset="asm10", min_dp_score=40)
        if not self._aligner:
            raise DlasmError(f"{self.path}: minimap2 cannot index these genomes")

    def _around(self, bases: bytes) -> bytes:
        """Return what follows a sequence, as far as a flank can reach."""
        return bases[: 2 * FLANK] if self.circular else b""

    def off(self, place: Place, other: Place, distance: int) -> int:
        """Bases by which two boundaries on one sequence are not so far apart as they should be.

        Parameters
        ----------
        place, other : Place
            The places; outward from the first is towards the other.
        distance : int
            Bases that should lie from one to the other, outward.
        """
        found = other.boundary - place.boundary
        off = (-found if place.backward else found) - distance
        if self.circular:
            length = int(self.lengths[place.sequence])
            off = (off + length // 2) % length - length // 2
        return abs(off)

    def place(self, flanks: Iterable[bytes], every: bool = True) -> list[Placed]:
        """Place flanks, each read outward.

        Parameters
        ----------
        flanks : iterable of bytes
            The flanks.
        every : bool
            Also give places much worse than the best, which takes four times as long.
        """
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(partial(self._place, every=every), flanks))

    def _place(self, flank: bytes, *, every: bool) -> Placed:
        flank = flank.upper()
        length = len(flank)
        placed = Placed(length, [], [], False, False)
        hits = self._aligner.map(flank.decode("latin-1"), extra_flags=ALL_CHAINS if every else None)
        is_found = is_covered = False
        for hit in hits:
            is_found = True
            is_covered = is_covered or hit.q_en - hit.q_st >= WHOLE * length
            clipped, aligned = length - hit.q_en, hit.q_en - hit.q_st
            if clipped > REACH:
                continue
            backward = hit.strand < 0
            boundary = hit.r_st - clipped if backward else hit.r_en + clipped
            place = Place(int(hit.ctg), backward, boundary, aligned, hit.q_st, hit.NM + clipped)
            (placed.whole if aligned >= WHOLE * length else placed.inner).append(place)
        if not is_found and 0 < length <= EXACT:
            placed.whole.extend(self._search(flank))
        is_exact = bool(placed.whole)
        return replace(placed, is_found=is_found or is_exact, is_covered=is_covered or is_exact)

    def align(self, contigs: Sequence[bytes]) -> list[list[Hit]]:
        """Align contigs: of each the best places, and all of one that they do not cover."""
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(self._align, contigs))

    def _align(self, contig: bytes) -> list[Hit]:
        text = contig.upper().decode("latin-1")
        hits = [hit for found in self._aligner.map(text) for hit in _cut(found)]
        # minimap2 leaves out what overlaps a better alignment by half
        if hits and _covered(hits) < len(contig) - REACH:
            every = self._aligner.map(text, extra_flags=ALL_CHAINS)
            hits = [hit for found in every for hit in _cut(found)]
        return hits

    def _search(self, flank: bytes) -> list[Place]:
        """Find a flank as it is."""
        places = []
        for backward, query in ((False, flank), (True, _reversed(flank))):
            for i, bases in enumerate(self._bases):
                text = bases + self._around(bases)[: len(query) - 1]
                at = text.find(query)
                while at >= 0:
                    boundary = at if backward else at + len(query)
                    places.append(Place(i, backward, boundary, len(query), 0, 0))
                    at = text.find(query, at + 1)
        return places


# -- extensions ------------------------------------------------------------------------------------


def right_bases(
    values: np.ndarray,
    offsets: np.ndarray,
    which: np.ndarray,
    limits: tuple[np.ndarray, np.ndarray],
    boundary: np.ndarray,
    backward: np.ndarray,
    text: np.ndarray,
    *,
    circular: bool = False,
) -> np.ndarray:
    """Count the bases, up to the first mismatch, that places on genomes have as well.

    Parameters
    ----------
    values : numpy.ndarray
        uint8, ASCII. Sequences, each read away from a boundary.
    offsets : numpy.ndarray
        int64, shape (sequences + 1,). Where each begins in ``values``.
    which : numpy.ndarray
        int64, shape (places,). The sequence that is compared.
    limits : tuple of numpy.ndarray
        int64, shape (places,). Begin and end of the genome in ``text``.
    boundary : numpy.ndarray
        int64, shape (places,). Where the sequence should begin, as coordinate in the genome: at
        that base, or at the one before it if backward.
    backward : numpy.ndarray
        bool, shape (places,). Whether it runs towards smaller coordinates, complemented.
    text : numpy.ndarray
        uint8, ASCII. All genomes.
    circular : bool
        Whether genomes are circles.

    Returns
    -------
    numpy.ndarray
        int64, shape (places,).
    """
    size = np.diff(offsets)[which]
    row = np.repeat(np.arange(len(which)), size)
    step = np.arange(len(row)) - (np.cumsum(size) - size)[row]
    at = np.where(backward[row], boundary[row] - 1 - step, boundary[row] + step)
    length = (limits[1] - limits[0])[row]
    if circular:
        at %= np.maximum(length, 1)
    inside = (at >= 0) & (at < length)
    expected = text[np.where(inside, at + limits[0][row], 0)]
    expected = np.where(backward[row], _COMPLEMENT_CODES[expected], expected)
    wrong = ~inside | (values[offsets[:-1][which][row] + step] != expected)
    agreed = size.copy()
    np.minimum.at(agreed, row[wrong], step[wrong])
    return agreed


def outward_walks(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the bases of all ends read outward: those of left ends are reverse complemented.

    Parameters
    ----------
    values, offsets : numpy.ndarray
        ``walk_values`` and ``walk_offsets`` as in :mod:`dlasm.arrays`.
    """
    size = np.diff(offsets)
    end = np.repeat(np.arange(len(size)), size)
    at = np.arange(len(values))
    is_left = end % 2 == 0
    flipped = values[np.where(is_left, offsets[end] + offsets[end + 1] - 1 - at, at)]
    return np.where(is_left, _COMPLEMENT_CODES[flipped], flipped)


def _right_at(
    reference: Reference,
    places: Sequence[Sequence[Place]],
    values: np.ndarray,
    offsets: np.ndarray,
    *,
    inward: bool = False,
) -> np.ndarray:
    """Count right bases of each sequence at the best of its places; -1 where it has none."""
    best = np.full(len(places), -1, dtype=np.int64)
    rows = [
        (i, place.sequence, place.boundary, place.backward != inward)
        for i, all_places in enumerate(places)
        for place in all_places
    ]
    starts = reference.sequences.offsets
    for begin in range(0, len(rows), PLACES_AT_ONCE):
        which, sequence, boundary, backward = np.array(
            rows[begin : begin + PLACES_AT_ONCE], dtype=np.int64
        ).T
        limits = (starts[sequence], starts[sequence + 1])
        right = right_bases(
            values,
            offsets,
            which,
            limits,
            boundary,
            backward.astype(bool),
            reference.text,
            circular=reference.circular,
        )
        np.maximum.at(best, which, right)
    return best


def _places_of_end(hits: Sequence[Hit], length: int, side: int) -> list[Place]:
    """Places of a contig's flank, as far as alignments of the contig tell them."""
    flank = min(length, FLANK)
    places = []
    for hit in hits:
        clipped = length - hit.end if side else hit.begin
        inner = flank - (length - hit.begin if side else hit.end)  # before the alignment
        aligned = flank - clipped - max(0, inner)
        if clipped > REACH or aligned < WHOLE * flank:
            continue
        backward = hit.backward == bool(side)
        boundary = hit.ref_begin - clipped if backward else hit.ref_end + clipped
        places.append(Place(hit.sequence, backward, boundary, aligned, max(0, inner), 0))
    return places


@dataclass(frozen=True)
class _Extensions:
    """How right each extended end is.

    Attributes
    ----------
    end : numpy.ndarray
        int64. The ends that were extended.
    appended, right : numpy.ndarray
        int64. Bases appended, and those of them that are right.
    state : numpy.ndarray
        str. ``judged``, ``wrong_end``, ``chimeric`` or ``unplaced``.
    """

    end: np.ndarray
    appended: np.ndarray
    right: np.ndarray
    state: np.ndarray

    def figures(self) -> dict[str, Any]:
        """Return the counts for the report."""
        figures: dict[str, Any] = {"ends": len(self.end), "bases": int(self.appended.sum())}
        for state in ("judged", "wrong_end", "chimeric", "unplaced"):
            appended = self.appended[self.state == state]
            right = self.right[self.state == state]
            counts = {"ends": len(appended), "bases": int(appended.sum())}
            if state in ("judged", "wrong_end"):  # the others have no place to compare with
                counts["right_ends"] = int(np.count_nonzero(right == appended))
                counts["right_bases"] = int(right.sum())
            figures[state] = counts
        return figures


def _judge_extensions(
    contigs: Contigs,
    hits: Sequence[Sequence[Hit]],
    walk_values: np.ndarray,
    walk_offsets: np.ndarray,
    reference: Reference,
) -> _Extensions:
    """Compare appended bases with what follows the contigs on the genomes."""
    ends = np.flatnonzero(np.diff(walk_offsets))
    appended = np.diff(walk_offsets)[ends]
    walks = outward_walks(walk_values, walk_offsets)
    walks = np.frombuffer(walks.tobytes().upper(), dtype=np.uint8)
    starts = np.zeros(len(ends) + 1, dtype=np.int64)
    np.cumsum(appended, out=starts[1:])  # other ends have no bases
    tails = [
        _reversed(outward(contigs, end // 2, end % 2).upper()[-TAIL:]) for end in ends.tolist()
    ]
    tail_starts = np.cumsum([0, *map(len, tails)], dtype=np.int64)
    tail_values = np.frombuffer(b"".join(tails), dtype=np.uint8)
    tail_lengths = np.diff(tail_starts)

    def compare(chosen: np.ndarray, places: list[list[Place]]) -> tuple[np.ndarray, np.ndarray]:
        spread: list[list[Place]] = [[] for _ in range(len(ends))]
        for i, there in zip(chosen.tolist(), places, strict=True):
            spread[i] = there
        right = _right_at(reference, spread, walks, starts)
        tail = _right_at(reference, spread, tail_values, tail_starts, inward=True)
        return right[chosen], tail[chosen] == tail_lengths[chosen]

    lengths = contigs.lengths.tolist()
    every = np.arange(len(ends))
    right, is_tail_right = compare(
        every,
        [_places_of_end(hits[e // 2], lengths[e // 2], e % 2) for e in ends.tolist()],
    )
    rest = np.flatnonzero(~is_tail_right | (right < appended))
    placed = reference.place(outward(contigs, e // 2, e % 2) for e in ends[rest].tolist())
    right[rest], is_tail_right[rest] = compare(rest, [flank.whole for flank in placed])
    state = np.full(len(ends), "judged", dtype="U9")
    for i, flank in zip(rest.tolist(), placed, strict=True):
        if not flank.is_found:
            state[i] = "unplaced"
        elif not flank.is_covered:
            state[i] = "chimeric"
        elif not is_tail_right[i]:
            state[i] = "wrong_end"
    return _Extensions(ends, appended, np.maximum(right, 0), state)


# -- joins -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Join:
    """A join that was judged.

    Attributes
    ----------
    label : str
        One of :data:`LABELS`.
    inside : tuple of int
        Bases of each contig that the overlap has and its flank has not.
    placed : tuple of Placed
        Places of the two flanks.
    pairs : list of tuple of Place
        Places of the two where they are as far apart as the join says.
    """

    label: str
    inside: tuple[int, int]
    placed: tuple[Placed, Placed]
    pairs: list[tuple[Place, Place]]


def label_joins(contigs: Contigs, joins: np.ndarray, reference: Reference) -> np.ndarray:
    """Say which joins are true.

    Parameters
    ----------
    contigs : Contigs
        The contigs before extension.
    joins : numpy.ndarray
        int64, shape (joins, 7). In each row: contig a, its side (0 left, 1 right), contig b, its
        side, the overlap of the two extended ends, and the bases appended to each.
    reference : Reference
        The genomes.

    Returns
    -------
    numpy.ndarray
        str, shape (joins,). Of each join one of :data:`LABELS`.

    Raises
    ------
    ParameterError
        If a row names a contig or side that is not there.
    """
    rows = np.asarray(joins, dtype=np.int64).reshape(-1, 7).tolist()
    labels = [join.label for join in _judge_closely(contigs, rows, reference)]
    return np.array(labels, dtype=f"U{max(map(len, LABELS))}")


def _judge_closely(contigs: Contigs, rows: list[list[int]], reference: Reference) -> list[_Join]:
    """Judge joins, by places that fit badly too where others do not make them true."""
    judged = _judge_joins(contigs, rows, reference, every=False)
    # nothing is better than true, so the rest alone is looked at more closely
    rest = [i for i, join in enumerate(judged) if join.label != "true"]
    again = _judge_joins(contigs, [rows[i] for i in rest], reference, every=True)
    for i, join in zip(rest, again, strict=True):
        judged[i] = join
    return judged


def _judge_joins(
    contigs: Contigs, rows: list[list[int]], reference: Reference, *, every: bool
) -> list[_Join]:
    """Judge joins by the places of their flanks; with ``every`` by those that fit badly too."""
    flanks: dict[tuple[int, int, int], int] = {}  # ends overlap several others in the same way
    keys: list[tuple[int, int, int]] = []
    for row in rows:
        for contig, side, appended in ((row[0], row[1], row[5]), (row[2], row[3], row[6])):
            if not (0 <= contig < len(contigs) and side in (0, 1)):
                raise ParameterError(f"join {row}: there is no contig {contig} with side {side}")
            inside = max(0, min(row[4] - appended, int(contigs.lengths[contig]) - SHORTEST))
            keys.append((contig, side, inside))
            flanks.setdefault(keys[-1], len(flanks))
    placed = reference.place((outward(contigs, *key) for key in flanks), every)
    judged = []
    for i, row in enumerate(rows):
        inside_a, inside_b = keys[2 * i][2], keys[2 * i + 1][2]
        a, b = placed[flanks[keys[2 * i]]], placed[flanks[keys[2 * i + 1]]]
        label, pairs = _label(reference, a, b, row[5] + row[6] - row[4] + inside_a + inside_b)
        judged.append(_Join(label, (inside_a, inside_b), (a, b), pairs))
    return judged


def outward(contigs: Contigs, contig: int, side: int, leave_out: int = 0) -> bytes:
    """Return the flank of a contig's end, read outward, without its last ``leave_out`` bases."""
    begin, end = int(contigs.offsets[contig]), int(contigs.offsets[contig + 1])
    if side:
        end -= leave_out
        return contigs.bases[max(begin, end - FLANK) : end].tobytes()
    begin += leave_out
    return _reversed(contigs.bases[begin : min(end, begin + FLANK)].tobytes())


def _label(
    reference: Reference, a: Placed, b: Placed, gap: int
) -> tuple[str, list[tuple[Place, Place]]]:
    """Label a join of two flanks that are ``gap`` bases apart, with the places that support it."""
    if not (a.is_found and b.is_found):
        return "unplaced", []
    found = {"false" if a.whole and b.whole else "chimeric"}
    pairs = []
    for at_a, at_b in product(a.whole + a.inner, b.whole + b.inner):
        if at_a.sequence != at_b.sequence or at_a.backward == at_b.backward:
            continue
        off = reference.off(at_a, at_b, gap)
        sides = ((a, at_a), (b, at_b))
        if any(place in flank.inner for flank, place in sides):
            if off <= NEAR and all(
                place in flank.whole or flank.is_explained_by(place) for flank, place in sides
            ):
                found.add("chimeric")
        elif off <= NEAR:
            is_best = all(place.errors <= flank.allowed for flank, place in sides)
            found.add("true" if is_best else "switch")
            pairs.append((at_a, at_b))
        elif off <= LOCAL:
            found.add("local")
    return min(found, key=LABELS.index), pairs


def _chains(rows: Sequence[Sequence[int]]) -> list[list[tuple[int, bool]]]:
    """Put joins in chains: of each chain the joins, and whether they are passed from b to a.

    A circle ends with the join it began with.
    """
    at_end = {2 * row[c] + row[c + 1]: i for i, row in enumerate(rows) for c in (0, 2)}
    left: dict[int, None] = dict.fromkeys(range(len(rows)))
    ends = [2 * row[c] + row[c + 1] for row in rows for c in (0, 2)]
    # those whose contig has no other join first; what then is left are circles
    starts = [end for end in ends if end ^ 1 not in at_end] + ends
    chains = []
    for end in starts:
        chain = []
        while (join := at_end.get(end)) is not None and join in left:
            del left[join]
            a, b = (2 * rows[join][c] + rows[join][c + 1] for c in (0, 2))
            chain.append((join, end == b))
            end = (a if end == b else b) ^ 1
        if chain and join == chain[0][0]:
            chain.append(chain[0])
        if chain:
            chains.append(chain)
    return chains


def _breaks(
    contigs: Contigs,
    rows: Sequence[Sequence[int]],
    joins: Sequence[_Join],
    chain: Sequence[tuple[int, bool]],
    reference: Reference,
) -> list[int]:
    """Contigs of a chain that its two joins need at different places, though each join is true."""
    wrong = []
    before: list[Place] = []  # of the contig, read towards the join that led to it
    for number, (join, is_turned) in enumerate(chain):
        judged = joins[join]
        pairs = [pair[::-1] if is_turned else pair for pair in judged.pairs]
        if judged.label != "true":
            before = []
            continue
        if number and before:
            last, last_turned = chain[number - 1]
            contig = rows[join][2 if is_turned else 0]
            between = int(contigs.lengths[contig]) - judged.inside[is_turned]
            between -= joins[last].inside[not last_turned]

            def is_one(back: Place, on: Place, between: int = between) -> bool:
                # the flank read back ends where the contig begins
                turned = replace(back, backward=not back.backward)
                return (
                    back.sequence == on.sequence
                    and back.backward != on.backward
                    and reference.off(turned, on, between) <= LOCAL
                )

            kept = [pair for pair in pairs if any(is_one(back, pair[0]) for back in before)]
            if not kept:
                all_back = joins[last].placed[not last_turned].best
                all_on = judged.placed[is_turned].best
                # a contig whose ends lie best on different strains was wrong before
                if any(is_one(back, on) for back, on in product(all_back, all_on)):
                    wrong.append(contig)
            pairs = kept or pairs
        before = [pair[1] for pair in pairs]
    return wrong


def _joins_figures(
    contigs: Contigs, rows: list[list[int]], joined: np.ndarray, reference: Reference
) -> dict[str, Any]:
    """Count the labels of joins that were made and refused, and the chains that are false."""
    judged = _judge_closely(contigs, rows, reference)

    def count(is_counted: bool) -> dict[str, int]:
        labels = [
            join.label
            for join, is_made in zip(judged, joined, strict=True)
            if is_made == is_counted
        ]
        return {label: labels.count(label) for label in LABELS}

    figures: dict[str, Any] = {"joined": count(True), "refused": count(False)}
    made = [row for row, is_made in zip(rows, joined, strict=True) if is_made]
    judged = [join for join, is_made in zip(judged, joined, strict=True) if is_made]
    chains = _chains(made)
    doubtful = [c for c in chains if _breaks(contigs, made, judged, c, reference)]
    closer = sorted({join for chain in doubtful for join, _ in chain})
    again = _judge_joins(contigs, [made[i] for i in closer], reference, every=True)
    for i, join in zip(closer, again, strict=True):
        judged[i] = join
    broken = [_breaks(contigs, made, judged, chain, reference) for chain in doubtful]
    return figures | {"chains": len(chains), "false_chains": sum(map(bool, broken))}


def _read_joins(
    path: Path, names: Mapping[bytes, int], walk_lengths: np.ndarray
) -> tuple[list[list[int]], np.ndarray]:
    """Read ``joins.tsv``: rows as :func:`label_joins` wants them, and which were joined."""
    rows: list[list[int]] = []
    joined: list[bool] = []
    sides = {side.encode(): number for number, side in enumerate(SIDES)}
    with open(path, "rb") as file:
        header = file.readline().rstrip(b"\n").decode(errors="backslashreplace").split("\t")
        if missing := [name for name in JOINS_COLUMNS if name not in header]:
            raise StoreError(f"{path}: has no column {missing[0]}; run dlasm extend again")
        columns = [header.index(name) for name in JOINS_COLUMNS]
        for number, line in enumerate(file, start=2):
            cells = line.rstrip(b"\n").split(b"\t")
            try:
                a, side_a, b, side_b, overlap, verdict = (cells[column] for column in columns)
                ends = (names[a], sides[side_a], names[b], sides[side_b])
                appended = (walk_lengths[2 * ends[i] + ends[i + 1]] for i in (0, 2))
                rows.append([*ends, int(overlap), *map(int, appended)])
            except (IndexError, KeyError, ValueError) as error:
                raise StoreError(
                    f"{path}: line {number} is not a join of contigs of this run ({error}); run "
                    "dlasm extend again"
                ) from error
            joined.append(verdict != b"refused")
    return rows, np.array(joined, dtype=bool)


def _names(contigs: Contigs) -> list[bytes]:
    """Return the ids of all contigs."""
    text = contigs.name_values.tobytes()
    return [text[begin:end] for begin, end in pairwise(contigs.name_offsets.tolist())]


# -- contiguity ------------------------------------------------------------------------------------


def _is_break(reference: Reference, one: Hit, other: Hit) -> bool:
    """Whether two alignments that follow each other in a contig are an extensive misassembly."""
    if one.sequence != other.sequence or one.backward != other.backward:
        return True
    places = (one.ref_begin, other.ref_end) if one.backward else (one.ref_end, other.ref_begin)
    here, there = (Place(one.sequence, one.backward, at, 0, 0, 0) for at in places)
    return reference.off(here, there, other.begin - one.end) > LOCAL


def _blocks(reference: Reference, hits: Sequence[Hit]) -> list[int]:
    """Choose the alignments that explain a contig best, and break it at misassemblies.

    Returns
    -------
    list of int
        The aligned bases of each block.
    """
    hits = sorted(hits, key=lambda hit: (hit.end, hit.begin, -hit.matches, hit.sequence))
    length = max((hit.end for hit in hits), default=0)
    break_penalty = min(max(length // 20, BREAK[0]), BREAK[1])
    best: list[tuple[int, int]] = []  # score, hit before
    for i, hit in enumerate(hits):
        score, last = hit.matches, -1
        for j, other in enumerate(hits[:i]):
            if other.begin >= hit.begin or other.end >= hit.end:
                continue
            overlap = max(0, other.end - hit.begin)
            penalty = break_penalty if _is_break(reference, other, hit) else 0
            new = best[j][0] + hit.matches - overlap - penalty
            if new > score:
                score, last = new, j
        best.append((score, last))
    if not best:
        return []
    at = max(range(len(best)), key=lambda i: (best[i][0], -i))
    chosen: list[Hit] = []
    while at >= 0:
        chosen.append(hits[at])
        at = best[at][1]
    blocks: list[int] = []
    before: Hit | None = None
    for hit in reversed(chosen):
        new = hit.end - max(hit.begin, before.end if before else 0)
        if before and not _is_break(reference, before, hit):
            blocks[-1] += new
        else:
            blocks.append(new)
        before = hit
    return blocks


def _reached(lengths: np.ndarray, size: int) -> int | None:
    """Return N50 of a given size, None if there are too few bases (as QUAST has it)."""
    return n50(lengths, size) if 2 * int(lengths.sum()) >= size else None


def _contiguity(
    lengths: np.ndarray, blocks: Sequence[Sequence[int]], size: int
) -> dict[str, int | None]:
    """Return figures of contigs and of their blocks, the aligned bases between breaks."""
    pieces = np.array([length for each in blocks for length in each], dtype=np.int64)
    return {
        "contigs": len(lengths),
        "bases": int(lengths.sum()),
        "longest": int(lengths.max(initial=0)),
        "n50": n50(lengths),
        "ng50": _reached(lengths, size),
        "nga50": _reached(pieces, size),
        "misassemblies": sum(max(0, len(each) - 1) for each in blocks),
        "aligned_bases": int(pieces.sum()),
    }


# -- a whole run -----------------------------------------------------------------------------------


def evaluate_run(
    folder: str | os.PathLike[str], results: Results, reference: Reference
) -> dict[str, Any]:
    """Compare a run with the genomes; see :meth:`dlasm.Run.evaluate`.

    Parameters
    ----------
    folder : path-like
        The run.
    results : Results
        Its store.
    reference : Reference
        The genomes.

    Raises
    ------
    StoreError
        If ``joins.tsv`` or ``joined.fasta`` of the run is damaged.
    ParameterError
        If no contig has a place on the genomes.
    """
    folder = Path(folder)
    contigs = Contigs(**{name: results.array("contigs", name)[:] for name in GROUPS["contigs"]})
    sequences = [contigs.sequence(i) for i in range(len(contigs))]
    hits = reference.align(sequences)
    if not any(hits):
        raise ParameterError(
            f"{reference.path}: none of the {len(contigs):,} contigs of {folder} has a place on "
            "these genomes; give those that the reads come from"
        )
    walk_values = np.asarray(results.array("results", "walk_values")[:])
    walk_lengths = np.diff(results.walk_offsets)
    extensions = _judge_extensions(contigs, hits, walk_values, results.walk_offsets, reference)

    size = int(reference.lengths.sum())
    walk_offsets = results.walk_offsets.tolist()
    grown = np.flatnonzero(walk_lengths.reshape(-1, 2).sum(axis=1)).tolist()
    blocks = [_blocks(reference, each) for each in hits]
    extended = [
        b"".join(
            (
                walk_values[walk_offsets[2 * i] : walk_offsets[2 * i + 1]].tobytes(),
                sequences[i],
                walk_values[walk_offsets[2 * i + 1] : walk_offsets[2 * i + 2]].tobytes(),
            )
        )
        for i in grown
    ]
    extended_blocks = list(blocks)
    for i, each in zip(grown, reference.align(extended), strict=True):
        extended_blocks[i] = _blocks(reference, each)
    extended_lengths = contigs.lengths + walk_lengths.reshape(-1, 2).sum(axis=1)
    figures: dict[str, Any] = {
        "reference": {
            "path": reference.path,
            "sequences": len(reference.sequences),
            "bases": size,
            "circular": reference.circular,
        },
        "extensions": extensions.figures(),
        "contiguity": {
            "before": _contiguity(contigs.lengths, blocks, size),
            "extended": _contiguity(extended_lengths, extended_blocks, size),
        },
    }
    if (folder / "joins.tsv").exists():
        names = {name: i for i, name in enumerate(_names(contigs))}
        rows, is_joined = _read_joins(folder / "joins.tsv", names, walk_lengths)
        figures["joins"] = _joins_figures(contigs, rows, is_joined, reference)
        joined = read_contigs(folder / "joined.fasta")
        known = [names.get(name, -1) for name in _names(joined)]
        new = [
            i
            for i, (contig, length) in enumerate(zip(known, joined.lengths.tolist(), strict=True))
            if contig < 0 or extended_lengths[contig] != length
        ]
        joined_blocks = [extended_blocks[contig] for contig in known]
        for i, each in zip(new, reference.align([joined.sequence(i) for i in new]), strict=True):
            joined_blocks[i] = _blocks(reference, each)
        figures["contiguity"]["joined"] = _contiguity(joined.lengths, joined_blocks, size)
    return figures
