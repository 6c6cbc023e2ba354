"""The report and the dashboard in Chromium, where it, its driver and selenium are installed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from faults import OPTIONS, Harm

import dlasm
from dlasm.dashboard import PAGE

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)

pytestmark = pytest.mark.slow
DRAWN = "return window.Bokeh && Bokeh.documents.some(each => each.roots().length > 0)"
KEEP = os.environ.get("DLASM_SCREENSHOTS")


@pytest.fixture
def browser(tmp_path):
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        f"user-data-dir={tmp_path / 'chromium'}",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def resize(browser, width: int) -> None:
    """Give the page this width, which may be less than a window can have."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def errors(browser) -> list[str]:
    """What the console of the page has said of errors, but that a server has no icon."""
    return [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
    ]


def screenshot(browser, name: str) -> None:
    if KEEP:
        browser.save_screenshot(str(Path(KEEP) / f"{name}.png"))


def test_the_report_at_the_width_of_a_phone_and_of_a_desk(community, tmp_path, browser):
    contigs = tmp_path / "contigs.fa"
    text = community.contigs_path.read_text()
    contigs.write_text(
        text.replace(">k141_", "><script>alert(1)</script><img/src=x/onerror=alert(2)>")
    )
    assert contigs.read_text() != text
    run = dlasm.extend(
        contigs, reads=community.reads_paths, output=tmp_path / "o", join="full", workers=0
    )
    for width in (390, 1280):
        resize(browser, width)
        browser.get((run.path / "report.html").as_uri())
        wide = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1] == width
        body = browser.find_element("tag name", "body").text
        assert "<script>alert(1)</script>" in body
        assert not browser.find_elements("css selector", "script, img")
        assert browser.find_elements("css selector", "svg")
        screenshot(browser, f"report-{width}")
    assert errors(browser) == []


def test_the_dashboard_while_a_run_goes_on(community, tmp_path, browser):
    with dlasm.local_cluster(2, 1) as client:
        status = client.dashboard_link
        address = status.removesuffix("/status")
        done = threading.Event()

        def extend() -> None:
            number = 0
            while not done.is_set():
                number += 1
                dlasm.extend(
                    community.contigs_path,
                    reads=community.reads_paths,
                    output=tmp_path / str(number),
                    client=client,
                    **{**OPTIONS, "partition_bytes": 1},
                )

        with Harm("", 0, lambda: None):  # for its slow tasks
            thread = threading.Thread(target=extend)
            thread.start()
            try:
                resize(browser, 1280)
                for page in ("/status", PAGE):
                    browser.get(address + page)
                    until = time.monotonic() + 60
                    while not browser.execute_script(DRAWN):
                        assert time.monotonic() < until, browser.page_source[:2000]
                        time.sleep(0.1)
                    time.sleep(3)  # errors may come with what is shown later
                    screenshot(browser, f"dashboard{page.replace('/', '-')}")
                    assert errors(browser) == []
                    assert "dlasm" in browser.title or page != PAGE
            finally:
                done.set()
                thread.join()
