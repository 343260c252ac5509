"""Parse the text of a filter by content, and make the expression that it means. The grammar (docs/filters.md):

    expression  = conjunction { OR conjunction }
    conjunction = negation { AND negation }
    negation    = { NOT } ( "(" expression ")" | condition )
    condition   = property [ test ] | literal comparison property | TRUE | FALSE
    test        = comparison literal
                | [ NOT ] BETWEEN literal AND literal
                | [ NOT ] IN "(" literal { "," literal } ")"
                | [ NOT ] LIKE text [ ESCAPE text ]
                | IS [ NOT ] NULL
    comparison  = "=" | "<>" | "!=" | "<" | "<=" | ">" | ">="
    literal     = text | number | TRUE | FALSE

Each step of the parser consumes one token, so the cost is proportional to the length of the text. The length and the
nesting depth of a filter are limited.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from ..errors import InvalidWhere
from ..limits import MAX_WHERE_CHARACTERS, MAX_WHERE_CONDITIONS, MAX_WHERE_DEPTH, MAX_WHERE_NUMBER
from .expression import And, Condition, Constant, Expression, Not, Or
from .predicates import COMPARISONS, CompareBool, CompareNumber, CompareText, In, IsNull, Like, Literal, Predicate
from .values import FALSE, TRUE

__all__ = ["parse_expression"]

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
      (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+")
    | (?P<number>[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
    | (?P<word>[^\W\d][\w.\-]*)
    | (?P<mark><>|!=|<=|>=|[=<>(),])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_MARKS = re.compile("[\x01\x02]")
_BLANKS = re.compile(r"[ \t\r\n]*")
_KEYWORDS: Final = frozenset(("AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"))
_FLIPPED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_LITERAL: Final = "a literal ('text', a number, TRUE or FALSE)"
_PROPERTY: Final = "a property"
_REPLACEMENT: Final = "\ufffd"
_SHOWN: Final = 30


class _Token(NamedTuple):
    """A token of a filter. kind: text, number, name, word (a keyword, in capitals), mark or end. value: the token's
    decoded value.
    """

    kind: str
    value: str
    position: int
    end: int


def parse_expression(text: str) -> Expression:
    """Parse a filter. Raises InvalidWhere, which names the position of the error and what was expected there."""
    if len(text) > MAX_WHERE_CHARACTERS:
        raise InvalidWhere(MAX_WHERE_CHARACTERS, f"the end: a filter has {MAX_WHERE_CHARACTERS} characters at most")
    for position, each in enumerate(text):
        if each == _REPLACEMENT or "\ud800" <= each <= "\udfff":
            raise InvalidWhere(position, "a character of a text", _shown(each))
    return _Parser(text).whole()


class _Parser:
    """Parses one filter, token by token. token: the first token that the parser has not consumed yet."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self._conditions = 0
        self.token = self._read()

    def whole(self) -> Expression:
        found = self._expression()
        if self.token.kind != "end":
            raise self._wrong("AND, OR or the end")
        return found

    # --- tokens -------------------------------------------------------------------------------------------------------

    def _read(self) -> _Token:
        match = _TOKEN.match(self._text, self._position)
        if match is None or match.lastgroup is None:
            raise self._no_token()
        kind = match.lastgroup
        value, position = match[kind], match.start(kind)
        self._position = match.end()
        if kind == "text":
            value = value[1:-1].replace("''", "'")
        elif kind == "quoted":
            kind, value = "name", value[1:-1].replace('""', '"')
            if _MARKS.search(value):
                expected = "a name without the characters 1 and 2, which no property's name has"
                raise InvalidWhere(position, expected, _shown(value))
        elif kind == "word":
            keyword = value.upper()
            if keyword in _KEYWORDS:
                value = keyword
            else:
                kind = "name"
        elif value == "!=":
            value = "<>"
        return _Token(kind, value, position, self._position)

    def _no_token(self) -> InvalidWhere:
        blanks = _BLANKS.match(self._text, self._position)
        position = self._position if blanks is None else blanks.end()
        first = self._text[position]
        if first == "'":
            return InvalidWhere(len(self._text), f"the ' that ends the text of character {position + 1}", "the end")
        if self._text.startswith('""', position):
            return InvalidWhere(position, "a name between the quotation marks", "none")
        if first == '"':
            return InvalidWhere(len(self._text), f'the " that ends the name of character {position + 1}', "the end")
        word = first if first.isspace() else self._text[position : position + _SHOWN].split(None, 1)[0]
        return InvalidWhere(position, "a property, a literal or an operator", _shown(word))

    def _wrong(self, expected: str, token: _Token | None = None) -> InvalidWhere:
        token = token or self.token
        found = "the end" if token.kind == "end" else _shown(self._text[token.position : token.end])
        return InvalidWhere(token.position, expected, found)

    def _next(self) -> _Token:
        token = self.token
        self.token = self._read()
        return token

    def _takes(self, kind: str, value: str) -> bool:
        """If the next token has this kind and value, consume the token. Return whether the token was consumed."""
        found = self.token.kind == kind and self.token.value == value
        if found:
            self._next()
        return found

    def _must(self, kind: str, value: str) -> None:
        if not self._takes(kind, value):
            raise self._wrong(value)

    # --- the rules of the grammar -------------------------------------------------------------------------------------

    def _expression(self) -> Expression:
        of = [self._conjunction()]
        while self._takes("word", "OR"):
            of.append(self._conjunction())
        return of[0] if len(of) == 1 else Or(tuple(of))

    def _conjunction(self) -> Expression:
        of = [self._negation()]
        while self._takes("word", "AND"):
            of.append(self._negation())
        return of[0] if len(of) == 1 else And(tuple(of))

    def _negation(self) -> Expression:
        negations = 0
        while self._takes("word", "NOT"):
            negations += 1
        opening = self.token
        if self._takes("mark", "("):
            self._depth += 1
            if self._depth > MAX_WHERE_DEPTH:
                raise self._wrong(f"at most {MAX_WHERE_DEPTH} parentheses around each other", opening)
            found = self._expression()
            self._must("mark", ")")
            self._depth -= 1
        else:
            found = self._condition()
        return Not(found) if negations % 2 else found

    def _condition(self) -> Expression:
        first = self.token
        self._conditions += 1
        if self._conditions > MAX_WHERE_CONDITIONS:
            raise self._wrong(f"the end: a filter has {MAX_WHERE_CONDITIONS} conditions at most")
        if first.kind == "name":
            self._next()
            return self._test(first.value)
        literal = self._literal(f"{_PROPERTY}, {_LITERAL}, NOT or (")
        comparison = self.token
        if comparison.kind == "mark" and comparison.value in COMPARISONS:
            self._next()
            if self.token.kind != "name":
                raise self._wrong(f"{_PROPERTY}: one side of a comparison is one")
            return Condition(self._next().value, self._compare(_FLIPPED[comparison.value], literal, comparison))
        if isinstance(literal, bool):
            return Constant(TRUE if literal else FALSE)
        raise self._wrong("a comparison (=, <>, <, <=, >, >=)")

    def _test(self, name: str) -> Expression:
        token = self.token
        if token.kind == "mark" and token.value in COMPARISONS:
            self._next()
            return Condition(name, self._compare(token.value, self._literal(_LITERAL), token))
        if self._takes("word", "IS"):
            negated = self._takes("word", "NOT")
            self._must("word", "NULL")
            return _unless(negated, Condition(name, IsNull()))
        negated = self._takes("word", "NOT")
        if self._takes("word", "BETWEEN"):
            return _unless(negated, self._between(name))
        if self._takes("word", "IN"):
            return _unless(negated, Condition(name, self._in()))
        if self._takes("word", "LIKE"):
            return _unless(negated, Condition(name, self._like()))
        if negated:
            raise self._wrong("BETWEEN, IN or LIKE")
        if token.kind in ("mark", "word", "end") and token.value not in ("(", "ESCAPE", "NULL"):
            return Condition(name, CompareBool(True))  # a property alone; the caller refuses what may not follow
        raise self._wrong("a comparison, BETWEEN, IN, LIKE, IS, AND, OR or the end")

    def _literal(self, expected: str) -> Literal:
        token = self.token
        if token.kind == "text":
            return self._next().value
        if token.kind == "number":
            self._next()
            return self._number(token)
        if token.kind == "word" and token.value in ("TRUE", "FALSE"):
            return self._next().value == "TRUE"
        raise self._no_literal(expected)

    def _no_literal(self, expected: str) -> InvalidWhere:
        """Return the error for a filter that has no literal where one is expected. If the filter has a quotation mark
        there, the error text contains a hint that a text must be in apostrophes, because many languages write texts in
        quotation marks.
        """
        if self._text.startswith('"', self.token.position):
            expected += "; texts stand in '…', names of properties in \"…\""
        return self._wrong(expected)

    def _number(self, token: _Token) -> int | float:
        if len(token.value) <= MAX_WHERE_NUMBER:
            number = float(token.value)
            if math.isfinite(number):
                return number if any(each in token.value for each in ".eE") else int(token.value)
        raise self._wrong(f"a number of at most {MAX_WHERE_NUMBER} characters that a double can hold", token)

    def _compare(self, comparison: str, literal: Literal, token: _Token) -> Predicate:
        if isinstance(literal, bool):
            if comparison not in ("=", "<>"):
                raise self._wrong("= or <>, as of TRUE and FALSE none is greater", token)
            return CompareBool(literal is (comparison == "="))
        return CompareText(comparison, literal) if isinstance(literal, str) else CompareNumber(comparison, literal)

    def _between(self, name: str) -> Expression:
        token = self.token
        low = self._literal("a number or a text")
        self._must("word", "AND")
        high = self._literal("a number or a text")
        if isinstance(low, bool) or isinstance(high, bool) or isinstance(low, str) != isinstance(high, str):
            raise self._wrong("two numbers or two texts", token)
        return And(tuple(Condition(name, self._compare(*each, token)) for each in ((">=", low), ("<=", high))))

    def _in(self) -> Predicate:
        self._must("mark", "(")
        literals = [self._literal(_LITERAL)]
        while self._takes("mark", ","):
            literals.append(self._literal(_LITERAL))
        if not self._takes("mark", ")"):
            raise self._wrong(", or )")
        return In(literals)

    def _like(self) -> Predicate:
        pattern = self._text_literal("a pattern in '…'")
        escape = ""
        if self._takes("word", "ESCAPE"):
            token = self.token
            escape = self._text_literal("a character in '…'").value
            if len(escape) != 1 or escape in "%_":
                raise self._wrong("one character, neither % nor _", token)
        try:
            return Like(pattern.value, escape)
        except ValueError as error:
            what = f"a pattern in which the escape character escapes itself, % or _ ({error})"
            raise self._wrong(what, pattern) from None

    def _text_literal(self, expected: str) -> _Token:
        if self.token.kind != "text":
            raise self._no_literal(expected)
        return self._next()


def _unless(negated: bool, expression: Expression) -> Expression:
    return Not(expression) if negated else expression


def _shown(text: str) -> str:
    return repr(text[:_SHOWN])
