"""All error classes of metaq. MetaqError is the base class of all. Each class has attributes that tell a peer or a
caller how to react to the error:

- `status`: the metaq 1.x status code of a broker's answer if the error ends the request (`broker/reading/answers.py`);
- `retriable`: whether the same call may succeed later, perhaps at another broker or partition;
- `refresh_view`: whether the caller should read the cluster's state from ZooKeeper again, because its copy is probably
  stale.

The text of an error is only for people: no code evaluates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from .statuses import Status

if TYPE_CHECKING:
    from .topic_partition import TopicPartition

__all__ = [
    "AccessRefused",
    "BrokerCertificateRequired",
    "BrokerStarting",
    "BrokerUnavailable",
    "CannotConnect",
    "ChecksumMismatch",
    "ClientError",
    "CommitIncomplete",
    "CommitUnknown",
    "CompressionNotAccepted",
    "CompressionUnknown",
    "ConfigError",
    "CoordinationError",
    "CoordinationRefused",
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
    "QuotaExceeded",
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
    "TlsNotServed",
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
    """Base class of all errors that metaq raises on purpose."""

    status: ClassVar[Status] = Status.ERROR
    retriable: ClassVar[bool] = False
    refresh_view: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with its attributes, because `multiprocessing` and Spark pass errors from one process to
        another in this way. Exception's own method would unpickle an error by calling its class with only the error
        text, which few of these classes accept.
        """
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[MetaqError], args: tuple[object, ...]) -> MetaqError:
    return kind.__new__(kind, *args)


class ConfigError(MetaqError):
    """A user's setting is wrong. The error text names the option, the value and the remedy."""

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
    """The name of a topic or a group cannot be used. The error text tells the reason."""

    status = Status.BAD_REQUEST


class InvalidWhere(MetaqError, ValueError):
    """A filter by content is invalid (docs/filters.md). position: the index, from 0, of the first wrong character.
    expected: what the filter needs at this position. found: what the filter contains at this position; "" if `expected`
    alone explains the error.
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
    """Bytes that were received, or would be sent, do not follow the protocol."""


class LocalProtocolError(ProtocolError):
    """The process that raises this error tried to send data that the protocol cannot express. The cause is a bug or a
    wrong argument in this process.
    """


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that do not follow the protocol. The connection cannot be used any further."""

    status = Status.BAD_REQUEST
    refresh_view = True


class TlsNotServed(RemoteProtocolError):
    """The peer has begun a TLS handshake on a port that does not speak TLS."""


class ChecksumMismatch(ProtocolError):
    """A message body does not match the checksum that its sender has sent with it. The body was damaged between the
    sender and the receiver, so the request can be sent again.
    """

    retriable = True

    def __init__(self) -> None:
        # metaq 1.x's own text (recorded), which clients may show
        super().__init__("Checksum failure,message may be corrupted when transfering on networking.")


class PayloadUnreadable(ProtocolError):
    """A payload is marked as compressed but cannot be decompressed, because the producer has compressed it in a wrong
    way.
    """


# --- store ------------------------------------------------------------------------------------------------------------


class MessageTooLarge(ProtocolError):
    """The body of a message is larger than limits.MAX_BODY_BYTES, or, with metaq's own properties, larger than
    limits.MAX_RECORD_BODY_BYTES. The sender must send smaller messages.
    """

    def __init__(self, body_bytes: int, limit: int) -> None:
        super().__init__(f"message of {body_bytes} bytes is above the limit of {limit} bytes")
        self.body_bytes = body_bytes


class StoreError(MetaqError):
    """The broker's store cannot carry out the request."""


class OffsetOutOfRange(StoreError):
    """The offset is outside the readable bytes of the partition. `first` and `next` are the bounds: an offset is valid
    if first <= offset <= next.
    """

    status = Status.MOVED
    refresh_view = True

    def __init__(self, offset: int, first: int, next_: int) -> None:
        super().__init__(f"offset {offset} is outside [{first}, {next_}]")
        self.offset = offset
        self.first = first
        self.next = next_


