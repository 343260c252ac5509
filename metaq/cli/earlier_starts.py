"""Find out from the data directory which topics and how many brokers earlier starts of `metaq up` had. With this
knowledge a new start can serve all data of earlier starts.

A topic with messages is found by its partition directories in broker-*/data. The server.ini files that the last start
has written name the topics without messages, too, and contain the settings of topics.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from configparser import ConfigParser
from configparser import Error as BadIni
from dataclasses import dataclass
from pathlib import Path

from metaq.protocol.errors import ConfigError

from .options import TopicSetting, TopicSpec

__all__ = [
    "SECURITY_DIRECTORY",
    "TOPIC_SECTION",
    "EarlierStarts",
    "all_settings",
    "all_topics",
    "broker_directory",
    "node_name",
    "stored_topics",
]

TOPIC_SECTION = "topic="
"""Prefix of a topic's name in the header of its section in server.ini."""

SECURITY_DIRECTORY = "security"
"""The directory below the data directory that has the certificates of a cluster that serves only users."""

_PARTITIONS = "numPartitions"
_DIRECTORY = re.compile(r"broker-([0-9]+)(?:-([b-z]))?")


def node_name(replica: int) -> str:
    """Return the name of a node of a broker set. replica: the node's number in its set, from 0."""
    return string.ascii_lowercase[replica]


def broker_directory(broker_id: int, replica: int) -> str:
    """Return the name of the directory of a broker process below the data directory."""
    return f"broker-{broker_id}" + (f"-{node_name(replica)}" if replica else "")


@dataclass(frozen=True, slots=True)
class EarlierStarts:
    """What earlier starts have left in the data directory. stored: the result of `stored_topics`. topics, settings: the
    topics and settings of the last start. brokers: the largest number of brokers that was ever started, or 0 if none
    was started. replicas: the largest number of nodes of a broker set, or 0 if there was no broker set. secure: whether
    an earlier start had --secure.
    """

    stored: dict[int, dict[str, int]]
    topics: list[TopicSpec]
    settings: list[TopicSetting]
    brokers: int
    replicas: int
    secure: bool

    @classmethod
    def read(cls, data_dir: Path) -> EarlierStarts:
        """Read the data directory. Raises ConfigError if a server.ini cannot be read, and the errors that a broker
        raises when it cannot use its directory.
        """
        topics: list[TopicSpec] = []
        settings: dict[tuple[str, str], str] = {}
        started = [each for each in sorted(data_dir.glob("broker-*/server.ini")) if _place(each.parent)]
        for path in started:
            for topic, partitions, lines in _sections(path):
                topics = all_topics(topics, [TopicSpec(topic, partitions)])
                settings |= {(topic, name): value for name, value in lines.items()}
        stored = stored_topics(data_dir)
        places = [_place(path.parent) or (0, 0) for path in started]
        sets = [_place(path.parent.parent) or (0, 0) for path in data_dir.glob("broker-*/data/metaqset")]
        return cls(
            stored,
            topics,
            [TopicSetting(topic, name, value) for (topic, name), value in settings.items()],
            max((number + 1 for number in (*stored, *(number for number, _ in places))), default=0),
            max((replica + 1 for _, replica in sets), default=0),
            (data_dir / SECURITY_DIRECTORY).exists(),
        )


def _place(directory: Path) -> tuple[int, int] | None:
    """Return the broker id and the replica number that the name of a broker process's directory contains. Return None
    if the directory does not belong to a broker process.
    """
    found = _DIRECTORY.fullmatch(directory.name)
    return (int(found[1]), string.ascii_lowercase.index(found[2] or "a")) if found else None


def _sections(path: Path) -> Iterable[tuple[str, int, dict[str, str]]]:
    """Yield for each topic's section in a server.ini the topic, its number of partitions and its other settings."""
    ini = ConfigParser(delimiters="=", comment_prefixes=(";", "#"), interpolation=None, default_section="")
    ini.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        ini.read_string(path.read_text("utf-8"))
        for header in ini.sections():
            if header.startswith(TOPIC_SECTION):
                lines = dict(ini[header])
                yield header.removeprefix(TOPIC_SECTION), int(lines.pop(_PARTITIONS)), lines
    except (OSError, UnicodeError, BadIni, KeyError, ValueError) as error:
        remedy = (
            f"it lists the topics of earlier starts, and cannot be read ({error}): mend or move it away to forget them"
        )
        raise ConfigError("--data-dir", str(path), remedy) from error


def stored_topics(data_dir: Path) -> dict[int, dict[str, int]]:
    """Return a dict for each broker id. It contains each topic that has partitions in the directory of at least one
    node with this broker id: the key is the topic's name, and the value is the topic's highest partition number plus
    one.
    """
    found: dict[int, dict[str, int]] = {}
    for data in data_dir.glob("broker-*/data"):
        place = _place(data.parent)
        if place is None:
            continue
        from metaq.broker import inspection  # a first start needs no broker modules, which saves 0.2 s

        for name, partitions in inspection.stored_topics(data).items():
            of_broker = found.setdefault(place[0], {})
            of_broker[name] = max(partitions, of_broker.get(name, 0))
    return found


def all_topics(*lists: Iterable[TopicSpec]) -> list[TopicSpec]:
    """Merge lists of topics. The result contains each topic once, with the largest number of partitions that any of the
    lists has for it.
    """
    counts: dict[str, int] = {}
    for name, partitions in (each for topics in lists for each in topics):
        counts[name] = max(partitions, counts.get(name, 0))
    return [TopicSpec(*each) for each in counts.items()]


def all_settings(*lists: Sequence[TopicSetting]) -> list[TopicSetting]:
    """Merge lists of settings. The result contains each setting once; if several lists contain it, with the value from
    the last of these lists.
    """
    found = {(topic, name): value for settings in lists for topic, name, value in settings}
    return [TopicSetting(topic, name, value) for (topic, name), value in found.items()]
