"""Results as Zarr: extension tasks write partitions, finalise puts them in input order.

A partition is one ``.npz`` file, written to a temporary name and renamed, so what is there is
whole. (A Zarr group per partition cost 20 ms where this takes 1, and its shards could not become
those of the result: partitions hold contigs of one bin, the result is in input order.) The store
of a run appears, by a rename too, only when every partition is in it. It is Zarr format 3 with core
data types (uint8 text, int64 offsets), zstd, and every array says its dimensions, unit and meaning
(:mod:`dlasm.arrays`). Each array is written shard by shard by one writer, because writers that
share a shard lose each other's chunks.

Layout of ``results.zarr``::

    contigs/{bases, offsets, name_values, name_offsets, depth}
    results/{contig, bin, candidates, walk_values, walk_offsets, support, k, outcome, cut}
    joins/{end_a, end_b, overlap, verdict, reason, ...}, if contigs were to be joined
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from dlasm.arrays import GROUPS, SIDES, ArraySpec, validate
from dlasm.atomic import begin_folder, drop_folder, finish_folder, whole_file, whole_folder
from dlasm.errors import StoreError, is_want_of_memory
from dlasm.params import OUTCOMES, REASONS, VERDICTS
from dlasm.partition import Plan

if TYPE_CHECKING:
    from dlasm.engines.cpu import Extensions
    from dlasm.io.fasta import Contigs

__all__ = [
    "FORMAT",
    "Block",
    "Results",
    "begin_store",
    "finalise",
    "has_partition",
    "open_results",
    "read_about",
    "write_joins",
    "write_partition",
]

FORMAT = 2
"""Version of the layout of a results store; another one is refused."""

CHUNK_BYTES = 4 << 20
"""Bytes that are compressed together: what reading one value costs (5 ms). With 1 MiB writing takes
twice as long, for what Zarr does for each chunk."""

SHARD_BYTES = 64 << 20
"""Bytes in a file of the store, and in memory while it is written."""

ZSTD_LEVEL = 3
"""The level from which zstd hardly makes bases smaller; 300 MB/s on one core."""

BLOCK_CONTIGS = 1 << 16
"""Contigs that are put in order, or reported, at a time."""

BLOCK_BASES = 32 << 20
"""Bases after which a block of contigs ends."""

JOINS = "joins"
"""Name of the group of joins."""

NO_READS = OUTCOMES.index("no_reads")
CIRCULAR = OUTCOMES.index("circular")


# -- partitions ------------------------------------------------------------------------------------


def partition_path(folder: str | os.PathLike[str], number: int) -> Path:
    """Where partition ``number`` lies below ``folder``."""
    return Path(folder) / f"{number:07d}.npz"


def has_partition(folder: str | os.PathLike[str], number: int) -> bool:
    """Whether partition ``number`` is there; it is whole if so."""
    return partition_path(folder, number).is_file()


def write_partition(
    folder: str | os.PathLike[str],
    number: int,
    contig: np.ndarray,
    bins: np.ndarray,
    candidates: np.ndarray,
    extensions: Extensions,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write what an engine found for one partition; it appears only when it is whole.

    Parameters
    ----------
    folder : path-like
        Folder of the partitions.
    number : int
        Number of the partition. One that is already there is replaced by the same results.
    contig : numpy.ndarray
        int64, shape (contigs,). Contigs of the partition, ascending.
    bins : numpy.ndarray
        uint8, shape (contigs,).
    candidates : numpy.ndarray
        int64, shape (2 * contigs,). Candidate reads before the cap.
    extensions : Extensions
        The walks, in the order of ``contig``.
    about : mapping, optional
        Who found them and what that took, for :func:`read_about`; JSON values.

    Raises
    ------
    StoreError
        If the arrays contradict each other or the registry.
    """
    arrays = {
        "contig": contig,
        "bin": bins,
        "candidates": candidates,
        "walk_values": extensions.walk_values,
        "walk_offsets": extensions.walk_offsets,
        "support": extensions.support,
        "k": extensions.k,
        "outcome": extensions.outcome,
        "cut": extensions.cut,
    }
    validate("results", arrays)
    arrays["about"] = np.frombuffer(json.dumps(about or {}).encode(), dtype=np.uint8)
    with whole_file(partition_path(folder, number)) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_partition(folder: str | os.PathLike[str], number: int) -> dict[str, np.ndarray]:
    """Read a partition that :func:`write_partition` wrote.

    Raises
    ------
    StoreError
        If it is missing or not readable.
    """
    with _opened(partition_path(folder, number)) as file:
        arrays = {name: file[name] for name in GROUPS["results"]}
    validate("results", arrays)
    return arrays


