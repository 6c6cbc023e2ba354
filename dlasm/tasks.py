"""What workers run: functions of paths and numbers that may run twice.

They hold for a thread of this process as well as for a worker of a cluster. Each reads from and
writes to the run folder and returns a few figures.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlasm.errors import StoreError
from dlasm.params import DEFAULT_KERNEL
from dlasm.work import Job, folder_version, open_batches, open_contigs, open_job

if TYPE_CHECKING:
    from dlasm.alignments import PafPlacer
    from dlasm.io.fasta import Contigs
    from dlasm.mapping import Aligner, EndsMapper

__all__ = ["extend_task", "make_placer", "native_threads", "peak_rss", "recruit_task"]

THREADS_VARIABLE = "DLASM_THREADS"
"""Environment variable with the native threads of a task on a worker. A local cluster sets it for
its CPU workers; GPU workers take them for contigs that do not fit on the GPU."""


def peak_rss() -> int:
    """Peak resident memory of this process so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def native_threads(threads: int | None) -> int:
    """Native threads inside a task: as asked, else as the cluster set, else 1."""
    return threads or int(os.environ.get(THREADS_VARIABLE, "1"))


def make_placer(
    work: Path, contigs: Contigs, paf: str | None, mapper: str | None, threads: int = 1
) -> Aligner | EndsMapper | PafPlacer:
    """Return what says where reads lie: an index of the contigs, or of a PAF file.

    Parameters
    ----------
    work : Path
        The folder ``work`` of the run.
    contigs : Contigs
        Its contigs.
    paf : str or None
        Name of the PAF file whose index is in ``work``, if there is one.
    mapper : str or None
        Otherwise what maps: one of :data:`dlasm.params.MAPPERS`.
    threads : int
        Native threads that build the index.
    """
    if paf is not None:
        from dlasm.alignments import PafPlacer

        return PafPlacer(work / "paf", paf)
    from dlasm.mapping import Aligner, EndsMapper

    return EndsMapper(contigs, threads) if mapper == "ends" else Aligner(contigs)


_placer_lock = threading.Lock()
_placers: dict[tuple[Any, ...], tuple[Contigs, Aligner | EndsMapper | PafPlacer]] = {}
"""At most one, with the arguments it was made from."""


def _worker_placer(
    work: Path,
    version: tuple[Path, int, int],
    paf: str | None,
    mapper: str | None,
    threads: int,
) -> tuple[Contigs, Aligner | EndsMapper | PafPlacer]:
    """Contigs and what places reads on them, made once per process."""
    key = (work, version, paf, mapper)
    with _placer_lock:
        if key not in _placers:
            _placers.clear()
            contigs = open_contigs(work / "contigs")
            _placers[key] = contigs, make_placer(work, contigs, paf, mapper, threads)
        return _placers[key]


def _forget_placer(work: Path) -> None:
    """Free the index of a run whose reads are all placed; it may be larger than what follows."""
    with _placer_lock:
        for key in [key for key in _placers if key[0] == work]:
            del _placers[key]


def dask_setup(worker: Any) -> None:  # noqa: ARG001
    """Leave Ctrl-C, which all processes of a terminal get, to the run; Dask calls this."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def recruit_task(
    work: str,
    batches_path: str,
    result_path: str,
    *,
    library: int,
    paired: bool,
    bound: float,
    phred_offset: int,
    paf: str | None = None,
    mapper: str | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Find the candidate reads that spooled batches give, write them and drop the batches.

    Parameters
    ----------
    work : str
        The folder ``work`` of the run.
    batches_path, result_path : str
        The spooled batches, and the file to write.
    library : int
        Number of the library.
    paired : bool
        Whether mates project.
    bound : float
        Largest distance of a projecting mate to keep, bases.
    phred_offset : int
        ASCII code of quality 0.
    paf : str, optional
        Name of the PAF file whose index is in ``work`` and says the places, instead of mapping.
    mapper : str, optional
        What maps otherwise: one of :data:`dlasm.params.MAPPERS`.
    threads : int, optional
        Native threads.

    Returns
    -------
    dict
        ``reads``, ``seconds``, ``peak_rss`` (bytes).
    """
    from dlasm.recruit import join_results, recruit_batch, write_batch_result

    begin = time.perf_counter()
    native = native_threads(threads)
    results = []
    try:
        # a second attempt finds what the first one wrote, or, shortly before that, no batches
        if not Path(result_path).is_file():
            for batch in open_batches(batches_path):
                version = folder_version(Path(work) / "contigs")
                contigs, placer = _worker_placer(Path(work), version, paf, mapper, native)
                result = recruit_batch(
                    batch,
                    placer.place(batch, threads=native),
                    contigs.lengths,
                    library=library,
                    paired_fr=paired,
                    bound=bound,
                    phred_offset=phred_offset,
                    threads=native,
                )
                results.append(result)
    except (StoreError, FileNotFoundError):
        if not Path(result_path).is_file():
            raise
        results.clear()
    if results:
        write_batch_result(result_path, join_results(results))
    shutil.rmtree(batches_path, ignore_errors=True)
    return {
        "reads": sum(result.counts["reads"] for result in results),
        "seconds": time.perf_counter() - begin,
        "peak_rss": peak_rss(),
    }


