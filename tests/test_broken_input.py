"""Every reader on damaged and made-up bytes; the targets in ``native/fuzz`` look for more."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from broken_input import CHECKS, check, zstd
from hypothesis import given
from hypothesis import strategies as st

FUZZ = Path(__file__).parent / "native" / "fuzz"
sys.path.insert(0, str(FUZZ))
from seeds import bgzf_file, seeds  # noqa: E402

SEEDS = seeds()
SEEDS["interleaved"] = SEEDS["reads"]
SEEDS["alignments"] = {
    name: bgzf_file(text) for name, text in SEEDS["bam"].items() if not name.endswith("_lengths")
}
SEEDS["depths"] = {
    name: b"contigName\tlength\ttotalAvgDepth\n" + text for name, text in SEEDS["depths"].items()
}
COMPRESSIONS: list[Callable[[bytes], bytes]] = [
    bytes, gzip.compress, bz2.compress, lzma.compress, zstd.compress
]  # fmt: skip


@st.composite
def files(draw: st.DrawFn, reader: str) -> bytes:
    """Draw a seed, compressed as one member or two, and damaged."""
    data = draw(st.sampled_from(list(SEEDS[reader].values())))
    if reader != "alignments":
        compress = draw(st.sampled_from(COMPRESSIONS))
        at = draw(st.integers(0, len(data)))
        data = compress(data[:at]) + compress(data[at:])
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        kept = draw(st.integers(0, 4))
        piece = draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"\n", b"\r", b"\t", b">"])))
        data = data[:at] + piece + data[at + kept :]
    return data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))]


# pysam cannot close what it could not open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("reader", CHECKS)
@given(data=st.data())
def test_readers_give_what_is_there_or_one_clear_error(reader: str, data: st.DataObject) -> None:
    check(reader, data.draw(files(reader)))


@pytest.mark.parametrize("target", ["bam", "contigs", "depths", "dump", "paf", "reads"])
def test_fuzz_targets_hold_for_mutated_seeds(target: str, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not there")
    program = tmp_path / target
    options = ["-std=c++17", "-O1", "-pthread", f"-I{FUZZ / 'without_python'}", f"-I{FUZZ}"]
    subprocess.run(
        [compiler, *options, f"-I{FUZZ.parents[2]}", "-o", program, FUZZ / f"{target}.cpp",
         FUZZ / "standalone.cpp", "-ldl"],
        check=True,
    )  # fmt: skip
    names = []
    for name, text in seeds()[target].items():
        (tmp_path / f"{name}.seed").write_bytes(text)
        names.append(f"{name}.seed")
    subprocess.run([program, "200", *sorted(names)], cwd=tmp_path, check=True)
