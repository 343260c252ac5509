"""Where rejected messages are kept, and how they come again."""

import logging
import pwd
import re
import stat
from contextlib import closing
from typing import Any

import pytest

from metaq import LocalMessageStore, Message, TopicPartition
from metaq.client.consumer.rejected import LocalRecoverStore, drop_message, left_of_cluster, of_cluster, recovering
from metaq.client.records.local_store import StoredMessage
from metaq.coordination.offsets.offset_store import LocalOffsetStore
from metaq.protocol.errors import ConfigError, LocalStoreError, LocalStoreFull
from tests.raising import raising

FAILURE = ValueError("away")


def message(number, topic="t"):
    return Message(TopicPartition(topic, 0, 1), 100 * number, number, 0, b"%d" % number)


class Deliver:
    """A handler that fails on these payloads."""

    def __init__(self, *failing):
        self.failing, self.seen = set(failing), []

    def __call__(self, message):
        self.seen.append(message)
        if message.payload in self.failing:
            raise FAILURE

    @property
    def ids(self):
        return [each.id for each in self.seen]


def opened(directory, group="g", **arguments):
    store = LocalRecoverStore(directory, **arguments)
    store.open(group)
    return store


@pytest.fixture
def store(tmp_path):
    with closing(opened(tmp_path)) as store:
        yield store


def run_round(store, deliver, *topics):
    return len(list(store.rounds(frozenset(topics or ("t",)), deliver)))


def test_a_kept_message_comes_again_as_it_was_until_it_is_processed(store):
    kept = [message(1), message(2)]
    for each in kept:
        store(each, FAILURE)
    deliver = Deliver(b"1")
    assert (run_round(store, deliver), store.count("t")) == (2, 1)
    assert deliver.seen == kept  # one that fails does not end the round for others
    deliver.failing.clear()
    run_round(store, deliver)
    assert (store.count("t"), run_round(store, deliver)) == (0, 0)


def test_more_than_a_page_is_gone_through_in_one_round(store):
    store._own[1].append("t", [StoredMessage.of(message(number)) for number in range(250)])
    deliver = Deliver(*(b"%d" % number for number in range(0, 250, 2)))
    assert (run_round(store, deliver), deliver.ids, store.count("t")) == (250, list(range(250)), 125)


def test_only_topics_that_the_consumer_subscribes_are_tried(store):
    store(message(1, "other"), FAILURE)
    store(message(2), FAILURE)
    deliver = Deliver()
    run_round(store, deliver, "t", "third")
    assert ([each.topic for each in deliver.seen], store.count("other")) == (["t"], 1)


def test_processes_have_files_of_their_own_and_take_over_those_that_are_left(tmp_path):
    first, second, third = (opened(tmp_path) for _ in range(3))
    second(message(2), FAILURE)
    third(message(3), FAILURE)
    third.close()
    deliver = Deliver()
    run_round(first, deliver)
    assert deliver.ids == [3]  # the second is in use
    second.close()
    run_round(first, deliver)
    assert deliver.ids == [3, 2]
    assert sorted(path.name for path in (tmp_path / "g").glob("*.db")) == ["0.db", "1.db", "2.db"]
    first.close()


def test_groups_do_not_mix(tmp_path):
    with closing(opened(tmp_path, "one")) as one, closing(opened(tmp_path, "other")) as other:
        one(message(1), FAILURE)
        assert run_round(other, Deliver()) == 0


def test_a_full_store_refuses_so_that_the_message_is_not_passed(tmp_path):
    with closing(opened(tmp_path, max_per_topic=1)) as store:
        store(message(1), FAILURE)
        with pytest.raises(LocalStoreFull):
            store(message(2), FAILURE)


def test_one_store_serves_one_run_at_a_time_and_may_be_used_again(store):
    with pytest.raises(ConfigError, match="on_reject"):
        store.open("g")
    store.close()
    with pytest.raises(LocalStoreError):
        store(message(1), FAILURE)
    store.open("g")


@pytest.mark.parametrize("name", ["first_seconds", "interval_seconds"])
def test_times_that_cannot_be_are_refused_by_name(tmp_path, name):
    with pytest.raises(ConfigError, match=name):
        LocalRecoverStore(tmp_path, **{name: 0})


