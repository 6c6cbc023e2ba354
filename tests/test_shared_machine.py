"""A machine that others use too: who can listen in, what is trusted, what names may do."""

from __future__ import annotations

import csv
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from faults import ENVIRONMENT, external_cluster
from test_extend import fasta_records

import dlasm
from dlasm.errors import DlasmError, OutputExistsError

OPTIONS = {"workers": 0, "threads": 2}

HOSTILE = (
    "../../outside",
    "/etc/passwd",
    "a/b\\c",
    "quo\"te's",
    "<script>alert(1)</script>",
    "=1+1",
    "-rf",
    "+x",
    "@SUM(A1)",
    "$(touch${IFS}pwned)",
    "`touch${IFS}pwned`",
    ";touch${IFS}pwned;",
    "a|b&c>pwned",
    "%s%n%x",
    "x" * 5_000,
    "\x1b[31mred",
    "nul\x01l",
)


def extend(community, output, **options):
    given = {"contigs": community.contigs_path, "reads": community.reads_paths}
    return dlasm.extend(**{**given, **OPTIONS, "output": output, **options})


# -- who listens -----------------------------------------------------------------------------------


def test_a_cluster_of_this_machine_listens_on_the_loopback_address_only():
    with dlasm.local_cluster(2, 1, dashboard=True):
        me = psutil.Process()
        at = {
            connection.laddr.ip
            for process in [me, *me.children(recursive=True)]
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
    assert at == {"127.0.0.1"}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and its certificate, signed by itself, as Dask's configuration wants them."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=dlasm", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    settings = {f"{tls}CA_FILE": str(cert)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        settings |= {f"{tls}{role}__CERT": str(cert), f"{tls}{role}__KEY": str(key)}
    return settings


def test_a_scheduler_that_asks_for_certificates(community, whole, tmp_path, certificate):
    first, second = map(str, community.reads_paths)
    command = [sys.executable, "-m", "dlasm.cli", "extend", str(community.contigs_path)]
    command += ["-1", first, "-2", second, "--scheduler"]
    quiet = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    with external_cluster(1, "tls", certificate) as (address, _):
        secure = {**ENVIRONMENT, **certificate}
        done = subprocess.run([*command, address, "-o", tmp_path / "o"], env=secure, **quiet)
        bare = subprocess.run(
            [*command, address, "-o", tmp_path / "bare"], env=ENVIRONMENT, **quiet
        )
    assert done.returncode == 0, done.stderr
    extended = (whole.path / "extended.fasta").read_bytes()
    assert (tmp_path / "o" / "extended.fasta").read_bytes() == extended
    assert bare.returncode == 1
    assert re.fullmatch(
        r"(?s)Error: tls://\S+: .*certificates.*distributed\.comm\.tls.*", bare.stderr
    )
    assert "Traceback" not in bare.stderr
    assert not (tmp_path / "bare").exists()


# -- what is trusted -------------------------------------------------------------------------------


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def poison(path: Path, bomb: Bomb) -> None:
    """Put a pickle in the place of a file, in the form that the file has."""
    if path.suffix == ".npy":
        np.save(path, np.array([bomb], dtype=object), allow_pickle=True)
    elif path.suffix == ".npz":
        np.savez(path, about=np.array([bomb], dtype=object))
    elif path.name == "zarr.json" and '"codecs"' in path.read_text():
        text = path.read_text()
        for codec in re.findall(r'"name":\s*"(\w+)"', text):
            text = text.replace(f'"name": "{codec}"', '"name": "numcodecs.pickle"')
        path.write_text(text)
    else:
        path.write_bytes(pickle.dumps(bomb))


def test_nothing_in_the_folder_of_a_run_is_unpickled(community, tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # it works
    mark.unlink()

    # a run that was stopped, and one that is finished
    stopped, finished = tmp_path / "stopped", extend(community, tmp_path / "finished").path
    with monkeypatch.context() as patched:
        patched.setattr("dlasm.pipeline.finalise", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extend(community, stopped)
    poisoned = 0
    for run in (stopped, finished):
        files = [path for path in run.rglob("*") if path.is_file() and path.name != "lock"]
        assert len(files) > 10
        for number, file in enumerate(files):
            copy = tmp_path / f"{run.name}{number}"
            shutil.copytree(run, copy)
            poison(copy / file.relative_to(run), Bomb(mark))
            poisoned += 1
            with suppress(DlasmError):
                opened = dlasm.open_run(copy)
                opened.contigs()
                opened.extensions()
                opened.report()
                opened.evaluate(community.path / "genomes.fa")
            with suppress(DlasmError):
                extend(community, copy, resume=True)
            assert not mark.exists(), file
            shutil.rmtree(copy)
    assert poisoned > 40


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


# -- names -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(community, tmp_path_factory):
    """A run of contigs, reads and files with names that nobody would give in good faith."""
    folder = tmp_path_factory.mktemp("hostile") / "a b;$(touch pwned)<b>'\"&"
    folder.mkdir()
    contigs = folder / "-=contigs`touch pwned`.fa"
    records = list(fasta_records(community.contigs_path))
    names = [HOSTILE[i % len(HOSTILE)] + "." * (i // len(HOSTILE)) for i in range(len(records))]
    contigs.write_text(
        "".join(
            f">{name} depth=9\n{bases}\n" for name, (_, bases) in zip(names, records, strict=True)
        )
    )
    reads = []
    for path in community.reads_paths:
        reads.append(folder / f"<img src=x onerror=alert(1)>{path.name}")
        shutil.copy(path, reads[-1])
    before = set(folder.parent.rglob("*"))
    output = folder / "run $(touch pwned)"
    run = dlasm.extend(contigs, reads=tuple(reads), output=output, join="full", **OPTIONS)
    run.evaluate(community.path / "genomes.fa")
    new = set(folder.parent.rglob("*")) - before
    return run, names, new


def test_names_reach_no_paths(hostile):
    run, _, new = hostile
    assert all(path == run.path or run.path in path.parents for path in new)
    assert not list(run.path.parent.parent.rglob("pwned"))
    assert not Path("pwned").exists()
    assert not Path("outside").exists()


def test_names_come_out_as_they_went_in(hostile):
    run, names, _ = hostile
    headers = [header.split()[0] for header, _ in fasta_records(run.path / "extended.fasta")]
    assert headers == names
    assert run.contigs().contig.tolist() == names
    with open(run.path / "extensions.tsv", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert {len(row) for row in rows} == {8}
    assert [row[0] for row in rows[1::2]] == names
    with open(run.path / "joins.tsv", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert len({len(row) for row in rows}) == 1
    segments = [
        line.split("\t")[1]
        for line in (run.path / "graph.gfa").read_text().splitlines()
        if line.startswith("S\t")
    ]
    assert segments == names


def test_names_do_nothing_in_the_report(hostile):
    run, _, _ = hostile
    page = run.report().read_text()
    assert "<script" not in page.lower()
    assert "<img" not in page.lower()
    assert "onerror=alert(1)>" not in page


# -- files -----------------------------------------------------------------------------------------


PROGRAM = """
import os, sys, time
import dlasm.pipeline
from dlasm.cli import main

if __name__ == "__main__":
    def wait(*arguments, **options):
        print("now", flush=True)
        time.sleep(60)
    if os.environ.get("WAIT"):
        setattr(dlasm.pipeline, os.environ["WAIT"], wait)
    main(sys.argv[1:])
"""


def command(community, output, *more) -> list[str]:
    first, second = map(str, community.reads_paths)
    files = [str(community.contigs_path), "-1", first, "-2", second, "-o", str(output)]
    return [sys.executable, "-c", PROGRAM, "extend", *files, "--no-dashboard", *more]


@pytest.mark.parametrize("how", ["finished", "killed by the terminal", "failed"])
def test_temporary_files_are_private_and_removed(community, tmp_path, how):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**ENVIRONMENT, "TMPDIR": str(temporary)}
    more = ["--workers", "1"]
    if how == "failed":
        more += ["--depths", str(community.contigs_path)]
    if how == "killed by the terminal":
        environment["WAIT"] = "plan_partitions"
    before = os.umask(0)
    try:
        with subprocess.Popen(
            command(community, tmp_path / "o", *more),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process:
            if how == "killed by the terminal":
                assert process.stdout.readline() == b"now\n"
                modes = [path.stat().st_mode & 0o077 for path in temporary.iterdir()]
                os.killpg(process.pid, signal.SIGINT)
                assert modes == [0]
            process.wait(timeout=60)
    finally:
        os.umask(before)
    assert (process.returncode == 0) == (how == "finished")
    assert list(temporary.iterdir()) == []


def test_a_dead_run_keeps_no_lock(community, whole, tmp_path):
    output = tmp_path / "o"
    with subprocess.Popen(
        command(community, output, "--workers", "0"),
        env={**ENVIRONMENT, "WAIT": "plan_partitions"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout.readline() == b"now\n"
        for options in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(OutputExistsError, match="another dlasm run is writing here"):
                extend(community, output, **options)
        process.kill()
    run = extend(community, output, resume=True)
    extended = (whole.path / "extended.fasta").read_bytes()
    assert (run.path / "extended.fasta").read_bytes() == extended
