"""Disks and memory that run out in any stage, and disks that turn read-only.

Each stops the run with what to do, leaves nothing that looks whole but is not, and the run is
continued to the same bytes once there is room.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import ENVIRONMENT, STAGES
from test_faults import (
    assert_nothing_half,
    assert_same,
    extend,
    moments,
    start,
    unharmed,
)

from dlasm.errors import ResourceError

__all__ = ["unharmed"]  # a fixture

MEMORY = Path("/sys/fs/cgroup/memory")


def mount(place: Path, *more: str | Path) -> None:
    """Mount a file system, or skip the test, saying why it cannot be."""
    place.mkdir()
    command = ["mount", *more, place]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")


def set_quota(place: Path) -> Path:
    """Make a folder with a quota of 32 MB, on a larger file system that is mounted here."""
    make = shutil.which("mkfs.btrfs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if make is None:
        pytest.skip("btrfs-progs, which sets a quota, is not installed")
    image = place.with_name("image")
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run([make, "-q", image], check=True)
    mount(place, "-o", "loop", image)
    folder = place / "mine"
    for command in (
        ["quota", "enable", place],
        ["subvolume", "create", folder],
        ["qgroup", "limit", "32M", folder],
    ):
        subprocess.run(["btrfs", *command], check=True, capture_output=True)
    return folder


@pytest.fixture
def disk(request, tmp_path) -> Iterator[Path]:
    """A file system of 32 MB of its own, or a folder with such a quota."""
    place = tmp_path / "disk"
    try:
        if "how" in request.fixturenames and request.getfixturevalue("how") == "quota":
            yield set_quota(place)
        else:
            mount(place, "-t", "tmpfs", "-o", "size=32m", "tmpfs")
            yield place
    finally:
        if place.is_mount():
            subprocess.run(["umount", "-l", place], check=True)


def check(how: str, stage: str, calls: int, community, whole, disk: Path, number: int) -> bool:
    """Let something run out at a moment of a stage, and continue; whether that stopped the run."""
    output = disk / str(number)
    harm = {"stage": stage, "calls": calls, "victim": how, "pid": str(disk)}
    stuck = None
    try:
        done = start(community, output, **harm)
    except subprocess.TimeoutExpired as error:
        stuck = error
    if stuck is not None:  # Python waits for a thread that it had no memory to begin
        assert how == "address space"
        assert b"Exception ignored in thread started by" in (stuck.stderr or b"")
        print("Python hung")
        assert_nothing_half(output, whole)
        assert_same(extend(community, output, workers=0, resume=True), whole)
        return True
    stopped = done.returncode != 0
    if stopped:
        expected = {
            "disk": "no space is left on this disk",
            "quota": "no space is left on this disk, or of your quota",
            "address space": "memory",
        }[how]
        said = [line for line in done.stderr.splitlines() if line.startswith("dlasm.errors.")]
        if how == "address space" and done.returncode == -signal.SIGABRT:
            print("Python or the C library ended it")  # they had none left to say why
        else:
            assert len(said) == 1, done.stderr
            assert "--resume" in said[0]
            assert expected in said[0], done.stderr
        assert_nothing_half(output, whole)
    (disk / "filler").unlink(missing_ok=True)
    assert_same(extend(community, output, workers=0, resume=True), whole)
    return stopped


@pytest.mark.parametrize(("how", "stage"), [("disk", "extend"), ("quota", "plan")])
def test_what_runs_out_is_told_and_the_run_goes_on_later(community, unharmed, disk, how, stage):
    whole, counts = unharmed
    assert check(how, stage, counts[stage] // 3, community, whole, disk, 0)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("how", ["disk", "quota", "address space"])
def test_what_runs_out_in_any_stage(community, unharmed, disk, how, stage):
    whole, counts = unharmed
    stopped = 0
    for number, calls in enumerate(moments(how, stage, counts)):
        stopped += check(how, stage, calls, community, whole, disk, number)
        subprocess.run(["rm", "-r", disk / str(number)], check=True)
    print(f"{how}, {stage}: {stopped} stopped")
    assert stopped or how == "address space"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_limit_of_memory_that_the_kernel_enforces(community, unharmed, tmp_path):
    group = MEMORY / f"dlasm-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    limits = []
    try:
        for number, limit in enumerate(range(20, 160, 4)):
            (group / "memory.limit_in_bytes").write_text(f"{limit}M")
            output = tmp_path / str(number)
            done = start(community, output, cgroup=str(group / "cgroup.procs"))
            assert done.returncode in (0, -signal.SIGKILL), done.stderr
            limits.append(done.returncode)
            if done.returncode and output.exists():
                assert_nothing_half(output, unharmed[0])
            assert_same(extend(community, output, workers=0, resume=True), unharmed[0])
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()
    print(f"{limits.count(-signal.SIGKILL)} of {len(limits)} killed")
    assert set(limits) == {0, -signal.SIGKILL}


def remounted(disk: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", disk], check=True)


@pytest.mark.parametrize("stage", STAGES)
def test_a_disk_that_has_become_read_only(community, unharmed, disk, stage):
    """It is told when the run is to be continued there, which changes nothing."""
    whole, counts = unharmed
    output = disk / "o"
    about = {"stage": stage, "calls": counts[stage] // 2, "victim": "run"}
    assert start(community, output, **about).returncode == -signal.SIGKILL
    before = {path: path.stat().st_mtime_ns for path in disk.rglob("*")}
    remounted(disk, "ro")
    with pytest.raises(ResourceError, match=r"/o: .*Read-only file system"):
        extend(community, output, workers=0, resume=True)
    with pytest.raises(ResourceError, match="Read-only file system"):
        extend(community, disk / "new", workers=0)
    remounted(disk, "rw")
    assert {path: path.stat().st_mtime_ns for path in disk.rglob("*")} == before
    assert_same(extend(community, output, workers=0, resume=True), whole)


def test_a_folder_that_may_not_be_written(community, tmp_path):
    drop = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    if drop and shutil.which(drop[0]) is None:
        pytest.skip("the superuser may write everywhere, and setpriv is not installed")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    first, second = map(str, community.reads_paths)
    command = [sys.executable, "-m", "dlasm.cli", "extend", str(community.contigs_path)]
    command += ["-1", first, "-2", second, "-o", str(closed / "run"), "--workers", "0"]
    done = subprocess.run(
        [*drop, *command], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {closed / 'run'}")
    assert "Permission denied" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(closed.iterdir()) == []
