"""Parse filters by content (expressions on message properties), and find out which records match them
(docs/filters.md). The code in this package does no I/O.

| file | what is there |
|---|---|
| values.py | truth values, and the meaning of a value as a text, a number, a truth value |
| predicates.py | predicates on one property |
| expression.py | predicates joined by AND, OR, NOT, and their evaluation for one message: what an expression means |
| parser.py | turns a filter's text into an expression, within limits of length and nesting |
| where.py | a parsed filter, and whether it matches one record |
| many_records.py | whether a filter matches each of many records, evaluated at once |
"""

from .where import Where, parse_where

__all__ = ["Where", "parse_where"]
