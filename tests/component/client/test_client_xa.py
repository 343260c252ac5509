"""XA verbs against brokers in memory, in both protocols: what a coordinator sees, also after a restart."""

import socket
import threading
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaq import Producer, ProducerConfig, TopicPartition, XaCode, XaVote, Xid
from metaq.client.producer.xa import Recovered
from metaq.client.settings.config import ConnectionConfig
from metaq.protocol.errors import BrokerUnavailable, ConfigError, NoPartition, XaError
from metaq.protocol.frames import Frame
from metaq.protocol.statuses import RequestCode, ResponseCode, Status
from metaq.protocol.text import TransactionCommand
from metaq.protocol.transaction_requests import TransactionRequest
from metaq.protocol.transactions import TransactionType, parse_key, qualifier_of
from metaq.testing import FakeBroker, FakeCluster
from tests.component.client.harness import everything
from tests.raising import raising
from tests.speaking import speaking
from tests.waiting import DEADLINE, eventually

CONFIG = ProducerConfig(connection=ConnectionConfig(request_timeout_seconds=2.0, connect_timeout_seconds=5.0))
ONE = Xid(7, b"global\x00\xff", b"")
TWO = Xid(-1, b"", b"branch")


@pytest.fixture
def brokers():
    with FakeBroker({"t": 2, "only0": 1}, 0) as first, FakeBroker({"t": 1}, 1) as second:
        yield first, second


@pytest.fixture
def producer(brokers, protocol):
    with Producer(metadata=FakeCluster(brokers), config=speaking(protocol, CONFIG)) as producer:
        yield producer


@pytest.fixture
def xa(producer):
    return producer.xa(["t", "only0"], qualifier="q")


def refuse_verbs(broker, frame_code, status):
    def refuse(request):
        if isinstance(request, Frame) and request.code == RequestCode.TRANSACTION:
            return frame_code
        return status if isinstance(request, TransactionCommand) else None

    broker.refuse = refuse


@given(
    st.builds(Xid, st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=64), st.binary(max_size=64)),
    st.from_regex(r"[^\s:\x00]+", fullmatch=True),
)
def test_an_xid_survives_the_way_through_a_key(xid, qualifier):
    key = xid.key(qualifier)
    assert parse_key(key) == key
    assert Xid.parse(key) == xid
    assert qualifier_of(key) == qualifier


@pytest.mark.parametrize("wrong", [Xid(1 << 31, b"", b""), Xid(0, bytes(65), b""), Xid(0, b"", bytes(65))])
def test_what_is_no_xid_is_refused_before_anything_is_sent(xa, brokers, wrong):
    with pytest.raises(ValueError, match=r"int32|64 bytes"):
        xa.start(wrong)
    assert brokers[0].requests == []


def begun(xa, xid=ONE, payload=b"1"):
    """Start a branch with a message, and end it."""
    with xa.start(xid) as branch:
        branch.send("t", payload)


def prepared(xa, xid=ONE, payload=b"1"):
    begun(xa, xid, payload)
    assert xa.prepare(xid) is XaVote.OK


@contextmanager
def refused(code, match=None):
    """An XaError with this code."""
    with pytest.raises(XaError, match=match) as caught:
        yield
    assert caught.value.code == code


QUICK = ConnectionConfig(request_timeout_seconds=2.0, reconnect_min_seconds=0.01, reconnect_max_seconds=0.05)


@pytest.mark.parametrize("registered", [True, False])
def test_a_start_waits_for_the_only_broker_as_a_send_does(protocol, registered):
    """It is being restarted."""
    with FakeBroker({"t": 2}) as first, ExitStack() as later:
        cluster = FakeCluster([first])
        config = ProducerConfig(delivery_timeout_seconds=DEADLINE, connection=QUICK)
        with Producer(metadata=cluster, config=speaking(protocol, config)) as producer:
            producer.send("t", b"before")
            resource = producer.xa("t", qualifier="q")
            first.stop()
            eventually(lambda: is_lost(producer, first))
            if not registered:
                cluster.unregister(first)
            came = []

            def come_back():
                came.append(later.enter_context(FakeBroker({"t": 2}, port=first.endpoint.port)))
                cluster.register(came[0])

            back = threading.Timer(0.3, come_back)
            back.start()
            with resource.start(ONE) as branch:
                branch.send("t", b"1")
            resource.commit(ONE, one_phase=True)
            back.join()
            assert everything(came[0]) == [b"1"]


