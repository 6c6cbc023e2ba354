r"""Instructions and memory transactions of the kernels v1, v2 and fast, counted by Nsight Compute.

Runs itself under ``ncu``, which counts every launch of a kernel, and writes one row per input,
start k, bin, kernel and counter, summed over the launches. These are the numbers of the instruction
roofline (Ding and Williams, 2019) as in Awan et al., SC'21, figures 8 to 10.

    python workflows/benchmarks/gpu_counters.py --output gpu_counters.csv -k 77 \
        --input arcticsynth-x120 candidates_k77.dat.gz 120
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dumps import BINS, pack_bin, read_dump

from dlasm.engines import gpu
from dlasm.params import WalkParams

SUMMED = {
    "warp_instructions": "smsp__inst_executed.sum",
    "thread_instructions": "smsp__thread_inst_executed.sum",
    "nanoseconds": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "global_atomic_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_atom.sum",
    "local_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "local_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "l2_read_sectors": "lts__t_sectors_op_read.sum",
    "l2_write_sectors": "lts__t_sectors_op_write.sum",
    "l2_atomic_sectors": "lts__t_sectors_op_atom.sum",
    "l2_reduction_sectors": "lts__t_sectors_op_red.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
}
"""Counters of ncu that are added up over the launches, by the name they get here."""

LARGEST = {
    "registers": "launch__registers_per_thread",
    "achieved_occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Counters of which the largest value counts."""

COLUMNS = ("input", "k", "bin", "kernel", "launches", "counter", "value")


def run_target(options: argparse.Namespace) -> None:
    """Launch the kernels once; this is what ncu watches."""
    dump = read_dump(Path(options.path), options.repeat)
    packed = pack_bin(dump, options.bin)
    params = WalkParams(options.start_k, options.walk_limit)
    gpu.run_partition(packed, params, kernel=options.kernel, batch_bytes=1 << 40)


def count(options: argparse.Namespace, path: str, repeat: str, *what: str) -> dict[str, float]:
    """Run this script under ncu; returns the counters and the number of launches."""
    metrics = [metric for metric in (SUMMED | LARGEST).values() if metric not in options.unknown]
    command = [options.ncu, "--clock-control", "none", "--csv", "--page", "raw"]
    command += ["--print-units", "base", "--print-fp"]
    command += ["--kernel-name", "regex:^extend_", "--metrics", ",".join(metrics)]
    command += [sys.executable, __file__, "--target", path, repeat, *what]
    command += ["--walk-limit", str(options.walk_limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = f"{done.stdout}\n{done.stderr}"
    unknown = {metric for metric in metrics if re.search(rf"ERROR.*metric.*{metric}", said)}
    if unknown:  # other devices count other things
        print(f"not counted on this device: {', '.join(sorted(unknown))}", flush=True)
        options.unknown |= unknown
        return count(options, path, repeat, *what)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{said}")
    return read_counters(done.stdout)


def read_counters(output: str) -> dict[str, float]:
    """Read what ncu printed as CSV: a line of names, a line of units, a line per launch."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    table = list(csv.DictReader(io.StringIO("\n".join(lines))))
    if not table:
        sys.exit(f"ncu counted nothing:\n{output}")
    launches = table[1:]  # the first row holds the units
    found: dict[str, float] = {"launches": len(launches)}
    for name, metric in (SUMMED | LARGEST).items():
        if metric not in table[0]:
            continue
        values = [float(row[metric].replace(",", "")) for row in launches]
        found[name] = sum(values) if name in SUMMED else max(values)
    return found


def rows(options: argparse.Namespace) -> Iterator[list[object]]:
    """Count everything asked for."""
    for name, path, repeat in options.input:
        for which in options.bins:
            for k in options.k:
                for kernel in options.kernels:
                    found = count(options, path, repeat, str(k), which, kernel)
                    launches = int(found.pop("launches"))
                    for counter, value in found.items():
                        yield [name, k, which, kernel, launches, counter, f"{value:.12g}"]


def main() -> None:
    """Count and write a table."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--input",
        nargs=3,
        action="append",
        metavar=("NAME", "DUMP", "REPEAT"),
        help="a candidate dump and how often its contigs are repeated; may be given again",
    )
    parser.add_argument("--output", type=Path, default=Path("gpu_counters.csv"))
    parser.add_argument("-k", type=int, nargs="+", default=[77])
    parser.add_argument("--kernels", nargs="+", choices=gpu.KERNELS, default=list(gpu.KERNELS))
    parser.add_argument("--bins", nargs="+", choices=BINS, default=["2", "3"])
    parser.add_argument("--walk-limit", type=int, default=613)
    parser.add_argument("--ncu", default=shutil.which("ncu") or "ncu")
    parser.add_argument("--target", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.target:
        options.path, repeat, k, options.bin, options.kernel = options.target
        options.repeat, options.start_k = int(repeat), int(k)
        run_target(options)
        return
    options.unknown = set()
    if not options.input:
        parser.error("--input is missing")
    with options.output.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for row in rows(options):
            table.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
