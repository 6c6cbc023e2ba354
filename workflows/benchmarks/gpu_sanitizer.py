"""GPU tests under NVIDIA's compute-sanitizer, one process per test and tool, several at a time.

    python gpu_sanitizer.py ../../tests/test_gpu.py --seconds 500 --csv sanitizer.csv

A row per tool and test says how many errors or hazards the tool found; a test that the time did not
allow says so, and nothing is said to be clean that was not run to its end.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOLS = ("memcheck", "racecheck")
SELECTION = (
    "test_arcticsynth or test_branches or test_heavy_tail or test_published or test_structured "
    "or test_a_run_that or test_many_reads"
)


def collect(file: Path, selection: str) -> list[str]:
    """Return the names of the tests in ``file`` that ``selection`` names."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-k", selection]
    command += ["--collect-only", "-q", "-p", "no:cacheprovider", str(file)]
    listed = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=file.parent
    ).stdout
    # pytest names tests from its root folder on; the file itself is found from anywhere
    names = (line.strip().partition("::")[2] for line in listed.splitlines())
    return [f"{file}::{name}" for name in names if name]


def run(tool: str, test: str, until: float, logs: Path) -> dict[str, object]:
    """Run one test under one tool."""
    row: dict[str, object] = {"tool": tool, "test": test.partition("::")[2]}
    left = until - time.monotonic()
    if left < 1:
        return row | {"verdict": "not run", "errors": "", "seconds": ""}
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    command += [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", test]
    begin = time.monotonic()
    log = logs / f"{tool}-{re.sub('[^A-Za-z0-9-]+', '_', str(row['test']))}.log"
    with open(log, "w") as file:
        try:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=left)
            code = done.returncode
        except subprocess.TimeoutExpired:
            return row | {"verdict": "not finished", "errors": "", "seconds": f"{left:.0f}"}
    said = log.read_text(errors="replace")
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", said)
    passed = re.search(r"\b1 passed", said) is not None
    clean = code == 0 and passed and summary == ["0"]
    if clean:
        log.unlink()
    return row | {
        "verdict": "clean" if clean else "FAILED" if summary else "no summary",
        "errors": "+".join(summary),
        "seconds": f"{time.monotonic() - begin:.0f}",
    }


def main() -> None:
    """Run the tests and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", type=Path, help="file of tests that carry the marker gpu")
    parser.add_argument("--select", default=SELECTION, help="as pytest's -k takes it")
    parser.add_argument("--tools", nargs="+", default=TOOLS)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--csv", type=Path, required=True)
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    logs = args.csv.with_suffix("")
    logs.mkdir(parents=True, exist_ok=True)
    work = [
        (tool, test) for test in collect(args.tests.resolve(), args.select) for tool in args.tools
    ]
    with open(args.csv, "w", newline="") as file, ThreadPoolExecutor(args.jobs) as pool:
        table = csv.DictWriter(file, ["tool", "test", "verdict", "errors", "seconds"])
        table.writeheader()
        for row in pool.map(lambda each: run(*each, until, logs), work):
            table.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
