"""The folder of a run: what is kept, what is removed, and what a run that is gone cannot do."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dlasm
from dlasm.errors import OutputExistsError, ParameterError, ReadsError, ResourceError, StoreError
from dlasm.state import RunFolder
from dlasm.tasks import extend_task, recruit_task


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of a finished run."""
    shutil.copytree(whole.path, tmp_path / "o")
    return tmp_path / "o"


@pytest.fixture
def bad_reads(community, tmp_path):
    """Reads that end in the middle of a pair."""
    short = tmp_path / "short_2.fq"
    with gzip.open(community.reads_paths[1], "rb") as file:
        short.write_bytes(b"".join(file.readlines()[: 4 * 70]))
    return community.reads_paths[0], short


def prepare(path, **options):
    return RunFolder.prepare(path, options={}, inputs=[], command=["test"], **options)


def content(path):
    return {
        str(entry.relative_to(path)): entry.read_bytes()
        for entry in path.rglob("*")
        if entry.is_file() and entry.name not in ("dlasm.log", "lock")
    }


def interrupt(*arguments, **options):
    raise KeyboardInterrupt


# -- a task that outlives its run ------------------------------------------------------------------


def test_every_new_run_has_its_own_work_folder_and_a_resumed_one_keeps_it(tmp_path):
    names = []
    for options in ({}, {"resume": True}, {"force": True}):
        folder = prepare(tmp_path / "o", **options)
        names.append(folder.work.name)
        folder.close()
    assert names[0] == names[1] != names[2]
    assert [path.name for path in (tmp_path / "o").glob("work*")] == [names[2]]


def test_a_task_of_a_run_that_is_gone_makes_nothing(community, tmp_path, monkeypatch):
    output = tmp_path / "o"
    arguments = {"contigs": community.contigs_path, "reads": community.reads_paths}
    monkeypatch.setattr("dlasm.pipeline.finalise", interrupt)
    with pytest.raises(KeyboardInterrupt):
        dlasm.extend(**arguments, output=output)
    work = next(output.glob("work.*"))
    result = str(next(work.rglob("*.run")))
    shutil.rmtree(output)
    options = {"library": 0, "paired": True, "bound": 2000.0, "phred_offset": 33}
    with pytest.raises((OSError, StoreError)):
        recruit_task(str(work), str(work / "spool" / "0"), result, **options)
    with pytest.raises((OSError, StoreError)):
        extend_task(str(work), 0)
    assert not output.exists()


def test_a_result_written_after_its_folder_is_gone_brings_nothing_back(
    community, tmp_path, monkeypatch
):
    """The run is discarded while the task computes."""
    import dlasm.recruit as recruit
    from dlasm.io.fasta import read_contigs
    from dlasm.io.fastq import Library, ReadCounts, iter_batches
    from dlasm.work import write_batches, write_contigs

    work = tmp_path / "o" / "work"
    (work / "candidates").mkdir(parents=True)
    write_contigs(work / "contigs", [read_contigs(community.contigs_path)])
    library = Library("pairs", tuple(map(str, community.reads_paths)), 0)
    write_batches(work / "batch", iter_batches(library, counts=ReadCounts()))
    compute = recruit.recruit_batch

    def discard(*arguments, **options):
        result = compute(*arguments, **options)
        shutil.rmtree(tmp_path / "o")
        return result

    monkeypatch.setattr(recruit, "recruit_batch", discard)
    options = {"library": 0, "paired": True, "bound": 2000.0, "phred_offset": 33}
    with pytest.raises(FileNotFoundError):
        recruit_task(str(work), str(work / "batch"), str(work / "candidates" / "0.run"), **options)
    assert not (tmp_path / "o").exists()


def test_a_second_attempt_is_content_with_what_the_first_wrote(tmp_path, monkeypatch):
    """The first one writes its result and drops the batch while the second one begins."""
    result = tmp_path / "0.run"

    def first_ends(path):
        result.touch()
        raise StoreError(f"{path}: is gone")

    monkeypatch.setattr("dlasm.tasks.open_batches", first_ends)
    options = {"library": 0, "paired": True, "bound": 2000.0, "phred_offset": 33}
    done = recruit_task(str(tmp_path), str(tmp_path / "batch"), str(result), **options)
    assert done["reads"] == 0


# -- replacing a run -------------------------------------------------------------------------------


def test_bad_input_with_force_leaves_the_old_result(community, finished, bad_reads):
    before = content(finished)
    (finished / "notes.txt").write_text("mine")
    with pytest.raises(ReadsError, match="No result was written"):
        dlasm.extend(community.contigs_path, reads=bad_reads, output=finished, force=True)
    (finished / "notes.txt").unlink()
    assert content(finished) == before
    assert dlasm.open_run(finished).summary()


