"""A conversation with an engine, its answers, and scores of texts."""

from __future__ import annotations

import atexit
import os
import queue
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type, Union

import numpy

from kakeya._ffi import ffi
from kakeya._library import check, failure, interruptible, library, names, options, text_of, value_of
from kakeya.errors import CancelledError, InvalidArgumentError, KakeyaError
from kakeya.text import Grammar

if TYPE_CHECKING:
    import numpy.typing

    from kakeya.engine import Engine

    Floats = numpy.typing.NDArray[numpy.float32]

Prompt = Union[str, Sequence[int]]


class Token(NamedTuple):
    """One token of an answer. `text` holds the characters that became certain with it, possibly none."""

    id: int
    text: str
    position: int
    log_probability: float  # NaN where not asked for
    top: Dict[int, float]  # the most likely tokens and their log-probabilities


@dataclass(frozen=True)
class Stats:
    """What an answer took."""

    finish: str  # "stop", "length" or "cancelled"
    prompt_tokens: int
    reused_tokens: int
    completion_tokens: int
    prefill_seconds: float
    decode_seconds: float
    forwards: int
    drafted_tokens: int
    accepted_tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer by second of decoding."""
        return self.completion_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0


@dataclass(frozen=True)
class Score:
    """How likely a text is. Row t is what the model predicts after tokens[0] to tokens[t]."""

    nll: Floats  # [n - 1]: -log p(tokens[t + 1] | tokens[0..t]), natural logarithm
    logits: Optional[Floats]  # [n, vocab], after soft-capping
    hidden_states: Optional[Floats]  # [layers + 1, n, hidden]


def tokens_of(pointer: Any, n: int) -> List[int]:
    return list(ffi.unpack(pointer, n)) if n else []


class Timeline:
    """A session of the library and the request that it has, if any. It knows neither Session nor Answer: whichever of these, or of
    their engine, Python's collector ends first, all that is open is closed once, and in order."""

    OPEN: Set[Timeline] = set()

    def __init__(self, pointer: Any) -> None:
        self.pointer: Optional[Any] = pointer
        self.request: Optional[Any] = None
        self.kept: Sequence[Any] = ()  # what the request's options point to
        self.heard: queue.SimpleQueue[Optional[Token]] = queue.SimpleQueue()
        self.stopped = False
        self.handle = ffi.new_handle(self)
        self.OPEN.add(self)

    def submit(self, asked: Any, kept: Sequence[Any]) -> queue.SimpleQueue[Optional[Token]]:
        """Begins a request, whose tokens come through the queue, with None after the last."""
        self.heard, self.stopped = queue.SimpleQueue(), False
        asked.on_done, asked.done_user = ON_DONE, self.handle
        made = ffi.new("kakeya_request **")
        try:
            check(library().kakeya_session_submit, self.pointer, asked, made)
        finally:  # Ctrl-C may come once the request has begun
            self.request, self.kept = (made[0], kept) if made[0] != ffi.NULL else (None, ())
        return self.heard

    def wait(self) -> Tuple[Stats, Optional[KakeyaError]]:
        """How the request went."""
        request, self.request, self.kept = self.request, None, ()
        stats, error = ffi.new("kakeya_stats *"), ffi.new("kakeya_error *")
        stats.size = ffi.sizeof(stats[0])
        status = library().kakeya_request_wait(request, stats, error)
        made = failure(status, text_of(error.message)) if status else None
        expected = self.stopped and isinstance(made, CancelledError)
        return Stats(names("finish")[stats.finish], stats.prompt_tokens, stats.reused_tokens, stats.completion_tokens,
                     stats.prefill_seconds, stats.decode_seconds, stats.verifier_forwards, stats.drafted_tokens,
                     stats.accepted_tokens), None if expected else made

    def stop(self) -> Optional[Stats]:
        """Ends the request that it has, if any."""
        if self.request is None:
            return None
        self.stopped = True
        library().kakeya_request_cancel(self.request)
        return self.wait()[0]

    def close(self) -> None:
        self.stop()
        pointer, self.pointer = self.pointer, None
        if pointer is not None:
            library().kakeya_session_close(pointer)
        self.OPEN.discard(self)


