"""What is shown while a run goes on: bars on a terminal, the log, Dask's dashboard and report."""

from __future__ import annotations

import fcntl
import gzip
import os
import pty
import re
import struct
import sys
import termios
import threading
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

import dlasm
import dlasm.cli as cli
from dlasm.cluster import dashboard_hint, local_cluster
from dlasm.dashboard import progress_of
from dlasm.errors import ParameterError
from dlasm.io.fastq import Library, ReadCounts, iter_batches
from dlasm.progress import Progress


def extend_arguments(community, output, *more) -> list[str]:
    first, second = map(str, community.reads_paths)
    return [
        "extend",
        str(community.contigs_path),
        "-1",
        first,
        "-2",
        second,
        "-o",
        str(output),
        *more,
    ]


def on_a_terminal(arguments: list[str], columns: int) -> str:
    """Run the command on a terminal; returns what it drew, without colours."""
    home = str(Path(dlasm.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home, "TERM": "xterm"}
    process, terminal = pty.fork()
    if not process:
        os.execve(sys.executable, [sys.executable, "-m", "dlasm.cli", *arguments], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    drawn = b""
    try:
        while piece := os.read(terminal, 1 << 16):
            drawn += piece
    except OSError:  # what Linux says at the end
        pass
    os.close(terminal)
    assert os.waitpid(process, 0)[1] == 0, drawn.decode()
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", drawn.decode())


def test_a_bar_for_each_stage_on_a_terminal(community, tmp_path):
    drawn = on_a_terminal(extend_arguments(community, tmp_path / "o"), 80)
    last = drawn[drawn.rindex("contigs    ━") :]  # the bars as they were left
    for stage in ("candidates", "plan", "extend", "results", "report"):
        assert re.search(rf"^  {stage} +━+ ", last, re.MULTILINE), stage
    assert re.search(r"candidates +━+ 3,\d{3} reads +[\d,]+/s, \d+\.\d s", last)
    assert re.search(r"extend +━+ +\d+ contigs +[\d,]+/s, \d+\.\d s", last)


def test_a_bar_tells_rate_and_time_left():
    clock = [100.0]
    bars = cli._Bars()
    bars._started().get_time = lambda: clock[0]
    bars.stage("candidates", unit="reads")
    clock[0] += 10
    bars.advance(2_000)
    [task] = bars._started().tasks
    assert (task.fields["so_far"], task.fields["pace"]) == ("2,000 reads", "200/s")
    bars.expect(10_000)
    bars.advance(0)
    assert task.fields["so_far"] == "2,000 of about 10,000 reads"
    assert task.fields["pace"] == "200/s, 0:00:40 left"
    bars.stage("extend", 500, "contigs")
    assert (task.fields["so_far"], task.fields["pace"]) == ("2,000 reads", "200/s, 10.0 s")
    assert task.finished
    clock[0] += 1
    bars.advance(1)
    extend = bars._started().tasks[1]
    assert (extend.fields["so_far"], extend.fields["pace"]) == (
        "1 of 500 contigs",
        "1/s, 0:08:19 left",
    )
    bars.close()


@pytest.mark.parametrize("paired", [True, False])
def test_batches_know_how_much_of_the_files_was_read(community, tmp_path, paired):
    paths = (str(tmp_path / "1.fq"), str(tmp_path / "2.fq"))[: 1 + paired]
    for path, compressed in zip(paths, community.reads_paths, strict=False):
        Path(path).write_bytes(gzip.decompress(compressed.read_bytes()))
    library = Library("pairs" if paired else "single", paths, 0)
    counts = ReadCounts()
    positions = [
        batch.position
        for batch in iter_batches(library, counts=counts, batch_reads=500, piece_bytes=10_000)
    ]
    assert positions == sorted(positions)
    assert 0 < positions[0] < positions[-1] == sum(map(os.path.getsize, paths))


def test_reads_of_a_pipe_have_no_estimate(community, tmp_path):
    class Expecting(Progress):
        def expect(self, total):
            raise AssertionError(total)

    pipe = tmp_path / "reads.fq.gz"
    os.mkfifo(pipe)
    content = community.reads_paths[0].read_bytes()
    threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True).start()
    dlasm.extend(community.contigs_path, single=pipe, output=tmp_path / "o", progress=Expecting())


def test_verbose_shows_the_log(community, tmp_path):
    said = CliRunner().invoke(cli.main, extend_arguments(community, tmp_path / "o", "-v"))
    assert re.search(r"^\d\d:\d\d:\d\d extend cpu: partition 0 of bin", said.output, re.MULTILINE)
    quiet = CliRunner().invoke(cli.main, extend_arguments(community, tmp_path / "p", "-v", "-q"))
    assert quiet.output == ""


def test_help_has_headings(community):
    said = CliRunner().invoke(cli.main, ["extend", "--help"]).stdout
    headings = re.findall(r"^(\S.*):$", said, re.MULTILINE)
    assert headings[:3] == ["What goes in", "What comes out", "Assembly"]
    assert said.index("--bam") < said.index("What comes out:") < said.index("--resume")


# -- Dask's ----------------------------------------------------------------------------------------


def test_the_dashboard_has_a_page_of_dlasm(community, whole, tmp_path, capsys):
    pull_session = pytest.importorskip("bokeh.client").pull_session
    with local_cluster(1, 1, gpus="none") as client:
        run = dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=tmp_path / "o",
            client=client,
            performance_report=tmp_path / "report.html",
        )
        base = client.dashboard_link.removesuffix("/status")
        assert f"{base}/dlasm " in capsys.readouterr().out
        assert "/dlasm" not in dashboard_hint(client)
        with urllib.request.urlopen(f"{base}/dlasm") as page:
            assert page.status == 200
        session = pull_session(url=f"{base}/dlasm")
        sources = {source.name: source.data for source in session.document.select({"name": "cpu"})}
        session.close()
        spans = client.run_on_scheduler(
            lambda dask_scheduler: {
                span.name[-1] for span in dask_scheduler.extensions["spans"].spans.values()
            }
        )
        prefixes = client.run_on_scheduler(lambda dask_scheduler: set(dask_scheduler.task_prefixes))
    assert {"recruit", "extend"} <= spans
    assert {"recruit", "extend_cpu_bin3"} <= prefixes
    contigs = sources["cpu"]["contigs"]
    bins = run.summary()["bins"]
    assert contigs[-1] == bins["2"] + bins["3"]
    assert max(sources["cpu"]["kmers_per_second"]) > 0
    assert "Bokeh" in (tmp_path / "report.html").read_text()
    for name in ("extended.fasta", "extensions.tsv"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_performance_report_needs_workers_and_a_folder(community, tmp_path):
    options = {"reads": community.reads_paths, "output": tmp_path / "o"}
    with pytest.raises(ParameterError, match="--workers 1"):
        dlasm.extend(community.contigs_path, performance_report=tmp_path / "r.html", **options)
    for path in (tmp_path / "no" / "r.html", tmp_path):
        with pytest.raises(ParameterError, match="no performance report can be written"):
            dlasm.extend(community.contigs_path, performance_report=path, workers=1, **options)
    assert not (tmp_path / "o").exists()


def test_the_page_tells_the_latest_run():
    events = [
        (10.0, {"begin": "old", "waiting": {"2": 9, "3": 9}}),
        (11.0, {"pool": "cpu", "contigs": 99, "kmers": 1, "waiting": {"2": 8, "3": 9}}),
        (20.0, {"begin": "new", "waiting": {"2": 2, "3": 1}}),
        (22.0, {"pool": "gpu", "contigs": 5, "kmers": 1000, "waiting": {"2": 2, "3": 0}}),
        (24.0, {"pool": "cpu", "contigs": 7, "kmers": 400, "waiting": {"2": 1, "3": 0}}),
        (28.0, {"pool": "gpu", "contigs": 1, "kmers": 500, "waiting": {"2": 0, "3": 0}}),
    ]
    state = progress_of(events)
    assert (state["run"], state["waiting"]) == ("new", {"2": 0, "3": 0})
    assert state["pools"]["gpu"] == {
        "seconds": [0.0, 2.0, 8.0],
        "contigs": [0, 5, 6],
        "kmers_per_second": [0.0, 500.0, 100.0],
    }
    assert state["pools"]["cpu"]["kmers_per_second"] == [0.0, 100.0]
    assert progress_of([])["run"] == ""
