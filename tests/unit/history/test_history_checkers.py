"""The checkers of histories: what each must reject, and what it must accept. A record here is 10 bytes long."""

from __future__ import annotations

import math

import pytest

from metaq.protocol.message_id import counter_at, message_id
from tests.history.checkers import CHECKERS, duplicates, judge
from tests.history.facts import Ack, Call, Commit, Done, History, Name, Owner, Place, Stored, narrowed

STEP = 10
P = "t 0-0"
Q = "t 1-0"
NOW_MS = 1_790_000_000_000
SESSION = 6.0


def name(number: int, producer: str = "keyed", key: str = "k") -> Name:
    return Name(producer, key, number)


def id_at(milliseconds: int, broker: int = 0) -> int:
    return message_id(counter_at(NOW_MS + milliseconds), broker)


def stored(*names: Name, partition: str = P) -> dict[str, list[Stored]]:
    """One record after the other, one each millisecond."""
    records = [
        Stored(partition, index * STEP, (index + 1) * STEP, id_at(index), each) for index, each in enumerate(names)
    ]
    return {partition: records}


def four() -> dict[str, list[Stored]]:
    return stored(*map(name, range(4)))


def ack(number: int, index: int | None = None, partition: str = P, **named: str) -> Ack:
    index = number if index is None else index
    return Ack(name(number, **named), partition, index * STEP, id_at(index))


def call(began: float, time: float, *indexes: int, done: float | None = None) -> Call:
    """A call that hands out the records of `four` with these indexes."""
    return Call(began, time, [Place(index * STEP, id_at(index), name(index)) for index in indexes], done)


def owner(member: str, begin: float, *calls: Call, end: float = math.inf, group: str = "g", run: bool = False) -> Owner:
    return Owner(group, member, P, begin, end, list(calls), calls_handlers=run)


def commit(offset: int, zxid: int, seen: float = 0.0) -> Commit:
    return Commit("g", P, offset, zxid, seen)


def everything() -> History:
    """Four messages, acknowledged, handed to two members, committed."""
    return History(
        four(),
        [ack(number) for number in range(4)],
        [owner("a", 1.0, call(1.1, 1.2, 0, 1), call(1.2, 1.3, 2), end=2.0), owner("b", 2.1, call(2.2, 2.3, 2, 3))],
        [commit(2 * STEP, 1, 1.9), commit(4 * STEP, 2, 3.0)],
        groups=["g"],
        session_seconds=SESSION,
    )


def found(kind: str, history: History) -> list[str]:
    """What the checker of this kind says; the others must not fail on such a history either."""
    problems = judge(history)
    assert {each.kind for each in problems} <= set(CHECKERS)
    return [problem.text for problem in problems if problem.kind == kind]


def test_a_history_that_keeps_every_promise_is_accepted_and_its_repeated_message_counted() -> None:
    assert judge(everything()) == []
    assert duplicates(everything()) == 1


# --- lost, false, unseen ----------------------------------------------------------------------------------------------


def test_an_acknowledged_message_in_no_partition_is_lost() -> None:
    history = everything()
    history.acks.append(ack(9, 2))
    assert found("lost", history) == [f"keyed/k/9, acknowledged @20 with id {id_at(2)}, is in no partition"]


@pytest.mark.parametrize(
    "told", [ack(1, 2), Ack(name(1), P, STEP, id_at(7)), Ack(name(1), Q, STEP, id_at(1))], ids=["place", "id", "other"]
)
def test_an_acknowledgement_that_tells_another_place_or_id_is_lost(told: Ack) -> None:
    history = History(four(), [told])
    assert found("lost", history) == [
        f"{told.name}, acknowledged @{told.offset} with id {told.id}, is only in {P} @10 id {id_at(1)}"
    ]


def test_a_message_stored_twice_and_acknowledged_once_is_not_lost() -> None:
    assert not found("lost", History(stored(name(0), name(1), name(0)), [ack(0, 2), ack(1)]))


def test_a_message_handed_out_that_does_not_lie_there_is_false() -> None:
    wrong = Call(1.0, 1.1, [Place(STEP, id_at(1), name(3))])
    behind = Call(1.2, 1.3, [Place(9 * STEP, id_at(9), name(9))])
    history = History(four(), owners=[owner("a", 0.9, wrong, behind)])
    texts = found("false", history)
    assert [text.partition("; ")[2] for text in texts] == [f"there lies keyed/k/1 id {id_at(1)}", "there lies nothing"]


def test_a_message_that_a_group_was_never_handed_is_unseen_by_that_group() -> None:
    history = everything()
    history.owners.append(owner("x", 1.0, call(1.0, 1.1, 0, 1, 2), group="h"))
    history.groups = ["g", "h"]
    del history.acks[2:]
    assert found("unseen", history) == ["h was never handed 1 messages (0 acknowledged): keyed/k/3 @30"]


