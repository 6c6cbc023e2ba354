"""Bins and partitions: every contig with candidates in exactly one, balanced, in input order."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlasm.partition import END_BYTES, assign_bins, plan_partitions


def test_bins_go_by_the_busier_side():
    candidates = np.array([0, 0, 1, 0, 0, 9, 10, 3, 3, 3000])
    assert assign_bins(candidates).tolist() == [1, 2, 2, 3, 3]
    assert assign_bins(candidates, bin_limit=3).tolist() == [1, 2, 3, 3, 3]
    assert assign_bins(candidates, bin_limit=1).tolist() == [1, 3, 3, 3, 3]
    assert assign_bins(np.zeros(0, dtype=np.int64)).tolist() == []


@given(
    counts=st.lists(st.integers(0, 40), max_size=60).map(lambda c: c[: len(c) // 2 * 2]),
    partition_bytes=st.integers(1, 100_000),
    at_least=st.integers(1, 20),
)
def test_each_contig_with_candidates_is_in_one_partition(counts, partition_bytes, at_least):
    candidates = np.array(counts, dtype=np.int64)
    words = 20 * candidates
    bins = assign_bins(candidates)
    plan = plan_partitions(
        bins, candidates, words, partition_bytes=partition_bytes, at_least=at_least
    )
    assert sorted(plan.contig.tolist()) == np.flatnonzero(bins > 1).tolist()
    assert plan.start[0] == 0
    assert plan.start[-1] == len(plan.contig)
    assert len(plan.start) == len(plan) + 1
    for number in range(len(plan)):
        contigs = plan.contigs(number)
        assert len(contigs)
        assert (np.diff(contigs) > 0).all()
        assert set(bins[contigs].tolist()) == {int(plan.bin[number])}
    work = 4 * words.reshape(-1, 2).sum(axis=1) + 2 * END_BYTES
    assert plan.work.sum() == work[bins > 1].sum()


def test_work_is_balanced():
    rng = np.random.default_rng(1)
    candidates = rng.integers(1, 9, 20_000)
    plan = plan_partitions(assign_bins(candidates), candidates, 20 * candidates, at_least=16)
    assert len(plan) == 16
    assert plan.work.max() < 1.01 * plan.work.mean()


def test_reads_over_the_cap_are_no_work():
    candidates = np.array([100, 0, 10_000, 0])
    plan = plan_partitions(
        assign_bins(candidates), candidates, 20 * candidates, max_reads=100, at_least=2
    )
    assert plan.work.tolist() == [4 * 2000 + 2 * END_BYTES] * 2


def test_a_contig_larger_than_a_partition_is_alone():
    candidates = np.array([20, 20, 3000, 3000, 20, 20])
    plan = plan_partitions(
        assign_bins(candidates), candidates, 20 * candidates, partition_bytes=10_000
    )
    assert [plan.contigs(n).tolist() for n in range(len(plan))] == [[0, 1], [2]]
