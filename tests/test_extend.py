"""Runs from files to results, through the Python interface."""

from __future__ import annotations

import contextlib
import errno
import gzip
import itertools
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import shared_data

import dlasm
from dlasm.errors import (
    AlignmentsError,
    CandidatesError,
    ContigsError,
    InputError,
    OutputExistsError,
    ParameterError,
    ReadsError,
    ResourceError,
    StoreError,
)
from dlasm.params import OUTCOMES
from dlasm.report import FLAGS, Progress, end_flags, n50
from dlasm.testing import simulate_community


@pytest.fixture(scope="module")
def community(tmp_path_factory):
    path = tmp_path_factory.mktemp("community") / "sim"
    return simulate_community(path, genomes=3, genome_length=10_000, seed=7)


@pytest.fixture(scope="module")
def run(community, tmp_path_factory):
    output = tmp_path_factory.mktemp("run") / "run"
    return dlasm.extend(community.contigs_path, reads=community.reads_paths, output=output)


def fasta_records(path) -> list[tuple[str, str]]:
    """Headers and sequences of extended.fasta."""
    lines = Path(path).read_text().split("\n")
    assert lines[-1] == ""
    return [(lines[i][1:], lines[i + 1]) for i in range(0, len(lines) - 1, 2)]


def check_against(run, expected: Path) -> None:
    """Compare every contig of a run with a file of ``id sequence`` lines."""
    found = [(header.split()[0], sequence) for header, sequence in fasta_records(run)]
    with gzip.open(expected, "rt") as file:
        wanted = [tuple(line.split()) for line in file]
    assert len(found) == len(wanted)
    assert dict(found) == dict(wanted)


# -- dumps with known results ----------------------------------------------------------------------


def test_arcticsynth_is_as_published(tmp_path):
    run = dlasm.extend(
        candidates=shared_data("arcticsynth", "candidates_k77.dat.gz"), k=77, output=tmp_path / "o"
    )
    check_against(run.path / "extended.fasta", shared_data("arcticsynth", "expected_k77.txt.gz"))
    summary = run.summary()
    assert summary["bins"] == {"1": 370, "2": 1278, "3": 1}
    assert summary["extended"]["contigs"] == 1130
    assert summary["extended"]["appended_bases"] == 5293
    assert summary["parameters"]["walk_limit"] == 613
    assert summary["depth_source"] == "dump"
    assert summary["libraries"][0]["reads"]["reads"] == 3943


@pytest.mark.parametrize(
    ("walk_limit", "expected", "partition_bytes", "threads"),
    [
        (None, "branches_k77.expected.txt.gz", 32 << 20, 1),
        (40, "branches_k77_limit40.expected.txt.gz", 100_000, 3),
    ],
)
def test_branches_are_as_expected(tmp_path, walk_limit, expected, partition_bytes, threads):
    run = dlasm.extend(
        candidates=shared_data("synthetic", "branches_k77.dat.gz"),
        k=77,
        walk_limit=walk_limit,
        partition_bytes=partition_bytes,
        threads=threads,
        output=tmp_path / "o",
    )
    check_against(run.path / "extended.fasta", shared_data("synthetic", expected))


# -- what a run gives ------------------------------------------------------------------------------


def test_extensions_are_right(run, community):
    genomes = [s for _, s in fasta_records(community.path / "genomes.fa")]
    both = "\n".join([*genomes, *(reverse_complement(genome) for genome in genomes)])
    frame = run.contigs()
    grown = frame[frame.left + frame.right > 0]
    assert len(grown) > 0.7 * len(frame)
    assert grown.sequence.map(lambda sequence: sequence in both).mean() > 0.6


def reverse_complement(sequence: str) -> str:
    return sequence[::-1].translate(str.maketrans("ACGT", "TGCA"))


