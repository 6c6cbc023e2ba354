"""What each rule of joining keeps, where the genomes are known.

Takes finished runs with joins (`dlasm extend --join full ...`) and the genomes of each, labels the
candidates, and prints how many of each label are left by no rule, by one rule alone, and by each
mode. The evidence is in the run, so nothing is run again.

    python workflows/benchmarks/joins.py run_1 genomes_1.fa run_2 genomes_2.fa
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

import numpy as np

import dlasm
from dlasm.arrays import GROUPS
from dlasm.evaluate import LABELS, Reference, label_joins
from dlasm.io.fasta import Contigs
from dlasm.joins import UNKNOWN, decide
from dlasm.params import JOIN_MODES, REASONS


def candidates(run: dlasm.Run, genomes: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the joins of a run and the labels of its candidates, "" for what is none."""
    joins = run.results.joins()
    if joins is None:
        raise SystemExit(f"{run.path}: holds no joins; run dlasm extend with --join")
    arrays = {name: np.asarray(run.results.array("contigs", name)[:]) for name in GROUPS["contigs"]}
    walks = np.diff(run.results.walk_offsets)
    rows = np.flatnonzero(joins["links"] != UNKNOWN)
    end, partner = joins["end_a"][rows], joins["end_b"][rows]
    table = [end // 2, end % 2, partner // 2, partner % 2, joins["overlap"][rows]]
    table += [walks[end], walks[partner]]
    labels = np.full(len(joins["links"]), "", dtype="U8")
    labels[rows] = label_joins(Contigs(**arrays), np.stack(table, axis=1), Reference(genomes))
    return joins, labels


def kept(joins: Mapping[str, np.ndarray], lengths: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Give the name of each set of rules and which overlaps it keeps."""
    is_candidate = joins["links"] != UNKNOWN
    yield "none", is_candidate
    for mode in JOIN_MODES:
        for i, name in enumerate(REASONS):
            reason = np.where(is_candidate, 0, joins["reason"])
            _, reason = decide({**joins, "reason": reason}, lengths, mode)
            if (is_candidate & (reason == i)).any() and name:
                yield f"{mode}: {name} refuses", is_candidate & (reason == i)
        yield mode, is_candidate & (reason == 0)
    for factor in (0.5, 0.8, 1.0, 1.2, 1.5, 2.0):
        keep = is_candidate.copy()
        for side in "ab":
            keep &= joins["links"] >= factor * joins[f"rival_links_{side}"]
        yield f"links >= {factor} x a rival's", keep
    for factor in (1, 2, 3, 5, 10):
        keep = is_candidate.copy()
        for side in "ab":
            keep &= joins[f"agree_{side}"] >= factor * joins[f"against_{side}"]
        yield f"agree >= {factor} x against", keep


def main() -> None:
    """Print a table per run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="RUN GENOMES")
    files = parser.parse_args().files
    if len(files) % 2:
        parser.error("give the genomes of each run behind it")
    for folder, genomes in zip(files[0::2], files[1::2], strict=True):
        run = dlasm.open_run(folder)
        joins, labels = candidates(run, genomes)
        total = max(1, np.count_nonzero(labels == "true"))
        print(f"{folder}\n{'rules':32}{'true %':>8}" + "".join(f"{name:>10}" for name in LABELS))
        for name, keep in kept(joins, run.results.extended_lengths):
            counts = [int(np.count_nonzero(labels[keep] == label)) for label in LABELS]
            share = 100 * counts[LABELS.index("true")] / total
            print(f"{name:32}{share:8.1f}" + "".join(f"{count:10}" for count in counts))


if __name__ == "__main__":
    main()
