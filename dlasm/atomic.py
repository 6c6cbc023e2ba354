"""Files and folders that appear under their name only when they are whole.

All are written under a temporary name beside it and renamed. Temporary names differ for every
writer, also on different machines, as a task may run twice at once. Nothing here makes a parent
folder: what writes for a run that is gone must fail, not bring the run's folder back.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

__all__ = [
    "begin_folder",
    "drop_folder",
    "finish_folder",
    "link_whole",
    "remove_tree",
    "sync_file",
    "sync_folder",
    "temporary_of",
    "whole_file",
    "whole_folder",
    "write_json",
]

_NO_LINKS = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
)
"""What systems say that have no hard links, or none more for a file."""

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.wip")


def _temporary(path: Path) -> Path:
    """Return a new name beside ``path``."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.wip")


def temporary_of(name: str) -> str | None:
    """Return of which file or folder a name is a temporary one, None if of none.

    Examples
    --------
    >>> temporary_of(".run.json.0123456789abcdef0123456789abcdef.wip")
    'run.json'
    >>> temporary_of("notes.wip")
    """
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else None


@contextmanager
def whole_file(path: str | os.PathLike[str], *, sync: bool = False) -> Iterator[IO[bytes]]:
    """Give a new file to write; it takes the place of ``path`` if the block ends without error.

    Parameters
    ----------
    path : path-like
        The file.
    sync : bool
        Whether it must outlast a power cut once it is there.
    """
    path = Path(path)
    work = _temporary(path)
    try:
        with open(work, "xb") as file:
            yield file
            if sync:
                sync_file(file)
        work.replace(path)
    except BaseException:
        work.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


@contextmanager
def whole_folder(path: str | os.PathLike[str], *, sync: bool = False) -> Iterator[Path]:
    """Give a new folder to fill; it takes the place of ``path`` if the block ends without error.

    Not for tasks, which may run twice at once: only files are replaced in one step.

    Parameters
    ----------
    path : path-like
        The folder.
    sync : bool
        Whether it must outlast a power cut once it is there.
    """
    work = begin_folder(path)
    try:
        yield work
        finish_folder(work, path, sync=sync)
    except BaseException:
        drop_folder(work)
        raise


def begin_folder(path: str | os.PathLike[str]) -> Path:
    """Make a new folder to fill, for :func:`finish_folder` or :func:`drop_folder`.

    For what is not written in one block; otherwise :func:`whole_folder` does.
    """
    work = _temporary(Path(path))
    work.mkdir()
    return work


def finish_folder(work: Path, path: str | os.PathLike[str], *, sync: bool = False) -> None:
    """Let a folder that :func:`begin_folder` made take the place of ``path``."""
    path = Path(path)
    if sync:
        _sync_tree(work)
    remove_tree(path)
    work.rename(path)
    if sync:
        sync_folder(path.parent)


def drop_folder(work: Path) -> None:
    """Remove what :func:`begin_folder` made, if it is still there."""
    shutil.rmtree(work, ignore_errors=True)


def write_json(path: str | os.PathLike[str], value: Mapping[str, Any]) -> None:
    """Write a JSON file that is at any moment either the old one or the new one."""
    with whole_file(path, sync=True) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def link_whole(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Give a file, or all files of a folder, a second name; a copy where a disk has no hard links.

    It takes the place of ``path`` when it is whole.
    """
    source, path = Path(source), Path(path)
    if source.is_dir():
        with whole_folder(path, sync=True) as folder:
            shutil.copytree(source, folder, copy_function=_link, dirs_exist_ok=True)
        return
    work = _temporary(path)
    try:
        _link(source, work)
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)  # if it was the same file already, renaming does nothing


def _link(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    try:
        os.link(source, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, path)
        sync_folder(path)  # opening for reading serves for files as well


def remove_tree(path: Path) -> None:
    """Remove a folder; it is gone from its name at once, so nobody finds half of it there."""
    aside = _temporary(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def sync_file(file: IO[bytes]) -> None:
    """Make what was written to a file outlast a power cut."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder outlast a power cut."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _sync_tree(path: Path) -> None:
    """Make all files and folders below one outlast a power cut."""
    for folder, _, names in os.walk(path):
        for name in (*names, "."):
            sync_folder(Path(folder, name))  # opening for reading serves for files as well
