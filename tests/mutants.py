"""A sample of small mistakes in algorithms/, local/ and theory/, and whether the tests notice: make mutants N=120.

Each mutant changes one operator, comparison or number. All of them share one pytest process that has collected the
tests, and a first pass that notes which functions each test calls and how long it takes. A mutant is a fork of that
process: it exchanges the code of one function and runs the tests that call it, the shortest first, until one fails.
What is outside functions, such as the default of a setting, is changed in a process that imports the file anew. One
that takes much more CPU time than the tests took without it loops, and counts as killed.

`--out FILE` keeps what was found, and a second call goes on with it. With `--again` it tries survivors again.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
import importlib.machinery
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from math import sqrt
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "offbeat"
FOLDERS = ("algorithms", "local", "theory")
TESTS = ("papers", "local", "theory", "transcripts", "deploy/test_members.py", "simulate/test_personal.py")
LONG = ("test_bounds.py",)  # many runs
LIMIT = 60  # seconds of CPU time that the tests of a mutant may take, besides three times what they took without it
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

# What is changed


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


class Mutant:
    """One change of one file.   at: which of its places."""

    def __init__(self, path: Path, tree: ast.Module, at: int) -> None:
        self.path, changed = path, deepcopy(tree)
        node, field = list(places(changed))[at]
        self.line = getattr(node, "lineno", 0)
        self.said = change(node, field)
        self.file = str(path.relative_to(SOURCE))
        self.name = f"{self.file}:{self.line}  {self.said}  ({at})"
        self.code = compile(ast.fix_missing_locations(changed), str(path), "exec")
        plain = compile(tree, str(path), "exec")
        # the outermost function whose code differs; None: what differs is outside functions
        pairs = [(old, new) for old, new in zip(_functions(plain), _functions(self.code), strict=True)]
        differing = [(old, new) for old, new in pairs if not _same(old, new)]
        whole = len(differing) == 1 and _outside(plain) == _outside(self.code)
        self.function, self.replacement = differing[0] if whole else (None, None)


def _functions(code: CodeType) -> list[CodeType]:
    """The code of functions and methods, those of classes in classes too, in order; not functions in functions."""
    found = []
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found += _functions(each) if _is_class(each) else [each]
    return found


def _is_class(code: CodeType) -> bool:
    return "__module__" in code.co_names and "__qualname__" in code.co_names


def _same(a: CodeType, b: CodeType) -> bool:
    plain = [[c for c in code.co_consts if not isinstance(c, CodeType)] for code in (a, b)]
    inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (a, b)]
    return (a.co_code, repr(plain[0])) == (b.co_code, repr(plain[1])) and all(map(_same, *inner))


def _outside(code: CodeType) -> Any:
    """What the code of a module or class does itself."""
    classes = [_outside(c) for c in code.co_consts if isinstance(c, CodeType) and _is_class(c)]
    return code.co_code, repr([c for c in code.co_consts if not isinstance(c, CodeType)]), classes


# Whether it is noticed


class Host:
    """A pytest plugin: once the tests are collected, it forks for every mutant."""

    def __init__(self, mutants: list[Mutant], out: Path | None, calls: Path | None, again: bool) -> None:
        self.mutants, self.out, self.calls = mutants, out, calls
        self.found: dict[str, str] = {}
        if out is not None and out.exists():
            self.found = dict(json.loads(line) for line in out.read_text().splitlines())
        if again:
            self.found = {name: outcome for name, outcome in self.found.items() if outcome != "SURVIVES"}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of the tests, the mutants."""
        self.items = {item.nodeid: item for item in session.items}
        known = self.calls is not None and self.calls.exists()
        self.called = json.loads(self.calls.read_text()) if known and self.calls else self.first_pass(session)
        if self.calls is not None and not known:
            self.calls.write_text(json.dumps(self.called))
        for number, mutant in enumerate(self.mutants, 1):
            if mutant.name not in self.found:
                self.found[mutant.name] = self.outcome(session, mutant)
                if self.out is not None:
                    with self.out.open("a") as file:
                        file.write(json.dumps([mutant.name, self.found[mutant.name]]) + "\n")
            print(f"{number:4d}  {self.found[mutant.name]:9s} {mutant.name}", flush=True)
        return True

    def first_pass(self, session: pytest.Session) -> dict[str, Any]:
        """By test, its CPU time and the functions of the three folders that it calls; all of them must pass."""
        called: set[str] = set()
        builtins._called = called  # type: ignore[attr-defined]
        for path in (p for folder in FOLDERS for p in sorted((SOURCE / folder).glob("*.py"))):
            tree = ast.parse(path.read_text())
            plain, probed = compile(tree, str(path), "exec"), compile(probe(path, tree), str(path), "exec")
            for old, new in zip(_functions(plain), _functions(probed), strict=True):
                exchange(old, new)
        found: dict[str, Any] = {}
        for item in session.items:
            called.clear()
            began = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if session.testsfailed:
                raise SystemExit(f"{item.nodeid} fails without a mutant")
            if called:
                found[item.nodeid] = [round(time.process_time() - began, 3), sorted(called)]
        if not found:
            raise SystemExit("no test calls anything: the functions that say so were not put in place")
        return found

    def outcome(self, session: pytest.Session, mutant: Mutant) -> str:
        """Whether the tests that concern it pass with this mutant."""
        name = None if mutant.function is None else mutant.function.co_qualname
        wanted = mutant.file if name is None or "<lambda>" in name else f"{mutant.file}:{name}"
        concerned = {
            nodeid: seconds
            for nodeid, (seconds, called) in self.called.items()
            if nodeid in self.items and any(each == wanted or each.startswith(f"{wanted}:") for each in called)
        }
        if mutant.function is None:  # nothing calls a default
            concerned |= {nodeid: 0.0 for nodeid in self.items if "test_defaults" in nodeid}
        if not concerned:
            return "SURVIVES"  # nothing calls it
        order = sorted(concerned, key=lambda nodeid: concerned[nodeid])
        child = os.fork()
        if child == 0:
            self.try_tests(session, mutant, order, LIMIT + 3 * round(sum(concerned.values())))
        _, status = os.waitpid(child, 0)
        ended = os.waitstatus_to_exitcode(status)
        if ended not in (0, 1, -24, -9):
            raise RuntimeError(f"{mutant.name}: ended with {ended}")
        return {0: "SURVIVES", 1: "killed"}.get(ended, "too long")

    def try_tests(self, session: pytest.Session, mutant: Mutant, order: list[str], limit: int) -> None:
        """In a process of its own: run these tests until one fails."""
        ended = 3
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            if mutant.function is None:
                os.execv(sys.executable, [sys.executable, __file__, "--fresh", mutant.name, *order[:200]])
            if not exchange(mutant.function, mutant.replacement):
                raise LookupError(mutant.name)
            for nodeid in order:
                self.items[nodeid].config.hook.pytest_runtest_protocol(item=self.items[nodeid], nextitem=None)
                if session.testsfailed:
                    os._exit(1)
            ended = 0
        except BaseException:  # a mutant may raise what no test expects
            ended = 1
        finally:
            os._exit(ended)


