"""Alignments that the user made: BAM, SAM and CRAM, and PAF with the reads beside it.

They give what mapping gives (:mod:`dlasm.recruit`), by the same rules, except that a read's place
is its primary alignment, if that counts; secondary and supplementary alignments are ignored.

A BAM file of any sort order is read in bulk (:mod:`dlasm.io.bam`), once as a rule:

1. Where each read lies goes to a scratch file, 40 bytes a read, divided into parts by a hash of the
   read's name, so that mates meet whatever the order. Records that may become candidates, as far as
   they themselves tell, are kept in another.
2. Part by part, reads are joined with their mates, which gives facts and candidates.
3. Candidates are packed from the records kept. If the file does not tell where mates lie (SAM's
   RNEXT and PNEXT), some are not there, and the file is read once more.
4. Packed candidates, divided by their rank in the input, become runs.

So memory does not grow with the number of reads.

PAF holds no sequences and is in any order; it becomes an index on disk, sorted by a hash of the
read's name, in which batches of reads look up their places.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pysam

import dlasm._minimap as _minimap
import dlasm.kernels._cpu as _cpu
from dlasm.atomic import whole_file
from dlasm.errors import AlignmentsError
from dlasm.io.bam import PAIRED, REVERSE, ROW, WHOLE, AlignmentsFile, Records, in_order, records_of
from dlasm.io.streams import BlockReader, DamagedStreamError
from dlasm.params import HIGH_QUALITY, LOW_QUALITY, MIN_READ_LENGTH
from dlasm.recruit import (
    BatchFacts,
    BatchResult,
    Chosen,
    Placements,
    add_counts,
    choose,
)
from dlasm.runs import OVERHANG, CandidateRun, fragment_ids

if TYPE_CHECKING:
    from dlasm.io.fasta import Contigs
    from dlasm.io.fastq import ReadBatch

__all__ = ["PafPlacer", "alignment_warnings", "iter_bam_results", "write_paf_index"]

_MATE = np.uint64(3)
"""Bits of a name's key that tell the mate."""

_MEMORY = 256 << 20
"""Bytes to use for a BAM file unless the caller says other."""

_PART_BYTES = 4 << 20
"""Bytes of a BAM file whose reads are joined with their mates at a time; about 50,000 reads."""

_MAX_PARTS = 4096
"""Most parts of a BAM file: each is read in as many pieces as memory was full."""

_RANK_BINS = 1 << 16
"""Slices of the input in which candidates are counted, to divide them into runs of equal size."""

_CANDIDATES_PER_RUN = 100_000

_MOST_RUNS = 256
"""Runs of candidates of a BAM file; all are open at a time later on."""

_GATHERED = 10_000
"""Candidates whose words are put in order at a time."""

_MOST_FACTS = 64
"""Results of a BAM file that hold facts alone."""

_BUCKET_BYTES = 8 << 20
"""Bytes of a PAF file that make up one scratch file; about 100,000 reads."""

_MAX_FILES = 256
"""Scratch files open at a time; the usual limit of a process is 1024."""


def _name_keys(
    text: np.ndarray, start: np.ndarray, length: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return hashes of names, the last two bits 0, and the digit of a trailing /1 or /2, or 0."""
    hashes, digit = _minimap.hash_names(
        text, np.ascontiguousarray(start, np.int64), np.ascontiguousarray(length, np.int32)
    )
    return hashes & ~np.uint64(3), digit


def _keys_of_strings(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for strings."""
    encoded = [name.encode() for name in names]
    length = np.fromiter(map(len, encoded), np.int64, len(encoded))
    text = np.frombuffer(b"".join(encoded) + b"\0", dtype=np.uint8)
    return _name_keys(text, np.cumsum(length) - length, length)


class _ContigNames:
    """Finds contigs by the hash of their names."""

    def __init__(self, contigs: Contigs) -> None:
        hashes, digit = _name_keys(
            contigs.name_values, contigs.name_offsets[:-1], np.diff(contigs.name_offsets)
        )
        keys = hashes | digit
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]

    def find(self, hashes: np.ndarray, digit: np.ndarray) -> np.ndarray:
        """Return the index of each contig, -1 for a name that is not there."""
        keys = hashes | digit
        if not len(self.keys):
            return np.full(len(keys), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.order[at], -1).astype(np.int64)


# ---------------------------------------------------------------- BAM, SAM, CRAM

