"""The notebooks run, and are kept small with what they show."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from conftest import ROOT

import dlasm

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (extra 'test')")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (extra 'test')")
    for package in ("ipykernel", "matplotlib"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra 'test')")
    # a copy, so that what a notebook writes beside itself is not in the repository
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copytree(
        ROOT / "workflows/benchmarks/results", tmp_path / "workflows/benchmarks/results"
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(dlasm.__file__).parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def run(name: str):
        notebook = nbformat.read(tmp_path / "notebooks" / name, 4)
        resources = {"metadata": {"path": str(tmp_path / "notebooks")}}
        client = nbclient.NotebookClient(
            notebook, timeout=240, kernel_name="python3", resources=resources
        )
        return client.execute()

    return run


def printed(notebook) -> list[str]:
    """What each cell printed, without the port of the dashboard; tables differ with pandas."""
    texts = (
        "".join(output["text"] for output in cell.get("outputs", []) if "text" in output)
        for cell in notebook.cells
    )
    return [re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path, execute) -> None:
    import nbformat

    assert printed(execute(path.name)) == printed(nbformat.read(path, 4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_small_and_clean(path: Path) -> None:
    text = path.read_text()
    assert len(text) < 500_000
    assert '"outputs": [\n' in text, "keep it executed"
    assert '"output_type": "error"' not in text
    assert not re.search(r"(/home|/tmp|/root|/Users)/\w", text)
    assert '"name": "python3"' in text


def test_both_notebooks_are_there() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"roofline", "walkthrough"}