class PartitionNotFound(StoreError):
    """The broker has no data directory for this topic and partition."""

    status = Status.NOT_FOUND
    refresh_view = True

    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(f"The topic `{topic}` in partition `{partition}` is not exists")
        self.topic = topic
        self.partition = partition


class TopicNotAccepted(StoreError):
    """The topic is not configured in the broker's server.ini, and no pattern there matches its name."""

    refresh_view = True

    def __init__(self, topic: str) -> None:
        super().__init__(f"The server do not accept topic {topic}")
        self.topic = topic


class CompressionNotAccepted(StoreError):
    """A topic's setting for compressed messages does not fit the request. Either the topic does not accept compressed
    messages, and a producer has sent one; or the topic accepts them, and a client that cannot read them has requested
    messages of the topic.
    """

    def __init__(self, topic: str, reading: str = "") -> None:
        """reading: the group of the client that requested messages but cannot read compressed ones; "" if a compressed
        message was sent.
        """
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
    """The partition's number is not lower than the topic's configured number of partitions."""

    refresh_view = True

    def __init__(self, partition: int, count: int | None = None) -> None:
        """count: the topic's number of partitions, if the error text is to include it."""
        there = "" if count is None else f": there are {count}, from 0 to {count - 1}"
        super().__init__(f"wrong partition {partition}{there}")
        self.partition = partition


class PartitionClosed(StoreError):
    """An operator closed the partition. The sender can try another partition for the message."""

    status = Status.FORBIDDEN
    retriable = True

    def __init__(self, broker_id: int, partition: int) -> None:
        super().__init__(f"partition[{broker_id}-{partition}] has been closed")
        self.broker_id = broker_id
        self.partition = partition


class BrokerStarting(StoreError):
    """The broker has refused a request, because it has just started and has not yet read from ZooKeeper which of its
    partitions have moved to another broker, or which users and grants there are. Nothing was stored.
    """

    status = Status.UNAVAILABLE
    retriable = True

    def __init__(self, broker_id: int) -> None:
        super().__init__(f"broker {broker_id} is starting: try again")


class NotMaster(StoreError):
    """A put was sent to a slave. A slave accepts no puts from clients; it only copies the messages of its master."""

    def __init__(self, broker_id: int, role: str) -> None:
        super().__init__(f"this broker is {role} of broker {broker_id} and takes no messages: send to the master")


class NotLeader(StoreError):
    """The node that answered does not lead its broker set, or was elected but has not begun to lead yet. Perhaps a
    message in the request is stored nevertheless: when a node loses its leadership, it answers all waiting requests
    with this error. url: the leader's URL, "" if unknown. node: the address of the node that answered; set only in a
    client.
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

    stored: True if the in-sync nodes have stored the message although the broker does not acknowledge it.
    """

    retriable = True

    def __init__(self, topic: str, nodes: int, least: int, *, stored: bool = False) -> None:
        what = f"stored on {nodes} only and not acknowledged" if stored else "not stored"
        super().__init__(f"topic {topic} wants {least} nodes in sync (minInSync) and there are {nodes}: {what}")
        self.stored = stored


