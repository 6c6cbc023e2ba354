"""A run: its stages in order, how it goes on after a kill, and what it gives.

The stages are: contigs (read once and laid out for the tasks), candidates (which reads belong to
which contig end; one task per batch of reads), plan (bins and partitions), extend (one task per
partition), results (the store in input order), join (which ends overlap, and which of them to
join, if that is asked for) and report. Each leaves whole files in the run's folder and a record in
``run.json``; a resumed run skips the stages that are recorded, and within ``candidates`` and
``extend`` the tasks whose output is there. A small run does all of it in this process, with native
threads inside; with a Dask client the tasks go to its workers.
"""

from __future__ import annotations

import errno
import logging
import operator
import os
import platform
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dlasm import params as defaults
from dlasm._version import __version__
from dlasm.atomic import drop_folder, whole_file, whole_folder, write_json
from dlasm.background import in_background, one_ahead
from dlasm.dashboard import TOPIC
from dlasm.dispatch import (
    CPU_POOL,
    GPU_POOL,
    PartitionSource,
    Task,
    busy_over_time,
    killed_error,
    run_here,
    run_tasks,
)
from dlasm.engines.choose import prepare
from dlasm.errors import (
    AlignmentsError,
    CandidatesError,
    ContigsError,
    DlasmError,
    EngineError,
    InputError,
    ParameterError,
    ReadsError,
    ResourceError,
    StoreError,
    is_want_of_memory,
)
from dlasm.gpus import Gpu, GpuChoice, GpusAsked, bare_uuid, choose_gpus, parse_gpus
from dlasm.params import PARTITION_BYTES, WalkParams, walk_limit_from_insert
from dlasm.partition import assign_bins, plan_partitions
from dlasm.report import (
    TABLES,
    Progress,
    contigs_frame,
    extensions_frame,
    figures,
    write_files,
)
from dlasm.resources import MemoryPlan, check_space, parse_size, plan_memory
from dlasm.runs import write_run_file
from dlasm.state import RunFolder, content_difference, identify_input, read_state
from dlasm.store import (
    CIRCULAR,
    begin_store,
    finalise,
    has_partition,
    open_results,
    read_about,
    write_joins,
)
from dlasm.tasks import extend_task, make_placer, peak_rss, recruit_task, skip_partition
from dlasm.work import (
    Job,
    RunFiles,
    forget_job,
    open_contigs,
    open_job,
    read_json,
    write_batches,
    write_contigs,
    write_job,
)

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

    from dlasm.alignments import PafPlacer
    from dlasm.follow import FollowedEnd
    from dlasm.html import Counts
    from dlasm.io.fasta import Contigs
    from dlasm.io.fastq import Library, ReadBatch
    from dlasm.joins import Extended as JoinContigs
    from dlasm.joins import Names
    from dlasm.mapping import Aligner, EndsMapper
    from dlasm.recruit import BatchFacts, BatchResult, LibrarySummary
    from dlasm.store import Results

__all__ = ["Run", "extend", "open_run", "parse_insert", "summary_rows"]

PathLike: TypeAlias = str | os.PathLike[str]

MATE_BOUND = 2000.0
"""Mates are kept up to this distance from a contig end, bases, until the insert size is known: more
than the reach of nearly all short-read libraries, which otherwise must be mapped again."""

SMALL_BYTES = 2 << 30
"""Input files up to which no cluster is started by itself."""

GPU_BYTES = 1 << 30
"""Input files from which a GPU is used by itself: it takes a second to start, and the CPU engine
extends what is in smaller files in less."""

SMALL_CPUS = 8
"""CPUs up to which threads of one process do better than a local cluster."""

PARTITIONS_PER_WORKER = 4

BATCHES_PER_RUN = 16
"""Batches of reads whose candidates make a run: half a million reads, so that a billion give 2,000
files, and a worker has a tenth of a second to do."""

log = logging.getLogger("dlasm")


# -- the public functions --------------------------------------------------------------------------


