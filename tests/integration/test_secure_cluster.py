"""`metaq up --secure`: from nothing to a user who sends and consumes, and what a later start keeps."""

import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError

from metaq.cli.authority import make_authority
from metaq.coordination.runtime.certificates import CertificateFiles
from metaq.coordination.session.zk_session import ZkSession
from metaq.protocol.errors import CoordinationUnavailable
from tests.waiting import DEADLINE

from .cli_helpers import START_SECONDS, Up, first_line, jars_of_apache, run, start, stop
from .doc_examples import all_blocks

UP = ("up", "--secure", "--port", "0", "--zookeeper-port", "0")
HERE = "127.0.0.1:2181"
"""Where the page has its ZooKeeper."""
LINES = 10
"""So many it prints below its first line."""
BLOCKS = [block for block in all_blocks("docs/security.md") if block.heading == "In one command"]
SH = [block.body for block in BLOCKS if block.language == "sh"]


class Secure:
    """A running `metaq up --secure`, and the text that it has printed below its first line."""

    def __init__(self, data_dir: Path, *more: str) -> None:
        began = time.monotonic()
        process = start(*UP, "--data-dir", str(data_dir), *more)
        zookeeper, *brokers = re.findall(r"127\.0\.0\.1:\d+", first_line(process))
        self.seconds = time.monotonic() - began
        self.up = Up(process, zookeeper, [int(address.rpartition(":")[2]) for address in brokers], data_dir)
        assert process.stdout is not None
        self.text = "".join(process.stdout.readline().decode() for _ in range(LINES))
        self.admin = data_dir / "security" / "admin.ini"
        assert f"METAQ_PROFILE={shlex.quote(str(self.admin))}\n" in self.text
        self.nobody = data_dir.with_name("nobody.ini")
        self.nobody.write_text(f"[zookeeper]\nca = {self.admin.with_name('ca.pem')}\n")

    def ran(self, profile: Path | None, *arguments: str, stdin: bytes = b""):
        """Run a command as the user of this profile; None: as nobody, who knows only the CA of ZooKeeper."""
        return run(*arguments, stdin=stdin, env=self.env(profile))

    def env(self, profile: Path | None) -> dict[str, str]:
        return {"METAQ_ZK": self.up.zookeeper, "METAQ_PROFILE": str(profile or self.nobody)}

    def stop(self) -> str:
        """What it has said on stderr."""
        self.up.process.terminate()
        _, said = self.up.process.communicate(timeout=START_SECONDS)
        assert self.up.process.returncode == 0, said
        return said.decode()

    def __enter__(self):
        return self

    def __exit__(self, *_exc_info):
        stop(self.up.process)


