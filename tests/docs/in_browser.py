"""The built site in a real browser without a network: formulas are drawn, the search finds, code can be copied."""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from tests.board import browser

WORDS = {"notebook": "notebook", "pandas": "pandas", "custom model": "custom model", "GPU": "On a GPU"}
"""What people look for, and a title that the search must give them."""


def check(site: Path) -> None:
    """Open some pages; every request that they make must go to the site itself."""
    from playwright.sync_api import sync_playwright

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = f"http://127.0.0.1:{server.server_port}/"
    seen: list[str] = []
    try:
        with sync_playwright() as playwright:
            opened = playwright.chromium.launch(executable_path=browser.find(), args=list(browser.FLAGS))
            page = opened.new_page()
            page.set_default_timeout(60_000)
            page.on("request", lambda request: seen.append(request.url))
            for name in ("methods", "howto/which-rule", "reference/classes/fedstale.rules.FedStale"):
                page.goto(f"{home}{name}.html")
                page.wait_for_selector("mjx-container svg")
                assert page.locator("mjx-merror, [data-mjx-error]").count() == 0, name
            assert page.locator("button.copybtn").count() >= 1
            page.goto(f"{home}methods.html")
            table = page.locator("article table").first
            assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth + 1")
            for word, title in WORDS.items():
                page.goto(f"{home}search.html?q={word.replace(' ', '+')}")
                page.locator("#search-results li a").filter(has_text=title).first.wait_for()
            opened.close()
    finally:
        server.shutdown()
    hosts = {urlsplit(url).netloc for url in seen if urlsplit(url).scheme not in ("data", "blob")}
    assert hosts == {urlsplit(home).netloc}


if __name__ == "__main__":
    check(Path(sys.argv[1]))
