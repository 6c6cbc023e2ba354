"""``report.html``: what a run tells, or several side by side, as one page that needs nothing else.

Made from the files of a finished run alone. Everything is counted in bins before it is drawn, so
the page does not grow with the number of contigs. Figures are SVG written here: a plotting library
would take longer to import than a small run takes, and the page's colours follow its style sheet,
light or dark. No script is on the page, and its policy forbids any; whatever comes from outside
(names, paths, warnings) goes through :func:`_escape`.
"""

from __future__ import annotations

import html
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dlasm.arrays import SIDES
from dlasm.atomic import whole_file
from dlasm.errors import ResourceError
from dlasm.params import OUTCOMES
from dlasm.rounds import heading_of_rounds
from dlasm.store import Results, open_results
from dlasm.work import read_json

__all__ = ["Counts", "count_results", "write_report"]

LONGEST = 50
"""Extensions in the table of the longest ones."""

NAME_LENGTH = 120
"""Characters of a name that are shown."""

WARNING_LENGTH = 1_000
"""Characters of a warning that are shown."""

HISTOGRAM_BARS = 40
"""Bars of a histogram at most."""

SUPPORT_STEPS = 60
"""Places along the appended bases whose support is shown, at most."""

SUPPORT_BLOCK = 4 << 20
"""Appended bases whose support is counted at a time."""

DEPTHS_PER_DECADE = 8
LEAST_DEPTH, MOST_DEPTH = 1e-2, 1e6
"""Depths in the figure, fold; what lies outside counts at its margin."""

DASH = "\u2013"
"""Between the ends of a range, or where there is nothing."""

COLOURS = 8
"""Colours of the style sheet; they tell runs apart, or pools."""

MADE = ("joined", "circular")
"""Verdicts on an overlap of two ends that make a join."""

MEANINGS = {
    "dead_end": ("stopped at a dead end", "no read goes on, or none convincingly"),
    "fork": ("stopped at a fork", "two continuations have equal support"),
    "repeat": ("stopped at a repeat", "the walk came back to where it had been"),
    "limit": ("reached the walk limit", "the walk limit was reached"),
    "support": ("were cut for want of support", "too few fragments hold the bases that follow"),
    "no_reads": ("have no candidate reads", "no candidate reads"),
    "short_contig": ("are of too short contigs", "the contig is shorter than the start k"),
    "circular": ("are of circles", "the contig was a circle before, and has no ends"),
    "no_walk": ("have reads but no walk", "reads, but none that extends the end"),
    "skipped": ("were skipped", "its partition killed its workers (--on-error skip)"),
}
"""What is said of ends with each outcome of :data:`dlasm.params.OUTCOMES`, and what it means."""


def write_report(
    path: str | os.PathLike[str],
    runs: Sequence[str | os.PathLike[str]],
    counted: Sequence[Counts] | None = None,
) -> None:
    """Write the report of a finished run, or of several side by side.

    Parameters
    ----------
    path : path-like
        The HTML file; it appears when it is whole.
    runs : sequence of path-like
        Folders of the runs, at least one. If each has another k they are put in that order.
    counted : sequence of Counts, optional
        What :func:`count_results` gave for each of them, should it be known already.

    Raises
    ------
    StoreError
        If a store of results is not there or not readable.
    ResourceError
        If the page cannot be written.
    """
    counted = counted or [count_results(run) for run in runs]
    facts = [_gather(Path(run), counts) for run, counts in zip(runs, counted, strict=True)]
    _name_runs(facts)
    if len({run.k for run in facts}) == len(facts):
        facts.sort(key=lambda run: run.k)
    text = _page(facts)
    try:
        with whole_file(path, sync=True) as file:
            file.write(text.encode())
    except OSError as error:
        raise ResourceError(
            f"{os.fspath(path)}: cannot be written ({error.strerror or error}); choose another file"
        ) from error


