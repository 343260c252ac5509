"""The measurements: stages, which are groups of brokers that run together; the scenarios of each stage; and the bars
that the scenarios must reach.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from .bars import Bar
from .names import (
    AIOKAFKA,
    BROKER_OF,
    CONFLUENT,
    CONFLUENT_BATCH,
    JAVA,
    KAFKA,
    KAFKA_PYTHON,
    MIXED,
    OUR_BROKERS,
    OURS,
    OURS_ONE_CORE,
    OURS_SET_OF_ONE,
    REPLICATED,
    ROCKETMQ,
    two_replicas,
)

__all__ = [
    "LATENCY_PER_SECOND",
    "REPLICA_SCENARIOS",
    "SCENARIOS",
    "STAGES",
    "Run",
    "Scenario",
    "Stage",
    "Topic",
    "batch_command",
    "pipelined_command",
]

LATENCY_PER_SECOND = 1000
WINDOW = 256
WIDE_WINDOW = 4096
"""The most unanswered sends in scenarios with many partitions. It suits a user who wants throughput and accepts some
megabytes of memory for it.
"""
JAVA_SYNC_WINDOW = 1024
"""Used instead of WIDE_WINDOW for a Java broker that syncs thousands of files, because its client gives up on a send
after 3 s.
"""
BATCH = 500

JAVA_PARTITIONS = 8192

DELAY_SECONDS = 3600
"""Delay in seconds of the sends whose rate is measured. It is so long that nothing is delivered meanwhile; deliveries
would slow down the system that has sent most before.
"""
MEMBERS = 64
WORK_MS = 1
TRANSACTION_THREADS = (1, 64)

JAVA_THREADS = "java, 256 threads"
OURS_ASYNCHRONOUS = "ours, asynchronous"
OURS_ONE_PARTITION = "ours, one partition"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. partitions: number of partitions; synchronous: whether its messages are on the disk before they are
    acknowledged; None: like the other topics of the stage.
    """

    partitions: int = 1
    synchronous: bool | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """Brokers that are started together. java_partitions: the most partitions that a topic has on the Java broker."""

    name: str
    title: str
    topics: Mapping[str, Topic]
    synchronous: bool = False
    java_partitions: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """The command that one system executes in a round. command: text in which {count}, {group}, {topic}, {size},
    {per_second} and {warm_up} are replaced.
    """

    system: str
    command: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """One comparison.

    runs: the run of a system, by label; figures: the keys of the answers that are reported; touches: a topic of which
    each partition gets a message before the warm-up, because the first message creates a partition's files.
    """

    name: str
    title: str
    about: str
    stage: str
    runs: Mapping[str, Run]
    bars: tuple[Bar, ...]
    size: int = 1024
    figures: tuple[str, ...] = ("rate",)
    touches: str | None = None

    @property
    def consumes(self) -> bool:
        """Whether the scenario reads a backlog, which must be sent first."""
        return any(run.command.startswith("consume") for run in self.runs.values())

    @property
    def has_latency(self) -> bool:
        return "p50_ms" in self.figures

    @property
    def of_our_brokers(self) -> list[str]:
        """The labels of the runs that use a metaq broker. Other runs are compared with the first of these."""
        return [label for label, run in self.runs.items() if BROKER_OF[run.system] in OUR_BROKERS]


STAGES = (
    Stage("one", "one partition, asynchronous flush", {"bench": Topic(), "backlog": Topic()}),
    Stage(
        "one-sync",
        "one partition, synchronous flush",
        {"bench": Topic(), "loose": Topic(synchronous=False)},
        synchronous=True,
    ),
    Stage(
        "kinds",
        "kinds of messages, one partition, asynchronous flush",
        {"delayed": Topic(), "transactions": Topic(), "shared": Topic()},
    ),
    Stage("1024", "1,024 partitions, asynchronous flush", {"many": Topic(1024), "one": Topic()}),
    Stage("1024-sync", "1,024 partitions, synchronous flush", {"many": Topic(1024), "one": Topic()}, synchronous=True),
    Stage(
        "10240",
        "10,240 partitions, asynchronous flush",
        {"many": Topic(10_240), "one": Topic()},
        java_partitions=JAVA_PARTITIONS,
    ),
    Stage(
        "10240-sync",
        "10,240 partitions, synchronous flush",
        {"many": Topic(10_240), "one": Topic()},
        synchronous=True,
        java_partitions=JAVA_PARTITIONS,
    ),
)


