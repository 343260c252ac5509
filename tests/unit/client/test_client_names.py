"""What ZooKeeper does not take in a path is refused before anything is sent."""

import pytest

from metaq.client.zookeeper import ZooKeeperMetadata
from metaq.coordination.group import GroupMembership
from metaq.coordination.session import ZkSession
from metaq.protocol.errors import InvalidName

REFUSED = ["a\x85", "a\ue000", "a\uffff", "a\U0001f600"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_zookeeper_does_not_take_is_refused(name):
    session = ZkSession("localhost:1", "/meta", 1.0)
    for group, topic in ((name, "t"), ("g", name)):
        with pytest.raises(InvalidName, match="ZooKeeper does not take"):
            GroupMembership(session, group, None, [topic], lambda: None)
    with pytest.raises(InvalidName, match="ZooKeeper does not take"):
        ZooKeeperMetadata("localhost:1", "/meta", 1.0, session=session).view(name)
