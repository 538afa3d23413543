"""The papers' experiments as data: one TOML file each, with the paper's numbers, claims and a quick version.

A file has
    title, paper, where     what is reproduced and where it stands
    like                    another file whose experiments, axes and quantities are meant, changed by [change]
    [experiment.NAME]       an experiment with its [sweep]
    [axis.NAME]             short names for keys of the sweep and their values
    [quantity.NAME]         what is read off the runs (`cells.py` has the closed list)
    lines                   rows of the paper's table: which runs, and what the paper prints for each quantity
    [[derived]]             numbers made of other cells
    [[claim]]               what the paper says, as a comparison of cells (`claims.py` has the closed list)
    [quick]                 what is smaller in the version that two cores do in minutes
"""

from __future__ import annotations

from offbeat.papers.entry import PaperEntry, load, names
from offbeat.papers.outcome import Outcome, conclude

__all__ = ["Outcome", "PaperEntry", "conclude", "load", "names"]
