"""The bytes of TLS that a port must know that does not speak TLS itself."""

__all__ = ["FIRST_BYTE", "NO_TLS_ALERT"]

FIRST_BYTE = 0x16
"""The first byte of a TLS connection: a handshake record (RFC 8446, 5.1). No text command and no frame begins with this
byte. A text command begins with a letter. A frame begins with the high byte of its length, which is 0 because the
length is below 16 MiB.
"""

NO_TLS_ALERT = bytes((21, 3, 1, 0, 2, 2, 70))
"""The TLS record with the fatal alert protocol_version (RFC 8446, 6.2). By this answer to a handshake the client knows
that the port does not speak TLS, and that it need not try again.
"""