class CorruptRecord(StoreError):
    """The stored bytes at `position` of `file` (a path, or the name of a partition) are not a valid record.

    partition: the partition that contains the bytes; None if a file was read instead of a partition. end: the offset
    after the damaged bytes, where reading can continue; None if no search for this offset was made or the search
    failed. A caller can skip the damaged bytes by `consumer.seek(error.partition, error.end)`.
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
        """Return the error for damaged bytes that a reader has found in a partition."""
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
        """Return a NoMessageBegins for a position in a partition at which a reader tried to begin. begin: as in the
        class.
        """
        error = cls(f"topic {partition.topic}, partition {partition}", position, begin)
        error.partition = partition
        return error


class LogReadOnly(StoreError):
    """A write or an fsync of this partition has failed. The partition accepts no writes until a restart of the broker
    recovers it.
    """

    retriable = True

    def __init__(self, directory: str, cause: str) -> None:
        super().__init__(f"{directory} is read-only after a failed write: {cause}")
        self.directory = directory
        self.cause = cause


class NotSafe(LogReadOnly):
    """A write with a producer's sequence number was appended, but the fsync failed or too few nodes have stored the
    write. Whether the write is stored becomes clear only after a restart of the broker, or under a new leader. Until
    then the broker accepts no repetition of the write, because the repetition could be stored as a second copy.
    """


class DelayRefused(StoreError):
    """The broker does not accept a delayed message or a half message, because the message was sent in a transaction, or
    because the broker takes part in synchronous replication.
    """


class HalfRefused(DelayRefused):
    """Producers of too many producer groups ask the broker for half messages (CHECK_HALVES) on one connection."""


class StaleSequence(StoreError):
    """A producer's send has a lower sequence number than a send that the broker has already stored for the same
    producer and partition. So the refused send is a late copy, and is not stored.
    """

    def __init__(self, sequence: int, last: int) -> None:
        super().__init__(
            f"number {sequence} of its producer is not stored: the partition has number {last} already, so this is a "
            "copy that came late"
        )


class SendInDoubt(StoreError):
    """A producer has repeated a send, but perhaps the broker has forgotten that it stored the first copy. So it is
    unknown whether the messages are stored. The broker does not store the repeated send.
    """


class DiskFull(StoreError):
    """The broker's disk has too little free space for puts. Consumers can still read. Puts are accepted again when
    there is enough space.
    """

    retriable = True

    def __init__(self, place: str, cause: str) -> None:
        super().__init__(f"{place} takes no puts, its disk is full: {cause}")
        self.place = place
        self.cause = cause


class DirectoryInUse(StoreError):
    """Another broker process uses the data directory and has locked it."""


# --- filters ----------------------------------------------------------------------------------------------------------


class FilterUnavailable(MetaqError):
    """The configuration says that a Java class filters the messages for a consumer group, but the broker has no Python
    callable that replaces this class.

    The request can be sent again later, because an operator can name a callable while the broker runs.
    """

    retriable = True

    def __init__(self, filter_class: str, topic: str, group: str) -> None:
        super().__init__(
            f"filter {filter_class} of group {group} for topic {topic} is a Java class without a Python callable: "
            f"name one in filters.ini, or * for all messages; until then the group gets nothing of this topic"
        )


class FiltersBusy(MetaqError):
    """The broker refuses a request with a filter, because too many requests are already waiting for the evaluation of
    their filters.
    """

    status = Status.UNAVAILABLE
    retriable = True


class AccountSpent(MetaqError):
    """Clients have reached a limit of the broker, for example for memory, or the clients at one address have used up
    their share of this limit. The error text names the option that sets the limit.
    """

    status = Status.UNAVAILABLE
    retriable = True


class SharedRefused(MetaqError):
    """A broker refuses an ACQUIRE, because it cannot lease messages to this shared consumer in the way that the request
    asks for. The error text says what to do.
    """

    status = Status.BAD_REQUEST


class SearchesBusy(MetaqError):
    """The broker refuses a search for messages, because too many searches are already waiting."""

    status = Status.UNAVAILABLE
    retriable = True


# --- transactions -----------------------------------------------------------------------------------------------------


class TransactionRefused(MetaqError):
    """A request about a transaction was refused. If metaq 1.x also refuses such a request, the error text is the same
    as the text that 1.x sends.
    """

    xa_code: int | None = None
    """The value of XAException.errorCode (JTA) for the coordinator of an XA transaction; None for an error that is not
    about an XA transaction.
    """


class XaRefused(TransactionRefused):
    """A TransactionRefused with an error code of JTA's XAException. The error text has the form that the Java client
    parses.
    """

    def __init__(self, xa_code: int, reason: str) -> None:
        super().__init__(f"XAException:code={xa_code},msg={reason}")
        self.xa_code = xa_code
        self.reason = reason


# --- replication ------------------------------------------------------------------------------------------------------


class ReplicationError(MetaqError):
    """Base class of errors in the replication from a master to its slave."""


class NotReplicating(ReplicationError):
    """The request is only possible at a master or a slave that takes part in replication."""


class PeerLost(ReplicationError):
    """There is no connection between this broker and the broker with which it replicates."""


class PeerTimedOut(ReplicationError):
    """The broker with which this broker replicates did not answer in time. That broker may or may not have carried out
    the request.
    """


class PeerRefused(ReplicationError):
    """The broker with which this broker replicates has refused a request."""


class SlaveDisconnected(ReplicationError):
    """A synchronous master has no connection to its slave, so the master has refused the message and not stored it."""

    def __init__(self) -> None:
        super().__init__("Slave is disconnected ")  # 1.x's own words, with the blank


class SyncFailed(ReplicationError):
    """A message is stored on only one of the two brokers of a synchronous replication. If the producer sends the
    message again, the broker that already has the message stores it a second time.
    """

    def __init__(self, role: str, url: str, topic: str, partition: int) -> None:
        super().__init__(f"Put message to [{role} '{url}'] [partition '{topic}-{partition}'] failed")


class ReplicaDiverged(ReplicationError):
    """A slave's data cannot be continued with its master's data: their bytes differ, or there would be a gap between
    the slave's last byte and the master's next byte. An operator has to decide which data to keep.
    """


# --- coordination -----------------------------------------------------------------------------------------------------


class CoordinationError(MetaqError):
    """A request fails because of ZooKeeper, or because of the data in ZooKeeper."""


class CoordinationUnavailable(CoordinationError):
    """No ZooKeeper server in the connect string has answered within the time limit."""

    retriable = True


class CoordinationRefused(CoordinationError):
    """ZooKeeper refuses a request, because the access rights of a znode do not permit it to this process. The error
    text names the znode, and the identity of the process.
    """


class SessionLost(CoordinationError):
    """The ZooKeeper session has ended. ZooKeeper has removed the session's ephemeral znodes. For example, the process
    no longer owns the partitions whose owner znodes were among them.
    """

    retriable = True
    refresh_view = True


class NotOwner(CoordinationError):
    """The owner znode of a partition names another consumer. So the consumer that raises this error no longer owns the
    partition, and must not store an offset for it.
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

    The broker may already be asking another producer for the outcome of this transaction. Nothing is committed: the
    half message is rolled back, at the latest when its broker asks for the outcome. So the caller can begin the
    transaction again without a danger that the message is delivered twice. seconds: the age of the half message. limit:
    the age in seconds from which on a half message is too old.
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

    def __init__(self, peer: str, reason: str, *, is_ours: bool = False) -> None:
        """is_ours: whether this side has refused the peer's certificate; the reason says why."""
        super().__init__(f"TLS with {peer} failed: {reason}")
        self.reason = reason
        self.is_ours = is_ours


