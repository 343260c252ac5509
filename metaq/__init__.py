"""metaq: a ZooKeeper-coordinated message cluster, compatible with metaq 1.x.

The names below are loaded when first used, so that the command line and the brokers do not pay for the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from metaq import errors
    from metaq.client.config import ConnectionConfig, ConsumerConfig, ProducerConfig
    from metaq.client.consumer import (
        Consumer,
        LocalOffsetStore,
        LocalRecoverStore,
        OffsetStore,
        RetryLater,
        SqlOffsetStore,
        drop_message,
    )
    from metaq.client.local_store import LocalMessageStore, StoredMessage
    from metaq.client.message import Message
    from metaq.client.producer import PartitionSelector, Producer
    from metaq.client.producer.ordered import OrderedProducer
    from metaq.client.producer.transaction import Transaction
    from metaq.client.producer.xa import Recovered, XaBranch, XaResource, Xid
    from metaq.client.questions.finding import FoundMessage, FoundMessages
    from metaq.client.questions.places import AtKey, AtMessage, Last
    from metaq.client.reading import PartitionReader, TopicBrowser, browse
    from metaq.client.values import Lag, SendResult, TopicPartition
    from metaq.protocol.transactions import XaCode, XaVote

__all__ = [
    "AtKey",
    "AtMessage",
    "ConnectionConfig",
    "Consumer",
    "ConsumerConfig",
    "FoundMessage",
    "FoundMessages",
    "Lag",
    "Last",
    "LocalMessageStore",
    "LocalOffsetStore",
    "LocalRecoverStore",
    "Message",
    "OffsetStore",
    "OrderedProducer",
    "PartitionReader",
    "PartitionSelector",
    "Producer",
    "ProducerConfig",
    "Recovered",
    "RetryLater",
    "SendResult",
    "SqlOffsetStore",
    "StoredMessage",
    "TopicBrowser",
    "TopicPartition",
    "Transaction",
    "XaBranch",
    "XaCode",
    "XaResource",
    "XaVote",
    "Xid",
    "__version__",
    "browse",
    "drop_message",
    "errors",
]

_HOMES = {
    "AtKey": "metaq.client.questions.places",
    "AtMessage": "metaq.client.questions.places",
    "ConnectionConfig": "metaq.client.config",
    "Consumer": "metaq.client.consumer",
    "ConsumerConfig": "metaq.client.config",
    "FoundMessage": "metaq.client.questions.finding",
    "FoundMessages": "metaq.client.questions.finding",
    "Lag": "metaq.client.values",
    "Last": "metaq.client.questions.places",
    "LocalMessageStore": "metaq.client.local_store",
    "LocalOffsetStore": "metaq.client.consumer",
    "LocalRecoverStore": "metaq.client.consumer",
    "Message": "metaq.client.message",
    "OffsetStore": "metaq.client.consumer",
    "OrderedProducer": "metaq.client.producer.ordered",
    "PartitionReader": "metaq.client.reading",
    "PartitionSelector": "metaq.client.producer",
    "Producer": "metaq.client.producer",
    "ProducerConfig": "metaq.client.config",
    "Recovered": "metaq.client.producer.xa",
    "RetryLater": "metaq.client.consumer",
    "SendResult": "metaq.client.values",
    "SqlOffsetStore": "metaq.client.consumer",
    "StoredMessage": "metaq.client.local_store",
    "TopicBrowser": "metaq.client.reading",
    "TopicPartition": "metaq.client.values",
    "Transaction": "metaq.client.producer.transaction",
    "XaBranch": "metaq.client.producer.xa",
    "XaCode": "metaq.protocol.transactions",
    "XaResource": "metaq.client.producer.xa",
    "XaVote": "metaq.protocol.transactions",
    "Xid": "metaq.client.producer.xa",
    "browse": "metaq.client.reading",
    "drop_message": "metaq.client.consumer",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("metaq.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
