"""Filter expressions: predicates that are joined by AND, OR and NOT. The function `truth` defines the result of an
expression; many_records.py computes the same results for many records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .predicates import Predicate
from .values import FALSE, TRUE, NullableValue, Truth, negated

__all__ = ["And", "Condition", "Constant", "Expression", "Not", "Or", "PropertyLookup", "truth"]

PropertyLookup = Callable[[str], NullableValue]
"""A function that returns the value of a message's property by its name, or None if the message does not have the
property.
"""


@dataclass(frozen=True, slots=True)
class Constant:
    """The constant TRUE or FALSE in a filter."""

    truth: Truth


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """A predicate on the property `name`."""

    name: str
    predicate: Predicate


@dataclass(frozen=True, slots=True, eq=False)
class Not:
    of: Expression


@dataclass(frozen=True, slots=True, eq=False)
class And:
    """AND of two or more expressions."""

    of: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Or:
    """OR of two or more expressions."""

    of: tuple[Expression, ...]


Expression = Constant | Condition | Not | And | Or


def truth(expression: Expression, lookup: PropertyLookup) -> Truth:
    """Return the truth value of the expression for the message whose properties `lookup` returns. The function has no
    side effects and raises no errors.
    """
    if isinstance(expression, Condition):
        return expression.predicate.test(lookup(expression.name))
    if isinstance(expression, And):
        least: Truth = TRUE
        for each in expression.of:
            found = truth(each, lookup)
            if found == FALSE:
                return FALSE
            least = min(least, found)
        return least
    if isinstance(expression, Or):
        greatest: Truth = FALSE
        for each in expression.of:
            found = truth(each, lookup)
            if found == TRUE:
                return TRUE
            greatest = max(greatest, found)
        return greatest
    if isinstance(expression, Not):
        return negated(truth(expression.of, lookup))
    return expression.truth
