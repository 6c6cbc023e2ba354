"""The folder of a run: who may write in it, what it was made from, and how far it came.

``run.json`` holds the state. It is replaced as a whole at every step, and says ``finished`` only
after everything else is in place, so a run that is killed at any moment can go on.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dlasm._version import __version__
from dlasm.atomic import remove_tree, sync_folder, temporary_of, write_json
from dlasm.errors import (
    DlasmError,
    InputError,
    OutputExistsError,
    ResourceError,
    ResumeError,
    StoreError,
)
from dlasm.work import read_json

__all__ = ["RUN_FORMAT", "RunFolder", "content_difference", "identify_input", "read_state"]

RUN_FORMAT = 1
"""Version of the layout of a run folder; another one is refused."""

WHOLE_HASH_BYTES = 64 << 20
"""Files up to this size, which is what the samples of a larger one hold, are hashed whole."""

PIECE_BYTES = 1 << 20
SAMPLES = 64

OWN_FILES = frozenset(
    {
        "run.json",
        "results.zarr",
        "extended.fasta",
        "extensions.tsv",
        "summary.json",
        "evaluation.json",
        "report.html",
        "joins.tsv",
        "joined.fasta",
        "joined.agp",
        "graph.gfa",
        "rounds",
    }
)
"""What dlasm writes in a run folder, beside the lock, the log and the folder of the work."""

PREVIOUS = ".previous"
"""Where a finished run that is being replaced waits until the new one is finished, too."""

_WORK = re.compile(r"work\.[0-9a-f]{32}")
_REMOVED = re.compile(r"\.removed\.[0-9a-f]{32}")


def _not_begun() -> dict[str, Any]:
    """State of a run that has yet to begin."""
    return {"state": "running", "stages": {}, "work": f"work.{uuid.uuid4().hex}"}


def identify_input(
    role: str, path: str | os.PathLike[str], error: type[InputError] = InputError
) -> dict[str, Any]:
    """Say what an input file is, well enough to notice that it changed.

    Parameters
    ----------
    role : str
        What the file is to the run, for messages.
    path : path-like
        The file.
    error : type
        What to raise.

    Returns
    -------
    dict
        ``role``, ``path``, and ``size`` (bytes) with ``blake2b`` of all bytes up to 64 MiB: a
        hash of hashes of pieces of 1 MiB, which threads make; of larger files ``sampled``, that of
        64 such pieces spread over the file, and ``mtime_ns``. A pipe has no identity: ``pipe`` is
        true.

    Raises
    ------
    InputError
        If the file is missing, a directory or not readable.
    """
    path = os.fspath(path)
    about: dict[str, Any] = {"role": role, "path": path}
    try:
        if os.path.isdir(path):
            raise error(f"{path}: is a directory, and {role} must be a file")
        if not os.path.isfile(path):
            os.stat(path)
            return {**about, "pipe": True}
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            digest = hashlib.blake2b(digest_size=16)
            about["size"] = status.st_size
            is_small = status.st_size <= WHOLE_HASH_BYTES
            pieces: Sequence[int]
            if is_small:
                pieces = range(0, status.st_size, PIECE_BYTES)
            else:
                last = status.st_size - PIECE_BYTES
                pieces = [last * sample // (SAMPLES - 1) for sample in range(SAMPLES)]
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
                for hashed in threads.map(partial(_hash_piece, file.fileno()), pieces):
                    digest.update(hashed)
            about["blake2b" if is_small else "sampled"] = digest.hexdigest()
            if not is_small:
                about["mtime_ns"] = status.st_mtime_ns
    except OSError as cause:
        raise error(
            f"{path}: cannot be read as {role} ({cause.strerror or cause}); check the name and "
            "the permissions"
        ) from cause
    return about


def _hash_piece(file: int, begin: int) -> bytes:
    """Hash a piece of an open file."""
    return hashlib.blake2b(os.pread(file, PIECE_BYTES, begin), digest_size=16).digest()


class RunFolder:
    """A run's folder, locked while this object is open.

    Attributes
    ----------
    path, work : Path
        The folder, and the one below it that is removed at the end. Its name is this run's alone: a
        task that outlives the run must not write into the next one in the same folder.
    state : dict
        What ``run.json`` says.
    resumed : bool
        Whether an earlier attempt's state was taken over.
    begun : float
        When this attempt began, as :func:`time.perf_counter` has it.
    """

    def __init__(
        self,
        path: Path,
        state: dict[str, Any],
        lock: int,
        *,
        resumed: bool,
        removable: bool = False,
    ) -> None:
        self.path = path
        self.work = path / state["work"]
        self.state = state
        self.resumed = resumed
        self.begun = time.perf_counter()
        self._lock = lock
        self._removable = removable

    @classmethod
    def prepare(
        cls,
        path: str | os.PathLike[str],
        *,
        options: Mapping[str, Any],
        inputs: Sequence[Mapping[str, Any]],
        command: Sequence[str],
        force: bool = False,
        resume: bool = False,
    ) -> RunFolder:
        """Make or take over the folder ``path`` and lock it.

        Parameters
        ----------
        path : path-like
            The folder; it may be there if it is empty.
        options : mapping
            Options that can change the result, JSON values.
        inputs : sequence of mapping
            From :func:`identify_input`.
        command : sequence of str
            What was run, for the record.
        force : bool
            Replace an earlier run; a finished one is kept aside until this one is finished.
        resume : bool
            Go on with an earlier run, if there is one. Not with ``force``.

        Raises
        ------
        OutputExistsError
            If something is there and neither ``force`` nor ``resume`` was given, another process
            writes it, or it is not a run and so is not to be removed.
        ResumeError
            If the earlier run had other options, inputs or another version.
        ResourceError
            If the folder cannot be made or written.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise OutputExistsError(f"{path}: is a file; choose another output folder")
        fresh = {
            "dlasm_run_format": RUN_FORMAT,
            "version": __version__,
            "command": list(command),
            "started": _now(),
            "options": dict(options),
            "inputs": [dict(about) for about in inputs],
            **_not_begun(),
        }
        was_there = path.exists()
        had_lock = (path / "lock").exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
        except OutputExistsError:
            raise
        except OSError as error:
            raise ResourceError(
                f"{path}: this folder cannot be made or written ({error.strerror or error}); "
                "choose another output folder"
            ) from error
        try:
            _restore_previous(path)
            found = {entry.name for entry in path.iterdir() if not _is_left_over(entry.name)}
            found -= {"lock", "dlasm.log"}
            if not found:
                resume = force = False
            elif "run.json" not in found:
                raise OutputExistsError(
                    f"{path}: is not empty and holds no dlasm run; choose another output folder"
                )
            elif not force and not resume:
                raise OutputExistsError(
                    f"{path}: holds a run already; continue it with --resume, replace it with "
                    "--force, or choose another output folder"
                )
            if resume:
                state = _read_whole(path)
                _check_same(path, state, fresh)
                _remove_left_over(path)
                return cls(path, state, lock, resumed=True)
            if force and "dlasm_run_format" not in _read_if_whole(path):
                others = sorted(name for name in found if not _is_own(name))
                if others:
                    raise OutputExistsError(
                        f"{path}: run.json is damaged or not dlasm's, and there is also "
                        f"{others[0]}, which is not; choose another output folder"
                    )
            if force and _read_if_whole(path).get("state") == "finished":
                _put_aside(path)
            elif force:
                _remove_run(path)
            _remove_left_over(path)
            # an empty folder that the user made stays, should the input turn out unusable
            removable = (bool(found) or not was_there) and not path.is_symlink()
            folder = cls(path, fresh, lock, resumed=False, removable=removable)
            folder.save()
            folder.work.mkdir()
            return folder
        except BaseException as error:
            if not had_lock:
                (path / "lock").unlink(missing_ok=True)
            os.close(lock)
            if not was_there:
                with suppress(OSError):  # what was begun stays
                    path.rmdir()
            if isinstance(error, OSError) and not isinstance(error, DlasmError):
                raise ResourceError(
                    f"{path}: this folder cannot be written ({error.strerror or error}); put that "
                    "right, or choose another output folder"
                ) from error
            raise

    def save(self) -> None:
        """Write the state."""
        write_json(self.path / "run.json", self.state)

    def stage(self, name: str) -> dict[str, Any] | None:
        """Return what a finished stage left in the state, None if it is not finished."""
        return self.state["stages"].get(name)

    def finish_stage(self, name: str, about: Mapping[str, Any]) -> None:
        """Record that a stage is finished."""
        self.state["stages"][name] = dict(about)
        self.save()

    def finish(self) -> None:
        """Record that the run is finished, then drop what only an unfinished one needs."""
        sync_folder(self.path)
        self.state["state"] = "finished"
        self.save()
        remove_tree(self.work)
        remove_tree(self.path / PREVIOUS)
        _remove_left_over(self.path)

    def discard(self) -> None:
        """Remove everything that the run wrote, and put back what it was to replace."""
        _remove_run(self.path)
        if _restore_previous(self.path):
            return
        (self.path / "dlasm.log").unlink(missing_ok=True)
        (self.path / "lock").unlink(missing_ok=True)
        if not self._removable:
            return
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EBUSY, errno.ENOENT):
                raise

    def close(self) -> None:
        """Give up the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _now() -> str:
    """Time of day for the record."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _lock(path: Path) -> int:
    """Lock a folder for this process; the system drops the lock when the process ends."""
    while True:
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise OutputExistsError(
                f"{path}: another dlasm run is writing here; wait for it, or choose another "
                "output folder"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                os.close(lock)
                raise
            return lock  # a file system without locks
        try:
            same = os.stat(path / "lock").st_ino == os.fstat(lock).st_ino
        except FileNotFoundError:
            same = False
        if same:
            return lock
        os.close(lock)  # the run that held it removed it


def _is_own(name: str) -> bool:
    """Whether a name in a run folder is one of dlasm's; what is not stays where it is."""
    return name in OWN_FILES or _WORK.fullmatch(name) is not None


def _is_left_over(name: str) -> bool:
    """Whether a name in a run folder is what an attempt that was killed left half done."""
    original = temporary_of(name)
    return _REMOVED.fullmatch(name) is not None or (
        original is not None and (original == PREVIOUS or _is_own(original))
    )


def _remove_left_over(path: Path) -> None:
    """Remove what attempts that were killed left half done."""
    results = path / "results.zarr"  # joins are added to it
    inside = results.iterdir() if results.is_dir() else ()
    for entry in [*path.iterdir(), *(each for each in inside if temporary_of(each.name))]:
        if _is_left_over(entry.name) or entry.parent == results:
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def _remove_run(path: Path) -> None:
    """Remove a run's files; what is left if this is interrupted is a run that has yet to begin."""
    if (path / "run.json").is_file():
        write_json(path / "run.json", {**_read_if_whole(path), **_not_begun()})
    aside = path / f".removed.{uuid.uuid4().hex}"
    aside.mkdir()
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name == "run.json"):
        if _is_own(entry.name):  # run.json last
            entry.rename(aside / entry.name)
    _remove_left_over(path)


