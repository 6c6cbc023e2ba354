"""What a run tells: extended.fasta, extensions.tsv and the figures of summary.json.

Everything is made from the results store alone, a bounded block of contigs at a time, in flat
arrays: no Python object is made per contig.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import dlasm.io._text as _text
from dlasm.arrays import SIDES
from dlasm.atomic import sync_file, sync_folder, whole_file
from dlasm.background import one_ahead
from dlasm.params import LOW_K, OUTCOMES
from dlasm.progress import Progress
from dlasm.store import Block, Results

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLES", "Progress", "extensions_frame", "figures", "n50", "write_files"]

Ragged = tuple[np.ndarray, np.ndarray]
"""Text of many rows: uint8 values one after another, and int64 lengths of the rows."""


def _fasta(block: Block, threads: int) -> np.ndarray:
    return _text.fasta(
        block.name_values,
        block.name_offsets,
        block.bases,
        block.offsets,
        block.depth,
        block.walk_values,
        block.walk_offsets,
        block.outcome,
        OUTCOMES,
        threads,
    )


def _extensions(block: Block, threads: int) -> np.ndarray:
    return _text.extensions(
        block.name_values,
        block.name_offsets,
        block.walk_offsets,
        block.k,
        block.outcome,
        block.candidates,
        block.bin,
        end_flags(block.k, block.outcome),
        SIDES,
        OUTCOMES,
        FLAGS,
        threads,
    )


FLAGS = (".", "repeat", "low_k", "repeat,low_k")
"""What makes a walk less certain than others, by the code of :func:`end_flags`."""


def end_flags(k: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """Flag walks to take with care.

    On a mock community 74 % of the bases were right whose walk came back to where it had been, and
    89 % of those of a k under :data:`dlasm.params.LOW_K`, against 97 to 100 % of all.

    Parameters
    ----------
    k, outcome : numpy.ndarray
        int16 and uint8, shape (ends,), as in group ``results`` of :mod:`dlasm.arrays`.

    Returns
    -------
    numpy.ndarray
        uint8, shape (ends,). Index in :data:`FLAGS`.
    """
    repeat = outcome == OUTCOMES.index("repeat")
    low = (k > 0) & (k < LOW_K)
    return (repeat + 2 * low).astype(np.uint8)


TABLES: dict[str, tuple[bytes, Callable[[Block, int], np.ndarray]]] = {
    "extended.fasta": (b"", _fasta),
    "extensions.tsv": (b"contig\tside\tbases\tk\toutcome\tcandidates\tbin\tflags\n", _extensions),
}
"""The header of each file of a run, and what makes its rows of a block of contigs."""


def write_files(
    folder: str | os.PathLike[str],
    results: Results,
    names: Iterable[str] = TABLES,
    advance: Callable[[int], None] = lambda _contigs: None,
    threads: int = 1,
) -> None:
    """Write the extended contigs and the table of their ends, in input order.

    ``extended.fasta``: the sequence of a contig is on one line, its own bytes unchanged. Tags
    follow the id: bases appended ``left`` and ``right``, why each walk stopped or there is none
    (``left_reason``, ``right_reason``), ``depth`` with two decimals.

    ``extensions.tsv``: a tab-separated row per contig end, left before right. Columns: ``contig``,
    ``side``, ``bases`` (appended), ``k`` (of the accepted walk, 0 without one), ``outcome`` (why
    the walk stopped, or why there is none), ``candidates`` (candidate reads before the cap),
    ``bin``, ``flags`` (of :data:`FLAGS`).

    Parameters
    ----------
    folder : path-like
        Where the files appear when they are whole.
    results : Results
        The store; it is read once for all files.
    names : iterable of str
        Which of the two files.
    advance : callable
        Told how many contigs were written.
    threads : int
        Native threads.
    """
    files = {name: TABLES[name] for name in names}
    blocks = one_ahead(results.blocks(with_bases="extended.fasta" in files))
    with ExitStack() as stack:
        opened = [stack.enter_context(whole_file(Path(folder) / name)) for name in files]
        # they end before the files take their names
        writers = stack.enter_context(ThreadPoolExecutor(max(1, len(files))))
        for file, (header, _) in zip(opened, files.values(), strict=True):
            file.write(header)
        written: list[Future[int]] = []
        for block in blocks:
            rows = [text(block, threads).data for _, text in files.values()]
            for each in written:  # while these rows were made
                each.result()
            written = [
                writers.submit(file.write, row) for file, row in zip(opened, rows, strict=True)
            ]
            advance(len(block))
        for each in written:
            each.result()
        for _ in writers.map(sync_file, opened):
            pass
    sync_folder(folder)


def extensions_frame(results: Results) -> pd.DataFrame:
    """Return what ``extensions.tsv`` holds as a pandas DataFrame."""
    import pandas as pd

    n = len(results)
    names, lengths = _all_names(results)
    bins = np.asarray(results.array("results", "bin")[:])
    outcomes = np.asarray(results.array("results", "outcome")[:])
    k = np.asarray(results.array("results", "k")[:])
    return pd.DataFrame(
        {
            "contig": np.repeat(_strings(names, lengths), 2),
            "side": pd.Categorical.from_codes(np.tile(np.arange(2, dtype=np.int8), n), SIDES),
            "bases": np.diff(results.walk_offsets),
            "k": k,
            "outcome": pd.Categorical.from_codes(outcomes.astype(np.int8), OUTCOMES),
            "candidates": np.asarray(results.array("results", "candidates")[:]),
            "bin": np.repeat(bins, 2),
            "flags": pd.Categorical.from_codes(end_flags(k, outcomes).astype(np.int8), FLAGS),
        }
    )


def contigs_frame(results: Results, *, sequences: bool = True) -> pd.DataFrame:
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


def n50(lengths: np.ndarray, size: int | None = None) -> int:
    """Return the length that contigs holding half of ``size`` bases reach; 0 without bases.

    Parameters
    ----------
    lengths : numpy.ndarray
        Lengths of the contigs, bases.
    size : int, optional
        By default the sum of the lengths. That of the contigs before extension makes a figure that
        can be compared with theirs, as NG50 does with the size of a genome.

    Examples
    --------
    >>> n50(np.array([2, 2, 3, 5]))
    3
    >>> n50(np.array([2, 2, 3, 5]), size=10)
    5
    """
    ordered = np.sort(lengths)[::-1]
    until = np.cumsum(ordered)
    if not len(until) or not until[-1]:
        return 0
    return int(ordered[np.searchsorted(2 * until, until[-1] if size is None else size)])


def figures(results: Results) -> dict[str, Any]:
    """Count what a run gained.

    Returns
    -------
    dict
        ``contigs`` (before), ``extended`` (after), ``ends``, ``bins``, ``outcomes``, ``cut`` (for
        want of support), ``flags``, ``candidates``; lengths in bases.
    """
    before = np.diff(results.offsets)
    walks = np.diff(results.walk_offsets)
    after = before + walks.reshape(-1, 2).sum(axis=1)
    bins = np.asarray(results.array("results", "bin")[:])
    outcome = np.asarray(results.array("results", "outcome")[:])
    candidates = np.asarray(results.array("results", "candidates")[:])
    cut = np.asarray(results.array("results", "cut")[:])
    flags = end_flags(np.asarray(results.array("results", "k")[:]), outcome)
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
            # the total grows too, so N50 alone can fall although no contig got shorter
            "n50_of_input_size": n50(after, int(before.sum())),
            "longest": int(after.max(initial=0)),
        },
        "bins": {str(number): int(np.count_nonzero(bins == number)) for number in (1, 2, 3)},
        "outcomes": {
            name: int(count)
            for name, count in zip(OUTCOMES, by_outcome, strict=True)
            if name and count
        },
        "cut": {"ends": int(np.count_nonzero(cut)), "bases": int(cut.sum())},
        "flags": {
            "repeat": int(np.count_nonzero(flags & 1)),
            "low_k": int(np.count_nonzero(flags & 2)),
        },
        "candidates": {
            "reads": int(candidates.sum()),
            "ends_with_reads": int(np.count_nonzero(candidates)),
            "most_of_an_end": int(candidates.max(initial=0)),
        },
    }


# -- text in flat arrays ---------------------------------------------------------------------------


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
