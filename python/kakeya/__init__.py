"""kakeya runs Gemma models with bounded K/V memory, and decodes losslessly faster than one token at a time.

    from kakeya import Engine

    with Engine("path/to/model") as engine, engine.session() as session:
        for token in session.generate("Once upon a time", max_tokens=64):
            print(token.text, end="", flush=True)

`kakeya.remote` is a client for the gRPC interface of a server.
"""

from typing import Any

from kakeya.engine import Engine
from kakeya.errors import (
    BackendError,
    CancelledError,
    ContextFullError,
    FileError,
    FormatError,
    InvalidArgumentError,
    KakeyaError,
    OutOfMemoryError,
    UnsupportedError,
)
from kakeya.session import Answer, Score, Session, Stats, Token
from kakeya.text import Grammar, Tokenizer

__all__ = [
    "Answer",
    "BackendError",
    "CancelledError",
    "ContextFullError",
    "Engine",
    "FileError",
    "FormatError",
    "Grammar",
    "InvalidArgumentError",
    "KakeyaError",
    "OutOfMemoryError",
    "Score",
    "Session",
    "Stats",
    "Token",
    "Tokenizer",
    "UnsupportedError",
    "version",
]


def version() -> str:
    """The version of the library.

    >>> version().count(".")
    2
    """
    from kakeya._library import library, text_of

    return text_of(library().kakeya_version())


def __getattr__(name: str) -> Any:
    """Programs of before say `from kakeya import Client`."""
    if name == "Client":
        from kakeya.remote import Client

        return Client
    raise AttributeError(f"module 'kakeya' has no attribute {name!r}")