def extend(
    contigs: PathLike | None = None,
    *,
    reads: Sequence[Any] | None = None,
    interleaved: PathLike | Sequence[PathLike] | None = None,
    single: PathLike | Sequence[PathLike] | None = None,
    bam: PathLike | None = None,
    paf: PathLike | None = None,
    mapper: str = defaults.DEFAULT_MAPPER,
    candidates: PathLike | None = None,
    depths: PathLike | None = None,
    output: PathLike,
    preset: str | None = None,
    k: int | None = None,
    walk_limit: int | None = None,
    min_support: int | None = None,
    insert: tuple[float, float] | str | None = None,
    phred: int = defaults.PHRED_OFFSET,
    max_reads: int = defaults.MAX_READS,
    bin_limit: int = defaults.BIN_LIMIT,
    join: str | None = None,
    join_ambiguous: bool = False,
    rounds: int = 1,
    client: Client | None = None,
    workers: int | str = "auto",
    threads: int | None = None,
    gpus: GpusAsked = None,
    kernel: str | None = None,
    memory: str | int | None = None,
    on_error: str = "stop",
    dashboard: bool = True,
    performance_report: PathLike | None = None,
    partition_bytes: int = PARTITION_BYTES,
    force: bool = False,
    resume: bool = False,
    progress: Progress | None = None,
    command: Sequence[str] | None = None,
) -> Run:
    """Extend the ends of contigs by local assembly of the reads that belong to them.

    Give ``contigs`` with reads (``reads``, ``interleaved``, ``single``, any number of libraries),
    with reads and a PAF of them, or with ``bam``; or ``candidates`` alone.

    Parameters
    ----------
    contigs : path-like, optional
        FASTA, plain or compressed.
    reads : sequence, optional
        Paths of the two files of a library of pairs, or a list of such pairs.
    interleaved, single : path-like or sequence of path-like, optional
        Files of interleaved pairs, and of single reads; a library each.
    bam : path-like, optional
        Alignments of the reads to the contigs: BAM, SAM or CRAM, in any order.
    paf : path-like, optional
        Alignments of the reads given beside it to the contigs.
    mapper : str
        What maps reads otherwise: ``"ends"``, dlasm's own, or ``"minimap2"``.
    candidates : path-like, optional
        A MetaHipMer2 dump of contigs and their candidate reads.
    depths : path-like, optional
        Table of depths as MetaBAT's ``jgi_summarize_bam_contig_depths`` writes it.
    output : path-like
        Folder of the run.
    preset : str, optional
        What parameters suit: ``"careful"`` for contigs from another assembler (the default), start
        k 33 and least support 2; ``"paper"`` as MetaHipMer2 has it (the default with
        ``candidates``), least support 1 and a k that must be given. What is given beside it counts.
    k : int, optional
        Start k, bases, 21 to 121; for ``candidates`` the k that their contigs were made with.
    walk_limit : int, optional
        Most bases appended to an end. By default insert mean + 2 sd; 613 with ``candidates``.
    min_support : int, optional
        Fragments (a read and its mate are one) among the candidate reads of an end that must hold
        each appended base and the 20 before it, 1 to 255; walks are cut before the first base with
        fewer.
    insert : tuple of float or str, optional
        Insert mean and sd, bases, as ``(350, 50)`` or ``"350:50"``; measured by default.
    phred : int
        ASCII code of quality 0.
    max_reads : int
        Candidate reads used per end.
    bin_limit : int
        Candidate reads from which a contig is in bin 3.
    join : str, optional
        Whether extended contigs are joined where their ends overlap: ``"careful"`` asks for more
        evidence than ``"full"``. Not by default.
    join_ambiguous : bool
        With ``join``, whether an end that overlaps several is joined to the one that most pairs of
        reads speak for, if those are at least two and twice as many as for any other.
    rounds : int
        How often contigs are extended (and joined) at most: what a round gave is the next one's
        contigs. It ends before if a round appends no base and makes no join. More than one needs
        reads in files, which are mapped anew in each; see :mod:`dlasm.rounds`.
    client : distributed.Client, optional
        Of the cluster to use, as :func:`dlasm.local_cluster` gives it.
    workers : int or "auto"
        Without a client: workers of a cluster to start on this machine; 0 does without one.
        ``"auto"``: 0 unless the input is large and the machine has many CPUs.
    threads : int, optional
        Native threads of a task; by default the CPUs divided by the workers.
    gpus : str, int or sequence, optional
        ``"auto"`` (the default): the GPU workers of ``client``; without one, GPUs of this machine
        if there are any and the input is large enough to gain from one (if ``"auto"`` or a kernel
        is given and no GPU is used, a warning says why). ``"none"``; or GPUs of this machine by
        number or UUID, as in :func:`dlasm.local_cluster`. Does not change the result.
    kernel : str, optional
        Kernel of the GPU engine: ``"fast"`` (the default), or ``"v1"`` or ``"v2"`` to compare it
        with. Does not change the result.
    memory : str or int, optional
        Memory that this process may take, or, of a cluster that this starts, each worker: a size
        such as ``"8GB"``, or bytes. By default what all threads can use, which does not grow with
        the number of reads, and for workers this machine's memory divided by them.
    on_error : str
        What becomes of a partition of which three workers died, one after the other: ``"stop"``
        ends the run, which can be resumed; ``"skip"`` warns and goes on without it, so that its
        contigs stay as they are, with outcome ``skipped``. Mapping always stops: to go on without
        some reads would change contigs all over.
    dashboard : bool
        Whether a cluster that this starts serves Dask's dashboard.
    performance_report : path-like, optional
        File to write Dask's performance report to (HTML): what each worker did, and when. Only with
        a client or workers.
    partition_bytes : int
        Packed bytes that a partition aims at; does not change the result.
    force : bool
        Replace an earlier run in ``output``; a finished one is kept until the new one is, too.
    resume : bool
        Go on with an earlier run in ``output``. Not with ``force``.
    progress : Progress, optional
        Is told how far the run is; by default only warnings are given.
    command : sequence of str, optional
        What to record as the command.

    Returns
    -------
    Run
        The finished run.

    Raises
    ------
    ParameterError
        If a parameter is out of its range or two contradict each other.
    InputError
        If an input cannot be used (its kinds are in :mod:`dlasm.errors`); no result is left behind.
    OutputExistsError
        If ``output`` is there and neither ``force`` nor ``resume`` is given, or another run is
        writing it.
    ResumeError
        If the run to resume was begun with other options or inputs.
    ClusterError
        If a cluster cannot be started, or loses its workers; or GPUs that were asked for are not
        there.
    EngineError
        If a GPU that was named cannot be used, or GPUs fail and there is nobody else.
    ResourceError
        If disk or memory run out; the run can be resumed.
    """
    options = _Options.check(
        contigs=contigs,
        reads=reads,
        interleaved=interleaved,
        single=single,
        bam=bam,
        paf=paf,
        mapper=mapper,
        candidates=candidates,
        depths=depths,
        preset=preset,
        k=k,
        walk_limit=walk_limit,
        min_support=min_support,
        insert=insert,
        phred=phred,
        max_reads=max_reads,
        bin_limit=bin_limit,
        join=join,
        join_ambiguous=join_ambiguous,
    )
    rounds = _whole("rounds", rounds)
    if rounds < 1:
        raise ParameterError(f"rounds are {rounds}; there must be at least 1")
    if rounds > 1 and options.mapper is None:
        given = next(n for n in ("candidates", "bam", "paf") if getattr(options, n) is not None)
        raise ParameterError(
            f"rounds are {rounds}, and {given} tells of reads on the contigs as they are alone; "
            "give contigs and reads, which are mapped in every round, or 1 round"
        )
    partition_bytes = _whole("partition bytes", partition_bytes)
    threads = None if threads is None else _whole("threads", threads)
    workers = workers if workers == "auto" else _whole("workers", workers)
    if on_error not in defaults.ON_ERROR:
        raise ParameterError(
            f"on_error is {on_error!r}; there are {', '.join(map(repr, defaults.ON_ERROR))}"
        )
    if force and resume:
        raise ParameterError(
            "force and resume contradict each other: one replaces the run in the output folder, "
            "the other continues it"
        )
    if partition_bytes < 1:
        raise ParameterError(f"partition bytes are {partition_bytes}; they must be at least 1")
    if threads is not None and threads < 1:
        raise ParameterError(f"threads are {threads}; there must be at least 1")
    if isinstance(workers, int) and workers < 0:
        raise ParameterError(f"workers are {workers!r}; give a number from 0, or 'auto'")
    if client is None and workers != 0:
        from dlasm.cluster import check_guard

        check_guard()
    limit = None if memory is None else parse_size(memory, "memory")
    if limit is not None:
        from dlasm.cluster import check_memory

        check_memory(limit)
    asked = parse_gpus(gpus)
    wanted = asked != "none" and (gpus is not None or kernel is not None)
    kernel = defaults.DEFAULT_KERNEL if kernel is None else kernel
    if kernel not in defaults.KERNELS:
        raise ParameterError(
            f"kernel is {kernel!r}; there are {', '.join(map(repr, defaults.KERNELS))}"
        )
    if client is not None and isinstance(asked, list):
        raise ParameterError(
            "GPUs were named for a cluster that runs, whose workers have theirs; give 'auto' or "
            "'none'"
        )
    inputs = options.identify()
    for about in inputs if rounds > 1 else ():
        if about.get("pipe") and about["role"] == "reads":
            raise ParameterError(
                f"{about['path']}: is a pipe, and {rounds} rounds read the reads as often; give "
                "files, or 1 round"
            )
    _refuse_inputs_in(output, inputs)
    count = _choose_workers(workers, inputs) if client is None else 0
    chosen = GpuChoice([])
    if client is None:
        chosen = _choose_gpus(asked, inputs, cluster=bool(count), wanted=wanted)
    if performance_report is not None:
        _check_performance_report(performance_report, client is not None or count > 0)
    progress = progress or Progress()
    folder = RunFolder.prepare(
        output,
        options={**options.result_options(), **({"rounds": rounds} if rounds > 1 else {})},
        inputs=inputs,
        command=command or sys.argv,
        force=force,
        resume=resume,
    )
    with ExitStack() as stack:
        stack.callback(folder.close)
        stack.callback(forget_job)
        stack.enter_context(_log_to(folder.path / "dlasm.log"))
        stack.callback(progress.close)
        log.info("dlasm %s: %s", __version__, " ".join(folder.state["command"]))
        if folder.state["state"] == "finished":
            with _explained(folder):
                written = _write_missing(folder.path)
                if not (folder.path / "report.html").is_file():
                    _write_page(folder.path, progress)
                    written.append("report.html")
            left = f"{' and '.join(written)} was missing and is written again"
            left = left if written else "nothing is left to do"
            progress.note(f"{folder.path}: is finished already; {left}")
            folder.finish()
            return Run(folder.path)
        if not folder.resumed:  # much of it may be there already
            try:
                warning = check_space(folder.path, inputs, count)
            except BaseException:
                folder.discard()
                raise
            if warning:
                _warn(progress, warning)
        say = partial(_warn if wanted else _note, progress)
        with _explained(folder):
            extended = folder.resumed and _is_extended(folder)
        if extended:  # what is left needs neither workers nor a GPU
            client, count, chosen, asked = None, 0, GpuChoice([]), "none"
        if client is not None:
            from dlasm.cluster import no_gpus_hint, worker_pools

            if wanted and GPU_POOL not in worker_pools(client):
                say(no_gpus_hint("no worker of the cluster has the resource GPU"))
        else:
            from dlasm.cluster import dashboard_hint, no_gpus_hint, start_cluster

            if count:
                cluster = start_cluster(count, threads, chosen, dashboard, limit, say)
                try:
                    client = stack.enter_context(cluster)
                except BaseException:
                    if not folder.resumed:
                        folder.discard()
                    raise
                threads = None  # the workers know theirs
                if dashboard:
                    progress.note(dashboard_hint(client, own=True))
            elif chosen.why_none:
                say(no_gpus_hint(chosen.why_none))
        if performance_report is not None and client is None:
            progress.note("no performance report: nothing is left for workers to do")
        elif performance_report is not None and client is not None:
            stack.enter_context(_performance_report(client, performance_report, progress))
        pools = _Pools(
            client,
            threads,
            gpus=asked != "none",
            devices=chosen.gpus,
            named=chosen.asked,
            kernel=kernel,
            say=say,
        )

        def run(folder: RunFolder, options: _Options) -> None:
            _Stages(folder, options, progress, pools, partition_bytes, limit, on_error).run()

        with _explained(folder):
            if rounds == 1:
                run(folder, options)
            else:
                _run_rounds(folder, options, inputs, rounds, progress, run)
        return Run(folder.path)


def _run_rounds(
    folder: RunFolder,
    options: _Options,
    inputs: Sequence[Mapping[str, Any]],
    rounds: int,
    progress: Progress,
    run: Callable[[RunFolder, _Options], None],
) -> None:
    """Run rounds, those that are there already only as far as they are not finished."""
    from dlasm.rounds import (
        combined_summary,
        gained,
        next_contigs,
        round_folder,
        round_row,
        take_over,
    )

    summaries: list[dict[str, Any]] = []
    last = 1
    for number in range(1, rounds + 1):
        path = round_folder(folder.path, number)
        if number > 1:
            contigs = next_contigs(round_folder(folder.path, number - 1))
            options = replace(options, contigs=os.fspath(contigs), depths=None)
            reads = [about for about in inputs if about["role"] == "reads"]
            inputs = [identify_input("contigs", contigs, ContigsError), *reads]
        _tell(progress, f"round {number} of {rounds}: {options.contigs}")
        one = RunFolder.prepare(
            path,
            options=options.result_options(),
            inputs=inputs,
            command=folder.state["command"],
            resume=True,
        )
        try:
            if one.state["state"] == "finished":
                _write_missing(path)
            else:
                run(one, options)
                progress.close()
        finally:
            one.close()
        summaries.append(read_json(path / "summary.json"))
        folder.resumed = True  # what is there stays, should reads be unusable from now on
        if not gained(round_row(number, summaries[-1])):
            _tell(progress, f"round {number} appended no base and made no join: it is the last")
            break
        last = number
    take_over(round_folder(folder.path, last), folder.path)
    state = folder.state
    whole = {
        "command": state["command"],
        "started": state["started"],
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seconds": round(time.perf_counter() - folder.begun, 3),
        "parameters": {"rounds": rounds},
        "inputs": state["inputs"],
    }
    write_json(folder.path / "summary.json", combined_summary(summaries, last, whole))
    state["stages"] = read_state(round_folder(folder.path, last))["stages"]
    folder.save()
    _write_page(folder.path, progress)
    folder.finish()
    log.info("finished")


def open_run(path: PathLike) -> Run:
    """Open a finished run.

    Parameters
    ----------
    path : path-like
        Its folder.

    Raises
    ------
    StoreError
        If there is no run, it is not finished, or it has another format version.
    """
    return Run(path)


