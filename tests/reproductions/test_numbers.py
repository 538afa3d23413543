"""The tables of FedAST's, DeFedAvg's and PersA-FL's pages have the numbers of the records beside them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from offbeat.papers import load
from offbeat.papers.cells import half_width
from offbeat.suite.definition import load as load_suite
from studies import diloco, suite

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "results"
Row = list[str]


def runs(record: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{record}.json").read_text())["runs"]
    return found


def table(page: str, head: str) -> list[Row]:
    """The cells of a table whose first line begins like this; an empty first cell repeats the one above."""
    text = (DOCS / f"{page}.md").read_text()
    found: list[Row] = []
    for line in text[text.index(f"| {head}") :].split("\n\n")[0].splitlines()[2:]:
        row = [cell.strip(" *") for cell in line.strip("|").split("|")]
        found.append([row[0] or found[-1][0], *row[1:]])
    return found


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.?\d*", text.replace("*", ""))]


def near(shown: float, value: float, places: int = 0) -> bool:
    """Whether this is how the value is printed; a half may be rounded either way."""
    return abs(shown - value) <= 0.5 * 10**-places + 1e-6


# FedAST

TASKS = ("mnist", "shakespeare", "fashion", "cifar10")  # in the order of the tables
ALGORITHM_4 = "FedAST, requests by algorithm 4, [buffers rounded](#buffers-are-rounded-up) to the nearest"


def finished() -> dict[str, list[list[float]]]:
    """By method as the page calls it, each seed's times of the four tasks and of all."""
    found: dict[str, list[list[float]]] = {}
    names = {"equation 2": "the same by the earlier rounding", "algorithm 4": ALGORITHM_4}
    ours = {"fedast": "FedAST, the authors' allocation", "static": "the same with equal requests (`static`)"}
    for run in [run for run in runs("fedast/fig7") if run["inputs"] == "standard"] + runs("fedast/demo"):
        demo = "part" in run
        name = ours.get(run["part"], "Sync-ST") if demo else names.get(run.get("allocation"), "Sync-ST, first 30")
        times = [float(run["tasks"][task]["finished"]) for task in TASKS]
        found.setdefault(name, []).append([*times, max(times)])
    labels = {"dynamic": "FedAST, requests by equation 2", "static": "FedAST, equal requests (`static`)"}
    for run in sorted(runs("fedast/fig24"), key=itemgetter("seed")):
        ended = {task["name"]: task["ended"] for task in run["tasks"]}
        times = [ended[task] for task in TASKS]
        found.setdefault(labels[run["algorithm"]], []).append([*times, max(times)])
    return found


TIMES = finished()
FEDAST = [row for row in table("results/fedast", "virtual time to the target | seed") if row[0] in TIMES]
DEMO = (RESULTS / "fedast.md").read_text().partition("Three seeds of each at full size")[2]


def demonstrated() -> list[Row]:
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in DEMO.split("\n\n")[1].splitlines()]
    for above, row in pairwise(rows):
        row[0] = row[0] or above[0]
    return rows[2:]


@pytest.mark.parametrize("rows", [FEDAST, demonstrated()], ids=["figure 7", "the demonstration"])
def test_fedasts_times(rows: list[Row]) -> None:
    assert len(rows) == (16 if rows is FEDAST else 12)
    for name, seed, *cells in rows:
        mine = TIMES[name]
        shown = [float(cell) for cell in cells[:5]]
        if seed == "mean":
            assert all(near(s, fmean(each)) for s, each in zip(shown, zip(*mine, strict=True), strict=True))
        else:
            assert shown == mine[int(seed)]


def test_what_fedast_saves() -> None:
    baseline = TIMES["Sync-ST, first 30"]
    for name, seed, *cells in FEDAST:
        if len(cells) == 6 and cells[5]:
            mine = TIMES[name]
            of = range(3) if seed == "mean" else [int(seed)]
            share = 1 - fmean(mine[i][4] for i in of) / fmean(baseline[i][4] for i in of)
            assert near(numbers(cells[5])[0], 100 * share), (name, seed)
    earlier = [fmean(each) for each in zip(*TIMES["the same by the earlier rounding"], strict=True)]
    text = " ".join((RESULTS / "fedast.md").read_text().split())
    assert "were {:.0f}, {:.0f}, {:.0f} and {:.0f} with equation 2".format(*earlier) in text


