"""Every state that a model can reach, breadth first, so that the first violation has one of the shortest ways to it."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

from .model import Model, Step, in_words
from .states import State


@dataclass(frozen=True)
class Exploration:
    """states: how many were reached; depth: steps of the longest of the shortest ways; seconds: of this exploration.

    broken: the violated invariant, or "", and the steps to it.
    """

    states: int
    depth: int
    seconds: float
    broken: str = ""
    trace: tuple[Step, ...] = ()

    def __str__(self) -> str:
        figures = f"{self.states:,} states, {self.depth} steps deep, {self.seconds:.1f} s"
        if not self.broken:
            return f"{figures}: every invariant holds"
        lines = (f"{number:3}. {in_words(step)}" for number, step in enumerate(self.trace, 1))
        return "\n".join((f"{figures}: broken invariant {self.broken}", *lines))


def explore(model: Model, deepest: int | None = None, only: str = "") -> Exploration:
    """Explore until there is a violation or no new state, or all that is at most `deepest` steps away.

    only: the number of an invariant; violations of the others are passed by.
    """
    collecting = gc.isenabled()
    gc.disable()  # there are no circles, and looking for them takes half of the time
    try:
        with model.mutated():
            return _explore(model, deepest, only)
    finally:
        model.forget()
        if collecting:
            gc.enable()


def _explore(model: Model, deepest: int | None, only: str) -> Exploration:
    began = time.monotonic()
    first = model.first()
    before: dict[State, State | None] = {first: None}
    level, depth = [first], 0
    steps, broken = model.steps, model.broken
    while level and depth != deepest:
        following = []
        for state in level:
            for _, reached in steps(state):
                if reached in before:
                    continue
                before[reached] = state
                if (wrong := broken(reached)) and wrong.startswith(only):
                    trace = _trace(model, before, reached)
                    return Exploration(len(before), depth + 1, time.monotonic() - began, wrong, trace)
                following.append(reached)
        level = following
        depth += bool(following)
    return Exploration(len(before), depth, time.monotonic() - began)


def _trace(model: Model, before: dict[State, State | None], last: State) -> tuple[Step, ...]:
    trace = []
    state = last
    while (former := before[state]) is not None:
        trace.append(next(step for step, reached in model.steps(former) if reached == state))
        state = former
    return tuple(reversed(trace))
