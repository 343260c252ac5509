"""Which versions of a ZooKeeper server `metaq monitor` warns of."""

import pytest

from metaq.coordination.records.zookeeper_versions import is_unsafe


@pytest.mark.parametrize(
    ("version", "unsafe"),
    [
        ("3.9.5-293c895a8d966a3ecb92872be4a1daf87d725da2", True),
        ("3.9.6-0000000000000000000000000000000000000000", False),
        ("3.10.0", False),
        ("3.8.6-1", True),
        ("3.8.7-1", False),
        ("3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf", True),
        ("3.9.5-metaq-standalone", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_versions_whose_znodes_anybody_can_delete(version, unsafe):
    assert is_unsafe(version) is unsafe
