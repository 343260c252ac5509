"""Define the status codes of the text protocol, and the request and response codes of the framed protocol.

`Status` has the codes of metaq 1.x (wire.md §4). `RequestCode` and `ResponseCode` have the codes of the framed
protocol. If RocketMQ has a code with the same meaning (org.apache.rocketmq.remoting.protocol.RequestCode /
ResponseCode), the framed protocol uses RocketMQ's code. metaq's own codes begin at 1,000.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["RequestCode", "ResponseCode", "Status"]


class Status(IntEnum):
    """Codes of a metaq 1.x `result` line."""

    SUCCESS = 200
    MOVED = 301
    BAD_REQUEST = 400
    FORBIDDEN = 403
    NOT_FOUND = 404
    ERROR = 500
    UNAVAILABLE = 503


class RequestCode(IntEnum):
    """Codes of the requests in frames."""

    SEND = 10
    PULL = 11
    QUERY_MESSAGE = 12
    SEARCH_OFFSET_BY_TIME = 29
    MAX_OFFSET = 30
    MIN_OFFSET = 31
    VIEW_MESSAGE_BY_ID = 33
    HEARTBEAT = 34
    SEND_BATCH = 320
    MESSAGE_COUNTS = 1001
    STATS = 1002
    SEARCH_OFFSET_BY_COUNT = 1003
    TRANSACTION = 1010
    # for operators only: broker/assembly/admin.py says from which addresses
    RELOAD_CONFIG = 1020
    CLOSE_PARTITIONS = 1021
    OPEN_PARTITIONS = 1022
    PREPARED_TRANSACTIONS = 1023
    COMPLETE_TRANSACTION = 1024
    REPLICATION_STATUS = 1025
    RESTART_REPLICATION = 1026
    HAND_OVER = 1027
    # from every client again
    SEND_MANY = 1030
    # between the nodes of a broker set (replication_stream.py)
    FOLLOW = 1040
    # from every client: a node's report on its set
    SET_STATUS = 1041
    # between brokers, and from commands: read a move of partitions in ZooKeeper
    MOVE = 1042
    # from every client again
    TRANSACTION_OUTCOME = 1043
    CANCEL_DELAYED = 1044
    LIST_DELAYED = 1045
    # from shared consumers (shared.py)
    ACQUIRE = 1050
    SETTLE = 1051
    SHARED_STATUS = 1052
    SHARED_FORGET = 1053  # for operators only
    END_HALF = 1060
    CHECK_HALVES = 1061
    LIST_HALVES = 1062
    END_HALVES = 1063
    # from every client: log in (login.py)
    AUTHENTICATE = 1070


class ResponseCode(IntEnum):
    """Codes of the answers to requests in frames."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    TRANSACTION_REFUSED = 1010
    DISK_FULL = 1011
    NOT_LEADER = 1012
    NOT_ENOUGH_REPLICAS = 1013
    NOT_SAFE = 1014
    STALE_SEQUENCE = 1015
    SEND_IN_DOUBT = 1016
    ACCESS_REFUSED = 1017
    QUOTA_EXCEEDED = 1018
    SHARED_REFUSED = 1050