def test_a_dropped_message_leaves_a_line_in_the_log(caplog):
    caplog.set_level(logging.WARNING)
    drop_message(message(7), FAILURE)
    assert "dropped <Message t 0-1 @700 id 7" in caplog.text
    assert "ValueError: away" in caplog.text


class Clockwork:
    """Timers and workers that the test turns by hand."""

    def __init__(self):
        self.later, self.work = [], []

    def call_later(self, seconds, action):
        self.later.append((seconds, action))

    def run_timer(self):
        """And the work that it makes; how long it has waited, and how much work that was."""
        seconds, action = self.later.pop(0)
        action()
        done = 0
        while self.work:
            self.work.pop(0)()
            done += 1
        return seconds, done


def test_rounds_follow_each_other_for_as_long_as_the_handler_runs(tmp_path):
    clockwork: Any = Clockwork()
    seen: list[Message] = []
    store = opened(tmp_path, first_seconds=5, interval_seconds=300)
    with recovering(store, ["t"], lambda messages: seen.extend(messages), clockwork, clockwork.work.append):
        for number, seconds in ((1, 5), (2, 300)):
            store(message(number), FAILURE)
            assert clockwork.run_timer()[0] == seconds
        assert [each.id for each in seen] == [1, 2]
    assert clockwork.run_timer()[1] == 0  # ended
    opened(tmp_path).close()  # its file is free again


def test_what_others_have_left_is_given_out_by_one_that_keeps_nothing_and_makes_no_file(tmp_path):
    watching = LocalRecoverStore(tmp_path)
    assert not watching.take_over("g")
    assert not (tmp_path / "g").exists()
    left = opened(tmp_path)
    left(message(1), FAILURE)
    assert watching.take_over("g")
    deliver = Deliver()
    assert run_round(watching, deliver) == 0, "it is in use"
    left.close()
    assert [run_round(watching, deliver), run_round(watching, deliver)] == [1, 0]
    assert deliver.seen == [message(1)]
    with pytest.raises(LocalStoreError, match="not open to keep messages"):
        watching(message(2), FAILURE)
    with pytest.raises(ConfigError, match="give each run"):
        watching.open("g")
    watching.close()
    assert [path.name for path in (tmp_path / "g").glob("*.db")] == ["0.db"]


def test_groups_of_one_name_in_two_clusters_share_no_messages(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert left_of_cluster("zk:2181/one", "/meta", "g") is None
    with (
        closing(of_cluster("zk:2181/one", "/meta", "g")) as one,
        closing(of_cluster("zk:2181/two", "/meta", "g")) as two,
    ):
        one(message(1), FAILURE)
        assert (run_round(two, Deliver()), run_round(one, Deliver())) == (0, 1)
    left = left_of_cluster("zk:2181/one", "/meta", "g")
    assert left is not None
    left.close()
    assert left_of_cluster("zk:2181/one", "/meta", "other") is None


def test_a_user_without_a_home_directory_has_left_nothing_and_is_told_the_options(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", raising(KeyError))
    assert left_of_cluster("zk:2181", "/meta", "g") is None
    with pytest.raises(ConfigError, match=r"^on_reject=None: .*no home directory.*drop_message.*max_retries=None"):
        of_cluster("zk:2181", "/meta", "g")
    for make, option in (
        (LocalRecoverStore, "directory=~/.metaq_recover"),
        (lambda: LocalMessageStore("~/queue.db"), "path=~/queue.db"),
        (LocalOffsetStore, "offsets_file=~/.meta_offsets"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(option)}: this user has no home directory"):
            make()


def test_a_home_directory_that_takes_no_file_is_told_with_the_options(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert left_of_cluster("zk:2181", "/meta", "g") is None
    with pytest.raises(LocalStoreError, match=r"cannot be opened: .*on_reject=LocalRecoverStore\(directory\)"):
        of_cluster("zk:2181", "/meta", "g")


def test_only_the_owner_may_read_what_is_kept(tmp_path):
    existing = tmp_path / "home"
    existing.mkdir(0o755)
    with closing(opened(existing / ".metaq_recover" / "cluster")) as store:
        store(message(1), FAILURE)
        paths = list(existing.rglob("*"))
        assert {"0.db", "g", "cluster", ".metaq_recover"} <= {path.name for path in paths}
        modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in paths}
        assert modes == {(True, 0o700), (False, 0o600)}
        assert stat.S_IMODE(existing.stat().st_mode) == 0o755, "that was there before"