def read_about(folder: str | os.PathLike[str], number: int) -> dict[str, Any]:
    """Read what :func:`write_partition` was told about a partition.

    Raises
    ------
    StoreError
        If the partition is missing or not readable.
    """
    with _opened(partition_path(folder, number)) as file:
        about: dict[str, Any] = json.loads(file["about"].tobytes())
    return about


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Open the file of a partition to read it."""
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except (FileNotFoundError, KeyError, ValueError, BadZipFile) as error:
        raise StoreError(
            f"{path}: not a whole partition ({error}); remove this file and continue with --resume"
        ) from error


# -- the store of a run ----------------------------------------------------------------------------


def begin_store(
    path: str | os.PathLike[str],
    contigs: Contigs,
    depth: np.ndarray,
    attributes: Mapping[str, Any],
) -> Path:
    """Begin the store that :func:`finalise` will make appear at ``path``: write the contigs.

    Parameters
    ----------
    path, contigs, depth, attributes
        As in :func:`finalise`.

    Returns
    -------
    Path
        The store, under another name; to be given to :func:`finalise`, or dropped with
        :func:`dlasm.atomic.drop_folder`.
    """
    import zarr

    work = begin_folder(path)
    try:
        root = zarr.create_group(
            work, zarr_format=3, attributes={"dlasm_format": FORMAT, **attributes}
        )
        group = root.create_group("contigs")
        for name, spec in GROUPS["contigs"].items():
            values = depth if name == "depth" else getattr(contigs, name)
            _write_array(group, name, spec, values)
    except BaseException:
        drop_folder(work)
        raise
    return work


def finalise(
    path: str | os.PathLike[str],
    partitions: str | os.PathLike[str],
    plan: Plan,
    contigs: Contigs,
    depth: np.ndarray,
    bins: np.ndarray,
    candidates: np.ndarray,
    attributes: Mapping[str, Any],
    advance: Callable[[int], None] = lambda _contigs: None,
    begun: Path | None = None,
) -> None:
    """Put the partitions in input order and make the store appear at ``path``.

    Memory does not grow with the number of contigs beyond what :class:`Plan` holds.

    Parameters
    ----------
    path : path-like
        The store to make; one that is there is replaced.
    partitions : path-like
        Folder of the partitions.
    plan : Plan
        Which contigs each partition holds.
    contigs : Contigs
        All contigs.
    depth : numpy.ndarray
        float64, shape (contigs,). The depths that were used.
    bins : numpy.ndarray
        uint8, shape (contigs,).
    candidates : numpy.ndarray
        int64, shape (2 * contigs,).
    attributes : mapping
        Parameters, versions and inputs, stored with the results.
    advance : callable
        Told how many contigs were done.
    begun : Path, optional
        What :func:`begin_store` gave for the same arguments, if it was called.

    Raises
    ------
    StoreError
        If a partition is missing.
    """
    missing = [number for number in range(len(plan)) if not has_partition(partitions, number)]
    if missing:
        raise StoreError(
            f"{partitions}: partitions {_some(missing)} of {len(plan)} are missing; continue with "
            "--resume"
        )
    work = begin_store(path, contigs, depth, attributes) if begun is None else begun
    try:
        _fill(work, partitions, plan, contigs, bins, candidates, advance)
        finish_folder(work, path, sync=True)
    except BaseException:
        drop_folder(work)
        raise


def _fill(
    work: Path,
    partitions: str | os.PathLike[str],
    plan: Plan,
    contigs: Contigs,
    bins: np.ndarray,
    candidates: np.ndarray,
    advance: Callable[[int], None],
) -> None:
    """Write the results to a store that is begun; see :func:`finalise`."""
    import zarr

    root = zarr.open_group(work, mode="r+", zarr_format=3)
    group = root.create_group("results")
    specs = GROUPS["results"]
    appenders = {name: _Appender(group, name, spec) for name, spec in specs.items()}
    appenders["walk_offsets"].append(np.zeros(1, dtype=np.int64))
    walked = 0
    first = [int(plan.contigs(number)[0]) for number in range(len(plan))]
    last = [int(plan.contigs(number)[-1]) for number in range(len(plan))]
    loaded: dict[int, dict[str, np.ndarray]] = {}
    for begin, end in blocks_of(contigs.offsets):
        here = [n for n in range(len(plan)) if first[n] < end and last[n] >= begin]
        loaded = {n: loaded.get(n) or read_partition(partitions, n) for n in here}
        block = _gather_block(begin, end, list(loaded.values()))
        low, high = np.searchsorted(contigs.circles, [begin, end])
        block["outcome"].reshape(-1, 2)[contigs.circles[low:high] - begin] = CIRCULAR
        appenders["contig"].append(np.arange(begin, end, dtype=np.int64))
        appenders["bin"].append(bins[begin:end])
        appenders["candidates"].append(candidates[2 * begin : 2 * end])
        for name in (*_OF_WALK_BASES, *_OF_ENDS):
            appenders[name].append(block[name])
        appenders["walk_offsets"].append(walked + block["walk_offsets"][1:])
        walked += int(block["walk_offsets"][-1])
        advance(end - begin)
    for appender in appenders.values():
        appender.close()


@dataclass(frozen=True)
class Block:
    """Some consecutive contigs with their results, as flat arrays that begin at 0.

    Attributes
    ----------
    first : int
        Index of the first contig.
    bases, offsets, name_values, name_offsets, depth
        As in group ``contigs`` of :mod:`dlasm.arrays`.
    bin, candidates, walk_values, walk_offsets, k, outcome
        As in group ``results``.
    """

    first: int
    bases: np.ndarray
    offsets: np.ndarray
    name_values: np.ndarray
    name_offsets: np.ndarray
    depth: np.ndarray
    bin: np.ndarray
    candidates: np.ndarray
    walk_values: np.ndarray
    walk_offsets: np.ndarray
    k: np.ndarray
    outcome: np.ndarray

    def __len__(self) -> int:
        return len(self.depth)


@contextmanager
def _zarr_errors(path: Path, what: str) -> Iterator[None]:
    """Say of what Zarr cannot read which part of a run it is."""
    try:
        yield
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, StoreError) or is_want_of_memory(error):
            raise
        raise StoreError(f"{path}: not a whole {what} ({error})") from error


class _Array:
    """A Zarr array whose damage is a StoreError."""

    def __init__(self, path: Path, array: Any) -> None:
        self._path, self._array = path, array

    def __getitem__(self, key: Any) -> Any:
        with _zarr_errors(self._path, "array"):
            return self._array[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


class Results:
    """A store of results, read as it is asked for; see :func:`open_results`."""

    def __init__(self, path: Path, group: Any) -> None:
        self.path = path
        self._groups = {name: group[name] for name in ("contigs", "results")}
        self.attributes: dict[str, Any] = dict(group.attrs)

    def __len__(self) -> int:
        return int(self.array("contigs", "depth").shape[0])

    def array(self, group: str, name: str) -> Any:
        """Return the Zarr array ``name`` of ``contigs`` or ``results``, without reading it."""
        with _zarr_errors(self.path / group / name, "array"):
            return _Array(self.path / group / name, self._groups[group][name])

    def joins(self) -> dict[str, np.ndarray] | None:
        """Return group ``joins``, None if contigs were not to be joined."""
        import zarr

        path = self.path / JOINS
        if not path.is_dir():
            return None
        with _zarr_errors(path, "group of joins"):
            group: Any = zarr.open_group(path, mode="r", zarr_format=3)
            return {name: np.asarray(group[name][:]) for name in GROUPS[JOINS]}

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each contig begins in bases; int64, shape (contigs + 1,)."""
        return np.asarray(self.array("contigs", "offsets")[:])

    @cached_property
    def walk_offsets(self) -> np.ndarray:
        """Where the bases of each end begin; int64, shape (2 * contigs + 1,)."""
        return np.asarray(self.array("results", "walk_offsets")[:])

    @property
    def extended_lengths(self) -> np.ndarray:
        """Bases of each contig with what was appended to it; int64, shape (contigs,)."""
        return np.diff(self.offsets) + np.diff(self.walk_offsets).reshape(-1, 2).sum(axis=1)

    @cached_property
    def _name_offsets(self) -> np.ndarray:
        return np.asarray(self.array("contigs", "name_offsets")[:])

    def blocks(self, *, with_bases: bool = True) -> Iterator[Block]:
        """Read the store from the first contig to the last, a bounded part at a time.

        Parameters
        ----------
        with_bases : bool
            Whether to read the sequences of the contigs; they are left empty otherwise.
        """
        ahead = {
            name: _ReadAhead(self.array(group, name))
            for group, names in (
                ("contigs", ("bases", "name_values", "depth")),
                ("results", ("bin", "candidates", "walk_values", "k", "outcome")),
            )
            for name in names
        }
        for begin, end in blocks_of(self.offsets):
            offsets = self.offsets[begin : end + 1]
            names = self._name_offsets[begin : end + 1]
            walks = self.walk_offsets[2 * begin : 2 * end + 1]
            yield Block(
                first=begin,
                bases=ahead["bases"].read(offsets[0], offsets[-1])
                if with_bases
                else np.zeros(0, dtype=np.uint8),
                offsets=offsets - offsets[0],
                name_values=ahead["name_values"].read(names[0], names[-1]),
                name_offsets=names - names[0],
                depth=ahead["depth"].read(begin, end),
                bin=ahead["bin"].read(begin, end),
                candidates=ahead["candidates"].read(2 * begin, 2 * end),
                walk_values=ahead["walk_values"].read(walks[0], walks[-1]),
                walk_offsets=walks - walks[0],
                k=ahead["k"].read(2 * begin, 2 * end),
                outcome=ahead["outcome"].read(2 * begin, 2 * end),
            )


