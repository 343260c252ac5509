"""Make and read the previews of waiting messages in the answers to LIST_DELAYED and LIST_HALVES. A preview shows the
beginning of a message, so that people can tell messages apart.

It consists of two members of the message's JSON object in the answer. `keys`: a list of the message's first keys, up to
PREVIEW_KEYS characters. `payload`: the first PREVIEW_BYTES bytes of the payload in base64, or null if the payload is
compressed.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from .record import COMPRESSED_FLAG, PROPERTIES_FLAG, attribute_of, keys_of_attribute, payload_start

__all__ = ["PREVIEW_BYTES", "PREVIEW_KEYS", "Preview", "encode_preview"]

PREVIEW_BYTES = 60
"""Maximum number of payload bytes in a preview, chosen so that the bytes fit into one line of a table."""

PREVIEW_KEYS = 1000
"""Maximum number of characters of all keys in a preview. The limit is needed because a message may have millions of
keys, and an answer may contain a thousand messages.
"""


class Preview(NamedTuple):
    """The preview of one message. payload: the first bytes of the payload; None if the payload is compressed, or if the
    broker does not send previews.
    """

    keys: tuple[str, ...]
    payload: bytes | None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Preview:
        """Decode the preview in a message's JSON object. Raises ValueError."""
        payload = said.get("payload")
        return cls(tuple(map(str, said.get("keys", ()))), None if payload is None else b64decode(str(payload)))


def encode_preview(flag: int, body: bytes) -> dict[str, Any]:
    """Return the preview of a record."""
    attribute = attribute_of(body, flag) if flag & PROPERTIES_FLAG else None
    keys = () if attribute is None else _first_keys(chain.from_iterable(keys_of_attribute(attribute)))
    start = payload_start(body, flag)
    payload = None if flag & COMPRESSED_FLAG else b64encode(body[start : start + PREVIEW_BYTES]).decode()
    return {"keys": list(keys), "payload": payload}


def _first_keys(keys: Iterator[str]) -> Iterator[str]:
    left = PREVIEW_KEYS
    for key in keys:
        left -= len(key)
        if left < 0:
            return
        yield key
