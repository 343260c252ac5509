"""Every order of what may happen to one half message, with the classes that decide: OwnHalves and the check of its age
in the producer that sent it, ProducerGroups in the broker, and another producer of the group that answers truthfully.

Between any two events time may pass: a producer that does nothing meanwhile stands still, and so may the broker. What
is committed must be delivered, and nothing else; and each rule is needed: without it some order breaks that.
"""

import pickle
from collections import deque
from typing import Any

import pytest

from metaq.broker import tuning
from metaq.broker.halves.producer_groups import NEVER, Half, Poll, ProducerGroups
from metaq.client.producer.check_back import check_age
from metaq.client.producer.own_halves import OwnHalves
from metaq.client.records.results import SendResult, TopicPartition
from metaq.protocol.half_messages import HalfOutcome
from metaq.protocol.limits import HALF_GRACE_SECONDS

COMMIT, ROLL_BACK = HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK
GRACE, SILENT, STEP = HALF_GRACE_SECONDS, tuning.HALVES_SILENT_SECONDS, tuning.HALVES_STEP_SECONDS
AFTER = 6.0
HALF = 7
CHECK = "the check of the topic"  # a stand-in, which pickle can copy
RESULT = SendResult(HALF, TopicPartition("t", 0, 0), -1)


class AsksEverybody(ProducerGroups):
    """As brokers were: the producer that sent a half message is one of many."""

    def _asks(self, group, half):
        return False


class ChecksOnItsWay(OwnHalves):
    """The check answers for what has no id here yet."""

    def answer(self, half_id, topic, body, check):
        self._sending.clear()
        return super().answer(half_id, topic, body, check)


class ChecksAtWork(OwnHalves):
    """The check answers while the local work is under way."""

    def answer(self, half_id, topic, body, check):
        return check if half_id in self._busy else super().answer(half_id, topic, body, check)


