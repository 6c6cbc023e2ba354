"""Registry of every array that dlasm passes on or stores.

One table gives each array its dimensions, type, unit and meaning; the validator, the attributes in
the Zarr store and the documentation are made from it (as ``variables.py`` of sgkit does it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dlasm.errors import StoreError

__all__ = ["GROUPS", "SIDES", "ArraySpec", "tables", "validate"]

SIDES = ("left", "right")
"""Names of the two sides of a contig; end number = 2 * contig + side."""


@dataclass(frozen=True)
class ArraySpec:
    """What one array holds.

    Attributes
    ----------
    dims : tuple of str
        Name of each dimension; ``x+1`` is one longer than dimension ``x``; a number is a fixed
        length. Dimensions of the same name within a group have the same length.
    dtype : str
        NumPy name of the element type.
    unit : str
        Unit of a value, "" where it has none.
    meaning : str
        One line of what a value says.
    """

    dims: tuple[str, ...]
    dtype: str
    unit: str
    meaning: str


GROUPS: dict[str, dict[str, ArraySpec]] = {
    "contigs": {
        "bases": ArraySpec(
            ("bases",), "uint8", "ASCII", "sequences as they came, one after another"
        ),
        "offsets": ArraySpec(("contigs+1",), "int64", "bases", "where each contig begins in bases"),
        "name_values": ArraySpec(("name_bytes",), "uint8", "UTF-8", "ids, one after another"),
        "name_offsets": ArraySpec(("contigs+1",), "int64", "bytes", "where each id begins"),
        "depth": ArraySpec(("contigs",), "float64", "fold", "mean read coverage; NaN if unknown"),
    },
    "candidates": {
        "end": ArraySpec(("candidates",), "int64", "", "2 * contig + side, ascending"),
        "distance": ArraySpec(
            ("candidates",), "int32", "bases", "distance of the projecting mate; -1 overhanging"
        ),
        "length": ArraySpec(("candidates",), "int32", "bases", "length of the read"),
        "fragment": ArraySpec(
            ("candidates",), "int64", "", "library << 40 | number of the fragment in it"
        ),
        "has_n": ArraySpec(("candidates",), "uint8", "", "1 where the read holds an N"),
        "word_offset": ArraySpec(
            ("candidates+1",), "int64", "words", "where each read begins in words"
        ),
        "words": ArraySpec(("words",), "uint32", "", "2-bit bases, then 2-bit vote classes"),
        "library": ArraySpec(("1",), "int32", "", "library of all of these reads"),
    },
    "packed": {
        "contig": ArraySpec(("contigs",), "int64", "", "index of the contig in the input"),
        "depth": ArraySpec(("contigs",), "int32", "fold", "depth truncated, at most 2^31 - 1"),
        "tail": ArraySpec(
            ("ends", "8"), "uint32", "", "last 128 bases, 2 bits each, right-aligned: base 127 last"
        ),
        "tail_length": ArraySpec(("ends",), "int32", "bases", "min(128, length of the contig)"),
        "clean_length": ArraySpec(
            ("ends",), "int32", "bases", "bases of the tail after its last N"
        ),
        "read_start": ArraySpec(("ends+1",), "int64", "reads", "first read of each end"),
        "length": ArraySpec(("reads",), "int32", "bases", "length of the read"),
        "fragment": ArraySpec(
            ("reads",), "int64", "", "the same for a read and its mate; ascending within an end"
        ),
        "has_n": ArraySpec(("reads",), "uint8", "", "1 where the read holds an N"),
        "word_offset": ArraySpec(("reads+1",), "int64", "words", "where each read begins in words"),
        "words": ArraySpec(("words",), "uint32", "", "2-bit bases, then 2-bit vote classes"),
    },
    "extensions": {
        "walk_values": ArraySpec(("walk_bases",), "uint8", "ASCII", "appended bases, output order"),
        "walk_offsets": ArraySpec(("ends+1",), "int64", "bases", "where each end's bases begin"),
        "support": ArraySpec(
            ("walk_bases",),
            "uint8",
            "fragments",
            "those that hold the base and the 20 before it on the walk, at most 255",
        ),
        "k": ArraySpec(("ends",), "int16", "bases", "k of the accepted walk, 0 without one"),
        "outcome": ArraySpec(("ends",), "uint8", "", "why the walk stopped or there is none"),
        "cut": ArraySpec(("ends",), "int32", "bases", "cut from the walk for want of support"),
    },
    "results": {
        "contig": ArraySpec(("contigs",), "int64", "", "index of the contig in the input"),
        "bin": ArraySpec(("contigs",), "uint8", "", "1, 2 or 3 by candidate reads"),
        "candidates": ArraySpec(("ends",), "int64", "reads", "candidate reads before the cap"),
        "walk_values": ArraySpec(("walk_bases",), "uint8", "ASCII", "appended bases, output order"),
        "walk_offsets": ArraySpec(("ends+1",), "int64", "bases", "where each end's bases begin"),
        "support": ArraySpec(
            ("walk_bases",),
            "uint8",
            "fragments",
            "those that hold the base and the 20 before it on the walk, at most 255",
        ),
        "k": ArraySpec(("ends",), "int16", "bases", "k of the accepted walk, 0 without one"),
        "outcome": ArraySpec(("ends",), "uint8", "", "why the walk stopped or there is none"),
        "cut": ArraySpec(("ends",), "int32", "bases", "cut from the walk for want of support"),
    },
    "joins": {
        "end_a": ArraySpec(("overlaps",), "int64", "", "2 * contig + side; at most end_b"),
        "end_b": ArraySpec(("overlaps",), "int64", "", "the end that it overlaps"),
        "overlap": ArraySpec(("overlaps",), "int64", "bases", "length of the overlap"),
        "gap": ArraySpec(
            ("overlaps",), "int64", "bases", "between the contigs as they were; negative: overlap"
        ),
        "depth_a": ArraySpec(("overlaps",), "float64", "fold", "read coverage of its contig"),
        "depth_b": ArraySpec(("overlaps",), "float64", "fold", "read coverage of its contig"),
        "links": ArraySpec(("overlaps",), "int64", "pairs", "with a read near each; -1 unknown"),
        "pairs": ArraySpec(("overlaps",), "int64", "pairs", "across the junction; -1 unknown"),
        "insert_shift": ArraySpec(
            ("overlaps",), "float64", "standard errors", "of the inserts of these; NaN without any"
        ),
        "reads": ArraySpec(
            ("overlaps",), "int64", "fragments", "with a read across the junction; -1 unknown"
        ),
        "least_reads": ArraySpec(
            ("overlaps",), "int64", "fragments", "that hold the rarest appended 51-mer; -1 none"
        ),
        "agree_a": ArraySpec(("overlaps",), "int64", "reads", "go on as the junction does; -1"),
        "agree_b": ArraySpec(("overlaps",), "int64", "reads", "go on as the junction does; -1"),
        "against_a": ArraySpec(("overlaps",), "int64", "reads", "go on otherwise; -1 unknown"),
        "against_b": ArraySpec(("overlaps",), "int64", "reads", "go on otherwise; -1 unknown"),
        "rivals_a": ArraySpec(
            ("overlaps",), "int64", "ends", "others that overlapped it before extension; -1"
        ),
        "rivals_b": ArraySpec(
            ("overlaps",), "int64", "ends", "others that overlapped it before extension; -1"
        ),
        "rival_links_a": ArraySpec(("overlaps",), "int64", "pairs", "most links of a rival; -1"),
        "rival_links_b": ArraySpec(("overlaps",), "int64", "pairs", "most links of a rival; -1"),
        "verdict": ArraySpec(("overlaps",), "uint8", "", "refused, joined or circular"),
        "reason": ArraySpec(("overlaps",), "uint8", "", "why it is refused; 0 if it is not"),
    },
}
"""Array specifications by group, then by name."""


def tables() -> str:
    """Return the registry as Markdown, a table per group."""
    lines = []
    for group, specs in GROUPS.items():
        lines += [f"\n## Group {group}\n", "| array | shape | type | unit | meaning |"]
        lines.append("|---|---|---|---|---|")
        for name, spec in specs.items():
            shape = ", ".join(spec.dims) + ("," if len(spec.dims) == 1 else "")
            cells = (f"`{name}`", f"({shape})", spec.dtype, spec.unit, spec.meaning)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __doc__ is not None:  # which python -OO leaves out
    __doc__ += tables()


def validate(group: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that ``arrays`` are exactly those of ``group``, of the right types and shapes.

    Parameters
    ----------
    group : str
        A key of :data:`GROUPS`.
    arrays : mapping of str to numpy.ndarray
        The arrays by name.

    Raises
    ------
    StoreError
        If an array is missing or unknown, has another type or number of dimensions, or a length
        that contradicts another array's.
    """
    specs = GROUPS[group]
    if set(arrays) != set(specs):
        raise StoreError(
            f"{group}: arrays missing {sorted(set(specs) - set(arrays))}, "
            f"unknown {sorted(set(arrays) - set(specs))}"
        )
    lengths: dict[str, tuple[int, str]] = {}
    for name, spec in specs.items():
        array = arrays[name]
        if array.dtype != np.dtype(spec.dtype):
            raise StoreError(f"{group}/{name}: type is {array.dtype}, must be {spec.dtype}")
        if array.ndim != len(spec.dims):
            raise StoreError(f"{group}/{name}: has {array.ndim} dimensions, not {len(spec.dims)}")
        for dim, found in zip(spec.dims, array.shape, strict=True):
            base, _, extra = dim.partition("+")
            length = found - int(extra or 0)
            expected, other = lengths.setdefault(
                base, (int(base), "its specification") if base.isdigit() else (length, name)
            )
            if length != expected:
                raise StoreError(f"{group}/{name}: {length} {base} where {other} has {expected}")