class TlsRequired(MetaqError):
    """The broker has refused a connection without TLS, because it requires TLS from the client's address."""

    status = Status.FORBIDDEN

    def __init__(self, listener: str = "") -> None:
        """listener: the name of the listener that requires TLS; "" if the broker's own port does."""
        where = f"on its listener {listener}" if listener else "from this address (plain in its security.ini)"
        super().__init__(
            f"this broker serves no connection without TLS {where}: connect with TLS, with the CA of this broker's "
            "certificate"
        )


class BrokerCertificateRequired(MetaqError):
    """This request may be sent only by brokers, and the sender has shown no broker's certificate on this connection."""

    status = Status.FORBIDDEN

    def __init__(self) -> None:
        super().__init__(
            "only a broker may send this request: its connection must show a certificate that names its host and is "
            "signed by the CA of this broker's security.ini (brokers=required there)"
        )


class AccessRefused(ClientError):
    """The sender of a request may not do what it asks for, or could not log in. The error text names the grant that is
    missing, or says how to log in. Repeating the request does not help.
    """

    status = Status.FORBIDDEN


class CannotConnect(AccessRefused):
    """The settings of the client and of the broker permit no connection: for example, one side refuses the certificate
    of the other, or the broker has no listener of the wanted name. The error text says which setting to change.
    Connecting again does not help before somebody has changed it; another broker may have other settings.
    """