def test_files_and_frames_agree(run, community):
    records = fasta_records(run.path / "extended.fasta")
    before = fasta_records(community.contigs_path)
    contigs, extensions = run.contigs(), run.extensions()
    assert [header.split()[0] for header, _ in records] == [h.split()[0] for h, _ in before]
    assert contigs.contig.tolist() == [header.split()[0] for header, _ in records]
    assert contigs.sequence.tolist() == [sequence for _, sequence in records]
    rows = [line.split("\t") for line in (run.path / "extensions.tsv").read_text().splitlines()]
    assert rows[0] == list(extensions.columns)
    assert rows[1:] == extensions.astype(str).to_numpy().tolist()
    left, right = extensions[extensions.side == "left"], extensions[extensions.side == "right"]
    for i, (header, sequence) in enumerate(records):
        name, *tags = header.split()
        tag = dict(part.split("=") for part in tags)
        assert (int(tag["left"]), int(tag["right"])) == (left.bases.iloc[i], right.bases.iloc[i])
        assert tag["left_reason"] == left.outcome.iloc[i]
        assert tag["right_reason"] == right.outcome.iloc[i]
        assert float(tag["depth"]) == pytest.approx(contigs.depth[i], abs=0.005)
        end = len(sequence) - int(tag["right"])
        assert sequence[int(tag["left"]) : end] == before[i][1]
        assert name == contigs.contig[i]
    assert (contigs.extended_length == contigs.sequence.str.len()).all()
    assert set(extensions.outcome.unique()) <= set(OUTCOMES)
    assert ((extensions.k > 0) == (extensions.bases > 0)).all()


def test_summary_counts_what_is_there(run):
    summary, contigs, extensions = run.summary(), run.contigs(sequences=False), run.extensions()
    assert "sequence" not in contigs
    assert summary["contigs"]["count"] == len(contigs)
    assert summary["contigs"]["bases"] == contigs.length.sum()
    assert summary["extended"]["bases"] == contigs.extended_length.sum()
    assert summary["extended"]["appended_bases"] == extensions.bases.sum()
    assert summary["extended"]["ends"] == (extensions.bases > 0).sum()
    assert summary["contigs"]["n50"] == n50(contigs.length.to_numpy())
    assert sum(summary["outcomes"].values()) == len(extensions)
    assert summary["candidates"]["reads"] == extensions.candidates.sum()
    library = summary["libraries"][0]
    assert library["insert"]["mean"] == pytest.approx(350, abs=15)
    assert library["insert"]["source"] == "measured"
    assert summary["parameters"]["k"] == 33
    assert summary["depth_source"] == "megahit"
    assert set(summary["stages"]) == {
        "contigs", "candidates", "plan", "extend", "results", "report"
    }  # fmt: skip
    assert all(stage["peak_rss_bytes"] > 1 << 20 for stage in summary["stages"].values())
    assert not list(run.path.glob("work*"))
    assert "finished" in (run.path / "dlasm.log").read_text()


def test_a_run_opens_again(run):
    again = dlasm.open_run(run.path)
    assert again.summary() == run.summary()
    assert again.extensions().equals(run.extensions())
    html = again._repr_html_()
    assert "N50" in html
    assert f"{again.summary()['extended']['bases']:,}" in html
    assert repr(run.path) not in html
    with pytest.raises(StoreError, match=r"no run\.json"):
        dlasm.open_run(run.path / "results.zarr")


def test_careful_cuts_what_paper_appends(run, community, tmp_path):
    how = {"reads": community.reads_paths, "preset": "paper", "k": 33}
    whole = dlasm.extend(community.contigs_path, **how, output=tmp_path / "paper")
    parameters = [each.summary()["parameters"] for each in (run, whole)]
    assert [each["preset"] for each in parameters] == ["careful", "paper"]
    assert [each["min_support"] for each in parameters] == [2, 1]
    assert whole.summary()["cut"] == {"ends": 0, "bases": 0}

    names = ("walk_offsets", "walk_values", "support", "k", "outcome", "cut")

    def arrays(of):
        return {name: np.asarray(of.results.array("results", name)[:]) for name in names}

    uncut, found = arrays(whole), arrays(run)
    cut = 0
    for end, (begin, stop) in enumerate(itertools.pairwise(uncut["walk_offsets"])):
        support, walk = uncut["support"][begin:stop], uncut["walk_values"][begin:stop]
        kept = list(support if end % 2 else support[::-1])
        kept = next((i for i, fragments in enumerate(kept) if fragments < 2), len(kept))
        here = slice(0, kept) if end % 2 else slice(len(walk) - kept, len(walk))
        there = slice(*found["walk_offsets"][end : end + 2])
        assert found["walk_values"][there].tolist() == walk[here].tolist()
        assert found["support"][there].tolist() == support[here].tolist()
        assert found["cut"][end] == len(walk) - kept
        cut += kept < len(walk)
        if kept < len(walk):
            wanted = ("support", uncut["k"][end]) if kept else ("no_walk", 0)
        else:
            wanted = (OUTCOMES[uncut["outcome"][end]], uncut["k"][end])
        assert (OUTCOMES[found["outcome"][end]], found["k"][end]) == wanted
    assert cut > 5
    assert run.summary()["cut"] == {"ends": cut, "bases": int(found["cut"].sum())}
    assert run.summary()["outcomes"]["support"] > 5

    # what is given beside a preset counts
    how["min_support"] = 2
    same = dlasm.extend(community.contigs_path, **how, output=tmp_path / "mixed")
    for name in ("extended.fasta", "extensions.tsv"):
        assert (same.path / name).read_bytes() == (run.path / name).read_bytes()


