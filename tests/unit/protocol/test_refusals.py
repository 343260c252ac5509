"""What a broker tells of an error, and what the client makes of it, agree."""

import pytest

from metaq.protocol import errors
from metaq.protocol.frames import RESPONSE, Frame
from metaq.protocol.refusals import frame_error, response_code, text_error, transaction_refusal
from metaq.protocol.statuses import ResponseCode, Status
from metaq.protocol.text import Result
from metaq.protocol.topic_partition import TopicPartition

HERE = TopicPartition("t", 3, 1)


def by_frame(code: int, remark: str) -> errors.MetaqError:
    return frame_error(Frame(code, 1, RESPONSE, remark, {}, memoryview(b"")), HERE, "meta://m:1")


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (errors.TopicNotAccepted("t"), errors.TopicNotAccepted),
        (errors.PartitionNotFound("t", 1), errors.TopicNotAccepted),
        (errors.PartitionClosed(3, 1), errors.PartitionClosed),
        (errors.LogReadOnly("t-1", "its disk failed"), errors.LogReadOnly),
        (errors.DiskFull("meta://m:1", "no room"), errors.DiskFull),
        (errors.SearchesBusy(), errors.BrokerUnavailable),
        (errors.NotEnoughReplicas("t", 1, 2), errors.TooFewNodes),
        (errors.MetaqError("something else"), errors.RequestRefused),
    ],
)
def test_an_error_comes_back_from_its_response_code(error, becomes):
    found = by_frame(response_code(error), str(error))
    assert type(found) is becomes


@pytest.mark.parametrize(
    ("status", "text", "becomes"),
    [
        (Status.FORBIDDEN, f"Put message failed.Detail:{errors.PartitionClosed(0, 1)}", errors.PartitionClosed),
        (Status.FORBIDDEN, "Partition[0-1] has been closed", errors.PartitionClosed),
        (Status.FORBIDDEN, "user app lacks the grant: metaq acl grant app send:t", errors.AccessRefused),
        (Status.FORBIDDEN, "", errors.AccessRefused),
        (Status.NOT_FOUND, "", errors.PartitionNotFound),
        (Status.UNAVAILABLE, "stopping", errors.BrokerUnavailable),
        (Status.ERROR, f"Put message failed.Detail:{errors.ChecksumMismatch()}", errors.ChecksumMismatch),
        (Status.ERROR, "Put message failed", errors.RequestRefused),
    ],
)
def test_a_status_of_the_text_protocol_is_an_error(status, text, becomes):
    assert type(text_error(Result(status, 1, text), HERE, "meta://m:1")) is becomes


def test_the_code_of_a_refused_xa_verb_comes_back_from_its_text():
    found = transaction_refusal(str(errors.XaRefused(-4, "no such branch")))
    assert isinstance(found, errors.XaRefused)
    assert (found.xa_code, str(found)) == (-4, "XAException:code=-4,msg=no such branch")
    by_code = by_frame(ResponseCode.TRANSACTION_REFUSED, str(errors.XaRefused(7, "x")))
    assert isinstance(by_code, errors.XaRefused)
    assert type(transaction_refusal("no transaction")) is errors.TransactionRefused
