"""Finding GPUs, with a driver that is made up."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import dlasm.gpus as gpus
from dlasm.errors import ClusterError, ParameterError
from dlasm.gpus import Gpu, choose_gpus, find_gpus, parse_gpus, parse_smi

FIRST, SECOND = "GPU-11111111-aaaa", "GPU-22222222-bbbb"
PARTS = ("MIG-33333333-cccc", "MIG-44444444-dddd")

SMI = f"""GPU 0: NVIDIA H200 (UUID: {FIRST})
GPU 1: NVIDIA H200 (UUID: {SECOND})
  MIG 1g.18gb     Device  0: (UUID: {PARTS[0]})
  MIG 1g.18gb     Device  1: (UUID: {PARTS[1]})
"""


class NVMLError(Exception):
    pass


def make_nvml(devices, *, init=None):
    """An NVML of devices: (UUID, UUIDs of instances or None)."""

    def fail(*_):
        raise NVMLError("Not Supported")

    def instance(handle, number):
        if number >= len(handle[1]):
            raise NVMLError("Not Found")
        return handle[1][number], None

    def start():
        if init:
            raise NVMLError(init)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(devices),
        nvmlDeviceGetHandleByIndex=lambda number: devices[number],
        nvmlDeviceGetName=lambda handle: b"Model",  # bytes in old releases
        nvmlDeviceGetUUID=lambda handle: handle[0],
        nvmlDeviceGetMigMode=lambda handle: fail() if handle[1] is None else (bool(handle[1]), 0),
        nvmlDeviceGetMaxMigDeviceCount=lambda handle: 7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
    )


@pytest.fixture
def driver(monkeypatch):
    """Give the driver some devices."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "_is_installed", lambda package: True)

    def install(*devices, init=None):
        monkeypatch.setitem(sys.modules, "pynvml", make_nvml(devices, init=init))

    return install


def indices(found):
    return [gpu.index for gpu in found]


def test_whole_and_split_gpus(driver):
    driver((FIRST, None), (SECOND, PARTS), ("GPU-5", []))
    found, why = find_gpus()
    assert not why
    assert found == [
        Gpu("0", FIRST, "Model"),
        Gpu("1:0", PARTS[0], "Model MIG"),
        Gpu("1:1", PARTS[1], "Model MIG"),
        Gpu("2", "GPU-5", "Model"),
    ]


@pytest.mark.parametrize(
    ("visible", "wanted"),
    [
        ("1,0", ["1", "0"]),
        (SECOND, ["1"]),
        ("GPU-1", ["0"]),
        ("0,9,1", ["0"]),  # as CUDA does, nothing after a name that is not there
        ("2", ["2:0"]),
        (PARTS[1], ["2:1"]),
    ],
)
def test_what_cuda_visible_devices_leaves(driver, monkeypatch, visible, wanted):
    driver((FIRST, None), (SECOND, None), ("GPU-9", PARTS))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found, why = find_gpus()
    assert indices(found) == wanted
    assert not why


def test_why_there_is_none(driver, monkeypatch):
    driver(init="Driver Not Loaded")
    assert find_gpus() == ([], "no NVIDIA driver answers (Driver Not Loaded)")
    driver()
    assert find_gpus() == ([], "the NVIDIA driver knows of no GPU")
    driver((FIRST, None))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert find_gpus()[1] == "CUDA_VISIBLE_DEVICES=7 names no GPU that is there"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "hides all GPUs" in find_gpus()[1]


