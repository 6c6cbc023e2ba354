"""Alignments that the user made: BAM, SAM and CRAM through pysam, and PAF with the reads beside it.

They give what mapping gives (:mod:`dlasm.recruit`), by the same rules, except that a read's place
is its primary alignment, if that counts; secondary and supplementary alignments are ignored.

A BAM file of any sort order is read twice. The first pass writes where each read lies, 48 bytes a
read, to scratch files divided by a hash of the read's name, so that mates meet whatever the order;
one file at a time gives the candidates. The second pass collects the bases of the candidates. So
memory grows with the number of reads near contig ends only.

PAF holds no sequences and is in any order; it becomes an index on disk, sorted by a hash of the
read's name, in which batches of reads look up their places.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pysam

import dlasm._minimap as _minimap
import dlasm.kernels._cpu as _cpu
from dlasm.atomic import whole_file
from dlasm.errors import AlignmentsError
from dlasm.io.streams import BlockReader, DamagedStreamError
from dlasm.params import HIGH_QUALITY, LOW_QUALITY, MIN_READ_LENGTH
from dlasm.recruit import (
    BatchFacts,
    BatchResult,
    Candidates,
    Placements,
    aligned_bases,
    find_candidates,
    is_counted,
    pair_facts,
    select_rows,
)
from dlasm.runs import OVERHANG, CandidateRun

if TYPE_CHECKING:
    from dlasm.io.fasta import Contigs
    from dlasm.io.fastq import ReadBatch

__all__ = ["PafPlacer", "alignment_warnings", "iter_bam_results", "write_paf_index"]

_PAIRED, _UNMAPPED, _REVERSE, _READ1, _READ2 = 0x1, 0x4, 0x10, 0x40, 0x80
_NOT_PRIMARY = 0x100 | 0x800  # secondary, supplementary
_SOFT_CLIP, _HARD_CLIP = 4, 5

_CHUNK_RECORDS = 50_000
"""Records taken from pysam before they become arrays."""

_BUCKET_BYTES = 8 << 20
"""Bytes of a BAM file that make up one scratch file; about 100,000 reads."""

_MAX_FILES = 256
"""Scratch files open at a time; the usual limit of a process is 1024."""

_SCRATCH_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What cannot be the fault of a file that is read."""

_CANDIDATES_PER_RUN = 100_000


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
    text = np.frombuffer(("\n".join(names) + "\n").encode(), dtype=np.uint8)
    end = np.flatnonzero(text == ord("\n")) if len(names) else np.empty(0, np.int64)
    start = np.concatenate([np.zeros(1, np.int64), end + 1])[: len(names)]
    return _name_keys(text, start, end - start)


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

_ROW = np.dtype(
    [
        ("name", "u8"),  # hash
        ("record", "i8"),  # number of the record in the file, from 0
        ("contig", "i4"),  # -1: unmapped
        ("start", "i4"),
        ("end", "i4"),
        ("left", "i4"),  # clipped bases, contig direction
        ("right", "i4"),
        ("length", "i4"),  # of the read, hard-clipped bases included
        ("flag", "u2"),
        ("mate", "u1"),  # 1 or 2; 0: a single read
        ("whole", "u1"),  # 1: all bases of the read are in the record
    ],
    align=True,
)


