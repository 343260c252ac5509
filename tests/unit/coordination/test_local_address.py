import ipaddress

import pytest

from metaq.coordination.groups.membership import broadcast_group, new_consumer_id
from metaq.coordination.runtime import local_address as module
from metaq.coordination.runtime.local_address import local_address


def test_the_address_is_an_ip_address():
    assert ipaddress.ip_address(local_address())


@pytest.mark.parametrize(
    ("interfaces", "named", "expected"),
    [
        (["127.0.0.1", "10.0.0.7", "10.0.0.8"], ["10.9.9.9"], "10.0.0.7"),
        (["127.0.0.1"], ["127.0.1.1", "10.9.9.9"], "10.9.9.9"),
        ([], [], "127.0.0.1"),
    ],
)
def test_the_first_address_that_is_not_loopback_is_chosen(monkeypatch, interfaces, named, expected):
    monkeypatch.setattr(module, "_interface_addresses", lambda: interfaces)
    monkeypatch.setattr(module, "_named_addresses", lambda: named)
    assert local_address() == expected


def test_a_broadcast_group_has_the_address_that_java_finds_first(monkeypatch: pytest.MonkeyPatch):
    """Java lists interfaces by falling index: the bridge of Docker comes before the network card."""
    monkeypatch.setattr(module, "_interface_addresses", lambda: ["127.0.0.1", "10.0.0.7", "172.17.0.1"])
    assert broadcast_group("g") == "g-172-17-0-1"
    assert local_address() == "10.0.0.7"  # which other hosts can reach


def test_a_generated_consumer_id_has_the_form_of_1x_and_never_repeats():
    first, second = (new_consumer_id("g", now=lambda: 1795246640.723) for _ in range(2))
    group, _, rest = first.partition("_")
    address, _, millis, _ = rest.rsplit("-", 3)
    assert (group, millis) == ("g", "1795246640723")
    assert ipaddress.ip_address(address)
    assert first != second


@pytest.mark.parametrize(("address", "expected"), [("172.17.0.1", "bgrp-172-17-0-1"), ("fe80::1", "bgrp-fe80--1")])
def test_a_broadcast_group_is_named_after_the_host_as_in_1x(address: str, expected: str):
    assert broadcast_group("bgrp", address) == expected
