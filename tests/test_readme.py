"""What the README shows works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import dlasm
from dlasm.testing import check_extensions, simulate_community

README = (ROOT / "README.md").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    simulate_community(tmp_path / "sample", genomes=2, genome_length=10_000)
    return tmp_path


def run_in(folder: Path, *arguments: str) -> None:
    home = str(Path(dlasm.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home}
    subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True)


def test_python_examples(folder: Path) -> None:
    for example in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        (folder / "example.py").write_text(example)
        run_in(folder, "example.py")
    alone, on_cluster = (folder / name for name in ("run_of_python", "run_of_cluster"))
    assert check_extensions(alone, folder / "sample").right_bases > 0
    assert (alone / "extended.fasta").read_bytes() == (on_cluster / "extended.fasta").read_bytes()


def test_first_command(folder: Path) -> None:
    [command] = re.findall(
        r"^python3 -m venv .* dlasm simulate .*$", README.replace(".venv/bin/", ""), re.MULTILINE
    )
    *_, simulate, extend = command.split(" && ")
    for line in (simulate.replace("sample", "another"), extend):
        program, *arguments = line.split()
        assert program == "dlasm"
        run_in(folder, "-m", "dlasm.cli", *arguments)
    assert dlasm.open_run(folder / "run").summary()["extended"]["appended_bases"] > 0
    assert (folder / "another" / "truth.tsv").exists()