def _put_aside(path: Path) -> None:
    """Keep a finished run until the one that replaces it is finished.

    ``run.json`` goes first: without it nothing here is a run, and :func:`_restore_previous` puts
    back as much as there is if this is interrupted.
    """
    aside = path / PREVIOUS
    remove_tree(aside)
    aside.mkdir()
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name != "run.json"):
        if _is_own(entry.name):
            entry.rename(aside / entry.name)


def _restore_previous(path: Path) -> bool:
    """Put a run back that was to be replaced, unless the one that replaces it is there."""
    aside = path / PREVIOUS
    if (path / "run.json").exists() or not (aside / "run.json").exists():
        return False
    for entry in sorted(aside.iterdir(), key=lambda entry: entry.name == "run.json"):
        if _is_own(entry.name):  # run.json last
            entry.rename(path / entry.name)
    remove_tree(aside)
    return True


def _read_if_whole(path: Path) -> dict[str, Any]:
    """Read what ``run.json`` says, nothing if it is damaged."""
    try:
        return read_json(path / "run.json")
    except StoreError:
        return {}


def _read_whole(path: Path) -> dict[str, Any]:
    """Read what ``run.json`` says; raise StoreError if that is not what dlasm writes there."""
    remedy = "if this is a damaged run of dlasm, start again with --force"
    try:
        state = read_json(path / "run.json")
    except StoreError as error:
        raise StoreError(f"{error}; {remedy}") from error
    kinds = {
        "dlasm_run_format": object,
        "version": str,
        "state": str,
        "command": list,
        "started": str,
        "options": dict,
        "inputs": list,
        "stages": dict,
        "work": str,
    }
    if state.get("dlasm_run_format") in (None, RUN_FORMAT):
        for name, kind in kinds.items():
            if not isinstance(state.get(name), kind) or state.get(name) is None:
                raise StoreError(f"{path / 'run.json'}: has no {name}; {remedy}")
    return state


