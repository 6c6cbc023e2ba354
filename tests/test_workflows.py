"""The workflow scripts run, as far as this machine has what they are for."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import ROOT

import dlasm

WORKFLOWS = ROOT / "workflows"
HOME = str(Path(dlasm.__file__).parents[1])


def run_script(*command, cwd, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": HOME, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def assert_same(path, whole) -> None:
    for name in ("extended.fasta", "extensions.tsv"):
        assert (Path(path) / name).read_bytes() == (whole.path / name).read_bytes()


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory) -> Path:
    """A folder for PATH, with the command dlasm of this Python."""
    folder = tmp_path_factory.mktemp("bin")
    write_program(folder / "dlasm", f'exec {sys.executable} -m dlasm.cli "$@"')
    return folder


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@contextmanager
def running_cluster(folder: Path):
    """A scheduler and a worker as `dask scheduler` and `dask worker` start them; its address."""
    environment = {**os.environ, "PYTHONPATH": HOME}
    file = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    options = {"env": environment, "cwd": folder, "start_new_session": True}
    with open(folder / "log", "w") as log:
        processes = [
            subprocess.Popen(
                [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address",
                 "127.0.0.1:0", "--preload", "dlasm.dashboard", "--scheduler-file", str(file)],
                stdout=log, stderr=log, **options,
            ),
            subprocess.Popen(
                [*dask, "worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny"],
                stdout=log, stderr=log, **options,
            ),
        ]  # fmt: skip
        try:
            for _ in range(300):
                if file.is_file() and file.stat().st_size:
                    break
                time.sleep(0.1)
            yield json.loads(file.read_text())["address"]
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def test_on_a_cluster_that_runs(community, whole, tmp_path):
    first, second = community.reads_paths
    with running_cluster(tmp_path) as address:
        done = run_script(
            sys.executable, WORKFLOWS / "extend_on_cluster.py", address,
            community.contigs_path, first, second, tmp_path / "o", cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert re.search(r"cpu: \d+ contigs", done.stdout)
        by_command = run_script(
            sys.executable, "-m", "dlasm.cli", "extend", community.contigs_path, "-1", first,
            "-2", second, "-o", tmp_path / "p", "--scheduler", address,
            "--performance-report", tmp_path / "report.html", cwd=tmp_path,
        )  # fmt: skip
        assert by_command.returncode == 0, by_command.stderr
        assert "ssh -L" in by_command.stderr
        assert "Bokeh" in (tmp_path / "report.html").read_text()
    assert_same(tmp_path / "o", whole)
    assert_same(tmp_path / "p", whole)


def test_several_samples(community, whole, tmp_path):
    first, second = community.reads_paths
    rows = [
        ("one", community.contigs_path, first, second),
        ("broken", community.contigs_path, first, tmp_path / "not there"),
        ("two", community.contigs_path, first, second),
    ]
    (tmp_path / "samples.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    script = [sys.executable, WORKFLOWS / "extend_samples.py", "samples.tsv", "runs"]
    done = run_script(*script, "--workers", 1, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "broken: " in done.stderr
    assert "not there" in done.stderr
    assert [line.split("\t")[0] for line in done.stdout.splitlines() if "\t" in line] == [
        "sample",
        "one",
        "two",
    ]
    for name in ("one", "two"):
        assert_same(tmp_path / "runs" / name, whole)
    shutil.copy(second, tmp_path / "not there")
    again = run_script(*script, "--workers", 1, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert_same(tmp_path / "runs" / "broken", whole)


# -- Slurm -----------------------------------------------------------------------------------------


def slurm_script(community, output, *more):
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not there")
    first, second = community.reads_paths
    return [
        sys.executable, WORKFLOWS / "extend_on_slurm.py", community.contigs_path, first, second,
        output, "--cores", 2, "--memory", "2GB", "--account", "ABC", "--queue", "normal", *more,
    ]  # fmt: skip


def test_jobs_of_slurm(community, tmp_path):
    more = ["--cpu-jobs", 1, "--gpu-jobs", 1, "--gpu-queue", "gpu", "--show"]
    done = run_script(*slurm_script(community, tmp_path / "o", *more), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    cpu, gpu = re.split(r"(?=#!/usr/bin/env bash)", done.stdout)[1:]
    for job, queue in ((cpu, "normal"), (gpu, "gpu")):
        for line in (f"-p {queue}", "-A ABC", "-n 1", "--cpus-per-task=2", "--mem=2G"):
            assert f"#SBATCH {line}\n" in job
        assert "export DLASM_THREADS=2\n" in job
        assert "--nthreads 1 " in job
    assert "--name cpu-0 " in cpu
    assert "GPU=1" not in cpu
    assert "--gres" not in cpu
    assert "#SBATCH --gres=gpu:1\n" in gpu
    assert "--resources GPU=1" in gpu


def test_jobs_of_slurm_do_the_work(community, whole, tmp_path, bin_folder):
    """With an sbatch that runs jobs here, and a GPU engine that is the CPU's."""
    programs = tmp_path / "bin"
    shutil.copytree(bin_folder, programs)
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    write_program(
        programs / "sbatch",
        f'number=$(mktemp -u {jobs}/1XXXXXX | tr -dc 0-9)$$; cp "${{@: -1}}" {jobs}/$number.sh\n'
        f"setsid bash {jobs}/$number.sh >{jobs}/$number.log 2>&1 </dev/null &\n"
        f"echo $! >{jobs}/$number.pid; echo Submitted batch job $number",
    )
    write_program(
        programs / "scancel",
        f'for each in "$@"; do kill -- -$(cat {jobs}/$each.pid); echo $each >>{jobs}/ended; done',
    )
    done = run_script(
        *slurm_script(community, tmp_path / "o", "--cpu-jobs", 1, "--gpu-jobs", 1),
        cwd=tmp_path,
        PATH=f"{programs}:{os.environ['PATH']}",
        DASK_DISTRIBUTED__WORKER__PRELOAD=json.dumps([str(ROOT / "tests" / "fake_gpu.py")]),
    )
    assert done.returncode == 0, done.stderr
    assert "bases appended" in done.stdout
    assert_same(tmp_path / "o", whole)
    assert len(list(jobs.glob("*.sh"))) == 2
    assert len((jobs / "ended").read_text().split()) == 2


