"""All errors of metaq, in one tree.

Each class says what a peer or a caller may do about it:

- `status`: the metaq 1.x status code of a broker's answer if the error ends the request (`broker/reading/answers.py`);
- `retriable`: the same call may succeed later, perhaps elsewhere;
- `refresh_view`: the caller's view of the cluster is probably stale.

Nothing matches on an error's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from .statuses import Status

if TYPE_CHECKING:
    from .topic_partition import TopicPartition

__all__ = [
    "BrokerCertificateRequired",
    "BrokerStarting",
    "BrokerUnavailable",
    "ChecksumMismatch",
    "ClientError",
    "CommitIncomplete",
    "CommitUnknown",
    "CompressionNotAccepted",
    "CompressionUnknown",
    "ConfigError",
    "CoordinationError",
    "CoordinationUnavailable",
    "CorruptRecord",
    "DelayRefused",
    "DeliveryFailed",
    "DirectoryInUse",
    "DiskFull",
    "FilterUnavailable",
    "FiltersBusy",
    "HalfDecided",
    "HalfRefused",
    "InvalidName",
    "InvalidWhere",
    "LeaderMoved",
    "LocalProtocolError",
    "LocalStoreError",
    "LocalStoreFull",
    "LocalStoreInUse",
    "LogReadOnly",
    "MessageNotFound",
    "MessageTooLarge",
    "MetaqError",
    "NoMessageBegins",
    "NoPartition",
    "NotEnoughReplicas",
    "NotLeader",
    "NotMaster",
    "NotOwner",
    "NotReplicating",
    "NotSafe",
    "OffsetOutOfRange",
    "PartitionClosed",
    "PartitionNotFound",
    "PayloadUnreadable",
    "PeerLost",
    "PeerRefused",
    "PeerTimedOut",
    "ProtocolError",
    "RemoteProtocolError",
    "ReplicaDiverged",
    "ReplicationError",
    "RequestRefused",
    "RequestTimedOut",
    "SearchIncomplete",
    "SearchesBusy",
    "SendInDoubt",
    "SessionLost",
    "SharedRefused",
    "SlaveDisconnected",
    "StaleSequence",
    "StoreError",
    "SyncFailed",
    "TlsFailed",
    "TlsRequired",
    "TooFewNodes",
    "TopicNotAccepted",
    "TransactionLost",
    "TransactionRefused",
    "TransactionTooLate",
    "ValueUnreadable",
    "WrongPartition",
    "XaError",
    "XaRefused",
]


class MetaqError(Exception):
    """Base of every error metaq raises on purpose."""

    status: ClassVar[Status] = Status.ERROR
    retriable: ClassVar[bool] = False
    refresh_view: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the attributes, for `multiprocessing` and Spark. Exception's own method would call the class with the
        text, which few constructors accept.
        """
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[MetaqError], args: tuple[object, ...]) -> MetaqError:
    return kind.__new__(kind, *args)


class ConfigError(MetaqError):
    """A user's setting is wrong; the message names the option, the value and the remedy."""

    def __init__(self, option: str, value: object, remedy: str) -> None:
        told = f"{option}={value!s}: {remedy}"
        super().__init__(told.encode("utf-8", "backslashreplace").decode())  # even an invalid text can be shown
        self.option = option
        self.value = value
        self.remedy = remedy


class WrongDuration(ConfigError, TypeError):
    """A duration is neither a number nor a timedelta."""

    def __init__(self, option: str, value: object) -> None:
        said = f"{value!r} is no number of seconds but {type(value).__name__}"
        super().__init__(option, said, "write it as one, or as a timedelta (math.inf: as long as it takes)")
        self.value = value


class InvalidName(MetaqError, ValueError):
    """A topic or group name that cannot be used; the message says why."""

    status = Status.BAD_REQUEST


class InvalidWhere(MetaqError, ValueError):
    """An invalid filter by content (docs/filters.md). position: the index, from 0, of the character where `found`
    stands instead of `expected`. found: "" if that is obvious.
    """

    status = Status.BAD_REQUEST

    def __init__(self, position: int, expected: str, found: str = "") -> None:
        self.reason = f"at character {position + 1}: expected {expected}" + (f", found {found}" if found else "")
        super().__init__(f"where: {self.reason}")
        self.position = position
        self.expected = expected
        self.found = found


# --- protocol ---------------------------------------------------------------------------------------------------------


class ProtocolError(MetaqError):
    """Bytes that do not follow the protocol."""