def open_results(path: str | os.PathLike[str]) -> Results:
    """Open a store of results.

    Raises
    ------
    StoreError
        If there is none, it is not readable, or it has another format version.
    """
    import zarr

    path = Path(path)
    if not path.is_dir():
        raise StoreError(f"{path}: there is no store of results here")
    with _zarr_errors(path, "store of results"):
        group = zarr.open_group(path, mode="r", zarr_format=3)
        found = group.attrs.get("dlasm_format")
        if found != FORMAT:
            raise StoreError(
                f"{path}: results of format {found}, and this dlasm reads format {FORMAT}; "
                "use the version that wrote them, or run again"
            )
        return Results(path, group)


def write_joins(path: str | os.PathLike[str], joins: Mapping[str, np.ndarray]) -> None:
    """Add joins to a store of results; the group appears, or is replaced, as a whole.

    Parameters
    ----------
    path : path-like
        The store.
    joins : mapping of str to numpy.ndarray
        Group ``joins`` of :mod:`dlasm.arrays`.
    """
    import zarr

    validate(JOINS, joins)
    with whole_folder(Path(path) / JOINS, sync=True) as folder:
        group = zarr.create_group(folder, zarr_format=3)
        for name, spec in GROUPS[JOINS].items():
            _write_array(group, name, spec, joins[name])


