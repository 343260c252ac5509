"""The client for asyncio: `from metaq.aio import Producer`. docs/asyncio.md describes it."""

from metaq.client.aio.producer import Delivery as Delivery
from metaq.client.aio.producer import Producer as Producer

__all__ = ["Delivery", "Producer"]
