"""The plugin options of metaq 1.x, `-F<plugin>=<file>`, with all keys, defaults and checks (storage.md §9)."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from metaq.protocol.errors import ConfigError, InvalidName
from metaq.protocol.limits import INT32_MAX, check_group

__all__ = ["NO_PLUGINS", "MetaslavePlugin", "Plugins", "Property", "SamsaPlugin", "parse_properties", "read_plugins"]

_log = logging.getLogger(__name__)

DEFAULT_MAX_DELAY_MS = 500
DEFAULT_SEND_TIMEOUT_MS = 2000
DEFAULT_FAILURE_THRESHOLD = 100
DEFAULT_CHECK_INTERVAL_MS = 100
SAMSA_KEYS_WITHOUT_EFFECT = ("callbackThreadCount", "recoverParallel", "recoverParallelHint")
"""Keys for thread counts of the Java broker. This broker accepts the keys and ignores their values, so that it can use
the same file as a Java broker.
"""

DEFAULT_GATEWAY_PORT = 8080
MAX_PORT = 65535
_SLAVE = re.compile(r"(?:\[([^\[\]\s]+)\]|([^:/\s\[\]]+)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class MetaslavePlugin:
    """The settings of the plugin metaslave, which makes the broker an asynchronous slave. group: the slave's requests
    to the master contain this name as the name of a consumer group.
    """

    slave_id: int
    group: str
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS
    """slaveMaxDelayInMills: the longest pause between two requests to a master that has nothing new."""
    sync_master_config: bool = False
    """autoSyncMasterConfig: whether to copy the topics of the master's server.ini into the slave's own file."""


@dataclass(frozen=True, slots=True)
class SamsaPlugin:
    """The settings of the plugin samsa, which makes the broker a synchronous master. host, port: where the slave of
    this master listens; an IPv6 address has no brackets.
    """

    host: str
    port: int
    recover_offset: bool = False
    """recoverOffset: whether to convert the offsets of all consumer groups in ZooKeeper before the broker serves
    clients. They are offsets in the partitions of the broker's former master, and become offsets in the broker's own
    partitions. An operator sets this for a broker that was a synchronous slave before.
    """
    send_timeout_ms: int = DEFAULT_SEND_TIMEOUT_MS
    failure_threshold: int = DEFAULT_FAILURE_THRESHOLD
    """slaveContinuousFailureThreshold: a request to the slave fails if it gets a bad answer, or no answer in time.
    After this many failures in succession the master unregisters from ZooKeeper.
    """
    check_interval_ms: int = DEFAULT_CHECK_INTERVAL_MS
    """checkSlaveIntervalInMills: milliseconds between two probe messages, with which the master finds out whether a
    failed slave works again.
    """


@dataclass(frozen=True, slots=True)
class Plugins:
    """The settings of the plugins that are named in the options of the command that starts the broker. A broker without
    replication plugins is a plain master. gregor: whether the broker is a synchronous slave.

    gateway_port: the port of the HTTP gateway (key serverPort of the plugin jettyBroker); 0 means a free port, and None
        means no gateway.
    """

    metaslave: MetaslavePlugin | None = None
    samsa: SamsaPlugin | None = None
    gregor: bool = False
    gateway_port: int | None = None


NO_PLUGINS = Plugins()


def read_plugins(files: Mapping[str, str]) -> Plugins:
    """Read the files of the plugin options. files: plugin name -> properties file, as given with -F. Raises a
    ConfigError that names the plugin or key and the remedy.

    With metaslave all other plugins are ignored with a warning, as in 1.x.
    """
    for name in files:
        if name not in _READERS:
            raise _unknown_plugin(name, files[name])
    if "metaslave" in files:
        others = sorted(files.keys() - {"metaslave"})
        if others:
            _log.warning("started as a slave (-Fmetaslave): ignoring -F%s", ", -F".join(others))
        files = {"metaslave": files["metaslave"]}
    if "samsa" in files and "gregor" in files:
        raise ConfigError("-Fgregor", files["gregor"], "excludes -Fsamsa: a broker is synchronous master or slave")
    plugins = NO_PLUGINS
    for name, path in files.items():
        plugins = _READERS[name](plugins, _Values(name, path))
    return plugins


def _unknown_plugin(name: str, path: str) -> ConfigError:
    close = difflib.get_close_matches(name, _READERS, 1, 0.6)
    hint = f"did you mean {close[0]}?" if close else f"known plugins: {', '.join(sorted(_READERS))}"
    return ConfigError(f"-F{name}", path, f"is not a plugin; {hint}")


class _Values:
    """Methods that read the values of one properties file with their types. A key with a blank value counts as not set,
    as in 1.x.
    """

    def __init__(self, plugin: str, path: str) -> None:
        self._path = path
        try:
            with open(path, "rb") as file:
                self._found = parse_properties(file.read())
        except OSError as error:
            raise ConfigError(f"-F{plugin}", path, f"cannot be read ({error.strerror}): give a file") from error

    def only(self, *keys: str) -> None:
        """Raise ConfigError if the file has a key that is not among `keys`."""
        for found in self._found.values():
            if found.key not in keys:
                close = difflib.get_close_matches(found.key, keys, 1, 0.6)
                known = f"known keys: {', '.join(keys)}" if keys else "the plugin has no keys"
                raise self._fail(found, f"is unknown; did you mean {close[0]}?" if close else f"is unknown; {known}")

    def text(self, key: str) -> str | None:
        found = self._found.get(key)
        return None if found is None or not found.value.strip() else found.value.strip()

    def required(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise ConfigError(f"{self._path}: {key}", "", "is required: set it")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self.text(key)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self.fail(key, "must be true or false")
        return value.lower() == "true"

    def integer(self, key: str, default: int, low: int, high: int = INT32_MAX) -> int:
        value = self.text(key)
        if value is None:
            return default
        digits = value.removeprefix("+")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and low <= int(digits) <= high):
            raise self.fail(key, f"must be a whole number in {low} … {high}")
        return int(digits)

    def fail(self, key: str, remedy: str) -> ConfigError:
        return self._fail(self._found[key], remedy)

    def _fail(self, found: Property, remedy: str) -> ConfigError:
        return ConfigError(f"{self._path}:{found.line}: {found.key}", found.value, remedy)


def _metaslave(plugins: Plugins, values: _Values) -> Plugins:
    values.only("slaveId", "slaveGroup", "slaveMaxDelayInMills", "autoSyncMasterConfig")
    values.required("slaveId")
    slave_id = values.integer("slaveId", 0, 0)
    group = values.text("slaveGroup") or f"meta-slave-group_{slave_id}"
    try:
        check_group(group)
    except InvalidName as error:
        raise values.fail("slaveGroup", str(error)) from error
    return replace(
        plugins,
        metaslave=MetaslavePlugin(
            slave_id,
            group,
            values.integer("slaveMaxDelayInMills", DEFAULT_MAX_DELAY_MS, 1),
            values.boolean("autoSyncMasterConfig", False),
        ),
    )


def _samsa(plugins: Plugins, values: _Values) -> Plugins:
    values.only(
        "slave",
        "recoverOffset",
        "sendToSlaveTimeoutInMills",
        "slaveContinuousFailureThreshold",
        "checkSlaveIntervalInMills",
        *SAMSA_KEYS_WITHOUT_EFFECT,
    )
    slave = _SLAVE.fullmatch(values.required("slave"))
    if slave is None or not 0 < int(slave[3]) <= MAX_PORT:
        raise values.fail("slave", "must be host:port of the synchronous slave")
    return replace(
        plugins,
        samsa=SamsaPlugin(
            slave[1] or slave[2],
            int(slave[3]),
            values.boolean("recoverOffset", False),
            values.integer("sendToSlaveTimeoutInMills", DEFAULT_SEND_TIMEOUT_MS, 1),
            values.integer("slaveContinuousFailureThreshold", DEFAULT_FAILURE_THRESHOLD, 1),
            values.integer("checkSlaveIntervalInMills", DEFAULT_CHECK_INTERVAL_MS, 1),
        ),
    )


def _gregor(plugins: Plugins, values: _Values) -> Plugins:
    values.only()
    return replace(plugins, gregor=True)


def _jetty_broker(plugins: Plugins, values: _Values) -> Plugins:
    values.only("serverPort")
    return replace(plugins, gateway_port=values.integer("serverPort", DEFAULT_GATEWAY_PORT, 0, MAX_PORT))


_READERS: Mapping[str, Callable[[Plugins, _Values], Plugins]] = {
    "metaslave": _metaslave,
    "samsa": _samsa,
    "gregor": _gregor,
    "jettyBroker": _jetty_broker,
}


# --- Java's .properties files -----------------------------------------------------------------------------------------

_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """A property in a properties file. line: number of the line where the property begins; the first line is 1."""

    key: str
    value: str
    line: int


def parse_properties(source: bytes) -> dict[str, Property]:
    """Parse a properties file, which is read as ISO-8859-1 as in Java. If a key occurs several times, its last value is
    used.

    java.util.Properties.load defines the format (comments, continued lines, escapes). Invalid \\u escapes, which Java
    refuses, are kept unchanged.
    """
    found = {}
    for number, line in _logical_lines(source.decode("iso-8859-1")):
        key = _KEY.match(line)
        assert key is not None  # it also matches the empty text
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None
        name = _unescape(key.group())
        found[name] = Property(name, _unescape(line[separator.end() :]), number)
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield line numbers and lines, without comments and blank lines. A line that ends in an odd number of backslashes
    is joined with the next.
    """
    lines = enumerate(re.split(r"\r\n|\r|\n", text), 1)
    for number, natural in lines:
        line = natural.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(" \t\f")
        yield number, line


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), text)
