"""CUDA sources as one text each, compiled for the device at hand or, without one, for a table.

CuPy compiles with NVRTC at run time and keeps what it compiled on disk, under a key that knows the
source text but not the files it includes; so headers are put into the source before CuPy sees it.
Nothing here imports CuPy or cuda-bindings before it is asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dlasm.errors import EngineError

__all__ = [
    "ARCHITECTURES",
    "MODULES",
    "KernelFigures",
    "compile_module",
    "format_figures",
    "load_kernel",
    "load_module",
    "module_source",
]

FOLDER = Path(__file__).parent

MODULES = {
    "extend_fast": "extend_fast.cu",
    "extend_tables": "extend_tables.cu",
}
"""Source file of each module of kernels."""

OPTIONS = ("--std=c++17",)
"""What every module is compiled with."""

ARCHITECTURES = ("sm_80", "sm_90")
"""Devices for which kernels are compiled where there is none: A100 and H100/H200."""

_INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"\s*$')


@cache
def module_source(module: str) -> str:
    """Return the source of a module with its headers put in place of the includes.

    Parameters
    ----------
    module : str
        A key of :data:`MODULES`.

    Raises
    ------
    EngineError
        If there is no such module, or a header is missing.

    Examples
    --------
    >>> '#include' in module_source("extend_tables")
    False
    """
    if module not in MODULES:
        raise EngineError(f"there is no module of kernels {module!r}; there are {sorted(MODULES)}")
    return "\n".join(_lines(MODULES[module], set())) + "\n"


def _lines(name: str, included: set[str]) -> Iterable[str]:
    """Give the lines of a file and of what it includes, each header once, in order."""
    try:
        lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise EngineError(f"the CUDA source {FOLDER / name} cannot be read: {error}") from error
    yield f'#line 1 "{name}"'
    for number, line in enumerate(lines, start=1):
        include = _INCLUDE.match(line)
        if include is None:
            yield "" if line.strip() == "#pragma once" else line
        elif include[1] in included:
            yield ""
        else:
            included.add(include[1])
            yield from _lines(include[1], included)
            yield f'#line {number + 1} "{name}"'


@cache
def load_kernel(module: str, kernel: str, device: int) -> Any:
    """Return a kernel for a device, compiled or taken from CuPy's cache on disk.

    Parameters
    ----------
    module : str
        A key of :data:`MODULES`.
    kernel : str
        Name of an ``extern "C" __global__`` function in it.
    device : int
        Number of the CUDA device, which must be the current one.

    Returns
    -------
    cupy.RawKernel
        Kept for the life of the process.

    Raises
    ------
    EngineError
        If it does not compile.
    RuntimeError
        What the driver says where it does not load, or there is no such kernel in it.
    """
    return load_module(module, device).get_function(kernel)


@cache
def load_module(module: str, device: int) -> Any:  # noqa: ARG001 (part of the key)
    """Return a module for a device, compiled or taken from CuPy's cache on disk.

    Parameters and errors are those of :func:`load_kernel`.
    """
    import cupy

    loaded = cupy.RawModule(code=module_source(module), options=OPTIONS)
    try:
        loaded.compile()
    except RuntimeError:  # of the driver
        raise
    except Exception as error:  # of the compiler, or of the disk cache
        raise EngineError(f"{MODULES[module]} cannot be compiled: {error}") from error
    return loaded


# -- without a device ----------------------------------------------------------------------------


@dataclass(frozen=True)
class KernelFigures:
    """What the compiler said of one kernel.

    Attributes
    ----------
    module, kernel, architecture : str
        What was compiled, and what for.
    registers : int
        Registers of a thread.
    stack, spill_stores, spill_loads : int
        Bytes of a thread's stack frame, and of registers saved to and read back from memory.
    """

    module: str
    kernel: str
    architecture: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def compile_module(
    module: str, architecture: str, options: Sequence[str] = ()
) -> tuple[bytes, list[KernelFigures]]:
    """Compile a module to machine code with NVRTC; needs cuda-bindings, but no device.

    Parameters
    ----------
    module : str
        A key of :data:`MODULES`.
    architecture : str
        Such as ``"sm_90"``.
    options : sequence of str
        Further options of NVRTC, for instance ``-DNAME=VALUE``.

    Returns
    -------
    cubin : bytes
        The machine code.
    figures : list of KernelFigures
        A row per kernel, by name.

    Raises
    ------
    EngineError
        If it does not compile; the message is the compiler's.
    ImportError
        If cuda-bindings is not there.
    """
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
    except (ImportError, RuntimeError, OSError) as error:
        raise EngineError(
            f"kernels cannot be compiled here: {error}; install dlasm with the extra gpu, "
            "gpu-cuda13 or test, which bring NVRTC"
        ) from error

    def call(function: Any, *arguments: Any) -> Any:
        status, *values = function(*arguments)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise EngineError(f"{function.__name__}: {nvrtc.nvrtcGetErrorString(status)[1]!r}")
        return values[0] if values else None

    def text(size: Any, get: Any) -> bytes:
        content = b" " * call(size, program)
        call(get, program, content)
        return content

    wanted = [*OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v", *options]
    source, name = module_source(module).encode(), MODULES[module].encode()
    program = call(nvrtc.nvrtcCreateProgram, source, name, 0, [], [])
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(wanted), [o.encode() for o in wanted])
        log = text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode().rstrip("\0 \n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise EngineError(f"{MODULES[module]} does not compile for {architecture}:\n{log}")
        cubin = text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin, _read_figures(log, module, architecture)


def _read_figures(log: str, module: str, architecture: str) -> list[KernelFigures]:
    """Read the assembler's remarks on each kernel."""
    figures = []
    for block in re.split(r"(?=Function properties for )", log):
        function, frame, registers = (
            pattern.search(block) for pattern in (_FUNCTION, _FRAME, _REGISTERS)
        )
        if function and frame and registers:
            stack, stores, loads = (int(value) for value in frame.groups())
            figures.append(
                KernelFigures(
                    module, function[1], architecture, int(registers[1]), stack, stores, loads
                )
            )
    return sorted(figures, key=lambda row: row.kernel)


def format_figures(figures: Iterable[KernelFigures]) -> str:
    """Lay out compiler figures as a table in Markdown."""
    rows = [
        "| module | kernel | architecture | registers | stack, bytes | spilled, bytes |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| {row.module} | {row.kernel} | {row.architecture} | {row.registers} | {row.stack} "
        f"| {row.spill_stores} + {row.spill_loads} |"
        for row in figures
    ]
    return "\n".join(rows)


def main() -> None:
    """Print the table of all kernels for :data:`ARCHITECTURES`."""
    figures: list[KernelFigures] = []
    try:
        for module in MODULES:
            for architecture in ARCHITECTURES:
                figures += compile_module(module, architecture)[1]
    except EngineError as error:
        sys.exit(f"Error: {error}")
    print(format_figures(figures))


if __name__ == "__main__":
    main()
