"""Limits of memory and disk space, told before the work starts."""

from __future__ import annotations

import gzip
import shutil
from collections import namedtuple

import pytest

import dlasm
from dlasm.errors import ParameterError, ResourceError
from dlasm.report import Progress
from dlasm.resources import Space, check_space, expected_space, parse_size, plan_memory

GB = 10**9


@pytest.mark.parametrize(
    ("size", "bytes_"), [("8GB", 8 * GB), ("500MiB", 500 << 20), (1000, 1000), ("2e9", 2 * GB)]
)
def test_sizes(size, bytes_) -> None:
    assert parse_size(size, "memory") == bytes_


@pytest.mark.parametrize("size", ["", "much", "-1GB", 0, -5, None, "nan"])
def test_what_is_no_size_is_refused(size) -> None:
    with pytest.raises(ParameterError, match=r"memory is .* give a size such as 8GB"):
        parse_size(size, "memory")


def test_less_memory_means_fewer_batches_at_a_time() -> None:
    plans = [plan_memory(size, 30 * 10**6, 16) for size in (400 << 20, 600 << 20, 4 * GB, None)]
    batches = [plan.batches for plan in plans]
    assert batches == sorted(batches)
    assert batches[0] < batches[1] < batches[2] == batches[3] == 16
    assert plans[0].alignments < plans[2].alignments
    assert plan_memory(400 << 20, 30 * 10**6, 1).batches == 1


def test_contigs_that_do_not_fit_are_told() -> None:
    with pytest.raises(ParameterError, match=r"1,000,000,000 bases .* at least 4,2\d\d MB"):
        plan_memory(4 * GB, 10**9, 2)


def test_space_is_estimated_by_what_files_hold(tmp_path) -> None:
    plain, packed = tmp_path / "r.fq", tmp_path / "r.fq.gz"
    plain.write_bytes(b"@r\nA\n+\nI\n" * 1000)
    packed.write_bytes(gzip.compress(plain.read_bytes()))

    def space(role, path, workers=0) -> Space:
        about = {"role": role, "path": str(path), "size": path.stat().st_size}
        return expected_space([about, {"role": "reads", "path": "-", "pipe": True}], workers)

    of_plain = space("reads", plain)
    assert 0 < of_plain.usual < of_plain.most < 9000
    assert space("reads", packed).most > of_plain.most * packed.stat().st_size / 9000
    assert space("BAM", plain).usual > of_plain.usual
    assert space("contigs", plain).usual == space("contigs", plain).most
    assert space("reads", plain, workers=4).usual > 10**9


def with_free(monkeypatch, free) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, free))


def test_too_little_space_is_an_error_and_little_a_warning(tmp_path, monkeypatch) -> None:
    file = tmp_path / "a.bam"
    file.write_bytes(bytes(10_000))
    inputs = [{"role": "BAM", "path": str(file), "size": 10_000}]
    expected = expected_space(inputs)
    with_free(monkeypatch, expected.most)
    assert check_space(tmp_path, inputs) is None
    with_free(monkeypatch, expected.usual)
    assert "--resume" in check_space(tmp_path, inputs)
    with_free(monkeypatch, expected.usual - 1)
    with pytest.raises(ResourceError, match="are free, and the run takes about"):
        check_space(tmp_path, inputs)


class Notes(Progress):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def test_a_full_disk_is_told_before_the_work_starts(community, tmp_path, monkeypatch) -> None:
    given = {"contigs": community.contigs_path, "reads": community.reads_paths}
    with_free(monkeypatch, 1000)
    with pytest.raises(ResourceError, match="are free"):
        dlasm.extend(**given, output=tmp_path / "o")
    assert not (tmp_path / "o").exists()
    inputs = [
        {"role": role, "path": str(path), "size": path.stat().st_size}
        for role, path in [("contigs", community.contigs_path)]
        + [("reads", path) for path in community.reads_paths]
    ]
    expected = expected_space(inputs)
    with_free(monkeypatch, (expected.usual + expected.most) // 2)
    notes = Notes()
    dlasm.extend(**given, output=tmp_path / "o", progress=notes)
    assert any("make room" in text for text in notes.warnings)


def test_a_limit_of_memory_changes_no_byte(community, whole, tmp_path) -> None:
    run = dlasm.extend(
        community.contigs_path, reads=community.reads_paths, output=tmp_path / "o", memory="300MB"
    )
    for name in ("extended.fasta", "extensions.tsv"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()
    with pytest.raises(ParameterError, match="memory"):
        dlasm.extend(
            community.contigs_path,
            reads=community.reads_paths,
            output=tmp_path / "p",
            memory="200MB",
        )
