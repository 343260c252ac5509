"""metaq: a cluster of message brokers, coordinated by ZooKeeper and compatible with metaq 1.x.

The public names of this package are imported when they are first used. So the command line and the brokers do not have
to load the client.
"""

from __future__ import annotations

import os.path
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from metaq import errors as errors
    from metaq.client.admin.admin import Admin as Admin
    from metaq.client.browsing.browser import PartitionReader as PartitionReader
    from metaq.client.browsing.browser import TopicBrowser as TopicBrowser
    from metaq.client.browsing.browser import browse as browse
    from metaq.client.browsing.dead_letters import DeadLetter as DeadLetter
    from metaq.client.browsing.dead_letters import DeadLetters as DeadLetters
    from metaq.client.browsing.dead_letters import Redriven as Redriven
    from metaq.client.consumer.consumer import Consumer as Consumer
    from metaq.client.consumer.rejected import LocalRecoverStore as LocalRecoverStore
    from metaq.client.consumer.rejected import drop_message as drop_message
    from metaq.client.consumer.retry import Retry as Retry
    from metaq.client.consumer.works import RetryLater as RetryLater
    from metaq.client.producer import PartitionSelector as PartitionSelector
    from metaq.client.producer import Producer as Producer
    from metaq.client.producer.check_back import TransactionResult as TransactionResult
    from metaq.client.producer.ordered import OrderedProducer as OrderedProducer
    from metaq.client.producer.transaction import Transaction as Transaction
    from metaq.client.producer.xa import Recovered as Recovered
    from metaq.client.producer.xa import XaBranch as XaBranch
    from metaq.client.producer.xa import XaResource as XaResource
    from metaq.client.producer.xa import Xid as Xid
    from metaq.client.questions.finding import FoundMessage as FoundMessage
    from metaq.client.questions.finding import FoundMessages as FoundMessages
    from metaq.client.questions.places import AtKey as AtKey
    from metaq.client.questions.places import AtMessage as AtMessage
    from metaq.client.questions.places import Last as Last
    from metaq.client.records.health import ConsumerHealth as ConsumerHealth
    from metaq.client.records.health import ProducerHealth as ProducerHealth
    from metaq.client.records.local_store import LocalMessageStore as LocalMessageStore
    from metaq.client.records.local_store import StoredMessage as StoredMessage
    from metaq.client.records.message import Message as Message
    from metaq.client.records.message import Origin as Origin
    from metaq.client.records.results import Lag as Lag
    from metaq.client.records.results import SendResult as SendResult
    from metaq.client.records.results import TopicPartition as TopicPartition
    from metaq.client.settings.config import ConnectionConfig as ConnectionConfig
    from metaq.client.settings.config import ProducerConfig as ProducerConfig
    from metaq.client.settings.consumer_config import ConsumerConfig as ConsumerConfig
    from metaq.client.settings.consumer_config import SharedConfig as SharedConfig
    from metaq.client.settings.tls_config import TlsConfig as TlsConfig
    from metaq.client.settings.user_config import UserConfig as UserConfig
    from metaq.client.shared import SharedConsumer as SharedConsumer
    from metaq.client.shared import SharedMessage as SharedMessage
    from metaq.coordination.offsets.offset_store import LocalOffsetStore as LocalOffsetStore
    from metaq.coordination.offsets.offset_store import OffsetStore as OffsetStore
    from metaq.coordination.offsets.sql_offset_store import SqlOffsetStore as SqlOffsetStore
    from metaq.protocol.half_messages import HalfOutcome as HalfOutcome
    from metaq.protocol.transactions import XaCode as XaCode
    from metaq.protocol.transactions import XaVote as XaVote

# Python first searches the directory in which it is started. This may be a checkout that has this folder, but not the
# packages beside it (see pyproject.toml). Then use the installed packages.
if not os.path.isdir(os.path.join(__path__[0], "client")):
    _installed = [os.path.join(entry, "metaq") for entry in sys.path]
    __path__ = [home for home in _installed if os.path.isdir(os.path.join(home, "client"))] or __path__

_NAMES = {
    "client.admin.admin": ("Admin",),
    "client.browsing.dead_letters": ("DeadLetter", "DeadLetters", "Redriven"),
    "client.browsing.browser": ("PartitionReader", "TopicBrowser", "browse"),
    "client.consumer.consumer": ("Consumer",),
    "client.consumer.rejected": ("LocalRecoverStore", "drop_message"),
    "client.consumer.retry": ("Retry",),
    "client.consumer.works": ("RetryLater",),
    "client.producer": ("PartitionSelector", "Producer"),
    "client.producer.check_back": ("TransactionResult",),
    "client.producer.ordered": ("OrderedProducer",),
    "client.producer.transaction": ("Transaction",),
    "client.producer.xa": ("Recovered", "XaBranch", "XaResource", "Xid"),
    "client.questions.finding": ("FoundMessage", "FoundMessages"),
    "client.questions.places": ("AtKey", "AtMessage", "Last"),
    "client.records.health": ("ConsumerHealth", "ProducerHealth"),
    "client.records.local_store": ("LocalMessageStore", "StoredMessage"),
    "client.records.message": ("Message", "Origin"),
    "client.records.results": ("Lag", "SendResult", "TopicPartition"),
    "client.settings.config": ("ConnectionConfig", "ProducerConfig"),
    "client.settings.tls_config": ("TlsConfig",),
    "client.settings.user_config": ("UserConfig",),
    "client.settings.consumer_config": ("ConsumerConfig", "SharedConfig"),
    "client.shared": ("SharedConsumer", "SharedMessage"),
    "coordination.offsets.offset_store": ("LocalOffsetStore", "OffsetStore"),
    "coordination.offsets.sql_offset_store": ("SqlOffsetStore",),
    "protocol.half_messages": ("HalfOutcome",),
    "protocol.transactions": ("XaCode", "XaVote"),
}
"""The public names of the package. Each key is the module below `metaq` that defines the names in its value."""

_HOMES = {name: f"metaq.{module}" for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", "errors", *_HOMES]


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
