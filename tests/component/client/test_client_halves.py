"""Transactions with check-back of a producer, against a broker in memory."""

import os
import threading
import time
from functools import partial

import pytest

from metaq import ConnectionConfig, HalfOutcome, LocalMessageStore, Producer, ProducerConfig, TopicPartition
from metaq.protocol.errors import (
    BrokerUnavailable,
    ClientError,
    ConfigError,
    HalfDecided,
    InvalidName,
    LocalProtocolError,
    MessageNotFound,
    MetaqError,
    RequestRefused,
    RequestTimedOut,
    TransactionTooLate,
)
from metaq.protocol.halves import EndHalfRequest
from metaq.protocol.statuses import RequestCode, ResponseCode
from metaq.testing import FakeBroker
from tests.waiting import eventually

CONFIG = ProducerConfig(
    producer_group="bank", connection=ConnectionConfig(reconnect_min_seconds=0.01, reconnect_max_seconds=0.05)
)
PLACE = TopicPartition("t", 0, 1)


@pytest.fixture
def broker():
    with FakeBroker({"t": 2}, broker_id=0) as broker:
        yield broker


def new_producer(broker, **options):
    options.setdefault("config", CONFIG)
    options.setdefault("partitions", {"t": 2})
    return Producer.direct(f"127.0.0.1:{broker.endpoint.port}", broker_id=0, **options)


@pytest.fixture
def producer(broker):
    with new_producer(broker) as producer:
        yield producer


def commits(message):
    return True


def takes(seconds, message):
    time.sleep(seconds)
    return True


def leaves_open(message):
    return HalfOutcome.UNKNOWN


def payloads(broker):
    return [body[-1:] for number in (0, 1) for body in broker.bodies("t", number)]


# --- local work -------------------------------------------------------------------------------------------------------


def test_message_is_stored_when_the_local_work_is_committed(broker, producer):
    seen = []

    def execute(message):
        seen.append((message.payload, message.tag, message.keys, message.partition, payloads(broker)))
        return True

    result = producer.send_in_transaction("t", b"a", execute=execute, partition=PLACE, tag="x", keys=["k"])
    assert seen == [(b"a", "x", ("k",), PLACE, [])]
    assert result.outcome is HalfOutcome.COMMITTED
    assert (result.half.offset, result.sent.offset, result.sent.partition) == (-1, 0, PLACE)
    assert payloads(broker) == [b"a"]


def test_message_is_dropped_when_the_local_work_is_rolled_back(broker, producer):
    result = producer.send_in_transaction("t", b"a", execute=lambda message: False)
    assert (result.outcome, result.sent, result.cause) == (HalfOutcome.ROLLED_BACK, None, None)
    assert (payloads(broker), broker.halves.waiting) == ([], [])


def test_outcome_that_is_not_known_is_left_open(broker, producer):
    result = producer.send_in_transaction("t", b"a", execute=leaves_open)
    assert (result.outcome, result.sent, result.cause) == (HalfOutcome.UNKNOWN, None, None)
    assert [each.id for each in broker.halves.waiting] == [result.half.message_id]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_exception_of_the_local_work_reaches_the_caller_and_decides_nothing(broker, producer, error):
    def execute(message):
        raise error

    with pytest.raises(error):
        producer.send_in_transaction("t", b"a", execute=execute)
    assert len(broker.halves.waiting) == 1
    assert payloads(broker) == []


def test_answer_that_is_none_of_three_is_an_error_and_decides_nothing(broker, producer):
    with pytest.raises(TypeError, match="execute returned 'yes': return True"):
        producer.send_in_transaction("t", b"a", execute=lambda message: "yes")
    assert len(broker.halves.waiting) == 1


@pytest.mark.parametrize("outcome", HalfOutcome)
def test_an_outcome_is_an_answer(producer, outcome):
    assert producer.send_in_transaction("t", b"a", execute=lambda message: outcome).outcome is outcome


def test_no_answer_is_unknown_with_a_warning(producer):
    with pytest.warns(RuntimeWarning, match=r"execute returned nothing.*return HalfOutcome.UNKNOWN if you mean that"):
        result = producer.send_in_transaction("t", b"a", execute=lambda message: None)
    assert result.outcome is HalfOutcome.UNKNOWN


