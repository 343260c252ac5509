"""The client for asyncio: `from metaq.aio import Consumer, Producer`. docs/asyncio.md describes it."""

from metaq.client.aio.consumer import Consumer as Consumer
from metaq.client.aio.producer import Delivery as Delivery
from metaq.client.aio.producer import Producer as Producer

__all__ = ["Consumer", "Delivery", "Producer"]
