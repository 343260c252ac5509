"""What an import loads: a start costs what it uses. Each module named here takes 10 to 60 ms."""

import subprocess
import sys

import pytest

LARGE = ("numpy", "kazoo.client", "sqlite3", "twisted", "pyarrow", "pandas")


@pytest.mark.parametrize(
    ("imports", "loaded"),
    [
        ("from metaq import Producer", []),
        ("from metaq import Message, ProducerConfig, TopicPartition", []),
        ("import metaq.cli.app", []),
        ("import metaq.cli.topics", ["kazoo.client"]),
        ("from metaq.coordination.standalone_process import StandaloneZooKeeper", []),
        ("import metaq.broker.standalone.__main__", ["twisted"]),
        ("from metaq import Consumer, SharedConsumer", ["numpy", "kazoo.client"]),
    ],
)
def test_an_import_loads_no_large_module_that_it_does_not_use(imports, loaded):
    script = f"{imports}\nimport sys\nprint(*[each for each in {LARGE} if each in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.split() == loaded
