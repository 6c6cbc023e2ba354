"""A small run in many partitions of both bins, for tests of who extends them."""

from __future__ import annotations

import dlasm

BIN_LIMIT = 26
"""Puts half of the contigs of the tests' community in bin 2."""


def extend_small(community, output, **options):
    """Extend the contigs of a community, a partition for nearly each of them."""
    return dlasm.extend(
        community.contigs_path,
        reads=community.reads_paths,
        output=output,
        bin_limit=BIN_LIMIT,
        **{"partition_bytes": 4_000, **options},
    )


def extend_whole(community, output):
    """Do the same by the CPU engine of this process, in as few partitions as may be."""
    return extend_small(community, output, gpus="none", workers=0, partition_bytes=1 << 25)


def assert_same(run, whole) -> None:
    """Require the same bytes."""
    for name in ("extended.fasta", "extensions.tsv"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
