"""Test programs that use metaq against real brokers that run inside the test's process.

with Cluster({"trades": 1}) as cluster:
    cluster.producer().send("trades", b"hello", key="k")
    cluster.assert_sent("trades", payload=b"hello", key="k")

The pytest plugin `metaq.testing.plugin`, which is installed with metaq, has such a cluster as the fixture `metaq`.

The names are imported when they are first used, because pytest imports the plugin in every run.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import RealCluster as Cluster
    from .fake_broker import FakeBroker as FakeBroker
    from .fake_broker import FakeCluster as FakeCluster
    from .handling import dead_letters as dead_letters
    from .handling import handle_all as handle_all

__all__ = ["Cluster", "FakeBroker", "FakeCluster", "dead_letters", "handle_all"]

_HOMES = {
    "Cluster": "cluster",
    "FakeBroker": "fake_broker",
    "FakeCluster": "fake_broker",
    "dead_letters": "handling",
    "handle_all": "handling",
}
_DEPRECATED = ("FakeBroker", "FakeCluster")


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    defined_as = "RealCluster" if name == "Cluster" else name  # no two classes of metaq have the same name
    value = getattr(import_module(f"{__name__}.{home}"), defined_as)
    if name in _DEPRECATED:
        warnings.warn(
            f"metaq.testing.{name} only imitates a broker and will be removed in the next release: use "
            "metaq.testing.Cluster or the pytest fixture `metaq`, which run real brokers (docs/testing.md)",
            DeprecationWarning,
            stacklevel=2,
        )
    else:
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