# -- what is counted -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """What the figures show of a store of results; small, whatever the number of contigs.

    Attributes
    ----------
    gains : numpy.ndarray
        Ends by appended bases, from 0.
    by_reads : dict of int to _Class
        Ends by the binary digits of their number of candidate reads, 0 for none.
    depth : numpy.ndarray
        Contigs by depth, in steps of equal ratio from :data:`LEAST_DEPTH`.
    median_depth : float
        Fold, of contigs whose depth is known; NaN if none is.
    support : numpy.ndarray
        Appended bases by distance from the contig (rows) and fragments that hold them (columns).
    longest : list of tuple
        Name, side and figures of the longest extensions.
    """

    gains: np.ndarray
    by_reads: dict[int, _Class]
    depth: np.ndarray
    median_depth: float
    support: np.ndarray
    longest: list[tuple[Any, ...]]


@dataclass
class _Facts:
    """What the figures show of one run.

    Attributes
    ----------
    folder : Path
        Of the run.
    summary, state : dict
        What ``summary.json`` and ``run.json`` hold.
    counts : Counts
        Of its results.
    joins : Counter or None
        Overlaps of two ends by verdict and reason.
    name : str
        What the run is called.
    """

    folder: Path
    summary: dict[str, Any]
    state: dict[str, Any]
    counts: Counts
    joins: Counter[tuple[str, str]] | None
    name: str = ""

    @property
    def k(self) -> int:
        """Start k, bases."""
        return int(self.summary["parameters"]["k"])

    @property
    def ends(self) -> int:
        return 2 * int(self.summary["contigs"]["count"])


@dataclass(frozen=True)
class _Class:
    """Ends with about as many candidate reads."""

    ends: int
    grown: int
    mean: float
    quartiles: tuple[int, int, int]


def count_results(folder: str | os.PathLike[str]) -> Counts:
    """Count what the figures show of the results in the folder of a run."""
    results = open_results(Path(folder) / "results.zarr")
    walks = np.diff(results.walk_offsets)
    candidates = np.asarray(results.array("results", "candidates")[:])
    depth = np.asarray(results.array("contigs", "depth")[:])
    known = depth[np.isfinite(depth)]
    return Counts(
        gains=np.bincount(walks, minlength=1),
        by_reads=_by_reads(candidates, walks),
        depth=_by_depth(known),
        # np.median would import masked arrays, which takes longer than all else
        median_depth=float(np.partition(known, len(known) // 2)[len(known) // 2])
        if len(known)
        else float("nan"),
        support=_support(results, walks),
        longest=_longest(results, walks, candidates, depth),
    )


def _gather(folder: Path, counts: Counts) -> _Facts:
    """Put together what the figures show."""
    return _Facts(
        folder=folder,
        summary=read_json(folder / "summary.json"),
        state=read_json(folder / "run.json"),
        counts=counts,
        joins=_joins(folder / "joins.tsv"),
    )


def _by_reads(candidates: np.ndarray, walks: np.ndarray) -> dict[int, _Class]:
    """Sum up the ends of each class of candidate reads: 0, 1, 2 to 3, 4 to 7, ..."""
    digits = np.frexp(candidates.astype(np.float64))[1].astype(np.int64)
    key = (digits << 32) | walks
    key.sort()
    classes: dict[int, _Class] = {}
    for number in np.flatnonzero(np.bincount(digits)):
        low, high = np.searchsorted(key, [number << 32, (number + 1) << 32])
        gains = key[low:high] & 0xFFFFFFFF
        at = (len(gains) - 1) * np.array([1, 2, 3]) // 4
        classes[int(number)] = _Class(
            ends=len(gains),
            grown=int(np.count_nonzero(gains)),
            mean=float(gains.mean()),
            quartiles=tuple(gains[at].tolist()),
        )
    return classes


def _by_depth(depth: np.ndarray) -> np.ndarray:
    """Count contigs in steps of equal ratio."""
    steps = round(np.log10(MOST_DEPTH / LEAST_DEPTH) * DEPTHS_PER_DECADE)
    with np.errstate(divide="ignore"):
        at = np.floor(np.log10(depth / LEAST_DEPTH) * DEPTHS_PER_DECADE)
    return np.bincount(np.clip(at, 0, steps - 1).astype(np.int64), minlength=steps)


def _support(results: Results, walks: np.ndarray) -> np.ndarray:
    """Count appended bases by distance from the contig and by fragments that hold them."""
    array = results.array("results", "support")
    offsets = results.walk_offsets
    longest = int(walks.max(initial=1))
    row = 256 * (np.arange(longest) // _step_of(longest, SUPPORT_STEPS))
    # output order: a left walk begins beside the contig, which is its last base
    beside = np.where(np.arange(len(walks)) % 2 == 1, offsets[:-1], offsets[1:] - 1)
    counts = np.zeros((SUPPORT_STEPS, 256), dtype=np.int64)
    for begin in range(0, int(offsets[-1]), SUPPORT_BLOCK):
        values = np.asarray(array[begin : begin + SUPPORT_BLOCK])
        end = begin + len(values)
        first = int(np.searchsorted(offsets, begin, side="right")) - 1
        last = int(np.searchsorted(offsets, end))
        here = np.diff(np.clip(offsets[first : last + 1], begin, end))
        distance = np.abs(np.arange(begin, end) - np.repeat(beside[first:last], here))
        key = row[distance] + values
        counts += np.bincount(key, minlength=counts.size).reshape(counts.shape)
    return counts


def _step_of(most: int, steps: int) -> int:
    """Width of the bins, bases, if ``steps`` of them hold 1 to ``most``."""
    return max(1, -(-most // steps))


def _longest(
    results: Results, walks: np.ndarray, candidates: np.ndarray, depth: np.ndarray
) -> list[tuple[Any, ...]]:
    """Find the longest extensions, the first of equal ones first."""
    grown = np.flatnonzero(walks)
    if len(grown) > LONGEST:
        least = np.partition(walks[grown], -LONGEST)[-LONGEST]
        grown = grown[walks[grown] >= least]
    ends = grown[np.argsort(-walks[grown], kind="stable")][:LONGEST]
    contigs = ends // 2
    names = _names(results, contigs)
    k = results.array("results", "k").get_coordinate_selection(ends)
    outcome = results.array("results", "outcome").get_coordinate_selection(ends)
    before = np.diff(results.offsets)[contigs]
    return [
        (
            name,
            SIDES[end % 2],
            int(walks[end]),
            int(length),
            _Num(_depth_text(depth[end // 2])),
            int(candidates[end]),
            int(of_k),
            OUTCOMES[code].replace("_", " "),
        )
        for name, end, length, of_k, code in zip(names, ends, before, k, outcome, strict=True)
    ]


def _names(results: Results, contigs: np.ndarray) -> list[str]:
    """Return the names of a few contigs, long ones cut."""
    offsets = np.asarray(results.array("contigs", "name_offsets")[:])
    # a character is at most 4 bytes
    length = np.minimum(np.diff(offsets)[contigs], 4 * NAME_LENGTH + 4)
    until = np.cumsum(length)
    places = np.arange(int(length.sum())) + np.repeat(offsets[contigs] - until + length, length)
    text = bytes(results.array("contigs", "name_values").get_coordinate_selection(places))
    return [
        text[end - n : end].decode(errors="backslashreplace")
        for end, n in zip(until.tolist(), length.tolist(), strict=True)
    ]


def _joins(path: Path) -> Counter[tuple[str, str]] | None:
    """Count overlaps of two ends by verdict and reason; None without a table of them."""
    if not path.is_file():
        return None
    with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        header = file.readline().rstrip("\n").split("\t")
        if not {"verdict", "reason"} <= set(header):
            return None
        verdict, reason = header.index("verdict"), header.index("reason")
        rows = (line.rstrip("\n").split("\t") for line in file)
        return Counter((row[verdict], row[reason]) for row in rows)


def _name_runs(runs: Sequence[_Facts]) -> None:
    """Call runs by their k, else by their folders' names, else by their paths."""
    ways: list[Callable[[_Facts], str]] = [
        lambda run: run.folder.resolve().name,
        lambda run: os.fspath(run.folder),
    ]
    if len(runs) > 1:
        ways.insert(0, lambda run: f"k\u00a0{run.k}")
    for way in ways:
        names = [way(run) for run in runs]
        if len(set(names)) == len(runs):
            break
    for number, (run, name) in enumerate(zip(runs, names, strict=True), 1):
        run.name = name if len(set(names)) == len(runs) else f"{name} ({number})"


# -- text ------------------------------------------------------------------------------------------


class _Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


class _Num(str):
    """A number as it is shown."""

    __slots__ = ()


def _escape(text: Any) -> str:
    """Make text that came from outside harmless: no markup, no control characters."""
    shown = re.sub(
        r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]",
        lambda match: f"\\x{ord(match[0]):02x}",
        str(text),
    )
    return html.escape(shown)


def _name(text: str) -> _Markup:
    """Show a name or a path: cut if it is long, and in its own direction."""
    return _Markup(f'<bdi class="name">{_escape(_cut(text, NAME_LENGTH))}</bdi>')


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "…"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}\u00a0%" if whole else DASH


def _depth_text(depth: float) -> str:
    return f"{depth:,.1f}" if np.isfinite(depth) else "unknown"


def _seconds(seconds: float) -> str:
    """Say a time in a unit that suits it."""
    if seconds < 120:
        return f"{seconds:.{2 if seconds < 10 else 1}f}\u00a0s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _megabytes(count: float) -> _Num:
    return _Num(f"{count / 1e6:,.0f}\u00a0MB")


