"""`offbeat new`: a project folder with an experiment that runs as it is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from offbeat.core.errors import FolderError, unknown

_FILES = {
    "my_data.py": "the samples, from `load()`: replace it with your own",
    "my_model.py": "the model, any `torch.nn.Module`",
    "my_algorithm.py": "your algorithm: a server and a local trainer",
    "real.toml": "the same experiment for real machines: every site loads its own samples",
}


@dataclass(frozen=True)
class ProjectKind:
    """A kind of task.

    about: in one sentence.   instead: what else there is for such a task.   swept: what its README sweeps over.
    real: how it runs for real.
    """

    about: str
    instead: str = ""
    swept: str = "algorithm.*.local.sgd.lr=[0.2,0.5]"
    real: str = "offbeat up experiment.toml              # the same with real processes on this machine"


KINDS = {
    "classification": ProjectKind(
        "Classification: 16 clients with uneven shares of the digits that come with scikit-learn."
    ),
    "regression": ProjectKind(
        "Regression: ten age groups of patients predict the progression of a disease.",
        swept="algorithm.*.local.sgd.lr=[0.02,0.1]",
    ),
    "multi-label": ProjectKind(
        "Several 0/1 labels per sample: three questions about an image.",
        swept="algorithm.*.local.sgd.lr=[1.0,2.0]",
    ),
    "language-model": ProjectKind(
        "Next-token prediction: letters of Python's own manual, one topic per client.",
        instead="If your texts are .txt files, one per client, you need neither `my_data.py` nor `my_model.py`: in "
        '`experiment.toml`, write `data = { texts = "FOLDER" }` and `model = "gpt"`, set `clients` to the number of '
        "files at most, and remove `client`, `loss` and `metrics`.",
        swept="algorithm.*.local.sgd.lr=[0.75,1.2]",
    ),
    "sites": ProjectKind(
        "One data set per site: three clinics whose samples stay where they are.",
        real="offbeat up real.toml --data my_data:load   # the same with real processes on this machine",
    ),
    "algorithm": ProjectKind(
        "Your own algorithm compared with FedBuff, on the digits that come with scikit-learn.",
        swept="algorithm.mine.keep=[0.5,0.9]",
    ),
}


def create(folder: Path | str, kind: str = "classification") -> list[Path]:
    """Write a project of this kind into a new folder; return its files."""
    if kind not in KINDS:
        raise unknown("kind of project", kind, KINDS)
    place = Path(folder)
    source = files("offbeat.experiment").joinpath("projects", kind)
    texts = {each.name: each.read_text("utf-8") for each in source.iterdir() if each.name.endswith((".py", ".toml"))}
    texts["README.md"] = _readme(place, kind, list(texts))
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise FolderError(f"{place} is not empty; name a new folder")
        for name, text in texts.items():
            (place / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise FolderError(f"cannot write {place}: {error.strerror}") from None
    return [place / name for name in sorted(texts)]


def _readme(folder: Path, kind: str, names: list[str]) -> str:
    text = files("offbeat.experiment").joinpath("projects", "README.md").read_text("utf-8")
    rows = "\n".join(f"| `{name}` | {said} |" for name, said in _FILES.items() if name in names)
    found = KINDS[kind]
    name = folder.resolve().name
    about = f"{found.about}\n\n{found.instead}" if found.instead else found.about
    filled = {"NAME": name, "ABOUT": about, "SWEPT": found.swept, "REAL": found.real, "FILES": rows}
    for word, value in filled.items():
        text = text.replace(word, value, 1)
    return text
