"""Partitions move between broker sets while the leader of one of them is killed, in each state of the move."""

import os
import random
import time

import pytest

from metaq import Producer
from metaq.client.questions.moves import MovesOfCluster
from metaq.coordination.move_records import MoveState
from metaq.coordination.session import ZkSession
from tests.integration.set_nodes import set_nodes
from tests.integration.test_moves import Got, Reading, Sending, check_order, stored
from tests.waiting import eventually

SEED = int(os.environ.get("METAQ_MOVES_SEED", "1"))
STATES = (MoveState.COPYING, MoveState.CLOSING, MoveState.PUBLISHING, MoveState.HANDING_OVER)
CASES = [(state, victim) for state in STATES for victim in ("source", "target")]
TOPICS = [f"t{number}" for number in range(len(CASES))]
ORDER = list(MoveState)
RATE = 400_000


@pytest.fixture
def sets(chroot, tmp_path):
    topics = dict.fromkeys(TOPICS, "numPartitions=2")
    (tmp_path / "s").mkdir()
    (tmp_path / "d").mkdir()
    with (
        set_nodes(tmp_path / "s", chroot, topics, broker_id=0) as source,
        set_nodes(tmp_path / "d", chroot, topics, broker_id=1) as target,
    ):
        for each, names in ((source, ("a", "b")), (target, ("c", "d"))):
            each.start(*names)
            each.wait_in_sync(*names)
        yield source, target


def test_a_leader_is_killed_in_each_state_and_nothing_is_lost_or_stored_twice(chroot, sets):
    chance = random.Random(SEED)
    for topic, (state, victim) in zip(TOPICS, CASES, strict=True):
        move_with_a_kill(chroot, sets, topic, state, sets[victim == "target"], chance.random() * 0.2)


def move_with_a_kill(chroot, sets, topic, state, victims, delay):
    sending = Sending(chroot, topic)
    sending.start()
    got: list[Got] = []
    members = [Reading(chroot, f"g-{topic}", got, topic) for _ in range(2)]
    for each in members:
        each.start()
    eventually(lambda: len(sending.sent) > 400 and len(got) > 200, what="messages")
    with ZkSession(chroot) as session:
        moves = MovesOfCluster(session)
        move = moves.begin(moves.plan(topic, 0, 1, RATE))

        def now():
            return next(each for each in moves.all() if each.name == move.name and each.topic == topic)

        def reached():
            moves.look(move)
            return ORDER.index(now().state) >= ORDER.index(state)

        moves.look(move)
        eventually(reached, what=f"{state}")
        time.sleep(delay)
        seen = now().state
        name = victims.leader
        victims.kill(name)
        victims.start(name)
        eventually(lambda: moves.look(move).move.state is MoveState.DONE, what="the move")
    print(f"{topic}: killed {name} when the move was {seen.value} (wanted: {state.value})")
    count = len(sending.sent)
    eventually(lambda: len(sending.sent) > count + 200, what="messages behind the move")
    sending.stop()
    assert sending.errors == []
    eventually(lambda: len({payload for *_, payload in got}) >= len(sending.sent), what="all messages")
    time.sleep(0.5)
    for each in members:
        each.stop()
    with Producer(chroot) as producer:
        partitions = producer.partitions(topic)
    assert [(each.broker, each.partition) for each in partitions] == [(1, each) for each in range(4)]
    there = [payload for payloads in stored(chroot, partitions).values() for payload in payloads]
    assert sorted(there) == sorted(sending.sent)
    assert sorted(payload for *_, payload in got) == sorted(sending.sent)
    check_order(got)
    for each, names in ((sets[0], ("a", "b")), (sets[1], ("c", "d"))):
        each.wait_in_sync(*names)
