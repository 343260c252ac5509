"""The text requests of transactions, and what a partition holds, for tests on real brokers of either kind."""

from __future__ import annotations

from metaq.protocol.record import checksum, iter_headers
from metaq.protocol.text import Value, encode_get
from tests.broker_process import Connection

__all__ = ["bodies", "check_pairs", "ok", "recover", "tx", "tx_put"]


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


def check_pairs(found: list[bytes], committed: set[str]) -> None:
    """What a partition holds of transactions that put "<name> 0" and "<name> 1" into it: each is whole and there once,
    and those that were acknowledged are there."""
    assert len(found) == len(set(found)), "a message is there twice"
    names = [body.decode().rpartition(" ")[0] for body in found]
    assert names[::2] == names[1::2], "a transaction's messages are torn apart"
    assert [body[-2:] for body in found] == [b" 0", b" 1"] * (len(found) // 2)
    lost = committed - set(names)
    assert not lost, f"{len(lost)} acknowledged transactions are lost: {sorted(lost)[:3]}"