class LocalProtocolError(ProtocolError):
    """This process tried to send something the protocol cannot carry: a bug or a bad argument here."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not the protocol; the connection cannot be used any further."""

    status = Status.BAD_REQUEST
    refresh_view = True


class ChecksumMismatch(ProtocolError):
    """A message body does not match the checksum that its sender sent. Retriable: it was damaged on the way."""

    retriable = True

    def __init__(self) -> None:
        # metaq 1.x's own text (recorded), which clients may show
        super().__init__("Checksum failure,message may be corrupted when transfering on networking.")


class PayloadUnreadable(ProtocolError):
    """A payload is marked as compressed but is not valid: its producer made it wrongly."""


# --- store ------------------------------------------------------------------------------------------------------------


class MessageTooLarge(ProtocolError):
    """The body of a put or frame is above limits.MAX_BODY_BYTES, or with metaq's properties above
    limits.MAX_RECORD_BODY_BYTES: send smaller messages."""

    def __init__(self, body_bytes: int, limit: int) -> None:
        super().__init__(f"message of {body_bytes} bytes is above the limit of {limit} bytes")
        self.body_bytes = body_bytes


class StoreError(MetaqError):
    """The store cannot carry out the request."""


class OffsetOutOfRange(StoreError):
    """The offset is outside the readable bytes. `first` and `next` are the bounds: first <= offset <= next is valid."""

    status = Status.MOVED
    refresh_view = True

    def __init__(self, offset: int, first: int, next_: int) -> None:
        super().__init__(f"offset {offset} is outside [{first}, {next_}]")
        self.offset = offset
        self.first = first
        self.next = next_


class PartitionNotFound(StoreError):
    """There is no data directory for this topic and partition."""

    status = Status.NOT_FOUND
    refresh_view = True

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(f"The topic `{topic}` in partition `{partition}` is not exists")
        self.topic = topic
        self.partition = partition


class TopicNotAccepted(StoreError):
    """The topic is neither configured nor matched by a configured pattern."""

    refresh_view = True

    def __init__(self, topic: str) -> None:
        super().__init__(f"The server do not accept topic {topic}")
        self.topic = topic


class CompressionNotAccepted(StoreError):
    """A compressed message for a topic whose section forbids them, or a 1.x client's `get` from a topic that allows
    them."""

    def __init__(self, topic: str, reading: str = "") -> None:
        """reading: the group of a client that cannot read compressed messages."""
        if reading:
            super().__init__(
                f"topic {topic} has compressed messages (acceptCompressed=true), which a client of metaq 1.x cannot "
                f"read: group {reading} needs a newer client, or producers a topic without acceptCompressed"
            )
        else:
            super().__init__(
                f"topic {topic} takes no compressed messages: set acceptCompressed=true in its section of server.ini "
                "once all of its consumers can read them, or send without compression (ProducerConfig, --compression)"
            )
        self.topic = topic


class WrongPartition(StoreError):
    """The partition number is outside the topic's configured count."""

    refresh_view = True

    def __init__(self, partition: int, count: int | None = None) -> None:
        """count: the topic's number of partitions, if the message is to include it."""
        there = "" if count is None else f": there are {count}, from 0 to {count - 1}"
        super().__init__(f"wrong partition {partition}{there}")
        self.partition = partition


class PartitionClosed(StoreError):
    """An operator closed the partition. Another partition may take the message."""

    status = Status.FORBIDDEN
    retriable = True

    def __init__(self, broker_id: int, partition: int) -> None:
        super().__init__(f"partition[{broker_id}-{partition}] has been closed")
        self.broker_id = broker_id
        self.partition = partition


class BrokerStarting(StoreError):
    """The broker has not yet read which of its partitions have moved to another broker. Nothing was stored."""

    status = Status.UNAVAILABLE
    retriable = True

    def __init__(self, broker_id: int) -> None:
        super().__init__(f"broker {broker_id} is starting: try again")


class NotMaster(StoreError):
    """A put was sent to a slave, which only copies its master."""

    def __init__(self, broker_id: int, role: str) -> None:
        super().__init__(f"this broker is {role} of broker {broker_id} and takes no messages: send to the master")


