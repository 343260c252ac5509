"""The client for asyncio: `from metaq.aio import Consumer, Producer`. docs/asyncio.md describes it."""

from metaq.client.aio.consumer import AsyncConsumer as Consumer
from metaq.client.aio.producer import AsyncProducer as Producer
from metaq.client.aio.producer import SendOutcome as SendOutcome

__all__ = ["Consumer", "Producer", "SendOutcome"]
