"""Find the existing name that is most similar to a wrong name, for use in error messages."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

__all__ = ["did_you_mean", "published_nowhere", "topic_meant"]


def did_you_mean(name: str, known: Collection[str], otherwise: str) -> str:
    """Return a question with the most similar name among `known`, such as `did you mean 'trades'?`. Return `otherwise`
    if no name is similar.
    """
    from difflib import get_close_matches  # needed only after a user's mistake

    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def published_nowhere(topic: str, known: Collection[str]) -> str:
    """Return the text of an error which says that no live broker has the topic `topic`. The text also names the
    registered pattern that matches `topic` (brokers register the topic patterns of their server.ini like topics) or, if
    there is none, the most similar existing topic.
    """
    new = f"`metaq topics list` shows those that are; a new one is [topic={topic}] in a broker's server.ini"
    if not known:
        new += "; no topic at all is published there, so check ZooKeeper's address with its chroot, and metaq's root"
    return f"topic {topic!r} is published by no live broker: {topic_meant(topic, known, new)}"


def topic_meant(topic: str, known: Collection[str], otherwise: str) -> str:
    """Return a text for errors which names the topic pattern among `known` that matches `topic`, or the most similar
    topic among `known`. Return `otherwise` if there is neither.
    """
    patterns = [each for each in known if "*" in each]
    takes = next((each for each in patterns if fnmatchcase(topic, each)), None)
    if takes is not None:
        return f"the pattern {takes!r} takes its first message, from a Producer whose default_topic is on that broker"
    return did_you_mean(topic, [each for each in known if each not in patterns], otherwise)