def test_choosing(driver):
    driver((FIRST, None), (SECOND, None))
    assert indices(choose_gpus(None).gpus) == ["0", "1"]
    assert indices(choose_gpus("auto").gpus) == ["0", "1"]
    assert choose_gpus("none").gpus == []
    assert choose_gpus("none").why_none == ""
    assert indices(choose_gpus("1,0").gpus) == ["1", "0"]
    assert indices(choose_gpus([SECOND, 0]).gpus) == ["1", "0"]
    assert indices(choose_gpus(1).gpus) == ["1"]
    assert indices(choose_gpus("GPU-2").gpus) == ["1"]
    assert choose_gpus("1").asked
    with pytest.raises(
        ClusterError,
        match=rf"GPUs 0, 7 were asked for, and 7 is not there.*0 \(Model, {FIRST}\), 1",
    ):
        choose_gpus("0,7")
    with pytest.raises(ClusterError, match="GPU GPU- was asked for, and GPU- is more than one"):
        choose_gpus(["GPU-"])
    with pytest.raises(ParameterError, match="named twice"):
        choose_gpus(["0", FIRST])


def test_one_process_uses_one_instance_of_a_split_gpu(driver, monkeypatch):
    driver((FIRST, None), (SECOND, PARTS))

    def choose(asked):
        return indices(choose_gpus(asked, one_process=True).gpus)

    assert choose("auto") == choose("1:0") == choose(PARTS[0]) == ["1:0"]
    for asked in ("1:1", "1:0,1:1", "0,1:0"):
        with pytest.raises(ParameterError, match=r"split \(MIG\).* is 1:0 .*give --workers 1"):
            choose(asked)
        assert indices(choose_gpus(asked).gpus) == asked.split(",")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", PARTS[1])
    assert choose("auto") == choose("1:1") == ["1:1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    driver((FIRST, None), (SECOND, None))
    assert choose("auto") == choose("0,1") == ["0", "1"]


def test_packages_that_are_missing(driver, monkeypatch):
    driver((FIRST, None))
    monkeypatch.setattr(gpus, "_is_installed", lambda package: package != "cupy")
    choice = choose_gpus("auto", needs=("cupy", "dask_cuda"))
    assert choice.gpus == []
    assert choice.why_none.startswith("no cupy in this Python; in dlasm's source folder, pip inst")
    with pytest.raises(ClusterError, match="GPU 0 was asked for, and none can be used: no cupy"):
        choose_gpus("0", needs=("cupy", "dask_cuda"))
    monkeypatch.undo()
    assert not gpus._is_installed("no_such_package.of_any_kind")


WRONG = ["all", "0;1", "", "-1", ["a"], "0,0", "0,", 1.5, -1, True, b"0", object(), {0}, {"0": 1}]


@pytest.mark.parametrize("wrong", [*WRONG, [True], [0, 1.0], [b"0"], [None], [[0]], [0, "0"]])
def test_what_cannot_be_meant(wrong):
    with pytest.raises(ParameterError, match="GPUs are "):
        parse_gpus(wrong)


def test_numbers_of_any_kind():
    assert parse_gpus(np.int64(1)) == ["1"]
    assert parse_gpus(np.arange(2)) == parse_gpus((0, 1)) == parse_gpus(range(2)) == ["0", "1"]


def test_nvidia_smi_where_there_is_no_nvml(monkeypatch):
    assert parse_smi(SMI) == [
        Gpu("0", FIRST, "NVIDIA H200"),
        Gpu("1:0", PARTS[0], "NVIDIA H200 MIG 1g.18gb"),
        Gpu("1:1", PARTS[1], "NVIDIA H200 MIG 1g.18gb"),
    ]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def answer(stdout="", returncode=0, error=None):
        def run(*_, **__):
            if error:
                raise error
            return subprocess.CompletedProcess([], returncode, stdout, "")

        monkeypatch.setattr(subprocess, "run", run)
        return find_gpus()

    assert indices(answer(SMI)[0]) == ["0", "1:0", "1:1"]
    assert "Driver failed" in answer("Driver failed", 9)[1]
    assert "no NVIDIA driver" in answer(error=FileNotFoundError())[1]
    assert "does not answer" in answer(error=subprocess.TimeoutExpired("nvidia-smi", 20))[1]
