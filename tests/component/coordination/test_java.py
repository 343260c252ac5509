"""Finding Java and PySpark's jars: what is wrong, and what to do, in one line."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from metaq.coordination import embedded
from metaq.protocol.errors import ConfigError


def make_java(home: Path, release: str | None = None, says: str = "") -> Path:
    """A Java home whose java prints `says` on stderr, as the real one prints its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return program


def test_no_java_on_the_path_names_the_remedy(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"java=none in PATH: .*openjdk-17-jre-headless"):
        embedded.find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=f"java=none in JAVA_HOME={tmp_path}"):
        embedded.find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


@pytest.mark.parametrize(
    ("release", "says"),
    [
        ('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.15"\n', ""),
        ('JAVA_VERSION="21"\n', ""),
        (None, 'openjdk version "17.0.15" 2025-04-15'),
        ("nothing of use", 'openjdk version "25" 2025-09-16'),
    ],
)
def test_java_17_or_newer_is_taken(tmp_path: Path, release: str | None, says: str):
    program = make_java(tmp_path / "jdk", release, says)
    assert embedded.find_java({"PATH": str(program.parent)}) == str(program)


@pytest.mark.parametrize(
    ("release", "says", "version"),
    [
        ('JAVA_VERSION="11.0.2"\n', "", "11"),
        (None, 'java version "1.8.0_392"', "8"),
        (None, "no idea", "unknown"),
    ],
)
def test_an_older_java_is_refused_with_its_path_and_version(tmp_path, release, says, version):
    program = make_java(tmp_path / "jdk", release, says)
    with pytest.raises(ConfigError, match=rf"java={program} \(version {version}\): Java 17 or newer is needed"):
        embedded.find_java({"PATH": str(program.parent)})


def test_java_home_goes_before_the_path(tmp_path: Path):
    wanted = make_java(tmp_path / "a", 'JAVA_VERSION="17.0.1"')
    other = make_java(tmp_path / "b", 'JAVA_VERSION="21.0.1"')
    assert embedded.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(other.parent)}) == str(wanted)


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'metaq\[spark\]'"):
        embedded.find_jars(["zookeeper-*.jar"])


def test_a_missing_jar_is_named_with_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "a-1.jar").touch()
    spec = ModuleSpec("pyspark", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(embedded, "find_spec", lambda _name: spec)
    assert embedded.find_jars(["a-*.jar"]) == [tmp_path / "jars" / "a-1.jar"]
    with pytest.raises(ConfigError, match=rf"{tmp_path}.*no zookeeper-\*\.jar"):
        embedded.find_jars(["a-*.jar", "zookeeper-*.jar"])