# -- parts -----------------------------------------------------------------------------------------


def blocks_of(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Cut contigs into blocks of bounded number and bases; each has at least one contig."""
    contigs = len(offsets) - 1
    begin = 0
    while begin < contigs:
        end = int(np.searchsorted(offsets, offsets[begin] + BLOCK_BASES, side="right")) - 1
        end = min(max(end, begin + 1), begin + BLOCK_CONTIGS, contigs)
        yield begin, end
        begin = end


_OF_WALK_BASES = ("walk_values", "support")
_OF_ENDS = ("k", "outcome", "cut")


def _gather_block(
    begin: int, end: int, partitions: list[dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Results of the contigs ``begin`` to ``end``, in input order."""
    specs = GROUPS["results"]
    lengths = np.zeros(2 * (end - begin), dtype=np.int64)
    block = {name: np.zeros(len(lengths), np.dtype(specs[name].dtype)) for name in _OF_ENDS}
    block["outcome"][:] = NO_READS
    parts = []
    for arrays in partitions:
        low, high = np.searchsorted(arrays["contig"], [begin, end])
        ends = (2 * (arrays["contig"][low:high, None] - begin) + np.arange(2)).ravel()
        offsets = arrays["walk_offsets"][2 * low : 2 * high + 1]
        lengths[ends] = np.diff(offsets)
        for name in _OF_ENDS:
            block[name][ends] = arrays[name][2 * low : 2 * high]
        parts.append((ends, offsets, arrays))
    walk_offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=walk_offsets[1:])
    for name in _OF_WALK_BASES:
        block[name] = np.empty(walk_offsets[-1], np.dtype(specs[name].dtype))
    for ends, offsets, arrays in parts:
        shift = np.repeat(walk_offsets[ends] - offsets[:-1], np.diff(offsets))
        source = np.arange(offsets[0], offsets[-1])
        for name in _OF_WALK_BASES:
            block[name][source + shift] = arrays[name][offsets[0] : offsets[-1]]
    return {"walk_offsets": walk_offsets, **block}


