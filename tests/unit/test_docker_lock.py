"""The libraries that the images install have exact versions and hashes, and are those that pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"requirements.lock": [], "requirements-spark.lock": ["spark"]}


@pytest.mark.parametrize("name", LOCKS)
def test_an_image_installs_known_files_of_what_is_needed(name: str) -> None:
    text = (ROOT / "docker" / name).read_text()
    entries = re.findall(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n", text, re.MULTILINE)
    assert "".join(f"{library}=={version}{hashes}\n" for library, version, hashes in entries) == text
    locked = {library: version for library, version, _ in entries}
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = described["project"]
    extras = [each for extra in LOCKS[name] for each in project["optional-dependencies"][extra]]
    for each in map(Requirement, [*described["build-system"]["requires"], *project["dependencies"], *extras]):
        assert locked[each.name.lower()] in each.specifier, each
    assert (ROOT / "Dockerfile").read_text().count(f"--require-hashes --requirement {name}") == 1
