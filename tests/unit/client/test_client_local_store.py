"""Queues of messages in a file: order, bounds, one owner, and what an interrupted or closed store says."""

import sqlite3
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metaq.client.records.local_store import LocalMessageStore, StoredMessage
from metaq.client.records.message import Message
from metaq.client.records.results import TopicPartition
from metaq.protocol.errors import ConfigError, LocalStoreError, LocalStoreFull, LocalStoreInUse
from metaq.protocol.record import encode_attributes, encode_body
from tests.waiting import DEADLINE

P = TopicPartition("t", 0, 3)


@pytest.fixture
def store(tmp_path):
    with LocalMessageStore(tmp_path / "messages.db") as store:
        yield store


def messages(*bodies):
    return [StoredMessage("t", body) for body in bodies]


def bodies(store, queue, limit=1000):
    return [message.body for _, message in store.peek(queue, limit)]


def test_a_message_comes_back_with_everything_it_had(store):
    flag, text = encode_attributes("a", "buy", ("k1", "k2"), {"h": "ü"})
    full = StoredMessage("t", bytes(encode_body(b"\x00payload", flag, text)), flag, P, "key", 12345, (1 << 62) + 7)
    plain = StoredMessage("other", b"", key=b"\xff")
    store.append("q", [full, plain])
    assert [message for _, message in store.peek("q", 10)] == [full, plain]
    assert (full.payload, full.attributes.tag, full.attributes.keys) == (b"\x00payload", "buy", ("k1", "k2"))


def test_no_other_user_of_the_machine_may_read_the_file(store, tmp_path):
    store.append("q", messages(b"1"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert "messages.db" in modes
    assert set(modes.values()) == {0o600}


def test_a_consumed_message_can_be_delivered_again(store):
    consumed = Message(P, 40, 77, 0, b"x")
    store.append("q", [StoredMessage.of(consumed)])
    [(_, kept)] = store.peek("q", 1)
    assert kept.to_message() == consumed
    with pytest.raises(ValueError, match="has no partition"):
        StoredMessage("t", b"").to_message()


def test_removed_ids_are_never_given_out_again_and_those_of_another_queue_are_passed_over(store):
    store.append("q", messages(b"1", b"2"))
    ids = [number for number, _ in store.peek("q", 10)]
    store.remove("other", ids)
    assert (store.queues(), store.count("q")) == (["q"], 2)
    store.remove("q", ids)
    store.append("q", messages(b"3"))
    store.remove("q", ids)  # late, by somebody who did not know
    assert bodies(store, "q") == [b"3"]


def test_a_full_queue_takes_all_or_nothing(tmp_path):
    with LocalMessageStore(tmp_path / "m.db", max_per_queue=3) as store:
        store.append("q", messages(b"1", b"2"))
        with pytest.raises(LocalStoreFull, match=r"'q' holds 2 messages.*max_per_queue=3"):
            store.append("q", messages(b"3", b"4"))
        store.append("other", messages(b"1", b"2", b"3"))
        store.append("q", messages(b"3"))
        assert bodies(store, "q") == [b"1", b"2", b"3"]
    with pytest.raises(ConfigError, match="max_per_queue=0"):
        LocalMessageStore(tmp_path / "m.db", max_per_queue=0)


def test_an_append_that_fails_in_the_middle_leaves_nothing(store):
    wrong = StoredMessage("t", b"x", flag=1 << 70)  # above what the file can hold
    with pytest.raises(OverflowError):
        store.append("q", [*messages(b"1"), wrong])
    assert bodies(store, "q") == []
    store.append("q", messages(b"2"))
    assert (bodies(store, "q"), store.count("q")) == ([b"2"], 1)


def test_a_second_store_on_the_same_file_is_refused_until_the_first_closes(tmp_path):
    path = tmp_path / "new" / "folder" / "m.db"
    with LocalMessageStore(path) as first:
        first.append("q", messages(b"1"))
        with pytest.raises(LocalStoreInUse, match="give each its own file"):
            LocalMessageStore(path)
        first.append("q", messages(b"2"))
    with LocalMessageStore(path) as second:
        assert bodies(second, "q") == [b"1", b"2"]
        assert (second.count("q"), second.queues()) == (2, ["q"])


def test_a_closed_store_says_so(store):
    store.close()
    store.close()
    with pytest.raises(LocalStoreError, match="closed"):
        store.append("q", messages(b"1"))


def test_a_file_of_something_else_is_refused(tmp_path):
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database at all, but long enough to be looked at" * 20)
    with pytest.raises(LocalStoreError, match=r"garbage\.db"):
        LocalMessageStore(garbage)
    later = tmp_path / "later.db"
    with sqlite3.connect(later) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(LocalStoreError, match="layout 99"):
        LocalMessageStore(later)
    with pytest.raises(LocalStoreError, match="cannot be opened"):
        LocalMessageStore(garbage / "below" / "a.db")


def test_threads_append_and_remove_at_the_same_time(store):
    def work(name):
        for turn in range(20):
            store.append(name, messages(b"%d" % turn, b"x"))
            first = store.peek(name, 1)[0]
            assert first[1].body == b"%d" % turn
            store.remove(name, [number for number, _ in store.peek(name, 2)])
        store.append("all", messages(name.encode()))

    threads = [threading.Thread(target=work, args=(f"q{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(bodies(store, "all")) == [b"q0", b"q1", b"q2", b"q3"]
    assert store.queues() == ["all"]


class Queues(RuleBasedStateMachine):
    """Whatever is appended, removed and reopened: a store holds what a dict of lists holds."""

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "m.db"
        self.store = LocalMessageStore(self.path, max_per_queue=6)
        self.model = {}
        self.next = 0

    @rule(queue=st.sampled_from("ab"), count=st.integers(0, 4))
    def append(self, queue, count):
        fresh = [b"%d" % (self.next + n) for n in range(count)]
        self.next += count
        held = self.model.setdefault(queue, [])
        if len(held) + count > 6:
            with pytest.raises(LocalStoreFull):
                self.store.append(queue, messages(*fresh))
        else:
            self.store.append(queue, messages(*fresh))
            held += fresh

    @rule(queue=st.sampled_from("ab"), picks=st.sets(st.integers(0, 5)))
    def remove(self, queue, picks):
        rows = self.store.peek(queue, 10)
        self.store.remove(queue, [rows[n][0] for n in picks if n < len(rows)])
        self.model[queue] = [body for n, body in enumerate(self.model.get(queue, [])) if n not in picks]

    @rule()
    def reopen(self):
        self.store.close()
        self.store = LocalMessageStore(self.path, max_per_queue=6)

    @invariant()
    def same(self):
        for queue in "ab":
            held = self.model.get(queue, [])
            assert bodies(self.store, queue) == held
            assert bodies(self.store, queue, 2) == held[:2]
            assert self.store.count(queue) == len(held)
        assert self.store.queues() == sorted(queue for queue, held in self.model.items() if held)

    def teardown(self):
        self.store.close()
        self.folder.cleanup()


TestQueues = Queues.TestCase
TestQueues.settings = settings(max_examples=15, stateful_step_count=12, deadline=None)
