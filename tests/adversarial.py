"""Seeded contig ends that are hard for an engine: repeats, forks, Ns, short reads, odd depths.

Small alphabets, tandem repeats and copied pieces make repeats, loops and ties common; most reads
lie over the end, so walks are long and many rungs of the ladder are tried.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reference import Read, reverse_complement

ALPHABETS = ("ACGT", "ACGT", "ACGT", "ACG", "AC", "AT", "CG", "A")
READ_LENGTHS = ("around_k", "long", "very_long", "mixed", "tiny")


@dataclass(frozen=True)
class Case:
    """One contig with the candidate reads of its ends."""

    sequence: str
    left: list[Read]
    right: list[Read]
    depth: float
    fragments: Sequence[int] | None = None
    """Of the left reads, then of the right ones; ascending. By default each read is one."""

    @property
    def left_fragments(self) -> Sequence[int]:
        return self._all_fragments[: len(self.left)]

    @property
    def right_fragments(self) -> Sequence[int]:
        return self._all_fragments[len(self.left) :]

    @property
    def _all_fragments(self) -> Sequence[int]:
        if self.fragments is None:
            return range(len(self.left) + len(self.right))
        return self.fragments


def random_bases(rng: random.Random, length: int, alphabet: str = "ACGT") -> str:
    return "".join(rng.choices(alphabet, k=length))


def mutated(rng: random.Random, bases: str, changes: int) -> str:
    letters = list(bases)
    for _ in range(changes if letters else 0):
        letters[rng.randrange(len(letters))] = rng.choice("ACGT")
    return "".join(letters)


def random_genome(rng: random.Random, length: int) -> str:
    """Random, tandemly repeated, copied and slightly changed pieces."""
    alphabet = rng.choice(ALPHABETS)
    genome = random_bases(rng, rng.randint(1, 60), alphabet)
    plain = rng.random() < 0.3
    while len(genome) < length:
        kind = 0.0 if plain else rng.random()
        size = rng.randint(1, 150)
        if kind < 0.35:
            genome += random_bases(rng, size, alphabet)
        elif kind < 0.6:
            unit = random_bases(rng, rng.randint(1, rng.choice((3, 12, 40, 140))), alphabet)
            piece = (unit * (size // len(unit) + 2))[: size + len(unit)]
            genome += mutated(rng, piece, rng.choice((0, 0, 1)))
        else:
            start = rng.randrange(len(genome))
            piece = genome[start : start + size]
            if rng.random() < 0.1:
                piece = reverse_complement(piece)
            genome += mutated(rng, piece, rng.choice((0, 0, 0, 1, 2)))
    return genome[:length]


def simple_genome(rng: random.Random, length: int) -> str:
    """Runs of one base and repeats of a few, hardly interrupted."""
    kind = rng.choice(("run", "repeat", "pieces", "two letters"))
    if kind == "two letters":
        return random_bases(rng, length, rng.choice(("AC", "AT", "CG")))
    genome = ""
    while len(genome) < length:
        size = rng.randint(1, 80) if kind == "pieces" else length
        unit = random_bases(rng, 1 if kind == "run" else rng.randint(1, 12), rng.choice(ALPHABETS))
        genome += (unit * (size // len(unit) + 1))[:size]
    return mutated(rng, genome[:length], rng.choice((0, 0, 1, 2, 5)))


def random_qualities(rng: random.Random, length: int, style: str) -> list[int]:
    if style == "high":
        return [40] * length
    if style == "low":
        return rng.choices((2, 9, 10, 15, 19), k=length)
    return rng.choices((2, 9, 10, 19, 20, 40), weights=(1, 1, 2, 2, 4, 10), k=length)


def read_length(rng: random.Random, k: int, style: str) -> int:
    if style == "mixed":
        style = rng.choice(READ_LENGTHS[:3])
    if style == "around_k":
        return max(0, k + rng.choice((-1, 0, 1, 1, 2, 2, 3, 5, 8, 9, 16, 24)))
    if style == "tiny":
        return rng.randint(0, 24)
    return rng.randint(k, k + 80) if style == "long" else rng.randint(150, 300)


def reads_over_end(rng: random.Random, genome: str, end: int, k: int) -> list[Read]:
    """Reads of a genome, most of them over position ``end``, some of them of other haplotypes."""
    haplotypes = [genome]
    if rng.random() < 0.6:
        other = list(genome)
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(max(0, end - 30), min(len(other), end + rng.choice((3, 60, 400))))
            other[at] = rng.choice("ACGT")
        haplotypes.append("".join(other))
    if rng.random() < 0.2:
        at = rng.randrange(max(1, end - 20), len(genome))
        haplotypes.append(genome[:at] + random_genome(rng, len(genome) - at))
    if rng.random() < 0.4:  # another place that shares a piece of about k bases with this one
        at = min(len(genome), end + rng.randint(-8, 100))
        shared = genome[
            max(0, at - max(0, rng.choice((k, k - 8, k + 8, 21, 29)) + rng.randint(-2, 2))) : at
        ]
        cut = max(0, at - len(shared))
        other_place = random_bases(rng, cut) + shared + random_genome(rng, len(genome) - at + 1)
        haplotypes.append(other_place)
    weights = [rng.choice((1, 1, 2, 5)) for _ in haplotypes]
    style = rng.choice(READ_LENGTHS[:4]) if rng.random() < 0.95 else "tiny"
    quality_style = rng.choice(("high", "mixed", "mixed", "low"))
    tied = rng.random() < 0.4  # each read once of every haplotype, of the same qualities
    substitutions, unknown = (0.0, 0.0)
    if not tied:
        substitutions, unknown = rng.choice((0, 0, 0.003, 0.02)), rng.choice((0, 0, 0.005, 0.03))
    number = rng.choice((0, 1, 2, 3, 4, 6, 8, 9, 10, 16, 30, 60))
    near = rng.random() < 0.6
    reads: list[Read] = []
    while len(reads) < number:
        length = read_length(rng, k, style)
        latest = max(0, len(genome) - length)
        earliest = min(max(0, end - length), latest)
        last = max(earliest, min(latest, end - k)) if near else latest
        start = rng.randint(earliest, last)
        qualities = random_qualities(rng, length, quality_style)
        copies = rng.choice((1, 1, 1, 2, 3, 5)) if near else 1
        for haplotype in haplotypes if tied else rng.choices(haplotypes, weights):
            bases = haplotype[start : start + length]
            if substitutions:
                bases = "".join(
                    rng.choice("ACGT") if rng.random() < substitutions else base for base in bases
                )
            if unknown:
                bases = "".join("N" if rng.random() < unknown else base for base in bases)
            reads.extend([(bases, qualities[: len(bases)])] * copies)
    rng.shuffle(reads)
    return reads if tied else reads[:number]


def random_case(
    rng: random.Random, k: int, draw: Callable[[random.Random, int], str] = random_genome
) -> Case:
    """Draw a contig out of a genome that ``draw`` makes, and reads over both of its ends."""
    length = max(
        1,
        rng.choice((k - 1, k, k + 1, k + 8, rng.randint(1, 140), 121, 127, 128, 129, 200, 300)),
    )
    if length < k and rng.random() < 0.7:
        length = k + rng.randint(0, 40)
    before, beyond = rng.choice((40, 150, 400)), rng.choice((40, 150, 400))
    genome = draw(rng, before + length + beyond)
    sequence = genome[before : before + length]
    right = reads_over_end(rng, genome, before + length, k)
    left = reads_over_end(rng, reverse_complement(genome), beyond + length, k)
    if rng.random() < 0.15:
        at = rng.randrange(max(0, length - 60), length)
        sequence = sequence[:at] + rng.choice("NnRx") + sequence[at + 1 :]
    if rng.random() < 0.1:
        sequence = sequence.lower()
    depth = rng.choice((0, 1, 2, 2.98, rng.randint(3, 14)))
    if rng.random() < 0.4:
        depth = rng.choice((rng.randint(5, 60), rng.uniform(0, 300), 1e4, 2**31, 1e15))
    fragments = None
    rng = random.Random(f"{length} {len(left)} {len(right)}")
    if rng.random() < 0.7:
        fragments = [f for reads in (left, right) for f in random_fragments(rng, len(reads))]
    return Case(sequence, left, right, float(depth), fragments)


def random_fragments(rng: random.Random, reads: int) -> list[int]:
    """Ascending numbers for so many reads, which one, two or many of them share."""
    return sorted(rng.choices(range(1 + reads // rng.choice((1, 2, 8))), k=reads))


def broken_run_case(k: int) -> Case:
    """Reads of one base that match everywhere, and one with a vote that leaves them all behind.

    A base after that they all match again: each of them is at all its places twice within a chunk.
    """
    silent: list[Read] = [("T" * 300, [2] * 300)] * 20
    right = [*silent, ("T" * k + "A" + "T" * 15, [40] * (k + 16))]
    left = [(reverse_complement(bases), qualities) for bases, qualities in right]
    return Case("T" * 200, left, right, 2.0)