def _check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ResumeError unless an earlier run was one of the same inputs and options."""
    if before.get("dlasm_run_format") != RUN_FORMAT:
        raise ResumeError(
            f"{path}: a run of format {before.get('dlasm_run_format')}, and this dlasm continues "
            f"format {RUN_FORMAT}; use the version that began it, or --force to start anew"
        )
    changes = []
    if before["version"] != now["version"]:
        changes.append(f"dlasm was {before['version']}, is {now['version']}")
    for name in sorted({*before["options"], *now["options"]}):
        old, new = before["options"].get(name), now["options"].get(name)
        if old != new:
            changes.append(f"{name.replace('_', ' ')} was {_shown(old)}, is {_shown(new)}")
    old_inputs, new_inputs = before["inputs"], now["inputs"]
    for old, new in zip(old_inputs, new_inputs, strict=False):
        if old["role"] != new["role"]:
            changes.append(f"input {old['role']} {old['path']} is now {new['role']} {new['path']}")
        else:
            difference = content_difference(old, new)
            if difference:
                changes.append(f"{new['role']} {new['path']} {difference}")
    for extra in old_inputs[len(new_inputs) :]:
        changes.append(f"{extra['role']} {extra['path']} is no longer given")
    for extra in new_inputs[len(old_inputs) :]:
        changes.append(f"{extra['role']} {extra['path']} was not given")
    if changes:
        raise ResumeError(
            f"{path}: cannot be continued, it was begun otherwise: {'; '.join(changes)}. Give what "
            "was given then, or start anew with --force"
        )


def _shown(value: Any) -> str:
    """Show an option's value."""
    return "not given" if value is None else str(value)


