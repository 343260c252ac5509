"""Serializer for JSON. The serializer uses the standard library."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["Json"]


class Json:
    """Serializer for compact JSON in UTF-8. A send raises ValueError for NaN and infinity, because JSON has no such
    numbers.

    default: a function that converts values that JSON cannot represent, as in json.dumps. For example, `default=str`
    converts dates.
    """

    content_type = "application/json"

    def __init__(self, *, default: Callable[[Any], Any] | None = None) -> None:
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default)
        self._encode = encoder.encode

    def dumps(self, value: Any) -> bytes:
        return self._encode(value).encode("utf-8")

    def loads(self, payload: bytes) -> Any:
        return json.loads(payload)
