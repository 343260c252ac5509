"""What `metaq worker` counts, and what its processes are started with. Real ones: tests/integration/test_worker.py."""

import asyncio
import sys

import pytest

from metaq.cli import app
from metaq.cli.worker_handlers import AsyncHandlers, Figures, counted, is_coroutine_function
from metaq.cli.worker_processes import Processes, _stamps, _without_parents


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_messages_are_counted_by_how_their_call_ended():
    clock = Clock()
    figures = Figures(clock)
    assert figures.health() == (
        False,
        {"state": "starting", "handled": 0, "failed": 0, "running": 0, "longest_seconds": 0.0},
    )
    figures.state = "running"
    seen = []

    def handler(given):
        clock.now += 2
        seen.append(figures.health()[1])
        if given == "bad":
            raise ValueError(given)

    handle = counted(handler, figures)
    handle("good")
    handle(["a", "b", "c"])
    with pytest.raises(ValueError, match="bad"):
        handle("bad")
    assert [(each["running"], each["longest_seconds"]) for each in seen] == [(1, 2.0)] * 3
    assert figures.health() == (
        True,
        {"state": "running", "handled": 4, "failed": 1, "running": 0, "longest_seconds": 0.0},
    )
    figures.state = "stopping"
    assert not figures.health()[0]


def test_coroutine_functions_run_on_one_loop_and_raise_to_the_caller():
    loops = []

    class Handler:
        async def __call__(self, given):
            loops.append(asyncio.get_running_loop())
            if given == "bad":
                raise ValueError(given)

    async def function(given):
        pass

    assert is_coroutine_function(Handler())
    assert is_coroutine_function(function)
    assert not is_coroutine_function(print)
    with AsyncHandlers(Handler()) as handle:
        handle("good")
        with pytest.raises(ValueError, match="bad"):
            handle("bad")
    assert len(loops) == 2
    assert loops[0] is loops[1]
    assert loops[0].is_closed()


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["--zk", "a", "worker", "m:f", "--health", "80", "-t", "t"], ["--zk", "a", "worker", "m:f", "-t", "t"]),
        (["worker", "m:f", "--reload", "--health=80"], ["worker", "m:f"]),
    ],
)
def test_a_child_does_not_serve_health_nor_look_at_files(given, left):
    assert list(_without_parents(given)) == left
    command = Processes(given, 2, 10.0, "/")._command
    assert command[:3] == [sys.executable, "-m", "metaq"]
    assert command[3:-4] == left
    assert command[-4:-1] == ["--processes", "1", "--child-of"]


def test_the_watched_files_are_python_s_and_not_hidden(tmp_path):
    for name in ("a.py", "b.txt", "sub/c.py", ".venv/d.py", "__pycache__/e.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert sorted(_stamps(str(tmp_path))) == [str(tmp_path / "a.py"), str(tmp_path / "sub/c.py")]
    assert _stamps(None) == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["m:f", "-t", "t", "-g", "g", "--shared", "--batch", "2"], "a shared group has no order and no batches"),
        (["m:f", "-t", "t", "-g", "g", "--shared", "--in-order"], "a shared group has no order and no batches"),
        (["m", "-t", "t", "-g", "g"], "write MODULE:FUNCTION"),
        (["m:f", "-t", "t", "-g", "g", "--health", "x"], "write PORT or HOST:PORT"),
        (["m:f", "-t", "t", "-g", "g", "--deserializer", "yaml"], "write MODULE:FUNCTION"),
    ],
)
def test_wrong_options_are_told(arguments, said, capsys):
    assert app.run(["worker", *arguments]) == 2
    assert said in capsys.readouterr().err
