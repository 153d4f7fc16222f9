"""The trainer's end of the channel ``collective``: it broadcasts weights to model servers."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ajet_core.errors import AjetError, TrainerError
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
    Send,
    TensorSpec,
    encoded,
    make_update,
    read_request,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

T = TypeVar("T")

_log = logging.getLogger("ajet.collective")

MEET_SECONDS = 120.0
BROADCAST_SECONDS = 1800.0
_JOIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """A copy of the weights at the time of publishing."""

    policy_version: int
    tensors: dict[str, torch.Tensor]


@dataclass(slots=True)
class _Member:
    """A connection and its group."""

    # A torch backend: ProcessGroupGloo or ProcessGroupNCCL.
    group: Any = None
    device: Any = None
    # Must live as long as the group, which reads keys from it later too.
    store: Any = field(default=None, repr=False)


class WeightSender:
    """Broadcasts the latest weights to all receivers, in separate threads, with a group for each.

    Training continues meanwhile: the weights are copied, on the device of the parameters.

    Anyone who can read the network between sender and receivers can read the weights: torch's
    collectives are neither encrypted nor authenticated. The sender listens at one address only, by
    default a loopback address.

    :param host: address to listen at; receivers must be able to reach it.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._token = secrets.token_urlsafe(32)
        self._offer: _Offer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()

    def publish(self, module: nn.Module, policy_version: int) -> WeightUpdate:
        """Offer a copy of the weights of `module`.

        :param module: a Hugging Face causal LM without adapters; tensors are named as in its files.
        :raises TrainerError: the address cannot be listened at, or torch lacks collectives.
        """
        import torch

        if not torch.distributed.is_available():
            raise TrainerError(
                "this build of torch has no torch.distributed: use another weight channel"
            )
        if self._thread is None:
            self._listen()
        # Drop the old copy first, to save memory. Receivers that request it get `Gone`.
        self._offer = None
        tensors = {name: tensor.detach().clone() for name, tensor in file_tensors(module).items()}
        self._offer = _Offer(policy_version, tensors)
        specs = [
            TensorSpec(
                name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape)
            )
            for name, tensor in tensors.items()
        ]
        return make_update(policy_version, (self._host, self._port), self._token, specs)

    def close(self) -> None:
        """Stop listening and leave all groups; idempotent."""
        thread, self._thread = self._thread, None
        loop, self._loop = self._loop, None
        if thread is not None and loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
        self._offer = self._server = None

    def _listen(self) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=self._run, args=(loop,), name="ajet-weights-sender", daemon=True
        )
        thread.start()
        self._loop, self._thread = loop, thread
        listening = asyncio.start_server(self._connected, self._host, 0, limit=MOST_LINE)
        try:
            self._server = asyncio.run_coroutine_threadsafe(listening, loop).result()
        except OSError as error:
            self.close()
            raise TrainerError(
                f"cannot offer weights at {self._host}: {error}; set workers.collective_host "
                "to an address of this machine"
            ) from error
        self._port = self._server.sockets[0].getsockname()[1]

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(self._hang_up())
            loop.close()

    async def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs it as one"
        self._connections.add(task)
        member = _Member()
        try:
            await self._serve(member, reader, writer)
        except (OSError, ValueError, TimeoutError) as error:
            _log.warning("lost a receiver of weights: %s", error)
        except asyncio.CancelledError:
            pass
        finally:
            self._connections.discard(task)
            member.group = member.store = None
            writer.close()

    async def _serve(
        self, member: _Member, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async def answer(line: Answer) -> None:
            writer.write(encoded(line))
            await writer.drain()

        async with asyncio.timeout(_JOIN_SECONDS):
            first = read_request(await reader.readline())
        known = self._token.encode()
        if not isinstance(first, Join) or not hmac.compare_digest(first.token.encode(), known):
            await answer(Failed(error="the token is not the sender's"))
            return
        try:
            backend, device = self._backend(first)
            listener = socket.create_server((self._host, 0), family=_family(self._host))
            group = Group(
                # A server that was started separately may still be in groups of other senders.
                name=f"ajet-weights-{secrets.token_hex(8)}",
                host=self._host,
                port=listener.getsockname()[1],
                world_size=1 + first.ranks,
                backend=backend,
            )
            await answer(group)
            met = _in_thread(lambda: meet(group, 0, listener.detach()))
            member.store, member.group = await _unless_hung_up(reader, met)
            member.device = device
            await answer(Done())
            while line := await reader.readline():
                request = read_request(line)
                if not isinstance(request, Send):
                    raise ValueError("this receiver has already joined")
                offer = self._offer
                if offer is None or offer.policy_version != request.policy_version:
                    await answer(Gone())
                    continue
                await answer(Ready())
                await _unless_hung_up(reader, _in_thread(partial(_broadcast, member, offer)))
                await answer(Done())
        except (AjetError, RuntimeError) as error:
            # torch raises RuntimeError for any failure in a group.
            await answer(Failed(error=str(error).partition("\n")[0]))

    def _backend(self, join: Join) -> tuple[Backend, Any]:
        """Return the best backend that both sides support, and the device of tensors for it."""
        import torch

        device = torch.device("cpu")
        if self._offer is not None:
            device = next(iter(self._offer.tensors.values())).device
        for backend in join.backends:
            # Weights that are not on a GPU would need a GPU to be sent from.
            if (
                backend == "nccl"
                and device.type == "cuda"
                and torch.distributed.is_nccl_available()
            ):
                return "nccl", device
            if backend == "gloo" and torch.distributed.is_gloo_available():
                return "gloo", torch.device("cpu")
        raise TrainerError(
            "trainer and engine have no collective backend in common: the engine has "
            f"{', '.join(join.backends)}"
        )


def _broadcast(member: _Member, offer: _Offer) -> None:
    import torch
    from torch import distributed

    assert member.group is not None, "it was met first"
    if member.device.type == "cuda":
        torch.cuda.set_device(member.device)
    options = distributed.BroadcastOptions()
    options.rootRank = 0
    options.timeout = timedelta(seconds=BROADCAST_SECONDS)
    for tensor in offer.tensors.values():
        member.group.broadcast([tensor.to(member.device).contiguous()], options).wait()


def meet(group: Group, rank: int, listener: int | None) -> tuple[Any, Any]:
    """Wait for all members of a group; return its store, which must be kept, and the group.

    ``torch.distributed.new_group`` is not used: it would need a group of all processes that this
    one communicates with, and cannot be called from several threads. The keys are those of torch's
    functions, so that a server may join by them.

    :param listener: a listening socket for the store, for rank 0.
    :raises RuntimeError: not all members joined in time.
    """
    # Some of the names used here are not exported by torch for type checkers.
    from torch import distributed as public

    distributed: Any = public
    store = distributed.TCPStore(
        group.host,
        group.port,
        group.world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=MEET_SECONDS),
        wait_for_workers=True,
        master_listen_fd=listener,
        use_libuv=True,
    )
    device = "cuda" if group.backend == "nccl" else "cpu"
    keys: Any = distributed.PrefixStore(group.name, store)
    for prefix in (f"{group.name}/", f"{device}/"):
        keys = distributed.PrefixStore(prefix, keys)
    # The timeout for joining; broadcasts have a separate one.
    limit = timedelta(seconds=MEET_SECONDS)
    if group.backend == "nccl":
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = limit
        return store, distributed.ProcessGroupNCCL(keys, rank, group.world_size, options)
    options = distributed.ProcessGroupGloo._Options()
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=group.host)]
    options._timeout = limit
    return store, distributed.ProcessGroupGloo(keys, rank, group.world_size, options)