class Run:
    """A finished run.

    Parameters
    ----------
    path : path-like
        Its folder.

    Attributes
    ----------
    path : Path
        The folder, with ``extended.fasta``, ``extensions.tsv``, ``summary.json``,
        ``results.zarr``, ``report.html`` and, if contigs were joined, ``joined.fasta``,
        ``joins.tsv``, ``joined.agp`` and ``graph.gfa``. Of several rounds these are the results of
        the last one that gained something; each is a run of its own in ``rounds``.

    Raises
    ------
    StoreError
        If there is no finished run here.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        state = read_state(self.path)
        if state["state"] != "finished":
            raise StoreError(
                f"{self.path}: this run is not finished; continue it with --resume "
                "(dlasm inspect says how far it came)"
            )

    def __repr__(self) -> str:
        return f"Run({os.fspath(self.path)!r})"

    @cached_property
    def results(self) -> Results:
        """The store, for access to the arrays; see :mod:`dlasm.arrays`."""
        return open_results(self.path / "results.zarr")

    def summary(self) -> dict[str, Any]:
        """Return the figures of ``summary.json``."""
        return read_json(self.path / "summary.json")

    def extensions(self) -> pd.DataFrame:
        """Return a pandas DataFrame with a row per contig end, as ``extensions.tsv`` has them.

        Columns: ``contig``, ``side`` (left, right), ``bases`` (appended), ``k`` (of the accepted
        walk, 0 without one), ``outcome`` (why the walk stopped, or why there is none),
        ``candidates`` (candidate reads before the cap), ``bin``, ``flags`` (what makes the walk
        less certain: ``repeat``, ``low_k``, both or ``.``).
        """
        return extensions_frame(self.results)

    def joins(self) -> pd.DataFrame:
        """Return a pandas DataFrame with a row per overlap of two extended ends.

        Columns as ``joins.tsv`` has them: ``contig_a``, ``side_a``, ``contig_b``, ``side_b``, then
        those of group ``joins`` of :mod:`dlasm.arrays` (missing where a count is not known), then
        ``flags``: ``depth``, ``variants`` or both where two strains may have been joined.

        Raises
        ------
        StoreError
            If contigs were not to be joined in this run.
        """
        from dlasm.joins import Names, joins_frame

        joins = self.results.joins()
        if joins is None:
            raise StoreError(f"{self.path}: contigs were not joined in this run; extend with join")
        names = (
            np.asarray(self.results.array("contigs", name)[:])
            for name in ("name_values", "name_offsets")
        )
        return joins_frame(joins, Names(*names), self.results.extended_lengths)

    def contigs(self, *, sequences: bool = True) -> pd.DataFrame:
        """Return a pandas DataFrame with a row per contig, in input order.

        Columns: ``contig``, ``length``, ``left`` and ``right`` (bases appended),
        ``extended_length``, ``depth`` (fold), ``bin`` and, unless ``sequences`` is false,
        ``sequence`` (extended); those of all contigs are in memory then.
        """
        return contigs_frame(self.results, sequences=sequences)

    def evaluate(
        self, reference: PathLike, *, circular: bool = False, threads: int | None = None
    ) -> dict[str, Any]:
        """Say what of a run is right, where the genomes are known; kept as ``evaluation.json``.

        A base that was appended is right if it and all before it, reading away from the contig, are
        what follows on the genomes, at the best place of the contig's flank. Joins, where the run
        has made some, are labelled as :data:`dlasm.evaluate.LABELS` says.

        Parameters
        ----------
        reference : path-like
            FASTA of all genomes, plain or compressed; strains as they are, not one for all.
        circular : bool
            Whether the genomes are circles.
        threads : int, optional
            Threads that align; all cores by default. The figures do not depend on them.

        Returns
        -------
        dict
            ``version``

            ``reference``
                ``path``, ``sequences``, ``bases``, ``circular``.
            ``extensions``
                ``ends`` and ``bases`` that were appended, then ``ends``, ``right_ends`` (without a
                wrong base), ``bases`` and ``right_bases`` of those ``judged``, and, apart, of those
                where the contig was wrong before: ``wrong_end`` (its last 21 bases are not what the
                genomes have); ``chimeric`` (its flank of up to 20 kb lies nowhere as a whole) and
                ``unplaced`` (it lies nowhere), which have no place to be right at.
            ``joins``, where there are some
                Counts by label of joins ``joined`` and ``refused``, and ``chains`` of contigs, with
                ``false_chains``: each join is true, but a contig lies at another place for the join
                before it than for the one after.
            ``contiguity``
                For contigs ``before``, ``extended`` and ``joined``: ``contigs``, ``bases``,
                ``longest``, ``n50``, ``ng50``, ``nga50``, ``misassemblies`` (breaks), and
                ``aligned_bases``. NG50 and NGA50 are those of the size of the reference, None where
                there are too few bases; NGA50 is that of aligned blocks, contigs being broken where
                pieces lie on different sequences or strands, or are more than 1,000 bases out of
                place (as QUAST defines it).

        Raises
        ------
        InputError
            If the reference is missing, not FASTA or without bases.
        ParameterError
            If no contig has a place on these genomes.
        StoreError
            If files of the run are damaged.
        """
        from dlasm.evaluate import Reference, evaluate_run

        cores = len(os.sched_getaffinity(0))
        genomes = Reference(reference, circular=circular, threads=threads or cores)
        evaluation = {
            "version": __version__,
            **evaluate_run(self.path, self.results, genomes),
        }
        write_json(self.path / "evaluation.json", evaluation)
        return evaluation

    def follow_end(self, contig: str | int, side: str) -> FollowedEnd:
        """Follow one contig end base by base: its reads, their votes, why it stopped.

        A run does not keep its candidate reads, so the first call gathers them again from the input
        files, as the run did, in this process, into a temporary folder (``TMPDIR``) that lasts as
        long as this object. That takes as long as stage ``candidates`` did; further ends are quick.

        Parameters
        ----------
        contig : str or int
            Id of the contig, or its number, counted from 0.
        side : str
            ``"left"`` or ``"right"``.

        Returns
        -------
        dlasm.follow.FollowedEnd
            With ``reads``, ``rungs``, ``votes()``, ``placed()`` and ``pile()``.

        Raises
        ------
        ParameterError
            If there is no such contig or side.
        InputError
            If an input file is not there any more (their paths are those the run was given), is a
            pipe, or has changed.
        StoreError
            If what is found now is not what the run stored.
        """
        from dlasm.follow import find_contig, follow_end

        find_contig(self.results, contig)  # before what takes long
        return follow_end(self.results, self._candidates[1], contig, side)

    @cached_property
    def _candidates(self) -> tuple[TemporaryDirectory[str], Job]:
        """The candidates of all ends, gathered again, and the folder that they are in."""
        folder = TemporaryDirectory(prefix="dlasm-candidates-")
        return folder, _gather_candidates(self.path, Path(folder.name))

    def report(self, path: PathLike | None = None) -> Path:
        """Write the run as one HTML page that needs nothing else.

        Parameters
        ----------
        path : path-like, optional
            The page; by default ``report.html`` in the folder of the run, as the run wrote it.

        Returns
        -------
        Path
            The page.
        """
        from dlasm.html import write_report

        page = self.path / "report.html" if path is None else Path(path)
        write_report(page, [self.path])
        return page

    def _repr_html_(self) -> str:
        """Show the main figures in a notebook."""
        import html

        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(before)}"
            f"</td><td>{html.escape(after)}</td></tr>"
            for name, before, after in summary_rows(self.summary())
        )
        return (
            f"<table><caption>{html.escape(os.fspath(self.path))}</caption>"
            f"<tr><th></th><th>before</th><th>after</th></tr>{rows}</table>"
        )


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the rows of a small table of a summary: what, before, after."""
    before, after = summary["contigs"], summary["extended"]
    joins = summary.get("joins")
    joined = (
        [
            ("joins", f"{joins['candidates']:,} candidates", f"{joins['joined']:,} made"),
            ("contigs after joins", f"{before['count']:,}", f"{joins['contigs']:,}"),
            ("N50 after joins", f"{before['n50']:,}", f"{joins['n50']:,}"),
            ("circles", "", f"{joins['circles']:,}"),
        ]
        if joins
        else []
    )
    gained = after["appended_bases"]
    share = 100 * gained / before["bases"] if before["bases"] else 0.0
    return [
        ("contigs", f"{before['count']:,}", f"{after['contigs']:,} extended"),
        ("bases", f"{before['bases']:,}", f"{after['bases']:,} (+{gained:,}, {share:.2f} %)"),
        ("N50", f"{before['n50']:,}", f"{after['n50']:,}"),
        ("N50 of the size before", f"{before['n50']:,}", f"{after['n50_of_input_size']:,}"),
        ("longest", f"{before['longest']:,}", f"{after['longest']:,}"),
        ("contig ends", f"{2 * before['count']:,}", f"{after['ends']:,} extended"),
        *joined,
    ]


