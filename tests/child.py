"""Something that happens in a process that is forked off this one."""

from __future__ import annotations

import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any

from metaq.protocol.errors import ClientError
from tests.waiting import DEADLINE

__all__ = ["in_child", "refusal"]


def in_child(action: Callable[[], Any]) -> Any:
    """What `action` returns in a forked process, which then ends. Raises AssertionError if it raises or hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = (True, action())
        except BaseException:
            answer = (False, traceback.format_exc())
        os.write(writing, pickle.dumps(answer))  # little: a pipe takes it at once
        os._exit(0)
    os.close(writing)
    try:
        if not select.select([reading], [], [], DEADLINE)[0]:
            os.kill(child, signal.SIGKILL)
            raise AssertionError(f"the child hangs for {DEADLINE:g} s")
        with os.fdopen(reading, "rb", closefd=False) as pipe:
            succeeded, answer = pickle.load(pipe)
    finally:
        os.close(reading)
        os.waitpid(child, 0)
    assert succeeded, answer
    return answer


def refusal(action: Callable[[], object]) -> str:
    """The text of the ClientError that `action` raises."""
    try:
        action()
    except ClientError as error:
        return str(error)
    return f"{action} was not refused"
