"""What can go wrong, as exceptions. All of them are KakeyaError."""

from __future__ import annotations

from typing import Dict, Optional, Type

import grpc


class KakeyaError(Exception):
    """A call failed. `rpc_code` is the status of the protocol, None where no call was made."""

    def __init__(self, message: str, *, rpc_code: Optional[grpc.StatusCode] = None) -> None:
        super().__init__(message)
        self.rpc_code = rpc_code


class SessionNotFoundError(KakeyaError):
    """The session was never made, was closed, has expired, or had to make room."""


class InvalidArgumentError(KakeyaError):
    """A token or an option is out of range, or the tokens do not fit into the context."""


class InvariantViolationError(KakeyaError):
    """The server found a session in a state that must not be. This server never says so; others of the interface may."""


class ResourceExhaustedError(KakeyaError):
    """The server has no memory or no place, and every other session is busy."""


class UnimplementedError(KakeyaError):
    """The server does not have this method."""


class RpcCancelledError(KakeyaError):
    """The call was cancelled."""


class InterTokenTimeoutError(KakeyaError):
    """No token came within `inter_token_timeout_s`. The stream was cancelled; the session lives."""


class SessionClosedError(KakeyaError):
    """The session was closed by this program before; no call was made."""


_CLASSES: Dict[grpc.StatusCode, Type[KakeyaError]] = {
    grpc.StatusCode.NOT_FOUND: SessionNotFoundError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.FAILED_PRECONDITION: InvariantViolationError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNIMPLEMENTED: UnimplementedError,
    grpc.StatusCode.CANCELLED: RpcCancelledError,
}


def from_rpc_error(error: grpc.RpcError) -> KakeyaError:
    """The exception for a failed call: its class by the status, its text the server's."""
    code = error.code() if isinstance(error, grpc.Call) else None
    text = (error.details() if isinstance(error, grpc.Call) else str(error)) or ""
    kind = _CLASSES.get(code, KakeyaError) if code is not None else KakeyaError
    return kind(text, rpc_code=code)
