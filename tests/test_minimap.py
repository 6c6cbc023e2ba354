"""Bulk mapping against mappy's own class, and what it does with odd input."""

from __future__ import annotations

import dlasm._minimap as _minimap
import mappy
import numpy as np
import pytest
from conftest import shared_data
from recruit_data import World, make_batch, make_contigs, placement_rows

from dlasm.errors import DlasmError
from dlasm.io.fasta import read_contigs
from dlasm.io.fastq import Library, ReadCounts, iter_batches
from dlasm.mapping import Aligner
from dlasm.recruit import Placements


def test_places_are_those_of_mappy() -> None:
    contigs_path = shared_data("mock_tiny", "megahit_final.fa.gz")
    paths = tuple(str(shared_data("mock_tiny", f"reads_{mate}.fq.gz")) for mate in (1, 2))
    contigs = read_contigs(contigs_path)
    reads = Library("pairs", paths, 0)
    batch = next(iter_batches(reads, counts=ReadCounts(), batch_reads=4000))
    found = [row[:7] for row in placement_rows(Aligner(contigs).place(batch, threads=2))]

    aligner = mappy.Aligner(str(contigs_path), preset="sr")
    index = {contigs.name(i): i for i in range(len(contigs))}
    expected = []
    for i in range(len(batch)):
        begin, length = int(batch.base_start[i]), int(batch.length[i])
        for hit in aligner.map(batch.text[begin : begin + length].tobytes()):
            sides = (hit.q_st, length - hit.q_en)
            left, right = sides if hit.strand > 0 else sides[::-1]
            expected.append((i, index[hit.ctg], hit.r_st, hit.r_en, left, right, hit.strand < 0))
    assert len(found) > 3900
    assert found == expected


def test_score_is_that_of_the_alignment() -> None:
    rng = np.random.default_rng(1)
    genome = "".join(rng.choice(list("ACGT"), 1000))
    read = genome[300:450]
    other = "C" if read[70] != "C" else "G"
    batch = make_batch([read, read[:70] + other + read[71:], read[:75] + read[77:]], paired=False)
    places = Aligner(make_contigs([genome])).place(batch)
    # preset sr: match 2, mismatch 8, gap 12 + 2 a base
    assert places.score.tolist() == [300, 298 - 8, 296 - 16]
    assert places.read.tolist() == [0, 1, 2]


def test_places_do_not_depend_on_threads_or_neighbours() -> None:
    world = World(2, pairs=1000)
    one = Aligner(world.contigs).place(world.batch, threads=1)
    aligner = Aligner(world.contigs)
    assert placement_rows(aligner.place(world.batch)) == placement_rows(one)
    half = aligner.place(make_batch(world.reads[1000:]))
    expected = [row for row in placement_rows(one) if row[0] >= 1000]
    assert [(row[0] + 1000, *row[1:]) for row in placement_rows(half)] == expected


@pytest.mark.parametrize("sequences", [[], [""], ["", "ACGT", "A" * 20], ["N" * 500], ["", "x"]])
def test_contigs_without_a_place_for_reads(sequences: list[str]) -> None:
    batch = make_batch(["", "A", "ACGT" * 30, "N" * 200], paired=False)
    places = Aligner(make_contigs(sequences)).place(batch, threads=2)
    assert placement_rows(places) == []


def test_empty_and_short_contigs_keep_their_numbers() -> None:
    world = World(4, pairs=50)
    padded = ["", "ACGT", *world.sequences, "", "A" * 20]
    found = placement_rows(Aligner(make_contigs(padded)).place(world.batch))
    plain = placement_rows(Aligner(world.contigs).place(world.batch))
    assert found == [(row[0], row[1] + 2, *row[2:]) for row in plain]


def test_odd_reads() -> None:
    world = World(6, pairs=10)
    read = world.genome[1000:1150]
    reads = ["", "ACGT", read.lower(), read[:70] + "RYN-" + read[74:], "*" * 60, read * 3]
    places = Aligner(world.contigs).place(make_batch(reads, paired=False), threads=2)
    assert {2, 3, 5} == set(places.read.tolist())
    assert isinstance(places, Placements)
    empty = make_batch([], paired=False)
    assert placement_rows(Aligner(world.contigs).place(empty)) == []


def test_arrays_that_contradict_each_other_are_refused() -> None:
    mapper = _minimap.Mapper(mappy.__file__, np.zeros(0, np.uint8), np.zeros(1, np.int64))
    text = np.zeros(10, np.uint8)
    with pytest.raises(ValueError, match="outside the text"):
        mapper.place(text, np.array([5]), np.array([6], np.int32), 1)
    with pytest.raises(ValueError, match="different lengths"):
        mapper.place(text, np.array([5]), np.array([2, 2], np.int32), 1)
    with pytest.raises(ValueError, match="outside the bases"):
        _minimap.Mapper(mappy.__file__, text, np.array([0, 11]))


def test_another_library_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _minimap.self_check(mappy.__file__)
    monkeypatch.setattr(mappy, "__file__", _minimap.__file__)
    with pytest.raises(DlasmError, match=r"mappy .* is not supported: mm_set_opt is not exported"):
        Aligner(make_contigs(["ACGT" * 20]))
    monkeypatch.setattr(mappy, "__file__", "/nowhere/mappy.so")
    with pytest.raises(DlasmError, match="cannot load minimap2"):
        Aligner(make_contigs(["ACGT" * 20]))
