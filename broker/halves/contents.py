"""What one internal log of half messages says: which wait, how often each was asked for, and what became of others."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from metaq.protocol.halves import HalfOutcome

from .. import tuning
from ..delays.contents import DelayedLog, Find
from ..delays.table import DelayTable
from ..store.delayed_records import DelayTarget, Group, Ids, MarkKind, Marks, Sizes
from ..store.partition_log import PartitionLog

__all__ = ["Decision", "HalfLog", "Questions"]


class Questions(NamedTuple):
    """asked: how often a producer was asked. last: the last time, Unix ms."""

    asked: int
    last: int


class Decision(NamedTuple):
    """What became of a half message. message_id, offset: of the message in its partition; 0 and -1 if there is none."""

    outcome: HalfOutcome
    place: DelayTarget
    message_id: int = 0
    offset: int = -1


class HalfLog(DelayedLog):
    """One of the two logs. Reactor thread. `table` has those whose first check is not due."""

    def __init__(self, log: PartitionLog) -> None:
        self.asked = DelayTable()
        """Those whose first check is due, or was."""
        self.questions: dict[int, Questions] = {}
        """Of those that were asked for, by id."""
        self.decided: OrderedDict[int, Decision] = OrderedDict()
        """The last ones, by id."""
        super().__init__(log)

    def tables(self) -> Iterator[DelayTable]:
        yield from super().tables()
        yield self.asked

    def forget(self) -> None:
        super().forget()
        self.asked.clear()
        self.questions.clear()
        self.decided.clear()

    def set_due(self, ids: Ids) -> None:
        """The first check of these is due."""
        self.asked.insert(ids, self.table.remove(ids))

    def remove(self, place: DelayTarget, ids: Ids, sizes: Sizes) -> Ids:
        for half_id in ids.tolist():
            self.questions.pop(half_id, None)
        return super().remove(place, ids, sizes)

    # --- marks --------------------------------------------------------------------------------------------------------

    def _take_marks(self, offset: int, marks: Marks) -> None:
        super()._take_marks(offset, marks)
        for group in marks.groups:
            if marks.kind is MarkKind.ASKED:
                self.asked_for(group)
            elif marks.kind is MarkKind.RETURNED:
                self.undecided(group.ids)
            else:
                self.decide(group, committed=marks.kind is MarkKind.DELIVERED)

    def lead(self, find: Find) -> list[Group]:
        returned = super().lead(find)
        for group in returned:
            self.undecided(group.ids)
        return returned

    def asked_for(self, group: Group) -> None:
        """What a mark says of questions."""
        for half_id, asked in zip(group.ids.tolist(), group.sizes.tolist(), strict=True):
            self.questions[half_id] = Questions(asked, group.base)

    def decide(self, group: Group, *, committed: bool) -> None:
        """What a mark says of an outcome."""
        offset, message_id = group.base, group.first_id
        for half_id, size in zip(group.ids.tolist(), group.sizes.tolist(), strict=True):
            if committed:
                self.decided[half_id] = Decision(HalfOutcome.COMMITTED, group.place, message_id, offset)
                offset, message_id = offset + size, message_id + 1
            else:
                self.decided[half_id] = Decision(HalfOutcome.ROLLED_BACK, group.place)
        while len(self.decided) > tuning.HALVES_DECIDED:
            self.decided.popitem(last=False)

    def undecided(self, ids: Ids) -> None:
        """An outcome did not come to be."""
        for half_id in ids.tolist():
            self.decided.pop(half_id, None)
