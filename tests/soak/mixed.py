"""The mixed group: two metaq brokers and a Java one, two Python and two Java consumers; each is ended at random."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from metaq.coordination.servers.local_zookeeper import ZooKeeperProcess
from tests.kills.outcome import Outcome, Say
from tests.zookeepers import zookeeper_process

from .members import Group, JavaConsumer, JavaProducer, Member, PythonConsumer, PythonProducer
from .places import Kind, Place
from .run import TICK_MS, Run
from .schedule import Blow, Way, steps

__all__ = ["run"]

TOPIC, GROUP = "soak", "mixed"
PARTITIONS = 4
BROKERS: Mapping[str, tuple[Kind, Mapping[str, object]]] = {
    "broker-0-ours": ("ours", {"unflushThreshold": 0}),
    "broker-1-ours": ("ours", {"unflushThreshold": 1000}),
    "broker-2-java": ("java", {"unflushThreshold": 0}),
}

SEGMENT_BYTES = 64 << 10
"""Small, so that segments roll during the run."""
SEND_PAUSE = 0.005

ZOOKEEPER = "zookeeper"

Victim = Place | Member | ZooKeeperProcess


def run(
    directory: Path, seed: int, say: Say, *, seconds: float = 60.0, freeze: bool = False, zookeeper: bool = False
) -> Outcome:
    """A group of Java and Python consumers on Java and Python brokers, killed and stopped.

    seconds: time of blows; then the run is drained and judged. freeze: also stop metaq's processes for longer than
    their sessions. (A Java consumer that continues after that reads what others own by then.) zookeeper: is restarted,
    too. Needs the Java peers.
    """
    with zookeeper_process(directory / "zookeeper", tick_time_ms=TICK_MS) as server:
        return _mixed(directory, seed, say, seconds, freeze, server, [ZOOKEEPER] if zookeeper else [])


def _mixed(
    directory: Path,
    seed: int,
    say: Say,
    seconds: float,
    freeze: bool,
    server: ZooKeeperProcess,
    restarted: Sequence[str],
) -> Outcome:
    zookeeper = server.connect_string
    group = Group(zookeeper, GROUP, TOPIC, directory / "group")
    places = {
        name: Place(directory / name, zookeeper, {TOPIC: PARTITIONS}, broker_id, _settings(system))
        for broker_id, (name, (_, system)) in enumerate(BROKERS.items())
    }
    members = _members(group)
    victims: dict[str, Victim] = {**places, **members, ZOOKEEPER: server}
    frozen = [name for name in (*places, *members) if "java" not in name] if freeze else []
    blows: Counter[str] = Counter()
    try:
        for name, place in places.items():
            place.start(BROKERS[name][0])
        with Run(group, list(members.values())) as under_way:
            under_way.produce(PythonProducer(group, seed, 1 / SEND_PAUSE))
            under_way.produce(JavaProducer(group, SEND_PAUSE))
            under_way.wait_for(500)
            end = time.monotonic() + seconds
            for step in steps(seed, list(places), list(members), frozen, restarted):
                if time.monotonic() + step.pause > end:
                    break
                time.sleep(step.pause)
                say(f"{time.strftime('%X')} {', '.join(map(str, step.blows))}; back after {step.down:.1f} s")
                under_way.disturb(*(_ending(blow, victims) for blow in step.blows))
                blows.update(map(str, step.blows))
                time.sleep(step.down)
                under_way.disturb(*(_starting(blow, victims) for blow in step.blows))
            say(f"{time.strftime('%X')} draining")
            judged = under_way.finish()
    finally:
        for place in places.values():
            place.kill()
    figures = {
        "blows": blows.total(),
        **dict(sorted(blows.items())),
        "refused starts of a killed Java broker": sum(place.refused for place in places.values()),
        "looks that ZooKeeper missed": judged.missed_looks,
    }
    return judged.outcome(figures)


def _settings(system: Mapping[str, object]) -> Mapping[str, object]:
    return {"maxSegmentSize": SEGMENT_BYTES, "unflushInterval": 500, **system}


def _members(group: Group) -> dict[str, Member]:
    kinds: tuple[type[Member], ...] = (PythonConsumer, PythonConsumer, JavaConsumer, JavaConsumer)
    names = ("python-1", "python-2", "java-1", "java-2")
    return {name: kind(group, name) for name, kind in zip(names, kinds, strict=True)}


def _ending(blow: Blow, victims: Mapping[str, Victim]) -> Callable[[], None]:
    victim = victims[blow.victim]
    if isinstance(victim, ZooKeeperProcess):
        return victim.stop
    actions: Mapping[Way, Callable[[], None]] = {"kill": victim.kill, "stop": victim.stop, "freeze": victim.freeze}
    return actions[blow.way]


def _starting(blow: Blow, victims: Mapping[str, Victim]) -> Callable[[], None]:
    victim = victims[blow.victim]
    if isinstance(victim, Place):
        kind, _ = BROKERS[blow.victim]
        return lambda: victim.start(kind)
    return victim.start
