"""The engine's end of the channel ``collective``: it makes model servers join and receive."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from ajet_core.errors import EngineError, WeightsGoneError
from ajet_core.interfaces import WeightUpdate
from ajet_engines.collective.wire import (
    MOST_LINE,
    Answer,
    Backend,
    Done,
    Failed,
    Gone,
    Group,
    Join,
    Ready,
    Request,
    Send,
    TensorSpec,
    encoded,
    read_answer,
    tensors_of,
)

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
_JOIN_SECONDS = 60.0
_LEAVE_SECONDS = 5.0
# The sender answers immediately whether it has the weights.
_ASK_SECONDS = 60.0


class GroupMember(ABC):
    """A model server as a receiver of weights.

    Its methods raise `EngineError` and `ajet_engines.served.http.ServerGoneError`.
    """

    @abstractmethod
    def ranks(self) -> int:
        """Return the number of its processes that receive weights."""

    @abstractmethod
    def backends(self) -> list[Backend]:
        """Return the collective backends that they support, best first."""

    @abstractmethod
    async def join(self, group: Group) -> None:
        """Make the processes join as the ranks from 1 on; return when all have joined."""

    @abstractmethod
    async def take(self, tensors: Sequence[TensorSpec]) -> None:
        """Make them receive these tensors, in this order, and serve them."""

    @abstractmethod
    async def leave(self) -> None:
        """Make them leave the group after the sender has left."""


class WeightReceiver:
    """Transfers weights to one model server.

    The group is created at the first update and kept until the sender changes.
    """

    def __init__(self, member: GroupMember) -> None:
        self._member = member
        self._sender = ("", "")
        self._joined = False
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def receive(self, update: WeightUpdate) -> None:
        """Make the server serve the update's weights.

        :raises WeightsGoneError: the sender cannot be reached; the served weights have not changed.
        :raises EngineError: the transfer failed, and the served weights are unknown.
        """
        tensors = tensors_of(update)
        sender = update.location, update.metadata.get("token", "")
        kept = self._sender == sender
        if not kept:
            await self._join(update)
            self._sender = sender
        try:
            await self._offered(update)
        except WeightsGoneError:
            if not kept or self._writer is not None:
                raise
            # A connection that was idle for a long time may have been cut by the network:
            # reconnect.
            await self._join(update)
            self._sender = sender
            await self._offered(update)
        await self._both(self._member.take(tensors), self._answered("sending the weights"))

    async def _offered(self, update: WeightUpdate) -> None:
        """Request weights; the sender broadcasts them next.

        :raises WeightsGoneError: the weights are not available. If the sender does not answer, the
            connection is closed.
        """
        try:
            await self._ask(Send(policy_version=update.policy_version))
            async with asyncio.timeout(_ASK_SECONDS):
                answer = await self._answer_if_there()
        except BaseException as error:
            # A late answer would be mistaken for the answer to another request.
            self._hang_up()
            if isinstance(error, TimeoutError):
                raise WeightsGoneError("the sender of the weights does not respond") from error
            raise
        match answer:
            case Ready():
                pass
            case Gone():
                raise WeightsGoneError(
                    f"the weights of policy version {update.policy_version} are no longer available"
                )
            case other:
                raise EngineError(
                    f"the sender of the weights responded {other!r} to a request for weights"
                )

    async def close(self) -> None:
        """Close the connection and make the server leave the group, as the sender then does."""
        self._hang_up()
        if self._joined:
            self._joined = False
            # A server that has died or hangs is considered to have left.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._member.leave()

    def _hang_up(self) -> None:
        writer, self._writer, self._reader, self._sender = self._writer, None, None, ("", "")
        if writer is not None:
            writer.close()

    async def _join(self, update: WeightUpdate) -> None:
        self._hang_up()
        if self._joined:
            self._joined = False
            await self._member.leave()
        address = urlsplit(update.location)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                self._reader, self._writer = await asyncio.open_connection(
                    address.hostname, address.port, limit=MOST_LINE
                )
        except (OSError, TimeoutError) as error:
            raise WeightsGoneError(
                f"the trainer no longer sends weights at {update.location}: {error}"
            ) from error
        member = self._member
        await self._ask(
            Join(token=update.metadata["token"], ranks=member.ranks(), backends=member.backends())
        )
        try:
            async with asyncio.timeout(_JOIN_SECONDS):
                group = await self._answer("joining the group")
        except TimeoutError:
            self._hang_up()
            raise EngineError("the sender of the weights did not name a group in time") from None
        if not isinstance(group, Group):
            raise EngineError(f"the sender of the weights responded {group!r} instead of a group")
        self._joined = True
        await self._both(member.join(group), self._answered("meeting the group"))

    async def _both(self, ours: Awaitable[None], theirs: Awaitable[None]) -> None:
        """Wait for both ends; if one fails, cancel the other, which would wait for it."""
        tasks = [asyncio.ensure_future(ours), asyncio.ensure_future(theirs)]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._hang_up()
            raise

    async def _answered(self, phase: str) -> None:
        answer = await self._answer(phase)
        if not isinstance(answer, Done):
            raise EngineError(f"the sender of the weights responded {answer!r} during: {phase}")

    async def _ask(self, request: Request) -> None:
        assert self._writer is not None, "it was joined"
        self._writer.write(encoded(request))
        try:
            await self._writer.drain()
        except OSError as error:
            self._hang_up()
            raise WeightsGoneError(f"lost the sender of the weights: {error}") from error

    async def _answer_if_there(self) -> Answer:
        """Return the sender's answer before any server was involved.

        :raises WeightsGoneError: the sender no longer answers.
        """
        try:
            return await self._answer("asking for weights")
        except EngineError as error:
            raise WeightsGoneError(error.message) from error

    async def _answer(self, phase: str) -> Answer:
        assert self._reader is not None, "it was joined"
        try:
            line = await self._reader.readline()
            answer = read_answer(line) if line else None
        except (OSError, ValueError) as error:
            raise EngineError(f"lost the sender of the weights during: {phase}: {error}") from error
        if answer is None:
            raise EngineError(f"lost the sender of the weights during: {phase}")
        if isinstance(answer, Failed):
            raise EngineError(f"the sender of the weights failed during: {phase}: {answer.error}")
        return answer
