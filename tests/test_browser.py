"""The dashboard in Chromium, where it, its driver and selenium are installed.

The report is in test_html.py.
"""

from __future__ import annotations

import os
import shutil
import threading
import time

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


def errors(browser) -> list[str]:
    """What the console of the page has said of errors, but that a server has no icon."""
    return [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
    ]


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
                browser.set_window_size(1280, 900)
                for page in ("/status", PAGE):
                    browser.get(address + page)
                    until = time.monotonic() + 60
                    while not browser.execute_script(DRAWN):
                        assert time.monotonic() < until, browser.page_source[:2000]
                        time.sleep(0.1)
                    time.sleep(3)  # errors may come with what is shown later
                    if KEEP:
                        browser.save_screenshot(f"{KEEP}/dashboard{page.replace('/', '-')}.png")
                    assert errors(browser) == []
                    assert "dlasm" in browser.title or page != PAGE
            finally:
                done.set()
                thread.join()
