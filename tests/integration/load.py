"""Load on a broker that is killed under it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence, Sized

from tests.broker_process import RunningBroker
from tests.waiting import DEADLINE, eventually

__all__ = ["Load", "kill_under"]


class Load(threading.Thread):
    """One connection that sends until the broker is gone. `acknowledged` grows as the broker acknowledges."""

    acknowledged: Sized

    def __init__(self, broker: RunningBroker) -> None:
        super().__init__()
        self.connection = broker.connect()
        self.failure: Exception | None = None

    def send(self) -> None:
        """Send without an end."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            self.send()
        except ConnectionError:
            pass  # the broker was killed: that is the point
        except Exception as error:
            self.failure = error
        finally:
            self.connection.close()

    def has_begun(self) -> bool:
        return bool(len(self.acknowledged)) or not self.is_alive()


def kill_under(broker: RunningBroker, loads: Sequence[Load], seconds: float) -> None:
    """Have the loads send for so long, and kill the broker once each of them has been acknowledged something."""
    for load in loads:
        load.start()
    time.sleep(seconds)  # the kill may hit the load anywhere
    for load in loads:
        eventually(load.has_begun, what="an acknowledgement")
    broker.kill()
    for load in loads:
        load.join(DEADLINE)
        assert load.failure is None
