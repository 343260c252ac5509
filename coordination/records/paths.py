"""Build the paths and names of all znodes of metaq. No other file makes paths by joining names with "/". zk_paths.md
documents each path.
"""

from __future__ import annotations

from metaq.protocol.errors import InvalidName
from metaq.protocol.limits import check_znode

__all__ = [
    "DEFAULT_ROOT",
    "ROOT",
    "Paths",
    "ancestors",
    "child_of",
    "parent_of",
    "partition_name",
    "replica_name",
    "split_connect_string",
]

ROOT = "/"
"""The path of the topmost znode that this client sees. With a chroot it is the chroot's own znode, otherwise the root
of ZooKeeper's tree.
"""

DEFAULT_ROOT = "/meta"
"""The default path below which metaq keeps its znodes. The setting zk.zkRoot of metaq 1.x has the same default
(zookeeper.md §1).
"""


class Paths:
    """Builds paths below one root. The methods are pure. zk_paths.md describes the znode of each method.

    root: the path below which metaq keeps its znodes, as zk.zkRoot in 1.x. A missing "/" at the beginning is added, and
    a "/" at the end is removed; "" and "/" mean the chroot. The names of topics, groups and the like come from users
    and from the network. So the methods raise InvalidName for a name, such as one with "/", that would make a path to
    another znode.
    """

    def __init__(self, root: str = DEFAULT_ROOT) -> None:
        self.root = _join("", *(part for part in root.split("/") if part))

    # --- brokers ----------------------------------------------------------------------------------------------------

    def broker_ids(self) -> str:
        return _join(self.root, "brokers", "ids")

    def broker(self, broker_id: int) -> str:
        return _join(self.broker_ids(), str(broker_id))

    def master(self, broker_id: int) -> str:
        return _join(self.broker(broker_id), "master")

    def slave(self, broker_id: int, slave_id: int) -> str:
        return _join(self.broker(broker_id), f"slave{slave_id}")

    def master_config_checksum(self, broker_id: int) -> str:
        return _join(self.broker(broker_id), "master_config_checksum")

    def broker_zones(self) -> str:
        return _join(self.root, "brokers", "zones")

    def broker_zone(self, broker_id: int) -> str:
        return _join(self.broker_zones(), str(broker_id))

    def broker_listeners_parent(self) -> str:
        return _join(self.root, "brokers", "listeners")

    def broker_listeners(self, broker_id: int) -> str:
        return _join(self.broker_listeners_parent(), str(broker_id))

    # --- broker sets ------------------------------------------------------------------------------------------------

    def broker_sets(self) -> str:
        return _join(self.root, "brokers", "sets")

    def broker_set(self, broker_id: int) -> str:
        return _join(self.broker_sets(), str(broker_id))

    def set_nodes(self, broker_id: int) -> str:
        return _join(self.broker_set(broker_id), "nodes")

    def set_node(self, broker_id: int, node: str) -> str:
        return _join(self.set_nodes(broker_id), node)

    # --- moves ------------------------------------------------------------------------------------------------------

    def moves(self) -> str:
        return _join(self.root, "brokers", "moves")

    def topic_moves(self, topic: str) -> str:
        return _join(self.moves(), topic)

    def move(self, topic: str, partition: str) -> str:
        return _join(self.topic_moves(topic), partition)

    # --- topics -----------------------------------------------------------------------------------------------------

    def topics(self) -> str:
        return _join(self.root, "brokers", "topics")

    def topic(self, topic: str) -> str:
        return _join(self.topics(), topic)

    def topic_broker(self, topic: str, replica: str) -> str:
        return _join(self.topic(topic), replica)

    def topics_pub(self) -> str:
        return _join(self.root, "brokers", "topics-pub")

    def topic_pub(self, topic: str) -> str:
        return _join(self.topics_pub(), topic)

    def topic_pub_broker(self, topic: str, replica: str) -> str:
        return _join(self.topic_pub(topic), replica)

    def topics_sub(self) -> str:
        return _join(self.root, "brokers", "topics-sub")

    def topic_sub(self, topic: str) -> str:
        return _join(self.topics_sub(), topic)

    def topic_sub_broker(self, topic: str, replica: str) -> str:
        return _join(self.topic_sub(topic), replica)

    # --- consumer groups --------------------------------------------------------------------------------------------

    def groups(self) -> str:
        return _join(self.root, "consumers")

    def group_ids(self, group: str) -> str:
        return _join(self.groups(), group, "ids")

    def consumer(self, group: str, consumer_id: str) -> str:
        return _join(self.group_ids(group), consumer_id)

    def group_zones(self, group: str) -> str:
        return _join(self.groups(), group, "zones")

    def consumer_zone(self, group: str, consumer_id: str) -> str:
        return _join(self.group_zones(group), consumer_id)

    def group_filters(self, group: str) -> str:
        return _join(self.groups(), group, "filters")

    def consumer_filter(self, group: str, consumer_id: str) -> str:
        return _join(self.group_filters(group), consumer_id)

    def group_begun(self, group: str) -> str:
        return _join(self.groups(), group, "begun")

    def begun_of_topic(self, group: str, topic: str) -> str:
        return _join(self.group_begun(group), topic)

    def begun(self, group: str, topic: str, partition: str) -> str:
        return _join(self.begun_of_topic(group, topic), partition)

    def group_owners(self, group: str) -> str:
        return _join(self.groups(), group, "owners")

    def owners(self, group: str, topic: str) -> str:
        return _join(self.group_owners(group), topic)

    def owner(self, group: str, topic: str, partition: str) -> str:
        return _join(self.owners(group, topic), partition)

    def group_offsets(self, group: str) -> str:
        return _join(self.groups(), group, "offsets")

    def offsets(self, group: str, topic: str) -> str:
        return _join(self.group_offsets(group), topic)

    def offset(self, group: str, topic: str, partition: str) -> str:
        return _join(self.offsets(group, topic), partition)

    # --- Spark ------------------------------------------------------------------------------------------------------

    def spark_writes(self) -> str:
        return _join(self.root, "spark", "writes")

    def spark_write(self, query_id: str) -> str:
        return _join(self.spark_writes(), query_id)

    # --- users and grants -------------------------------------------------------------------------------------------

    def security(self) -> str:
        return _join(self.root, "security")

    def acl_policy(self) -> str:
        return _join(self.security(), "acl")

    def users(self) -> str:
        return _join(self.security(), "users")

    def user(self, user: str) -> str:
        return _join(self.users(), user)


