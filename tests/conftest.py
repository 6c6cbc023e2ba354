"""What all tests share: where data outside the repository is, and how hypothesis runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import dlasm
from dlasm.testing import simulate_community

ROOT = Path(__file__).resolve().parents[1]
if Path(dlasm.__file__).resolve().parents[1] != ROOT:
    # dlasm is installed: programs that tests start must not find the source folder, which has no
    # native code, before it
    os.environ["PYTHONSAFEPATH"] = "1"

settings.register_profile("default", deadline=None)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "default")
)

SHARED_DATA = ROOT.parent / "shared" / "data"


def shared_data(*parts: str) -> Path:
    """Return a file or folder of the data kept beside the repository; skip the test without it."""
    path = SHARED_DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"test data {path} are not there")
    return path


@pytest.fixture(scope="module")
def community(tmp_path_factory):
    path = tmp_path_factory.mktemp("community") / "sim"
    return simulate_community(path, genomes=3, genome_length=10_000, seed=7)


@pytest.fixture(scope="module")
def whole(community, tmp_path_factory):
    """A run without a cluster, that nobody killed."""
    output = tmp_path_factory.mktemp("whole") / "run"
    return dlasm.extend(community.contigs_path, reads=community.reads_paths, output=output)
