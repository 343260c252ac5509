"""docs/migrating.md, broker by broker, and back again: a cluster of three below a Java producer and Java consumers."""

from __future__ import annotations

from pathlib import Path

from tests.integration.java_peers import require_java
from tests.soak.rolling import rolling

BROKERS = 3


def test_a_cluster_moves_to_our_brokers_and_back_without_its_clients_losing_anything(
    chroot: str, tmp_path: Path
) -> None:
    require_java()
    rolled = rolling(tmp_path, chroot, BROKERS, print)
    judged = rolled.judged
    assert not judged.problems, judged.explanation
    assert [(move.broker, move.kind) for move in rolled.moves] == [
        *((broker, "ours") for broker in range(BROKERS)),
        *((broker, "java") for broker in range(BROKERS)),
    ]
    assert len(judged.facts.acks) > 1000
    print(f"failed sends: {rolled.failed_sends}")