def test_fedasts_times_over_those_of_the_plots() -> None:
    text = (RESULTS / "fedast.md").read_text()
    found = re.findall(r"^\| ([^|]+) \| ((?:\**[\d.]+ / [\d.]+ = \**[\d.]+\** ?\|? ?){4})", text, re.MULTILINE)
    assert len(found) == 4
    plots = {line.experiment: line.paper for line in load("fedast-demo", "full").lines}
    for at, (name, cells) in enumerate(found):
        halved = 2 if at < 2 else 1  # the first table is of figure 7, whose clock is twice as slow
        method = "Sync-ST, first 30" if at == 1 else name.strip()
        for task, mean, cell in zip(
            TASKS, map(fmean, zip(*TIMES[method], strict=True)), cells.split("|"), strict=False
        ):
            ours, plot, ratio = numbers(cell)
            assert near(ours, mean / halved)
            assert near(ratio, mean / halved / plot, 2)
            assert plot == plots["sync" if "Sync" in name else "fedast"][task].mean


def test_the_intervals_of_dynamic_and_static_requests() -> None:
    said = []
    for name in ("FedAST, the authors' allocation", "the same with equal requests (`static`)"):
        each = [times[4] for times in TIMES[name]]
        width = half_width(3, max(each) - min(each))
        said += [f"{fmean(each):.0f}", f"[{fmean(each) - width:.0f}, {fmean(each) + width:.0f}]"]
    (row,) = re.findall(r"^\| figures 23, 24: .*$", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert "dynamic {} in {}, static {} in {};".format(*said) in row
    assert f"{said[1]} against {said[3]}" in " ".join((RESULTS / "fedast.md").read_text().split())


def ends(record: str) -> dict[tuple[str, str], list[float]]:
    """By experiment and last setting (or algorithm), each seed's mean accuracy of all tasks at the end."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs(f"fedast/{record}"):
        which = str(next(iter(run["settings"].values()), run["algorithm"]))
        end = fmean(100 * task["curve"][-1][2] for task in run["tasks"])
        label = f"{run['algorithm']} {which}" if record == "fig3" and run["settings"] else which
        found.setdefault((run["experiment"], label), []).append(end)
    return found


def ranged(each: Sequence[float]) -> str:
    return f"{fmean(each):.1f} ({min(each):.1f}–{max(each):.1f})"


def test_first_k_of_sync_st() -> None:
    rows = {row[0]: row[1:] for row in table("results/fedast", "| k = 3")}
    last, known = ends("fig10"), {"MNIST": "mnist", "Fashion-MNIST": "fashion", "CIFAR-10": "cifar10"}
    for shown, name in known.items():
        wanted = [f"{fmean(last[name, k]):.1f}" for k in ("3", "10", "30", "60")]
        assert rows[f"{shown}, accuracy at the end"] == wanted
    for shown, target in (("MNIST, time to 93 %", 0.93), ("Fashion-MNIST, time to 82 %", 0.82)):
        name = known[shown.split(",")[0]]
        for cell, k in zip(rows[shown], (3, 10, 30, 60), strict=True):
            mine = [run for run in runs("fedast/fig10") if (run["experiment"], *run["settings"].values()) == (name, k)]
            times = [next(t for t, _, a in run["tasks"][0]["curve"] if a >= target) for run in mine]
            assert near(float(cell), fmean(times)), (shown, k)


def test_the_buffer_of_fedast() -> None:
    two = table("results/fedast", "| FedAST | without a buffer")
    assert two[0][1:] == [ranged(ends("fig4")["main", name]) for name in ("fedast", "fedast-nobuffer")]
    (nine,) = table("results/fedast", "| b = 1 | b = 3")
    assert nine[1:] == [ranged(ends("fig8")["fig9", size]) for size in ("1", "3", "20")]
    (eight,) = table("results/fedast", "| b = 1 | b = 5")
    assert eight[1:] == ["diverged", *(ranged(ends("fig8")["fig8", size]) for size in ("5", "20"))]
    diverged = [run for run in runs("fedast/fig8") if run["experiment"] == "fig8" and run["settings"].popitem()[1] == 1]
    assert [(run["seed"], round(run["time"])) for run in diverged if run["error"]] == [(0, 27), (1, 30), (2, 304)]
    three, last = table("results/fedast", "clients at work"), ends("fig3")
    for row, data in zip(three, ("fashion", "fashion", "cifar10", "cifar10"), strict=True):
        name = {"FedAST": "fedast", "without a buffer": "fedast-nobuffer"}[row[1]]
        each = [last.get((data, f"{name} {n}")) for n in (60, 150, 450)]
        assert row[2:] == ["not run" if cell is None else ranged(cell) for cell in each]
    text = " ".join((RESULTS / "fedast.md").read_text().split())
    for name in ("cifar10-pooled", "fashion-pooled"):
        each = last[name, "centralised"]
        assert f"{fmean(each):.1f} % ({min(each):.1f} to {max(each):.1f})" in text


def test_two_four_and_six_tasks_of_fedast() -> None:
    def said(experiment: str, algorithm: str, rounded: bool) -> str:
        mine = [
            max(task["ended"] for task in run["tasks"])
            for run in (*runs("fedast/fig5"), *runs("fedast/fig5-rounded"))
            if (run["experiment"], run["algorithm"], run.get("rounded", False)) == (experiment, algorithm, rounded)
        ]
        return f"{fmean(mine):.0f} ({min(mine):.0f}–{max(mine):.0f})" if mine else ""

    for name, *cells in table("results/fedast", "| FedAST, b rounded up"):
        data, tasks = name.split(", ")
        experiment = f"{data.split('-')[0].lower()}-{tasks}"
        wanted = [said(experiment, *each) for each in (("fedast", False), ("fedast", True), ("sync-st", False))]
        assert cells[:3] == wanted, name


@pytest.mark.parametrize("column", [1, 2, 3], ids=["homogeneous", "heterogeneous", "digits"])
def test_the_small_runs_of_several_models(column: int) -> None:
    name = ("homogeneous", "heterogeneous", "digits")[column - 1]
    record = json.loads((RESULTS / f"fedast/small-{name}.json").read_text())["runs"]
    labels = {"`fedast`, static": "fedast", "`fedast`, dynamic": "fedast-dynamic", "`one-by-one`": "one-by-one",
              "`sync-st`, first-k": "sync-st", "`sync-st`, waits for all": "sync-st-all",
              "`sync-ucb-st`, first-k": "sync-ucb-st", "`sync-bayes-st`, first-k": "sync-bayes-st"}  # fmt: skip
    page = {
        row[0]: row[column] for row in table("several-models", "| homogeneous | heterogeneous | digits |\n|---|---:")
    }
    for said, label in labels.items():
        each = [seed["all"] for seed in record.get(label, {}).values()]
        assert bool(each) == bool(page[said]), said
        if each:
            assert all(map(near, numbers(page[said]), (fmean(each), min(each), max(each)))), said
    gains = {
        row[0]: row[column] for row in table("several-models", "| homogeneous | heterogeneous | digits |\n|---|---|")
    }
    pairs = {"static over `sync-st`": ("fedast", "sync-st"), "dynamic over `sync-st`": ("fedast-dynamic", "sync-st"),
             "dynamic over static": ("fedast-dynamic", "fedast")}  # fmt: skip
    for said, (one, other) in pairs.items():
        each = [100 * (1 - record[one][seed]["all"] / record[other][seed]["all"]) for seed in sorted(record[one])]
        shown = [float(n) for n in re.findall(r"-?\d+", gains[said].replace("−", "-"))]
        assert all(map(near, shown, [*each, fmean(each), stdev(each)])), said


# DeFedAvg

METHODS = {"FedAvg": "fedavg", "DeFedAvg-IID": "defedavg", "DeFedAvg-nIID": "defedavg", "AsySG": "asysg",
           "FedBuff": "fedbuff", "FAVANO, undivided (8)": "favano", "FAVANO, divided (8)": "favano"}  # fmt: skip
PARTS = {"fashion-iid": ("IID", "AB", 3, 0.9), "cifar10-iid": ("IID", "AB", 6, 0.7),
         "fashion-classes": ("two classes each", "CAB", 3, 0.8),
         "cifar10-classes": ("two classes each", "CAB", 7, 0.6)}  # fmt: skip
# by record: table, columns, the first of them, target
Known = dict[tuple[str, str, bool], dict[int, list[tuple[float, float]]]]  # (column, line, undivided), seed: curve


def known(record: str) -> Known:
    """Of runs that are recorded twice, and of cells that were run again by algorithm 2, that of table1.json."""
    found: Known = {}
    for run in runs(f"defedavg/{record}"):
        if "changed" not in run:
            column = "B" if run["inputs"] == "standard" else "C" if run.get("parts") == "unequal" else "A"
            key = column, run["algorithm"], run.get("normalise") == "none"
            found.setdefault(key, {})[run["seed"]] = run["curve"]
    for run in runs("defedavg/table1"):
        if run["experiment"] == record:
            key = "AC"["classes" in record], run["algorithm"], "favano" in run["algorithm"]
            found.setdefault(key, {})[run["seed"]] = [(at, a) for at, _, a in run["tasks"][0]["curve"]]
    return found


def defedavg(record: str) -> Iterator[tuple[str, dict[int, list[tuple[float, float]]]]]:
    """Each cell as printed, and its curves."""
    name, columns, first, _ = PARTS[record]
    curves = known(record)
    for row in table("results/defedavg", f"{name} | n |"):
        label, undivided = f"{METHODS[row[0]]}-{row[1]}", "undivided" in row[0]
        for at, column in enumerate(columns):
            yield row[first + at], curves.get((column, label, undivided), {})


@pytest.mark.parametrize("record", PARTS)
def test_times_of_defedavg(record: str) -> None:
    target, checked = PARTS[record][3], 0
    for cell, curves in defedavg(record):
        assert bool(cell) == bool(curves)
        said = cell.split(";")[0].removesuffix(" (1)")
        if not cell or said.startswith("diverged"):
            continue
        times = [next((at for at, a in curves[seed] if a >= target), None) for seed in sorted(curves)]
        best = [100 * max(a for _, a in curves[seed]) for seed in sorted(curves)]
        reached = [time for time in times if time is not None]
        if len(reached) == len(times) and len(times) > 1:
            mean, *others = numbers(said)
            assert near(mean, fmean(reached))
            assert others == (reached if len(reached) == 2 else [min(reached), max(reached)])
        elif not reached:
            ended, accuracy = numbers(said)
            assert {curve[-1][0] for curve in curves.values()} == {ended}
            assert min(best) - 0.051 <= accuracy <= max(best) + 0.051
        else:
            for part, time, curve, most in zip(said.split(", "), times, curves.values(), best, strict=True):
                if "diverged" not in part:
                    assert numbers(part)[0] == (curve[-1][0] if time is None else time)
                    assert time is not None or near(numbers(part)[1], most, 1)
        checked += 1
    assert checked >= 26


@pytest.mark.parametrize("record", PARTS)
def test_the_papers_times_of_defedavg(record: str) -> None:
    """The column before ours."""
    name, _, first, _ = PARTS[record]
    printed = {
        line.algorithm: line.paper for line in load("defedavg-table1", "full").lines if line.experiment == record
    }
    for row in table("results/defedavg", f"{name} | n |"):
        (paper,) = printed[f"{METHODS[row[0]]}-{row[1]}"].values()
        assert ("> " in row[first - 1]) == (paper.beyond is not None)
        wanted = paper.beyond if paper.beyond is not None else paper.mean
        assert wanted is not None
        (shown,) = re.findall(r"[\d.]+", row[first - 1])
        assert near(float(shown), wanted, len(shown.partition(".")[2]))


def test_rounds_of_defedavg() -> None:
    def said(record: str, experiment: str, label: str) -> str:
        mine = [
            run for run in runs(f"defedavg/{record}") if (run["experiment"], run["algorithm"]) == (experiment, label)
        ]
        target = PARTS[experiment][3]
        each = [next(v for _, v, a in run["tasks"][0]["curve"] if a >= target) for run in mine]
        return f"{fmean(each):.0f} ({min(each)}–{max(each)})"

    for (name, *cells), experiment in zip(
        table("results/defedavg", "Fashion-MNIST | K = 20"), ("fashion-iid", "fashion-classes"), strict=True
    ):
        assert cells[:3] == [said("fig7", experiment, f"K-{k}") for k in (20, 50, 100)], name
        if "classes" in experiment:
            assert cells[3:] == [said("fig6", experiment, f"n-{n}") for n in (5, 20, 40, 80)]


# PersA-FL


def test_personal_accuracies_on_digits() -> None:
    record: Mapping[str, Sequence[Mapping[str, float]]]
    record = json.loads((RESULTS / "persafl/digits.json").read_text())["tuned"]
    for name, *cells in table("results/personalised", "method | t = 25"):
        seeds = record[re.sub(r" \((?!option).*| \(option.*", "", name)]
        for cell, key in zip(cells, ("t=25", "t=50", "b=1", "b=3", "b=10"), strict=True):
            each = [seed[key] for seed in seeds]
            mean, spread = numbers(cell.replace(".", "0.").replace("±", " "))
            assert near(mean, fmean(each), 3)
            assert near(spread, stdev(each), 3)


def personal(data: str) -> dict[str, list[dict[float, float]]]:
    """By method, clients' own accuracy over time of each seed that judges."""
    seeds: dict[str, list[dict[float, float]]] = {}
    for path in ("persafl-maml", "persafl-me", "rest"):
        for run in runs(f"persafl/{data}-{path}"):
            if run["seed"] < 100:  # those that judge
                seeds.setdefault(run["algorithm"], []).append({row[0]: 100 * row[1] for row in run["curve"]})
    return seeds


def test_personal_accuracies_at_full_size() -> None:
    seeds = personal("mnist")
    rows = table("results/personalised", "method | t = 90")
    assert len(rows) == 8
    for name, *cells in rows:
        mine = seeds[name.split(" (")[0].lower().replace("a-fl", "afl")]
        for cell, at in zip(cells, (90.0, 150.0, 300.0, 600.0), strict=True):
            each = [seed[at] for seed in mine]
            width = half_width(4, max(each) - min(each))
            for text, value in zip(
                re.findall(r"[\d.]+", cell), (fmean(each), fmean(each) - width, fmean(each) + width), strict=True
            ):
                assert near(float(text), value, len(text.partition(".")[2])), (name, at)


def test_personal_accuracies_where_nothing_is_learnt() -> None:
    seeds = personal("cifar10")
    rows = table("results/personalised", "clients' own accuracy in %, t = 600")
    assert len(rows) == 8
    for name, mean, interval, said in rows:
        each = [m[600.0] for m in seeds[name.split(" (")[0].lower().replace("a-fl", "afl")] if 600.0 in m]
        width = half_width(len(each), max(each) - min(each))
        low, high = numbers(interval)
        assert near(float(mean), fmean(each), 1), name
        assert [near(low, max(0.0, fmean(each) - width)), near(high, fmean(each) + width)] == [True, True], name
        assert numbers(said)[0] == len(each), name
    shared = [row[3] for each in ("persafl-maml", "persafl-me", "rest")
              for run in runs(f"persafl/cifar10-{each}") for row in run["curve"]]  # fmt: skip
    assert round(100 * max(shared)) == 16


# The overview

PAPERS = {
    "AREA": ({*range(1, 11)}, {1, 2}),
    "Unbounded gradients (FedBuff)": ({1}, {1}),
    "FedAST": ({*range(1, 5)}, {*range(1, 27)}),
    "PersA-FL": ({1}, {1, 2}),
    "DeFedAvg": ({1, 2}, {*range(1, 8)}),
}  # the tables and figures that each paper has


def listed(text: str, word: str) -> set[int]:
    """Every table or figure that a text names: "tables 1 and 2", "figures 2 to 5"."""
    found: set[int] = set()
    for each in re.findall(rf"{word}s? (\d+(?:(?:, | and | to )\d+)*)", text, re.IGNORECASE):
        for part in re.split(", | and ", each):
            first, *last = map(int, part.split(" to "))
            found |= {*range(first, (last or [first])[0] + 1)}
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_the_overview_names_every_table_and_figure(paper: str) -> None:
    text = (RESULTS / "README.md").read_text()
    section = text[text.index(f"\n## {paper}\n") :].split("\n## ")[1]
    tables, figures = PAPERS[paper]
    assert listed(section, "table") == tables
    assert listed(section, "figure") == figures


# Pages that a study writes from its records


def test_the_page_of_diloco_has_the_tables_of_its_records() -> None:
    parts, small, waiting = (diloco.kept(RESULTS / "diloco" / name) for name in ("", "small", "grace"))
    shown = (RESULTS / "diloco.md").read_text().partition(diloco.MARK)[2]
    assert shown.strip() == "\n".join(diloco.tables(parts, small, waiting)).strip()


@pytest.mark.skipif(bool(load_suite("v1").stand_ins), reason="needs the suite's data sets, which its pages name")
def test_the_pages_of_the_suite_have_the_tables_of_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RESULTS / "suite", tmp_path / "suite")
    shutil.copy(RESULTS / "suite.md", tmp_path)
    monkeypatch.setattr(suite, "FOLDER", tmp_path / "suite")
    monkeypatch.setattr("sys.argv", ["suite"])
    suite.main()
    for path in [tmp_path / "suite.md", *sorted((tmp_path / "suite").iterdir())]:
        assert path.read_bytes() == (RESULTS / path.relative_to(tmp_path)).read_bytes(), path.name
