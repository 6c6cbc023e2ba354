"""Candidates that dlasm's own mapper finds, beside minimap2's on the same reads, and their cost.

A candidate of minimap2 that dlasm lacks is *lost*; *excused* if dlasm has a place of the read (or
of the mate that offers it) that scores as much or more, or the read itself a better one elsewhere;
else *really lost*. minimap2's ``AS`` counts bases that its end-to-end alignments leave out again,
so for that its places are scored anew, by the best global alignment of what they align.

With genomes that the reads were simulated from (a read is named after its sequence, up to the last
``-``), overhanging reads are judged too, at the ends whose place in the genomes is certain: a
31-mer 250 bases inside occurs once, and the last one lies where that says. True are the reads that
minimap2 places over that point in the sequence they are named after.

    python workflows/benchmarks/recruiter.py mock contigs.fa.gz r1.fq.gz r2.fq.gz genomes.fa.gz
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from dataclasses import fields

import numpy as np

from dlasm.io.fasta import Contigs, read_contigs
from dlasm.io.fastq import Library, ReadBatch, ReadCounts, iter_batches
from dlasm.mapping import Aligner, EndsMapper
from dlasm.recruit import Chosen, Placements, choose
from dlasm.runs import OVERHANG

BOUND = 500.0  # bases; mates are projected so far, about the reach of the libraries measured here
K = 31  # bases; of the words that tell where a contig end lies
INSIDE = 250  # bases before the end
MATCH, MISMATCH, AMBIGUOUS = 2, -8, -1
GAPS = ((12, 2), (24, 1))  # open, extend; minimap2 -x sr
COMPLEMENT = np.arange(256, dtype=np.uint8)
COMPLEMENT[np.frombuffer(b"ACGTacgt", dtype=np.uint8)] = np.frombuffer(b"TGCATGCA", dtype=np.uint8)


def select_rows(places: Placements, rows: np.ndarray) -> Placements:
    """Return some rows of placements, by number or mask."""
    return Placements(**{f.name: getattr(places, f.name)[rows] for f in fields(Placements)})


def best_places(places: Placements, lengths: np.ndarray) -> Placements:
    """Return the best place of each read, counted or not, by rule 2 of dlasm.recruit."""
    order = np.lexsort(
        (
            places.reverse,
            places.contig_start,
            places.contig,
            lengths[places.contig],
            -places.score.astype(np.int64),
            places.read,
        )
    )
    read = places.read[order]
    first = np.ones(len(read), dtype=bool)
    first[1:] = read[1:] != read[:-1]
    return select_rows(places, order[first])


def true_scores(places: Placements, batch: ReadBatch, contigs: Contigs) -> np.ndarray:
    """Return the best score of a global alignment of what each place aligns, all at once."""
    reads, parts = [], []
    for i, r in enumerate(places.read):
        begin = batch.base_start[r]
        read = batch.text[begin : begin + batch.length[r]]
        read = COMPLEMENT[read[::-1]] if places.reverse[i] else read
        reads.append(read[places.left[i] : len(read) - places.right[i]] & 0xDF)
        first = contigs.offsets[places.contig[i]]
        part = contigs.bases[first + places.contig_start[i] : first + places.contig_end[i]]
        parts.append(part & 0xDF)
    count = len(reads)
    if count == 0:
        return np.empty(0, dtype=np.int64)
    rows, columns = max(map(len, reads)), max(map(len, parts))
    a, b = np.zeros((count, rows), np.uint8), np.zeros((count, columns), np.uint8)
    for i in range(count):
        a[i, : len(reads[i])] = reads[i]
        b[i, : len(parts[i])] = parts[i]
    low = -(10**6)
    at = np.arange(columns + 1)
    first_row = -np.minimum(*(opening + extend * at for opening, extend in GAPS))
    first_row[0] = 0
    h = np.tile(first_row, (count, 1))
    insertion = [np.full_like(h, low) for _ in GAPS]
    result = np.zeros(count, dtype=np.int64)
    known = np.isin(b, np.frombuffer(b"ACGT", dtype=np.uint8))
    for i in range(1, rows + 1):
        base = a[:, i - 1 : i]
        sure = known & np.isin(base, np.frombuffer(b"ACGT", dtype=np.uint8))
        pair = np.where(sure, np.where(base == b, MATCH, MISMATCH), AMBIGUOUS)
        now = np.full_like(h, low)
        now[:, 1:] = h[:, :-1] + pair
        for gap, (opening, extend) in enumerate(GAPS):
            np.maximum(h - opening - extend, insertion[gap] - extend, out=insertion[gap])
            np.maximum(now, insertion[gap], out=now)
        # a deletion opens at the best cell before, as it costs the same for each base more
        begun = now.copy()
        for opening, extend in GAPS:
            best = np.maximum.accumulate(begun + extend * at, axis=1) - opening - extend * at
            np.maximum(now, best, out=now)
        h = now
        for r in np.flatnonzero([len(read) == i for read in reads]):
            result[r] = h[r, len(parts[r])]
    return result


def compare(
    batch: ReadBatch,
    contigs: Contigs,
    ours: Chosen,
    own: Placements,
    theirs: Chosen,
    other: Placements,
) -> tuple[int, int]:
    """Return how many of minimap2's candidates are lost, and how many of them really."""
    count = len(batch)
    rows = np.flatnonzero(~np.isin(theirs.end * count + theirs.read, ours.end * count + ours.read))
    read = theirs.read[rows]
    offered = theirs.distance[rows] != OVERHANG
    source = np.where(offered, read ^ 1, read)
    score = np.full(count, np.iinfo(np.int32).min, dtype=np.int64)
    score[own.read] = own.score
    needed = np.isin(other.read, np.concatenate([source, read]))
    places = select_rows(other, needed)
    expected = np.full(count, np.iinfo(np.int32).min, dtype=np.int64)
    expected[places.read] = true_scores(places, batch, contigs)
    excused = score[source] >= expected[source]
    excused |= offered & (score[read] > expected[read])
    return len(rows), int((~excused).sum())