def replica_name(broker_id: int, slave_id: int | None = None) -> str:
    """Return the name of a broker's znode below a topic: `0-m` for the master of broker 0, `0-s1` for its slave 1."""
    return f"{broker_id}-m" if slave_id is None else f"{broker_id}-s{slave_id}"


def partition_name(broker_id: int, partition: int) -> str:
    """Return the name of a partition's znode below owners and offsets: `<brokerId>-<partition>`."""
    return f"{broker_id}-{partition}"


def child_of(path: str, name: str) -> str:
    """Return the path of the child `name` of the znode `path`. `name` must come from ZooKeeper's list of the children,
    because it is not checked.
    """
    return _join(path, name)


def parent_of(path: str) -> str:
    """Return the path of the parent of `path`, or "" if the parent is the root of the tree."""
    return path.rpartition("/")[0]


def ancestors(path: str) -> list[str]:
    """Return the paths of all ancestors of `path`, the topmost first, without the root of the tree."""
    parts = path.split("/")[1:-1]
    return [_join("", *parts[: n + 1]) for n in range(len(parts))]


def split_connect_string(connect: str) -> tuple[str, str]:
    """Split a connect string such as `host:port,host:port/chroot` into the part with the hosts and the chroot. The
    chroot is "" if the string has none.
    """
    hosts, slash, chroot = connect.partition("/")
    chroot = chroot.strip("/")
    return hosts, slash + chroot if chroot else ""


def _join(parent: str, *names: str) -> str:
    for name in names:
        if not name or name in (".", "..") or "/" in name or "\0" in name:
            raise InvalidName(f"{name!r} cannot be the name of a znode: use a name without '/'")
        check_znode("znode", name)
    return "/".join((parent, *names))
