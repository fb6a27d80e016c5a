"""Client for the gRPC interface of a kakeya server: sessions of token ids.

    from kakeya.remote import Client

    with Client("localhost:50051") as client, client.create_session(eos_token_ids=[1, 106]) as session:
        session.append([2, 4528])
        for token in session.generate(max_tokens=64):
            print(token)
"""

from kakeya.remote.client import DEFAULT_ADDRESS, Client
from kakeya.remote.errors import (
    InterTokenTimeoutError,
    InvalidArgumentError,
    InvariantViolationError,
    KakeyaError,
    ResourceExhaustedError,
    RpcCancelledError,
    SessionClosedError,
    SessionNotFoundError,
    UnimplementedError,
)
from kakeya.remote.session import Session, SessionInfo, StopReason

__all__ = [
    "DEFAULT_ADDRESS",
    "Client",
    "InterTokenTimeoutError",
    "InvalidArgumentError",
    "InvariantViolationError",
    "KakeyaError",
    "ResourceExhaustedError",
    "RpcCancelledError",
    "Session",
    "SessionClosedError",
    "SessionInfo",
    "SessionNotFoundError",
    "StopReason",
    "UnimplementedError",
]