_CANDIDATE = np.dtype(
    [
        ("record", "i8"),
        ("rank", "i8"),  # of the read in the input
        ("end", "i8"),
        ("distance", "i4"),
        ("turn", "u1"),  # 1: the reverse complement of what the record holds is stored
    ],
    align=True,
)

_PACKED = np.dtype(
    [
        ("rank", "i8"),
        ("end", "i8"),
        ("distance", "i4"),
        ("length", "i4"),
        ("has_n", "u1"),
    ],
    align=True,
)


class _Spill:
    """Rows on disk, divided into parts; those of a part keep the order in which they were added.

    Parameters
    ----------
    path : Path
        File to write.
    dtype : numpy.dtype
        Of a row.
    parts : int
        Number of parts, at most 65536.
    memory : int
        Bytes of rows to collect before they are sorted by part and written.
    """

    def __init__(self, path: Path, dtype: np.dtype, parts: int, memory: int) -> None:
        self.dtype = np.dtype(dtype)
        self.parts = parts
        self._memory = memory
        self._held: list[tuple[np.ndarray, np.ndarray]] = []
        self._held_bytes = 0
        self._limits: list[np.ndarray] = []  # of each time it was written: first row of each part
        self._written = 0
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115

    def add(self, rows: np.ndarray, part: np.ndarray) -> None:
        """Add rows; ``part`` tells the part of each."""
        self._held.append((rows, part.astype(np.uint16)))  # of which numpy's stable sort is fast
        self._held_bytes += rows.nbytes
        if self._held_bytes >= self._memory:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if not self._held:
            return
        rows = np.concatenate([rows for rows, _ in self._held])
        part = np.concatenate([part for _, part in self._held])
        self._held.clear()
        self._held_bytes = 0
        count = np.bincount(part, minlength=self.parts)
        if self.parts > 1:
            rows = rows.take(np.argsort(part, kind="stable"))  # ten times as fast as rows[...]
        self._limits.append(self._written + np.concatenate([[0], np.cumsum(count)]))
        self._written += len(rows)
        view = rows.view(np.uint8).data
        while view:
            view = view[self._file.write(view) :]

    def __len__(self) -> int:
        return self._written + sum(len(rows) for rows, _ in self._held)

    def part(self, number: int) -> np.ndarray:
        """Return the rows of a part; several threads may do so after ``flush``."""
        self.flush()
        pieces = [(int(x[number]), int(x[number + 1])) for x in self._limits]
        rows = np.empty(sum(end - begin for begin, end in pieces), dtype=self.dtype)
        view = rows.view(np.uint8).data
        for begin, end in pieces:
            at, until = begin * self.dtype.itemsize, end * self.dtype.itemsize
            while at < until:
                got = os.preadv(self._file.fileno(), [view[: until - at]], at)
                if not got:
                    raise _cut_short(Path(self._file.name))
                at, view = at + got, view[got:]
        return rows

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