class NotLeader(StoreError):
    """The node of a broker set does not lead the set, or does not lead it yet. The request may be stored: a deposed
    leader gives this answer to waiting requests. url: the leader's URL, "" if unknown. node: the address of the node
    that answered; set only in a client.
    """

    retriable = True
    refresh_view = True

    def __init__(self, broker_id: int, url: str = "", node: str = "") -> None:
        where = f"send to {url}" if url else "the set is choosing its leader: try again"
        super().__init__(f"this node does not lead broker {broker_id} now: {where}")
        self.broker_id = broker_id
        self.url = url
        self.node = node


class NotEnoughReplicas(StoreError):
    """Fewer nodes of a broker set are in sync than the topic's minInSync demands.

    stored: whether the message is stored on the in-sync nodes, but not acknowledged.
    """

    retriable = True

    def __init__(self, topic: str, nodes: int, least: int, *, stored: bool = False) -> None:
        what = f"stored on {nodes} only and not acknowledged" if stored else "not stored"
        super().__init__(f"topic {topic} wants {least} nodes in sync (minInSync) and there are {nodes}: {what}")
        self.stored = stored


class CorruptRecord(StoreError):
    """The stored bytes from `position` of `file` (a path, or a partition) on are not a good record.

    partition: the partition of the bytes, for `consumer.seek(error.partition, error.end)`; None if a file is read
    instead of a partition. end: the offset after the damage, where reading can continue; None if it was not searched
    for, or not found.
    """

    partition: TopicPartition | None = None

    def __init__(self, file: str, position: int, reason: str, end: int | None = None) -> None:
        where = f"record at byte {position}" if end is None else f"bytes [{position}, {end}) are damaged"
        super().__init__(f"{file}: {where}: {reason}")
        self.file = file
        self.position = position
        self.reason = reason
        self.end = end

    @classmethod
    def of(cls, partition: TopicPartition, position: int, reason: str, end: int | None = None) -> Self:
        """Return the error for damage that a reader of a partition has met."""
        error = cls(f"topic {partition.topic}, partition {partition}", position, reason, end)
        error.partition = partition
        return error


class NoMessageBegins(CorruptRecord):
    """No message begins at `position`, which lies inside the readable bytes. begin: the offset where the message that
    contains that position begins, or where the next message begins.
    """

    def __init__(self, file: str, position: int, begin: int) -> None:
        super().__init__(file, position, f"no message begins there, one does at {begin}")
        self.begin = begin

    @classmethod
    def there(cls, partition: TopicPartition, position: int, begin: int) -> Self:
        """Return the error for a reader of a partition, as `of` does."""
        error = cls(f"topic {partition.topic}, partition {partition}", position, begin)
        error.partition = partition
        return error


class LogReadOnly(StoreError):
    """A write or fsync of this partition failed; it takes no writes until a restart recovers it."""

    retriable = True

    def __init__(self, directory: str, cause: str) -> None:
        super().__init__(f"{directory} is read-only after a failed write: {cause}")
        self.directory = directory
        self.cause = cause


class NotSafe(LogReadOnly):
    """A write with a producer's number was appended, but could not be made safe or is on too few nodes. A restart or a
    new leader may still find it stored; a repetition of the write waits for that.
    """


class DelayRefused(StoreError):
    """A delayed message is not taken in combination with another part of the request."""


class HalfRefused(DelayRefused):
    """A half message is not taken in combination with another part of the request, or a connection asks for too many
    groups."""


class StaleSequence(StoreError):
    """The producer has already stored a later send in the same partition: this is a late copy. Not stored."""

    def __init__(self, sequence: int, last: int) -> None:
        super().__init__(
            f"number {sequence} of its producer is not stored: the partition has number {last} already, so this is a "
            "copy that came late"
        )


class SendInDoubt(StoreError):
    """A send was repeated, and the broker may have forgotten that it stored the first copy. So it is unknown whether
    the messages are stored. The broker does not store them a second time.
    """


class DiskFull(StoreError):
    """There is no room for puts here. Consuming continues, and puts resume when space returns."""

    retriable = True

    def __init__(self, place: str, cause: str) -> None:
        super().__init__(f"{place} takes no puts, its disk is full: {cause}")
        self.place = place
        self.cause = cause


class DirectoryInUse(StoreError):
    """Another broker process holds the data directory."""


# --- filters ----------------------------------------------------------------------------------------------------------


class FilterUnavailable(MetaqError):
    """A Java class filters a group's messages, but the broker has no Python callable for it.

    Retriable: an operator may name one while the broker runs.
    """

    retriable = True

    def __init__(self, filter_class: str, topic: str, group: str) -> None:
        super().__init__(
            f"filter {filter_class} of group {group} for topic {topic} is a Java class without a Python callable: "
            f"name one in filters.ini, or * for all messages; until then the group gets nothing of this topic"
        )


