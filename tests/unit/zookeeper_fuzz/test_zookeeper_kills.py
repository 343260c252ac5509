"""What the kills of the standalone ZooKeeper expect of writes."""

from tests.zookeeper_fuzz.jute import OpCode
from tests.zookeeper_fuzz.kills import applied


def test_a_write_changes_the_tree_unless_it_is_refused():
    tree = {"/a": b"1"}
    assert applied(tree, (OpCode.CREATE, "/b", b"2")) == {"/a": b"1", "/b": b"2"}
    assert applied(tree, (OpCode.SET_DATA, "/a", b"2")) == {"/a": b"2"}
    assert applied(tree, (OpCode.DELETE, "/a", b"")) == {}
    for refused in ((OpCode.CREATE, "/a", b"2"), (OpCode.SET_DATA, "/b", b"2"), (OpCode.DELETE, "/b", b"")):
        assert applied(tree, refused) is tree