class QuotaExceeded(ClientError):
    """A user already has as much on this broker as one of his quotas allows. The error text names the quota and its
    value, and says who can raise it. Repeating the request helps only after something has ended or the quota was
    raised.
    """


class BrokerUnavailable(ClientError):
    """No connection to the broker could be opened, or the connection was lost during a request."""

    retriable = True
    refresh_view = True


class CompressionUnknown(ClientError):
    """A producer compresses messages, but the broker has an old version of metaq that cannot handle compressed
    messages. Such an old broker would deliver the compressed messages to consumers that cannot read them.
    """

    def __init__(self, broker: object) -> None:
        super().__init__(
            f"{broker} does not know of compressed messages (no compressed/1 in its version): run a newer broker "
            "there, or send without compression (ProducerConfig, --compression)"
        )


class ValueUnreadable(ClientError):
    """The deserializer cannot decode a message's payload, because the payload has another content type or is damaged.
    The error text names the message's partition and offset. The attribute `payload` of the message still returns the
    undecoded bytes.
    """


class LeaderMoved(BrokerUnavailable):
    """A broker set's leader has not answered a request, and another node leads the set now. The former leader may or
    may not have carried out the request.
    """


class TooFewNodes(BrokerUnavailable):
    """The broker set accepts no messages of this topic now, because fewer nodes are in sync than the topic's minInSync
    demands. The set may accept messages of other topics.
    """


class DeliveryFailed(ClientError):
    """Messages that were sent without a callback could not be delivered. losses: the number of these messages, by topic
    and reason.
    """

    def __init__(self, losses: Mapping[tuple[str, str], int]) -> None:
        self.losses = losses
        told = [f"{count} to topic {topic!r}: {reason}" for (topic, reason), count in losses.items()]
        super().__init__(f"{sum(losses.values())} messages could not be delivered: {'; '.join(told)}")


class RequestTimedOut(ClientError):
    """The broker has not answered before the deadline of the request. The broker may or may not have carried out the
    request.
    """

    retriable = True


class NoPartition(ClientError):
    """No live broker publishes a partition of the topic."""

    retriable = True
    refresh_view = True


class RequestRefused(ClientError):
    """The broker has answered with an error. `code` is the status of the text protocol or the response code of the
    frame.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"status {code}")
        self.code = code
        self.text = text


class MessageNotFound(ClientError):
    """No readable message of the topic has this id or key. All messages were searched."""


class SearchIncomplete(ClientError):
    """A search has found nothing, but not all data could be searched. The unsearched data are `unsearched_bytes` bytes
    on brokers that answered, or the data of brokers that are not registered now.

    Repeat the search later: a broker then continues after the data that it has already read for this search, and builds
    missing indexes meanwhile.
    """

    retriable = True

    def __init__(self, text: str, unsearched_bytes: int) -> None:
        super().__init__(text)
        self.unsearched_bytes = unsearched_bytes


class LocalStoreError(ClientError):
    """The file of a LocalMessageStore cannot be opened, read or written. The error text names the file."""


class LocalStoreFull(LocalStoreError):
    """A message cannot be added to a queue of a LocalMessageStore, because the queue has its maximum number of
    messages.
    """

    retriable = True


class LocalStoreInUse(LocalStoreError):
    """Another process, or another store of this process, has the file of a LocalMessageStore open."""


class TransactionLost(ClientError):
    """A transaction ended before its commit was sent, or a node that no longer leads its broker set refused the commit.
    No consumer ever sees a message of this transaction. The caller should begin a new transaction.
    """


class CommitIncomplete(ClientError):
    """A transaction is committed, but a partition could not store its part of the transaction's messages. Consumers see
    these messages after a restart of the broker. Do not repeat the transaction, because messages would then be stored
    twice.
    """


class CommitUnknown(ClientError):
    """The client does not know whether a transaction is committed, because the answer to the commit was lost or the
    broker could not store its decision. If the transaction is committed, all of its messages become visible, either now
    or after the next restart of the broker. If not, none of them ever becomes visible.
    """


class XaError(ClientError):
    """The broker has refused a request about an XA transaction. `code` is the error code in its answer: usually a
    member of protocol.transactions.XaCode.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
