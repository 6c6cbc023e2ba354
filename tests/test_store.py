"""The store: partitions come back in input order, and nothing half-written is taken for whole."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

import dlasm.store as store
from dlasm.arrays import GROUPS, validate
from dlasm.errors import StoreError
from dlasm.io.fasta import Contigs
from dlasm.params import OUTCOMES
from dlasm.partition import assign_bins, plan_partitions


def offsets_of(sizes) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def make_run(n: int, seed: int) -> SimpleNamespace:
    """Contigs, a plan, and made-up extensions of every end."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 50, n)
    names = [f"contig {i}" for i in range(n)]
    contigs = Contigs(
        bases=rng.choice(np.frombuffer(b"ACGTacgtN", dtype=np.uint8), sizes.sum()),
        offsets=offsets_of(sizes),
        name_values=np.frombuffer("".join(names).encode(), dtype=np.uint8),
        name_offsets=offsets_of([len(name) for name in names]),
        depth=rng.random(n),
    )
    candidates = rng.integers(0, 14, 2 * n) * rng.integers(0, 2, 2 * n)
    bins = assign_bins(candidates)
    plan = plan_partitions(bins, candidates, 20 * candidates, partition_bytes=5_000)
    walks = [rng.choice(list(b"ACGT"), rng.integers(0, 30)).astype(np.uint8) for _ in range(2 * n)]
    outcome = rng.integers(1, 5, 2 * n).astype(np.uint8)
    for end in np.flatnonzero(np.repeat(bins, 2) == 1):
        walks[end] = np.zeros(0, dtype=np.uint8)
        outcome[end] = store.NO_READS
    k = rng.integers(21, 121, 2 * n).astype(np.int16) * (np.repeat(bins, 2) > 1)
    return SimpleNamespace(
        contigs=contigs,
        candidates=candidates,
        bins=bins,
        plan=plan,
        walks=walks,
        k=k.astype(np.int16),
        outcome=outcome,
        support=[rng.integers(1, 256, len(walk)).astype(np.uint8) for walk in walks],
        cut=rng.integers(0, 9, 2 * n).astype(np.int32) * (np.repeat(bins, 2) > 1),
    )


def write(run, folder, number, about=None) -> None:
    contig = run.plan.contigs(number)
    ends = (2 * contig[:, None] + np.arange(2)).ravel()
    walks = [run.walks[end] for end in ends]
    extensions = SimpleNamespace(
        walk_values=np.concatenate(walks),
        walk_offsets=offsets_of([len(walk) for walk in walks]),
        support=np.concatenate([run.support[end] for end in ends]),
        k=run.k[ends],
        outcome=run.outcome[ends],
        cut=run.cut[ends].astype(np.int32),
    )
    store.write_partition(
        folder, number, contig, run.bins[contig], run.candidates[ends], extensions, about
    )


def finalise(run, tmp_path):
    store.finalise(
        tmp_path / "results.zarr",
        tmp_path,
        run.plan,
        run.contigs,
        run.contigs.depth,
        run.bins,
        run.candidates,
        {"parameters": {"k": 33}},
    )
    return store.open_results(tmp_path / "results.zarr")


@pytest.mark.parametrize("n", [0, 1, 2, 200])
def test_partitions_come_back_in_input_order(tmp_path, monkeypatch, n):
    monkeypatch.setattr(store, "BLOCK_CONTIGS", 7)
    run = make_run(n, seed=n)
    for number in reversed(range(len(run.plan))):
        write(run, tmp_path, number)
    results = finalise(run, tmp_path)
    arrays = {name: np.asarray(results.array("results", name)[:]) for name in GROUPS["results"]}
    validate("results", arrays)
    assert len(results) == n
    assert arrays["walk_values"].tobytes() == b"".join(walk.tobytes() for walk in run.walks)
    assert arrays["support"].tobytes() == b"".join(each.tobytes() for each in run.support)
    assert np.array_equal(arrays["cut"], run.cut)
    assert arrays["walk_offsets"].tolist() == offsets_of([len(w) for w in run.walks]).tolist()
    for name in ("k", "outcome", "candidates"):
        assert np.array_equal(arrays[name], getattr(run, name))
    assert np.array_equal(arrays["bin"], run.bins)
    assert arrays["contig"].tolist() == list(range(n))
    contigs = {name: np.asarray(results.array("contigs", name)[:]) for name in GROUPS["contigs"]}
    validate("contigs", contigs)
    assert all(np.array_equal(contigs[name], getattr(run.contigs, name)) for name in contigs)