class _Kept:
    """Records that may become candidates, on disk, in the order of the file.

    Parameters
    ----------
    path : Path
        File to write.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w+b")  # noqa: SIM115
        self._pieces: list[tuple[int, int]] = []  # records and bytes of each

    def add(self, records: Records, index: np.ndarray) -> None:
        """Keep the records of these indices."""
        if len(index):
            text = records.copy(index)
            self._pieces.append((len(index), len(text)))
            self._file.write(records.number[index].data)
            self._file.write(text.data)

    def records(self) -> Iterator[Records]:
        """Read the records, some at a time."""
        path = Path(self._file.name)
        self._file.seek(0)
        for count, size in self._pieces:
            number = np.fromfile(self._file, dtype=np.int64, count=count)
            text = np.fromfile(self._file, dtype=np.uint8, count=size)
            if len(text) < size:
                raise _cut_short(path)
            yield records_of(path, text, number)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


def _cut_short(path: Path) -> AlignmentsError:
    return AlignmentsError(f"{path}: the scratch file was cut short while in use; run again")


def iter_bam_results(
    path: str | os.PathLike[str],
    contigs: Contigs,
    *,
    scratch: str | os.PathLike[str],
    library: int = 0,
    paired_fr: bool = True,
    bound: float,
    threads: int = 1,
    memory: int = _MEMORY,
    advance: Callable[[int], None] = lambda _records: None,
) -> Iterator[BatchResult]:
    """Read a BAM, SAM or CRAM file, in any order, as one library.

    Mates are found by name. Candidates of an end come in order of the first appearance of the
    pair's name, read 1 before read 2. Reads marked as duplicates or of low quality are used.

    Parameters
    ----------
    path : path-like
        The file; read once or twice.
    contigs : Contigs
        The references of the file, in any order.
    scratch : path-like
        Folder for temporary files: 40 bytes a read, and for each that may become a candidate some
        200 bytes and two a base; it is made, and emptied again.
    library : int
        Number of the library.
    paired_fr : bool
        Whether mates are projected.
    bound : float
        Mates are projected over distances below this, bases.
    threads : int
        Threads that decompress and sort. The results do not depend on them.
    memory : int
        Bytes to use, about, whatever the number of reads; for each thread some 20 MB more.
    advance : callable
        Told how many records were read.

    Yields
    ------
    BatchResult
        Candidates and facts, to be written as runs in this order. Counts: ``reads``,
        ``reads_placed``, ``reads_counted``, ``mates_missing`` and so on; see
        :func:`alignment_warnings`.

    Raises
    ------
    AlignmentsError
        If the file is missing, truncated or malformed, if its references are not the contigs, or
        if a name has more than one primary record of the same mate.
    """
    path, scratch = Path(path), Path(scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    threads = max(1, threads)
    source = AlignmentsFile(path, threads)
    contig = _match_references(path, source.references, source.lengths, contigs).astype(np.int32)
    if not len(contigs):
        return
    with ExitStack() as files:

        def spill(name: str, dtype: np.dtype, parts: int) -> _Spill:
            # it is held three times while it is sorted, and two are filled at a time
            new = _Spill(scratch / f"{name}.bin", dtype, parts, memory // 8)
            files.callback(new.close)
            return new

        if source.is_cram:
            source.reference = scratch / "reference.fa"
            for suffix in ("fa", "fa.fai"):
                files.callback((scratch / f"reference.{suffix}").unlink, missing_ok=True)
            _write_fasta(source.reference, contigs)

        parts = min(_MAX_PARTS, 1 + path.stat().st_size // _PART_BYTES)
        rows = spill("rows", ROW, parts)
        kept = _Kept(scratch / "records.bin")
        files.callback(kept.close)
        records = 0
        for chunk in source.records():
            new, index = chunk.rows(contig, contigs.lengths, bound if paired_fr else 0, threads)
            rows.add(new, ((new["name"] >> np.uint64(48)) * np.uint64(parts)) >> np.uint64(16))
            kept.add(chunk, index)
            records += len(chunk)
            advance(len(chunk))
        wanted = spill("candidates", _CANDIDATE, parts)
        rank_counts = np.zeros(_RANK_BINS, dtype=np.int64)

        def join(part: int) -> tuple[BatchFacts, np.ndarray]:
            sorted_rows = _sorted_rows(source, rows.part(part))
            return _join(sorted_rows, contigs.lengths, bound if paired_fr else None)

        rows.flush()
        facts: list[BatchFacts] = []
        joined = in_order(join, range(parts), threads)
        try:
            for number, (new_facts, candidates) in enumerate(joined, 1):
                facts.append(new_facts)
                wanted.add(candidates, candidates["record"] * parts // max(1, records))
                bins = _rank_bins(candidates["rank"], records)
                rank_counts += np.bincount(bins, minlength=_RANK_BINS)
                if number == parts or number % -(-parts // _MOST_FACTS) == 0:
                    yield BatchResult(run=_no_candidates(library), **vars(_add_facts(facts)))
                    facts.clear()
        finally:
            joined.close()
        rows.close()

        # runs are slices of the candidates by rank, so that read in order they keep the order
        total = int(rank_counts.sum())
        per_run = max(_CANDIDATES_PER_RUN, -(-total // _MOST_RUNS))
        run_of_bin = (np.cumsum(rank_counts) - rank_counts) // per_run
        runs = 1 + int(run_of_bin[-1]) if total else 0
        packed = spill("packed", _PACKED, max(1, runs))
        words = spill("words", np.dtype(np.uint32), max(1, runs))
        missing = spill("missing", _CANDIDATE, parts)

        def pack(candidates: np.ndarray, chunk: Records) -> None:
            new, new_words = _pack(candidates, chunk, threads)
            run = run_of_bin[_rank_bins(new["rank"], records)]
            packed.add(new, run)
            words.add(new_words, np.repeat(run, _words_of(new["length"])))

        for candidates, holder in _with_records(wanted, kept.records(), records):
            if holder is None:
                missing.add(candidates, candidates["record"] * parts // records)
            else:
                pack(candidates, holder)
        wanted.close()
        kept.close()
        if len(missing):
            for candidates, holder in _with_records(missing, source.records(), records):
                if holder is None:
                    raise AlignmentsError(f"{path}: the file changed while it was read; run again")
                pack(candidates, holder)
        for number in range(runs):
            run = _sorted_run(packed.part(number), words.part(number), library)
            yield BatchResult(run=run, **vars(_NO_FACTS))


def _pack(candidates: np.ndarray, chunk: Records, threads: int) -> tuple[np.ndarray, np.ndarray]:
    """Pack candidates from the records that hold them; give their rows and words."""
    record, at = np.unique(candidates["record"], return_inverse=True)
    text, base_start, quality_start, length = chunk.bases(np.searchsorted(chunk.number, record))
    words, _, has_n = _cpu.pack_reads(
        text,
        base_start[at],
        quality_start[at],
        length[at],
        np.ascontiguousarray(candidates["turn"]),
        0,  # qualities as BAM has them
        LOW_QUALITY,
        HIGH_QUALITY,
        threads,
    )
    rows = np.zeros(len(candidates), dtype=_PACKED)
    for name in ("rank", "end", "distance"):
        rows[name] = candidates[name]
    rows["length"], rows["has_n"] = length[at], has_n
    return rows, words


def _with_records(
    wanted: _Spill, chunks: Iterable[Records], records: int
) -> Iterator[tuple[np.ndarray, Records | None]]:
    """Give candidates with the records that hold them, or None if no chunk does."""
    waiting = np.empty(0, dtype=_CANDIDATE)
    part = 0
    left = len(wanted)
    for chunk in chunks if left else ():
        end = int(chunk.number[-1]) + 1
        while part < wanted.parts and part * records < end * wanted.parts:
            waiting = np.concatenate([waiting, wanted.part(part)])
            waiting = waiting[np.lexsort((waiting["end"], waiting["record"]))]
            part += 1
        here, waiting = np.split(waiting, [np.searchsorted(waiting["record"], end)])
        at = np.searchsorted(chunk.number, here["record"])
        found = chunk.number[at] == here["record"]
        if found.any():
            yield here[found], chunk
        if not found.all():
            yield here[~found], None
        left -= len(here)
        if not left:
            return
    if len(waiting):
        yield waiting, None
    for rest in range(part, wanted.parts):
        yield wanted.part(rest), None


def _sorted_rows(source: AlignmentsFile, rows: np.ndarray) -> np.ndarray:
    """Sort rows by name, then mate."""
    rows = rows.take(np.argsort(rows["name"]))
    name = rows["name"]
    twice = np.flatnonzero((name[1:] == name[:-1]) & ((name[1:] & _MATE) > 0))
    if len(twice):
        one, two = np.sort(rows["record"][name == name[twice[0]]])[:2]
        raise AlignmentsError(
            f"{source.path}: records {one + 1} and {two + 1} are both primary alignments "
            f"of read {name[twice[0]] & _MATE} of '{_name_of(source, one)}'; "
            "if several files were merged, give each by itself"
        )
    return rows


def _name_of(source: AlignmentsFile, record: int) -> str:
    """Return the name of a record, for messages."""
    for chunk in source.records():
        if record <= chunk.number[-1]:
            return chunk.name(record - int(chunk.number[0]))
    return "?"


def _join(
    rows: np.ndarray, contig_lengths: np.ndarray, bound: float | None
) -> tuple[BatchFacts, np.ndarray]:
    """Return facts and candidates of reads whose mates are all here, sorted by name."""
    mate, rank = _mates_and_ranks(rows)
    places = _primary_places(rows)
    found = choose(
        places,
        mate,
        np.ascontiguousarray(rows["length"]),
        contig_lengths,
        bound=0.0 if bound is None else bound,
        project=bound is not None,
        order=rank,
    )
    facts = _bam_facts(rows, found, mate)
    bits = rows["bits"][found.read]
    whole = (bits & WHOLE) != 0
    read = found.read[whole]
    candidates = np.zeros(len(read), dtype=_CANDIDATE)
    candidates["record"], candidates["rank"] = rows["record"][read], rank[read]
    candidates["end"], candidates["distance"] = found.end[whole], found.distance[whole]
    candidates["turn"] = found.turn[whole] ^ ((bits[whole] & REVERSE) != 0)
    overhanging = int(np.count_nonzero(candidates["distance"] == OVERHANG))
    facts.counts["candidates_without_bases"] = len(found.read) - len(read)
    facts.counts["overhanging"] = overhanging
    facts.counts["projected_within_bound"] = len(read) - overhanging
    return facts, candidates


def _mates_and_ranks(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each row's mate, or -1, and each row's rank in the input."""
    name = rows["name"]
    first = np.flatnonzero((name[1:] ^ name[:-1]) == _MATE)  # only 1 and 2 differ in both bits
    other = np.full(len(rows), -1, dtype=np.int64)
    other[first], other[first + 1] = first + 1, first
    appeared = rows["record"].copy()
    appeared[first] = appeared[first + 1] = np.minimum(appeared[first], appeared[first + 1])
    return other, 2 * appeared + ((name & _MATE) == 2)


