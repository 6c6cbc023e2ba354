"""A page of dlasm's own on the dashboard of a Dask scheduler, under ``/dlasm``.

It is a preload of the scheduler, and what it adds is a Bokeh application beside Dask's own, as
Dask's developers advise (dask/distributed#2790). :func:`dlasm.local_cluster` brings it; elsewhere
``dask scheduler --preload dlasm.dashboard`` does. A run says how far it is by events
(``Client.log_event``) of :data:`TOPIC`, which a scheduler without this page keeps, too, and which
cost it nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["PAGE", "TOPIC", "dask_setup", "progress_of"]

TOPIC = "dlasm"
"""Of the events that a run logs while it extends contigs."""

PAGE = "/dlasm"

UPDATE_MS = 500

RATE_SECONDS = 5.0
"""Time over which k-mers per second are averaged."""

COLOURS = {"gpu": "#5a9e1c", "cpu": "#3b73b9"}


def dask_setup(scheduler: Any) -> None:
    """Add the page to a scheduler that serves a dashboard; Dask calls this."""
    try:
        from distributed.dashboard.core import BokehApplication
    except ImportError:  # no Bokeh, or one that Dask does not take: there is no dashboard either
        return
    from tornado.ioloop import IOLoop

    application = BokehApplication({PAGE: _page}, scheduler)
    application.initialize(IOLoop.current())
    scheduler.http_application.add_application(application)
    application.start()


def progress_of(events: Iterable[tuple[float, Mapping[str, Any]]]) -> dict[str, Any]:
    """Sum up what the latest run among the events did.

    Parameters
    ----------
    events : iterable of (float, dict)
        Seconds since the epoch, and what was logged: ``{"begin": run, "waiting": ...}`` or
        ``{"pool": ..., "contigs": ..., "kmers": ..., "waiting": ...}``.

    Returns
    -------
    dict
        ``run``; ``begin`` (seconds since the epoch); ``waiting`` (partitions that wait, by bin);
        ``pools``: of each, lists ``seconds`` (since the begin), ``contigs`` (done until then) and
        ``kmers_per_second`` (k-mers of the candidate reads, over the last seconds).
    """
    latest: dict[str, Any] = {"run": "", "begin": 0.0, "waiting": {}, "pools": {}}
    done: dict[str, list[tuple[float, int, int]]] = {}
    for time, about in events:
        if "begin" in about:
            latest = {"run": about["begin"], "begin": time, "pools": {}}
            done = {}
        elif "pool" in about:
            done.setdefault(about["pool"], []).append((time, about["contigs"], about["kmers"]))
        latest["waiting"] = about.get("waiting", {})
    for pool, tasks in done.items():
        seconds, contigs, rates = [0.0], [0], [0.0]
        first = kmers = 0
        for time, more, new in tasks:
            seconds.append(time - latest["begin"])
            contigs.append(contigs[-1] + more)
            kmers += new
            while tasks[first][0] < time - RATE_SECONDS:
                kmers -= tasks[first][2]
                first += 1
            rates.append(kmers / max(min(RATE_SECONDS, seconds[-1]), 1e-3))
        latest["pools"][pool] = {
            "seconds": seconds,
            "contigs": contigs,
            "kmers_per_second": rates,
        }
    return latest


def _page(scheduler: Any, _extra: Mapping[str, Any], doc: Any) -> None:
    """Fill a page; it is asked for anew by every browser."""
    from bokeh.layouts import column
    from bokeh.models import ColumnDataSource, FactorRange
    from bokeh.models.widgets import Div
    from bokeh.plotting import figure

    title = Div(text="no run yet")
    options: dict[str, Any] = {
        "height": 220,
        "sizing_mode": "stretch_width",
        "toolbar_location": None,
    }
    contigs: Any = figure(title="contigs done", x_axis_label="seconds", **options)
    kmers: Any = figure(title="k-mers per second", x_axis_label="seconds", **options)
    queue: Any = figure(
        title="partitions that wait", y_range=FactorRange(factors=["bin 2", "bin 3"]), **options
    )
    sources: dict[str, Any] = {}
    for pool, colour in COLOURS.items():
        empty: dict[str, Any] = {"seconds": [], "contigs": [], "kmers_per_second": []}
        sources[pool] = ColumnDataSource(empty, name=pool)
        style: dict[str, Any] = {
            "source": sources[pool],
            "color": colour,
            "legend_label": pool.upper(),
        }
        contigs.step("seconds", "contigs", mode="after", line_width=2, **style)
        kmers.line("seconds", "kmers_per_second", line_width=2, **style)
    bars = ColumnDataSource({"bin": ["bin 2", "bin 3"], "partitions": [0, 0]})
    queue.hbar(y="bin", right="partitions", height=0.6, source=bars)
    for each in (contigs, kmers):
        each.legend.location = "top_left"
    for each in (contigs, kmers, queue):
        each.x_range.start = 0

    def update() -> None:
        state = progress_of(scheduler.get_events(TOPIC))
        if not state["run"]:
            return
        done = [
            f"{pool.upper()}: {about['contigs'][-1]:,} contigs"
            for pool, about in sorted(state["pools"].items())
        ]
        title.text = ", ".join(done) or "nothing done yet"
        for pool, source in sources.items():
            source.data = state["pools"].get(pool, {name: [] for name in source.column_names})
        waiting = state["waiting"]
        bars.data = {
            "bin": ["bin 2", "bin 3"],
            "partitions": [waiting.get("2", 0), waiting.get("3", 0)],
        }

    update()
    doc.title = "dlasm"
    doc.add_root(column(title, contigs, kmers, queue, sizing_mode="stretch_width"))
    doc.add_periodic_callback(update, UPDATE_MS)
