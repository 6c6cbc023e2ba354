"""Packing: bases and classes bit by bit, and partitions merged out of several runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlasm.arrays import GROUPS, validate
from dlasm.kernels import _cpu
from dlasm.pack import (
    ALIGNMENT,
    PADDING_WORDS,
    PackedPartition,
    count_candidates,
    pack_partition,
    packed_words_per_end,
)
from dlasm.runs import OVERHANG, CandidateRun

COMPLEMENT = str.maketrans("ACGT", "TGCA")


def plain_words(bases: str, qualities: list[int], reverse: bool) -> tuple[list[int], bool]:
    """Pack one read base by base."""
    bases = "".join(base if base in "ACGT" else "N" for base in bases.upper())
    if reverse:
        bases, qualities = bases.translate(COMPLEMENT)[::-1], qualities[::-1]
    half = -(-len(bases) // 16)
    words = [0] * (2 * half)
    for i, (base, quality) in enumerate(zip(bases, qualities, strict=True)):
        code = 0 if base == "N" else "ACGT".index(base)
        vote = 3 if base == "N" else (quality >= 10) + (quality >= 20)
        words[i // 16] |= code << (2 * (i % 16))
        words[half + i // 16] |= vote << (2 * (i % 16))
    return words, "N" in bases


@given(
    bases=st.one_of(
        st.text("ACGT", max_size=200), st.text("ACGTNacgtnRYKU.@x", min_size=20, max_size=100)
    ),
    data=st.data(),
    reverse=st.booleans(),
    with_quality=st.booleans(),
)
def test_reads_are_packed_as_base_by_base(bases, data, reverse, with_quality):
    qualities = data.draw(st.lists(st.integers(0, 93), min_size=len(bases), max_size=len(bases)))
    text = f"xy{bases}z" + "".join(chr(33 + quality) for quality in qualities)
    words, offset, has_n = _cpu.pack_reads(
        np.frombuffer(text.encode(), dtype=np.uint8),
        np.array([2]),
        np.array([3 + len(bases) if with_quality else -1]),
        np.array([len(bases)], dtype=np.int32),
        np.array([reverse], dtype=np.uint8),
        33,
        10,
        20,
        1,
    )
    expected, holds_n = plain_words(
        bases, qualities if with_quality else [40] * len(bases), reverse
    )
    assert words.tolist() == expected
    assert offset.tolist() == [0, len(expected)]
    assert bool(has_n[0]) == holds_n


def test_a_read_outside_the_text_is_refused():
    text = np.frombuffer(b"ACGT", dtype=np.uint8)
    one, reverse = np.array([3], dtype=np.int32), np.zeros(1, dtype=np.uint8)
    for base, quality in ((2, -1), (-1, -1), (0, 2)):
        with pytest.raises(ValueError, match="outside the text"):
            _cpu.pack_reads(text, np.array([base]), np.array([quality]), one, reverse, 33, 10, 20)


def tail_of(packed: PackedPartition, end: int) -> str:
    words = packed.tail[end]
    bases = "".join("ACGT"[(int(words[i // 16]) >> (2 * (i % 16))) & 3] for i in range(128))
    return bases[128 - int(packed.tail_length[end]) :]


@given(sequences=st.lists(st.text("ACGTacgtNR", max_size=300), max_size=4))
def test_tails_are_the_ends_in_walking_direction(sequences):
    packed = pack_partition(
        np.arange(len(sequences)), contigs_of(sequences), [], [], np.zeros(len(sequences))
    )
    for number, sequence in enumerate(sequences):
        plain = "".join(base if base in "ACGT" else "N" for base in sequence.upper())
        for side, end in ((0, plain.translate(COMPLEMENT)[::-1]), (1, plain)):
            end = end[-128:]
            at = 2 * number + side
            assert packed.tail_length[at] == len(end)
            assert tail_of(packed, at) == end.replace("N", "A")
            assert packed.clean_length[at] == len(end) - 1 - end.rfind("N")


def contigs_of(sequences: list[str]) -> SimpleNamespace:
    lengths = [len(sequence) for sequence in sequences]
    return SimpleNamespace(
        bases=np.frombuffer("".join(sequences).encode(), dtype=np.uint8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def run_of(rows: list[tuple[int, int, int]], library: int, tag: int) -> CandidateRun:
    """A run out of (end, distance, length); its words tell run and row."""
    rows = sorted(rows, key=lambda row: row[0])
    end, distance, length = (np.array(c) for c in zip(*rows, strict=True)) if rows else ([], [], [])
    length = np.asarray(length, dtype=np.int32)
    size = 2 * -(-length.astype(np.int64) // 16)
    return CandidateRun(
        end=np.asarray(end, dtype=np.int64),
        distance=np.asarray(distance, dtype=np.int32),
        length=length,
        fragment=tag * 1000 + np.arange(len(length), dtype=np.int64),
        has_n=(length % 2).astype(np.uint8),
        word_offset=np.concatenate([[0], np.cumsum(size)]).astype(np.int64),
        words=np.repeat(tag * 1000 + np.arange(len(length)), size).astype(np.uint32),
        library=library,
    )


@given(
    contents=st.lists(
        st.lists(
            st.tuples(st.integers(0, 11), st.integers(OVERHANG, 9), st.integers(0, 40)), max_size=12
        ),
        max_size=4,
    ),
    chosen=st.sets(st.integers(0, 5)),
    reach=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    max_reads=st.integers(1, 5),
)
def test_runs_merge_into_a_partition_in_input_order(contents, chosen, reach, max_reads):
    runs = [run_of(rows, number % 2, number) for number, rows in enumerate(contents)]
    contigs = contigs_of(["ACGT" * 10] * 6)
    index = np.array(sorted(chosen), dtype=np.int64)
    depth = np.array([0.0, 2.98, 3.0, 1e12, 5.5, 0.3])
    packed = pack_partition(index, contigs, runs, reach, depth, max_reads)
    validate("packed", {name: getattr(packed, name) for name in GROUPS["packed"]})
    assert packed.depth.tolist() == [min(int(depth[i]), 2**31 - 1) for i in index]

    wanted: dict[int, list[tuple[int, int, int]]] = {end: [] for end in range(12)}
    for number, run in enumerate(runs):
        for row, end in enumerate(run.end.tolist()):
            if run.distance[row] == OVERHANG or run.distance[row] < reach[number % 2]:
                wanted[end].append((number * 1000 + row, int(run.length[row]), int(run.has_n[row])))
    assert count_candidates(runs, reach, 6).tolist() == [len(wanted[end]) for end in range(12)]
    assert packed_words_per_end(runs, reach, 6).tolist() == [
        sum(2 * -(-length // 16) for _, length, _ in wanted[end]) for end in range(12)
    ]
    for at, contig in enumerate(index.tolist()):
        for side in (0, 1):
            first, last = packed.read_start[2 * at + side : 2 * at + side + 2]
            expected = wanted[2 * contig + side][:max_reads]
            assert last - first == len(expected)
            for read, (tag, length, has_n) in zip(range(first, last), expected, strict=True):
                words = packed.words[packed.word_offset[read] : packed.word_offset[read + 1]]
                assert packed.length[read] == length
                assert packed.fragment[read] == tag
                assert packed.has_n[read] == has_n
                assert words.tolist() == [tag] * (2 * -(-length // 16))
    assert packed.words[len(packed.words) - PADDING_WORDS :].tolist() == [0, 0]


def test_bases_and_words_past_32_bits(tmp_path):
    """Files with holes, so that little of them is on disk or in memory."""
    far = (1 << 31) + 1_000_001
    near = contigs_of(["ACGT" * 5, "GATTACA" * 40])
    run = run_of([(2, -1, 150), (3, -1, 90), (3, 4, 33)], 0, 7)
    bases = np.memmap(tmp_path / "bases", np.uint8, "w+", shape=(far + int(near.offsets[-1]),))
    bases[far:] = near.bases
    offsets = np.concatenate([[0], near.offsets + far])
    words = np.memmap(tmp_path / "words", np.uint32, "w+", shape=(far + len(run.words),))
    words[far:] = run.words
    long = SimpleNamespace(bases=np.asarray(bases), offsets=offsets)
    there = {"end": run.end + 2, "word_offset": run.word_offset + far}
    moved = replace(run, words=np.asarray(words), **there)
    packed = pack_partition(np.array([2]), long, [moved], [9], np.ones(3))
    wanted = pack_partition(np.array([1]), near, [run], [9], np.ones(2))
    for name in set(GROUPS["packed"]) - {"contig"}:
        assert getattr(packed, name).tolist() == getattr(wanted, name).tolist()
    assert packed.contig.tolist() == [2]
    assert packed_words_per_end([moved], [9], 3)[2:].tolist() == (
        packed_words_per_end([run], [9], 2).tolist()
    )


def test_arrays_of_a_partition_are_aligned_views_of_one_buffer():
    packed = pack_partition(
        np.arange(2), contigs_of(["ACGT", ""]), [run_of([(0, -1, 33)], 0, 1)], [0], np.ones(2)
    )
    check_views(packed)


def test_the_memory_of_a_partition_may_be_anyones():
    memory = np.full(100_000, 0xA5, dtype=np.uint8)
    run, how = run_of([(0, -1, 33), (3, -1, 20)], 0, 1), ([0], np.ones(2))
    plain = pack_partition(np.arange(2), contigs_of(["ACGT", "TTN"]), [run], *how)
    packed = pack_partition(
        np.arange(2), contigs_of(["ACGT", "TTN"]), [run], *how, buffer=lambda size: memory[:size]
    )
    assert np.shares_memory(packed.buffer, memory)
    check_views(packed)
    for name in GROUPS["packed"]:
        assert getattr(packed, name).tolist() == getattr(plain, name).tolist()


def check_views(packed: PackedPartition) -> None:
    start = packed.buffer.ctypes.data
    for name in GROUPS["packed"]:
        array = getattr(packed, name)
        assert array.size == 0 or np.shares_memory(array, packed.buffer)
        assert (array.ctypes.data - start) % ALIGNMENT == 0


def test_work_goes_on_with_the_threads_that_can_be_had():
    # stacks of 500 threads do not fit, so most cannot be started
    code = """
import resource, numpy as np
from dlasm.kernels import _cpu
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (400 << 20), resource.RLIM_INFINITY))
n = 500 * 600
zeros = np.zeros(n, dtype=np.int64)
words, offset, has_n = _cpu.pack_reads(
    np.zeros(1, np.uint8), zeros, zeros, zeros.astype(np.int32), zeros.astype(np.uint8), 33, 10, 20,
    500)
print(len(has_n))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "300000"), done.stderr
