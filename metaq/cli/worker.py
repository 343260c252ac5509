"""The command `metaq worker`: run a handler function on the messages of topics, until the worker is stopped."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from metaq.protocol.where import Where, parse_where

from .cluster_access import zk_timeout
from .options import GROUP, POSITIVE_SECONDS, TOPIC, Parsed, zk_option
from .output import echo
from .servers import Stop, die_with_parent, stop_signal
from .worker_handlers import AsyncHandlers, Figures, counted, is_coroutine_function
from .worker_health import Address, health_server
from .worker_processes import Processes

if TYPE_CHECKING:
    from metaq import Consumer, SharedConsumer

__all__ = ["worker"]

MAX_PROCESSES = 256
MAX_THREADS = 1024
"""A consumer's run() takes at most this number of threads."""
_LEVELS = ("debug", "info", "warning", "error")


class HandlerName(NamedTuple):
    """Where a handler or deserializer is: a module and, with dots, the path of an attribute in it."""

    module: str
    path: str

    def __str__(self) -> str:
        return f"{self.module}:{self.path}"


class WorkerTask(NamedTuple):
    """What one worker process does; the fields are the command's options."""

    zk: str
    topics: tuple[str, ...]
    group: str
    shared: bool
    start: str
    tags: tuple[str, ...]
    where: Where | None
    threads: int
    batch: int
    attempts: int | None
    in_order: bool
    stop_seconds: float
    handler: HandlerName
    deserializer: HandlerName | None


def _handler_name(text: str) -> HandlerName:
    module, colon, path = text.partition(":")
    words = (*module.split("."), *path.split("."))
    if not colon or not all(word.isidentifier() for word in words):
        raise ValueError(f"{text!r} names no function: write MODULE:FUNCTION, like shop.orders:handle")
    return HandlerName(module, path)


def _deserializer_name(text: str) -> HandlerName:
    return _SERIALIZERS.get(text) or _handler_name(text)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"{text!r} is no address: write PORT or HOST:PORT, like 8080 or 0.0.0.0:8080")
    return Address(host.strip("[]") or "127.0.0.1", int(port))


_SERIALIZERS = {
    "json": HandlerName("metaq.serializers", "Json"),
    "msgpack": HandlerName("metaq.serializers", "MsgPack"),
}
HANDLER = Parsed("MODULE:FUNCTION", _handler_name)


@click.command()
@click.argument("handler", type=HANDLER, metavar="MODULE:FUNCTION")
@zk_option
@click.option("--topic", "-t", "topics", type=TOPIC, multiple=True, required=True, help="A topic; repeat for more.")
@click.option("--group", "-g", type=GROUP, required=True, help="The consumer group, or with --shared the shared group.")
@click.option("--shared", is_flag=True, help="Join a shared group: each message goes to any worker that is free.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where the group begins in partitions that it has never read.",
)
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; repeat for more.")
@click.option("--where", "filter_", type=Parsed("FILTER", parse_where), help="Only messages that match this filter.")
@click.option(
    "--threads",
    type=click.IntRange(1, MAX_THREADS),
    default=1,
    show_default=True,
    help="How many messages each process handles at the same time.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, MAX_PROCESSES),
    default=1,
    show_default=True,
    help="How many processes run the handler. A process that ends is started again.",
)
@click.option("--batch", type=click.IntRange(1), help="Give the handler a list of up to so many messages.")
@click.option(
    "--attempts", type=click.IntRange(1), help="After so many failures a message becomes a dead letter. [default: 16]"
)
@click.option("--in-order", is_flag=True, help="A failed message holds up its partition until it is done with.")
@click.option(
    "--deserializer",
    type=Parsed("json|msgpack|MODULE:OBJECT", _deserializer_name),
    help="Decodes `message.value` for the handler; a class is called without arguments.",
)
@click.option(
    "--stop-timeout",
    "stop_seconds",
    type=POSITIVE_SECONDS,
    default=10.0,
    show_default=True,
    help="How long a stop waits for running handlers.",
)
@click.option("--health", type=Parsed("[HOST:]PORT", _address), help="Answer GET /health on this port, with JSON.")
@click.option(
    "--reload", is_flag=True, help="For development: start again when a .py file below this directory changes."
)
@click.option(
    "--log-level", type=click.Choice(_LEVELS), default="info", show_default=True, help="Of the log on stderr."
)
@click.option("--child-of", type=int, hidden=True, help="The process that starts this one again when it ends.")
def worker(
    handler: HandlerName,
    zk: str,
    topics: tuple[str, ...],
    group: str,
    shared: bool,
    start: str,
    tags: tuple[str, ...],
    filter_: Where | None,
    threads: int,
    processes: int,
    batch: int | None,
    attempts: int | None,
    in_order: bool,
    deserializer: HandlerName | None,
    stop_seconds: float,
    health: Address | None,
    reload: bool,
    log_level: str,
    child_of: int | None,
) -> int:
    """Call a function with each message of topics, as a member of a group, until Ctrl-C or SIGTERM.

    A message counts as consumed when the function has returned. If the function raises an exception, the message comes
    again after a pause, and after --attempts failures it goes to the group's dead letters (`metaq dead-letters`). A
    function that is declared with `async def` runs on an event loop; then --threads is how many of its calls run at
    the same time. The module is looked up in the present directory first.

    \b
    Example: the file shop.py has the function `def handle(message): print(message.payload)`
      metaq worker shop:handle --topic orders --group billing
      metaq worker shop:handle --topic orders --group billing --processes 4 --threads 8 --health 8080
      metaq worker shop:handle --topic jobs --group jobs --shared --attempts 5
    """
    for given, option in ((batch, "--batch"), (in_order or None, "--in-order")):
        if shared and given is not None:
            raise click.BadParameter("a shared group has no order and no batches: leave it out", param_hint=option)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    task = WorkerTask(
        zk, topics, group, shared, start, tags, filter_, threads, batch or 0, attempts, in_order, stop_seconds,
        handler, deserializer,
    )  # fmt: skip
    if child_of is None and (processes > 1 or reload):
        return _supervise(task, processes, health, reload)
    if child_of is not None:
        die_with_parent(child_of)
    return _work(task, health)


