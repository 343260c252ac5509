"""What a broker tells of an error, and what the client makes of it, agree."""

import pytest

from metaq.protocol.errors import (
    BrokerUnavailable,
    ChecksumMismatch,
    DiskFull,
    LogReadOnly,
    MetaqError,
    NotEnoughReplicas,
    PartitionClosed,
    PartitionNotFound,
    RequestRefused,
    SearchesBusy,
    TooFewNodes,
    TopicNotAccepted,
    TransactionRefused,
    XaRefused,
)
from metaq.protocol.frames import RESPONSE, Frame
from metaq.protocol.refusals import frame_error, response_code, text_error, transaction_refusal
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import Result
from metaq.protocol.topic_partition import TopicPartition

HERE = TopicPartition("t", 3, 1)


def by_frame(code: int, remark: str) -> MetaqError:
    return frame_error(Frame(code, 1, RESPONSE, remark, {}, memoryview(b"")), HERE, "meta://m:1")


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (TopicNotAccepted("t"), TopicNotAccepted),
        (PartitionNotFound("t", 1), TopicNotAccepted),
        (PartitionClosed(3, 1), PartitionClosed),
        (LogReadOnly("t-1", "its disk failed"), LogReadOnly),
        (DiskFull("meta://m:1", "no room"), DiskFull),
        (SearchesBusy(), BrokerUnavailable),
        (NotEnoughReplicas("t", 1, 2), TooFewNodes),
        (MetaqError("something else"), RequestRefused),
    ],
)
def test_an_error_comes_back_from_its_response_code(error, becomes):
    found = by_frame(response_code(error), str(error))
    assert type(found) is becomes


@pytest.mark.parametrize(
    ("status", "text", "becomes"),
    [
        (Status.FORBIDDEN, "partition closed", PartitionClosed),
        (Status.NOT_FOUND, "", PartitionNotFound),
        (Status.UNAVAILABLE, "stopping", BrokerUnavailable),
        (Status.ERROR, f"Put message failed.Detail:{ChecksumMismatch()}", ChecksumMismatch),
        (Status.ERROR, "Put message failed", RequestRefused),
    ],
)
def test_a_status_of_the_text_protocol_is_an_error(status, text, becomes):
    assert type(text_error(Result(status, 1, text), HERE, "meta://m:1")) is becomes


def test_the_code_of_a_refused_xa_verb_comes_back_from_its_text():
    found = transaction_refusal(str(XaRefused(-4, "no such branch")))
    assert isinstance(found, XaRefused)
    assert (found.xa_code, str(found)) == (-4, "XAException:code=-4,msg=no such branch")
    by_code = by_frame(ResponseCode.TRANSACTION_REFUSED, str(XaRefused(7, "x")))
    assert isinstance(by_code, XaRefused)
    assert type(transaction_refusal("no transaction")) is TransactionRefused
