"""What a broker has promised about transactions and plain puts, by the markers, and whether its partitions keep it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .history import EMPTY, Broken

__all__ = ["Promises"]


@dataclass(slots=True)
class _Transaction:
    """messages: (partition, name) that were taken. asked, done: verbs, in order."""

    messages: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)


class Promises:
    """plain: name -> partition of the puts outside of transactions; kept: those that are acknowledged and must stay."""

    def __init__(self, marks: Iterable[Mapping[str, object]]) -> None:
        self.plain: dict[str, str] = {}
        self.kept: set[str] = set()
        self.transactions: dict[str, _Transaction] = {}
        for mark in marks:
            key, name, partition = (str(mark.get(word)) for word in ("key", "name", "partition"))
            transaction = self.transactions.setdefault(key, _Transaction())
            match mark["kind"]:
                case "plain":
                    self.plain[name] = partition
                case "plain_done":
                    self.kept.add(name)
                case "tx_put":
                    transaction.messages.append((partition, name))
                case "tx_asked":
                    transaction.asked.append(str(mark["verb"]))
                case "tx_done":
                    transaction.done.append(str(mark["verb"]))

    def check(self, found: Mapping[str, Sequence[str]], prepared: Iterable[str]) -> None:
        """found: the names in each partition; prepared: keys that RECOVER lists. Raises Broken.

        EMPTY stands in nobody's place: who misses a message there says so, and a transaction around it is torn apart.
        """
        places: dict[str, tuple[str, int]] = {}
        for partition, names in found.items():
            for place, name in enumerate(names):
                if name == EMPTY:
                    continue
                if name in places:
                    raise Broken(f"{name} is there twice: in {places[name][0]} and in {partition}")
                places[name] = (partition, place)
        known = {**self.plain, **{name: where for each in self.transactions.values() for where, name in each.messages}}
        for name, (partition, _) in places.items():
            if known.get(name) != partition:
                raise Broken(f"{partition}: {name} was never put there")
        for name in self.kept:
            if name not in places:
                raise Broken(f"{self.plain[name]}: the acknowledged message {name} is lost")
        waiting = set(prepared)
        for key, transaction in self.transactions.items():
            self._check_transaction(key, transaction, places, key in waiting)
        unknown = waiting - self.transactions.keys()
        if unknown:
            raise Broken(f"unknown transactions are prepared: {sorted(unknown)}")

    @staticmethod
    def _check_transaction(
        key: str, transaction: _Transaction, places: Mapping[str, tuple[str, int]], prepared: bool
    ) -> None:
        there = [name for _, name in transaction.messages if name in places]
        if there and len(there) != len(transaction.messages):
            raise Broken(f"{key}: {len(there)} of its {len(transaction.messages)} messages are there")
        commit = any(verb.startswith("COMMIT") for verb in transaction.asked)
        last = transaction.done[-1] if transaction.done else ""
        if there and (last == "ROLLBACK" or not commit):
            raise Broken(f"{key} is there, and was not committed: {transaction.asked}, {transaction.done}")
        if last.startswith("COMMIT") and transaction.messages and not there:
            raise Broken(f"{key} was committed, and its messages are lost")
        if last == "PREPARE" and transaction.asked[-1] == "PREPARE" and not prepared:
            raise Broken(f"{key} was prepared, and is not waiting for its coordinator")
        if prepared and there:
            raise Broken(f"{key} waits for its coordinator, and its messages are there")
        for partition in dict.fromkeys(where for where, _ in transaction.messages):
            block = [name for where, name in transaction.messages if where == partition]
            where_found = [places[name][1] for name in block if name in places]
            if where_found and where_found != list(range(where_found[0], where_found[0] + len(block))):
                raise Broken(f"{key}: its messages in {partition} are torn apart")