def _supervise(task: WorkerTask, count: int, health: Address | None, reload: bool) -> int:
    directory = os.getcwd()  # the module may change it
    _load(task.handler)  # a handler that cannot be imported is told once
    workers = Processes(sys.argv[1:], count, task.stop_seconds, directory)
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signal())
        if health is not None:
            stack.enter_context(health_server(health, workers.health))
        code = workers.run(stop, directory if reload else None)
    if stop.interrupted:
        raise KeyboardInterrupt
    return code


def _work(task: WorkerTask, health: Address | None) -> int:
    """Handle messages in this process until a signal stops it."""
    handler = _load(task.handler)
    if not callable(handler):
        raise click.BadParameter(f"{task.handler} is a {type(handler).__name__}: name a function", param_hint="HANDLER")
    deserializer = None if task.deserializer is None else _load(task.deserializer)
    if isinstance(deserializer, type):
        deserializer = deserializer()
    figures = Figures()
    with ExitStack() as stack:
        stop = stack.enter_context(stop_signal())
        if health is not None:
            stack.enter_context(health_server(health, figures.health))
        if is_coroutine_function(handler):
            handler = stack.enter_context(AsyncHandlers(handler))
        consumer = _consumer(task, deserializer)
        stack.enter_context(consumer)
        threading.Thread(
            target=_stop_when, args=(stop, consumer, figures), name="metaq-worker-stop", daemon=True
        ).start()
        figures.state = "running"
        echo(f"metaq worker: {task.handler} handles {', '.join(task.topics)} in the group {task.group}", err=True)
        _run(consumer, task, counted(handler, figures))
    if stop.interrupted:
        raise KeyboardInterrupt  # the consumer has left its group
    return 0


def _consumer(task: WorkerTask, deserializer: Any) -> Consumer | SharedConsumer:
    from metaq import Consumer, ConsumerConfig, SharedConfig, SharedConsumer  # imports kazoo

    seconds: dict[str, Any] = {"start_timeout_seconds": zk_timeout(), "stop_seconds": task.stop_seconds}
    options: dict[str, Any] = {
        "group": task.group,
        "topics": task.topics,
        "start": task.start,
        "tags": task.tags or None,
        "where": None if task.where is None else task.where.text,
        "deserializer": deserializer,
    }
    if task.shared:
        return SharedConsumer(task.zk, config=SharedConfig(**seconds), **options)
    return Consumer(task.zk, config=ConsumerConfig(**seconds), **options)


def _run(consumer: Consumer | SharedConsumer, task: WorkerTask, handler: Callable[[Any], object]) -> None:
    """Call the handler until the consumer is stopped."""
    from metaq import Consumer, Retry

    named: dict[str, Any] = {"threads": task.threads}
    if task.attempts is not None or task.in_order:
        named["retry"] = Retry(ordered=task.in_order, **({} if task.attempts is None else {"attempts": task.attempts}))
    if isinstance(consumer, Consumer) and task.batch:
        consumer.run_batches(handler, max_messages=task.batch, **named)
    else:
        consumer.run(handler, **named)


def _stop_when(stop: Stop, consumer: Consumer | SharedConsumer, figures: Figures) -> None:
    stop.wait()
    figures.state = "stopping"
    consumer.stop()


def _load(name: HandlerName) -> Any:
    """Import the module, and return the object that `name` names."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = import_module(name.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name.module}.".startswith(f"{error.name}."):
            raise click.ClickException(f"{name}: {name.module} imports {error.name}, which is not there") from error
        raise click.BadParameter(
            f"{name}: there is no module {error.name} in {os.getcwd()} nor among the installed ones",
            param_hint="MODULE:FUNCTION",
        ) from error
    for word in name.path.split("."):
        if not hasattr(found, word):
            raise click.BadParameter(f"{name}: {name.module} has no {name.path}", param_hint="MODULE:FUNCTION")
        found = getattr(found, word)
    return found
