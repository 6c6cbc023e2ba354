"""The folder ``work.<id>/`` of a run: what stages leave there for tasks and for a resumed run.

Everything in it is flat arrays in plain files, so workers memory-map what they need and tasks carry
nothing but paths and numbers. A folder appears under its name only when it is whole. Every run has
an ``<id>`` of its own, so that a task that outlives its run cannot write into the next one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from dlasm.atomic import whole_folder, write_json
from dlasm.errors import StoreError
from dlasm.partition import Plan
from dlasm.runs import CandidateRun, open_run_file

if TYPE_CHECKING:
    from dlasm.io.fasta import Contigs
    from dlasm.io.fastq import ReadBatch

__all__ = [
    "Job",
    "RunFiles",
    "forget_job",
    "open_batches",
    "open_contigs",
    "open_job",
    "write_batches",
    "write_contigs",
    "write_job",
]

OPEN_RUNS = 64
"""Runs kept open at a time: each takes a file descriptor, of which a process has 1024, or 256."""


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON file that dlasm wrote.

    Raises
    ------
    StoreError
        If it is missing or not JSON.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it is not an object of JSON")
        return value
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise StoreError(f"{path}: cannot be read ({error})") from error


# -- contigs ---------------------------------------------------------------------------------------

_CONTIG_ARRAYS = {
    "bases": np.uint8,
    "offsets": np.int64,
    "name_values": np.uint8,
    "name_offsets": np.int64,
    "depth": np.float64,
    "circles": np.int64,
}


def write_contigs(path: str | os.PathLike[str], pieces: Iterable[Contigs]) -> None:
    """Write contigs, given piece by piece in input order, where tasks can memory-map them.

    Parameters
    ----------
    path : path-like
        Folder to make.
    pieces : iterable of Contigs
        Consecutive contigs; only one piece is held at a time.
    """
    counts: dict[str, int] = {}
    source = "unknown"
    with whole_folder(path) as folder:
        files = {name: open(folder / name, "wb") for name in _CONTIG_ARRAYS}  # noqa: SIM115
        try:
            ends = {"offsets": 0, "name_offsets": 0}
            for name in ends:
                files[name].write(np.zeros(1, dtype=np.int64).data)
            contigs = 0
            for piece in pieces:
                for name, dtype in _CONTIG_ARRAYS.items():
                    values = np.ascontiguousarray(getattr(piece, name), dtype=dtype)
                    if name in ends:
                        values = values[1:] - values[0] + ends[name]
                        ends[name] = int(values[-1]) if len(values) else ends[name]
                    elif name == "circles":
                        values = values + contigs
                    files[name].write(np.ascontiguousarray(values).data)
                contigs += len(piece)
                source = piece.depth_source
                for what, count in piece.counts.items():
                    counts[what] = counts.get(what, 0) + count
        finally:
            for file in files.values():
                file.close()
        write_json(folder / "contigs.json", {"depth_source": source, "counts": counts})


def open_contigs(path: str | os.PathLike[str]) -> Contigs:
    """Open contigs that :func:`write_contigs` wrote; the arrays are memory-mapped.

    Raises
    ------
    StoreError
        If they are not there.
    """
    from dlasm.io.fasta import Contigs

    path = Path(path)
    about = read_json(path / "contigs.json")
    try:
        arrays = {name: _map_file(path / name, dtype) for name, dtype in _CONTIG_ARRAYS.items()}
    except (FileNotFoundError, ValueError) as error:
        raise StoreError(f"{path}: not whole ({error})") from error
    ends = {
        "bases": int(arrays["offsets"][-1]) if len(arrays["offsets"]) else -1,
        "name_values": int(arrays["name_offsets"][-1]) if len(arrays["name_offsets"]) else -1,
        "depth": len(arrays["offsets"]) - 1,
        "name_offsets": len(arrays["offsets"]),
    }
    for name, expected in ends.items():
        if len(arrays[name]) != expected:
            raise StoreError(
                f"{path / name}: not whole ({len(arrays[name]):,} values of {expected:,})"
            )
    return Contigs(depth_source=about["depth_source"], counts=about["counts"], **arrays)


def _map_file(path: Path, dtype: type) -> np.ndarray:
    """Memory-map a file of plain values, unless it is empty, which mmap refuses."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    # a plain array: a memmap subclass would be copied by native code that asks for an ndarray
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def _map_array(path: Path) -> np.ndarray:
    """Memory-map a ``.npy`` file, unless it is empty, which mmap refuses."""
    try:
        return np.asarray(np.load(path, mmap_mode="r"))
    except ValueError:
        pass
    try:
        return np.load(path)
    except (EOFError, ValueError) as error:
        raise StoreError(f"{path}: not whole ({error})") from error


# -- batches of reads on their way to a worker -----------------------------------------------------

_BATCH_ARRAYS = (
    "text",
    "base_start",
    "quality_start",
    "length",
    "name_start",
    "name_length",
    "mate_suffix_length",
)