def iter_bam_results(
    path: str | os.PathLike[str],
    contigs: Contigs,
    *,
    scratch: str | os.PathLike[str],
    library: int = 0,
    paired_fr: bool = True,
    bound: float,
    threads: int = 1,
) -> Iterator[BatchResult]:
    """Read a BAM, SAM or CRAM file, in any order, as one library.

    Mates are found by name. Candidates of an end come in order of the first appearance of the
    pair's name, read 1 before read 2. Reads marked as duplicates or of low quality are used.

    Parameters
    ----------
    path : path-like
        The file; read twice.
    contigs : Contigs
        The references of the file, in any order.
    scratch : path-like
        Folder for temporary files, about 48 bytes a read; it is made, and emptied again.
    library : int
        Number of the library.
    paired_fr : bool
        Whether mates are projected.
    bound : float
        Mates are projected over distances below this, bases.
    threads : int
        Threads that decompress.

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
    with ExitStack() as files:
        source = _BamSource(path, threads)
        files.callback(source.remove)
        source.check(contigs, scratch)
        if not len(contigs):
            return
        buckets = _write_rows(source, scratch, files)
        facts: list[BatchFacts] = []
        pieces: list[Candidates] = []
        flags: list[np.ndarray] = []
        ranks: list[np.ndarray] = []
        for bucket in buckets:
            rows = _sorted_rows(source, bucket)
            mate, rank = _mates_and_ranks(rows)
            places = _primary_places(rows)
            counted = select_rows(places, is_counted(places, contigs.lengths))
            batch_facts = _bam_facts(rows, places, counted, mate, contigs.lengths)
            found = find_candidates(
                counted, mate if paired_fr else None, rows["length"], rank, contigs.lengths, bound
            )
            whole = rows["whole"][found.read] == 1
            batch_facts.counts["candidates_without_bases"] = int(np.count_nonzero(~whole))
            batch_facts.counts["overhanging"] = int(
                np.count_nonzero(found.distance[whole] == OVERHANG)
            )
            batch_facts.counts["projected_within_bound"] = int(
                np.count_nonzero(found.distance[whole] != OVERHANG)
            )
            facts.append(batch_facts)
            read = found.read[whole]
            pieces.append(
                Candidates(
                    rows["record"][read], found.end[whole], found.distance[whole], found.turn[whole]
                )
            )
            flags.append(rows["flag"][read])
            ranks.append(rank[read])
        record = np.concatenate([piece.read for piece in pieces])
        end = np.concatenate([piece.end for piece in pieces])
        distance = np.concatenate([piece.distance for piece in pieces])
        stored_reverse = (np.concatenate(flags) & _REVERSE) != 0
        turn = np.concatenate([piece.turn for piece in pieces]) ^ stored_reverse
        rank = np.concatenate(ranks)

        # runs are slices of the candidates by rank, so that read in order they keep the order
        order = np.argsort(rank, kind="stable")
        wanted_rank = np.unique(rank)
        per_run = max(_CANDIDATES_PER_RUN, -(-len(wanted_rank) // _MAX_FILES))
        run_first = wanted_rank[::per_run]
        run_of = np.searchsorted(run_first, rank, side="right") - 1
        texts = _collect_bases(source, scratch, files, record, run_of, len(run_first))
        limits = np.searchsorted(run_of[order], np.arange(len(run_first) + 1))
        empty_text = np.empty(0, dtype=np.uint8)
        for number, (batch_facts_or_none, text_path) in enumerate(zip_longest(facts, texts.paths)):
            if text_path is None:
                chosen, text = np.empty(0, dtype=np.int64), empty_text
            else:
                chosen = order[limits[number] : limits[number + 1]]
                chosen = chosen[np.lexsort((rank[chosen], end[chosen]))]
                text = np.fromfile(text_path, dtype=np.uint8)
                text_path.unlink()
            at = np.searchsorted(texts.record, record[chosen])
            words, word_offset, has_n = _cpu.pack_reads(
                text,
                texts.base_start[at],
                texts.quality_start[at],
                texts.length[at],
                np.ascontiguousarray(turn[chosen], dtype=np.uint8),
                0,  # qualities as BAM has them
                LOW_QUALITY,
                HIGH_QUALITY,
                threads,
            )
            run = CandidateRun(
                end=end[chosen],
                distance=distance[chosen],
                length=texts.length[at],
                has_n=has_n,
                word_offset=word_offset,
                words=words,
                library=library,
            )
            here = _NO_FACTS if batch_facts_or_none is None else batch_facts_or_none
            yield BatchResult(run=run, **vars(here))


_NO_FACTS = BatchFacts(
    inserts=np.empty(0, np.int64),
    insert_contig_length=np.empty(0, np.int64),
    orientations=np.zeros(3, np.int64),
    aligned_contig=np.empty(0, np.int64),
    aligned_bases=np.empty(0, np.int64),
    counts={},
)


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


class _BamSource:
    """A BAM, SAM or CRAM file that is read record by record, more than once."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path = path
        self.threads = max(1, threads)
        self.reference: Path | None = None
        self.contig = np.empty(0, dtype=np.int64)

    def check(self, contigs: Contigs, scratch: Path) -> None:
        """Find the contig of each reference; for CRAM write the contigs as it needs them."""
        if self.path.is_dir():
            raise AlignmentsError(f"{self.path}: is a folder, not a BAM, SAM or CRAM file")
        if self.path.exists() and not self.path.is_file():
            raise AlignmentsError(
                f"{self.path}: is a pipe or device, and alignments are read twice; write them to a "
                "file first"
            )
        try:
            with open(self.path, "rb") as stream:
                is_cram = stream.read(4) == b"CRAM"
        except OSError as error:
            raise AlignmentsError(f"{self.path}: cannot be read: {error.strerror}") from error
        if is_cram:
            self.reference = scratch / "reference.fa"
            _write_fasta(self.reference, contigs)
        with self.records() as alignments:
            self.contig = _match_references(
                self.path, alignments.references, alignments.lengths, contigs
            )

    def open(self) -> Any:
        """Open the file at its first record."""
        verbosity = pysam.set_verbosity(0)  # the error says it all
        try:
            return pysam.AlignmentFile(
                str(self.path),
                "r",
                check_sq=False,
                threads=self.threads,
                reference_filename=None if self.reference is None else str(self.reference),
            )
        except (OSError, ValueError) as error:
            raise AlignmentsError(
                f"{self.path}: cannot be read as BAM, SAM or CRAM: {error}; "
                "if it is truncated, make it again"
            ) from error
        finally:
            pysam.set_verbosity(verbosity)

    @contextmanager
    def records(self) -> Iterator[Any]:
        """Open the file for a ``with`` block; closing it hides no error of the block."""
        alignments = self.open()
        verbosity = pysam.set_verbosity(0)  # the error says it all
        try:
            try:
                yield alignments
            except BaseException:
                with suppress(OSError, ValueError):  # says again that the file is damaged
                    alignments.close()
                raise
            try:
                alignments.close()
            except (OSError, ValueError) as error:
                raise AlignmentsError(
                    f"{self.path}: {error}; the file is truncated or malformed, make it again"
                ) from error
        finally:
            pysam.set_verbosity(verbosity)

    def failed(self, record: int, error: Exception) -> AlignmentsError:
        """Return the error for a record that cannot be read."""
        return AlignmentsError(
            f"{self.path}: after {record} records: {error}; the file is truncated or malformed, "
            "make it again"
        )

    def name_of(self, record: int) -> str:
        """Return the name of a record, for messages."""
        with self.records() as alignments:
            for number, alignment in enumerate(alignments):
                if number == record:
                    return str(alignment.query_name)
        return "?"

    def remove(self) -> None:
        """Remove the temporary reference."""
        if self.reference is not None:
            self.reference.unlink(missing_ok=True)
            self.reference.with_name(f"{self.reference.name}.fai").unlink(missing_ok=True)


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


