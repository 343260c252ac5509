"""The Consumer of the asyncio client, on real brokers and a ZooKeeper inside this process."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from metaq import Consumer as ThreadConsumer
from metaq import ConsumerConfig, Last, Message, Producer, TopicPartition
from metaq.aio import Consumer
from metaq.aio import Producer as AsyncProducer
from metaq.errors import ClientError, ConfigError, NotOwner
from metaq.testing import Cluster
from tests.waiting import DEADLINE, eventually

_names = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sender(cluster: Cluster) -> Producer:
    return cluster.producer()


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A new topic, with two partitions on each of two brokers."""
    name = f"t{next(_names)}"
    cluster.create_topic(name, 2)
    return name


def consumer(cluster: Cluster, topic: str, group: str = "g", **options: Any) -> Consumer:
    return Consumer(cluster.zookeeper, group=f"{group}-{topic}", topics=[topic], **options)


def send(sender: Producer, topic: str, number: int, first: int = 0) -> None:
    for future in [sender.send_async(topic, b"%d" % each, key=str(each)) for each in range(first, first + number)]:
        future.result(DEADLINE)


async def polled(consumer: Consumer, number: int, most: int = 500) -> list[int]:
    """The numbers of this many messages."""
    got: list[Message] = []
    async with asyncio.timeout(DEADLINE):
        while len(got) < number:
            got += await consumer.poll(max_messages=most)
    return [int(each.payload) for each in got]


async def all_assigned(consumer: Consumer, number: int) -> None:
    async with asyncio.timeout(DEADLINE):
        while len(consumer.assignment()) != number:
            await consumer.poll(timeout=0.02)


def test_a_group_goes_on_where_the_last_consumer_has_committed(cluster, sender, topic):
    send(sender, topic, 100)

    async def main() -> None:
        async with consumer(cluster, topic) as first:
            assert sorted(await polled(first, 100)) == list(range(100))
            assert await first.commit() > 0
            assert await first.commit() == 0
        send(sender, topic, 10, first=100)
        async with consumer(cluster, topic) as second:
            assert sorted(await polled(second, 10)) == list(range(100, 110))

    asyncio.run(main())


def test_a_paused_topic_is_not_delivered_until_it_is_resumed(cluster, sender, topic):
    async def main() -> None:
        async with consumer(cluster, topic) as paused:
            await all_assigned(paused, 4)
            paused.pause(topic)
            assert paused.paused() == paused.assignment()
            send(sender, topic, 10)
            assert await paused.poll(timeout=0.2) == []
            waiting = asyncio.create_task(polled(paused, 10))
            await asyncio.sleep(0)
            paused.resume()  # which wakes the waiting poll
            assert sorted(await waiting) == list(range(10))
            assert paused.paused() == []

    asyncio.run(main())


def test_a_loop_over_messages_consumes_what_its_body_has_finished(cluster, sender, topic):
    send(sender, topic, 20)

    async def main() -> None:
        seen: set[int] = set()
        try:
            async with consumer(cluster, topic) as first:
                async for message in first:
                    seen.add(int(message.payload))
                    if len(seen) == 10:
                        raise ZeroDivisionError  # the tenth is not finished
        except ZeroDivisionError:
            last = int(message.payload)
        async with consumer(cluster, topic) as second:
            assert sorted(await polled(second, 11)) == sorted({*range(20)} - seen | {last})

    asyncio.run(main())


def test_a_member_with_threads_and_one_on_a_loop_share_a_group(cluster, sender, topic):
    told: list[tuple[str, int]] = []

    async def main() -> None:
        options: dict[str, Any] = {
            "on_assigned": lambda partitions: told.append(("assigned", len(partitions))),
            "on_revoked": lambda partitions: told.append(("revoked", len(partitions))),
        }
        async with consumer(cluster, topic, **options) as member:
            await all_assigned(member, 4)
            other = await asyncio.to_thread(ThreadConsumer, cluster.zookeeper, group=f"g-{topic}", topics=[topic])
            with other:
                stop = threading.Event()
                others: list[int] = []

                def poll() -> None:
                    while not stop.is_set():
                        others.extend(int(each.payload) for each in other.poll(timeout=0.05))

                polling = asyncio.create_task(asyncio.to_thread(poll))
                await all_assigned(member, 2)
                send(sender, topic, 100)
                mine: list[int] = []
                async with asyncio.timeout(DEADLINE):
                    while len(mine) + len(others) < 100:
                        mine += [int(each.payload) for each in await member.poll(timeout=0.05)]
                stop.set()
                await polling
                assert mine
                assert others
                assert sorted(mine + others) == list(range(100))
                await asyncio.to_thread(other.close)
            await all_assigned(member, 4)
            await member.poll(timeout=0.02)  # its call-backs may still be due
        assert told == [("assigned", 4), ("revoked", 2), ("assigned", 2)]

    asyncio.run(main())


def test_a_cancelled_poll_takes_no_message_and_the_next_one_works(cluster, sender, topic):
    async def main() -> None:
        async with consumer(cluster, topic) as member:
            await all_assigned(member, 4)
            for number in range(30):
                polling = asyncio.create_task(polled(member, 1))
                await asyncio.sleep(0.01)
                polling.cancel()
                await asyncio.gather(polling, return_exceptions=True)
                send(sender, topic, 1, number)
                assert await polled(member, 1) == [number]

    asyncio.run(main())


