"""Searches for messages over several brokers, and the places they lead to, without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from metaq.client.questions import finding
from metaq.client.questions.finding import FoundMessage, FoundMessages, MessageFinder
from metaq.client.questions.places import AtKey, AtMessage, Last, locate
from metaq.client.questions.sources import Sources
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.client.transport.connection import Endpoint
from metaq.coordination.brokers.cluster_view import ClusterView
from metaq.protocol import errors, remoting
from metaq.protocol.frames import RESPONSE, Frame, encode_frame
from metaq.protocol.limits import INT64_MAX
from metaq.protocol.record import encode_record
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.frames import FrameReader


class Peer:
    """A connection whose answers are set beforehand; `asked` are the requests' ext fields."""

    speaks_frames = True
    takes_where = True

    def __init__(self, *answers: tuple[ResponseCode, Mapping[str, str | int], bytes]) -> None:
        self.endpoint = Endpoint("peer", 1)
        self.answers = list(answers)
        self.asked: list[tuple[int, Mapping[str, str]]] = []

    def call(self, build: Any, timeout: float | None = None) -> Frame:
        (request,) = FrameReader().receive(b"".join(build(1)))
        self.asked.append((request.code, request.ext))
        code, ext, body = self.answers.pop(0)
        frames = FrameReader().receive(encode_frame(code, 1, ext, len(body), flag=RESPONSE) + body)
        return frames[0]


class DeadPeer(Peer):
    """A broker that is registered and does not answer."""

    def call(self, build: Any, timeout: float | None = None) -> Frame:
        raise errors.BrokerUnavailable("dead")


def answer(*rows: tuple[int, int, int, int], unsearched: int = 0, more: bool = False, damaged: bool = False) -> Any:
    """Of (partition, offset, time, id) each."""
    records = [encode_record(b"body", message_id, 0) for _, _, _, message_id in rows]
    table = remoting.encode_found(
        [remoting.FoundRow(partition, offset, time, 24) for partition, offset, time, _ in rows]
    )
    body = bytearray(table + b"".join(records))
    if damaged:
        body[-1] ^= 1
    code = ResponseCode.SUCCESS if rows else ResponseCode.QUERY_NOT_FOUND
    return code, remoting.FoundReply(len(rows), unsearched, more).to_ext(), bytes(body)


def _text(asked: Any) -> dict[str, str]:
    """The ext fields of a request."""
    return {name: str(value) for name, value in asked.to_ext().items()}


@pytest.fixture
def finder_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(*peers: Peer, absent: tuple[int, ...] = ()) -> MessageFinder:
        endpoints = {number: Endpoint("peer", number) for number in range(len(peers))}
        monkeypatch.setattr(finding, "brokers_of", lambda view, topic: Sources(endpoints, absent))
        return MessageFinder(cast(ClusterView, None), lambda endpoint: cast(Any, peers[endpoint.port]))

    return make


def message(broker: int, partition: int, offset: int, message_id: int) -> Message:
    return Message(TopicPartition("t", broker, partition), offset, message_id, 0, b"body")


def test_brokers_are_asked_until_one_has_the_message(finder_of) -> None:
    first, second, third = Peer(answer(unsearched=5)), Peer(answer((2, 50, 1000, 77))), Peer()
    found = finder_of(first, second, third).view_message("t", 77)
    assert found == FoundMessage(message(1, 2, 50, 77), 1000)
    assert first.asked == [(RequestCode.VIEW_MESSAGE_BY_ID, _text(remoting.ViewMessageRequest("t", 77)))]
    assert third.asked == []


def test_an_id_of_java_brokers_leads_to_the_oldest_message_that_has_it(finder_of) -> None:
    finder = finder_of(Peer(answer((0, 0, -9000, -7))), Peer(answer((1, 0, -3000, -7))))
    assert finder.view_message("t", -7) == FoundMessage(message(1, 1, 0, -7), 3000, latest=True)


