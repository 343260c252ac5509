"""The broker's filters: which callable for which group, what `get` and PULL leave out, and what bad filters do."""

import itertools
import logging
import sys
from typing import Any

import pytest
from twisted.python.failure import Failure

from metaq.broker.configuration.filter_map import parse_filter_map
from metaq.broker.configuration.server_ini import parse_config
from metaq.broker.configuration.sources import ConfigFiles, ConfigTexts
from metaq.broker.filters import judge as judge_module
from metaq.broker.filters.filter_table import load_filters
from metaq.broker.filters.judge import Judge, choose_records
from metaq.protocol.errors import ConfigError
from metaq.protocol.pulls import PullReply, decode_runs
from metaq.protocol.record import checksum
from metaq.protocol.statuses import ResponseCode
from metaq.protocol.text import Value, encode_get, encode_put
from tests.unit.broker.harness import INI, Harness, batch, filter_module, overwrite, pull, put

TOPICS = """
[topic=orders]
numPartitions=2
group.large=com.acme.Large
group.tagged=my_filters:tagged
group.broken=my_filters:broken
group.all=com.acme.Everything
group.lost=com.acme.NotThere
"""
FILTERS = """
[filters]
com.acme.Large = my_filters:large
com.acme.Everything = *
"""
RECORD = 25  # bytes of a record with a body of 5


@pytest.fixture(autouse=True)
def my_filters(monkeypatch):
    return filter_module(
        monkeypatch,
        large=lambda group, message: message.payload.startswith(b"L"),
        tagged=lambda group, message: message.tag == "a",
        broken=lambda group, message: 1 / 0,
        number=5,
    )


@pytest.fixture
def harness(tmp_path):
    made = Harness(tmp_path, topics=TOPICS, filters=FILTERS)
    yield made
    made.store.close()


def fill(peer, letters):
    for letter in letters:
        peer.ask(put("orders", 0, letter.encode() * 5))


def get(peer, group, offset, max_size=1000):
    return peer.ask(encode_get("orders", group, 0, offset, max_size, 1), work=True)


def ask_pull(peer, group, offset, **more):
    return peer.ask_frame(pull("orders", 0, offset, group=group, **more), work=True)


# --- get --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["all", "another"])
def test_groups_without_a_filter_get_the_stored_bytes(harness, peer, group):
    fill(peer, "sL")
    assert len(get(peer, group, 0).data) == 2 * RECORD


def test_a_record_that_is_larger_than_the_broker_gives_at_once_is_judged_whole(harness, peer):
    big = b"L" * 3000  # maxTransferSize is 1000
    peer.ask(put("orders", 0, big))
    assert len(get(peer, "large", 0, 5000).data) == 3020
    assert len(get(peer, "large", 0, 500).data) == 500


def test_a_slow_filter_is_answered_with_what_is_decided_after_its_time(harness, peer):
    fill(peer, "LLLLss")
    log = harness.store.get("orders", 0)
    filter_ = harness.broker.reading.filters.find("orders", "large")

    def run(offset):
        now = itertools.count(0, judge_module.BUDGET_SECONDS * 0.4)
        judge = Judge(filter_, "large", "orders", 0, seconds=lambda: next(now))
        chosen = choose_records(judge, log.segments.snapshot().read, offset, 1000, 1000, 1000)
        return len(chosen.data), chosen.next_offset

    assert run(0) == (3 * RECORD, 3 * RECORD)
    assert run(4 * RECORD) == (0, 6 * RECORD)


def test_a_damaged_record_is_the_clients_to_find(harness, peer):
    fill(peer, "sL")
    overwrite(f"{harness.store.get('orders', 0).directory}/{0:020}.meta", RECORD + 22, b"X")
    assert get(peer, "large", 0).text == str(RECORD)
    assert len(get(peer, "large", RECORD).data) == RECORD


def test_a_filter_that_raises_accepts_nothing_and_is_logged_once(harness, peer, caplog):
    fill(peer, "LLL")
    with caplog.at_level(logging.ERROR):
        assert get(peer, "broken", 0).text == str(3 * RECORD)
        get(peer, "broken", 0)
    assert len([record for record in caplog.records if "my_filters:broken" in record.getMessage()]) == 1
    assert harness.broker.reading.filters.find("orders", "broken").failures == 6


def test_a_java_class_without_a_callable_stops_its_group_only(harness, peer):
    fill(peer, "L")
    answer = get(peer, "lost", 0)
    assert (answer.code, "com.acme.NotThere" in answer.text) == (500, True)
    frame = peer.ask_frame(pull("orders", 0, 0, group="lost"))
    assert frame.code == ResponseCode.SYSTEM_ERROR
    assert len(get(peer, "another", 0).data) == RECORD


def test_too_many_waiting_filter_calls_are_refused_not_queued(harness, peer, monkeypatch):
    monkeypatch.setattr("metaq.broker.reading.reading.MAX_FILTER_CALLS", 1)
    fill(peer, "L")
    peer.send(encode_get("orders", "large", 0, 0, 100, 1) + encode_get("orders", "large", 0, 0, 100, 2))
    harness.threads.run()
    first, second = peer.answers()
    assert isinstance(first, Value)
    assert second.code == 503
    assert isinstance(get(peer, "large", 0), Value)


