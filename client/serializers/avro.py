"""Serializer for Avro. The serializer needs the extra `avro` (fastavro)."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from metaq.protocol.errors import ConfigError

from .base import missing_library

__all__ = ["Avro"]

_MARK = b"\xc3\x01"
_PRINT_BYTES = 8
_START = len(_MARK) + _PRINT_BYTES


class Avro:
    """Serializer for the values of one schema. The serializer uses Avro's single-object encoding: the bytes C3 01, then
    the schema's CRC-64-AVRO fingerprint, then the value.

    The fingerprint tells a reader with which schema the value was written. If the value was written with an older
    schema that the reader knows, the reader converts the value to its own schema. So you can change the schema although
    stored messages and some producers still use the older one.
    """

    def __init__(self, schema: Any, *older: Any) -> None:
        """schema: the schema with which values are written, and to which values are converted when they are read. Pass
        the schema as Avro's JSON text, such as the content of an .avsc file, or as a Python object with the structure
        of this JSON. older: schemas that were used earlier to write values.

        Raises ConfigError if fastavro is not installed, or a schema is wrong.
        """
        try:
            import fastavro
            from fastavro import schema as schemas
        except ImportError:
            raise missing_library("Avro", "fastavro", "avro") from None
        self._fastavro = fastavro
        self._writers: dict[bytes, Any] = {}
        for each in (*older, schema):
            try:
                parsed = fastavro.parse_schema(_from_text(each))
                canonical = schemas.to_parsing_canonical_form(parsed)
            except Exception as error:  # fastavro raises errors of many types
                raise ConfigError("schema", repr(each), f"is no Avro schema: {error}") from error
            self._print = _fingerprint(schemas, canonical)
            self._writers[self._print] = parsed
        self._schema = self._writers[self._print]
        named = isinstance(self._schema, dict) and "name" in self._schema
        name = self._schema["name"] if named else canonical.strip('"')
        self.content_type = f"avro/binary;schema={name}"

    def dumps(self, value: Any) -> bytes:
        out = BytesIO()
        self._fastavro.schemaless_writer(out, self._schema, value, strict=True)
        return b"".join((_MARK, self._print, out.getvalue()))

    def loads(self, payload: bytes) -> Any:
        if payload[: len(_MARK)] != _MARK or len(payload) < _START:
            raise ValueError("it is not in Avro's single-object encoding")
        fingerprint = payload[len(_MARK) : _START]
        writer = self._writers.get(fingerprint)
        if writer is None:
            raise ValueError(
                f"it was written by a schema with the fingerprint {fingerprint[::-1].hex()}, which is not known here: "
                "name that schema, too: Avro(newest, older)"
            )
        return self._fastavro.schemaless_reader(BytesIO(payload[_START:]), writer, self._schema)


def _from_text(schema: Any) -> Any:
    """Return a schema as a Python object. A text that is no JSON object, list or string is the name of a type. Raises
    ValueError.
    """
    import simplejson  # most programs use no Avro

    is_json = isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"')
    return simplejson.loads(schema) if is_json else schema


def _fingerprint(schemas: Any, canonical: str) -> bytes:
    """Return the eight bytes of the schema's fingerprint, the lowest byte first, as the encoding requires."""
    return bytes.fromhex(schemas.fingerprint(canonical, "CRC-64-AVRO"))
