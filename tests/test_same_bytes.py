"""The same bytes, whatever computes them: random configurations of whole runs."""

from __future__ import annotations

import gzip
import hashlib
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import fake_gpu
import mappy
import numpy as np
import pysam
import pytest
from adversarial import random_case
from test_follow import write_dump

import dlasm
import dlasm.engines.choose as choose
import dlasm.io.fastq as fastq
from dlasm.arrays import GROUPS
from dlasm.gpus import Gpu
from dlasm.tasks import extend_task

CONFIGURATIONS = int(os.environ.get("DLASM_CONFIGURATIONS", "30"))
FILES = ("extended.fasta", "extensions.tsv", "joined.fasta", "joins.tsv", "joined.agp", "graph.gfa")


def late_task(*arguments, **options):
    """Extend a partition, but not before some time, so that tasks end in any order."""
    time.sleep(random.Random(f"{os.getpid()} {arguments}").random() * 0.05)
    return extend_task(*arguments, **options)


def digest(run: dlasm.Run) -> str:
    """Hash all that a run gives but for figures of time and place."""
    whole = hashlib.sha256()
    for name in FILES:
        if (run.path / name).exists():
            whole.update(name.encode() + (run.path / name).read_bytes())
    for group in ("contigs", "results"):
        for name in GROUPS[group]:
            values = np.asarray(run.results.array(group, name)[:])
            whole.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    for name, values in (run.results.joins() or {}).items():
        whole.update(f"{name} {values.dtype}".encode() + values.tobytes())
    return whole.hexdigest()


def write_bam(path: Path, community) -> Path:
    """Align the pairs of a community, each read by itself, and write a BAM sorted by place."""
    aligner = mappy.Aligner(str(community.contigs_path), preset="sr")
    names, lengths = zip(*((n, len(aligner.seq(n))) for n in aligner.seq_names), strict=True)
    header = pysam.AlignmentHeader.from_references(list(names), list(lengths))
    place = {name: number for number, name in enumerate(names)}
    unsorted = path.with_suffix(".unsorted")
    with pysam.AlignmentFile(str(unsorted), "wb", header=header) as out:
        for mate, reads in enumerate(community.reads_paths):
            for name, bases, qualities in mappy.fastx_read(str(reads)):
                record = pysam.AlignedSegment(header)
                record.query_name = name.split("/")[0]
                record.flag = 0x1 | (0x80 if mate else 0x40)
                hit = next((h for h in aligner.map(bases) if h.is_primary), None)
                if hit is None:
                    record.is_unmapped = True
                    record.query_sequence = bases
                    record.query_qualities = pysam.qualitystring_to_array(qualities)
                else:
                    is_reverse = hit.strand < 0
                    record.is_reverse = is_reverse
                    record.reference_id, record.reference_start = place[hit.ctg], hit.r_st
                    clips = (hit.q_st, len(bases) - hit.q_en)
                    before, after = clips[::-1] if is_reverse else clips
                    record.cigarstring = "".join(
                        f"{size}{what}" if what == "S" and size else what * (what != "S")
                        for size, what in ((before, "S"), (0, hit.cigar_str), (after, "S"))
                    )
                    record.query_sequence = mappy.revcomp(bases) if is_reverse else bases
                    record.query_qualities = pysam.qualitystring_to_array(
                        qualities[::-1] if is_reverse else qualities
                    )
                    record.set_tag("AS", 2 * hit.mlen)
                out.write(record)
    pysam.sort("-o", str(path), str(unsorted))
    return path


@pytest.fixture(scope="module")
def inputs(community, tmp_path_factory):
    """Arguments of :func:`dlasm.extend` for each input."""
    folder = tmp_path_factory.mktemp("inputs")
    first, second = community.reads_paths
    single = folder / "single.fq"
    with gzip.open(first) as file:
        lines = file.readlines()[:2000]
    lines[::4] = [b"@single" + line[1:] for line in lines[::4]]
    single.write_bytes(b"".join(lines))
    rng = random.Random(3)
    cases = [random_case(rng, 21) for _ in range(90)]
    cases = [case for case in cases if all(bases for bases, _ in (*case.left, *case.right))]
    reads = {"reads": [(first, second)], "single": single, "join": "full", "rounds": 2}
    bam = write_bam(folder / "x.bam", community)
    return {
        "reads": {"contigs": community.contigs_path, **reads},
        "bam": {"contigs": community.contigs_path, "bam": bam, "join": "careful"},
        "dump": {"candidates": write_dump(folder / "dump.dat", cases), "k": 21},
    }


