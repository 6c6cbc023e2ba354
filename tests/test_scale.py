"""Inputs as large as users have them, or odder; memory of every process is watched meanwhile."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil
import pytest
from faults import ENVIRONMENT

import dlasm
from dlasm.testing import simulate_community

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

MB = 1 << 20
BASES = np.frombuffer(b"ACGT", dtype=np.uint8)
COMPLEMENT = str.maketrans("ACGT", "TGCA")


class Watch:
    """Peak memory of a process and of all below it, by what they are."""

    def __init__(self, process: psutil.Process) -> None:
        self.peak: dict[str, int] = defaultdict(int)
        self.own: dict[str, int] = defaultdict(int)
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            try:
                each = [self._process, *self._process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for number, process in enumerate(each):
                try:
                    name = "run" if not number else f"{process.name()} {process.pid}"
                    memory = process.memory_info()
                    self.peak[name] = max(self.peak[name], memory.rss)
                    # files that are mapped may be dropped from memory at any time
                    self.own[name] = max(self.own[name], memory.rss - memory.shared)
                except psutil.NoSuchProcess:
                    continue


def extend(output: Path, *arguments: object) -> tuple[dict, dict[str, int], float]:
    """Extend by the command line; gives the summary, peaks in bytes (own memory) and seconds."""
    command = [sys.executable, "-m", "dlasm.cli", "extend", *map(str, arguments), "-o", str(output)]
    begin = time.monotonic()
    with (
        subprocess.Popen(
            [*command, "-q"], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
        ) as process,
        Watch(psutil.Process(process.pid)) as watch,
    ):
        _, said = process.communicate()
    assert process.returncode == 0, said
    seconds = time.monotonic() - begin
    summary = json.loads((output / "summary.json").read_text())
    recorded = max(stage["peak_rss_bytes"] for stage in summary["stages"].values())
    for what, sizes in (("peaks", watch.peak), ("without mapped files", watch.own)):
        print(f"{seconds:.1f} s, {what} in MiB:", {n: size // MB for n, size in sizes.items()})
    assert recorded > 0.8 * watch.peak["run"]  # what the summary says is what was seen
    return summary, watch.own, seconds


def test_five_million_contigs_without_reads(tmp_path):
    rng = np.random.default_rng(1)
    contigs, size = 5_000_000, 120
    with open(tmp_path / "contigs.fa", "wb") as out:
        for begin in range(0, contigs, 100_000):
            rows = BASES[rng.integers(0, 4, (100_000, size), dtype=np.uint8)]
            out.write(
                b"".join(b">c%d\n%s\n" % (begin + i, row.tobytes()) for i, row in enumerate(rows))
            )
    (tmp_path / "reads.fq").touch()
    summary, peak, _ = extend(tmp_path / "o", tmp_path / "contigs.fa", "-r", tmp_path / "reads.fq")
    assert summary["contigs"]["count"] == summary["bins"]["1"] == contigs
    assert summary["outcomes"] == {"no_reads": 2 * contigs}
    with (
        open(tmp_path / "contigs.fa", "rb") as given,
        open(tmp_path / "o" / "extended.fasta", "rb") as found,
    ):
        for one, other in zip(given, found, strict=True):
            assert other.split()[0] == one.strip()
    with open(tmp_path / "o" / "extensions.tsv", "rb") as file:
        assert sum(1 for _ in file) == 2 * contigs + 1
    # the contigs, their index and what the report counts
    assert peak["run"] < 3000 * MB


@pytest.mark.parametrize("most", [3_000, 1_000_000])
def test_a_million_reads_of_one_end(tmp_path, most):
    rng = random.Random(2)
    genome = "".join(rng.choices("ACGT", k=4_000))
    (tmp_path / "contigs.fa").write_text(f">c depth=90000\n{genome[:2_000]}\n")
    with open(tmp_path / "reads.fq", "w") as out:
        for number in range(1_000_000):
            begin = rng.randrange(1_855, 1_960)
            read = genome[begin : begin + 150]
            if rng.random() < 0.5:
                read = read.translate(COMPLEMENT)[::-1]
            out.write(f"@r{number}\n{read}\n+\n{'I' * 150}\n")
    files = (tmp_path / "contigs.fa", "-r", tmp_path / "reads.fq")
    summary, peak, _ = extend(tmp_path / "o", *files, "--max-reads", most)
    assert summary["candidates"]["most_of_an_end"] == 1_000_000
    sequence = (tmp_path / "o" / "extended.fasta").read_text().splitlines()[1]
    assert genome.startswith(sequence)
    assert 2_090 <= len(sequence) <= 2_109
    assert peak["run"] < 2000 * MB


def test_eight_million_pairs(tmp_path):
    community = simulate_community(tmp_path / "sim", genomes=8, genome_length=200_000, seed=4)
    once, times = community.pairs, 8_000_000 // community.pairs + 1
    peaks = []
    for copies in (times // 40, times):
        reads = []
        for path in community.reads_paths:
            reads.append(tmp_path / f"{copies}_{path.name}")
            with open(reads[-1], "wb") as out:  # gzip files may have several members
                for _ in range(copies):
                    out.write(path.read_bytes())
        output = tmp_path / f"o{copies}"
        files = (community.contigs_path, "-1", reads[0], "-2", reads[1])
        summary, peak, seconds = extend(output, *files, "--workers", "0", "--join", "full")
        assert summary["libraries"][0]["reads"]["reads"] == 2 * once * copies
        print(f"{once * copies:,} pairs, {once * copies / seconds:,.0f} pairs/s")
        peaks.append(peak["run"])
        for path in reads:
            path.unlink()
    assert once * times >= 8_000_000
    assert peaks[1] < 1.5 * peaks[0]


def tasks_of(dask_scheduler) -> int:
    return len(dask_scheduler.tasks)


def test_ten_thousand_partitions_on_a_cluster(tmp_path):
    rng = random.Random(5)
    lines = []
    for number in range(10_000):
        text = "".join(rng.choices("ACGT", k=300))
        reads = [text[100:220], text[130:260]]
        right = " ".join(f"r{i} {read} {'I' * len(read)}" for i, read in enumerate(reads))
        lines.append(f"c{number} {text[:200]} 9 0 2 {right}\n")
    (tmp_path / "dump.dat").write_text("".join(lines))
    given = {"candidates": tmp_path / "dump.dat", "k": 33, "partition_bytes": 1}
    whole = dlasm.extend(
        **given | {"partition_bytes": 1 << 25}, output=tmp_path / "whole", workers=0
    )
    most, sizes = [], []
    done = threading.Event()
    with dlasm.local_cluster(2, 1, dashboard=False) as client:
        scheduler = psutil.Process()  # it is in this process

        def watch() -> None:
            while not done.wait(0.2):
                most.append(
                    client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
                )
                sizes.append(scheduler.memory_info().rss)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            with Watch(scheduler) as processes:
                run = dlasm.extend(**given, output=tmp_path / "o", client=client)
        finally:
            done.set()
            thread.join()
    assert run.summary()["partitions"] == 10_000
    for name in ("extended.fasta", "extensions.tsv"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    print(f"at most {max(most)} tasks; {(max(sizes) - sizes[0]) / MB:.0f} MiB more")
    print("peaks in MiB", {name: size // MB for name, size in processes.peak.items()})
    assert max(most) <= 2 * 2 + 2
    assert max(sizes) - sizes[0] < 200 * MB
