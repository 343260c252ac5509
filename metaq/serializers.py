"""The public module of serializers for `producer.typed(…)` and `Consumer(deserializer=…)`; metaq.client.serializers
defines and documents them.
"""

from metaq.client.serializers import Avro, Json, MsgPack, Protobuf, Serializer

__all__ = ["Avro", "Json", "MsgPack", "Protobuf", "Serializer"]
