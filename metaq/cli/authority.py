"""Create a certificate authority (CA), which is a directory of files, and certificates that this CA signs.

The library `cryptography` makes and signs the certificates, because Python's own module `ssl` cannot. All keys use the
elliptic curve P-256.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from metaq.coordination.runtime.certificates import check_secret
from metaq.protocol.errors import ConfigError

__all__ = ["make_authority", "make_broker", "make_client", "make_zookeeper", "make_zookeeper_client"]

_CA_DAYS = 3650
_DAYS = 825
"""A certificate is valid for this number of days. Common TLS clients refuse a certificate with a longer validity."""
_EARLY = datetime.timedelta(minutes=5)
"""A certificate's validity begins this long before its creation, because the clocks of other machines may show an
earlier time.
"""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_SECURITY_INI = """\
; metaq broker --security security.ini; docs/security.md describes the keys
[tls]
certificate = broker.pem
key = broker.key
ca = ca.pem
clientCertificates = optional
"""
_SECURED = "plain = loopback\nbrokers = required\n"
_FROM_PLAIN = """\
; as long as there are clients and brokers without TLS; when there are none any more, write plain = loopback and
; brokers = required, and restart the brokers: docs/security.md, "From plain to TLS without a stop"
plain = everywhere
brokers = plain
"""

_PROFILE = """\
; export METAQ_PROFILE=this file; docs/security.md describes the keys
[tls]
ca = ca.pem
certificate = client.pem
key = client.key
"""


def make_authority(directory: Path) -> None:
    """Create the authority's certificate ca.pem and its private key ca.key in `directory`. Raises ConfigError if the
    directory is not empty or cannot be written.
    """
    _make_folder(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "metaq CA")])
    public = key.public_key()
    certificate = (
        _builder(name, name, public, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(directory / "ca.key", key)
    _write(directory / "ca.pem", certificate.public_bytes(serialization.Encoding.PEM))


def make_broker(directory: Path, name: str, hosts: Iterable[str], *, from_plain: bool = False) -> Path:
    """Make the subdirectory `name` of `directory` with a broker's certificate, private key, ca.pem and security.ini.
    Return the path of its security.ini. from_plain: the broker also serves clients and brokers without TLS, as before
    it had the file. Raises ConfigError if `name` is no valid name of a directory, if `directory` contains no authority,
    or if the subdirectory cannot be made.
    """
    names = [_host(host) for host in dict.fromkeys((*hosts, *_LOOPBACK))]
    text = _SECURITY_INI + (_FROM_PLAIN if from_plain else _SECURED)
    return _make(directory, name, "broker", {"security.ini": text}, names) / "security.ini"


def make_client(directory: Path, name: str) -> Path:
    """Make the subdirectory `name` of `directory` with a client's certificate, private key, ca.pem and profile. Return
    the path of its profile. Raises ConfigError if `name` is no valid name of a directory, if `directory` contains no
    authority, or if the subdirectory cannot be made.
    """
    return _make(directory, name, "client", {"profile.ini": _PROFILE}, []) / "profile.ini"


def make_zookeeper(directory: Path, name: str, hosts: Iterable[str]) -> Path:
    """Make the subdirectory `name` of `directory` with a ZooKeeper server's certificate zookeeper.pem, its private key
    zookeeper.key, and ca.pem. Return the subdirectory. The certificate identifies no broker and no user. Raises
    ConfigError as make_broker does.
    """
    return _make(directory, name, "zookeeper", {}, [_host(host) for host in hosts], [ExtendedKeyUsageOID.SERVER_AUTH])


def make_zookeeper_client(directory: Path, name: str) -> Path:
    """Make the subdirectory `name` of `directory` with the certificate client.pem by which a program identifies itself
    to ZooKeeper, its private key client.key, and ca.pem. Return the subdirectory. Raises ConfigError as make_client
    does.
    """
    return _make(directory, name, "client", {}, [])


def _make(
    directory: Path,
    name: str,
    kind: str,
    texts: Mapping[str, str],
    hosts: list[x509.GeneralName],
    usage: list[x509.ObjectIdentifier] | None = None,
) -> Path:
    """Make a certificate and the folder for it, and return the folder. texts: the other files of the folder. hosts: the
    hosts that the certificate names. usage: what the certificate may be used for; None means as a client, and also as a
    server if the certificate names a host.
    """
    if not name or Path(name).name != name or len(name) > 64:
        raise ConfigError("NAME", name, "choose a name of at most 64 characters without /: it names a folder")
    ca, ca_key = _authority(directory)
    folder = directory / name
    _make_folder(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = usage or [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = (
        _builder(subject, ca.subject, key.public_key(), _DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    certificate = builder.sign(ca_key, hashes.SHA256())
    _write_key(folder / f"{kind}.key", key)
    _write(folder / f"{kind}.pem", certificate.public_bytes(serialization.Encoding.PEM))
    _write(folder / "ca.pem", ca.public_bytes(serialization.Encoding.PEM))
    for file, text in texts.items():
        _write(folder / file, text.encode())
    return folder


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path = directory / "ca.key"
    check_secret("DIRECTORY", str(path))
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
    except (OSError, ValueError, TypeError) as error:
        remedy = f"it holds no authority that `metaq security init` has made: {error}"
        raise ConfigError("DIRECTORY", directory, remedy) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("DIRECTORY", directory, "its ca.key is not one that `metaq security init` has made")
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLY)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError("--host", host, "write an address, or a name in ASCII (xn--… for others)") from error


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError as error:
        if not path.is_dir() or any(path.iterdir()):
            remedy = "it is there already, and nothing is overwritten: choose another name, or remove it"
            raise ConfigError("DIRECTORY", path, remedy) from error
        path.chmod(0o700)
    except OSError as error:
        raise ConfigError("DIRECTORY", path, f"cannot be made: {error.strerror}") from error


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    data = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write(path, data, 0o600)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
    except OSError as error:
        raise ConfigError("DIRECTORY", path, f"cannot be written: {error.strerror}") from error
