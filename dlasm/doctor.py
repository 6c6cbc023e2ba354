"""What a machine has and lacks for runs: ``dlasm doctor``.

Every check stands alone: whatever is missing, broken or surprising becomes a finding with its
remedy, and the others go on. So nothing is imported here at the top that may be missing. Whether
kernels compile and run is tried in a process of its own for each GPU, so that this one makes no
CUDA context and survives whatever happens there.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

from dlasm._version import __version__
from dlasm.gpus import Gpu, find_gpus

__all__ = ["Diagnosis", "Finding", "diagnose", "try_engine"]

LEAST_SPACE = 100_000_000
"""Bytes free below which none but the smallest run ends: contigs alone take four times their bases
(:data:`dlasm.resources.CONTIG_SHARE`)."""

GOOD_SPACE = 10_000_000_000
"""Bytes free below which a run of usual size may not end: 30 GB of reads take that at most
(:data:`dlasm.resources.READ_SHARE`)."""

GPU_SECONDS = 120
"""How long a GPU may take to compile and run a kernel: it takes a few seconds."""

SMI_SECONDS = 20

NATIVE_MODULES = (
    "dlasm._choose",
    "dlasm._ends",
    "dlasm._minimap",
    "dlasm.io._bam",
    "dlasm.io._parse",
    "dlasm.io._text",
    "dlasm.kernels._cpu",
)

MODULES = {"cuda-bindings": "cuda.bindings", "dask-cuda": "dask_cuda", "nvidia-ml-py": "pynvml"}
"""What is imported of a distribution, where that is not its name."""

DRIVER_REMEDY = (
    "install NVIDIA's driver, so that nvidia-smi lists the GPU (on Ubuntu: sudo ubuntu-drivers "
    "install, then restart); without an NVIDIA GPU there is nothing to do"
)


@dataclass(frozen=True)
class Finding:
    """What a check found.

    Attributes
    ----------
    name : str
        What was looked at.
    state : str
        ``"ok"``, ``"warning"`` (runs work, but the user should know) or ``"missing"``.
    found : str
        What is there, or what is wrong with it.
    remedy : str
        The command that puts it right, or what else to do; "" if nothing is to be done.
    run : str
        The run that it matters to: ``"CPU"``, which a run on GPUs needs as well, or ``"GPU"``.
    """

    name: str
    state: str
    found: str
    remedy: str = ""
    run: str = "CPU"


@dataclass(frozen=True)
class Diagnosis:
    """All findings.

    Attributes
    ----------
    findings : list of Finding
        In the order of the checks.
    gpus : bool
        Whether GPUs were looked at.
    """

    findings: list[Finding] = field(default_factory=list)
    gpus: bool = True

    @property
    def cpu_run(self) -> bool:
        """Whether a run on the CPUs will work."""
        return not any(each.state == "missing" for each in self.findings if each.run == "CPU")

    @property
    def gpu_run(self) -> bool:
        """Whether a run on a GPU will work."""
        return self.gpus and not any(each.state == "missing" for each in self.findings)

    def exit_status(self, *, gpu: bool | None = None) -> int:
        """Return the exit status of ``dlasm doctor``.

        Parameters
        ----------
        gpu : bool or None
            Whether a GPU is needed, is not, or both are to be told.

        Returns
        -------
        int
            0: what was asked for will work; 1: it will not; 3: it was not said whether a GPU is
            needed, and only a run on the CPUs will work.
        """
        if not self.cpu_run or (gpu and not self.gpu_run):
            return 1
        return 3 if gpu is None and not self.gpu_run else 0

    def as_dict(self) -> dict[str, Any]:
        """Return what ``dlasm doctor --json`` prints."""
        return {
            "dlasm": __version__,
            "cpu_run": self.cpu_run,
            "gpu_run": self.gpu_run if self.gpus else None,
            "findings": [asdict(each) for each in self.findings],
        }


def diagnose(folder: str | os.PathLike[str] = ".", *, gpus: bool = True) -> Diagnosis:
    """Look at this machine; whatever is wrong with it is a finding, not an error.

    Parameters
    ----------
    folder : path-like
        Where runs are to write.
    gpus : bool
        Whether to look at GPUs, too; only then is a CUDA context made, in other processes.
    """
    findings: list[Finding] = []

    def check(name: str, run: str, function: Callable[[], Iterator[Finding]]) -> None:
        try:
            findings.extend(function())
        except Exception as error:
            what = f"cannot be checked ({type(error).__name__}: {error})"
            findings.append(Finding(name, "missing", what, _reinstall(), run))

    check("Python", "CPU", _python)
    check("packages", "CPU", _packages)
    check("dlasm", "CPU", _dlasm)
    check("CPUs", "CPU", _cpus)
    check("memory", "CPU", _memory)
    check("scratch space", "CPU", lambda: _space("scratch space", Path(folder), GOOD_SPACE))
    check("temporary files", "CPU", lambda: _space("temporary files", Path(tempfile.gettempdir())))
    check("ports", "CPU", _ports)
    if gpus:
        found: list[Gpu] = []
        check("GPU", "GPU", lambda: _gpus(found))
        check("GPU packages", "GPU", _gpu_packages)
        check("NVRTC", "GPU", _nvrtc)
        if util.find_spec("cupy") is not None:
            check("kernel cache", "GPU", _kernel_cache)
            for gpu in found:
                check(f"kernels on GPU {gpu.index}", "GPU", partial(_kernels, gpu))
    return Diagnosis(findings, gpus)


# -- what every run needs --------------------------------------------------------------------------


def _python() -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{platform.python_version()} ({sys.executable})")


def _requirements(extra: str = "") -> list[Any]:
    """Return what dlasm requires, or one of its extras: ``packaging.requirements.Requirement``."""
    from packaging.requirements import Requirement

    environment = {"extra": extra}
    try:
        given = [Requirement(each) for each in metadata.requires("dlasm") or []]
    except metadata.PackageNotFoundError:  # it runs from its source folder
        source = Path(__file__).resolve().parents[1] / "pyproject.toml"
        project = tomllib.loads(source.read_text(encoding="utf-8"))["project"]
        texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
        return [
            each for each in map(Requirement, texts) if not each.marker or each.marker.evaluate()
        ]
    core = [each for each in given if not each.marker or each.marker.evaluate({"extra": ""})]
    if not extra:
        return core
    return [
        each
        for each in given
        if each not in core and each.marker and each.marker.evaluate(environment)
    ]


def _unmet(requirement: Any) -> tuple[str, str]:
    """Return the version there is of a requirement, and what is wrong with it, if anything is."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return "", "is not installed"
    if not requirement.specifier.contains(version, prereleases=True):
        return version, f"{version} is not the version that dlasm needs ({requirement.specifier})"
    return version, ""


