"""Our numbers against the paper's, drawn: `python -m studies.against FIGURE outcome.json…`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # told apart by everybody


def draw(target: Path, outcomes: Sequence[Path], quantities: Sequence[str] = ("accuracy", "loss")) -> None:
    """A panel a quantity: every cell that both have as a point with both ranges, on the line where they agree."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(quantities), figsize=(3.4 * len(quantities), 3.2), layout="constrained")
    for panel, quantity in zip(panels, quantities, strict=True):
        for colour, path in zip(_COLOURS, outcomes, strict=False):
            outcome = json.loads(path.read_text(encoding="utf-8"))
            cells = [cell for cell in outcome["cells"] if cell["cell"].endswith(f":{quantity}") and _whole(cell)]
            ours, paper = ([cell[who] for cell in cells] for who in ("ours", "paper"))
            panel.errorbar(
                [p["mean"] for p in paper],
                [o["mean"] for o in ours],
                xerr=_reach(paper),
                yerr=_reach(ours),
                fmt="o",
                markersize=3,
                linewidth=0.6,
                color=colour,
                label=outcome["where"],
            )
        low, high = panel.get_xlim()
        panel.plot([low, high], [low, high], color="#888888", linewidth=0.8, zorder=0)
        if quantity == "loss":
            panel.set(xscale="log", yscale="log")
        panel.set(xlabel=f"{quantity}, paper", ylabel=f"{quantity}, offbeat")
        panel.grid(alpha=0.2)
    panels[0].legend(fontsize=7, frameon=False)
    figure.savefig(target, dpi=160, metadata={"Date": None} if target.suffix == ".svg" else None)


def _whole(cell: dict[str, Any]) -> bool:
    return all(cell[who][name] is not None for who in ("ours", "paper") for name in ("mean", "min", "max"))


def _reach(values: Sequence[dict[str, float]]) -> list[list[float]]:
    return [[max(0.0, v["mean"] - v["min"]) for v in values], [max(0.0, v["max"] - v["mean"]) for v in values]]


if __name__ == "__main__":
    draw(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
