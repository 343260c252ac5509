"""Quartz cron expressions (`deleteWhen`): `second minute hour day-of-month month day-of-week [year]`.

cronsim does the calendar; this module translates what Quartz writes differently: `?` for "any day", days of the week
that count from 1 = Sunday, and an optional year.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from cronsim import CronSim, CronSimError

from metaq.protocol.errors import ConfigError

__all__ = ["Schedule", "parse_schedule"]

_REMEDY = "use second minute hour day-of-month month day-of-week, as in 0 0 6,18 * * ? (6:00 and 18:00 every day)"
_DAY_NUMBER = re.compile(r"(?<![#/\w])[0-9]+")


@dataclass(frozen=True, slots=True)
class Schedule:
    """When something is to be done, in local time. `text` is as the user wrote it."""

    text: str
    expression: str

    def after(self, moment: datetime) -> datetime | None:
        """The first time after `moment`, None if there is none within the next 50 years."""
        return next(CronSim(self.expression, moment), None)


def parse_schedule(text: str, option: str = "deleteWhen") -> Schedule:
    """Read a Quartz expression. Raises ConfigError naming `option` and what is understood."""
    fields = text.upper().split()
    if len(fields) == 7 and fields[6] == "*":
        fields.pop()
    if len(fields) == 7:
        raise ConfigError(option, text, f"years are not supported: {_REMEDY}")
    if len(fields) != 6:
        raise ConfigError(option, text, f"has {len(fields)} fields, not 6: {_REMEDY}")
    if (fields[3] == "?") == (fields[5] == "?") and "?" in fields:
        raise ConfigError(option, text, f"'?' may stand for one of the two day fields: {_REMEDY}")
    try:
        fields[5] = _DAY_NUMBER.sub(_from_quartz_day, fields[5])
        expression = " ".join("*" if each == "?" else each for each in fields)
        CronSim(expression, datetime(2000, 1, 1))
    except (CronSimError, ValueError) as error:
        raise ConfigError(option, text, f"{error}: {_REMEDY}") from error
    return Schedule(text, expression)


def _from_quartz_day(found: re.Match[str]) -> str:
    day = int(found.group())
    if not 1 <= day <= 7:
        raise ValueError(f"day of week {day} is not 1 (Sunday) … 7 (Saturday)")
    return str(day - 1)