def test_blocks_are_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "BLOCK_BASES", 100)
    run = make_run(50, seed=3)
    for number in range(len(run.plan)):
        write(run, tmp_path, number)
    blocks = list(finalise(run, tmp_path).blocks())
    assert len(blocks) > 5
    assert [block.first for block in blocks] == np.cumsum([0] + [len(b) for b in blocks])[
        :-1
    ].tolist()
    assert b"".join(b.bases.tobytes() for b in blocks) == run.contigs.bases.tobytes()
    assert b"".join(b.name_values.tobytes() for b in blocks) == run.contigs.name_values.tobytes()
    walks = b"".join(walk.tobytes() for walk in run.walks)
    assert b"".join(b.walk_values.tobytes() for b in blocks) == walks
    for block in blocks:
        assert block.offsets[0] == block.walk_offsets[0] == block.name_offsets[0] == 0
        assert block.offsets[-1] == len(block.bases)


def test_shards_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "CHUNK_BYTES", 64)
    monkeypatch.setattr(store, "SHARD_BYTES", 256)
    monkeypatch.setattr(store, "BLOCK_CONTIGS", 11)
    run = make_run(300, seed=4)
    for number in range(len(run.plan)):
        write(run, tmp_path, number)
    results = finalise(run, tmp_path)
    array = results.array("results", "walk_values")
    assert array.shards == (256,)
    assert np.asarray(array[:]).tobytes() == b"".join(walk.tobytes() for walk in run.walks)
    assert np.array_equal(np.asarray(results.array("results", "k")[:]), run.k)


def test_arrays_say_what_they_are(tmp_path):
    run = make_run(20, seed=5)
    for number in range(len(run.plan)):
        write(run, tmp_path, number)
    finalise(run, tmp_path)
    root = zarr.open_group(tmp_path / "results.zarr", mode="r")
    assert root.metadata.zarr_format == 3
    assert root.attrs["parameters"] == {"k": 33}
    for group in ("contigs", "results"):
        for name, spec in GROUPS[group].items():
            array = root[group][name]
            assert array.dtype == np.dtype(spec.dtype)
            assert array.metadata.dimension_names == spec.dims
            assert dict(array.attrs).items() >= {"unit": spec.unit, "meaning": spec.meaning}.items()
    assert root["results/outcome"].attrs["codes"] == list(OUTCOMES)
    for name in ("outcome", "k", "candidates", "walk_offsets"):
        assert root[f"results/{name}"].attrs["ends"] == "end = 2 * contig + side"
        assert root[f"results/{name}"].attrs["sides"] == ["left", "right"]
    assert "ends" not in root["contigs/depth"].attrs


def test_a_missing_partition_is_named(tmp_path):
    run = make_run(100, seed=6)
    assert len(run.plan) > 3
    for number in range(len(run.plan)):
        if number != 2:
            write(run, tmp_path, number)
    with pytest.raises(StoreError, match=r"partitions 2 of \d+ are missing"):
        finalise(run, tmp_path)
    assert not (tmp_path / "results.zarr").exists()


def test_a_damaged_partition_is_named(tmp_path):
    run = make_run(100, seed=6)
    for number in range(len(run.plan)):
        write(run, tmp_path, number)
    path = store.partition_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoreError, match="0000001"):
        finalise(run, tmp_path)


def test_another_format_is_refused(tmp_path):
    run = make_run(5, seed=7)
    for number in range(len(run.plan)):
        write(run, tmp_path, number)
    finalise(run, tmp_path)
    path = tmp_path / "results.zarr" / "zarr.json"
    about = json.loads(path.read_text())
    about["attributes"]["dlasm_format"] = 99
    path.write_text(json.dumps(about))
    with pytest.raises(StoreError, match="format 99, and this dlasm reads format 2"):
        store.open_results(tmp_path / "results.zarr")
    with pytest.raises(StoreError, match="no store"):
        store.open_results(tmp_path / "nothing")


def test_a_contig_that_contradicts_is_refused(tmp_path):
    run = make_run(5, seed=8)
    run.k = run.k.astype(np.int32)
    with pytest.raises(StoreError, match="results/k"):
        write(run, tmp_path, 0)


def test_blocks_of_no_contig_and_of_a_long_one():
    assert list(store.blocks_of(np.zeros(1, dtype=np.int64))) == []
    long = np.array([0, 5, 5 + 2 * store.BLOCK_BASES, 6 + 2 * store.BLOCK_BASES])
    assert list(store.blocks_of(long)) == [(0, 1), (1, 2), (2, 3)]


def test_a_partition_says_who_extended_it(tmp_path):
    run = make_run(5, seed=9)
    write(run, tmp_path, 0, {"pool": "gpu", "figures": {"kernel_ms": 0.5}})
    assert store.read_about(tmp_path, 0) == {"pool": "gpu", "figures": {"kernel_ms": 0.5}}
    store.partition_path(tmp_path, 0).write_bytes(b"PK")
    with pytest.raises(StoreError, match="not a whole partition"):
        store.read_about(tmp_path, 0)
