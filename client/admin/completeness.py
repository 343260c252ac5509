"""Ask several brokers, and say which data a result lacks because some of them did not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from metaq.protocol.errors import BrokerUnavailable, CoordinationError, MetaqError

from ..questions.cluster import Cluster
from ..questions.sources import Survey
from ..records.results import TopicPartition
from ..settings.profile import PROFILE
from ..transport.connection import Connection

__all__ = ["Unanswered", "absent_brokers", "ask_brokers", "tell_silent", "without"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The data that a result lacks.

    silent: for each broker that did not answer, the reason. refused: for each partition about which its broker refused
    to answer, the reason. absent: ids of the brokers that were registered earlier and are not registered now; they may
    have partitions that the result does not contain.
    """

    silent: Mapping[int, str]
    refused: Mapping[TopicPartition, str]
    absent: tuple[int, ...]

    @classmethod
    def of(cls, survey: Survey, absent: tuple[int, ...]) -> Unanswered:
        return cls(dict(survey.silent), dict(survey.refused), absent)

    def check(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise BrokerUnavailable if brokers did not answer, or refused to answer, about some of these partitions.
        Absent brokers are no error.
        """
        told = [without(self.silent, partitions)] if self.silent else []
        told += [f"{each.topic} {each} is unknown: {why}" for each, why in self.refused.items()]
        if told:
            raise BrokerUnavailable("; ".join(told))


def absent_brokers(cluster: Cluster) -> tuple[int, ...]:
    """Return the ids of the brokers that were registered earlier and are not registered now."""
    return tuple(cluster.view.absent_brokers(cluster.view.brokers()))


def ask_brokers(
    cluster: Cluster, brokers: Iterable[int], question: Callable[[Connection, int], _T]
) -> tuple[dict[int, _T], dict[int, str]]:
    """Ask brokers a question. Return two mappings with broker ids as keys: the answers, and the reasons why brokers did
    not answer (for `tell_silent`).

    question: a function that gets a connection to a broker and the broker's id, and returns the answer. Raises
        CoordinationError.
    """
    found: dict[int, _T] = {}
    silent: dict[int, str] = {}
    for each in brokers:
        try:
            found[each] = cluster.ask(TopicPartition("", each, -1), partial(_asked, question, each))
        except CoordinationError:
            raise
        except MetaqError as error:
            silent[each] = str(error)
    return found, silent


def _asked(question: Callable[[Connection, int], _T], broker: int, connection: Connection) -> _T:
    return question(connection, broker)


def tell_silent(silent: Mapping[int, str]) -> None:
    """Raise BrokerUnavailable if any broker did not answer. silent: the second result of `ask_brokers`."""
    if silent:
        told = "; ".join(f"broker {broker_id}: {why}" for broker_id, why in silent.items())
        raise BrokerUnavailable(f"the data of these brokers is missing: {told}: start them, and try again")


def without(silent: Mapping[int, str], partitions: Iterable[TopicPartition]) -> str:
    """Return a sentence for an error text, which names those of `partitions` whose brokers do not answer.
    silent: by broker id, the reason why a broker did not answer.
    """
    missing = ", ".join(f"{each.topic} {each}" for each in partitions if each.broker in silent)
    reasons = "; ".join(f"broker {broker_id} {reason}" for broker_id, reason in silent.items())
    remedy = "start that broker, or correct its hostName"
    if "TLS" in reasons:  # it listens, but one side does not accept the other
        remedy = f"check the profile that {PROFILE} names, and the broker's security.ini (docs/security.md)"
    return f"{reasons}: {missing} missing: {remedy}"
