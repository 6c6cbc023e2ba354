"""The command line: ``dlasm extend``, ``inspect``, ``evaluate`` and so on.

It begins without what may be missing or broken on a machine (NumPy, Dask, native modules), so that
``dlasm doctor`` can say so.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlasm import params as defaults
from dlasm._version import __version__
from dlasm.errors import DlasmError, ParameterError
from dlasm.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TextIO

    from rich.progress import Progress as RichBars

    from dlasm.doctor import Diagnosis

__all__ = ["main"]

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 + SIGINT, as shells have it."""

LINE_SECONDS = 10.0
"""How often a line says how far a stage is where there is no terminal to draw a bar on."""


class _Command(click.Command):
    """A command that shows the default of every option and takes each single one once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option in self.params:
            if not isinstance(option, click.Option) or option.required or option.secondary_opts:
                continue
            if isinstance(option.show_default, str):
                continue
            if option.is_flag:
                option.show_default = "off"
            elif option.multiple or not isinstance(option.default, (str, int, float)):
                option.show_default = "none"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option) and (record := option.get_help_record(ctx)):
                headings.setdefault(getattr(option, "heading", "Options"), []).append(record)
        for heading, records in headings.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, refusing what click takes: an option given again, and numbers that are none."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(args=list(args))
            for option, times in Counter(given).items():
                single = isinstance(option, click.Option) and not (
                    option.multiple or option.is_flag
                )
                if single and times > 1:
                    raise click.UsageError(
                        f"{'/'.join(option.opts)} is given {times} times; give it once", ctx
                    )
        rest = super().parse_args(ctx, args)
        for option in self.params:
            value = ctx.params.get(str(option.name))
            if isinstance(value, float) and not math.isfinite(value):
                raise click.BadParameter(f"{value} is not a finite number", ctx, option)
        return rest


class _Option(click.Option):
    """An option under a heading of the help."""

    def __init__(self, *args: Any, heading: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.heading = heading


def _under(heading: str) -> Callable[..., Callable[[Any], Any]]:
    """Return what declares options under a heading."""
    return partial(click.option, cls=_Option, heading=heading)


class _Commands(click.Group):
    """Commands whose errors are one line that says the cause last."""

    command_class = _Command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, with somewhere to write to even if the streams are closed."""
        _open_streams()
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, turning errors into a message and an exit status."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            _say("Error: interrupted; continue with --resume")
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            raise  # click ends quietly
        except DlasmError as error:
            _traceback_if_verbose(ctx)
            _say(f"Error: {error}")
            ctx.exit(2 if isinstance(error, ParameterError) else 1)
        except OSError as error:
            _traceback_if_verbose(ctx)
            where = f"{error.filename}: " if error.filename else ""
            _say(f"Error: {where}{error.strerror or error}")
            ctx.exit(1)
        except Exception as error:
            _traceback_if_verbose(ctx)
            _say(
                f"Error: unexpected, so probably a fault of dlasm (-v shows where): "
                f"{type(error).__name__}: {error}"
            )
            ctx.exit(1)


def _open_streams() -> None:
    """Open what the caller closed (``2>&-``), lest a file of the run take its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _say(text: str) -> None:
    """Print on standard error; nobody reading there is no reason to stop."""
    try:
        click.echo(text, err=True)
    except OSError:
        _mute(sys.stderr)


def _mute(stream: TextIO) -> None:
    """Drop what is written to a stream from now on, and what waits in it."""
    with suppress(OSError, ValueError):
        number = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


def _traceback_if_verbose(ctx: click.Context) -> None:
    if ctx.meta.get("verbose"):
        import traceback

        traceback.print_exc()


def _set_verbose(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    ctx.meta["verbose"] = value
    return value


class _Gpus(click.ParamType):
    """GPUs by number or UUID, "auto" or "none"."""

    name = "auto|none|LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return "auto", "none" or a list."""
        from dlasm.gpus import parse_gpus

        try:
            return parse_gpus(value)
        except ParameterError as error:
            self.fail(str(error), param, ctx)