def _short(value: float) -> str:
    """Say a number on an axis."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):g}{unit}"
    return f"{value:g}"


def _count(number: int, things: str) -> str:
    """Say so many things; ``things`` is their plural."""
    return f"{number:,} {things if number != 1 else things.removesuffix('s')}"


def _cell(value: Any, tag: str = "td", more: str = "") -> str:
    """Make a cell: numbers to the right, HTML as it is, the rest escaped."""
    if isinstance(value, (int, np.integer)):
        value = _Num(f"{value:,}")
    kind = ' class="number"' if isinstance(value, _Num) else ""
    text = value if isinstance(value, _Markup) else _escape(value)
    return f"<{tag}{kind}{more}>{text}</{tag}>"


def _table(
    head: Sequence[Any], rows: Iterable[Sequence[Any]], caption: str = "", kind: str = ""
) -> str:
    """Make a table whose first column names the rows."""
    body = [list(row) for row in rows]
    numeric = [isinstance(cell, (int, np.integer, _Num)) for cell in body[0]] if body else []
    heads = []
    for place, value in enumerate(head):
        right = ' class="number"' if place < len(numeric) and numeric[place] else ""
        text = value if isinstance(value, _Markup) else _escape(value)
        heads.append(f'<th scope="col"{right}>{text}</th>')
    lines = [
        "<tr>" + _cell(row[0], "th", ' scope="row"') + "".join(map(_cell, row[1:])) + "</tr>"
        for row in body
    ]
    title = f"<caption>{_escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table class="{kind}">{title}<thead><tr>{"".join(heads)}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _bars(values: Sequence[float], most: float, first: int = 0) -> _Markup:
    """Draw a bar for each run, one under the other."""
    parts = []
    for number, value in enumerate(values, first):
        share = 100 * value / most if most else 0.0
        least = "min-width:1px" if value else ""
        parts.append(f'<i class="fill c{number % COLOURS}" style="width:{share:.2f}%;{least}"></i>')
    return _Markup(f'<span class="bars" aria-hidden="true">{"".join(parts)}</span>')


def _numbers(table: str) -> str:
    return f"<details><summary>The numbers</summary>{table}</details>"


def _section(heading: str, *parts: str, wide: bool = False) -> str:
    """Make a section; its heading says what was found."""
    kind = ' class="wide"' if wide else ""
    return f"<section{kind}><h2>{_escape(heading)}</h2>{''.join(parts)}</section>"


def _paragraph(text: str) -> str:
    return f"<p>{_escape(text)}</p>"


def _heads(runs: Sequence[_Facts]) -> list[_Markup]:
    """Name runs at the head of a table, with their colours."""
    return [
        _Markup(f'<i class="swatch fill c{n % COLOURS}"></i>{_escape(run.name)}')
        for n, run in enumerate(runs)
    ]


def _legend(names: Sequence[str], first: int = 0) -> str:
    if len(names) < 2:
        return ""
    items = "".join(
        f'<li><i class="swatch fill c{n % COLOURS}"></i>{_escape(name)}</li>'
        for n, name in enumerate(names, first)
    )
    return f'<ul class="legend">{items}</ul>'


# -- figures ---------------------------------------------------------------------------------------

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 42
"""Size of a figure and of its margins, pixels on a phone; on a wide screen they grow together."""


@dataclass
class _Figure:
    """A figure with a linear axis from 0 upward.

    Attributes
    ----------
    title, text : str
        What it shows, and what is to be seen in it, for who cannot see it.
    x_label, y_label : str
        Of the axes.
    x_ticks : sequence of (float, str)
        Places on the x axis and their labels.
    x_range : (float, float)
        Of the x axis.
    """

    title: str
    text: str
    x_label: str
    y_label: str
    x_ticks: Sequence[tuple[float, str]]
    x_range: tuple[float, float]
    _drawn: list[tuple[str, int, np.ndarray, np.ndarray, np.ndarray | None]] = field(
        default_factory=list
    )

    def area(self, colour: int, edges: Any, heights: Any, *, filled: bool = True) -> None:
        """Draw a histogram: its ``n + 1`` edges and ``n`` heights."""
        x = np.repeat(np.asarray(edges, float), 2)
        y = np.concatenate([[0.0], np.repeat(np.asarray(heights, float), 2), [0.0]])
        self._drawn.append(("area" if filled else "line", colour, x, y, None))

    def line(self, colour: int, x: Any, y: Any) -> None:
        """Draw a line."""
        self._drawn.append(("line", colour, np.asarray(x, float), np.asarray(y, float), None))

    def band(self, colour: int, x: Any, low: Any, high: Any) -> None:
        """Draw what lies between two lines."""
        self._drawn.append(
            (
                "band",
                colour,
                np.asarray(x, float),
                np.asarray(high, float),
                np.asarray(low, float),
            )
        )

    def svg(self) -> str:
        """Return the figure as HTML."""
        most = max((float(y.max(initial=0)) for _, _, _, y, _ in self._drawn), default=0.0)
        y_ticks = _ticks(most or 1.0)
        top = max(y_ticks[-1], most)
        low, high = self.x_range
        across = (WIDTH - LEFT - RIGHT) / ((high - low) or 1.0)
        up = (HEIGHT - TOP - BOTTOM) / top

        def x_of(value: Any) -> Any:
            return LEFT + (value - low) * across

        def y_of(value: Any) -> Any:
            return HEIGHT - BOTTOM - value * up

        def points(x: np.ndarray, y: np.ndarray) -> str:
            return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x_of(x), y_of(y), strict=True))

        parts = []
        for value in y_ticks:
            y = y_of(value)
            parts.append(
                f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                f'<text class="end" x="{LEFT - 6}" y="{y + 4:.1f}">{_short(value)}</text>'
            )
        for value, label in self.x_ticks:
            x = x_of(value)
            parts.append(
                f'<path class="tick" d="M{x:.1f} {HEIGHT - BOTTOM}v4"/>'
                f'<text class="middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}">'
                f"{_escape(label)}</text>"
            )
        for kind, colour, xs, ys, lower in self._drawn:
            colour_class = f"c{colour % COLOURS}"
            if lower is not None:
                outline = f"{points(xs, ys)} {points(xs[::-1], lower[::-1])}"
                parts.append(f'<polygon class="band fill {colour_class}" points="{outline}"/>')
            elif kind == "area":
                parts.append(
                    f'<polygon class="area fill {colour_class}" points="{points(xs, ys)}"/>'
                )
            else:
                parts.append(f'<polyline class="stroke {colour_class}" points="{points(xs, ys)}"/>')
        parts.append(
            f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'
            f'<text class="label end" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}">'
            f"{_escape(self.x_label)}</text>"
            f'<text class="label" x="2" y="13">{_escape(self.y_label)}</text>'
        )
        return (
            f'<figure><svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'role="img"><title>{_escape(self.title)}</title><desc>{_escape(self.text)}</desc>'
            f"{''.join(parts)}</svg></figure>"
        )


def _ticks(most: float, about: int = 4) -> list[float]:
    """Round numbers from 0 to ``most`` or a little more."""
    rough = most / about
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough * 0.999)
    return [round(step * i, 12) for i in range(int(np.ceil(most / step - 1e-9)) + 1)]


def _linear(most: float) -> list[tuple[float, str]]:
    """Ticks of an x axis from 0 that ends at ``most``."""
    return [(value, f"{value:,g}") for value in _ticks(most, 5) if value <= most * 1.0001]


# -- sections --------------------------------------------------------------------------------------


def _gained(runs: Sequence[_Facts]) -> str:
    """Say what was gained."""
    if len(runs) == 1:
        before, after = runs[0].summary["contigs"], runs[0].summary["extended"]
        share = _percent(after["appended_bases"], before["bases"])
        rows: list[Sequence[Any]] = [
            ("Contigs", before["count"], before["count"], f"{after['contigs']:,} extended"),
            ("Bases", before["bases"], after["bases"], f"+{after['appended_bases']:,} ({share})"),
            ("N50", before["n50"], after["n50"], ""),
            (
                "N50 of the size before",
                before["n50"],
                after["n50_of_input_size"],
                _signed(after["n50_of_input_size"] - before["n50"]),
            ),
            (
                "Longest contig",
                before["longest"],
                after["longest"],
                _signed(after["longest"] - before["longest"]),
            ),
            (
                "Contig ends",
                2 * before["count"],
                2 * before["count"],
                f"{after['ends']:,} grew ({_percent(after['ends'], 2 * before['count'])})",
            ),
        ]
        if runs[0].joins is not None:
            rows.append(("Joins", _Num(DASH), _made(runs[0]), ""))
        return _section(
            f"Contigs gained {_count(after['appended_bases'], 'bases')}"
            + (f", {share} of their size" if before["bases"] else ""),
            _table(["", "before", "after", "change"], rows),
            _paragraph(
                "Lengths in bases. N50 of the whole may fall although no contig got shorter, as "
                "the total grows too; N50 of the size before can be compared."
            ),
        )
    measures: list[tuple[str, Callable[[_Facts], int]]] = [
        ("Contigs", lambda run: run.summary["contigs"]["count"]),
        ("Contigs extended", lambda run: run.summary["extended"]["contigs"]),
        ("Ends extended", lambda run: run.summary["extended"]["ends"]),
        ("Bases appended", lambda run: run.summary["extended"]["appended_bases"]),
        ("Longest extension", lambda run: run.summary["extended"]["longest_appended"]),
        ("N50 before", lambda run: run.summary["contigs"]["n50"]),
        ("N50 after", lambda run: run.summary["extended"]["n50"]),
        ("N50 of the size before", lambda run: run.summary["extended"]["n50_of_input_size"]),
    ]
    if any(run.joins is not None for run in runs):
        measures.append(("Joins", _made))
    most = max(run.summary["extended"]["appended_bases"] for run in runs)
    best = [run.name for run in runs if run.summary["extended"]["appended_bases"] == most]
    heading = (
        f"{best[0]} gained most, {_count(most, 'bases')}"
        if len(best) == 1
        else f"{' and '.join(best)} gained most, {_count(most, 'bases')} each"
    )
    rows = []
    for name, of in measures:
        values = [of(run) for run in runs]
        rows.append((name, *values, _bars(values, max(values))))
    return _section(heading, _table(["", *_heads(runs), ""], rows), wide=True)


def _rounds(runs: Sequence[_Facts]) -> str:
    """List the rounds of a run of several."""
    if len(runs) > 1 or "rounds" not in runs[0].summary:
        return ""
    rows = runs[0].summary["rounds"]
    change, joins = rows[-1]["bases"] - rows[0]["bases"], sum(row["joins"] for row in rows)
    return _section(
        f"{_count(len(rows) - 1, 'rounds')}: {_signed(change)} bases, {_count(joins, 'joins')}",
        _table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows]),
        _paragraph(f"On this page {heading_of_rounds(runs[0].summary)}."),
        wide=True,
    )


def _made(run: _Facts) -> int:
    """Count the joins that were made."""
    return sum(count for (verdict, _), count in (run.joins or Counter()).items() if verdict in MADE)


def _signed(change: int) -> str:
    return f"{change:+,}"


def _bins(runs: Sequence[_Facts]) -> str:
    """Contigs per bin; over k where runs differ in it."""
    meanings = ("no candidate reads", "fewer than {}", "{} or more")
    limits = {run.summary["parameters"]["bin_limit"] for run in runs}
    limit = f"{limits.pop()}" if len(limits) == 1 else "the bin limit"
    bars = []
    for run in runs:
        counts = [run.summary["bins"][str(number)] for number in (1, 2, 3)]
        whole = sum(counts)
        parts = "".join(
            f'<i class="fill b{n}" style="width:{100 * count / whole if whole else 0:.2f}%"></i>'
            for n, count in enumerate(counts, 1)
        )
        name = f"<span>{_escape(run.name)}</span>" if len(runs) > 1 else ""
        bars.append(f'<div class="stack" aria-hidden="true">{name}<span>{parts}</span></div>')
    rows = []
    for number in (1, 2, 3):
        cells: list[Any] = [run.summary["bins"][str(number)] for run in runs]
        if len(runs) == 1:
            cells.append(_Num(_percent(cells[0], runs[0].summary["contigs"]["count"])))
        label = _Markup(f'<i class="swatch fill b{number}"></i>Bin\u00a0{number}')
        rows.append((label, meanings[number - 1].format(limit), *cells))
    heads = [run.name for run in runs] if len(runs) > 1 else ["contigs", "share"]
    if len(runs) == 1:
        counts = runs[0].summary["bins"]
        whole = sum(counts.values())
        heading = (
            f"{_percent(counts['3'], whole)} of the contigs have {limit} candidate reads or more"
            if whole
            else "There are no contigs"
        )
    else:
        heading = "Contigs per bin"
        if len({run.k for run in runs}) == len(runs):
            heading = "Contigs per bin, over k"
    return _section(
        heading,
        *bars,
        _table(["", "candidate reads of the busier end", *heads], rows, kind="named"),
        wide=len(runs) > 1,
    )


def _lengths(runs: Sequence[_Facts]) -> str:
    """How long extensions are."""
    grown = [int(run.counts.gains[1:].sum()) for run in runs]
    if not any(grown):
        return _section("No end grew", _paragraph("So there are no extension lengths."))
    most = max(len(run.counts.gains) - 1 for run in runs)
    width = _step_of(most, HISTOGRAM_BARS)
    edges = np.arange(0, most + width, width)
    counts = [_rebin(run.counts.gains[1:], width, len(edges) - 1) for run in runs]
    middle = [
        _quantile(run.counts.gains[1:], 0.5) + 1 if n else 0
        for run, n in zip(runs, grown, strict=True)
    ]
    if len(runs) == 1:
        heading = f"Half of the ends that grew gained {_count(middle[0], 'bases')} or more"
        text = f"{heading}; the longest extension has {_count(most, 'bases')}."
    else:
        longest = max(middle)
        where = " and ".join(
            run.name for run, value in zip(runs, middle, strict=True) if value == longest
        )
        heading = f"Extensions are longest in {where}: half have {_count(longest, 'bases')} or more"
        text = "; ".join(
            f"{run.name}: median {value:,} bases" for run, value in zip(runs, middle, strict=True)
        )
    figure = _Figure(
        "Ends that grew, by appended bases",
        text,
        "appended bases",
        "ends",
        _linear(int(edges[-1])),
        (0, int(edges[-1])),
    )
    for number, each in enumerate(counts):
        figure.area(number, edges, each, filled=len(runs) == 1)
    rows = [
        (_Num(_span(int(edges[i]) + 1, int(edges[i + 1]))), *(int(each[i]) for each in counts))
        for i in range(len(edges) - 1)
    ]
    names = _heads(runs) if len(runs) > 1 else ["ends"]
    return _section(
        heading,
        figure.svg(),
        _legend([run.name for run in runs]),
        _numbers(_table(["appended bases", *names], rows)),
    )


def _span(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}{DASH}{high:,}"


def _rebin(counts: np.ndarray, width: int, bins: int) -> np.ndarray:
    """Add up each ``width`` counts."""
    padded = np.zeros(bins * width, dtype=np.int64)
    padded[: len(counts)] = counts
    return padded.reshape(bins, width).sum(axis=1)


def _quantile(counts: np.ndarray, part: float) -> int:
    """Return the value at which ``part`` of the counts lies below or at it."""
    until = np.cumsum(counts)
    return int(np.searchsorted(until, max(1, np.ceil(part * until[-1]))))


def _outcomes(runs: Sequence[_Facts]) -> str:
    """Why ends stopped."""
    names = [name for name in OUTCOMES if any(name in run.summary["outcomes"] for run in runs)]
    if not names:
        return _section("There are no contig ends")
    rows = []
    counts = {name: [run.summary["outcomes"].get(name, 0) for run in runs] for name in names}
    most = max(
        value / run.ends
        for each in counts.values()
        for value, run in zip(each, runs, strict=True)
        if run.ends
    )
    for name in sorted(names, key=lambda name: -sum(counts[name])):
        values = counts[name]
        shares = [
            value / run.ends if run.ends else 0 for value, run in zip(values, runs, strict=True)
        ]
        more = [_Num(_percent(shares[0], 1))] if len(runs) == 1 else []
        label = _Markup(
            f"{_escape(name.replace('_', ' '))}<small>{_escape(MEANINGS[name][1])}</small>"
        )
        rows.append((label, *values, *more, _bars(shares, most)))
    heads: list[Any] = list(_heads(runs)) if len(runs) > 1 else ["ends", "share"]
    heading = "Why ends stopped, or did not start"
    if len(runs) == 1:
        first = max(names, key=lambda name: counts[name][0])
        heading = f"{_percent(counts[first][0], runs[0].ends)} of the ends {MEANINGS[first][0]}"
    return _section(heading, _table(["outcome", *heads, ""], rows, kind="outcomes"))


def _supports(runs: Sequence[_Facts]) -> str:
    """Support along the appended bases."""
    longest = max(len(run.counts.gains) - 1 for run in runs)
    if not longest:
        return ""
    figure = _Figure(
        "Support along the appended bases",
        "",
        "distance from the contig, bases",
        "fragments that hold a base",
        _linear(longest),
        (0, longest),
    )
    rows: list[Sequence[Any]] = []
    findings = []
    for number, run in enumerate(runs):
        support = run.counts.support
        width = _step_of(len(run.counts.gains) - 1, SUPPORT_STEPS)
        whole = support.sum()
        values = np.arange(256)
        alone = int(support[:, :2].sum())
        mean = (support @ values).sum() / max(whole, 1)
        findings.append(
            f"Appended bases are held by {mean:.1f} fragments on average, "
            f"{_percent(alone, whole)} by one at most"
        )
        used = np.flatnonzero(support.sum(axis=1))
        means = (support @ values)[used] / support[used].sum(axis=1)
        low, high = (np.array([_quantile(support[i], part) for i in used]) for part in (0.25, 0.75))
        at = (used + 0.5) * width
        if len(runs) == 1:
            figure.band(number, at, low, high)
        figure.line(number, at, means)
        rows += [
            (
                _Num(_span(int(i) * width + 1, int(i + 1) * width)),
                *([_escape(run.name)] if len(runs) > 1 else []),
                int(support[i].sum()),
                _Num(f"{m:.1f}"),
                _Num(f"{a}{DASH}{b}"),
            )
            for i, m, a, b in zip(used, means, low, high, strict=True)
        ]
    heading = findings[0] if len(runs) == 1 else "Support along the appended bases"
    figure.text = "; ".join(findings)
    more = ["run"] if len(runs) > 1 else []
    return _section(
        heading,
        figure.svg(),
        _legend([run.name for run in runs]),
        _paragraph("Line: mean. Band: the middle half of the bases.") if len(runs) == 1 else "",
        _numbers(_table(["distance", *more, "bases", "mean", "middle half"], rows)),
    )


def _reads_and_gain(runs: Sequence[_Facts]) -> str:
    """Candidate reads of an end against bases gained."""
    classes = sorted({number for run in runs for number in run.counts.by_reads})
    if not classes or classes == [0]:
        return _section("No end has candidate reads")
    labels = [_span(1 << (n - 1), (1 << n) - 1) if n else "0" for n in range(classes[-1] + 1)]
    every = -(-len(labels) // 7)
    ticks = [(n, _short(1 << (n - 1)) if n else "0") for n in range(len(labels)) if n % every == 0]
    figure = _Figure(
        "Bases gained by candidate reads of an end",
        "",
        "candidate reads of an end, or more",
        "bases gained",
        ticks,
        (-0.3, len(labels) - 0.7),
    )
    rows: list[Sequence[Any]] = []
    for number, run in enumerate(runs):
        each = sorted(run.counts.by_reads.items())
        x = [n for n, _ in each]
        if len(runs) == 1:
            figure.band(
                number, x, [c.quartiles[0] for _, c in each], [c.quartiles[2] for _, c in each]
            )
        figure.line(number, x, [c.mean for _, c in each])
        rows += [
            (
                _Num(labels[n]),
                *([_escape(run.name)] if len(runs) > 1 else []),
                c.ends,
                _Num(_percent(c.grown, c.ends)),
                _Num(f"{c.mean:.1f}"),
                _Num(" / ".join(f"{q:,}" for q in c.quartiles)),
            )
            for n, c in each
        ]
    heading = "Bases gained by candidate reads"
    if len(runs) == 1:
        number, best = max(runs[0].counts.by_reads.items(), key=lambda item: item[1].mean)
        reads = f"{labels[number]} candidate read{'' if labels[number] == '1' else 's'}"
        heading = f"Ends with {reads} gained most, {best.mean:.0f} bases on average"
    figure.text = heading
    more = ["run"] if len(runs) > 1 else []
    return _section(
        heading,
        figure.svg(),
        _legend([run.name for run in runs]),
        _paragraph("Line: mean of all ends, grown or not. Band: the middle half of them.")
        if len(runs) == 1
        else "",
        _numbers(
            _table(["candidate reads", *more, "ends", "grew", "mean gain", "quartiles"], rows)
        ),
    )


def _inserts(runs: Sequence[_Facts]) -> str:
    """Insert sizes of the libraries."""
    rows: list[Sequence[Any]] = []
    drawn: list[tuple[str, dict[str, Any]]] = []
    for run in runs:
        histograms = run.state["stages"]["candidates"].get("inserts", [])
        for place, library in enumerate(run.summary["libraries"]):
            if "insert" not in library:
                continue
            insert = library["insert"]
            label = f"library {place + 1}" if len(runs) == 1 else f"{run.name}, library {place + 1}"
            paths = " ".join(_name(path) for path in library["paths"]) if len(runs) == 1 else ""
            rows.append(
                (
                    _Markup(f"{_escape(label)}<small>{paths}</small>"),
                    library["kind"],
                    _Num(f"{insert['mean']:.0f}"),
                    _Num(f"{insert['sd']:.0f}"),
                    insert["source"],
                    insert["pairs"],
                )
            )
            if place < len(histograms) and histograms[place]:
                drawn.append((label, histograms[place]))
    if not rows:
        return ""
    parts = []
    if drawn:
        low = min(each["first"] for _, each in drawn)
        high = max(each["first"] + each["width"] * len(each["counts"]) for _, each in drawn)
        step = _ticks(max(high - low, 1), 5)[1]
        ticks = [(v, f"{v:,g}") for v in np.arange(np.ceil(low / step) * step, high, step).tolist()]
        figure = _Figure(
            "Insert sizes",
            "The share of pairs by insert size.",
            "insert size, bases",
            "% of pairs per base",
            ticks,
            (low, high),
        )
        for number, (_, each) in enumerate(drawn):
            counts = np.array(each["counts"])
            edges = each["first"] + each["width"] * np.arange(len(counts) + 1)
            figure.area(
                number,
                edges,
                100 * counts / counts.sum() / each["width"],
                filled=len(drawn) == 1,
            )
        parts = [figure.svg(), _legend([name for name, _ in drawn])]
    first = rows[0]
    heading = "Insert sizes"
    if len(rows) == 1:
        heading = f"The insert size is {first[2]} ± {first[3]} bases ({first[4]})"
    head = ["library", "kind", "mean", "sd", "source", "pairs"]
    return _section(heading, *parts, _table(head, rows))


def _depths(runs: Sequence[_Facts]) -> str:
    """Depth of the contigs."""
    used = np.flatnonzero(sum(run.counts.depth for run in runs))
    if not len(used):
        return _section("The depth of no contig is known")
    low, high = int(used[0]), int(used[-1]) + 1
    decade = np.log10(LEAST_DEPTH)
    edges = decade + np.arange(low, high + 1) / DEPTHS_PER_DECADE
    ticks = [
        (float(p), _short(10.0**p))
        for p in range(int(np.ceil(edges[0] - 1e-9)), int(np.floor(edges[-1] + 1e-9)) + 1)
    ]
    if len(ticks) < 2:
        ticks = [(float(e), f"{10.0**e:.3g}") for e in edges[:: max(1, (len(edges) - 1) // 4)]]
    heading = "Depth of the contigs"
    if len(runs) == 1:
        heading = (
            f"Half of the contigs are at least {_depth_text(runs[0].counts.median_depth)} fold deep"
        )
    figure = _Figure(
        "Contigs by depth",
        heading,
        "depth, fold",
        "contigs",
        ticks,
        (float(edges[0]), float(edges[-1])),
    )
    for number, run in enumerate(runs):
        figure.area(number, edges, run.counts.depth[low:high], filled=len(runs) == 1)
    rows = [
        (
            _Num(f"{10 ** edges[i]:.3g}{DASH}{10 ** edges[i + 1]:.3g}"),
            *(int(run.counts.depth[low + i]) for run in runs),
        )
        for i in range(high - low)
    ]
    names = _heads(runs) if len(runs) > 1 else ["contigs"]
    sources = sorted({str(run.summary["depth_source"]) for run in runs})
    unknown = sum(run.summary["contigs"]["count"] - int(run.counts.depth.sum()) for run in runs)
    note = f"Where depths come from: {', '.join(sources)}."
    if unknown:
        note += f" The depth of {_count(unknown, 'contigs')} is not known."
    return _section(
        heading,
        figure.svg(),
        _legend([run.name for run in runs]),
        _paragraph(note),
        _numbers(_table(["depth", *names], rows)),
    )


def _joins_section(runs: Sequence[_Facts]) -> str:
    """Show overlaps of two ends by verdict and reason."""
    shown = [run for run in runs if run.joins is not None]
    if not shown:
        return ""
    keys = sorted({key for run in shown for key in run.joins or ()})
    verdicts: Counter[str] = Counter()
    for run in shown:
        for (verdict, _), count in (run.joins or Counter()).items():
            verdicts[verdict] += count
    heading = "No two ends overlap"
    if verdicts:
        parts = ", ".join(f"{count:,} {name}" for name, count in sorted(verdicts.items()))
        whole = sum(verdicts.values())
        heading = f"{whole:,} overlap{'' if whole == 1 else 's'} of two ends: {parts}"
    if len(runs) > 1:
        heading = "Overlaps of two ends"
    values = {key: [(run.joins or Counter())[key] for run in runs] for key in keys}
    most = max((max(each) for each in values.values()), default=0)
    rows = [
        (key[0], key[1].replace("_", " "), *values[key], _bars(values[key], most)) for key in keys
    ]
    names = _heads(runs) if len(runs) > 1 else ["overlaps"]
    return _section(heading, _table(["verdict", "reason", *names, ""], rows) if rows else "")


def _times(runs: Sequence[_Facts]) -> str:
    """Time and memory of each stage and pool."""
    stages = list(dict.fromkeys(name for run in runs for name in run.summary["stages"]))
    seconds = {
        name: [run.summary["stages"].get(name, {}).get("seconds", 0.0) for run in runs]
        for name in stages
    }
    most = max((max(each) for each in seconds.values()), default=0.0)
    rows = []
    for name in stages:
        cells: list[Any] = []
        for run in runs:
            stage = run.summary["stages"].get(name, {})
            peak = max(stage.get("peak_rss_bytes", 0), stage.get("worker_peak_rss_bytes", 0))
            cells.append(_Num(_seconds(stage.get("seconds", 0.0))))
            if len(runs) == 1:
                cells.append(_Num(_seconds(stage.get("cpu_seconds", 0.0))))
                cells.append(_megabytes(peak))
        rows.append((name, *cells, _bars(seconds[name], most)))
    heads: list[Any] = list(_heads(runs)) if len(runs) > 1 else ["time", "CPU time", "peak memory"]
    parts = [_table(["stage", *heads, ""], rows)]
    pool_rows: list[Sequence[Any]] = []
    for run in runs:
        for pool, about in sorted(run.summary["pools"].items()):
            kernel = f"{_seconds(about['kernel_ms'] / 1000)}" if "kernel_ms" in about else DASH
            pool_rows.append(
                (
                    pool.upper() if len(runs) == 1 else f"{run.name}, {pool.upper()}",
                    about["partitions"],
                    about["contigs"],
                    _Num(_seconds(about["seconds"])),
                    _Num(kernel),
                    _megabytes(about["peak_rss_bytes"])
                    if "peak_rss_bytes" in about
                    else _Num(DASH),
                )
            )
    if pool_rows:
        head = ["pool", "partitions", "contigs", "task time", "kernels", "memory"]
        parts.append(_table(head, pool_rows, "Who extended the contigs", kind="named"))
    parts += [_timeline(run, with_name=len(runs) > 1) for run in runs]
    total = [run.summary["seconds"] for run in runs]
    if len(runs) == 1:
        slowest = max(stages, key=lambda name: seconds[name][0], default="")
        whole = sum(seconds[name][0] for name in stages)
        heading = f"The run took {_seconds(total[0])}"
        if whole:
            heading += f", {_percent(seconds[slowest][0], whole)} of it in stage {slowest}"
    else:
        heading = f"Runs took {_seconds(min(total))} to {_seconds(max(total))}"
    return _section(heading, *parts, wide=True)


def _timeline(run: _Facts, *, with_name: bool) -> str:
    """When the pools extended partitions."""
    timeline = run.state["stages"]["extend"].get("timeline")
    if not timeline or not timeline["pools"]:
        return ""
    pools = timeline["pools"]
    busy = np.array([pools[pool] for pool in sorted(pools)])
    if len(pools) == 1 and busy.max() <= 1.001:
        return ""  # one task after another
    step = timeline["step_seconds"]
    span = step * busy.shape[1]
    together = float(np.count_nonzero((busy > 0).all(axis=0)) / busy.shape[1])
    text = f"Extension took {_seconds(span)}"
    if len(pools) > 1:
        text += f"; both pools worked in {100 * together:.0f} % of that time"
    unit, scale = ("ms", 1e3) if span < 1 else ("s", 1.0)
    figure = _Figure(
        "Tasks at a time",
        text,
        f"time since the first task, {unit}",
        "tasks at a time",
        _linear(span * scale),
        (0, span * scale),
    )
    edges = np.arange(busy.shape[1] + 1) * step * scale
    for number in reversed(range(len(busy))):  # one on top of the other
        figure.area(number, edges, busy[: number + 1].sum(axis=0))
    name = f"{run.name}: " if with_name else ""
    return (
        f'<h3>{_escape(name + text)}</h3><div class="timeline">{figure.svg()}'
        f"{_legend([pool.upper() for pool in sorted(pools)])}</div>"
    )


def _longest_section(runs: Sequence[_Facts]) -> str:
    """List the longest extensions of a run."""
    if len(runs) > 1 or not runs[0].counts.longest:
        return ""
    rows = [
        (_name(name), side, gain, length, depth, reads, k, outcome)
        for name, side, gain, length, depth, reads, k, outcome in runs[0].counts.longest
    ]
    head = ["contig", "side", "appended", "length before", "depth", "candidates", "k", "outcome"]
    heading = "The longest extension" if len(rows) == 1 else f"The {len(rows)} longest extensions"
    return _section(heading, _table(head, rows, kind="lines"), wide=True)


def _making(runs: Sequence[_Facts]) -> str:
    """Parameters, inputs, versions and commands."""

    def compared(title: str, of: Callable[[_Facts], Mapping[str, Any]]) -> str:
        each = [of(run) for run in runs]
        names = list(dict.fromkeys(name for about in each for name in about))
        rows = []
        for name in names:
            values = [_value(about.get(name)) for about in each]
            differs = '<em class="differs">differs</em>' if len(set(values)) > 1 else ""
            rows.append((_Markup(f"{_escape(name.replace('_', ' '))}{differs}"), *values))
        heads = _heads(runs) if len(runs) > 1 else ["value"]
        return _table(["", *heads], rows, title)

    inputs = [
        (about["role"], _size(about), _name(str(about["path"])))
        for about in {json.dumps(a): a for run in runs for a in run.summary["inputs"]}.values()
    ]
    commands = "".join(
        f"<p>{_escape(run.name)}: started {_escape(run.summary['started'])}</p>"
        f"<pre>{_escape(shlex.join(map(str, run.summary['command'])))}</pre>"
        for run in runs
    )
    return _section(
        "How it was made",
        compared("Parameters", lambda run: run.summary["parameters"]),
        compared(
            "Versions", lambda run: {"dlasm": run.summary["dlasm"], **run.summary["versions"]}
        ),
        _table(["input", "size", "path"], inputs, "Inputs"),
        "<h3>Commands</h3>" if len(runs) > 1 else "<h3>Command</h3>",
        commands,
        wide=True,
    )


def _value(value: Any) -> str:
    """Say the value of a parameter."""
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value)) or DASH
    return str(value)


def _size(about: Mapping[str, Any]) -> _Num:
    return _Num(f"{about['size'] / 1e6:,.1f}\u00a0MB" if "size" in about else DASH)


SECTIONS: tuple[Callable[[Sequence[_Facts]], str], ...] = (
    _rounds,
    _gained,
    _bins,
    _lengths,
    _outcomes,
    _supports,
    _reads_and_gain,
    _inserts,
    _depths,
    _joins_section,
    _times,
    _longest_section,
    _making,
)

STYLE = """
:root{color-scheme:light dark;--paper:#fbfbfa;--card:#fff;--ink:#1d2530;--soft:#5a6572;
--line:#dfe3e8;--c0:#2c6e9e;--c1:#d07a28;--c2:#3a8a60;--c3:#8b5fb0;--c4:#b54a57;--c5:#5f7a1f;
--c6:#1f8a93;--c7:#7a6652;--b1:#c3cad3;--b2:#7fb2d6;--b3:#2c6e9e}
@media (prefers-color-scheme:dark){:root{--paper:#13171c;--card:#1a2027;--ink:#e3e8ee;
--soft:#9aa6b4;--line:#303945;--c0:#6cb2e2;--c1:#eba35e;--c2:#6fc596;--c3:#bf9ae0;--c4:#e88c97;
--c5:#b3cc68;--c6:#63c9d2;--c7:#c2ab93;--b1:#48525f;--b2:#4a83a9;--b3:#8cc8f0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 16px 48px;display:grid;gap:16px;
grid-template-columns:minmax(0,1fr)}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;font-weight:650}
h2{font-size:1.1rem;line-height:1.35;margin:0 0 12px;font-weight:650}
h3{font-size:1rem;margin:20px 0 8px;font-weight:650}
h1,h2,h3,p,li{overflow-wrap:anywhere}
p{margin:8px 0;color:var(--soft);font-size:.92rem}
section,.warnings{background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:16px;min-width:0}
.warnings{border-left:4px solid var(--c1)}.warnings ul{margin:0;padding-left:20px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;font-weight:650;padding:16px 0 4px}
th,td{text-align:left;vertical-align:top;padding:5px 12px 5px 0;border-top:1px solid var(--line);
font-weight:400}
thead th{border-top:0;color:var(--soft);font-size:.82rem;vertical-align:bottom}
td:last-child,th:last-child{padding-right:0}
.number{text-align:right;white-space:nowrap}
td:has(.bars){min-width:64px;width:32%;vertical-align:middle}
small{display:block;color:var(--soft);font-size:.82rem}
.name{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.92em;overflow-wrap:anywhere;
display:inline-block;min-width:7em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0 12px;font-size:.85rem;padding:8px 12px;
background:var(--paper);border-radius:6px}
.named th:first-child{white-space:nowrap}
.lines td,.lines th{white-space:nowrap}.lines .name{white-space:normal;min-width:11em}
.bars{display:block}.bars i{display:block;height:8px;border-radius:2px;margin:1px 0}
.stack{margin:0 0 6px;display:flex;align-items:center;gap:8px;font-size:.85rem}
.stack>span:last-child{display:flex;flex:1;height:18px;border-radius:4px;overflow:hidden;gap:1px}
.stack>span:first-child:not(:last-child){width:6em;overflow-wrap:anywhere}
.swatch{display:inline-block;width:.75em;height:.75em;border-radius:2px;margin-right:.4em}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 16px;margin:4px 0;padding:0;
font-size:.85rem}
figure{margin:0}svg{display:block;width:100%;height:auto;max-width:520px}
svg text{fill:var(--soft);font-size:12px}svg .label{fill:var(--ink)}
svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg path{fill:none;stroke-width:1}.grid{stroke:var(--line)}.axis,.tick{stroke:var(--soft)}
.band{fill-opacity:.22}
.stroke{fill:none;stroke-width:1.8;stroke-linejoin:round}
details{margin-top:8px;font-size:.92rem}summary{cursor:pointer;color:var(--soft)}
.differs{font-style:normal;font-size:.75rem;color:var(--c1);margin-left:.6em}
@media (min-width:860px){main{grid-template-columns:repeat(2,minmax(0,1fr));
grid-auto-flow:dense;padding-top:40px}
header,.wide,.warnings{grid-column:1/-1}}
@media (max-width:520px){table{font-size:.82rem}th,td{padding-right:8px}main{padding:16px 8px 32px}
section{padding:12px}svg text{font-size:14px}td:has(.bars){min-width:40px}}
@media print{section{break-inside:avoid}}
""" + "".join(
    [f".c{n}.fill,.c{n} .fill{{background:var(--c{n});fill:var(--c{n})}}" for n in range(COLOURS)]
    + [f".c{n}.stroke{{stroke:var(--c{n})}}" for n in range(COLOURS)]
    + [f".b{n}.fill{{background:var(--b{n})}}" for n in (1, 2, 3)]
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: the page may do nothing but be seen."""


