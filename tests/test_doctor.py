"""``dlasm doctor`` on machines that lack this and that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import dlasm
import dlasm.doctor as doctor
from dlasm.cli import main
from dlasm.engines import choose, cpu
from dlasm.errors import EngineError
from dlasm.gpus import Gpu

GPU = Gpu("0", "GPU-84fd49f2-48ad", "NVIDIA H200")

WHOLE = {
    "cupy-cuda12x": "13.6.0",
    "cuda-bindings": "12.9.0",
    "dask-cuda": "25.10.0",
    "nvidia-ml-py": "13.580.65",
    "nvidia-cuda-nvrtc-cu12": "12.9.86",
    "nvidia-cuda-runtime-cu12": "12.9.79",
}
"""What the extra gpu brings."""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a GPU and all that it takes, to be made worse."""

    class Machine:
        def __init__(self):
            self.installed = dict(WHOLE)
            self.absent = frozenset()
            self.gpus = ([GPU], "")
            self.answer = {"seconds": 1.5}

        def version(self, name):
            if name in self.absent or (name not in self.installed and "cu" in name):
                raise PackageNotFoundError(name)
            return self.installed.get(name) or version(name)

        def find_spec(self, name):
            return None if "cupy-cuda12x" in self.absent else object()

    it = Machine()
    monkeypatch.setattr(doctor.metadata, "version", it.version)
    monkeypatch.setattr(doctor.util, "find_spec", it.find_spec)
    monkeypatch.setattr(doctor, "find_gpus", lambda: it.gpus)
    monkeypatch.setattr(doctor, "_driver", lambda: ("580.65.06", "12.9"))
    monkeypatch.setattr(doctor, "_gpu_memory", lambda gpu: ", 140.0 GB of 150.0 GB free")
    monkeypatch.setattr(doctor, "_ask_gpu", lambda gpu, cache: it.answer)
    nvrtc = SimpleNamespace(nvrtcVersion=lambda: (0, 12, 9))
    bindings = SimpleNamespace(nvrtc=nvrtc)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=bindings))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", nvrtc)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cache"))
    return it


def faults(diagnosis, state="missing"):
    return {each.name: each for each in diagnosis.findings if each.state == state}


def statuses(diagnosis):
    """Exit statuses of ``dlasm doctor``, ``--gpu`` and ``--no-gpu``."""
    return [diagnosis.exit_status(gpu=gpu) for gpu in (None, True, False)]


def test_nothing_is_missing(machine, tmp_path):
    diagnosis = doctor.diagnose(tmp_path)
    assert not faults(diagnosis)
    assert statuses(diagnosis) == [0, 0, 0]
    said = {each.name: each.found for each in diagnosis.findings}
    assert said["driver"] == "580.65.06, CUDA 12.9"
    assert said["GPU 0"] == f"NVIDIA H200, 140.0 GB of 150.0 GB free, {GPU.uuid}"
    assert said["NVRTC"] == "12.9"
    assert "known answer, in 1.5 s" in said["kernels on GPU 0"]
    assert "cupy-cuda12x 13.6.0" in said["GPU packages"]
    assert f"dask {version('dask')}" in said["packages"]


def test_no_cupy(machine, tmp_path):
    machine.absent = frozenset({"cupy-cuda12x"})
    diagnosis = doctor.diagnose(tmp_path)
    assert statuses(diagnosis) == [3, 1, 0]
    [fault] = faults(diagnosis).values()
    assert fault.found == "cupy-cuda12x is not installed"
    assert fault.remedy == f"{sys.executable} -m pip install 'cupy-cuda12x>=13.4'"
    assert not any(each.name.startswith("kernel") for each in diagnosis.findings)


def test_a_driver_of_cuda_13_gets_packages_of_cuda_13(machine, tmp_path, monkeypatch):
    machine.absent = frozenset({"cupy-cuda12x"})
    monkeypatch.setattr(doctor, "_driver", lambda: ("580.65.06", "13.0"))
    assert "'cupy-cuda13x>=13.6'" in faults(doctor.diagnose(tmp_path))["GPU packages"].remedy


