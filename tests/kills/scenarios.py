"""The scenarios. Each is a function `run(directory, seed, say, **options)` that returns an Outcome."""

from __future__ import annotations

import inspect
from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from .outcome import Outcome

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario. module: where `run` is; it is imported when the scenario begins. Its options are the keywords of
    `run`, as the docstring of `run` describes them; with the defaults a run takes about a minute. An optional `begin`
    may start the program anew before that, in another environment; an optional `table` shows several results."""

    module: str

    def load(self) -> ModuleType:
        return import_module(self.module)

    def add_options(self, parser: ArgumentParser) -> list[str]:
        """Add the scenario's options to the parser; return their names."""
        run: Callable[..., Outcome] = self.load().run
        parser.description = inspect.getdoc(run)
        names = []
        for each in inspect.signature(run, eval_str=True).parameters.values():
            if each.kind is not inspect.Parameter.KEYWORD_ONLY:
                continue
            names.append(each.name)
            words: dict[str, Any] = {"default": each.default, "help": f"default: {each.default}"}
            if each.annotation is bool:
                words["action"] = BooleanOptionalAction
            elif get_origin(each.annotation) is Literal:
                words["choices"] = get_args(each.annotation)
            else:
                words["type"] = each.annotation
            parser.add_argument(f"--{each.name.replace('_', '-')}", **words)
        return names


SCENARIOS: Mapping[str, Scenario] = {
    "power": Scenario("tests.power.run"),
    "retries": Scenario("tests.kills.retries.run"),
    "delays": Scenario("tests.kills.delays.run"),
    "halves": Scenario("tests.kills.halves.run"),
    "shared": Scenario("tests.kills.shared.run"),
    "groups": Scenario("tests.history.run"),
    "failovers": Scenario("tests.failovers.run"),
    "restarts": Scenario("tests.failovers.restarts"),
    "java": Scenario("tests.failovers.java"),
    "mixed": Scenario("tests.soak.mixed"),
    "fuzz": Scenario("tests.zookeeper_fuzz.campaign"),
    "zookeeper": Scenario("tests.zookeeper_fuzz.kills"),
    "moves": Scenario("tests.soak.rolling"),
    "hostile": Scenario("tests.hostile.run"),
}