def test_flags():
    outcomes = [OUTCOMES.index(name) for name in ("repeat", "repeat", "dead_end", "fork")]
    codes = end_flags(np.array([33, 21, 28, 29]), np.array(outcomes))
    assert [FLAGS[code] for code in codes] == ["repeat", "repeat,low_k", "low_k", "."]
    assert FLAGS[end_flags(np.array([0]), np.array([OUTCOMES.index("no_walk")]))[0]] == "."


@pytest.mark.parametrize(("threads", "partition_bytes"), [(1, 1), (2, 3_000), (3, 1 << 30)])
def test_threads_and_partitions_change_no_byte(run, community, tmp_path, threads, partition_bytes):
    other = dlasm.extend(
        community.contigs_path,
        reads=community.reads_paths,
        output=tmp_path / "o",
        threads=threads,
        partition_bytes=partition_bytes,
    )
    for name in ("extended.fasta", "extensions.tsv"):
        assert (other.path / name).read_bytes() == (run.path / name).read_bytes()


def test_batches_change_no_byte(run, community, tmp_path, monkeypatch):
    import dlasm.io.fastq as fastq

    small = partial(fastq.iter_batches, batch_reads=400)
    monkeypatch.setattr(fastq, "iter_batches", small)
    monkeypatch.setattr("dlasm.pipeline.BATCHES_PER_RUN", 3)
    other = dlasm.extend(community.contigs_path, reads=community.reads_paths, output=tmp_path / "o")
    assert (other.path / "extensions.tsv").read_bytes() == (
        run.path / "extensions.tsv"
    ).read_bytes()


def test_mates_that_reach_far_are_mapped_again(run, community, tmp_path, monkeypatch):
    monkeypatch.setattr("dlasm.pipeline.MATE_BOUND", 300.0)
    notes = Notes()
    other = dlasm.extend(
        community.contigs_path, reads=community.reads_paths, output=tmp_path / "o", progress=notes
    )
    assert any("mapped again" in text for text in notes.texts)
    assert (other.path / "extended.fasta").read_bytes() == (
        run.path / "extended.fasta"
    ).read_bytes()


class Notes(Progress):
    """Keeps what a run says."""

    def __init__(self):
        self.texts: list[str] = []

    def note(self, text):
        self.texts.append(text)

    warn = note


# -- inputs ----------------------------------------------------------------------------------------


def test_libraries_of_all_kinds(community, tmp_path):
    first, second = community.reads_paths
    pairs = [(first, second)]
    with gzip.open(first) as one, gzip.open(second) as two:
        lines = [file.read().splitlines() for file in (one, two)]
    records = [list(zip(*[iter(each)] * 4, strict=True)) for each in lines]
    again = tmp_path / "again.fq.gz"
    again.write_bytes(first.read_bytes())
    mixed = tmp_path / "mixed.fq"
    mixed.write_bytes(
        b"".join(b"\n".join(r) + b"\n" for pair in zip(*records, strict=True) for r in pair)
    )
    run = dlasm.extend(
        community.contigs_path,
        reads=pairs,
        interleaved=mixed,
        single=[again],
        output=tmp_path / "o",
    )
    libraries = run.summary()["libraries"]
    assert [library["kind"] for library in libraries] == ["pairs", "interleaved", "single"]
    assert libraries[0]["insert"] == libraries[1]["insert"]
    assert libraries[0]["recruited"] == libraries[1]["recruited"]
    assert libraries[2]["reach"] == 0
    extensions = run.extensions()
    alone = dlasm.extend(community.contigs_path, interleaved=mixed, output=tmp_path / "alone")
    assert (extensions.candidates >= 2 * alone.extensions().candidates).all()


