"""One run: operations to both servers, one at a time, and the first difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from .answers import Item
from .jute import OpCode
from .operations import OPEN, USERS, Operation, attaching, connecting, logging_in, show
from .rules import LISTED, ZxidOrder, difference, events_sorted
from .side import Side
from .wires import Connect, Stuck

__all__ = ["Difference", "Run", "replay"]

GATHER_EVERY = 64
"""Operations, after which the events of all connections are compared."""

OBSERVER = 1000
"""The slot of the client that reads the trees at the end."""

_SHOWN = 40
"""Operations of a difference."""


class Difference(NamedTuple):
    """operations: up to the last one that both were given."""

    operations: list[Operation]
    what: str
    first: list[Item]
    second: list[Item]

    def __str__(self) -> str:
        lines = [f"{self.what}, the last of {len(self.operations)} operations"]
        lines += [f"  {show(operation)}" for operation in self.operations[-_SHOWN:]]
        for name, items in (("first server", self.first), ("second server", self.second)):
            lines += [f"{name}:", *(f"  {_cut(item)}" for item in items)]
        return "\n".join(lines)


def _cut(item: Item) -> str:
    text = f"{item.plain!r} zxids {item.zxids}"
    return text if len(text) < 2000 else text[:2000] + "…"


class Run:
    """Two sides that are given the same operations.

    root: a path that neither server has; it is made. restart: of the second server, once nobody is connected.
    Raises RuntimeError if the servers differ already.
    """

    def __init__(self, first: Connect, second: Connect, root: str, restart: Callable[[], None] | None = None) -> None:
        self.zxids = ZxidOrder()
        self.sides = (Side(first, root, self.zxids.first), Side(second, root, self.zxids.second))
        self.done: list[Operation] = []
        self._asked: tuple[set[int], set[int]] = (set(), set())
        self._since_gathered = 0
        self._restart = restart
        self._make_root()

    def _make_root(self) -> None:
        create = Operation(OBSERVER, OpCode.CREATE, (("path", "/"), ("buffer", b""), OPEN, ("int", 0)))
        for operation in (connecting(OBSERVER), create, Operation(OBSERVER, OpCode.CLOSE_SESSION)):
            found = self.do(operation)
            if isinstance(found, Difference):
                raise RuntimeError(f"no run can begin: {found}")
        self.done.clear()

    def close(self) -> None:
        """Leave nothing behind that ends later."""
        for side in self.sides:
            side.close()

    def do(self, operation: Operation) -> list[Item] | Difference:
        """Give it to both: what the first server sent, if the second one sent the same."""
        if any(each.meets(request, self) for each in LISTED for request in operation.requests):
            return [Item(("listed",))]
        self.done.append(operation)
        found = self._compared(operation)
        self._since_gathered += 1
        if not isinstance(found, Difference) and self._since_gathered >= GATHER_EVERY:
            return self._gathered() or found
        return found

    def is_connected(self, session: int) -> bool:
        """Whether a client has that session, by the first server."""
        return session in self.sides[0].attached.values()

    def finish(self) -> Difference | None:
        """Compare what has not been read yet, and the trees, and end all sessions."""
        return self._gathered() or self._restarted() or self._trees() or self._ended()

    def _restarted(self) -> Difference | None:
        """With other connections nothing may be different."""
        if self._restart is None:
            return None
        for slot in self.sides[0].slots:
            found = self.do(Operation(slot, OpCode.ABANDON))
            if isinstance(found, Difference):
                return found
        self._restart()
        return None

    def _compared(self, operation: Operation) -> list[Item] | Difference:
        outputs = []
        for side in self.sides:
            side.send(operation)
        for side, asked in zip(self.sides, self._asked, strict=True):
            try:
                items = side.receive(operation)
            except Stuck as stuck:
                items = [Item(("stuck", str(stuck)))]
            answers = [item for item in items if item.plain[0] == "answer" and item.plain[2] == 0]
            asked.update(item.zxids[0] for item in answers if item.opcode in _WRITES)
            outputs.append(items)
        return self._judge("differs", *outputs)

    def _judge(self, where: str, first: list[Item], second: list[Item]) -> list[Item] | Difference:
        one, two = events_sorted(first, self._asked[0]), events_sorted(second, self._asked[1])
        what = difference(one, two, self.zxids)
        return first if what is None else Difference(list(self.done), f"{where}: {what}", one, two)

    def _gathered(self) -> Difference | None:
        self._since_gathered = 0
        if self.sides[0].slots != self.sides[1].slots:
            return Difference(
                list(self.done), "other connections are open", *([Item((side.slots,))] for side in self.sides)
            )
        for slot in self.sides[0].slots:
            outputs = []
            for side in self.sides:
                try:
                    outputs.append(side.gather(slot))
                except Stuck as stuck:
                    outputs.append([Item(("stuck", str(stuck)))])
            found = self._judge(f"differs on the connection of client {slot}", outputs[0], outputs[1])
            if isinstance(found, Difference):
                return found
        return None

    def _trees(self) -> Difference | None:
        """Each node that the observer finds: its data, ACL and children."""
        for operation in (connecting(OBSERVER), *(logging_in(OBSERVER, user) for user in USERS)):
            found = self.do(operation)
            if isinstance(found, Difference):
                return found
        paths = ["/"]
        while paths:
            path = paths.pop()
            for opcode in (OpCode.EXISTS, OpCode.GET_DATA, OpCode.GET_ACL, OpCode.GET_CHILDREN2):
                watch = () if opcode == OpCode.GET_ACL else (("bool", False),)
                found = self.do(Operation(OBSERVER, opcode, (("path", path), *watch)))
                if isinstance(found, Difference):
                    return found
                answered = found[-1].plain
                if opcode == OpCode.GET_CHILDREN2 and answered[2] == 0:
                    paths += [path.rstrip("/") + "/" + name for name in answered[3][0]]
        return None

    def _ended(self) -> Difference | None:
        for slot in self.sides[0].slots:
            found = self.do(Operation(slot, OpCode.CLOSE_SESSION))
            if isinstance(found, Difference):
                return found
        for number in range(len(self.sides[0].sessions)):
            for operation in (attaching(OBSERVER, number), Operation(OBSERVER, OpCode.CLOSE_SESSION)):
                found = self.do(operation)
                if isinstance(found, Difference):
                    return found
        return None


_WRITES = frozenset(
    {
        OpCode.CREATE,
        OpCode.CREATE2,
        OpCode.CREATE_CONTAINER,
        OpCode.CREATE_TTL,
        OpCode.DELETE,
        OpCode.SET_DATA,
        OpCode.SET_ACL,
        OpCode.MULTI,
    }
)
"""Their answers' zxids are their own transactions'."""


def replay(operations: Iterable[Operation], start: Callable[[], Run], finish: bool = True) -> Difference | None:
    """Do them in a new run; the first difference."""
    run = start()
    try:
        for operation in operations:
            found = run.do(operation)
            if isinstance(found, Difference):
                return found
        return run.finish() if finish else None
    finally:
        run.close()


def shrink(operations: Sequence[Operation], differs: Callable[[Sequence[Operation]], bool]) -> list[Operation]:
    """A short list that still `differs`: runs of operations are left out, ever shorter ones, as long as it does."""
    kept = list(operations)
    size = max(1, len(kept) // 2)
    while True:
        at, shorter = 0, False
        while at < len(kept):
            tried = kept[:at] + kept[at + size :]
            if differs(tried):
                kept, shorter = tried, True
            else:
                at += size
        if size > 1:
            size //= 2
        elif not shorter:
            return kept
