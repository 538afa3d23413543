"""What the pages say is so: scripts run, files parse and run, commands end well, every name and link is there."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import offbeat

import offbeat as ob
from offbeat.core import names
from offbeat.core.server import Server
from offbeat.data.folder import BUNDLED
from offbeat.experiment.catalogue import catalogue
from offbeat.experiment.experiment import Experiment
from offbeat.experiment.grid import Grid
from offbeat.experiment.session import Session

ROOT = Path(__file__).parent.parent
ROOTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in ROOTS), *sorted((ROOT / "docs").glob("*.md"))]
LONGEST = 1.0  # virtual time of a command's run; files that ask for more are cut down

# What a snippet of an experiment file is completed with.
REST = tomllib.loads("""
problem = { data = "digits", clients = 8, split = { classes = 5 } }
timing = { exponential = { rate = 10.0 } }
algorithm = [{ name = "fedbuff", size = 4, concurrency = 3, local = { sgd = { lr = 0.1, batch = 16 } } }]
""")


class Block(NamedTuple):
    """A fenced block: ```language file, where a block with the name of a file is meant to be saved under it."""

    page: Path
    line: int
    language: str
    file: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*) *(\S*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page, text.count("\n", 0, m.start(3)) + 1, *m.groups()) for m in found]


LISTS = catalogue()
BLOCKS = [block for page in PAGES for block in blocks(page)]
TOML = [block for block in BLOCKS if block.language == "toml"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in and to import from, without anybody's data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("OFFBEAT_DATA", raising=False)
    return tmp_path


def save_files(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.text, encoding="utf-8")


# A page, from top to bottom


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_scripts_and_commands_of_a_page_work_in_their_order(page: Path, here: Path) -> None:
    save_files(page, here)
    mine = blocks(page)
    for at, block in enumerate(mine):
        if block.language == "python":
            printed = run_script(block)
            for after in mine[at + 1 : at + 2]:
                if after.language == "text":  # what it printed
                    assert_alike(printed, after.text, block.place)
        elif block.language == "console":
            for line in commands(block):
                outcome = offbeat(*shortened(line))
                assert outcome.code == 0, f"{block.place}: {line}: {outcome.err}"


def run_script(block: Block) -> str:
    """What the script prints, run alone; errors show the page's own lines."""
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec", dont_inherit=True)
    with contextlib.redirect_stdout(out):
        exec(code, {"__name__": block.place})
    return out.getvalue()


def assert_alike(printed: str, shown: str, place: str) -> None:
    """The same words; numbers may differ a little from one machine to another."""
    number = r"-?\d+(?:\.\d+)?"
    assert re.sub(number, "#", printed) == re.sub(number, "#", shown), place
    found, expected = ([float(x) for x in re.findall(number, text)] for text in (printed, shown))
    assert found == pytest.approx(expected, rel=0.1, abs=0.011), place


def commands(block: Block) -> list[str]:
    """The lines that call offbeat; `make` would make another environment."""
    lines = [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ ")]
    assert all(line.split()[0] in ("offbeat", "make") for line in lines), block.place
    return [line for line in lines if line.startswith("offbeat ")]


def shortened(line: str) -> list[str]:
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "run" and tomllib.loads(Path(words[1]).read_text())["until"].get("time", 0.0) > LONGEST:
        words += ["--set", "until.time=1.0"]
    if words[0] == "sweep":
        words += ["--workers", "1"]  # more would have to start first
    return words


def test_the_targets_of_make_that_the_readme_names_are_there() -> None:
    targets = set(re.findall(r"^\$ make (\w+)", PAGES[0].read_text(), re.MULTILINE))
    assert targets >= {"demo", "test"}
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


# Experiment files


@pytest.mark.parametrize("block", TOML, ids=lambda block: block.place)
def test_every_experiment_file_and_every_part_of_one_parses_and_runs(block: Block, here: Path) -> None:
    save_files(block.page, here)
    table = tomllib.loads(block.text)
    if "sweep" in table:
        assert len(Grid(table).points) > 1, block.place
        del table["sweep"]
    table.pop("tune", None)
    experiment = Experiment.parse({**REST, **table, **hurried(table)})
    if experiment.table["problem"]["data"] in (*BUNDLED, "quadratic", "absolute"):  # the others have to be fetched
        for spec in experiment.runs:
            world = Session(experiment).simulation(spec).run()
            assert world.tally.updates > 0 or set(REST) <= set(table), f"{block.place}: {spec.name} did nothing"


def hurried(table: dict[str, Any]) -> dict[str, Any]:
    """When a test stops: a whole file early, a part of one after a few updates."""
    if set(REST) <= set(table):
        until = {**table["until"], "time": min(2.0, table["until"].get("time", 2.0)), "updates": 100}
        return {"until": until, "trials": 1}
    return {"until": {"updates": 20, "time": 1e7}, "evaluate": {"every": 1e6}}


# Names and links


def toml_of(page: str) -> str:
    return "\n".join(block.text for block in TOML if block.page.name == page)


@pytest.mark.parametrize("name", [name for name, recipe in names.members(Server).items() if not recipe.server.several])
def test_every_algorithm_has_its_section_and_its_lines(name: str) -> None:
    assert f'name = "{name}"' in toml_of("catalogue.md")
    assert f"\n### {name}\n" in (ROOT / "docs/catalogue.md").read_text()


def test_every_local_trainer_and_every_timing_model_has_its_line() -> None:
    locals_, timing = ([name for name in LISTS[shelf] if ":" not in name] for shelf in ("locals", "timing"))
    assert [name for name in locals_ if f"{{ {name} = {{" not in toml_of("catalogue.md")] == []
    assert [name for name in timing if not re.search(rf"^{name} = ", toml_of("timing.md"), re.MULTILINE)] == []


def test_every_data_set_split_and_model_is_named() -> None:
    text = (ROOT / "docs/experiments.md").read_text()
    quoted = set(re.findall(r'`[{ "]*([\w.:-]+)', text))
    assert [name for name in (*LISTS["data"], *LISTS["splits"], *LISTS["models"]) if name not in quoted] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.is_file(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


TESTS = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    defined = set(re.findall(r"def (test_\w+)\(", "".join(TESTS.values())))
    files = {path.name for path in TESTS}
    assert [name for name in re.findall(r"`(test_\w+)`", text) if name not in defined] == []
    assert [name for name in re.findall(r"\b(test_\w+\.py)\b", text) if name not in files] == []
    assert [name for name in re.findall(r"\btests/[\w/.]*\w", text) if not (ROOT / name).exists()] == []


def test_every_row_about_an_attack_names_its_test() -> None:
    rows = re.findall(r"^\| (?!attack|mistake|---)(.+) \|$", (ROOT / "docs/threats.md").read_text(), re.MULTILINE)
    assert len(rows) > 80
    assert [row for row in rows if "`test_" not in row and not row.endswith("| the same")] == []


def test_every_page_has_its_place_on_the_site() -> None:
    placed = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [*(page.name for page in (ROOT / "docs").glob("*.md")), *(name.lower() for name in ROOTS[1:]), "index.md"]
    assert sorted(name for name in placed if "/" not in name) == sorted(pages)
    below = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*/*.md")}
    below |= {f"notebooks/{path.stem}.md" for path in (ROOT / "docs/notebooks").glob("*.ipynb")}
    tables = tuple(f"results/{paper}/" for paper in ("area", "defedavg", "fedast", "persafl"))
    assert {name for name in below if not name.startswith(tables)} == {name for name in placed if "/" in name}
    assert "--quiet" not in (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("#")[0]


def test_every_public_class_and_function_is_in_the_reference() -> None:
    listed = re.findall(r"^::: \S+\.(\w+)$", (ROOT / "docs/reference.md").read_text(), re.MULTILINE)
    found = {name: getattr(ob, name) for name in ob.__all__}
    ours = {n for n, each in found.items() if callable(each) and each.__module__.startswith("offbeat.")}
    assert ours - {"OffbeatError"} <= set(listed)  # the errors are one entry


def test_papers_are_named_in_words_that_the_page_of_papers_has() -> None:
    """Where code or a page cites a place in a paper, its short name is a heading of docs/papers.md."""
    known = re.findall(r"^### (.+)$", (ROOT / "docs/papers.md").read_text(), re.MULTILINE)
    files = [*PAGES, *(path for folder in ("src", "studies", "tests") for path in (ROOT / folder).rglob("*.py"))]
    place = r"(?:theorem|lemma|algorithm|table|figure)s? \d|corollary \d|appendix [A-E]|[A-E]\.\d|§\d"
    cited = {name for path in files for name in re.findall(rf"([A-Z][\w-]+), (?:{place})", path.read_text())}
    assert {"AREA", "PersA-FL"} <= cited <= set(known)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to headings."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
