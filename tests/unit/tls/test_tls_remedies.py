"""What a client says about a failed TLS handshake: the wrong setting, its value, and what to do."""

import pytest

from metaq.client.settings.tls_config import TlsConfig
from metaq.client.transport.tls_remedies import tls_remedy
from metaq.protocol.errors import TlsFailed

TLS = TlsConfig("ca.pem", "client.pem", "client.key")
REFUSED = "its certificate is refused: "


@pytest.mark.parametrize(
    ("reason", "is_ours", "said"),
    [
        (REFUSED + "Hostname mismatch, certificate is not valid for 'mq1'.", True, "--host mq1), or set hostName"),
        (REFUSED + "IP address mismatch, certificate is not valid for '::1'.", True, "does not name mq1"),
        (REFUSED + "unable to get local issuer certificate", True, "tls.ca=ca.pem: name the file with the CA"),
        (REFUSED + "certificate has expired", True, "set the clock of this machine"),
        ("sslv3 alert certificate expired", False, "tls.certificate=client.pem: renew it"),
        ("tlsv1 alert unknown ca", False, "tls.certificate=client.pem: the broker refuses it, and its log says why"),
        ("tlsv13 alert certificate required", False, "tls.certificate=client.pem: the broker refuses it"),
        (
            "tlsv1 alert protocol version",
            False,
            "this port does not speak TLS 1.2 or newer: start the broker with --security",
        ),
        ("wrong version number", False, "this port does not speak TLS: start the broker with --security"),
    ],
)
def test_each_failure_has_its_remedy(reason, is_ours, said):
    assert said in tls_remedy(TlsFailed("meta://mq1:8123", reason, is_ours=is_ours), "mq1", TLS)


def test_what_is_not_set_is_named_too():
    unset = TlsConfig()
    assert "tls.ca=(the CAs of the system)" in tls_remedy(TlsFailed("b", REFUSED, is_ours=True), "mq1", unset)
    assert "tls.certificate=(none)" in tls_remedy(TlsFailed("b", "alert bad certificate"), "mq1", unset)
