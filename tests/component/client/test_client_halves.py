"""Transactions with check-back of a producer, against a broker in memory."""

import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from metaq import ConnectionConfig, HalfOutcome, LocalMessageStore, Producer, ProducerConfig, TopicPartition
from metaq.client.questions.waiting_halves import list_halves
from metaq.client.transport.connection import open_connection
from metaq.protocol import errors
from metaq.protocol.half_messages import EndHalfRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.child import in_child, refusal
from tests.component.client.harness import address, together
from tests.raising import raising
from tests.speaking import speaking
from tests.waiting import eventually

CONNECTION = ConnectionConfig(reconnect_min_seconds=0.01, reconnect_max_seconds=0.05)
CONFIG = ProducerConfig(producer_group="bank", connection=CONNECTION)
ONE_THREAD = ProducerConfig(producer_group="bank", transaction_threads=1)
TOPICS = {"t": 2}
PLACE = TopicPartition("t", 0, 1)


def new_producer(broker, config=CONFIG, partitions=TOPICS, **options):
    return Producer.direct(address(broker), broker_id=0, config=config, partitions=partitions, **options)


@pytest.fixture
def producer(broker):
    with new_producer(broker) as producer:
        yield producer


@pytest.fixture(params=["waiting", "as a future"])
def transact(request, producer):
    """send_in_transaction, or the other one and the result of its future."""
    if request.param == "waiting":
        return producer.send_in_transaction
    return lambda *arguments, **options: producer.send_in_transaction_async(*arguments, **options).result(10)


def commits(message):
    return True


def takes(seconds, message):
    time.sleep(seconds)
    return True


def leaves_open(message):
    return HalfOutcome.UNKNOWN


class Gate:
    """Local work that is committed when it may go on."""

    def __init__(self):
        self.began, self.go_on = threading.Event(), threading.Event()

    def __call__(self, message):
        self.began.set()
        return self.go_on.wait(10)


def decides(broker, outcome):
    """Local work that is committed, and during which a check is answered."""

    def execute(message):
        ended = EndHalfRequest("t", message.partition.partition, message.id, outcome)
        broker.run_there(lambda: broker.halves.end(ended))
        return True

    return execute


def refuse_codes(broker, refusal, *codes, times=1 << 30):
    """The first requests with these codes; returns those that were refused so far."""
    refused: list[object] = []

    def refuse(request):
        if getattr(request, "code", None) not in codes or len(refused) == times:
            return None
        refused.append(request)
        return refusal

    broker.refuse = refuse
    return refused


def is_asked(broker):
    return f"frame {RequestCode.CHECK_HALVES}" in broker.requests


def payloads(broker):
    return [body[-1:] for number in (0, 1) for body in broker.bodies("t", number)]


# --- local work -------------------------------------------------------------------------------------------------------


def test_message_is_stored_when_the_local_work_is_committed(broker, transact):
    seen = []

    def execute(message):
        seen.append((message.payload, message.tag, message.keys, message.partition, payloads(broker)))
        return True

    result = transact("t", b"a", execute=execute, partition=PLACE, tag="x", keys=["k"])
    assert seen == [(b"a", "x", ("k",), PLACE, [])]
    assert result.outcome is HalfOutcome.COMMITTED
    assert (result.half.offset, result.sent.offset, result.sent.partition) == (-1, 0, PLACE)
    assert payloads(broker) == [b"a"]


def test_message_is_dropped_when_the_local_work_is_rolled_back(broker, transact):
    result = transact("t", b"a", execute=lambda message: False)
    assert (result.outcome, result.sent, result.cause) == (HalfOutcome.ROLLED_BACK, None, None)
    assert (payloads(broker), broker.halves.waiting) == ([], [])


