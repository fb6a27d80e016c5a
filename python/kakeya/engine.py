"""A model that is open on one backend."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Type

from kakeya._ffi import ffi
from kakeya._library import HERE, Handle, check, interruptible, library, names, options, text_of, value_of
from kakeya.errors import FileError
from kakeya.session import Session, Timeline
from kakeya.text import Tokenizer

Progress = Callable[[str, int, int], Optional[bool]]


def model_path(model: Optional[str]) -> str:
    """None: $KAKEYA_MODEL, else the demo model of the package."""
    named = model if model is not None else os.environ.get("KAKEYA_MODEL") or os.path.join(HERE, "share", "kakeya", "models", "demo")
    if model is None and not os.path.exists(named):
        raise FileError(f"no model is given, and there is none at {named}")
    return os.fspath(named)


class Engine(Handle):
    """A model's weights on one backend. Sessions of one engine are computed together; threads may share it.

    >>> with Engine() as engine, engine.session() as session:
    ...     text = session.generate("The capital of France", max_tokens=4).text
    >>> isinstance(text, str)
    True
    """

    def __init__(self, model: Optional[str] = None, *, synthetic: Optional[str] = None, drafter: Optional[str] = None,
                 f_theta: Optional[str] = None, backend: Optional[str] = None, precision: str = "auto", threads: int = 0,
                 devices: Optional[str] = None, memory_limit: int = 0, max_batch: int = 0, max_stall_ms: int = 0,
                 weights_limit: int = 0, progress: Optional[Progress] = None) -> None:
        """model: a directory, a GGUF file, or a name in the Hugging Face cache; None: $KAKEYA_MODEL, else the demo model.

        synthetic: weights made in memory in a published shape, such as "26b-a4b". drafter, f_theta: None takes what lies beside
        the model, "none" takes none. backend: "cpu", "cuda" or "mlx"; None: the best there is. memory_limit: bytes; 0: none.
        weights_limit: bytes for weights, of which experts are read from their file when a token chooses them; 0: all are in memory.
        max_batch: answers computed together. progress: called with (what, done, total); return False to give up.
        """
        asked = options("engine")
        self._kept: List[Any] = []

        def text(value: Optional[str]) -> Any:
            if value is None:
                return ffi.NULL
            self._kept.append(ffi.new("char[]", os.fspath(value).encode()))
            return self._kept[-1]

        asked.model = text(None if synthetic else model_path(model))
        asked.drafter, asked.f_theta = text(drafter), text(f_theta)
        if synthetic:
            study = options("study")
            study.synthetic = text(synthetic)
            self._kept.append(study)
            asked.study = study
        asked.backend, asked.devices = text(backend), text(devices)
        asked.precision, asked.threads = value_of("precision", precision), threads
        asked.memory_limit_bytes, asked.max_batch, asked.max_stall_ms = memory_limit, max_batch, max_stall_ms
        asked.weights_limit_bytes = weights_limit
        given_up = False

        def on_progress(_: Any, what: Any, done: int, total: int) -> bool:
            return not given_up and (progress is None or progress(text_of(what), done, total) is not False)

        def give_up() -> None:
            nonlocal given_up
            given_up = True

        told = ffi.callback("bool(void *, const char *, uint64_t, uint64_t)", on_progress, error=False)
        asked.progress = told
        made = ffi.new("kakeya_engine **")
        interruptible(lambda: check(library().kakeya_engine_open, asked, made), give_up)
        self._kept.append(told)
        super().__init__(made[0], library().kakeya_engine_close)
        self._timelines: List[Timeline] = []

    def session(self, *, context_tokens: int = 0, attention: str = "native", restore_layers: str = "sliding", sink: int = 4,
                window: int = 64, draft_window: int = 1024, kv_format: str = "auto", without_drafter: bool = False) -> Session:
        """An empty conversation with K/V memory of its own.

        context_tokens: 0 for the model's longest. attention: "native", "sink-window" or "restored". kv_format: "auto", "f32",
        "bf16", "q8" or "q4".

        >>> with Engine() as engine, engine.session(attention="sink-window") as session:
        ...     session.tokens
        []
        """
        asked = options("session")
        asked.context_tokens, asked.attention = context_tokens, value_of("attention", attention)
        asked.restore_layers, asked.window = value_of("restore_layers", restore_layers), window
        asked.sink = sink or library().KAKEYA_NO_SINK
        asked.draft_window, asked.kv_format = draft_window, value_of("kv_format", kv_format)
        asked.without_drafter = without_drafter
        made = ffi.new("kakeya_session **")
        check(library().kakeya_session_open, self.pointer, asked, made)
        return self._adopt(made[0])

    def _adopt(self, pointer: Any) -> Session:
        timeline = Timeline(pointer)
        self._timelines = [other for other in self._timelines if other.pointer is not None] + [timeline]
        return Session(self, timeline)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        pointer = library().kakeya_engine_tokenizer(self.pointer)
        if pointer == ffi.NULL:
            raise FileError("this model has no tokenizer: give token ids, and read them")
        return Tokenizer._of_engine(pointer, self)

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return int(library().kakeya_engine_vocab_size(self.pointer))

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return int(library().kakeya_engine_hidden_size(self.pointer))

    @property
    def layers(self) -> int:
        """Number of layers."""
        return int(library().kakeya_engine_layers(self.pointer))

    @property
    def max_context(self) -> int:
        """Longest context, in tokens."""
        return int(library().kakeya_engine_max_context(self.pointer))

    @property
    def backend(self) -> str:
        """Where it computes, such as "cpu/avx512"."""
        return text_of(library().kakeya_engine_backend(self.pointer))

    @property
    def precision(self) -> str:
        """What products are computed in."""
        return names("precision")[int(library().kakeya_engine_precision(self.pointer))]

    @property
    def has_drafter(self) -> bool:
        """Whether a drafter is loaded."""
        return bool(library().kakeya_engine_has_drafter(self.pointer))

    @property
    def has_f_theta(self) -> bool:
        """Whether evicted positions can be restored."""
        return bool(library().kakeya_engine_has_f_theta(self.pointer))

    @property
    def notes(self) -> List[str]:
        """What the user of this model should know, a line each."""
        found: List[str] = []
        while (note := library().kakeya_engine_note(self.pointer, len(found))) != ffi.NULL:
            found.append(text_of(note))
        return found

    @property
    def memory(self) -> Dict[str, int]:
        """Bytes that are allocated now, by what they hold, those of all sessions included.

        >>> with Engine() as engine:
        ...     "weights" in engine.memory
        True
        """
        return {name: int(library().kakeya_engine_memory(self.pointer, kind)) for kind, name in enumerate(names("memory"))}

    def close(self) -> None:
        """Closes its sessions, and gives the weights back."""
        for timeline in getattr(self, "_timelines", ()):
            timeline.close()
        super().close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()
