"""What a run tells: extended.fasta, extensions.tsv and the figures of summary.json.

Everything is made from the results store alone, a bounded block of contigs at a time, in flat
arrays: no Python object is made per contig.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dlasm.arrays import SIDES
from dlasm.params import OUTCOMES
from dlasm.store import Block, Results

__all__ = ["Progress", "extensions_frame", "figures", "n50", "write_extensions", "write_fasta"]

Ragged = tuple[np.ndarray, np.ndarray]
"""Text of many rows: uint8 values one after another, and int64 lengths of the rows."""


class Progress:
    """What a run tells while it goes on; this one keeps quiet but for warnings."""

    def stage(self, name: str, total: int | None = None, unit: str = "") -> None:
        """Say that a stage begins, with so many things to do if that is known."""

    def advance(self, count: int) -> None:
        """Say that so many things of the stage are done."""

    def note(self, text: str) -> None:
        """Say something that is good to know."""

    def warn(self, text: str) -> None:
        """Say something that the user must know."""
        import warnings

        warnings.warn(text, stacklevel=2)

    def close(self) -> None:
        """Say that the run has ended, well or not."""


def write_fasta(
    path: str | os.PathLike[str],
    results: Results,
    advance: Callable[[int], None] = lambda _contigs: None,
) -> None:
    """Write the extended contigs, in input order.

    The sequence of a contig is on one line, its own bytes unchanged. Tags follow the id: bases
    appended ``left`` and ``right``, why each walk stopped or there is none (``left_reason``,
    ``right_reason``), ``depth`` with two decimals.

    Parameters
    ----------
    path : path-like
        The file; it appears only when it is whole.
    results : Results
        The store.
    advance : callable
        Told how many contigs were written.
    """

    def text(block: Block) -> np.ndarray:
        n = len(block)
        lengths = np.diff(block.walk_offsets).reshape(n, 2)
        outcome = block.outcome.reshape(n, 2)
        header = _join(
            [
                _constant(b">", n),
                (block.name_values, np.diff(block.name_offsets)),
                _constant(b" left=", n),
                _integers(lengths[:, 0]),
                _constant(b" right=", n),
                _integers(lengths[:, 1]),
                _constant(b" left_reason=", n),
                _names(OUTCOMES, outcome[:, 0]),
                _constant(b" right_reason=", n),
                _names(OUTCOMES, outcome[:, 1]),
                _constant(b" depth=", n),
                *_two_decimals(block.depth),
                _constant(b"\n", n),
            ]
        )
        is_right = np.repeat(np.tile(np.array([False, True]), n), lengths.ravel())
        return _join(
            [
                header,
                (block.walk_values[~is_right], lengths[:, 0]),
                (block.bases, np.diff(block.offsets)),
                (block.walk_values[is_right], lengths[:, 1]),
                _constant(b"\n", n),
            ]
        )[0]

    _write_blocks(Path(path), results, b"", text, advance, with_bases=True)


def write_extensions(
    path: str | os.PathLike[str],
    results: Results,
    advance: Callable[[int], None] = lambda _contigs: None,
) -> None:
    """Write a tab-separated row per contig end, in input order, left before right.

    Parameters
    ----------
    path : path-like
        The file; it appears only when it is whole. Columns: ``contig``, ``side``, ``bases``
        (appended), ``k`` (of the accepted walk, 0 without one), ``outcome`` (why the walk stopped,
        or why there is none), ``candidates`` (candidate reads before the cap), ``bin``.
    results : Results
        The store.
    advance : callable
        Told how many contigs were written.
    """

    def text(block: Block) -> np.ndarray:
        n = len(block)
        tab = _constant(b"\t", 2 * n)
        columns = [
            _repeated((block.name_values, np.diff(block.name_offsets)), 2),
            _names(SIDES, np.tile(np.arange(2), n)),
            _integers(np.diff(block.walk_offsets)),
            _integers(block.k),
            _names(OUTCOMES, block.outcome),
            _integers(block.candidates),
            _integers(np.repeat(block.bin, 2)),
        ]
        parts = [part for column in columns for part in (column, tab)]
        return _join([*parts[:-1], _constant(b"\n", 2 * n)])[0]

    header = b"contig\tside\tbases\tk\toutcome\tcandidates\tbin\n"
    _write_blocks(Path(path), results, header, text, advance, with_bases=False)


def extensions_frame(results: Results) -> Any:
    """Return what :func:`write_extensions` writes as a pandas DataFrame."""
    import pandas as pd

    n = len(results)
    names, lengths = _all_names(results)
    bins = np.asarray(results.array("results", "bin")[:])
    outcomes = np.asarray(results.array("results", "outcome")[:])
    return pd.DataFrame(
        {
            "contig": np.repeat(_strings(names, lengths), 2),
            "side": pd.Categorical.from_codes(np.tile(np.arange(2, dtype=np.int8), n), SIDES),
            "bases": np.diff(results.walk_offsets),
            "k": np.asarray(results.array("results", "k")[:]),
            "outcome": pd.Categorical.from_codes(outcomes.astype(np.int8), OUTCOMES),
            "candidates": np.asarray(results.array("results", "candidates")[:]),
            "bin": np.repeat(bins, 2),
        }
    )


def contigs_frame(results: Results, *, sequences: bool = True) -> Any:
    """Return a pandas DataFrame with a row per contig; see :meth:`dlasm.Run.contigs`."""
    import pandas as pd

    names, lengths = _all_names(results)
    walks = np.diff(results.walk_offsets).reshape(-1, 2)
    before = np.diff(results.offsets)
    frame = pd.DataFrame(
        {
            "contig": _strings(names, lengths),
            "length": before,
            "left": walks[:, 0],
            "right": walks[:, 1],
            "extended_length": before + walks.sum(axis=1),
            "depth": np.asarray(results.array("contigs", "depth")[:]),
            "bin": np.asarray(results.array("results", "bin")[:]),
        }
    )
    if sequences:
        pieces: list[np.ndarray] = [np.zeros(0, dtype=object)]
        for block in results.blocks():
            n = len(block)
            each = np.diff(block.walk_offsets).reshape(n, 2)
            is_right = np.repeat(np.tile(np.array([False, True]), n), each.ravel())
            joined = _join(
                [
                    (block.walk_values[~is_right], each[:, 0]),
                    (block.bases, np.diff(block.offsets)),
                    (block.walk_values[is_right], each[:, 1]),
                ]
            )
            pieces.append(_strings(*joined))
        frame["sequence"] = np.concatenate(pieces)
    return frame


def n50(lengths: np.ndarray) -> int:
    """Return the length that contigs holding half of all bases reach; 0 without bases.

    Examples
    --------
    >>> n50(np.array([2, 2, 3, 5]))
    3
    """
    ordered = np.sort(lengths)[::-1]
    until = np.cumsum(ordered)
    if not len(until) or not until[-1]:
        return 0
    return int(ordered[np.searchsorted(2 * until, until[-1])])


def figures(results: Results) -> dict[str, Any]:
    """Count what a run gained.

    Returns
    -------
    dict
        ``contigs`` (before), ``extended`` (after), ``ends``, ``bins``, ``outcomes``,
        ``candidates``; lengths in bases.
    """
    before = np.diff(results.offsets)
    walks = np.diff(results.walk_offsets)
    after = before + walks.reshape(-1, 2).sum(axis=1)
    bins = np.asarray(results.array("results", "bin")[:])
    outcome = np.asarray(results.array("results", "outcome")[:])
    candidates = np.asarray(results.array("results", "candidates")[:])
    grown = walks[walks > 0]
    by_outcome = np.bincount(outcome, minlength=len(OUTCOMES))
    return {
        "contigs": {
            "count": len(before),
            "bases": int(before.sum()),
            "n50": n50(before),
            "longest": int(before.max(initial=0)),
        },
        "extended": {
            "contigs": int(np.count_nonzero(after > before)),
            "ends": len(grown),
            "bases": int(after.sum()),
            "appended_bases": int(walks.sum()),
            "mean_appended": float(grown.mean()) if len(grown) else 0.0,
            "longest_appended": int(grown.max(initial=0)),
            "n50": n50(after),
            "longest": int(after.max(initial=0)),
        },
        "bins": {str(number): int(np.count_nonzero(bins == number)) for number in (1, 2, 3)},
        "outcomes": {
            name: int(count)
            for name, count in zip(OUTCOMES, by_outcome, strict=True)
            if name and count
        },
        "candidates": {
            "reads": int(candidates.sum()),
            "ends_with_reads": int(np.count_nonzero(candidates)),
            "most_of_an_end": int(candidates.max(initial=0)),
        },
    }


# -- text in flat arrays ---------------------------------------------------------------------------


def _write_blocks(
    path: Path,
    results: Results,
    header: bytes,
    text: Callable[[Block], np.ndarray],
    advance: Callable[[int], None],
    *,
    with_bases: bool,
) -> None:
    """Write a file block by block; it takes its name when it is whole."""
    work = path.with_name(f".{path.name}.wip")
    with open(work, "wb") as file:
        file.write(header)
        for block in results.blocks(with_bases=with_bases):
            file.write(text(block).data)
            advance(len(block))
        file.flush()
        os.fsync(file.fileno())
    work.replace(path)


def _join(columns: Sequence[Ragged]) -> Ragged:
    """Put columns side by side: row i is row i of each column, one after the other."""
    lengths = np.stack([column[1] for column in columns], axis=1).astype(np.int64)
    which = np.repeat(
        np.tile(np.arange(len(columns), dtype=np.uint8), len(lengths)), lengths.ravel()
    )
    values = np.empty(len(which), dtype=np.uint8)
    for number, column in enumerate(columns):
        # rows of a column come in order, so they fill its places from the first to the last
        values[which == number] = column[0]
    return values, lengths.sum(axis=1)


def _constant(text: bytes, n: int) -> Ragged:
    """Return ``n`` rows of the same text."""
    return np.tile(np.frombuffer(text, dtype=np.uint8), n), np.full(n, len(text), dtype=np.int64)


def _integers(values: np.ndarray) -> Ragged:
    """Return whole numbers in decimal, a row each."""
    fixed = np.ascontiguousarray(values, dtype=np.int64).astype("S20")
    digits = fixed.view(np.uint8).reshape(len(fixed), 20)
    used = digits != 0
    return digits[used], used.sum(axis=1)


def _two_decimals(values: np.ndarray) -> list[Ragged]:
    """Return columns that together say numbers of at least 0 with two decimals."""
    # beyond 9e15 a float64 has no decimals, and no depth is
    hundredths = np.rint(np.minimum(values, 9e15) * 100).astype(np.int64)
    digits = hundredths % 100
    decimals = np.stack([digits // 10, digits % 10], axis=1) + ord("0")
    two = np.full(len(values), 2, dtype=np.int64)
    return [
        _integers(hundredths // 100),
        _constant(b".", len(values)),
        (decimals.astype(np.uint8).ravel(), two),
    ]


def _names(names: Sequence[str], codes: np.ndarray) -> Ragged:
    """Return the name of each code, a row each."""
    encoded = [name.encode() for name in names]
    sizes = np.array([len(name) for name in encoded], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    lengths = sizes[codes]
    values = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return values[_positions(starts[codes], lengths)], lengths


def _repeated(column: Ragged, times: int) -> Ragged:
    """Return each row several times."""
    values, lengths = column
    starts = np.repeat(np.cumsum(lengths) - lengths, times)
    lengths = np.repeat(lengths, times)
    return values[_positions(starts, lengths)], lengths


def _positions(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the indices of pieces that begin at ``starts``, one piece after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)


def _all_names(results: Results) -> Ragged:
    """Ids of all contigs."""
    values = np.asarray(results.array("contigs", "name_values")[:])
    return values, np.diff(np.asarray(results.array("contigs", "name_offsets")[:]))


def _strings(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Make Python strings of rows; only for DataFrames, which hold such."""
    text = values.tobytes()
    ends = np.cumsum(lengths).tolist()
    strings = np.empty(len(ends), dtype=object)
    begin = 0
    for i, end in enumerate(ends):
        strings[i] = text[begin:end].decode(errors="backslashreplace")
        begin = end
    return strings
