"""The processes that train together: the worker's own process with rank 0, and its peers.

Every process takes part in every step. Each computes its share of the micro-batches; accelerate
averages gradients (DDP), or gives each process a shard of weights, gradients and optimiser (FSDP).
All decisions depend only on numbers that are equal in all processes, so all of them refuse a batch,
or none. If a process fails in any other way, the processes are out of step, and the worker is
replaced together with all its peers.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed

from ajet_core.errors import AjetError, TrainerError, WeightsLostError
from ajet_core.interfaces import Trainer, WorkerContext

Maker = Callable[[WorkerContext], Trainer]

CLOSE_SECONDS = 10.0


class Peers:
    """The processes of ranks above 0, which execute commands in order.

    :param count: number of all processes, including this one.
    :param make: creates a peer's trainer; it runs in the peer, so it must be importable by name.
    """

    def __init__(self, count: int, make: Maker, context: WorkerContext, *, cuda: bool) -> None:
        # A file in the run directory, which other users cannot access, unlike a port.
        context.run_dir.mkdir(parents=True, exist_ok=True)
        self._meeting = context.run_dir / f"trl-processes-{secrets.token_hex(8)}"
        self._connections: list[Connection] = []
        self._processes = []
        spawn = multiprocessing.get_context("spawn")
        for rank in range(1, count):
            ours, theirs = spawn.Pipe()
            place = (self._meeting, rank, count, cuda)
            process = spawn.Process(
                target=_serve,
                args=(theirs, place, make, context.run_dir, context.seed),
                name=f"trl-{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)
        self._place = (self._meeting, 0, count, cuda)

    def meet(self) -> None:
        """Wait for all peers; call this before creating anything of accelerate in this process."""
        _join(*self._place)

    def tell(self, method: str, *arguments: object) -> None:
        """Call a method of the peers' trainers without waiting; `hear` waits.

        :raises WeightsLostError: a peer has ended.
        """
        for rank, connection in enumerate(self._connections, 1):
            try:
                connection.send((method, arguments))
            except OSError as error:
                raise _ended(rank, error) from error

    def hear(self) -> None:
        """Wait until all peers have executed the command.

        :raises WeightsLostError: a peer has ended, or failed.
        """
        for rank, failure in enumerate(self._answers(), 1):
            if failure:
                raise WeightsLostError(f"training process {rank} failed: {failure}")

    @contextmanager
    def running(self, method: str, *arguments: object) -> Iterator[None]:
        """Run a method in the peers while this process does the same inside the context.

        :raises WeightsLostError: some processes succeeded and others failed, so that they are out
            of step; or a peer has ended.
        """
        self.tell(method, *arguments)
        try:
            yield
        except WeightsLostError:
            # No answers will come.
            raise
        except TrainerError as error:
            done = [rank for rank, failure in enumerate(self._answers(), 1) if not failure]
            # A failed start loses no weights.
            if done and method != "start":
                raise WeightsLostError(
                    f"training process 0 failed and process {done[0]} did not: {error.message}"
                ) from error
            raise
        self.hear()

    def _answers(self) -> list[str]:
        answers = []
        for rank, connection in enumerate(self._connections, 1):
            try:
                answers.append(connection.recv())
            except (OSError, EOFError) as error:
                raise _ended(rank, error) from error
        return answers

    def close(self) -> None:
        """Stop all peers."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(CLOSE_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._meeting.unlink(missing_ok=True)


def _join(meeting: Path, rank: int, count: int, cuda: bool) -> None:
    # accelerate reads these variables to find out that there are several processes.
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count)
    )
    if cuda:
        torch.cuda.set_device(rank)
    else:
        # All processes are on this machine.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        # Shards may be in host memory.
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=count,
    )


def _ended(rank: int, error: Exception) -> WeightsLostError:
    return WeightsLostError(f"training process {rank} has ended ({type(error).__name__})")


def _serve(
    connection: Connection,
    place: tuple[Path, int, int, bool],
    make: Maker,
    run_dir: Path,
    seed: int,
) -> None:
    """Run a peer until the connection closes, or until it fails in a way that others may not."""
    _join(*place)
    trainer = make(WorkerContext(run_dir, seed))
    going = True
    while going:
        try:
            method, arguments = connection.recv()
        except EOFError:
            break
        try:
            getattr(trainer, method)(*arguments)
            failure = ""
        except AjetError as error:
            failure = error.message
            going = not isinstance(error, WeightsLostError)
        connection.send(failure)
    # A thread of its loop may still wait for the other processes.
    os._exit(0)
