"""A sample of small mistakes in algorithms/, local/ and theory/, and whether the tests notice: make mutants N=60.

Each mutant changes one operator, comparison or number of one file. A forked process imports the changed file, whose
source on the disk stays as it is, and runs the test files that mention what the file defines; the first failure kills
the mutant. One that takes too long is counted apart: it may loop for ever, or the machine may be slow.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy
import pytest
import scipy.optimize
import sympy
import torch

ROOT = Path(__file__).parent.parent
TESTS = {  # where a tree's tests are
    "algorithms": ("papers/test_*.py", "deploy/test_members.py"),
    "local": ("local/test_*.py", "papers/test_*.py"),
    "theory": ("theory/test_*.py",),
}
SLOW = ("test_bounds.py", "test_command.py")  # many runs
PRELOADED = (numpy, scipy.optimize, sympy, torch)  # once, and not in every mutant
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """(node, field) of everything that can be changed; not annotations, and no text."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                for child in ast.walk(value) if isinstance(value, ast.AST) else ():
                    child.skipped = True  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if getattr(node, "skipped", False):
            continue
        if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in OPERATORS:
            yield node, "op"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
            yield node, "ops"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            yield node, "operand"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield node, "value"


def change(node: Any, field: str) -> str:
    """Make the change; tells what it is."""
    before = ast.unparse(node)
    if field == "op":
        node.op = OPERATORS[type(node.op)]()
    elif field == "ops":
        node.ops[0] = OPERATORS[type(node.ops[0])]()
    elif field == "operand":
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        if isinstance(node.op, ast.Not):
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node.value, bool):
        node.value = not node.value
    else:
        node.value = node.value + 1 if isinstance(node.value, int) else node.value * 2.0 or 1.0
    return f"{before}  →  {ast.unparse(node)}"


def concerned(path: Path, tree: ast.Module) -> list[str]:
    """The test files that name what this file defines, or the file."""
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    words = [path.stem, *(name for name in names if not name.startswith("_"))]
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, words)) + r")\b")
    files = (file for glob in TESTS[path.parent.name] for file in sorted((ROOT / "tests").glob(glob)))
    return [str(file) for file in files if file.name not in SLOW and pattern.search(file.read_text())]


def outcome(path: Path, code: Any, tests: list[str], limit: float) -> str:
    """Whether these tests pass with this code in the place of the file."""
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        plain = importlib.machinery.SourceFileLoader.get_code

        def get_code(loader: Any, name: str) -> Any:
            return code if Path(loader.path) == path else plain(loader, name)

        importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
        ended = 3  # pytest itself failed
        try:
            ended = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
        finally:
            os._exit(ended)
    until = time.monotonic() + limit
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            ended = os.waitstatus_to_exitcode(status)
            if ended in (3, 4, 5):
                raise RuntimeError(f"pytest ended with {ended} on {tests}")
            return "killed" if ended else "SURVIVES"
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "too long"


def main() -> None:
    """Sample, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a mutant is given up")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    files = [p for t in TESTS for p in sorted((ROOT / "src/offbeat" / t).glob("*.py")) if given.only in str(p)]
    trees = {path: ast.parse(path.read_text()) for path in files}
    every = [(path, at) for path, tree in trees.items() for at in range(len(list(places(tree))))]
    chosen = random.Random(given.seed).sample(every, min(given.n, len(every)))
    first = chosen[0][0]
    plain = compile(trees[first], str(first), "exec")
    if outcome(first, plain, concerned(first, trees[first]), 3600.0) != "SURVIVES":
        raise SystemExit(f"the tests of {first} fail without a mutant")
    found: list[str] = []
    for done, (path, at) in enumerate(chosen, 1):
        tree = deepcopy(trees[path])
        node, field = list(places(tree))[at]
        line = getattr(node, "lineno", 0)
        said = change(node, field)
        code = compile(ast.fix_missing_locations(tree), str(path), "exec")
        found.append(outcome(path, code, concerned(path, trees[path]), given.limit))
        print(f"{done:4d}  {found[-1]:8s}  {path.relative_to(ROOT / 'src/offbeat')}:{line}  {said}", flush=True)
    counts = ", ".join(f"{found.count(word)} {word}" for word in dict.fromkeys(found))
    print(f"{counts} of {len(found)}; {len(every)} places")


if __name__ == "__main__":
    main()