# -- Snakemake and Nextflow ------------------------------------------------------------------------


@pytest.fixture
def samples(community, tmp_path) -> Path:
    """A folder with the samples of ``snakemake/config.yaml``."""
    gut = tmp_path / "gut"
    gut.mkdir()
    shutil.copy(community.contigs_path, gut / "contigs.fa")
    for number, path in enumerate(community.reads_paths, 1):
        shutil.copy(path, gut / f"reads_{number}.fq.gz")
    return tmp_path


def test_snakemake(samples, whole, bin_folder):
    snakemake = shutil.which("snakemake")
    if snakemake is None:
        pytest.skip("snakemake is not there")
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(WORKFLOWS / "snakemake" / name, samples)
    path = f"{bin_folder}:{os.environ['PATH']}"
    done = run_script(snakemake, "--cores", 2, cwd=samples, PATH=path)
    assert done.returncode == 0, done.stderr
    assert_same(samples / "runs" / "gut", whole)
    again = run_script(snakemake, "--cores", 2, cwd=samples, PATH=path)
    assert "Nothing to be done" in again.stdout + again.stderr


def commands_of(text: str, values: dict[str, str]) -> str:
    """Fill in the places of a rule or process, all of which must be known."""
    return re.sub(r"(?<!\\)\$?\{([^{}]+)\}", lambda place: values[place[1]], text)


def test_the_command_of_the_snakefile(samples, whole, bin_folder):
    text = (WORKFLOWS / "snakemake" / "Snakefile").read_text()
    command = "".join(re.findall(r'"(.*?)"\n', text[text.index("    shell:") :] + "\n"))
    values = {
        "input.contigs:q": "gut/contigs.fa",
        "input.reads_1:q": "gut/reads_1.fq.gz",
        "input.reads_2:q": "gut/reads_2.fq.gz",
        "params.run:q": "runs/gut",
        "threads": "2",
        "resources.mem_mb": "4000",
        "params.options": "-q",
    }
    (samples / "runs" / "gut").mkdir(parents=True)  # as snakemake does
    done = run_script(
        "bash", "-c", commands_of(command, values), cwd=samples,
        PATH=f"{bin_folder}:{os.environ['PATH']}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_same(samples / "runs" / "gut", whole)


def test_the_command_of_the_nextflow_process(samples, whole, bin_folder):
    text = (WORKFLOWS / "nextflow" / "main.nf").read_text()
    for opening, closing in ("{}", "()"):
        assert text.count(opening) == text.count(closing)
    command = text.split('"""')[1].replace("\\\\\n", "\\\n")
    values = {
        "sample": "gut_run",
        "contigs": "gut/contigs.fa",
        "reads_1": "gut/reads_1.fq.gz",
        "reads_2": "gut/reads_2.fq.gz",
        "task.cpus": "2",
        "task.memory.toMega()": "4000",
        "params.options": "-q",
    }
    done = run_script(
        "bash", "-c", commands_of(command, values), cwd=samples,
        PATH=f"{bin_folder}:{os.environ['PATH']}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert_same(samples / "gut_run", whole)
    for output in re.findall(r'path\("?\$\{sample\}/([\w.]+)|path "\$\{sample\}/([\w.]+)', text):
        assert (samples / "gut_run" / "".join(output)).is_file()