class FiltersBusy(MetaqError):
    """Too many requests wait for their filters."""

    status = Status.UNAVAILABLE
    retriable = True


class AccountSpent(MetaqError):
    """Clients have reached a limit of the broker, for example its memory, or one address has used up its share. The
    text names the option that sets the limit.
    """

    status = Status.UNAVAILABLE
    retriable = True


class SharedRefused(MetaqError):
    """A broker refuses to lease messages to this shared consumer in the requested way; the text says what to do."""

    status = Status.BAD_REQUEST


class SearchesBusy(MetaqError):
    """Too many searches for messages are waiting."""

    status = Status.UNAVAILABLE
    retriable = True


# --- transactions -----------------------------------------------------------------------------------------------------


class TransactionRefused(MetaqError):
    """A transaction cannot do what was requested; the text is 1.x's own where 1.x has one."""

    xa_code: int | None = None
    """XAException.errorCode (JTA) for the coordinator of an XA transaction."""


class XaRefused(TransactionRefused):
    """A TransactionRefused with an error code of JTA's XAException, in the form that the Java client parses."""

    def __init__(self, xa_code: int, reason: str) -> None:
        super().__init__(f"XAException:code={xa_code},msg={reason}")
        self.xa_code = xa_code
        self.reason = reason


# --- replication ------------------------------------------------------------------------------------------------------


class ReplicationError(MetaqError):
    """An error of copying between a master and its slave."""


class NotReplicating(ReplicationError):
    """Only a master or slave in replication can do what was requested."""


class PeerLost(ReplicationError):
    """There is no connection to the other side of the replication."""


class PeerTimedOut(ReplicationError):
    """The other side did not answer in time; it is unknown whether it carried out the request."""


class PeerRefused(ReplicationError):
    """The other side answered that it refuses now."""


class SlaveDisconnected(ReplicationError):
    """A synchronous master has no connection to its slave; nothing was stored."""

    def __init__(self) -> None:
        super().__init__("Slave is disconnected ")  # 1.x's own words, with the blank


class SyncFailed(ReplicationError):
    """A message is stored on only one of synchronous master and slave; sending it again stores it twice there."""

    def __init__(self, role: str, url: str, topic: str, partition: int) -> None:
        super().__init__(f"Put message to [{role} '{url}'] [partition '{topic}-{partition}'] failed")


class ReplicaDiverged(ReplicationError):
    """A slave's bytes differ from its master's, or cannot follow them without a gap: an operator has to decide."""


# --- coordination -----------------------------------------------------------------------------------------------------


class CoordinationError(MetaqError):
    """ZooKeeper, or its content, does not allow the request."""


class CoordinationUnavailable(CoordinationError):
    """No ZooKeeper server of the connect string answers within the deadline."""

    retriable = True


class SessionLost(CoordinationError):
    """The ZooKeeper session under which something was owned has ended."""

    retriable = True
    refresh_view = True


class NotOwner(CoordinationError):
    """The owner node of a partition in ZooKeeper belongs to another consumer; this consumer must not write the
    partition's offset.
    """

    refresh_view = True


# --- client -----------------------------------------------------------------------------------------------------------


class ClientError(MetaqError):
    """A call of the client library failed."""


class HalfDecided(ClientError):
    """A half message already has another outcome than the requested one. outcome: "committed" or "rolled-back"."""

    def __init__(self, message_id: int, outcome: str, asked: str) -> None:
        super().__init__(f"half message {message_id} is {outcome} already: it cannot be {asked}")
        self.message_id = message_id
        self.outcome = outcome


class TransactionTooLate(ClientError):
    """The local work of a transaction with check-back was not begun, because its half message is too old.

    Another producer may be asked about it. Nothing is committed: the message is rolled back, at the latest when its
    broker asks. Sending it again is safe. seconds: its age. limit: the age that it must not reach.
    """

    def __init__(self, what: str, seconds: float, limit: float) -> None:
        super().__init__(
            f"{what}: execute was not called, because {seconds:.1f} s have passed since the send, and its broker asks "
            f"for the outcome after {limit:g} s. Nothing is committed, and the message is rolled back: send it again. "
            "If it waited for a thread of the producer, have fewer under way, or set more transaction_threads or a "
            "longer check_after"
        )
        self.seconds = seconds
        self.limit = limit