# --- reordered --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calls",
    [(call(1.0, 1.1, 1), call(1.2, 1.3, 0)), (call(1.0, 1.1, 0, 2, 1),), (call(1.0, 1.1, 0), call(1.2, 1.3, 0))],
    ids=["back", "within one call", "twice"],
)
def test_an_ownership_that_goes_back_or_repeats_is_reordered(calls: tuple[Call, ...]) -> None:
    assert len(found("reordered", History(four(), owners=[owner("a", 1.0, *calls)]))) == 1


def test_a_later_ownership_of_the_same_member_may_begin_further_in_front() -> None:
    owners = [owner("a", 1.0, call(1.0, 1.1, 0, 1), end=1.5), owner("a", 2.0, call(2.0, 2.1, 0, 1, 2))]
    assert not found("reordered", History(four(), owners=owners))


@pytest.mark.parametrize("producer", ["keyed-1", "fixed"])
def test_first_copies_of_a_key_out_of_order_are_reordered(producer: str) -> None:
    records = stored(*(name(number, producer) for number in (0, 2, 1)))
    expected = f"{producer}/k/1 @20 lies behind {producer}/k/2 @10, which was sent later"
    assert found("reordered", History(records)) == [expected]


@pytest.mark.parametrize("producer", ["sequential", "futures"])
def test_first_copies_that_nobody_promised_an_order_for_are_accepted(producer: str) -> None:
    assert not found("reordered", History(stored(*(name(number, producer) for number in (0, 2, 1)))))


def test_other_keys_and_second_copies_have_no_order() -> None:
    records = stored(name(3, key="x"), name(1), name(2), name(1), name(2), name(4))
    assert not found("reordered", History(records))


def test_acknowledged_messages_that_lie_in_another_order_than_sent_are_reordered() -> None:
    records = stored(*(name(number, "sequential") for number in (1, 0)))
    acks = [ack(0, 1, producer="sequential"), ack(1, 0, producer="sequential")]
    texts = found("reordered", History(records, acks))
    assert texts[0] == "sequential/k/1 was acknowledged @0, sequential/k/0, which was sent earlier, @10"


def test_a_key_whose_later_message_was_stored_earlier_in_another_partition_is_reordered() -> None:
    records = stored(name(1)) | stored(name(5, "x"), name(6, "x"), name(0), partition=Q)
    acks = [Ack(name(0), Q, 2 * STEP, id_at(2)), Ack(name(1), P, 0, id_at(0))]
    expected = "keyed/k/1 was stored before keyed/k/0 (in t 1-0), which was sent earlier"
    assert found("reordered", History(records, acks)) == [expected]
    assert not found("reordered", History(records, acks, has_java_brokers=True))


# --- skipped ----------------------------------------------------------------------------------------------------------


def test_an_owner_that_begins_behind_what_nobody_was_given_has_skipped_it() -> None:
    owners = [owner("a", 1.0, call(1.0, 1.1, 0), end=1.5), owner("b", 2.0, call(2.0, 2.1, 2, 3))]
    texts = found("skipped", History(four(), owners=owners))
    assert texts == ["g.b was handed @20, and nobody of g had been given 1 in front: keyed/k/1 @10"]


def test_what_somebody_is_given_only_later_has_been_skipped_too() -> None:
    owners = [owner("b", 1.0, call(1.0, 1.1, 2), end=1.5), owner("a", 2.0, call(2.0, 2.1, 0, 1, 2, 3))]
    assert len(found("skipped", History(four(), owners=owners))) == 1


def test_what_another_group_was_given_counts_for_that_group_only() -> None:
    owners = [owner("a", 1.0, call(1.0, 1.1, 0, 1), group="h"), owner("b", 2.0, call(2.0, 2.1, 2, 3))]
    assert len(found("skipped", History(four(), owners=owners))) == 1


def test_an_ownership_passes_over_nothing_even_if_another_member_has_had_it() -> None:
    owners = [owner("a", 1.0, call(1.0, 1.1, 0, 1, 2), end=1.5), owner("b", 2.0, call(2.0, 2.1, 0), call(2.1, 2.2, 2))]
    assert found("skipped", History(four(), owners=owners)) == ["g.b was handed @20 right after @0"]


@pytest.mark.parametrize(("end", "allowed"), [(3.0, True), (math.inf, False)])
def test_handlers_may_go_on_behind_what_another_member_had_if_a_loss_is_told_later(end: float, allowed: bool) -> None:
    owners = [
        owner("a", 1.0, call(1.0, 1.1, 0, done=1.2), call(2.0, 2.1, 2, done=2.2), end=end, run=True),
        owner("b", 1.5, call(1.5, 1.6, 0, 1)),
    ]
    assert (not found("skipped", History(four(), owners=owners))) is allowed
    assert found("skipped", History(four(), owners=owners[:1]))  # what nobody had is skipped in any case


