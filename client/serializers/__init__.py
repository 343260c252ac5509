"""Convert values to payloads (`typed` producers) and back (a consumer's `message.value`).

Each kind is a Serializer; its library is imported when the first one is made. For your own kind, write a class with the
three members of Serializer.
"""

from .avro import Avro
from .base import Deserializer, Serializer, deserializers
from .json import Json
from .msgpack import MsgPack
from .protobuf import Protobuf

__all__ = ["Avro", "Deserializer", "Json", "MsgPack", "Protobuf", "Serializer", "deserializers"]
