"""Time of `dlasm extend`, files to files, beside minimap2 on the same files.

`minimap2 -ax sr` alone, to nowhere, is what mapping takes; piped to `samtools sort` it is what a
tool that needs sorted alignments waits for. All are run in turn on this machine, so ratios hold
however busy it is. With ``--pairs`` so many pairs are taken, again under new names if there are not
as many, which shows whether memory is bounded and time linear; with several ``--threads``, how the
run scales.

    python workflows/benchmarks/whole_run.py contigs.fa.gz reads_1.fq.gz reads_2.fq.gz
    python workflows/benchmarks/whole_run.py contigs.fa.gz r1.fq.gz r2.fq.gz --pairs 100000 1000000
    python workflows/benchmarks/whole_run.py contigs.fa.gz r1.fq.gz r2.fq.gz --threads 1 2 4 8 16
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from isal import igzip

COLUMNS = (
    "pairs", "threads", "program", "wall_s", "cpu_s", "peak_mib", "wall_of_minimap2", "stages"
)  # fmt: skip


def measure(command: str) -> tuple[float, float, float]:
    """Run a shell command; give wall and CPU seconds, and the peak memory of a process in MiB."""
    # a process of its own, since the peak of all children of this one would never fall again
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        code = subprocess.run(["bash", "-o", "pipefail", "-c", command], check=False).returncode
        os._exit(min(code, 125) if code >= 0 else 125)
    _, status, usage = os.wait4(child, 0)
    wall = time.perf_counter() - started
    if status:
        sys.exit(f"failed: {command}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def take(source: str, target: Path, records: int) -> None:
    """Write so many records of a gzip-compressed FASTQ file, repeated under new names."""
    with igzip.open(target, "wb", compresslevel=1) as out:
        number = 0
        while records:
            with igzip.open(source, "rb") as reads:
                lines = islice(reads, 4 * records)
                for i, line in enumerate(lines):
                    out.write(b"@x%d_%s" % (number, line[1:]) if i % 4 == 0 else line)
            records -= (i + 1) // 4
            number += 1


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contigs")
    parser.add_argument("reads_1")
    parser.add_argument("reads_2")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, nargs="+", default=[0], help="0: as many as there are")
    parser.add_argument(
        "--peers", nargs="*", choices=("minimap2", "sort"), default=["minimap2", "sort"]
    )
    parser.add_argument("--options", default="", help="more options for dlasm extend")
    parser.add_argument("--output", help="write the table as CSV too")
    args = parser.parse_args()
    dlasm = shlex.quote(shutil.which("dlasm", path=str(Path(sys.executable).parent)) or "dlasm")
    rows: list[tuple[object, ...]] = [COLUMNS]
    print(*COLUMNS, sep="  ")
    for pairs in args.pairs:
        with tempfile.TemporaryDirectory(prefix="dlasm-benchmark-") as scratch:
            reads = [args.reads_1, args.reads_2]
            if pairs:
                for i, source in enumerate(reads):
                    reads[i] = f"{scratch}/reads_{i + 1}.fq.gz"
                    take(source, Path(reads[i]), pairs)
            files = " ".join(map(shlex.quote, [args.contigs, *reads]))
            one, two = map(shlex.quote, reads)
            for threads in args.threads:
                mapping = f"minimap2 -ax sr -t {threads} {files} 2>/dev/null"
                commands = {
                    "minimap2": f"{mapping} > /dev/null",
                    "sort": f"{mapping} | samtools sort -@ {threads} -o {scratch}/peer.bam -"
                    " 2>/dev/null",
                    "dlasm extend": f"{dlasm} extend {shlex.quote(args.contigs)} -1 {one} -2 {two}"
                    f" -o {scratch}/run --force --quiet --threads {threads} {args.options}",
                }
                commands = {
                    name: command
                    for name, command in commands.items()
                    if name in args.peers or name == "dlasm extend"
                }
                taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
                for _ in range(args.rounds):
                    for name, command in commands.items():
                        taken[name].append(measure(command))
                peer = float("nan")
                for name, values in taken.items():
                    wall, cpu, peak = (
                        statistics.median(column) for column in zip(*values, strict=True)
                    )
                    if name == "minimap2":
                        peer = wall
                    stages = ""
                    if name == "dlasm extend":
                        summary = json.loads(Path(scratch, "run", "summary.json").read_text())
                        stages = ", ".join(
                            f"{stage} {about['seconds']}"
                            for stage, about in summary["stages"].items()
                        )
                    rows.append(
                        (pairs or "all", threads, name, f"{wall:.2f}", f"{cpu:.2f}", f"{peak:.0f}",
                         f"{wall / peer:.3f}", stages)
                    )  # fmt: skip
                    print(*rows[-1], sep="  ", flush=True)
    if args.output:
        with open(args.output, "w", newline="") as table:
            csv.writer(table).writerows(rows)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