def _install(requirements: Sequence[Any]) -> str:
    """Return the command that installs something into this Python."""
    what = " ".join(f"'{each.name}{each.specifier}'" for each in requirements)
    return f"{sys.executable} -m pip install {what}"


def _reinstall() -> str:
    return f"in dlasm's source folder: {sys.executable} -m pip install --force-reinstall ."


def _packages() -> Iterator[Finding]:
    """Versions of what dlasm requires, and whether it can be imported."""
    good = []
    for requirement in _requirements():
        version, fault = _unmet(requirement)
        if not fault:
            try:
                import_module(MODULES.get(requirement.name, requirement.name))
            except Exception as error:  # of a library that it needs, for instance
                fault = f"{version} cannot be imported ({type(error).__name__}: {error})"
        if fault:
            yield Finding(requirement.name, "missing", fault, _install([requirement]))
        else:
            good.append(f"{requirement.name} {version}")
    yield Finding("packages", "ok", ", ".join(good) or "none")


def _dlasm() -> Iterator[Finding]:
    """Whether the native modules load, and the CPU engine gives a known answer."""
    for name in NATIVE_MODULES:
        try:
            import_module(name)
        except ImportError as error:
            yield Finding("dlasm", "missing", f"{name} cannot be loaded ({error})", _reinstall())
            return
    try_engine("cpu")
    yield Finding("dlasm", "ok", f"{__version__}; its CPU engine gives a known answer")


def _cpus() -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0))
    yield Finding("CPUs", "ok", f"{usable} of {os.cpu_count()} may be used")


def _memory() -> Iterator[Finding]:
    import psutil
    from distributed.system import MEMORY_LIMIT

    from dlasm.resources import BATCH_BYTES, PROCESS_BYTES

    available = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    least = PROCESS_BYTES + 4 * BATCH_BYTES
    found = f"{available / 1e9:,.1f} GB of {MEMORY_LIMIT / 1e9:,.1f} GB are free"
    if available >= least:
        yield Finding("memory", "ok", found)
    else:
        remedy = "end other programs (ps aux --sort=-rss lists them), or give this one more"
        found += f"; the smallest run takes {least / 1e9:.2f} GB"
        yield Finding("memory", "missing", found, remedy)


