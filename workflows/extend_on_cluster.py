"""Extend contigs on a Dask cluster that is running: a script to copy and change.

Start one where the machines see the same files, for instance

    dask scheduler --preload dlasm.dashboard
    DLASM_THREADS=16 dask worker tcp://node1:8786 --nthreads 1
    dask worker tcp://node1:8786 --nthreads 1 --resources GPU=1    # sees a GPU

(a worker has one task at a time, with DLASM_THREADS threads inside), then

    python workflows/extend_on_cluster.py tcp://node1:8786 contigs.fa r1.fq.gz r2.fq.gz run/

The command line does the same: dlasm extend ... --scheduler tcp://node1:8786
"""

from __future__ import annotations

import argparse

import dlasm


def main() -> None:
    """Run the extension on the workers of a scheduler."""
    parser = argparse.ArgumentParser(
        description="Extend contigs on a Dask cluster that is running."
    )
    parser.add_argument("scheduler", help="its address, such as tcp://node1:8786")
    parser.add_argument("contigs", help="FASTA, plain or compressed")
    parser.add_argument("reads_1", help="FASTQ of the first mates")
    parser.add_argument("reads_2", help="FASTQ of the second mates")
    parser.add_argument("output", help="folder of the run, where all workers see it")
    arguments = parser.parse_args()

    with dlasm.connect(arguments.scheduler) as client:
        print(f"dashboard: {client.dashboard_link}")
        run = dlasm.extend(
            arguments.contigs,
            reads=(arguments.reads_1, arguments.reads_2),
            output=arguments.output,
            client=client,
            resume=True,  # a script that was stopped goes on where it was
        )

    summary = run.summary()
    print(f"{summary['extended']['appended_bases']:,} bases appended, by")
    for pool, done in summary["pools"].items():
        print(f"  {pool}: {done['contigs']:,} contigs in {done['seconds']:.1f} s of its workers")


if __name__ == "__main__":
    main()