def _primary_places(rows: np.ndarray) -> Placements:
    """Return the places of mapped reads that take part."""
    read = np.flatnonzero((rows["contig"] >= 0) & (rows["length"] >= MIN_READ_LENGTH))
    mapped = rows.take(read)
    return Placements(
        read=read,
        contig=mapped["contig"].astype(np.int64),
        contig_start=mapped["start"].astype(np.int64),
        contig_end=mapped["end"].astype(np.int64),
        left=np.ascontiguousarray(mapped["left"]),
        right=np.ascontiguousarray(mapped["right"]),
        reverse=((mapped["bits"] & REVERSE) != 0).astype(np.uint8),
        score=np.zeros(len(mapped), dtype=np.int32),
    )


def _bam_facts(rows: np.ndarray, found: Chosen, mate: np.ndarray) -> BatchFacts:
    """Return the facts of reads whose mates are all here."""
    paired = ((rows["bits"] & PAIRED) != 0) & ((rows["name"] & _MATE) > 0)
    return BatchFacts(
        inserts=found.inserts,
        insert_contig_length=found.insert_contig_length,
        orientations=found.orientations,
        aligned_contig=found.aligned_contig,
        aligned_bases=found.aligned_bases,
        counts={
            "reads": len(rows),
            "reads_too_short": int(np.count_nonzero(rows["length"] < MIN_READ_LENGTH)),
            "reads_placed": len(found.best),
            "reads_counted": int(np.count_nonzero(found.counted)),
            "reads_paired": int(np.count_nonzero(mate >= 0)),
            "mates_missing": int(np.count_nonzero(paired & (mate < 0))),
        },
    )


