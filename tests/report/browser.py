"""Debian's chromium, without a screen, driven through a page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--font-render-hinting=none"),
]


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Any, page: Path, width: int = 1200, height: int = 900, scheme: str = "light") -> Any:
    """The page in a tab of its own, drawn; `tab.problems` collects errors and everything it asks the network for."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab = context.new_page()
    tab.problems = []
    tab.on("pageerror", lambda error: tab.problems.append(str(error)))
    tab.on(
        "console", lambda message: tab.problems.append(message.text) if message.type in ("error", "warning") else None
    )
    tab.on("request", lambda request: tab.problems.append(request.url) if request.url != page.as_uri() else None)
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-ready]")
    tab.wait_for_timeout(100)  # the first drawings follow the first layout
    return tab
