"""How much a user sends and reads in a second, and that connections of a user beyond it are not read."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport

from metaq.broker import tuning
from metaq.broker.http.gateway import Gateway
from metaq.broker.runtime.user_rates import (
    _FEW_USERS,
    BURST_SECONDS,
    MAX_DEBT_SECONDS,
    MAX_USE_SECONDS,
    RATES,
    REQUESTED,
    SENT,
    UserRates,
)
from metaq.protocol.access import ANYBODY, NO_USER, Access, AccessMode, Permissions, Principal, Quota, User
from metaq.protocol.put_run import LEAST_PUTS
from metaq.protocol.statuses import ResponseCode, Status
from tests.unit.broker.harness import pull, put, send
from tests.unit.broker.http.test_http_pages import Browser

APP, OTHER = Principal("user", "app"), Principal("user", "other")
RATE = 100


def permissions(default=(), **own):
    quotas = {Quota(name.replace("_", "-")): value for name, value in own.items()}
    return Permissions(AccessMode.OPEN, {"app": User("app", Access([]), quotas=quotas)}, dict(default))


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def rates(clock):
    made = UserRates(clock)
    made.see(permissions(send_bytes=RATE))
    return made


# --- the core ---------------------------------------------------------------------------------------------------------

USES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 1500), st.floats(0, 2)), min_size=1, max_size=80)


@given(USES)
def test_no_more_than_the_rate_and_the_burst_passes_and_one_use_of_each_connection(uses):
    """Connections that wait when they are told to. Beyond time * rate + burst, only the last use of each passes."""
    clock = Clock()
    rates = UserRates(clock)
    rates.see(permissions(send_bytes=RATE))
    passed, last, waiting = 0.0, dict.fromkeys(range(4), 0), set()
    for who, amount, pause in uses:
        if who not in waiting:
            passed += amount
            last[who] = amount
            if rates.spend("app", SENT, amount):
                waiting.add(who)
                rates.wait("app", who, partial(waiting.remove, who))
            assert passed - sum(last.values()) <= RATE * (clock.seconds() + BURST_SECONDS + 0.002)
        clock.advance(pause)
    for _ in range(10):
        clock.advance(MAX_DEBT_SECONDS)
    assert (waiting, rates.waiting) == (set(), 0), "everybody continues in the end"


def test_a_use_delays_by_a_limited_time_and_so_do_all_together(rates, clock):
    assert rates.spend("app", SENT, 1 << 60)
    clock.advance(MAX_USE_SECONDS - 1)
    assert rates.spend("app", SENT, 0)
    clock.advance(1.1)
    assert not rates.spend("app", SENT, 0)
    for _ in range(100):
        rates.spend("app", SENT, 1 << 60)
    clock.advance(MAX_DEBT_SECONDS - 1)
    assert rates.spend("app", SENT, 0)
    clock.advance(1.1)
    assert not rates.spend("app", SENT, 0)


def test_a_user_who_was_idle_may_use_the_burst_at_once(rates, clock):
    rates.spend("app", SENT, 1)
    clock.advance(1000)
    assert not any(rates.spend("app", SENT, 1) for _ in range(int(RATE * BURST_SECONDS) - 1))
    assert any(rates.spend("app", SENT, 1) for _ in range(3))


def test_a_default_counts_for_each_user_by_himself_and_not_for_others(rates):
    rates.see(permissions(default={Quota.SEND_BYTES: RATE}, read_bytes=5))
    for name in ("app", "other"):
        assert not rates.spend(name, SENT, RATE // 2)
        assert rates.spend(name, SENT, 1)
    assert not rates.spend(NO_USER, SENT, 1 << 60)
    assert rates.report()["users"]["app"]["quotas"] == {"send-bytes": RATE, "read-bytes": 5}


def test_nothing_is_to_be_counted_without_a_rate(rates):
    assert rates.limited
    rates.see(permissions(connections=5))
    assert not rates.limited
    rates.see(permissions(default={Quota.REQUESTS: 5}))
    assert rates.limited


def test_connections_that_use_much_continue_one_by_one_and_those_that_use_little_together(rates, clock):
    resumed = []

    def wait(name, uses):
        def resume():
            resumed.append(name)
            rates.spend("app", SENT, uses)

        rates.wait("app", name, resume)

    rates.spend("app", SENT, 3 * RATE)  # half a second is free
    for name in "abc":
        wait(name, RATE)
    rates.drop("app", "b")
    clock.advance(2.4)
    assert resumed == []
    clock.advance(0.1)
    clock.advance(0)
    assert (resumed, rates.waiting) == (["a"], 1), "what a has used put the user into debt again"
    clock.advance(1)
    assert (resumed, rates.waiting) == (["a", "c"], 0)
    assert rates.delayed_seconds[Quota.SEND_BYTES] == pytest.approx(3.5)
    rates.spend("app", SENT, RATE)
    for number in range(20):
        wait(str(number), 1)
    clock.advance(2.5)
    for _ in range(4):
        clock.advance(0)
    assert rates.waiting == 0, "a user who can afford it gets more in each iteration"


@pytest.mark.parametrize("after", [{"send_bytes": 2 * RATE}, {}], ids=["raised", "removed"])
def test_a_changed_rate_resumes_who_waits_at_once(rates, clock, after):
    resumed: list[int] = []
    rates.spend("app", SENT, 1 << 40)
    for who in range(100):
        rates.wait("app", who, partial(resumed.append, who))
    rates.see(permissions(connections=1, **after))
    for _ in range(8):
        clock.advance(0)
    assert resumed == list(range(100))
    assert not clock.getDelayedCalls()


def test_idle_users_are_forgotten(rates, clock):
    rates.see(permissions(default={Quota.REQUESTS: 1}))
    for number in range(3 * _FEW_USERS):
        rates.spend(f"user-{number}", REQUESTED, 1)
        clock.advance(0.01)
    assert len(rates.report()["users"]) <= _FEW_USERS
    assert len(rates._users) < 2 * _FEW_USERS


# --- connections ------------------------------------------------------------------------------------------------------


def connect(harness, principal=APP):
    peer = harness.connect()
    peer.session.logged_in(principal)
    return peer


def pass_time(harness, seconds=MAX_DEBT_SECONDS):
    harness.reactor.advance(seconds)
    for _ in range(10):
        harness.reactor.advance(0)


@pytest.mark.parametrize(("quota", "limit"), [("send_bytes", 50), ("read_bytes", 50), ("requests", 2)])
def test_connections_of_a_user_in_debt_are_not_read_for_some_time(harness, quota, limit):
    harness.broker.account.see(permissions(**{quota: limit}))
    first, second, other = connect(harness), connect(harness), connect(harness, OTHER)
    first.send(b"version 1\r\n" * 20)
    assert len(first.answers()) == 20, "what was read is served"
    assert not first.is_read
    for peer in (second, other):
        peer.send(b"version 1\r\n")
    assert (second.is_read, other.is_read) == (False, True), "connections of one user share the rate"
    first.lose()
    assert harness.broker.account.rates.waiting == 1
    pass_time(harness)
    assert second.is_read
    assert harness.broker.account.rates.waiting == 0
    assert harness.broker.account.rates.delayed_seconds[Quota(quota.replace("_", "-"))] > 1


@pytest.mark.parametrize(
    "data", [put("t", 0), send("t", 0), b"".join(put("t", 0) for _ in range(LEAST_PUTS))], ids=["put", "frame", "run"]
)
def test_a_new_connection_of_a_user_in_debt_has_to_wait_with_its_first_request(harness, data):
    harness.broker.account.see(permissions(requests=1))
    connect(harness).send(b"version 1\r\n" * 20)
    peer = harness.connect()
    peer.transport.principal = APP  # by its certificate: the broker learns it with the first request
    peer.send(data)
    harness.threads.run()
    assert (peer.received(), peer.is_read) == (b"", False)
    pass_time(harness)
    harness.threads.run()
    assert peer.received()


def test_what_waits_in_one_read_is_served_when_the_user_is_out_of_debt(harness, monkeypatch):
    """The first answer takes the user into debt, so that the next request waits, although it was read."""
    monkeypatch.setattr(tuning, "WRITE_BYTES", 1)
    harness.broker.account.see(permissions(read_bytes=1))
    peer = connect(harness)
    for _ in range(3):
        peer.ask(put("t", 0, b"x" * 100), work=True)
        pass_time(harness, 60)
    peer.send(pull("t", 0, 0, wait_ms=10_000) + pull("t", 0, 0, opaque=2))
    (first,) = peer.frames()
    assert (first.opaque, peer.is_read) == (1, False)
    pass_time(harness)
    (second,) = peer.frames()
    assert second.opaque == 2


def test_a_waiting_pull_is_answered_after_the_debt(harness):
    harness.broker.account.see(permissions(requests=1))
    peer, other = connect(harness), connect(harness, OTHER)
    peer.send(pull("t", 0, 0, wait_ms=60_000))
    assert harness.broker.account.users.used("app", Quota.WAITING_PULLS) == 1
    peer.send(pull("t", 0, 0, wait_ms=60_000, opaque=2) * 10)
    assert not peer.is_read
    assert other.ask_frame(send("t", 0), work=True).code == ResponseCode.SUCCESS
    harness.turn()
    assert peer.frames() == []
    pass_time(harness)
    assert len(peer.frames()) == 11


def test_a_client_that_sends_nothing_more_gets_all_answers_after_the_debt(harness, monkeypatch):
    monkeypatch.setattr(tuning, "WRITE_BYTES", 1)
    harness.broker.account.see(permissions(read_bytes=1))
    peer = connect(harness)
    peer.send(b"version 1\r\n" + pull("t", 0, 0) + pull("t", 1, 0))
    peer.session.readConnectionLost()
    assert not peer.transport.disconnecting
    for _ in range(3):
        pass_time(harness)
    assert peer.transport.disconnecting
    assert harness.broker.account.rates.waiting == 0


def test_a_login_as_another_user_ends_the_wait(harness):
    harness.broker.account.see(permissions(requests=1))
    peer = connect(harness)
    peer.send(b"version 1\r\n" * 20)
    peer.received()
    peer.session.logged_in(OTHER)
    assert harness.broker.account.rates.waiting == 0
    assert peer.ask(put("t", 0), work=True).code == Status.SUCCESS
    assert peer.is_read


def test_a_changed_rate_helps_a_connection_that_waits(harness):
    harness.broker.account.see(permissions(requests=1))
    peer = connect(harness)
    peer.send(b"version 1\r\n" * 40)
    assert not peer.is_read
    harness.broker.account.see(permissions(requests=100))
    pass_time(harness, 0)
    assert peer.is_read


@pytest.mark.parametrize("principal", [ANYBODY, Principal("broker", "app"), Principal("local", "app")], ids=str)
def test_brokers_and_clients_that_are_no_users_are_never_delayed(harness, principal):
    harness.broker.account.see(permissions(default=dict.fromkeys(RATES, 1)))
    peer = connect(harness, principal)
    peer.send(b"version 1\r\n" * 100)
    assert peer.is_read
    assert harness.broker.account.rates.report()["users"] == {}


# --- HTTP -------------------------------------------------------------------------------------------------------------


def test_http_requests_of_a_user_in_debt_wait(harness, monkeypatch):
    account = harness.broker.account
    account.see(permissions(send_bytes=1))
    browser = Browser(Gateway(harness.gate, harness.broker, harness.broker.logins), harness.reactor, harness.broker)
    target = "/put/?topic=t&partition=0&flag=0&length=20"
    assert parsed_status(harness, browser.send("POST", target, b"x" * 20)) == Status.SUCCESS, "nobody has no rates"
    monkeypatch.setattr(StringTransport, "principal", APP, raising=False)
    assert parsed_status(harness, browser.send("POST", target, b"x" * 20)) == Status.SUCCESS
    late, gone = browser.send("POST", target, b"x" * 20), browser.send("POST", target, b"x" * 20)
    assert parsed_status(harness, late) is None
    assert account.rates.waiting == 2
    gone.protocol.connectionLost()
    assert account.rates.waiting == 1
    pass_time(harness)
    assert parsed_status(harness, late) == Status.SUCCESS


def parsed_status(harness, transport):
    harness.turn()
    harness.threads.run()
    harness.turn()
    return int(transport.value().split()[1]) if transport.value() else None
