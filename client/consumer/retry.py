"""The settings for retries of failed messages: the maximum number of times that a handler gets a message, and the
pauses before the second and later attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from metaq.protocol.errors import ConfigError
from metaq.protocol.limits import MAX_DELAY_SECONDS

from ..runtime.durations import seconds_of
from ..settings.config import check_number

__all__ = ["AUTO", "Auto", "Retry"]

Auto = Literal["auto"]
"""The type of AUTO, the default of run(): if the brokers keep delayed messages, failed messages are sent back to them;
otherwise they are tried again in place.
"""
AUTO: Final = "auto"

_MAX_ATTEMPTS = 1_000_000


@dataclass(frozen=True, slots=True)
class Retry:
    """With this setting, a failed message is sent back to the broker, which delivers it again after a pause, to any
    member of the group. After the last attempt the message goes to the group's dead letters. With the defaults all
    attempts together take up to 6.3 hours.

    Raises ConfigError for values out of range.
    """

    attempts: int = 16
    """How many times a handler may get a message, including the first time: 1 or more."""
    first: float = 1.0
    """Longest pause after the first failure, in seconds; above 0."""
    factor: float = 2.0
    """Each further failure multiplies the longest pause by this factor: 1 or more."""
    most: float = 7200.0
    """Upper limit of the longest pause, in seconds: `first` or more, at most a year."""
    jitter: float = 1.0
    """The part of a pause that is random, 0 … 1. With 1, each pause is a random time between 0 and the longest pause,
    so that messages that failed together are not delivered again together. With 0, each pause is the longest pause.
    """
    ordered: bool = False
    """Whether to keep the order of a partition's messages. If true, the partition waits until its failed message is
    processed or has become a dead letter; the consumer keeps the message for the further attempts and does not send it
    back to the broker.
    """

    def __post_init__(self) -> None:
        check_number("attempts", self.attempts)
        for name in ("first", "most"):
            seconds = seconds_of(name, getattr(self, name))
            if not 0 < seconds <= MAX_DELAY_SECONDS:  # also false for NaN
                raise ConfigError(name, seconds, f"choose more than 0 and at most {MAX_DELAY_SECONDS} seconds")
            object.__setattr__(self, name, seconds)
        check_number("factor", self.factor, whole=False)
        check_number("jitter", self.jitter, whole=False, may_be_0=True)
        if self.attempts > _MAX_ATTEMPTS:
            raise ConfigError("attempts", self.attempts, f"choose at most {_MAX_ATTEMPTS}")
        if self.factor < 1:
            raise ConfigError("factor", self.factor, "choose 1 or more: pauses do not become shorter")
        if self.first > self.most:
            raise ConfigError("most", self.most, f"choose first ({self.first:g}) … {MAX_DELAY_SECONDS} seconds")
        if self.jitter > 1:
            raise ConfigError("jitter", self.jitter, "choose 0 … 1, the part of a pause that is left to chance")
        if not isinstance(self.ordered, bool):
            raise ConfigError("ordered", repr(self.ordered), "choose True or False")

    def longest_pause(self, failures: int) -> float:
        """Return the longest possible pause, in seconds, after a message has failed `failures` times (1 or more)."""
        try:
            return min(self.most, self.first * self.factor ** (failures - 1))
        except OverflowError:
            return self.most

    def pause(self, failures: int, random: Callable[[], float]) -> float:
        """Return the pause, in seconds, before the next attempt of a message that has failed `failures` times. The
        pause has its random part (`jitter`). random: returns a number in [0, 1).
        """
        longest = self.longest_pause(failures)
        return longest * (1 - self.jitter + self.jitter * random())
