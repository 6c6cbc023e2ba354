"""Every error that dlasm raises on purpose.

All derive from :class:`DlasmError`, and each also from the built-in exception a caller would
expect, so that ``except ValueError`` keeps working (the pattern of ``zarr.errors``). A message says
what was found, where, and what to do about it.
"""

from __future__ import annotations

import errno
import re

__all__ = [
    "AlignmentsError",
    "CandidatesError",
    "ClusterError",
    "ContigsError",
    "DlasmError",
    "EngineError",
    "InputError",
    "OutputExistsError",
    "ParameterError",
    "ReadsError",
    "ResourceError",
    "ResumeError",
    "StoreError",
    "is_want_of_memory",
]


class DlasmError(Exception):
    """Root of all errors raised by dlasm."""


class ParameterError(DlasmError, ValueError):
    """A parameter is out of its range, or two contradict each other."""


class InputError(DlasmError, ValueError):
    """An input file cannot be read or holds something that is not allowed there."""


class ContigsError(InputError):
    """The contigs, or the table of their depths, are not usable."""


class ReadsError(InputError):
    """A file of reads is not usable."""


class AlignmentsError(InputError):
    """A BAM, SAM, CRAM or PAF file is not usable with these contigs and reads."""


class CandidatesError(InputError):
    """A candidate dump, or a run of candidate reads, is not usable."""


class OutputExistsError(DlasmError, FileExistsError):
    """The output is already there, or another run is writing it."""


class ResumeError(DlasmError, ValueError):
    """A run cannot be resumed because its inputs or options changed."""


class StoreError(DlasmError, ValueError):
    """A run folder or its results are missing, incomplete or of another format version."""


class EngineError(DlasmError, RuntimeError):
    """An engine could not extend a partition."""


class ClusterError(DlasmError, RuntimeError):
    """A Dask cluster could not be started or joined, or lost its workers."""


class ResourceError(DlasmError, OSError):
    """The machine ran out of disk space, memory or permissions."""


_WANT_OF_MEMORY = re.compile(
    "can't start new thread|map segment|[Cc]annot allocate memory|not enough memory"
    "|Unsufficient memory|[Oo]ut of memory"
)
"""What Python, the dynamic loader, C libraries, zstd, isal and others say."""


def is_want_of_memory(error: BaseException) -> bool:
    """Whether an error of any library means that memory ran out."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return not isinstance(error, DlasmError) and bool(_WANT_OF_MEMORY.search(str(error)))
