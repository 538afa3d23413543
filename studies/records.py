"""Numbers of single runs in a JSON file, so that a study that was stopped goes on where it was."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


class Records:
    """What runs have given, by their settings; kept in a file, if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.rows = json.loads(path.read_text())
        self.known = {_key(row): row["value"] for row in self.rows}

    def over(self, seeds: Iterable[int], names: Mapping[str, Any], run: Callable[..., float]) -> list[float]:
        """run(**names, seed=…) for each seed, those that are known excepted."""
        return [self._value({**names, "seed": seed}, run) for seed in seeds]

    def _value(self, settings: dict[str, Any], run: Callable[..., float]) -> float:
        key = _key(settings)
        if key not in self.known:
            self.known[key] = run(**settings)
            self.rows.append({**settings, "value": self.known[key]})
            self._save()
        return float(self.known[key])

    def _save(self) -> None:
        if self.path is None:
            return
        lines = ",\n".join(json.dumps(row) for row in self.rows)
        half = self.path.with_suffix(".part")
        half.write_text(f"[\n{lines}\n]\n")
        os.replace(half, self.path)


def _key(row: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "value"}, sort_keys=True)
