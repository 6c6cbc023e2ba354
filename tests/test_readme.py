"""What the README shows works."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import dlasm
from dlasm import params, runs
from dlasm.testing import check_extensions, simulate_community

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "dlasm" / "guide.md").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    simulate_community(tmp_path / "sample", genomes=2, genome_length=10_000)
    return tmp_path


def run_in(folder: Path, *arguments: str, expected: tuple[int, ...] = (0,)) -> None:
    home = str(Path(dlasm.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": home}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=False)
    assert done.returncode in expected, arguments


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


def test_every_dlasm_command(folder: Path) -> None:
    inline = re.findall(r"(?<!`)`dlasm( [^`]*)`", README + GUIDE)
    blocks = re.findall(r"```bash\ndlasm( .*)\n", README + GUIDE)
    assert blocks
    run = dlasm.extend(
        folder / "sample/contigs.fa",
        reads=[folder / "sample" / f"reads_{mate}.fq.gz" for mate in (1, 2)],
        output=folder / "run",
    )
    for name in ("k21", "k33", "k55"):
        shutil.copytree(run.path, folder / name)
    for line in dict.fromkeys([*inline, *blocks]):
        arguments = line.split()
        if len(arguments) == 1 and arguments != ["doctor"]:
            arguments.append("--help")
        # doctor says by its status what a machine lacks
        expected = (0, 1, 3) if arguments[0] == "doctor" else (0,)
        run_in(folder, "-m", "dlasm.cli", *arguments, expected=expected)


def test_reference(folder: Path) -> None:
    pytest.importorskip("pdoc", reason="pdoc is not installed (extra 'test')")
    [command] = re.findall(r"^(pdoc .*)$", README, re.MULTILINE)
    run_in(folder, "-m", *command.split())
    pages = [folder / "reference" / name for name in ("dlasm.html", "dlasm/arrays.html")]
    functions, arrays = (re.sub(r"<[^>]*>", "", page.read_text()) for page in pages)
    for name in dlasm.__all__:
        assert name in functions
    for specs in dlasm.arrays.GROUPS.values():
        for name, spec in specs.items():
            assert name in arrays
            assert html.escape(spec.meaning, quote=False) in arrays


def test_links_into_the_guide() -> None:
    headings = re.findall(r"^## (.*)$", GUIDE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
    linked = re.findall(r"\(dlasm/guide\.md#([^)]*)\)", README)
    assert linked
    assert set(linked) <= anchors


def test_size_limits() -> None:
    limits = (params.MAX_WALK_LIMIT, runs.MAX_LIBRARIES, 1 << runs.FRAGMENT_BITS, params.MAX_READS)
    section = README[README.index("## Size limits") : README.index("## Troubleshooting")]
    for limit in limits:
        assert f"{limit:,}" in section
    assert f"{params.K_MIN} to {params.K_MAX}" in section


def test_messages_in_troubleshooting() -> None:
    section = README[README.index("## Troubleshooting") : README.index("## For contributors")]
    source = "".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in (ROOT / "dlasm").rglob("*.py")
    )
    quoted = re.findall(r'"([^"]+)"', section.replace("`", " "))
    assert quoted
    for message in quoted:
        for part in message.split(" ... "):
            assert part in source, message