def test_nothing_is_told_from_nothing_as_far_as_could_be_looked(finder_of) -> None:
    with pytest.raises(errors.MessageNotFound, match="'t' has no message with the id 1"):
        finder_of(Peer(answer()), Peer(answer())).view_message("t", 1)
    with pytest.raises(errors.SearchIncomplete) as error:
        finder_of(Peer(answer(unsearched=3)), Peer(answer(unsearched=4))).view_message("t", 1)
    assert error.value.unsearched_bytes == 7
    with pytest.raises(errors.SearchIncomplete):
        finder_of(Peer(answer(unsearched=3))).oldest_with_key("t", "k")


def test_what_an_absent_broker_may_have_is_not_told_from_nothing(finder_of) -> None:
    with pytest.raises(errors.SearchIncomplete, match="broker 7 is not registered, start it") as error:
        finder_of(Peer(answer()), absent=(7,)).view_message("t", 1)
    assert error.value.unsearched_bytes == 0
    found = finder_of(Peer(answer()), absent=(7, 9)).query_message("t", "k")
    assert (found.messages, found.absent, found.silent) == ([], (7, 9), {})
    there = finder_of(Peer(answer((0, 7, 1000, 77))), absent=(7,))
    assert there.view_message("t", 77).message.offset == 7
    peer = Peer(answer(), answer((0, 7, 1000, 77)))
    find: Any = locate(AtMessage(77), ["a", "t"], finder_of(peer, absent=(7,)))
    assert find(cast(Any, Peer()), TopicPartition("t", 0, 0)) == 7
    with pytest.raises(errors.SearchIncomplete):
        locate(AtMessage(77), ["a", "t"], finder_of(Peer(answer(), answer()), absent=(7,)))


def test_answers_to_a_key_are_merged_in_the_order_of_their_times(finder_of) -> None:
    rows = ((0, 0, 300, 1), (1, 0, 100, 2)), ((0, 0, 200, 3), (0, 24, 50, 4))
    finder = finder_of(Peer(answer(*rows[0])), Peer(answer(*rows[1], unsearched=9)))
    found = finder.query_message("t", "k", 3)
    assert [each.id for each in found.messages] == [1, 3, 2]
    assert (found.unsearched_bytes, found.more) == (9, True)
    oldest = finder_of(Peer(answer(*rows[0])), Peer(answer(*rows[1]))).query_message("t", "k", 4, oldest_first=True)
    assert oldest == FoundMessages(sorted(found.found + oldest.found[:1], key=lambda each: each.stored_ms))


def test_a_range_of_time_is_asked_for_in_milliseconds(finder_of) -> None:
    peer = Peer(answer())
    finder_of(peer).query_message("t", "k", 5, datetime.fromtimestamp(1, UTC), datetime.fromtimestamp(2.5, UTC))
    assert peer.asked == [(RequestCode.QUERY_MESSAGE, _text(remoting.QueryMessageRequest("t", "k", 5, 1000, 2500)))]


@pytest.mark.parametrize(
    ("key", "count", "begin"), [("", 1, None), ("k", 0, None), ("k", 1025, None), ("k", 1, datetime(2026, 1, 1))]
)
def test_what_cannot_be_asked_is_a_config_error(finder_of, key: str, count: int, begin: datetime | None) -> None:
    with pytest.raises(errors.ConfigError):
        finder_of(Peer()).query_message("t", key, count, begin)


def test_a_java_broker_cannot_search(finder_of) -> None:
    peer = Peer()
    peer.speaks_frames = False
    with pytest.raises(errors.RequestRefused, match=r"metaq 1\.x"):
        finder_of(peer).view_message("t", 1)


def test_a_damaged_message_is_not_given(finder_of) -> None:
    with pytest.raises(errors.CorruptRecord) as caught:
        finder_of(Peer(answer((3, 50, 1, 1), damaged=True))).view_message("t", 1)
    assert (caught.value.partition, caught.value.position) == (TopicPartition("t", 0, 3), 50)


def test_a_damaged_message_hides_none_of_the_others(finder_of) -> None:
    damaged = answer((0, 0, 1, 1), (0, 24, 2, 2), damaged=True)
    found = finder_of(Peer(damaged), Peer(answer((0, 0, 3, 3)))).query_message("t", "k")
    assert found.messages == [message(1, 0, 0, 3), message(0, 0, 0, 1)]
    (error,) = found.damaged
    assert (error.partition, error.position) == (TopicPartition("t", 0, 0), 24)
    with pytest.raises(errors.CorruptRecord):
        finder_of(Peer(answer((0, 0, 1, 1), damaged=True))).oldest_with_key("t", "k")


