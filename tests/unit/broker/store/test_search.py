"""Searches by id and by key over real logs: against a model, through crashes, with bounds that are hit."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaq.broker.store.search import find_id, find_key, read_matches
from metaq.broker.store.searching import Budget, FoundMatches, KeyQuery
from metaq.broker.store.topic_config import DeletePolicy, Disposal
from metaq.protocol.record import encode_attributes, encode_body, iter_headers, key_hashes
from tests.doubles.store_harness import NOW_MS, StoreHarness, flip

FLAG = 3


def body(*keys: str, payload: bytes = b"payload") -> bytes:
    flag, attribute = encode_attributes(keys=keys, properties={"n": "v"})
    assert flag == FLAG
    return bytes(encode_body(payload, flag, attribute))


class Scene:
    """A store whose messages are remembered: (offset, id, keys)."""

    def __init__(self, harness: StoreHarness) -> None:
        self.harness = harness
        self.messages: list[tuple[int, int, tuple[str, ...]]] = []

    def append_a(self, count: int) -> list[int]:
        """So many messages with the key a; their offsets."""
        return [self.append("a") for _ in range(count)]

    def append(self, *keys: str, payload: bytes = b"payload", now_ms: int = NOW_MS) -> int:
        offset = self.harness.append(body(*keys, payload=payload), flag=FLAG, now_ms=now_ms)
        self.messages.append((offset, self.harness.next_id - 1, keys))
        return offset

    def settle(self) -> None:
        """Checkpoint everything and build what can be built."""
        self.harness.settle()
        assert not len(self.harness.store.key_building)
        assert not self.harness.log.durability.dirty

    def work(self, seconds: float = 5, times: int = 1) -> None:
        for _ in range(times):
            self.harness.now += seconds
            self.harness.tick()

    def search(
        self, find: Callable[..., FoundMatches], *arguments: object, budget: Budget | None = None
    ) -> FoundMatches:
        log, store = self.harness.log, self.harness.store
        found = find(self.harness.files, [store.searching.view(log)], *arguments, budget or Budget())
        store.searching.take_in(found, [log])
        return found

    def by_key(self, key: str, limit: int = 1000, **more: int | bool) -> list[int]:
        return self._offsets(self.search(find_key, KeyQuery(key, limit, **more)))  # type: ignore[arg-type]

    def by_id(self, message_id: int) -> list[int]:
        return self._offsets(self.search(find_id, message_id, 10))

    @staticmethod
    def _offsets(found: FoundMatches) -> list[int]:
        assert found.unsearched == 0
        return [match.offset for match in found.matches]

    def check(self) -> None:
        """Every key and id leads to its messages, and to no others."""
        first = self.harness.log.first_offset
        there = [each for each in self.messages if each[0] >= first]
        for key in ("a", "b", "c", "nobody"):
            assert self.by_key(key) == [offset for offset, _, keys in there[::-1] if key in keys]
            assert self.by_key(key, oldest_first=True) == [offset for offset, _, keys in there if key in keys]
        for offset, message_id, _ in there:
            assert self.by_id(message_id) == [offset]
        assert self.by_id(12345) == self.by_id(-5) == []

    def key_files(self) -> list[str]:
        return [name for name in self.harness.names() if name.endswith(".keys")]

    def blocks(self) -> list[int]:
        return [len(segment.keys or ()) for segment in self.harness.log.segments]


@pytest.fixture
def scene(harness):
    return Scene(harness)


STEPS = st.lists(
    st.lists(st.sampled_from("abc"), max_size=3, unique=True)
    | st.sampled_from(["settle", "restart", "kill", "delete", "tear", "search"]),
    max_size=25,
)


@given(STEPS, st.sampled_from([150, 400, 1 << 20]), st.sampled_from([1, 120, 1 << 20]))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_searches_find_what_a_model_has(tmp_path_factory, steps, segment_bytes, block_bytes):
    harness = StoreHarness(tmp_path_factory.mktemp("s") / "data")
    harness.max_segment_size, harness.key_block_bytes = segment_bytes, block_bytes
    scene = Scene(harness)

    def kill():
        harness.kill()
        harness.threads.run_all()  # indexes that are behind

    def tear(path):
        os.truncate(path, path.stat().st_size // 2)
        for segment in harness.log.segments:
            segment.keys = None  # a file is torn by a crash, so nobody knows it

    does = {"settle": scene.settle, "restart": harness.restart, "kill": kill, "search": scene.check}
    for step in steps:
        if isinstance(step, list):
            scene.append(*step)
        elif step in does:
            does[step]()
        else:
            for path in Path(harness.path, "t-0").glob("*.keys"):
                (path.unlink if step == "delete" else partial(tear, path))()
    scene.check()
    scene.settle()
    scene.check()
    harness.restart()
    scene.settle()
    assert all(segment.keys for segment in harness.log.segments[:-1])
    scene.check()
    harness.files.kill()


def test_closed_segments_get_their_key_files_and_the_growing_one_a_block_now_and_then(scene):
    scene.harness.max_segment_size, scene.harness.key_block_bytes = 2000, 500
    for number in range(60):
        scene.append("a" if number % 2 else "b")
    scene.settle()
    blocks = scene.blocks()
    assert all(count >= 4 for count in blocks[:-1])
    assert len(scene.key_files()) == len(blocks) - (not blocks[-1])
    scene.check()


def test_a_segment_that_is_closed_during_a_checkpoint_gets_its_key_file_when_its_index_has_all(scene):
    scene.harness.max_segment_size = 400
    scene.append_a(5)
    scene.harness.log.checkpoint()
    scene.append_a(10)
    scene.harness.threads.run_one()
    (closed, _), store = scene.harness.log.segments, scene.harness.store
    assert (closed.index.stored, len(closed.index)) == (5, 10)
    store.tick()
    scene.settle()
    scene.check()


def test_blocks_that_are_known_are_not_read_again_and_new_ones_are_added(scene):
    scene.harness.key_block_bytes = 200
    files = []
    for _ in range(2):
        scene.append_a(20)
        scene.settle()
        files.append(Path(scene.harness.path, "t-0", f"{0:020d}.keys").read_bytes())
    before, after = files
    assert before
    assert after.startswith(before)
    assert len(after) > len(before)


def test_the_end_of_a_growing_segment_is_read_once_and_kept_within_bounds(scene):
    searching = scene.harness.store.searching
    scene.append_a(50)
    assert len(scene.by_key("a")) == 50
    view = searching.view(scene.harness.log).segments[0]
    assert (view.recent.start, view.recent.end, len(view.recent.entries)) == (0, view.end, 50)
    searching._max_kept = 50
    scene.append("a")
    assert len(scene.by_key("a")) == 51
    assert searching.view(scene.harness.log).segments[0].recent is None


def test_only_what_is_visible_is_found(scene):
    scene.harness.group_commit = True
    scene.append("a")
    assert scene.by_key("a") == []
    assert scene.by_id(scene.messages[0][1]) == []
    scene.harness.threads.run_all()
    scene.check()


@pytest.mark.parametrize("block_bytes", [1, 120, 1 << 20])
def test_blocks_that_go_on_behind_what_readers_see_give_nothing_away(scene, block_bytes):
    scene.harness.key_block_bytes, scene.harness.max_segment_size = block_bytes, 300
    scene.append("a")
    scene.harness.log.limit_visibility()
    scene.append_a(8)
    scene.settle()
    hidden, scene.messages = scene.messages[1:], scene.messages[:1]
    scene.check()
    assert [scene.by_id(message_id) for _, message_id, _ in hidden] == [[]] * 8
    scene.messages += hidden
    scene.harness.log.unlimited()
    scene.check()


def test_a_search_is_bounded_in_time_of_storing(scene):
    scene.harness.max_segment_size, scene.harness.key_block_bytes = 300, 100
    offsets = [scene.append("a", now_ms=NOW_MS + 10 * number) for number in range(20)]
    for _ in range(2):
        for first, last in ((0, 20), (3, 9), (5, 5), (19, 20)):
            begin, end = NOW_MS + 10 * first, NOW_MS + 10 * last - 1
            assert scene.by_key("a", begin_ms=begin, end_ms=end, oldest_first=True) == offsets[first:last]
        assert scene.by_key("a", begin_ms=NOW_MS + 1000) == scene.by_key("a", end_ms=NOW_MS - 1) == []
        scene.settle()


def test_the_newest_or_the_oldest_come_first_and_more_is_said(scene):
    scene.harness.max_segment_size, scene.harness.key_block_bytes = 500, 200
    offsets = scene.append_a(20)
    scene.settle()
    for limit in (1, 7, 19, 20, 21):
        newest = scene.search(find_key, KeyQuery("a", limit))
        oldest = scene.search(find_key, KeyQuery("a", limit, oldest_first=True))
        assert [match.offset for match in newest.matches] == offsets[::-1][:limit]
        assert [match.offset for match in oldest.matches] == offsets[:limit]
        assert newest.more == oldest.more == (limit < 20)


def test_two_keys_with_the_same_hash_are_told_apart(scene, monkeypatch):
    monkeypatch.setattr("metaq.broker.store.search.key_hash", lambda key: 5)
    monkeypatch.setattr("metaq.broker.store.key_index.key_hashes", lambda *where: [5] * len(key_hashes(*where)))
    scene.harness.key_block_bytes = 300
    for number in range(30):
        scene.append("abc"[number % 3])
    scene.check()
    scene.settle()
    assert sum(scene.blocks())
    scene.check()


def test_ids_of_java_brokers_are_found_though_they_are_not_in_order(scene):
    scene.harness.max_segment_size, scene.harness.key_block_bytes = 300, 100
    for message_id in (-5, 900, -7, 3, -6, 2, 50, -1):
        scene.harness.next_id = message_id
        scene.append("a")
    for _ in range(2):
        for offset, message_id, _ in scene.messages:
            assert scene.by_id(message_id) == [offset]
        assert scene.by_id(4) == scene.by_id(-2) == []
        scene.settle()


def test_a_search_that_may_not_read_everything_says_so(scene):
    for number in range(100):
        scene.append("a" if number in (0, 99) else "b", payload=bytes(10_000))
    found = scene.search(find_key, KeyQuery("a", 10), budget=Budget(50 * 10_000))
    assert found.matches == []  # nothing is left to look at the candidate
    assert found.unsearched > 0
    for find, what, budget in (
        (find_key, [KeyQuery("a", 10)], Budget(0)),
        (find_id, [scene.messages[5][1], 1], Budget(10)),
        (find_key, [KeyQuery("a", 10)], Budget(seconds=0)),
    ):
        found = scene.search(find, *what, budget=budget)
        assert (found.matches, found.unsearched) == ([], scene.harness.log.visible_end)
    scene.check()


def test_a_segment_whose_index_is_being_rebuilt_is_not_passed_over_in_silence(scene):
    scene.harness.max_segment_size = 300
    scene.append_a(10)
    scene.settle()
    with scene.harness.stopped(clean=True):
        scene.harness.index_file().unlink()
    found = scene.search(find_key, KeyQuery("a", 100))
    assert found.unsearched == scene.harness.log.segments[0].size
    assert len(found.matches) < 10
    scene.settle()
    scene.check()


def test_retention_takes_the_key_files_and_searches_go_on(scene):
    scene.harness.max_segment_size = 300
    scene.append_a(10)
    scene.settle()
    log, store = scene.harness.log, scene.harness.store
    view = store.searching.view(log)
    scene.harness.delete_policy = DeletePolicy(Disposal.DELETE, 0)
    scene.harness.wall += 1e9
    assert store.apply_retention()
    scene.harness.threads.run_all()
    assert scene.key_files() == []
    found = find_key(scene.harness.files, [view], KeyQuery("a", 100), Budget())
    assert found.unsearched == 0
    assert read_matches(scene.harness.files, found.matches, 1 << 20) is not None
    scene.check()


def test_matches_are_read_as_far_as_they_fit_but_the_first_one_always(scene):
    scene.append_a(5)
    found = scene.search(find_key, KeyQuery("a", 10))
    size = found.matches[0].size
    for room, expected in ((1, 1), (size, 1), (2 * size, 2), (99 * size, 5)):
        records = read_matches(scene.harness.files, found.matches, room)
        assert len(records) == expected
        assert [header.id for match, data in records for header in iter_headers(data)] == [
            message_id for offset, message_id, _ in scene.messages[::-1]
        ][:expected]


def test_a_failed_write_is_tried_again_later_and_searches_read_the_data(scene):
    scene.harness.max_segment_size = 300
    scene.append_a(10)
    scene.harness.threads.run_all()
    with scene.harness.files.failing("truncate"):  # only key files are cut here
        scene.work(times=3)
        assert not sum(scene.blocks())
        assert len(scene.harness.store.key_building)
        scene.check()
    scene.harness.now += 100
    scene.settle()
    assert all(scene.blocks()[:-1])
    scene.check()


def test_entries_that_a_disk_has_changed_are_made_again_after_a_restart(scene):
    scene.harness.max_segment_size, scene.harness.key_block_bytes = 300, 100
    scene.append_a(10)
    scene.settle()
    path = Path(scene.harness.path, "t-0", f"{0:020d}.keys")
    whole = path.read_bytes()
    with scene.harness.stopped(clean=True):
        flip(path, 100)
    scene.settle()
    assert path.read_bytes() == whole
    scene.check()


@pytest.mark.parametrize("lost_power", [False, True])
def test_a_crash_at_any_write_leaves_key_files_that_are_right_or_made_again(tmp_path, lost_power):
    for fail_at in range(1, 60):
        harness = StoreHarness(tmp_path / str(fail_at))
        harness.max_segment_size, harness.key_block_bytes = 300, 100
        scene = Scene(harness)
        for _ in range(8):
            scene.append("a", "b")
        harness.flush()
        harness.files.fail_at = harness.files.changes + fail_at
        scene.work(times=4)
        done = harness.files.changes < harness.files.fail_at
        harness.crash(power=lost_power)
        scene.messages = [each for each in scene.messages if each[0] < harness.log.visible_end]
        harness.threads.run_all()  # an index that was lost
        scene.check()
        scene.settle()
        assert all(segment.keys for segment in harness.log.segments[:-1])
        scene.check()
        harness.files.kill()
        if done:
            return
    raise AssertionError("more than 60 writes")