def skip_partition(job: Job, number: int) -> None:
    """Write that the contigs of a partition are not extended."""
    import numpy as np

    from dlasm.engines.cpu import Extensions
    from dlasm.params import OUTCOMES
    from dlasm.store import write_partition

    contig = job.plan.contigs(number)
    ends = 2 * len(contig)
    extensions = Extensions(
        walk_values=np.zeros(0, np.uint8),
        walk_offsets=np.zeros(ends + 1, np.int64),
        support=np.zeros(0, np.uint8),
        k=np.zeros(ends, np.int16),
        outcome=np.full(ends, OUTCOMES.index("skipped"), np.uint8),
        cut=np.zeros(ends, np.int32),
    )
    candidates = job.candidates.reshape(-1, 2)[contig].ravel()
    write_partition(job.partitions, number, contig, job.bins[contig], candidates, extensions)


def extend_task(
    work: str,
    number: int,
    *,
    engine: str = "cpu",
    threads: int | None = None,
    kernel: str = DEFAULT_KERNEL,
    gpu: str | None = None,
) -> dict[str, Any]:
    """Extend the contigs of one partition and write what was found.

    Parameters
    ----------
    work : str
        The folder ``work`` of the run.
    number : int
        Number of the partition.
    engine : str
        Name of the engine, which is that of the pool.
    threads : int, optional
        Native threads.
    kernel : str
        Kernel of the GPU engine.
    gpu : str, optional
        UUID of the GPU; the current one of this process if not given.

    Returns
    -------
    dict
        ``partition``, ``pool``, ``contigs``, ``kmers`` (those of the candidate reads, at the start
        k), ``started`` (seconds since the epoch), ``seconds``, ``peak_rss`` (bytes).
    """
    import numpy as np

    from dlasm.engines.choose import extend_partition, new_buffer
    from dlasm.pack import pack_partition
    from dlasm.params import WalkParams
    from dlasm.store import write_partition

    started, begin = time.time(), time.perf_counter()
    _forget_placer(Path(work))
    job = open_job(Path(work))
    contig = job.plan.contigs(number)
    packed = pack_partition(
        contig,
        job.contigs,
        job.runs,
        job.reach,
        job.depth,
        job.max_reads,
        job.candidates,
        partial(new_buffer, engine, gpu=gpu),
    )
    params = WalkParams(job.k, job.walk_limit, job.max_reads, job.min_support)
    run = extend_partition(engine, packed, params, native_threads(threads), kernel=kernel, gpu=gpu)
    extensions = run.extensions
    candidates = job.candidates.reshape(-1, 2)[contig].ravel()
    about = {
        "pool": engine,
        "kernel": kernel,
        "gpu": run.gpu,
        "contigs": len(contig),
        "seconds": time.perf_counter() - begin,
        "peak_rss_bytes": peak_rss(),
        "figures": run.figures,
    }
    write_partition(job.partitions, number, contig, job.bins[contig], candidates, extensions, about)
    return {
        "partition": number,
        "pool": engine,
        "contigs": len(contig),
        "started": started,
        "kmers": int(np.maximum(packed.length.astype(np.int64) - job.k + 1, 0).sum()),
        "seconds": time.perf_counter() - begin,
        "peak_rss": peak_rss(),
    }