def test_outcome_that_is_not_known_is_left_open(broker, transact):
    result = transact("t", b"a", execute=leaves_open)
    assert (result.outcome, result.sent, result.cause) == (HalfOutcome.UNKNOWN, None, None)
    assert [each.id for each in broker.halves.waiting] == [result.half.message_id]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_exception_of_the_local_work_reaches_the_caller_and_decides_nothing(broker, transact, error):
    with pytest.raises(error, match="why"):
        transact("t", b"a", execute=raising(error("why")))
    assert (len(broker.halves.waiting), payloads(broker)) == (1, [])
    assert transact("t", b"b", execute=commits).outcome is HalfOutcome.COMMITTED


def test_answer_that_is_none_of_three_is_an_error_and_decides_nothing(broker, transact):
    with pytest.raises(TypeError, match="execute returned 'yes': return True"):
        transact("t", b"a", execute=lambda message: "yes")
    assert len(broker.halves.waiting) == 1


@pytest.mark.parametrize("outcome", HalfOutcome)
def test_an_outcome_is_an_answer(producer, outcome):
    assert producer.send_in_transaction("t", b"a", execute=lambda message: outcome).outcome is outcome


def test_no_answer_is_unknown_with_a_warning(producer):
    with pytest.warns(RuntimeWarning, match=r"execute returned nothing.*return HalfOutcome.UNKNOWN if you mean that"):
        result = producer.send_in_transaction("t", b"a", execute=lambda message: None)
    assert result.outcome is HalfOutcome.UNKNOWN


def test_local_work_is_not_begun_if_the_half_message_is_refused(broker, producer, transact):
    refuse_codes(broker, ResponseCode.MESSAGE_ILLEGAL, RequestCode.SEND)
    called: list[object] = []
    with pytest.raises(errors.RequestRefused):
        transact("t", b"a", execute=called.append)
    producer.flush(10)
    assert called == []


def was_asked(broker, times):
    return not broker.halves.waiting or broker.halves.waiting[0].asked == times


# --- telling the broker -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 20])
def test_outcomes_are_told_again_when_their_answers_are_lost(broker, producer, count):
    """Of one that its thread tells, and of some that go together."""
    lost = refuse_codes(broker, ResponseCode.SYSTEM_BUSY, RequestCode.END_HALF, RequestCode.END_HALVES, times=2)
    if count == 1:
        outcomes = {producer.send_in_transaction("t", b"a", execute=commits).outcome}
    else:
        futures = [producer.send_in_transaction_async("t", b"a", execute=commits) for _ in range(count)]
        outcomes = set(map(outcome_of, futures))
    assert (outcomes, len(lost), payloads(broker)) == ({HalfOutcome.COMMITTED}, 2, [b"a"] * count)


def test_broker_that_cannot_be_told_in_time_leaves_the_outcome_open_and_says_why(broker, transact):
    def execute(message):
        broker.refuse = lambda request: ResponseCode.SYSTEM_BUSY
        return True

    result = transact("t", b"a", execute=execute, timeout=0.3)
    assert (result.outcome, type(result.cause)) == (HalfOutcome.UNKNOWN, errors.BrokerUnavailable)
    assert len(broker.halves.waiting) == 1


def test_outcome_that_a_check_has_contradicted_is_an_error_that_says_so(broker, transact):
    with pytest.raises(errors.HalfDecided, match="is rolled-back already: it cannot be committed") as caught:
        transact("t", b"a", execute=decides(broker, HalfOutcome.ROLLED_BACK))
    assert caught.value.outcome == HalfOutcome.ROLLED_BACK


def test_outcome_that_a_check_has_told_before_is_no_error(broker, transact):
    assert transact("t", b"a", execute=decides(broker, HalfOutcome.COMMITTED)).outcome is HalfOutcome.COMMITTED
    assert payloads(broker) == [b"a"]


def test_half_message_that_the_broker_does_not_know_leaves_the_outcome_open(broker, transact):
    result = transact("t", b"a", execute=lambda message: not broker.halves.waiting.clear())
    assert (result.outcome, type(result.cause)) == (HalfOutcome.UNKNOWN, errors.MessageNotFound)


