"""Answers of a broker that is newer than the client, and answers that cannot be read: a message is stored once."""

import pytest

from metaq import Producer, TopicPartition
from metaq.protocol.errors import RemoteProtocolError
from metaq.protocol.frames import RESPONSE, encode_frame
from metaq.protocol.statuses import Status
from metaq.protocol.text import encode_result
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.harness import FAST
from tests.speaking import speaking
from tests.waiting import DEADLINE

CONTENTS = [b"first", b"second"]


def spaced(header):
    return header.replace(b":", b" : ")


def unquoted(header):
    return header.replace(b'"partition":"0"', b'"partition":0')


def further_member(header):
    return header.replace(b'{"code"', b'{"node":{"zone":[1.5]},"code"')


class Newer(FakeBroker):
    """Its answers to what stores have one more field, or are written otherwise."""

    rows = b""
    write = staticmethod(bytes)
    without = ""

    def _reply(self, caller, opaque, code, ext, body=b"", remark=""):
        if "msgId" in ext or "parts" in ext:
            ext, body = {**ext, "storedAt": "1700000000000"}, bytes(body) + self.rows
            ext.pop(self.without, None)
        header = self.write(encode_frame(code, opaque, ext, flag=RESPONSE, remark=remark)[8:])
        lengths = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
        caller.out += lengths + header + body


@pytest.fixture
def newer():
    with Newer({"t": 8}) as broker:
        yield broker


@pytest.fixture
def cluster(newer):
    return FakeCluster([newer])


HERE = TopicPartition("t", 0, 0)


@pytest.mark.parametrize("write", [bytes, spaced, unquoted, further_member])
def test_an_answer_with_one_more_field_is_a_success(newer, framed, write):
    newer.write = write
    results = [framed.send("t", CONTENTS[0], partition=HERE)]
    results += [framed.send_async("t", CONTENTS[1], partition=HERE).result(DEADLINE)]
    results += framed.send_batch("t", CONTENTS, partition=HERE)
    log = newer.log("t", 0)
    assert newer.bodies("t", 0) == CONTENTS * 2
    assert [(each.message_id, each.offset) for each in results] == list(zip(log.ids, log.starts, strict=True))
    assert {each.partition for each in results} == {HERE}


def test_an_answer_for_many_partitions_with_bytes_behind_its_rows_is_a_success(newer, framed):
    newer.rows = b"more"
    futures = [
        framed.send_async("t", b"%d" % number, partition=HERE._replace(partition=number % 8)) for number in range(400)
    ]
    results = [future.result(DEADLINE) for future in futures]
    assert any(request.startswith("frame 1030") for request in newer.requests)
    stored = sorted(identity for number in range(8) for identity in newer.log("t", number).ids)
    assert sorted(each.message_id for each in results) == stored


def test_a_success_that_cannot_be_read_is_not_sent_again(newer, framed):
    newer.without = "msgId"
    with pytest.raises(RemoteProtocolError, match=r"msgId is missing.*not sent again"):
        framed.send("t", b"once", partition=HERE)
    with pytest.raises(RemoteProtocolError, match="not sent again"):
        framed.send_async("t", b"twice", partition=HERE).result(DEADLINE)
    assert newer.bodies("t", 0) == [b"once", b"twice"]


class Unreadable(FakeBroker):
    """Answers each put with a success of other words."""

    def _put(self, caller, put):
        super()._put(caller, put)
        return encode_result(Status.SUCCESS, "stored", put.opaque)


def test_a_put_whose_success_cannot_be_read_is_not_sent_again():
    with Unreadable({"t": 1}) as broker, Producer(metadata=FakeCluster([broker]), config=speaking("text", FAST)) as it:
        with pytest.raises(RemoteProtocolError, match=r"stored.*not sent again"):
            it.send("t", b"once", partition=HERE)
        assert broker.bodies("t", 0) == [b"once"]
