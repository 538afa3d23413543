"""The folder of one run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from offbeat.core.errors import FolderError
from offbeat.core.vectors import Payload, Vector, materialise
from offbeat.problems.generate import generate, speaks
from offbeat.problems.parted import Parted
from offbeat.problems.supervised import Supervised
from offbeat.watch import checkpoint
from offbeat.watch.files import GENERATED, MODEL, OUTPUTS, OWN_PARTS, RESULT, write_json
from offbeat.watch.results import Result
from offbeat.watch.watched import WatchedRun

_SHOWN = 4000  # characters of generated text, at most


@dataclass(frozen=True)
class RunFolder:
    """What a run keeps on disk: its record, its checkpoints and, when it is finished, its result and model."""

    path: Path

    def result(self) -> Result | None:
        """The result, or None while the run is not finished."""
        path = self.path / RESULT
        if not path.is_file():
            return None
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            return None  # an interrupted write; the run is done again from its checkpoint
        try:
            return Result.from_json(value, self.path)
        except FolderError as error:
            raise FolderError(f"{path} is damaged: {error}; delete it to repeat this run") from None

    @property
    def generated(self) -> str:
        """What the language models of a finished run wrote; empty without any."""
        path = self.path / GENERATED
        return path.read_text(encoding="utf-8", errors="replace")[:_SHOWN] if path.is_file() else ""

    def finish(self, result: Result, simulation: WatchedRun | None = None) -> None:
        """Write the result, which marks the run as finished.   simulation: keep its final models, too."""
        if simulation is not None:
            version = str(simulation.server.models(simulation.world.server)[0].version)
            for name, tensors in final_tensors(simulation).items():
                if tensors:
                    save_file(tensors, self.path / name, metadata={"version": version} if name == MODEL else None)
            if text := _generated(simulation):
                (self.path / GENERATED).write_text(text, encoding="utf-8")
        write_json(self.path / RESULT, result.to_json())
        if simulation is not None:
            checkpoint.remove(self.path)


def final_tensors(run: WatchedRun) -> dict[str, dict[str, Vector]]:
    """What is kept of a finished run: by file, vectors by name."""
    models = run.server.models(run.world.server)
    named = [problem.name or f"task{task}" for task, problem in enumerate(run.problems)]
    given = run.server.outputs(run.world.server)
    return {
        MODEL: {name: _own(model.vector) for name, model in zip(named, models, strict=True)},
        OWN_PARTS: own_parts(run),
        OUTPUTS: {name: _own(vector) for name, vector in given.items()},
    }


def _own(vector: Vector) -> Vector:
    return materialise(vector).cpu().clone()


def _generated(run: WatchedRun) -> str:
    """What the final language models make of the beginning of a test text; empty without one."""
    models = run.server.models(run.world.server)
    parts = []
    for problem, model in zip(run.problems, models, strict=True):
        if isinstance(problem, Supervised) and speaks(problem):
            vector = materialise(model.vector)
            if bool(vector.isfinite().all()):
                found = generate(problem, vector)
                parts.append(f"{found.prompt}¦{found.text}\n")
    return "\n".join(parts)


def own_parts(run: WatchedRun) -> dict[str, Vector]:
    """By task and client, "0/3", what clients of a simulation keep of the model; real ones keep it on their disks."""
    memories: Mapping[tuple[int, int], tuple[int, Payload]] = getattr(run.world, "memories", {})
    return {
        f"{task}/{client}": _own(kept["personal"])
        for (client, task), (_, kept) in sorted(memories.items())
        if "personal" in kept and isinstance(run.locals[task], Parted)
    }
