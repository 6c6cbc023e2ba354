"""Time of `dlasm extend`, files to files, beside minimap2 piped to samtools sort on the same files.

Both are run in turn on this machine, so the ratio holds however busy it is. With ``--multiply`` the
reads are repeated under new names, and the peak memory of dlasm is shown for each multiple.

    python workflows/benchmarks/whole_run.py contigs.fa.gz reads_1.fq.gz reads_2.fq.gz
    python workflows/benchmarks/whole_run.py contigs.fa.gz r1.fq.gz r2.fq.gz --multiply 1 10
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


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


def multiply(source: str, target: Path, times: int) -> None:
    """Repeat a gzip-compressed FASTQ file under new names."""
    with gzip.open(source, "rb") as reads:
        lines = reads.read().split(b"\n")
    headers = range(0, len(lines) - 3, 4)
    with gzip.open(target, "wb", compresslevel=1) as out:
        for number in range(times):
            for i in headers:
                lines_here = b"\n".join(lines[i + 1 : i + 4])
                out.write(b"@x%d_%s\n%s\n" % (number, lines[i][1:], lines_here))


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contigs")
    parser.add_argument("reads_1")
    parser.add_argument("reads_2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--multiply", type=int, nargs="+", default=[1])
    parser.add_argument("--no-peer", action="store_true", help="dlasm alone")
    parser.add_argument("--options", default="", help="more options for dlasm extend")
    args = parser.parse_args()
    dlasm = shlex.quote(shutil.which("dlasm", path=str(Path(sys.executable).parent)) or "dlasm")
    print("times  program  wall s (median)  CPU s  peak MiB  wall against peer")
    for times in args.multiply:
        with tempfile.TemporaryDirectory(prefix="dlasm-benchmark-") as scratch:
            reads = [args.reads_1, args.reads_2]
            if times > 1:
                for i, source in enumerate(reads):
                    reads[i] = f"{scratch}/reads_{i + 1}.fq.gz"
                    multiply(source, Path(reads[i]), times)
            one, two = map(shlex.quote, reads)
            contigs = shlex.quote(args.contigs)
            commands = {
                "minimap2 | samtools sort": (
                    f"minimap2 -ax sr -t {args.threads} {contigs} {one} {two} 2>/dev/null"
                    f" | samtools sort -@ {args.threads} -o {scratch}/peer.bam - 2>/dev/null"
                ),
                "dlasm extend": (
                    f"{dlasm} extend {contigs} -1 {one} -2 {two} -o {scratch}/run --force --quiet"
                    f" --threads {args.threads} {args.options}"
                ),
            }
            if args.no_peer:
                del commands["minimap2 | samtools sort"]
            taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
            for _ in range(args.rounds):
                for name, command in commands.items():
                    taken[name].append(measure(command))
            peer = 0.0
            for name, values in taken.items():
                wall, cpu, peak = (
                    statistics.median(column) for column in zip(*values, strict=True)
                )
                peer = peer or wall
                print(f"{times}  {name}  {wall:.2f}  {cpu:.2f}  {peak:.0f}  {wall / peer:.2f}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
