"""At least once: what a task does with its rows. A task that Spark runs again sends them again."""

from __future__ import annotations

from collections.abc import Sequence

from metaq.client.batches import split_batches
from metaq.client.producer import Producer
from metaq.client.producer.partitioner import partition_for_key
from metaq.client.values import TopicPartition

from .columns import Item, Rows, size_of

__all__ = ["by_partition", "send_rows"]


def send_rows(producer: Producer, rows: Rows, batch_messages: int) -> None:
    """Send rows of one topic and wait until all are acknowledged.

    Rows with a key go in batches for its partition, in their order; the others in batches for each partition in turn.
    Raises what Producer.send_batch raises.
    """
    plain, keyed = by_partition(rows, producer.partitions(rows.topic))
    for batch in split_batches(plain, batch_messages, size_of=size_of):
        producer.send_batch(rows.topic, batch)
    for key, items in keyed.values():
        for batch in split_batches(items, batch_messages, size_of=size_of):
            producer.send_batch(rows.topic, batch, key=key)  # if brokers change meanwhile, they move together


def by_partition(
    rows: Rows, partitions: Sequence[TopicPartition]
) -> tuple[Sequence[Item], dict[TopicPartition | None, tuple[str, list[Item]]]]:
    """Rows without key, and by partition those with one, beside one of its keys.

    Without partitions (nobody publishes the topic now) all keys are under None.
    """
    if rows.keys is None:
        return rows.items, {}
    plain: list[Item] = []
    keyed: dict[TopicPartition | None, tuple[str, list[Item]]] = {}
    places: dict[str, list[Item]] = {}
    for key, item in zip(rows.keys, rows.items, strict=True):
        if key is None:
            plain.append(item)
            continue
        items = places.get(key)
        if items is None:
            partition = partition_for_key(key, partitions) if partitions else None
            _, items = keyed.setdefault(partition, (key, []))
            places[key] = items
        items.append(item)
    return plain, keyed
