"""What the groups have committed in the end is seen, or the history is not judged."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kazoo.exceptions import ConnectionLoss

from tests.history import watcher
from tests.history.watcher import CommitWatcher, commits_in
from tests.kills.journal import read_journal


class Answer:
    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self, timeout: float) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Away:
    """A ZooKeeper that does not answer `failures` looks."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def get_children_async(self, path: str) -> Answer:
        self.failures -= 1
        return Answer(ConnectionLoss() if self.failures >= 0 else ["0-0"])

    def get_async(self, path: str) -> Answer:
        return Answer((b"7-90", SimpleNamespace(mzxid=5)))

    def stop(self) -> None:
        pass

    close = stop


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommitWatcher:
    monkeypatch.setattr(watcher, "_LOOK_SECONDS", 0.0)
    watching = CommitWatcher("127.0.0.1:1", ["g"], ["t"], tmp_path / "commits.journal")
    watching._stopping.set()
    return watching


def test_the_last_look_is_repeated_until_zookeeper_answers(watching: CommitWatcher, tmp_path: Path) -> None:
    watching.zk = cast(Any, Away(failures=3))
    watching._thread.start()
    watching.close()
    assert watching.missed == 3
    (commit,) = commits_in(read_journal(tmp_path / "commits.journal"))
    assert (commit.group, commit.partition, commit.offset, commit.zxid) == ("g", "t 0-0", 90, 5)


def test_a_history_whose_end_was_not_seen_is_an_error(watching: CommitWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_LAST_LOOK_SECONDS", 0.0)
    watching.zk = cast(Any, Away(failures=3))
    watching._thread.start()
    with pytest.raises(RuntimeError, match="did not answer the last look"):
        watching.close()


def test_what_is_seen_after_zookeeper_was_set_back_is_of_another_era(watching: CommitWatcher, tmp_path: Path) -> None:
    watching.zk = cast(Any, Away(failures=0))
    watching._note("g", "t")
    watching.set_back()
    watching._known.clear()
    watching._note("g", "t")
    assert watching.zk.last_zxid == 0
    assert [each.era for each in commits_in(read_journal(tmp_path / "commits.journal"))] == [0, 1]