def test_local_work_is_not_begun_if_the_half_message_is_refused(broker, producer):
    broker.refuse = lambda request: (
        ResponseCode.MESSAGE_ILLEGAL if getattr(request, "code", None) == RequestCode.SEND else None
    )
    called: list[object] = []
    with pytest.raises(RequestRefused):
        producer.send_in_transaction("t", b"a", execute=called.append)
    assert called == []


def was_asked(broker, times):
    return not broker.halves.waiting or broker.halves.waiting[0].asked == times


# --- telling the broker -----------------------------------------------------------------------------------------------


def test_outcome_is_told_again_when_its_answer_is_lost(broker, producer):
    lost: list[object] = []

    def refuse(request):
        if getattr(request, "code", None) == RequestCode.END_HALF and len(lost) < 2:
            lost.append(request)
            return ResponseCode.SYSTEM_BUSY
        return None

    broker.refuse = refuse
    assert producer.send_in_transaction("t", b"a", execute=commits).outcome is HalfOutcome.COMMITTED
    assert len(lost) == 2
    assert payloads(broker) == [b"a"]


def test_broker_that_cannot_be_told_in_time_leaves_the_outcome_open_and_says_why(broker, producer):
    def execute(message):
        broker.refuse = lambda request: ResponseCode.SYSTEM_BUSY
        return True

    result = producer.send_in_transaction("t", b"a", execute=execute, timeout=0.3)
    assert result.outcome is HalfOutcome.UNKNOWN
    assert isinstance(result.cause, BrokerUnavailable)
    assert len(broker.halves.waiting) == 1


def decide(broker, message, outcome):
    broker.halves.end(EndHalfRequest("t", message.partition.partition, message.id, outcome))


def test_outcome_that_a_check_has_contradicted_is_an_error_that_says_so(broker, producer):
    def execute(message):
        decide(broker, message, HalfOutcome.ROLLED_BACK)
        return True

    with pytest.raises(HalfDecided, match="is rolled-back already: it cannot be committed") as caught:
        producer.send_in_transaction("t", b"a", execute=execute)
    assert caught.value.outcome == HalfOutcome.ROLLED_BACK


def test_outcome_that_a_check_has_told_before_is_no_error(broker, producer):
    def execute(message):
        decide(broker, message, HalfOutcome.COMMITTED)
        return True

    assert producer.send_in_transaction("t", b"a", execute=execute).outcome is HalfOutcome.COMMITTED
    assert payloads(broker) == [b"a"]


def test_half_message_that_the_broker_does_not_know_leaves_the_outcome_open(broker, producer):
    def execute(message):
        broker.halves.waiting.clear()
        return True

    result = producer.send_in_transaction("t", b"a", execute=execute)
    assert result.outcome is HalfOutcome.UNKNOWN
    assert isinstance(result.cause, MessageNotFound)


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


def test_each_topic_of_a_group_has_its_own_check():
    with FakeBroker({"t": 2, "u": 1}, broker_id=0) as broker:
        with new_producer(broker, partitions={"t": 2, "u": 1}) as producer:
            for topic in ("t", "u"):
                producer.send_in_transaction(topic, b"a", execute=lambda message: HalfOutcome.UNKNOWN)
        with new_producer(broker, partitions={"t": 2, "u": 1}) as other:
            other.check_transactions(lambda message: False, "t")
            other.check_transactions(commits, "u")
            broker.ask_for_halves()
            eventually(lambda: broker.halves.waiting == [])
        assert (payloads(broker), [body[-1:] for body in broker.bodies("u", 0)]) == ([], [b"a"])


def test_producers_of_other_groups_are_not_asked(broker, producer):
    producer.send_in_transaction("t", b"a", execute=leaves_open)
    with new_producer(broker) as other:
        other.check_transactions(commits, "t", group="shop")
        eventually(lambda: f"frame {RequestCode.CHECK_HALVES}" in broker.requests)
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


