"""The option autoSyncMasterConfig: copy the topics of the master's server.ini into the slave's own server.ini.

metaq 1.x overwrites the whole file, so after a restart a 1.x slave uses its master's port and directories. This module
replaces only the topic sections of the slave's file with the topic sections of the master's file. The slave keeps its
own sections [system] and [zookeeper].
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from twisted.internet.defer import Deferred

from metaq.protocol.errors import ConfigError

from ..configuration.reload_plan import ReloadReport
from ..configuration.server_ini import parse_config
from ..store.files import REAL_FILES, replace_file
from .host import ReplicationHost

__all__ = ["ConfigCopy", "with_topics_of"]

_SECTION = re.compile(rb"^[ \t]*\[(.*?)\]", re.MULTILINE)
_DATA_PATH = re.compile(rb"^[ \t]*dataPath[ \t]*[=:].*(?:\r?\n|\Z)", re.MULTILINE)


def with_topics_of(master: bytes, own: bytes) -> bytes:
    """Return the slave's file with its topic sections replaced by the topic sections of the master's file. If the
    master's sections have the key dataPath, it is left out, because it names a directory of the master.

    Both arguments are the bytes of a server.ini.
    """
    kept = b"".join(text for name, text in _sections(own) if not name.startswith(b"topic="))
    topics = b"".join(text for name, text in _sections(master) if name.startswith(b"topic="))
    return kept.rstrip() + b"\n\n" + _DATA_PATH.sub(b"", topics).rstrip() + b"\n"


def _sections(source: bytes) -> list[tuple[bytes, bytes]]:
    """Return (name, text) of each section in order. The text before the first section has the name b""."""
    heads = list(_SECTION.finditer(source))
    ends = [head.start() for head in heads[1:]] + [len(source)]
    found = [(b"", source[: heads[0].start()] if heads else source)]
    found += [(head[1].strip(), source[head.start() : end]) for head, end in zip(heads, ends, strict=True)]
    return found


class ConfigCopy:
    """Copies the master's topics into the slave's file. Used on the reactor thread; worker threads read and write the
    files.
    """

    def __init__(self, broker: ReplicationHost, path: str, reload: Callable[[], Deferred[ReloadReport]]) -> None:
        """path: path of the slave's server.ini. reload: makes the broker read its server.ini again."""
        self._broker = broker
        self._path = path
        self._reload = reload

    async def update(self, master: bytes) -> None:
        """If the topics or their numbers of partitions in the two files differ, copy the master's topics into the
        slave's file, and make the broker reload this file. Raises ConfigError if the file cannot be used or written.
        """
        theirs = parse_config(master, "the master's server.ini")
        own = self._broker.config
        if {name: topic.partitions for name, topic in theirs.topics.items()} == {
            name: topic.partitions for name, topic in own.topics.items()
        }:
            return
        wanted = with_topics_of(master, own.source)
        parse_config(wanted, self._path)
        try:
            await self._broker.in_thread(lambda: replace_file(REAL_FILES, os.path.abspath(self._path), wanted))
        except OSError as error:
            remedy = f"cannot be written ({error.strerror})"
            raise ConfigError("autoSyncMasterConfig", self._path, remedy) from error
        await self._reload()