def shell(line: str, directory: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which `metaq` and `python` are those of this environment."""
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(directory)}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=directory,
        env=path | dict(env),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )


def test_what_it_prints_leads_from_nothing_to_a_send_and_a_consume(tmp_path, record_property):
    began = time.monotonic()
    with Secure(tmp_path / "it's data", "--topic", "orders") as cluster:
        assert "change groups and offsets, but no users, topics and brokers" in cluster.text
        export, add = cluster.text.splitlines()[2:4]
        ran = shell(f"{export.strip()}\n{add.strip()}", tmp_path, {})
        assert (ran.returncode, ran.stdout) == (0, "created the user app; profile: app.ini\n"), ran.stderr
        program = cluster.text[cluster.text.index("from metaq") :]
        assert len(program.splitlines()) == 5
        (tmp_path / "example.py").write_text(program)
        ran = shell("METAQ_PROFILE=app.ini python example.py", tmp_path, {})
        assert (ran.returncode, ran.stdout) == (0, "b'hello'\n"), ran.stderr
    took = time.monotonic() - began
    record_property("seconds from nothing to a send and a consume", took)
    print(f"the brokers served after {cluster.seconds:.2f} s, a user had sent and consumed after {took:.2f} s")


def test_the_examples_of_the_page_work(tmp_path):
    up, steps = SH
    words = shlex.split(up)
    assert words[:3] == ["metaq", "up", "--secure"]
    (program,) = [block.body for block in BLOCKS if block.language == "python"]
    with Secure(tmp_path / "metaq-data", *words[3:]) as cluster:
        ran = shell(steps.replace(HERE, cluster.up.zookeeper), tmp_path, {})
        assert ran.returncode == 0, ran.stderr
        (tmp_path / "example.py").write_text(program.replace(HERE, cluster.up.zookeeper))
        ran = shell("METAQ_PROFILE=app.ini python example.py", tmp_path, {})
        assert (ran.returncode, ran.stdout) == (0, "b'hello'\n"), ran.stderr
        assert program.replace(HERE, cluster.up.zookeeper) in cluster.text
        made = sorted(path.name for path in (tmp_path / "metaq-data" / "security").iterdir())
        assert made == ["admin", "admin.ini", "broker-0", "ca.key", "ca.pem", "zookeeper"]


CONSUME = ("consume", "--topic", "orders", "--group", "billing", "--from", "earliest", "--timeout", str(DEADLINE))


def add_app(cluster: Secure, profile: Path) -> None:
    grants = ("--can", "send:orders", "--can", "consume:orders@billing")
    assert cluster.ran(cluster.admin, "users", "add", "app", *grants, "--profile", str(profile)).code == 0


def test_two_brokers_refuse_nobody_and_a_later_start_has_the_same_users(tmp_path):
    data, app = tmp_path / "data", tmp_path / "app.ini"
    with Secure(data, "--topic", "orders:2", "--brokers", "2") as cluster:
        add_app(cluster, app)
        assert cluster.ran(app, "produce", "--topic", "orders", "--batch", "1", stdin=b"a\nb\nc\nd\n").code == 0
        for nobody in (("stats", "--broker", "0"), ("stats", "--broker", "1"), ("consume", "--topic", "orders")):
            told = cluster.ran(None, *nobody)
            assert (told.code, "log in as a user with the grant" in told.err) == (1, True), told
        told = cluster.ran(app, "stats", "--broker", "1")
        assert (told.code, "metaq acl grant app see:*" in told.err) == (1, True), told
        status = cluster.ran(cluster.admin, "security", "status", "--json")
        assert status.code == 0, status.err
        assert status.out.count('"enforce"') == 3  # the cluster and both brokers
        check_zookeeper(cluster, tmp_path)
        assert cluster.stop() == ""
    secrets = {path: path.read_bytes() for path in (data / "security").rglob("*") if path.is_file()}
    with Secure(data) as cluster:
        assert len(cluster.up.broker_ports) == 2
        assert cluster.ran(cluster.admin, "users", "list").code == 0
        ran = cluster.ran(app, *CONSUME, "--count", "4")
        assert sorted(ran.out.split()) == ["a", "b", "c", "d"], ran
        assert cluster.ran(None, "consume", "--topic", "orders").code == 1
        assert cluster.stop() == ""
    assert {path: path.read_bytes() for path in secrets} == secrets
    check_secrets(data)


def check_zookeeper(cluster: Secure, tmp_path: Path) -> None:
    """Its port serves nobody without TLS, and a program that knows another CA does not believe it."""
    with pytest.raises(CoordinationUnavailable, match="speaks TLS: add a section"):
        ZkSession(cluster.up.zookeeper).start(20.0)
    make_authority(tmp_path / "strangers")
    with pytest.raises(CoordinationUnavailable, match="its certificate is refused"):
        ZkSession(cluster.up.zookeeper, tls=CertificateFiles(str(tmp_path / "strangers" / "ca.pem"))).start(20.0)


def test_whoever_has_no_certificate_cannot_make_an_admin(tmp_path):
    with Secure(tmp_path / "data", "--topic", "orders") as cluster:
        ca = CertificateFiles(str(cluster.admin.with_name("ca.pem")))
        with ZkSession(cluster.up.zookeeper, tls=ca) as anybody:
            for path in ("/meta/security/users/mallory", "/meta/brokers/ids/666"):
                with pytest.raises(NoAuthError):
                    anybody.zk.create(path, b"", makepath=True)
            with pytest.raises(NoAuthError):
                anybody.zk.get("/meta/security/users/admin")
        assert cluster.ran(cluster.admin, "users", "add", "app").code == 0


def test_apaches_zookeeper_stays_without_tls_and_the_files_stay_fit_for_it(tmp_path):
    data, server = tmp_path / "data", ("--zookeeper", jars_of_apache(tmp_path / "jars", "3.9.6"))
    with Secure(data, "--topic", "orders", *server) as cluster:
        assert "ZooKeeper has no TLS: any program" in cluster.text
        assert cluster.ran(cluster.admin, "users", "list").code == 0
        cluster.stop()
    refused = run(*UP, "--data-dir", str(data))
    assert (refused.code, "holds the data of Apache's" in refused.err) == (1, True), refused
    with Secure(data, *server) as cluster:
        assert cluster.ran(cluster.admin, "produce", "--topic", "orders", stdin=b"a\n").code == 0
        assert cluster.stop() == ""


def of_an_earlier_version(data: Path, app: Path) -> None:
    """Make the files be those of a version whose ZooKeeper had no TLS."""
    for path in (app, data / "security" / "admin.ini", *(data / "security").glob("broker-*/security.ini")):
        text = path.read_text()
        path.write_text(text[: text.index("\n; TLS to ZooKeeper")])
    for name in ("zookeeper", "admin"):
        shutil.rmtree(data / "security" / name)


def test_a_directory_of_an_earlier_version_gets_tls_to_zookeeper(tmp_path):
    data, app = tmp_path / "data", tmp_path / "app.ini"
    with Secure(data, "--topic", "orders") as cluster:
        add_app(cluster, app)
        cluster.stop()
    of_an_earlier_version(data, app)
    with Secure(data) as cluster:
        refused = cluster.ran(app, "produce", "--topic", "orders", stdin=b"a\n")
        assert (refused.code, "speaks TLS: add a section [zookeeper]" in refused.err) == (1, True), refused
        line = f"ca = {data / 'security' / 'ca.pem'}"
        app.write_text(f"{app.read_text()}\n[zookeeper]\n{line}\n")
        assert cluster.ran(app, "produce", "--topic", "orders", stdin=b"a\n").code == 0
        assert cluster.ran(cluster.admin, "users", "list").code == 0
        said = cluster.stop()
    assert said.count("\n") == 1
    assert f"add to the profiles of users the section [zookeeper] with the line {line}\n" in said


def check_secrets(data: Path) -> None:
    """Passwords and keys are only in files that only their owner may read."""
    profile = ConfigParser(interpolation=None)
    profile.read(data / "security" / "admin.ini")
    password = profile["user"]["password"].encode()
    found = [
        path
        for path in data.rglob("*")
        if path.is_file() and any(secret in path.read_bytes() for secret in (password, b"PRIVATE KEY"))
    ]
    assert len(found) == 6  # the profile, and the keys of the CA, of two brokers, of ZooKeeper and of the admin
    assert [path for path in found if stat.S_IMODE(path.stat().st_mode) != 0o600] == []
    assert stat.S_IMODE((data / "security").stat().st_mode) == 0o700


def test_broker_sets_follow_their_leaders_over_tls(tmp_path):
    with Secure(tmp_path / "data", "--topic", "orders", "--replicas", "2") as cluster:
        ran = cluster.ran(cluster.admin, "produce", "--topic", "orders", "--json", stdin=b"kept\n")
        assert (ran.code, '"replicas": 2' in ran.out) == (0, True), ran
        names = {path.name for path in (tmp_path / "data" / "security").iterdir() if path.is_dir()}
        assert names == {"broker-0", "broker-0-b", "zookeeper", "admin"}


def test_a_later_start_enforces_again_and_mends_what_was_lost(tmp_path):
    data, app = tmp_path / "data", tmp_path / "app.ini"
    with Secure(data, "--topic", "orders") as cluster:
        add_app(cluster, app)
        assert cluster.ran(cluster.admin, "security", "observe").code == 0
        cluster.stop()
    before = (data / "security" / "admin.ini").read_text()
    (data / "security" / "admin.ini").unlink()
    (data / "security" / "broker-0").rename(tmp_path / "old")
    with Secure(data) as cluster:
        assert (data / "security" / "admin.ini").read_text() != before
        assert cluster.ran(app, "produce", "--topic", "orders", stdin=b"a\n").code == 0
        ran = cluster.ran(app, *CONSUME, "--count", "1")
        assert (ran.code, ran.out) == (0, "a\n"), ran
        assert cluster.ran(None, "consume", "--topic", "orders").code == 1
        assert cluster.ran(cluster.admin, "users", "password", "admin").code == 0
        said = cluster.stop()
    assert "the user admin has a new password, in " in said
    assert "the mode was observe: it is enforce again" in said
    refused = run(*UP, "--data-dir", str(data))
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1), refused
    assert "admin.ini cannot be used, because the brokers refuse its user" in refused.err
    assert "or remove the file" in refused.err
    (data / "security" / "admin.ini").unlink()
    with Secure(data) as cluster:
        assert cluster.ran(cluster.admin, "users", "add", "root", "--admin").code == 0
        assert cluster.ran(cluster.admin, "users", "delete", "admin", "--yes").code == 0
    refused = run(*UP, "--data-dir", str(data))
    assert (refused.code, "because there is no user admin any more" in refused.err) == (1, True), refused
    (data / "zookeeper").rename(tmp_path / "zookeeper")
    with Secure(data) as cluster:
        assert cluster.ran(cluster.admin, "users", "list").code == 0
        assert "ZooKeeper has no users: the user admin of " in cluster.stop()


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [((), ("--secure",), "leave --secure out"), (("--secure",), (), "add --secure")],
)
def test_a_directory_keeps_its_kind(tmp_path, first, second, said):
    up = ("up", "--data-dir", str(tmp_path / "data"), "--port", "0", "--zookeeper-port", "0")
    process = start(*up, *first)
    first_line(process)
    assert stop(process) == 0
    refused = run(*up, *second)
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1), refused
    assert f"--data-dir={tmp_path / 'data'}: " in refused.err
    assert f"{said}, or choose another directory" in refused.err
