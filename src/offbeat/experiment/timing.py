"""The [timing] table of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from offbeat.core import names
from offbeat.core.errors import SettingError
from offbeat.experiment import schema
from offbeat.timing import Times, Timing
from offbeat.timing.speeds import Speeds


@dataclass(frozen=True)
class Untimed:
    """No [timing] table: a real run takes the time that it takes, and a simulation is refused."""

    def bind(self, clients: int, seed: int, tasks: Sequence[str] = ("",)) -> NoReturn:
        raise SettingError(
            "experiment: timing missing; timing: how long jobs take and who is there, such as "
            "exponential = { rate = 10.0 }; only a real run without --pace needs none"
        )


def read_timing(value: Any, where: str) -> Timing:
    """The timing model that a table describes: `Times`, or with `name` a class of the user's own.

    >>> read_timing({"exponential": {"rate": 10.0}, "available": 0.3}, "timing").available
    0.3
    """
    if not isinstance(value, Mapping) or not value:
        raise SettingError(
            f"{where} = {schema.shown(value)}: expected a table that says how long a job takes, such as "
            "exponential = { rate = 10.0 }"
        )
    if "name" in value:
        kind = names.find(Timing, schema.read(str, value["name"], f"{where}.name"), f"{where}.name")
        made: Timing = schema.build(kind, {k: v for k, v in value.items() if k != "name"}, where)
        return made
    table, short = _spelled_out(value, where)
    try:
        times: Times = schema.build(Times, table, where)
    except SettingError as error:
        text = str(error)
        for written_out, written in short.items():
            text = text.replace(written_out, written)
        raise SettingError(text) from None
    return times


def describe_timing(definitions: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of a [timing] table."""
    table = schema.table_schema(schema.settings(Times), definitions)
    short = {"name": {"type": "string", "description": "Your own timing model, package.module:Class."}}
    for way in ("download", "upload"):
        short[way] = {"description": f"Time of the {way}, drawn for each job."}
    numbers = {"type": "array", "items": {"type": "number"}}  # a factor for each client, or share and factor of a class
    speeds = {"anyOf": [table["properties"]["speeds"], numbers, {"type": "object", "additionalProperties": numbers}]}
    properties = {**table["properties"], **short, "speeds": speeds}
    return {**table, "properties": properties}


def _spelled_out(table: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The table with its short forms written out, and for errors what paths were before.

    `download` and `upload` are `links`; `speeds` may be a list of factors, one for each client, or a table of classes,
    { slow = [0.25, 1.3], … }, and may stand in `shifted_exponential`, as FedAST's clock is described.
    """
    result, short = dict(table), dict[str, str]()
    ways = {way: result.pop(way) for way in ("download", "upload") if way in result}
    if len(ways) == 1:
        raise SettingError(f"{where}.{next(iter(ways))}: give both download and upload")
    if ways:
        if "links" in result:
            raise SettingError(f"{where} has links and download, which both give network; keep one")
        result["links"] = ways
        short[f"{where}.links."] = f"{where}."
    inner = result.get("shifted_exponential")
    if isinstance(inner, Mapping) and "speeds" in inner:
        if "speeds" in result:
            raise SettingError(f"{where} has speeds and shifted_exponential.speeds; keep one")
        result["speeds"] = inner["speeds"]
        result["shifted_exponential"] = {k: v for k, v in inner.items() if k != "speeds"}
    speeds, place = result.get("speeds"), f"{where}.speeds"
    if isinstance(speeds, list):
        result["speeds"], short[f"{place}.factors"] = {"factors": speeds}, place
    elif isinstance(speeds, Mapping) and not any(k in names.members(Speeds) or names.imported(k) for k in speeds):
        result["speeds"], short[f"{place}.classes"] = {"classes": speeds}, place
    return result, short
