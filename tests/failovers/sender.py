"""The process with the producers: `python -m tests.failovers.sender JSON`, see Task; it ends at SIGTERM.

It writes down each send as tests.history.sending does, and each transaction when it ends:

    commit    begun, messages, broker                       a transaction that was acknowledged
    rollback  begun, messages, error                        none of them may be stored
    doubt     begun, messages, error                        all or none of them are stored
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from metaq.errors import CommitIncomplete, CommitUnknown
from metaq.protocol.errors import MetaqError
from tests.history.sending import Load, Pipeline, Sender, Way, fixed, run_senders, sequential
from tests.kills.journal import clock
from tests.kills.programs import ProgramTask

__all__ = ["LOOSE_TOPIC", "MEANT", "SAFE_TOPICS", "Task"]

SAFE_TOPICS = ("memory", "disk")
LOOSE_TOPIC = "loose"
PARTITIONS = 2
"""Of each safe topic and set."""
KEYS = 8
MEANT = "as it was meant to be"
"""Said of a transaction that was rolled back."""
_SEND_SECONDS = 60.0
_UNDER_WAY = 400
_BATCH = (2, 40)
_BURST = (1, 1, 2, 20)


@dataclass(frozen=True, slots=True)
class Task(ProgramTask):
    """per_second: calls of each thread, about. transactions: whether some are begun."""

    connect: str
    sets: int
    seed: int
    journal: str
    per_second: float
    transactions: bool


def _key_of(sender: Sender) -> tuple[str, str]:
    """A key and its topic: always the same one."""
    number = sender.rng.randrange(KEYS)
    return f"k{number}", SAFE_TOPICS[number % len(SAFE_TOPICS)]


def _pipelined(sender: Sender, *, loose: bool) -> None:
    """Does not wait; many are under way."""
    pipeline = Pipeline(sender, _UNDER_WAY)
    while sender.go_on():
        key, topic = (None, LOOSE_TOPIC) if loose else _key_of(sender)
        for _ in range(sender.rng.choice(_BURST)):
            pipeline.send(topic, key)
    pipeline.finish()


def _batches(sender: Sender) -> None:
    """Waits for each batch of one key."""
    while sender.go_on():
        key, topic = _key_of(sender)
        messages = [sender.next(key) for _ in range(sender.rng.randrange(*_BATCH))]
        begun = clock()
        try:
            payloads = [payload for _, payload in messages]
            results = sender.producer.send_batch(topic, payloads, key=key, timeout=sender.send_seconds)
        except MetaqError as error:
            for name, _ in messages:
                sender.failed(begun, name, topic, error)
        else:
            for (name, _), result in zip(messages, results, strict=True):
                sender.acknowledged(begun, name, result)


def _transactions(sender: Sender) -> None:
    """Some messages, in both topics, in one transaction; some are rolled back."""
    while sender.go_on():
        begun = clock()
        names: list[str] = []
        give_up = sender.rng.random() < 0.1
        transaction = sender.producer.transaction(timeout_seconds=30)
        outcome, text = "rollback", MEANT
        try:
            for _ in range(sender.rng.randrange(1, 5)):
                name, payload = sender.next("-")
                names.append(str(name))
                transaction.send(sender.rng.choice(SAFE_TOPICS), payload, timeout=sender.send_seconds)
            if give_up:
                transaction.rollback()
            else:
                transaction.commit()
                outcome, text = "commit", ""
        except (CommitUnknown, CommitIncomplete) as error:
            outcome, text = "doubt", str(error)
        except MetaqError as error:
            text = f"{type(error).__name__}: {error}"
        sender.journal.write(outcome, begun, names, text)


def main(task: Task) -> None:
    """The names that begin with `keyed` and `fixed` are kept in order (tests.history.checkers)."""
    waiting: dict[str, Way] = {
        "sequential": partial(sequential, topics=SAFE_TOPICS),
        "fixed": partial(fixed, topics=SAFE_TOPICS, brokers=task.sets, partitions=PARTITIONS),
        "loose": partial(_pipelined, loose=True),
    }
    if task.transactions:
        waiting["transaction"] = _transactions
    under_way: dict[str, Way] = {
        "keyed": partial(_pipelined, loose=False),
        "keyed2": partial(_pipelined, loose=False),
        "keyedbatch": _batches,
    }
    load = Load(task.seed, task.per_second, _SEND_SECONDS)
    run_senders(task.connect, Path(task.journal), load, waiting, under_way)


if __name__ == "__main__":
    main(Task.told())
