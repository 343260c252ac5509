"""The login on a new connection, against scramp's server and against brokers that answer wrongly."""

import base64
import re

import pytest

from metaq import UserConfig
from metaq.client.transport.login import Login
from metaq.errors import AccessRefused, BrokerUnavailable, ConfigError, RemoteProtocolError
from metaq.protocol.limits import FRAMES_MARK
from metaq.protocol.statuses import ResponseCode
from tests.doubles.logins import ScramPeer, answer

SECRET = "correct horse"
APP = UserConfig("app", SECRET)
PEER = "meta://b:1"


def log_in(server, user=APP):
    """Return the Login and the bytes that it has sent, after it has ended."""
    login = Login(user, PEER, f"2.0 {FRAMES_MARK}")
    data, sent = login.request, []
    while data:
        sent.append(data)
        data = login.receive(server(data))
    return login, sent


def refused(server, error=AccessRefused, user=APP):
    """Return the text of the error with which a login ends; it does not contain the password."""
    with pytest.raises(error) as told:
        log_in(server, user)
    assert SECRET not in str(told.value)
    return str(told.value)


def test_a_user_logs_in_in_two_steps_without_sending_his_password():
    server = ScramPeer(SECRET)
    login, sent = log_in(server)
    assert login.done
    assert [each.mechanism for each in server.asked] == ["SCRAM-SHA-512"] * 2
    assert server.asked[0].message.startswith("n,,n=app,r=")
    for bare in (SECRET.encode(), base64.b64encode(SECRET.encode())):
        assert not any(bare in each for each in sent)


def test_two_logins_use_different_nonces():
    first, second = ScramPeer(SECRET), ScramPeer(SECRET)
    log_in(first)
    log_in(second)
    assert first.asked[0].message != second.asked[0].message


def test_answers_may_come_in_pieces():
    server, login = ScramPeer(SECRET), Login(APP, PEER, FRAMES_MARK)
    data = login.request
    while data:
        whole = server(data)
        assert [login.receive(whole[at : at + 1]) for at in range(len(whole) - 1)] == [b""] * (len(whole) - 1)
        assert not login.done
        data = login.receive(whole[-1:])
    assert login.done


def test_a_broker_that_lacks_the_stronger_mechanism_is_asked_for_the_weaker():
    server = ScramPeer(SECRET, knows=("SCRAM-SHA-256",))
    assert log_in(server)[0].done
    assert [each.mechanism for each in server.asked] == ["SCRAM-SHA-256"] * 2
    assert refused(ScramPeer(SECRET, knows=())) == f"{PEER}: user app cannot log in: an unknown mechanism"


def test_a_wrong_password_is_refused_with_the_brokers_reason():
    server = ScramPeer("another")
    assert re.fullmatch(f"{PEER}: user app cannot log in: no: .*don't match.*", refused(server))
    assert len(server.asked) == 2  # not tried again with the weaker mechanism


def test_a_broker_without_the_users_key_is_not_trusted():
    """It may let everybody in, to get their messages."""

    class Mallory(ScramPeer):
        def changed(self, message):
            return f"v={base64.b64encode(bytes(64)).decode()}" if message.startswith("v=") else message

    assert "does not prove that it knows the user's password" in refused(Mallory(SECRET))


@pytest.mark.parametrize("first", ["", "x", "r=abc,s=AAAA,i=4096", "e=other-error", "m=1", "r=,s=,i="])
def test_a_first_message_that_is_no_scram_is_not_answered(first):
    login = Login(APP, PEER, FRAMES_MARK)
    with pytest.raises((AccessRefused, RemoteProtocolError)):
        login.receive(answer(1, message=first))
    assert not login.done


@pytest.mark.parametrize(("iterations", "fine"), [(4096, True), (4095, False), (1_000_001, False), (10**9, False)])
def test_the_iteration_count_is_bounded_before_anything_is_computed(iterations, fine, monkeypatch):
    computed, server = [], ScramPeer(SECRET, iterations=iterations)

    def hash_often(hash_, password, salt, count):
        computed.append(int(count))
        return bytes(64)

    monkeypatch.setattr("scramp.core.hi", hash_often)
    told = refused(server)  # the keys are wrong here, so it is refused in any case
    assert computed == [4096] * fine
    assert fine or re.search("1,000,000 are the limit|must not be", told)


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, AccessRefused, "older version of metaq, which has no users: update"),
        (ResponseCode.ACCESS_REFUSED, AccessRefused, f"^{PEER}: user app cannot log in: because$"),
        (ResponseCode.SYSTEM_BUSY, BrokerUnavailable, "cannot log in user app now: because"),
        (ResponseCode.SYSTEM_ERROR, BrokerUnavailable, "cannot log in user app now: because"),
    ],
)
def test_a_refusal_is_told_with_its_reason(code, error, said):
    for step in (1, 2):
        server = ScramPeer(SECRET)

        def answers(data, server=server, step=step):
            reply = server(data)
            return answer(step, code, remark="because") if len(server.asked) == step else reply

        assert re.search(said, refused(answers, error))


def test_a_java_broker_is_not_sent_a_frame():
    with pytest.raises(AccessRefused, match=r"user app cannot log in: this is a Java broker .* has no users"):
        Login(APP, PEER, "1.4.6.2")


def test_an_answer_to_another_request_ends_the_connection():
    for wrong in (answer(7, message="r=a"), answer(1, message="r=a") * 2, b""):
        with pytest.raises(RemoteProtocolError):
            Login(APP, PEER, FRAMES_MARK).receive(wrong)
    login, _ = log_in(ScramPeer(SECRET))
    with pytest.raises(RemoteProtocolError, match="does not belong to the login"):
        login.receive(answer(2, message="v=AAAA"))


def test_a_password_that_scram_forbids_is_the_users_mistake_and_not_shown():
    with pytest.raises(ConfigError, match=r"^user\.password=…: SCRAM forbids a character") as told:
        Login(UserConfig("app", f"{SECRET}\x07"), PEER, FRAMES_MARK)
    assert SECRET not in str(told.value)
    assert told.value.__suppress_context__
