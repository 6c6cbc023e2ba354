"""Small worlds for tests of recruiting: batches, contigs, and candidate runs as strings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from reference_recruit import reverse_complement

from dlasm.io.fasta import Contigs
from dlasm.io.fastq import ReadBatch
from dlasm.recruit import Placements
from dlasm.runs import CandidateRun

HIGH, LOW, NONE = "I", "1", "#"  # qualities 40, 16, 2


def make_contigs(sequences: Sequence[str], names: Sequence[str] | None = None) -> Contigs:
    names = [f"contig{i}" for i in range(len(sequences))] if names is None else names

    def flat(strings: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        values = np.frombuffer("".join(strings).encode(), dtype=np.uint8)
        return values, np.cumsum([0, *map(len, strings)], dtype=np.int64)

    bases, offsets = flat(sequences)
    name_values, name_offsets = flat(names)
    depth = np.full(len(sequences), np.nan)
    return Contigs(bases, offsets, name_values, name_offsets, depth)


def make_batch(
    reads: Sequence[str],
    qualities: Sequence[str | None] | None = None,
    names: Sequence[str] | None = None,
    *,
    paired: bool = True,
    first: int = 0,
) -> ReadBatch:
    """A batch whose text holds names, bases and qualities one after another."""
    if qualities is None:
        qualities = [HIGH * len(read) for read in reads]
    if names is None:
        names = [f"read{i // 2}" if paired else f"read{i}" for i in range(len(reads))]
    text = b""
    rows = []
    for name, read, quality in zip(names, reads, qualities, strict=True):
        name_start = len(text)
        base_start = name_start + len(name)
        text += name.encode() + read.encode()
        quality_start = -1
        if quality is not None:
            quality_start = len(text)
            text += quality.encode()
        suffix = 2 if paired and name[-2:] in ("/1", "/2", "_1", "_2") else 0
        rows.append((base_start, quality_start, len(read), name_start, len(name), suffix))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    return ReadBatch(
        text=np.frombuffer(text, dtype=np.uint8),
        base_start=columns[0].copy(),
        quality_start=columns[1].copy(),
        length=columns[2].astype(np.int32),
        name_start=columns[3].copy(),
        name_length=columns[4].astype(np.int32),
        mate_suffix_length=columns[5].astype(np.int32),
        first=first,
        paired=paired,
    )


def make_placements(rows: Iterable[tuple[int, ...]]) -> Placements:
    """From rows of read, contig, start, end, left, right, reverse, score."""
    table = np.array(list(rows), dtype=np.int64).reshape(-1, 8)
    kinds = (np.int64, np.int64, np.int64, np.int64, np.int32, np.int32, np.uint8, np.int32)
    return Placements(*(table[:, i].astype(kind) for i, kind in enumerate(kinds)))


def placement_rows(places: Placements) -> list[tuple[int, ...]]:
    return list(zip(*(values.tolist() for values in vars(places).values()), strict=True))


def decode(run: CandidateRun) -> list[tuple[int, int, str, str]]:
    """(end, distance, bases, vote classes) of every candidate; classes as 0, 1, 2, N."""
    result = []
    for i in range(len(run.end)):
        words = run.words[run.word_offset[i] : run.word_offset[i + 1]]
        half = len(words) // 2
        length = int(run.length[i])
        values = [
            [(int(part[j // 16]) >> (2 * (j % 16))) & 3 for j in range(length)]
            for part in (words[:half], words[half:])
        ]
        bases = "".join(
            "N" if kind == 3 else "ACGT"[base] for base, kind in zip(*values, strict=True)
        )
        assert bool(run.has_n[i]) == ("N" in bases)
        classes = "".join("012N"[kind] for kind in values[1])
        result.append((int(run.end[i]), int(run.distance[i]), bases, classes))
    return result


class World:
    """A random genome, contigs cut from it, and pairs without errors, everything seeded."""

    def __init__(self, seed: int, *, pairs: int = 400, genome: int = 12_000) -> None:
        rng = np.random.default_rng(seed)
        self.genome = "".join(rng.choice(list("ACGT"), genome))
        # touching, overlapping, apart, turned; one shorter than a read
        cuts = [(200, 3000, 0), (3000, 5000, 1), (4950, 7000, 0), (7300, 7400, 1), (7600, 11500, 0)]
        self.sequences = [
            reverse_complement(self.genome[a:b]) if turned else self.genome[a:b]
            for a, b, turned in cuts
        ]
        self.turned = [bool(turned) for _, _, turned in cuts]
        self.contigs = make_contigs(self.sequences)
        self.reads: list[str] = []
        self.qualities: list[str | None] = []
        self.names: list[str] = []
        for pair in range(pairs):
            insert = int(np.clip(rng.normal(350, 30), 200, 600))
            start = int(rng.integers(0, genome - insert))
            lengths = rng.choice([150, 150, 150, 90, 21], 2)
            fragment = self.genome[start : start + insert]
            if rng.random() < 0.5:
                fragment = reverse_complement(fragment)
            for mate in (0, 1):
                read = fragment if mate == 0 else reverse_complement(fragment)
                self.reads.append(read[: lengths[mate]])
                self.qualities.append("".join(rng.choice([HIGH, LOW, NONE], lengths[mate])))
                self.names.append(f"pair{pair}")
        self.batch = make_batch(self.reads, self.qualities, self.names)
