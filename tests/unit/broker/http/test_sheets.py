"""Pages are written in turns of the reactor, no faster than their readers take them; what a reader holds is bounded."""

from __future__ import annotations

import re
from typing import Any

import pytest
import simplejson
from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from metaq.broker import tuning
from metaq.broker.http.dashboard import Dashboard
from metaq.broker.http.gateway import Gateway
from metaq.broker.http.metrics import exposition
from metaq.broker.http.pages import Page, Table, Text, to_html, to_json
from metaq.broker.http.sheets import Sheet, encoded, write_sheet
from metaq.broker.requests.gate import Gate
from metaq.broker.runtime.account import MAX_PAGES
from metaq.protocol.errors import MetaqError
from metaq.protocol.frames import encode_frame
from metaq.protocol.shared import AcquireRequest
from metaq.protocol.statuses import RequestCode
from tests.unit.broker.harness import Harness, put, unsent_bytes
from tests.unit.broker.http.test_http_pages import Browser, dashboard, parsed
from tests.unit.broker.test_slices import turns


@pytest.fixture
def one_by_one(monkeypatch):
    """A turn makes one piece."""
    monkeypatch.setattr(tuning, "TURN_SECONDS", 0.0)


class Pieces:
    """Of a page, counted as they are made."""

    def __init__(self, count: int, size: int = 1, failing: int | None = None) -> None:
        self.made = 0
        self._count, self._size, self._failing = count, size, failing

    def __iter__(self) -> Any:
        for number in range(self._count):
            if number == self._failing:
                raise MetaqError("a bug")
            self.made += 1
            yield "x" * self._size


class SlowPieces(Pieces):
    """Each takes a turn."""

    def __init__(self, reactor: Any, made: list[int]) -> None:
        super().__init__(10)
        self._reactor, self._all = reactor, made

    def __iter__(self) -> Any:
        for piece in super().__iter__():
            self._reactor.rightNow += tuning.TURN_SECONDS
            self._all[-1] += 1
            yield piece


class OnePage(Resource):
    """Whose pieces are given."""

    isLeaf = True  # noqa: N815

    def __init__(self, harness: Any, pieces: Pieces) -> None:
        super().__init__()
        self._harness, self._pieces = harness, pieces

    def render_GET(self, request: Request) -> int:  # noqa: N802
        sheet = Sheet("text/plain", iter(self._pieces))
        failed = lambda failure: Sheet("text/plain", iter([f"failed: {failure.value}"]), 500)  # noqa: E731
        write_sheet(self._harness.broker.turns, "a", request, sheet, failed)
        return NOT_DONE_YET


@pytest.fixture
def asked(harness):
    """Ask for a page of these pieces: its transport."""

    def ask(pieces: Pieces, method: str = "GET", **headers: str) -> Any:
        browser = Browser(OnePage(harness, pieces), reactor=harness.reactor)
        transport = browser.send(method, "/", b"", **headers)
        transport.unsent = lambda: unsent_bytes(browser.shared)
        return transport

    return ask


def leave(transport):
    transport.protocol.connectionLost(Failure(ConnectionDone()))


def content(transport):
    return parsed(transport.value())[::2]


def test_a_page_is_made_in_turns_and_comes_whole(harness, asked, one_by_one):
    pieces = Pieces(100)
    transport = asked(pieces)
    assert pieces.made == 1
    assert turns(harness) == 101  # and the time limit of the connection
    assert content(transport) == (200, b"x" * 100)


def test_a_turn_makes_no_more_than_is_written_at_once(harness, asked):
    pieces, seen = Pieces(100, 40_000), []
    asked(pieces)
    assert pieces.made == 2
    assert turns(harness, lambda turn: seen.append(pieces.made)) == 51
    assert seen[:3] == [2, 4, 6]


def test_a_page_that_a_reader_does_not_take_is_not_made(harness, asked, one_by_one):
    pieces = Pieces(100)
    transport = asked(pieces)
    transport.protocol.pauseProducing()
    harness.reactor.advance(1)
    assert pieces.made == 1
    transport.protocol.resumeProducing()
    for _ in range(200):
        harness.reactor.advance(0)
    assert content(transport) == (200, b"x" * 100)


@pytest.mark.parametrize("closing", ["close", "keep-alive"])
def test_a_reader_that_takes_nothing_for_a_minute_is_cut(harness, asked, closing):
    transport = asked(Pieces(100, 40_000), connection=closing)
    transport.protocol.pauseProducing()
    assert transport.unsent() > 80_000
    harness.reactor.advance(59)
    assert not transport.disconnected
    harness.reactor.advance(2)
    assert transport.disconnected