def _space(name: str, folder: Path, good: int = 0) -> Iterator[Finding]:
    """Whether files can be written to a folder, and how large they may be."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:  # a run makes what is missing
        there = there.parent
    remedy = "name another folder: dlasm extend -o FOLDER"
    if name != "scratch space":
        remedy = "name a folder on a larger disk: export TMPDIR=FOLDER"
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"dlasm")
    except OSError as error:
        found = f"{there}: cannot be written to ({error.strerror or error})"
        yield Finding(name, "missing", found, remedy)
        return
    free = shutil.disk_usage(there).free
    found = f"{there}: {free / 1e9:,.1f} GB are free"
    if free < LEAST_SPACE:
        yield Finding(name, "missing", f"{found}, too little for any run", remedy)
    elif free < good:
        yield Finding(
            name, "warning", f"{found}; a run takes about a tenth of the text of its reads", remedy
        )
    else:
        yield Finding(name, "ok", found)


def _ports() -> Iterator[Finding]:
    """Whether workers can be talked to; only runs with some need that."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as error:
        found = f"none can be opened at 127.0.0.1 ({error.strerror or error})"
        yield Finding("ports", "warning", found, "run without workers: dlasm extend --workers 0")
        return
    from dlasm.cluster import DASHBOARD_PORT, is_free_port

    state = (
        "is free" if is_free_port(DASHBOARD_PORT) else "is taken, so the dashboard gets another one"
    )
    yield Finding("ports", "ok", f"{DASHBOARD_PORT} {state}")


# -- what a run on a GPU needs ---------------------------------------------------------------------


def _gpus(found: list[Gpu]) -> Iterator[Finding]:
    """Find GPUs, by name and memory, and the driver; makes no CUDA context."""
    gpus, why = find_gpus()
    if why:
        hidden = "CUDA_VISIBLE_DEVICES" in why
        remedy = "unset CUDA_VISIBLE_DEVICES" if hidden else DRIVER_REMEDY
        yield Finding("GPU", "missing", why, remedy, "GPU")
        return
    found += gpus
    driver, cuda = _driver()
    yield Finding(
        "driver", "ok", f"{driver or 'of unknown version'}{cuda and f', CUDA {cuda}'}", run="GPU"
    )
    for gpu in gpus:
        yield Finding(
            f"GPU {gpu.index}", "ok", f"{gpu.name}{_gpu_memory(gpu)}, {gpu.uuid}", run="GPU"
        )


def _driver() -> tuple[str, str]:
    """Versions of the driver and of the CUDA that it knows, as far as it tells; "" otherwise."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            version = pynvml.nvmlSystemGetDriverVersion()
            cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        finally:
            pynvml.nvmlShutdown()
        text = version.decode() if isinstance(version, bytes) else str(version)
        return text, f"{cuda // 1000}.{cuda % 1000 // 10}"
    except Exception:  # without the package nvidia-smi says the same
        pass
    try:
        said = subprocess.run(
            ["nvidia-smi"], capture_output=True, text=True, timeout=SMI_SECONDS, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    driver = re.search(r"Driver Version:\s*([\d.]+)", said)
    cuda_version = re.search(r"CUDA Version:\s*([\d.]+)", said)
    return driver[1] if driver else "", cuda_version[1] if cuda_version else ""


def _gpu_memory(gpu: Gpu) -> str:
    """Say the memory of a GPU, or nothing where NVML cannot be asked."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            about = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
        finally:
            pynvml.nvmlShutdown()
        return f", {about.free / 1e9:,.1f} GB of {about.total / 1e9:,.1f} GB free"
    except Exception:  # it matters to nothing else
        return ""


def _extra() -> str:
    """Return the extra of dlasm for this machine: by the CuPy there is, else by the driver."""
    for extra in ("gpu", "gpu-cuda13"):
        cupy = next(each for each in _requirements(extra) if each.name.startswith("cupy"))
        if not _unmet(cupy)[1]:
            return extra
    cuda = _driver()[1]
    return "gpu-cuda13" if cuda and int(cuda.split(".")[0]) >= 13 else "gpu"


def _gpu_packages() -> Iterator[Finding]:
    """Versions of what the extra brings; NVRTC and the CUDA runtime may come from elsewhere."""
    needed = [each for each in _requirements(_extra()) if not each.name.startswith("nvidia-cuda")]
    found = {each.name: _unmet(each) for each in needed}
    if good := [f"{name} {version}" for name, (version, fault) in found.items() if not fault]:
        yield Finding("GPU packages", "ok", ", ".join(good), run="GPU")
    # the others serve workers
    for state, what in (
        ("missing", ("cupy", "cuda-bindings")),
        ("warning", ("dask-cuda", "nvidia-ml")),
    ):
        bad = [each for each in needed if each.name.startswith(what) and found[each.name][1]]
        if bad:
            faults = "; ".join(f"{each.name} {found[each.name][1]}" for each in bad)
            faults += "" if state == "missing" else " (needed by runs with --workers)"
            yield Finding("GPU packages", state, faults, _install(bad), "GPU")


