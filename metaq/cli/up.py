"""The command `metaq up`: run a development cluster."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

import click

from metaq.coordination.servers.free_ports import ready_port, ready_ports
from metaq.protocol.errors import ConfigError

from .earlier_starts import EarlierStarts, all_settings, all_topics
from .local_cluster import MAX_REPLICAS, ClusterPlan, LocalCluster
from .options import BYTES, PORT, TOPIC_SETTING, TOPIC_WITH_PARTITIONS, Seconds, TopicSetting, TopicSpec
from .output import echo
from .servers import locked_directory, stop_signal
from .zookeepers import zookeeper_server_option

__all__ = ["check_secure", "commands_to_try", "steps_of_users", "up"]

DEFAULT_TOPIC = TopicSpec("test", 1)


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("metaq-data"),
    show_default=True,
    help="Where ZooKeeper and the brokers keep their data; kept for the next start.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    help="Number of broker processes.  [default: as many as there were at the last start, at least 1]",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, MAX_REPLICAS),
    help="Nodes of each broker, of which one leads and the others copy; 1: no broker sets.  [default: as many as "
    "--data-dir has, at least 1]",
)
@click.option(
    "--port",
    type=PORT,
    default=8123,
    show_default=True,
    help="TCP port of the first broker, the others follow; 0 chooses free ones.",
)
@click.option(
    "--zookeeper-port", type=PORT, default=2181, show_default=True, help="TCP port of ZooKeeper; 0: a free one."
)
@zookeeper_server_option
@click.option(
    "--topic",
    "topics",
    type=TOPIC_WITH_PARTITIONS,
    multiple=True,
    help="Topic and its partitions on each broker; repeat for more. What earlier starts on --data-dir served is served "
    "besides.  [default: test:1, if there is none]",
)
@click.option(
    "--setting",
    "settings",
    type=TOPIC_SETTING,
    multiple=True,
    help="Setting of a topic, as in server.ini (logs.acceptCompressed=true); repeat for more. It stays.",
)
@click.option(
    "--flush",
    type=click.Choice(("sync", "async")),
    default="sync",
    show_default=True,
    help="sync: acknowledged means on disk. async: faster, the last second may be lost when the machine fails.",
)
@click.option(
    "--session-timeout",
    type=Seconds(2, 60),
    default=30,
    show_default=True,
    help="ZooKeeper session timeout of the brokers.",
)
@click.option(
    "--disk-reserve",
    type=BYTES,
    help="Brokers refuse puts when the disk has less room than this; 0: never.  [default: 5 % of the disk, at most 1g]",
)
@click.option(
    "--secure",
    is_flag=True,
    help="TLS, and only users may use the brokers: the first start makes certificates and the profile of an admin in "
    "--data-dir. The standalone ZooKeeper has TLS, too; Apache's has none.",
)
def up(
    data_dir: Path,
    brokers: int | None,
    replicas: int | None,
    port: int,
    zookeeper_port: int,
    apache_jars: Path | None,
    topics: tuple[TopicSpec, ...],
    settings: tuple[TopicSetting, ...],
    flush: str,
    session_timeout: float,
    disk_reserve: int | None,
    secure: bool,
) -> None:
    """Run ZooKeeper and brokers until SIGTERM or Ctrl-C. The command prints their addresses when all are ready to serve
    clients.

    If --data-dir has the data of an earlier start, the cluster also serves all topics of that start, each with at least
    as many partitions as before. The command refuses to start if a broker with messages in --data-dir would not be
    started, or if there would be fewer replicas than in the earlier start. Additional replicas get copies of the
    messages. If a signal ends a node of a broker set, the node is started again.

    With --secure the command also prints how an admin makes the first user. A later start on the same --data-dir needs
    --secure again.

    \b
    Example: two brokers with four partitions of `trades` each; two broker sets of two nodes; a cluster with users
      metaq up --brokers 2 --topic trades:4
      metaq up --brokers 2 --replicas 2
      metaq up --secure --topic orders
    """
    names = [topic.name for topic in topics]
    if len(set(names)) < len(names):
        raise click.BadParameter(
            f"{', '.join(names)}: a topic is given twice: name each one once", param_hint="--topic"
        )
    with stop_signal() as stop, locked_directory("--data-dir", data_dir) as directory:
        earlier = EarlierStarts.read(directory)
        check_secure(secure, earlier, directory)
        stored = [TopicSpec(*each) for held in earlier.stored.values() for each in held.items()]
        served = all_topics(topics, earlier.topics, stored) or [DEFAULT_TOPIC]
        settings = tuple(all_settings(earlier.settings, settings))
        _check_served(settings, served)
        brokers = _enough(brokers, earlier, directory)
        replicas = _enough_replicas(replicas, earlier.replicas, directory)
        _tell_of_more(topics, served, directory)
        plan = ClusterPlan(
            data_dir=directory.resolve(),
            ports=ready_ports("--port", port, brokers * replicas),
            zookeeper_port=ready_port("--zookeeper-port", zookeeper_port),
            topics=served,
            durable=flush == "sync",
            session_timeout_ms=round(session_timeout * 1000),
            disk_reserve=disk_reserve,
            replicas=replicas,
            settings=settings,
            apache_jars=apache_jars,
            secure=secure,
        )
        with LocalCluster(plan, lambda text: echo(f"metaq up: {text}", err=True)) as cluster:
            listed = ", ".join(f"{broker_id} at {address}" for broker_id, address in enumerate(cluster.addresses))
            names = [topic.name for topic in served]
            echo(f"zookeeper serves at {cluster.connect_string}; brokers {listed}; topics {', '.join(names)}")
            if cluster.security is None:
                echo(commands_to_try(cluster.connect_string, names[0]))
            else:
                security = cluster.security
                has_tls = security.server_tls is not None
                echo(steps_of_users(cluster.connect_string, names[0], security.profile, zookeeper_tls=has_tls))
            cluster.watch(stop.wait)


def commands_to_try(connect_string: str, topic: str) -> str:
    """Return a text for the user with commands to try on the new cluster."""
    return f"""try, in another terminal:
  export METAQ_ZK={connect_string}
  echo hello | metaq produce --topic {topic}
  metaq consume --topic {topic}
  metaq topics list"""


def steps_of_users(connect_string: str, topic: str, profile: Path, *, zookeeper_tls: bool) -> str:
    """Return a text for the user that leads to a first user of the new cluster, and to a program of this user. profile:
    the admin's profile. zookeeper_tls: whether ZooKeeper has TLS.
    """
    from metaq.protocol.access import AccessGrant, AccessOperation  # a cluster without users starts faster without it

    group = "billing"
    grants = AccessGrant(AccessOperation.SEND, topic), AccessGrant(AccessOperation.CONSUME, topic, group)
    options = " ".join(f"--can {shlex.quote(str(grant))}" for grant in grants)
    literal = json.dumps(topic, ensure_ascii=False)
    if zookeeper_tls:
        here = "ZooKeeper lets everybody on this machine change groups and offsets, but no users, topics and brokers"
    else:
        here = "ZooKeeper has no TLS: any program on this machine can change it"
    return f"""only users may use the brokers, over TLS; {here}
