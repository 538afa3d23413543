"""What of the five papers' figures has no record at full size: run by value, in parts that resume, and written down.

python -m studies.remaining plan FOLDER               # FOLDER/plan.json: what docs/results lacks, most valuable first
python -m studies.remaining plan FOLDER --from records.zip      # … and what these records lack; they go into FOLDER
python -m studies.remaining keep records.zip          # records, pages and curves into docs/results

In between, on a machine that needs nothing but PyTorch and the data, FOLDER does the plan (`studies.figures`):

nvidia-cuda-mps-control -d
setsid nohup python3 -m studies.figures FOLDER --device cuda --processes 4 --limit 1700 > FOLDER.log 2>&1 &
python3 -m studies.figures FOLDER --pack records.zip --wait 540       # as often as one likes

Runs with the same settings are done once, whatever entries they belong to.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from studies import figures, persafl
from studies.in_memory import write

RESULTS = Path(__file__).parent.parent / "docs" / "results"
Record = dict[str, Any]


class Wave(NamedTuple):
    """seconds: of an H200 alone, estimated.   claims: that it helps to check."""

    name: str
    seconds: int
    claims: float


WAVES = (
    Wave("fedast-fig2/main/sync-bayes-st,sync-ucb-st,sync-st-all", 150, 2),
    Wave("fedast-fig5/cifar10-4", 55, 0.7),
    Wave("fedast-fig5/cifar10-6", 80, 1),
    Wave("fedast-table3/fedast-low", 25, 0.3),
    Wave("fedast-table3/sync-low", 25, 0.3),
    Wave("fedast-fig24/low", 25, 0.3),
    Wave("defedavg-fig6/fashion-iid/n-5,n-20,n-40,n-80", 130, 1.5),
    Wave("fedast-table3/sync-high", 60, 0.7),
    Wave("fedast-fig2/main/fedast,sync-st", 90, 1),
    Wave("fedast-table3/fedast-high", 70, 0.7),
    Wave("fedast-fig24/high", 70, 0.7),
    Wave("fedast-fig5/cifar10-2", 35, 0.3),
    Wave("defedavg-table1/cifar10-classes/favano-10,favano-20,favano-80 until.time=1800 trials=1", 150, 1),
    Wave("fedast-fig5/shakespeare-2", 50, 0.3),
    Wave("fedast-fig5/shakespeare-4", 90, 0.5),
    Wave("fedast-fig5/shakespeare-6", 130, 0.7),
    Wave("defedavg-fig7/cifar10-classes until.time=1000", 220, 1),
    Wave("fedast-fig3/cifar10", 40, 0.1),
    Wave("defedavg-fig6/cifar10-classes/n-5,n-20,n-80 until.time=1800", 600, 1),
    Wave("defedavg-fig7/cifar10-iid until.time=600", 620, 0.5),
    Wave("defedavg-fig6/cifar10-iid/n-5,n-20,n-80 until.time=600", 600, 0.5),
)


def identity(table: Mapping[str, Any]) -> str:
    """The same for two runs that are the same but for their algorithm's label and where they end at the latest."""
    plain = json.loads(json.dumps(table))
    ((label, own),) = plain.pop("algorithm").items()
    own.pop("label", None)
    plain["algorithm"] = {"name": label, **own}
    plain.pop("until")
    plain.pop("trials", None)
    return json.dumps(plain, sort_keys=True)


def place(entry: str) -> Path:
    """Where docs/results keeps an entry's records, below it."""
    paper, _, figure = entry.partition("-")
    return Path(paper) / f"{figure}.json"


def _key(run: Mapping[str, Any]) -> tuple[str, str, str, int]:
    return run["experiment"], run["algorithm"], json.dumps(run["settings"], sort_keys=True), run["seed"]


def points(entry: str, wanted: set[str] | None = None) -> Iterator[tuple[Record, str]]:
    """Every run that an entry's table or figure shows, and its identity."""
    from offbeat.papers import load  # with pyarrow

    for experiment in load(entry).experiment:
        if wanted is None or experiment in wanted:
            (wave,) = figures.plan([f"{entry}/{experiment}"])
            for run in wave["runs"]:
                yield {"experiment": experiment, **run}, identity(run["table"])