def write_batches(path: str | os.PathLike[str], batches: Iterable[ReadBatch]) -> None:
    """Spool consecutive batches of reads for :func:`open_batches` in another process."""
    with whole_folder(path) as folder:
        about = []
        for number, batch in enumerate(batches):
            for name in _BATCH_ARRAYS:
                np.save(folder / f"{number}.{name}.npy", getattr(batch, name))
            about.append({"first": int(batch.first), "paired": bool(batch.paired)})
        write_json(folder / "batches.json", {"batches": about})


def open_batches(path: str | os.PathLike[str]) -> Iterator[ReadBatch]:
    """Read spooled batches of reads, one after the other."""
    from dlasm.io.fastq import ReadBatch

    path = Path(path)
    for number, about in enumerate(read_json(path / "batches.json")["batches"]):
        arrays = {name: np.load(path / f"{number}.{name}.npy") for name in _BATCH_ARRAYS}
        yield ReadBatch(first=about["first"], paired=about["paired"], **arrays)


# -- runs of candidates ----------------------------------------------------------------------------


class RunFiles(Sequence[CandidateRun]):
    """Runs in input order, opened when they are asked for; only some stay open."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self.paths = [Path(path) for path in paths]
        self._open = lru_cache(maxsize=OPEN_RUNS)(open_run_file)

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> CandidateRun: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CandidateRun]: ...
    def __getitem__(self, index: int | slice) -> CandidateRun | Sequence[CandidateRun]:
        if isinstance(index, slice):
            return RunFiles(self.paths[index])
        return self._open(self.paths[index])


# -- the plan of the extension ---------------------------------------------------------------------


class Job:
    """What an extension task needs to know, opened from ``job`` in the folder of the work.

    Attributes
    ----------
    plan : Plan
        Which contigs each partition holds.
    candidates : numpy.ndarray
        int64, shape (2 * contigs,). Candidate reads of each end before the cap.
    bins : numpy.ndarray
        uint8, shape (contigs,).
    depth : numpy.ndarray
        float64, shape (contigs,). The depths to use, finite.
    contigs : Contigs
        All contigs, memory-mapped.
    runs : RunFiles
        All runs of candidates, in input order.
    reach : list of float
        Per library, the distance under which a mate projects, bases.
    k, walk_limit, max_reads, min_support : int
        As in :class:`dlasm.params.WalkParams`.
    partitions : Path
        Where the results of partitions go.
    """

    def __init__(self, work: Path) -> None:
        about = read_json(work / "job" / "job.json")
        arrays = {
            name: _map_array(work / "job" / f"{name}.npy")
            for name in ("contig", "start", "bin", "work", "candidates", "bins", "depth")
        }
        self.plan = Plan(arrays["contig"], arrays["start"], arrays["bin"], arrays["work"])
        self.candidates: np.ndarray = arrays["candidates"]
        self.bins: np.ndarray = arrays["bins"]
        self.depth: np.ndarray = arrays["depth"]
        self.contigs = open_contigs(work / "contigs")
        self.runs = RunFiles([work / run for run in about["runs"]])
        self.reach: list[float] = about["reach"]
        self.k: int = about["k"]
        self.walk_limit: int = about["walk_limit"]
        self.max_reads: int = about["max_reads"]
        self.min_support: int = about["min_support"]
        self.partitions = work / "partitions"


def write_job(
    work: Path,
    plan: Plan,
    *,
    candidates: np.ndarray,
    bins: np.ndarray,
    depth: np.ndarray,
    runs: Sequence[Path],
    reach: Sequence[float],
    k: int,
    walk_limit: int,
    max_reads: int,
    min_support: int,
) -> None:
    """Write what extension tasks need to know; see :class:`Job` for the parameters."""
    with whole_folder(work / "job") as folder:
        arrays = {
            "contig": plan.contig,
            "start": plan.start,
            "bin": plan.bin,
            "work": plan.work,
            "candidates": candidates,
            "bins": bins,
            "depth": depth,
        }
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
        about = {
            "runs": [str(run.relative_to(work)) for run in runs],
            "reach": [float(value) for value in reach],
            "k": k,
            "walk_limit": walk_limit,
            "max_reads": max_reads,
            "min_support": min_support,
        }
        write_json(folder / "job.json", about)


def folder_version(path: Path) -> tuple[Path, int, int]:
    """Return what tells a folder from another one that took its name: a key for caches."""
    status = path.stat()
    return path, status.st_ino, status.st_mtime_ns


def open_job(work: Path) -> Job:
    """Open the job of a run folder's ``work``; kept per process, as its tasks share it."""
    try:
        version = folder_version(work / "job")
    except FileNotFoundError as error:
        raise StoreError(f"{work / 'job'}: is missing") from error
    return _job(work, version)


@lru_cache(maxsize=1)
def _job(work: Path, version: tuple[Path, int, int]) -> Job:  # noqa: ARG001
    return Job(work)


def forget_job() -> None:
    """Close the job that :func:`open_job` keeps."""
    _job.cache_clear()
