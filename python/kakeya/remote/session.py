"""A session: one timeline of tokens on the server."""

from __future__ import annotations

import enum
import queue
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Iterable, Iterator, Optional, Tuple, Type, Union

import grpc

from kakeya.remote._stub import Sampling, Stream
from kakeya.remote.errors import InterTokenTimeoutError, KakeyaError, SessionClosedError, from_rpc_error

if TYPE_CHECKING:
    from kakeya.v1 import runtime_pb2 as pb
    from kakeya.remote.client import Client


class StopReason(enum.IntEnum):
    """Why an answer ended."""

    UNSPECIFIED = 0
    MAX_TOKENS = 1
    EOS = 2
    CANCELLED = 3
    TRUNCATED = 4


@dataclass(frozen=True)
class SessionInfo:
    """What the server holds of a session."""

    history_length: int
    kv_live_bytes: int
    cache_invariant_inv1_violations: int
    cache_invariant_inv2_violations: int
    idle_seconds: float


class Session:
    """Made by Client.create_session. One call at a time: the server refuses a second one."""

    def __init__(self, *, client: Client, session_id: str) -> None:
        self._client = client
        self._session_id = session_id
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._last_stop_reason: Optional[int] = None
        self._last_generated_token_count = 0
        self._last_prefill_duration_seconds = 0.0
        self._last_total_duration_seconds = 0.0
        self._last_history_truncated_dropped: Optional[int] = None

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def closed(self) -> bool:
        """Whether this program has closed it."""
        return self._closed

    @property
    def last_stop_reason(self) -> Optional[int]:
        """Of the last answer that came to its end, one of StopReason; None before that."""
        return self._last_stop_reason

    @property
    def last_generated_token_count(self) -> int:
        return self._last_generated_token_count

    @property
    def last_prefill_duration_seconds(self) -> float:
        """Of the tokens that were appended before the last answer."""
        return self._last_prefill_duration_seconds

    @property
    def last_total_duration_seconds(self) -> float:
        return self._last_total_duration_seconds

    @property
    def last_history_truncated_dropped(self) -> Optional[int]:
        """Tokens that the last answer could not see; None: it saw all."""
        return self._last_history_truncated_dropped

    def append(self, token_ids: Iterable[int]) -> int:
        """Appends tokens to the session's, computes them, and returns how many it then has."""
        self._check_open()
        try:
            return self._client._stub.append_tokens(self._session_id, list(token_ids))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def generate(
        self,
        *,
        max_tokens: int,
        seed: Optional[int] = None,
        temperature: Optional[float] = None,
        top_p: Optional[float] = None,
        top_k: Optional[int] = None,
        inter_token_timeout_s: Optional[float] = None,
    ) -> Iterator[int]:
        """Continues the session token by token; the last_* properties then say how it went.

        An iterator that is left before its end cancels the call when it is closed. The session stays and holds what the
        server has computed, which may be more than was read. inter_token_timeout_s: how long to wait for one token.
        """
        self._check_open()
        if inter_token_timeout_s is not None and inter_token_timeout_s <= 0:
            raise ValueError(f"inter_token_timeout_s is {inter_token_timeout_s}, must be above 0")
        self._reset()
        sampling = Sampling(seed=seed, temperature=temperature, top_p=top_p, top_k=top_k)
        stream = self._client._stub.generate(self._session_id, max_tokens, sampling)
        frames: Iterator[pb.GenerateResponse] = (
            iter(stream) if inter_token_timeout_s is None else _with_timeout(stream, inter_token_timeout_s)
        )
        try:
            for frame in frames:
                kind = frame.WhichOneof("payload")
                if kind == "token_id":
                    yield frame.token_id
                elif kind == "truncated":
                    self._last_history_truncated_dropped = frame.truncated.dropped_token_count
                elif kind == "done":
                    self._take_done(frame.done)
                    return
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        finally:
            if self._last_stop_reason is None:
                stream.cancel()

    def _take_done(self, done: pb.GenerateDone) -> None:
        self._last_stop_reason = int(done.stop_reason)
        self._last_generated_token_count = done.generated_token_count
        self._last_prefill_duration_seconds = done.prefill_duration_seconds
        self._last_total_duration_seconds = done.total_duration_seconds

    def info(self) -> SessionInfo:
        """What the server holds. Asks the server even about a session that was closed here."""
        try:
            answer = self._client._stub.get_session_info(self._session_id)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        return SessionInfo(
            history_length=answer.history_length,
            kv_live_bytes=answer.kv_live_bytes,
            cache_invariant_inv1_violations=answer.cache_invariant_inv1_violations,
            cache_invariant_inv2_violations=answer.cache_invariant_inv2_violations,
            idle_seconds=answer.idle_seconds,
        )

    def close(self) -> int:
        """Ends the session on the server and returns how many tokens it had; 0 where it was closed here before."""
        if self._closed:
            return 0
        self._closed = True
        try:
            return self._client._stub.close_session(self._session_id)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosedError(f"session {self._session_id} was closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        try:
            self.close()
        except (KakeyaError, ValueError):  # it is gone already, or so is the connection
            pass


_Item = Tuple[Optional["pb.GenerateResponse"], Union[BaseException, None]]


def _with_timeout(stream: Stream, seconds: float) -> Iterator[pb.GenerateResponse]:
    """The frames of a stream, which another thread waits for."""
    items: queue.Queue[_Item] = queue.Queue()

    def read() -> None:
        try:
            for frame in stream:
                items.put((frame, None))
            items.put((None, None))
        except BaseException as error:  # it belongs to the thread that asks
            items.put((None, error))

    threading.Thread(target=read, name="kakeya-generate", daemon=True).start()
    while True:
        try:
            frame, error = items.get(timeout=seconds)
        except queue.Empty:
            stream.cancel()
            raise InterTokenTimeoutError(f"no token within {seconds:g} s") from None
        if error is not None:
            raise error
        if frame is None:
            return
        yield frame