def test_the_old_result_is_kept_until_the_new_one_is_there(
    community, whole, finished, bad_reads, monkeypatch
):
    before = content(finished)
    arguments = {"reads": community.reads_paths, "output": finished}
    with monkeypatch.context() as patched:
        patched.setattr("dlasm.pipeline.plan_partitions", interrupt)
        for _ in range(2):  # what replaces the run may itself be replaced
            with pytest.raises(KeyboardInterrupt):
                dlasm.extend(community.contigs_path, **arguments, k=55, force=True)
            assert content(finished / ".previous") == before
    resumed = dlasm.extend(community.contigs_path, **arguments, k=55, resume=True)
    assert resumed.summary()["parameters"]["k"] == 55
    assert not list(finished.glob(".*"))


@pytest.mark.parametrize("moved", range(1, 7))
def test_a_kill_while_the_old_result_is_put_aside_loses_nothing(finished, tmp_path, moved):
    before = content(finished)
    child = os.fork()
    if not child:
        rename, calls = type(finished).rename, 0

        def killed(self, target):
            nonlocal calls
            calls += 1
            if calls == moved:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, target)

        type(finished).rename = killed
        prepare(finished, force=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    if moved > 2:  # run.json is the second
        with pytest.raises(StoreError, match="was interrupted"):
            dlasm.open_run(finished)
    with pytest.raises(dlasm.errors.OutputExistsError, match="holds a run already"):
        prepare(finished)
    assert content(finished) == before


def test_files_of_the_user_stay(finished):
    for name in ("notes.wip", ".notes.wip", ".mine", "work", "work.mine"):
        (finished / name).write_text("mine")
    left_over = finished / f".extended.fasta.{'0' * 32}.wip"
    left_over.touch()
    prepare(finished, force=True).close()
    for name in ("notes.wip", ".notes.wip", ".mine", "work", "work.mine"):
        assert (finished / name).read_text() == "mine"
    assert not left_over.exists()


def test_force_and_resume_together_are_refused(community, finished):
    before = content(finished)
    with pytest.raises(ParameterError, match="contradict"):
        dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=finished,
            force=True,
            resume=True,
        )
    assert content(finished) == before


def test_a_finished_run_outlasts_a_power_cut(community, tmp_path, monkeypatch):
    output = tmp_path / "o"
    synced: list[str] = []
    fsync = os.fsync

    def note(file):
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr("dlasm.atomic.os.fsync", note)
    dlasm.extend(community.contigs_path, reads=community.reads_paths, output=output)
    # written under temporary names, which end in the same name once that and ".wip" are cut off
    names = [re.sub(r"/\.([^/]+)\.[0-9a-f]{32}\.wip", r"/\1", name) for name in synced]
    last_state = max(i for i, name in enumerate(names) if name == str(output / "run.json"))
    before = set(names[:last_state])
    results = [str(path) for path in (output / "results.zarr").rglob("*")]
    assert len(results) > 30
    assert before >= {*results, str(output / "extended.fasta"), str(output / "extensions.tsv")}
    assert str(output) in before


# -- the system ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["/proc/dlasm/x", "{tmp}/file/x"])
def test_a_folder_that_cannot_be_made(community, tmp_path, where):
    (tmp_path / "file").touch()
    output = where.format(tmp=tmp_path)
    with pytest.raises(ResourceError, match=r"cannot be made or written \(.+\); choose another"):
        dlasm.extend(community.contigs_path, reads=community.reads_paths, output=output)


def test_a_failure_while_extending_leaves_no_half_store(community, whole, tmp_path, monkeypatch):
    arguments = {"contigs": community.contigs_path, "reads": community.reads_paths}
    output = tmp_path / "o"

    def fail(*_arguments):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("dlasm.store.write_partition", fail)
        with pytest.raises(ResourceError, match=r"--resume"):
            dlasm.extend(**arguments, output=output)
    assert not [entry for entry in output.iterdir() if "results.zarr" in entry.name]
    run = dlasm.extend(**arguments, output=output, resume=True)
    assert len(run.results) == community.contigs


