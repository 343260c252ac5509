"""What a session says about settings that cannot work; the rest of it is tested with a real ZooKeeper."""

import pytest

from metaq.coordination.groups.membership import GroupMembership
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import ConfigError, InvalidName, SessionLost


@pytest.mark.parametrize("connect", ["", "/chroot", ",", "h:port", "h:1,:2", "h:1/../x", "h:99999"])
def test_a_connect_string_that_cannot_be_one_is_refused_with_the_remedy(connect: str):
    with pytest.raises(ConfigError, match="use host:port") as raised:
        ZkSession(connect)
    assert repr(connect) in str(raised.value)


def test_before_its_start_there_is_no_session():
    session = ZkSession("127.0.0.1:1")
    assert not session.alive
    assert not session.connected
    assert session.suspended_seconds == 0.0
    with pytest.raises(SessionLost, match=r"127\.0\.0\.1:1"):
        _ = session.session_id
    session.close()


@pytest.mark.parametrize(
    ("group", "consumer", "topics", "error"),
    [
        ("g g", None, ["t"], InvalidName),
        ("g", "a/b", ["t"], InvalidName),
        ("g", None, ["a/b"], InvalidName),
        ("g", None, ["a,b"], InvalidName),
        ("g", None, [], ConfigError),
    ],
)
def test_a_member_with_names_that_cannot_be_nodes_is_refused(group, consumer, topics, error):
    with pytest.raises(error):
        GroupMembership(ZkSession("127.0.0.1:1"), group, consumer, topics, lambda: None)
