"""Tables become objects by the classes' own fields, types and docstrings; every slip is named with its path."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pytest

from offbeat.core import names
from offbeat.core.errors import SettingError, positive
from offbeat.experiment import schema


class Shape(Protocol):
    def area(self) -> float: ...


@dataclass(frozen=True)
class Square:
    """Equal sides. It has four of them.

    side: length of a side, a.
    """

    side: float

    def __post_init__(self) -> None:
        positive(side=self.side)

    def area(self) -> float:
        return self.side**2


@dataclass(frozen=True)
class Rectangle:
    """Two sides.

    width: of it.   height: the other way,
        said on two lines.
    """

    width: float
    height: float = 1.0

    def area(self) -> float:
        return self.width * self.height


@dataclass(frozen=True)
class Dot:
    """No extent."""

    def area(self) -> float:
        return 0.0


@dataclass(frozen=True)
class Parts:
    """Named pieces."""

    of: Mapping[str, tuple[float, float]]
    even: bool = False

    def area(self) -> float:
        return sum(a * b for a, b in self.of.values())


@dataclass(frozen=True)
class Picture:
    """A picture.

    shape: what is on it.
    copies: how many.
    """

    shape: Shape = field(metadata={"flat": True})
    copies: int = 1
    size: int | Shape | None = None
    colour: Literal["red", "blue"] = "red"
    mode: float | Literal["best"] = 1.0
    points: tuple[float, ...] = ()
    pair: tuple[float, str] | None = None
    note: str = field(default="", metadata={"setting": False})
    done: bool = False
    inner: Square | None = None


names.register(Shape, {"square": Square, "rectangle": Rectangle, "dot": Dot, "parts": Parts})

FORMS: dict[str, tuple[Any, Any]] = {
    "a name": ("dot", Dot()),
    "a name that is true": ({"dot": True}, Dot()),
    "a table behind a name": ({"square": {"side": 2}}, Square(2.0)),
    "a value goes to the first field": ({"square": 2}, Square(2.0)),
    "a list goes to the first fields": ({"rectangle": [2, 3]}, Rectangle(2.0, 3.0)),
    "a key beside the name is a further field": ({"rectangle": 2, "height": 5}, Rectangle(2.0, 5.0)),
    "a name and its settings in one table": ({"name": "rectangle", "width": 2}, Rectangle(2.0)),
    "names of one's own": ({"parts": {"a": [1, 2]}, "even": True}, Parts({"a": (1.0, 2.0)}, True)),
    "the mapping by its field's name": ({"parts": {"of": {"a": [1, 2]}}}, Parts({"a": (1.0, 2.0)})),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_member_is_read_in_every_form(form: str) -> None:
    value, made = FORMS[form]
    assert schema.read(Shape, value, "here") == made
    assert type(schema.read(Shape, value, "here")) is type(made)


def test_a_table_becomes_its_class() -> None:
    table = {
        "square": 2,
        "copies": 3,
        "size": 4,
        "colour": "blue",
        "mode": "best",
        "points": [1, 2.5],
        "pair": [1, "x"],
    }
    made = schema.build(Picture, table, "picture")
    assert made == Picture(Square(2.0), 3, 4, "blue", "best", (1.0, 2.5), (1.0, "x"))
    assert schema.build(Picture, {"shape": "dot", "size": {"square": 1}}, "picture") == Picture(Dot(), size=Square(1.0))
    assert schema.build(Picture, {"dot": True, "inner": {"side": 1}}, "picture").inner == Square(1.0)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"dot": True, "copies": "3"}, 'picture.copies = "3": expected a whole number'),
    ({"dot": True, "copies": True}, "picture.copies = true: expected a whole number"),
    ({"dot": True, "copies": 2.0}, "picture.copies = 2.0: expected a whole number"),
    ({"dot": True, "done": 1}, "picture.done = 1: expected true or false"),
    ({"dot": True, "mode": math.nan}, 'picture.mode = NaN: expected a number or "best"'),
    ({"dot": True, "mode": "worst"}, 'picture.mode = "worst": expected a number or "best"'),
    ({"dot": True, "colour": "green"}, 'picture.colour = "green": expected "red" or "blue"'),
    ({"dot": True, "size": "x"}, 'picture.size = "x": expected a whole number or one of square, rectangle, dot, parts'),
    ({"dot": True, "size": 2.5}, "picture.size = 2.5: expected a whole number or one of square, rectangle, dot, parts"),
    ({"dot": True, "points": 3}, "picture.points = 3: expected a list"),
    ({"dot": True, "points": ["a"]}, 'picture.points[0] = "a": expected a number'),
    ({"dot": True, "pair": [1]}, "picture.pair = [1]: expected a list of 2"),
    ({"dot": True, "copys": 3}, "picture.copys: unknown; did you mean 'copies'?"),
    ({"dot": True, "note": "x"}, "picture.note: unknown; "),
    ({"squre": 3}, "picture.squre: unknown; did you mean 'square'?"),
    ({"square": {"side": "3"}}, 'picture.square.side = "3": expected a number'),
    ({"square": {"sid": 3}}, "picture.square.sid: unknown; did you mean 'side'?"),
    ({"square": {}}, "picture.square: side missing; side: length of a side, a."),
    ({"square": -1}, "picture.square = -1.0: must be a positive number"),
    ({"square": 1, "rectangle": 2}, "picture has square and rectangle, which both give shape; keep one"),
    ({"shape": {"square": 1, "rectangle": 2}}, "picture.shape has square and rectangle; keep one"),
    ({"rectangle": [1, 2, 3]}, "picture.rectangle = [1, 2, 3]: expected width, height"),
    (
        {"shape": {"rectangle": {"height": 2, "width": 1}, "height": 2}},
        "picture.shape.rectangle: height is given twice",
    ),
    ({"dot": 3}, "picture.dot = 3: it takes no settings"),
    ({"copies": 1}, "picture: shape missing; shape: what is on it."),
    ({"dot": True, "inner": 3}, "picture.inner = 3: expected a table"),
]


@pytest.mark.parametrize(("table", "says"), WRONG)
def test_a_slip_is_named_with_its_path_its_value_and_what_was_expected(table: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError) as raised:
        schema.build(Picture, table, "picture")
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize("hint", [float, int, Literal[1, 2]])
def test_a_bool_is_no_number(hint: Any) -> None:
    with pytest.raises(SettingError, match="here = true: expected"):
        schema.read(hint, True, "here")


def test_a_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(SettingError, match="expected a number"):
        schema.read(float, 10**400, "here")


def test_texts_come_from_docstrings_and_the_line_is_the_first_sentence() -> None:
    texts = {s.name: s.text for s in schema.settings(Rectangle)}
    assert texts == {"width": "of it.", "height": "the other way, said on two lines."}
    assert schema.line(Square) == "Equal sides"


def test_the_json_schema_of_a_class_describes_its_keys() -> None:
    definitions: dict[str, Any] = {}
    table = schema.table_schema(schema.settings(Picture), definitions)
    assert table["properties"]["copies"] == {"type": "integer", "description": "how many."}
    assert table["properties"]["colour"] == {"enum": ["red", "blue"]}
    assert "square" in table["properties"]  # flat
    assert "note" not in table["properties"]
    assert table["required"] == ["shape"] or "required" not in table


OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Circle:
    '''A round one.'''
    radius: float = 1.0

    def area(self):
        return 3.14 * self.radius**2

broken = 3
"""


@pytest.fixture
def own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_shapes.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own")
def test_a_class_of_the_users_own_is_a_member() -> None:
    assert schema.read(Shape, "own_shapes:Circle", "here").radius == 1.0
    assert schema.read(Shape, {"own_shapes:Circle": {"radius": 2}}, "here").radius == 2.0
    assert schema.build(Picture, {"own_shapes:Circle": 2}, "picture").shape.radius == 2.0
    with pytest.raises(SettingError, match=r'here.own_shapes:Circle.radius = "2": expected a number'):
        schema.read(Shape, {"own_shapes:Circle": {"radius": "2"}}, "here")
    with pytest.raises(SettingError, match="has no 'Circl'; did you mean 'Circle'"):
        schema.read(Shape, "own_shapes:Circl", "here")
    with pytest.raises(SettingError, match="no module 'nowhere'"):
        schema.read(Shape, "nowhere:Circle", "here")


def test_every_name_that_would_be_imported_is_found_wherever_it_stands() -> None:
    table = {"a": [{"x.y:Z": {"b": "m:f"}}], "c": "tls://host:4222", "d": "plain"}
    assert list(names.all_imported(table)) == ["x.y:Z", "m:f"]
