"""Pages, figures and texts stay whole beside a value that is not valid UTF-8: it is shown escaped."""

import pytest
import simplejson

from metaq.broker.assembly.stats import stats_text
from metaq.broker.http.metrics import exposition
from metaq.broker.http.pages import Button, Page, Table, Text, to_html, to_json
from metaq.broker.http.sheets import encoded
from metaq.broker.store.disk_space import Room
from metaq.protocol.frames import encode_frame
from metaq.protocol.shared import AcquireRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.protocol.text import encode_result
from tests.unit.broker.harness import put, worked_off
from tests.unit.broker.http.test_http_pages import dashboard

HALF = "bad\ud800"  # of JSON that an earlier version took, or of a path whose bytes are not UTF-8


@pytest.fixture
def damaged(harness, monkeypatch):
    """A broker with such a group among others, and such a data directory."""
    peer = harness.connect()
    peer.send(put("t", 0))
    peer.received()
    for group in ("g", "other"):
        peer.send(encode_frame(RequestCode.ACQUIRE, 7, AcquireRequest("t", 0, group, "m", 1, 99, 9).to_ext()))
    harness.threads.run()
    queue = next(each for each in harness.broker.shared.queues() if each.key.group == "g")
    queue.key = queue.key._replace(group=HALF)
    monkeypatch.setattr(harness.store.space, "rooms", lambda: [Room(HALF, 9, 1, True)])
    monkeypatch.setattr(harness.store, "data_paths", [HALF])
    return harness


def test_the_figures_of_a_damaged_name_are_escaped_beside_the_others(damaged):
    text = encoded(exposition(damaged.broker)).decode()
    for group in (r"bad\\ud800", "other"):
        assert f'metaq_shared_left_messages{{group="{group}",topic="t"}} 1.0' in text
    assert r'metaq_disk_takes_puts{path="bad\\ud800"} 1.0' in text


def test_stats_name_it_escaped(damaged):
    lines = worked_off(stats_text(damaged.broker, "shared")).decode().split("\r\n")
    assert [line.split(" left ")[0] for line in lines[1:-2]] == [r"bad\ud800 t-0", "other t-0"]
    assert rb"bad\ud800 free_bytes" in worked_off(stats_text(damaged.broker, "disk"))


def test_a_frame_tells_of_it(damaged):
    answer = damaged.connect().ask_frame(encode_frame(RequestCode.SHARED_STATUS, 7, {}))
    assert answer.code == ResponseCode.SUCCESS
    assert [each["group"] for each in simplejson.loads(bytes(answer.body))] == [HALF, "other"]


def test_a_text_answer_tells_of_it():
    assert encode_result(500, f"cannot write {HALF}", 1) == b"result 500 22 1\r\ncannot write bad\\ud800"


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
@pytest.mark.parametrize("path", ["/", "/topics", "/stats/shared", "/stats/disk", "/metrics"])
def test_each_page_is_whole(damaged, path, accept):
    status, _, body = dashboard(damaged).ask("GET", path, accept=accept)
    assert status == 200
    assert body.decode()


def test_a_page_escapes_it_wherever_it_is():
    button = Button(HALF, HALF)
    table = Table((HALF,), [(HALF,)], HALF, links={HALF: "/topics/"}, action=lambda row: button)
    page = Page(HALF, [table, Text([HALF], HALF)], HALF, [button])
    html = encoded(to_html(page)).decode()
    assert html.count(r"bad\ud800") == 12
    assert '<a href="/topics/bad%ED%A0%80">' in html
    assert simplejson.loads(encoded(to_json(page)))[HALF]