def test_packages_for_workers_are_not_needed_without(machine, tmp_path):
    machine.absent = frozenset({"dask-cuda"})
    diagnosis = doctor.diagnose(tmp_path)
    assert statuses(diagnosis) == [0, 0, 0]
    warning = faults(diagnosis, "warning")["GPU packages"]
    assert "--workers" in warning.found
    assert "'dask-cuda>=25.4'" in warning.remedy


def test_cupy_without_a_driver(machine, tmp_path):
    machine.gpus = ([], "there is no NVIDIA driver (no nvidia-smi)")
    diagnosis = doctor.diagnose(tmp_path)
    assert statuses(diagnosis) == [3, 1, 0]
    [fault] = faults(diagnosis).values()
    assert "no NVIDIA driver" in fault.found
    assert "ubuntu-drivers install" in fault.remedy


def test_hidden_gpus(machine, tmp_path):
    machine.gpus = ([], "CUDA_VISIBLE_DEVICES is set to nothing, which hides all GPUs")
    assert faults(doctor.diagnose(tmp_path))["GPU"].remedy == "unset CUDA_VISIBLE_DEVICES"


def test_a_gpu_for_which_kernels_do_not_compile(machine, tmp_path, monkeypatch, capsys):
    def fail(*_, **__):
        raise EngineError("extend_fast.cu cannot be compiled: no such file: libnvrtc-builtins.so")

    engine = choose.Engine(fail, fail, choose.ENGINES["cpu"].buffer)
    monkeypatch.setitem(choose.ENGINES, "gpu", engine)
    doctor._main()
    machine.answer = json.loads(capsys.readouterr().out)
    diagnosis = doctor.diagnose(tmp_path)
    assert statuses(diagnosis) == [3, 1, 0]
    [fault] = faults(diagnosis).values()
    assert (fault.name, fault.found) == ("kernels on GPU 0", machine.answer["error"])
    assert "--force-reinstall" in fault.remedy
    assert "nvidia-cuda-nvrtc-cu12" in fault.remedy


def test_no_nvrtc(machine, tmp_path, monkeypatch):
    def fail():
        raise RuntimeError('Failure finding "libnvrtc.so.12"')

    monkeypatch.setattr(sys.modules["cuda.bindings.nvrtc"], "nvrtcVersion", fail)
    fault = faults(doctor.diagnose(tmp_path))["NVRTC"]
    assert "libnvrtc.so.12" in fault.found
    assert fault.remedy.endswith("'nvidia-cuda-nvrtc-cu12' 'nvidia-cuda-runtime-cu12'")


def test_a_wrong_answer_is_noticed(monkeypatch):
    def extend(packed, params, threads, **_):
        found = cpu.extend_partition(packed, params, threads)
        found.walk_values[0] ^= 1
        return choose.EngineRun(found)

    engine = choose.Engine(extend, lambda **_: None, choose.ENGINES["cpu"].buffer)
    monkeypatch.setitem(choose.ENGINES, "gpu", engine)
    with pytest.raises(EngineError, match="GPU engine gives a wrong answer"):
        doctor.try_engine("gpu")


@pytest.mark.parametrize(
    ("cupy", "said"),
    [
        ("raise ImportError('libcuda.so.1: cannot open shared object file')", "no NVIDIA driver"),
        ("raise ImportError('it is broken')", "needs CuPy (it is broken)"),
        ("import os; os.kill(os.getpid(), 11)", "ended with -11"),
        ("print('hello')", "has no attribute"),
        ("import time; time.sleep(60)", "does not answer within"),
    ],
)
def test_a_gpu_is_tried_in_another_process(tmp_path, monkeypatch, cupy, said):
    (tmp_path / "cupy.py").write_text(cupy)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "GPU_SECONDS", 2 if "sleep" in cupy else 100)
    answer = doctor._ask_gpu(GPU, str(tmp_path))
    assert said in answer["error"]


