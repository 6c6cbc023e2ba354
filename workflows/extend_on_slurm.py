r"""Extend contigs on a Slurm cluster: CPU jobs and GPU jobs, one Dask scheduler.

Needs dask-jobqueue (pip install dask-jobqueue). Run it where sbatch is, in a session that lasts
(tmux), or as a small job of its own; the scheduler is in this process and the workers are jobs:

    python workflows/extend_on_slurm.py contigs.fa r1.fq.gz r2.fq.gz run/ \
        --cpu-jobs 4 --gpu-jobs 2 --account ABC123 --queue normal --gpu-queue gpu

With --show it prints what it would submit. Work begins with the first job that starts, and jobs
that start later join in; a script that was stopped goes on when it is started again.
"""

from __future__ import annotations

import argparse
from typing import Any

from dask.distributed import Client, Scheduler, SpecCluster
from dask_jobqueue.slurm import SLURMJob

import dlasm


def job_options(arguments: argparse.Namespace, *, gpu: bool) -> dict[str, Any]:
    """Options of the jobs of a kind, each of which is a worker."""
    return {
        "job_name": "dlasm-gpu" if gpu else "dlasm-cpu",
        # one task at a time, with native threads inside
        "cores": 1,
        "processes": 1,
        "job_cpu": arguments.cores,
        "job_script_prologue": [f"export DLASM_THREADS={arguments.cores}"],
        "memory": arguments.memory,
        "walltime": arguments.walltime,
        "account": arguments.account,
        "queue": (arguments.gpu_queue if gpu else None) or arguments.queue,
        # dlasm knows GPU workers by this resource; Slurm shows each job its own GPU
        "job_extra_directives": ["--gres=gpu:1"] if gpu else [],
        "worker_extra_args": ["--resources", "GPU=1"] if gpu else [],
    }


def main() -> None:
    """Submit the jobs, run the extension on them, and end them."""
    parser = argparse.ArgumentParser(description="Extend contigs on a Slurm cluster.")
    parser.add_argument("contigs", help="FASTA, plain or compressed")
    parser.add_argument("reads_1", help="FASTQ of the first mates")
    parser.add_argument("reads_2", help="FASTQ of the second mates")
    parser.add_argument("output", help="folder of the run, on a file system that all nodes share")
    parser.add_argument("--cpu-jobs", type=int, default=2, help="default: 2")
    parser.add_argument("--gpu-jobs", type=int, default=0, help="of a GPU each; default: 0")
    parser.add_argument("--cores", type=int, default=16, help="of each job; default: 16")
    parser.add_argument("--memory", default="32GB", help="of each job; default: 32GB")
    parser.add_argument("--walltime", default="04:00:00", help="of each job; default: 04:00:00")
    parser.add_argument("--account", help="what pays for the jobs")
    parser.add_argument("--queue", help="partition of Slurm")
    parser.add_argument("--gpu-queue", help="partition of Slurm for GPU jobs, if another")
    parser.add_argument("--show", action="store_true", help="print the jobs; submit nothing")
    arguments = parser.parse_args()

    kinds = {"cpu": arguments.cpu_jobs, "gpu": arguments.gpu_jobs}
    workers = {
        f"{kind}-{number}": {
            "cls": SLURMJob,
            "options": job_options(arguments, gpu=kind == "gpu"),
        }
        for kind, jobs in kinds.items()
        for number in range(jobs)
    }
    if arguments.show:
        for name, worker in workers.items():
            print(SLURMJob("tcp://SCHEDULER:8786", name=name, **worker["options"]).job_script())
        return

    scheduler = {
        "cls": Scheduler,
        # add "interface": "ib0" or the like if the nodes reach this one through another network
        "options": {"dashboard_address": ":8787", "preload": ["dlasm.dashboard"]},
    }
    with SpecCluster(workers, scheduler) as cluster, Client(cluster) as client:
        print(f"dashboard: {client.dashboard_link}\nwaiting for the first job to start")
        client.wait_for_workers(1)
        run = dlasm.extend(
            arguments.contigs,
            reads=(arguments.reads_1, arguments.reads_2),
            output=arguments.output,
            client=client,
            resume=True,
        )
    extended = run.summary()["extended"]
    print(f"{extended['appended_bases']:,} bases appended to {extended['ends']:,} contig ends")


if __name__ == "__main__":
    main()
