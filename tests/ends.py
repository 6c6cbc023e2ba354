"""Contig ends as strings, run through packing and an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from adversarial import Case
from reference import EndResult, Read, extend_end, only_acgtn, reverse_complement

from dlasm.engines.cpu import Extensions, extend_partition
from dlasm.io.fasta import Contigs
from dlasm.kernels import _cpu
from dlasm.kernels.launch_fast import MAX_END_WORDS
from dlasm.pack import BASES_PER_WORD, PackedPartition, pack_partition
from dlasm.params import (
    HIGH_QUALITY,
    LOW_QUALITY,
    MAX_READS,
    OUTCOMES,
    PHRED_OFFSET,
    WalkParams,
)
from dlasm.runs import OVERHANG, CandidateRun


def flat(strings: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    values = np.frombuffer("".join(strings).encode(), dtype=np.uint8)
    return values, np.cumsum([0, *map(len, strings)], dtype=np.int64)


def make_run(
    reads_of_ends: Sequence[Sequence[Read]], fragment: Sequence[int] | None = None
) -> CandidateRun:
    """A run whose reads are taken as they stand, each a fragment of its own unless told."""
    reads = [read for reads in reads_of_ends for read in reads]
    bases, starts = flat([bases for bases, _ in reads])
    qualities = np.array([q + PHRED_OFFSET for _, read in reads for q in read], dtype=np.uint8)
    length = np.diff(starts).astype(np.int32)
    words, word_offset, has_n = _cpu.pack_reads(
        np.concatenate([bases, qualities]),
        starts[:-1].copy(),
        starts[:-1] + len(bases),
        length,
        np.zeros(len(reads), dtype=np.uint8),
        PHRED_OFFSET,
        LOW_QUALITY,
        HIGH_QUALITY,
    )
    end = np.repeat(np.arange(len(reads_of_ends)), [len(reads) for reads in reads_of_ends])
    distance = np.full(len(reads), OVERHANG, dtype=np.int32)
    fragments = np.array(range(len(reads)) if fragment is None else fragment, dtype=np.int64)
    return CandidateRun(
        end.astype(np.int64), distance, length, fragments, has_n, word_offset, words
    )


def pack_cases(
    cases: Sequence[Case], max_reads: int = MAX_READS, **options: Any
) -> PackedPartition:
    contigs = Contigs(
        *flat([case.sequence for case in cases]),
        *flat([f"c{i}" for i in range(len(cases))]),
        np.array([case.depth for case in cases], dtype=np.float64),
    )
    fragments = [f for case in cases for f in (*case.left_fragments, *case.right_fragments)]
    run = make_run([reads for case in cases for reads in (case.left, case.right)], fragments)
    index = np.arange(len(cases), dtype=np.int64)
    return pack_partition(index, contigs, [run], [0.0], contigs.depth, max_reads, **options)


def with_long_read(packed: PackedPartition, end: int) -> PackedPartition:
    """Give an end one more read, more words than the fast kernels take for all of its reads."""
    bases = MAX_END_WORDS // 2 * BASES_PER_WORD + 1
    words = np.random.default_rng(1).integers(
        0, 2**32, 2 * -(-bases // BASES_PER_WORD), dtype=np.uint32
    )
    words[len(words) // 2 :] = 0xAAAAAAAA  # all votes are high
    read = int(packed.read_start[end + 1])
    at = int(packed.word_offset[read])
    starts = np.arange(len(packed.read_start))
    return replace(
        packed,
        read_start=packed.read_start + (starts > end),
        length=np.insert(packed.length, read, bases).astype(np.int32),
        fragment=np.insert(packed.fragment, read, 1 << 40),
        has_n=np.insert(packed.has_n, read, 0).astype(np.uint8),
        word_offset=np.concatenate(
            [packed.word_offset[: read + 1], packed.word_offset[read:] + len(words)]
        ),
        words=np.concatenate([packed.words[:at], words, packed.words[at:]]),
    )


def results_of(found: Extensions) -> list[EndResult]:
    """One result per end; walks of left ends turned to read away from the contig."""
    text = found.walk_values.tobytes().decode()
    results = []
    for end, (k, outcome) in enumerate(zip(found.k.tolist(), found.outcome.tolist(), strict=True)):
        walk = text[found.walk_offsets[end] : found.walk_offsets[end + 1]]
        support = found.support[found.walk_offsets[end] : found.walk_offsets[end + 1]].tolist()
        if end % 2 == 0:
            walk, support = reverse_complement(walk), support[::-1]
        cut = int(found.cut[end])
        results.append(EndResult(walk, k, OUTCOMES[outcome], tuple(support), cut))
    return results


def engine_results(cases: Sequence[Case], params: WalkParams, threads: int = 1) -> list[EndResult]:
    packed = pack_cases(cases, params.max_reads)
    return results_of(extend_partition(packed, params, threads))


def reference_results(cases: Sequence[Case], params: WalkParams) -> list[EndResult]:
    results = []
    for case in cases:
        backward = reverse_complement(only_acgtn(case.sequence))
        for sequence, reads, fragments in (
            (backward, case.left, case.left_fragments),
            (case.sequence, case.right, case.right_fragments),
        ):
            results.append(
                extend_end(
                    sequence,
                    reads,
                    case.depth,
                    params.k,
                    params.walk_limit,
                    params.max_reads,
                    params.min_support,
                    fragments,
                )
            )
    return results


def check_cases(cases: Sequence[Case], params: WalkParams) -> list[EndResult]:
    """Require that the engine says of every end what the reference says; return that."""
    wanted = reference_results(cases, params)
    found = engine_results(cases, params)
    for end, (want, got) in enumerate(zip(wanted, found, strict=True)):
        assert got == want, f"end {end} of {cases[end // 2]} with {params}"
    return wanted