try, in another terminal:
  export METAQ_ZK={connect_string} METAQ_PROFILE={shlex.quote(str(profile))}
  metaq users add app {options} --profile app.ini
and in Python, with METAQ_PROFILE=app.ini:
from metaq import Consumer, Producer
with Producer("{connect_string}") as producer:
    producer.send({literal}, b"hello")
with Consumer("{connect_string}", group="{group}", topics=[{literal}], start="earliest") as consumer:
    print(next(iter(consumer)).payload)"""


def check_secure(secure: bool, earlier: EarlierStarts, directory: Path) -> None:
    """Raise ConfigError if earlier starts on the data directory had --secure and this one has not, or the other way
    round.
    """
    if earlier.secure and not secure:
        remedy = (
            "it was made with --secure, and only users may use its brokers: add --secure, or choose another directory"
        )
        raise ConfigError("--data-dir", directory, remedy)
    if secure and not earlier.secure and earlier.brokers:
        remedy = (
            "it was made without --secure, and everybody may use its brokers: leave --secure out, or choose another "
            "directory"
        )
        raise ConfigError("--data-dir", directory, remedy)


def _check_served(settings: Iterable[TopicSetting], served: Iterable[TopicSpec]) -> None:
    names = sorted(topic.name for topic in served)
    for topic, name, value in settings:
        if topic not in names:
            raise ConfigError("--setting", f"{topic}.{name}={value}", f"choose a topic of {', '.join(names)}")


def _enough(brokers: int | None, earlier: EarlierStarts, directory: Path) -> int:
    """Return the number of brokers to start. Raises ConfigError if `brokers` is so small that a broker with messages in
    its directory would not be started.
    """
    stored = earlier.stored
    needed = max(stored, default=0) + 1
    if brokers is None:
        return max(earlier.brokers, 1)
    if brokers < needed:
        left_out = "; ".join(f"broker-{each}: {', '.join(stored[each])}" for each in sorted(stored) if each >= brokers)
        remedy = f"leaves out messages in {directory} ({left_out}): start {needed} brokers, or move these folders away"
        raise ConfigError("--brokers", brokers, remedy)
    return brokers


def _enough_replicas(replicas: int | None, stored: int, directory: Path) -> int:
    """Return the number of nodes to start for each broker id. Raises ConfigError if this number is lower than in
    earlier starts, because a node that is not started may be the only one that has the last messages.
    """
    if replicas is None:
        return max(stored, 1)
    if replicas < stored:
        remedy = f"would leave nodes out of the broker sets in {directory}: start {stored}, or choose another directory"
        raise ConfigError("--replicas", replicas, remedy)
    return replicas


def _tell_of_more(named: tuple[TopicSpec, ...], served: list[TopicSpec], directory: Path) -> None:
    """If the user names fewer partitions of a topic than exist, tell the user that all existing partitions are
    served.
    """
    counts = dict(served)
    for name, partitions in named:
        if partitions < counts[name]:
            more = f"{counts[name]} partitions are served, because {directory} has them"
            echo(f"metaq up: --topic={name}:{partitions}: {more}", err=True)
