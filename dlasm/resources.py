"""What a run takes of this machine: memory that the user allows it, and space on the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlasm.errors import ParameterError, ResourceError
from dlasm.params import PARTITION_BYTES

__all__ = ["MemoryPlan", "Space", "check_space", "expected_space", "parse_size", "plan_memory"]

PROCESS_BYTES = 150 << 20
"""Memory of a process that has loaded everything and has no work."""

BYTES_PER_CONTIG_BASE = 4
"""Contigs as they are mapped into memory, and their index (below 3, ``dlasm._ends``)."""

BATCH_BYTES = 24 << 20
"""Memory of a batch of reads that is mapped: its text, 11 MB for reads of 150 bases, and what is
found. Two more are being read and one waits."""

BAM_BYTES = 256 << 20
"""Memory that reading a BAM file takes if no limit says otherwise."""

LEAST_BAM_BYTES = 32 << 20

COMPRESSED = {b"\x1f\x8b": 4, b"BZ": 5, b"\x28\xb5": 4, b"\xfd7": 5}
"""By the first two bytes of a file how many times larger the text of its reads is, about."""

CONTIG_SHARE = 4.0
"""Space per byte of contigs: laid out for the tasks (1.1), extended, stored (1.3), written (1)."""

READ_SHARE = (0.05, 0.3)
"""Space per byte of the text of reads, usual and most: candidates and facts took 0.04 of ``mock``
(MEGAHIT's contigs of seven genomes), 0.18 of ``N5_271`` (short contigs of a gut)."""

ALIGNMENT_SHARE = (0.6, 2.0)
"""Space per byte of a BAM file: 40 bytes a read, and those that may become candidates."""

DUMP_SHARE = (1.5, 2.0)
"""Space per byte of the text of a candidate dump."""

SPOOLED_PER_WORKER = 400 << 20
"""Space for reads on their way to a worker of a cluster: two tasks of half a million reads."""


def parse_size(size: str | int, name: str) -> int:
    """Return a size in bytes: ``8GB``, ``500MiB``, or a number of bytes.

    Parameters
    ----------
    size : str or int
        The size.
    name : str
        How messages call it.

    Raises
    ------
    ParameterError
        If it is not a size above 0.
    """
    from dask.utils import parse_bytes

    try:
        value = int(parse_bytes(size)) if size else 0
    except (ValueError, TypeError, AttributeError):
        value = 0
    if value <= 0:
        raise ParameterError(f"{name} is {size!r}; give a size such as 8GB")
    return value


# -- memory ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryPlan:
    """How much of everything a process may hold at a time.

    Attributes
    ----------
    batches : int
        Batches of reads that are mapped at a time.
    alignments : int
        Bytes for reading a BAM file.
    partition : int
        Bytes of a packed partition, at most.
    """

    batches: int
    alignments: int = BAM_BYTES
    partition: int = PARTITION_BYTES


def plan_memory(memory: int | None, contig_bases: int, threads: int) -> MemoryPlan:
    """Divide the memory that a process may take.

    Parameters
    ----------
    memory : int or None
        Bytes; None for no limit, so as much as all threads can use.
    contig_bases : int
        Bases of all contigs.
    threads : int
        Native threads.

    Raises
    ------
    ParameterError
        If the contigs alone take more.
    """
    if memory is None:
        return MemoryPlan(threads)
    fixed = PROCESS_BYTES + BYTES_PER_CONTIG_BASE * contig_bases
    left = memory - fixed
    if left < 4 * BATCH_BYTES:
        needed = -(-(fixed + 4 * BATCH_BYTES) // 10**6)
        raise ParameterError(
            f"memory is {memory / 1e6:,.0f} MB, but contigs of {contig_bases:,} bases and their "
            f"index take at least {needed:,} MB with what else is needed; give more (--memory), or "
            "leave short contigs out"
        )
    return MemoryPlan(
        batches=max(1, min(threads, left // BATCH_BYTES - 3)),
        alignments=max(LEAST_BAM_BYTES, min(left // 2, 4 * BAM_BYTES)),
        partition=min(PARTITION_BYTES, left // 4),
    )


# -- disk space ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """Bytes of disk space that a run takes while it runs, usual and most."""

    usual: int
    most: int


def expected_space(inputs: Iterable[Mapping[str, Any]], workers: int = 0) -> Space:
    """Estimate the disk space that a run takes, before it begins.

    Parameters
    ----------
    inputs : iterable of mapping
        What :func:`dlasm.state.identify_input` says of each input. Pipes count nothing.
    workers : int
        Workers of a cluster, for which reads are spooled.
    """
    usual = most = float(SPOOLED_PER_WORKER * workers)
    for about in inputs:
        if "size" not in about:
            continue
        role, size = str(about["role"]), int(about["size"])
        if role in ("BAM", "alignments"):
            shares = ALIGNMENT_SHARE
        elif role == "contigs":
            shares, size = (CONTIG_SHARE, CONTIG_SHARE), _text_bytes(about["path"], size)
        elif role == "candidates":
            shares, size = DUMP_SHARE, _text_bytes(about["path"], size)
        else:
            shares, size = READ_SHARE, _text_bytes(about["path"], size)
        usual += shares[0] * size
        most += shares[1] * size
    return Space(int(usual), int(most))


def check_space(
    folder: str | os.PathLike[str], inputs: Iterable[Mapping[str, Any]], workers: int = 0
) -> str | None:
    """Compare the space that a run will take with what is free.

    Parameters
    ----------
    folder : path-like
        Where the run writes.
    inputs, workers
        As in :func:`expected_space`.

    Returns
    -------
    str or None
        A warning if the space may not suffice.

    Raises
    ------
    ResourceError
        If it will not.
    """
    expected = expected_space(inputs, workers)
    free = shutil.disk_usage(folder).free
    if free >= expected.most:
        return None
    about = (
        f"{Path(folder)}: {free / 1e9:,.1f} GB are free, and the run takes about "
        f"{expected.usual / 1e9:,.1f} GB, at most {expected.most / 1e9:,.1f} GB"
    )
    if free < expected.usual:
        raise ResourceError(f"{about}; free some, or write to another disk (-o)")
    return f"{about}; should the disk fill up, make room and go on with --resume"


def _text_bytes(path: str, size: int) -> int:
    """Estimate the bytes of a file's text by what its first bytes say of its compression."""
    with open(path, "rb") as file:
        return size * COMPRESSED.get(file.read(2), 1)
