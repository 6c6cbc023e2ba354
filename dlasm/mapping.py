"""Where reads lie on contigs: dlasm's own mapper, and minimap2.

Both answer with :class:`~dlasm.recruit.Placements`; the rules of :mod:`dlasm.recruit` decide what
follows from them.

How dlasm's mapper looks, and the limits in ``Limits`` (``dlasm/ends.cpp``), chosen on the data of
``workflows/benchmarks/results/recruiter.csv``, where minimap2's candidates are lost or found:

- Up to four windows of 32 bases of a read, one seed each, until what was found cannot be beaten.
  Seeds are minimizers (k = 19, of 14): 1.6 to 1.8 bytes per contig base, contigs included.
- Other reads: all minimizers, rarest first, up to ``hits`` = 4096 places. With 1024 2.6 times as
  many candidates were really lost in satellites ((GGAAT)n); with 8192 no fewer.
- Places without gaps are all looked at where there are at most ``ungapped`` = 256 hits. Gaps are
  tried unless the place lacks at most ``good`` = 44 (about four mismatches) to a full score; trying
  none for reads that have a place at all saved 0.16 of 0.88 us a read of mock_medium and lost 0.36
  instead of 0.22 %.
- Diagonals of seeds up to ``width`` = 63 apart and ``margin`` = 16 more on each side form a band,
  96 diagonals. The ``bands`` = 64 that promise most are aligned with gaps; 32 lost 4.4 instead of
  2.8 % of N5_271 and took 325 instead of 505 us a read; 128 lost 2.4 % at 890 us.

Satellites stay the weak place: hundreds of bands of a read differ little, and the number of hits
in a band, or how much of the read its seeds cover, says less about which are the best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mappy
import numpy as np

import dlasm._ends as _ends
import dlasm._minimap as _minimap
from dlasm.errors import DlasmError
from dlasm.recruit import Placements

if TYPE_CHECKING:
    from dlasm.io.fasta import Contigs
    from dlasm.io.fastq import ReadBatch

__all__ = ["Aligner", "EndsMapper"]


class EndsMapper:
    """dlasm's own mapper, with threads inside: the best place of each read against all contigs.

    Rules 1 and 2 of :mod:`dlasm.recruit` are applied inside (``dlasm/places.hpp``), so a read has
    one place at most: the best of those that count, else the best.

    Parameters
    ----------
    contigs : Contigs
        The contigs; those shorter than the seeds (19) get no places.
    threads : int
        Threads that build the index.
    """

    def __init__(self, contigs: Contigs, threads: int = 1) -> None:
        self._mapper = _ends.Mapper(
            np.ascontiguousarray(contigs.bases, dtype=np.uint8),
            np.ascontiguousarray(contigs.offsets, dtype=np.int64),
            threads,
        )

    @property
    def nbytes(self) -> int:
        """Memory of the packed contigs and their index, bytes."""
        return int(self._mapper.bytes)

    def place(self, batch: ReadBatch, threads: int = 1, *, every: bool = False) -> Placements:
        """Return the place of each read of ``batch`` that has one.

        Parameters
        ----------
        batch : ReadBatch
            The reads.
        threads : int
            Threads that map; the places do not depend on them.
        every : bool
            Give all places that were compared instead, some of them several times; slow, for tests.
        """
        return Placements(
            *self._mapper.place(batch.text, batch.base_start, batch.length, threads, every)
        )


class Aligner:
    """minimap2's index of the contigs (preset ``sr``), with threads inside.

    The minimap2 inside the ``mappy`` package is called without mappy's Python class: that class
    does not give the alignment score, and a Python loop over reads costs as much as the mapping.
    Reads are mapped one by one, whatever their names, so places do not depend on their neighbours
    or on the number of threads.

    Parameters
    ----------
    contigs : Contigs
        The contigs; those shorter than minimap2's k (21) get no places.

    Raises
    ------
    DlasmError
        If the installed mappy is not one that dlasm knows how to call.
    """

    def __init__(self, contigs: Contigs) -> None:
        library = str(mappy.__file__)
        try:
            supported = _minimap.self_check(library)
            reason = "a test read was not placed as expected"
        except RuntimeError as error:
            supported, reason = False, str(error)
        if not supported:
            raise DlasmError(
                f"mappy {mappy.__version__} ({library}) is not supported: {reason}; "
                "install mappy 2.28 to 2.31"
            )
        self._mapper = _minimap.Mapper(
            library,
            np.ascontiguousarray(contigs.bases, dtype=np.uint8),
            np.ascontiguousarray(contigs.offsets, dtype=np.int64),
        )

    def place(self, batch: ReadBatch, threads: int = 1) -> Placements:
        """Return all places of the reads of ``batch``, primary and secondary."""
        return Placements(*self._mapper.place(batch.text, batch.base_start, batch.length, threads))