def test_a_reader_that_leaves_the_last_bytes_of_a_closing_connection_is_cut(harness, asked):
    transport = asked(Pieces(1))
    assert (transport.disconnecting, transport.disconnected) == (True, False)
    harness.reactor.advance(61)
    assert transport.disconnected
    leave(transport)
    assert transport.unsent() == 0


def test_a_reader_that_leaves_ends_the_work(harness, asked, one_by_one):
    pieces = Pieces(100)
    transport = asked(pieces)
    leave(transport)
    turns(harness)
    assert (pieces.made, transport.unsent()) == (1, 0)


def test_pages_that_are_asked_for_at_once_share_an_iteration(harness, asked):
    made = [0]
    shown = [asked(SlowPieces(harness.reactor, made)) for _ in range(20)]
    assert made == [20]  # without a gate
    turns(harness, lambda _: made.append(0))
    assert max(made[1:]) <= 2
    assert [content(each) for each in shown] == [(200, b"x" * 10)] * 20


@pytest.mark.parametrize(
    "site", [dashboard, lambda harness: Browser(Gateway(harness.gate, harness.broker, harness.broker.logins))]
)
def test_requests_by_http_that_come_at_once_begin_in_turns(harness, site, monkeypatch):
    served = [0]

    def slow(gate: Any, request: Any, peer: Any) -> Any:
        served[-1] += 1
        harness.reactor.rightNow += tuning.TURN_SECONDS
        return admit(gate, request, peer)

    admit = Gate.admit
    monkeypatch.setattr(Gate, "admit", slow)
    browser = site(harness)
    asked = [browser.send("GET", "/get/0?topic=t&partition=0&offset=0&maxsize=9") for _ in range(20)]
    assert served[0] <= 3
    turns(harness, lambda _: served.append(0))
    assert (max(served) <= 3, sum(served)) == (True, 20)
    assert all(each.value().startswith(b"HTTP/1.1 4") for each in asked)


def test_a_page_that_fails_at_once_says_so(asked):
    assert content(asked(Pieces(100, failing=1))) == (500, b"failed: a bug")


def test_a_page_that_fails_half_way_is_cut_and_looks_like_no_whole_one(harness, asked, one_by_one, caplog):
    transport = asked(Pieces(100, failing=3))
    turns(harness)
    assert transport.disconnected
    assert not transport.value().endswith(b"0\r\n\r\n")
    assert "half-way" in caplog.text


def test_a_head_makes_no_more_than_the_first_piece(harness, asked, one_by_one):
    pieces = Pieces(100)
    transport = asked(pieces, "HEAD")
    turns(harness)
    assert (transport.value()[-4:], pieces.made) == (b"\r\n\r\n", 1)


def test_so_many_pages_are_sent_at_once(harness, one_by_one):
    browser = dashboard(harness)
    begun = [browser.send("GET", "/metrics") for _ in range(MAX_PAGES)]
    shown = harness.broker.account.shown_pages
    alone = MAX_PAGES - MAX_PAGES // 16
    assert shown.used == alone
    assert [each.value()[:12] for each in begun[alone:]] == [b"HTTP/1.1 503"] * (MAX_PAGES - alone)
    leave(begun[0])
    assert shown.used == alone - 1
    for _ in range(10):
        turns(harness)
    assert shown.used == 0
    assert b"too many pages that are being sent" in begun[-1].value()


TABLE = Table(("n",), range(1200), "Numbers", cells=lambda n: (n,))
PAGE = Page("Many", [TABLE], query={"group": "a&b"})


@pytest.mark.parametrize(
    ("first", "last", "links"),
    [
        (0, 499, [("500", "next")]),
        (500, 999, [("0", "previous"), ("1000", "next")]),
        (1000, 1199, [("500", "previous")]),
        (30, 529, [("0", "previous"), ("530", "next")]),
    ],
)
def test_html_has_so_many_rows_and_links_to_the_others(first, last, links):
    html = encoded(to_html(PAGE, first)).decode()
    numbers = [int(each.replace(",", "")) for each in re.findall(r'<td class="number">([\d,]+)</td>', html)]
    assert numbers == list(range(first, last + 1))
    assert re.findall(r'<a href="\?group=a%26b&amp;from=(\d+)">(\w+)</a>', html) == links * 2
    assert f"rows {first + 1:,} to {last + 1:,} of 1,200" in html


def test_rows_behind_the_last_one_are_none():
    html = encoded(to_html(PAGE, 5000)).decode()
    assert "<td" not in html
    assert "1,200 rows" in html


def test_json_has_all_rows():
    assert [row["n"] for row in simplejson.loads(encoded(to_json(PAGE)))["Numbers"]] == list(range(1200))