def file_tensors(module: nn.Module) -> Mapping[str, torch.Tensor]:
    """Return the tensors of a model by their names in files, each once."""
    tensors: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in module.state_dict().items():
        # Tied output matrices are omitted from files too.
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and key in seen:
            continue
        seen.add(key)
        tensors[name] = tensor
    return _as_in_files(module, tensors)


def _as_in_files(module: nn.Module, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert tensors to their form in files, such as experts that transformers stacks."""
    with suppress(ImportError):
        from transformers.core_model_loading import revert_weight_conversion

        return dict(revert_weight_conversion(module, tensors))
    return tensors


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def _unless_hung_up(reader: asyncio.StreamReader, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, unless the peer hangs up.

    :raises ConnectionError: the peer hung up or sent something meanwhile. The thread is left
        behind; torch releases a dead peer at once or after a timeout.
    """
    task = asyncio.ensure_future(work)
    hears = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait([task, hears], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ConnectionError("it closed the connection in the middle of a message")
        return task.result()
    finally:
        task.cancel()
        hears.cancel()
        await asyncio.gather(task, hears, return_exceptions=True)


async def _in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a daemon thread: torch releases a dead peer only after a timeout."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001
            failure = error
        with suppress(RuntimeError):
            # The loop may already be closed.
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name="ajet-broadcast", daemon=True).start()
    return await done
