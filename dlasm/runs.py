"""Runs of candidate reads on disk: what recruiting writes and extension tasks read.

A run holds the candidate reads that one chunk of the input gave, sorted by contig end and, within
an end, in input order. Read one after the other, runs give the candidates of every end in the order
of algorithm section 6.5, so packing a partition is an external merge without a sort of the reads.
A run is a folder of ``.npy`` files that appears under its final name only when it is whole.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from dlasm.arrays import validate
from dlasm.errors import CandidatesError

__all__ = ["OVERHANG", "CandidateRun", "open_run_folder", "write_run_folder"]

OVERHANG = -1
"""``distance`` of a candidate that itself hangs over its contig end."""


@dataclass(frozen=True)
class CandidateRun:
    """Candidate reads sorted by ``end``; see :mod:`dlasm.arrays` for each array.

    Attributes
    ----------
    end : numpy.ndarray
        int64, shape (candidates,). ``2 * contig + side``; side 0 is left, 1 is right.
    distance : numpy.ndarray
        int32, shape (candidates,). Bases from the projecting mate's far end to the contig end, to
        be compared with the library's reach; :data:`OVERHANG` for reads that hang over.
    length : numpy.ndarray
        int32, shape (candidates,). Bases of the read.
    has_n : numpy.ndarray
        uint8, shape (candidates,). 1 where a base is N.
    word_offset : numpy.ndarray
        int64, shape (candidates + 1,). Where each read's words begin.
    words : numpy.ndarray
        uint32. Of each read ``ceil(length / 16)`` words of 2-bit bases, then as many of 2-bit vote
        classes, in the orientation of algorithm section 1.
    library : int
        Number of the library that all of these reads come from.
    """

    end: np.ndarray
    distance: np.ndarray
    length: np.ndarray
    has_n: np.ndarray
    word_offset: np.ndarray
    words: np.ndarray
    library: int = 0


_ARRAYS = tuple(field.name for field in fields(CandidateRun) if field.name != "library")


def write_run_folder(path: str | os.PathLike[str], run: CandidateRun) -> None:
    """Write ``run`` to the folder ``path``, which appears only when everything is in it.

    Parameters
    ----------
    path : path-like
        Folder to make; one that is already there is replaced.
    run : CandidateRun
        The candidates; checked against the array registry.
    """
    path = Path(path)
    arrays = {name: np.ascontiguousarray(getattr(run, name)) for name in _ARRAYS}
    arrays["library"] = np.asarray([run.library], dtype=np.int32)
    validate("candidates", arrays)
    work = path.with_name(f".{path.name}.{os.getpid()}.wip")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name, values in arrays.items():
        np.save(work / f"{name}.npy", values)
    shutil.rmtree(path, ignore_errors=True)
    work.replace(path)


def open_run_folder(path: str | os.PathLike[str]) -> CandidateRun:
    """Open a run; its arrays are memory-mapped, so only what is read is loaded.

    Raises
    ------
    CandidatesError
        If a file of the run is missing or is not what it should be.
    """
    path = Path(path)
    try:
        arrays = {name: _load(path / f"{name}.npy") for name in (*_ARRAYS, "library")}
    except (OSError, ValueError) as error:
        raise CandidatesError(
            f"{path}: not a whole run of candidate reads ({error}); remove it and run again"
        ) from error
    validate("candidates", arrays)
    library = int(arrays.pop("library")[0])
    return CandidateRun(library=library, **arrays)


def _load(path: Path) -> np.ndarray:
    """Load one array, memory-mapped unless it is empty (which mmap refuses)."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        return np.load(path, allow_pickle=False)
