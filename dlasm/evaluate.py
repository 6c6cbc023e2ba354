"""What is right in a run, where the genomes are known.

A contig is placed on the genomes by minimap2 with its whole flanks, up to 20 kb of them, and every
place counts: short anchors call true joins false and false ones true.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from dlasm.errors import DlasmError, InputError, ParameterError
from dlasm.io.fasta import read_contigs

if TYPE_CHECKING:
    from dlasm.io.fasta import Contigs

__all__ = ["LABELS", "Reference", "label_joins"]

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

_COMPLEMENT = bytes.maketrans(b"ACGTacgt", b"TGCAtgca")


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
    """

    length: int
    whole: list[Place]
    inner: list[Place]
    is_found: bool

    @cached_property
    def allowed(self) -> float:
        """Errors up to which a place is one of the best."""
        return min((place.errors for place in self.whole), default=0) + self.slack(self.length)

    @staticmethod
    def slack(length: int) -> float:
        """Differences that do not matter in so many bases."""
        return max(BEST_DIFFERENCES, BEST_SLACK * length)

    def is_explained_by(self, place: Place) -> bool:
        """Whether the inner part fits far better at ``place`` than where the whole flank lies."""
        best = min((whole.errors for whole in self.whole), default=self.length)
        here = best * place.aligned / self.length
        return here > place.differences + self.slack(place.aligned)


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

    def between(self, sequence: int, begin: int, end: int) -> int:
        """Bases from one coordinate to another; on a circle the shorter way round."""
        distance = end - begin
        if self.circular:
            length = int(self.lengths[sequence])
            distance = (distance + length // 2) % length - length // 2
        return distance

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
        placed = Placed(length, [], [], False)
        hits = self._aligner.map(flank.decode("latin-1"), extra_flags=ALL_CHAINS if every else None)
        is_found = False
        for hit in hits:
            is_found = True
            clipped, aligned = length - hit.q_en, hit.q_en - hit.q_st
            if clipped > REACH:
                continue
            backward = hit.strand < 0
            boundary = hit.r_st - clipped if backward else hit.r_en + clipped
            place = Place(int(hit.ctg), backward, boundary, aligned, hit.q_st, hit.NM + clipped)
            (placed.whole if aligned >= WHOLE * length else placed.inner).append(place)
        if not is_found and 0 < length <= EXACT:
            placed.whole.extend(self._search(flank))
        return replace(placed, is_found=is_found or bool(placed.whole))

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
    flanks: list[bytes] = []
    gaps: list[int] = []
    for row in rows:
        overlap = row[4]
        gap = row[5] + row[6] - overlap  # between the contigs as they were
        for contig, side, appended in ((*row[0:2], row[5]), (*row[2:4], row[6])):
            if not (0 <= contig < len(contigs) and side in (0, 1)):
                raise ParameterError(f"join {row}: there is no contig {contig} with side {side}")
            inside = max(0, min(overlap - appended, int(contigs.lengths[contig]) - SHORTEST))
            flanks.append(outward(contigs, contig, side, inside))
            gap += inside
        gaps.append(gap)

    def labelled(which: list[int], every: bool) -> list[str]:
        placed = reference.place((flanks[e] for i in which for e in (2 * i, 2 * i + 1)), every)
        return [
            _label(reference, a, b, gaps[i])
            for i, a, b in zip(which, placed[::2], placed[1::2], strict=True)
        ]

    labels = labelled(list(range(len(rows))), every=False)
    # nothing is better than true, so the rest alone is looked at more closely
    rest = [i for i, label in enumerate(labels) if label != "true"]
    for i, label in zip(rest, labelled(rest, every=True), strict=True):
        labels[i] = label
    return np.array(labels, dtype=f"U{max(map(len, LABELS))}")


def outward(contigs: Contigs, contig: int, side: int, leave_out: int = 0) -> bytes:
    """Return the flank of a contig's end, read outward, without its last ``leave_out`` bases."""
    begin, end = int(contigs.offsets[contig]), int(contigs.offsets[contig + 1])
    if side:
        end -= leave_out
        return contigs.bases[max(begin, end - FLANK) : end].tobytes()
    begin += leave_out
    return _reversed(contigs.bases[begin : min(end, begin + FLANK)].tobytes())


def _label(reference: Reference, a: Placed, b: Placed, gap: int) -> str:
    """Label a join of two flanks that are ``gap`` bases apart."""
    if not (a.is_found and b.is_found):
        return "unplaced"
    found = {"false" if a.whole and b.whole else "chimeric"}
    for at_a, at_b in product(a.whole + a.inner, b.whole + b.inner):
        if at_a.sequence != at_b.sequence or at_a.backward == at_b.backward:
            continue
        distance = reference.between(at_a.sequence, at_a.boundary, at_b.boundary)
        off = abs((-distance if at_a.backward else distance) - gap)
        pairs = ((a, at_a), (b, at_b))
        if any(place in flank.inner for flank, place in pairs):
            if off <= NEAR and all(
                place in flank.whole or flank.is_explained_by(place) for flank, place in pairs
            ):
                found.add("chimeric")
        elif off <= NEAR:
            is_best = all(place.errors <= flank.allowed for flank, place in pairs)
            found.add("true" if is_best else "switch")
        elif off <= LOCAL:
            found.add("local")
    return min(found, key=LABELS.index)
