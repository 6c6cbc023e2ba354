"""Contigs and their depths from FASTA."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np

import dlasm.io._parse as _parse
from dlasm.errors import ContigsError
from dlasm.io.streams import BLOCK_BYTES, BlockReader, DamagedStreamError

__all__ = ["Contigs", "read_contigs"]

_SOURCES = ("unknown", "megahit", "spades", "metahipmer")
_NAME_COLUMN = "contigName"
_DEPTH_COLUMN = "totalAvgDepth"


@dataclass(frozen=True)
class Contigs:
    """Contigs as flat arrays, in input order; see :mod:`dlasm.arrays`, group ``contigs``.

    Attributes
    ----------
    bases : numpy.ndarray
        uint8. All sequences, as the file has them but without line ends.
    offsets : numpy.ndarray
        int64, shape (contigs + 1,). Where each sequence begins in ``bases``.
    name_values : numpy.ndarray
        uint8. All ids, one after another.
    name_offsets : numpy.ndarray
        int64, shape (contigs + 1,). Where each id begins in ``name_values``.
    depth : numpy.ndarray
        float64, shape (contigs,). Mean read coverage, fold; NaN where unknown.
    depth_source : str
        ``megahit``, ``spades``, ``metahipmer``, ``table``, ``alignments``, ``dump`` or ``unknown``.
    counts : dict of str to int
        What was found: ``lower_case_bases``, ``n_bases``, ``iupac_bases``, ``gap_bases``,
        ``crlf_lines``, ``blank_lines``, ``headers_with_depth``, ``empty_contigs``,
        ``extra_depth_rows``.
    circles : numpy.ndarray
        int64, ascending. Contigs whose header says that they are circles, and so have no ends.
    """

    bases: np.ndarray
    offsets: np.ndarray
    name_values: np.ndarray
    name_offsets: np.ndarray
    depth: np.ndarray
    depth_source: str = "unknown"
    counts: dict[str, int] = field(default_factory=dict)
    circles: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Bases of each contig, int64, shape (contigs,)."""
        return np.diff(self.offsets)

    def name(self, i: int) -> str:
        """Return the id of contig ``i``."""
        begin, end = self.name_offsets[i], self.name_offsets[i + 1]
        return self.name_values[begin:end].tobytes().decode(errors="backslashreplace")

    def sequence(self, i: int) -> bytes:
        """Return the bases of contig ``i`` as the file has them."""
        return self.bases[self.offsets[i] : self.offsets[i + 1]].tobytes()


def read_contigs(
    path: str | os.PathLike[str],
    depths: str | os.PathLike[str] | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Contigs:
    """Read contigs from FASTA, plain or compressed.

    The id of a contig is the first word of its header. Any line width, CRLF, blank lines, lower
    case, N and IUPAC codes are accepted and counted, contigs without bases too; a file without
    contigs gives none. Depth comes from ``depths``, or else from the headers if all of them hold
    it in the same form:

    ========== ==================================================================================
    MEGAHIT    ``multi=12.5`` in the description (``>k141_0 flag=1 multi=5.0000 len=1875``)
    SPAdes     ``_cov_12.5`` in the id (``>NODE_1_length_500_cov_12.5``)
    MetaHipMer the number alone after ids ``Contig7`` or ``scaffold_7``: what
               ``Contigs::dump_contigs`` of MetaHipMer2 writes; or ``depth=12.5``, ``depth_12.5``
               or ``depth 12.5`` in the description
    ========== ==================================================================================

    MEGAHIT and SPAdes give k-mer coverage, a little below read coverage. ``circular=yes`` in the
    description, as dlasm writes it, says that a contig is a circle.

    Parameters
    ----------
    path : path-like
        The FASTA file; plain, gzip, bzip2, zstd or xz, told by content.
    depths : path-like, optional
        Table as ``jgi_summarize_bam_contig_depths`` of MetaBAT writes it: tab-separated, with a
        header naming the columns ``contigName`` and ``totalAvgDepth``. Other rows are counted.
    block_bytes : int
        Bytes read at a time.

    Returns
    -------
    Contigs
        In input order.

    Raises
    ------
    ContigsError
        If a file is missing, a directory, not readable, cut short or damaged; the contigs are not
        FASTA; a contig has no id, the id of another, or a character that cannot be sequence; a
        depth is negative or not finite; or the table lacks a contig or has it twice.
    """
    path = os.fspath(path)
    parser = _parse.ContigParser()
    with BlockReader(path, ContigsError, block_bytes) as reader:
        try:
            while (block := reader.read()) is not None:
                parser.feed(block)
            bases, offsets, name_values, name_offsets, depth, circles, forms, counts = (
                parser.finish()
            )
        except _parse.ParseError as problem:
            raise ContigsError(f"{path}: {problem}") from None
        except DamagedStreamError as problem:
            raise ContigsError(
                f"{path}: {problem} after the start of record {parser.records}; get it again"
            ) from problem
    n = len(depth)
    counts["empty_contigs"] = int(np.count_nonzero(np.diff(offsets) == 0))
    counts["headers_with_depth"] = sum(forms[1:])
    counts["extra_depth_rows"] = 0
    source = "unknown"
    if depths is not None:
        source = "table"
        depth, counts["extra_depth_rows"] = _read_depths(
            os.fspath(depths), path, name_values, name_offsets, block_bytes
        )
    elif n in forms[1:] and n:
        source = _SOURCES[forms.index(n)]
    else:
        depth = np.full(n, np.nan)
    return Contigs(bases, offsets, name_values, name_offsets, depth, source, counts, circles)


def _read_depths(
    path: str,
    contigs_path: str,
    name_values: np.ndarray,
    name_offsets: np.ndarray,
    block_bytes: int,
) -> tuple[np.ndarray, int]:
    """Return the depth of each contig from a MetaBAT table, and the number of other rows."""
    blocks = []
    with BlockReader(path, ContigsError, block_bytes) as reader:
        try:
            while (block := reader.read()) is not None:
                blocks.append(block)
        except DamagedStreamError as problem:
            raise ContigsError(f"{path}: {problem}; get it again") from problem
    text = np.concatenate(blocks) if blocks else np.empty(0, dtype=np.uint8)
    header_end = int(np.argmax(text == ord("\n"))) if len(text) else 0
    header = text[:header_end].tobytes().decode(errors="backslashreplace").rstrip("\r")
    columns = header.split("\t")
    for column in (_NAME_COLUMN, _DEPTH_COLUMN):
        if column not in columns:
            raise ContigsError(
                f"{path}: has no column {column} (its first line is {header[:200]!r}); it must be "
                "a tab-separated table as MetaBAT's jgi_summarize_bam_contig_depths writes it"
            )
    try:
        depth, extra = _parse.table_depths(
            text[header_end + 1 :],
            name_values,
            name_offsets,
            columns.index(_NAME_COLUMN),
            columns.index(_DEPTH_COLUMN),
            first_line=2,
        )
    except _parse.ParseError as problem:
        raise ContigsError(f"{path}: {problem}") from None
    missing = np.flatnonzero(np.isnan(depth))
    if len(missing):
        first = name_values[name_offsets[missing[0]] : name_offsets[missing[0] + 1]].tobytes()
        raise ContigsError(
            f"{path}: has no row for {len(missing)} of {len(depth)} contigs of {contigs_path}, "
            f"first {first.decode(errors='backslashreplace')}; make it from these contigs"
        )
    return depth, extra