def test_insert_size_given(community, tmp_path):
    run = dlasm.extend(
        community.contigs_path,
        reads=community.reads_paths,
        insert="300:20.5",
        output=tmp_path / "o",
    )
    summary = run.summary()
    assert summary["parameters"]["walk_limit"] == 300 + 2 * 21
    assert summary["parameters"]["reach"] == [300 + 3 * 20.5]
    assert summary["libraries"][0]["insert"]["source"] == "given"


def test_depth_comes_from_alignments_where_headers_have_none(community, tmp_path):
    plain = tmp_path / "plain.fa"
    records = fasta_records(community.contigs_path)
    plain.write_text("".join(f">{h.split()[0]}\n{s}\n" for h, s in records))
    run = dlasm.extend(plain, reads=community.reads_paths, output=tmp_path / "o")
    assert run.summary()["depth_source"] == "alignments"
    depth = run.contigs(sequences=False).depth
    stated = [float(h.split("multi=")[1].split()[0]) for h, _ in records]
    assert np.corrcoef(depth, stated)[0, 1] > 0.5


def test_no_contigs_and_short_ones_pass_through(community, tmp_path):
    empty = tmp_path / "empty.fa"
    empty.write_bytes(b"")
    with pytest.warns(UserWarning, match="only 0 pairs"):
        run = dlasm.extend(empty, reads=community.reads_paths, output=tmp_path / "none")
    assert (run.path / "extended.fasta").read_bytes() == b""
    assert len(run.extensions()) == len(run.contigs()) == 0
    short = tmp_path / "short.fa"
    short.write_bytes(b">nothing\n>s some words\nAcgtN\r\nRYK\r\n")
    with pytest.warns(UserWarning, match="only 0 pairs"):
        run = dlasm.extend(short, reads=community.reads_paths, output=tmp_path / "short")
    records = fasta_records(run.path / "extended.fasta")
    tags = "left=0 right=0 left_reason=no_reads right_reason=no_reads depth=0.00"
    assert records == [(f"nothing {tags}", ""), (f"s {tags}", "AcgtNRYK")]


def test_reads_from_a_pipe(community, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import dlasm, sys\ndlasm.extend(sys.argv[1], reads=sys.argv[2:4], output=sys.argv[4])\n"
    )
    first, second = community.reads_paths
    output = tmp_path / "o"
    command = (
        f"{sys.executable} {script} {community.contigs_path} "
        f"<(zcat {first}) <(zcat {second}) {output}"
    )
    subprocess.run(["bash", "-c", command], check=True, env=with_path())
    assert dlasm.open_run(output).summary()["libraries"][0]["reads"]["reads"] == 2 * community.pairs