# --- PULL -------------------------------------------------------------------------------------------------------------


def test_a_pull_brings_all_accepted_records_as_runs(harness, peer):
    fill(peer, "LLssLs")
    frame = ask_pull(peer, "large", 0)
    reply = PullReply.from_ext(frame.ext)
    assert reply.next_offset == 6 * RECORD
    runs = [(offset, len(data)) for offset, data in decode_runs(frame.body, reply.runs)]
    assert runs == [(0, 2 * RECORD), (4 * RECORD, RECORD)]


def test_a_pull_of_which_nothing_is_accepted_says_how_far_it_looked(harness, peer):
    fill(peer, "sss")
    frame = ask_pull(peer, "large", 0, wait_ms=1000)
    assert (frame.code, PullReply.from_ext(frame.ext).next_offset) == (ResponseCode.PULL_NOT_FOUND, 3 * RECORD)


def test_a_waiting_pull_is_woken_and_filtered(harness, peer):
    fill(peer, "s")
    peer.send(pull("orders", 0, RECORD, group="large", wait_ms=1000))
    harness.connect().ask(put("orders", 0, b"LLLLL"))
    harness.turn()
    harness.threads.run()
    (frame,) = peer.frames()
    assert PullReply.from_ext(frame.ext).runs == 1


def test_tags_and_filter_both_decide(harness, peer):
    for tag, body in (("a", b"L1"), ("b", b"L2"), ("a", b"s3"), ("a", b"L4")):
        peer.ask_frame(batch("orders", 0, [body], tag=tag))
    frame = ask_pull(peer, "large", 0, tags=("a",))
    data = b"".join(bytes(run) for _, run in decode_runs(frame.body, PullReply.from_ext(frame.ext).runs))
    assert [body for body in (b"L1", b"L2", b"s3", b"L4") if body in data] == [b"L1", b"L4"]


def test_a_filter_sees_the_attribute_of_a_java_producer(harness, peer):
    body = b"\x00\x00\x00\x01a" + b"payload"
    peer.ask(encode_put("orders", 0, 1, checksum(body), 1, body))
    assert isinstance(get(peer, "tagged", 0), Value)


# --- configuration ----------------------------------------------------------------------------------------------------


def configured(value, filters="", directory="/tmp/x"):
    ini = INI.format(data=directory, system="") + f"[topic=f]\ngroup.g={value}\n"
    return parse_config(ConfigTexts(ini.encode(), filters.encode()))


@pytest.mark.parametrize("value", ["nowhere:f", "my_filters:missing", "my_filters:number"])
def test_a_callable_that_cannot_be_had_stops_the_start_and_names_topic_and_group(value):
    with pytest.raises(ConfigError, match=r"\[topic=f\] group.g=" + value):
        load_filters(configured(value))


def test_modules_are_found_in_the_directory_of_app_class_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "filters_of_the_application.py").write_text(
        "class Only:\n    @staticmethod\n    def x(g, m): return 1\n"
    )
    ini = INI.format(data=tmp_path, system=f"appClassPath={tmp_path}")
    config = parse_config((ini + "[topic=f]\ngroup.g=filters_of_the_application:Only.x\n").encode())
    (found,) = load_filters(config).filters()
    assert found.name == "filters_of_the_application:Only.x"


def test_the_directories_that_java_looks_into_are_the_defaults(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "server.ini").write_text("x")
    files = ConfigFiles(str(tmp_path / "conf" / "server.ini"))
    assert (files.provided_path, files.read()) == (None, ConfigTexts(b"x"))
    (tmp_path / "provided").mkdir()
    (tmp_path / "conf" / "filters.ini").write_text("y")
    assert (files.provided_path, files.read()) == (str(tmp_path / "provided"), ConfigTexts(b"x", b"y"))


@pytest.mark.parametrize(("text", "named"), [("[filter]\na=b:c", "filter"), ("[filters]\na.B=c.D", "a.B=c.D")])
def test_a_map_that_cannot_be_read_names_what_is_wrong(text, named):
    with pytest.raises(ConfigError, match=named):
        parse_filter_map(text.encode())


def reload(harness):
    results: list[Any] = []
    harness.broker.reload_config().addBoth(results.append)
    harness.threads.run()
    if isinstance(results[0], Failure):
        results[0].raiseException()
    return results[0]


def test_a_reload_brings_new_filters_and_keeps_those_that_run(harness, peer):
    fill(peer, "sL")
    kept = harness.broker.reading.filters.find("orders", "large")
    harness.filters_ini += "com.acme.NotThere = my_filters:large\n"
    assert reload(harness).changed
    assert len(get(peer, "lost", 0).data) == RECORD
    assert harness.broker.reading.filters.find("orders", "large") is kept


def test_a_reload_with_a_bad_filter_changes_nothing(harness, peer):
    before = harness.broker.reading.filters
    harness.filters_ini += "com.acme.NotThere = nowhere:f\n"
    with pytest.raises(ConfigError, match="nowhere:f"):
        reload(harness)
    assert harness.broker.reading.filters is before
