"""A small tokenizer and a recursive-descent parser for arithmetic expressions."""

import re
from dataclasses import dataclass


@dataclass
class Token:
    kind: str
    text: str
    position: int


class ParseError(Exception):
    """Raised when the input is not an expression."""

    def __init__(self, message, position):
        super().__init__(message)
        self.message = message
        self.position = position

    def __str__(self):
        return "{} at position {}".format(self.message, self.position)


TOKEN_PATTERN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<symbol>[-+*/^()=,]))"
)


def tokenize(text):
    """Return the list of tokens of a text."""
    tokens = []
    position = 0
    while position < len(text):
        match = TOKEN_PATTERN.match(text, position)
        if match is None:
            if text[position:].strip() == "":
                break
            raise ParseError("unexpected character", position)
        kind = match.lastgroup
        tokens.append(Token(kind, match.group(kind), match.start(kind)))
        position = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


class Parser:
    """Evaluates expressions while it reads them."""

    def __init__(self, text, names=None):
        self.tokens = tokenize(text)
        self.names = names or {}
        self.index = 0

    def peek(self):
        return self.tokens[self.index]

    def advance(self):
        token = self.tokens[self.index]
        self.index += 1
        return token

    def accept(self, symbol):
        token = self.peek()
        if token.kind == "symbol" and token.text == symbol:
            self.advance()
            return True
        return False

    def expect(self, symbol):
        if not self.accept(symbol):
            raise ParseError("expected " + symbol, self.peek().position)

    def parse(self):
        value = self.parse_sum()
        if self.peek().kind != "end":
            raise ParseError("unexpected text", self.peek().position)
        return value

    def parse_sum(self):
        value = self.parse_product()
        while True:
            if self.accept("+"):
                value = value + self.parse_product()
            elif self.accept("-"):
                value = value - self.parse_product()
            else:
                return value

    def parse_product(self):
        value = self.parse_power()
        while True:
            if self.accept("*"):
                value = value * self.parse_power()
            elif self.accept("/"):
                value = value / self.parse_power()
            else:
                return value

    def parse_power(self):
        value = self.parse_atom()
        if self.accept("^"):
            return value ** self.parse_power()
        return value

    def parse_atom(self):
        if self.accept("-"):
            return -self.parse_atom()
        if self.accept("("):
            value = self.parse_sum()
            self.expect(")")
            return value
        token = self.advance()
        if token.kind == "number":
            return float(token.text)
        if token.kind == "name":
            return self.lookup(token)
        raise ParseError("expected a number", token.position)

    def lookup(self, token):
        if token.text not in self.names:
            raise ParseError("unknown name " + token.text, token.position)
        return self.names[token.text]


def evaluate(text, **names):
    """Return the value of an expression."""
    return Parser(text, names).parse()