def _is_narrow_table(section: str) -> bool:
    return section.startswith("<section>") and "<svg" not in section


def _page(runs: Sequence[_Facts]) -> str:
    """Make the page."""
    if len(runs) == 1:
        run = runs[0]
        extended = run.summary["extended"]
        mean = extended["mean_appended"]
        title = f"{run.name}: dlasm"
        headline = (
            f"{extended['ends']:,} of {_count(run.ends, 'contig ends')} grew, by {mean:.0f} bases "
            "on average"
            if extended["ends"]
            else f"None of {_count(run.ends, 'contig ends')} grew"
        )
        under = (
            f"{run.name} · dlasm {run.summary['dlasm']} · {run.summary['started'][:10]} · "
            f"k {run.k} · {_seconds(run.summary['seconds'])}"
        )
    else:
        title = f"{len(runs)} runs: dlasm"
        headline = f"{len(runs)} runs side by side"
        under = ", ".join(run.name for run in runs)
    warnings = "".join(
        f"<li>{_escape((f'{run.name}: ' if len(runs) > 1 else '') + _cut(warning, WARNING_LENGTH))}"
        "</li>"
        for run in runs
        for warning in run.summary["warnings"]
    )
    parts = [part for section in SECTIONS if (part := section(runs))]
    if sum(part.startswith("<section>") for part in parts) % 2:  # two stand side by side
        table = next((n for n, part in enumerate(parts) if _is_narrow_table(part)), 0)
        parts[table] = parts[table].replace("<section>", '<section class="wide">', 1)
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head>'
        '<meta charset="utf-8"/>'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{_escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        f"<header><h1>{_escape(headline)}</h1><p>{_escape(under)}</p></header>\n"
        + (f'<div class="warnings"><ul>{warnings}</ul></div>\n' if warnings else "")
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )
