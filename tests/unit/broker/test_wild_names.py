"""Names that no file, page or answer can have are refused before anything is done for them."""

import pytest

from metaq.broker.http.metrics import exposition
from metaq.broker.http.sheets import encoded
from metaq.protocol.frames import encode_frame
from metaq.protocol.statuses import RequestCode, ResponseCode
from tests.unit.broker.harness import put

HALF = "\ud800"
PLACE = {"topic": "t", "partition": "0"}
ACQUIRE = PLACE | {"group": "g", "member": "m", "maxRecords": "1", "maxBytes": "99", "leaseMs": "9"}
REQUESTS = [
    *((RequestCode.ACQUIRE, ACQUIRE | {name: HALF}) for name in ("topic", "group", "member", "where", "tags")),
    *((RequestCode.PULL, PLACE | {"offset": "0", "maxBytes": "99", name: HALF}) for name in ("topic", "group", "tags")),
    *((RequestCode.SEND, PLACE | {name: HALF}) for name in ("topic", "txKey")),
    (RequestCode.SEND_MANY, {"topics": HALF, "parts": "1", "count": "1"}),
    (RequestCode.CHECK_HALVES, {"group": HALF, "limit": "1"}),
    (RequestCode.SHARED_STATUS, {"group": HALF}),
    (RequestCode.STATS, {"item": HALF}),
]


@pytest.mark.parametrize(("code", "ext"), REQUESTS)
def test_half_of_a_surrogate_pair_is_refused_in_every_name(harness, code, ext):
    peer = harness.connect()
    peer.send(put("t", 0))
    peer.received()
    assert peer.ask_frame(encode_frame(code, 7, ext)).code == ResponseCode.MESSAGE_ILLEGAL
    assert b"metaq_shared_left_messages" in encoded(exposition(harness.broker))
