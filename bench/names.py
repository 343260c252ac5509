"""Names of the systems under measurement, and which of them share a broker."""

from __future__ import annotations

__all__ = [
    "AIOKAFKA",
    "BROKER_OF",
    "CONFLUENT",
    "CONFLUENT_BATCH",
    "JAVA",
    "KAFKA",
    "KAFKA_PYTHON",
    "MIXED",
    "OURS",
    "OURS_ONE_CORE",
    "OUR_BROKER",
    "ROCKETMQ",
    "SYSTEMS",
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
"""Name of a system -> name of its broker; systems with the same one share a running broker."""

SHORT_NAMES = {OURS_ONE_CORE: "ours-one-core", MIXED: "mixed", CONFLUENT_BATCH: "confluent-kafka-batch"}
SYSTEMS = {SHORT_NAMES.get(name, name): name for name in BROKER_OF}
"""What `--system` takes -> name of the system."""
