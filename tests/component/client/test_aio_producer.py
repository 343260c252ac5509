"""The Producer of the asyncio client: the scenarios of the Producer with threads, and what only an event loop has."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from metaq import ProducerConfig, SendResult
from metaq.aio import Producer, SendOutcome
from metaq.client.settings.config import Protocol
from metaq.errors import ClientError, MessageNotFound, MetaqError, NoPartition, RequestTimedOut
from metaq.testing import FakeBroker, FakeCluster
from tests.speaking import speaking
from tests.waiting import DEADLINE

from .harness import FAST, everything
from .on_loop import Loop, LoopProducer
from .test_client_producer import (  # noqa: F401  (these run again here, on the fixtures below)
    TOPICS,
    nodes,
    test_a_batch_is_one_request_over_frames,
    test_a_batch_stays_together_in_one_partition,
    test_a_closed_partition_is_avoided_by_messages_without_a_key,
    test_a_message_above_the_limit_is_refused_before_it_is_sent,
    test_a_message_with_a_key_waits_for_its_partition_until_its_deadline,
    test_a_partition_that_is_not_there_is_refused,
    test_a_producer_follows_the_leader_that_a_node_names,
    test_a_producer_waits_while_a_set_has_no_leader,
    test_a_refusal_that_cannot_help_to_repeat_is_raised_at_once,
    test_a_send_waits_for_a_topic_whose_only_broker_is_between_two_lives,
    test_a_silent_broker_ends_in_a_timeout_that_says_what_happened,
    test_a_topic_that_brokers_refuse_although_it_is_registered_is_given_up_after_some_tries,
    test_a_topic_that_loses_all_brokers_comes_back_within_the_deadline,
    test_a_topic_without_partitions_is_named_with_the_remedy,
    test_a_try_that_the_deadline_cuts_short_does_not_hide_the_last_refusal,
    test_an_empty_batch_sends_nothing,
    test_flush_says_what_is_missing,
    test_futures_end_with_the_same_results,
    test_messages_go_round_robin_and_results_say_where_they_are,
    test_no_acknowledged_message_is_lost_when_a_broker_dies_under_load,
    test_order_by_key_holds_across_a_retry,
    test_tag_keys_properties_and_attribute_are_stored_with_the_message,
    test_the_same_key_goes_to_the_same_partition,
    test_when_a_broker_dies_its_messages_go_to_another,
    two_brokers,
)


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as loop:
        yield loop


@pytest.fixture
def producer(loop: Loop, cluster: FakeCluster, protocol: Protocol) -> Iterator[LoopProducer]:
    config = speaking(protocol, FAST)
    with LoopProducer(loop, metadata=cluster, config=config, random=lambda: 0.0) as producer:  # first partition first
        yield producer


@pytest.fixture
def framed(loop: Loop, cluster: FakeCluster) -> Iterator[LoopProducer]:
    with LoopProducer(loop, metadata=cluster, config=FAST) as producer:
        yield producer


@pytest.fixture
def of_two(loop: Loop, two_brokers: tuple[FakeBroker, FakeBroker]) -> Iterator[LoopProducer]:  # noqa: F811
    with LoopProducer(loop, metadata=FakeCluster(two_brokers), config=FAST) as producer:
        yield producer


@pytest.fixture
def of_nodes(loop: Loop, nodes: tuple[FakeBroker, FakeBroker]) -> Iterator[LoopProducer]:  # noqa: F811
    with LoopProducer(loop, metadata=FakeCluster(nodes[:1]), config=FAST) as producer:
        yield producer


def test_ten_thousand_sends_at_once_share_requests_and_need_no_thread(broker, cluster):
    async def main() -> None:
        async with Producer(metadata=cluster, config=FAST) as producer:
            await producer.send("t", b"first")
            threads, sends = threading.active_count(), broker.sends
            results = await asyncio.gather(*(producer.send("t", b"%d" % each) for each in range(10_000)))
            assert threading.active_count() <= threads  # threads of earlier tests may end meanwhile
            assert len({each.message_id for each in results}) == 10_000
            assert broker.sends - sends < 1_000

    asyncio.run(main())
    assert len(everything(broker)) == 10_001


def test_after_cancellations_every_message_is_stored_at_most_once_and_the_producer_works(broker, cluster):
    async def main() -> list[bytes]:
        chance = random.Random(7)
        async with Producer(metadata=cluster, config=FAST) as producer:

            async def send(body: bytes) -> None:
                await producer.send("t", body, key=None if len(body) % 2 else "k")

            tasks = {b"m%d" % each: asyncio.create_task(send(b"m%d" % each)) for each in range(1_000)}
            for place, task in enumerate(tasks.values()):
                if chance.random() < 0.5:
                    task.cancel()
                if place % 50 == 0:
                    await asyncio.sleep(0)
                if place % 250 == 0:
                    broker.drop_connections()
            ends = await asyncio.gather(*tasks.values(), return_exceptions=True)
            assert any(isinstance(each, asyncio.CancelledError) for each in ends)
            await producer.flush()
            await producer.send("t", b"m-last")
        return [body for body, end in zip(tasks, ends, strict=True) if end is None]

    done = asyncio.run(main())
    stored = Counter(body[body.rindex(b"m") :] for body in everything(broker))  # without the key
    assert max(stored.values()) == 1
    assert len(done) > 100
    assert {b"m-last", *done} <= stored.keys()


def test_a_delivery_tells_the_outcome_although_the_task_that_waited_was_cancelled(broker, cluster):
    async def main() -> None:
        async with Producer(metadata=cluster, config=FAST) as producer:
            broker.silent = True
            delivery = await producer.produce("t", b"1", timeout=DEADLINE)
            told: list[SendOutcome[SendResult]] = []
            delivery.add_done_callback(told.append)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await delivery
            assert not delivery.done()
            broker.silent = False
            broker.drop_connections()
            result = await delivery
            assert delivery.result() == result
            assert delivery.exception() is None
            await asyncio.sleep(0)
            assert told == [delivery]

    asyncio.run(main())
    assert everything(broker) == [b"1"]


def test_a_full_buffer_makes_sends_wait_in_their_order_until_their_deadline(broker, cluster):
    config = ProducerConfig(max_buffered_messages=10, retry_min_seconds=0.001, retry_max_seconds=0.01)

    async def main() -> None:
        async with Producer(metadata=cluster, config=config) as producer:
            await producer.partitions("t")
            broker.silent = True
            held = [await producer.produce("t", b"%d" % each, timeout=DEADLINE) for each in range(10)]
            with pytest.raises(RequestTimedOut, match="max_buffered_messages=10"):
                await producer.produce("t", b"late", timeout=0.05)
            waiting = [asyncio.create_task(producer.send("t", b"%d" % each)) for each in range(10, 50)]
            gone = waiting.pop(5)
            await asyncio.sleep(0)
            gone.cancel()
            broker.silent = False
            broker.drop_connections()
            await asyncio.gather(*held, *waiting)

    asyncio.run(main())
    assert sorted(map(int, everything(broker))) == [*range(15), *range(16, 50)]


def test_delayed_messages_can_be_cancelled(broker, cluster):
    async def main() -> None:
        async with Producer(metadata=cluster, config=FAST) as producer:
            first = await producer.send("t", b"1", delay=3600)
            await producer.send("t", b"2", delay=3600)
            assert first.pending
            broker.drop_connections()
            assert await producer.cancel(first)
            with pytest.raises(MessageNotFound):
                await producer.cancel(first)
            broker.deliver_delayed()

    asyncio.run(main())
    assert [body[-1:] for body in everything(broker)] == [b"2"]


def test_close_is_bounded_and_ends_what_is_left(broker, cluster):
    async def main() -> None:
        producer = Producer(metadata=cluster, config=FAST)
        await producer.start()
        await producer.send("t", b"1")
        broker.silent = True
        deliveries = [await producer.produce("t", b"2"), await producer.produce("t", b"3", key="k")]
        started = asyncio.get_running_loop().time()
        await producer.close(0.1)
        assert asyncio.get_running_loop().time() - started < DEADLINE / 4
        for delivery in deliveries:
            with pytest.raises(ClientError, match="was closed"):
                await delivery
        with pytest.raises(ClientError, match="is closed"):
            await producer.send("t", b"4")

    asyncio.run(main())


def test_a_failing_task_of_a_group_leaves_the_producer_usable(broker, cluster):
    async def main() -> None:
        async with Producer(metadata=cluster, config=FAST) as producer:

            async def send_all() -> None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(producer.send("nowhere", b"1"))
                    for _ in range(100):
                        group.create_task(producer.send("t", b"2"))

            with pytest.raises(ExceptionGroup) as raised:
                await send_all()
            assert isinstance(raised.value.exceptions[0], NoPartition)
            await producer.send("t", b"3")

    asyncio.run(main())


def test_a_producer_that_is_not_started_says_how_to_start_it(cluster):
    async def main() -> None:
        with pytest.raises(MetaqError, match="async with"):
            await Producer(metadata=cluster).send("t", b"1")

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # a name is looked up, and may have several addresses
def test_a_direct_producer_needs_no_zookeeper(broker: FakeBroker, host: str):
    async def main() -> None:
        async with Producer.direct(f"{host}:{broker.endpoint.port}", config=FAST) as producer:
            await producer.send("t", b"1")

    asyncio.run(main())
    assert everything(broker) == [b"1"]
