"""GPU workers, the CPU pool and the whole run on real devices; run with ``pytest -m gpu``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from faults import Harm
from pooled import assert_same, extend_small, extend_whole

import dlasm
from dlasm.cluster import GPU_PACKAGES, local_cluster, worker_pools
from dlasm.errors import ClusterError
from dlasm.gpus import choose_gpus, find_gpus
from dlasm.params import KERNELS
from dlasm.testing import check_extensions

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def gpus():
    choice = choose_gpus("auto", needs=GPU_PACKAGES)
    if not choice.gpus:
        pytest.skip(choice.why_none)
    return choice.gpus


@pytest.fixture(scope="module")
def whole(community, tmp_path_factory):
    """A run of the CPU engine."""
    return extend_whole(community, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def client(gpus):
    with local_cluster(2, 2, dashboard=False) as client:
        yield client


@pytest.mark.parametrize("kernel", KERNELS)
def test_reads_to_fasta_on_gpu_and_cpu_workers(community, whole, client, gpus, tmp_path, kernel):
    pools = worker_pools(client)
    assert {pool: len(members) for pool, members in pools.items()} == {"gpu": len(gpus), "cpu": 2}
    run = extend_small(community, tmp_path / "o", client=client, kernel=kernel)
    assert_same(run, whole)
    summary = run.summary()
    assert summary["pools"]["gpu"]["kernel"] == kernel
    assert summary["pools"]["gpu"]["kernel_ms"] > 0
    assert sum(p["partitions"] for p in summary["pools"].values()) == summary["partitions"]
    assert check_extensions(run, community) is not None


@pytest.fixture
def sharing(gpus, monkeypatch):
    """Two workers on one device, as two would have one each; such are left out otherwise."""
    monkeypatch.setattr("dlasm.cluster.same_gpu", lambda uuids: {})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus[0].uuid)
    options = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(n_workers=2, resources={"GPU": 1}, silence_logs=50, **options) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_two_workers_extend_on_one_device(community, whole, sharing, tmp_path):
    run = extend_small(community, tmp_path / "o", client=sharing)
    assert_same(run, whole)
    pools = run.summary()["pools"]
    assert set(pools) == {"gpu"}
    assert pools["gpu"]["partitions"] == run.summary()["partitions"] > 2


def test_a_gpu_worker_that_is_killed_changes_nothing(community, whole, sharing, tmp_path):
    pid = min(sharing.run(os.getpid).values())
    with Harm("extend", 500, lambda: os.kill(pid, signal.SIGKILL)):
        run = extend_small(community, tmp_path / "o", client=sharing)
    assert_same(run, whole)
    assert "is gone; extend gpu" in (run.path / "dlasm.log").read_text()


def test_each_worker_has_its_own_gpu(client, gpus):
    pools = worker_pools(client)
    # os.environ would be sent along
    seen = client.run(os.getenv, "CUDA_VISIBLE_DEVICES", workers=list(pools["gpu"]))
    assert {each.split(",")[0] for each in seen.values()} == {gpu.uuid for gpu in gpus}
    hidden = client.run(os.getenv, "CUDA_VISIBLE_DEVICES", workers=list(pools["cpu"]))
    assert set(hidden.values()) == {""}
    found = client.run(uuid_of_device, workers=list(pools["gpu"]))
    assert sorted(found.values()) == sorted(gpu.uuid.split("-", 1)[1] for gpu in gpus)


def uuid_of_device():
    from dlasm.engines.device import Device

    return Device.current().uuid


def test_gpus_by_number_and_uuid(community, whole, gpus, tmp_path, capsys):
    for number, asked in enumerate((gpus[-1].index, [gpus[-1].uuid])):
        with local_cluster(1, 1, gpus=asked, dashboard=False) as client:
            assert len(worker_pools(client)["gpu"]) == 1
            run = extend_small(community, tmp_path / f"{number}", client=client)
            assert_same(run, whole)
    with local_cluster(0, gpus=gpus[0].uuid, dashboard=False) as client:
        assert set(worker_pools(client)) == {"gpu"}
        assert_same(extend_small(community, tmp_path / "alone", client=client), whole)
    assert capsys.readouterr().out == ""


def test_gpus_that_are_not_there(gpus):
    with (
        pytest.raises(ClusterError, match=f"GPU 77 was asked for.*available: {gpus[0].index} "),
        local_cluster(1, 1, gpus="77"),
    ):
        pass


@pytest.mark.parametrize("kernel", KERNELS)
def test_in_one_process(community, whole, gpus, tmp_path, kernel):
    run = extend_small(community, tmp_path / "o", gpus=gpus[0].uuid, kernel=kernel, workers=0)
    assert_same(run, whole)
    assert run.summary()["pools"]["gpu"]["kernel_ms"] > 0


@pytest.mark.slow
def test_gpus_of_one_process(community, whole, gpus, tmp_path):
    if len(gpus) < 2:
        pytest.skip("one GPU")
    uuids = [gpu.uuid for gpu in gpus]
    assert_same(extend_small(community, tmp_path / "o", gpus=uuids, workers=0), whole)


def test_hidden_gpus_are_not_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_gpus()[0] == []


def test_no_context_in_the_client(community, tmp_path):
    """The process that starts a cluster and extends through it uses no device itself."""
    program = f"""
import sys
import dlasm

def contexts():
    from cuda.bindings import driver

    def call(function, *arguments):
        status, *values = function(*arguments)
        assert status == driver.CUresult.CUDA_SUCCESS, (function, status)
        return values

    call(driver.cuInit, 0)  # makes none
    (count,) = call(driver.cuDeviceGetCount)
    assert count > 0
    devices = [call(driver.cuDeviceGet, number)[0] for number in range(count)]
    return [call(driver.cuDevicePrimaryCtxGetState, device)[1] for device in devices]

if __name__ == "__main__":
    with dlasm.local_cluster(1, 1, dashboard=False) as client:
        run = dlasm.extend(
            {str(community.contigs_path)!r},
            reads={tuple(map(str, community.reads_paths))!r},
            output={str(tmp_path / "o")!r},
            bin_limit=12,
            partition_bytes=4_000,
            client=client,
        )
        assert run.summary()["pools"]["gpu"]["partitions"] > 0
        assert "dlasm.engines.device" not in sys.modules  # CuPy itself is imported by zarr
        assert not any(contexts())
    from dlasm.engines.gpu import prepare
    prepare()
    assert any(contexts())  # it would have shown
    print("good")
"""
    home = str(Path(dlasm.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([home, os.getenv("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("good\n"), done.stderr
