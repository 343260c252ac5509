"""What a start loads: it costs what it uses. Each module named here takes 10 to 60 ms, simplejson 2 and logging 3."""

import subprocess
import sys

import pytest

LARGE = ("numpy", "kazoo.client", "sqlite3", "twisted", "pyarrow", "pandas", "rich.console", "simplejson")
PIPED = "import metaq.cli.topics\nfrom metaq.cli.output import show\nshow(False, None, ('TOPIC',), [('trades',)])"


@pytest.mark.parametrize(
    ("imports", "loaded"),
    [
        ("from metaq import Producer", []),
        ("from metaq import Message, ProducerConfig, TopicPartition", []),
        ("import metaq.cli.app", []),
        (PIPED, ["kazoo.client"]),
        ("from metaq.coordination.standalone_process import StandaloneZooKeeper", []),
        ("import metaq.broker.standalone.__main__", ["twisted"]),
        ("from metaq import Consumer, SharedConsumer", ["numpy", "kazoo.client"]),
    ],
)
def test_an_import_loads_no_large_module_that_it_does_not_use(imports, loaded):
    script = f"{imports}\nimport sys\nprint(*[each for each in {LARGE} if each in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1].split() == loaded


def test_the_help_text_loads_no_command():
    script = "import sys, metaq.cli.app\nprint(metaq.cli.app.run(['--help']), 'logging' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "0 False"


def test_sending_imports_nothing_because_an_interrupted_import_may_lock_all_others_for_ever():
    script = """
import sys
from metaq import Producer
from metaq.testing import FakeBroker, FakeCluster
with FakeBroker({"t": 1}) as broker, Producer(metadata=FakeCluster([broker])) as producer:
    before = set(sys.modules)
    producer.send("t", b"x")
    producer.send_async("t", b"x").result()
    producer.send_batch("t", [b"x"])
    producer.flush()
print(broker.bodies("t", 0), sorted(set(sys.modules) - before))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[b'x', b'x', b'x'] []"
