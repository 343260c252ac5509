"""A session is proved from the moment of asking, and only by an answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from metaq.coordination.session.zk_session import SessionProof, ZkSession


class Answer:
    """What kazoo returns at once; `come` is its answer's arrival."""

    def rawlink(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def come(self, successful: bool = True) -> None:
        self._callback(SimpleNamespace(successful=lambda: successful))


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[Answer] = []
        self.session = SimpleNamespace(connected=True, zk=SimpleNamespace(exists_async=self._ask))
        self.proof = SessionProof(cast(ZkSession, self.session), lambda: self.now)

    def _ask(self, _path: str) -> Answer:
        self.asked.append(Answer())
        return self.asked[-1]


def test_an_answer_proves_the_moment_at_which_it_was_asked_for() -> None:
    scene = Scene()
    scene.now = 110.0
    scene.proof.renew()
    assert scene.proof.age_seconds == 10.0
    scene.now = 115.0
    scene.asked[0].come()
    assert scene.proof.age_seconds == 5.0


def test_a_late_answer_proves_nothing_new() -> None:
    scene = Scene()
    scene.proof.renew()
    scene.now = 120.0
    scene.proof.renew()
    scene.asked[1].come()
    scene.asked[0].come()
    assert scene.proof.age_seconds == 0.0


def test_a_failure_proves_nothing_and_without_a_server_nobody_is_asked() -> None:
    scene = Scene()
    scene.now = 110.0
    scene.proof.renew()
    scene.asked[0].come(successful=False)
    scene.session.connected = False
    scene.proof.renew()
    assert len(scene.asked) == 1
    assert scene.proof.age_seconds == 10.0