def test_each_topic_has_a_check_of_its_own(broker, producer):
    """The check of a second topic used to answer for the first one, too."""
    broker.topics["u"] = 1
    producer.check_transactions(commits, ["t"])
    with Producer.direct(
        f"127.0.0.1:{broker.endpoint.port}", broker_id=0, partitions={"t": 2, "u": 1}, config=CONFIG
    ) as both:
        both.check_transactions(commits, ["t"])
        both.send_in_transaction("u", b"b", execute=leaves_open, check=lambda message: False)
        both.send_in_transaction("t", b"a", execute=leaves_open)
        broker.ask_for_halves()
        eventually(lambda: not broker.halves.waiting)
    assert payloads(broker) == [b"a"]


def test_transaction_is_answered_by_the_check_of_its_own_call(broker, producer):
    results = [
        producer.send_in_transaction("t", b"%d" % n, execute=leaves_open, check=partial(is_even, n)) for n in range(4)
    ]
    broker.ask_for_halves()
    eventually(lambda: not broker.halves.waiting)
    outcomes = [broker.halves.decided[each.half.message_id] for each in results]
    assert outcomes == [HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK] * 2


def is_even(number, message):
    return number % 2 == 0


def test_half_message_whose_send_has_failed_is_rolled_back_without_a_check(broker, producer):
    """Its answer is lost: the broker has it, and the caller was told that it failed."""
    asked: list[object] = []
    producer.check_transactions(asked.append, ["t"])
    take = broker.halves.take

    def take_slowly(*arguments):
        time.sleep(0.5)
        return take(*arguments)

    broker.halves.take = take_slowly
    with pytest.raises(RequestTimedOut):
        producer.send_in_transaction("t", b"a", execute=commits, timeout=0.3)
    eventually(lambda: broker.halves.waiting)
    broker.ask_for_halves()
    eventually(lambda: not broker.halves.waiting)
    assert (payloads(broker), asked) == ([], [])


def test_work_that_is_too_late_is_not_begun_and_its_message_is_rolled_back(broker):
    config = ProducerConfig(producer_group="bank", transaction_threads=1)
    called: list[object] = []
    with new_producer(broker, config=config) as producer:
        producer.send_in_transaction_async("t", b"a", execute=partial(takes, 0.6))
        late = producer.send_in_transaction_async("t", b"b", execute=called.append, check_after=0)
        with pytest.raises(TransactionTooLate, match=r"execute was not called.*after 0.5 s.*Nothing is committed"):
            late.result(10)
    assert called == []
    assert payloads(broker) == [b"a"]
    assert broker.halves.waiting == []


def test_message_says_when_it_is_checked_first(broker, producer):
    asked = threading.Event()
    producer.send_in_transaction("t", b"a", execute=leaves_open, check=lambda message: asked.set(), check_after=0.05)
    assert asked.wait(5)


def test_questions_go_on_after_the_broker_was_away(broker, producer):
    producer.send_in_transaction("t", b"a", execute=leaves_open, check=commits)
    eventually(lambda: f"frame {RequestCode.CHECK_HALVES}" in broker.requests)
    broker.drop_connections()
    broker.ask_for_halves()
    eventually(lambda: payloads(broker) == [b"a"])


def test_closed_producer_asks_no_more_and_leaves_no_thread(broker):
    before = set(threading.enumerate())
    producer = new_producer(broker)
    producer.check_transactions(commits, ["t"])
    eventually(lambda: f"frame {RequestCode.CHECK_HALVES}" in broker.requests)
    started = time.monotonic()
    producer.close()
    assert time.monotonic() - started < 2
    left = [each for each in set(threading.enumerate()) - before if each.name.startswith("metaq-check")]
    assert left == []


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


def test_future_has_what_the_local_work_ends_with(broker, producer):
    def fails(message):
        raise SystemExit(message.payload.decode())

    open_future = producer.send_in_transaction_async("t", b"a", execute=leaves_open)
    failed = producer.send_in_transaction_async("t", b"b", execute=fails)
    wrong = producer.send_in_transaction_async("t", b"c", execute=lambda message: "yes")
    assert outcome_of(open_future) is HalfOutcome.UNKNOWN
    with pytest.raises(SystemExit, match="b"):
        failed.result(10)
    with pytest.raises(TypeError, match="execute returned 'yes'"):
        wrong.result(10)
    assert len(broker.halves.waiting) == 3
    assert outcome_of(producer.send_in_transaction_async("t", b"d", execute=commits)) is HalfOutcome.COMMITTED