def test_a_system_error_keeps_the_run(community, whole, tmp_path, monkeypatch):
    arguments = {"contigs": community.contigs_path, "reads": community.reads_paths}
    output = tmp_path / "o"

    def fail(path):
        raise OSError(24, "Too many open files", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("dlasm.work.open_run_file", fail)
        with pytest.raises(ResourceError, match=r"Too many open files.*--resume"):
            dlasm.extend(**arguments, output=output)
    assert list(output.glob("work.*/candidates/*/*.run"))
    run = dlasm.extend(**arguments, output=output, resume=True)
    assert content(run.path)["extended.fasta"] == content(whole.path)["extended.fasta"]


def test_input_that_the_system_could_not_read_is_not_bad_input(community, tmp_path, monkeypatch):
    output = tmp_path / "o"

    def fail(*arguments, **options):
        try:
            raise OSError(24, "Too many open files")
        except OSError as error:
            raise ReadsError("a.fq: cannot be read on") from error

    monkeypatch.setattr("dlasm.io.fastq.iter_batches", fail)
    with pytest.raises(ResourceError, match=r"a\.fq: .*Too many open files.*--resume"):
        dlasm.extend(community.contigs_path, reads=community.reads_paths, output=output)
    assert list(output.glob("work.*/contigs"))


# -- folders and files that are not as they should be ----------------------------------------------


def extend_again(community, output, **options):
    return dlasm.extend(
        community.contigs_path, reads=community.reads_paths, output=output, **options
    )


def test_a_finished_run_writes_again_what_is_missing(community, finished):
    before = content(finished)
    (finished / "extended.fasta").unlink()
    (finished / "extensions.tsv").unlink()
    extend_again(community, finished, resume=True)
    after = content(finished)
    assert after.keys() == before.keys()
    assert after["extended.fasta"] == before["extended.fasta"]
    assert after["extensions.tsv"] == before["extensions.tsv"]


@pytest.mark.parametrize("name", ["results.zarr", "summary.json"])
def test_a_finished_run_says_what_it_cannot_write_again(community, finished, name):
    if name.endswith(".zarr"):
        shutil.rmtree(finished / name)
    else:
        (finished / name).unlink()
    with pytest.raises(StoreError, match=f"{name}: is missing .* --force"):
        extend_again(community, finished, resume=True)
    extend_again(community, finished, force=True)
    assert (finished / name).exists()


JUNK = ["", "junk", "[]", "3", "{}", '{"dlasm_run_format": 1}', '{"state": "finished"}']


@pytest.mark.parametrize("text", JUNK)
def test_a_damaged_state_is_told_and_can_be_replaced(community, whole, finished, text):
    (finished / "run.json").write_text(text)
    for act in (dlasm.open_run, lambda path: extend_again(community, path, resume=True)):
        with pytest.raises(StoreError, match=r"run\.json.*--force"):
            act(finished)
    run = extend_again(community, finished, force=True)
    assert content(run.path)["extended.fasta"] == content(whole.path)["extended.fasta"]


def test_the_run_json_of_another_program_is_not_replaced(community, tmp_path):
    (tmp_path / "run.json").write_text('{"state": "finished"}')
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError, match=r"thesis\.txt"):
        extend_again(community, tmp_path, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "thesis.txt"]


def test_bad_input_leaves_an_empty_folder_and_a_link_as_they_were(community, bad_reads, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    for name in ("empty", "link"):
        with pytest.raises(ReadsError, match="No result was written"):
            dlasm.extend(community.contigs_path, reads=bad_reads, output=tmp_path / name)
        assert list((tmp_path / name).iterdir()) == []
    assert (tmp_path / "link").is_symlink()


def test_a_refused_folder_gets_no_lock(community, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError, match="holds no dlasm run"):
        extend_again(community, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("name", "size"),
    [("contigs/bases", 0), ("contigs/offsets", 17), ("contigs", None), ("job", None), ("", None)],
)
def test_damaged_work_is_told(community, tmp_path, monkeypatch, name, size):
    output = tmp_path / "o"
    with monkeypatch.context() as patched:
        patched.setattr("dlasm.pipeline.finalise", interrupt)
        with pytest.raises(KeyboardInterrupt):
            extend_again(community, output)
    (work,) = output.glob("work.*")
    if size is None:
        shutil.rmtree(work / name)
    else:
        os.truncate(work / name, size)
    with pytest.raises(StoreError, match="start again with --force"):
        extend_again(community, output, resume=True)
    extend_again(community, output, force=True)


@pytest.mark.parametrize(("limit", "said"), [(1, "cannot be written"), (2, "ulimit -f")])
def test_a_limit_on_file_sizes_is_told_as_such(community, tmp_path, limit, said):
    home = str(Path(dlasm.__file__).parents[1])
    first, second = map(str, community.reads_paths)
    arguments = ["extend", str(community.contigs_path), "-1", first, "-2", second, "-o", "o"]
    command = shlex.join([sys.executable, "-m", "dlasm.cli", *arguments])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f {limit}; exec {command}"],
        env={**os.environ, "PYTHONPATH": home},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "Logging error" not in done.stderr


def test_a_log_that_cannot_be_written_hides_nothing(capfd):
    from dlasm.pipeline import _log_to, log

    with _log_to(Path("/dev/full")):
        log.info("lost")
    assert capfd.readouterr().err == ""
