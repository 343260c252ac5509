"""The distinguished names of certificates, as Apache's X509AuthenticationProvider writes and accepts them.

Apache's server takes the name from Java: `X500Principal.getName()` gives the text form of RFC 2253, and the constructor
`X500Principal(text)` decides whether an ACL may contain a text. A unit test compares this module with the results of
Java 17.
"""

from __future__ import annotations

import re

__all__ = ["certificate_name", "is_distinguished_name", "subject_name"]

_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_LONG_LENGTH = 0x80
_MAX_LENGTH_BYTES = 4

_TEXT_TAGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString. Java reads the bytes of all of them
as UTF-8; so the name of a BMPString contains characters 0.
"""

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that have a keyword in RFC 2253. The name of a certificate has the numbers of all other attributes."""

_OTHER_KEYWORDS = (
    *("S", "T", "IP", "DNQ", "DNQUALIFIER", "SURNAME", "GIVENNAME", "INITIALS", "GENERATION"),
    *("EMAIL", "EMAILADDRESS", "SERIALNUMBER"),
)
"""Keywords that an ACL may contain in addition."""

_ESCAPED = re.compile(r'[,=+<>#;"\\]')

_BLANKS = r"[ \n]*+"
_PAIR = r"""\\(?:[ ,=+<>\#;"\\]|[0-9A-F]{2})"""
_KIND = rf"""(?:{"|".join((*_KEYWORDS.values(), *_OTHER_KEYWORDS))}
    |(?:OID\.)?(?:[01]\.[1-3]?[0-9]|2\.[0-9]+)(?:\.[0-9]+)*+)"""
_VALUE = rf"""(?:\#(?:[0-9A-F]{{2}})++
    |"(?:[^"\\]|{_PAIR})*+"{_BLANKS}
    |(?!\#)(?:[^,+<>;"\\]|{_PAIR})*+)"""
_PART = f"{_BLANKS}{_KIND}{_BLANKS}={_BLANKS}{_VALUE}"
_NAME = re.compile(f"(?:{_PART}(?:[,;+]{_PART})*+)?", re.VERBOSE | re.IGNORECASE)
"""A name. The quantifiers with `+` at the end never try again with fewer characters, so a search takes time in
proportion to the length of the text.
"""

_MAX_CHARACTERS = 1000
"""Maximum length of a name in an ACL. Apache has no limit; here each access to a znode compares its names."""


def certificate_name(certificate: bytes) -> str:
    """Return the name of a certificate's subject. certificate: in DER. Raises ValueError if it is no certificate."""
    _, at, _ = _element(certificate, 0, _SEQUENCE)
    _, at, _ = _element(certificate, at, _SEQUENCE)
    tag, _, end = _element(certificate, at)
    if tag == _VERSION:
        at = end
    for _ in ("serial number", "algorithm", "issuer", "validity"):
        _, _, at = _element(certificate, at)
    _, _, end = _element(certificate, at)
    return subject_name(certificate[at:end])


def subject_name(subject: bytes) -> str:
    """Return the text form of a name, the last part first. subject: the name in DER. Raises ValueError."""
    _, at, end = _element(subject, 0, _SEQUENCE)
    parts: list[str] = []
    while at < end:
        _, inner, at = _element(subject, at, _SET)
        attributes: list[str] = []
        while inner < at:
            _, start, inner = _element(subject, inner, _SEQUENCE)
            attributes.append(_attribute(subject[start:inner]))
        parts.append("+".join(attributes))
    return ",".join(reversed(parts))


def is_distinguished_name(text: str) -> bool:
    """Return whether an ACL of the scheme x509 may contain this text. The empty text names an empty subject."""
    return len(text) <= _MAX_CHARACTERS and _NAME.fullmatch(text) is not None


def _attribute(data: bytes) -> str:
    """Return the text form of one attribute and its value."""
    _, start, end = _element(data, 0, _OID)
    kind = _numbers(data[start:end])
    tag, start, stop = _element(data, end)
    keyword = _KEYWORDS.get(kind)
    if keyword is None or tag not in _TEXT_TAGS:
        return f"{keyword or kind}=#{data[end:stop].hex()}"
    return f"{keyword}={_escaped(data[start:stop].decode('utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    """Escape a value. Java escapes blanks and carriage returns at its beginning and its end, too."""
    inner = text.strip(" \r")
    if not inner:
        return "".join(f"\\{each}" for each in text)
    before, _, after = text.partition(inner)
    middle = _ESCAPED.sub(r"\\\g<0>", inner).replace("\0", "\\00")
    return "".join((*(f"\\{each}" for each in before), middle, *(f"\\{each}" for each in after)))


def _numbers(data: bytes) -> str:
    """Return an object identifier as numbers with dots between them."""
    if not data or data[-1] & 0x80:
        raise ValueError("an incomplete object identifier")
    numbers: list[int] = []
    value = 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _element(data: bytes, at: int, wanted: int | None = None) -> tuple[int, int, int]:
    """Return the tag of the element that begins at `at`, where its content begins, and where it ends. wanted: the tag
    that the element must have. Raises ValueError.
    """
    head = data[at : at + 2]
    if len(head) < 2 or wanted not in (None, head[0]):
        raise ValueError(f"no element of the expected kind at byte {at}")
    length, start = head[1], at + 2
    if length >= _LONG_LENGTH:
        count = length - _LONG_LENGTH
        if not 0 < count <= _MAX_LENGTH_BYTES:
            raise ValueError(f"no length at byte {at}")
        length = int.from_bytes(data[start : start + count], "big")
        start += count
    if start + length > len(data):
        raise ValueError(f"the element at byte {at} is incomplete")
    return head[0], start, start + length