def _same(command: str, *systems: str) -> dict[str, Run]:
    return {system: Run(system, command) for system in systems}


def batch_command(topic: str) -> str:
    """Return the command for bulk sends by the method that the system's users choose for them."""
    return f"send_batch {topic} {BATCH} {{count}} {{size}}"


def pipelined_command(topic: str, window: int = WINDOW) -> str:
    """Return the command for single sends, with at most `window` unanswered ones."""
    return f"send_async {topic} {window} {{count}} {{size}}"


LATENCY = "latency {topic} {topic} {per_second} {warm_up} {count} {size}"
LATENESS = "lateness {topic} {topic} {per_second} {warm_up} {count} {size}"
CONSUME = "consume backlog {group} {count} 120"
BROKER_BAR = Bar(MIXED, least=1.2, of=JAVA)


def _many(partitions: int, size: int, synchronous: bool, bars: tuple[Bar, ...]) -> tuple[Scenario, ...]:
    """Return the scenarios that send single messages and batches to many partitions of one topic."""
    suffix, flush = ("-sync", "synchronous") if synchronous else ("", "asynchronous")
    stage = f"{partitions}{suffix}"
    about = f"One thread, {WIDE_WINDOW:,} sends under way, in turn to all partitions of a topic."
    java_window = WIDE_WINDOW
    if partitions > JAVA_PARTITIONS:
        about += f" Java has {JAVA_PARTITIONS:,} partitions, as many as it was known to start with."
        if synchronous:
            java_window = JAVA_SYNC_WINDOW
            about += f" Its client has {java_window:,} sends under way, because it gives up on one after 3 s."
    return (
        Scenario(
            f"partitions-{partitions}{suffix}",
            f"{partitions:,} partitions, {size} B, single sends, {flush} flush",
            about,
            stage,
            {
                JAVA: Run(JAVA, pipelined_command("many", java_window)),
                OURS: Run(OURS, pipelined_command("many", WIDE_WINDOW)),
                MIXED: Run(MIXED, pipelined_command("many", java_window)),
            },
            (*bars, BROKER_BAR),
            size,
            touches="many",
        ),
        Scenario(
            f"batch-{partitions}{suffix}",
            f"{partitions:,} partitions, {size} B, batches, {flush} flush",
            f"Batches of {BATCH}, in turn to all partitions of a topic, beside the same to a topic of one partition.",
            stage,
            {
                OURS: Run(OURS, batch_command("many")),
                OURS_ONE_PARTITION: Run(OURS, batch_command("one")),
            },
            (Bar(OURS, least=0.8, of=OURS_ONE_PARTITION),),
            size,
            touches="many",
        ),
        Scenario(
            f"produce-{partitions}{suffix}",
            f"{partitions:,} partitions, {size} B, the producer chooses, {flush} flush",
            "A loop of single sends that name no partition, beside the same to a topic of one partition.",
            stage,
            {
                OURS: Run(OURS, "produce many {count} {size}"),
                OURS_ONE_PARTITION: Run(OURS, "produce one {count} {size}"),
            },
            (Bar(OURS, least=0.8, of=OURS_ONE_PARTITION),),
            size,
            touches="many",
        ),
    )


def _shared_command(members: int, processes: int) -> str:
    """Return the command for a shared group with MEMBERS threads in total. processes: number of processes for metaq's
    members; RocketMQ's members run in one JVM.
    """
    return f"shared shared shared-{members} {members} {MEMBERS // members} {processes} {WORK_MS} {{count}} {{size}}"


