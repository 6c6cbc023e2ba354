"""Dask clusters: one on this machine, or one that runs already.

A cluster may have two pools of workers on one scheduler: GPU workers, each with a GPU of its own,
and CPU workers, which see no GPU. The client makes no CUDA context.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from dlasm._version import __version__
from dlasm.dashboard import PAGE
from dlasm.dispatch import CPU_POOL, GPU_POOL
from dlasm.engines.choose import prepare
from dlasm.errors import ClusterError, ParameterError
from dlasm.gpus import Gpu, GpuChoice, GpusAsked, bare_uuid, choose_gpus
from dlasm.tasks import THREADS_VARIABLE

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "add_cpu_workers",
    "check_gpu_workers",
    "check_guard",
    "check_memory",
    "check_workers",
    "connect",
    "cpu_pools",
    "dashboard_hint",
    "is_free_port",
    "local_cluster",
    "no_gpus_hint",
    "same_gpu",
    "span",
    "start_cluster",
    "usable_cpus",
    "worker_pools",
]

GPU_RESOURCE = "GPU"
"""Dask resource by which GPU workers are known, as ``dask worker --resources GPU=1`` sets it."""

GPU_PACKAGES = ("cupy", "dask_cuda", "cuda.bindings")
"""Python packages that a cluster with GPU workers needs."""

DASHBOARD_PORT = 8787
"""Port of the dashboard where it is free: Dask's own default."""

CPUS_PER_WORKER = 4
"""CPUs of a worker by default: each holds an index of the contigs, so few and large ones."""

LEAST_WORKER_MEMORY = 200_000_000
"""Bytes; a worker that does nothing yet takes about half of it."""

CONNECT_SECONDS = 20

IMPORT_SECONDS = 60
"""Seconds that a script is given to be imported again; Dask tells of slower ones."""

GUARD = """a script that starts a cluster needs a guard, as its workers import it again:

    if __name__ == "__main__":
        with dlasm.local_cluster() as client:  # or dlasm.extend(..., workers=2)
            dlasm.extend(..., client=client)"""


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def check_guard() -> None:
    """Refuse to start a cluster in a worker that is being started.

    Raises
    ------
    ClusterError
        If this process imports the script that started it.
    """
    if getattr(multiprocessing.process.current_process(), "_inheriting", False):
        raise ClusterError(GUARD)


def _may_lack_guard() -> bool:
    """Whether the program is a script, which workers import again."""
    main = sys.modules.get("__main__")
    is_module = getattr(main, "__spec__", None) is not None
    # the command is a script too, but has its guard and no such ending
    return not is_module and str(getattr(main, "__file__", None)).endswith(".py")


