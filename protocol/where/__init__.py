"""Filters by content: expressions on message properties, and which records they match (docs/filters.md). No I/O.

| file | what is there |
|---|---|
| values.py | truth values, and the meaning of a value as a text, a number, a truth value |
| predicates.py | predicates on one property |
| expression.py | predicates joined by AND, OR, NOT, and their evaluation for one message: what an expression means |
| parser.py | from the text to the expression, within bounds |
| where.py | a parsed filter, and its answer for one record |
| many_records.py | the same answers for many records at once |
"""

from .where import Where, parse_where

__all__ = ["Where", "parse_where"]
