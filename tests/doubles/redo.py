"""The transaction log as tests write and read it: records as a Java broker writes them, and whole files."""

from typing import NamedTuple

from metaq.broker.store.files import Files
from metaq.broker.transactions.commands import Operation, StoredPut, encode_operation, encode_put
from metaq.broker.transactions.redo import LENGTH, RedoEntry
from metaq.broker.transactions.redo_reader import RedoDamage, RedoReader
from metaq.protocol.record import Buffer


def encode_put_record(put: StoredPut) -> list[Buffer]:
    """The bytes of a message's record as a Java broker writes it, in buffers."""
    command = encode_put(put)
    return [LENGTH.pack(len(command)), command]


def encode_operation_record(operation: Operation, attachment: bytes = b"") -> list[Buffer]:
    """The bytes of a Java broker's record that tells what became of a transaction; the attachment is the last one."""
    command = encode_operation(operation._replace(attachment_bytes=len(attachment)))
    return [LENGTH.pack(len(command)), command, attachment]


class RedoContents(NamedTuple):
    """A whole file: its records, where the last good one ends, its size in bytes, and what is damaged."""

    entries: list[RedoEntry]
    end: int
    size: int
    damages: list[RedoDamage]

    @property
    def problem(self) -> str | None:
        """None if everything could be read."""
        return self.damages[0].cause if self.damages else None


def read_redo(files: Files, path: str) -> RedoContents:
    """All records of one file. Raises OSError if it cannot be read."""
    reader = RedoReader(files, path)
    parts = list(reader.parts())
    damages = [part for part in parts if isinstance(part, RedoDamage)]
    return RedoContents([part for part in parts if isinstance(part, RedoEntry)], reader.end, reader.size, damages)
