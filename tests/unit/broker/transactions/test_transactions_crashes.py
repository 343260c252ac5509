"""The broker dies, or its disk fails, at every single change of the disk: acknowledged commits are kept, the rest is
all or nothing, prepared transactions wait for their coordinator."""

import errno
import os
import shutil
from copy import copy
from dataclasses import replace

import pytest

from metaq.broker.store.partition_log import PartitionLog
from metaq.protocol.errors import MetaqError
from tests.doubles.store import FaultyFiles
from tests.raising import raising
from tests.unit.broker.harness import Harness, put
from tests.unit.broker.transactions.conversation import Asker, bodies, tx, tx_put
from tests.unit.broker.transactions.dying import Died, DyingFiles, contents

PARTITIONS = [("t", 0), ("t", 1), ("safe", 0), ("safe", 1)]
A, B, C = (f"XID:1:0{number}:0b:host" for number in "abc")
MESSAGES = {
    "TX:s:1": [("t", 0, b"1a"), ("safe", 0, b"1b"), ("t", 0, b"1c")],
    "TX:s:2": [("t", 0, b"2a"), ("safe", 0, b"2b")],
    "TX:s:3": [("t", 0, b"3a"), ("safe", 1, b"3b")],
    A: [("t", 1, b"Aa"), ("safe", 1, b"Ab")],
    B: [("t", 0, b"Ba"), ("safe", 0, b"Bb"), ("t", 0, b"Bc")],
    C: [("safe", 0, b"Ca")],
}


class Story:
    """A conversation, and which of its promises were acknowledged."""

    def __init__(self, harness):
        self.harness = harness
        self.acknowledged: set[tuple[str, str]] = set()
        self.asked: set[tuple[str, str]] = set()
        self.taken: dict[str, list[tuple[str, int, bytes]]] = {}  # the messages of a transaction
        self.plain: list[tuple[str, int, bytes]] = []

    def tell(self):
        ask = Asker(self.harness)
        for key, verb in (("TX:s:1", "COMMIT_ONE_PHASE"), (A, "PREPARE"), ("TX:s:2", "ROLLBACK")):
            self.begin(ask, key)
            self.end(ask, key, verb)
        self.put(ask, "safe", 0, b"p1")
        self.begin(ask, B)
        self.end(ask, B, "PREPARE")
        self.harness.reactor.advance(1.1)
        self.harness.broker.transactions.tick()
        self.commit_with_a_put_in_between(ask, B)
        self.begin(ask, C)
        self.end(ask, C, "PREPARE")
        self.end(ask, C, "ROLLBACK")
        self.begin(ask, "TX:s:3")
        self.harness.reactor.advance(4000)
        self.harness.broker.transactions.tick()
        self.harness.store.tick()
        self.harness.threads.run()

    def begin(self, ask, key):
        ask(tx(key, "BEGIN"))
        taken = self.taken.setdefault(key, [])
        for message in MESSAGES[key]:
            if ask(tx_put(key, *message)).code == 200:
                taken.append(message)

    def end(self, ask, key, verb):
        self.asked.add((key, verb))
        if ask(tx(key, verb)).code == 200:
            self.acknowledged.add((key, verb))

    def put(self, ask, topic, partition, body):
        if ask(put(topic, partition, body)).code == 200:
            self.plain.append((topic, partition, body))

    def commit_with_a_put_in_between(self, ask, key):
        """The put takes the place that the commit's record names."""
        self.asked.add((key, "COMMIT_TWO_PHASE"))
        ask.peer.send(tx(key, "COMMIT_TWO_PHASE"))
        self.put(Asker(self.harness), "t", 0, b"between")
        (answer,) = ask.peer.answers()
        if answer.code == 200:
            self.acknowledged.add((key, "COMMIT_TWO_PHASE"))

    @property
    def promises(self):
        """What a restart is judged by."""
        return repr((sorted(self.acknowledged), sorted(self.asked), self.taken, self.plain))

    def did(self, key, word, among):
        return any(verb.startswith(word) for name, verb in among if name == key)


def verify(story, harness, *, power_lost):
    found = {where: bodies(harness, *where) for where in PARTITIONS}
    everything = [body for each in found.values() for body in each]
    assert len(everything) == len(set(everything)), f"a message is there twice: {everything}"
    for key, messages in story.taken.items():
        there = [body for topic, partition, body in messages if body in found[topic, partition]]
        assert there in ([], [body for *_, body in messages]), f"{key}: a part of it is there: {there}"
        if messages and story.did(key, "COMMIT", story.acknowledged):
            assert there, f"{key} was committed"
        if story.did(key, "ROLLBACK", story.acknowledged) or not story.did(key, "COMMIT", story.asked):
            assert not there, f"{key} was not committed"
        blocks = [[body for topic, partition, body in messages if (topic, partition) == where] for where in PARTITIONS]
        for where, block in zip(PARTITIONS, blocks, strict=True):
            if there and block:
                start = found[where].index(block[0])
                assert found[where][start : start + len(block)] == block, f"{key}: torn apart in {where}"
    for topic, partition, body in story.plain:
        if topic == "safe" or not power_lost:
            assert body in found[topic, partition]


def recovered(harness):
    text = Asker(harness).ok(tx("null", "RECOVER"))
    return text.split("\r\n") if text else []