def test_a_member_that_goes_on_where_another_one_ended_has_skipped_nothing() -> None:
    owners = [owner("a", 1.0, call(1.0, 1.1, 0, 1), end=1.5), owner("b", 2.0, call(2.0, 2.1, 2, 3))]
    assert not found("skipped", History(four(), owners=owners))


# --- regressed --------------------------------------------------------------------------------------------------------


def test_a_committed_offset_that_goes_back_has_regressed_however_late_it_was_seen() -> None:
    history = History(four(), commits=[commit(10, 3, 5.0), commit(20, 2, 6.0)])
    assert found("regressed", history) == ["the offset of g went from 20 back to 10 (zxid 3)"]


def test_committing_the_same_offset_again_is_accepted() -> None:
    assert not found("regressed", History(four(), commits=[commit(10, 1), commit(10, 2), commit(20, 3)]))


def test_an_owner_that_begins_in_front_of_what_was_committed_before_it_came_has_regressed() -> None:
    history = History(
        four(), owners=[owner("a", 1.0, call(1.0, 1.1, 0, 1)), owner("b", 2.0, call(2.0, 2.1, 0))],
        commits=[commit(20, 1, seen=1.9)],
    )  # fmt: skip
    assert found("regressed", history) == ["g.b began @0 although 20 was committed"]


def test_what_was_committed_only_after_an_owner_came_binds_it_not() -> None:
    history = History(four(), owners=[owner("b", 2.0, call(2.0, 2.1, 0))], commits=[commit(20, 1, seen=2.05)])
    assert not found("regressed", history)


def test_a_committed_offset_may_go_back_with_zookeeper_but_an_owner_that_begins_there_has_regressed() -> None:
    commits = [commit(20, 900, 1.0), commit(10, 3, 5.0)._replace(era=1), commit(20, 4, 6.0)._replace(era=1)]
    goes_on = owner("a", 7.0, call(7.1, 7.2, 2, 3))
    assert not found("regressed", History(four(), owners=[goes_on], commits=commits))
    begins = owner("a", 5.5, call(5.6, 5.7, 1))
    former = owner("a", 0.5, call(0.6, 0.7, 0))
    assert found("regressed", History(four(), owners=[former, begins], commits=commits)) == [
        "g.a began @10 although 20 was committed"
    ]
    assert not found("regressed", History(four(), owners=[begins], commits=commits))  # it owned nothing before
    commits.append(commit(10, 5, 7.0)._replace(era=1))
    assert len(found("regressed", History(four(), commits=commits))) == 1


# --- double-owned -----------------------------------------------------------------------------------------------------


def test_a_call_between_two_calls_of_another_member_is_double_owned() -> None:
    owners = [owner("a", 1.0, call(1.0, 1.1, 0), call(3.0, 3.1, 1)), owner("b", 2.0, call(2.0, 2.1, 0))]
    expected = "g.b was handed 1 messages from @0 on between two calls of g.a"
    assert found("double-owned", History(four(), owners=owners)) == [expected]


@pytest.mark.parametrize(
    "second",
    [call(0.5, 3.5, 0), call(1.05, 2.0, 0), call(2.5, 3.05, 0), call(3.2, 3.3, 1)],
    ids=["around", "from the first on", "into the last", "behind"],
)
def test_a_call_that_may_have_been_decided_before_or_after_is_accepted(second: Call) -> None:
    owners = [owner("a", 1.0, call(1.0, 1.1, 0), call(3.0, 3.1, 1)), owner("b", 2.0, second)]
    assert not found("double-owned", History(four(), owners=owners))


def test_turns_in_ownerships_that_ended_between_are_accepted() -> None:
    owners = [
        owner("a", 1.0, call(1.0, 1.1, 0), end=1.5),
        owner("b", 2.0, call(2.0, 2.1, 0), end=2.5),
        owner("a", 3.0, call(3.0, 3.1, 0)),
    ]
    assert not found("double-owned", History(four(), owners=owners))


def test_other_groups_and_partitions_have_owners_of_their_own() -> None:
    between = owner("b", 2.0, call(2.0, 2.1, 0))
    long = owner("a", 1.0, call(1.0, 1.1, 0), call(3.0, 3.1, 1), group="h")
    assert not found("double-owned", History(four(), owners=[long, between]))
    elsewhere = Owner("g", "a", Q, 1.0, calls=long.calls)
    assert not found("double-owned", History(four(), owners=[elsewhere, between]))