@pytest.mark.parametrize(("query", "first"), [("?from=500", "500"), ("?from=x", "0"), ("?from=-1", "0"), ("", "0")])
def test_the_address_says_which_rows(harness, monkeypatch, query, first):
    monkeypatch.setattr(Dashboard, "topics", lambda self, sees: PAGE)
    html = dashboard(harness).ask("GET", f"/topics{query}")[2]
    assert f'<td class="number">{first}</td>'.encode() in html


def test_json_is_what_it_was_whatever_the_parts():
    page = Page("P", [Text(["a\n", None, 'ü"'], "lines"), Table(("a",), []), Text([], "none")], "a note")
    assert simplejson.loads(encoded(to_json(page))) == {"lines": 'a\nü"', "P": [], "none": "", "note": "a note"}
    assert simplejson.loads(encoded(to_json(Page("P", [])))) == {}


@pytest.mark.parametrize("path", ["/metrics", "/stats/shared", "/stats/offsets", "/topics", "/topics/t"])
@pytest.mark.parametrize("accept", ["text/html", "application/json"])
def test_what_changes_while_a_page_is_made_does_not_break_it(harness, one_by_one, path, accept):
    peer, shared = harness.connect(), harness.broker.shared
    for number in range(9):
        request = AcquireRequest("t", 0, f"g{number}", "m", 1, 99, 1)
        peer.send(put("t", number % 3) + encode_frame(RequestCode.ACQUIRE, 7, request.to_ext()))
    turns(harness)
    harness.threads.run()
    harness.reactor.advance(61)
    groups = [f"g{number}" for number in range(9)]
    transport = dashboard(harness).send("GET", path, accept=accept)

    def change(turn: int) -> None:
        peer.send(put(f"wild{turn % 40}", 0))
        if turn % 2 and groups:
            shared.forget(groups.pop())

    turns(harness, change)
    status, _, text = parsed(transport.value())
    assert (status, b"t" in text) == (200, True)


def test_metrics_hold_nothing_that_is_changed_while_they_are_made(harness):
    """Partitions and groups may come between two pieces."""
    peer = harness.connect()
    peer.send(put("t", 0))
    made = []
    for number, piece in enumerate(exposition(harness.broker)):
        peer.send(put(f"wild{number}", 0))
        made.append(piece)
    assert 'metaq_topic_messages{topic="t"} 1.0\n' in made


def test_metrics_have_rows_of_the_largest_shared_groups_and_a_sum_of_the_others(harness, monkeypatch):
    monkeypatch.setattr(tuning, "PAGE_GROUPS", 2)
    peer = harness.connect()
    for _ in range(10):
        peer.ask(put("t", 0))
    for number in range(5):
        request = AcquireRequest("t", 0, f"g{number}", "m", 1 + number, 1 << 20, 60_000)
        peer.send(encode_frame(RequestCode.ACQUIRE, 1, request.to_ext()))
        harness.turn()
    text = "".join(filter(None, exposition(harness.broker)))
    assert [line for line in text.splitlines() if line.startswith("metaq_shared_leased_messages{")] == [
        f'metaq_shared_leased_messages{{group="{group}",topic="{topic}"}} {count}.0'
        for group, topic, count in (("g4", "t", 5), ("g3", "t", 4), ("*", "*", 6))
    ]
    assert text.count("metaq_shared_left_messages{") == 3


def test_answers_of_the_gateway_that_nobody_takes_count_with_those_of_the_port(harness):
    peer = harness.connect()
    peer.send(put("t", 0, bytes(900)))
    browser = Browser(Gateway(harness.gate, harness.broker, harness.broker.logins), shared=harness.broker)
    transport = browser.send("GET", "/get/0?topic=t&partition=0&offset=0&group=g&maxsize=1000", connection="keep-alive")
    transport.protocol.pauseProducing()
    assert unsent_bytes(harness.broker) >= 900
    transport.protocol.resumeProducing()
    assert unsent_bytes(harness.broker) == 0


@pytest.mark.parametrize("path", ["/", "/topics"])
def test_partitions_are_counted_in_turns(tmp_path, monkeypatch, path):
    monkeypatch.setattr(tuning, "PAGE_LOGS", 2)
    monkeypatch.setattr(tuning, "STATS_LINES", 2)
    harness = Harness(tmp_path, topics="[topic=many]\nnumPartitions=32\n")
    peer = harness.connect()
    for partition in range(32):
        peer.ask(put("many", partition, b"x", partition))
    transport = dashboard(harness).send("GET", path)
    assert turns(harness) >= 16
    status, _, body = parsed(transport.value())
    assert (status, b">32<" in body) == (200, True)