class World:
    """P has sent the half message; both P and Q answer questions, each on one connection."""

    def __init__(self, rules):
        self.groups = rules.get("groups", ProducerGroups)(100, SILENT, rules.get("grace", GRACE))
        self.own = rules.get("own", OwnHalves)()
        self.looks_at_age = rules.get("age", True)
        self.step = rules.get("step", STEP)
        self.has_tombstone = rules.get("tombstone", False)
        self.is_free = self.has_tombstone or rules.get("pauses", False)  # time may pass in its local work
        self.now = self.ran = self.seen = 0.0
        self.due: float | None = None  # by the broker's clock
        self.is_waiting_first = True
        self.clock_ahead = 0.0
        self.decided: str | None = None
        self.booked = self.tomb = False
        self.work = "unsent"  # sent, answered, working, over
        self.number = 0
        self.outcomes: tuple[str, ...] = ()  # on their way to the broker
        self.polls: tuple[str, ...] = ()  # on their way, too
        self.questions: tuple[str, ...] = ()  # who has been asked, and has not answered
        self.nobody: Any = None  # waits for the answer of a poll
        self.callers = {"P": ("P", 1), "Q": ("Q", 1)}  # connections: compared by identity
        self.left = {"pass": 3, "long": 1, "stop": 1, "step": 1, "cut": 1, **rules.get("left", {})}
        for who in "PQ":
            self.arrives(who)

    # --- the broker ---------------------------------------------------------------------------------------------------

    def run(self):
        """What Halves._running does."""
        if self.now - self.seen <= self.step:
            self.ran += self.now - self.seen
        self.seen = self.now
        return self.ran

    def turn(self):
        now = self.run()
        if self.due is not None and self.is_waiting_first and self.now + self.clock_ahead >= self.due:
            self.is_waiting_first = False
            self.groups.add(Half(HALF, "g", ("t", 0), 0, now, 0, "P"), now)
        self.groups.turn(now, self.give, self.end_poll)

    def give(self, poll, halves):
        (half,) = halves
        half.asked += 1
        self.groups.put_off(half, self.ran + AFTER)
        self.groups.answered(poll, self.ran)
        self.questions += (poll.producer,)

    def end_poll(self, poll):
        self.groups.answered(poll, self.ran)
        self.asks_again(poll.producer)

    def asks_again(self, who):
        """Q does so at once: what matters is what it answers."""
        if who == "P":
            self.polls += (who,)
        else:
            self.arrives(who)

    def arrives(self, who):
        now = self.run()
        poll: Poll[object] = Poll(self.callers[who], "g", 16, now + 4, self.nobody, frozenset("t"), who)
        self.groups.arrive(poll)
        if halves := self.groups.take(poll, now):
            self.give(poll, halves)
        else:
            self.groups.wait(poll)

    # --- what may happen next -----------------------------------------------------------------------------------------

    def events(self):
        if self.decided is not None and self.work in ("over", "unsent"):
            return
        if self.work == "unsent":
            yield "send"
        if self.work != "unsent" and self.due is None:
            yield "take"
        if self.work == "sent":
            if self.due is not None:
                yield "answer"
            yield "fail"
        if self.work == "answered":
            yield "begin"
        if self.work == "working":
            yield "book"
        yield from (f"outcome {each}" for each in set(self.outcomes))
        yield from (f"poll {each}" for each in set(self.polls))
        yield from (f"reply {each}" for each in set(self.questions))
        if self.work == "unsent":
            return
        # without a tombstone, local work that has begun ends while its producer asks: no pause of it in between
        asks = self.is_free or self.work != "working" or "P" in self.polls or self.is_parked("P")
        if asks and self.left["stop"]:
            yield "stop"
        if self.left["pass"] and (self.is_free or self.work != "working" or self.is_parked("P")):
            yield "pass"
        if self.left["long"] and (self.is_free or self.work != "working"):
            yield "long"
        if self.left["step"] and self.left["cut"] and self.due is not None:
            yield "step"
        if self.left["cut"] and self.left["step"] and self.is_parked("P"):
            yield "cut"

    def is_parked(self, who):
        group = self.groups._groups.get("g")
        return group is not None and self.callers[who] in group.polls

    def happens(self, event):
        kind, _, what = event.partition(" ")
        if kind in self.left:
            self.left[kind] -= 1
        getattr(self, f"on_{kind}")(*([what] if what else []))

    def on_send(self):
        self.number = self.own.send()
        self.work = "sent"

    def on_take(self):
        self.due = self.now + self.clock_ahead + AFTER

    def on_answer(self):
        self.own.sent(self.number, HALF)
        self.work = "answered"

    def on_fail(self):
        self.own.not_sent(self.number, "t", b"body")
        self.work = "over"

    def on_begin(self):
        if self.looks_at_age and check_age(RESULT, self.now, AFTER) is not None:
            self.says(ROLL_BACK)
        else:
            self.work = "working"

    def on_book(self):
        self.booked = not self.tomb
        self.says(COMMIT if self.booked else ROLL_BACK)

    def says(self, outcome):
        self.work = "over"
        self.outcomes += (outcome,)
        self.own.left_open(HALF, None)

    def on_outcome(self, outcome):
        self.outcomes = tuple(each for each in self.outcomes if each != outcome)
        if self.decided is None and self.due is not None:
            self.decided = outcome
            self.is_waiting_first = False
            self.groups.discard(HALF)

    def on_poll(self, who):
        self.polls = tuple(each for each in self.polls if each != who)
        self.arrives(who)

    def on_reply(self, who):
        self.questions = tuple(each for each in self.questions if each != who)
        answer = self.own.answer(HALF, "t", b"body", CHECK) if who == "P" else CHECK
        if answer == CHECK:
            answer = COMMIT if self.booked else ROLL_BACK
            self.tomb = self.tomb or (self.has_tombstone and not self.booked)
        if answer is not None:
            self.outcomes += (answer,)
        self.asks_again(who)

    def on_pass(self):
        for _ in range(3):
            self.now += 1.0
            self.turn()

    def on_long(self):
        """P, and Q, do nothing for long; the broker runs."""
        for _ in range(13):
            self.now += 1.0
            self.turn()

    def on_stop(self):
        """The broker stands still."""
        self.now += 13.0
        self.turn()  # timers come before what has arrived meanwhile

    def on_step(self):
        """The broker's wall clock is set forward."""
        self.clock_ahead = AFTER
        self.turn()

    def on_cut(self):
        """P's connection is lost: it asks again on another one."""
        self.groups.lost(self.callers["P"], self.run())
        self.callers["P"] = ("P", 2)
        self.polls += ("P",)
        self.turn()

    # --- what must hold -----------------------------------------------------------------------------------------------

    @property
    def wrong(self):
        """What is wrong for good."""
        if self.booked and self.decided == ROLL_BACK:
            return "committed and never delivered"
        if self.decided == COMMIT and not self.booked:
            return "delivered and never committed"
        return None

    def settle(self):
        """Everybody goes on without a further fault: it has to be decided."""
        for _ in range(100):
            if self.decided is not None or self.due is None:
                return True
            for event in list(self.events()):
                if event.split()[0] not in self.left and event != "fail" and event in self.events():
                    self.happens(event)
            self.on_pass()
        return False

    def key(self):
        half = self.groups.get(HALF)
        group = self.groups._groups.get("g")
        where = None if half is None else (half.lane and half.lane.producer, min(half.at - self.ran, NEVER), half.asked)
        parked = sorted((name, poll.ends_at - self.ran) for (name, _), poll in group.polls.items()) if group else ()
        askers = sorted((name, each.until - self.ran) for name, each in group._askers.items()) if group else ()
        times = min(self.now, AFTER), None if self.due is None else max(0.0, self.due - self.now - self.clock_ahead)
        return (
            *(times, self.now - self.seen, self.clock_ahead, self.is_waiting_first, where, tuple(parked)),
            *(tuple(askers), self.decided, self.booked, self.tomb, self.work, tuple(sorted(set(self.outcomes)))),
            *(tuple(sorted(set(self.polls))), tuple(sorted(set(self.questions))), tuple(self.left.values())),
            *(tuple(self.own._sending), tuple(self.own._busy), tuple(self.own._left_open), len(self.own._asked)),
        )