# -- options ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Options:
    """The options of a run, checked."""

    contigs: str | None
    libraries: tuple[Library, ...]
    bam: str | None
    paf: str | None
    mapper: str | None
    candidates: str | None
    depths: str | None
    preset: str
    k: int
    walk_limit: int | None
    min_support: int
    insert: tuple[float, float] | None
    phred: int
    max_reads: int
    bin_limit: int
    join: str | None
    join_ambiguous: bool

    @classmethod
    def check(
        cls,
        *,
        contigs: PathLike | None,
        reads: Sequence[Any] | None,
        interleaved: PathLike | Sequence[PathLike] | None,
        single: PathLike | Sequence[PathLike] | None,
        bam: PathLike | None,
        paf: PathLike | None,
        mapper: str,
        candidates: PathLike | None,
        depths: PathLike | None,
        preset: str | None,
        k: int | None,
        walk_limit: int | None,
        min_support: int | None,
        insert: tuple[float, float] | str | None,
        phred: int,
        max_reads: int,
        bin_limit: int,
        join: str | None,
        join_ambiguous: bool,
    ) -> _Options:
        """Check what was given to :func:`extend`."""
        libraries = _libraries(reads, interleaved, single)
        if candidates is not None:
            given = {"contigs": contigs, "bam": bam, "paf": paf, "depths": depths}
            others = [name for name, value in given.items() if value is not None]
            if insert is not None:
                others.append("an insert size")
            if libraries:
                others.append("reads")
            if others:
                raise ParameterError(
                    f"candidates were given together with {' and '.join(others)}; a dump holds "
                    "contigs, depths and reads, so give it alone"
                )
        else:
            if contigs is None:
                raise ParameterError("give contigs (FASTA), or candidates (a MetaHipMer2 dump)")
            if bam is not None and (libraries or paf is not None):
                raise ParameterError(
                    "a BAM file holds its reads; give it without reads and without PAF"
                )
            if bam is None and not libraries:
                raise ParameterError(
                    "give reads (-1/-2, --interleaved or --single)"
                    + (" beside the PAF file" if paf is not None else " or a BAM file (--bam)")
                )
        if mapper not in defaults.MAPPERS:
            raise ParameterError(
                f"mapper is {mapper!r}; there are {', '.join(map(repr, defaults.MAPPERS))}"
            )
        if preset is None:
            preset = "careful" if candidates is None else "paper"
        if preset not in defaults.PRESETS:
            raise ParameterError(
                f"preset is {preset!r}; there are {', '.join(map(repr, defaults.PRESETS))}"
            )
        start_k = defaults.PRESETS[preset].k if k is None else _whole("k", k)
        if start_k is None:
            who, why = f"preset {preset!r} needs", ""
            if candidates is not None:
                who, why = "candidates need", ", which a dump does not say"
            raise ParameterError(f"{who} a k (-k): the one the contigs were made with{why}")
        if min_support is None:
            min_support = defaults.PRESETS[preset].min_support
        min_support = _whole("least support", min_support)
        walk_limit = None if walk_limit is None else _whole("walk limit", walk_limit)
        phred = _whole("phred offset", phred)
        max_reads = _whole("reads per end", max_reads)
        bin_limit = _whole("bin limit", bin_limit)
        WalkParams(start_k, walk_limit or defaults.DUMP_WALK_LIMIT, max_reads, min_support)
        if walk_limit is not None and walk_limit < 1:
            raise ParameterError(f"walk limit is {walk_limit}; it must be at least 1 base")
        if not 0 <= phred <= 93:
            raise ParameterError(f"phred offset is {phred}; it is 33, or 64 in old Illumina files")
        if join is not None and join not in defaults.JOIN_MODES:
            raise ParameterError(
                f"join is {join!r}; there are {', '.join(map(repr, defaults.JOIN_MODES))}, and None"
            )
        if join_ambiguous and join is None:
            raise ParameterError(
                "ambiguous overlaps are taken only where contigs are joined (join)"
            )
        if bin_limit < 1:
            raise ParameterError(f"bin limit is {bin_limit}; it must be at least 1 read")
        insert = None if insert is None else parse_insert(insert)
        if insert is not None and walk_limit is None:
            limit = walk_limit_from_insert(*insert)
            if limit > defaults.MAX_WALK_LIMIT:
                raise ParameterError(
                    f"insert mean + 2 sd is {limit:,}, and no more than "
                    f"{defaults.MAX_WALK_LIMIT:,} bases can be appended; give a smaller insert "
                    "size, or a walk limit (--walk-limit)"
                )
        return cls(
            contigs=_text(contigs),
            libraries=libraries,
            bam=_text(bam),
            paf=_text(paf),
            mapper=mapper if libraries and paf is None else None,
            candidates=_text(candidates),
            depths=_text(depths),
            preset=preset,
            k=start_k,
            walk_limit=walk_limit,
            min_support=min_support,
            insert=insert,
            phred=phred,
            max_reads=max_reads,
            bin_limit=bin_limit,
            join=join,
            join_ambiguous=bool(join_ambiguous),
        )

    @classmethod
    def of_run(cls, state: Mapping[str, Any]) -> _Options:
        """Return the options that a run had, from its state."""
        paths: dict[str, list[str]] = {}
        for about in state["inputs"]:
            paths.setdefault(about["role"], []).append(about["path"])
        given = dict(state["options"])
        reads = iter(paths.get("reads", []))
        libraries: dict[str, list[Any]] = {"pairs": [], "interleaved": [], "single": []}
        for kind in given.pop("libraries"):
            libraries[kind].append((next(reads), next(reads)) if kind == "pairs" else next(reads))
        given["mapper"] = given["mapper"] or defaults.DEFAULT_MAPPER
        given["join_ambiguous"] = bool(given["join_ambiguous"])
        given["insert"] = tuple(given["insert"]) if given["insert"] else None
        return cls.check(
            contigs=next(iter(paths.get("contigs", [])), None),
            reads=libraries["pairs"] or None,
            interleaved=libraries["interleaved"] or None,
            single=libraries["single"] or None,
            bam=next(iter(paths.get("BAM", [])), None),
            paf=next(iter(paths.get("PAF", [])), None),
            candidates=next(iter(paths.get("candidates", [])), None),
            depths=next(iter(paths.get("depths", [])), None),
            **given,
        )

    def result_options(self) -> dict[str, Any]:
        """Options that can change the result, as JSON has them."""
        return {
            "preset": self.preset,
            "k": self.k,
            "walk_limit": self.walk_limit,
            "min_support": self.min_support,
            "insert": None if self.insert is None else list(self.insert),
            "phred": self.phred,
            "max_reads": self.max_reads,
            "bin_limit": self.bin_limit,
            "mapper": self.mapper,
            "join": self.join,
            "join_ambiguous": self.join_ambiguous if self.join else None,
            "libraries": [library.kind for library in self.libraries],
        }

    def identify(self) -> list[dict[str, Any]]:
        """Identities of all input files; raises the error of their kind if one is not there."""
        files: list[tuple[str, str | None, type[InputError]]] = [
            ("contigs", self.contigs, ContigsError),
            ("depths", self.depths, ContigsError),
            ("candidates", self.candidates, CandidatesError),
            ("BAM", self.bam, AlignmentsError),
            ("PAF", self.paf, AlignmentsError),
            *(("reads", path, ReadsError) for library in self.libraries for path in library.paths),
        ]
        return [identify_input(role, path, error) for role, path, error in files if path]


def _whole(name: str, value: Any) -> int:
    """Return a whole number, NumPy's too, as an int."""
    try:
        return operator.index(value)
    except TypeError:
        raise ParameterError(f"{name} is {value!r}; it must be a whole number") from None


def _text(path: PathLike | None) -> str | None:
    return None if path is None else os.fspath(path)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _libraries(
    reads: Sequence[Any] | None,
    interleaved: PathLike | Sequence[PathLike] | None,
    single: PathLike | Sequence[PathLike] | None,
) -> tuple[Library, ...]:
    """Make libraries of what was given: pairs, then interleaved, then single ones."""
    files: list[tuple[str, tuple[str, ...]]] = []
    if reads is not None:
        if _is_path(reads):
            raise ParameterError(
                f"reads is one path ({reads}); give the two files of a library of pairs, or use "
                "interleaved or single"
            )
        pairs = [reads] if all(_is_path(each) for each in reads) and len(reads) else list(reads)
        for pair in pairs:
            if _is_path(pair) or len(pair) != 2:
                raise ParameterError(
                    f"a library of pairs is two files, and {pair!r} is not; give (R1, R2) or a "
                    "list of such pairs"
                )
            files.append(("pairs", (os.fspath(pair[0]), os.fspath(pair[1]))))
    for kind, paths in (("interleaved", interleaved), ("single", single)):
        if paths is not None:
            each = [paths] if _is_path(paths) else list(paths)  # type: ignore[arg-type]
            files += [(kind, (os.fspath(path),)) for path in each]  # type: ignore[arg-type]
    if not files:
        return ()
    given: dict[str, int] = {}
    for library, (_, names) in enumerate(files):
        for name in names:
            if os.path.isfile(name) and given.setdefault(os.path.realpath(name), library) < library:
                raise ParameterError(
                    f"{name}: is given in two libraries, and its reads would count twice; give "
                    "every file of reads once"
                )
    from dlasm.io.fastq import Library

    return tuple(Library(kind, paths, index) for index, (kind, paths) in enumerate(files))


def parse_insert(value: tuple[float, float] | str) -> tuple[float, float]:
    """Return insert mean and sd, bases, given as two numbers or as ``"350:50"``.

    Raises
    ------
    ParameterError
        If it is neither, or out of range.
    """
    parts: Sequence[Any] = value.split(":") if isinstance(value, str) else value
    try:
        mean, sd = (float(part) for part in parts)
    except (TypeError, ValueError):
        raise ParameterError(
            f"insert size is {value!r}; give mean and sd in bases, as 350:50"
        ) from None
    if not (0 < mean <= 1e6 and 0 <= sd <= 1e6):
        raise ParameterError(
            f"insert size is {mean:g}:{sd:g}; the mean must be positive, the sd not negative, and "
            "neither over a million bases"
        )
    return mean, sd


def _write_missing(path: Path) -> list[str]:
    """Write again what is missing of a finished run, from its store; returns what that was."""
    for name in ("results.zarr", "summary.json"):
        if not (path / name).exists():
            raise StoreError(
                f"{path / name}: is missing although this run is finished, and cannot be made from "
                "what is left of it; start again with --force"
            )
    results = open_results(path / "results.zarr")
    missing = [name for name in TABLES if not (path / name).is_file()]
    if missing:
        write_files(path, results, missing)
    joins = results.joins()
    if joins is not None:
        from dlasm.joins import FILES, write_joined

        unjoined = [name for name in FILES if not (path / name).is_file()]
        if unjoined:
            contigs, names = _extended(results)
            write_joined(path, contigs, joins, names, unjoined)
            missing += unjoined
    return missing


def _write_page(path: Path, progress: Progress, counted: Future[Counts] | None = None) -> None:
    """Write report.html; a run is as good without it."""
    from dlasm.html import write_report

    try:
        counts = [counted.result()] if counted else None
        write_report(path / "report.html", [path], counts)
    except Exception as error:
        log.info("report.html", exc_info=True)
        _warn(
            progress,
            f"{path / 'report.html'}: could not be written ({error}); the run is whole without "
            f"it, and dlasm report {path} tries again",
        )


def _count_results(path: Path) -> Counts:
    """Count what report.html shows of the results; the page is imported here, in a thread."""
    from dlasm.html import count_results

    return count_results(path)


def _gather_candidates(path: Path, folder: Path) -> Job:
    """Do again in ``folder`` what a finished run did before it extended."""
    state = read_state(path)
    if state["options"].get("rounds", 1) > 1:
        raise StoreError(
            f"{path}: holds several rounds, each with candidates of its own; open one of them "
            f"({path / 'rounds' / 'round1'}) and follow the end there"
        )
    options = _Options.of_run(state)
    inputs = options.identify()
    for before, now in zip(state["inputs"], inputs, strict=True):
        difference = content_difference(before, now)
        if difference:
            raise InputError(
                f"{now['path']}: {difference}; the candidate reads of {path} can be gathered again "
                "only from the files that it was made of"
            )
    again = RunFolder.prepare(
        folder / "run", options=state["options"], inputs=inputs, command=state["command"]
    )
    try:
        pools = _Pools(
            None,
            None,
            gpus=False,
            devices=[],
            named=False,
            kernel=defaults.DEFAULT_KERNEL,
            say=log.info,
        )
        _Stages(again, options, Progress(), pools, PARTITION_BYTES, None).recruit()
    finally:
        again.close()
    return Job(again.work)


