"""A seeded mock metagenome with its truth, and hypothesis strategies, for tests and examples.

:func:`simulate_community` writes reads and fragmented contigs of genomes that share repeats;
:func:`check_extensions` says how many of the bases that a run appended to them are right.
:func:`contig_ends` and :func:`fastq_records` are strategies for hypothesis, which is imported only
when they are used.
"""

from __future__ import annotations

import gzip
import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlasm.atomic import whole_folder
from dlasm.errors import OutputExistsError, ParameterError, StoreError
from dlasm.evaluate import outward_walks, right_bases
from dlasm.params import K_MAX, K_MIN, PHRED_OFFSET

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from dlasm.pipeline import Run

__all__ = [
    "Community",
    "ContigEnd",
    "ExtensionCheck",
    "FastqRecord",
    "check_extensions",
    "check_walks",
    "contig_ends",
    "fastq_records",
    "simulate_community",
]

QUALITY_LEVELS = (2, 12, 23, 37)
"""Phred qualities of simulated bases: the four that recent Illumina machines write."""

LEVEL_SHARES = ((0.002, 0.01, 0.03, 0.958), (0.02, 0.06, 0.12, 0.80))
"""How common each level is in the first and in the last cycle; in between on a straight line."""

N_SHARE = 0.0005
"""Share of simulated bases that the machine could not call; they are N of the lowest quality."""

STRAIN_DIVERGENCE = 0.01
"""Share of bases in which the second strain differs from the first genome."""

FAMILY_LENGTHS = (150, 600)
"""Shortest and longest repeat, bases: shorter and longer than a read."""

BASES_PER_REPEAT = 5_000
"""A genome holds a copy of a repeat for each so many bases, and as often a gap between contigs."""

LONGEST_GAP = 400
"""Most bases missing between two contigs where there is no repeat."""

LONGEST_OVERHANG = 60
"""Most bases that a contig reaches into a repeat."""

SHORTEST_CONTIG = 60
"""Shorter pieces are left out of the contigs."""

PAIRS_PER_CHUNK = 20_000

FILES = ("contigs.fa", "genomes.fa", "reads_1.fq.gz", "reads_2.fq.gz", "truth.tsv")

_BASES = np.frombuffer(b"ACGT", dtype=np.uint8)


# -- the community ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Community:
    """A simulated community on disk.

    Attributes
    ----------
    path : Path
        Its folder.
    genomes, pairs, contigs : int
        How many genomes, pairs of reads, and contigs there are.
    """

    path: Path
    genomes: int
    pairs: int
    contigs: int

    @property
    def contigs_path(self) -> Path:
        """FASTA of the fragmented contigs, with headers as MEGAHIT writes them."""
        return self.path / "contigs.fa"

    @property
    def reads_paths(self) -> tuple[Path, Path]:
        """The two FASTQ files."""
        return self.path / "reads_1.fq.gz", self.path / "reads_2.fq.gz"


