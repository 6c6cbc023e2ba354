"""Candidate dumps for the GPU benchmarks, read plainly: nothing but NumPy and dlasm is needed."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dlasm.kernels import _cpu
from dlasm.pack import PackedPartition, count_candidates, pack_partition, packed_words_per_end
from dlasm.params import BIN_LIMIT, HIGH_QUALITY, LOW_QUALITY, PHRED_OFFSET
from dlasm.partition import assign_bins, plan_partitions
from dlasm.runs import OVERHANG, CandidateRun

BINS = ("2", "3", "both")
"""Contigs with under or at least ten candidate reads at an end, and both."""


@dataclass(frozen=True)
class Dump:
    """Contigs of a dump and the reads of their ends; all arrays flat."""

    bases: np.ndarray
    offsets: np.ndarray
    depth: np.ndarray
    run: CandidateRun

    @property
    def contigs(self) -> int:
        """How many contigs there are."""
        return len(self.depth)


def read_dump(path: Path, repeat: int = 1) -> Dump:
    """Read a dump, plain or gzip, and repeat its contigs so many times."""
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    contigs, depth, text, end = [], [], [], []
    for line in lines:
        fields = line.split()
        contig = len(contigs)
        contigs.append(fields[1])
        depth.append(float(fields[2]))
        left, right = int(fields[3]), int(fields[4])
        end += [2 * contig] * left + [2 * contig + 1] * right
        text += [field for i, field in enumerate(fields[5:]) if i % 3]  # bases, qualities
    starts = _starts([len(piece) for piece in text])
    length = np.diff(starts)[::2].astype(np.int32)
    words, word_offset, has_n = _cpu.pack_reads(
        np.frombuffer(b"".join(text), dtype=np.uint8),
        starts[:-1:2].copy(),
        starts[1::2].copy(),
        length,
        np.zeros(len(length), dtype=np.uint8),
        PHRED_OFFSET,
        LOW_QUALITY,
        HIGH_QUALITY,
    )
    run = CandidateRun(
        end=_repeated(np.array(end, dtype=np.int64), repeat, 2 * len(contigs)),
        distance=np.full(repeat * len(length), OVERHANG, dtype=np.int32),
        length=np.tile(length, repeat),
        fragment=np.arange(repeat * len(length), dtype=np.int64),
        has_n=np.tile(has_n, repeat),
        word_offset=np.append(_repeated(word_offset[:-1], repeat, len(words)), repeat * len(words)),
        words=np.tile(words, repeat),
    )
    offsets = _starts([len(contig) for contig in contigs])
    return Dump(
        bases=np.tile(np.frombuffer(b"".join(contigs), dtype=np.uint8), repeat),
        offsets=np.append(
            _repeated(offsets[:-1], repeat, int(offsets[-1])), repeat * int(offsets[-1])
        ),
        depth=np.tile(np.array(depth), repeat),
        run=run,
    )


def pack_bin(dump: Dump, which: str, **options: Any) -> PackedPartition:
    """Pack the contigs of one of :data:`BINS`; options are those of ``pack_partition``."""
    reads = np.bincount(dump.run.end, minlength=2 * dump.contigs).reshape(-1, 2).max(axis=1)
    chosen = {
        "2": (reads > 0) & (reads < BIN_LIMIT),
        "3": reads >= BIN_LIMIT,
        "both": np.ones(dump.contigs, dtype=bool),
    }[which]
    return _pack(dump, np.flatnonzero(chosen), **options)


def pack_partitions(
    dump: Dump, new_buffer: Callable[[int], np.ndarray]
) -> Iterator[PackedPartition]:
    """Pack all contigs with reads in partitions, as a run does."""
    what = [dump.run], [0.0], dump.contigs
    candidates = count_candidates(*what)
    plan = plan_partitions(assign_bins(candidates), candidates, packed_words_per_end(*what))
    for number in range(len(plan)):
        yield _pack(dump, plan.contigs(number), buffer=new_buffer)


def _pack(dump: Dump, index: np.ndarray, **options: Any) -> PackedPartition:
    contigs: Any = SimpleNamespace(bases=dump.bases, offsets=dump.offsets)
    return pack_partition(index, contigs, [dump.run], [0.0], dump.depth, **options)


def _repeated(values: np.ndarray, repeat: int, step: int) -> np.ndarray:
    """Repeat numbers, each time ``step`` further on."""
    return (values + step * np.arange(repeat, dtype=np.int64)[:, None]).ravel()


def _starts(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
