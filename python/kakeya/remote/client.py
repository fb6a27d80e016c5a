"""The connection to a server."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Iterable, Optional, Sequence, Tuple, Type

import grpc

from kakeya.remote._stub import Metadata, RuntimeStub
from kakeya.remote.errors import from_rpc_error
from kakeya.remote.session import Session

DEFAULT_ADDRESS = "localhost:50051"


class Client:
    """Makes sessions on one server. Connects when the first call is made; safe to share by threads.

    api_key: sent with every call. credentials: makes the channel a TLS channel (grpc.ssl_channel_credentials()).
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        channel_options: Optional[Sequence[Tuple[str, Any]]] = None,
        api_key: Optional[str] = None,
        credentials: Optional[grpc.ChannelCredentials] = None,
    ) -> None:
        options = list(channel_options or [])
        self._address = address
        self._channel = (
            grpc.secure_channel(address, credentials, options=options)
            if credentials is not None
            else grpc.insecure_channel(address, options=options)
        )
        metadata: Metadata = (("authorization", f"Bearer {api_key}"),) if api_key is not None else ()
        self._stub = RuntimeStub(self._channel, metadata)
        self._closed = False

    @property
    def address(self) -> str:
        return self._address

    @property
    def closed(self) -> bool:
        return self._closed

    def create_session(self, *, eos_token_ids: Iterable[int] = (), client_label: str = "") -> Session:
        """An empty session. Its answers end after one of eos_token_ids; client_label is for the server's log."""
        try:
            session_id = self._stub.create_session(list(eos_token_ids), client_label)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        return Session(client=self, session_id=session_id)

    def close(self) -> None:
        """Closes the connection, not the sessions: they stay on the server until they expire."""
        if not self._closed:
            self._channel.close()
        self._closed = True

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()
