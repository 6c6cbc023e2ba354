"""One contig end, base by base: its candidate reads, their votes, and where and why a walk stopped.

The walks are the engine's own; the votes are counted here, again and plainly, from the reads that
the engine read, and the engine's rule is asked what follows by them. What does not agree with the
walk, or with what the run stored, is an error: what is shown is what happened.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlasm.arrays import SIDES
from dlasm.engines.cpu import extend_partition
from dlasm.errors import EngineError, ParameterError, StoreError
from dlasm.kernels import _cpu
from dlasm.pack import BASES_PER_WORD, PackedPartition, pack_partition
from dlasm.params import OUTCOMES, WalkParams
from dlasm.runs import FRAGMENT_BITS

if TYPE_CHECKING:
    import pandas as pd

    from dlasm.store import Results
    from dlasm.work import Job

__all__ = ["FollowedEnd", "Rung", "find_contig", "follow_end"]

BASES = "ACGT"

CLASSES = ".-+N"
"""How a base votes, in the order of ``VoteClass`` in ``kernels/bases.cuh``: not, as its quality is
under 10; low, under 20; high; it is an N."""

CHOICES = (*BASES, "fork", "dead_end")
"""What the choice says, as ``choose`` in ``kernels/rules.cuh`` numbers it."""

_COMPLEMENT = str.maketrans("ACGTN", "TGCAN")


@dataclass(frozen=True)
class Rung:
    """A walk of one k.

    Attributes
    ----------
    k : int
        Bases.
    outcome : str
        Why it stopped.
    walk : str
        Its bases, away from the contig.
    """

    k: int
    outcome: str
    walk: str


@dataclass(frozen=True)
class FollowedEnd:
    """What happened at a contig end; all sequences read away from the contig.

    Attributes
    ----------
    contig, side : str
        Which end.
    sequence : str
        The last bases of the contig, at most 128; what is not A, C, G or T is N.
    depth : int
        Depth of the contig, truncated, fold.
    walk : str
        The bases appended.
    support : numpy.ndarray
        uint8. Fragments that support each of them, at most 255.
    k : int
        k of the accepted walk, 0 without one.
    outcome : str
        One of :data:`dlasm.params.OUTCOMES`.
    cut : int
        Bases cut from the accepted walk for want of support.
    rungs : list of Rung
        The walk of each k, in the order of the ladder, without those that the engine passes over
        as they must give the same as one that is here.
    reads : pandas.DataFrame
        A row per candidate read that was used, in input order: ``library``, ``fragment`` (number of
        its pair or read in the library, from 0), ``bases``, and ``votes``, how each of them votes:
        ``+`` high, ``-`` low, ``.`` not at all, ``N``.
    """

    contig: str
    side: str
    sequence: str
    depth: int
    walk: str
    support: np.ndarray
    k: int
    outcome: str
    cut: int
    rungs: list[Rung]
    reads: pd.DataFrame

    def rung(self, k: int | None = None) -> Rung:
        """Return the walk of one k; by default the accepted one, or the first if none was.

        Raises
        ------
        ParameterError
            If there was no walk of this k.
        """
        if k is None:
            k = self.k or (self.rungs[0].k if self.rungs else None)
        for rung in self.rungs:
            if rung.k == k:
                return rung
        walked = ", ".join(str(rung.k) for rung in self.rungs) or "none"
        raise ParameterError(
            f"{self.contig} {self.side}: no walk of k {k}; there are those of {walked}"
            + ("" if self.rungs else f" ({self.outcome})")
        )

    def votes(self, k: int | None = None) -> pd.DataFrame:
        """Return the votes on each base of a walk, and on what would have followed.

        Parameters
        ----------
        k : int, optional
            Of which k; see :meth:`rung`.

        Returns
        -------
        pandas.DataFrame
            A row per base, from the one next to the contig on, indexed by ``position`` (0 is the
            first), and one more where the walk stopped. ``A``, ``C``, ``G``, ``T``: votes; ``A
            high`` and so on: those of quality 20 or more among them. ``follows``: the base that was
            appended, or why none was. ``support``: fragments that support it; -1 where that was
            not counted, beyond what was appended.

        Raises
        ------
        ParameterError
            If there was no walk of this k.
        EngineError
            If the votes do not lead to the walk of the engine, which is an error in dlasm.
        """
        import pandas as pd

        rung = self.rung(k)
        votes, high = np.zeros((2, len(rung.walk) + 1, 4), dtype=np.uint32)
        reads, ways = self.reads["bases"].tolist(), self.reads["votes"].tolist()
        for row, place, at in self._hits(rung):
            if ways[row][at] in "-+":
                base = BASES.index(reads[row][at])
                votes[place, base] += 1
                high[place, base] += ways[row][at] == "+"
        mers = self._mers(rung)
        repeated = mers[-1] in mers[:-1]
        if repeated:  # its votes are those of the first time
            votes[-1], high[-1] = (each[mers.index(mers[-1])] for each in (votes, high))
        follows = [CHOICES[choice] for choice in _cpu.choose_bases(votes, high, self.depth)]
        if rung.outcome == "limit":
            follows[-1] = "limit"
        elif repeated:
            follows[-1] = "repeat"
        if follows != [*rung.walk, rung.outcome]:
            raise EngineError(
                f"{self.contig} {self.side}: the votes at k {rung.k} do not lead to the walk of "
                "the engine; please report this with the input"
            )
        frame = pd.DataFrame(votes, columns=list(BASES), dtype=np.int64)
        for number, letter in enumerate(BASES):
            frame[f"{letter} high"] = high[:, number].astype(np.int64)
        frame["follows"] = follows
        frame["support"] = -1
        if rung.k == self.k:
            frame.loc[: len(self.walk) - 1, "support"] = self.support.astype(np.int64)
        return frame.rename_axis("position")

    def placed(self, k: int | None = None) -> pd.DataFrame:
        """Return where reads lie against a walk.

        Parameters
        ----------
        k : int, optional
            Of which k; see :meth:`rung`.

        Returns
        -------
        pandas.DataFrame
            A row per read and place, ascending by place: ``read`` (row of ``reads``), ``start``
            (position on the walk of its first base; negative: on the contig), and ``mers``, the
            k-mers of the walk it holds there.
        """
        import pandas as pd

        places: dict[tuple[int, int], int] = {}
        for row, place, at in self._hits(self.rung(k)):
            key = (place - at, row)
            places[key] = places.get(key, 0) + 1
        rows = [(row, start, count) for (start, row), count in sorted(places.items())]
        return pd.DataFrame(rows, columns=["read", "start", "mers"])

    def pile(self, k: int | None = None, first: int = -40, last: int = 80) -> str:
        """Draw the reads piled up against a walk, as text.

        Parameters
        ----------
        k : int, optional
            Of which k; see :meth:`rung`.
        first, last : int
            Positions to draw, up to but not including ``last``; negative ones are on the contig.

        Returns
        -------
        str
            A line of positions, one of the contig (lower case) and the walk, then one per read: a
            dot where it agrees, lower case where it does not vote.
        """
        rung = self.rung(k)
        first = max(first, -len(self.sequence))
        context, origin = self.sequence.lower() + rung.walk, len(self.sequence)
        shown = range(first, last)
        ruler = "".join("|" if position % 10 == 0 else " " for position in shown)
        lines = [f"{first:<8d}{ruler}", f"{'':8s}{context[first + origin : last + origin]}"]
        for row, start, _ in self.placed(rung.k).itertuples(index=False):
            bases, ways = self.reads["bases"].iat[row], self.reads["votes"].iat[row]
            line = ""
            for position in shown:
                at, on = position - start, position + origin
                if not 0 <= at < len(bases):
                    line += " "
                elif on < len(context) and bases[at] == context[on].upper():
                    line += "."
                else:
                    line += bases[at] if ways[at] in "+-" else bases[at].lower()
            if line.strip():
                lines.append(f"{row:<8d}{line.rstrip()}")
        return "\n".join(lines)

    def _mers(self, rung: Rung) -> list[str]:
        """Return the k bases before each position of a walk, and before its end."""
        context, origin = self.sequence + rung.walk, len(self.sequence)
        return [context[origin + i - rung.k : origin + i] for i in range(len(rung.walk) + 1)]

    def _hits(self, rung: Rung) -> list[tuple[int, int, int]]:
        """Find the mers of a walk in reads: row, position on the walk, position in the read."""
        place = {mer: i for i, mer in reversed(list(enumerate(self._mers(rung))))}
        return [
            (row, place[bases[at - rung.k : at]], at)
            for row, bases in enumerate(self.reads["bases"])
            for at in range(rung.k, len(bases))
            # a mer holding N is none: reads and contig have it where a base is not known
            if bases[at - rung.k : at] in place and "N" not in bases[at - rung.k : at]
        ]

    def _repr_html_(self) -> str:
        """Show the rungs in a notebook."""
        import html

        rows = "".join(
            f"<tr><td>{rung.k}</td><td>{len(rung.walk):,}</td><td>{rung.outcome}</td>"
            f"<td>{'accepted' if rung.k == self.k else ''}</td></tr>"
            for rung in self.rungs
        )
        title = (
            f"{self.contig} {self.side}: {len(self.walk):,} bases appended, {self.outcome}, "
            f"{len(self.reads):,} reads"
        )
        return (
            f"<table><caption>{html.escape(title)}</caption><tr><th>k</th><th>bases</th>"
            f"<th>outcome</th><th></th></tr>{rows}</table>"
        )

    def __repr__(self) -> str:
        return f"<{self.contig} {self.side}: {len(self.walk)} bases, {self.outcome}>"


def find_contig(results: Results, contig: str | int) -> int:
    """Return the number of a contig of a run.

    Parameters
    ----------
    results : Results
        Store of the run.
    contig : str or int
        Its id, or its number.

    Raises
    ------
    ParameterError
        If there is none such.
    """
    if not isinstance(contig, str):
        number = operator.index(contig)
        if not 0 <= number < len(results):
            raise ParameterError(f"contig {number}: there are {len(results):,}, counted from 0")
        return number
    name = np.frombuffer(contig.encode(errors="surrogateescape"), dtype=np.uint8)
    values, offsets = (
        np.asarray(results.array("contigs", array)[:]) for array in ("name_values", "name_offsets")
    )
    number_of = np.flatnonzero(np.diff(offsets) == len(name))
    for i, byte in enumerate(name):
        number_of = number_of[values[offsets[number_of] + i] == byte]
    if not len(number_of):
        raise ParameterError(f"{results.path}: no contig has the id {contig!r}")
    return int(number_of[0])


def follow_end(results: Results, job: Job, contig: str | int, side: str) -> FollowedEnd:
    """Follow one contig end; see :meth:`dlasm.Run.follow_end`.

    Parameters
    ----------
    results : Results
        Store of the run.
    job : Job
        Candidates of the run, gathered again.
    contig : str or int
        Id or number of the contig.
    side : str
        ``"left"`` or ``"right"``.
    """
    if side not in SIDES:
        raise ParameterError(f"side is {side!r}; there are 'left' and 'right'")
    number, which = find_contig(results, contig), SIDES.index(side)
    packed = pack_partition(
        np.array([number]),
        job.contigs,
        job.runs,
        job.reach,
        job.depth,
        job.max_reads,
        job.candidates,
    )
    params = WalkParams(job.k, job.walk_limit, job.max_reads, job.min_support)
    found = extend_partition(packed, params)
    begin, end = found.walk_offsets[which : which + 2].tolist()
    stored_begin, stored_end = results.walk_offsets[2 * number + which :][:2].tolist()
    support = found.support[begin:end]
    again: dict[str, Any] = {
        "walk_values": found.walk_values[begin:end],
        "support": support,
        **{name: getattr(found, name)[which] for name in ("k", "outcome", "cut")},
        "candidates": job.candidates[2 * number + which],
    }
    for name, value in again.items():
        array = results.array("results", name)
        at = 2 * number + which
        stored = array[stored_begin:stored_end] if np.ndim(value) else array[at]
        if not np.array_equal(stored, value):
            raise StoreError(
                f"{results.path}: gathering the candidates of {contig} {side} again gave other "
                f"{name} than the run has; was it made by another version of dlasm?"
            )
    walk = found.walk_values[begin:end].tobytes().decode()
    names = (np.asarray(results.array("contigs", "name_offsets")[number : number + 2])).tolist()
    name_values = np.asarray(results.array("contigs", "name_values")[names[0] : names[1]])
    return FollowedEnd(
        contig=name_values.tobytes().decode(errors="surrogateescape"),
        side=side,
        sequence=_tail(packed, which),
        depth=int(packed.depth[0]),
        walk=walk if which else walk[::-1].translate(_COMPLEMENT),
        support=support if which else support[::-1],
        k=int(found.k[which]),
        outcome=OUTCOMES[found.outcome[which]],
        cut=int(found.cut[which]),
        rungs=_walk_rungs(packed, which, params),
        reads=_unpack_reads(packed, which),
    )


def _walk_rungs(packed: PackedPartition, end: int, params: WalkParams) -> list[Rung]:
    """Let the engine walk an end and say what it did at each k."""
    walks = _cpu.walks(
        packed.depth,
        packed.tail,
        packed.tail_length,
        packed.clean_length,
        packed.read_start,
        packed.length,
        packed.has_n,
        packed.word_offset,
        packed.words,
        end,
        params.k,
        params.walk_limit,
    )
    return [Rung(k, OUTCOMES[outcome], walk) for k, outcome, walk in walks]


def _codes(words: np.ndarray, length: int) -> np.ndarray:
    """Take the 2-bit codes out of packed words; shape (length,)."""
    shifts = 2 * np.arange(BASES_PER_WORD, dtype=np.uint32)
    return (words[:, None] >> shifts & 3).ravel()[:length]


def _letters(codes: np.ndarray, alphabet: str) -> str:
    return np.frombuffer(alphabet.encode(), dtype=np.uint8)[codes].tobytes().decode()


def _tail(packed: PackedPartition, end: int) -> str:
    """Return the tail of a contig end; before its last N all is N, as nothing there matters."""
    whole = _letters(_codes(packed.tail[end], 128), BASES)
    length, clean = int(packed.tail_length[end]), int(packed.clean_length[end])
    return "N" * (length - clean) + whole[len(whole) - clean :]


def _unpack_reads(packed: PackedPartition, end: int) -> pd.DataFrame:
    """Return the reads of an end as text."""
    import pandas as pd

    rows = []
    for read in range(*packed.read_start[end : end + 2].tolist()):
        words = packed.words[slice(*packed.word_offset[read : read + 2].tolist())]
        length, half = int(packed.length[read]), len(words) // 2
        ways = _letters(_codes(words[half:], length), CLASSES)
        bases = np.array(list(_letters(_codes(words[:half], length), BASES)))
        bases[np.array(list(ways)) == "N"] = "N"
        fragment = int(packed.fragment[read])
        number = fragment & ((1 << FRAGMENT_BITS) - 1)
        rows.append((fragment >> FRAGMENT_BITS, number, "".join(bases), ways))
    return pd.DataFrame(rows, columns=["library", "fragment", "bases", "votes"])