def test_seeks_find_offsets_times_and_ends(cluster, sender, topic):
    where = TopicPartition(topic, 0, 1)
    for number in range(10):
        sender.send(topic, b"%d" % number, partition=where)

    async def main() -> None:
        async with consumer(cluster, topic) as member:
            assert await polled(member, 10) == list(range(10))
            await member.seek(where, "earliest")
            assert member.position(where) == 0
            assert await polled(member, 10) == list(range(10))
            await member.seek(where, Last(3))
            assert await polled(member, 3) == [7, 8, 9]
            await member.seek(where, datetime.now(UTC) - timedelta(hours=1))
            assert await polled(member, 10) == list(range(10))
            lag = await member.lag()
            assert lag[where].bytes == 0
            (first, *_) = await member.fetch(where, 0)
            assert (await member.view_message(topic, first.id)).payload == b"0"
            with pytest.raises(NotOwner):
                await member.seek(TopicPartition("other", 0, 0), 0)
            with pytest.raises(ConfigError):
                await member.seek(where, "somewhere")

    asyncio.run(main())


def test_a_request_of_a_client_with_threads_is_answered(cluster, sender, topic):
    cluster.create_topic("%REPLY%")

    async def main() -> None:
        async with AsyncProducer(cluster.zookeeper) as producer, consumer(cluster, topic) as member:
            asking = asyncio.create_task(asyncio.to_thread(sender.request, topic, b"ping", key="k", timeout=DEADLINE))
            (asked,) = await member.poll(timeout=DEADLINE)
            await producer.reply(asked, b"pong")
            assert (await asyncio.wrap_future(await asking)).payload == b"pong"
            found = await member.query_message(topic, "k")
            assert [each.message.payload for each in found.found] == [b"ping"]

    asyncio.run(main())


def test_a_consumer_begins_at_the_last_messages(cluster, sender, topic):
    where = TopicPartition(topic, 0, 1)
    for number in range(10):
        sender.send(topic, b"%d" % number, partition=where)

    async def main() -> None:
        async with consumer(cluster, topic, start=Last(2)) as member:
            assert await polled(member, 2) == [8, 9]

    asyncio.run(main())


def test_a_consumer_survives_lost_connections_and_a_broker_that_comes_back(cluster, sender, topic):
    async def main() -> None:
        async with consumer(cluster, topic) as member:
            await all_assigned(member, 4)
            for turn in range(3):
                send(sender, topic, 50, turn * 50)
                cluster.drop_connections()
                assert sorted(await polled(member, 50)) == list(range(turn * 50, turn * 50 + 50))
            await asyncio.to_thread(cluster.brokers[1].stop)
            await asyncio.to_thread(cluster.brokers[1].start)
            await asyncio.to_thread(send, sender, topic, 50, 150)
            assert sorted(await polled(member, 50)) == list(range(150, 200))

    asyncio.run(main())


def test_polls_that_find_messages_let_other_tasks_run_and_start_no_thread(cluster, sender, topic):
    send(sender, topic, 5_000)

    async def main() -> None:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with consumer(cluster, topic) as member:
            await polled(member, 1_000)
            threads = threading.active_count()
            counting = asyncio.create_task(count_turns())
            assert len(await polled(member, 4_000, most=1)) == 4_000
            assert turns > 5
            assert threading.active_count() <= threads
            counting.cancel()

    asyncio.run(main())


def test_only_one_task_polls_and_close_ends_its_wait(cluster, topic):
    async def main() -> None:
        member = consumer(cluster, topic)
        with pytest.raises(ClientError, match="async with"):
            await member.poll()
        await member.start()
        waiting = asyncio.create_task(member.poll(timeout=DEADLINE))
        await asyncio.sleep(0)
        with pytest.raises(ClientError, match="another task"):
            await member.poll()
        await member.close()
        assert await waiting == []
        await member.close()
        with pytest.raises(ClientError, match="closed"):
            await member.poll()
        with pytest.raises(ClientError, match="once"):
            await member.start()

    asyncio.run(main())


def test_a_cancelled_start_leaves_no_member_and_a_bad_argument_no_thread(cluster, topic):
    async def main() -> None:
        member = consumer(cluster, topic)
        starting = asyncio.create_task(member.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        with pytest.raises(ConfigError, match="tags"):
            await consumer(cluster, topic, tags=[]).start()
        async with consumer(cluster, topic, config=ConsumerConfig(consumer_id="alone")) as alone:
            await all_assigned(alone, 4)

    threads = threading.active_count()
    asyncio.run(main())
    eventually(lambda: threading.active_count() <= threads)


def test_a_coroutine_function_is_no_call_back(cluster, topic):
    async def wanted(_: Message) -> bool:
        return True

    with pytest.raises(ConfigError, match="plain function"):
        consumer(cluster, topic, accept=wanted)


def test_the_session_of_an_abandoned_consumer_ends(cluster, topic):
    async def main() -> None:
        member = consumer(cluster, topic)
        await member.start()
        del member

    with pytest.warns(ResourceWarning, match="was not closed"):
        asyncio.run(main())
    with ThreadConsumer(cluster.zookeeper, group=f"g-{topic}", topics=[topic]) as other:
        eventually(lambda: other.poll(timeout=0.01) or len(other.assignment()) == 4)
