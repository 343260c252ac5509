"""Detect standard modules that gevent or eventlet has replaced. With such replacements, the client's threads could wait
longer than their timeouts, or for ever.
"""

from __future__ import annotations

import _thread
import queue
import select
import socket

from metaq.protocol.errors import ClientError

__all__ = ["refuse_patched"]

_PATCHERS = ("gevent", "eventlet")


def refuse_patched() -> None:
    """Raise ClientError if gevent or eventlet has replaced a standard module that the client uses. The error names the
    module and the library that has replaced it.
    """
    looked_at = {
        "socket": socket.socket,
        "thread": _thread.start_new_thread,
        "select": select.select,
        "queue": queue.SimpleQueue,
    }
    for name, found in looked_at.items():
        patcher = found.__module__.partition(".")[0]
        if patcher in _PATCHERS:
            raise ClientError(
                f"{patcher} has patched {name}, with which this client does not work: it would wait longer than its "
                "timeouts, or for ever. Use it in a process of its own, or leave out monkey patching there"
            )
