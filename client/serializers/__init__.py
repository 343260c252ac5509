"""Convert values to payloads for `typed` producers, and payloads to values for a consumer's `message.value`.

Each format has a Serializer class. Its library is imported when the first serializer of this class is made. For a
format of your own, write a class with the three members of Serializer.
"""

from .avro import Avro
from .base import Deserializer, Serializer, deserializers
from .json import Json
from .msgpack import MsgPack
from .protobuf import Protobuf

__all__ = ["Avro", "Deserializer", "Json", "MsgPack", "Protobuf", "Serializer", "deserializers"]
