"""Hosts of a run: network namespaces on one bridge, between any two of which one direction can be cut.

Who owns an address is written down on every host (permanent neighbours). A direction is cut by the hardware address of
nobody: what is sent is lost without a word, as with a broken cable; open connections stay and go on when it is healed.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kills.children import Child

from .isolation import is_isolated, tool

__all__ = ["CLIENTS", "Host", "Network", "OneHost"]

CLIENTS = "clients"
"""The host of everything that is neither a node nor ZooKeeper: this process's own namespace."""

_NOBODY = "02:ff:ff:ff:ff:ff"
_BRIDGE = "bridge"


@dataclass(frozen=True, slots=True)
class Host:
    """prefix: of a command that is to run there."""

    name: str
    address: str
    prefix: Sequence[str] = ()


class OneHost:
    """Without namespaces: all hosts are this one, and nothing can be cut."""

    def add(self, name: str) -> Host:
        return Host(name, "127.0.0.1")

    def cut(self, source: str, target: str) -> None:
        raise RuntimeError(f"the way from {source} to {target} cannot be cut without namespaces")

    def heal(self) -> None:
        """Nothing is cut."""


class Network:
    """In namespaces of our own only. Add all hosts, then cut. One thread."""

    def __init__(self, directory: Path) -> None:
        assert is_isolated()
        self.cuts: set[tuple[str, str]] = set()
        self._directory = directory
        self._macs: dict[str, str] = {}
        self._hosts: dict[str, Host] = {}
        self._holders: list[Child] = []
        self._devices: list[str] = []
        _ip("link", "set", "lo", "up")
        self._macs[CLIENTS] = "02:00:00:00:00:01"
        self._hosts[CLIENTS] = Host(CLIENTS, "10.7.0.1")
        _ip("link", "add", _BRIDGE, "address", self._macs[CLIENTS], "type", "bridge")
        _ip("addr", "add", "10.7.0.1/16", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")

    def add(self, name: str) -> Host:
        """A host more, which every other one reaches."""
        number = len(self._hosts) + 1
        holder = Child(["-c", "import time; time.sleep(1e6)"], self._directory / f"{name}.host", prefix=_own_network())
        self._holders.append(holder)
        pid = str(holder.process.pid)
        own = Path("/proc/self/ns/net").readlink()
        while Path(f"/proc/{pid}/ns/net").readlink() == own:  # it is not in its namespace yet
            assert holder.running, holder.log.read_text()
            time.sleep(0.01)
        host = Host(name, f"10.7.1.{number}", (tool("nsenter"), "-t", pid, "-n", "--"))
        outside, inside = f"host{number}", f"net{number}"
        mac = self._macs[name] = f"02:00:00:00:01:{number:02x}"
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside)
        self._devices.append(outside)
        _ip("link", "set", inside, "netns", pid)
        _ip("link", "set", outside, "master", _BRIDGE, "up")
        _ip("link", "set", "lo", "up", on=host)
        _ip("link", "set", inside, "name", "eth0", "address", mac, "up", on=host)
        _ip("addr", "add", f"{host.address}/16", "dev", "eth0", on=host)
        self._hosts[name] = host
        for other in self._hosts:
            if other != name:
                self._reach(name, other, self._macs[other])
                self._reach(other, name, mac)
        return host

    def _reach(self, source: str, target: str, mac: str) -> None:
        device = _BRIDGE if source == CLIENTS else "eth0"
        address = self._hosts[target].address
        words = ("neigh", "replace", address, "lladdr", mac, "dev", device, "nud", "permanent")
        _ip(*words, on=self._hosts[source])

    def cut(self, source: str, target: str) -> None:
        """Lose everything that `source` sends to `target`."""
        self.cuts.add((source, target))
        self._reach(source, target, _NOBODY)

    def heal(self) -> None:
        """All ways are open."""
        for source, target in self.cuts:
            self._reach(source, target, self._macs[target])
        self.cuts.clear()

    def close(self) -> None:
        for outside in self._devices:  # a namespace that ends takes its devices away at some later time
            _ip("link", "del", outside)
        for holder in self._holders:
            holder.kill()
        _ip("link", "del", _BRIDGE)


def _own_network() -> Sequence[str]:
    return tool("unshare"), "--net", "--"


def _ip(*words: str, on: Host | None = None) -> None:
    prefix = () if on is None else on.prefix
    done = subprocess.run([*prefix, tool("ip"), *words], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