def _known(results: Path, folder: Path | None, entries: Sequence[str]) -> dict[str, Record]:
    """Finished runs by identity: of docs/results, of a folder with records of waves, and of figure 7's first record."""
    found: dict[str, Record] = {}
    for entry in entries:
        own = [_records(results / place(entry).parent, entry), _records(folder, entry)]
        done = {_key(run): run for runs in own for run in runs if _whole(run)}
        if done:
            for point, same in points(entry, {key[0] for key in done}):
                if _key(point) in done and not (same in found and _stepped(found[same])):
                    found[same] = done[_key(point)]
    first = results / "fedast" / "fig7.json"
    runs = json.loads(first.read_text())["runs"] if first.exists() else []
    if old := {_key(run): run for run in map(_renamed, runs) if run and _whole(run)}:
        found |= {same: old[_key(p)] for p, same in points("fedast-fig7") if _key(p) in old}
    return found


def _whole(run: Record) -> bool:
    """Whether a run is over and has today's settings.

    DeFedAvg-IID used to train on a model again; FedAST's buffers were rounded to the nearest size, not up.
    """
    return bool(run["finished"]) and not (run.get("repeat") or run.get("rounded"))


def _stepped(run: Record) -> bool:
    """Whether a run was recorded with the server's steps."""
    return any(task["curve"] and task["curve"][-1][1] for task in run["tasks"])


@cache
def _counts_steps(entry: str) -> bool:
    from offbeat.papers import load  # with pyarrow

    return any(q.by == "version" or q.of == "step time" for q in load(entry).quantity.values())


def _serves(run: Record, entry: str) -> bool:
    """Whether an entry can be judged by this run."""
    return _stepped(run) or not _counts_steps(entry)


def _records(folder: Path | None, entry: str) -> list[Record]:
    """An entry's runs."""
    runs: list[Record] = [] if folder is None else figures.merged(folder, entry)["runs"]
    return runs


def _renamed(run: Record) -> Record | None:
    """A run of fedast/fig7.json in today's form; None: it has other settings than the entry."""
    experiment = {"equation 2": "fedast", "algorithm 4": "algorithm4", None: "sync"}[run.get("allocation")]
    if run["inputs"] != "standard" or any(task["finished"] is None for task in run["tasks"].values()):
        return None
    tasks = [
        {"name": name, "ended": task["finished"], "stopped": "target", "curve": [[t, 0, a] for t, a in task["curve"]]}
        for name, task in run["tasks"].items()
    ]
    last = max(task["ended"] for task in tasks)
    return {"experiment": experiment, "algorithm": run["algorithm"], "settings": {}, "seed": run["seed"],
            "finished": True, "error": None, "updates": run["updates"], "time": last, "tasks": tasks,
            "rounded": experiment != "sync"}  # fmt: skip


def plan(results: Path, folder: Path | None, waves: Sequence[str]) -> list[dict[str, Any]]:
    """The waves with the runs of which nobody has a record yet, in their order."""
    entries = list(dict.fromkeys(wave.split("/")[0] for wave in waves if not wave.startswith("persafl")))
    known, planned = _known(results, folder, entries), set[str]()
    left = []
    for wave in figures.plan(waves):
        if "part" not in wave:
            runs, wave["runs"] = wave["runs"], []
            for run in runs:
                same = identity(run["table"])
                if same not in planned and not (same in known and _serves(known[same], wave["entry"])):
                    planned.add(same)
                    wave["runs"].append(run)
            if not wave["runs"]:
                continue
        left.append(wave)
    return left


def keep(folder: Path, results: Path) -> Iterator[str]:
    """Add the records of a folder to docs/results, with the runs that are the same as another entry's; judge, draw."""
    names = {json.loads(path.read_text()).get("entry") for path in folder.glob("*.json")} - {None}
    related = dict.fromkeys([*sorted(names), *(wave.name.split("/")[0] for wave in WAVES)])
    entries = [name for name in related if name != persafl.ENTRY.stem]
    known = _known(results, folder, entries)
    for entry in entries:
        target = results / place(entry)
        old = json.loads(target.read_text()) if target.exists() else {}
        made = figures.merged(folder, entry)
        both = [*_records(target.parent, entry), *made["runs"]]
        finished = {_key(run): run for run in both if _whole(run)}
        runs = {_key(run): run for run in both} | finished
        for point, same in points(entry) if known else ():
            if _key(point) not in finished and same in known and _serves(known[same], entry):
                kept = {key: point[key] for key in ("experiment", "algorithm", "settings", "seed")}
                runs[_key(point)] = {**known[same], **kept}
        if not runs or (entry not in names and [*runs.values()] == old.get("runs")):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target, {**old, **made, "waves": {**old.get("waves", {}), **made["waves"]}, "runs": [*runs.values()]})
        yield from _page(target, entry, list(runs.values()))
    yield from _keep_personal(folder, results / "persafl")