def simulate_community(
    output: str | os.PathLike[str],
    *,
    genomes: int = 5,
    genome_length: int = 50_000,
    depth: float = 12.0,
    read_length: int = 150,
    insert_mean: float = 350.0,
    insert_sd: float = 50.0,
    error_rate: float = 0.005,
    seed: int = 1,
    force: bool = False,
) -> Community:
    """Write a mock community: genomes, pairs of reads, fragmented contigs, and the truth.

    Genomes are random but share repeats, several copies within and between them; the last one is a
    second strain of the first (one base in a hundred differs). Contigs are the genomes cut at the
    repeats and at random places, with gaps that reads can close partly; each repeat is a contig of
    its own. The folder gets ``genomes.fa``, ``contigs.fa`` (MEGAHIT's headers), ``reads_1.fq.gz``,
    ``reads_2.fq.gz`` and ``truth.tsv``, which has a row for every place of a contig: ``contig``,
    ``genome``, ``start``, ``end`` (0-based, half-open) and ``strand``.

    Parameters
    ----------
    output : path-like
        Folder to make.
    genomes : int
        Number of genomes, 1 to 99; with 2 or more the last is the strain of the first.
    genome_length : int
        Bases of each genome, 2,000 to 99,999,999.
    depth : float
        Mean coverage, fold; that of a genome is between 0.6 and 1.6 times as much.
    read_length : int
        Bases of a read.
    insert_mean, insert_sd : float
        Insert size, from one end of the fragment to the other, bases; normally distributed.
    error_rate : float
        Mean share of substituted bases; they are more common where the quality is low.
    seed : int
        Equal seeds and parameters give equal bytes.
    force : bool
        Replace a community that is already there.

    Returns
    -------
    Community
        What was made. Read names are ``g<genome>_<start>_<end>_<strand of read 1>_<pair>/<mate>``
        with 0-based half-open places of the fragment.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.
    OutputExistsError
        If the folder is there and ``force`` is false, or it holds something else.
    """
    if not 1 <= genomes <= 99 or not 2_000 <= genome_length < 10**8:
        raise ParameterError(
            f"{genomes} genomes of {genome_length} bases were asked for; there must be 1 to 99 of "
            "2,000 to 99,999,999 bases"
        )
    if not 1 <= read_length <= insert_mean <= genome_length / 2 or insert_sd < 0:
        raise ParameterError(
            f"read length {read_length}, insert size {insert_mean} +- {insert_sd} and genome "
            f"length {genome_length} do not fit: a read must not be longer than the insert, and "
            "the insert not longer than half a genome"
        )
    if not 0 <= depth < math.inf or not 0 <= error_rate <= 0.2 or seed < 0:
        raise ParameterError(
            f"depth {depth}, error rate {error_rate} or seed {seed} is out of range: depth and "
            "seed must be finite and not negative, the error rate must be from 0 to 0.2"
        )
    output = Path(output)
    _refuse_existing(output, force)
    rng = np.random.default_rng(seed)
    sequences, repeats = _make_genomes(rng, genomes, genome_length)
    genome_depth = depth * rng.uniform(0.6, 1.6, genomes)

    output.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(output) as work:
        with open(work / "genomes.fa", "wb") as file:
            for number, sequence in enumerate(sequences):
                file.write(b">g%02d\n%b\n" % (number, _BASES[sequence].tobytes()))
        contigs = _write_contigs(work, rng, sequences, repeats, genome_depth)
        pairs = _write_reads(
            work, rng, sequences, genome_depth, read_length, (insert_mean, insert_sd), error_rate
        )
    return Community(output, genomes, pairs, contigs)


def _refuse_existing(output: Path, force: bool) -> None:
    """Raise unless ``output`` may be made or replaced."""
    if not output.exists():
        return
    if not force:
        raise OutputExistsError(
            f"{output}: is already there; choose another folder, or replace it with --force"
        )
    if not output.is_dir():
        raise OutputExistsError(f"{output}: is not a folder; remove it or choose another name")
    others = sorted({path.name for path in output.iterdir()} - set(FILES))
    if others:
        raise OutputExistsError(
            f"{output}: holds {others[0]}, which is not of a simulated community; "
            "choose another folder"
        )
    lacking = [name for name in FILES if not (output / name).is_file()]
    if lacking and len(lacking) < len(FILES):
        raise OutputExistsError(
            f"{output}: has no {lacking[0]}, so it is not a simulated community; choose another "
            "folder"
        )