# --- questions --------------------------------------------------------------------------------------------------------


def test_check_is_asked_for_what_was_left_open(broker, producer):
    asked = []

    def check(message):
        asked.append((message.payload, message.partition))
        return True

    producer.send_in_transaction("t", b"a", execute=leaves_open, check=check, partition=PLACE)
    broker.ask_for_halves()
    eventually(lambda: payloads(broker) == [b"a"])
    assert asked == [(b"a", PLACE)]


def test_another_producer_of_the_group_answers(broker, producer):
    producer.send_in_transaction("t", b"a", execute=leaves_open)
    producer.close()
    with new_producer(broker) as other:
        other.check_transactions(lambda message: message.payload == b"b", ["t"])
        broker.ask_for_halves()
        eventually(lambda: broker.halves.waiting == [])
    assert payloads(broker) == []


@pytest.mark.parametrize("own", [True, False], ids=["its own call's", "its group's"])
def test_each_topic_of_a_group_has_its_own_check(broker, own):
    """The check of a second topic used to answer for the first one, too."""
    broker.topics["u"] = 1
    topics = {"t": 2, "u": 1}

    def no(message):
        return False

    with new_producer(broker, partitions=topics) as sender, new_producer(broker, partitions=topics) as other:
        other.check_transactions(commits, ["u"])
        if own:
            sender.check_transactions(commits, "u")
        else:
            other.check_transactions(no, "t")
        sender.send_in_transaction("t", b"b", execute=leaves_open, check=no if own else None)
        sender.send_in_transaction("u", b"a", execute=leaves_open)
        broker.ask_for_halves()
        eventually(lambda: broker.halves.waiting == [])
    assert (payloads(broker), [body[-1:] for body in broker.bodies("u", 0)]) == ([], [b"a"])


def test_producers_of_other_groups_are_not_asked(broker, producer):
    producer.send_in_transaction("t", b"a", execute=leaves_open)
    with new_producer(broker) as other:
        other.check_transactions(commits, "t", group="shop")
        eventually(lambda: is_asked(broker))
        broker.ask_for_halves()
        time.sleep(0.1)
        assert len(broker.halves.waiting) == 1
        other.check_transactions(commits, "t", group="bank")
        eventually(lambda: payloads(broker) == [b"a"])


def test_check_that_fails_or_cannot_tell_is_asked_again(broker, producer, caplog):
    answers = iter([None, ValueError(), "yes", True])

    def check(message):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    producer.send_in_transaction("t", b"a", execute=leaves_open, check=check)
    for asked in range(1, 5):
        broker.ask_for_halves()
        eventually(partial(was_asked, broker, asked))
    eventually(lambda: payloads(broker) == [b"a"])
    assert caplog.text.count("will be asked again") == 2


def test_check_is_not_asked_while_the_local_work_runs_here(broker, producer):
    asked: list[object] = []

    def execute(message):
        broker.ask_for_halves()
        eventually(lambda: broker.halves.waiting[0].asked == 1)
        time.sleep(0.05)
        return True

    result = producer.send_in_transaction("t", b"a", execute=execute, check=asked.append)
    assert result.outcome is HalfOutcome.COMMITTED
    assert asked == []


def test_transaction_is_answered_by_the_check_of_its_own_call(broker, producer):
    results = [
        producer.send_in_transaction(
            "t", b"%d" % number, execute=leaves_open, check=lambda _, even=not number % 2: even
        )
        for number in range(4)
    ]
    broker.ask_for_halves()
    eventually(lambda: not broker.halves.waiting)
    outcomes = [broker.halves.decided[each.half.message_id] for each in results]
    assert outcomes == [HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK] * 2


