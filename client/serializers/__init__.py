"""Convert values to payloads for `typed` producers, and payloads to values for a consumer's `message.value`.

Each format has a Serializer class. The library that a format needs is imported only when you create an object of the
format's class. For a format of your own, write a class with the three members of Serializer (base.py).
"""

from .avro import Avro
from .base import Deserializer, Serializer, deserializers
from .json import Json
from .msgpack import MsgPack
from .protobuf import Protobuf

__all__ = ["Avro", "Deserializer", "Json", "MsgPack", "Protobuf", "Serializer", "deserializers"]
