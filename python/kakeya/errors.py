"""What can go wrong, as exceptions. All of them are KakeyaError; many are also the built-in exception that fits."""

from __future__ import annotations

from typing import Dict, Type


class KakeyaError(Exception):
    """A call failed. The text names the file, tensor or option, and the values that disagree."""


class InvalidArgumentError(KakeyaError, ValueError):
    """The values make no sense together, or are out of range."""


class FileError(KakeyaError, OSError):
    """A file cannot be opened, read or written."""


class FormatError(KakeyaError, ValueError):
    """A file's content is malformed, or does not fit the model."""


class UnsupportedError(KakeyaError):
    """Well formed, but not something that this build can run."""


class OutOfMemoryError(KakeyaError, MemoryError):
    """There is no memory for it, or the engine's limit is reached."""


class ContextFullError(KakeyaError, ValueError):
    """The tokens do not fit into the session's context."""


class CancelledError(KakeyaError):
    """The work was cancelled."""


class BackendError(KakeyaError, RuntimeError):
    """The device that computes has failed."""


# By the name of the library's status.
BY_STATUS: Dict[str, Type[KakeyaError]] = {
    "invalid argument": InvalidArgumentError,
    "input/output error": FileError,
    "bad format": FormatError,
    "unsupported": UnsupportedError,
    "out of memory": OutOfMemoryError,
    "context full": ContextFullError,
    "cancelled": CancelledError,
    "backend failure": BackendError,
}
