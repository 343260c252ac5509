"""The text requests of transactions, and what a partition holds, for tests on real brokers of either kind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from metaq.protocol.record import checksum, iter_headers
from metaq.protocol.text import Value, encode_get
from tests.broker_process import Connection, RunningBroker
from tests.integration.load import Load

__all__ = ["Transactions", "bodies", "check_whole", "ok", "recover", "tx", "tx_put"]


def tx(key: str, verb: str, *optional: object) -> bytes:
    """A `transaction` line."""
    return " ".join(["transaction", key, "s", verb, *map(str, optional), "1\r\n"]).encode()


def tx_put(key: str, topic: str, partition: int, body: bytes) -> bytes:
    """A `put` in a transaction."""
    return f"put {topic} {partition} {len(body)} 0 {checksum(body)} {key} 1\r\n".encode() + body


def ok(connection: Connection, *requests: bytes) -> str:
    """Send one after the other; the last one's text. All must be answered 200."""
    for data in requests:
        answer = connection.ask(data)
        assert answer.code == 200, answer.text
    return str(answer.text)


def recover(connection: Connection) -> list[str]:
    """Keys of the prepared transactions."""
    text = ok(connection, tx("null", "RECOVER"))
    return text.split("\r\n") if text else []


def bodies(connection: Connection, topic: str, partition: int) -> list[bytes]:
    """All readable messages of a partition; every checksum is verified."""
    found: list[bytes] = []
    offset = 0
    while isinstance(answer := connection.ask(encode_get(topic, "g", partition, offset, 1 << 20, 1)), Value):
        headers = list(iter_headers(answer.data))
        for header in headers:
            body = bytes(answer.data[header.end - header.length : header.end])
            assert checksum(body) == header.checksum
            found.append(body)
        offset += headers[-1].end  # the last record may be cut
    return found


class Transactions(Load):
    """Two messages in each of `places` per transaction, one after the other: every second one is prepared first.
    begun: the names of those that may be there; acknowledged: of those that must."""

    def __init__(self, broker: RunningBroker, name: str, places: Sequence[tuple[str, int]]) -> None:
        super().__init__(broker)
        self.acknowledged: list[str] = []
        self.begun: list[str] = []
        self._name, self._places = name, places

    def send(self) -> None:
        for number in count():
            name, is_local = f"{self._name}.{number}", number % 2
            key = f"TX:{self._name}:{number}" if is_local else f"XID:1:{number:06x}:{self._name.encode().hex()}:host"
            ok(self.connection, tx(key, "BEGIN"))
            for part in range(2):
                for topic, partition in self._places:
                    ok(self.connection, tx_put(key, topic, partition, f"{name} {part}".encode()))
            self.begun.append(name)
            if is_local:
                ok(self.connection, tx(key, "COMMIT_ONE_PHASE"))
            else:
                ok(self.connection, tx(key, "PREPARE"), tx(key, "COMMIT_TWO_PHASE"))
            self.acknowledged.append(name)


def check_whole(connection: Connection, places: Sequence[tuple[str, int]], committed: set[str]) -> set[str]:
    """Each of the transactions is whole, in all places, once, and the acknowledged ones are there; the names of all."""
    found = [bodies(connection, *place) for place in places]
    for each in found:
        check_pairs(each, committed)
    names = [{body.decode().rpartition(" ")[0] for body in each} for each in found]
    assert all(each == names[0] for each in names), "a transaction is in some partitions only"
    return names[0]


def check_pairs(found: list[bytes], committed: set[str]) -> None:
    """What a partition holds of transactions that put "<name> 0" and "<name> 1" into it: each is whole and there once,
    and those that were acknowledged are there."""
    assert len(found) == len(set(found)), "a message is there twice"
    names = [body.decode().rpartition(" ")[0] for body in found]
    assert names[::2] == names[1::2], "a transaction's messages are torn apart"
    assert [body[-2:] for body in found] == [b" 0", b" 1"] * (len(found) // 2)
    lost = committed - set(names)
    assert not lost, f"{len(lost)} acknowledged transactions are lost: {sorted(lost)[:3]}"
