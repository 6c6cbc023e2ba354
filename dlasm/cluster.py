"""Dask clusters: one on this machine, or one that runs already."""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlasm._version import __version__
from dlasm.errors import ClusterError
from dlasm.tasks import THREADS_VARIABLE

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "check_workers",
    "connect",
    "cpu_pools",
    "dashboard_hint",
    "local_cluster",
    "span",
    "usable_cpus",
]

CPU_POOL = "cpu"
"""Name of the pool of workers that run the CPU engine."""

DASHBOARD_PORT = 8787
"""Port of the dashboard where it is free: Dask's own default."""

CPUS_PER_WORKER = 4
"""CPUs of a worker by default: each holds an index of the contigs, so few and large ones."""

CONNECT_SECONDS = 20

GUARD = """a script that starts a cluster needs a guard, as its workers import it again:

    if __name__ == "__main__":
        with dlasm.local_cluster() as client:
            dlasm.extend(..., client=client)"""


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def local_cluster(
    workers: int | None = None,
    threads: int | None = None,
    *,
    dashboard: bool = True,
    memory_limit: str | int | None = None,
    quiet: bool = False,
) -> Iterator[Client]:
    """Start a Dask cluster on this machine; it ends with the ``with`` block.

    Each worker is a process that runs one task at a time, with native threads inside.

    Parameters
    ----------
    workers : int, optional
        Worker processes; by default one for every four CPUs.
    threads : int, optional
        Native threads of each worker; by default the CPUs divided by the workers.
    dashboard : bool
        Whether to serve Dask's dashboard, on port 8787 or a free one.
    memory_limit : str or int, optional
        Memory of each worker, such as "8GB", above which it is restarted; by default Dask's, this
        machine's memory divided by the workers.
    quiet : bool
        Whether not to print the address of the dashboard.

    Yields
    ------
    distributed.Client
        To be given to :func:`dlasm.extend`.

    Raises
    ------
    ClusterError
        If the cluster cannot be started.
    """
    if multiprocessing.current_process().name != "MainProcess" and getattr(
        multiprocessing.process.current_process(), "_inheriting", False
    ):
        raise ClusterError(GUARD)
    from distributed import Client, LocalCluster

    cpus = usable_cpus()
    workers = workers or max(1, cpus // CPUS_PER_WORKER)
    threads = threads or max(1, cpus // workers)
    port = DASHBOARD_PORT if dashboard and _is_free(DASHBOARD_PORT) else 0
    try:
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            scheduler_port=0,
            dashboard_address=f"127.0.0.1:{port}",
            scheduler_kwargs={"dashboard": dashboard},
            memory_limit=memory_limit or "auto",
            silence_logs=logging.ERROR,
            env={THREADS_VARIABLE: str(threads)},
        )
    except (OSError, RuntimeError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"a cluster of {workers} workers cannot be started on this machine ({error}); "
            "--workers 0 does without one"
        ) from error
    with cluster, Client(cluster) as client:
        if dashboard and not quiet:
            print(dashboard_hint(client))
        yield client


@contextmanager
def connect(
    address: str | None = None, scheduler_file: str | os.PathLike[str] | None = None
) -> Iterator[Client]:
    """Join a cluster that runs already; its workers must see the same files.

    Parameters
    ----------
    address : str, optional
        Of the scheduler, such as ``tcp://node1:8786``.
    scheduler_file : path-like, optional
        The file that ``dask scheduler --scheduler-file`` wrote, instead.

    Yields
    ------
    distributed.Client
        To be given to :func:`dlasm.extend`.

    Raises
    ------
    ClusterError
        If there is no scheduler, or it has no workers.
    """
    if (address is None) == (scheduler_file is None):
        raise ClusterError("give either the address of a scheduler or a scheduler file")
    from distributed import Client

    where = str(address if address is not None else scheduler_file)
    if scheduler_file is not None and not Path(scheduler_file).is_file():
        raise ClusterError(f"{where}: there is no such scheduler file; is the scheduler running?")
    try:
        if address is not None:
            client = Client(address, timeout=CONNECT_SECONDS)
        else:
            client = Client(scheduler_file=os.fspath(str(scheduler_file)), timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TimeoutError, RuntimeError) as error:
        raise ClusterError(
            f"{where}: no Dask scheduler answers there within {CONNECT_SECONDS} s ({error})"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError as error:
            raise ClusterError(
                f"{where}: the scheduler has no workers; start some with `dask worker {where}`"
            ) from error
        yield client


def cpu_pools(client: Client) -> dict[str, dict[str, int]]:
    """Return the workers there are now, by pool: address to threads."""
    try:
        return {CPU_POOL: dict(client.nthreads())}
    except (OSError, RuntimeError) as error:
        raise ClusterError(
            f"the Dask scheduler is gone ({error}); continue with --resume"
        ) from error


def check_workers(client: Client, work: Path) -> None:
    """Check that every worker has this dlasm and sees the run's folder.

    Raises
    ------
    ClusterError
        Saying which worker does not, and the remedy.
    """
    try:
        answers = client.run(_look, str(work), on_error="return")
    except (OSError, RuntimeError) as error:
        raise ClusterError(f"the workers do not answer: {error}") from error
    for address, answer in answers.items():
        if isinstance(answer, Exception):
            raise ClusterError(
                f"worker {address} cannot import dlasm ({answer}); install dlasm {__version__} "
                "where the workers run"
            )
        version, sees = answer
        if version != __version__:
            raise ClusterError(
                f"worker {address} has dlasm {version} and this is {__version__}; install the "
                "same version for both"
            )
        if not sees:
            raise ClusterError(
                f"worker {address} does not see {work}; put the output on a file system that all "
                "workers share"
            )


def _look(work: str) -> tuple[str, bool]:
    """On a worker: its dlasm, and whether it sees a folder."""
    from dlasm import __version__ as version

    return version, os.path.isdir(work)


def dashboard_hint(client: Client) -> str:
    """Return where the dashboard is, and how to reach it from another machine."""
    link = client.dashboard_link
    if not link:
        return "no dashboard"
    port = link.rsplit(":", 1)[-1].split("/")[0]
    return (
        f"dashboard: {link}  (from elsewhere: "
        f"ssh -L {port}:localhost:{port} {socket.gethostname()}, then http://localhost:{port}/status)"
    )


def span(name: str) -> Any:
    """Return a context in which tasks belong to a span of the dashboard."""
    try:
        from distributed import span as dask_span
    except ImportError:  # before distributed 2023.6
        return nullcontext()
    return dask_span(name)


def _is_free(port: int) -> bool:
    """Whether a TCP port of the loopback interface is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