def is_lost(producer, broker):
    try:
        return producer._pool.connection(broker.endpoint, 0.1).closed
    except BrokerUnavailable:
        return True


def test_a_start_does_not_wait_for_topics_that_were_never_there(producer):
    for topics in ("never", ["t", "never"]):
        with refused(XaCode.XAER_RMFAIL, "publishes all of"):
            producer.xa(topics, qualifier="q").start(ONE)


def test_a_start_that_waits_in_vain_ends_with_the_deadline(brokers, protocol):
    cluster = FakeCluster(brokers[1:])
    config = ProducerConfig(delivery_timeout_seconds=0.3, connection=QUICK)
    with Producer(metadata=cluster, config=speaking(protocol, config)) as producer:
        producer.send("t", b"before")
        cluster.unregister(brokers[1])
        resource = producer.xa("t", qualifier="q")
        with pytest.raises(XaError, match="publishes all of t"):
            resource.start(ONE)
        cluster.register(brokers[1])
        resource.start(ONE).end()
        resource.rollback(ONE)


def test_two_phases(brokers, xa):
    with xa.start(ONE) as branch:
        result = branch.send("t", b"1", key="k")
        assert [each.offset for each in branch.send_batch("only0", [b"2", b"3"])] == [-1, -1]
        assert branch.send_batch("t", []) == []
    assert (result.pending, result.partition.broker, branch.broker) == (True, 0, 0)
    assert xa.prepare(ONE) is XaVote.OK
    assert everything(*brokers) == []
    assert xa.recover() == Recovered((ONE,), {})
    xa.commit(ONE)
    assert sorted(body[-1:] for body in everything(*brokers)) == [b"1", b"2", b"3"]
    assert xa.recover() == Recovered((), {})


def test_one_phase_rollback_and_a_branch_without_messages(brokers, xa):
    begun(xa)
    xa.commit(ONE, one_phase=True)
    prepared(xa, payload=b"2")  # the name is free again
    xa.rollback(ONE)
    xa.start(TWO).end()
    assert xa.prepare(TWO) is XaVote.READ_ONLY
    assert (everything(*brokers), brokers[0].transactions.keys) == ([b"1"], [])
    xa.start(TWO)
    xa.rollback(TWO)


def test_another_process_finds_and_completes_what_is_in_doubt(brokers, producer, protocol, xa):
    prepared(xa)
    begun(producer.xa(["t"], qualifier="q"), TWO, b"2")
    producer.xa(["t"], qualifier="other").start(Xid(1, b"", b""))
    with Producer(metadata=FakeCluster(brokers), config=speaking(protocol, CONFIG)) as restarted:
        again = restarted.xa(["t"], qualifier="q")
        assert again.recover().xids == (ONE,)
        again.commit(ONE)
        with refused(XaCode.XAER_NOTA):
            again.commit(TWO)  # never prepared, so no broker tells of it
    assert everything(*brokers) == [b"1"]


def test_a_transaction_of_an_earlier_process_is_looked_for_without_recover(brokers, protocol, xa):
    for xid in (ONE, TWO):
        prepared(xa, xid, b"x")
    with Producer(metadata=FakeCluster(brokers), config=speaking(protocol, CONFIG)) as restarted:
        restarted.xa(["t"], qualifier="q").rollback(ONE)
        restarted.xa(["t"], qualifier="q").commit(TWO)
    assert everything(*brokers) == [b"x"]


def test_recover_tells_which_brokers_could_not_say(brokers, xa):
    prepared(xa)
    brokers[1].stop()
    found = xa.recover()
    assert found.xids == (ONE,)
    assert isinstance(found.failures[1], BrokerUnavailable)
    with refused(XaCode.XAER_RMFAIL, "none of the brokers that answered"):
        xa.commit(TWO)
    xa.commit(ONE)


