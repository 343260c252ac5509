"""Partitions move between broker sets while the leader of one of them is killed, in each state of the move."""

import os
import random
import time

from metaq.client.questions.moves import MovesOfCluster
from metaq.coordination.records.move_payloads import MoveState
from metaq.coordination.session.zk_session import ZkSession
from tests.integration.test_moves import Load
from tests.waiting import eventually

SEED = int(os.environ.get("METAQ_MOVES_SEED", "1"))
STATES = (MoveState.COPYING, MoveState.CLOSING, MoveState.PUBLISHING, MoveState.HANDING_OVER)
CASES = [(state, victim) for state in STATES for victim in ("source", "target")]
TOPICS = [f"t{number}" for number in range(len(CASES))]
SET_TOPICS = dict.fromkeys(TOPICS, "numPartitions=2")
ORDER = list(MoveState)
RATE = 400_000


def test_a_leader_is_killed_in_each_state_and_nothing_is_lost_or_stored_twice(chroot, sets):
    chance = random.Random(SEED)
    for topic, (state, victim) in zip(TOPICS, CASES, strict=True):
        move_with_a_kill(chroot, sets, topic, state, sets[victim == "target"], chance.random() * 0.2)


def move_with_a_kill(chroot, sets, topic, state, victims, delay):
    load = Load(chroot, f"g-{topic}", topic)
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
    load.end(4)
    for each, names in ((sets[0], ("a", "b")), (sets[1], ("c", "d"))):
        each.wait_in_sync(*names)
