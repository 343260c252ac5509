"""Names of the measured systems. The tables tell which systems share a broker, and which are broker sets of one or more
nodes.
"""

from __future__ import annotations

__all__ = [
    "AIOKAFKA",
    "BASE_OF",
    "BROKER_OF",
    "CONFLUENT",
    "CONFLUENT_BATCH",
    "JAVA",
    "KAFKA",
    "KAFKA_PYTHON",
    "MIXED",
    "NODES_OF",
    "OURS",
    "OURS_ONE_CORE",
    "OURS_SET_OF_ONE",
    "OUR_BROKER",
    "OUR_BROKERS",
    "REPLICATED",
    "ROCKETMQ",
    "SYSTEMS",
    "two_replicas",
]

JAVA = "java"
OURS = "ours"
OURS_ONE_CORE = "ours, one core"
MIXED = "our broker, java client"
KAFKA = "kafka"
KAFKA_PYTHON = "kafka-python"
AIOKAFKA = "aiokafka"
CONFLUENT = "confluent-kafka"
CONFLUENT_BATCH = "confluent-kafka, produce_batch"
ROCKETMQ = "rocketmq"

OUR_BROKER = "ours"
BROKER_OF = {
    JAVA: "java",
    OURS: OUR_BROKER,
    OURS_ONE_CORE: OUR_BROKER,
    MIXED: OUR_BROKER,
    KAFKA: "kafka",
    KAFKA_PYTHON: "kafka",
    AIOKAFKA: "kafka",
    CONFLUENT: "kafka",
    CONFLUENT_BATCH: "kafka",
    ROCKETMQ: "rocketmq",
}
"""The broker's name by system. Systems with the same broker name share one running broker."""

SHORT_NAMES = {OURS_ONE_CORE: "ours-one-core", MIXED: "mixed", CONFLUENT_BATCH: "confluent-kafka-batch"}
SYSTEMS = {SHORT_NAMES.get(name, name): name for name in BROKER_OF}
"""The system's name by the value of `--system`."""


def two_replicas(system: str) -> str:
    """Return the name of this system when it runs with two nodes that both have each message."""
    return f"{system}, 2 replicas"


OURS_SET_OF_ONE = "ours, a set of one"
REPLICATED = (OURS, KAFKA, CONFLUENT, CONFLUENT_BATCH)
"""The systems that are also measured with two replicas."""

BASE_OF = {two_replicas(name): name for name in REPLICATED} | {OURS_SET_OF_ONE: OURS}
"""For each system that runs as a set of nodes: the system whose load generator it uses."""
BROKER_OF |= {two_replicas(name): f"{BROKER_OF[name]}-2" for name in REPLICATED} | {OURS_SET_OF_ONE: "ours-set"}
NODES_OF = {"ours-2": ("a", "b"), "ours-set": ("a",)}
"""The names of the nodes, by the name of a metaq broker that is a set."""
OUR_BROKERS = (OUR_BROKER, *NODES_OF)