def test_half_message_whose_send_has_failed_is_rolled_back_without_a_check(broker, producer):
    """Its answer is lost: the broker has it, and the caller was told that it failed."""
    asked: list[object] = []
    producer.check_transactions(asked.append, ["t"])
    take = broker.halves.take

    def take_slowly(*arguments):
        time.sleep(0.5)
        return take(*arguments)

    broker.halves.take = take_slowly
    with pytest.raises(errors.RequestTimedOut):
        producer.send_in_transaction("t", b"a", execute=commits, timeout=0.3)
    eventually(lambda: broker.halves.waiting)
    broker.ask_for_halves()
    eventually(lambda: not broker.halves.waiting)
    assert (payloads(broker), asked) == ([], [])


def test_work_that_is_too_late_is_not_begun_and_its_message_is_rolled_back(broker):
    called: list[object] = []
    with new_producer(broker, ONE_THREAD) as producer:
        producer.send_in_transaction_async("t", b"a", execute=partial(takes, 0.6))
        late = producer.send_in_transaction_async("t", b"b", execute=called.append, check_after=0)
        with pytest.raises(
            errors.TransactionTooLate, match=r"execute was not called.*after 0.5 s.*Nothing is committed"
        ):
            late.result(10)
    assert (called, payloads(broker), broker.halves.waiting) == ([], [b"a"], [])


def test_message_says_when_it_is_checked_first(broker, producer):
    asked = threading.Event()
    producer.send_in_transaction("t", b"a", execute=leaves_open, check=lambda message: asked.set(), check_after=0.05)
    assert asked.wait(5)


def test_questions_go_on_after_the_broker_was_away(broker, producer):
    producer.send_in_transaction("t", b"a", execute=leaves_open, check=commits)
    eventually(lambda: is_asked(broker))
    broker.drop_connections()
    broker.ask_for_halves()
    eventually(lambda: payloads(broker) == [b"a"])


def test_closed_producer_asks_no_more_and_leaves_no_thread(broker):
    producer = new_producer(broker)
    producer.check_transactions(commits, ["t"])
    eventually(lambda: is_asked(broker))
    started = time.monotonic()
    producer.close()
    assert time.monotonic() - started < 2
    assert not check_threads()


def test_a_closed_producer_answers_no_questions_that_it_is_given_then(broker):
    with new_producer(broker) as producer:
        pass
    producer.check_transactions(commits, ["t"])
    assert not check_threads()
    with pytest.raises(errors.ClientError):
        producer.transaction().send("t", b"x")


def check_threads():
    return [each for each in threading.enumerate() if each.name.startswith("metaq-check")]


# --- without waiting --------------------------------------------------------------------------------------------------


def outcome_of(future):
    return future.result(10).outcome


def test_many_transactions_are_under_way_and_their_outcomes_go_together(broker, producer):
    futures = [producer.send_in_transaction_async("t", b"%d" % n, execute=commits, partition=PLACE) for n in range(200)]
    assert {outcome_of(each) for each in futures} == {HalfOutcome.COMMITTED}
    sent = [each.result() for each in futures]
    assert [each.sent.partition for each in sent] == [PLACE] * 200
    stored = sorted((each.sent.offset, number) for number, each in enumerate(sent))
    assert [body.split(b"\x02")[-1] for body in broker.bodies("t", 1)] == [b"%d" % number for _, number in stored]
    assert f"frame {RequestCode.END_HALVES}" in broker.requests
    assert len([each for each in broker.requests if each == f"frame {RequestCode.END_HALF}"]) < 100


def test_local_work_runs_on_several_threads_of_the_producer_and_may_send(broker, producer):
    together = threading.Barrier(3)
    names = set()

    def execute(message):
        names.add(threading.current_thread().name)
        together.wait(10)
        producer.send("t", b"beside", partition=TopicPartition("t", 0, 0))
        return message.payload != b"2"

    futures = [producer.send_in_transaction_async("t", b"%d" % n, execute=execute, key=str(n)) for n in range(3)]
    expected = [HalfOutcome.COMMITTED, HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK]
    assert list(map(outcome_of, futures)) == expected
    assert {name.rpartition("-")[0] for name in names} == {"metaq-transactions"}
    assert len(names) == 3


