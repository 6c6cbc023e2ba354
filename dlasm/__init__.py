"""dlasm: local assembly of metagenome contig ends, orchestrated by Dask.

Public names are imported when they are first used, so that ``import dlasm`` is instant and touches
neither Dask nor a GPU.

.. include:: guide.md
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dlasm._version import __version__

if TYPE_CHECKING:
    from dlasm import arrays, errors, evaluate, follow, testing
    from dlasm.cluster import connect, local_cluster
    from dlasm.params import WalkParams
    from dlasm.pipeline import Run, extend, open_run

__all__ = [
    "Run",
    "WalkParams",
    "__version__",
    "arrays",
    "connect",
    "errors",
    "evaluate",
    "extend",
    "follow",
    "local_cluster",
    "open_run",
    "testing",
]

_MODULES = ("arrays", "errors", "evaluate", "follow", "testing")

_HOMES = {
    "Run": "dlasm.pipeline",
    "WalkParams": "dlasm.params",
    "connect": "dlasm.cluster",
    "extend": "dlasm.pipeline",
    "local_cluster": "dlasm.cluster",
    "open_run": "dlasm.pipeline",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"dlasm.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dlasm' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
