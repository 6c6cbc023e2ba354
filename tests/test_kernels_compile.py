"""Every kernel compiles to machine code without a device, and what that takes of registers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlasm.errors import EngineError
from dlasm.kernels import launch_fast, launch_tables, loader

nvrtc = pytest.importorskip(
    "cuda.bindings.nvrtc", reason="cuda-bindings is not there (extra test or gpu)"
)

MOST_STACK = 1024
MOST_SPILLED = 128
"""Bytes of a thread's stack frame, and of registers saved to memory and read back."""


@pytest.fixture(scope="module", autouse=True)
def _nvrtc_is_there() -> None:
    try:
        nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        pytest.skip(f"NVRTC is not there (extra test or gpu): {error}")


def entry_points(module: str) -> set[str]:
    kernel = r"^DLASM_KERNEL\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\("
    return set(re.findall(kernel, loader.module_source(module), re.MULTILINE))


@pytest.mark.parametrize("architecture", loader.ARCHITECTURES)
@pytest.mark.parametrize("module", loader.MODULES)
def test_every_kernel_compiles(module: str, architecture: str) -> None:
    cubin, figures = loader.compile_module(module, architecture)
    assert cubin[:4] == b"\x7fELF"
    print(loader.format_figures(figures))
    names = {row.kernel for row in figures}
    assert names == entry_points(module)
    for row in figures:
        assert (row.module, row.architecture) == (module, architecture)
        assert 0 < row.registers <= 255
        assert max(row.spill_stores, row.spill_loads) <= MOST_SPILLED, loader.format_figures([row])
        assert row.stack <= MOST_STACK, loader.format_figures([row])


def test_what_is_launched_is_there() -> None:
    fast = {launch.kernel for launch in launch_fast.launches(1000, 132)}
    spell = {launch_fast.spell(1, 0, 0).kernel}
    assert fast | spell <= entry_points("extend_fast")
    tables = set(launch_tables.KERNELS.values())
    assert tables | spell <= entry_points("extend_tables")


def test_volta() -> None:
    major, _ = nvrtc.nvrtcVersion()[1:]
    if major > 12:
        pytest.skip(f"NVRTC {major} does not compile for sm_70 any more")
    for module in loader.MODULES:
        loader.compile_module(module, "sm_70")


def test_errors_are_the_compilers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "header.cuh").write_text("#pragma once\nint good;\nbad line;\n")
    (tmp_path / "wrong.cu").write_text('#include "header.cuh"\n#include "header.cuh"\nint x;\n')
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    monkeypatch.setitem(loader.MODULES, "wrong", "wrong.cu")
    loader.module_source.cache_clear()
    with pytest.raises(EngineError, match=r"header\.cuh\(3\)"):
        loader.compile_module("wrong", "sm_90")
    loader.module_source.cache_clear()
