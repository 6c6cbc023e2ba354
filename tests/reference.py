"""The walk of contig ends written plainly, to test the engines against.

Strings and dictionaries, one rule after the other as the description of the algorithm states them
(Awan et al., SC'21, section 2.3, with the constants of MetaHipMer2): every k-mer of every read goes
into a fresh table at every k. Slow, and it shares nothing with the native code.

Run as a program it extends a MetaHipMer2 candidate dump and prints ``id extended_sequence``::

    python tests/reference.py DUMP -k 77 --walk-limit 613
"""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

BASES = "ACGT"
K_MIN, K_MAX, K_SHIFT = 21, 121, 8
LOW_QUALITY, HIGH_QUALITY = 10, 20
MAX_READS = 3000
SUPPORT_BASES, MOST_SUPPORT = 21, 255
DEAD_END, FORK = "dead_end", "fork"

Read = tuple[str, Sequence[int]]
"""Bases and their phred qualities."""

Votes = dict[str, int]
Table = dict[str, tuple[Votes, Votes]]
"""For each mer the votes for each next base: all of them, and those of high quality."""


@dataclass(frozen=True)
class EndResult:
    """What became of one contig end; ``walk`` reads away from the contig.

    ``support`` is that of each of its bases, ``cut`` how many more there were before it was cut.
    """

    walk: str
    k: int
    outcome: str
    support: tuple[int, ...] = ()
    cut: int = 0


@dataclass(frozen=True)
class DumpContig:
    """One line of a candidate dump."""

    name: str
    sequence: str
    depth: Decimal
    left: list[Read]
    right: list[Read]


def only_acgtn(bases: str) -> str:
    """Upper-case the bases; anything but A, C, G and T is N."""
    return "".join(base if base in BASES else "N" for base in bases.upper())


def reverse_complement(bases: str) -> str:
    return "".join({"A": "T", "C": "G", "G": "C", "T": "A"}.get(base, "N") for base in bases[::-1])


def count(reads: Sequence[Read], k: int) -> Table:
    table: Table = {}
    for bases, qualities in reads:
        for p in range(len(bases) - k):
            mer, extension, quality = bases[p : p + k], bases[p + k], qualities[p + k]
            if "N" in mer or extension == "N" or quality < LOW_QUALITY:
                continue
            if mer not in table:
                table[mer] = (dict.fromkeys(BASES, 0), dict.fromkeys(BASES, 0))
            votes, high = table[mer]
            votes[extension] += 1
            if quality >= HIGH_QUALITY:
                high[extension] += 1
    return table


def rating(n: int, h: int, depth: int) -> int:
    """Rate a base with ``n`` votes, ``h`` of them of high quality, in exact decimals."""
    viable = max(Decimal("0.2") * depth, Decimal(2))
    expected = max(Decimal("0.3") * depth, Decimal(2))
    if n == 0:
        return 0
    if n == 1:
        return 1
    if n < viable:
        return 2
    if n < expected and h < viable:
        return 3
    if n < expected and h >= viable:
        return 4
    if n >= expected and h < viable:
        return 5
    if n >= expected and viable < h < expected:
        return 6
    return 7


def choose(votes: Votes, high: Votes, depth: int) -> str:
    """Return the next base, ``FORK`` or ``DEAD_END``."""
    rated = [
        (rating(votes[base], high[base], depth), high[base], votes[base], base) for base in BASES
    ]
    first, second, third, _ = sorted(rated, reverse=True)
    t, u, w = first[0], second[0], third[0]
    if t == 0:
        return DEAD_END
    if t <= 3:
        return first[3] if u == 0 else DEAD_END
    if t <= 5:
        return first[3] if u <= 2 else DEAD_END
    if t == 6:
        return first[3] if u <= 3 else DEAD_END
    if u < 7:
        return first[3]
    if w == 7 or first[2] == second[2]:
        return FORK
    return first[3] if first[2] > second[2] else second[3]


def walk_from(table: Table, mer: str, depth: int, walk_limit: int) -> tuple[str, str]:
    """Walk until the choice or the limit ends it; return the walk and why it ended."""
    walk = ""
    seen = set()
    for _ in range(walk_limit):
        if mer in seen:
            return walk, "repeat"
        seen.add(mer)
        if mer not in table:
            return walk, DEAD_END
        chosen = choose(*table[mer], depth)
        if chosen in (FORK, DEAD_END):
            return walk, chosen
        mer = mer[1:] + chosen
        walk += chosen
    return walk, "limit"


