"""The five methods on a channel. The only file that knows the generated messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Protocol, Sequence, Tuple

import grpc

from kakeya.v1 import runtime_pb2 as pb

Metadata = Tuple[Tuple[str, str], ...]


@dataclass(frozen=True)
class Sampling:
    """None: absent, the server's default."""

    seed: Optional[int] = None
    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None


class Stream(Protocol):
    """A running Generate call."""

    def __iter__(self) -> Iterator[pb.GenerateResponse]: ...

    def __next__(self) -> pb.GenerateResponse: ...

    def cancel(self) -> bool: ...


class RuntimeStub:
    def __init__(self, channel: grpc.Channel, metadata: Metadata) -> None:
        self._metadata = metadata

        def method(make: Any, name: str, request: Any, response: Any) -> Callable[..., Any]:
            call: Callable[..., Any] = make(
                f"/kakeya.v1.RuntimeService/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            return call

        unary, stream = channel.unary_unary, channel.unary_stream
        self._create = method(unary, "CreateSession", pb.CreateSessionRequest, pb.CreateSessionResponse)
        self._append = method(unary, "AppendTokens", pb.AppendTokensRequest, pb.AppendTokensResponse)
        self._generate = method(stream, "Generate", pb.GenerateRequest, pb.GenerateResponse)
        self._close = method(unary, "CloseSession", pb.CloseSessionRequest, pb.CloseSessionResponse)
        self._info = method(unary, "GetSessionInfo", pb.GetSessionInfoRequest, pb.GetSessionInfoResponse)

    def create_session(self, eos_token_ids: Sequence[int], client_label: str) -> str:
        request = pb.CreateSessionRequest(client_label=client_label, eos_token_ids=eos_token_ids)
        response: pb.CreateSessionResponse = self._create(request, metadata=self._metadata)
        return response.session_id

    def append_tokens(self, session_id: str, token_ids: Sequence[int]) -> int:
        request = pb.AppendTokensRequest(session_id=session_id, token_ids=token_ids)
        response: pb.AppendTokensResponse = self._append(request, metadata=self._metadata)
        return response.history_length

    def generate(self, session_id: str, max_tokens: int, sampling: Sampling) -> Stream:
        request = pb.GenerateRequest(
            session_id=session_id,
            max_tokens=max_tokens,
            seed=sampling.seed,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
        )
        stream: Stream = self._generate(request, metadata=self._metadata)
        return stream

    def close_session(self, session_id: str) -> int:
        response: pb.CloseSessionResponse = self._close(
            pb.CloseSessionRequest(session_id=session_id), metadata=self._metadata
        )
        return response.final_history_length

    def get_session_info(self, session_id: str) -> pb.GetSessionInfoResponse:
        response: pb.GetSessionInfoResponse = self._info(
            pb.GetSessionInfoRequest(session_id=session_id), metadata=self._metadata
        )
        return response
