"""The process that reads as a Spark job does: `python -m tests.failovers.ranges JSON`, see Task; it ends at SIGTERM.

It plans queries with the connector's own code, each from where the one before ended, and reads the ranges as tasks do.

    row    partition, offset, id, message
    again  error                            a query that did not succeed; the next one begins where it did
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metaq.protocol.errors import MetaqError
from metaq.spark_connector.options import ReadOptions
from metaq.spark_connector.reader import MetaqReader
from tests.kills.journal import Journal
from tests.kills.programs import ProgramTask, begin_program

__all__ = ["Task"]

_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Task(ProgramTask):
    connect: str
    topics: Sequence[str]
    journal: str


def _query(task: Task, starts: dict[str, dict[str, int]], journal: Journal) -> None:
    """One query from `starts`, which move behind what it has read. Raises MetaqError."""
    words = {"zookeeper": task.connect, "subscribe": ",".join(task.topics)}
    if starts:
        words["startingOffsets"] = json.dumps(starts)
    reader = MetaqReader(ReadOptions.parse(words))
    for planned in reader.partitions():
        if planned.value is None:  # nothing to read
            continue
        for batch in reader.read(planned):
            rows = batch.select(["topic", "broker", "partition", "offset", "id", "value"]).to_pylist()
            for row in rows:
                message = row["value"].partition(b" ")[0].decode("ascii")
                journal.write(
                    "row", f"{row['topic']} {row['broker']}-{row['partition']}", row["offset"], row["id"], message
                )
        where = planned.value.id
        starts[where.topic][f"{where.broker}-{where.partition}"] = planned.value.end


def main(task: Task) -> None:
    stopping = begin_program()
    journal = Journal(Path(task.journal))
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    while not stopping.wait(_PAUSE_SECONDS):
        try:
            _query(task, starts, journal)
        except MetaqError as error:
            journal.write("again", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(Task.told())