class _Workers(click.ParamType):
    """A number of workers, or "auto"."""

    name = "auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return "auto" or a whole number from 0."""
        if value == "auto":
            return value
        try:
            number = int(value)
        except ValueError:
            number = -1
        if number < 0:
            self.fail(f"{value!r} is neither 'auto' nor a number from 0", param, ctx)
        return number


PATH = click.Path(path_type=Path)


def _verbosity(text: str, heading: str = "Options") -> Callable[[Any], Any]:
    """Return what declares the option -v."""
    return _under(heading)(
        "-v",
        "--verbose",
        is_flag=True,
        callback=_set_verbose,
        expose_value=False,
        help=text,
    )


_verbose = _verbosity("Show where an error came from.")


class _Noted(logging.Handler):
    """Shows what goes to the log of a run; warnings are shown anyway."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Show a message."""
        if record.levelno < logging.WARNING and record.exc_info is None:
            self._progress.note(f"{time.strftime('%H:%M:%S')} {record.getMessage()}")


@contextmanager
def _log_shown(progress: Progress) -> Iterator[None]:
    """Show the log of a run while it goes on."""
    handler = _Noted(progress)
    log = logging.getLogger("dlasm")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(__version__, prog_name="dlasm")
def main() -> None:
    """Extend the ends of metagenome contigs by local assembly."""


_input = _under("What goes in")
_output = _under("What comes out")
_assembly = _under("Assembly")
_machine = _under("Who computes; does not change the result")
_shown = _under("What is shown")


