"""From values to payloads and back: what a `typed` producer writes and a consumer's `message.value` reads.

Each kind is a Serializer; its library is loaded when the first one is made. A kind of your own is a class with the
three members of Serializer.
"""

from .avro import Avro
from .base import Deserializer, Serializer, deserializers
from .json import Json
from .msgpack import MsgPack
from .protobuf import Protobuf

__all__ = ["Avro", "Deserializer", "Json", "MsgPack", "Protobuf", "Serializer", "deserializers"]