class TlsFailed(MetaqError):
    """The TLS handshake or a TLS record of a connection failed: the connection cannot be used any further."""

    def __init__(self, peer: str, reason: str) -> None:
        super().__init__(f"TLS with {peer} failed: {reason}")
        self.reason = reason


class TlsRequired(MetaqError):
    """The broker does not serve connections without TLS from this address."""

    status = Status.FORBIDDEN

    def __init__(self) -> None:
        super().__init__(
            "this broker serves no connection without TLS from this address (plain in its security.ini): connect with "
            "TLS, with the CA of this broker's certificate"
        )


class BrokerCertificateRequired(MetaqError):
    """The request is one of brokers, and the connection does not show a broker's certificate."""

    status = Status.FORBIDDEN

    def __init__(self) -> None:
        super().__init__(
            "only a broker may send this request: its connection must show a certificate that names its host and is "
            "signed by the CA of this broker's security.ini (brokers=required there)"
        )


class BrokerUnavailable(ClientError):
    """There is no connection to the broker, or it broke during a request."""

    retriable = True
    refresh_view = True


class CompressionUnknown(ClientError):
    """A producer compresses messages, and a broker is too old to know compression: this broker would give compressed
    messages to consumers that cannot read them.
    """

    def __init__(self, broker: object) -> None:
        super().__init__(
            f"{broker} does not know of compressed messages (no compressed/1 in its version): run a newer broker "
            "there, or send without compression (ProducerConfig, --compression)"
        )


class ValueUnreadable(ClientError):
    """The deserializer cannot decode a message's payload: the payload has another content type, or is damaged. The
    error's text says where the message is; the message's `payload` can be read.
    """


class LeaderMoved(BrokerUnavailable):
    """ZooKeeper shows another leader of the broker set, and the former one has not answered. It is unknown whether the
    former leader acted on the request.
    """


class TooFewNodes(BrokerUnavailable):
    """The broker set takes no messages of this topic now, because fewer nodes are in sync than its minInSync demands.
    The set may take messages of other topics."""


class DeliveryFailed(ClientError):
    """Messages that were sent without a callback could not be delivered. losses: how many, by topic and reason."""

    def __init__(self, losses: Mapping[tuple[str, str], int]) -> None:
        self.losses = losses
        told = [f"{count} to topic {topic!r}: {reason}" for (topic, reason), count in losses.items()]
        super().__init__(f"{sum(losses.values())} messages could not be delivered: {'; '.join(told)}")


class RequestTimedOut(ClientError):
    """No answer before the deadline. It is unknown whether the broker acted on the request."""

    retriable = True


class NoPartition(ClientError):
    """No live broker publishes a partition of the topic."""

    retriable = True
    refresh_view = True


class RequestRefused(ClientError):
    """The broker answered with an error status; `code` is metaq's status or the frame's response code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"status {code}")
        self.code = code
        self.text = text


class MessageNotFound(ClientError):
    """No readable message of the topic has this id or key; all messages were searched."""


class SearchIncomplete(ClientError):
    """A search found nothing, but not everything could be searched: `unsearched_bytes` of data on brokers that
    answered, or the data of brokers that are not registered now.

    Try again: brokers remember what they have read for the search, and build missing indexes meanwhile.
    """

    retriable = True

    def __init__(self, text: str, unsearched_bytes: int) -> None:
        super().__init__(text)
        self.unsearched_bytes = unsearched_bytes


class LocalStoreError(ClientError):
    """The file of a LocalMessageStore cannot be opened, read or written; the message names it."""


class LocalStoreFull(LocalStoreError):
    """A queue of a LocalMessageStore holds its maximum number of messages."""

    retriable = True


class LocalStoreInUse(LocalStoreError):
    """Another process, or another store of this process, has the file of a LocalMessageStore open."""


class TransactionLost(ClientError):
    """A transaction ended before its commit was sent, or a node that no longer leads its broker set refused the commit:
    none of its messages becomes visible. Begin a new transaction."""


class CommitIncomplete(ClientError):
    """A transaction is committed, but a partition could not take its messages: the missing messages appear when the
    broker is restarted. Do not repeat the transaction: every message would be stored twice.
    """


class CommitUnknown(ClientError):
    """It is unknown whether a transaction is committed: the answer to the commit was lost, or the broker could not
    write its decision. Either all messages are visible, now or when the broker is restarted, or none ever is."""


class XaError(ClientError):
    """An XA verb failed; `code` is one of protocol.transactions.XaCode, or another code that the broker sent."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
