"""Every Python example of docs/client.md, docs/asyncio.md and docs/filters.md runs as it stands, on a real cluster."""

import re
import signal
from pathlib import Path

import pytest

from tests.integration.client_cluster import running_brokers

PAGES = [Path(__file__).resolve().parents[2] / "docs" / name for name in ("client.md", "asyncio.md", "filters.md")]
TEXT = "".join(page.read_text("utf-8") for page in PAGES)
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_page_has_examples():
    assert len(EXAMPLES) >= 7


@pytest.fixture(scope="module")
def cluster(zookeeper, tmp_path_factory):
    connect = f"{zookeeper.connect_string}/docs"
    with running_brokers(
        connect,
        tmp_path_factory.mktemp("docs"),
        {"trades": 2, "orders": 1, "questions": 1, "%REPLY%": 1, "logs": "1\nacceptCompressed=true"},
    ) as brokers:
        yield {"localhost:2181": connect, "broker-1:8123": f"127.0.0.1:{brokers.running[0].port}"}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(cluster, number, capsys, tmp_path):
    source = EXAMPLES[number]
    for shown, real in (*cluster.items(), ("/var/lib/app", str(tmp_path))):
        source = source.replace(shown, real)
    before = signal.getsignal(signal.SIGTERM)
    try:
        exec(compile(source, f"docs, example {number + 1}", "exec"), {})
    finally:
        signal.signal(signal.SIGTERM, before)