def _check_script() -> None:
    """Import the script that is running in another process, as workers do.

    A nanny of Dask before 2026.7 starts a worker again and again that dies of it, for minutes.

    Raises
    ------
    ClusterError
        If that process fails, as it does where the script has no guard.
    """
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join(IMPORT_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    elif process.exitcode:
        raise ClusterError(GUARD)


def check_memory(limit: str | int) -> None:
    """Check the memory that a worker may take.

    Raises
    ------
    ParameterError
        If it is not a size, or one that no worker can do with.
    """
    if limit == "auto":
        return
    try:
        if 0 <= float(limit) <= 1:
            return  # no limit, or a share of this machine's memory
    except ValueError:
        pass
    from dask.utils import parse_bytes

    try:
        size = parse_bytes(limit)
    except ValueError as error:
        raise ParameterError(
            f"the memory of a worker is {limit!r}; give a size such as 8GB"
        ) from error
    if size < LEAST_WORKER_MEMORY:
        raise ParameterError(
            f"the memory of a process is limited to {limit}; it needs at least "
            f"{LEAST_WORKER_MEMORY / 1e6:.0f} MB before it has any work, so give more (8GB)"
        )


@contextmanager
def local_cluster(
    workers: int | None = None,
    threads: int | None = None,
    *,
    gpus: GpusAsked = None,
    dashboard: bool = True,
    memory_limit: str | int | None = None,
    quiet: bool = False,
) -> Iterator[Client]:
    """Start a Dask cluster on this machine; it ends with the ``with`` block.

    Each worker is a process that runs one task at a time: one for each GPU, and CPU workers with
    native threads inside. Where GPUs, their driver or the packages for them are not there, the CPU
    workers do all, and a line says what is missing.

    Parameters
    ----------
    workers : int, optional
        CPU worker processes; by default one for every four CPUs. 0: none, where there are GPUs.
    threads : int, optional
        Native threads of each; by default the CPUs divided by the workers.
    gpus : str, int or sequence, optional
        ``"auto"`` (the default): every GPU that this process may use; ``"none"``; or GPUs by number
        or UUID as ``nvidia-smi -L`` lists them, instances of a GPU (MIG) too: ``"0,1"``,
        ``["GPU-84fd49f2-...", 1]``.
    dashboard : bool
        Whether to serve Dask's dashboard, on port 8787 or a free one.
    memory_limit : str or int, optional
        Memory of each worker, such as "8GB", above which it is restarted; by default Dask's, this
        machine's memory divided by the workers.
    quiet : bool
        Whether not to print the address of the dashboard, nor why no GPU is used.

    Yields
    ------
    distributed.Client
        To be given to :func:`dlasm.extend`.

    Raises
    ------
    ClusterError
        If the cluster cannot be started, GPUs that were asked for are not there, or a worker has
        another GPU than it was given.
    ParameterError
        If ``gpus`` is nothing that can be meant, or there would be no worker at all.
    """
    check_guard()
    if memory_limit is not None:
        check_memory(memory_limit)

    chosen = choose_gpus(gpus, needs=GPU_PACKAGES)
    say = _say_nothing if quiet else print
    with start_cluster(workers, threads, chosen, dashboard, memory_limit, say) as client:
        if dashboard:
            say(dashboard_hint(client, own=True))
        yield client


def _say_nothing(_text: str) -> None:
    pass


@contextmanager
def start_cluster(
    workers: int | None,
    threads: int | None,
    chosen: GpuChoice,
    dashboard: bool,
    memory_limit: str | int | None,
    say: Callable[[str], None],
) -> Iterator[Client]:
    """Start a cluster with GPUs that were chosen; see :func:`local_cluster` for the others.

    Parameters
    ----------
    workers, threads, dashboard, memory_limit
        As :func:`local_cluster` takes them.
    chosen : GpuChoice
        GPUs to use. Those that do not start are done without unless they were asked for.
    say : callable
        Told why GPUs are not used.

    Raises
    ------
    ParameterError
        If there would be no worker at all, or of a negative number of workers or threads.
    """
    least = 0 if chosen.gpus else 1
    if workers is not None and workers < least:
        why = f" ({chosen.why_none})" if chosen.why_none else ""
        where = "" if chosen.gpus else f" where no GPU is used{why}"
        raise ParameterError(f"workers are {workers}; there must be at least {least}{where}")
    if threads is not None and threads < 1:
        raise ParameterError(f"threads are {threads}; there must be at least 1")
    if _may_lack_guard():
        _check_script()
    with ExitStack() as stack:
        options = (workers, threads, dashboard, memory_limit)
        try:
            client = stack.enter_context(_started(chosen.gpus, *options))
        except ClusterError as error:
            if chosen.asked or not chosen.gpus or workers == 0:
                raise
            chosen = GpuChoice([], str(error.__cause__ or error))
            client = stack.enter_context(_started([], *options))
        if chosen.gpus:
            _check_gpus(client, chosen, say)
        if chosen.why_none:
            say(no_gpus_hint(chosen.why_none))
        yield client


@contextmanager
def _started(
    gpus: Sequence[Gpu],
    workers: int | None,
    threads: int | None,
    dashboard: bool,
    memory_limit: str | int | None,
) -> Iterator[Client]:
    """Start a cluster with a worker for each GPU, and CPU workers."""
    import dask
    from distributed import Client

    cpus = max(1, usable_cpus() - len(gpus))  # a GPU worker packs on a CPU of its own
    if workers is None:
        workers = max(1, cpus // CPUS_PER_WORKER)
    threads = threads or max(1, cpus // max(1, workers))
    port = DASHBOARD_PORT if dashboard and is_free_port(DASHBOARD_PORT) else 0
    options: dict[str, Any] = {
        "threads_per_worker": 1,
        "processes": True,
        "host": "127.0.0.1",
        "scheduler_port": 0,
        "dashboard_address": f"127.0.0.1:{port}",
        "worker_dashboard_address": "127.0.0.1:0",  # an older Dask would listen to everybody
        "scheduler_kwargs": {
            "dashboard": dashboard,
            "preload": ["dlasm.dashboard"] if dashboard else [],
        },
        "memory_limit": memory_limit or _memory_of_each(workers + len(gpus)),
        # workers that meet the end of the scheduler print a traceback otherwise; what matters of
        # their errors is raised here
        "silence_logs": logging.CRITICAL,
        "preload": ["dlasm.tasks"],  # for its dask_setup
    }
    with ExitStack() as stack:
        try:
            # what workers leave there is nobody else's business
            base = dask.config.get("temporary-directory", None) or gettempdir()
            os.makedirs(base, exist_ok=True)
            private = TemporaryDirectory(
                prefix="dlasm-workers-", dir=base, ignore_cleanup_errors=True
            )
            folder = stack.enter_context(private)
            stack.enter_context(dask.config.set({"temporary-directory": folder}))
            if gpus:
                cluster = stack.enter_context(
                    _start_gpu_workers([gpu.uuid for gpu in gpus], options)
                )
                add_cpu_workers(cluster, workers, threads)
            else:
                from distributed import LocalCluster

                environment = {THREADS_VARIABLE: str(threads)}
                cluster = LocalCluster(n_workers=workers, env=environment, **options)
                stack.enter_context(cluster)
            client = stack.enter_context(Client(cluster))
        except Exception as error:  # dask-cuda and the driver have errors of their own
            what = f"{len(gpus)} GPU and {workers} CPU" if gpus else str(workers)
            without = 'gpus="none" (--gpus none) does without GPUs, ' if gpus else ""
            raise ClusterError(
                f"a cluster of {what} workers cannot be started on this machine ({error}); "
                f"{without}workers=0 (--workers 0) does without one."
            ) from error
        yield client


def no_gpus_hint(why: str) -> str:
    """Return a line that says why no GPU is used."""
    return f"no GPU is used: {why}"


def _memory_of_each(workers: int) -> int:
    """Bytes of memory of each of the workers of a machine."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT // max(1, workers))


def _start_gpu_workers(uuids: Sequence[str], options: Mapping[str, Any]) -> Any:
    """Start a cluster with a worker for each GPU, which sees that one first."""
    from dask_cuda import LocalCUDACluster

    return LocalCUDACluster(
        CUDA_VISIBLE_DEVICES=list(uuids), resources={GPU_RESOURCE: 1}, **options
    )


def add_cpu_workers(cluster: Any, workers: int, threads: int) -> None:
    """Add workers that see no GPU to a cluster of GPU workers.

    Parameters
    ----------
    cluster : distributed.SpecCluster
        The cluster; what its workers are told, their logs' level among it, holds for these too.
    workers, threads : int
        Workers to add, and native threads of each.
    """
    options = dict(cluster.new_spec["options"])
    for name in ("resources", "data", "plugins"):
        options.pop(name, None)
    preload = [each for each in options.pop("preload", []) if "dask_cuda" not in str(each)]
    options.pop("preload_argv", None)
    if preload:
        options["preload"] = preload
    options["env"] = {"CUDA_VISIBLE_DEVICES": "", THREADS_VARIABLE: str(threads)}
    for number in range(workers):
        cluster.worker_spec[f"cpu-{number}"] = {
            "cls": cluster.new_spec["cls"],
            "options": dict(options),
        }
    cluster.sync(cluster._correct_state)


def _check_gpus(client: Client, chosen: GpuChoice, say: Callable[[str], None]) -> None:
    """Check that each GPU worker has the GPU that it was given, and no two have the same.

    Workers that have not are an error if their GPUs were asked for, or nobody else is there;
    otherwise they are closed.
    """
    pools = worker_pools(client)
    addresses = list(pools.get(GPU_POOL, {}))
    answers = client.run(_own_gpu, workers=addresses, on_error="return")
    left = {bare_uuid(gpu.uuid): gpu for gpu in chosen.gpus}
    faults: dict[str, str] = {}
    for address, answer in answers.items():
        if isinstance(answer, Exception):
            faults[address] = f"GPU worker {address} cannot use its GPU: {answer}"
            continue
        given, found = answer
        if given == found and found in left:
            del left[found]
        else:
            faults[address] = (
                f"GPU worker {address} was given GPU {given} and has {found}; is another program "
                "setting CUDA_VISIBLE_DEVICES?"
            )
    reasons = list(faults.values()) or [f"no worker came up for GPU {gpu}" for gpu in left.values()]
    if not reasons:
        return
    none_left = len(left) == len(chosen.gpus)
    if chosen.asked or (none_left and CPU_POOL not in pools):
        raise ClusterError(f"{reasons[0]} (--gpus none does without)")
    if faults:
        client.retire_workers(list(faults), close_workers=True)
    for reason in reasons[:1] if none_left else reasons:
        say(no_gpus_hint(reason) if none_left else f"a GPU is not used: {reason}")


def _own_gpu() -> tuple[str, str]:
    """On a GPU worker: UUIDs, without what stands before them, of the GPU given and the one used.

    Makes a CUDA context.
    """
    from dlasm.engines.gpu import prepare

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return bare_uuid(given), prepare()


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
    if scheduler_file is not None:
        _check_scheduler_file(Path(scheduler_file))
    try:
        if address is not None:
            client = Client(address, timeout=CONNECT_SECONDS)
        else:
            client = Client(scheduler_file=os.fspath(str(scheduler_file)), timeout=CONNECT_SECONDS)
    except TypeError as error:  # what Dask says where it has no certificates
        raise ClusterError(
            f"{where}: this scheduler is reached with certificates only; name them in Dask's "
            f"configuration, distributed.comm.tls ({error})"
        ) from error
    except (OSError, ValueError, TimeoutError, RuntimeError) as error:
        raise ClusterError(
            f"{where}: no Dask scheduler answers there within {CONNECT_SECONDS} s ({error})"
        ) from error
    with _quiet_client(), client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError as error:
            raise ClusterError(
                f"{where}: the scheduler has no workers; start some with `dask worker {where}`"
            ) from error
        yield client


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Keep Dask from printing that a scheduler is gone, which an error of ours says."""
    logger = logging.getLogger("distributed.client")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_scheduler_file(path: Path) -> None:
    """Raise ClusterError unless a file says where a scheduler is."""
    if not path.is_file():
        raise ClusterError(f"{path}: there is no such scheduler file; is the scheduler running?")
    try:
        address = json.loads(path.read_text(encoding="utf-8"))["address"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"{path}: is not a scheduler file, as it holds no address "
            f"({type(error).__name__}: {error}); give the file that dask scheduler "
            "--scheduler-file writes"
        ) from error
    if not isinstance(address, str):
        raise ClusterError(f"{path}: the address of the scheduler there is no text; is it damaged?")


def worker_pools(
    client: Client, *, gpus: bool = True, without: Collection[str] = ()
) -> dict[str, dict[str, int]]:
    """Return the workers there are now, by pool: address to threads.

    Workers with the resource ``GPU`` are the GPU pool, however they were started.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    gpus : bool
        Whether to tell GPU workers apart; otherwise all are one CPU pool.
    without : collection of str
        Addresses of workers to leave out.

    Raises
    ------
    ClusterError
        If the scheduler is gone.
    """
    try:
        workers = client.scheduler_info(n_workers=-1)["workers"]
    except (OSError, RuntimeError, KeyError) as error:  # KeyError: what was known of it is dropped
        raise ClusterError(
            f"the Dask scheduler is gone ({error}); start it and its workers again, and continue "
            "with --resume"
        ) from error
    pools: dict[str, dict[str, int]] = {GPU_POOL: {}, CPU_POOL: {}}
    for address, about in workers.items():
        if address in without:
            continue
        is_gpu = gpus and (about.get("resources") or {}).get(GPU_RESOURCE, 0) > 0
        pools[GPU_POOL if is_gpu else CPU_POOL][address] = about["nthreads"]
    return {pool: members for pool, members in pools.items() if members}


def cpu_pools(client: Client) -> dict[str, dict[str, int]]:
    """Return the workers for what is done on CPUs: those of the CPU pool, all if it has none."""
    pools = worker_pools(client)
    members = pools.get(CPU_POOL) or pools.get(GPU_POOL)
    return {CPU_POOL: members} if members else {}


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


def check_gpu_workers(client: Client, kernel: str) -> dict[str, str | None]:
    """Make the engine of every GPU worker ready.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    kernel : str
        The kernel that they will use.

    Returns
    -------
    dict
        UUID, without the prefix, of the GPU of each worker by address, None if it does not say.

    Raises
    ------
    ClusterError
        If one cannot use its GPU, saying why: no CuPy, for instance.
    """
    addresses = list(worker_pools(client).get(GPU_POOL, {}))
    if not addresses:
        return {}
    try:
        answers = client.run(prepare, GPU_POOL, kernel=kernel, workers=addresses, on_error="return")
    except (OSError, RuntimeError) as error:
        raise ClusterError(f"the workers do not answer: {error}") from error
    for address, answer in answers.items():
        if isinstance(answer, Exception):
            raise ClusterError(
                f"worker {address} has the resource {GPU_RESOURCE} and cannot use a GPU: {answer}; "
                f"start it without that resource, or give --gpus none"
            )
    return dict(sorted(answers.items()))


def same_gpu(uuids: Mapping[str, str | None]) -> dict[str, str]:
    """Find workers whose GPU an earlier one has too: address of the later to that of the earlier.

    Examples
    --------
    >>> same_gpu({"a": "1", "b": "2", "c": "1", "d": None, "e": None})
    {'c': 'a'}
    """
    owners: dict[str, str] = {}
    found = {}
    for address, uuid in uuids.items():
        if uuid and owners.setdefault(uuid, address) != address:
            found[address] = owners[uuid]
    return found


def _look(work: str) -> tuple[str, bool]:
    """On a worker: its dlasm, and whether it sees a folder."""
    from dlasm import __version__ as version

    return version, os.path.isdir(work)


def dashboard_hint(client: Client, *, own: bool = False) -> str:
    """Return where the dashboard is, and how to reach it from another machine.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    own : bool
        Whether the scheduler has the page of :mod:`dlasm.dashboard`.
    """
    link = client.dashboard_link
    if not link:
        return "no dashboard"
    port = link.rsplit(":", 1)[-1].split("/")[0]
    page = f" and {link.removesuffix('/status')}{PAGE}" if own else ""
    return (
        f"dashboard: {link}{page}  (from elsewhere: "
        f"ssh -L {port}:localhost:{port} {socket.gethostname()}, then http://localhost:{port}/status)"
    )


def span(name: str) -> Any:
    """Return a context in which tasks belong to a span of the dashboard."""
    from distributed import span as dask_span

    return dask_span(name)


def is_free_port(port: int) -> bool:
    """Whether a TCP port of the loopback interface is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
