"""report.html: complete, harmless whatever names are in it, and small whatever the run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import dlasm
import dlasm.html as page
from dlasm.cli import main
from dlasm.dispatch import TIMELINE_STEPS, busy_over_time
from dlasm.params import OUTCOMES
from dlasm.recruit import INSERT_BARS
from dlasm.report import figures
from dlasm.state import RUN_FORMAT
from dlasm.store import FORMAT, open_results

XHTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"

NASTY = [
    "<script>alert(1)</script>",
    '"><img/src=x/onerror=alert(1)>',
    "'quoted' &amp; <b>",
    "=HYPERLINK(1)",
    "two\nlines\x00\x07",
    "\u202egnp.exe",
    "long" * 5000,
]


def offsets_of(sizes) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def make_run(
    folder: Path, names, gains, *, candidates=None, k=33, support=None, warnings=(), depth=None
) -> Path:
    """Make the files of a finished run: contigs of 1,000 bases whose ends grew as said."""
    n = len(names)
    gains = np.asarray(gains, dtype=np.int64)
    candidates = np.where(gains > 0, 12, 0) if candidates is None else np.asarray(candidates)
    text = [name.encode("utf-8", "surrogateescape") for name in names]
    busier = candidates.reshape(-1, 2).max(axis=1, initial=0)
    arrays = {
        "contigs": {
            "offsets": 1000 * np.arange(n + 1, dtype=np.int64),
            "name_values": np.frombuffer(b"".join(text), dtype=np.uint8),
            "name_offsets": offsets_of([len(name) for name in text]),
            "depth": np.linspace(1, 90, n) if depth is None else depth,
        },
        "results": {
            "walk_offsets": offsets_of(gains),
            "k": np.where(gains > 0, k, 0).astype(np.int16),
            "outcome": np.where(
                gains > 0, OUTCOMES.index("dead_end"), OUTCOMES.index("no_reads")
            ).astype(np.uint8),
            "candidates": candidates.astype(np.int64),
            "cut": np.zeros(len(gains), dtype=np.int32),
            "bin": np.where(busier >= 10, 3, np.where(busier > 0, 2, 1)).astype(np.uint8),
        },
    }
    support = np.ones(gains.sum()) if support is None else support
    arrays["results"]["support"] = np.asarray(support, dtype=np.uint8)
    folder.mkdir(parents=True)
    root = zarr.create_group(
        folder / "results.zarr", zarr_format=3, attributes={"dlasm_format": FORMAT}
    )
    for group, members in arrays.items():
        made = root.create_group(group)
        for name, values in members.items():
            made.create_array(name, data=values)
    stage = {"seconds": 0.5, "cpu_seconds": 0.4, "peak_rss_bytes": 100 << 20}
    names_of_stages = ("contigs", "candidates", "plan", "extend", "results", "report")
    stages = {name: dict(stage) for name in names_of_stages}
    summary = {
        "dlasm": "0.1.0",
        "command": ["dlasm", "extend", "contigs of <b>me</b>.fa"],
        "started": "2024-01-01T00:00:00+0000",
        "finished": "2024-01-01T00:00:03+0000",
        "seconds": 3.0,
        "parameters": {"k": k, "walk_limit": 450, "insert": None, "bin_limit": 10, "reach": [500]},
        "depth_source": "alignments",
        **figures(open_results(folder / "results.zarr")),
        "libraries": [],
        "warnings": list(warnings),
        "partitions": 1,
        "pools": {
            "cpu": {"contigs": n, "partitions": 1, "seconds": 0.4, "peak_rss_bytes": 1 << 20}
        },
        "stages": stages,
        "inputs": [{"role": "contigs", "path": "contigs of <b>me</b>.fa", "size": 12}],
        "versions": {"python": "3.11"},
    }
    state = {
        "dlasm_run_format": RUN_FORMAT,
        "version": "0.1.0",
        "state": "finished",
        "command": summary["command"],
        "started": summary["started"],
        "options": {},
        "inputs": summary["inputs"],
        "stages": stages,
        "work": "work.0",
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "run.json").write_text(json.dumps(state))
    return folder


def change_state(run: Path, stage: str, **more) -> None:
    state = json.loads((run / "run.json").read_text())
    state["stages"][stage].update(more)
    (run / "run.json").write_text(json.dumps(state))


def written(tmp_path: Path, *runs: Path) -> str:
    """Write a page and return it; it is well-formed, self-contained and free of scripts."""
    out = tmp_path / "page.html"
    page.write_report(out, runs)
    text = out.read_text()
    check(text)
    return text


def check(text: str) -> None:
    root = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    elements = list(root.iter())
    tags = {element.tag.removeprefix(XHTML).removeprefix(SVG) for element in elements}
    assert not tags & {"script", "img", "iframe", "link", "object", "embed", "a", "b", "base"}
    for element in elements:
        assert not [name for name in element.attrib if name.startswith("on")]
        assert not {"src", "href", "srcset", "action"} & set(element.attrib)
    style = root.find(f".//{XHTML}style").text
    assert "url(" not in style
    assert "@import" not in style
    urls = set(re.findall(r"\w+://[^\"'\s<]*", text))
    assert urls <= {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}
    for svg in root.iter(f"{SVG}svg"):
        assert svg.find(f"{SVG}title").text
        assert svg.find(f"{SVG}desc").text
        numbers = re.findall(r"nan|inf", ET.tostring(svg, encoding="unicode"))
        assert not numbers
    HTMLParser().feed(text)


def headings(text: str) -> list[str]:
    root = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    found = [e for e in root.iter() if e.tag in (f"{XHTML}h1", f"{XHTML}h2", f"{XHTML}h3")]
    return ["".join(e.itertext()).replace("\u00a0", " ") for e in found]


def table_with(text: str, head: str) -> list[list[str]]:
    """Return the rows of the table that has such a head."""
    root = ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
    for table in root.iter(f"{XHTML}table"):
        heads = ["".join(cell.itertext()) for cell in table.find(f".//{XHTML}thead/{XHTML}tr")]
        if head in heads:
            rows = table.findall(f".//{XHTML}tbody/{XHTML}tr")
            return [["".join(cell.itertext()) for cell in row] for row in rows]
    raise AssertionError(f"no table has a column {head}")


# -- runs as they are ------------------------------------------------------------------------------


def test_a_run_leaves_its_report(whole, tmp_path):
    text = (whole.path / "report.html").read_text()
    check(text)
    found = " | ".join(headings(text))
    summary = whole.summary()
    grown = summary["extended"]["ends"]
    assert found.startswith(f"{grown:,} of {2 * summary['contigs']['count']:,} contig ends grew")
    for words in ("candidate reads or more", "The insert size is", "fold deep", "The run took"):
        assert words in found
    assert "The 50 longest extensions" in found or f"The {grown} longest" in found
    again = whole.report(tmp_path / "again.html")
    assert again.read_text() == text


def test_numbers_are_those_of_the_run(whole):
    text = (whole.path / "report.html").read_text()
    frame = whole.extensions()
    grown = frame[frame["bases"] > 0]
    lengths = table_with(text, "appended bases")
    assert sum(int(row[1].replace(",", "")) for row in lengths) == len(grown)
    for row in lengths:
        low, _, high = row[0].replace(",", "").partition("\u2013")
        within = grown["bases"].between(int(low), int(high or low))
        assert int(row[1].replace(",", "")) == within.sum()
    by_reads = table_with(text, "mean gain")
    for reads, ends, grew, mean, _ in by_reads:
        low, _, high = reads.replace(",", "").partition("\u2013")
        these = frame[frame["candidates"].between(int(low), int(high or low))]
        assert int(ends.replace(",", "")) == len(these)
        assert grew == f"{100 * (these['bases'] > 0).mean():.1f}\u00a0%"
        assert float(mean) == pytest.approx(these["bases"].mean(), abs=0.051)
    outcomes = table_with(text, "outcome")
    assert sum(int(row[1].replace(",", "")) for row in outcomes) == len(frame)
    longest = table_with(text, "appended")
    expected = frame.sort_values("bases", ascending=False, kind="stable").head(50)
    expected = expected[expected["bases"] > 0]
    assert [(row[0], row[1], int(row[2])) for row in longest] == list(
        zip(expected["contig"], expected["side"], expected["bases"], strict=True)
    )


def test_what_figures_need_is_kept_and_bounded(whole):
    stages = json.loads((whole.path / "run.json").read_text())["stages"]
    [inserts] = stages["candidates"]["inserts"]
    assert 1 <= len(inserts["counts"]) <= INSERT_BARS
    pairs = whole.summary()["libraries"][0]["insert"]["pairs"]
    assert sum(inserts["counts"]) == pairs - 2 * (pairs // 100)
    pools = stages["extend"]["timeline"]["pools"]
    assert set(pools) == {"cpu"}
    assert len(pools["cpu"]) == TIMELINE_STEPS


def test_a_report_that_fails_does_not_fail_the_run(community, tmp_path, monkeypatch):
    def fail(runs):
        raise ValueError("no ink")

    monkeypatch.setattr(page, "_page", fail)
    with pytest.warns(UserWarning, match=r"report\.html: could not be written \(no ink\)"):
        run = dlasm.extend(
            community.contigs_path, reads=community.reads_paths, output=tmp_path / "o"
        )
    assert not (run.path / "report.html").exists()
    monkeypatch.undo()
    resumed = dlasm.extend(
        community.contigs_path, reads=community.reads_paths, output=tmp_path / "o", resume=True
    )
    check((resumed.path / "report.html").read_text())


def test_no_contigs(tmp_path):
    text = written(tmp_path, make_run(tmp_path / "r", [], []))
    assert headings(text)[0] == "None of 0 contig ends grew"
    (tmp_path / "none.fa").write_text("")
    (tmp_path / "r.fq").write_text("@r\nACGT\n+\nIIII\n")
    run = dlasm.extend(tmp_path / "none.fa", single=tmp_path / "r.fq", output=tmp_path / "o")
    check((run.path / "report.html").read_text())


def test_all_contigs_in_bin_1(tmp_path):
    run = make_run(tmp_path / "r", ["a", "b"], [0, 0, 0, 0], depth=np.array([np.nan, 0.0]))
    text = written(tmp_path, run)
    assert "None of 4 contig ends grew" in headings(text)
    assert "No end has candidate reads" in headings(text)
    assert table_with(text, "candidate reads of the busier end")[0][2:] == ["2", "100.0\u00a0%"]


def test_candidates_that_no_end_gained_from(tmp_path):
    run = make_run(tmp_path / "r", ["a"], [0, 0], candidates=[3, 70])
    text = written(tmp_path, run)
    assert [row[0] for row in table_with(text, "mean gain")] == ["2\u20133", "64\u2013127"]


# -- names -----------------------------------------------------------------------------------------


def test_names_do_nothing(tmp_path):
    gains = np.arange(2 * len(NASTY), 0, -1)
    run = make_run(tmp_path / "<i>run", NASTY, gains, warnings=NASTY)
    (run / "joins.tsv").write_text("left\tverdict\treason\nx\t<script>\t<b>&\n")
    text = written(tmp_path, run)
    shown = [row[0] for row in table_with(text, "appended")][::2]
    assert shown[:4] == NASTY[:4]
    assert shown[4] == r"two\x0alines\x00\x07"
    assert shown[5] == r"\x202egnp.exe"
    assert shown[6].startswith("longlong")
    assert len(shown[6]) <= page.NAME_LENGTH + 1
    assert ["<script>", "<b>&", "1", ""] in table_with(text, "verdict")
    assert len(text) < 200_000


def test_names_that_are_not_text(tmp_path):
    run = make_run(tmp_path / "r", [b"caf\xe9".decode("utf-8", "surrogateescape")], [3, 0])
    assert table_with(written(tmp_path, run), "appended")[0][0] == r"caf\xe9"


# -- several runs ----------------------------------------------------------------------------------


def test_a_sweep_over_k(tmp_path):
    runs = [
        make_run(tmp_path / f"r{k}", ["a", "b"], [gain, 0, 3, 0], k=k)
        for k, gain in ((55, 20), (21, 90), (33, 10))
    ]
    text = written(tmp_path, *runs)
    found = headings(text)
    assert found[0] == "3 runs side by side"
    assert "k 21 gained most, 93 bases" in found
    assert "Contigs per bin, over k" in found
    gained = {row[0]: row[1:4] for row in table_with(text, "k\u00a033")}
    assert gained["Bases appended"] == ["93", "13", "23"]
    assert "kdiffers" in text.replace('<em class="differs">', "")


def test_two_runs_of_the_same_k(tmp_path):
    first = make_run(tmp_path / "one" / "run", ["a"], [5, 0], support=[1, 2, 3, 4, 5])
    second = make_run(tmp_path / "two" / "run", ["a"], [0, 0])
    text = written(tmp_path, first, second)
    assert str(first) in text
    assert str(second) in text
    assert f"{first} gained most, 5 bases" in headings(text)
    written(tmp_path, second, second)


# -- figures that not every run has ----------------------------------------------------------------


def test_support_is_counted_from_the_contig_outward(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "SUPPORT_BLOCK", 4)
    # the left walk of three bases is in output order, so its last base is beside the contig
    run = make_run(tmp_path / "r", ["a", "b"], [3, 0, 0, 2], support=[1, 5, 9, 7, 3])
    text = written(tmp_path, run)
    rows = [row[:3] for row in table_with(text, "distance")]
    assert rows == [["1", "2", "8.0"], ["2", "2", "4.0"], ["3", "1", "1.0"]]
    assert any("5.0 fragments on average, 20.0 % by one at most" in each for each in headings(text))


def test_the_timeline_shows_both_pools(tmp_path):
    run = make_run(tmp_path / "r", ["a"], [5, 0])
    busy = busy_over_time([("gpu", 100.0, 4.0), ("cpu", 100.0, 1.0), ("cpu", 102.0, 2.0)])
    change_state(run, "extend", timeline=busy)
    found = headings(written(tmp_path, run))
    assert "Extension took 4.00 s; both pools worked in 75 % of that time" in found


def test_busy_over_time_loses_nothing():
    rng = np.random.default_rng(3)
    tasks = [("cpu", s, n) for s, n in rng.random((50, 2)) * [10, 3]]
    busy = busy_over_time(tasks)
    assert sum(busy["pools"]["cpu"]) * busy["step_seconds"] == pytest.approx(
        sum(n for _, _, n in tasks), rel=1e-3
    )
    assert busy_over_time([]) == {}
    assert busy_over_time([("cpu", 5.0, 0.0)])["pools"]["cpu"] == [0.0] * TIMELINE_STEPS


def test_joins_are_summed_up(tmp_path):
    run = make_run(tmp_path / "r", ["a"], [5, 0])
    rows = ["a\tb\tjoined\t"] * 3 + ["a\tc\trefused\tfew_pairs"]
    (run / "joins.tsv").write_text("\n".join(["left\tright\tverdict\treason", *rows]) + "\n")
    text = written(tmp_path, run)
    assert "4 overlaps of two ends: 3 joined, 1 refused" in headings(text)
    assert [row[:3] for row in table_with(text, "verdict")] == [
        ["joined", "", "3"],
        ["refused", "few pairs", "1"],
    ]
    assert ["Joins", "\u2013", "3", ""] in table_with(text, "before")
    (run / "joins.tsv").write_text("something\telse\n")
    assert "overlap" not in " ".join(headings(written(tmp_path, run)))


# -- the command -----------------------------------------------------------------------------------


def test_report_command(whole, tmp_path, monkeypatch):
    first = make_run(tmp_path / "k21", ["a"], [5, 0], k=21)
    second = make_run(tmp_path / "k33", ["a"], [6, 0])
    monkeypatch.chdir(tmp_path)

    def report(*arguments):
        return CliRunner().invoke(main, ["report", *map(str, arguments)])

    assert report(first).stdout == f"written: {first / 'report.html'}\n"
    check((first / "report.html").read_text())
    assert report(first, second).stdout == "written: comparison.html\n"
    assert "2 runs side by side" in Path("comparison.html").read_text()
    assert report(first, "-o", "other.html").exit_code == 0
    assert Path("other.html").read_text() == (first / "report.html").read_text()
    elsewhere = report(first, "-o", "no/such/place.html")
    assert elsewhere.exit_code == 1
    assert "no/such/place.html: cannot be written" in elsewhere.stderr
    missing = report(first, tmp_path / "nothing")
    assert missing.exit_code == 1
    assert "nothing" in missing.stderr


@pytest.mark.slow
def test_a_large_run_gives_a_small_page(tmp_path):
    n = 200_000
    rng = np.random.default_rng(1)
    gains = rng.integers(0, 440, 2 * n) * rng.integers(0, 2, 2 * n)
    run = make_run(
        tmp_path / "r",
        [f"NODE_{i}_<b>" for i in range(n)],
        gains,
        candidates=rng.integers(0, 3000, 2 * n),
        support=rng.integers(1, 255, gains.sum()),
    )
    text = written(tmp_path, run)
    assert len(text.encode()) < 5_000_000
    small = make_run(tmp_path / "s", ["a"], [439, 100], support=np.ones(539))
    assert len(text) < 3 * len(written(tmp_path, small))
    assert f"{np.count_nonzero(gains):,} of 400,000 contig ends grew" in headings(text)[0]


# -- in a browser ----------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def browse(address: str, profile: Path) -> tuple[str, list[str]]:
    """Open a page in headless Chromium; returns its elements and what its console says."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_in_a_browser(tmp_path):
    gains = np.arange(2 * len(NASTY), 0, -1)
    run = make_run(tmp_path / "r", NASTY, gains, support=np.full(gains.sum(), 4), warnings=NASTY)
    page.write_report(tmp_path / "page.html", [run])
    dom, console = browse((tmp_path / "page.html").as_uri(), tmp_path / "profile")
    assert console == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in dom
    assert "<script" not in dom
    # a page around it measures it, and shows that messages of the console are seen
    (tmp_path / "around.html").write_text(
        """<iframe src="page.html" style="border:0;height:800px"></iframe><script>
        const frame = document.querySelector("iframe"), widths = [];
        frame.onload = () => {
          for (const width of [390, 1280]) {
            frame.style.width = width + "px";
            const { scrollWidth, clientWidth } = frame.contentDocument.documentElement;
            widths.push(scrollWidth - clientWidth);
          }
          document.title = widths.join(" ");
          console.error("measured");
        };
        </script>"""
    )
    dom, console = browse((tmp_path / "around.html").as_uri(), tmp_path / "profile")
    assert "<title>0 0</title>" in dom
    assert len(console) == 1
