"""What setuptools puts into the wheel, compared with what the source tree holds."""

from pathlib import Path
from typing import Any

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[2]
NOT_INSTALLED = {"bench", "tests"}


def sources(pattern: str) -> set[Path]:
    """Files of that name in all top-level folders that hold parts of metaq, relative to the repository."""
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NOT_INSTALLED
    found = (path for top in tops for path in (ROOT / top).rglob(pattern))
    return {path.relative_to(ROOT) for path in found if path.is_file() and path.suffix != ".pyc"}


@pytest.fixture
def build_py(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command that collects the files of a wheel, configured as for a build; it has not run."""
    monkeypatch.chdir(ROOT)
    distribution = setuptools.Distribution({"script_name": "setup.py"})
    distribution.parse_config_files(["pyproject.toml"])
    distribution.set_defaults()
    distribution.include_package_data = False  # only what package-data names: the rest depends on how sdist was made
    command = distribution.get_command_obj("build_py")
    command.ensure_finalized()
    return command


def test_every_folder_with_an_init_is_a_package_of_the_wheel(build_py):
    folders = {Path(build_py.get_package_dir(package)) for package in build_py.distribution.packages}
    assert folders == {path.parent for path in sources("__init__.py")}
    assert len(folders) >= 17


def test_every_module_is_in_the_wheel(build_py):
    assert {Path(path) for _package, _module, path in build_py.find_all_modules()} == sources("*.py")


def test_the_wheel_names_each_module_by_its_folder(build_py):
    modules = {(package, module): Path(path) for package, module, path in build_py.find_all_modules()}
    assert modules["metaq.broker.replication", "__init__"] == Path("broker/replication/__init__.py")
    assert modules["metaq.broker.inspection", "data_directory"] == Path("broker/inspection/data_directory.py")


def test_every_other_file_is_in_the_wheel_and_says_that_a_package_is_typed(build_py):
    files = {Path(folder, name) for _package, folder, _target, names in build_py.data_files for name in names}
    assert files == sources("*") - sources("*.py")
    assert files == {Path(top, "py.typed") for top in {path.parts[0] for path in sources("__init__.py")}}
