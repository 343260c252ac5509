"""Arguments of the programs of a run, and how the programs end."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Self

from metaq import ConnectionConfig, ProducerConfig

__all__ = ["PRODUCER_CONFIG", "LifeTask", "ProgramTask", "begin_program"]

PRODUCER_CONFIG = ProducerConfig(
    delivery_timeout_seconds=60.0,
    retry_max_seconds=0.1,
    connection=ConnectionConfig(request_timeout_seconds=3.0, reconnect_max_seconds=0.1),
)
"""Settings of a producer whose broker is killed: it retries soon, and gives up no message before the broker is back."""


@dataclass(frozen=True, slots=True)
class ProgramTask:
    """The arguments of the program in the subclass's module: its fields, passed as one argument in JSON."""

    def words(self) -> list[str]:
        """Return the command line of the process."""
        return ["-m", type(self).__module__, json.dumps(asdict(self))]

    @classmethod
    def told(cls) -> Self:
        """Return the task of this process."""
        return cls(**json.loads(sys.argv[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeTask(ProgramTask):
    """Arguments of a program that is killed and started again: Crew.start() gives each life a journal of its own."""

    journal: str = ""


def begin_program() -> threading.Event:
    """Log to stderr, and return an event that SIGTERM sets. On the main thread."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%X")
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    return stopping