@atexit.register
def end_requests() -> None:
    """At the program's end no thread may call Python any more."""
    for timeline in list(Timeline.OPEN):
        timeline.stop()


def hear(user: Any, event: Any) -> bool:
    timeline: Timeline = ffi.from_handle(user)
    if event.type == 0:
        text = "" if event.text == ffi.NULL else bytes(ffi.buffer(event.text, event.text_bytes)).decode()
        top = {event.top[i].token: event.top[i].log_probability for i in range(event.n_top)} if event.n_top else {}
        timeline.heard.put(Token(event.token, text, event.position, event.log_probability, top))
    return not timeline.stopped


def hear_end(user: Any) -> None:
    timeline: Timeline = ffi.from_handle(user)
    timeline.heard.put(None)


# Called on the thread that computes.
ON_EVENT = ffi.callback("bool(void *, kakeya_event *)", hear, error=False)
ON_DONE = ffi.callback("void(void *)", hear_end)


class Answer(Iterator[Token]):
    """An answer while it is generated: iterate over its tokens, or read `text`. The engine computes on a thread of its own; answers
    of several sessions that are under way together are computed together.

    >>> from kakeya import Engine
    >>> with Engine() as engine, engine.session() as session:
    ...     answer = session.generate("def main", max_tokens=3)
    ...     n = sum(1 for token in answer)
    >>> n <= 3, answer.stats.completion_tokens == n
    (True, True)
    """

    def __init__(self, session: Session, asked: Any, kept: Sequence[Any]) -> None:
        self._session: Optional[Session] = session  # until the answer has ended
        self._turn = session._turn
        self._pieces: List[str] = []
        self._stats: Optional[Stats] = None
        self._heard = session._timeline.submit(asked, kept)

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Token:
        if self._session is None:
            raise StopIteration
        try:
            token = self._heard.get()
        except BaseException:  # Ctrl-C
            self.close()
            raise
        if token is None:
            self._end()
            raise StopIteration
        self._pieces.append(token.text)
        return token

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None and session._answering == self._turn:
            session._answering = 0
            self._stats, failed = session._timeline.wait()
            if failed:
                raise failed

    @property
    def text(self) -> str:
        """The text of the whole answer: waits for its end."""
        for _ in self:
            pass
        return "".join(self._pieces)

    @property
    def stats(self) -> Stats:
        """What the answer took: waits for its end."""
        for _ in self:
            pass
        if self._stats is None:
            raise KakeyaError("the answer did not begin")
        return self._stats

    def close(self) -> None:
        """Ends the answer after the block that is being computed, as forgetting it does. The session stays usable; tokens not yet
        read are dropped."""
        session, self._session = self._session, None
        if session is not None and session._answering == self._turn:
            session._answering = 0
            self._stats = session._timeline.stop()

    def __del__(self) -> None:
        if hasattr(self, "_heard"):
            self.close()


class Session:
    """One timeline of tokens. One thread at a time uses it.

    >>> from kakeya import Engine
    >>> with Engine() as engine, engine.session() as session:
    ...     reused = session.sync("Once upon a time")
    ...     len(session.tokens) > 0
    True
    """

    def __init__(self, engine: Engine, timeline: Timeline) -> None:
        self._engine = engine
        self._timeline = timeline
        self._turn = self._answering = 0  # number of the last answer, and of the one under way

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._timeline.pointer is None

    def _open(self) -> Any:
        if self._timeline.pointer is None:
            raise InvalidArgumentError("this session is closed")
        return self._timeline.pointer

    def _idle(self) -> Any:
        if self._answering and not self.closed:
            raise InvalidArgumentError("an answer is being generated: read it to its end, or close it")
        return self._open()

    def _ids(self, prompt: Prompt) -> List[int]:
        return self._engine.tokenizer.encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]

    def _begin(self, prompt: Optional[Prompt], generate: Any, kept: List[Any]) -> Answer:
        self._idle()
        self._timeline.stop()  # a request that Ctrl-C has left without an answer
        asked = options("request")
        asked.generate = generate
        kept.append(generate)
        if prompt is not None:
            ids = self._ids(prompt)
            given = ffi.new("int32_t[]", ids)
            asked.tokens, asked.n_tokens = given, len(ids)
            kept.append(given)
        generate.on_event, generate.user = ON_EVENT, self._timeline.handle
        self._turn += 1
        answer = Answer(self, asked, kept)
        self._answering = self._turn
        return answer

    def sync(self, prompt: Prompt) -> int:
        """Makes the timeline equal to a prompt, a text or token ids: computes what is new, and returns how many tokens were not
        computed again.

        >>> from kakeya import Engine
        >>> with Engine() as engine, engine.session() as session:
        ...     session.sync([2, 100, 101]), session.sync([2, 100, 101, 102])
        (0, 3)
        """
        pointer, ids, reused = self._idle(), self._ids(prompt), ffi.new("size_t *")
        synced = library().kakeya_session_sync
        interruptible(lambda: check(synced, pointer, ids, len(ids), reused, ffi.NULL, ffi.NULL), self.cancel)
        return int(reused[0])

    def generate(self, prompt: Optional[Prompt] = None, *, max_tokens: int = 0, mode: str = "auto", draft_length: int = 0,
                 temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0,
                 presence_penalty: float = 0.0, frequency_penalty: float = 0.0, seed: int = 0, stop: Sequence[str] = (),
                 ignore_stop_tokens: bool = False, grammar: Optional[Grammar] = None, log_probabilities: bool = False,
                 top_log_probabilities: int = 0, logit_bias: Optional[Mapping[int, float]] = None,
                 prediction: Optional[Sequence[int]] = None) -> Answer:
        """Continues the timeline, which first becomes the prompt if there is one, and returns the answer at once, to be iterated.

        The tokens do not depend on mode, draft_length, the number of threads, or what else the engine computes. temperature 0 is
        greedy. max_tokens 0: until a stop token, or until the context is full.

        >>> from kakeya import Engine
        >>> with Engine() as engine, engine.session() as session:
        ...     tokens = list(session.generate("Hello", max_tokens=2, temperature=0.7, seed=1))
        >>> 0 <= len(tokens) <= 2
        True
        """
        asked = options("generate")
        kept: List[Any] = []
        asked.max_tokens, asked.mode, asked.draft_length = max_tokens, value_of("mode", mode), draft_length
        sampling = asked.sampling
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p = temperature, top_k, top_p or 1e-9, min_p
        sampling.repetition_penalty, sampling.seed = repetition_penalty, seed
        asked.presence_penalty, asked.frequency_penalty = presence_penalty, frequency_penalty
        asked.ignore_stop_tokens, asked.log_probabilities = ignore_stop_tokens, log_probabilities
        asked.top_log_probabilities = top_log_probabilities
        if stop:
            texts = [ffi.new("char[]", text.encode().replace(b"\0", b"\xc0\x80")) for text in stop]
            pointers = ffi.new("char *[]", texts)
            asked.stop_strings, asked.n_stop_strings = ffi.cast("const char *const *", pointers), len(texts)
            kept += [*texts, pointers]
        if grammar is not None:
            asked.grammar = grammar.pointer
            kept.append(grammar)
        if logit_bias:
            biases = ffi.new("kakeya_logit_bias[]", list(logit_bias.items()))
            asked.logit_bias, asked.n_logit_bias = biases, len(logit_bias)
            kept.append(biases)
        if prediction:
            expected = ffi.new("int32_t[]", list(prediction))
            asked.prediction, asked.n_prediction = expected, len(prediction)
            kept.append(expected)
        return self._begin(prompt, asked, kept)

    @property
    def tokens(self) -> List[int]:
        """The timeline: what was synced, and what was generated."""
        n = ffi.new("size_t *")
        found = library().kakeya_session_tokens(self._idle(), n)
        return tokens_of(found, n[0])

    @property
    def memory(self) -> Dict[str, int]:
        """Bytes that the session has allocated now, by what they hold."""
        return {name: int(library().kakeya_session_memory(self._idle(), kind)) for kind, name in enumerate(names("memory"))}

    def truncate(self, n: int) -> None:
        """The timeline becomes its first n tokens. Nothing is computed.

        >>> from kakeya import Engine
        >>> with Engine() as engine, engine.session() as session:
        ...     _ = session.sync([2, 100, 101])
        ...     session.truncate(2)
        ...     session.tokens
        [2, 100]
        """
        check(library().kakeya_session_truncate, self._idle(), n)

    def fork(self) -> Session:
        """An independent copy of the timeline. What grows with the text is shared until one of the two changes it.

        >>> from kakeya import Engine
        >>> with Engine() as engine, engine.session() as session:
        ...     _ = session.sync([2, 100, 101])
        ...     session.fork().tokens
        [2, 100, 101]
        """
        made = ffi.new("kakeya_session **")
        check(library().kakeya_session_fork, self._idle(), made)
        return self._engine._adopt(made[0])

    def park(self) -> None:
        """Moves the K/V memory into a temporary file. The next call takes it up again, and the tokens stay what they would be."""
        check(library().kakeya_session_park, self._idle())

    def cancel(self) -> None:
        """Ends what the session does, from any thread; while it does nothing, the next call is cancelled."""
        library().kakeya_session_cancel(self._open())

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the whole state into a file, under another name first, so that the file is never seen half written.

        >>> import tempfile, os
        >>> from kakeya import Engine
        >>> with Engine() as engine, engine.session() as session, tempfile.TemporaryDirectory() as folder:
        ...     _ = session.sync([2, 100, 101])
        ...     session.save(os.path.join(folder, "s"))
        ...     with engine.session() as other:
        ...         other.load(os.path.join(folder, "s"))
        ...         other.tokens
        [2, 100, 101]
        """
        check(library().kakeya_session_save_file, self._idle(), os.fspath(path).encode())

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Becomes what was saved by a session of the same model, attention and K/V format. A damaged file changes nothing."""
        check(library().kakeya_session_load_file, self._idle(), os.fspath(path).encode())

    def score(self, prompt: Prompt, *, prompt_length: int = 0, logits: bool = False, hidden_states: bool = False) -> Score:
        """How likely each token of a text is, in a timeline of its own: the session's does not change.

        prompt_length: rows before it are prompt rows, with native attention; later ones are decode rows under the session's policy.
        0: all are prompt rows.

        >>> from kakeya import Engine
        >>> with Engine() as engine, engine.session() as session:
        ...     session.score([2, 100, 101]).nll.shape
        (2,)
        """
        ids = self._ids(prompt)
        if not ids:
            raise InvalidArgumentError("there are no tokens to score")
        engine, n = self._engine, len(ids)
        asked = options("score")
        made = Score(
            numpy.empty(n - 1, numpy.float32),
            numpy.empty((n, engine.vocab_size), numpy.float32) if logits else None,
            numpy.empty((engine.layers + 1, n, engine.hidden_size), numpy.float32) if hidden_states else None,
        )
        asked.prompt_length = prompt_length
        asked.nll = ffi.cast("float *", made.nll.ctypes.data) if n > 1 else ffi.NULL
        if made.logits is not None:
            asked.logits = ffi.cast("float *", made.logits.ctypes.data)
        if made.hidden_states is not None:
            asked.hidden_states = ffi.cast("float *", made.hidden_states.ctypes.data)
        pointer = self._idle()
        interruptible(lambda: check(library().kakeya_session_score, pointer, ids, n, asked), self.cancel)
        return made

    def close(self) -> None:
        """Ends its answer, and gives its memory back. Closing twice does nothing."""
        self._answering = 0
        self._timeline.close()

    def __del__(self) -> None:
        self._timeline.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()
