"""Runs of candidate reads on disk: what recruiting writes and extension tasks read.

A run holds the candidate reads that one chunk of the input gave, sorted by contig end and, within
an end, in input order. Read one after the other, runs give the candidates of every end in the order
of algorithm section 6.5, so packing a partition is an external merge without a sort of the reads.
A run is one file, since a process may have only so many open: the magic bytes, how many values each
array has, then the arrays as they are in memory. It appears under its name only when it is whole.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dlasm.arrays import GROUPS, validate
from dlasm.atomic import whole_file
from dlasm.errors import ResourceError, StoreError

__all__ = ["OVERHANG", "CandidateRun", "fragment_ids", "open_run_file", "write_run_file"]

MAGIC = b"dlasmrun"

ALIGNMENT = 64
"""Bytes to whose multiples arrays are aligned in the file."""

OVERHANG = -1
"""``distance`` of a candidate that itself hangs over its contig end."""

FRAGMENT_BITS = 40
"""Bits of a fragment's number within its library; those above tell the library."""

MAX_LIBRARIES = 1 << (63 - FRAGMENT_BITS)


def fragment_ids(library: int, number: np.ndarray) -> np.ndarray:
    """Return what tells fragments from all others of a run.

    Parameters
    ----------
    library : int
        Number of the library.
    number : numpy.ndarray
        int64. Number of each fragment in its library: of the pair, of the single read, or of the
        template of a BAM file (the first record of its name); a read and its mate share it.

    Returns
    -------
    numpy.ndarray
        int64, ``library << 40 | number``.

    Raises
    ------
    ResourceError
        If there are more libraries or fragments than have room in that.

    Examples
    --------
    >>> fragment_ids(1, np.array([0, 5])).tolist()
    [1099511627776, 1099511627781]
    """
    if not 0 <= library < MAX_LIBRARIES:
        raise ResourceError(
            f"library {library + 1}: no more than {MAX_LIBRARIES:,} libraries can be given"
        )
    if len(number) and int(number.max()) >> FRAGMENT_BITS:
        raise ResourceError(
            f"library {library + 1}: holds more than {1 << FRAGMENT_BITS:,} fragments; divide it "
            "into several libraries"
        )
    return number.astype(np.int64) | np.int64(library << FRAGMENT_BITS)


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
    fragment : numpy.ndarray
        int64, shape (candidates,). What a read and its mate share and no other read of the run
        has, from :func:`fragment_ids`; in a candidate dump every read has its own.
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
    fragment: np.ndarray
    has_n: np.ndarray
    word_offset: np.ndarray
    words: np.ndarray
    library: int = 0


_SPECS = GROUPS["candidates"]


def write_run_file(path: str | os.PathLike[str], run: CandidateRun) -> None:
    """Write ``run`` to the file ``path``, which appears only when everything is in it.

    Parameters
    ----------
    path : path-like
        File to write; one that is already there is replaced.
    run : CandidateRun
        The candidates; checked against the array registry.
    """
    arrays = {
        name: np.asarray([run.library], dtype=np.int32)
        if name == "library"
        else np.ascontiguousarray(getattr(run, name))
        for name in _SPECS
    }
    validate("candidates", arrays)
    counts = np.array([len(values) for values in arrays.values()], dtype="<i8")
    with whole_file(path) as file:
        file.write(MAGIC + counts.tobytes())
        for (begin, _), values in zip(_places(counts), arrays.values(), strict=True):
            file.write(bytes(begin - file.tell()))
            file.write(values.data)


def open_run_file(path: str | os.PathLike[str]) -> CandidateRun:
    """Open a run; its arrays are memory-mapped, so only what is read is loaded.

    Raises
    ------
    StoreError
        If the file is missing or is not what it should be.
    """
    path = Path(path)
    try:
        # plain arrays: a memmap subclass would be copied by native code that asks for an ndarray
        file = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        head = len(MAGIC) + 8 * len(_SPECS)
        if file[: len(MAGIC)].tobytes() != MAGIC or len(file) < head:
            raise ValueError("it does not begin like one")
        places = _places(file[len(MAGIC) : head].view("<i8"))
        if len(file) != places[-1][1]:
            raise ValueError(f"{len(file):,} bytes of {places[-1][1]:,}")
    except (FileNotFoundError, ValueError) as error:
        raise StoreError(
            f"{path}: not a whole run of candidate reads ({error}); remove it and run again"
        ) from error
    arrays = {
        name: file[begin:end].view(spec.dtype)
        for (name, spec), (begin, end) in zip(_SPECS.items(), places, strict=True)
    }
    validate("candidates", arrays)
    library = int(arrays.pop("library")[0])
    return CandidateRun(library=library, **arrays)


def _places(counts: np.ndarray) -> list[tuple[int, int]]:
    """Where arrays of so many values begin and end in the file, bytes."""
    places = []
    end = len(MAGIC) + counts.nbytes
    for count, spec in zip(counts.tolist(), _SPECS.values(), strict=True):
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + count * np.dtype(spec.dtype).itemsize
        places.append((begin, end))
    return places
