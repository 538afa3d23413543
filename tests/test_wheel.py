"""The wheel and the source archive: they build, install, and run away from the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def call(*words: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-s", "-m", *map(str, words)],  # -s: a fresh interpreter, see forking.py
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_what_is_built_installs_and_runs_the_demonstration_in_another_folder(tmp_path: Path) -> None:
    dist, target = tmp_path / "dist", tmp_path / "installed"
    call("build", "--no-isolation", "--outdir", dist, ROOT, cwd=tmp_path)
    (archive,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")  # the wheel is built from the archive
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"README.md", "LICENSE", "docs/python.md", "tests/test_wheel.py"} <= names
    call("pip", "install", "--quiet", "--no-deps", "--target", target, wheel, cwd=tmp_path)
    there = {"PYTHONPATH": str(target)}
    code = "import offbeat; print(offbeat.__file__)"
    found = subprocess.run(
        [sys.executable, "-s", "-c", code], cwd=tmp_path, env={**os.environ, **there}, capture_output=True, text=True
    )
    assert Path(found.stdout.strip()).is_relative_to(target)  # and not the clone
    printed = call("offbeat", "run", "--out", "out", cwd=tmp_path, **there)
    assert all(name in printed for name in ("area", "fedbuff", "fedasync", "fedavg"))
    assert (tmp_path / "out/report.html").exists()
    call("offbeat", "new", "mine", cwd=tmp_path, **there)
    call("offbeat", "check", "experiment.toml", cwd=tmp_path / "mine", **there)
