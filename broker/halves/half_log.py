"""The state of one internal log of half messages: which messages wait, how often producers were asked about each
message, and the outcomes that were decided.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from metaq.protocol.half_messages import EndHalfReply, HalfOutcome
from metaq.protocol.message_id import message_id_list

from .. import tuning
from ..delays.delayed_log import DelayedLog, Find
from ..delays.owners import Owners
from ..delays.waiting_table import WaitingTable
from ..memory.delayed_records import DelayTarget, Group, Ids, MarkKind, Marks, Sizes
from ..runtime.account import Shares
from ..store.index import UnitArray
from ..store.partition_log import PartitionLog
from .senders import Senders

__all__ = ["Decision", "HalfLog", "Questions"]


class Questions(NamedTuple):
    """How often and when the broker has asked producers about one half message. asked: the number of questions. last:
    the time of the last question, Unix ms.
    """

    asked: int
    last: int


class Decision(NamedTuple):
    """The outcome of the half messages that `group` names; all of them have this outcome. If they were committed,
    `group.base` and `group.first_id` are the byte offset and the id of the first message in the partition, and
    `group.sizes` has the sizes of all messages. The offsets and ids of the other messages follow from these values.
    """

    outcome: HalfOutcome
    group: Group

    def replies(self) -> list[EndHalfReply]:
        """Return the outcome of each half message of the group as an EndHalfReply, in the order of the ids."""
        _, ids, sizes, base, first_id = self.group
        if self.outcome is HalfOutcome.ROLLED_BACK:
            return [EndHalfReply(self.outcome)] * len(ids)
        offsets = accumulate(sizes.tolist()[:-1], initial=base)
        places = zip(message_id_list(first_id, len(ids)), offsets, strict=True)
        return [EndHalfReply(self.outcome, message_id, offset) for message_id, offset in places]


class HalfLog(DelayedLog):
    """The state of one internal log of half messages. There are two such logs: one for partitions with group commit,
    and one for all other partitions. Used only on the reactor thread. `table` has the half messages whose first check
    is not due yet.
    """

    def __init__(self, log: PartitionLog, places: Shares, owners: Owners) -> None:
        """places: counts how many half messages of each client address wait. owners: counts how many bytes of
        waiting half messages each user has sent.
        """
        self.senders = Senders(places)
        self.asked = WaitingTable()
        """The waiting half messages whose first check is due or was made."""
        self.questions: dict[int, Questions] = {}
        """The number and time of the questions about each half message, by message id. Only half messages about which
        producers were asked are in this dict.
        """
        self.decided: OrderedDict[int, Decision] = OrderedDict()
        """The most recent decisions, by message id. Half messages whose outcomes one mark has stored share one Decision
        object.
        """
        super().__init__(log, owners)

    def tables(self) -> Iterator[WaitingTable]:
        yield from super().tables()
        yield self.asked

    def _clear(self) -> None:
        super()._clear()
        self.asked.clear()
        self.questions.clear()
        self.decided.clear()
        self.senders.clear()

    def set_due(self, ids: Ids) -> None:
        """Move these half messages from `table` to `asked`, because their first check is due."""
        self.asked.insert(ids, self.table.remove(ids))

    def remove(self, place: DelayTarget, ids: Ids, sizes: Sizes) -> Ids:
        if self.questions:
            for half_id in ids.tolist():
                self.questions.pop(half_id, None)
        offsets = super().remove(place, ids, sizes)
        self.senders.went(ids, len(offsets))
        return offsets

    def _take_pending(self, place: DelayTarget, anew: bool, units: UnitArray) -> None:
        before = len(self)
        super()._take_pending(place, anew, units)
        self.senders.found(len(self) - before)

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
        """Remember how often producers were asked about half messages. `group` is from an `/asked` mark in the internal
        log: for each half message, `group.sizes` has the number of questions.
        """
        for half_id, asked in zip(group.ids.tolist(), group.sizes.tolist(), strict=True):
            self.questions[half_id] = Questions(asked, group.base)

    def decide(self, group: Group, *, committed: bool) -> Decision:
        """Remember the outcome of the half messages of `group`, which comes from a mark in the internal log."""
        decision = Decision(HalfOutcome.COMMITTED if committed else HalfOutcome.ROLLED_BACK, group)
        self.decided.update(dict.fromkeys(group.ids.tolist(), decision))
        while len(self.decided) > tuning.HALVES_DECIDED:
            self.decided.popitem(last=False)
        return decision

    def reply(self, place: DelayTarget, half_id: int) -> EndHalfReply | None:
        """Return the outcome of a half message of this partition, or None if the outcome is not known."""
        decision = self.decided.get(half_id)
        if decision is None or decision.group.place != place:
            return None
        return decision.replies()[int((decision.group.ids == half_id).argmax())]

    def undecided(self, ids: Ids) -> None:
        """Forget that these half messages were committed, because they were not appended to their partition."""
        for half_id in ids.tolist():
            self.decided.pop(half_id, None)