def test_future_has_what_refuses_the_half_message_and_nothing_is_executed(broker, producer):
    broker.refuse = lambda request: (
        ResponseCode.MESSAGE_ILLEGAL if getattr(request, "code", None) == RequestCode.SEND else None
    )
    called: list[object] = []
    future = producer.send_in_transaction_async("t", b"a", execute=called.append)
    with pytest.raises(RequestRefused):
        future.result(10)
    producer.flush(10)
    assert called == []


def test_future_tells_of_a_decision_that_contradicts(broker, producer):
    def execute(message):
        broker.run_there(lambda: decide(broker, message, HalfOutcome.ROLLED_BACK))
        return True

    with pytest.raises(HalfDecided):
        producer.send_in_transaction_async("t", b"a", execute=execute).result(10)


def test_outcomes_are_told_again_when_their_answers_are_lost(broker, producer):
    lost: list[object] = []

    def refuse(request):
        if getattr(request, "code", None) in (RequestCode.END_HALF, RequestCode.END_HALVES) and len(lost) < 2:
            lost.append(request)
            return ResponseCode.SYSTEM_BUSY
        return None

    broker.refuse = refuse
    futures = [producer.send_in_transaction_async("t", b"a", execute=commits) for _ in range(20)]
    assert {outcome_of(each) for each in futures} == {HalfOutcome.COMMITTED}
    assert len(payloads(broker)) == 20


def test_future_is_unknown_with_the_reason_if_the_broker_cannot_be_told_in_time(broker, producer):
    def execute(message):
        broker.refuse = lambda request: ResponseCode.SYSTEM_BUSY
        return True

    result = producer.send_in_transaction_async("t", b"a", execute=execute, timeout=0.3).result(10)
    assert result.outcome is HalfOutcome.UNKNOWN
    assert isinstance(result.cause, BrokerUnavailable)


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
    config = ProducerConfig(producer_group="bank", max_buffered_messages=2, transaction_threads=1)
    go_on = threading.Event()
    with new_producer(broker, config=config) as producer:
        futures = [
            producer.send_in_transaction_async("t", b"a", execute=lambda message: go_on.wait(10)) for _ in range(2)
        ]
        eventually(lambda: len(broker.halves.waiting) == 2)
        with pytest.raises(RequestTimedOut, match="max_buffered_messages=2"):
            producer.send_in_transaction_async("t", b"a", execute=commits, timeout=0.1)
        with pytest.raises(RequestTimedOut):
            producer.flush(0.1)
        go_on.set()
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
    began, go_on = threading.Event(), threading.Event()

    def execute(message):
        began.set()
        return go_on.wait(10)

    config = ProducerConfig(producer_group="bank", transaction_threads=1)
    producer = new_producer(broker, config=config)
    working, waiting = [producer.send_in_transaction_async("t", b"a", execute=execute) for _ in range(2)]
    assert began.wait(10)
    eventually(lambda: len(broker.halves.waiting) == 2)
    producer.close(0.1)
    assert working.result(0).outcome is HalfOutcome.UNKNOWN
    assert isinstance(working.result(0).cause, ClientError)
    with pytest.raises(ClientError, match="before the local work of this transaction was begun"):
        waiting.result(0)
    go_on.set()
    with pytest.raises(ClientError):
        producer.send_in_transaction_async("t", b"a", execute=execute)
    assert len(broker.halves.waiting) == 2


def test_check_is_not_asked_for_one_that_waits_for_a_thread(broker):
    began, go_on = threading.Event(), threading.Event()
    asked: list[object] = []
    config = ProducerConfig(producer_group="bank", transaction_threads=1)

    def execute(message):
        began.set()
        return go_on.wait(10)

    with new_producer(broker, config=config) as producer:
        for _ in range(2):
            producer.send_in_transaction_async("t", b"a", execute=execute, check=asked.append)
        assert began.wait(10)
        eventually(lambda: len(broker.halves.waiting) == 2)
        broker.ask_for_halves()
        eventually(lambda: all(each.asked for each in broker.halves.waiting))
        time.sleep(0.05)
        go_on.set()
    assert asked == []
    assert len(payloads(broker)) == 2