@main.command(short_help="Extend contigs with the reads that belong to their ends.")
@click.argument("contigs", type=PATH, required=False)
@_input("-1", "reads_1", type=PATH, multiple=True, help="Reads: first mates; once per library.")
@_input("-2", "reads_2", type=PATH, multiple=True, help="Second mates, in step with -1.")
@_input("--interleaved", type=PATH, multiple=True, help="Reads: interleaved pairs.")
@_input("-r", "--single", type=PATH, multiple=True, help="Reads without mates.")
@_input("--bam", type=PATH, help="Alignments of the reads: BAM, SAM or CRAM, any order.")
@_input("--paf", type=PATH, help="Alignments of the reads given beside it, as PAF.")
@_input("--candidates", type=PATH, help="MetaHipMer2 candidate dump, instead of contigs.")
@_input("--depths", type=PATH, help="Depths, as jgi_summarize_bam_contig_depths has them.")
@_input("--insert", metavar="MEAN:SD", show_default="measured", help="Insert mean and sd, bases.")
@_input(
    "--phred",
    type=click.IntRange(0, 93),
    default=defaults.PHRED_OFFSET,
    help="ASCII code of quality 0: 33, or 64 in old Illumina files.",
)
@_output("-o", "--output", type=PATH, required=True, help="Folder of the run.")
@_output("--resume", is_flag=True, help="Go on with the run in the output folder.")
@_output("--force", is_flag=True, help="Replace the run in the output folder.")
@_assembly(
    "--preset",
    type=click.Choice(list(defaults.PRESETS)),
    show_default="careful; with --candidates paper",
    help="careful: -k 33 --min-support 2, for contigs of another assembler. paper: --min-support 1 "
    "as MetaHipMer2, and -k must be given. Options given beside it count.",
)
@_assembly(
    "-k",
    type=click.IntRange(defaults.K_MIN, defaults.K_MAX),
    show_default=f"{defaults.PRESETS['careful'].k}; with --candidates none",
    help="Start k, bases; with --candidates the k of its contigs.",
)
@_assembly(
    "--walk-limit",
    type=click.IntRange(1, 1_000_000),
    show_default=f"insert mean + 2 sd; with --candidates {defaults.DUMP_WALK_LIMIT}",
    help="Most bases appended to an end.",
)
@_assembly(
    "--min-support",
    type=click.IntRange(1, defaults.MAX_SUPPORT),
    show_default="2; with --candidates 1",
    help="Fragments (pairs or single reads) that must hold each appended base.",
)
@_assembly(
    "--mapper",
    type=click.Choice(defaults.MAPPERS),
    default=defaults.DEFAULT_MAPPER,
    help="What maps reads: dlasm's own mapper, or minimap2.",
)
@_assembly(
    "--max-reads",
    type=click.IntRange(1, 1_000_000),
    default=defaults.MAX_READS,
    help="Candidate reads used per end.",
)
@_assembly(
    "--bin-limit",
    type=click.IntRange(1),
    default=defaults.BIN_LIMIT,
    help="Candidate reads from which a contig is in bin 3, for GPUs first.",
)
@_assembly(
    "--join",
    type=click.Choice(defaults.JOIN_MODES),
    show_default="off",
    help="Join extended contigs whose ends overlap; careful asks for more evidence than full.",
)
@_assembly(
    "--join-ambiguous",
    is_flag=True,
    help="With --join, join an end that overlaps several to a clear winner by pairs.",
)
@_assembly(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    help="Extend (and join) what this gives again, so often at most, until nothing is gained.",
)
@_machine(
    "--threads",
    type=click.IntRange(1),
    show_default="the CPUs, divided by the workers",
    help="Threads of each worker, or of the run where there are none.",
)
@_machine(
    "--memory",
    metavar="SIZE",
    show_default="what all threads can use",
    help="Memory that the run may take, or with --workers each worker, such as 8GB.",
)
@_machine(
    "--gpus",
    type=_Gpus(),
    show_default="auto",
    help="GPUs by number or UUID as nvidia-smi -L lists them, such as 0,1. "
    "auto: the GPU workers of a cluster; else any GPU there is, if the input is large.",
)
@_machine(
    "--kernel",
    type=click.Choice(defaults.KERNELS),
    show_default=defaults.DEFAULT_KERNEL,
    help="Kernel of the GPU engine.",
)
@_machine(
    "--workers",
    type=_Workers(),
    default="auto",
    help="Worker processes of Dask on this machine; 0: none, threads alone. "
    "auto: 0 unless the input is large and there are many CPUs.",
)
@_machine("--scheduler", metavar="ADDRESS", help="Join the Dask cluster of this scheduler.")
@_machine("--scheduler-file", type=PATH, help="Join it by the file that the scheduler wrote.")
@_machine(
    "--on-error",
    type=click.Choice(defaults.ON_ERROR),
    default="stop",
    help="When three workers died of one partition: stop, to be resumed, or skip it, so that its "
    "contigs stay as they are. Mapping always stops.",
)
@_machine(
    "--partition-size",
    type=click.FloatRange(min=0, min_open=True),
    default=defaults.PARTITION_BYTES / (1 << 20),
    help="Packed reads of a task, MiB.",
)
@_shown("--dashboard/--no-dashboard", default=True, help="Serve Dask's dashboard of the workers.")
@_shown(
    "--performance-report",
    type=PATH,
    metavar="FILE",
    help="Keep Dask's report of what the workers did, as HTML.",
)
@_shown("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
@_verbosity("Show the log as it is written, and where an error came from.", "What is shown")
def extend(
    contigs: Path | None,
    reads_1: tuple[Path, ...],
    reads_2: tuple[Path, ...],
    interleaved: tuple[Path, ...],
    single: tuple[Path, ...],
    output: Path,
    workers: int | str,
    threads: int | None,
    scheduler: str | None,
    scheduler_file: Path | None,
    memory: str | None,
    dashboard: bool,
    partition_size: float,
    quiet: bool,
    **options: Any,
) -> None:
    """Extend the ends of CONTIGS (FASTA) with the reads that belong to them.

    \b
      dlasm extend contigs.fa -1 r1.fq.gz -2 r2.fq.gz -o run/
      dlasm extend contigs.fa --bam alignments.bam -o run/
      dlasm extend --candidates dump.dat.gz -k 77 -o run/

    Reads and contigs may be plain, gzip, bzip2, zstd or xz; reads FASTQ or FASTA, whose bases count
    as quality 40. Options that name files of reads may be given several times, once per library.
    What is not given is chosen by the input and the machine; run/extended.fasta is the result.
    """  # noqa: D301
    if len(reads_1) != len(reads_2):
        raise click.UsageError(
            f"-1 was given {len(reads_1)} times and -2 {len(reads_2)} times; each library of pairs "
            "needs both"
        )
    if scheduler is not None and scheduler_file is not None:
        raise click.UsageError("give --scheduler or --scheduler-file, not both")
    joined = scheduler is not None or scheduler_file is not None
    if joined and isinstance(options["gpus"], list):
        raise click.UsageError(
            "--gpus names GPUs of this machine, and the workers of a cluster that runs have "
            "theirs; give --gpus auto or none with --scheduler"
        )
    import dlasm.pipeline as pipeline

    progress = _progress(quiet)
    with ExitStack() as stack:
        if click.get_current_context().meta.get("verbose"):
            stack.enter_context(_log_shown(progress))
        client = None
        if joined:
            from dlasm.cluster import connect, dashboard_hint

            client = stack.enter_context(connect(scheduler, scheduler_file))
            progress.note(dashboard_hint(client))
        run = pipeline.extend(
            contigs,
            reads=list(zip(reads_1, reads_2, strict=True)) or None,
            interleaved=list(interleaved) or None,
            single=list(single) or None,
            output=output,
            client=client,
            workers=workers,
            threads=threads,
            memory=memory,
            dashboard=dashboard,
            partition_bytes=max(1, round(partition_size * (1 << 20))),
            progress=progress,
            command=["dlasm", *sys.argv[1:]],
            **options,
        )
    if not quiet:
        _print_finished(run)


@main.command(short_help="Make a mock community to try dlasm on.")
@click.argument("output", type=PATH)
@click.option("--genomes", type=click.IntRange(1, 99), default=5, help="Genomes.")
@click.option("--genome-length", type=click.IntRange(2_000), default=50_000, help="Bases of each.")
@click.option("--depth", type=click.FloatRange(0), default=12.0, help="Mean coverage, fold.")
@click.option("--read-length", type=click.IntRange(1), default=150, help="Bases of a read.")
@click.option("--insert", metavar="MEAN:SD", default="350:50", help="Insert mean and sd, bases.")
@click.option(
    "--error-rate", type=click.FloatRange(0, 0.2), default=0.005, help="Wrong bases of a read."
)
@click.option("--seed", type=click.IntRange(0), default=1, help="Same seed, same files.")
@click.option("--force", is_flag=True, help="Replace an earlier community.")
@_verbose
def simulate(output: Path, insert: str, **options: Any) -> None:
    """Write a mock community to the folder OUTPUT: genomes, reads, fragmented contigs, truth.

    The genomes share repeats and two of them are strains of each other, so contigs end where
    assemblers end them.
    """
    from dlasm.pipeline import parse_insert
    from dlasm.testing import simulate_community

    mean, sd = parse_insert(insert)
    community = simulate_community(output, insert_mean=mean, insert_sd=sd, **options)
    first, second = community.reads_paths
    click.echo(
        f"{community.genomes} genomes, {community.contigs:,} contigs, {community.pairs:,} pairs of "
        f"reads; extend the contigs with\n"
        f"  dlasm extend {community.contigs_path} -1 {first} -2 {second} -o run"
    )


@main.command(short_help="Say what a run holds.")
@click.argument("run", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@_verbose
def inspect(run: Path, as_json: bool) -> None:
    """Say what the folder of a RUN holds, finished or not."""
    from dlasm.state import read_state

    state = read_state(run)
    finished = state["state"] == "finished"
    if as_json:
        from dlasm.work import read_json

        click.echo(json.dumps(read_json(run / "summary.json") if finished else state, indent=2))
    elif finished:
        import dlasm.pipeline as pipeline

        opened = pipeline.open_run(run)
        _print_summary(opened.summary(), run, warnings=True)
        _print_arrays(opened)
    else:
        _print_unfinished(run, state)


@main.command(short_help="Say how much of a run is right, given the genomes.")
@click.argument("run", type=PATH)
@click.option("--reference", type=PATH, required=True, help="FASTA of all genomes.")
@click.option("--circular", is_flag=True, help="The genomes are circles.")
@click.option("--threads", type=click.IntRange(1), show_default="all cores", help="Threads.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@_verbose
def evaluate(
    run: Path, reference: Path, circular: bool, threads: int | None, as_json: bool
) -> None:
    """Compare what a finished RUN appended and joined with the genomes its reads come from.

    Contigs are placed with minimap2. The figures are kept in the folder as evaluation.json.
    """
    import dlasm.pipeline as pipeline

    evaluation = pipeline.Run(run).evaluate(reference, circular=circular, threads=threads)
    if as_json:
        click.echo(json.dumps(evaluation, indent=2))
    else:
        _print_evaluation(evaluation, run)


@main.command(short_help="Show a run, or several side by side, as a page.")
@click.argument("runs", type=PATH, nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=PATH,
    show_default="report.html in the folder of the run; comparison.html here for several",
    help="The page to write.",
)
@_verbose
def report(runs: tuple[Path, ...], output: Path | None) -> None:
    """Write what finished RUNS gained as one HTML page that needs nothing else.

    Several runs, such as those of a sweep over k, are shown side by side.

    \b
      dlasm report run/
      dlasm report k21/ k33/ k55/ -o sweep.html
    """  # noqa: D301
    import dlasm.pipeline as pipeline
    from dlasm.html import write_report

    for run in runs:
        pipeline.open_run(run)
    if output is None:
        output = runs[0] / "report.html" if len(runs) == 1 else Path("comparison.html")
    write_report(output, runs)
    click.echo(f"written: {output}")


@main.command(short_help="Say whether runs will work on this machine, and what is missing.")
@click.option(
    "-o",
    "--output",
    type=PATH,
    default=Path(),
    show_default="here",
    help="Where runs are to write.",
)
@click.option(
    "--gpu/--no-gpu",
    default=None,
    show_default="tell both",
    help="Whether runs are to use a GPU: counts in the exit status.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@_verbose
@click.pass_context
def doctor(ctx: click.Context, output: Path, gpu: bool | None, as_json: bool) -> None:
    """Say what runs will find on this machine, and of what is missing, the command that brings it.

    Kernels are compiled and run on every GPU, in a process of its own. The exit status is 0 if runs
    on the CPUs and on a GPU will work, 3 if only those on the CPUs will, and 1 if none will. With
    --gpu it is 0 or 1: whether a run on a GPU will work; with --no-gpu, whether one on the CPUs
    will, and GPUs are not looked at.
    """
    from dlasm.doctor import diagnose

    diagnosis = diagnose(output, gpus=gpu is not False)
    if as_json:
        click.echo(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        _print_diagnosis(diagnosis)
    ctx.exit(diagnosis.exit_status(gpu=gpu))


# -- what is shown ---------------------------------------------------------------------------------


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print what was found, and under what is missing its remedy."""
    colours = {"ok": "green", "warning": "yellow", "missing": "red"}
    width = max(len(each.name) for each in diagnosis.findings)
    for each in diagnosis.findings:
        state = click.style(f"{each.state:<7}", fg=colours[each.state])
        click.echo(f"{state}  {each.name:<{width}}  {each.found}")
        if each.remedy:
            click.echo(f"{'':<{width + 9}}  -> {each.remedy}")
    works = {True: "will work", False: "will NOT work"}
    click.echo(f"\nruns on the CPUs {works[diagnosis.cpu_run]}")
    if diagnosis.gpus:
        click.echo(f"runs on a GPU {works[diagnosis.gpu_run]}")


class _Lines(Progress):
    """Says how far a run is in plain lines, for logs."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._name = ""
        self._unit = ""
        self._of = ""
        self._done = 0
        self._last = time.monotonic()

    def stage(self, name: str, total: int | None = None, unit: str = "") -> None:
        """Say that a stage begins."""
        self._end_stage()
        self._name, self._unit, self._done = name, unit, 0
        self._of = "" if total is None else f" of {total:,}"
        self._last = time.monotonic()

    def expect(self, total: int) -> None:
        """Take an estimate of the total."""
        self._of = f" of about {total:,}"

    def advance(self, count: int) -> None:
        """Count, and say so now and then."""
        self._done += count
        if time.monotonic() - self._last > LINE_SECONDS:
            self._last = time.monotonic()
            self.note(f"{self._name}: {self._so_far()}")

    def note(self, text: str) -> None:
        """Say something."""
        if not self._quiet:
            _say(text)

    def warn(self, text: str) -> None:
        """Say something that the user must know."""
        _say(f"Warning: {text}")

    def close(self) -> None:
        """Say how the last stage ended, unless that was an error."""
        if sys.exc_info()[0] is None:
            self._end_stage()
        self._name = ""

    def _so_far(self) -> str:
        return f"{self._done:,}{self._of} {self._unit}" if self._unit else "done"

    def _end_stage(self) -> None:
        if "about" in self._of:  # now it is known
            self._of = ""
        if self._name:
            self.note(f"{self._name}: {self._so_far()}")


class _Bars(Progress):
    """Draws a bar per stage on a terminal."""

    def __init__(self) -> None:
        self._bars: RichBars | None = None
        self._task: Any = None
        self._unit = ""
        self._estimated = False

    def _started(self) -> RichBars:
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn
            from rich.progress import Progress as Bars

            self._bars = Bars(
                SpinnerColumn(finished_text=" "),
                TextColumn("{task.description:<10}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[so_far]}", justify="right", style="green"),
                TextColumn("{task.fields[pace]}", justify="right"),
                console=Console(stderr=True),
            )
            self._bars.start()
        return self._bars

    def stage(self, name: str, total: int | None = None, unit: str = "") -> None:
        """Draw a new bar."""
        bars = self._started()
        self._end_stage()
        self._unit, self._estimated = unit, False
        self._task = bars.add_task(name, total=total, so_far="", pace="")

    def expect(self, total: int) -> None:
        """Take an estimate of the total, which moves the bar."""
        self._estimated = True
        self._started().update(self._task, total=total)

    def advance(self, count: int) -> None:
        """Move the bar."""
        self._started().advance(self._task, count)
        self._tell()

    def _tell(self, *, ended: bool = False) -> None:
        """Say how much is done, how fast that was, and how long the rest will take."""
        bars = self._started()
        task = next(task for task in bars.tasks if task.id == self._task)
        seconds = max(task.elapsed or 0.0, 1e-3)
        rate = task.completed / seconds
        so_far, pace = f"{task.completed:,.0f}", ""
        if task.total is not None and not ended:
            so_far += f" of {'about ' if self._estimated else ''}{task.total:,.0f}"
        if self._unit:
            so_far += f" {self._unit}"
            pace = f"{rate:,.0f}/s"
        if ended:
            pace += f"{', ' if pace else ''}{seconds:.1f} s"
        elif task.total is not None and rate:
            left = max(0, round((task.total - task.completed) / rate))
            pace += f", {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
        bars.update(self._task, so_far=so_far if self._unit else "", pace=pace)

    def note(self, text: str) -> None:
        """Say something above the bars."""
        self._started().console.print(text, highlight=False, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Say something that the user must know."""
        self._started().console.print(
            f"Warning: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True
        )

    def close(self) -> None:
        """Leave the bars as they are."""
        if self._bars is not None:
            if sys.exc_info()[0] is None:
                self._end_stage()
            self._bars.stop()
            self._bars = None
            self._task = None

    def _end_stage(self) -> None:
        if self._bars is not None and self._task is not None:
            self._tell(ended=True)
            done = max(1, next(t.completed for t in self._bars.tasks if t.id == self._task))
            self._bars.update(self._task, total=done, completed=done)
            self._bars.stop_task(self._task)


def _progress(quiet: bool) -> Progress:
    """Bars on a terminal, lines elsewhere."""
    return _Bars() if sys.stderr.isatty() and not quiet else _Lines(quiet=quiet)


def _print_finished(run: Any) -> None:
    """Print the summary of a run that is finished, whether or not it can be shown."""
    try:
        _print_summary(run.summary(), run.path)
        sys.stdout.flush()
    except OSError as error:
        _mute(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            _say(
                f"Warning: the table cannot be shown ({error.strerror or error}); the run is "
                f"finished, and dlasm inspect {run.path} shows it again"
            )
    except SystemExit:  # what Rich raises when nobody reads
        _mute(sys.stdout)


def _print_summary(summary: Mapping[str, Any], path: Path, *, warnings: bool = False) -> None:
    """Print what a run gained, and where its files are; warnings if they were not yet seen."""
    from rich.console import Console
    from rich.table import Table

    from dlasm.pipeline import summary_rows

    # paths are printed as they are: no markup, no line breaks
    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    console.print(f"{path}")
    if rounds := summary.get("rounds"):
        from dlasm.rounds import heading_of_rounds

        table = Table()
        for name in rounds[0]:
            table.add_column(name.replace("_", " "), justify="right")
        for each in rounds:
            table.add_row(*(f"{value:,}" for value in each.values()))
        console.print(table)
        console.print(heading_of_rounds(summary))
    table = Table()
    for name, justify in (("", "left"), ("before", "right"), ("after", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in summary_rows(summary):
        table.add_row(*row)
    console.print(table)
    bins, outcomes = summary["bins"], summary["outcomes"]
    console.print(
        "contigs by candidate reads: "
        f"{bins['1']:,} none (bin 1), {bins['2']:,} few (bin 2), {bins['3']:,} many (bin 3)"
    )
    console.print(
        "ends by outcome: "
        + (
            ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in outcomes.items())
            or "there are none"
        )
    )
    parameters, cut, flags = summary["parameters"], summary["cut"], summary["flags"]
    console.print(
        f"preset {parameters['preset']}, k {parameters['k']}, least support "
        f"{parameters['min_support']}: {cut['ends']:,} ends cut by {cut['bases']:,} bases; "
        f"flagged: {flags['repeat']:,} repeat, {flags['low_k']:,} low k"
    )
    if "joins" in summary:
        refused = summary["joins"]["refused"]
        console.print(
            f"{summary['joins']['overlaps']:,} overlaps of ends, refused: "
            + (
                ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in refused.items())
                or "none"
            )
        )
        flagged = summary["joins"].get("flagged", {})
        if any(flagged.values()):
            hints = ", ".join(f"{count:,} {name}" for name, count in flagged.items())
            console.print(f"joins that may switch between strains or copies, by {hints}")
    for library in summary["libraries"]:
        if "insert" in library and _insert_is_used(library):
            insert = library["insert"]
            console.print(
                f"insert size of {', '.join(library['paths'])}: {insert['mean']:.0f} +- "
                f"{insert['sd']:.0f} ({insert['source']})"
            )
    for warning in summary["warnings"] if warnings else ():
        console.print(f"Warning: {warning}", style="yellow")
    if "gpu" in summary.get("pools", {}):
        console.print(f"extended by {_pools_text(summary['pools'])}")
    stages = summary["stages"]
    peak = max(
        max(stage["peak_rss_bytes"], stage.get("worker_peak_rss_bytes", 0))
        for stage in stages.values()
    )
    console.print(f"{summary['seconds']:.1f} s, at most {peak / 1e6:,.0f} MB in a process")
    names = ["extended.fasta", "extensions.tsv", "summary.json", "results.zarr", "report.html"]
    if "joins" in summary:
        names[:0] = ["joined.fasta", "joins.tsv", "joined.agp", "graph.gfa"]
    there = [name for name in names if (path / name).exists()]
    console.print(f"written: {', '.join([str(path / there[0]), *there[1:]])}")
    if missing := [name for name in names if name not in there]:
        console.print(
            f"Warning: {' and '.join(missing)} is missing; the same command with --resume writes "
            "it again",
            style="yellow",
        )


def _insert_is_used(library: Mapping[str, Any]) -> bool:
    """Whether a library's insert size is used; that of single reads is only a default."""
    return library["kind"] not in ("single", "BAM") or library["insert"]["source"] == "given"


def _pools_text(pools: Mapping[str, Any]) -> str:
    """Say what each pool of workers did; the seconds are those of its tasks, summed."""
    parts = []
    for name in sorted(pools, reverse=True):
        about = pools[name]
        kernels = ""
        if "kernel_ms" in about:
            kernels = f", kernel {about['kernel']} {about['kernel_ms'] / 1000:.3f} s"
        gpus = about.get("gpus", {})
        who = f"{len(gpus)} GPUs" if len(gpus) > 1 else name.upper()
        parts.append(
            f"{who}: {about['contigs']:,} contigs in {about['partitions']:,} partitions, "
            f"{about['seconds']:.2f} s{kernels}"
        )
    return "; ".join(parts)


def _print_arrays(run: Any) -> None:
    """Print the arrays of a run's store."""
    from rich.console import Console
    from rich.table import Table

    from dlasm.arrays import GROUPS

    table = Table(title="results.zarr", title_justify="left")
    for name in ("array", "shape", "type", "unit", "meaning"):
        table.add_column(name)
    for group in ("contigs", "results"):
        for name, spec in GROUPS[group].items():
            array = run.results.array(group, name)
            table.add_row(
                f"{group}/{name}", f"{array.shape[0]:,}", str(array.dtype), spec.unit, spec.meaning
            )
    Console(highlight=False).print(table)


def _print_evaluation(evaluation: Mapping[str, Any], path: Path) -> None:
    """Print what of a run is right."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def show(*columns: str, rows: list[tuple[str, ...]]) -> None:
        table = Table()
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)

    def number(value: int | None) -> str:
        return "-" if value is None else f"{value:,}"

    def share(part: int | None, whole: int) -> str:
        if part is None:
            return "-"
        return f"{part:,} ({100 * part / whole:.2f} %)" if whole else "0"

    extensions = evaluation["extensions"]
    names = {
        "judged": "contig placed",
        "wrong_end": "end wrong before",
        "chimeric": "chimeric before",
        "unplaced": "not placed",
    }
    console.print(f"{path}")
    show(
        "extended ends",
        "ends",
        "wholly right",
        "bases",
        "right",
        rows=[
            (
                name,
                f"{counts['ends']:,}",
                share(counts.get("right_ends"), counts["ends"]),
                f"{counts['bases']:,}",
                share(counts.get("right_bases"), counts["bases"]),
            )
            for state, name in names.items()
            if (counts := extensions[state])["ends"] or state == "judged"
        ],
    )
    if joins := evaluation.get("joins"):
        show(
            "joins",
            *joins["joined"],
            rows=[
                (verdict, *(f"{count:,}" for count in joins[verdict].values()))
                for verdict in ("joined", "refused")
            ],
        )
        console.print(
            f"{joins['chains']:,} chains, {joins['false_chains']:,} of them false though each join "
            "is true"
        )
    contiguity = evaluation["contiguity"]
    rows = ("contigs", "bases", "longest", "n50", "ng50", "nga50", "misassemblies")
    show(
        "contiguity",
        *contiguity,
        rows=[
            (
                row.upper() if row.endswith("50") else row,
                *(number(figures[row]) for figures in contiguity.values()),
            )
            for row in rows
        ],
    )
    console.print(f"written: {path / 'evaluation.json'}")


def _print_unfinished(path: Path, state: Mapping[str, Any]) -> None:
    """Print how far a run came."""
    from dlasm.rounds import round_folder
    from dlasm.state import PREVIOUS, read_state

    click.echo(f"{path}: not finished (begun {state['started']} by dlasm {state['version']})")
    for number in range(1, 1 + (state["options"].get("rounds") or 0)):
        of_round = round_folder(path, number)
        if not (of_round / "run.json").is_file():
            break
        round_state = read_state(of_round)
        if round_state["state"] == "finished":
            click.echo(f"  round {number}: done")
        else:
            click.echo(f"  round {number}:")
            _print_stages(of_round, round_state)
    _print_stages(path, state)
    click.echo("  continue it with the same command and --resume")
    if (path / PREVIOUS / "run.json").is_file():
        click.echo(
            f"  it is to replace a finished run, which is kept in {path / PREVIOUS} until then"
        )


def _print_stages(path: Path, state: Mapping[str, Any]) -> None:
    """Print how far the stages of a run came."""
    for name, stage in state["stages"].items():
        click.echo(f"  {name}: done in {stage['seconds']:.1f} s")
    work = path / state["work"]
    candidates = work / "candidates"
    if candidates.is_dir() and "candidates" not in state["stages"]:
        count = sum(1 for _ in candidates.rglob("[0-9]*.run"))
        click.echo(f"  candidates: {count} batches so far")
    partitions = work / "partitions"
    if partitions.is_dir():
        count = sum(1 for _ in partitions.glob("[0-9]*.npz"))
        click.echo(f"  extend: {count} of {state['stages']['plan']['partitions']} partitions")


if __name__ == "__main__":
    main()
