"""Paths, huge numbers and patterns in each field of each request, made from the table of all verbs: nothing from
outside becomes a file's name, a number that is not checked, or a pattern.
"""

import logging
import os
import re
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from metaq.broker.http.dashboard import Dashboard, RecentLog
from metaq.broker.http.gateway import Gateway
from metaq.protocol.access import AccessGrant, _matches
from metaq.protocol.errors import MetaqError
from metaq.protocol.frames import encode_frame
from metaq.protocol.own_topics import DEAD_PREFIX, RETRY_PREFIX
from metaq.protocol.statuses import ResponseCode
from tests.unit.broker.access.test_every_verb import CASES, TEXTS, named
from tests.unit.broker.harness import put
from tests.unit.broker.http.test_http_pages import Browser

PATHS = [
    "../../outside",
    "/outside",
    "..",
    ".",
    "a/../../outside",
    "%2e%2e%2foutside",
    "..\\outside",
    "con\0.txt",
    "~/outside",
]
NUMBERS = [
    "-1",
    str(-(1 << 63)),
    str(1 << 31),
    str(1 << 63),
    str(1 << 64),
    "9" * 400,
    "1e9",
    "NaN",
    "0x7fffffff",
    "1_000",
    "٣",
    " 1 ",
]
PATTERNS = [
    "*",
    "(a+)+$",
    "[",
    "t|safe",
    "%",
    "_",
    "' OR 'a'='a",
    "{}",
    "${HOME}",
    "$(id)",
    "<script>",
    "\r\nput t 0 0 0 1\r\n",
]
OWN = [prefix + each for prefix in (RETRY_PREFIX, DEAD_PREFIX) for each in PATHS]
"""Topics that a broker makes when the first message comes; so their names become those of directories."""
WILD = [*PATHS, *OWN, *NUMBERS, *PATTERNS, "", "x" * 70_000]
CODES = sorted({code for code, _ in CASES})
INTERNAL = ResponseCode.SYSTEM_ERROR


def files_in(directory: Path) -> set[str]:
    return {str(Path(root, name)) for root, _, names in os.walk(directory) for name in names}


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture, harness: Any, tmp_path: Path) -> Any:
    """The broker, which has logged no error at the end, made no file outside its data directory, and still serves."""
    before = files_in(tmp_path)
    yield harness
    peer = harness.connect()
    assert peer.ask(put("t", 0), work=True).code == 200
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []
    data = Path(harness.config.system.data_path)
    made = {Path(each) for each in files_in(tmp_path) - before}
    assert {each for each in made if data not in each.parents} == set()
    for each in made:
        assert re.fullmatch(r"[\w%.\-]+", each.relative_to(data).parts[0]), each
    assert not Path("/outside").exists()


def take(quiet: Any) -> None:
    for _ in range(3):
        quiet.threads.run()
        quiet.turn()


@pytest.mark.parametrize("code", CODES, ids=named)
def test_a_wild_value_in_a_field_of_a_frame_is_answered_and_harms_nothing(quiet, code):
    fields = [(entry.ext, name) for found, entry in CASES if found is code for name in entry.ext]
    for ext, name in fields:
        for value in WILD:
            peer = quiet.connect()
            peer.send(encode_frame(code, 7, ext | {name: value}, 5) + b"hello")
            take(quiet)
            answers = peer.frames()
            assert len(answers) <= 1
            assert answers or peer.session._parked or peer.transport.aborted or peer.transport.disconnecting, value
            assert all(each.code != ResponseCode.SYSTEM_ERROR for each in answers), (name, value)


SHORT = [(kind, entry.ext[""]) for kind, entry in TEXTS.items() if 0 < len(entry.ext[""]) < 1000]


@pytest.mark.parametrize(("kind", "data"), SHORT, ids=named)
def test_a_wild_word_of_a_text_command_is_answered_and_harms_nothing(quiet, kind, data):
    line, _, rest = data.partition(b"\r\n")
    words = line.split(b" ")
    for number in range(1, len(words)):
        for value in WILD:
            peer = quiet.connect()
            wild = [*words[:number], value.encode().replace(b" ", b""), *words[number + 1 :]]
            peer.send(b" ".join(wild) + b"\r\n" + rest)
            take(quiet)
            for each in peer.answers():
                assert getattr(each, "code", 200) != 500 or "internal" not in each.text, (number, value)


def test_a_wild_value_in_a_path_or_parameter_of_http_is_answered_and_harms_nothing(quiet):
    resource = Dashboard(quiet.broker, quiet.gate, lambda: None, RecentLog()).resource()
    good = {"topic": "t", "partition": "0", "offset": "0", "group": "g", "maxsize": "100", "data": "aGVsbG8"}
    for value in WILD:
        gateway = Browser(Gateway(quiet.gate, quiet.broker, quiet.broker.logins), quiet.reactor)
        pages = Browser(resource, quiet.reactor)
        wild = quote(value, safe="")[:6000]
        for name, path in product(good, ("get", "put", "offset")):
            query = "&".join(f"{key}={wild if key == name else text}" for key, text in good.items())
            status, _, body = gateway.ask("POST" if path == "put" else "GET", f"/{path}?{query}")
            quiet.threads.run()
            assert status < 500 or b"internal" not in body, (path, name, value)
        for method, path in product(("GET", "POST"), (wild, f"topics/{wild}", f"topics/t/{wild}", f"?x={wild}")):
            assert pages.ask(method, f"/{path}")[0] < 500, (path, value)


@pytest.mark.parametrize("form", ["send:{}", "consume:{}@g", "consume:t@{}", "see:{}", "deny send:{}"])
def test_a_grant_for_a_wild_name_is_refused_or_means_names_that_begin_so(form):
    names = [each.rstrip("*") for each in WILD if each and "/" not in each]
    for value in WILD:
        try:
            grant = AccessGrant.parse(form.format(value))
        except MetaqError:
            continue
        assert AccessGrant.parse(str(grant)) == grant
        pattern = grant.topic if grant.topic not in ("", "t") else grant.group or ""
        for name in names:
            named_by = name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
            assert _matches(pattern, name) == named_by, (value, name)
