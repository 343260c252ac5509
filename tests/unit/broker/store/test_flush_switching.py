"""A running partition changes between asynchronous flush and group commit: nobody waits for ever, no promise breaks."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from metaq.broker.store.batch import encode_puts
from metaq.protocol.errors import MetaqError
from metaq.protocol.record import checksum, iter_headers
from tests.doubles.store import check_invariants
from tests.doubles.store_harness import NOW_MS, Answers, StoreHarness


def put(harness: StoreHarness, answers: Answers, body: bytes) -> None:
    harness.append(body)
    answers.expect(harness.log, harness.log.end_offset, body)


def switch(harness: StoreHarness, group_commit: bool) -> None:
    harness.group_commit = group_commit
    harness.store.reconfigure()
    check_invariants(harness.log)


def test_puts_that_wait_keep_waiting_when_group_commit_ends(harness, answers):
    harness.group_commit = True
    put(harness, answers, b"before")
    switch(harness, False)
    put(harness, answers, b"after")
    assert answers.got == []
    assert harness.log.visible_end == 0
    harness.threads.run_all()
    assert answers.succeeded == [b"before", b"after"]
    put(harness, answers, b"later")
    assert answers.succeeded[-1] == b"later"
    assert len(harness.threads) == 0


def test_group_commit_ends_also_while_puts_keep_coming(harness, answers):
    harness.group_commit = True
    put(harness, answers, b"1")
    put(harness, answers, b"2")
    switch(harness, False)
    harness.threads.run_one()  # covers the first put only
    assert answers.succeeded == [b"1"]
    put(harness, answers, b"3")
    harness.threads.run_one()
    assert answers.succeeded == [b"1", b"2", b"3"]


def test_an_idle_partition_changes_at_once(harness, answers):
    harness.group_commit = True
    put(harness, answers, b"a")
    harness.threads.run_all()
    switch(harness, False)
    put(harness, answers, b"b")
    assert answers.succeeded == [b"a", b"b"]


def test_group_commit_syncs_what_was_not_and_makes_new_puts_wait(harness, answers):
    put(harness, answers, b"old")
    switch(harness, True)
    put(harness, answers, b"new")
    assert answers.succeeded == [b"old"]
    harness.threads.run_all()
    assert answers.succeeded == [b"old", b"new"]
    harness.lose_power()
    assert harness.bodies() == [b"old", b"new"]


def test_a_failed_sync_reaches_those_who_waited_before_the_change(harness, answers):
    harness.group_commit = True
    put(harness, answers, b"a")
    harness.files.fail("fdatasync")
    switch(harness, False)
    harness.threads.run_all()
    assert [name for name, error in answers.got if error is not None] == [b"a"]


def test_settings_reach_every_partition_that_exists(harness, answers):
    put(harness, answers, b"x" * 50)
    harness.max_segment_size = 60
    harness.store.reconfigure()
    put(harness, answers, b"y")
    assert len(harness.log.segments) == 2


ACTIONS = st.lists(st.sampled_from(["put 0", "put 1", "put 2", "put 3", "run", "run", "group", "async"]), max_size=60)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_what_group_commit_acknowledged_survives_a_power_cut_whatever_was_switched(actions):
    with TemporaryDirectory() as directory:
        harness = StoreHarness(Path(directory, "data"))
        store = harness.open()
        promised: dict[int, list[bytes]] = {}
        written: dict[int, list[bytes]] = {}
        for number, action in enumerate(actions):
            name, _, partition = action.partition(" ")
            if name == "put":
                _put(harness, int(partition), b"%d" % number, promised if harness.group_commit else {})
                written.setdefault(int(partition), []).append(b"%d" % number)
            elif name == "run":
                if len(harness.threads):
                    harness.threads.run_one()
            else:
                harness.group_commit = name == "group"
                store.reconfigure()
        harness.lose_power()
        for number, all_bodies in written.items():
            kept = _bodies(harness, number)
            assert kept == all_bodies[: len(kept)]
            assert set(promised.get(number, ())) <= set(kept)
        harness.files.kill()


def _put(harness: StoreHarness, partition: int, body: bytes, promised: dict[int, list[bytes]]) -> None:
    log = harness.store.get_or_create("t", partition)
    harness.next_id += 1
    log.append(*encode_puts([(0, checksum(body), body)], log.end_offset, [harness.next_id], NOW_MS))

    def answered(error: MetaqError | None) -> None:
        if error is None:
            promised.setdefault(partition, []).append(body)

    log.when_safe(log.end_offset, answered)
    check_invariants(log)


def _bodies(harness: StoreHarness, partition: int) -> list[bytes]:
    try:
        log = harness.store.get("t", partition)
    except MetaqError:
        return []
    data = log.segments.snapshot().read(0, 1 << 20) if log.visible_end else b""
    return [data[header.end - header.length : header.end] for header in iter_headers(data)]