def _kinds() -> tuple[Scenario, ...]:
    """Return the scenarios for kinds of messages that Kafka and metaq 1.x do not have. metaq is compared with RocketMQ
    in them.
    """
    twice = (Bar(OURS, least=2.0, of=ROCKETMQ),)
    delayed = f"of messages that are delivered in {DELAY_SECONDS // 60} minutes"
    return (
        Scenario(
            "delayed-blocking-1",
            "delayed sends, one thread, blocking",
            f"One thread that waits for each of its sends {delayed}.",
            "kinds",
            _same(f"delayed_blocking delayed 1 {{count}} {{size}} {DELAY_SECONDS}", OURS, ROCKETMQ),
            twice,
        ),
        Scenario(
            "delayed-pipelined",
            "delayed sends, pipelined",
            f"One thread, at most {WINDOW} sends without an acknowledgement, {delayed}.",
            "kinds",
            _same(f"delayed_async delayed {WINDOW} {{count}} {{size}} {DELAY_SECONDS}", OURS, ROCKETMQ),
            twice,
        ),
        Scenario(
            "delayed-lateness",
            "how late delayed messages come",
            f"{LATENCY_PER_SECOND:,} messages a second, due in 1 to 4 s: from the time when each is due to the "
            "listener or the poll that returns it, negative if it comes early.",
            "kinds",
            _same(LATENESS, OURS, ROCKETMQ),
            (Bar(OURS, least=0.0, figure="min_ms"), Bar(OURS, most=50.0, figure="p99_ms")),
            figures=("min_ms", "p50_ms", "p99_ms", "max_ms"),
        ),
        *(
            Scenario(
                f"transactions-{threads}",
                f"transactional sends, {threads} thread{'s' * (threads > 1)}",
                "Half message, no work, commit. Ours waits for both answers, RocketMQ's client for that of the half "
                "message.",
                "kinds",
                _same(
                    f"transactions transactions {threads} {{count}} {{size}}",
                    OURS,
                    *([OURS_ONE_CORE] if threads > 1 else []),
                    ROCKETMQ,
                ),
                (*twice, *([Bar(OURS_ONE_CORE, least=2.0, of=ROCKETMQ)] if threads > 1 else [])),
            )
            for threads in TRANSACTION_THREADS
        ),
        Scenario(
            "transactions-pipelined",
            "transactional sends, pipelined",
            f"Half message, no work, commit. Ours: one thread, at most {WINDOW} under way. RocketMQ's client has no "
            f"asynchronous transactions: {max(TRANSACTION_THREADS)} threads, its best.",
            "kinds",
            {
                OURS: Run(OURS, f"transactions_async transactions {WINDOW} {{count}} {{size}}"),
                ROCKETMQ: Run(ROCKETMQ, f"transactions transactions {max(TRANSACTION_THREADS)} {{count}} {{size}}"),
            },
            twice,
        ),
        Scenario(
            "shared",
            f"shared consumption, {MEMBERS} members on one partition",
            f"{MEMBERS} members with a thread each, {WORK_MS} ms of work a message, at most "
            f"{MEMBERS * 1000 // WORK_MS:,} messages/s. RocketMQ's members are push consumers in POP mode.",
            "kinds",
            {
                OURS: Run(OURS, _shared_command(MEMBERS, 4)),
                ROCKETMQ: Run(ROCKETMQ, _shared_command(MEMBERS, 4)),
            },
            (Bar(OURS, least=3.0, of=ROCKETMQ),),
            size=128,
        ),
    )


