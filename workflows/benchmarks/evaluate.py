r"""Extensions and joins of `dlasm extend` beside the truth, and QUAST where it is installed.

Data sets have known genomes. Each is run with each set of options and evaluated; one table, a row
for the contigs before, extended and joined. QUAST 5.2 (`pip install quast`, in an environment of
its own) is found on PATH or given.

    python workflows/benchmarks/evaluate.py --data mock contigs.fa genomes.fa r1.fq.gz r2.fq.gz
    python workflows/benchmarks/evaluate.py --data ... --options "-k 33" --options "-k 55" \
        --quast quast.py --output table.tsv
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dlasm
from dlasm.evaluate import LABELS

COLUMNS = (
    "data",
    "options",
    "contigs",
    "ends",
    "ends right %",
    "bases",
    "bases right %",
    *(f"{label} joins" for label in LABELS),
    "true refused",
    "false chains",
    "N50",
    "NG50",
    "NGA50",
    "misassemblies",
    "QUAST NGA50",
    "QUAST misassemblies",
)


def quast(program: str, reference: str, files: dict[str, Path], scratch: Path) -> dict[str, Any]:
    """Run QUAST on files by name; give its report as rows of values by name."""
    command = [program, "--no-icarus", "--no-plots", "--no-html", "--no-snps"]
    command += ["-t", str(len(os.sched_getaffinity(0))), "-o", str(scratch), "-r", reference]
    command += ["-l", ",".join(files), *map(str, files.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"failed: {shlex.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    rows = [line.split("\t") for line in (scratch / "report.tsv").read_text().splitlines()]
    return {row[0]: dict(zip(files, row[1:], strict=True)) for row in rows}


def percent(part: int, whole: int) -> str:
    """Say a share with two decimals."""
    return f"{100 * part / whole:.2f}" if whole else "-"


def rows_of(
    data: tuple[str, ...], options: str, program: str | None, circular: bool
) -> Iterator[dict[str, Any]]:
    """Run, evaluate and give a row per set of contigs."""
    name, contigs, genomes, one, two = data
    with tempfile.TemporaryDirectory(prefix="dlasm-benchmark-") as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "dlasm.cli", "extend", contigs, "-1", one, "-2", two]
        subprocess.run([*command, "-o", run, "--quiet", *shlex.split(options)], check=True)
        found = dlasm.open_run(run).evaluate(genomes, circular=circular)
        files = {"before": Path(contigs), "extended": run / "extended.fasta"}
        if "joins" in found:
            files["joined"] = run / "joined.fasta"
        report = quast(program, genomes, files, Path(scratch) / "quast") if program else {}
    judged = found["extensions"]["judged"]
    for which, figures in found["contiguity"].items():
        row: dict[str, Any] = {"data": name, "options": options, "contigs": which}
        if which == "extended":
            row["ends"], row["bases"] = judged["ends"], judged["bases"]
            row["ends right %"] = percent(judged["right_ends"], judged["ends"])
            row["bases right %"] = percent(judged["right_bases"], judged["bases"])
        if which == "joined":
            joins = found["joins"]
            row |= {f"{label} joins": count for label, count in joins["joined"].items()}
            row["true refused"] = joins["refused"]["true"]
            row["false chains"] = joins["false_chains"]
        row |= {key: figures[key.lower()] for key in ("N50", "NG50", "NGA50", "misassemblies")}
        if report:
            row["QUAST NGA50"] = report["NGA50"][which]
            row["QUAST misassemblies"] = report["# misassemblies"][which]
        yield row


def main() -> None:
    """Measure and write one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data",
        nargs=5,
        action="append",
        required=True,
        metavar=("NAME", "CONTIGS", "GENOMES", "READS_1", "READS_2"),
    )
    parser.add_argument("--options", action="append", help='options of dlasm extend, as "-k 33"')
    parser.add_argument("--circular", action="store_true", help="the genomes are circles")
    parser.add_argument("--quast", default="quast.py", help="the program; none: without it")
    parser.add_argument("--output", type=Path, help="write the table here instead")
    args = parser.parse_args()
    program = shutil.which(args.quast)
    if program is None and args.quast != "none":
        print(f"{args.quast} is not there, so dlasm's figures stand alone", file=sys.stderr)
    lines = ["\t".join(COLUMNS)]
    for data in args.data:
        for options in args.options or [""]:
            for row in rows_of(tuple(data), options, program, args.circular):
                lines.append("\t".join(str(row.get(column, "")) for column in COLUMNS))
    text = "\n".join(lines) + "\n"
    if args.output:
        args.output.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
