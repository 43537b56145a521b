"""A real browser: Debian's chromium, installed by the test set-up where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE: Any = {"width": 1440, "height": 900}
PLOT = "document.querySelector('#curve-graph .js-plotly-plot')"
_LOG = Path("/tmp") / "fedstale-chromium.log"


def find() -> str | None:
    """Where the browser is."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def install() -> str:
    """Install chromium when it is missing; return what kept it from that, or nothing."""
    if find():
        return ""
    if shutil.which("apt-get") is None:
        return "no chromium, and no apt-get to install it"
    if os.geteuid() != 0:
        return "no chromium, and apt-get needs root to install it"
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = (["update"], ["install", "-y", "--no-install-recommends", "chromium"])
    with open(_LOG, "w") as log:
        for step in steps:
            try:
                subprocess.run(["apt-get", *step], check=True, stdout=log, stderr=log, timeout=600, env=quiet)
            except (OSError, subprocess.SubprocessError) as error:
                return f"no chromium, and apt-get {step[0]} failed: {error} (see {_LOG})"
    return "" if find() else "no chromium even after apt-get install"


def until(page: Page, condition: str) -> None:
    """Wait for a condition; Playwright's own way needs eval, which the board's policy forbids."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(condition)


if __name__ == "__main__":
    print(install() or f"chromium: {find()}")
