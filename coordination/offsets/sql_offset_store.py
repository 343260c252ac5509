"""Keep the offsets of consumer groups in a table of an SQL database. The table has the same form as the table of
MysqlOffsetStorage in metaq 1.x (storage.md §8).

The store works with any DB-API 2.0 driver (PEP 249). The module imports no driver itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from metaq.protocol.errors import ConfigError, CoordinationUnavailable

from ..records.payloads import Offset
from .offset_store import OffsetStore, TopicPartitionName

__all__ = ["DEFAULT_TABLE", "SqlOffsetStore"]

DEFAULT_TABLE = "meta_topic_partition_group_offset"
"""The default name of the table, which is its name in metaq 1.x."""

_MARKS: dict[str, Callable[[int], str]] = {
    "qmark": lambda _: "?",
    "format": lambda _: "%s",
    "numeric": lambda number: f":{number}",
    "named": lambda number: f":p{number}",
    "pyformat": lambda number: f"%(p{number})s",
}
_BY_NAME = ("named", "pyformat")
_QUOTES = ('"', "`")
_TABLE_NAME = re.compile(r"\w+(\.\w+)?")


class SqlOffsetStore(OffsetStore):
    """An OffsetStore in an SQL database. Any thread may call the methods. Each call opens a database connection,
    executes one transaction on it, and closes the connection.

    A group's first commit for a partition inserts a row. As in 1.x, this first commit stores the offset at which the
    group begins to read the partition. Later commits update the row. The store does not use ZooKeeper, so a consumer
    wraps the store in an OwnerCheckedStore.
    """

    def __init__(
        self, connect: Callable[[], Any], *, paramstyle: str, table: str = DEFAULT_TABLE, quote: str = '"'
    ) -> None:
        """connect: a function that returns an open DB-API connection, new or from a pool. paramstyle: the value of the
        driver module's attribute `paramstyle`. quote: the quotation mark around column names, '"', or '`' for MySQL and
        MariaDB. The names are quoted because `offset` and `partition` are reserved words in some databases. Raises
        ConfigError for an invalid argument.
        """
        if paramstyle not in _MARKS:
            raise ConfigError("paramstyle", paramstyle, f"choose the driver's own, one of {', '.join(_MARKS)}")
        if quote not in _QUOTES:
            raise ConfigError("quote", quote, "choose '\"' or, for MySQL and MariaDB, '`'")
        if not _TABLE_NAME.fullmatch(table):
            raise ConfigError("table", table, "write it as name or schema.name, of letters, digits and '_'")
        self._connect = connect
        self._by_name = paramstyle in _BY_NAME
        self._table = table
        columns = ("topic", "partition", "group_id", "offset", "msg_id")
        topic, partition, group, offset, message_id = (f"{quote}{name}{quote}" for name in columns)
        names = f"{topic}, {partition}, {group}, {offset}, {message_id}"
        mark = _MARKS[paramstyle]
        marks = [mark(number) for number in range(1, 6)]
        self._select = f"SELECT {topic}, {partition}, {offset}, {message_id} FROM {table} WHERE {group} = {marks[0]}"
        self._insert = f"INSERT INTO {table} ({names}) VALUES ({', '.join(marks)})"
        self._update = (
            f"UPDATE {table} SET {offset} = {marks[0]}, {message_id} = {marks[1]} "
            f"WHERE {topic} = {marks[2]} AND {partition} = {marks[3]} AND {group} = {marks[4]}"
        )
        self._create = (
            f"CREATE TABLE IF NOT EXISTS {table} ({topic} VARCHAR(255) NOT NULL, {partition} VARCHAR(32) NOT NULL, "
            f"{group} VARCHAR(255) NOT NULL, {offset} BIGINT NOT NULL, {message_id} BIGINT NOT NULL, "
            f"PRIMARY KEY ({group}, {topic}, {partition}))"
        )

    def create_table(self) -> None:
        """Create the table if it is missing. Raises CoordinationUnavailable if the database cannot be used."""
        with self._transaction() as cursor:
            cursor.execute(self._create)

    def load_many(self, group: str, partitions: Sequence[TopicPartitionName]) -> list[Offset | None]:
        with self._transaction() as cursor:
            known = self._rows(cursor, group)
        return [known.get(each) for each in partitions]

    def commit(self, group: str, offsets: Mapping[TopicPartitionName, Offset], fence: int | None) -> None:
        if not offsets:
            return
        with self._transaction() as cursor:
            known = self._rows(cursor, group)
            for (topic, partition), each in offsets.items():
                if (topic, partition) in known:  # not by rowcount: MySQL counts only changed rows
                    cursor.execute(self._update, self._bound(each.offset, each.message_id, topic, partition, group))
                else:
                    cursor.execute(self._insert, self._bound(topic, partition, group, each.offset, each.message_id))

    def _rows(self, cursor: Any, group: str) -> dict[TopicPartitionName, Offset]:
        cursor.execute(self._select, self._bound(group))
        return {
            (str(topic), str(partition)): Offset(int(message_id), int(offset))
            for topic, partition, offset, message_id in cursor.fetchall()
        }

    def _bound(self, *values: object) -> object:
        """Return the parameter values of an SQL statement in the form that the driver's paramstyle requires."""
        return {f"p{number}": value for number, value in enumerate(values, 1)} if self._by_name else values

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Yield a cursor of a new transaction. At the end of the `with` block the transaction is committed. After an
        error the connection is closed, which rolls the transaction back (PEP 249).
        """
        try:
            with closing(self._connect()) as connection:
                with closing(connection.cursor()) as cursor:
                    yield cursor
                connection.commit()
        except Exception as error:  # every driver has its own error classes
            raise CoordinationUnavailable(
                f"the offsets in the table {self._table} cannot be read or written: {type(error).__name__}: {error}"
            ) from error
