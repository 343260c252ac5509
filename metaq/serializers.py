"""Serializers for `producer.typed(…)` and `Consumer(deserializer=…)`; see metaq.client.serializers."""

from metaq.client.serializers import Avro, Json, MsgPack, Protobuf, Serializer

__all__ = ["Avro", "Json", "MsgPack", "Protobuf", "Serializer"]