@pytest.fixture(scope="module")
def client():
    with dlasm.local_cluster(3, 2, dashboard=False) as client:
        yield client


class Stop(BaseException):
    """Ends a run as an interrupt would."""


@contextmanager
def configured(
    rng: random.Random, chunks: tuple[int, int], stops: bool, clusters: dict
) -> Iterator[tuple[dict, str]]:
    """Choose a configuration: arguments for :func:`dlasm.extend`, and what it is in words."""
    where = rng.choice(["process", "process", "GPUs of the process", "cluster"])
    options = {
        "threads": rng.randint(1, 5),
        "partition_bytes": int(10 ** rng.uniform(2.5, 7.5)),
        "memory": rng.choice([None, None, "700MB", "2GB"]),
        "workers": 0,
        "gpus": "none",
    }
    batch_reads, per_run = chunks
    stop_at = rng.choice(["write_run_file", "write_partition", "write_files"]) if stops else ""
    stop_after = rng.randint(1, 3)
    with pytest.MonkeyPatch.context() as patched:
        small = partial(fastq.iter_batches, batch_reads=batch_reads)
        patched.setattr(fastq, "iter_batches", small)
        patched.setattr("dlasm.pipeline.BATCHES_PER_RUN", per_run)
        patched.setattr("dlasm.pipeline.extend_task", late_task)
        if where == "cluster":
            options["client"] = clusters["client"]
            options.pop("memory")
        elif where != "process":
            gpus = [Gpu(str(n), f"GPU-{n}000", "Fake") for n in range(rng.randint(1, 4))]
            patched.setattr("dlasm.gpus.find_gpus", lambda: (gpus, ""))
            patched.setattr("dlasm.gpus._is_installed", lambda package: True)
            for name in ("cpu", "gpu"):
                patched.setitem(choose.ENGINES, name, fake_gpu.FakeEngine(name))
            options["gpus"] = range(len(gpus))
        if stop_at:
            module = {
                "write_run_file": "dlasm.recruit",
                "write_partition": "dlasm.store",
                "write_files": "dlasm.pipeline",
            }[stop_at]
            stop_before(patched, f"{module}.{stop_at}", stop_after)
        words = f"{where} {options} batches of {batch_reads}, {per_run} in a run"
        yield options, f"{words}; stopped at {stop_at} {stop_after}" if stop_at else words


def stop_before(patched: pytest.MonkeyPatch, target: str, calls: int) -> None:
    """Interrupt the run before a call of a function."""
    import importlib

    module, name = target.rsplit(".", 1)
    function = getattr(importlib.import_module(module), name)
    done = 0

    def stopping(*arguments, **options):
        nonlocal done
        done += 1
        if done >= calls:
            raise Stop
        return function(*arguments, **options)

    patched.setattr(target, stopping)


def check(name: str, given: dict, folder: Path, clusters: dict, configurations: int) -> None:
    """Run an input in random configurations, some of them stopped and continued in another."""
    seed = os.environ.get("DLASM_SEED", f"{name} 1")
    rng = random.Random(seed)
    expected = digest(dlasm.extend(**given, output=folder / "whole", workers=0, threads=1))
    for number in range(configurations):
        output = folder / str(number)
        chunks = 2 * rng.randint(20, 2000), rng.randint(1, 30)  # constants, so the same on resuming
        said = []
        try:
            for stops in (True, False) if rng.random() < 0.6 else (False,):
                with configured(rng, chunks, stops, clusters) as (options, words):
                    said.append(words)
                    try:
                        run = dlasm.extend(**given, output=output, resume=True, **options)
                    except Stop:
                        said.append("stopped")
            assert digest(run) == expected
        except BaseException:
            print(f"seed {seed!r}, configuration {number}:", *said, sep="\n  ")
            raise


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["reads", "bam", "dump"])
def test_random_configurations(inputs, client, tmp_path, name):
    check(name, inputs[name], tmp_path, {"client": client}, CONFIGURATIONS)


@pytest.mark.parametrize("name", ["reads", "bam", "dump"])
def test_a_few_random_configurations(inputs, tmp_path, name, monkeypatch):
    monkeypatch.setattr("test_same_bytes.random.Random.choice", first_choices)
    check(name, inputs[name], tmp_path, {}, 3)


choose_any = random.Random.choice


def first_choices(rng, options):
    """Choose as random does, but no cluster, which takes a while to start."""
    return choose_any(rng, [option for option in options if option != "cluster"])
