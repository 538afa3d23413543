"""No file of the project names a package index: where packages come from is a matter of each machine's set-up."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOSTS = (
    "pypi|org",
    "pythonhosted|org",
    "download.pytorch|org",
    "conda.anaconda|org",
    "npmjs|org",
    "docker|io",
    "ghcr|io",
    "quay|io",
)
NAMED = re.compile(
    "|".join(re.escape(host.replace("|", ".")) for host in HOSTS) + r"|index[-_]url[=:\s]+['\"]?https?:", re.IGNORECASE
)


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name]


def test_no_file_names_a_package_index() -> None:
    texts = {path: path.read_bytes().decode("utf-8", "ignore") for path in tracked() if path.is_file()}
    assert [
        f"{path.relative_to(ROOT)}: {found[0]}" for path, text in texts.items() if (found := NAMED.search(text))
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        f"see https://{HOSTS[0].replace('|', '.')}/x",
        "pip --index-url http" + "://mirror",
        "PIP_EXTRA_INDEX_URL: http" + "s://m",
    ],
)
def test_such_a_line_would_be_noticed(line: str) -> None:
    assert NAMED.search(line)
