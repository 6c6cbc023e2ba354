"""The command line: what it prints, its exit statuses, and files as users have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import shared_data

import dlasm
from dlasm.cli import main
from dlasm.testing import simulate_community


@pytest.fixture(scope="module")
def community(tmp_path_factory):
    path = tmp_path_factory.mktemp("community") / "sim"
    return simulate_community(path, genomes=3, genome_length=10_000, seed=7)


def invoke(*arguments):
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def extend_arguments(community) -> list[str]:
    first, second = map(str, community.reads_paths)
    return ["extend", str(community.contigs_path), "-1", first, "-2", second]


def test_extend_then_inspect(community, tmp_path):
    output = tmp_path / "o"
    result = invoke(*extend_arguments(community), "-o", output)
    assert result.exit_code == 0
    assert "N50" in result.stdout
    assert "extended.fasta" in result.stdout
    assert "candidates: 3," in result.stderr
    summary = json.loads((output / "summary.json").read_text())
    assert summary["command"][0] == "dlasm"
    inspected = invoke("inspect", output)
    assert inspected.exit_code == 0
    assert "results/walk_values" in inspected.stdout
    assert json.loads(invoke("inspect", output, "--json").stdout) == summary


def test_quiet_says_nothing(community, tmp_path):
    result = invoke(*extend_arguments(community), "-o", tmp_path / "o", "-q")
    assert (result.exit_code, result.output) == (0, "")


def test_dumps_by_the_command_line(tmp_path):
    dump = shared_data("arcticsynth", "candidates_k77.dat.gz")
    result = invoke("extend", "--candidates", dump, "-k", 77, "-o", tmp_path / "o")
    assert result.exit_code == 0
    assert "1,130 extended" in result.stdout
    result = invoke("extend", "--candidates", dump, "-o", tmp_path / "p")
    assert result.exit_code == 2
    assert "need a k (-k)" in result.stderr


def test_simulate_then_extend(tmp_path):
    result = invoke("simulate", tmp_path / "sim", "--genomes", 2, "--genome-length", 5000)
    assert result.exit_code == 0
    assert "dlasm extend" in result.stdout
    again = invoke("simulate", tmp_path / "sim")
    assert again.exit_code == 1
    assert "already there" in again.stderr


def test_help_shows_defaults():
    for command in ("extend", "simulate", "inspect"):
        assert invoke(command, "--help").exit_code == 0
    text = invoke("extend", "--help").output
    for default in ("[default: 3000", "33; with --candidates none", "[default: auto]", "613"):
        assert default in text
    assert dlasm.__version__ in invoke("--version").output


@pytest.mark.parametrize(
    "arguments",
    [
        ["-k", "20"],
        ["-k", "122"],
        ["--workers", "two"],
        ["--insert", "wide"],
        ["-1", "more.fq"],
        ["--bam", "also.bam"],
        ["--walk-limit", "0"],
        ["--scheduler", "tcp://a:1", "--scheduler-file", "b.json"],
    ],
)
def test_usage_errors(community, tmp_path, arguments):
    result = invoke(*extend_arguments(community), "-o", tmp_path / "o", *arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr
    assert not (tmp_path / "o").exists()


QUIRKS = {
    "truncated": ["truncated_1.fastq.gz", "60"],
    "count_mismatch": ["count_mismatch_1.fastq.gz", "count_mismatch_2.fastq.gz", "100", "99"],
    "out_of_step": ["pair 11"],
    "filtered_apart": ["pair 4", "repair.sh"],
}


@pytest.mark.parametrize("name", QUIRKS)
def test_pairs_that_must_fail(tmp_path, name):
    reads = [shared_data("quirks", f"{name}_{mate}.fastq.gz") for mate in (1, 2)]
    contigs = shared_data("real", "N5_271", "contigs.fa")
    result = invoke("extend", contigs, "-1", reads[0], "-2", reads[1], "-o", tmp_path / "o")
    check_failure(result, tmp_path / "o", QUIRKS[name])


def check_failure(result, output: Path, words: list[str]) -> None:
    """Check for one line that says the cause, and that nothing was left behind."""
    assert result.exit_code == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert all(word in last for word in words)
    assert "Traceback" not in result.output
    assert not output.exists()


@pytest.mark.parametrize("name", ["invalid_record.fastq", "invalid_character.fastq"])
def test_single_reads_that_must_fail(tmp_path, name):
    contigs = shared_data("real", "N5_271", "contigs.fa")
    result = invoke("extend", contigs, "-r", shared_data("quirks", name), "-o", tmp_path / "o")
    check_failure(result, tmp_path / "o", [name])


def test_other_files_that_must_fail(tmp_path):
    reads = shared_data("quirks", "crlf.fastq.gz")
    duplicates = shared_data("quirks", "duplicate_ids.fa")
    result = invoke("extend", duplicates, "-r", reads, "-o", tmp_path / "o")
    check_failure(result, tmp_path / "o", ["duplicate_ids.fa", "c1"])
    dump = shared_data("quirks", "short_dump_line.dat")
    result = invoke("extend", "--candidates", dump, "-k", 77, "-o", tmp_path / "o")
    check_failure(result, tmp_path / "o", ["short_dump_line.dat"])
    result = invoke("extend", reads, "-r", reads, "-o", tmp_path / "o")
    check_failure(result, tmp_path / "o", ["crlf.fastq.gz"])
    result = invoke("extend", tmp_path / "no.fa", "-r", reads, "-o", tmp_path / "o")
    check_failure(result, tmp_path / "o", ["no.fa"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["-1", "multimember_1.fastq.gz", "-2", "multimember_2.fastq.gz"],
        ["-1", "names_underscore_1.fastq.gz", "-2", "names_underscore_2.fastq.gz"],
        ["-1", "ragged_1.fastq", "-2", "ragged_2.fastq"],
        ["-r", "crlf.fastq.gz"],
        ["--interleaved", "interleaved.fa.gz"],
        ["--interleaved", "interleaved.fa.bz2"],
        ["-r", "phred64.fq.gz", "--phred", "64"],
    ],
)
def test_reads_that_must_work(tmp_path, arguments):
    contigs = shared_data("real", "N5_271", "contigs.fa")
    given = [
        argument
        if argument.startswith("-") or argument == "64"
        else shared_data("quirks", argument)
        for argument in arguments
    ]
    result = invoke("extend", contigs, *given, "-o", tmp_path / "o")
    assert result.exit_code == 0, result.stderr
    assert "phred 64" not in result.stderr


def test_phred_64_is_noticed(tmp_path):
    contigs = shared_data("real", "N5_271", "contigs.fa")
    reads = shared_data("quirks", "phred64.fq.gz")
    result = invoke("extend", contigs, "-r", reads, "-o", tmp_path / "o", "-q")
    assert result.exit_code == 0
    assert "Warning" in result.stderr
    assert "--phred 64" in result.stderr


def test_contigs_that_must_pass_through(tmp_path):
    reads = shared_data("quirks", "crlf.fastq.gz")
    for name in ("empty.fa", "empty_and_short.fa"):
        result = invoke("extend", shared_data("quirks", name), "-r", reads, "-o", tmp_path / name)
        assert result.exit_code == 0, result.stderr
    text = (tmp_path / "empty_and_short.fa" / "extended.fasta").read_text()
    assert text.count(">") == 3


def test_an_unexpected_error_is_one_line(community, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("dlasm.pipeline.plan_partitions", fail)
    arguments = [*extend_arguments(community), "-o", tmp_path / "o"]
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert result.stderr.strip().endswith("ZeroDivisionError: by nothing")
    assert "Traceback" not in result.stderr
    assert "ZeroDivisionError" in (tmp_path / "o" / "dlasm.log").read_text()
    unfinished = invoke("inspect", tmp_path / "o")
    assert unfinished.exit_code == 0
    assert "not finished" in unfinished.stdout
    assert "candidates: done" in unfinished.stdout
    assert "Traceback" in invoke(*arguments, "--resume", "-v").stderr


def test_interrupt_leaves_a_run_to_resume(community, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    arguments = [*extend_arguments(community), "-o", tmp_path / "o"]
    with monkeypatch.context() as patched:
        patched.setattr("dlasm.pipeline.plan_partitions", interrupt)
        result = invoke(*arguments)
    assert result.exit_code == 130
    assert "--resume" in result.stderr
    resumed = invoke(*arguments, "--resume")
    assert resumed.exit_code == 0
    assert "candidates: taken over" in resumed.stderr


def test_inspect_of_something_else(tmp_path):
    result = invoke("inspect", tmp_path)
    assert result.exit_code == 1
    assert "run.json" in result.stderr


def test_a_small_run_is_quick(community, tmp_path):
    home = str(Path(dlasm.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home}
    command = [sys.executable, "-m", "dlasm.cli", *extend_arguments(community), "-o"]
    seconds = []
    for attempt in range(3):
        begin = time.perf_counter()
        subprocess.run(
            [*command, str(tmp_path / str(attempt))],
            check=True,
            capture_output=True,
            env=environment,
            cwd=tmp_path,
        )
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 3
