"""Consuming: group membership, fetching ahead, delivery, offsets."""

from .consumer import Consumer

__all__ = ["Consumer"]
