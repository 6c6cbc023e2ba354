"""dlasm: local assembly of metagenome contig ends, orchestrated by Dask."""

from __future__ import annotations

from dlasm._version import __version__

__all__ = ["__version__"]