def restart_and_verify(tmp_path, story, *, power_lost):
    story = copy(story)
    story.asked, story.acknowledged = set(story.asked), set(story.acknowledged)
    harness = Harness(tmp_path)
    harness.threads.run()
    verify(story, harness, power_lost=power_lost)
    prepared = recovered(harness)
    for key in (A, B, C):
        if story.did(key, "PREPARE", story.acknowledged) and not any(
            story.did(key, word, story.asked) for word in ("COMMIT", "ROLLBACK")
        ):
            assert key in prepared, f"{key} was prepared"
    assert "TX:s:3" not in str(prepared)
    ask = Asker(harness)
    for key in prepared:
        ask.ok(tx(key, "COMMIT_TWO_PHASE"))
        for among in (story.asked, story.acknowledged):
            among.add((key, "COMMIT_TWO_PHASE"))
        assert not story.did(key, "ROLLBACK", story.acknowledged)
    verify(story, harness, power_lost=power_lost)
    harness.close()
    again = Harness(tmp_path)
    again.threads.run()
    verify(story, again, power_lost=power_lost)
    assert recovered(again) == []
    again.close()


def live(tmp_path, files):
    """Tell the story until the broker dies; None if it did not even begin."""
    story = None
    try:
        harness = Harness(tmp_path, files=files)
        story = Story(harness)
        story.tell()
    except (Died, MetaqError):  # the latter: the disk failed at the start
        pass
    return story


def changes_of_a_whole_story(tmp_path):
    files = FaultyFiles()
    story = live(tmp_path / "whole", files)
    assert story is not None
    assert {verb for _, verb in story.acknowledged} == {"COMMIT_ONE_PHASE", "COMMIT_TWO_PHASE", "PREPARE", "ROLLBACK"}
    changes = files.changes
    files.kill()
    restart_and_verify(tmp_path / "whole", story, power_lost=False)
    return changes


def is_new(examined, directory, story):
    """Whether no restart has been judged yet that found the same and had to keep the same promises."""
    state = contents(directory), story.promises
    new = state not in examined
    examined.add(state)
    return new


@pytest.mark.parametrize("power_lost", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("kind", [DyingFiles, FaultyFiles], ids=["dies", "disk fails"])
def test_the_end_at_every_change_of_the_disk(tmp_path, kind, power_lost):
    total = changes_of_a_whole_story(tmp_path)
    assert total > 30
    examined: set[tuple[bytes, str]] = set()
    for number in range(1, total + 1):
        directory = tmp_path / str(number)
        files = kind(number, OSError(errno.EIO, os.strerror(errno.EIO)))
        story = live(directory, files)
        (files.lose_power if power_lost else files.kill)()
        if story is not None and is_new(examined, directory, story):
            restart_and_verify(directory, story, power_lost=power_lost)
    assert len(examined) > 15


@pytest.mark.parametrize("power_lost", [False, True], ids=["killed", "power lost"])
def test_dying_again_during_the_repair(tmp_path, power_lost):
    total = changes_of_a_whole_story(tmp_path)
    deaths = 0
    examined: set[tuple[bytes, str]] = set()
    for number in range(total // 2, total + 1, 3):
        first = tmp_path / str(number)
        files = DyingFiles(number)
        story = live(first, files)
        assert story is not None
        (files.lose_power if power_lost else files.kill)()
        for second in range(1, 200):
            directory = tmp_path / f"{number}-{second}"
            shutil.copytree(first, directory)
            dying = DyingFiles(second)
            try:
                harness = Harness(directory, files=dying)
                harness.threads.run()
            except Died:
                deaths += 1
                dying.kill()
                if is_new(examined, directory, story):
                    restart_and_verify(directory, story, power_lost=power_lost)
            else:
                dying.kill()
                break
    assert deaths > 20


def segments(tmp_path, topic):
    return sorted(str(path) for path in (tmp_path / "data" / f"{topic}-0").glob("*.meta"))


class SmallSegments(Harness):
    """A message of 60 bytes fills a segment."""

    def store_config(self, name):
        return replace(super().store_config(name), max_segment_size=60)


def decided(tmp_path, topic):
    """The files of a broker that has just appended the messages of a commit, which fill a segment. No sync but the
    transaction log's has run."""
    files = FaultyFiles()
    harness = SmallSegments(tmp_path, files=files)
    ask = Asker(harness)
    ask.ok(tx("TX:s:1", "BEGIN"), tx_put("TX:s:1", topic, 0, b"a" * 60), tx_put("TX:s:1", "t", 1, b"b"))
    ask.peer.send(tx("TX:s:1", "COMMIT_ONE_PHASE"))
    while not segments(tmp_path, topic) or not os.path.getsize(segments(tmp_path, topic)[0]):
        harness.threads.run_one()
    return files


@pytest.mark.parametrize("topic", ["t", "safe"])
@pytest.mark.parametrize("start", ["none yet", "appends again", "finds", "dies"])
def test_a_cut_that_keeps_only_the_newest_name_of_a_partition_keeps_a_commit_whole(tmp_path, topic, start, monkeypatch):
    """POSIX promises no order of names, and a newer segment alone looks like what retention leaves. A start in between
    has brought the messages back, or found them in the page cache: only the log has them for certain."""
    files = decided(tmp_path, topic)
    if start != "none yet":
        (files.kill if start == "finds" else files.lose_power)()
        files = files.next_life()
    if start == "dies":
        with monkeypatch.context() as patch:
            patch.setattr(PartitionLog, "sync_now", raising(Died))
            with pytest.raises(Died):
                SmallSegments(tmp_path, files=files)
        assert os.path.getsize(segments(tmp_path, topic)[0])  # appended, and no sync has run
    elif start != "none yet":
        SmallSegments(tmp_path, files=files).connect().send(put(topic, 0, b"c" * 60))
    files.lose_power(segments(tmp_path, topic)[-1:])
    last = Harness(tmp_path)
    last.threads.run()
    assert bodies(last, topic, 0)[:1] == [b"a" * 60]
    assert start in ("appends again", "finds") or len(bodies(last, topic, 0)) == 1
    assert bodies(last, "t", 1) == [b"b"]
    last.close()