def _page(target: Path, entry: str, runs: Sequence[Record]) -> Iterator[str]:
    left = sum(not run["finished"] for run in runs)
    said = figures.judged(target.parent, entry)
    end = f"{len(runs)} runs are recorded in [{target.name}]({target.name}), {left} of them cut short"
    picture = target.with_name(f"{target.stem}-curves.png")
    draw(runs, picture)
    target.with_suffix(".md").write_text(f"{said}\n![accuracy over time]({picture.name})\n\n{end}.\n", encoding="utf-8")
    yield f"{entry}: {end}"


def draw(runs: Sequence[Record], picture: Path) -> None:
    """Accuracy over time, an axis for each experiment: each task of each run, and the mean while all are under way."""
    import matplotlib.pyplot as plt

    experiments = sorted({run["experiment"] for run in runs})
    columns = min(3, len(experiments))
    lines = -(-len(experiments) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(4 * columns, 3 * lines), squeeze=False, layout="constrained")
    for axis in axes.flat[len(experiments) :]:
        axis.set_visible(False)
    for axis, experiment in zip(axes.flat, experiments, strict=False):
        curves: dict[str, list[dict[float, float]]] = {}
        for run in (run for run in runs if run["experiment"] == experiment):
            own = ", ".join(f"{key.split('.')[-1]} {value}" for key, value in run["settings"].items())
            label = f"{run['algorithm']} {own}".strip()
            curves.setdefault(label, []).extend({row[0]: row[2] for row in task["curve"]} for task in run["tasks"])
        for number, (label, mine) in enumerate(sorted(curves.items())):
            for curve in mine:
                axis.plot(curve.keys(), curve.values(), color=f"C{number}", lw=0.4, alpha=0.2)
            shared = sorted(set.intersection(*(set(curve) for curve in mine)))
            mean = [sum(curve[at] for curve in mine) / len(mine) for at in shared]
            axis.plot(shared, mean, color=f"C{number}", lw=1.2, label=label)
        axis.set(title=experiment, xlabel="virtual time", ylabel="test accuracy")
        axis.legend(frameon=False, fontsize=6)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def _keep_personal(folder: Path, target: Path) -> Iterator[str]:
    """PersA-FL's records, which have another form; judged at the last time that all methods have reached."""
    found = sorted(folder.glob("cifar10-*.json"))
    found = [path for path in found if path.stem in persafl.parts("cifar10")]
    if not found:
        return
    target.mkdir(parents=True, exist_ok=True)
    ends: list[float] = []
    for path in found:
        shutil.copy(path, target / path.name)
        judging = [run for run in json.loads(path.read_text())["runs"] if run["seed"] in persafl.JUDGING]
        ends += [run["curve"][-1][0] if run["curve"] else 0.0 for run in judging if not run["error"]] or [0.0]
    at = min(ends)
    lines = [*persafl.judged(target, "cifar10", at)] if at else ["no method has been judged yet"]
    text = "\n".join(lines)
    page = f"# CIFAR-10, clients' own accuracy at t = {at:g}\n\n```text\n{text}\n```\n"
    (target / "cifar10.md").write_text(page, encoding="utf-8")
    yield f"persafl-fig2: CIFAR-10 at t = {at:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    made = commands.add_parser("plan")
    made.add_argument("folder", type=Path)
    made.add_argument("--from", dest="archive", type=Path, help="records that there are")
    made.add_argument("--only", default="", help="waves whose name contains this")
    made.add_argument("--set", nargs="+", default=[], help="overrides of every wave")
    kept = commands.add_parser("keep")
    kept.add_argument("archive", type=Path)
    for each in (made, kept):
        each.add_argument("--results", type=Path, default=RESULTS, help="default: docs/results")
    given = parser.parse_args()
    if given.command == "keep":
        with tempfile.TemporaryDirectory() as name:
            zipfile.ZipFile(given.archive).extractall(name)
            (Path(name) / "plan.json").unlink(missing_ok=True)
            print(*keep(Path(name), given.results), sep="\n")
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.archive:
        zipfile.ZipFile(given.archive).extractall(given.folder)
        (given.folder / "plan.json").unlink(missing_ok=True)
    waves = [" ".join([wave.name, *given.set]) for wave in WAVES if given.only in wave.name]
    left = plan(given.results, given.folder, waves)
    write(given.folder / "plan.json", {"waves": left})
    seconds = {" ".join([wave.name, *given.set]): wave.seconds for wave in WAVES}
    for wave in left:
        print(f"{seconds[wave['wave']]:5d} s  {len(wave.get('runs', ())):3d} runs  {wave['wave']}")


if __name__ == "__main__":
    main()