def exchange(old: CodeType, new: CodeType) -> int:
    """Let every function that has the old code have the new one; tells how many there are."""
    found = live().get((old.co_filename, old.co_qualname, old.co_firstlineno), [])
    for each in found:
        each.__code__ = new
    return len(found)


@cache
def live() -> dict[tuple[str, str, int], list[FunctionType]]:
    """All functions that there are, by where they stand."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    gc.unfreeze()  # frozen objects are not among those that the collector knows
    for each in gc.get_objects():
        if type(each) is FunctionType:
            code = each.__code__
            found.setdefault((code.co_filename, code.co_qualname, code.co_firstlineno), []).append(each)
    return found


def probe(path: Path, tree: ast.Module) -> ast.Module:
    """The same file with functions that say that they are called."""

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                said = f"{path.relative_to(SOURCE)}:{prefix}{node.name}"
                (call,) = ast.parse(f"_called.add({said!r})").body
                node.body.insert(1 if ast.get_docstring(node) is not None else 0, call)

    found = deepcopy(tree)
    visit(found.body, "")
    return ast.fix_missing_locations(found)


def fresh(name: str, tests: list[str]) -> int:
    """In a process of its own: import the changed file, and run these tests."""
    file, _, at = name.partition(":")[0], "", int(name.rpartition("(")[2][:-1])
    path = SOURCE / file
    mutant = Mutant(path, ast.parse(path.read_text()), at)
    plain = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: Any, module: str) -> Any:
        return mutant.code if Path(loader.path) == path else plain(loader, module)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    ended = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    return 0 if ended == 0 else 1


def interval(killed: int, of: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, killed / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return middle - half, middle + half


def main() -> None:
    """Sample, run, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=120, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders and files of tests, all by default")
    parser.add_argument("--out", type=Path, help="keep what was found here, and go on with it")
    parser.add_argument("--calls", type=Path, help="keep the first pass here, and use it again")
    parser.add_argument("--again", action="store_true", help="try those in --out again that survived")
    given = parser.parse_args()
    os.chdir(ROOT)
    files = [p for folder in FOLDERS for p in sorted((SOURCE / folder).glob("*.py")) if given.only in str(p)]
    trees = {path: ast.parse(path.read_text()) for path in files}
    every = [(path, at) for path, tree in trees.items() for at in range(len(list(places(tree))))]
    chosen = random.Random(given.seed).sample(every, min(given.n, len(every)))
    host = Host([Mutant(path, trees[path], at) for path, at in chosen], given.out, given.calls, given.again)
    paths = [p for t in given.tests for p in (sorted((ROOT / "tests" / t).glob("test_*.py")) or [ROOT / "tests" / t])]
    tests = [str(path.relative_to(ROOT)) for path in paths if path.name not in LONG]
    ended = pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", *tests], plugins=[host])
    if ended not in (0, 5):
        raise SystemExit(int(ended))
    found = [host.found[mutant.name] for mutant in host.mutants]
    killed = len(found) - found.count("SURVIVES")
    low, high = interval(killed, len(found))
    print(f"{killed} of {len(found)} killed, {found.count('too long')} of them by time: "
          f"{killed / len(found):.0%}, 95 % interval {low:.0%} to {high:.0%}; {len(every)} places")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fresh"]:
        raise SystemExit(fresh(sys.argv[2], sys.argv[3:]))
    main()