def with_path() -> dict[str, str]:
    """The environment, with the folder that this dlasm is imported from on the path."""
    home = str(Path(dlasm.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")])}


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give contigs"),
        ({"contigs": "c.fa"}, "give reads"),
        ({"contigs": "c.fa", "paf": "a.paf"}, "give reads .* beside the PAF"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "bam": "a.bam"}, "without reads"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "k": 20}, "k is 20"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "k": 122}, "k is 122"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "walk_limit": 0}, "walk limit is 0"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "max_reads": 0}, "reads per end are 0"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "phred": 200}, "phred offset is 200"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "bin_limit": 0}, "bin limit is 0"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "insert": "350"}, "as 350:50"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "insert": (-1, 5)}, "must be positive"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "threads": 0}, "threads are 0"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "workers": -1}, "workers are -1"),
        ({"contigs": "c.fa", "reads": "1.fq"}, "one path"),
        ({"contigs": "c.fa", "reads": ["1", "2", "3"]}, "a library of pairs is two files"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "min_support": 0}, "least support is 0"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "min_support": 256}, "least support is 256"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "preset": "bold"}, "'paper', 'careful'"),
        ({"contigs": "c.fa", "reads": ("1", "2"), "preset": "paper"}, "'paper' needs a k"),
        ({"candidates": "d.dat"}, "candidates need a k"),
        ({"candidates": "d.dat", "k": 77, "contigs": "c.fa"}, "together with contigs"),
        ({"candidates": "d.dat", "k": 77, "single": "1.fq"}, "together with reads"),
    ],
)
def test_parameters_that_cannot_be(tmp_path, arguments, message):
    with pytest.raises(ParameterError, match=message):
        dlasm.extend(**arguments, output=tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        {"k": "33"},
        {"k": 33.0},
        {"threads": 2.0},
        {"workers": "2"},
        {"workers": 1.0},
        {"max_reads": "many"},
        {"walk_limit": 300.5},
        {"phred": None},
        {"bin_limit": 10.0},
        {"min_support": 2.0},
        {"partition_bytes": 1e6},
    ],
)
def test_parameters_that_are_not_whole_numbers(tmp_path, arguments):
    with pytest.raises(ParameterError, match="it must be a whole number"):
        dlasm.extend("c.fa", reads=("1", "2"), **arguments, output=tmp_path / "o")


def test_numbers_of_numpy_are_numbers(run, community, tmp_path):
    other = dlasm.extend(
        community.contigs_path,
        reads=community.reads_paths,
        output=tmp_path / "o",
        k=np.int64(33),
        max_reads=np.int32(3000),
        threads=np.int16(2),
        workers=np.uint8(0),
        insert=np.array([350, 50]),
    )
    assert other.summary()["parameters"]["k"] == 33
    assert other.summary()["parameters"]["insert"] == [350, 50]


@pytest.mark.parametrize("what", ["missing", "directory", "unreadable"])
def test_files_that_are_not_there(community, tmp_path, what):
    path = tmp_path / "x.fa"
    if what == "directory":
        path.mkdir()
    elif what == "unreadable":
        path.write_bytes(b">a\nA\n")
        path.chmod(0)
        if open_succeeds(path):
            pytest.skip("this user may read everything")
    first, second = community.reads_paths
    output = tmp_path / "o"
    with pytest.raises(ContigsError, match=str(path)):
        dlasm.extend(path, reads=(first, second), output=output)
    with pytest.raises(ReadsError, match=str(path)):
        dlasm.extend(community.contigs_path, reads=(first, path), output=output)
    with pytest.raises(CandidatesError, match=str(path)):
        dlasm.extend(candidates=path, k=77, output=output)
    assert not output.exists()


def open_succeeds(path: Path) -> bool:
    try:
        path.open().close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("existed", [False, True])
def test_bad_input_leaves_nothing_behind(community, tmp_path, existed):
    output = tmp_path / "o"
    if existed:
        output.mkdir()
        (output / "notes.txt").write_text("mine")
        output = output / "run"
    short = tmp_path / "short_2.fq"
    with gzip.open(community.reads_paths[1], "rb") as file:
        short.write_bytes(b"".join(file.readlines()[: 4 * 700]))
    with pytest.raises(ReadsError, match="No result was written") as caught:
        dlasm.extend(community.contigs_path, reads=(community.reads_paths[0], short), output=output)
    assert f"{community.pairs}" in str(caught.value)
    assert "700" in str(caught.value)
    assert not output.exists()
    if existed:
        assert (tmp_path / "o" / "notes.txt").read_text() == "mine"


