"""libkakeya, and what every call of it needs: options with their defaults, names of enumerations, errors as exceptions."""

from __future__ import annotations

import functools
import os
import queue
import threading
from typing import Any, Callable, List, NoReturn, Optional, Tuple, TypeVar

from kakeya._ffi import ffi
from kakeya.errors import BY_STATUS, InvalidArgumentError, KakeyaError

HERE = os.path.dirname(os.path.abspath(__file__))
Result = TypeVar("Result")


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """The library of this package; $KAKEYA_LIBRARY names another one, and without either the system's is taken."""
    packaged = os.path.join(HERE, "lib", "libkakeya.so")
    name = os.environ.get("KAKEYA_LIBRARY") or (packaged if os.path.exists(packaged) else "libkakeya.so.0.3")
    try:
        return ffi.dlopen(name)
    except OSError as error:
        raise KakeyaError(f"libkakeya cannot be loaded: {error}") from error


def text_of(pointer: Any) -> str:
    """A C string as Python's; "" for NULL."""
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


@functools.lru_cache(maxsize=None)
def names(enumeration: str) -> List[str]:
    """What the library calls the values of an enumeration: names("mode") is ["auto", "ar", ...]."""
    name_of = getattr(library(), f"kakeya_{enumeration}_name")
    found: List[str] = []
    while (name := name_of(len(found))) != ffi.NULL:
        found.append(text_of(name))
    return found


def value_of(enumeration: str, name: str) -> int:
    """The value of an enumeration by its name, with "_" as good as "-"."""
    try:
        return names(enumeration).index(name.replace("_", "-"))
    except ValueError:
        known = ", ".join(names(enumeration))
        raise InvalidArgumentError(f"{enumeration.replace('_', ' ')} {name!r} is none of {known}") from None


def options(kind: str) -> Any:
    """A struct of options with all defaults: options("engine") is a kakeya_engine_options *."""
    made = ffi.new(f"kakeya_{kind}_options *")  # all zeros
    made.size = ffi.sizeof(made[0])
    return made


def failure(status: int, message: str) -> KakeyaError:
    return BY_STATUS.get(text_of(library().kakeya_status_name(status)), KakeyaError)(message)


def check(function: Callable[..., int], *arguments: Any) -> None:
    """Calls a function whose last parameter is a kakeya_error *, and raises what it says."""
    error = ffi.new("kakeya_error *")
    status = function(*arguments, error)
    if status:
        raise failure(status, text_of(error.message))


def take(pointer: Any, function: Callable[[Any], Result]) -> Result:
    """What `function` makes of memory that the library has allocated, which is freed."""
    try:
        return function(pointer)
    finally:
        library().kakeya_free(pointer)


def interruptible(work: Callable[[], Result], cancel: Callable[[], None]) -> Result:
    """Does long work on a thread of its own, so that Ctrl-C is heard meanwhile: it cancels, and is raised when the work ends."""
    outcome: queue.SimpleQueue[Tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((True, work()))
        except BaseException as error:
            outcome.put((False, error))

    threading.Thread(target=run, name="kakeya", daemon=True).start()
    try:
        done, result = outcome.get()
    except BaseException:
        cancel()
        outcome.get()
        raise
    if not done:
        raise result
    made: Result = result
    return made


class Handle:
    """What the library has opened, and closes."""

    def __init__(self, pointer: Any, close: Callable[[Any], None]) -> None:
        self._pointer: Optional[Any] = pointer
        self._close = close

    @property
    def pointer(self) -> Any:
        if self._pointer is None:
            self._refuse()
        return self._pointer

    def _refuse(self) -> NoReturn:
        raise InvalidArgumentError(f"this {type(self).__name__.lower()} is closed")

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._pointer is None

    def close(self) -> None:
        """Gives back what it holds. Closing twice does nothing."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._close(pointer)

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is not None:
            self.close()
