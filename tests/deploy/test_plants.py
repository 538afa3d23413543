"""A mistake that is planted where there is nothing any more is itself a mistake, and says so."""

from __future__ import annotations

from typing import Any

import pytest
from faults import Bugs
from plants import caught
from shipped import Mistake

from offbeat.deploy.client_core import ClientCore
from offbeat.deploy.journal import Appender, LogClock
from offbeat.deploy.reducer import Reducer
from offbeat.deploy.verdicts import Verdicts


def test_a_plant_in_the_place_of_nothing_is_refused() -> None:
    class Renamed(Reducer):
        def _folds_no_more(self) -> None: ...

    class RenamedPart(Verdicts):
        def _settles_no_more(self) -> None: ...

    with pytest.raises(AttributeError, match=r"Reducer\._folds_no_more does not exist"):
        Bugs(reducer=Renamed)
    with pytest.raises(AttributeError, match=r"Verdicts\._settles_no_more does not exist"):
        Bugs(verdicts=RenamedPart)
    with pytest.raises(AttributeError, match=r"Appender\._compares does not exist"):
        Mistake([(Appender, "_compares", lambda *_: None)])


def test_a_plant_that_is_called_in_another_way_is_refused() -> None:
    class Shorter(ClientCore):
        def leave(self) -> Any: ...

    with pytest.raises(AttributeError, match=r"ClientCore\.leave is called in another way"):
        Bugs(core=Shorter)
    with pytest.raises(AttributeError, match=r"LogClock\.hear is called in another way"):
        Mistake([(LogClock, "hear", lambda self: None)])


def test_a_plant_s_own_error_is_not_what_it_is_caught_by() -> None:
    assert caught(["a message was applied twice"])
    assert not caught([])
    with pytest.raises(AssertionError, match="does not fit"):
        caught(["in the background: TypeError: _part() missing 1 required positional argument"])
