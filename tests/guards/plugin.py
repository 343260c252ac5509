"""A pytest plugin, `-p tests.guards.plugin`, that changes modules of the product when they are imported.

    METAQ_GUARD=SITE        import the module of this guard without the guard
    METAQ_GUARD_MARKS=DIR   make every guard note that it did its work; a file for each worker says in which tests
    METAQ_GUARD_TESTS=FILE  run only the collected tests with these node ids, in this order, or all tests of such files
    METAQ_GUARD_REPORT=FILE gets a line when a test begins, and when it or the import of its file has failed

It is for unit and component tests. A process that a test forks has the modules of its parent; a process that it starts
has the unchanged product.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from .sites import ROOT, module_of, product_sites, with_marks, without

__all__ = ["Changed"]

Change = Callable[[str, str], ast.Module]
"""Returns the changed module of a path, relative to the root, and its source."""


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, change: Change) -> None:
        super().__init__(name, path)
        self._change = change

    def get_code(self, fullname: str) -> CodeType:
        """Return the changed code; bytecode files are neither read nor written."""
        path = Path(self.path)
        tree = self._change(str(path.relative_to(ROOT)), path.read_text("utf-8"))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


class Changed(MetaPathFinder):
    """Finder that finds modules as the other finders do, and makes some of them load with a change: the module `only`,
    or all."""

    def __init__(self, change: Change, only: str | None = None) -> None:
        self._change = change
        self._only = only

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_wanted = fullname == self._only if self._only is not None else fullname.partition(".")[0] == "metaq"
        if not is_wanted:
            return None
        for finder in sys.meta_path:
            # pytest's finder claims all of metaq, because metaq has a pytest plugin; its loader would hide the source
            if finder is self or isinstance(finder, AssertionRewritingHook):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if isinstance(spec.loader, SourceFileLoader):
                    loader: Loader = _Loader(fullname, spec.loader.path, self._change)
                    spec.loader = loader
                return spec
        return None


class _Marks:
    """The guards that have done their work since the last test began, by their number among all guards."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = {site.name: number for number, site in enumerate(product_sites())}
        self._now: set[int] = set()
        self._tests: dict[str, tuple[float, list[int]]] = {}
        vars(builtins)["_metaq_guard_mark"] = self._now.add  # as fast as possible: some guards are in inner loops

    def change(self, path: str, source: str) -> ast.Module:
        numbers = self._numbers
        return with_marks(path, source, lambda site: f"_metaq_guard_mark({numbers.get(site.name, -1)})")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.monotonic()
        try:
            return (yield)
        finally:
            self._tests[item.nodeid] = time.monotonic() - began, sorted(self._now)
            self._now.clear()

    def pytest_sessionfinish(self) -> None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        content = {"guards": list(self._numbers), "tests": self._tests}
        (self._directory / f"{worker}-{os.getpid()}.json").write_text(json.dumps(content))


def _install() -> _Marks | None:
    """Install the finder at the import of this plugin, before any conftest is imported."""
    if loaded := [name for name in sys.modules if name.startswith("metaq.")]:
        raise pytest.UsageError(f"guards: loaded before they could be changed: {loaded}")
    if name := os.environ.get("METAQ_GUARD"):
        path = name.partition(":")[0]
        changed = without(path, (ROOT / path).read_text("utf-8"), name)
        sys.meta_path.insert(0, Changed(lambda path, source: changed, module_of(path)))
    elif directory := os.environ.get("METAQ_GUARD_MARKS"):
        marks = _Marks(Path(directory))
        sys.meta_path.insert(0, Changed(marks.change))
        return marks
    return None


def pytest_configure(config: pytest.Config) -> None:
    if _marks is not None:
        config.pluginmanager.register(_marks)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if file := os.environ.get("METAQ_GUARD_TESTS"):
        places = {name: place for place, name in enumerate(Path(file).read_text("utf-8").splitlines())}
        chosen = [
            (places[name], item)
            for item in items
            for name in (item.nodeid, item.nodeid.partition("::")[0])
            if name in places
        ]
        items[:] = [item for _, item in sorted(chosen, key=lambda each: each[0])]


def _report(word: str, test: str) -> None:
    if file := os.environ.get("METAQ_GUARD_REPORT"):
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(f"{word} {test}\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    _report("began", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _report("failed", report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _report("failed", report.nodeid)


_marks = _install() if {"METAQ_GUARD", "METAQ_GUARD_MARKS"} & os.environ.keys() else None