# ---------------------------------------------------------------- truth


def words(codes: np.ndarray) -> np.ndarray:
    """Return the 31-mers of codes as numbers, -1 where one holds another character."""
    count = max(0, len(codes) - K + 1)
    out = np.zeros(count, dtype=np.int64)
    bad = np.zeros(count, dtype=bool)
    for i in range(K):
        part = codes[i : i + count]
        out = (out << 2) | (part & 3)
        bad |= part > 3
    out[bad] = -1
    return out


CODES = np.full(256, 4, dtype=np.int64)
CODES[np.frombuffer(b"ACGTacgt", dtype=np.uint8)] = np.tile(np.arange(4), 2)


class Truth:
    """Where contig ends lie in genomes, and which reads lie over them.

    A point is where the contig ends: the place of the base after its last, in the direction of the
    contig, or for a contig on the other strand of its last base.
    """

    def __init__(self, contigs: Contigs, genomes: Contigs) -> None:
        self.genomes = genomes
        self.names = {
            genomes.name_values[a:b].tobytes().decode(): i
            for i, (a, b) in enumerate(
                zip(genomes.name_offsets[:-1], genomes.name_offsets[1:], strict=True)
            )
        }
        self.aligner = Aligner(genomes)
        # of each end in outward direction: the word inside, the last word, how far they are apart
        inside, last, apart, number = [], [], [], []
        for c in range(len(contigs.lengths)):
            codes = CODES[contigs.bases[contigs.offsets[c] : contigs.offsets[c + 1]]]
            if len(codes) < K:
                continue
            for side in (0, 1):
                outward = codes if side else np.where(codes > 3, 4, 3 - codes)[::-1]
                tail = words(outward[-min(len(codes), INSIDE) :])
                inside.append(tail[0])
                last.append(tail[-1])
                apart.append(len(tail) - 1)
                number.append(2 * c + side)
        order = np.argsort(inside, kind="stable")
        self.inside, self.last, self.apart, self.number = (
            np.array(v, dtype=np.int64)[order] for v in (inside, last, apart, number)
        )
        seen = np.zeros(len(order), dtype=np.int64)
        point = np.full(len(order), -1, dtype=np.int64)
        sequence = np.full(len(order), -1, dtype=np.int64)
        forward = np.zeros(len(order), dtype=bool)
        for g in range(len(genomes.lengths)):
            codes = CODES[genomes.bases[genomes.offsets[g] : genomes.offsets[g + 1]]]
            for strand in (True, False):
                here = words(codes if strand else np.where(codes > 3, 4, 3 - codes)[::-1])
                places = np.flatnonzero(np.isin(here, self.inside))
                low = np.searchsorted(self.inside, here[places], "left")
                high = np.searchsorted(self.inside, here[places], "right")
                for place, a, b in zip(places, low, high, strict=True):
                    seen[a:b] += 1
                    for i in range(a, b):
                        end = place + self.apart[i]
                        if end < len(here) and here[end] == self.last[i]:
                            sequence[i], forward[i] = g, strand
                            point[i] = end + K if strand else len(codes) - end - K
        certain = (seen == 1) & (self.inside >= 0) & (point >= 0)
        by_place = np.lexsort((point[certain], sequence[certain]))
        self.number = self.number[certain][by_place]
        self.sequence, self.point = sequence[certain][by_place], point[certain][by_place]

    def candidates(self, batch: ReadBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of end and read as ``end * reads + read``, and which reads are known."""
        source = np.full(len(batch), -1, dtype=np.int64)
        for i in range(len(batch)):
            name = batch.name(i)
            source[i] = self.names.get(name[: name.rfind("-")], -1)
        places = self.aligner.place(batch)
        places = select_rows(places, places.contig == source[places.read])
        places = best_places(places, self.genomes.lengths)
        known = np.zeros(len(batch), dtype=bool)
        known[places.read] = True
        start = places.contig_start - places.left
        end = places.contig_end + places.right
        size = int(self.genomes.lengths.max()) + 10_000
        keys = self.sequence * size + self.point
        low = np.searchsorted(keys, places.contig * size + start, "right")
        high = np.searchsorted(keys, places.contig * size + end, "left")
        pairs = [
            self.number[i] * len(batch) + read
            for read, a, b in zip(places.read, low, high, strict=True)
            for i in range(a, b)
        ]
        return np.unique(np.array(pairs, dtype=np.int64)), known


# ---------------------------------------------------------------- measuring


def main() -> None:
    """Measure one data set and print a row for each mapper as CSV."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("contigs")
    parser.add_argument("reads_1")
    parser.add_argument("reads_2")
    parser.add_argument("genomes", nargs="?")
    parser.add_argument("--every", type=int, default=1, help="take every n-th batch of reads")
    parser.add_argument("--no-header", action="store_true")
    args = parser.parse_args()
    contigs = read_contigs(args.contigs)
    lengths = contigs.lengths
    started = time.process_time()
    mapper = EndsMapper(contigs)
    index_s = time.process_time() - started
    aligner = Aligner(contigs)
    truth = Truth(contigs, read_contigs(args.genomes)) if args.genomes else None
    reads = lost = really = true = 0
    cpu, found, right, judged = [0.0, 0.0], [0, 0], [0, 0], [0, 0]
    batches = iter_batches(Library("pairs", (args.reads_1, args.reads_2)), counts=ReadCounts())
    for i, batch in enumerate(batches):
        if i % args.every:
            continue
        count = len(batch)
        reads += count
        mate = np.arange(count, dtype=np.int64) ^ 1
        places, candidates = [], []
        for which, one in enumerate((mapper, aligner)):
            started = time.process_time()
            placed = one.place(batch)
            cpu[which] += time.process_time() - started
            candidates.append(choose(placed, mate, batch.length, lengths, bound=BOUND))
            rows = candidates[-1].best[candidates[-1].counted != 0]
            places.append(select_rows(placed, rows))
            found[which] += len(candidates[-1].read)
        here = compare(batch, contigs, candidates[0], places[0], candidates[1], places[1])
        lost, really = lost + here[0], really + here[1]
        if truth is None:
            continue
        expected, known = truth.candidates(batch)
        true += len(expected)
        for which, given in enumerate(candidates):
            over = (given.distance == OVERHANG) & np.isin(given.end, truth.number)
            over &= known[given.read]
            pairs = given.end[over] * count + given.read[over]
            judged[which] += len(pairs)
            right[which] += int(np.isin(pairs, expected).sum())
    table = []
    for which, what in enumerate(("ends", "minimap2")):
        row = {
            "data": args.name,
            "mapper": what,
            "reads": reads,
            "candidates": found[which],
            "lost": lost if which == 0 else "",
            "excused": lost - really if which == 0 else "",
            "really_lost": really if which == 0 else "",
            "really_lost_percent": f"{100 * really / max(1, found[1]):.3f}" if which == 0 else "",
            "true_overhangs": true if truth else "",
            "recall_percent": f"{100 * right[which] / max(1, true):.2f}" if truth else "",
            "precision_percent": (
                f"{100 * right[which] / max(1, judged[which]):.2f}" if truth else ""
            ),
            "cpu_s": f"{cpu[which]:.2f}",
            "us_per_read": f"{1e6 * cpu[which] / max(1, reads):.2f}",
            "index_s": f"{index_s:.2f}" if which == 0 else "",
            "index_bytes_per_base": (
                f"{mapper.nbytes / max(1, len(contigs.bases)):.2f}" if which == 0 else ""
            ),
        }
        table.append(row)
    writer = csv.DictWriter(sys.stdout, table[0], lineterminator="\n")
    if not args.no_header:
        writer.writeheader()
    writer.writerows(table)


if __name__ == "__main__":
    main()
