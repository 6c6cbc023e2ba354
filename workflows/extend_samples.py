"""Extend the contigs of several samples, one after the other, on one cluster.

python workflows/extend_samples.py samples.tsv runs/

samples.tsv has a line per sample, without a header: its name, contigs, first and second mates,
separated by tabs. A sample that fails is told and does not stop the others; started again, the
script does what is left. With --scheduler ADDRESS it uses a Dask cluster that is running.
"""

from __future__ import annotations

import argparse
import csv
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dlasm
from dlasm.errors import DlasmError


def main() -> int:
    """Run all samples; return how many failed."""
    parser = argparse.ArgumentParser(description="Extend the contigs of several samples.")
    parser.add_argument("samples", help="table: name, contigs, reads_1, reads_2")
    parser.add_argument("output", type=Path, help="folder of the runs")
    parser.add_argument("--scheduler", help="address of a Dask cluster that is running")
    parser.add_argument("--workers", type=int, help="worker processes, without --scheduler")
    arguments = parser.parse_args()

    with open(arguments.samples, newline="", encoding="utf-8") as file:
        samples = [row for row in csv.reader(file, delimiter="\t") if row]
    cluster: AbstractContextManager[Any] = (
        dlasm.connect(arguments.scheduler)
        if arguments.scheduler
        else dlasm.local_cluster(arguments.workers)
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    print("sample\tcontigs\textended\tappended_bases\tseconds")
    with cluster as client:
        for name, contigs, reads_1, reads_2 in samples:
            try:
                run = dlasm.extend(
                    contigs,
                    reads=(reads_1, reads_2),
                    output=arguments.output / name,
                    client=client,
                    resume=True,
                )
            except DlasmError as error:
                failed += 1
                print(f"{name}: {error}", file=sys.stderr)
                continue
            summary = run.summary()
            extended = summary["extended"]
            print(
                name,
                summary["contigs"]["count"],
                extended["contigs"],
                extended["appended_bases"],
                summary["seconds"],
                sep="\t",
            )
    return failed


if __name__ == "__main__":  # workers import this file again: without this they would start over
    sys.exit(min(main(), 1))