SCENARIOS = (
    Scenario(
        "blocking-1",
        "one thread, blocking sends",
        "One thread that waits for each of its sends.",
        "one",
        _same("send_blocking bench 1 {count} {size}", JAVA, OURS, MIXED, KAFKA, CONFLUENT, ROCKETMQ),
        (Bar(OURS, least=0.9, of=JAVA), Bar(OURS, least=2.0, of=ROCKETMQ), BROKER_BAR),
    ),
    Scenario(
        "blocking-64",
        "64 threads, blocking sends",
        "64 threads, each waits for each of its sends; ours also with its process kept on one core (docs/client.md).",
        "one",
        _same("send_blocking bench 64 {count} {size}", JAVA, OURS, OURS_ONE_CORE, MIXED, KAFKA, CONFLUENT, ROCKETMQ),
        (
            *(Bar(ours, least=0.8, of=JAVA) for ours in (OURS, OURS_ONE_CORE)),
            *(Bar(ours, least=2.0, of=ROCKETMQ) for ours in (OURS, OURS_ONE_CORE)),
            BROKER_BAR,
        ),
    ),
    Scenario(
        "pipelined",
        "pipelined single sends",
        f"One thread, at most {WINDOW} sends without an acknowledgement.",
        "one",
        _same(pipelined_command("bench"), JAVA, OURS, MIXED, KAFKA, KAFKA_PYTHON, AIOKAFKA, CONFLUENT, ROCKETMQ),
        (Bar(OURS, least=1.5, of=JAVA), Bar(OURS, least=2.0, of=ROCKETMQ), BROKER_BAR),
    ),
    Scenario(
        "pipelined-128",
        "pipelined single sends, 128 B",
        f"One thread, at most {WINDOW} sends without an acknowledgement.",
        "one",
        _same(pipelined_command("bench"), JAVA, OURS, MIXED, KAFKA, CONFLUENT, ROCKETMQ),
        (BROKER_BAR,),
        size=128,
    ),
    Scenario(
        "produce",
        "single sends with call-backs",
        "One thread, a loop of single sends with a call-back each and one flush at the end.",
        "one",
        _same("produce bench {count} {size}", OURS, CONFLUENT),
        (Bar(OURS, least=1.0, of=CONFLUENT),),
    ),
    Scenario(
        "produce-128",
        "single sends with call-backs, 128 B",
        "One thread, a loop of single sends with a call-back each and one flush at the end.",
        "one",
        _same("produce bench {count} {size}", OURS, CONFLUENT),
        (Bar(OURS, least=0.6, of=CONFLUENT),),
        size=128,
    ),
    Scenario(
        "futures-128",
        "single sends with futures, 128 B",
        "One thread that keeps the future of each send, and asks all of them for their results at the end.",
        "one",
        _same("futures bench {count} {size}", OURS),
        (Bar(OURS, least=250_000),),
        size=128,
    ),
    Scenario(
        "batch",
        "batched sends",
        "In bulk, as the system's users do it (bench/README.md); 1.x has no batches, its client sends pipelined.",
        "one",
        {
            JAVA: Run(JAVA, pipelined_command("bench")),
            **_same(batch_command("bench"), OURS, KAFKA, KAFKA_PYTHON, AIOKAFKA, CONFLUENT, CONFLUENT_BATCH, ROCKETMQ),
        },
        (Bar(OURS, least=2.0, of=CONFLUENT), Bar(OURS, least=2.0, of=CONFLUENT_BATCH)),
    ),
    Scenario(
        "batch-128",
        "batched sends, 128 B",
        "In bulk, as the system's users do it (bench/README.md); 1.x has no batches, its client sends pipelined.",
        "one",
        {
            JAVA: Run(JAVA, pipelined_command("bench")),
            **_same(batch_command("bench"), OURS, KAFKA, CONFLUENT, CONFLUENT_BATCH, ROCKETMQ),
        },
        (Bar(OURS, least=1.3, of=CONFLUENT), Bar(OURS, least=1.3, of=CONFLUENT_BATCH)),
        size=128,
    ),
    Scenario(
        "consume",
        "consuming a backlog",
        "A new group reads a backlog; the first messages start the clock, and every payload is taken.",
        "one",
        _same(CONSUME, JAVA, OURS, MIXED, KAFKA, AIOKAFKA, CONFLUENT, ROCKETMQ),
        (Bar(OURS, least=1.2, of=CONFLUENT), BROKER_BAR),
    ),
    Scenario(
        "consume-arrow",
        "consuming a backlog as Arrow",
        "The same, as Arrow record batches with ours; confluent-kafka has messages only.",
        "one",
        {OURS: Run(OURS, CONSUME.replace("consume", "consume_arrow", 1)), CONFLUENT: Run(CONFLUENT, CONSUME)},
        (Bar(OURS, least=3.0, of=CONFLUENT),),
    ),
    Scenario(
        "latency",
        "end-to-end latency, asynchronous flush",
        f"{LATENCY_PER_SECOND:,} messages a second, from the send call to the listener or the poll that returns it.",
        "one",
        _same(LATENCY, JAVA, OURS, MIXED, KAFKA, CONFLUENT, ROCKETMQ),
        (Bar(OURS, most=1.0, figure="p50_ms"), Bar(OURS, most=4.0, figure="p99_ms")),
        figures=("p50_ms", "p99_ms", "p99.9_ms", "max_ms"),
    ),
    Scenario(
        "sync-256",
        "256 sends in flight, synchronous flush",
        f"One thread with {WINDOW} sends under way; {JAVA_THREADS} waits for each send in {WINDOW} threads; "
        f"{OURS_ASYNCHRONOUS} is another topic of the same broker.",
        "one-sync",
        {
            **_same(pipelined_command("bench"), JAVA),
            JAVA_THREADS: Run(JAVA, f"send_blocking bench {WINDOW} {{count}} {{size}}"),
            **_same(pipelined_command("bench"), OURS),
            OURS_ASYNCHRONOUS: Run(OURS, pipelined_command("loose")),
            **_same(pipelined_command("bench"), MIXED, KAFKA, CONFLUENT, ROCKETMQ),
        },
        (
            Bar(OURS, least=2.0, of=JAVA),
            Bar(OURS, least=2.0, of=JAVA_THREADS),
            Bar(OURS, least=0.85, of=OURS_ASYNCHRONOUS),
            BROKER_BAR,
        ),
    ),
    Scenario(
        "latency-sync",
        "end-to-end latency, synchronous flush",
        f"{LATENCY_PER_SECOND:,} messages a second, from the send call to the listener or the poll that returns it.",
        "one-sync",
        _same(LATENCY, JAVA, OURS, CONFLUENT, ROCKETMQ),
        (Bar(OURS, most=8.0, figure="p99_ms"),),
        figures=("p50_ms", "p99_ms", "p99.9_ms", "max_ms"),
    ),
    *_kinds(),
    *_many(1024, 128, False, (Bar(OURS, least=53_000),)),
    *_many(1024, 128, True, (Bar(OURS, least=39_000), Bar(OURS, least=4.0, of=JAVA))),
    *_many(10_240, 512, False, (Bar(OURS, least=36_000),)),
    *_many(10_240, 512, True, (Bar(OURS, least=28_000),)),
)