def _write_rows(source: _BamSource, scratch: Path, files: ExitStack) -> list[Path]:
    """First pass: where each primary record lies, in scratch files by the hash of its name."""
    count = min(_MAX_FILES, 1 + source.path.stat().st_size // _BUCKET_BYTES)
    paths = [scratch / f"rows_{i}.bin" for i in range(count)]
    for path in paths:
        files.callback(path.unlink, missing_ok=True)
    with ExitStack() as open_files:
        outputs = [open_files.enter_context(open(path, "wb")) for path in paths]
        for rows in _iter_rows(source):
            if count == 1:
                rows.tofile(outputs[0])
                continue
            bucket = (rows["name"] >> np.uint64(32)) % np.uint64(count)
            order = np.argsort(bucket, kind="stable")
            limits = np.searchsorted(bucket[order], np.arange(count + 1, dtype=np.uint64))
            for i, output in enumerate(outputs):
                rows[order[limits[i] : limits[i + 1]]].tofile(output)
    return paths


def _iter_rows(source: _BamSource) -> Iterator[np.ndarray]:
    """Rows of the primary records, some at a time."""
    names: list[str] = []
    values: list[tuple[int, ...]] = []
    record = -1
    with source.records() as alignments:
        try:
            for alignment in alignments:
                record += 1
                flag = alignment.flag
                if flag & _NOT_PRIMARY:
                    continue
                names.append(alignment.query_name or "*")
                length = alignment.query_length
                cigar = None if flag & _UNMAPPED else alignment.cigartuples
                if not cigar:
                    values.append((record, -1, 0, 0, 0, 0, length, flag, 0, length > 0))
                else:
                    left = right = hard = 0
                    operation, size = cigar[0]
                    if operation >= _SOFT_CLIP:
                        left, right, hard = _clips(cigar)
                    else:
                        operation, size = cigar[-1]
                        if operation == _SOFT_CLIP:
                            right = size
                        elif operation == _HARD_CLIP:
                            left, right, hard = _clips(cigar)
                    if not length or hard:
                        values.append(
                            (record, alignment.reference_id, alignment.reference_start,
                             alignment.reference_end, left, right, alignment.infer_read_length(),
                             flag, 0, 0)
                        )  # fmt: skip
                    else:
                        values.append(
                            (record, alignment.reference_id, alignment.reference_start,
                             alignment.reference_end, left, right, length, flag, 0, 1)
                        )  # fmt: skip
                if len(values) == _CHUNK_RECORDS:
                    yield _rows_of(source, names, values)
                    names.clear()
                    values.clear()
        except (OSError, ValueError) as error:
            raise source.failed(record + 1, error) from error
    if values:
        yield _rows_of(source, names, values)


def _clips(cigar: Sequence[tuple[int, int]]) -> tuple[int, int, int]:
    """Bases clipped on the left, on the right, and hard-clipped ones."""
    left = right = hard = 0
    inside = False
    for operation, size in cigar:
        if operation in (_SOFT_CLIP, _HARD_CLIP):
            if inside:
                right += size
            else:
                left += size
            if operation == _HARD_CLIP:
                hard += size
        else:
            inside = True
    return left, right, hard


def _rows_of(
    source: _BamSource, names: Sequence[str], values: Sequence[tuple[int, ...]]
) -> np.ndarray:
    """Make rows of what was read."""
    table = np.array(values, dtype=np.int64)
    rows = np.zeros(len(table), dtype=_ROW)
    columns = ("record", "contig", "start", "end", "left", "right", "length", "flag", "mate",
               "whole")  # fmt: skip
    for i, column in enumerate(columns):
        rows[column] = table[:, i]
    mapped = rows["contig"] >= 0
    rows["contig"][mapped] = source.contig[rows["contig"][mapped]]
    rows["name"], digit = _keys_of_strings(names)
    first, second = (rows["flag"] & _READ1) != 0, (rows["flag"] & _READ2) != 0
    by_flag = ((rows["flag"] & _PAIRED) != 0) & (first != second)
    rows["mate"] = np.where(by_flag, np.where(first, 1, 2), digit)
    return rows


def _sorted_rows(source: _BamSource, bucket: Path) -> np.ndarray:
    """Load a scratch file, remove it, and sort its rows by name, then mate."""
    rows = np.fromfile(bucket, dtype=_ROW)
    bucket.unlink()
    rows = rows[np.lexsort((rows["record"], rows["mate"], rows["name"]))]
    twice = np.flatnonzero(
        (rows["name"][1:] == rows["name"][:-1])
        & (rows["mate"][1:] == rows["mate"][:-1])
        & (rows["mate"][1:] > 0)
    )
    if len(twice):
        pair = rows["record"][twice[0] : twice[0] + 2]
        raise AlignmentsError(
            f"{source.path}: records {pair[0] + 1} and {pair[1] + 1} are both primary alignments "
            f"of read {rows['mate'][twice[0]]} of '{source.name_of(int(pair[0]))}'; "
            "if several files were merged, give each by itself"
        )
    return rows


def _mates_and_ranks(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each row's mate, or -1, and each row's rank in the input."""
    name, mate = rows["name"], rows["mate"]
    first = np.flatnonzero((name[1:] == name[:-1]) & (mate[:-1] == 1) & (mate[1:] == 2))
    other = np.full(len(rows), -1, dtype=np.int64)
    other[first], other[first + 1] = first + 1, first
    appeared = rows["record"].copy()
    appeared[first] = appeared[first + 1] = np.minimum(appeared[first], appeared[first + 1])
    return other, 2 * appeared + (mate == 2)


def _primary_places(rows: np.ndarray) -> Placements:
    """Return the places of mapped reads that take part."""
    read = np.flatnonzero((rows["contig"] >= 0) & (rows["length"] >= MIN_READ_LENGTH))
    mapped = rows[read]
    return Placements(
        read=read,
        contig=mapped["contig"].astype(np.int64),
        contig_start=mapped["start"].astype(np.int64),
        contig_end=mapped["end"].astype(np.int64),
        left=np.ascontiguousarray(mapped["left"]),
        right=np.ascontiguousarray(mapped["right"]),
        reverse=((mapped["flag"] & _REVERSE) != 0).astype(np.uint8),
        score=np.zeros(len(mapped), dtype=np.int32),
    )


def _bam_facts(
    rows: np.ndarray,
    places: Placements,
    counted: Placements,
    mate: np.ndarray,
    contig_lengths: np.ndarray,
) -> BatchFacts:
    """Return the facts of the reads in one scratch file."""
    inserts, insert_contig_length, orientations = pair_facts(
        counted, mate, contig_lengths, len(rows)
    )
    contig, bases = aligned_bases(places)
    paired = ((rows["flag"] & _PAIRED) != 0) & (rows["mate"] > 0)
    return BatchFacts(
        inserts=inserts,
        insert_contig_length=insert_contig_length,
        orientations=orientations,
        aligned_contig=contig,
        aligned_bases=bases,
        counts={
            "reads": len(rows),
            "reads_too_short": int(np.count_nonzero(rows["length"] < MIN_READ_LENGTH)),
            "reads_placed": len(places.read),
            "reads_counted": len(counted.read),
            "reads_paired": int(np.count_nonzero(mate >= 0)),
            "mates_missing": int(np.count_nonzero(paired & (mate < 0))),
        },
    )


class _Texts:
    """Bases and qualities of wanted records: a file per run, and where each record is in it."""

    def __init__(self, record: np.ndarray, paths: list[Path]) -> None:
        self.record = record
        self.paths = paths
        self.base_start = np.zeros(len(record), dtype=np.int64)
        self.quality_start = np.full(len(record), -1, dtype=np.int64)
        self.length = np.zeros(len(record), dtype=np.int32)


def _collect_bases(
    source: _BamSource,
    scratch: Path,
    files: ExitStack,
    record: np.ndarray,
    run_of: np.ndarray,
    runs: int,
) -> _Texts:
    """Second pass: write the bases and qualities of the candidates, divided by run."""
    wanted, row = np.unique(record, return_index=True)
    texts = _Texts(wanted, [scratch / f"bases_{i}.bin" for i in range(runs)])
    for path in texts.paths:
        files.callback(path.unlink, missing_ok=True)
    if not len(wanted):
        return texts
    filled = [0] * runs
    records, run_of_wanted = wanted.tolist(), run_of[row].tolist()
    at, target = 0, records[0]
    number = -1
    with ExitStack() as open_files:
        outputs: list[IO[bytes]] = [
            open_files.enter_context(open(path, "wb")) for path in texts.paths
        ]
        alignments = open_files.enter_context(source.records())
        try:
            for number, alignment in enumerate(alignments):
                if number != target:
                    continue
                run = run_of_wanted[at]
                bases = alignment.query_sequence.encode()
                qualities = alignment.query_qualities
                texts.base_start[at] = filled[run]
                texts.length[at] = len(bases)
                filled[run] += outputs[run].write(bases)
                if qualities is not None:
                    texts.quality_start[at] = filled[run]
                    filled[run] += outputs[run].write(qualities.tobytes())
                at += 1
                if at == len(records):
                    break
                target = records[at]
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _SCRATCH_ERRORS:
                raise  # of the scratch files
            raise source.failed(number + 1, error) from error
    if at < len(records):
        raise AlignmentsError(f"{source.path}: the file changed while it was read; run again")
    return texts


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
    if columns["problem"]:
        raise AlignmentsError(
            f"{path}: line {before + columns['lines'] + 1} {columns['problem']}; "
            "is the file PAF, and whole?"
        )
    if len(rough := np.flatnonzero(columns["rough"])):
        raise AlignmentsError(
            f"{path}: line {before + columns['line'][rough[0]] + 1} tells roughly where the read "
            "lies, but not base by base; run minimap2 with option -c"
        )
    start, length = columns["contig_name_start"], columns["contig_name_length"]
    contig = names.find(*_name_keys(text, start, length))
    known = contig >= 0
    known[known] = contigs.lengths[contig[known]] == columns["contig_length"][known]
    if len(unknown := np.flatnonzero(~known)):
        first = int(unknown[0])
        name = text[start[first] : start[first] + length[first]].tobytes().decode(errors="replace")
        found = (
            "is not one of the contigs"
            if contig[first] < 0
            else f"has {columns['contig_length'][first]} bases there, but the contig has "
            f"{contigs.lengths[contig[first]]}"
        )
        raise AlignmentsError(
            f"{path}: line {before + columns['line'][first] + 1}: target '{name}' {found}; "
            "align the reads to these contigs"
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