def explore(most=1 << 20, **rules):
    """(how many states, the first order found that goes wrong)."""
    first = World(rules)
    seen = {first.key()}
    todo: deque[tuple[bytes, list[str], tuple[str, ...]]] = deque([(pickle.dumps(first), sorted(first.events()), ())])
    while todo:
        data, possible, events = todo.popleft()
        for event in possible:
            world = pickle.loads(data)
            world.happens(event)
            if world.wrong:
                return len(seen), (*events, event, world.wrong)
            if (key := world.key()) not in seen:
                seen.add(key)
                assert len(seen) < most
                todo.append((pickle.dumps(world), sorted(world.events()), (*events, event)))
                if not len(seen) % 50:
                    assert world.settle(), events
    return len(seen), None


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param({}, id="local work that is not paused"),
        pytest.param({"tombstone": True, "left": {"pass": 2, "cut": 0}}, id="any local work, and a tombstone"),
    ],
)
def test_no_order_of_events_commits_without_a_delivery_or_delivers_without_a_commit(rules):
    states, wrong = explore(**rules)
    assert wrong is None
    assert states > 3_000


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param({"groups": AsksEverybody, "own": ChecksOnItsWay, "age": False}, id="the former rules"),
        pytest.param({"groups": AsksEverybody}, id="everybody is asked"),
        pytest.param({"own": ChecksOnItsWay}, id="the check answers for what is on its way"),
        pytest.param({"own": ChecksAtWork}, id="the check answers while the work is under way"),
        pytest.param({"age": False}, id="the work begins however late"),
        pytest.param({"grace": 0.0}, id="another one is asked as soon as the connection is lost"),
        pytest.param({"left": {"step": 0}, "pauses": True}, id="local work is paused, and there is no tombstone"),
        pytest.param({"step": NEVER}, id="a pause of the broker makes its producers silent"),
    ],
)
def test_each_rule_is_needed(rules):
    _, wrong = explore(**rules)
    assert wrong is not None