# --- with replicas --------------------------------------------------------------------------------------------------


def _with_replicas(scenario: Scenario) -> Scenario:
    """Return the scenario for the systems that can have replicas. Each of them runs on two nodes and on one node, and
    metaq also as a broker set of one node.

    The selected systems take turns, so the cost of the second node is also measured as a ratio within the same rounds.
    """
    runs = {label: run for label, run in scenario.runs.items() if run.system in REPLICATED}
    if scenario.name == "latency-sync":
        runs[KAFKA] = Run(KAFKA, LATENCY)
    if scenario.name.startswith("partitions"):
        runs[OURS_ONE_PARTITION] = Run(OURS, pipelined_command("one", WIDE_WINDOW))
    two = {two_replicas(label): Run(two_replicas(run.system), run.command) for label, run in runs.items()}
    one = {OURS_SET_OF_ONE: Run(OURS_SET_OF_ONE, runs[OURS].command)}
    if OURS_ONE_PARTITION in runs:
        one["ours, a set of one, one partition"] = Run(OURS_SET_OF_ONE, runs[OURS_ONE_PARTITION].command)
    return Scenario(
        f"replicas-{scenario.name}",
        f"{scenario.title}, replicas",
        f"{scenario.about} Acknowledged by every replica.",
        scenario.stage,
        {**two, **one, **runs},
        tuple(_replica_bars(scenario, two)),
        scenario.size,
        scenario.figures,
        scenario.touches,
    )


def _replica_bars(scenario: Scenario, labels: Collection[str]) -> Iterator[Bar]:
    ours = two_replicas(OURS)
    peers = [peer for peer in map(two_replicas, (KAFKA, CONFLUENT)) if peer in labels]
    if scenario.has_latency:
        yield from (Bar(ours, most=1.0, of=peer, figure="p99_ms") for peer in peers)
    elif scenario.name.startswith(("batch", "produce")) and two_replicas(OURS_ONE_PARTITION) in labels:
        # there is no such bar for single sends to named partitions, because the client gathers sends to one partition
        # into batches, on one node as on two
        yield Bar(ours, least=0.8, of=two_replicas(OURS_ONE_PARTITION))
    elif scenario.name in ("pipelined", "pipelined-128", "batch", "batch-128"):
        yield from (Bar(ours, least=1.3, of=peer) for peer in peers)


REPLICA_SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: _with_replicas(scenario) for scenario in SCENARIOS if OURS in scenario.runs
}
"""By a scenario's name: the scenario that is measured instead with `--replicas` or `--node`."""