def test_an_interrupted_start_leaves_an_xid_that_may_be_started(brokers, xa, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(xa, "_verb", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            xa.start(ONE)
    begun(xa)
    xa.commit(ONE, one_phase=True)
    assert everything(*brokers) == [b"1"]


def test_the_default_qualifier_is_that_of_1_x(producer):
    assert producer.xa(["t"]).qualifier == f"XAMessageProducer-{socket.gethostname()}"
    for wrong in ("", "a b", "a:b", "a\r\nb"):
        with pytest.raises(ConfigError, match="qualifier"):
            producer.xa(["t"], qualifier=wrong)
    with pytest.raises(ConfigError, match="topics"):
        producer.xa([])


def test_a_qualifier_of_digits_is_not_taken_for_a_timeout(brokers, producer):
    xa = producer.xa(["only0"], qualifier="42", timeout_seconds=0)
    with xa.start(ONE) as branch:
        branch.send("only0", b"1")
    xa.prepare(ONE)
    assert xa.recover().xids == (ONE,)
    assert producer.xa(["t"], qualifier="43").recover().xids == ()


def test_a_transaction_goes_to_a_broker_that_has_all_topics(producer):
    xa = producer.xa(["t"])
    assert {xa.start(Xid(n, b"", b"")).broker for n in range(40)} == {0, 1}
    assert {producer.xa(["only0", "t"]).start(Xid(n, b"o", b"")).broker for n in range(10)} == {0}
    with refused(XaCode.XAER_RMFAIL, "publishes all of t, nowhere"):
        producer.xa(["t", "nowhere"]).start(ONE)


def test_what_a_coordinator_does_wrong_is_named_by_its_code(xa):
    branch = xa.start(ONE)
    branch.send("t", b"1")
    for code, wrong in (
        (XaCode.XAER_DUPID, lambda: xa.start(ONE)),
        (XaCode.XAER_PROTO, lambda: xa.commit(ONE)),  # two-phase, but not prepared
        (XaCode.XAER_PROTO, lambda: [xa.prepare(ONE), xa.prepare(ONE)]),
        (XaCode.XAER_PROTO, lambda: [branch.end(), branch.end(), branch.send("t", b"2")]),
        (XaCode.XAER_NOTA, lambda: xa.rollback(TWO)),
    ):
        with pytest.raises(XaError) as caught:
            wrong()
        assert (caught.value.code, type(caught.value.code)) == (code, XaCode)


def test_what_cannot_be_sent_leaves_the_branch_as_it_was(brokers, xa):
    with xa.start(ONE) as branch:
        with pytest.raises(NoPartition, match="not on broker 0"):
            branch.send("t", b"", partition=TopicPartition("t", 1, 0))
        branch.send("t", b"1")
    xa.commit(ONE, one_phase=True)
    assert everything(*brokers) == [b"1"]


def test_refusals_without_a_code_and_lost_answers(brokers, xa):
    first = brokers[0]
    begun(xa)
    refuse_verbs(first, ResponseCode.TRANSACTION_REFUSED, Status.ERROR)
    with refused(XaCode.XAER_RMERR, "refused by the test"):
        xa.prepare(ONE)
    refuse_verbs(first, ResponseCode.SYSTEM_ERROR, Status.UNAVAILABLE)
    with refused(XaCode.XAER_RMERR):
        xa.prepare(ONE)
    refuse_verbs(first, None, None)
    xa.prepare(ONE)
    branch = xa.start(TWO)
    first.silent = True
    with refused(XaCode.XA_RBTIMEOUT, "in time"):  # nothing is decided
        branch.send("t", b"2")
    with refused(XaCode.XAER_RMFAIL, "in time"):  # unknown
        xa.commit(ONE)
    first.silent = False
    assert xa.recover().xids == (ONE,)  # it tells what became of it
    xa.commit(ONE)


def test_a_connection_that_breaks_during_a_send_is_a_failure_of_the_resource(brokers, xa):
    branch = xa.start(ONE)
    branch.send("t", b"1")
    for broker in brokers:
        broker.drop_connections()
    with refused(XaCode.XAER_RMFAIL):
        branch.send("t", b"2")


def test_a_broker_knows_the_timeout_and_the_qualifier_of_each_begin(brokers, producer):
    seen = []

    def note(request):
        if isinstance(request, TransactionCommand) and request.type.value == "BEGIN":
            seen.append((request.timeout, request.qualifier))
        elif isinstance(request, Frame) and request.code == RequestCode.TRANSACTION:
            fields = TransactionRequest.from_ext(request.ext)
            seen.append((fields.timeout_seconds, fields.qualifier))

    brokers[0].refuse = note
    producer.xa(["only0"], qualifier="q", timeout_seconds=9).start(ONE)
    assert seen == [(9, "q")]


def test_forget_is_passed_on(brokers, xa):
    prepared(xa)
    xa.forget(ONE)
    assert brokers[0].requests[-1] in ("TransactionCommand", f"frame {int(RequestCode.TRANSACTION)}")


def test_an_error_inside_a_branch_is_not_hidden_by_one_at_its_end(brokers, xa):
    def fail():
        with xa.start(ONE):
            brokers[0].stop()
            raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        fail()


# --- a broker set -----------------------------------------------------------------------------------------------------


class Nodes:
    """Two nodes of broker 0, which have one transaction log; the first one leads."""

    def __init__(self, former, leader, cluster):
        self.former, self.leader, self.cluster = former, leader, cluster
        leader.transactions = former.transactions
        leader.leader = ""

    def fail_over(self, *, hears=False):
        """The other one leads. hears: ZooKeeper's view tells of it."""
        self.former.leader, self.leader.leader = str(self.leader.endpoint), None
        if hears:
            self.cluster.register(self.leader)


@pytest.fixture
def nodes():
    with FakeBroker({"t": 1}, 0) as former, FakeBroker({"t": 1}, 0) as leader:
        cluster = FakeCluster([former])
        cluster.sets.add(0)
        yield Nodes(former, leader, cluster)


@pytest.fixture
def set_xa(nodes):
    with Producer(metadata=nodes.cluster, config=CONFIG) as producer:
        yield producer.xa(["t"], qualifier="q")


def lose_answer(nodes, kind, *, done, moves=True):
    """The answer to the next `kind` is lost. done: the request was carried out. moves: the other node leads then."""

    def refuse(request):
        if isinstance(request, Frame) and request.code == RequestCode.TRANSACTION:
            asked = TransactionRequest.from_ext(request.ext)
            if asked.type == kind:
                if done:
                    nodes.former.transactions.verb(TransactionType(kind), asked.tx_key, None, "q")
                nodes.former.refuse = lambda _: None
                nodes.former.silent = True
                threading.Thread(target=end).start()

    def end():
        if moves:
            nodes.fail_over(hears=True)
        nodes.former.drop_connections()
        nodes.former.silent = moves

    nodes.former.refuse = refuse


@pytest.mark.parametrize("kind", ["COMMIT_TWO_PHASE", "ROLLBACK", "PREPARE"])
@pytest.mark.parametrize("done", [True, False])
def test_what_became_of_a_lost_request_is_known_to_the_next_leader(nodes, set_xa, kind, done):
    (begun if kind == "PREPARE" else prepared)(set_xa)
    lose_answer(nodes, kind, done=done)
    verbs = {"COMMIT_TWO_PHASE": set_xa.commit, "ROLLBACK": set_xa.rollback, "PREPARE": set_xa.prepare}
    assert verbs[kind](ONE) == (XaVote.OK if kind == "PREPARE" else None)
    assert nodes.leader.transactions.prepared == ([ONE.key("q")] if kind == "PREPARE" else [])
    if kind == "COMMIT_TWO_PHASE":
        assert everything(nodes.former) == [b"1"]


def test_a_lost_commit_is_not_taken_for_done_by_the_word_of_the_node_that_may_still_be_at_it(nodes, set_xa):
    prepared(set_xa)
    lose_answer(nodes, "COMMIT_TWO_PHASE", done=True, moves=False)
    with refused(XaCode.XAER_RMFAIL, "has not been started"):
        set_xa.commit(ONE)


def test_a_lost_one_phase_commit_stays_unknown(nodes, set_xa):
    begun(set_xa)
    lose_answer(nodes, "COMMIT_ONE_PHASE", done=True)
    for _ in range(2):
        with pytest.raises(XaError, match="has not been started") as caught:
            set_xa.commit(ONE, one_phase=True)
    assert caught.value.code in (XaCode.XAER_RMFAIL, XaCode.XAER_NOTA)


@pytest.mark.parametrize("verb", ["prepare", "end", "commit", "rollback", "send"])
def test_what_was_not_prepared_is_rolled_back_when_another_node_leads(nodes, set_xa, verb):
    branch = set_xa.start(ONE)
    branch.send("t", b"1")
    nodes.former.transactions.forget(ONE.key("q"))
    nodes.fail_over()
    verbs = {
        "prepare": lambda: set_xa.prepare(ONE),
        "end": lambda: set_xa.end(ONE),
        "commit": lambda: set_xa.commit(ONE, one_phase=True),
        "rollback": lambda: set_xa.rollback(ONE),
        "send": lambda: branch.send("t", b"2"),
    }
    rolled_back = refused(XaCode.XA_RBROLLBACK, "has not been started")
    with nullcontext() if verb == "rollback" else rolled_back:
        verbs[verb]()
