"""The nodes of a run, and what ZooKeeper says about their sets."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from metaq.coordination.session.zk_session import ZkSession
from metaq.coordination.sets.set_view import SetView, read_set
from metaq.protocol.errors import MetaqError
from tests.broker_process import server_ini
from tests.kills.brokers import BrokerPlace
from tests.kills.children import wait_until
from tests.kills.journal import Journal
from tests.segment_files import segments

from .disks import Disk
from .network import Host

__all__ = ["SESSION_SECONDS", "NodePlace", "SetWatcher", "topics"]

SESSION_SECONDS = 4.0
_SEGMENT_BYTES = 256 << 10
"""Small, so that segments roll during a run."""
_LOOK_SECONDS = 0.2
_START_SECONDS = 120.0


def topics(min_in_sync: int) -> Mapping[str, str]:
    """Name -> lines of its section. `asked` and `told` are the prober's alone."""
    least = f"minInSync={min_in_sync}"
    return {
        "memory": f"numPartitions=2\nack=in-sync\n{least}",
        "disk": f"numPartitions=2\nack=disk\nunflushThreshold=0\n{least}",
        "loose": "numPartitions=1\nack=leader",
        "asked": f"numPartitions=1\nack=in-sync\n{least}",
        "told": "numPartitions=1\nack=leader",
    }


class NodePlace(BrokerPlace):
    """A node, which keeps its host and its disk, too. name: unique in the run, the set's id and the node's own name."""

    def __init__(
        self, directory: Path, set_id: int, name: str, host: Host, port: int, connect: str, topics: Mapping[str, str]
    ) -> None:
        self.set_id = set_id
        self.node = name
        self.address = f"{host.address}:{port}"
        self.disk = Disk(directory / f"{set_id}{name}")
        self.data = self.disk.path / "data"
        session = f"zk.zkSessionTimeoutMs={int(SESSION_SECONDS * 1000)}"
        ini = server_ini(
            self.data,
            topics,
            broker_id=set_id,
            unflush_threshold=1000,
            zookeeper=f"zk.zkConnect={connect}\n{session}\nzk.zkSyncTimeMs=100",
            max_segment_size=_SEGMENT_BYTES,
        )
        super().__init__(
            directory / f"{set_id}{name}",
            ini.replace("127.0.0.1", host.address),
            port,
            ["-m", "metaq", "broker", "--node", name, "--admin-from", "any", "--disk-reserve", "0", "-f"],
            # the host's prefix last: what `env` sets is the node's, too
            (*host.prefix, *self.disk.prefix),
        )

    def segments(self) -> dict[str, bytes]:
        """The partition files by their path in the data directory; a follower has no empty ones."""
        return {path: content for path, content in segments(self.data).items() if content}

    def kept(self) -> list[str]:
        """What the node has cut off and kept."""
        return sorted(str(each.relative_to(self.data)) for each in self.data.glob("*/*.damaged-*"))


class SetWatcher:
    """Reads the sets several times a second, on a thread of its own, and writes changes down."""

    def __init__(self, connect: str, set_ids: Sequence[int], journal: Journal) -> None:
        self.views: dict[int, SetView] = {}
        """What was read last; whoever reads a set here does not change it."""
        self._session = ZkSession(connect, session_timeout=30.0)
        self._ids = set_ids
        self._journal = journal
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sets", daemon=True)

    def start(self) -> None:
        self._session.start(60.0, create_chroot=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._session.close()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for set_id in self._ids:
                try:
                    view = read_set(self._session, set_id)
                except MetaqError as error:
                    self._journal.write("unread", set_id, str(error))
                    continue
                before = self.views.get(set_id)
                self.views[set_id] = view
                if before is None or (before.state, before.nodes, before.master) != (
                    view.state,
                    view.nodes,
                    view.master,
                ):
                    state = view.state
                    told = (state.epoch, state.leader, state.in_sync) if state else (0, "", ())
                    self._journal.write("set", set_id, *told, sorted(view.nodes), view.master is not None)

    def leader(self, set_id: int) -> tuple[int, str]:
        """Epoch and leader; (0, "") if there is none."""
        view = self.views.get(set_id)
        return (view.state.epoch, view.state.leader) if view is not None and view.state is not None else (0, "")

    def healthy(self, set_id: int, names: Sequence[str]) -> bool:
        """Whether all these nodes are in sync, and one of them leads."""
        view = self.views.get(set_id)
        return bool(
            view is not None
            and view.state is not None
            and view.master is not None
            and view.state.leader in names
            and sorted(view.state.in_sync) == sorted(names)
            and sorted(view.nodes) == sorted(names)
        )

    def wait_healthy(self, set_id: int, names: Sequence[str], seconds: float) -> bool:
        """Whether that comes true in time."""
        return wait_until(lambda: self.healthy(set_id, names), seconds, _LOOK_SECONDS)