def test_a_dump_cut_short_leaves_nothing_behind(tmp_path):
    dump = tmp_path / "d.dat"
    dump.write_text("1 ACGTACGTACGTACGTACGTACGTACGT 2 0 2 r ACGT IIII\n")
    with pytest.raises(InputError, match=r"d\.dat"):
        dlasm.extend(candidates=dump, k=21, output=tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_what_is_there_is_kept(run, community, tmp_path):
    arguments = {"contigs": community.contigs_path, "reads": community.reads_paths}
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(OutputExistsError, match=r"--resume, replace it with --force"):
        dlasm.extend(**arguments, output=run.path)
    assert {path: path.read_bytes() for path in before} == before
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "thesis.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(OutputExistsError, match="holds no dlasm run"):
            dlasm.extend(**arguments, output=tmp_path / "o", force=force)
    assert (tmp_path / "o" / "thesis.txt").read_text() == "mine"
    with pytest.raises(OutputExistsError, match="is a file"):
        dlasm.extend(**arguments, output=tmp_path / "o" / "thesis.txt", force=True)


def test_force_replaces_a_run_only(community, tmp_path):
    arguments = {"contigs": community.contigs_path, "reads": community.reads_paths}
    first = dlasm.extend(**arguments, output=tmp_path / "o")
    (first.path / "thesis.txt").write_text("mine")
    again = dlasm.extend(**arguments, output=tmp_path / "o", k=55, force=True)
    assert again.summary()["parameters"]["k"] == 55
    assert (first.path / "thesis.txt").read_text() == "mine"
    assert not list(first.path.glob(".*"))


def test_a_full_disk_is_said_and_the_run_goes_on(run, community, tmp_path, monkeypatch):
    import dlasm.store as store

    arguments = {"contigs": community.contigs_path, "reads": community.reads_paths}
    output = tmp_path / "o"
    for error in (
        OSError(28, "No space left on device", str(output / "work" / "x")),
        OSError("1000 requested and 600 written"),
    ):

        def full(*args, error=error, **kwargs):
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(store, "write_partition", full)
            with pytest.raises(ResourceError, match=r"no space is left .*--resume"):
                dlasm.extend(**arguments, output=output, force=True)
        assert not (output / "summary.json").exists()
        assert not (output / "extended.fasta").exists()
    resumed = dlasm.extend(**arguments, output=output, resume=True)
    assert (resumed.path / "extended.fasta").read_bytes() == (
        run.path / "extended.fasta"
    ).read_bytes()


def test_importing_is_light():
    script = (
        "import sys, dlasm; dlasm.__version__; dlasm.errors; dlasm.open_run;"
        "print(*[m for m in ('dask', 'distributed', 'pandas', 'matplotlib', 'cupy', 'mappy')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == ""


def test_modules_are_there_when_they_are_used():
    script = "import dlasm; dlasm.testing.simulate_community; dlasm.arrays.GROUPS"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_small_run_imports_no_dask(community, tmp_path):
    script = (
        "import json, sys, dlasm;"
        "dlasm.extend(sys.argv[1], reads=sys.argv[2:4], output=sys.argv[4]);"
        "print(json.dumps([m for m in ('dask', 'distributed', 'pandas', 'matplotlib', 'pysam')"
        " if m in sys.modules]))"
    )
    paths = [community.contigs_path, *community.reads_paths, tmp_path / "o"]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths)], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == []


# -- reads that must be read twice, and inputs in the output ---------------------------------------


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    """Mates reach further than is thought at first."""
    path = tmp_path_factory.mktemp("far") / "sim"
    return simulate_community(
        path, genomes=2, genome_length=20_000, insert_mean=1500, insert_sd=250
    )


def feed(source: Path, pipe: Path) -> threading.Thread:
    """Write a file to a pipe, once."""

    def write() -> None:
        with open(pipe, "wb") as file, contextlib.suppress(BrokenPipeError):
            file.write(source.read_bytes())

    os.mkfifo(pipe)
    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_reads_from_a_pipe_are_not_read_twice(far, tmp_path):
    pipes = [tmp_path / "r1.fq.gz", tmp_path / "r2.fq.gz"]
    writers = [feed(*each) for each in zip(far.reads_paths, pipes, strict=True)]
    with pytest.raises(ReadsError, match=r"a pipe cannot be; give files, or --insert 1\d\d\d:2"):
        dlasm.extend(far.contigs_path, reads=pipes, output=tmp_path / "o")
    assert not (tmp_path / "o").exists()
    for writer in writers:
        writer.join(10)


def test_reads_that_change_between_two_passes_are_noticed(far, tmp_path, monkeypatch):
    import dlasm.io.fastq as fastq

    whole = fastq.iter_batches
    passes = []

    def shorter(library, **options):
        passes.append(library)
        batches = list(whole(library, batch_reads=1000, **options))
        if len(passes) > 1:
            options["counts"].reads -= 1
        yield from batches

    monkeypatch.setattr(fastq, "iter_batches", shorter)
    with pytest.raises(ReadsError, match="when read again"):
        dlasm.extend(far.contigs_path, reads=far.reads_paths, output=tmp_path / "o")