def test_connection_that_is_lost_under_way_loses_no_transaction(broker, producer):
    dropped = threading.Event()

    def execute(message):
        if not dropped.is_set():
            dropped.set()
            broker.drop_connections()
        return True

    futures = [producer.send_in_transaction_async("t", b"a", execute=execute) for _ in range(50)]
    assert {outcome_of(each) for each in futures} == {HalfOutcome.COMMITTED}
    assert len(payloads(broker)) == 50


def test_half_messages_with_times_of_their_own_keep_their_identities(broker, producer):
    after = [None, 5, 100, None, 7.5] * 20
    futures = [
        producer.send_in_transaction_async("t", b"%d" % number, execute=commits, check_after=each, partition=PLACE)
        for number, each in enumerate(after)
    ]
    assert {outcome_of(each) for each in futures} == {HalfOutcome.COMMITTED}
    assert len(broker.bodies("t", 1)) == 100


def test_transactions_count_until_they_end_and_flush_waits_for_them(broker):
    gate = Gate()
    with new_producer(broker, replace(ONE_THREAD, max_buffered_messages=2)) as producer:
        futures = [producer.send_in_transaction_async("t", b"a", execute=gate) for _ in range(2)]
        eventually(lambda: len(broker.halves.waiting) == 2)
        with pytest.raises(errors.RequestTimedOut, match="max_buffered_messages=2"):
            producer.send_in_transaction_async("t", b"a", execute=commits, timeout=0.1)
        with pytest.raises(errors.RequestTimedOut):
            producer.flush(0.1)
        gate.go_on.set()
        producer.flush(10)
        assert all(each.done() for each in futures)
        assert producer._core.buffered_messages == producer._core.buffered_bytes == 0


def test_future_cannot_be_cancelled_and_a_callback_may_begin_another_one(broker, producer):
    more = []

    def again(future):
        more.append(producer.send_in_transaction_async("t", b"b", execute=commits))

    future = producer.send_in_transaction_async("t", b"a", execute=commits)
    assert not future.cancel()
    future.add_done_callback(again)
    assert outcome_of(future) is HalfOutcome.COMMITTED
    eventually(lambda: more)
    assert outcome_of(more[0]) is HalfOutcome.COMMITTED


def test_close_waits_for_transactions_under_way(broker):
    with new_producer(broker) as producer:
        futures = [producer.send_in_transaction_async("t", b"a", execute=partial(takes, 0.05)) for _ in range(10)]
    assert [each.result(0).outcome for each in futures] == [HalfOutcome.COMMITTED] * 10


def test_close_gives_up_what_does_not_end_in_time(broker):
    gate = Gate()
    producer = new_producer(broker, ONE_THREAD)
    working, waiting = [producer.send_in_transaction_async("t", b"a", execute=gate) for _ in range(2)]
    assert gate.began.wait(10)
    eventually(lambda: len(broker.halves.waiting) == 2)
    producer.close(0.1)
    assert working.result(0).outcome is HalfOutcome.UNKNOWN
    assert isinstance(working.result(0).cause, errors.ClientError)
    with pytest.raises(errors.ClientError, match="before the local work of this transaction was begun"):
        waiting.result(0)
    gate.go_on.set()
    with pytest.raises(errors.ClientError):
        producer.send_in_transaction_async("t", b"a", execute=gate)
    assert len(broker.halves.waiting) == 2


def test_check_is_not_asked_for_one_that_waits_for_a_thread(broker):
    gate = Gate()
    asked: list[object] = []
    with new_producer(broker, ONE_THREAD) as producer:
        for _ in range(2):
            producer.send_in_transaction_async("t", b"a", execute=gate, check=asked.append)
        assert gate.began.wait(10)
        eventually(lambda: len(broker.halves.waiting) == 2)
        broker.ask_for_halves()
        eventually(lambda: all(each.asked for each in broker.halves.waiting))
        time.sleep(0.05)
        gate.go_on.set()
    assert (asked, len(payloads(broker))) == ([], 2)


