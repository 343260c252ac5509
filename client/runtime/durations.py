"""Check durations that users give as numbers of seconds or as timedeltas. Every duration that is a public argument or
setting is checked by this module.
"""

from __future__ import annotations

from datetime import timedelta
from numbers import Real
from typing import Any, TypeGuard

from metaq.protocol.errors import ConfigError, WrongDuration

__all__ = [
    "LONGEST_WAIT_SECONDS",
    "MAX_TTL_SECONDS",
    "Duration",
    "as_setting",
    "check_timeout",
    "check_ttl",
    "check_wait",
    "is_number",
    "milliseconds_of",
    "seconds_of",
    "whole_seconds",
]

Duration = float | timedelta
"""A number of seconds, or a timedelta. If the name of an argument or setting ends with another unit, as in `linger_ms`,
a plain number counts this unit instead of seconds.
"""

LONGEST_WAIT_SECONDS = 2_000_000.0
"""Longest wait in seconds, which is 23 days. Longer and infinite waits are reduced to this value, because a wait on a
socket is limited to 2³¹ ms.
"""

MAX_TTL_SECONDS = 100 * 365 * 86_400.0
"""Longest time to live of a message in seconds: a hundred years. A message without a ttl never expires."""


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def seconds_of(option: str, given: object) -> float:
    """Return the duration `given` in seconds. The result may be below 0, infinite or NaN. Raises WrongDuration, which
    is also a TypeError, if `given` is no duration.
    """
    if type(given) is float or type(given) is int or is_number(given):
        return given
    if isinstance(given, timedelta):
        return given.total_seconds()
    raise WrongDuration(option, given)


def check_wait(option: str, given: Duration, *, more_than_0: bool = False, remedy: str = "") -> float:
    """Check the duration of a wait, and return it in seconds. A result above LONGEST_WAIT_SECONDS is reduced to
    LONGEST_WAIT_SECONDS. Raises ConfigError, WrongDuration.
    """
    seconds = seconds_of(option, given)
    if not (seconds > 0 if more_than_0 else seconds >= 0):  # also false for NaN
        raise ConfigError(option, given, f"choose {'more than 0' if more_than_0 else '0 or more'} seconds{remedy}")
    return seconds if seconds < LONGEST_WAIT_SECONDS else LONGEST_WAIT_SECONDS


def check_timeout(given: Duration) -> float:
    """Check the argument `timeout` as check_wait does, and return it in seconds. The text of the error for a wrong
    value says that the caller can leave the argument out.
    """
    return check_wait("timeout", given, remedy=", or leave it out")


def check_ttl(given: Duration) -> float:
    """Check the argument `ttl` of a send (the message's time to live), and return it in seconds. Raises WrongDuration,
    and ConfigError unless the ttl is above 0 and at most MAX_TTL_SECONDS.
    """
    seconds = seconds_of("ttl", given)
    if not 0 < seconds <= MAX_TTL_SECONDS:  # also false for NaN
        raise ConfigError("ttl", given, f"choose more than 0 and at most {MAX_TTL_SECONDS:.0f} s, or leave it out")
    return seconds


def whole_seconds(option: str, given: int | timedelta) -> int:
    """Return a transaction's timeout as an int in seconds. Raises ConfigError if `given` is not a whole number of
    seconds.
    """
    seconds = _whole(given, timedelta(seconds=1))
    if type(seconds) is not int or seconds < 0:
        raise ConfigError(option, given, "choose a whole number of seconds, 0 for never")
    return min(seconds, int(LONGEST_WAIT_SECONDS))


def as_setting(name: str, given: Any, *, whole: bool) -> Any:
    """Return the value `given` of the setting `name` as a number. A timedelta is converted to the unit that the
    setting's name states. A number of seconds above LONGEST_WAIT_SECONDS is reduced to LONGEST_WAIT_SECONDS, unless the
    setting must be a whole number. Any other value is returned unchanged; if it is wrong, the later check of the
    settings refuses it.
    """
    if name.endswith("_ms"):
        return milliseconds_of(given)
    if name.endswith("_seconds"):
        if whole:
            return _whole(given, timedelta(seconds=1))
        seconds = given.total_seconds() if isinstance(given, timedelta) else given
        return min(seconds, LONGEST_WAIT_SECONDS) if is_number(seconds) else seconds
    return given


def milliseconds_of(given: int | timedelta) -> int:
    """Convert a timedelta to milliseconds, if it is a whole number of milliseconds. Any other value is returned
    unchanged; if it is wrong, a later check refuses it.
    """
    return _whole(given, timedelta(milliseconds=1))


def _whole(given: int | timedelta, unit: timedelta) -> int:
    if not isinstance(given, timedelta):
        return given
    whole, rest = divmod(given, unit)
    return given if rest else whole  # type: ignore[return-value]  # refused by whoever asks for a whole number
