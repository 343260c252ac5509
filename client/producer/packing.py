"""Compress payloads before they are sent."""

from __future__ import annotations

from metaq.protocol.compression import compress
from metaq.protocol.errors import LocalProtocolError
from metaq.protocol.limits import MAX_PAYLOAD_BYTES
from metaq.protocol.record import COMPRESSED_FLAG

from ..settings.config import ProducerConfig

__all__ = ["Packer"]


class Packer:
    """Compresses payloads with the method that ProducerConfig.compression names. Any thread may use it."""

    def __init__(self, config: ProducerConfig) -> None:
        self._level = config.compression_level
        self._least = config.compression_from_bytes

    @classmethod
    def of(cls, config: ProducerConfig) -> Packer | None:
        """Return a packer for this configuration, or None if the configuration sets no compression."""
        return None if config.compression is None else cls(config)

    def pack(self, payload: bytes) -> tuple[int, bytes]:
        """Compress the payload if that makes it smaller. Return the flag bits to set in the record (COMPRESSED_FLAG if
        the payload was compressed, otherwise 0), and the payload to send. Raises LocalProtocolError.
        """
        if len(payload) < self._least:
            return 0, payload
        if len(payload) > MAX_PAYLOAD_BYTES:
            limit = f"the {MAX_PAYLOAD_BYTES} that are compressed"
            raise LocalProtocolError(f"a payload of {len(payload)} bytes is above {limit}: send it in parts")
        packed = compress(payload, self._level)
        return (COMPRESSED_FLAG, packed) if len(packed) < len(payload) else (0, payload)
