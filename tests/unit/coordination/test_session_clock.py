"""The clock of sessions goes on while the machine is suspended."""

import inspect
import sys
import time

import pytest

from metaq.client.consumer.self_checks import SessionWatch
from metaq.coordination.session.zk_session import SessionProof, ZkSession, session_clock


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a clock that does")
def test_it_counts_the_time_in_which_the_machine_was_suspended():
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= session_clock() <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("user", [ZkSession, SessionProof, SessionWatch])
def test_whatever_judges_the_age_of_a_session_uses_it(user: type):
    assert inspect.signature(user).parameters["clock"].default is session_clock
