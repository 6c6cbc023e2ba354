"""Extend contigs on one machine and look at the result: a script to copy and change.

python workflows/extend_contigs.py contigs.fa reads_1.fq.gz reads_2.fq.gz run/ --workers 4
"""

from __future__ import annotations

import argparse

import dlasm


def main() -> None:
    """Run the extension on a local Dask cluster and print what was gained."""
    parser = argparse.ArgumentParser(description="Extend contigs on one machine.")
    parser.add_argument("contigs", help="FASTA, plain or compressed")
    parser.add_argument("reads_1", help="FASTQ of the first mates")
    parser.add_argument("reads_2", help="FASTQ of the second mates")
    parser.add_argument("output", help="folder of the run")
    parser.add_argument("--workers", type=int, help="worker processes; default: one per four CPUs")
    arguments = parser.parse_args()

    with dlasm.local_cluster(arguments.workers) as client:
        run = dlasm.extend(
            arguments.contigs,
            reads=(arguments.reads_1, arguments.reads_2),
            output=arguments.output,
            client=client,
            resume=True,  # a script that was stopped goes on where it was
        )

    extended = run.summary()["extended"]
    print(f"{extended['appended_bases']:,} bases appended to {extended['ends']:,} contig ends")
    ends = run.extensions()
    grown = ends[ends.bases > 0]
    print(grown.groupby("outcome", observed=True).bases.describe())
    print(f"extended contigs: {run.path / 'extended.fasta'}")


if (
    __name__ == "__main__"
):  # workers import this file again: without this line they would start over
    main()
