"""Speed and memory of reading candidate reads from BAM, beside samtools on the same files.

`samtools view -c` does nothing but inflate the file and find its records; `samtools sort` is what a
tool that needs sorted input waits for. With ``--orders`` the first file, as minimap2 writes it, is
also measured sorted by coordinate and shuffled.

    minimap2 -ax sr -t 2 contigs.fa.gz reads_1.fq.gz reads_2.fq.gz | samtools view -b -o x.bam
    python workflows/benchmarks/bam_reading.py contigs.fa.gz x.bam --orders
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from whole_run import measure


def read_bam(contigs_path: str, path: str, threads: int, memory: int) -> None:
    """Read one file, with the bound that `dlasm extend` takes, and let the results go."""
    from dlasm.alignments import iter_bam_results
    from dlasm.io.fasta import read_contigs
    from dlasm.pipeline import MATE_BOUND

    with tempfile.TemporaryDirectory(prefix="dlasm-benchmark-") as scratch:
        for _ in iter_bam_results(
            path,
            read_contigs(contigs_path),
            scratch=scratch,
            bound=MATE_BOUND,
            threads=threads,
            memory=memory,
        ):
            pass


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contigs")
    parser.add_argument("bam", nargs="+")
    parser.add_argument("--orders", action="store_true")
    parser.add_argument("--extend", action="store_true", help="measure dlasm extend too")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--memory", type=int, default=256, help="MiB that reading may use")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        read_bam(args.contigs, args.bam[0], args.threads[0], args.memory << 20)
        return
    with tempfile.TemporaryDirectory(prefix="dlasm-benchmark-") as scratch:
        files = {Path(path).name: path for path in args.bam}
        if args.orders:
            for order, command in (("sorted", "sort"), ("shuffled", "collate")):
                files[order] = f"{scratch}/{order}.bam"
                subprocess.run(
                    ["samtools", command, "-o", files[order], args.bam[0]],
                    check=True,
                    stderr=subprocess.DEVNULL,
                )
        print("file  program  threads  wall s  CPU s  thousand records/s per core  peak MiB")
        for name, path in files.items():
            bam, contigs = shlex.quote(path), shlex.quote(args.contigs)
            records = int(subprocess.check_output(["samtools", "view", "-c", path]))
            commands = [
                ("samtools view -c", 1, f"samtools view -c {bam} >{scratch}/out"),
                ("samtools sort", 1, f"samtools sort -o {scratch}/out {bam} 2>{scratch}/log"),
            ]
            for threads in args.threads:
                program = f"{shlex.quote(sys.executable)} {shlex.quote(__file__)} --one"
                options = f"--threads {threads} --memory {args.memory}"
                commands.append(("dlasm, reading", threads, f"{program} {contigs} {bam} {options}"))
                if args.extend:
                    run = f"-o {scratch}/run --force --quiet --threads {threads}"
                    program = f"{shlex.quote(sys.executable)} -m dlasm.cli extend"
                    commands.append(
                        ("dlasm extend", threads, f"{program} {contigs} --bam {bam} {run}")
                    )
            for program, threads, command in commands:
                # the least of each: other work on the machine only adds
                wall, cpu, peak = map(
                    min, zip(*(measure(command) for _ in range(args.rounds)), strict=True)
                )
                speed = records / cpu / 1e3
                print(
                    f"{name}  {program}  {threads}  {wall:.2f}  {cpu:.2f}  {speed:.0f}  {peak:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
