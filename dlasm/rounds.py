"""Rounds: what a run gave is extended and joined again, until nothing is gained.

Each round is a run in ``rounds/round1`` and so on below the folder of the whole run: the
same options and reads, and as contigs what the round before it wrote. Results of the whole run are
those of the last round that gained something, under their usual names. They are hard links, so they
take no space, and outlast the folders of the rounds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlasm.atomic import link_whole, sync_folder
from dlasm.state import OWN_FILES

__all__ = [
    "combined_summary",
    "gained",
    "heading_of_rounds",
    "next_contigs",
    "round_folder",
    "round_row",
    "take_over",
]

OF_THE_WHOLE = frozenset({"run.json", "summary.json", "evaluation.json", "report.html", "rounds"})
"""What the whole run has for itself."""


def round_folder(path: str | os.PathLike[str], number: int) -> Path:
    """Where round ``number``, from 1, lies below the folder of the whole run."""
    return Path(path) / "rounds" / f"round{number}"


def heading_of_rounds(summary: Mapping[str, Any]) -> str:
    """Say which round's results a run of several rounds has, and whether another was in vain."""
    rows, last = summary["rounds"], summary["round"]
    vain = "" if len(rows) == last + 1 else f"; round {last + 1} gained nothing"
    return f"results are those of round {last}, and before is what went into it{vain}"


def next_contigs(folder: Path) -> Path:
    """Return what a round leaves for the next one: its contigs after joining, or else extended."""
    joined = folder / "joined.fasta"
    return joined if joined.is_file() else folder / "extended.fasta"


def gained(row: Mapping[str, Any]) -> bool:
    """Whether a round appended a base or made a join; ``row`` from :func:`round_row`."""
    return row["appended_bases"] > 0 or row["joins"] > 0


def take_over(last: Path, path: Path) -> None:
    """Give the results of a round their names in the folder of the whole run; may be repeated."""
    for name in sorted(OWN_FILES - OF_THE_WHOLE):
        if (last / name).exists():
            link_whole(last / name, path / name)
    sync_folder(path)


def round_row(number: int, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a round from its summary; 0 is for the contigs before the first one."""
    if not number:
        after = {**summary["contigs"], "contigs": summary["contigs"]["count"]}
        grown = {"ends": 0, "appended_bases": 0}
        joins = 0
    else:
        grown = summary["extended"]
        after = {**grown, "contigs": summary["contigs"]["count"]}
        joins = 0
        if of_joins := summary.get("joins"):
            after = of_joins
            joins = of_joins["overlaps"] - sum(of_joins["refused"].values())
    return {
        "round": number,
        "extended_ends": grown["ends"],
        "appended_bases": grown["appended_bases"],
        "joins": joins,
        **{name: after[name] for name in ("contigs", "bases", "n50", "longest")},
    }


def combined_summary(
    summaries: Sequence[Mapping[str, Any]], last: int, whole: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the summary of a run of several rounds.

    Parameters
    ----------
    summaries : sequence of mapping
        Those of all rounds.
    last : int
        The round whose results are the run's.
    whole : mapping
        What is said of the whole run in place of that round: ``command``, ``started`` and so on.

    Returns
    -------
    dict
        The figures of round ``last``, but what went in as of the first round, warnings of all
        rounds, and of each stage the times of all rounds together; ``round`` is ``last``, and
        ``rounds`` has a row for the contigs as they came (``round`` 0) and after each round:
        ``extended_ends``, ``appended_bases`` and ``joins`` (circles are some) of the round, then
        ``contigs``, ``bases``, ``n50`` and ``longest`` after it.
    """
    stages: dict[str, dict[str, Any]] = {}
    for summary in summaries:
        for name, measured in summary["stages"].items():
            stage = stages.setdefault(name, {})
            for what, value in measured.items():
                before = stage.get(what, 0)
                both = max(before, value) if what.endswith("bytes") else round(before + value, 3)
                stage[what] = both
    first, results = summaries[0], summaries[last - 1]
    rows = [round_row(0, first)]
    rows += [round_row(number, summary) for number, summary in enumerate(summaries, start=1)]
    return {
        **results,
        **whole,
        "parameters": {**results["parameters"], **whole["parameters"]},
        "round": last,
        "rounds": rows,
        "depth_source": first["depth_source"],
        "input_contigs": first["input_contigs"],
        "warnings": list(dict.fromkeys(each for one in summaries for each in one["warnings"])),
        "stages": stages,
    }