def test_store_of_undelivered_messages_takes_no_half_message(broker, tmp_path):
    broker.refuse = lambda request: ResponseCode.SYSTEM_BUSY
    with LocalMessageStore(tmp_path / "store.db") as store, new_producer(broker, undelivered=store) as producer:
        with pytest.raises(errors.MetaqError):
            producer.send_in_transaction_async("t", b"a", execute=commits, timeout=0.2).result(10)
        assert store.count("t") == 0


def test_process_that_was_forked_off_has_no_transactions_of_its_parent(producer):
    future = producer.send_in_transaction_async("t", b"a", execute=partial(takes, 0.3))
    calls = (lambda: future.result(5), lambda: producer.send_in_transaction_async("t", b"b", execute=bool))
    assert all("fork" in said for said in in_child(lambda: [refusal(call) for call in calls]))
    assert outcome_of(future) is HalfOutcome.COMMITTED


# --- arguments --------------------------------------------------------------------------------------------------------


def test_group_has_to_be_named(broker):
    with new_producer(broker, config=ProducerConfig()) as producer:
        with pytest.raises(errors.ConfigError, match="producer_group"):
            producer.send_in_transaction("t", b"a", execute=commits)
        with pytest.raises(errors.ConfigError, match="producer_group"):
            producer.check_transactions(commits, ["t"])
        assert producer.send_in_transaction("t", b"a", execute=commits, group="g").outcome is HalfOutcome.COMMITTED


@pytest.mark.parametrize("call", ["send_in_transaction", "send_in_transaction_async"])
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"execute": None}, errors.ConfigError, "execute"),
        ({"check": "x"}, errors.ConfigError, "check"),
        ({"group": "a b"}, errors.InvalidName, "group"),
        ({"delay": 5}, errors.LocalProtocolError, r"delay=5 in send_in_transaction\w*\(\)"),
        ({"payload": [b"a"]}, TypeError, r"send_in_transaction\w*\(\) takes one message, not a batch of 1"),
        ({"check_after": -1}, errors.LocalProtocolError, "check_after=-1"),
        ({"check_after": "5"}, TypeError, "check_after='5'"),
    ],
)
def test_wrong_arguments_are_refused_with_nothing_sent(broker, producer, call, options, error, words):
    with pytest.raises(error, match=words):
        getattr(producer, call)("t", **{"payload": b"a", "execute": commits, **options})
    assert broker.sends == 0


def test_topics_of_questions_have_to_be_named(producer):
    with pytest.raises(errors.ConfigError, match="topics"):
        producer.check_transactions(commits, [])


@pytest.mark.parametrize(("takes", "protocol"), [(False, "auto"), (True, "text")], ids=["broker", "text"])
def test_broker_without_half_messages_is_named_with_the_remedy(broker, takes, protocol):
    broker.takes_halves = takes
    refusal = pytest.raises(errors.RequestRefused, match=r"halves/1.*update it")
    with new_producer(broker, speaking(protocol, CONFIG)) as producer, refusal:
        producer.send_in_transaction("t", b"a", execute=commits)
    assert payloads(broker) == []


def test_broker_that_cannot_list_its_half_messages_is_to_be_updated(broker):
    refuse_codes(broker, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, RequestCode.LIST_HALVES)
    with (
        closing(open_connection(broker.endpoint, CONNECTION)) as connection,
        pytest.raises(errors.RequestRefused, match=r"keeps no half messages.*update it"),
    ):
        list_halves(connection)


def test_threads_that_begin_the_first_transactions_at_the_same_time_share_one_answerer(producer):
    begin = threading.Barrier(8)

    def first(_):
        begin.wait()
        producer.check_transactions(commits, ["t"])
        return producer._transacting()

    assert len(set(map(id, together(first, range(8))))) == 1