_NO_FACTS = BatchFacts(
    inserts=np.empty(0, np.int32),
    insert_contig_length=np.empty(0, np.int32),
    orientations=np.zeros(3, np.int64),
    aligned_contig=np.empty(0, np.int64),
    aligned_bases=np.empty(0, np.int64),
    counts={},
)


def _add_facts(facts: Sequence[BatchFacts]) -> BatchFacts:
    """Return the facts of several batches together."""
    counts: dict[str, int] = {}
    for each in facts:
        add_counts(counts, each.counts)
    contig, which = np.unique(
        np.concatenate([each.aligned_contig for each in facts]), return_inverse=True
    )
    bases = np.zeros(len(contig), dtype=np.int64)
    np.add.at(bases, which, np.concatenate([each.aligned_bases for each in facts]))
    return BatchFacts(
        inserts=np.concatenate([each.inserts for each in facts]),
        insert_contig_length=np.concatenate([each.insert_contig_length for each in facts]),
        orientations=np.sum([each.orientations for each in facts], axis=0),
        aligned_contig=contig,
        aligned_bases=bases,
        counts=counts,
    )


def _rank_bins(rank: np.ndarray, records: int) -> np.ndarray:
    """Return which of equally wide slices each rank is in."""
    return rank * _RANK_BINS // max(1, 2 * records)


