"""A running partition changes between asynchronous flush and group commit: nobody waits for ever, no promise breaks."""

from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.store import check_invariants
from tests.doubles.store_harness import Answers, StoreHarness


def switch(harness: StoreHarness, group_commit: bool) -> None:
    harness.group_commit = group_commit
    harness.store.reconfigure()
    check_invariants(harness.log)


def test_puts_that_wait_keep_waiting_when_group_commit_ends_also_while_others_come(grouped, answers):
    answers.append(grouped, b"1", b"2")
    switch(grouped, False)
    assert (answers.got, grouped.log.visible_end) == ([], 0)
    grouped.threads.run_one()  # covers the first put only
    assert answers.succeeded == [b"1"]
    answers.append(grouped, b"3")
    grouped.threads.run_one()
    assert answers.succeeded == [b"1", b"2", b"3"]
    answers.append(grouped, b"later")
    assert answers.succeeded[-1] == b"later"
    assert len(grouped.threads) == 0


def test_an_idle_partition_changes_at_once(grouped, answers):
    answers.append(grouped, b"a")
    grouped.threads.run_all()
    switch(grouped, False)
    answers.append(grouped, b"b")
    assert answers.succeeded == [b"a", b"b"]


def test_group_commit_syncs_what_was_not_and_makes_new_puts_wait(harness, answers):
    answers.append(harness, b"old")
    switch(harness, True)
    answers.append(harness, b"new")
    assert answers.succeeded == [b"old"]
    harness.threads.run_all()
    assert answers.succeeded == [b"old", b"new"]
    harness.lose_power()
    assert harness.bodies() == [b"old", b"new"]


def test_a_failed_sync_reaches_those_who_waited_before_the_change(grouped, answers):
    answers.append(grouped, b"a")
    grouped.files.fail("fdatasync")
    switch(grouped, False)
    grouped.threads.run_all()
    assert [name for name, error in answers.got if error is not None] == [b"a"]


def test_settings_reach_every_partition_that_exists(harness, answers):
    answers.append(harness, b"x" * 50)
    harness.max_segment_size = 60
    harness.store.reconfigure()
    answers.append(harness, b"y")
    assert len(harness.log.segments) == 2


ACTIONS = st.lists(st.sampled_from(["put 0", "put 1", "put 2", "put 3", "run", "run", "group", "async"]), max_size=60)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_what_group_commit_acknowledged_survives_a_power_cut_whatever_was_switched(actions):
    with TemporaryDirectory() as directory:
        harness = StoreHarness(Path(directory, "data"))
        store = harness.open()
        promised: defaultdict[int, Answers] = defaultdict(Answers)
        written: defaultdict[int, list[bytes]] = defaultdict(list)
        for number, action in enumerate(actions):
            name, _, partition = action.partition(" ")
            if name == "put":
                log, body = store.get_or_create("t", int(partition)), b"%d" % number
                harness.put(log, body)
                (promised[log.partition] if harness.group_commit else Answers()).expect(log, log.end_offset, body)
                check_invariants(log)
                written[log.partition].append(body)
            elif name == "run":
                if len(harness.threads):
                    harness.threads.run_one()
            else:
                harness.group_commit = name == "group"
                store.reconfigure()
        answers = {number: each.succeeded for number, each in promised.items()}  # before the cut answers others
        harness.lose_power()
        for number, all_bodies in written.items():
            kept = harness.bodies(number)
            assert kept == all_bodies[: len(kept)]
            assert set(answers.get(number, ())) <= set(kept)
        harness.files.kill()
