"""Quartz cron expressions (`deleteWhen`): `second minute hour day-of-month month day-of-week [year]`.

The library cronsim computes the dates. This module translates a Quartz expression into an expression for cronsim.
Quartz differs from cronsim in three ways: `?` means "any day", days of the week are numbered from 1 = Sunday, and there
may be a year.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

from cronsim import CronSim, CronSimError

from metaq.protocol.errors import ConfigError

__all__ = ["Schedule", "parse_schedule"]

_REMEDY = (
    "use second minute hour day-of-month month day-of-week [year], as in 0 0 6,18 * * ? (6:00 and 18:00 every day)"
)
_YEARS = re.compile(r"(\*|[0-9]{4})(?:-([0-9]{4}))?(?:/([0-9]{1,3}))?")
_FIRST_YEAR, _LAST_YEAR = 1970, 2099  # Quartz's
_DAY_NUMBER = re.compile(r"(?<![#/\w])[0-9]+")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The times at which a recurring action is due, in local time. text: the expression as the user wrote it."""

    text: str
    expression: str
    years: frozenset[int] | None = None
    """The schedule applies only in these years. If it is None, the schedule applies in every year."""

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after `moment`, or None if there is none within the next 50 years."""
        if self.years is None:
            return next(CronSim(self.expression, moment), None)
        for year in sorted(year for year in self.years if year >= moment.year):
            start = moment if year == moment.year else datetime(year, 1, 1, tzinfo=moment.tzinfo) - timedelta(seconds=1)
            due = next(CronSim(self.expression, start), None)
            if due is not None and due.year == year:
                return due
        return None


def parse_schedule(text: str, option: str = "deleteWhen") -> Schedule:
    """Parse a Quartz expression. Raises ConfigError if the expression is invalid; the error's text names `option`, the
    option with this expression, and the accepted syntax.
    """
    fields = text.upper().split()
    if len(fields) not in (6, 7):
        raise ConfigError(option, text, f"has {len(fields)} fields, not 6 or 7: {_REMEDY}")
    years = fields.pop() if len(fields) == 7 else "*"
    if (fields[3] == "?") == (fields[5] == "?") and "?" in fields:
        raise ConfigError(option, text, f"'?' may stand for one of the two day fields: {_REMEDY}")
    try:
        fields[5] = _DAY_NUMBER.sub(_from_quartz_day, fields[5])
        expression = " ".join("*" if each == "?" else each for each in fields)
        CronSim(expression, datetime(2000, 1, 1))
        return Schedule(text, expression, None if years in ("*", "?") else _years(years))
    except (CronSimError, ValueError) as error:
        raise ConfigError(option, text, f"{error}: {_REMEDY}") from error


def _years(field: str) -> frozenset[int]:
    """Parse Quartz's year field, and return the years: `2030`, `2030,2032`, `2030-2035`, `2030/2` (every second year
    from 2030 on), `2030-2040/5`, `*/2`. Raises ValueError.
    """
    years: set[int] = set()
    for part in field.split(","):
        found = _YEARS.fullmatch(part)
        if found is None:
            raise ValueError(f"year {part} is not understood")
        first, last, step = found[1], found[2], int(found[3] or 1)
        start = _FIRST_YEAR if first == "*" else int(first)
        end = int(last) if last else _LAST_YEAR if found[3] or first == "*" else start
        if not (_FIRST_YEAR <= start <= end <= _LAST_YEAR and step):
            raise ValueError(f"year {part} is not within {_FIRST_YEAR} … {_LAST_YEAR}")
        years.update(range(start, end + 1, step))
    return frozenset(years)


def _from_quartz_day(found: re.Match[str]) -> str:
    day = int(found.group())
    if not 1 <= day <= 7:
        raise ValueError(f"day of week {day} is not 1 (Sunday) … 7 (Saturday)")
    return str(day - 1)
