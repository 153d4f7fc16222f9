"""Reading what a server shows of its run, such as the routes of its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

from pydantic import BaseModel

from agentjet.client._connection_async import AsyncConnection
from agentjet.client._wire import ApiRequest

if TYPE_CHECKING:
    import httpx2

A = TypeVar("A", bound=BaseModel)


class AsyncViewClient:
    """A client that only reads, and repeats no request.

    :param url: as for `AsyncSwarmClient`, as are `token`, of the scope ``view`` or ``control``, and
        `transport`.
    :param timeout: seconds to wait for an answer.
    """

    def __init__(
        self,
        url: str | None,
        token: str | None,
        *,
        timeout: float = 10.0,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = AsyncConnection(url, token, retries=0, transport=transport)
        self._timeout = timeout

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._connection.endpoint.url

    async def get(
        self, path: str, answer: type[A], query: Mapping[str, str | int] | None = None
    ) -> A:
        """Return the answer of ``GET path``.

        :param answer: the model that it is parsed as; fields that it lacks are ignored.
        :raises ServerUnreachableError: there was no answer.
        :raises AjetError: the server's error, with the class it had there.
        """
        where = f"{path}?{urlencode(query)}" if query else path
        request = ApiRequest("GET", where, answer, read_timeout=self._timeout)
        return await self._connection.perform(request)

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()