def test_a_kernel_cache_that_cannot_be_written(machine, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    diagnosis = doctor.diagnose(tmp_path)
    assert statuses(diagnosis) == [3, 1, 0]
    [fault] = faults(diagnosis).values()
    assert fault.name == "kernel cache"
    assert "export CUPY_CACHE_DIR=" in fault.remedy


@pytest.mark.parametrize(("free", "state"), [(10**6, "missing"), (10**9, "warning")])
def test_little_scratch_space(machine, tmp_path, monkeypatch, free, state):
    usage = SimpleNamespace(free=free)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    diagnosis = doctor.diagnose(tmp_path / "run" / "that" / "will be")
    fault = faults(diagnosis, state)["scratch space"]
    assert str(tmp_path) in fault.found
    assert "will be" not in fault.found
    assert "-o FOLDER" in fault.remedy
    assert statuses(diagnosis) == ([1, 1, 1] if state == "missing" else [0, 0, 0])


def test_a_folder_that_cannot_be_written(machine, tmp_path):
    (tmp_path / "file").touch()
    assert "scratch space" in faults(doctor.diagnose(tmp_path / "file"))


def test_little_memory(machine, tmp_path, monkeypatch):
    monkeypatch.setattr("distributed.system.MEMORY_LIMIT", 10**8)
    fault = faults(doctor.diagnose(tmp_path))["memory"]
    assert "the smallest run takes 0.26 GB" in fault.found


def test_old_dask(machine, tmp_path):
    machine.installed["dask"] = "2023.1.0"
    diagnosis = doctor.diagnose(tmp_path)
    assert statuses(diagnosis) == [1, 1, 1]
    [fault] = faults(diagnosis).values()
    assert fault.name == "dask"
    assert "2023.1.0" in fault.found
    assert fault.remedy == f"{sys.executable} -m pip install 'dask>=2024.8'"


def test_a_package_that_cannot_be_imported(machine, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pysam", None)
    fault = faults(doctor.diagnose(tmp_path, gpus=False))["pysam"]
    assert "cannot be imported (ModuleNotFoundError" in fault.found


def test_a_native_module_that_does_not_load(machine, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dlasm.io._bam", None)
    fault = faults(doctor.diagnose(tmp_path, gpus=False))["dlasm"]
    assert "dlasm.io._bam cannot be loaded" in fault.found
    assert "pip install --force-reinstall ." in fault.remedy


def test_a_check_that_fails_in_itself_is_a_finding(machine, tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("by nothing")

    checks = "python packages dlasm cpus memory space ports gpu_packages nvrtc kernel_cache"
    for name in [*checks.split(), "kernels"]:
        monkeypatch.setattr(doctor, f"_{name}", fail)
    monkeypatch.setattr(doctor, "_driver", fail)  # that of the GPUs, once it has found some
    diagnosis = doctor.diagnose(tmp_path)
    assert statuses(diagnosis) == [1, 1, 1]
    assert len(faults(diagnosis)) == len(diagnosis.findings) == 13
    assert all("ZeroDivisionError: by nothing" in each.found for each in diagnosis.findings)


def test_the_command(machine, tmp_path):
    machine.absent = frozenset({"cupy-cuda12x"})
    runner = CliRunner()
    said = runner.invoke(main, ["doctor", "-o", str(tmp_path)])
    assert said.exit_code == 3
    assert "runs on the CPUs will work" in said.stdout
    assert "runs on a GPU will NOT work" in said.stdout
    assert "-> " in said.stdout
    assert runner.invoke(main, ["doctor", "--gpu"]).exit_code == 1
    without = runner.invoke(main, ["doctor", "--no-gpu"])
    assert without.exit_code == 0
    assert "GPU" not in without.stdout
    found = json.loads(runner.invoke(main, ["doctor", "--json"]).stdout)
    assert (found["cpu_run"], found["gpu_run"]) == (True, False)
    assert {"name", "state", "found", "remedy", "run"} == set(found["findings"][0])


def test_the_command_begins_without_what_it_looks_for(tmp_path):
    """In a Python where NumPy and Dask are broken, and native modules do not load."""
    broken = ("numpy", "dask", "dlasm.io._text", "dlasm.kernels._cpu", "packaging")
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({broken!r})); "
        "from dlasm.cli import main; main(['doctor', '--no-gpu'])"
    )
    home = str(Path(dlasm.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": home},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert "runs on the CPUs will NOT work" in done.stdout
    assert "Traceback" not in done.stderr