def _extended(results: Results) -> tuple[JoinContigs, Names]:
    """Read extended contigs and their ids into memory."""
    from dlasm.joins import Extended, Names

    arrays = {
        name: np.asarray(results.array("contigs", name)[:])
        for name in ("bases", "name_values", "name_offsets", "depth")
    }
    walks = np.asarray(results.array("results", "walk_values")[:])
    outcomes = np.asarray(results.array("results", "outcome")[:])
    circles = np.flatnonzero(outcomes[::2] == CIRCULAR)
    contigs = Extended(
        arrays["bases"], results.offsets, walks, results.walk_offsets, arrays["depth"], circles
    )
    return contigs, Names(arrays["name_values"], arrays["name_offsets"])


def _refuse_inputs_in(output: PathLike, inputs: Iterable[Mapping[str, Any]]) -> None:
    """Raise ParameterError if an input lies in the output folder, which a run may clear."""
    folder = os.path.realpath(output)
    for about in inputs:
        path = about["path"]
        for place in (os.path.realpath(path), os.path.realpath(Path(path).parent)):
            if place != folder and not place.startswith(os.path.join(folder, "")):
                continue
            raise ParameterError(
                f"{path}: lies in the output folder {os.fspath(output)}, where this run replaces "
                "what is there; choose another output folder"
            )


def _choose_workers(workers: int | str, inputs: Iterable[Mapping[str, Any]]) -> int:
    """Workers of a local cluster, 0 for none."""
    if workers != "auto":
        return int(workers)
    from dlasm.cluster import CPUS_PER_WORKER, usable_cpus

    cpus = usable_cpus()
    size = sum(about.get("size", 0) for about in inputs)
    return cpus // CPUS_PER_WORKER if size > SMALL_BYTES and cpus > SMALL_CPUS else 0


def _choose_gpus(
    asked: str | list[str], inputs: Iterable[Mapping[str, Any]], *, cluster: bool, wanted: bool
) -> GpuChoice:
    """GPUs of this machine for a run without a client; none by itself for a small input."""
    size = sum(about.get("size", 0) for about in inputs)
    small = asked == "auto" and size < GPU_BYTES
    if small and not wanted:
        return GpuChoice([])
    from dlasm.cluster import GPU_PACKAGES

    needs = GPU_PACKAGES if cluster else ("cupy", "cuda.bindings")
    chosen = choose_gpus(asked, needs=needs, one_process=not cluster)
    if small and chosen.gpus:
        return GpuChoice(
            [], f"the input is small; --gpus {chosen.gpus[0].index} uses one for it all the same"
        )
    if cluster or chosen.asked:
        return chosen
    return replace(chosen, gpus=chosen.gpus[:1])  # more take longer to start than they save


def _check_performance_report(path: PathLike, on_cluster: bool) -> None:
    """Raise ParameterError unless a performance report can be made and written."""
    if not on_cluster:
        raise ParameterError(
            "a performance report tells what workers did, and this run has none; give --workers 1 "
            "or more, or join a cluster with --scheduler"
        )
    folder = Path(path).absolute().parent
    if not folder.is_dir() or Path(path).is_dir():
        raise ParameterError(
            f"{os.fspath(path)}: no performance report can be written there; give a file in a "
            "folder that exists"
        )


@contextmanager
def _performance_report(client: Client, path: PathLike, progress: Progress) -> Iterator[None]:
    """Let Dask write its performance report at the end; without it a run is as good."""
    from distributed import performance_report

    with client.as_current():
        # inline: a browser may have no way to the internet
        report = performance_report(filename=os.fspath(path), mode="inline")
        report.__enter__()
        try:
            yield
        finally:
            try:
                report.__exit__(None, None, None)
            except Exception as error:  # the scheduler is gone, for instance
                _warn(progress, f"{os.fspath(path)}: Dask's performance report failed ({error})")


# -- errors and log --------------------------------------------------------------------------------


def _note(progress: Progress, text: str) -> None:
    """Say something that is good to know, in the log too."""
    progress.note(text)
    log.warning("%s", text)


def _tell(progress: Progress, text: str) -> None:
    """Say how far a run is, in the log too."""
    progress.note(text)
    log.info("%s", text)


def _warn(progress: Progress, text: str) -> None:
    """Say something that the user must know, in the log too."""
    progress.warn(text)
    log.warning("%s", text)


class _LogFile(logging.FileHandler):
    """A log on a disk that may be full, which is told by the error of the run itself."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Go on without this line."""


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Write dlasm's log messages to a file too."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        with suppress(OSError):  # what could not be written
            handler.close()


_SYSTEM_ERRNOS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT}
)
"""Faults of the machine that reading a file can meet: they do not make it a bad one."""


@contextmanager
def _explained(folder: RunFolder) -> Iterator[None]:
    """Say what an error of the system means for the run, and leave no result of bad input."""
    try:
        yield
    except InputError as error:
        log.info("failed", exc_info=True)
        if cause := _system_error(error):
            reason = "" if str(cause.strerror) in str(error) else f" ({cause.strerror})"
            raise ResourceError(
                f"{error}{reason}; put it right and continue with --resume"
            ) from error
        if folder.resumed:
            raise
        folder.discard()
        raise type(error)(f"{error}. No result was written") from error
    except StoreError as error:
        log.info("failed", exc_info=True)
        if "--force" in str(error):
            raise
        raise StoreError(
            f"{error}; what this run left is missing or damaged, so start again with --force"
        ) from error
    except DlasmError:
        log.info("failed", exc_info=True)
        raise
    except KeyboardInterrupt:
        log.info("interrupted")
        raise
    except Exception as error:
        log.info("failed", exc_info=True)
        if is_want_of_memory(error):
            raise ResourceError(
                f"{folder.path}: out of memory; free some, or take fewer threads and workers, and "
                "continue with --resume"
            ) from error
        if not isinstance(error, OSError):
            raise
        where = error.filename or folder.path
        if isinstance(error, FileNotFoundError) and folder.path in Path(str(where)).parents:
            raise StoreError(
                f"{where}: is missing, so this run cannot go on; start again with --force"
            ) from error
        if error.errno == errno.EFBIG or (_is_short_write(error) and _is_file_size_limited()):
            raise ResourceError(
                f"{where}: a file would get larger than may be here; raise the limit (ulimit -f), "
                "or take another file system, and continue with --resume"
            ) from error
        if _is_short_write(error) or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                f"{where}: no space is left on this disk, or of your quota; free some and continue "
                "with --resume"
            ) from error
        raise ResourceError(
            f"{where}: {error.strerror or error}; put it right and continue with --resume"
        ) from error


