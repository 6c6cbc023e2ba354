"""Choosing candidate reads, written plainly: dicts, strings and loops, to test dlasm against."""

from __future__ import annotations

from dataclasses import dataclass

COMPLEMENT = str.maketrans("ACGTN", "TGCAN")


def reverse_complement(bases: str) -> str:
    return bases.translate(COMPLEMENT)[::-1]


@dataclass(frozen=True)
class Place:
    contig: int
    start: int
    end: int
    left: int  # read bases left of the aligned part, contig direction
    right: int
    reverse: bool
    score: int


def counts(place: Place, length: int) -> bool:
    return min(place.left, place.start) <= 1 and min(place.right, length - place.end) <= 1


def choose(places: list[Place], lengths: list[int]) -> Place | None:
    """The place of a read, if any of its places counts."""
    good = [p for p in places if counts(p, lengths[p.contig])]
    if not good:
        return None
    return min(good, key=lambda p: (-p.score, lengths[p.contig], p.contig, p.start, p.reverse))


def depth_place(places: list[Place], lengths: list[int]) -> Place | None:
    """The place of a read where depth is counted."""
    chosen = choose(places, lengths)
    if chosen is None and places:
        chosen = min(
            places, key=lambda p: (-p.score, lengths[p.contig], p.contig, p.start, p.reverse)
        )
    return chosen


def hangs_over(place: Place, length: int) -> bool:
    return place.left > place.start or place.right > length - place.end


def candidates(
    reads: list[str], places: list[list[Place]], lengths: list[int], paired: bool, reach: float
) -> dict[int, list[tuple[int, str, int]]]:
    """Candidates of every end that has any: (index, bases as stored, distance or -1), in order."""
    chosen = [choose(places[i], lengths) if len(reads[i]) > 21 else None for i in range(len(reads))]
    found: dict[int, dict[int, tuple[int, str, int]]] = {}

    def offer(end: int, i: int, turned: bool, distance: int) -> None:
        if len(reads[i]) <= 21:
            return
        bases = "".join(b if b in "ACGT" else "N" for b in reads[i].upper())
        assert i not in found.get(end, {}), "a read is a candidate of an end once"
        stored = reverse_complement(bases) if turned else bases
        found.setdefault(end, {})[i] = (i, stored, distance)

    for i, place in enumerate(chosen):
        if place is None:
            continue
        length = lengths[place.contig]
        left_end, right_end = 2 * place.contig, 2 * place.contig + 1
        if place.left > place.start:
            offer(left_end, i, not place.reverse, -1)
        if place.right > length - place.end:
            offer(right_end, i, place.reverse, -1)
        if not paired:
            continue
        mate = i ^ 1
        mate_place = chosen[mate]
        if mate_place is not None and mate_place.contig == place.contig:
            continue
        if not place.reverse:
            distance = length - (place.start - place.left)
            if distance < reach:
                offer(right_end, mate, True, distance)
        else:
            distance = place.end + place.right
            if distance < reach:
                offer(left_end, mate, True, distance)
    return {end: [by_read[i] for i in sorted(by_read)] for end, by_read in found.items()}


def inserts(
    places: list[list[Place]], reads: list[str], lengths: list[int]
) -> tuple[list[tuple[int, int]], list[int]]:
    """(insert, length of the contig) of pairs facing each other inside a contig; orientations."""
    result, orientations = [], [0, 0, 0]
    for i in range(0, len(reads), 2):
        pair = []
        for j in (i, i + 1):
            place = choose(places[j], lengths) if len(reads[j]) > 21 else None
            if place is not None and not hangs_over(place, lengths[place.contig]):
                pair.append(place)
        if len(pair) < 2 or pair[0].contig != pair[1].contig:
            continue
        if pair[0].reverse == pair[1].reverse:
            orientations[2] += 1
            continue
        plus, minus = sorted(pair, key=lambda p: p.reverse)
        insert = (minus.end + minus.right) - (plus.start - plus.left)
        if insert > 0:
            orientations[0] += 1
            result.append((insert, lengths[plus.contig]))
        else:
            orientations[1] += 1
    return result, orientations


def insert_size(pairs: list[tuple[int, int]]) -> tuple[float, float, int] | None:
    """Mean, sd and number of pairs; None with fewer than 100."""
    if len(pairs) < 100:
        return None
    ordered = sorted(insert for insert, _ in pairs)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    taken = sorted(insert for insert, length in pairs if length >= 3 * median)
    if len(taken) < 100:
        return None
    cut = len(taken) // 100
    kept = taken[cut : len(taken) - cut]
    mean = sum(kept) / len(kept)
    variance = sum((x - mean) ** 2 for x in kept) / (len(kept) - 1)
    return mean, variance**0.5, len(taken)
