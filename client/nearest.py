"""The nearest existing name to one that does not exist, for messages to users."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

__all__ = ["did_you_mean", "published_nowhere"]


def did_you_mean(name: str, known: Collection[str], otherwise: str) -> str:
    """`did you mean 'trades'?`, or `otherwise` if no name is near."""
    close = get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def published_nowhere(topic: str, known: Collection[str]) -> str:
    """That no live broker has `topic`, with the nearest of the topics that one has."""
    new = f"`metaq topics list` shows those that are; a new one is [topic={topic}] in a broker's server.ini"
    near = did_you_mean(topic, known, new)
    return f"topic {topic!r} is published by no live broker: {near}"
