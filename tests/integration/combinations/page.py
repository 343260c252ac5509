"""docs/combinations.md, made of what is declared."""

from __future__ import annotations

from pathlib import Path

from .declared import KINDS, PAIRS, declared

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "combinations.md"

_MEANINGS = {
    "delay": "`delay=` or `deliver_at=` of a send, [delayed messages](client.md#delayed-messages)",
    "retry": "`run(handler)` with retries, [retries and dead letters](messages.md#retries-and-dead-letters)",
    "shared": "a [`SharedConsumer`](messages.md#many-consumers-of-one-partition-sixty-four-thumbnail-workers)",
    "check-back": "`send_in_transaction`, [transactions with check-back](messages.md#a-bank-transfer)",
    "transaction": "`producer.transaction()`, [transactions](client.md#transactions)",
    "priority": "`priority=1…9` of a send, for shared consumers",
    "filter": "`where=` of a reader, [filters by content](filters.md)",
    "batch": "`send_batch` and `run_batches`",
    "compression": '`ProducerConfig(compression="zstd")`, [compression](client.md#compression)',
    "idempotence": "the producer repeats a send whose answer was lost; the broker [stores it once](client.md#producer)",
    "Spark read": '`spark.read.format("metaq")`, [reading](spark.md#reading)',
    "Spark write": '`df.write.format("metaq")`, [writing](spark.md#writing)',
    "Java 1.x reader": "a consumer of the Java client of metaq 1.x",
}

_HEAD = """# Combinations of message kinds

Any two of these kinds work together, or metaq refuses the combination with an error that names both and the remedy:

| kind | is |
|---|---|
"""

_MIDDLE = """
The numbers refer to the sentences below the table.

"""

_TAIL = """
`tests/integration/test_combinations.py` checks every pair on a real broker with ZooKeeper, Spark and the Java client.
`python -m tests.integration.combinations` generates this page from the notes beside the test cases.
"""


def page() -> str:
    """The whole text."""
    combinations = declared()
    numbers = {pair: number for number, pair in enumerate(PAIRS, 1)}
    parts = [_HEAD, *(f"| {kind} | {meaning} |\n" for kind, meaning in _MEANINGS.items()), _MIDDLE]
    parts += [f"| | {' | '.join(list(KINDS)[1:])} |\n", "|---" * len(KINDS), "|\n"]
    for row in list(KINDS)[:-1]:
        cells = []
        for column in list(KINDS)[1:]:
            found = combinations.get((row, column))
            word = "" if found is None else f"{'works' if found.works else '**refused**'} {numbers[row, column]}"
            cells.append(word)
        parts.append(f"| **{row}** | {' | '.join(cells)} |\n")
    parts.append("\n")
    for pair, number in numbers.items():
        if pair in combinations:
            found = combinations[pair]
            said = found.note if found.works else f"refused: `{found.note}`"
            parts.append(f"{number}. {' and '.join(pair)}: {said}\n")
    return "".join((*parts, _TAIL))
