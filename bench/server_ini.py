"""Make a server.ini that the Java broker and metaq's broker can both read, so that they are compared with the same
settings.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Topics", "server_ini"]

Topics = Mapping[str, int | Mapping[str, object]]
"""By topic: the number of partitions, or the keys of its section."""


def server_ini(port: int, zk_connect: str, topics: Topics, system: Mapping[str, object] | None = None) -> str:
    """Return the text of a server.ini that the Java broker and metaq's broker can read.

    system: more keys of [system], which override the ones set here.
    """
    sections: dict[str, Mapping[str, object]] = {
        "system": {
            "brokerId": 0,
            "hostName": "127.0.0.1",
            "numPartitions": 1,
            "serverPort": port,
            "unflushThreshold": 1000,
            "unflushInterval": 10_000,
            "maxSegmentSize": 1024**3,
            "maxTransferSize": 1024**2,
            "deletePolicy": "delete,168",
            "deleteWhen": "0 0 6,18 * * ?",
            "flushTxLogAtCommit": 1,
            "stat": "true",
            **(system or {}),
        },
        "zookeeper": {"zk.zkConnect": zk_connect, "zk.zkSessionTimeoutMs": 6000, "zk.zkSyncTimeMs": 1000},
    }
    for topic, keys in topics.items():
        sections[f"topic={topic}"] = {"numPartitions": keys} if isinstance(keys, int) else keys
    return "\n".join(_section(name, keys) for name, keys in sections.items())


def _section(name: str, keys: Mapping[str, object]) -> str:
    return "".join((f"[{name}]\n", *(f"{key}={value}\n" for key, value in keys.items())))