def test_alignments_from_a_pipe_are_refused(community, tmp_path):
    os.mkfifo(tmp_path / "pipe.bam")
    with pytest.raises(AlignmentsError, match="read twice"):
        dlasm.extend(community.contigs_path, bam=tmp_path / "pipe.bam", output=tmp_path / "o")


def test_an_input_in_the_output_folder_is_refused(community, tmp_path):
    output = tmp_path / "o"
    dlasm.extend(community.contigs_path, reads=community.reads_paths, output=output)
    before = (output / "extended.fasta").read_bytes()
    (tmp_path / "link.fa").symlink_to(output / "extended.fasta")
    for contigs in (output / "extended.fasta", tmp_path / "link.fa"):
        with pytest.raises(ParameterError, match="lies in the output folder"):
            dlasm.extend(contigs, reads=community.reads_paths, output=output, force=True)
    assert (output / "extended.fasta").read_bytes() == before


# -- what can be told at the start -----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["reads", "single"])
def test_a_file_of_reads_is_not_given_twice(community, tmp_path, kind):
    first, second = community.reads_paths
    (tmp_path / "link.fq.gz").symlink_to(first)
    reads = [(first, second), (tmp_path / "link.fq.gz", second)]
    given = {"reads": reads} if kind == "reads" else {"single": [first, first]}
    with pytest.raises(ParameterError, match="in two libraries"):
        dlasm.extend(community.contigs_path, output=tmp_path / "o", **given)


def test_a_walk_limit_from_a_huge_insert_is_refused_at_once(community, tmp_path):
    with pytest.raises(ParameterError, match=r"is 3,000,000, and .*--walk-limit"):
        dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=tmp_path / "o",
            insert=(1e6, 1e6),
        )
    assert not (tmp_path / "o").exists()


def test_paf_of_other_reads_is_refused(community, tmp_path):
    name = community.contigs_path.read_text().split()[0][1:]
    length = len(community.contigs_path.read_text().split("\n")[1])
    line = f"stranger\t100\t0\t100\t+\t{name}\t{length}\t0\t50\t50\t50\t60\ttp:A:P\tAS:i:50\n"
    (tmp_path / "a.paf").write_text(line)
    options = {"paf": tmp_path / "a.paf", "output": tmp_path / "o"}
    with pytest.raises(AlignmentsError, match="names none of the"):
        dlasm.extend(community.contigs_path, single=community.reads_paths[0], **options)
    (tmp_path / "a.paf").write_text("")
    with pytest.warns(UserWarning, match="holds no alignment"):
        dlasm.extend(community.contigs_path, single=community.reads_paths[0], **options)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        RuntimeError("Zstd compression error: b'Allocation error : not enough memory'"),
        ImportError("x.so: failed to map segment from shared object"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_want_of_memory_is_told_whoever_says_it(community, tmp_path, monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("dlasm.pipeline.plan_partitions", fail)
    arguments = {"reads": community.reads_paths, "output": tmp_path / "o"}
    with pytest.raises(ResourceError, match=r"out of memory.*--resume"):
        dlasm.extend(community.contigs_path, **arguments)
    monkeypatch.undo()
    assert dlasm.extend(community.contigs_path, **arguments, resume=True).summary()


def test_want_of_memory_to_decompress_is_no_damage(community, tmp_path, monkeypatch):
    import dlasm.io.streams as streams

    class Poor:
        def readinto1(self, buffer):
            raise RuntimeError("Unsufficient memory for buffer allocation")

    arguments = {"reads": community.reads_paths, "output": tmp_path / "o"}
    contigs = tmp_path / "contigs.fa"
    contigs.write_bytes(community.contigs_path.read_bytes())
    decompressed = streams._decompressed
    monkeypatch.setattr(
        streams,
        "_decompressed",
        lambda file: Poor() if str(file.name).endswith("gz") else decompressed(file),
    )
    with pytest.raises(ResourceError, match=r"out of memory.*--resume"):
        dlasm.extend(contigs, **arguments)
    monkeypatch.undo()
    assert dlasm.extend(contigs, **arguments, resume=True).summary()