def _system_error(error: BaseException) -> OSError | None:
    """Return the error of the system, not of the input, that an error comes from, if it does."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _SYSTEM_ERRNOS:
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def _is_short_write(error: OSError) -> bool:
    # NumPy says how much it wrote, not why it stopped
    return error.errno is None and "requested and" in str(error)


def _is_file_size_limited() -> bool:
    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


# -- the stages ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pools:
    """Who computes.

    Attributes
    ----------
    client : distributed.Client or None
        Of the cluster; without one this process does everything.
    threads : int or None
        Native threads of a task, if given.
    gpus : bool
        Whether GPU workers of the cluster are used as such.
    devices : list of Gpu
        GPUs of this process, or of the cluster that this run started.
    named : bool
        Whether these GPUs were asked for by number or UUID.
    kernel : str
        Kernel of the GPU engine.
    say : callable
        Told why no GPU is used.
    uuids : dict
        What the GPU of each GPU worker is, by address.
    without : set of str
        Addresses of workers that are not used.
    """

    client: Client | None
    threads: int | None
    gpus: bool
    devices: list[Gpu]
    named: bool
    kernel: str
    say: Callable[[str], None]
    uuids: dict[str, str | None] = field(default_factory=dict)
    without: set[str] = field(default_factory=set)

    def members(self, client: Client) -> dict[str, dict[str, int]]:
        """Return the workers of a cluster that there are now: by pool, address to threads."""
        from dlasm.cluster import worker_pools

        return worker_pools(client, gpus=self.gpus, without=self.without)

    def workers(self) -> dict[str, int]:
        """Return how many tasks run at a time, by pool."""
        if self.client is None:
            here = {GPU_POOL: len(self.devices), CPU_POOL: 1}
            return {pool: count for pool, count in here.items() if count}
        members = self.members(self.client)
        return {pool: sum(workers.values()) for pool, workers in members.items()}

    def name_gpu(self, worker: str | Mapping[str, Any]) -> str:
        """Name the GPU of a worker: of an address, or of arguments for this process."""
        uuid = self.uuids.get(worker) if isinstance(worker, str) else worker["gpu"]
        for gpu in self.devices:
            if bare_uuid(gpu.uuid) == bare_uuid(uuid or ""):
                return f"GPU {gpu.index}"
        return f"the GPU of worker {worker}"


class _Stages:
    """The stages of one run."""

    def __init__(
        self,
        folder: RunFolder,
        options: _Options,
        progress: Progress,
        pools: _Pools,
        partition_bytes: int,
        memory: int | None,
        on_error: str = "stop",
    ) -> None:
        self.memory = memory
        self.on_error = on_error
        self.folder = folder
        self.work = folder.work
        self.options = options
        self.progress = progress
        self.pools = pools
        self.client = pools.client
        self.threads = pools.threads
        self.partition_bytes = partition_bytes
        self.worker_peak = 0
        self.paf_index = self.work / "paf"
        self.placer: Aligner | EndsMapper | PafPlacer | None = None
        self.begun: Future[Path] | None = None  # the store of results
        self.counted: Future[Counts] | None = None  # for report.html, while files are written
        self.starting: dict[Gpu, Future[Any]] = {}  # GPUs of this process
        # both take a while on a busy machine, and are needed at the end
        self.versions = in_background(_versions)
        self.zarr = in_background(import_module, "zarr")

    def run(self) -> None:
        """Do what is left to do."""
        self.work.mkdir(exist_ok=True)
        if self.client is not None:
            from dlasm.cluster import check_workers

            check_workers(self.client, self.work)
            if self.pools.gpus:
                self._check_gpu_workers(self.client)
        else:
            self.starting = {
                gpu: in_background(prepare, GPU_POOL, kernel=self.pools.kernel, gpu=gpu.uuid)
                for gpu in self.pools.devices
            }
        background: list[Future[Any]] = list(self.starting.values())
        try:
            self._stage("contigs", self._contigs)
            if self.pools.named and self.options.candidates is None:
                self._await_gpus()  # what takes hours must not come before an error
            self._stage("candidates", self._candidates)
            self._stage("plan", self._plan)
            if not _is_extended(self.folder):
                self.folder.state["stages"].pop("extend", None)
            self._await_gpus()
            self._stage("extend", self._extend)
            self._stage("results", self._results)
            if self.options.join is not None:
                self._stage("join", self._join)
            self._stage("report", self._report)
            self._write_summary()
            _write_page(self.folder.path, self.progress, self.counted)
            self.folder.finish()
            log.info("finished")
        finally:
            wait([*background, *([self.begun] if self.begun else [])])
            if self.begun and self.begun.exception() is None:
                drop_folder(self.begun.result())  # unless it is finished

    def recruit(self) -> None:
        """Do what comes before the extension, and no more."""
        self._stage("contigs", self._contigs)
        self._stage("candidates", self._candidates)
        self._stage("plan", self._plan)

    def _check_gpu_workers(self, client: Client) -> None:
        """Make GPU workers ready; leave out those that share a GPU with another one."""
        from dlasm.cluster import check_gpu_workers, same_gpu

        self.pools.uuids.update(check_gpu_workers(client, self.pools.kernel))
        for address, other in same_gpu(self.pools.uuids).items():
            self.pools.without.add(address)
            _warn(
                self.progress,
                f"workers {other} and {address} have the same GPU ({self.pools.uuids[address]}), "
                "so the second one is not used; give each one of its own with "
                "CUDA_VISIBLE_DEVICES, as dask cuda worker does",
            )

    def _await_gpus(self) -> None:
        """Wait for the GPUs of this process; go on without any that nobody asked for by name."""
        from dlasm.cluster import no_gpus_hint

        for gpu, started in self.starting.items():
            try:
                started.result()
            except EngineError as error:
                if self.pools.named:
                    raise EngineError(
                        f"GPU {gpu} cannot be used: {error}; put that right and continue with "
                        "--resume, or without GPUs: --resume --gpus none"
                    ) from error
                self.pools.devices.remove(gpu)
                self.pools.say(no_gpus_hint(str(error)))
        self.starting = {}

    def _stage(self, name: str, function: Any) -> None:
        """Run a stage unless it is done, and record how it went."""
        if self.folder.stage(name) is not None:
            self.progress.note(f"{name}: taken over from the run that is continued")
            log.info("%s: taken over", name)
            return
        begin, cpu = time.perf_counter(), time.process_time()
        self.worker_peak = 0
        about = function() or {}
        about["seconds"] = round(time.perf_counter() - begin, 3)
        about["cpu_seconds"] = round(time.process_time() - cpu, 3)
        about["peak_rss_bytes"] = peak_rss()
        if self.worker_peak:
            about["worker_peak_rss_bytes"] = self.worker_peak
        self.folder.finish_stage(name, about)
        log.info("%s: %s s, peak %s bytes", name, about["seconds"], about["peak_rss_bytes"])

    @property
    def _native_threads(self) -> int:
        """Native threads of this process."""
        from dlasm.cluster import usable_cpus

        return self.threads or usable_cpus()

    def _memory_plan(self, contig_bases: int) -> MemoryPlan:
        """Divide the memory of this process; that of a worker is not for what is done here."""
        limit = self.memory if self.client is None else None
        return plan_memory(limit, contig_bases, self._native_threads)

    # contigs

    def _contigs(self) -> dict[str, Any]:
        """Lay out the contigs of a FASTA file; those of a dump come with their candidates."""
        if self.options.contigs is None:
            return {}
        from dlasm.io.fasta import read_contigs

        self.progress.stage("contigs", unit="contigs")
        contigs = read_contigs(self.options.contigs, self.options.depths)
        write_contigs(self.work / "contigs", [contigs])
        self.progress.advance(len(contigs))
        return {}

    # candidates

    def _candidates(self) -> dict[str, Any]:
        if self.options.candidates is not None:
            return self._from_dump(self.options.candidates)
        if self.options.bam is not None:
            return self._from_bam(self.options.bam)
        return self._from_reads()

    def _from_dump(self, path: str) -> dict[str, Any]:
        """Contigs and candidates of a dump, chunk by chunk."""
        from dlasm.io.candidates import iter_dump

        self.progress.stage("candidates", unit="contigs")
        runs: list[Path] = []
        reads = 0
        folder = self.work / "candidates"
        folder.mkdir(exist_ok=True)

        def pieces() -> Iterator[Contigs]:
            nonlocal reads
            chunks = iter_dump(path, phred_offset=self.options.phred, threads=self._native_threads)
            for number, chunk in enumerate(one_ahead(chunks)):
                run = folder / f"{number:07d}.run"
                write_run_file(run, chunk.run)
                runs.append(run)
                reads += len(chunk.run.end)
                self.progress.advance(len(chunk.contigs))
                yield chunk.contigs

        write_contigs(self.work / "contigs", pieces())
        return {
            "runs": [str(run.relative_to(self.work)) for run in runs],
            "reach": [0.0],
            "walk_limit": self.options.walk_limit or defaults.DUMP_WALK_LIMIT,
            "libraries": [{"kind": "candidates", "paths": [path], "reads": {"reads": reads}}],
            "warnings": [],
        }

    def _from_reads(self) -> dict[str, Any]:
        """Map reads and choose candidates, library by library."""
        contigs = open_contigs(self.work / "contigs")
        if self.options.paf is not None and not self.paf_index.is_dir():
            from dlasm.alignments import write_paf_index

            self.progress.note(f"{self.options.paf}: is sorted by read")
            with whole_folder(self.paf_index) as index:
                write_paf_index(self.options.paf, contigs, index)
        parts = [self._recruit_library(library, contigs) for library in self.options.libraries]
        if self.options.paf is not None:
            self._check_paf(self.options.paf, parts)
        self.placer = None  # an index may be larger than everything that follows
        return self._sum_up(contigs, parts)

    def _check_paf(self, path: str, parts: Sequence[_LibraryPart]) -> None:
        """Refuse alignments of other reads; warn if there are none at all."""
        from dlasm.alignments import PafPlacer

        reads = sum(part.reads["reads"] for part in parts)
        if not reads or any(part.summary.counts.get("reads_placed") for part in parts):
            return
        if len(PafPlacer(self.paf_index, path).rows):
            raise AlignmentsError(
                f"{path}: names none of the {reads:,} reads; give the reads that were aligned, "
                "under the names they had then"
            )
        parts[0].summary.warnings.append(f"{path}: holds no alignment, so no read has a place")

    def _recruit_library(self, library: Library, contigs: Contigs) -> _LibraryPart:
        """Candidates of one library, mapped again if its mates reach further than was thought."""
        from dlasm.io.fastq import ReadCounts
        from dlasm.recruit import bound_suffices, first_bound, summarise_library

        given = self.options.insert
        bound = MATE_BOUND if given is None else first_bound(given=given)
        reads: int | None = None
        while True:
            folder = self.work / "candidates" / f"{library.index:03d}-{bound:.0f}"
            self.progress.stage("candidates", unit="reads")
            counts = ReadCounts()
            runs = self._recruit_batches(library, contigs, folder, bound, counts)
            summary = summarise_library(
                _Facts(runs),
                paired=library.paired,
                given=given,
                name=f"library {library.index + 1} ({', '.join(library.paths)})",
            )
            if reads is not None and counts.reads != reads:
                raise ReadsError(
                    f"{', '.join(library.paths)}: held {reads:,} reads at first and "
                    f"{counts.reads:,} when read again; keep files as they are during a run"
                )
            if bound_suffices(summary.reach, bound):
                return _LibraryPart(
                    library.kind, library.paths, library.paired, runs, summary, asdict(counts)
                )
            for path in library.paths:
                if not os.path.isfile(path):
                    raise ReadsError(
                        f"{path}: mates reach {summary.reach:.0f} bases, further than was thought, "
                        "so the reads must be read again, and a pipe cannot be; give files, or "
                        f"--insert {summary.insert.mean:.0f}:{summary.insert.sd:.0f}"
                    )
            reads = counts.reads
            bound = float(np.ceil(summary.reach))
            self.progress.note(
                f"library {library.index + 1}: mates reach {summary.reach:.0f} bases, further than "
                "was thought; its reads are mapped again"
            )

    def _recruit_batches(
        self,
        library: Library,
        contigs: Contigs,
        folder: Path,
        bound: float,
        counts: Any,
    ) -> list[Path]:
        """Map all batches that are not there yet; returns the runs of all."""
        from dlasm.io.fastq import iter_batches

        folder.mkdir(parents=True, exist_ok=True)
        runs: list[Path] = []
        reused = 0

        def missing() -> Iterator[tuple[Path, ReadBatch]]:
            nonlocal reused
            is_there = False
            batches = iter_batches(library, counts=counts, phred_offset=self.options.phred)
            size = _total_size(library.paths)
            for number, batch in enumerate(batches):
                if size and batch.position:
                    self.progress.expect(round(counts.reads * size / batch.position))
                if number % BATCHES_PER_RUN == 0:
                    runs.append(folder / f"{len(runs):07d}.run")
                    is_there = runs[-1].is_file()
                    reused += is_there
                if is_there:
                    self.progress.advance(len(batch))
                else:
                    yield runs[-1], batch
                del batch

        if self.client is None:
            self._recruit_here(library, contigs, bound, missing())
        else:
            self._recruit_on_cluster(self.client, library, bound, missing())
        if reused:
            self.progress.note(f"candidates: {reused} of {len(runs)} runs were there already")
        return runs

    def _recruit_here(
        self,
        library: Library,
        contigs: Contigs,
        bound: float,
        batches: Iterator[tuple[Path, ReadBatch]],
    ) -> None:
        """Map batches in this process, a thread each, while the next ones are read."""
        from dlasm.recruit import join_results, recruit_batch, write_batch_result

        threads = self._native_threads
        batches_at_a_time = self._memory_plan(len(contigs.bases)).batches
        lengths = contigs.lengths
        lock = Lock()

        def recruit(batch: ReadBatch) -> BatchResult:
            with lock:
                if self.placer is None:
                    self.placer = make_placer(
                        self.work, contigs, self.options.paf, self.options.mapper, threads
                    )
            return recruit_batch(
                batch,
                self.placer.place(batch, threads=1),
                lengths,
                library=library.index,
                paired_fr=library.paired,
                bound=bound,
                phred_offset=self.options.phred,
            )

        def write(run: Path, placed: Sequence[Future[BatchResult]]) -> None:
            write_batch_result(run, join_results([each.result() for each in placed]))

        mapped: deque[Future[BatchResult]] = deque()
        written: list[Future[None]] = []

        def wait_until_left(count: int) -> None:
            while len(mapped) > count:
                self.progress.advance(mapped.popleft().result().counts["reads"])

        with ThreadPoolExecutor(threads) as pool:
            try:
                for run, group in groupby(batches, key=itemgetter(0)):
                    placed = []
                    for _, batch in group:
                        placed.append(pool.submit(recruit, batch))
                        del batch
                        mapped.append(placed[-1])
                        wait_until_left(batches_at_a_time)
                    # its threads have all of these tasks before them, so it waits for none that
                    # waits for it
                    written.append(pool.submit(write, run, placed))
                wait_until_left(0)
                for each in written:
                    each.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _recruit_on_cluster(
        self,
        client: Client,
        library: Library,
        bound: float,
        batches: Iterator[tuple[Path, ReadBatch]],
    ) -> None:
        """Spool batches, a bounded number at a time, and let workers map them."""
        from dlasm.cluster import cpu_pools, span
        from dlasm.dispatch import SequenceSource

        spool = self.work / "spool"
        spool.mkdir(exist_ok=True)

        def tasks() -> Iterator[Task]:
            for number, (run, group) in enumerate(groupby(batches, key=itemgetter(0))):
                path = spool / f"{library.index:03d}-{run.stem}"
                write_batches(path, (batch for _, batch in group))
                yield Task(
                    "recruit",
                    number,
                    recruit_task,
                    (str(self.work), str(path), str(run)),
                    {
                        "library": library.index,
                        "paired": library.paired,
                        "bound": bound,
                        "phred_offset": self.options.phred,
                        "paf": self.options.paf,
                        "mapper": self.options.mapper,
                        "threads": self.threads,
                    },
                )

        def done(result: Mapping[str, Any]) -> None:
            self.worker_peak = max(self.worker_peak, result["peak_rss"])
            self.progress.advance(result["reads"])

        with span("recruit"):
            run_tasks(client, SequenceSource(tasks()), partial(cpu_pools, client), done)

    def _from_bam(self, path: str) -> dict[str, Any]:
        """Candidates of a BAM file; again if its mates reach further than was thought."""
        from dlasm.alignments import alignment_warnings, iter_bam_results
        from dlasm.recruit import (
            bound_suffices,
            first_bound,
            summarise_library,
            write_batch_result,
        )

        contigs = open_contigs(self.work / "contigs")
        given = self.options.insert
        bound = MATE_BOUND if given is None else first_bound(given=given)
        while True:
            self.progress.stage("candidates", unit="records")
            folder = self.work / "candidates" / f"bam-{bound:.0f}"
            folder.mkdir(parents=True, exist_ok=True)
            runs: list[Path] = []
            results = iter_bam_results(
                path,
                contigs,
                scratch=self.work / "scratch",
                bound=bound,
                threads=self._native_threads,
                memory=self._memory_plan(len(contigs.bases)).alignments,
                advance=self.progress.advance,
            )
            for number, result in enumerate(results):
                runs.append(folder / f"{number:07d}.run")
                write_batch_result(runs[-1], result)
            facts = _Facts(runs)
            paired = any(each.counts.get("reads_paired") for each in facts)
            summary = summarise_library(facts, paired=paired, given=given, name=path)
            if bound_suffices(summary.reach, bound):
                summary.warnings.extend(alignment_warnings(summary.counts, path))
                kind = "BAM of pairs" if paired else "BAM"
                part = _LibraryPart(kind, (path,), paired, runs, summary, {})
                return self._sum_up(contigs, [part])
            bound = float(np.ceil(summary.reach))

    def _sum_up(self, contigs: Contigs, parts: Sequence[_LibraryPart]) -> dict[str, Any]:
        """Sum up what the following stages need to know of the candidates."""
        libraries, warnings, inserts = [], [], []
        limits = []
        for part in parts:
            summary = part.summary
            if part.paired or self.options.insert is not None:
                limits.append(walk_limit_from_insert(summary.insert.mean, summary.insert.sd))
            new = [*part.reads.pop("warnings", []), *summary.warnings]
            for warning in new:
                _warn(self.progress, warning)
            warnings += new
            insert = asdict(summary.insert)
            inserts.append(insert.pop("histogram"))
            libraries.append(
                {
                    "kind": part.kind,
                    "paths": list(part.paths),
                    "reads": part.reads,
                    "insert": insert,
                    "reach": summary.reach,
                    "forward_reverse": summary.forward_reverse,
                    "orientations": summary.orientations,
                    "recruited": summary.counts,
                }
            )
        runs = [run for part in parts for run in part.runs]
        self._depth_from(contigs, runs)
        default = walk_limit_from_insert(*defaults.DEFAULT_INSERT)
        return {
            "runs": [str(run.relative_to(self.work)) for run in runs],
            "reach": [part.summary.reach for part in parts],
            "walk_limit": self.options.walk_limit or max(limits, default=default),
            "libraries": libraries,
            "inserts": inserts,
            "warnings": warnings,
        }

    @staticmethod
    def _aligned_depth(contigs: Contigs, runs: Sequence[Path]) -> np.ndarray:
        """Compute depth from the aligned bases; float64, shape (contigs,), fold."""
        bases = np.zeros(len(contigs), dtype=np.int64)
        for facts in _Facts(runs):
            bases[facts.aligned_contig] += facts.aligned_bases
        return bases / np.maximum(contigs.lengths, 1)

    def _depth_from(self, contigs: Contigs, runs: Sequence[Path]) -> None:
        """Compute the depth of contigs that came without one from the aligned bases."""
        depth = np.array(contigs.depth)
        unknown = np.isnan(depth)
        if unknown.any():
            depth[unknown] = self._aligned_depth(contigs, runs)[unknown]
        with whole_file(self.work / "depth.npy") as file:
            np.save(file, depth)

    # plan

    def _plan(self) -> dict[str, Any]:
        """Bins and partitions."""
        from dlasm.pack import count_candidates, packed_words_per_end

        self.progress.stage("plan")
        about = self._record("candidates")
        contigs = open_contigs(self.work / "contigs")
        depth = contigs.depth
        if (self.work / "depth.npy").is_file():
            depth = np.load(self.work / "depth.npy")
        paths = [self.work / run for run in about["runs"]]
        runs = RunFiles(paths)
        counts = count_candidates(runs, about["reach"], len(contigs))
        words = packed_words_per_end(runs, about["reach"], len(contigs))
        for each in (counts, words):
            each.reshape(-1, 2)[contigs.circles] = 0  # a circle has no ends
        bins = assign_bins(counts, self.options.bin_limit)
        workers = self.pools.workers()
        gpus = workers.get(GPU_POOL, 0)
        shared = bool(gpus and workers.get(CPU_POOL))
        if gpus:  # they do most of it, whatever the number of CPUs
            sharing = gpus if gpus > 1 else 0
        else:
            sharing = 0 if self.client is None else sum(workers.values())
        plan = plan_partitions(
            bins,
            counts,
            words,
            max_reads=self.options.max_reads,
            partition_bytes=min(
                self.partition_bytes, self._memory_plan(len(contigs.bases)).partition
            ),
            at_least=PARTITIONS_PER_WORKER * sharing,
            graded=shared,
        )
        write_job(
            self.work,
            plan,
            candidates=counts,
            bins=bins,
            depth=depth,
            runs=paths,
            reach=about["reach"],
            k=self.options.k,
            walk_limit=about["walk_limit"],
            max_reads=self.options.max_reads,
            min_support=self.options.min_support,
        )
        return {"partitions": len(plan)}

    # extend

    def _extend(self) -> dict[str, Any]:
        """Extend the partitions that are not there yet."""
        job = open_job(self.work)
        job.partitions.mkdir(exist_ok=True)
        missing = _missing_partitions(job)
        reused = len(job.plan) - len(missing)
        if reused:
            self.progress.note(f"extend: {reused} of {len(job.plan)} partitions were there already")
        self.zarr.result()  # an error of the import is told by it alone
        if self.begun is None:  # beside the extension, which leaves processors to it now and then
            self.begun = in_background(
                begin_store,
                self.folder.path / "results.zarr",
                job.contigs,
                job.depth,
                self._attributes(),
            )
        self.progress.stage("extend", int(np.diff(job.plan.start)[missing].sum()), "contigs")

        def make(pool: str, number: int) -> Task:
            return Task(
                f"extend_{pool}_bin{job.plan.bin[number]}",
                number,
                extend_task,
                (str(self.work), number),
                {
                    "engine": pool,
                    "threads": self._native_threads if self.client is None else self.threads,
                    "kernel": self.pools.kernel,
                },
            )

        def done(result: Mapping[str, Any]) -> None:
            pool = result["pool"]
            source.finished(result["partition"], pool, result["seconds"])
            ran.append((pool, result["started"], result["seconds"]))
            log.info(
                "extend %s: partition %d of bin %d, %d contigs, %.3f s",
                pool,
                result["partition"],
                job.plan.bin[result["partition"]],
                result["contigs"],
                result["seconds"],
            )
            self.progress.advance(result["contigs"])
            if self.client is not None:
                self.worker_peak = max(self.worker_peak, result["peak_rss"])
                tell({name: result[name] for name in ("pool", "contigs", "kmers")})

        def tell(about: dict[str, Any]) -> None:
            """Tell the scheduler, for its dashboard."""
            waiting = {str(of_bin): count for of_bin, count in source.waiting().items()}
            if self.client is not None:
                self.client.log_event(TOPIC, {**about, "waiting": waiting})

        def failed(worker: str | Mapping[str, Any], error: EngineError) -> None:
            warning = f"{self.pools.name_gpu(worker)} failed: {error}; the run goes on without it"
            self.folder.state.setdefault("failures", []).append(warning)
            self.folder.save()
            _warn(self.progress, warning)

        def died(task: Task) -> None:
            contigs = job.plan.contigs(task.number)
            names = [job.contigs.name(i) for i in (contigs[0], contigs[-1])]
            of = f" ({len(contigs):,} contigs, {names[0]} to {names[1]})"
            if self.on_error == "stop":
                raise killed_error(
                    task, of, ", or go on without these contigs: --resume --on-error skip"
                )
            skip_partition(job, task.number)
            source.dropped(task.number)
            warning = (
                f"{task}{of}: its workers died, one after the other; these contigs are not extended"
            )
            self.folder.state.setdefault("skipped", []).append(warning)
            self.folder.save()
            _warn(self.progress, warning)
            self.progress.advance(len(contigs))

        ran: list[tuple[str, float, float]] = []
        source = PartitionSource(job.plan, missing, make)
        if self.client is None:
            here: dict[str, list[dict[str, Any]]] = {CPU_POOL: [{}]}
            here[GPU_POOL] = [{"gpu": gpu.uuid} for gpu in self.pools.devices]
            run_here(source, here, done, failed)
        else:
            from dlasm.cluster import span

            members = partial(self.pools.members, self.client)
            tell({"begin": str(self.folder.path)})
            with span("extend"):
                run_tasks(self.client, source, members, done, failed, died)
        return {
            "reused_partitions": reused,
            "pools": self._pools_done(job),
            "timeline": busy_over_time(ran),  # of this attempt
        }

    def _pools_done(self, job: Job) -> dict[str, dict[str, Any]]:
        """Sum up what each pool did, in earlier attempts too."""
        nothing = {"contigs": 0, "partitions": 0, "seconds": 0.0}
        pools: dict[str, dict[str, Any]] = {}
        gpus: dict[str, dict[str, Any]] = {}
        kernels = set()
        for number in range(len(job.plan)):
            done = read_about(job.partitions, number)
            if not done:  # it was skipped
                continue
            taken = {"contigs": done["contigs"], "partitions": 1, "seconds": done["seconds"]}
            sums = [pools.setdefault(done["pool"], dict(nothing))]
            if done["pool"] == GPU_POOL:
                kernels.add(done["kernel"])
                if done["gpu"]:
                    sums.append(gpus.setdefault(done["gpu"], dict(nothing)))
            for about in sums:
                for name, value in {**taken, **done["figures"]}.items():
                    about[name] = about.get(name, 0) + value
                peak = max(about.get("peak_rss_bytes", 0), done["peak_rss_bytes"])
                about["peak_rss_bytes"] = peak
        for about in (*pools.values(), *gpus.values()):
            for name in ("seconds", "kernel_ms"):
                if name in about:
                    about[name] = round(about[name], 3)
        if gpus:
            pools[GPU_POOL]["gpus"] = dict(sorted(gpus.items()))
        if kernels:
            pools[GPU_POOL]["kernel"] = ", ".join(sorted(kernels))
        if failures := self.folder.state.get("failures"):
            pools.setdefault(GPU_POOL, nothing)["failed"] = len(failures)
        return pools

    # results and report

    def _results(self) -> None:
        """Put the partitions in input order."""
        job = open_job(self.work)
        self.progress.stage("results", len(job.contigs), "contigs")
        finalise(
            self.folder.path / "results.zarr",
            job.partitions,
            job.plan,
            job.contigs,
            job.depth,
            job.bins,
            job.candidates,
            self._attributes(),
            self.progress.advance,
            begun=self.begun.result() if self.begun else None,
        )

    def _extended(self) -> JoinContigs:
        """Return the extended contigs with the depths that joins compare."""
        from dlasm.joins import Extended

        job = open_job(self.work)
        results = open_results(self.folder.path / "results.zarr")
        depth = job.depth
        if self.options.candidates is None:
            # an assembler's own figure is k-mer coverage, and rough where k is near the read length
            depth = self._aligned_depth(job.contigs, job.runs.paths)
        return Extended(
            job.contigs.bases,
            job.contigs.offsets,
            np.asarray(results.array("results", "walk_values")[:]),
            results.walk_offsets,
            depth,
            job.contigs.circles,
        )

    def _join(self) -> None:
        """Decide which extended contigs are joined."""
        from dlasm.joins import LibraryInsert, find_joins

        contigs = self._extended()
        self.progress.stage("join", len(contigs), "contigs")
        about = self._record("candidates")
        libraries = []
        for library, reach in zip(about["libraries"], about["reach"], strict=True):
            insert = library.get("insert", {"mean": 0.0, "sd": 1.0})  # a dump has no pairs
            libraries.append(LibraryInsert(insert["mean"], insert["sd"], reach))
        joins = find_joins(
            contigs,
            open_job(self.work).runs,
            libraries,
            str(self.options.join),
            ambiguous=self.options.join_ambiguous,
            threads=self._native_threads,
        )
        write_joins(self.folder.path / "results.zarr", joins)
        self.progress.advance(len(contigs))

    def _attributes(self) -> dict[str, Any]:
        """Return what the store of results says of its making."""
        return {
            "parameters": self._parameters(),
            "inputs": self.folder.state["inputs"],
            "versions": {"dlasm": __version__},
        }

    def _report(self) -> dict[str, Any]:
        """Write the extended contigs, the table of ends and the figures."""
        results = open_results(self.folder.path / "results.zarr")
        self.progress.stage("report", len(results), "contigs")
        counted = in_background(figures, results)
        self.counted = in_background(_count_results, self.folder.path)
        write_files(
            self.folder.path,
            results,
            advance=self.progress.advance,
            threads=self._native_threads,
        )
        about = {"figures": counted.result()}
        joins = results.joins()
        if joins is not None:
            from dlasm.joins import Names, join_figures, write_joined

            contigs = open_contigs(self.work / "contigs")
            names = Names(contigs.name_values, contigs.name_offsets)
            extended = replace(self._extended(), depth=open_job(self.work).depth)
            write_joined(self.folder.path, extended, joins, names)
            about["figures"]["joins"] = {
                "mode": self.options.join,
                **join_figures(extended, joins),
            }
        return about

    def _record(self, name: str) -> dict[str, Any]:
        """Return what a finished stage left in the state."""
        about = self.folder.stage(name)
        if about is None:
            raise StoreError(f"{self.folder.path}: stage {name} is not finished")
        return about

    def _parameters(self) -> dict[str, Any]:
        """Parameters with the values that were used."""
        about = self._record("candidates")
        return {
            **self.folder.state["options"],
            "walk_limit": about["walk_limit"],
            "reach": about["reach"],
        }

    def _write_summary(self) -> None:
        """Write summary.json from what the stages recorded."""
        state = self.folder.state
        about = self._record("candidates")
        contigs = open_contigs(self.work / "contigs")
        depth_source = contigs.depth_source
        if depth_source == "unknown":
            depth_source = "alignments"
        measured = ("seconds", "cpu_seconds", "peak_rss_bytes", "worker_peak_rss_bytes")
        summary = {
            "dlasm": __version__,
            "command": state["command"],
            "started": state["started"],
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            # of this attempt; a run that was continued has more in its stages
            "seconds": round(time.perf_counter() - self.folder.begun, 3),
            "parameters": self._parameters(),
            "depth_source": depth_source,
            **self._record("report")["figures"],
            "input_contigs": contigs.counts,
            "libraries": about["libraries"],
            "warnings": [*about["warnings"], *state.get("failures", []), *state.get("skipped", [])],
            "partitions": self._record("plan")["partitions"],
            "pools": self._record("extend").get("pools", {}),
            "stages": {
                name: {key: stage[key] for key in measured if key in stage}
                for name, stage in state["stages"].items()
            },
            "inputs": state["inputs"],
            "versions": self.versions.result(),
        }
        write_json(self.folder.path / "summary.json", summary)


def _total_size(paths: Iterable[str]) -> int:
    """Bytes of some files together, 0 if one is a pipe."""
    if not all(os.path.isfile(path) for path in paths):
        return 0
    return sum(os.path.getsize(path) for path in paths)


def _missing_partitions(job: Job) -> list[int]:
    """Return the partitions that are yet to be extended."""
    return [n for n in range(len(job.plan)) if not has_partition(job.partitions, n)]


def _is_extended(folder: RunFolder) -> bool:
    """Whether what is left of a run needs no engine."""
    if folder.stage("results") is not None:
        return True
    return folder.stage("plan") is not None and not _missing_partitions(open_job(folder.work))


@dataclass(frozen=True)
class _LibraryPart:
    """What recruiting one library gave."""

    kind: str
    paths: tuple[str, ...]
    paired: bool
    runs: list[Path]
    summary: LibrarySummary
    reads: dict[str, Any]


class _Facts:
    """Facts of all batches of a library, read from disk each time they are gone through."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = runs

    def __iter__(self) -> Iterator[BatchFacts]:
        from dlasm.recruit import read_facts

        for run in self._runs:
            yield read_facts(run)


def _versions() -> dict[str, str]:
    """Versions of what computed the result."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version()}
    for name in ("numpy", "zarr", "mappy", "pysam", "dask", "distributed"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
