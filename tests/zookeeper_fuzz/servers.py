"""The servers that are compared."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

from metaq.coordination.embedded import EmbeddedZooKeeper

__all__ = ["MAX_SESSION_MS", "MIN_SESSION_MS", "NEVER_MS", "TICK_MS", "ApacheServer"]

MIN_SESSION_MS = 1000
"""What a session gets that is to expire, and within which its few requests are made."""
TICK_MS = MIN_SESSION_MS // 2

MAX_SESSION_MS = 3_600_000
"""No run takes so long that a session that was left alone ends by itself."""

NEVER_MS = 2_000_000_000
"""Between looks at containers and times to live: when one vanishes is a matter of clocks."""

_SETTINGS = {
    "extendedTypesEnabled": "true",  # nodes with a time to live
    "forceSync": "no",
}


_JAVA_OPTIONS = f"-Dznode.container.checkIntervalMs={NEVER_MS}"
"""zoo.cfg cannot say this."""


class ApacheServer(EmbeddedZooKeeper):
    """Apache's, with all that a client can ask of it switched on. Its disk is not what is compared."""

    def __init__(self, data_dir: Path, **options: Any) -> None:
        super().__init__(
            data_dir,
            tick_time_ms=TICK_MS,
            max_session_timeout_ms=MAX_SESSION_MS,
            heap_mb=512,
            **options,
        )

    def start(self, timeout: float = 60.0) -> None:
        with mock.patch.dict(os.environ, JDK_JAVA_OPTIONS=_JAVA_OPTIONS):
            super().start(timeout)

    def _write_config(self) -> Path:
        config = super()._write_config()
        with config.open("a", encoding="utf-8") as lines:
            lines.writelines(f"{key}={value}\n" for key, value in _SETTINGS.items())
        return config