def _make_genomes(
    rng: np.random.Generator, genomes: int, length: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Make genomes as codes 0..3, and the table of repeats: genome, start, end, family, reversed.

    The second strain has the repeats of the first genome, changed like the rest of it.
    """
    originals = max(1, genomes - 1)
    copies = max(2, length // BASES_PER_REPEAT)
    slot = length // copies
    longest = min(FAMILY_LENGTHS[1], slot // 2)
    family_lengths = rng.integers(min(FAMILY_LENGTHS[0], longest), longest + 1, size=originals + 1)
    families = [rng.integers(0, 4, n, dtype=np.uint8) for n in family_lengths]
    sequences, repeats = [], []
    for genome in range(originals):
        sequence = rng.integers(0, 4, length, dtype=np.uint8)
        for copy in range(copies):
            family = int(rng.integers(len(families)))
            backward = int(rng.integers(2))
            size = len(families[family])
            start = copy * slot + int(rng.integers(slot - size + 1))
            piece = families[family]
            sequence[start : start + size] = 3 - piece[::-1] if backward else piece
            repeats.append((genome, start, start + size, family, backward))
        sequences.append(sequence)
    if genomes > originals:
        strain = sequences[0].copy()
        changed = np.flatnonzero(rng.random(length) < STRAIN_DIVERGENCE)
        strain[changed] = (strain[changed] + rng.integers(1, 4, len(changed), dtype=np.uint8)) % 4
        sequences.append(strain)
        repeats += [(genomes - 1, *repeat[1:3], -1, 0) for repeat in repeats if repeat[0] == 0]
    return sequences, np.array(repeats, dtype=np.int64)


def _write_contigs(
    folder: Path,
    rng: np.random.Generator,
    sequences: list[np.ndarray],
    repeats: np.ndarray,
    genome_depth: np.ndarray,
) -> int:
    """Cut genomes into contigs; write them with their places, and return how many there are."""
    contigs: list[tuple[np.ndarray, float, list[tuple[int, int, int, int]]]] = []
    for genome, sequence in enumerate(sequences):
        here = repeats[repeats[:, 0] == genome]
        gaps = len(sequence) // BASES_PER_REPEAT
        gap_start = rng.integers(0, len(sequence), gaps)
        reach = rng.integers(0, LONGEST_OVERHANG, (len(here), 2))
        edge = rng.integers(20, LONGEST_GAP, 2)
        cut_start = np.concatenate([[0], here[:, 1] + reach[:, 0], gap_start])
        cut_end = np.concatenate(
            [[edge[0]], here[:, 2] - reach[:, 1], gap_start + rng.integers(0, LONGEST_GAP, gaps)]
        )
        order = np.argsort(cut_start, kind="stable")
        starts = np.maximum.accumulate(cut_end[order])
        ends = np.append(cut_start[order][1:], len(sequence) - edge[1])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if end - start >= SHORTEST_CONTIG:
                strand = int(rng.integers(2))
                contigs.append(
                    (sequence[start:end], genome_depth[genome], [(genome, start, end, strand)])
                )
    for family in np.unique(repeats[repeats[:, 3] >= 0, 3]):
        copies = repeats[repeats[:, 3] == family]
        genome, start, end, _, backward = copies[0]
        places = [(int(g), int(s), int(e), int(b != backward)) for g, s, e, _, b in copies]
        contigs.append((sequences[genome][start:end], genome_depth[copies[:, 0]].sum(), places))

    with open(folder / "contigs.fa", "wb") as fasta, open(folder / "truth.tsv", "w") as truth:
        truth.write("contig\tgenome\tstart\tend\tstrand\n")
        for number, chosen in enumerate(rng.permutation(len(contigs)).tolist()):
            sequence, contig_depth, places = contigs[chosen]
            if places[0][3]:
                sequence = 3 - sequence[::-1]
            fasta.write(
                b">k141_%d flag=1 multi=%.4f len=%d\n%b\n"
                % (number, contig_depth, len(sequence), _BASES[sequence].tobytes())
            )
            for genome, start, end, strand in places:
                truth.write(f"k141_{number}\tg{genome:02d}\t{start}\t{end}\t{'+-'[strand]}\n")
    return len(contigs)


def _write_reads(
    folder: Path,
    rng: np.random.Generator,
    sequences: list[np.ndarray],
    genome_depth: np.ndarray,
    read_length: int,
    insert: tuple[float, float],
    error_rate: float,
) -> int:
    """Draw pairs of reads and write them; return how many."""
    length = len(sequences[0])
    joined = np.concatenate(sequences)
    expected = genome_depth * length / (2 * read_length)
    pairs = round(float(expected.sum()))
    share = expected / expected.sum() if pairs else expected
    with (
        _GzipFile(folder / "reads_1.fq.gz") as first,
        _GzipFile(folder / "reads_2.fq.gz") as second,
    ):
        for begin in range(0, pairs, PAIRS_PER_CHUNK):
            n = min(PAIRS_PER_CHUNK, pairs - begin)
            genome = rng.choice(len(sequences), n, p=share)
            size = np.rint(rng.normal(*insert, n)).astype(np.int64).clip(read_length, length)
            start = (rng.random(n) * (length - size + 1)).astype(np.int64)
            backward = rng.integers(0, 2, n)
            lower = genome * length + start
            upper = lower + size
            columns = np.arange(read_length)
            ascending = joined[lower[:, None] + columns]
            descending = 3 - joined[upper[:, None] - 1 - columns]
            turned = backward[:, None] == 1
            names = _names(genome, start, start + size, backward, begin + np.arange(n))
            for mate, file, bases in (
                (1, first, np.where(turned, descending, ascending)),
                (2, second, np.where(turned, ascending, descending)),
            ):
                file.write(_fastq(names, mate, *_sequence(rng, bases, error_rate)))
    return pairs


def _sequence(
    rng: np.random.Generator, bases: np.ndarray, error_rate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Read codes as a machine would: ASCII bases with errors and N, and ASCII qualities."""
    n, length = bases.shape
    at = np.linspace(0.0, 1.0, length)[:, None]
    shares = (1 - at) * np.array(LEVEL_SHARES[0]) + at * np.array(LEVEL_SHARES[1])
    level = (rng.random((n, length, 1), dtype=np.float32) > np.cumsum(shares, axis=1)[:, :3]).sum(
        axis=2
    )
    chance = 10.0 ** (-np.array(QUALITY_LEVELS) / 10)
    mean = float((shares * chance).sum(axis=1).mean())
    wrong = rng.random((n, length)) < (chance * (error_rate / mean)).clip(max=0.75)[level]
    bases = bases.copy()
    bases[wrong] = (bases[wrong] + rng.integers(1, 4, int(wrong.sum()), dtype=np.uint8)) % 4
    text = _BASES[bases]
    quality = (np.array(QUALITY_LEVELS, dtype=np.uint8) + PHRED_OFFSET)[level]
    unknown = rng.random((n, length)) < N_SHARE
    text[unknown] = ord("N")
    quality[unknown] = QUALITY_LEVELS[0] + PHRED_OFFSET
    return text, quality


def _names(
    genome: np.ndarray, start: np.ndarray, end: np.ndarray, backward: np.ndarray, pair: np.ndarray
) -> np.ndarray:
    """Names of one width, so that records are rows of an array: uint8, shape (pairs, width)."""
    strand = np.frombuffer(b"+-", dtype=np.uint8)[backward][:, None]
    underscore = np.full((len(genome), 1), ord("_"), dtype=np.uint8)
    parts = [np.full((len(genome), 2), list(b"@g"), dtype=np.uint8), _digits(genome, 2)]
    for values in (start, end):
        parts += [underscore, _digits(values, 8)]
    parts += [underscore, strand, underscore, _digits(pair, 9)]
    return np.concatenate(parts, axis=1)


def _digits(values: np.ndarray, width: int) -> np.ndarray:
    """Decimal digits of numbers, padded with zeros: uint8, shape (values, width)."""
    digits = values[:, None] // 10 ** np.arange(width - 1, -1, -1) % 10
    return (digits + ord("0")).astype(np.uint8)


def _fastq(names: np.ndarray, mate: int, text: np.ndarray, quality: np.ndarray) -> bytes:
    """FASTQ records of reads of one length."""
    n = len(names)

    def column(content: bytes) -> np.ndarray:
        return np.broadcast_to(np.frombuffer(content, dtype=np.uint8), (n, len(content)))

    parts = [names, column(b"/%d\n" % mate), text, column(b"\n+\n"), quality, column(b"\n")]
    return np.concatenate(parts, axis=1).tobytes()


class _GzipFile(gzip.GzipFile):
    """A gzip file for writing whose bytes depend on its content alone."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 (closed with the gzip stream)
        super().__init__(filename="", mode="wb", compresslevel=4, fileobj=self._file, mtime=0)

    def close(self) -> None:
        super().close()
        self._file.close()


# -- are extensions right? -------------------------------------------------------------------------


@dataclass(frozen=True)
class ExtensionCheck:
    """How much of what was appended agrees with the genomes.

    Attributes
    ----------
    ends, right_ends : int
        Contig ends that were extended, and those of them without a wrong base.
    bases, right_bases : int
        Bases appended, and those that are right. Reading away from the contig a base is right when
        it and all before it are what the genome has there, at the best of the contig's places.
    """

    ends: int
    right_ends: int
    bases: int
    right_bases: int


def check_extensions(
    run: Run | str | os.PathLike[str], truth: Community | str | os.PathLike[str]
) -> ExtensionCheck:
    """Compare what a run appended to simulated contigs with the genomes.

    Parameters
    ----------
    run : Run or path-like
        A finished run on ``contigs.fa`` of the community.
    truth : Community or path-like
        The community, or its folder.

    Returns
    -------
    ExtensionCheck
        Counts of ends and bases.

    Raises
    ------
    StoreError
        If the folder holds no finished run.
    ParameterError
        If the run's contigs are not those of the community.
    """
    from dlasm.pipeline import Run

    run = run if isinstance(run, Run) else Run(run)
    names: list[str] = []
    values, sizes = [], []
    for block in run.results.blocks(with_bases=False):
        text, ends = block.name_values.tobytes(), block.name_offsets.tolist()
        names += [text[a:b].decode() for a, b in pairwise(ends)]
        values.append(block.walk_values)
        sizes.append(np.diff(block.walk_offsets))
    offsets = np.cumsum(np.concatenate([[0], *sizes]), dtype=np.int64)
    return check_walks(names, np.concatenate([np.empty(0, np.uint8), *values]), offsets, truth)


def check_walks(
    names: list[str],
    walk_values: np.ndarray,
    walk_offsets: np.ndarray,
    truth: Community | str | os.PathLike[str],
) -> ExtensionCheck:
    """Compare walks of contig ends with the genomes.

    Parameters
    ----------
    names : list of str
        Names of the contigs.
    walk_values : numpy.ndarray
        uint8, ASCII bases appended to all ends, left before right, in the contigs' orientation.
    walk_offsets : numpy.ndarray
        int64, shape (2 * contigs + 1,). Where the bases of each end begin.
    truth : Community or path-like
        The community, or its folder.

    Returns
    -------
    ExtensionCheck
        Counts of ends and bases.

    Raises
    ------
    ParameterError
        If a contig is not one of the community's.
    """
    folder = truth.path if isinstance(truth, Community) else Path(truth)
    if not (folder / "truth.tsv").is_file():
        raise StoreError(f"{folder}: holds no truth.tsv; give the folder of a simulated community")
    genomes = _read_genomes(folder / "genomes.fa")
    text = np.frombuffer(b"".join(genomes.values()), dtype=np.uint8)
    genome_offsets = np.cumsum([0, *map(len, genomes.values())])
    places: dict[str, list[tuple[int, int, int, int]]] = {}
    numbers = {name: number for number, name in enumerate(genomes)}
    with open(folder / "truth.tsv") as file:
        next(file)
        for line in file:
            name, *where, sign = line.split()
            place = (numbers[where[0]], int(where[1]), int(where[2]), int(sign == "-"))
            places.setdefault(name, []).append(place)
    unknown = [name for name in names if name not in places]
    if unknown:
        raise ParameterError(f"contig {unknown[0]} is not one of those that {folder} has places of")

    contig = np.repeat(np.arange(len(names)), [len(places[name]) for name in names])
    rows = np.array([place for name in names for place in places[name]], dtype=np.int64)
    genome, start, stop, strand = rows.reshape(-1, 4).T
    lengths = np.diff(walk_offsets)
    right = np.zeros(len(lengths), dtype=np.int64)
    walks = outward_walks(walk_values, walk_offsets)
    limits = genome_offsets[genome], genome_offsets[genome + 1]
    for side in (0, 1):
        end = 2 * contig + side
        backward = strand == side
        boundary = np.where(backward, start, stop)
        agreed = right_bases(walks, walk_offsets, end, limits, boundary, backward, text)
        np.maximum.at(right, end, agreed)
    return ExtensionCheck(
        ends=int((lengths > 0).sum()),
        right_ends=int(((lengths > 0) & (right == lengths)).sum()),
        bases=int(lengths.sum()),
        right_bases=int(right.sum()),
    )


def _read_genomes(path: Path) -> dict[str, bytes]:
    """Genomes by name."""
    lines = path.read_bytes().split()
    return {name[1:].decode(): bases for name, bases in zip(lines[::2], lines[1::2], strict=True)}


# -- strategies ------------------------------------------------------------------------------------


class FastqRecord(NamedTuple):
    """One record of a FASTQ file."""

    name: str
    bases: str
    qualities: str  # ASCII, phred + 33

    def __str__(self) -> str:
        return f"@{self.name}\n{self.bases}\n+\n{self.qualities}\n"


class ContigEnd(NamedTuple):
    """The 3' end of a sequence, and candidate reads in its orientation."""

    sequence: str
    reads: list[FastqRecord]
    depth: float


def fastq_records(
    *,
    min_length: int = 0,
    max_length: int = 200,
    alphabet: str = "ACGTNacgtn",
    max_size: int = 50,
) -> SearchStrategy[list[FastqRecord]]:
    """Strategy for lists of FASTQ records with different names.

    Parameters
    ----------
    min_length, max_length : int
        Bases of a read.
    alphabet : str
        Its characters.
    max_size : int
        Most records in a list.

    Returns
    -------
    hypothesis.strategies.SearchStrategy
        Of lists of :class:`FastqRecord`.
    """
    from hypothesis import strategies as st

    @st.composite
    def record(draw: Any) -> FastqRecord:
        name = draw(st.text("abcXYZ0189:._-#", min_size=1, max_size=20))
        bases = draw(st.text(alphabet, min_size=min_length, max_size=max_length))
        qualities = draw(
            st.text(
                st.characters(codec="ascii", min_codepoint=33, max_codepoint=126),
                min_size=len(bases),
                max_size=len(bases),
            )
        )
        return FastqRecord(name, bases, qualities)

    return st.lists(record(), max_size=max_size, unique_by=lambda read: read.name)


def contig_ends(k: int = K_MIN, *, max_reads: int = 12) -> SearchStrategy[ContigEnd]:
    """Strategy for contig ends with reads that make walks: repeats, forks, Ns, short reads.

    A genome is put together from few pieces (random ones, often over a small alphabet, tandem
    repeats, copies of what is there already); the contig is a part of it, and reads over its end
    are taken from it or from a version with some bases changed.

    Parameters
    ----------
    k : int
        Start k of the walks that are meant to be tried, bases.
    max_reads : int
        Most reads.

    Returns
    -------
    hypothesis.strategies.SearchStrategy
        Of :class:`ContigEnd`.
    """
    from hypothesis import strategies as st

    if not K_MIN <= k <= K_MAX:
        raise ParameterError(f"k is {k}; it must be from {K_MIN} to {K_MAX}")

    piece = st.tuples(
        st.sampled_from(["random", "tandem", "copy"]), st.integers(1, k + 40), st.integers(1, 12)
    )
    quality = st.sampled_from([40, 20, 19, 10, 9, 2])
    read = st.tuples(
        st.integers(-10, 30),  # bases of contig before the last k-mer of the contig
        st.one_of(st.integers(k - 1, k + 60), st.integers(0, 2 * k)),
        st.booleans(),
        quality,
        st.none() | st.tuples(st.integers(0, 200), quality),
    )

    @st.composite
    def genome(draw: Any) -> str:
        alphabet = draw(st.sampled_from(["ACGT", "ACGT", "AC", "AT", "A"]))
        random = draw(st.randoms(use_true_random=False))
        sequence = "".join(random.choices(alphabet, k=k))
        for kind, size, period in draw(st.lists(piece, min_size=1, max_size=6)):
            if kind == "random":
                sequence += "".join(random.choices(alphabet, k=size))
            elif kind == "tandem":
                unit = "".join(random.choices(alphabet, k=period))
                sequence += (unit * (size // period + 1))[:size]
            else:
                start = random.randrange(len(sequence))
                sequence += sequence[start : start + size]
        return sequence + "".join(random.choices(alphabet, k=20))

    @st.composite
    def contig_end(draw: Any) -> ContigEnd:
        sequence = draw(genome())
        end = draw(st.integers(k, len(sequence) - 1))
        length = draw(st.one_of(st.integers(k, k + 60), st.integers(1, 2 * k)))
        change = st.tuples(st.integers(-k, 60), st.sampled_from("ACGTN"))
        other = list(sequence)
        for distance, base in draw(st.lists(change, max_size=4)):
            other[min(end + distance, len(other) - 1)] = base
        versions = (sequence, "".join(other))
        reads: list[FastqRecord] = []
        fewest = min(draw(st.sampled_from([4, 2, 1, 0])), max_reads)
        drawn = draw(st.lists(read, min_size=fewest, max_size=max_reads))
        for before, size, changed, level, exception in drawn:
            start = max(0, end - k - before)
            bases = versions[changed][start : start + size]
            levels = [level] * len(bases)
            if exception and exception[0] < len(bases):
                levels[exception[0]] = exception[1]
            qualities = "".join(chr(PHRED_OFFSET + level) for level in levels)
            reads.append(FastqRecord(f"read{len(reads)}", bases, qualities))
        depth = draw(st.one_of(st.integers(0, 10), st.floats(0, 100)))
        return ContigEnd(sequence[max(0, end - length) : end], reads, float(depth))

    return contig_end()
