"""Decompressed blocks of a file, read ahead by a thread so that parsing overlaps decompression."""

from __future__ import annotations

import bz2
import io
import lzma
import os
import queue
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, cast

import numpy as np
from isal import igzip_lib

from dlasm.errors import InputError, is_want_of_memory

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["BLOCK_BYTES", "BlockReader", "DamagedStreamError"]

BLOCK_BYTES = 4 << 20
"""Bytes of text read at a time."""

BLOCKS_AHEAD = 2
"""Blocks that are kept ready."""

_PIECE = 256 << 10  # bytes, compressed and not: measured fastest for gzip


class DamagedStreamError(Exception):
    """The file ended too early or cannot be decompressed; says which."""


class _TrailingDataError(Exception):
    """Something that is no member stands behind a whole one."""


class _Stream(Protocol):
    """What is read from: after a fault, everything before it has been given."""

    def readinto1(self, buffer: memoryview, /) -> int:
        """Fill the start of the buffer by one read; 0 at the end."""


class _Decompressor(Protocol):
    """What decompresses one member."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


_Kind = tuple[tuple[bytes, ...], Callable[[], _Decompressor]]
"""What members of a kind of compression begin with, and what decompresses one."""

_KINDS: tuple[_Kind, ...] = (
    (
        (b"\x1f\x8b",),
        lambda: cast(_Decompressor, igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)),
    ),
    ((b"BZh",), bz2.BZ2Decompressor),
    # frames to be skipped, which pzstd writes before each of its own, are members too
    (
        (b"\x28\xb5\x2f\xfd", *(bytes([c]) + b"\x2a\x4d\x18" for c in range(0x50, 0x60))),
        lambda: cast(_Decompressor, zstd.ZstdDecompressor()),
    ),
    ((b"\xfd7zXZ\x00",), lzma.LZMADecompressor),
)
_LONGEST_MAGIC = 6


class _Members:
    """Any number of compressed members, one after another.

    The files of the libraries do not do: those of bz2 and lzma end at whatever stands behind a
    member, as if the rest of the file were not there, and that of igzip loses what comes shortly
    before a fault.
    """

    def __init__(self, file: io.BufferedReader, kind: _Kind) -> None:
        self._file = file
        self._magics, self._new_member = kind
        self._member = self._new_member()

    def readinto1(self, buffer: memoryview, /) -> int:
        while True:
            if self._member.eof:
                rest = self._member.unused_data.lstrip(b"\0")  # zeros may pad the end
                while len(rest) < _LONGEST_MAGIC and (more := self._file.read(_PIECE)):
                    rest = (rest + more).lstrip(b"\0")
                if not rest:
                    return 0
                if not rest.startswith(self._magics):
                    if any(magic.startswith(rest) for magic in self._magics):
                        raise EOFError
                    raise _TrailingDataError
                self._member = self._new_member()
            else:
                rest = self._file.read(_PIECE) if self._member.needs_input else b""
                if self._member.needs_input and not rest:
                    raise EOFError
            text = self._member.decompress(rest, min(len(buffer), _PIECE))
            if text:
                buffer[: len(text)] = text
                return len(text)


def _decompressed(file: io.BufferedReader) -> _Stream:
    """Wrap ``file`` by what its first bytes say; its name does not matter."""
    start = file.peek(_LONGEST_MAGIC)[:_LONGEST_MAGIC]
    for kind in _KINDS:
        if start.startswith(kind[0]):
            return _Members(file, kind)
    return file


class TextStream:
    """The decompressed text of one file.

    The compression (none, gzip, bzip2, zstd, xz; any number of members) is told from the first
    bytes.

    Parameters
    ----------
    path : path-like
        The file; pipes work too.
    error : type
        Kind of :class:`~dlasm.errors.InputError` to raise when the file cannot be opened.

    Raises
    ------
    InputError
        Of the kind ``error``: the file is missing, a directory, or may not be read.
    """

    def __init__(self, path: str | os.PathLike[str], error: type[InputError]) -> None:
        self.path = os.fspath(path)
        self._stream: _Stream | None = None
        try:
            self._file = open(self.path, "rb", buffering=_PIECE)  # noqa: SIM115
        except FileNotFoundError:
            raise error(f"{self.path}: there is no such file; check the path") from None
        except IsADirectoryError:
            raise error(f"{self.path}: is a directory; name the file in it") from None
        except PermissionError:
            raise error(
                f"{self.path}: may not be read; check its permissions (ls -l, chmod)"
            ) from None
        except OSError as problem:
            raise error(f"{self.path}: cannot be opened: {problem.strerror}") from problem

    def readinto(self, buffer: memoryview) -> int:
        """Fill the start of ``buffer`` by one read; returns the bytes, 0 at the end.

        Raises
        ------
        DamagedStreamError
            After all that could be read: the compressed data end too early or are damaged.
        """
        try:
            if self._stream is None:  # here, not on opening: a pipe may have nothing yet
                self._stream = _decompressed(cast(io.BufferedReader, self._file))
            return self._stream.readinto1(buffer)
        except Exception as problem:
            if is_want_of_memory(problem):
                raise MemoryError(f"{self.path}: {problem}") from problem
            raise DamagedStreamError(_what_is_wrong(problem)) from problem

    def position(self) -> int:
        """Return how many bytes of the file, compressed as it is, were taken; 0 of a pipe."""
        return self._file.tell() if self._file.seekable() else 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class BlockReader:
    """Blocks of the decompressed text of one file, in order.

    The compression (none, gzip, bzip2, zstd, xz; any number of members) is told from the first
    bytes. A context manager; leaving it ends the thread that reads ahead.

    Parameters
    ----------
    path : path-like
        The file; pipes work too.
    error : type
        Kind of :class:`~dlasm.errors.InputError` to raise when the file cannot be opened.
    block_bytes : int
        Bytes of each block but the last.
    blocks_ahead : int
        Blocks to keep ready.

    Raises
    ------
    InputError
        Of the kind ``error``: the file is missing, a directory, or may not be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        error: type[InputError],
        block_bytes: int = BLOCK_BYTES,
        blocks_ahead: int = BLOCKS_AHEAD,
    ) -> None:
        self._stream = TextStream(path, error)
        self.path = self._stream.path
        self._block_bytes = block_bytes
        self._blocks: queue.Queue[np.ndarray | BaseException | None] = queue.Queue(blocks_ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read_ahead, name="dlasm-read", daemon=True)
        self._thread.start()

    def __enter__(self) -> BlockReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the thread and close the file."""
        self._stop.set()
        self._thread.join(timeout=1)
        if not self._thread.is_alive():  # else it waits for a pipe that nobody writes to
            self._stream.close()

    def read(self) -> np.ndarray | None:
        """Return the next block.

        Returns
        -------
        numpy.ndarray or None
            uint8, at least one byte; None at the end of the file.

        Raises
        ------
        DamagedStreamError
            After all that could be read: the compressed data end too early or are damaged.
        """
        item = self._blocks.get()
        if item is None or isinstance(item, BaseException):
            self._blocks.put(item)  # the same answer next time; the thread puts no more
        if isinstance(item, BaseException):
            raise item
        return item

    def _read_ahead(self) -> None:
        last: BaseException | None = None
        try:
            more = True
            while more and not self._stop.is_set():
                block = np.empty(self._block_bytes, dtype=np.uint8)
                filled = 0
                try:
                    while filled < len(block):
                        got = self._stream.readinto(block.data[filled:])
                        if not got:
                            more = False
                            break
                        filled += got
                finally:  # what came before a fault is still good
                    if filled:
                        self._put(block[:filled])
        except Exception as problem:
            last = problem
        self._put(last)

    def _put(self, item: np.ndarray | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._blocks.put(item, timeout=0.1)
                return
            except queue.Full:
                continue


def _what_is_wrong(problem: BaseException) -> str:
    """Say in a user's words why a stream cannot be read on."""
    if isinstance(problem, EOFError):
        return "the compressed file is cut short (truncated)"
    if isinstance(problem, _TrailingDataError):
        return (
            "other data stand after the end of the compressed data (trailing garbage), so the file "
            "may be damaged; if it is not, compress its text anew (e.g. gzip -dc FILE | gzip > NEW)"
        )
    if isinstance(problem, OSError) and problem.errno is not None:
        return f"the file cannot be read on: {problem.strerror}"
    return f"the compressed data are damaged ({problem})"
