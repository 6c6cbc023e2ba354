"""The command line: what it prints, its exit statuses, and files as users have them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from conftest import shared_data

import dlasm
from dlasm.cli import main


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


def test_paths_are_printed_as_they_are(community, tmp_path):
    output = tmp_path / "x[red]y:smile:" / ("long" * 30)
    result = invoke(*extend_arguments(community), "-o", output)
    assert result.exit_code == 0
    assert f"\n{output}\n" in f"\n{result.stdout}"
    assert f"written: {output}/extended.fasta" in result.stdout
    assert f"\n{output}\n" in f"\n{invoke('inspect', output).stdout}"


def test_the_time_is_that_of_the_run(community, tmp_path, monkeypatch):
    seconds = iter([100.0, 161.5])
    monkeypatch.setattr("dlasm.state.time.perf_counter", lambda: next(seconds, 161.5))
    result = invoke(*extend_arguments(community), "-o", tmp_path / "o")
    assert "61.5 s, at most" in result.stdout


def test_an_insert_size_that_nothing_uses_is_not_shown(community, tmp_path):
    single = ["extend", str(community.contigs_path), "-r", str(community.reads_paths[0])]
    assert "insert size" not in invoke(*single, "-o", tmp_path / "o").stdout
    given = invoke(*single, "--insert", "300:20", "-o", tmp_path / "p").stdout
    assert "300 +- 20 (given)" in given
    assert "(measured)" in invoke(*extend_arguments(community), "-o", tmp_path / "q").stdout


def test_a_system_error_is_not_a_fault_of_dlasm(tmp_path, monkeypatch):
    def fail(path):
        raise PermissionError(13, "Permission denied", "run.json")

    monkeypatch.setattr("dlasm.state.read_state", fail)
    result = invoke("inspect", tmp_path)
    assert (result.exit_code, result.stderr) == (1, "Error: run.json: Permission denied\n")


def test_inspect_tells_of_a_run_that_is_to_be_replaced(community, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    arguments = [*extend_arguments(community), "-o", tmp_path / "o"]
    assert invoke(*arguments).exit_code == 0
    monkeypatch.setattr("dlasm.pipeline.plan_partitions", interrupt)
    assert invoke(*arguments, "--force").exit_code == 130
    assert ".previous" in invoke("inspect", tmp_path / "o").stdout
    assert invoke(*arguments, "--force", "--resume").exit_code == 2


def test_quiet_says_nothing(community, tmp_path):
    result = invoke(*extend_arguments(community), "-o", tmp_path / "o", "-q")
    assert (result.exit_code, result.output) == (0, "")


def test_dumps_by_the_command_line(tmp_path):
    dump = shared_data("arcticsynth", "candidates_k77.dat.gz")
    result = invoke("extend", "--candidates", dump, "-k", 77, "-o", tmp_path / "o")
    assert result.exit_code == 0
    assert "1,130 extended" in result.stdout
    assert "preset paper, k 77, least support 1: 0 ends cut by 0 bases" in result.stdout
    careful = ("extend", "--candidates", dump, "--preset", "careful", "-o", tmp_path / "c")
    result = invoke(*careful)
    assert result.exit_code == 0
    cut = json.loads((tmp_path / "c" / "summary.json").read_text())["cut"]
    assert f"preset careful, k 33, least support 2: {cut['ends']:,} ends cut" in result.stdout
    assert cut["ends"] > 500
    header, *rows = (tmp_path / "c" / "extensions.tsv").read_text().splitlines()
    assert header.split("\t")[-1] == "flags"
    assert {row.split("\t")[-1] for row in rows} <= {".", "repeat", "low_k", "repeat,low_k"}
    result = invoke(*careful[:-2], "-o", tmp_path / "d", "-k", 77, "--min-support", 1)
    assert result.exit_code == 0
    files = [(tmp_path / each / "extended.fasta").read_bytes() for each in ("o", "d")]
    assert files[0] == files[1]
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
    text = " ".join(invoke("extend", "--help").output.split())
    for default in (
        "[default: 3000",
        "careful; with --candidates paper",
        "33; with --candidates none",
        "[default: auto]",
        "613",
    ):
        assert default in text
    assert dlasm.__version__ in invoke("--version").output


@pytest.mark.parametrize("command", main.commands.values(), ids=lambda command: command.name)
def test_every_option_shows_its_default(command):
    context = click.Context(command, parent=click.Context(main, show_default=True))
    for option in command.params:
        if isinstance(option, click.Option) and not option.required:
            _, text = option.get_help_record(context)
            assert "[default: " in text, option.opts


@pytest.mark.parametrize("name", ["--bam", "--depths", "--paf", "--candidates"])
def test_a_file_that_counts_once_is_not_given_twice(tmp_path, name):
    result = invoke("extend", "c.fa", name, "a", name, "b", "-o", tmp_path / "o")
    assert result.exit_code == 2
    assert f"{name} is given 2 times; give it once" in result.stderr


def test_depth_must_be_a_number(tmp_path):
    result = invoke("simulate", tmp_path / "sim", "--depth", "nan")
    assert result.exit_code == 2
    assert "not a finite number" in result.stderr


def run_in_shell(arguments, redirection: str) -> subprocess.CompletedProcess:
    """Run a command in a shell of its own, with its streams somewhere else."""
    home = str(Path(dlasm.__file__).parents[1])
    command = shlex.join([sys.executable, "-m", "dlasm.cli", *map(str, arguments)])
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} {redirection}"],
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        (">/dev/full", "Warning: the table cannot be shown (No space left on device)"),
        ("| true", ""),
        ("2>&1 >/dev/null | true", ""),
        ("2>&-", ""),
        (">&- 2>&-", ""),
        (">/dev/full 2>/dev/full", ""),
    ],
)
def test_a_run_does_not_depend_on_who_reads_what_it_says(community, tmp_path, redirection, said):
    done = run_in_shell([*extend_arguments(community), "-o", tmp_path / "o"], redirection)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert json.loads((tmp_path / "o" / "run.json").read_text())["state"] == "finished"


def test_a_failure_shows_in_the_exit_status_even_if_nobody_reads(tmp_path):
    done = run_in_shell(["inspect", tmp_path], "2>&-")
    assert done.returncode == 1


def test_no_contigs_have_no_outcomes(tmp_path):
    contigs, reads = shared_data("quirks", "empty.fa"), shared_data("quirks", "crlf.fastq.gz")
    result = invoke("extend", contigs, "-r", reads, "-o", tmp_path / "o")
    assert "ends by outcome: there are none" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["-k", "20"],
        ["-k", "122"],
        ["--workers", "two"],
        ["--insert", "wide"],
        ["-1", "more.fq"],
        ["--bam", "also.bam"],
        ["--insert", "350:50", "--insert", "400:50"],
        ["-k", "33", "-k", "41"],
        ["--partition-size", "nan"],
        ["--partition-size", "inf"],
        ["--walk-limit", "0"],
        ["--min-support", "0"],
        ["--min-support", "256"],
        ["--preset", "bold"],
        ["--preset", "paper"],
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
