"""What LIST_DELAYED and LIST_HALVES show of a waiting message, so that people can tell one from another.

Two members of its JSON object: `keys`, a list of texts, and `payload`, base64 of the first PREVIEW_BYTES bytes, or null
if the payload is compressed.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from .record import COMPRESSED_FLAG, attribute_of, decode_attribute, payload_start

__all__ = ["PREVIEW_BYTES", "Preview", "encode_preview"]

PREVIEW_BYTES = 60
"""As many as a line of a table shows."""


class Preview(NamedTuple):
    """payload: the first bytes of it; None if it is compressed, or the broker does not say."""

    keys: tuple[str, ...]
    payload: bytes | None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Preview:
        """said: the message's JSON object. Raises ValueError."""
        payload = said.get("payload")
        return cls(tuple(map(str, said.get("keys", ()))), None if payload is None else b64decode(str(payload)))


def encode_preview(flag: int, body: bytes) -> dict[str, Any]:
    """Of a record."""
    keys = decode_attribute(attribute_of(body, flag), flag).keys
    start = payload_start(body, flag)
    payload = None if flag & COMPRESSED_FLAG else b64encode(body[start : start + PREVIEW_BYTES]).decode()
    return {"keys": list(keys), "payload": payload}