def _words_of(length: np.ndarray) -> np.ndarray:
    """Return how many words a read of this many bases is packed in."""
    return 2 * (-(-length.astype(np.int64) // 16))


def _sorted_run(rows: np.ndarray, words: np.ndarray, library: int) -> CandidateRun:
    """Make a run of packed candidates."""
    order = np.lexsort((rows["rank"], rows["end"]))
    count = _words_of(rows["length"])
    start = (np.cumsum(count) - count)[order]
    rows, count = rows[order], count[order]
    word_offset = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
    sorted_words = np.empty_like(words)
    for i in range(0, len(rows), _GATHERED):  # indices take many times what the words take
        some = slice(i, i + _GATHERED)
        begin = word_offset[:-1][some]
        index = np.repeat(start[some] - (begin - begin[0]), count[some])
        index += np.arange(len(index))
        sorted_words[begin[0] : begin[0] + len(index)] = words[index]
    return CandidateRun(
        end=np.ascontiguousarray(rows["end"]),
        distance=np.ascontiguousarray(rows["distance"]),
        length=np.ascontiguousarray(rows["length"]),
        # of mates, which differ in the last bit of their rank
        fragment=fragment_ids(library, rows["rank"] // 2),
        has_n=np.ascontiguousarray(rows["has_n"]),
        word_offset=word_offset,
        words=sorted_words,
        library=library,
    )


def _no_candidates(library: int) -> CandidateRun:
    """Return a run that holds nothing."""
    return _sorted_run(np.empty(0, dtype=_PACKED), np.empty(0, dtype=np.uint32), library)


def alignment_warnings(counts: dict[str, int], name: str) -> list[str]:
    """Return what to tell the user about a BAM file, given the tallies of all of its results.

    Parameters
    ----------
    counts : dict of str to int
        Sums of :attr:`~dlasm.recruit.BatchFacts.counts`.
    name : str
        How messages call the file.
    """
    warnings = []
    if missing := counts.get("mates_missing", 0):
        warnings.append(
            f"{name}: {missing} of {counts['reads']} reads belong to pairs but their mates are not "
            "in the file; were unmapped reads left out? Unmapped mates of reads near contig ends "
            "are candidates and are lost here; keep them (samtools view without -F 4)"
        )
    if without := counts.get("candidates_without_bases", 0):
        warnings.append(
            f"{name}: {without} candidate reads have no whole sequence in their primary record "
            "(SEQ is * or hard-clipped) and were left out"
        )
    return warnings


def _write_fasta(path: Path, contigs: Contigs) -> None:
    """Write contigs as CRAM decoding needs them: upper case, a line each."""
    with open(path, "wb") as out:
        for i in range(len(contigs)):
            out.write(b">" + contigs.name(i).encode() + b"\n" + contigs.sequence(i).upper() + b"\n")
    pysam.faidx(str(path))


def _match_references(
    path: Path, names: Sequence[str], lengths: Sequence[int], contigs: Contigs
) -> np.ndarray:
    """Return the contig of each reference.

    Raises
    ------
    AlignmentsError
        If they are not the same, naming the first difference. Contigs without bases may be absent.
    """
    length = np.asarray(lengths, dtype=np.int64)
    contig = _ContigNames(contigs).find(*_keys_of_strings(names))
    remedy = "align the reads to these contigs, or give the contigs they were aligned to"
    if len(unknown := np.flatnonzero(contig < 0)):
        first = int(unknown[0])
        raise AlignmentsError(
            f"{path}: reference {first + 1}, '{names[first]}' ({length[first]} bases), is not one "
            f"of the {len(contigs)} contigs; {remedy}"
        )
    if len(other := np.flatnonzero(contigs.lengths[contig] != length)):
        first = int(other[0])
        raise AlignmentsError(
            f"{path}: reference {first + 1}, '{names[first]}', has {length[first]} bases, but the "
            f"contig of that name has {contigs.lengths[contig[first]]}; {remedy}"
        )
    absent = contigs.lengths > 0
    absent[contig] = False
    if absent.any():
        first = int(np.flatnonzero(absent)[0])
        raise AlignmentsError(
            f"{path}: contig {first + 1}, '{contigs.name(first)}' ({contigs.lengths[first]} "
            f"bases), is not among the {len(names)} references; {remedy}"
        )
    return contig


# ---------------------------------------------------------------- PAF

_PAF_ROW = np.dtype(
    [
        ("key", "u8"),  # hash of the read's name, the digit of /1 or /2 in the last two bits
        ("line", "i8"),
        ("contig", "i4"),
        ("start", "i4"),
        ("end", "i4"),
        ("left", "i4"),
        ("right", "i4"),
        ("length", "i4"),
        ("score", "i4"),
        ("primary", "u1"),  # 1: marked tp:A:P; 0: not marked
        ("reverse", "u1"),
    ],
    align=True,
)

_PAF_BLOCK = 16 << 20
"""Bytes of PAF parsed at a time."""

_PAF_INDEX = "places.npy"


def write_paf_index(
    path: str | os.PathLike[str], contigs: Contigs, folder: str | os.PathLike[str]
) -> Path:
    """Make an index of a PAF file, sorted by read, that :class:`PafPlacer` reads.

    Lines marked secondary (``tp:A:S``) are left out; of several marked primary the one of highest
    score is the primary alignment (the others are what SAM calls supplementary). Lines without
    that tag are all taken, and the rules of :mod:`dlasm.recruit` choose. The score is tag ``AS``,
    or the number of matches.

    Parameters
    ----------
    path : path-like
        The PAF file, plain or compressed.
    contigs : Contigs
        Its targets.
    folder : path-like
        Where to write the index; made if it is not there.

    Returns
    -------
    Path
        ``folder``.

    Raises
    ------
    AlignmentsError
        If the file cannot be read, a line is malformed or names a target that is not one of the
        contigs, or minimap2 was run without base-level alignment (``-c``).
    """
    path, folder = Path(path), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size if path.is_file() else 0
    count = min(_MAX_FILES, 1 + size // _BUCKET_BYTES)
    parts = [folder / f"part_{i}.bin" for i in range(count)]
    names = _ContigNames(contigs)
    with ExitStack() as files:
        for part in parts:
            files.callback(part.unlink, missing_ok=True)
        with ExitStack() as open_files:
            outputs = [open_files.enter_context(open(part, "wb")) for part in parts]
            for rows in _iter_paf(path, contigs, names):
                # the highest bits divide, so that the parts one after another are sorted
                bucket = ((rows["key"] >> np.uint64(40)) * np.uint64(count)) >> np.uint64(24)
                order = np.argsort(bucket, kind="stable")
                limits = np.searchsorted(bucket[order], np.arange(count + 1, dtype=np.uint64))
                for i, output in enumerate(outputs):
                    rows[order[limits[i] : limits[i + 1]]].tofile(output)
        with whole_file(folder / _PAF_INDEX) as out:
            for part in parts:
                rows = _one_primary(np.fromfile(part, dtype=_PAF_ROW))
                rows.tofile(out)
    return folder


def _one_primary(rows: np.ndarray) -> np.ndarray:
    """Sort rows by read, best score first, then line; keep one primary row of each read."""
    rows = rows[
        np.lexsort((rows["line"], -rows["score"].astype(np.int64), rows["primary"], rows["key"]))
    ]
    again = np.zeros(len(rows), dtype=bool)
    again[1:] = (
        (rows["key"][1:] == rows["key"][:-1])
        & (rows["primary"][1:] == 1)
        & (rows["primary"][:-1] == 1)
    )
    return rows[~again]


def _iter_paf(path: Path, contigs: Contigs, names: _ContigNames) -> Iterator[np.ndarray]:
    """Rows of the lines that are not marked secondary, some at a time."""
    rest = np.empty(0, dtype=np.uint8)
    line = 0
    with BlockReader(path, AlignmentsError, _PAF_BLOCK) as stream:
        more = True
        while more:
            try:
                block = stream.read()
            except DamagedStreamError as problem:
                raise AlignmentsError(
                    f"{path}: after line {line}: {problem}; make the file again"
                ) from problem
            more = block is not None
            text = rest if block is None else np.concatenate([rest, block])
            line_ends = np.flatnonzero(text == ord("\n"))
            until = len(text) if not more else int(line_ends[-1]) + 1 if len(line_ends) else 0
            rest = text[until:]
            rows, lines = _paf_rows(path, line, text[:until], contigs, names)
            line += lines
            if len(rows):
                yield rows


def _paf_rows(
    path: Path, before: int, text: np.ndarray, contigs: Contigs, names: _ContigNames
) -> tuple[np.ndarray, int]:
    """Rows of whole lines of PAF, and the number of lines."""
    columns = _minimap.parse_paf(text)
    start, length = columns["contig_name_start"], columns["contig_name_length"]
    contig = names.find(*_name_keys(text, start, length))
    known = contig >= 0
    known[known] = contigs.lengths[contig[known]] == columns["contig_length"][known]
    rough = columns["rough"] != 0
    if len(faulty := np.flatnonzero(rough | ~known)):
        first = int(faulty[0])
        where = f"{path}: line {before + columns['line'][first] + 1}"
        if rough[first]:
            raise AlignmentsError(
                f"{where} tells roughly where the read lies, but not base by base; run minimap2 "
                "with option -c"
            )
        name = text[start[first] : start[first] + length[first]].tobytes().decode(errors="replace")
        found = (
            "is not one of the contigs"
            if contig[first] < 0
            else f"has {columns['contig_length'][first]} bases there, but the contig has "
            f"{contigs.lengths[contig[first]]}"
        )
        raise AlignmentsError(f"{where}: target '{name}' {found}; align the reads to these contigs")
    if columns["problem"]:  # with the line after these
        raise AlignmentsError(
            f"{path}: line {before + columns['lines'] + 1} {columns['problem']}; "
            "is the file PAF, and whole?"
        )
    kind = columns["kind"]
    taken = np.flatnonzero((kind == ord("P")) | (kind == 0))
    rows = np.zeros(len(taken), dtype=_PAF_ROW)
    score = columns["score"]
    score = np.where(score == np.iinfo(np.int32).min, columns["matches"], score)
    rows["key"] = ((columns["read"] & ~np.uint64(3)) | columns["mate"])[taken]
    rows["line"] = before + columns["line"][taken]
    rows["contig"], rows["score"] = contig[taken], score[taken]
    rows["start"], rows["end"] = columns["contig_start"][taken], columns["contig_end"][taken]
    rows["left"], rows["right"] = columns["left"][taken], columns["right"][taken]
    rows["length"], rows["reverse"] = columns["read_length"][taken], columns["reverse"][taken]
    rows["primary"] = kind[taken] == ord("P")
    return rows, columns["lines"]


class PafPlacer:
    """Places of reads from a PAF file; in the place of :class:`dlasm.mapping.Aligner`.

    Mates are told apart by ``/1`` and ``/2`` at the end of the names in PAF, or by whatever else
    makes the two names differ (``_1``, ``_2``). minimap2 writes names as they are in the reads, so
    in PAF of reads whose mates bear the same name they cannot be told apart.

    Parameters
    ----------
    folder : path-like
        An index that :func:`write_paf_index` made. It is memory-mapped.
    name : str
        How messages call the PAF file.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str = "PAF") -> None:
        path = Path(folder) / _PAF_INDEX
        self.name = name
        self.rows: np.ndarray = np.empty(0, dtype=_PAF_ROW)
        if path.stat().st_size:  # an empty file cannot be mapped
            self.rows = np.memmap(path, dtype=_PAF_ROW, mode="r")

    def place(self, batch: ReadBatch, threads: int = 1) -> Placements:  # noqa: ARG002
        """Return the places of the reads of ``batch``.

        Raises
        ------
        AlignmentsError
            If mates cannot be told apart by name, or a read has another length than in PAF.
        """
        hashes, digit = _name_keys(batch.text, batch.name_start, batch.name_length)
        position = np.arange(len(batch), dtype=np.int64)
        if batch.paired:
            number = (1 + (position & 1)).astype(np.uint8)
            first, count = self._find(hashes | np.where(digit > 0, digit, number))
            bare_first, bare_count = self._find(hashes)
            same_name = (bare_count > 0) & ((batch.mate_suffix_length == 0) | (digit > 0))
            if same_name.any():
                one = int(np.flatnonzero(same_name)[0])
                raise AlignmentsError(
                    f"{self.name}: '{self._read_name(batch, one)}' does not say which mate is "
                    "meant; align reads whose names end in /1 and /2, or give a BAM file"
                )
            use_bare = count == 0
            first = np.where(use_bare, bare_first, first)
            count = np.where(use_bare, bare_count, count)
        else:
            first, count = self._find(hashes | digit)
        read = np.repeat(position, count)
        within = np.arange(len(read), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
        rows = self.rows[np.repeat(first, count) + within]
        if len(other := np.flatnonzero(rows["length"] != batch.length[read])):
            row = int(other[0])
            raise AlignmentsError(
                f"{self.name}: line {rows['line'][row] + 1} says that "
                f"'{self._read_name(batch, int(read[row]))}' has {rows['length'][row]} bases, "
                f"but the read has {batch.length[read[row]]}; give the reads that were aligned"
            )
        return Placements(
            read=read,
            contig=rows["contig"].astype(np.int64),
            contig_start=rows["start"].astype(np.int64),
            contig_end=rows["end"].astype(np.int64),
            left=np.ascontiguousarray(rows["left"]),
            right=np.ascontiguousarray(rows["right"]),
            reverse=np.ascontiguousarray(rows["reverse"]),
            score=np.ascontiguousarray(rows["score"]),
        )

    def _find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first row and the number of rows of each key."""
        order = np.argsort(keys)  # neighbours in the index are looked up one after another
        first = np.empty(len(keys), dtype=np.int64)
        last = np.empty(len(keys), dtype=np.int64)
        known = self.rows["key"]
        first[order] = np.searchsorted(known, keys[order], side="left")
        last[order] = np.searchsorted(known, keys[order], side="right")
        return first, last - first

    @staticmethod
    def _read_name(batch: ReadBatch, read: int) -> str:
        """Return the name of a read, for messages."""
        begin = int(batch.name_start[read])
        name = batch.text[begin : begin + int(batch.name_length[read])]
        return name.tobytes().decode(errors="replace")
