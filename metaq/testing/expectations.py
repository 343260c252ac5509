"""What a test expects of the messages of a topic, and what to say if they are otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metaq.client.records.message import Message

__all__ = ["Expected", "described"]

_SHOWN_MESSAGES = 20
_SHOWN_BYTES = 200


@dataclass(frozen=True, slots=True)
class Expected:
    """The messages that `Cluster.assert_sent` looks for; its docstring describes the fields."""

    payload: bytes | str | None
    key: str | None
    tag: str | None
    properties: Mapping[str, object] | None
    where: Callable[[Message], bool] | None
    count: int | None

    def is_met_by(self, message: Message) -> bool:
        """Return whether a message has everything that is given."""
        payload = self.payload.encode() if isinstance(self.payload, str) else self.payload
        attributes = message.attributes
        return (
            (payload is None or message.payload == payload)
            and (self.key is None or self.key in attributes.keys)
            and (self.tag is None or attributes.tag == self.tag)
            and (self.properties is None or self.properties.items() <= dict(attributes.properties).items())
            and (self.where is None or bool(self.where(message)))
        )

    def has_enough(self, found: Sequence[Message]) -> bool:
        """Return whether the number of found messages is right."""
        return bool(found) if self.count is None else len(found) == self.count

    def has_too_many(self, found: Sequence[Message]) -> bool:
        """Return whether it is useless to wait for more messages."""
        return self.count is not None and len(found) > self.count

    def failure(self, topic: str, found: Sequence[Message], stored: Sequence[Message]) -> str:
        """Return a text that says what was expected and what is there."""
        wanted = "at least 1" if self.count is None else str(self.count)
        lines = [f"topic {topic!r}: expected messages{self._conditions()}: {wanted}, found: {len(found)}"]
        if not stored:
            lines.append("the topic has no messages")
        else:
            lines.append(f"the topic has these messages ({len(stored)}):")
            lines += ["  " + described(message) for message in stored[:_SHOWN_MESSAGES]]
            if len(stored) > _SHOWN_MESSAGES:
                lines.append(f"  … and {len(stored) - _SHOWN_MESSAGES} more")
        return "\n".join(lines)

    def _conditions(self) -> str:
        given = {"payload": self.payload, "key": self.key, "tag": self.tag, "properties": self.properties}
        texts = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        if self.where is not None:
            texts.append("where=…")
        return f" with {', '.join(texts)}" if texts else ""


def described(message: Message) -> str:
    """Return one line that shows where a message is and what it has."""
    attributes = message.attributes
    payload = repr(message.payload[:_SHOWN_BYTES])
    if len(message.payload) > _SHOWN_BYTES:
        payload += f"… ({len(message.payload)} bytes)"
    parts = [f"payload={payload}"]
    if attributes.keys:
        parts.append(f"keys={attributes.keys!r}" if len(attributes.keys) > 1 else f"key={attributes.keys[0]!r}")
    if attributes.tag is not None:
        parts.append(f"tag={attributes.tag!r}")
    if attributes.properties:
        parts.append(f"properties={dict(attributes.properties)!r}")
    where = message.partition
    return f"{where.broker}-{where.partition} at {message.offset}: {', '.join(parts)}"