def support_of(
    sequence: str, walk: str, reads: Sequence[Read], fragments: Sequence[int]
) -> tuple[int, ...]:
    """For each base of a walk, how many fragments hold it and the 20 bases before it."""
    context = sequence + walk
    counts = []
    for end in range(len(sequence) + 1, len(context) + 1):
        mer = context[end - SUPPORT_BASES : end]
        holding = {
            fragment for (bases, _), fragment in zip(reads, fragments, strict=True) if mer in bases
        }
        counts.append(min(len(holding), MOST_SUPPORT))
    return tuple(counts)


def cut(result: EndResult, min_support: int) -> EndResult:
    """Cut a walk before the first base that too few fragments support."""
    for kept, support in enumerate(result.support):
        if support < min_support:
            k, outcome = (result.k, "support") if kept else (0, "no_walk")
            lost = len(result.walk) - kept
            return EndResult(result.walk[:kept], k, outcome, result.support[:kept], lost)
    return result


def extend_end(
    sequence: str,
    reads: Sequence[Read],
    depth: Decimal | float,
    k: int,
    walk_limit: int,
    max_reads: int = MAX_READS,
    min_support: int = 1,
    fragments: Sequence[int] | None = None,
) -> EndResult:
    """Extend the 3' end of ``sequence`` with reads in its orientation, going up or down in k.

    ``fragments`` says what fragment each read is of; by default each is one of its own.
    """
    if not reads:
        return EndResult("", 0, "no_reads")
    if len(sequence) < k:
        return EndResult("", 0, "short_contig")
    sequence = only_acgtn(sequence)
    clean_reads = [(only_acgtn(bases), qualities) for bases, qualities in reads[:max_reads]]
    whole_depth = min(int(depth), 2**31 - 1)
    best = EndResult("", 0, "no_walk")
    largest = min(K_MAX, len(sequence))
    step = 0
    while K_MIN <= k <= largest:
        table = count(clean_reads, k)
        walk, outcome = walk_from(table, sequence[-k:], whole_depth, walk_limit)
        if len(walk) > len(best.walk):
            best = EndResult(walk, k, outcome)
        if outcome == "limit":
            break
        wanted = -K_SHIFT if outcome == DEAD_END else K_SHIFT
        if step == -wanted:
            break
        step = wanted
        k += step
    of_read = range(len(reads)) if fragments is None else fragments
    support = support_of(sequence, best.walk, clean_reads, of_read[: len(clean_reads)])
    return cut(EndResult(best.walk, best.k, best.outcome, support), min_support)


def extend_contig(
    sequence: str,
    left: Sequence[Read],
    right: Sequence[Read],
    depth: Decimal | float,
    k: int,
    walk_limit: int,
    max_reads: int = MAX_READS,
) -> tuple[str, EndResult, EndResult]:
    """Extend both ends; left reads are in the orientation of the reverse complement."""
    backward = reverse_complement(only_acgtn(sequence))
    left_end = extend_end(backward, left, depth, k, walk_limit, max_reads)
    right_end = extend_end(sequence, right, depth, k, walk_limit, max_reads)
    extended = reverse_complement(left_end.walk) + sequence + right_end.walk
    return extended, left_end, right_end


def read_dump(path: Path | str) -> Iterator[DumpContig]:
    """Read a candidate dump, plain or gzip."""
    path = Path(path)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            fields = iter(line.split())
            name, sequence, depth = next(fields), next(fields), Decimal(next(fields))
            n_left, n_right = int(next(fields)), int(next(fields))
            reads: list[Read] = []
            for _ in range(n_left + n_right):
                _, bases, qualities = next(fields), next(fields), next(fields)
                reads.append((bases, [ord(quality) - 33 for quality in qualities]))
            yield DumpContig(name, sequence, depth, reads[:n_left], reads[n_left:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("dump", type=Path)
    parser.add_argument("-k", type=int, default=77, help="start k [%(default)s]")
    parser.add_argument("--walk-limit", type=int, default=613, help="bases [%(default)s]")
    options = parser.parse_args()
    for contig in read_dump(options.dump):
        extended, _, _ = extend_contig(
            contig.sequence, contig.left, contig.right, contig.depth, options.k, options.walk_limit
        )
        sys.stdout.write(f"{contig.name} {extended}\n")


if __name__ == "__main__":
    main()