def _nvrtc() -> Iterator[Finding]:
    """Whether the compiler of kernels loads."""
    try:
        from cuda.bindings import nvrtc

        status, *version = nvrtc.nvrtcVersion()
        if int(status):
            raise RuntimeError(f"it answers {status}")
    except Exception as error:
        wanted = [each for each in _requirements(_extra()) if each.name.startswith("nvidia-cuda")]
        yield Finding("NVRTC", "missing", f"cannot be loaded ({error})", _install(wanted), "GPU")
        return
    yield Finding("NVRTC", "ok", ".".join(map(str, version)), run="GPU")


def _kernel_cache() -> Iterator[Finding]:
    """Whether CuPy can keep kernels where its documentation says that it does."""
    folder = os.environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache")
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"dlasm")
    except OSError as error:
        found = f"{folder}: cannot be written to ({error.strerror or error})"
        remedy = "name a folder that can be: export CUPY_CACHE_DIR=FOLDER"
        yield Finding("kernel cache", "missing", found, remedy, "GPU")
        return
    yield Finding("kernel cache", "ok", folder, run="GPU")


def _kernels(gpu: Gpu) -> Iterator[Finding]:
    """Compile kernels for a GPU, afresh, and run them there, in another process."""
    name = f"kernels on GPU {gpu.index}"
    with tempfile.TemporaryDirectory(prefix="dlasm-doctor-") as cache:
        answer = _ask_gpu(gpu, cache)
    if "error" in answer:
        remedy = str(answer.get("remedy") or f"see what nvidia-smi says of GPU {gpu.index}")
        if "cannot be compiled" in answer["error"] and not answer.get("remedy"):
            extra = _requirements(_extra())
            remedy = _install(extra).replace(" install ", " install --force-reinstall ")
        yield Finding(name, "missing", answer["error"], remedy, "GPU")
        return
    found = f"compiled, and give a known answer, in {answer['seconds']:.1f} s"
    yield Finding(name, "ok", found, run="GPU")


def _ask_gpu(gpu: Gpu, cache: str) -> dict[str, Any]:
    """Let another process try a GPU: ``seconds`` that it took, or the ``error``."""
    # the package's folder, not the current one, is where it is found
    path = os.pathsep.join(
        [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "CUDA_VISIBLE_DEVICES": gpu.uuid,
        "CUPY_CACHE_DIR": cache,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            env=environment,
            capture_output=True,
            text=True,
            timeout=GPU_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it does not answer within {GPU_SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return {"error": f"the process that tried it ended with {done.returncode}: {said}"}


def try_engine(engine: str) -> None:
    """Extend a contig whose walks are known; a GPU engine makes a CUDA context.

    Parameters
    ----------
    engine : str
        A key of :data:`dlasm.engines.choose.ENGINES`.

    Raises
    ------
    EngineError
        If the engine cannot be used, or gives something else.
    """
    import numpy as np

    from dlasm.engines.choose import extend_partition
    from dlasm.errors import EngineError
    from dlasm.io.candidates import iter_dump
    from dlasm.pack import pack_partition
    from dlasm.params import K_MIN, WalkParams

    # 100 bases on each side of a contig of 200, covered by reads of 100 that start every 10 bases;
    # those of the left end are turned around in a dump, as they lead away from the contig
    genome = "".join(np.random.default_rng(1).choice(list("ACGT"), 400))
    reads = [genome[at : at + 100] for at in range(0, 301, 10)]
    left = [read[::-1].translate(str.maketrans("ACGT", "TGCA")) for read in reads[:11]]
    fields = [f"{number} {read} {'I' * 100}" for number, read in enumerate([*left, *reads[20:]])]
    with tempfile.NamedTemporaryFile("w", suffix=".dat") as dump:
        dump.write(f"contig {genome[100:300]} 10 11 11 {' '.join(fields)}\n")
        dump.flush()
        (chunk,) = iter_dump(dump.name)
    index = np.zeros(1, dtype=np.int64)
    packed = pack_partition(index, chunk.contigs, [chunk.run], [0.0], chunk.contigs.depth)
    walks = extend_partition(engine, packed, WalkParams(K_MIN, 1000)).extensions
    text = walks.walk_values.tobytes().decode()
    if text != genome[:100] + genome[300:]:
        raise EngineError(f"the {engine.upper()} engine gives a wrong answer: {text!r}")


def _main() -> None:
    """Try the GPU engine in this process, and print how that went."""
    import time

    begin = time.perf_counter()
    try:
        try_engine("gpu")
        answer: dict[str, Any] = {"seconds": time.perf_counter() - begin}
    except Exception as error:
        answer = {"error": str(error) or type(error).__name__}
    print(json.dumps(answer))


if __name__ == "__main__":
    _main()
