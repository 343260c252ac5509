"""Nodes of a broker set name its leader: whom a client asks next, and when."""

from metaq.client.connection import Endpoint
from metaq.client.redirects import TRUSTED_SECONDS, Redirects
from metaq.protocol.errors import NotLeader

A, B, C = (Endpoint("127.0.0.1", port) for port in (1, 2, 3))


class Led(Redirects):
    def __init__(self) -> None:
        self.now = 100.0
        super().__init__(lambda: self.now)

    def says(self, node: Endpoint, leader: Endpoint | None) -> float:
        return self.learn(NotLeader(0, "" if leader is None else str(leader), str(node)))

    def asked(self, endpoint: Endpoint, *down: Endpoint) -> Endpoint:
        return self.target(endpoint, down)


def test_the_node_that_was_named_is_asked_at_once():
    led = Led()
    assert led.says(A, B) == 0.0
    assert led.asked(A) == B
    assert led.asked(B) == B
    assert led.says(A, B) == 0.0  # the answer to another request that was under way


def test_a_set_without_a_leader_is_asked_again_after_pauses_that_grow():
    led = Led()
    pauses = []
    while led.now < 102.0:
        pauses.append(led.says(A, None))
        led.now += pauses[-1]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.01, 0.2)
    assert len(pauses) < 40
    assert led.asked(A) == A


def test_pauses_begin_anew_after_some_quiet():
    led = Led()
    led.says(A, None)
    led.now += 0.9
    assert led.says(A, None) == 0.2
    led.now += 1.1
    assert led.says(A, None) == 0.01


def test_nodes_that_point_at_each_other_make_no_busy_loop():
    led = Led()
    node, requests = A, 0
    while led.now < 101.0:
        led.now += 0.001 + led.says(node, B if node == A else A)
        node = led.asked(node)
        requests += 1
    assert requests < 40


def test_what_a_node_said_is_forgotten_after_some_seconds_unless_it_is_gone():
    led = Led()
    led.says(A, B)
    led.now += TRUSTED_SECONDS
    assert led.asked(A, A) == B  # nobody else is known
    assert led.asked(A) == A
    assert led.asked(A) == A


def test_a_named_node_that_cannot_be_reached_is_not_asked():
    led = Led()
    led.says(A, B)
    assert led.asked(A, B) == A
    assert led.asked(A) == A


def test_the_newer_word_of_two_nodes_counts():
    led = Led()
    led.says(A, B)
    led.says(B, A)
    assert led.asked(A) == A
    assert led.asked(B) == A


def test_what_was_said_before_the_view_changed_is_forgotten():
    led = Led()
    led.says(A, B)
    led.says(C, A)
    led.moved([B], A)
    assert (led.asked(A), led.asked(C)) == (A, C)


def test_a_new_leader_that_does_not_know_it_yet_does_not_lead_back_to_the_former_one():
    led = Led()
    led.moved([A], B)
    assert led.says(B, A) == 0.01
    assert led.asked(B) == B
    led.moved([B], A)  # it leads again
    assert led.says(C, A) == 0.0
    assert led.asked(C) == A
    led.moved([A], B)
    led.now += TRUSTED_SECONDS
    assert led.says(C, A) == 0.0


def test_an_address_that_no_client_can_use_is_as_good_as_none():
    led = Led()
    assert led.learn(NotLeader(0, "meta://nowhere:99999", str(A))) == 0.01
    assert led.leader(NotLeader(0, "meta://nowhere:99999", str(A))) is None
    assert led.says(A, A) == 0.01
    assert led.asked(A) == A
