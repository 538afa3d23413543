"""Pictures of the report for the docs: `make screenshots`."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from report.browser import chromium, opened

from offbeat.cli.app import main

ROOT = Path(__file__).parent.parent.parent
MANY = """
trials = 2
until = { time = 2.0 }
evaluate = { every = 0.25, targets = [0.6] }

[problem]
data = "digits"
clients = 10
split = { dirichlet = 0.3 }

[timing]
exponential = { rate = 10.0 }

[algorithm.area]
size = 4
local = { sgd = { lr = 1.0, batch = 16 } }

[algorithm.fedbuff]
size = 4
local = { sgd = { lr = 1.0, batch = 16 } }

[sweep]
"algorithm.*.local.sgd.lr" = [0.1, 0.3, 1.0, 3.0]
"algorithm.*.size" = [1, 2, 4]
"""


def shoot(browser: Any, page: Path, path: Path, at: str = "", **window: Any) -> None:
    """The part of the page that begins with this section."""
    tab = opened(browser, page, **window)
    if at:
        tab.evaluate(f"document.getElementById('{at}').scrollIntoView({{behavior: 'instant'}})")
        tab.evaluate("scrollBy({top: 20, behavior: 'instant'})")
    tab.wait_for_timeout(300)
    tab.screenshot(path=path)
    tab.context.close()
    print(path)


def report_of(folder: Path, *arguments: str, command: str = "run") -> Path:
    """The report of a run with these arguments."""
    with contextlib.suppress(SystemExit):
        main([command, *arguments, "--out", str(folder)])
    return folder / "report.html"


def example() -> str:
    """The experiment file in docs/report.md."""
    text = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    found = re.search(r"^```toml phones.toml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert found, "docs/report.md has no phones.toml"
    return found.group(1)


def pictures(out: Path) -> None:
    """All of them, into this folder."""
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        (folder / "phones.toml").write_text(example(), encoding="utf-8")
        demo, phones = report_of(folder / "demo"), report_of(folder / "phones", str(folder / "phones.toml"))
        shoot(browser, demo, out / "report.png", width=1120, height=1190)
        shoot(browser, demo, out / "report-dark.png", "timeline", width=1120, height=980, scheme="dark")
        shoot(browser, demo, out / "report-phone.png", "progress", width=375, height=740)
        shoot(browser, phones, out / "report-timeline.png", "timeline", width=1120, height=700)
        (folder / "many.toml").write_text(MANY, encoding="utf-8")
        many = report_of(folder / "many", str(folder / "many.toml"), command="sweep")
        shoot(browser, many, out / "report-many.png", "progress", width=1120, height=760)
        if os.environ.get("OFFBEAT_DATA"):
            table = report_of(folder / "table3", "area-table3", command="reproduce")
            shoot(browser, table, out / "report-paper.png", width=1120, height=1060)
        else:
            print("without OFFBEAT_DATA there is no MNIST: report-paper.png is left as it is")


if __name__ == "__main__":
    pictures(Path(sys.argv[1]))
