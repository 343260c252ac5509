"""docs/protocol.md and docs/broker.md: the examples are run, and nothing is missing."""

import json
import re
from pathlib import Path

import pytest

from metaq.broker.configuration import server_ini
from metaq.protocol import remoting
from metaq.protocol.frames import frame_bytes
from metaq.protocol.statuses import RequestCode, ResponseCode

DOCS = Path(__file__).resolve().parents[3] / "docs"
PROTOCOL = (DOCS / "protocol.md").read_text("utf-8")
BROKER = (DOCS / "broker.md").read_text("utf-8")

EXAMPLES = [
    (kind, request, answer)
    for kind, block in re.findall(r"^```(text|frame)\n(.*?)^```$", PROTOCOL, re.MULTILINE | re.DOTALL)
    for request, answer in re.findall(r"^> (.*)\n< (.*)$", block, re.MULTILINE)
]


def raw(kind, request):
    if kind == "text":
        return request.replace("\\r\\n", "\r\n").encode()
    header, _, body = request.partition(" | ")
    lengths = (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    return lengths + header.encode() + body.encode()


def shown(kind, answer):
    if kind == "text":
        text = answer.decode().replace("\r\n", "\\r\\n")
        return re.sub(r"(?<=\\r\\n)\d{15,}(?= )", "<id>", text)
    assert frame_bytes(answer, 0) == len(answer)
    return re.sub(r'"msgId":"\d+"', '"msgId":"<id>"', answer[8:].decode())


def test_the_examples_of_the_protocol_page_are_what_the_broker_answers(harness):
    harness.broker.version = "0.1.0"
    peer = harness.connect()
    assert len(EXAMPLES) >= 15
    for kind, request, answer in EXAMPLES:
        peer.send(raw(kind, request))
        harness.threads.run()
        assert shown(kind, peer.received()) == answer, request
        if kind == "frame":
            json.JSONDecoder().raw_decode(answer)


FIELDS = sorted(
    {
        field
        for name in remoting.__all__
        if hasattr(kind := getattr(remoting, name), "to_ext")
        for field in (kind(*[("x",) if each == "tags" else 1 for each in kind.__slots__])).to_ext()
    }
)


@pytest.mark.parametrize("field", FIELDS)
def test_every_ext_field_is_explained(field):
    assert f"`{field}`" in PROTOCOL


@pytest.mark.parametrize("code", [*RequestCode, *ResponseCode], ids=lambda code: code.name)
def test_every_code_is_listed(code):
    assert re.search(rf"\b{int(code)} {code.name}\b|{code.name} \({int(code)}\)", PROTOCOL)


WITHOUT_EFFECT = server_ini.SYSTEM_KEYS_WITHOUT_EFFECT | server_ini.TOPIC_KEYS_WITHOUT_EFFECT
KEYS = server_ini.LIMITS_KEYS | server_ini.SYSTEM_KEYS | server_ini.ZOOKEEPER_KEYS | WITHOUT_EFFECT


@pytest.mark.parametrize("key", sorted(KEYS))
def test_every_key_of_server_ini_is_explained(key):
    assert f"`{key}`" in BROKER
