"""The layers of docs/design.md: an arrow may only point up."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import offbeat

ROOT = Path(offbeat.__file__).parent

# A package may import those on the lines above its own, and itself.
LAYERS = [
    ["core"],
    ["local"],
    ["algorithms"],
    ["data", "models", "timing"],
    ["problems"],
    ["privacy"],
    ["simulate"],
    ["watch"],
    ["deploy"],
    ["report", "theory"],
    ["experiment"],
    ["papers", "bench", "suite"],
    ["cli"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
HEAVY = {"ray", "flwr", "nats", "plotly", "matplotlib", "pandas", "polars", "sklearn", "IPython"}


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name instead of a relative import"
            module = node.module or ""
            yield from (f"offbeat.{a.name}" for a in node.names) if module == "offbeat" else (module,)


def package(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""  # "": the top, which may import anything


def test_every_package_has_its_place() -> None:
    found = {p.name for p in ROOT.iterdir() if p.is_dir() and list(p.glob("*.py"))}
    assert found <= set(RANK)


def test_no_package_imports_one_below_it() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        own = package(path)
        for name in imports(path):
            parts = name.split(".")
            if own and parts[0] == "offbeat" and len(parts) > 1 and parts[1] in RANK:
                other = parts[1]
                if other != own and RANK[other] >= RANK[own]:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_the_package_needs_nothing_that_is_not_installed_with_it() -> None:
    outside = {"studies", "benchmarks", "tests", "experiments"}
    assert not outside & {name.split(".")[0] for path in ROOT.rglob("*.py") for name in imports(path)}


def test_the_command_line_is_a_shell_over_the_library() -> None:
    """Every command is a call into `experiment`, `papers`, `report`, `theory` or `bench`."""
    below = ("offbeat.simulate", "offbeat.watch", "offbeat.problems")
    wrong = [(path.name, name) for path in (ROOT / "cli").glob("*.py") for name in imports(path)]
    assert [each for each in wrong if each[1].startswith(below)] == []


def test_the_core_stands_on_torch_and_numpy_only() -> None:
    outside = {name.split(".")[0] for path in (ROOT / "core").glob("*.py") for name in imports(path)}
    assert outside - set(sys.stdlib_module_names) <= {"offbeat", "torch", "numpy"}


def test_importing_offbeat_imports_nothing_heavy() -> None:
    code = f"import sys; from offbeat import *; print(sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]", result.stdout


def test_studies_run_without_what_writes_folders_and_budgets() -> None:
    """A rented machine often has PyTorch and numpy only."""
    missing = ("pyarrow", "scipy", "nats", "typer", "rich", "sklearn", "safetensors", "cloudpickle", "matplotlib")
    code = f"import sys; sys.modules.update(dict.fromkeys({missing}, None)); import studies.in_memory, studies.diloco"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent.parent)


def test_pickles_go_between_a_process_and_its_own_workers_and_nowhere_else() -> None:
    """Whatever is read from a disk or a network could run code if it were a pickle."""
    those = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    found = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if {n.split(".")[0] for n in imports(p)} & those}
    assert found == {"simulate/worker.py", "simulate/workers.py", "simulate/pack.py"}
    calls = ("torch.load(", "torch.save(", "allow_pickle=True", "read_pickle(")
    assert [p.name for p in ROOT.rglob("*.py") for call in calls if call in p.read_text(encoding="utf-8")] == []


def test_a_class_has_a_name_of_its_own() -> None:
    """Whoever searches for a name finds one class."""
    trees = [ast.parse(path.read_text()) for path in ROOT.rglob("*.py")]
    names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert sorted({name for name in names if names.count(name) > 1}) == []