def test_store_of_undelivered_messages_takes_no_half_message(broker, tmp_path):
    broker.refuse = lambda request: ResponseCode.SYSTEM_BUSY
    with (
        LocalMessageStore(tmp_path / "store.db") as store,
        new_producer(broker, undelivered=store) as producer,
    ):
        with pytest.raises(MetaqError):
            producer.send_in_transaction_async("t", b"a", execute=commits, timeout=0.2).result(10)
        assert store.count("t") == 0


def test_process_that_was_forked_off_has_no_transactions_of_its_parent(broker, producer):
    future = producer.send_in_transaction_async("t", b"a", execute=partial(takes, 0.3))
    pid = os.fork()
    if not pid:
        status = 1
        try:
            for call in (lambda: future.result(5), lambda: producer.send_in_transaction_async("t", b"b", execute=bool)):
                with pytest.raises(ClientError, match="fork"):
                    call()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert outcome_of(future) is HalfOutcome.COMMITTED


# --- arguments --------------------------------------------------------------------------------------------------------


def test_group_has_to_be_named(broker):
    with new_producer(broker, config=ProducerConfig()) as producer:
        with pytest.raises(ConfigError, match="producer_group"):
            producer.send_in_transaction("t", b"a", execute=commits)
        with pytest.raises(ConfigError, match="producer_group"):
            producer.check_transactions(commits, ["t"])
        assert producer.send_in_transaction("t", b"a", execute=commits, group="g").outcome is HalfOutcome.COMMITTED


@pytest.mark.parametrize("call", ["send_in_transaction", "send_in_transaction_async"])
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"execute": None}, ConfigError, "execute"),
        ({"check": "x"}, ConfigError, "check"),
        ({"group": "a b"}, InvalidName, "group"),
        ({"delay": 5}, LocalProtocolError, r"delay=5 in send_in_transaction\w*\(\)"),
        ({"payload": [b"a"]}, TypeError, r"send_in_transaction\w*\(\) takes one message, not a batch of 1"),
        ({"check_after": -1}, LocalProtocolError, "check_after=-1"),
        ({"check_after": "5"}, TypeError, "check_after='5'"),
    ],
)
def test_wrong_arguments_are_refused_with_nothing_sent(broker, producer, call, options, error, words):
    with pytest.raises(error, match=words):
        getattr(producer, call)("t", **{"payload": b"a", "execute": commits, **options})
    assert broker.sends == 0


def test_topics_of_questions_have_to_be_named(producer):
    with pytest.raises(ConfigError, match="topics"):
        producer.check_transactions(commits, [])


@pytest.mark.parametrize("old", ["broker", "text"])
def test_broker_without_half_messages_is_named_with_the_remedy(broker, old):
    broker.takes_halves = old != "broker"
    with (
        new_producer(broker, protocol="text" if old == "text" else "auto") as producer,
        pytest.raises(RequestRefused, match=r"halves/1.*update it"),
    ):
        producer.send_in_transaction("t", b"a", execute=commits)
    assert payloads(broker) == []


def test_threads_that_begin_the_first_transactions_at_the_same_time_share_one_answerer(broker):
    with new_producer(broker) as producer:
        begin, made = threading.Barrier(8), []

        def first():
            begin.wait()
            producer.check_transactions(commits, ["t"])
            made.append(producer._transacting())

        threads = [threading.Thread(target=first) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 8
        assert len(set(map(id, made))) == 1


def test_a_closed_producer_answers_no_questions_that_it_is_given_then(broker):
    with new_producer(broker) as producer:
        pass
    producer.check_transactions(commits, ["t"])
    assert not [each for each in threading.enumerate() if each.name.startswith("metaq-check")]
    with pytest.raises(ClientError):
        producer.transaction().send("t", b"x")