@pytest.mark.parametrize(("killed_at", "allowed"), [(1.5, True), (0.1, False), (3.5, False)])
def test_a_member_whose_session_was_ended_on_the_server_may_go_on_for_a_third_of_it(killed_at, allowed):
    """`a` loses its session at `killed_at` and hands out once more at 3.0, between two calls of its successor."""
    owners = [
        owner("a", 0.0, call(0.9, 1.0, 0), call(3.0, 3.1, 1)),
        owner("b", 2.0, call(2.0, 2.1, 0), call(4.0, 4.1, 1)),
    ]
    faults = [Done(killed_at, killed_at, "session", "g.a")]
    history = History(four(), owners=owners, faults=faults, session_seconds=SESSION)
    assert bool(found("double-owned", history)) is not allowed
    assert found("double-owned", History(four(), owners=owners, faults=[Done(4.5, 4.5, "session", "g.b")]))


def test_two_handlers_in_one_partition_at_once_are_double_owned() -> None:
    owners = [
        owner("a", 1.0, call(1.0, 1.1, 0, done=3.0), end=2.0, run=True),
        owner("a", 2.0, call(2.0, 2.5, 0, done=2.6), run=True),
    ]
    expected = "a handler of g.a got @0 while another was at @0"
    assert found("double-owned", History(four(), owners=owners)) == [expected]


def test_handlers_one_after_the_other_and_one_that_never_returned_are_accepted() -> None:
    owners = [owner("a", 1.0, call(1.0, 1.1, 0, done=1.2), call(1.0, 1.2, 1, done=math.inf), run=True)]
    owners.append(owner("b", 5.0, call(5.0, 5.1, 1, done=5.2), run=True))
    assert not found("double-owned", History(four(), owners=owners))


def test_a_frozen_call_counts_from_its_beginning_and_a_running_one_from_shortly_before() -> None:
    assert narrowed(1.0, 20.0, []) == 19.5
    assert narrowed(19.8, 20.0, []) == 19.8
    assert narrowed(1.0, 20.0, [(10.0, 19.9)]) == 9.5
    assert narrowed(12.0, 20.0, [(10.0, 19.9)]) == 12.0
    assert narrowed(1.0, 20.0, [(10.0, 15.0)]) == 19.5
    assert narrowed(1.0, 20.0, [(5.0, 9.6), (10.0, 19.9)]) == 4.5


# --- uncommitted ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [[], [commit(30, 1)]], ids=["nothing", "not all"])
def test_what_was_consumed_and_not_committed_by_members_that_left_properly_is_uncommitted(commits):
    history = everything()
    history.commits = commits
    assert len(found("uncommitted", history)) == 1
    history.settled = False
    assert not found("uncommitted", history)


def test_what_is_committed_in_the_end_is_what_was_written_since_zookeeper_was_set_back() -> None:
    history = everything()
    history.commits = [commit(2 * STEP, 900, 1.9), commit(4 * STEP, 7, 3.0)._replace(era=1)]
    assert not found("uncommitted", history)
    history.commits = [commit(4 * STEP, 900, 1.9), commit(2 * STEP, 7, 3.0)._replace(era=1)]
    assert len(found("uncommitted", history)) == 1


# --- beginnings and filters -------------------------------------------------------------------------------------------


def late(member: str, begin: float, position: int | None, *calls: Call, end: float = math.inf) -> Owner:
    return Owner("g", member, P, begin, end, list(calls), position=position, begins_late=True)


def kinds(*owners: Owner) -> list[str]:
    commits = [Commit("g", P, 4 * STEP, 9, 90.0)]
    return [each.kind for each in judge(History(four(), owners=list(owners), commits=commits, groups=["g"]))]


def test_a_group_that_begins_at_the_end_may_miss_what_lies_in_front_of_its_beginning():
    assert kinds(late("a", 1.0, 2 * STEP, call(2.0, 2.1, 2, 3))) == []
    assert kinds(late("a", 1.0, None, end=2.0), late("b", 3.0, 2 * STEP, call(4.0, 4.1, 2, 3))) == []


def test_a_later_member_that_begins_at_a_new_end_has_skipped_what_came_in_between():
    first = late("a", 1.0, STEP, end=2.0)
    assert kinds(first, late("b", 3.0, 3 * STEP, call(4.0, 4.1, 3))) == ["unseen", "skipped"]


def test_what_one_owner_leaves_out_may_reach_nobody_but_what_all_take_must_be_seen():
    def even(*indexes: int) -> Owner:
        return Owner("g", "a", P, 1.0, calls=[call(2.0, 2.1, *indexes)], tags=("even",))

    assert kinds(even(0, 2)) == []
    assert kinds(even(2)) == ["unseen", "skipped"]
    assert "false" in kinds(even(0, 1, 2))
