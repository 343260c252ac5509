"""What a member of a group may own, and when it must register, without ZooKeeper."""

import pytest

from metaq.coordination.groups.membership_state import MembershipState

A, B, C = ("t", "0-0"), ("t", "0-1"), ("t", "1-0")


@pytest.fixture
def member() -> MembershipState:
    """A member registered on session 7 that holds A and B."""
    state = MembershipState(["t"])
    assert not state.registered(7, state.topics)
    state.hold([A, B])
    return state


def test_a_claim_whose_answer_is_lost_stays_held_until_zookeeper_says_otherwise(member: MembershipState) -> None:
    member.hold([C])
    assert member.held == {A, B, C}
    member.drop([A, C])
    assert member.held == {B}


def test_the_end_of_its_session_ends_the_claims(member: MembershipState) -> None:
    member.session_lost(7)
    assert (member.session_id, member.held) == (None, frozenset())


def test_the_end_of_an_earlier_session_is_no_matter(member: MembershipState) -> None:
    member.session_lost(6)
    assert (member.session_id, member.held) == (7, frozenset({A, B}))


def test_claims_outlast_a_registration_on_the_same_session_and_end_with_one_on_another(member: MembershipState) -> None:
    member.registered(7, member.topics)
    assert member.held == {A, B}
    member.registered(8, member.topics)
    assert (member.session_id, member.held) == (8, frozenset())


def test_it_registers_if_its_node_or_its_session_is_gone_but_not_while_it_is_out(member: MembershipState) -> None:
    assert not member.must_register(7)
    assert member.must_register(0)
    member.is_registered = False
    assert member.must_register(7)
    member.step_out()
    assert not member.must_register(0)


def test_a_member_that_steps_out_names_what_must_be_removed_and_then_has_nothing(member: MembershipState) -> None:
    session_id, held = member.step_out()
    assert (session_id, held, member.held) == (7, frozenset({A, B}), frozenset({A, B}))  # until it is removed
    member.stepped_out(session_id)
    assert (member.session_id, member.held, member.is_registered, member.is_out) == (None, frozenset(), False, True)


def test_a_registration_while_it_steps_out_is_kept(member: MembershipState) -> None:
    session_id, _ = member.step_out()
    member.registered(8, member.topics)
    member.hold([C])
    member.stepped_out(session_id)
    assert (member.session_id, member.held, member.is_registered) == (8, frozenset({C}), True)


def test_leaving_gives_everything_back_once(member: MembershipState) -> None:
    assert member.leave() == (7, frozenset({A, B}))
    assert member.leave() == (None, frozenset())


def test_a_topic_that_comes_during_a_registration_is_noticed_by_it() -> None:
    member = MembershipState(["t"])
    topics = member.topics
    assert member.subscribe("u") == (True, None)  # no node yet that could be made anew
    assert member.registered(7, topics)
    assert not member.registered(7, member.topics)


def test_a_topic_is_asked_for_until_it_is_followed(member: MembershipState) -> None:
    assert member.subscribe("u") == (True, 7)
    assert member.subscribe("u") == (True, 7)  # the first call has failed
    member.followed("u")
    assert member.subscribe("u") == (False, 7)
    assert member.topics == ("t", "u")


def test_each_node_is_watched_once_at_a_time(member: MembershipState) -> None:
    assert member.await_end(["/a", "/b"]) == {"/a", "/b"}
    assert member.await_end(["/b", "/c"]) == {"/c"}
    member.no_longer_awaited("/b")
    assert member.await_end(["/b"]) == {"/b"}
