"""An authority, a broker's certificate and a client's."""

from pathlib import Path

import pytest

from metaq.cli.authority import make_authority, make_broker, make_client


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has ca.pem, ca.key, and the folders of the broker "mq1", reached as mq1.example and by loopback, and of the
    client "app"."""
    directory = tmp_path_factory.mktemp("pki") / "pki"
    make_authority(directory)
    make_broker(directory, "mq1", ["mq1.example"])
    make_client(directory, "app")
    return directory