def content_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say how a file's content differs, "" if it does not; both from :func:`identify_input`."""
    if old.get("pipe") or new.get("pipe"):
        return "is a pipe, which cannot be read again"
    if old["size"] != new["size"]:
        return f"had {old['size']:,} bytes, has {new['size']:,}"
    for name in ("blake2b", "sampled"):
        if old.get(name) != new.get(name):
            return "has other content"
    if old.get("mtime_ns") != new.get("mtime_ns"):
        return "was changed since (its time of modification differs)"
    return ""


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the state of a run folder.

    Raises
    ------
    StoreError
        If it is not one, or one of another format version.
    """
    path = Path(path)
    if not (path / "run.json").is_file():
        if (path / PREVIOUS / "run.json").is_file():
            raise StoreError(
                f"{path}: replacing the run here was interrupted; run the same command again, "
                f"which puts it back first (it is in {PREVIOUS} until then)"
            )
        raise StoreError(f"{path}: is not the folder of a dlasm run (it holds no run.json)")
    state = _read_whole(path)
    if state["dlasm_run_format"] != RUN_FORMAT:
        raise StoreError(
            f"{path}: a run of format {state.get('dlasm_run_format')}, and this dlasm reads "
            f"format {RUN_FORMAT}; use the version that wrote it"
        )
    return state
