"""The code numbers of ZooKeeper's protocol. The classes ZooDefs, KeeperException.Code and Watcher.Event.EventType of
ZooKeeper 3.9.5 define the same numbers.
"""

from enum import IntEnum

__all__ = ["PACKET_LIMIT", "EventKind", "OpCode", "RefusalCode", "Refused"]

PACKET_LIMIT = 0xFFFFF
"""Largest size of a request in bytes, without its length field. ZooKeeper's name for this limit is jute.maxbuffer."""


class OpCode(IntEnum):
    """The type of a request. Request types that the server accepts from no client are left out."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE_SESSION = -11
    ERROR = -1


class RefusalCode(IntEnum):
    """The error code that tells a client why its request is refused."""

    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123


class Refused(Exception):  # not a MetaqError, because it never leaves the server
    """Raised if a request must be answered with an error."""

    def __init__(self, code: RefusalCode) -> None:
        super().__init__(code.name)
        self.code = code


class EventKind(IntEnum):
    """The event that a watch reports."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4