def test_a_message_is_a_place_in_every_partition(finder_of) -> None:
    finder = finder_of(Peer(answer((2, 50, 1000, 77))))
    find: Any = locate(AtMessage(77), ["t"], finder)
    peer = Peer((ResponseCode.SUCCESS, remoting.OffsetReply(33).to_ext(), b""))
    assert find(cast(Any, peer), TopicPartition("t", 0, 2)) == 50
    assert peer.asked == []
    assert find(cast(Any, peer), TopicPartition("t", 0, 1)) == 33
    by_time = remoting.SearchByTimeRequest("t", 1, 1000)
    assert peer.asked == [(RequestCode.SEARCH_OFFSET_BY_TIME, _text(by_time))]


def test_a_key_is_looked_for_in_one_topic_after_the_other(finder_of) -> None:
    peer = Peer(answer(), answer((0, 7, 1000, 77)))
    find: Any = locate(AtKey("k"), ["a", "t"], finder_of(peer))
    assert find(cast(Any, Peer()), TopicPartition("t", 0, 0)) == 7
    assert [(ext["topic"], ext["maxNum"], ext["oldest"]) for _, ext in peer.asked] == [("a", "1", "1"), ("t", "1", "1")]
    with pytest.raises(errors.MessageNotFound):
        locate(AtKey("k"), ["a", "t"], finder_of(Peer(answer(), answer())))


@pytest.mark.parametrize(("last", "skipped"), [(3, 7), (10, 0), (99, 0)])
def test_the_last_messages_are_counted_from_the_end(finder_of, last: int, skipped: int) -> None:
    counts = ResponseCode.SUCCESS, remoting.MessageCountsReply(10, 0, 100, 350).to_ext(), b""
    peer = Peer(counts, (ResponseCode.SUCCESS, remoting.OffsetReply(123).to_ext(), b""))
    find: Any = locate(Last(last), ["t"], finder_of())
    assert find(cast(Any, peer), TopicPartition("t", 0, 0)) == 123
    assert peer.asked[1][1] == _text(remoting.SearchByCountRequest("t", 0, 100, skipped, INT64_MAX))


def test_no_messages_before_the_end_is_the_end(finder_of) -> None:
    peer = Peer((ResponseCode.SUCCESS, remoting.MessageCountsReply(10, 0, 100, 350).to_ext(), b""))
    find: Any = locate(Last(0), ["t"], finder_of())
    assert find(cast(Any, peer), TopicPartition("t", 0, 0)) == 350


@pytest.mark.parametrize("place", [Last(-1), datetime(2026, 1, 1)])
def test_places_that_cannot_be_are_refused(finder_of, place: Last | datetime) -> None:
    with pytest.raises(errors.ConfigError):
        locate(place, ["t"], finder_of())


# --- a broker that does not answer ------------------------------------------------------------------------------------


def test_an_id_that_another_broker_has_is_found_although_one_is_silent(finder_of) -> None:
    assert finder_of(DeadPeer(), Peer(answer((0, 0, 1, 77)))).view_message("t", 77).message.id == 77


@pytest.mark.parametrize("message_id", [77, -7])
def test_an_id_that_the_silent_broker_may_have_is_not_said_to_be_missing(finder_of, message_id: int) -> None:
    rows = [(0, 0, 1, -7)] if message_id < 0 else []  # of a Java broker's ids the oldest counts
    with pytest.raises(errors.BrokerUnavailable):
        finder_of(DeadPeer(), Peer(answer(*rows))).view_message("t", message_id)


def test_a_search_by_key_names_silent_brokers_only_where_that_is_allowed(finder_of) -> None:
    with pytest.raises(errors.BrokerUnavailable):
        finder_of(DeadPeer(), Peer(answer((0, 0, 1, 77)))).query_message("t", "k")
    found = finder_of(DeadPeer(), Peer(answer((0, 0, 1, 77)))).query_message("t", "k", allow_silent=True)
    assert ([each.id for each in found.messages], found.silent) == ([77], {0: "dead"})
