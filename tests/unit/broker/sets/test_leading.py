from metaq.broker.sets.leading import Leading, Mark
from metaq.protocol.replication_stream import Ack, Lane

NOW = 100.0


def leading(*in_sync: str) -> Leading:
    """Node a leads; every other in-sync node is live and has granted."""
    core = Leading("a", 3, in_sync)
    for name in in_sync[1:]:
        join(core, name)
    return core


def join(core: Leading, name: str) -> None:
    core.connected(name)
    core.granted(name, NOW + 1)
    core.went_live(name)


def block(core: Leading, lane: Lane, end: int) -> int:
    marks = [Mark("log", end, end // 10)]
    return core.next_block(*(marks if each is lane else [] for each in Lane))


def shown(core: Leading, now: float = NOW) -> list[int]:
    core.advance(now)
    return [mark.end for mark in core.take_committed()]


def shown_after(core: Leading, name: str, received: int, safe: int) -> list[int]:
    """What is shown when the node has said so."""
    core.acknowledged(name, Ack(received, safe, 0))
    return shown(core)


def test_alone_everything_in_memory_is_committed_at_once_and_the_own_disk_counts() -> None:
    core = leading("a")
    block(core, Lane.MEMORY, 10)
    assert [shown(core), shown(core)] == [[10], []]
    number = block(core, Lane.DISK, 20)
    assert shown(core) == []
    core.own_safe = number
    assert shown(core) == [20]


def test_every_in_sync_node_must_have_it() -> None:
    core = leading("a", "b", "c")
    number = block(core, Lane.MEMORY, 10)
    assert [shown_after(core, name, number, 0) for name in "bc"] == [[], [10]]


def test_the_disk_lane_waits_for_every_disk() -> None:
    core = leading("a", "b")
    core.own_safe = number = block(core, Lane.DISK, 10)
    assert [shown_after(core, "b", number, safe) for safe in (number - 1, number)] == [[], [10]]
    assert core.committed == (number, number)


def test_a_lost_node_holds_commits_up_until_it_is_dropped() -> None:
    core = leading("a", "b")
    core.lost("b")
    block(core, Lane.MEMORY, 10)
    assert shown_after(core, "b", 1, 1) == []  # what it said before it was lost does not count
    core.changing_to = frozenset("a")
    assert shown(core) == []  # not before ZooKeeper has it
    core.changing_to, core.in_sync = None, frozenset("a")
    assert shown(core) == [10]


def test_a_node_that_joins_counts_before_it_is_written() -> None:
    core = leading("a")
    join(core, "b")
    core.changing_to = frozenset("ab")
    number = block(core, Lane.MEMORY, 10)
    assert shown(core) == []
    assert shown_after(core, "b", number, number) == [10]


def test_nothing_is_committed_without_a_running_grant() -> None:
    core = leading("a", "b")
    number = block(core, Lane.MEMORY, 10)
    core.acknowledged("b", Ack(number, number, 0))
    assert not core.may_acknowledge(NOW + 1)
    assert shown(core, NOW + 1) == []
    core.granted("b", NOW + 2)
    assert shown(core, NOW + 1) == [10]


def test_who_waits_is_told_when_the_block_is_committed() -> None:
    core = leading("a", "b")
    told: list[str] = []
    first, second = block(core, Lane.MEMORY, 10), block(core, Lane.DISK, 20)
    assert core.wait(Lane.MEMORY, first, lambda error: told.append("first"))
    assert core.wait(Lane.DISK, second, lambda error: told.append("second"))
    core.acknowledged("b", Ack(second, first, 0))
    core.advance(NOW)
    assert [answered(None) for answered in core.take_answers()] == [None]
    assert told == ["first"]
    assert not core.wait(Lane.MEMORY, first, lambda error: told.append("late"))
    for answered in core.take_all():
        answered(None)
    assert told == ["first", "second"]
    assert core.take_all() == core.take_answers() == []
