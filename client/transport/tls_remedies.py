"""Say what to do when the TLS handshake with a broker has failed: which setting of the client or of the broker is
wrong, and what it must become.
"""

from __future__ import annotations

from metaq.protocol.errors import TlsFailed

from ..settings.tls_config import TlsConfig

__all__ = ["NO_HANDSHAKE", "tls_remedy"]

NO_HANDSHAKE = "no answer to the TLS handshake: does this port speak TLS?"
"""The error of a broker that does not answer in time."""


def tls_remedy(failed: TlsFailed, host: str, tls: TlsConfig) -> str:
    """Return the setting that is wrong, its value and the remedy. host: the host to which the client has connected.
    tls: the client's settings.
    """
    said = failed.reason.lower()
    if failed.is_ours:
        if "expired" in said or "not yet valid" in said:
            return "renew the broker's certificate (metaq security broker), or set the clock of this machine"
        if "mismatch" in said:
            return (
                f"the broker's certificate does not name {host}: give the broker one that does (metaq security broker "
                f"--host {host}), or set hostName in its server.ini to a name in the certificate"
            )
        return (
            f"tls.ca={tls.ca or '(the CAs of the system)'}: name the file with the CA that has signed the broker's "
            "certificate, as `ca` in the section [tls] of the profile"
        )
    if "alert " in said:
        shown = f"tls.certificate={tls.certificate or '(none)'}"
        if "certificate expired" in said:
            return f"{shown}: renew it (metaq security client), or set the clock of the broker's machine if it is wrong"
        if "unknown ca" in said or "certificate" in said:
            return (
                f"{shown}: the broker refuses it, and its log says why: name a valid certificate that the CA in the "
                "broker's security.ini has signed, and its key, in the section [tls] of the profile"
            )
        if "protocol version" in said:
            return (
                "this port does not speak TLS 1.2 or newer: start the broker with --security, name a port or listener "
                "with TLS (`listener` in the section [client] of the profile), or leave out the section [tls] of the "
                "profile"
            )
        return "the broker's log says why it refuses the connection"
    return (
        "this port does not speak TLS: start the broker with --security, name another port or listener, or leave out "
        "the section [tls] of the profile"
    )