class _ReadAhead:
    """Reads an array from its begin to its end, each chunk once however small the parts are."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._begin = 0
        self._values = np.zeros(0, dtype=array.dtype)

    def read(self, begin: int, end: int) -> np.ndarray:
        """Return the values of a part, which begins where the one before it ended."""
        kept = self._values[begin - self._begin :]
        if end - begin > len(kept):
            chunk = self._array.chunks[0]
            stop = min(-(-end // chunk) * chunk, self._array.shape[0])
            more = np.asarray(self._array[begin + len(kept) : stop])
            self._values = np.concatenate([kept, more]) if len(kept) else more
            self._begin = begin
        return self._values[begin - self._begin : end - self._begin]


def _create_array(group: Any, name: str, spec: ArraySpec, size: int) -> tuple[Any, int]:
    """Make an array of one dimension; also returns how many values a shard holds."""
    from zarr.codecs import ZstdCodec

    itemsize = np.dtype(spec.dtype).itemsize
    chunk = max(1, min(CHUNK_BYTES // itemsize, size))
    shard = chunk * (SHARD_BYTES // CHUNK_BYTES)
    array = group.create_array(
        name,
        shape=(size,),
        dtype=spec.dtype,
        chunks=(chunk,),
        shards=(shard,) if size > chunk else None,
        compressors=ZstdCodec(level=ZSTD_LEVEL),
        dimension_names=spec.dims,
        attributes={"unit": spec.unit, "meaning": spec.meaning, **_explanation(name, spec)},
        fill_value=0,
        config={"write_empty_chunks": True},  # or each chunk is compared with the fill value
    )
    return array, shard


def _explanation(name: str, spec: ArraySpec) -> dict[str, Any]:
    """Return attributes that say what the codes and the places of values mean."""
    explanation: dict[str, Any] = {}
    if name == "outcome":
        explanation["codes"] = list(OUTCOMES)  # code i is the name at place i
    elif name == "verdict":
        explanation["codes"] = list(VERDICTS)
    elif name == "reason":
        explanation["codes"] = list(REASONS)
    if spec.dims[0].startswith("ends"):
        explanation["ends"] = "end = 2 * contig + side"
        explanation["sides"] = list(SIDES)
    return explanation


def _write_array(group: Any, name: str, spec: ArraySpec, values: np.ndarray) -> None:
    """Write a whole array, one shard at a time."""
    array, shard = _create_array(group, name, spec, len(values))
    for begin in range(0, len(values), shard):
        array[begin : begin + shard] = values[begin : begin + shard]


class _Appender:
    """Writes an array of yet unknown length in whole shards."""

    def __init__(self, group: Any, name: str, spec: ArraySpec) -> None:
        self._group, self._name, self._spec = group, name, spec
        self._array: Any = None
        self._shard = SHARD_BYTES // np.dtype(spec.dtype).itemsize
        self._waiting: list[np.ndarray] = []
        self._count = 0
        self._written = 0

    def append(self, values: np.ndarray) -> None:
        self._waiting.append(values)
        self._count += len(values)
        if self._count < self._shard:
            return
        joined = np.concatenate(self._waiting)
        whole = len(joined) - len(joined) % self._shard
        self._write(joined[:whole])
        self._waiting = [joined[whole:]]
        self._count = len(joined) - whole

    def close(self) -> None:
        joined = (
            np.concatenate(self._waiting)
            if self._waiting
            else np.zeros(0, dtype=np.dtype(self._spec.dtype))
        )
        if self._array is None:
            _write_array(self._group, self._name, self._spec, joined)
        elif len(joined):
            self._write(joined)

    def _write(self, values: np.ndarray) -> None:
        if self._array is None:
            self._array, _ = _create_array(self._group, self._name, self._spec, self._shard)
        end = self._written + len(values)
        self._array.resize((end,))
        for begin in range(self._written, end, self._shard):
            stop = min(begin + self._shard, end)
            self._array[begin:stop] = values[begin - self._written : stop - self._written]
        self._written = end


def _some(numbers: list[int]) -> str:
    """Say a list of numbers shortly."""
    shown = ", ".join(map(str, numbers[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"
