"""The group of workers: collective calls, and the handling of workers that are gone.

Import this module after `ajet_backend_verl.surroundings.prepare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import ray
import ray.exceptions
import torch
from tensordict import TensorDict
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.workers.config import FSDPActorConfig, TrainingWorkerConfig

from ajet_backend_verl.cluster import Cluster
from ajet_backend_verl.part import Floats, MinibatchResult, Orders, WorkerFailure
from ajet_backend_verl.shards import Described, Kind, Plain
from ajet_backend_verl.worker import VerlWorker
from ajet_core.errors import WeightsLostError

T = TypeVar("T")

PARCEL_BYTES = 2**30
"""Whole tensors pass through Ray in parcels of about this size."""


class Workers:
    """A verl worker group.

    :param config: configuration of each worker.
    :param reference: as in `VerlWorker`.
    :param environment: environment variables of the workers.
    :ivar lost: why the workers cannot be used any longer; "" while they can.
    :raises TrainerError: the cluster has too few places.
    :raises WeightsLostError: a worker ended while it started.
    """

    def __init__(
        self,
        cluster: Cluster,
        shape: tuple[int, int],
        config: TrainingWorkerConfig,
        reference: TrainingWorkerConfig | None,
        *,
        environment: Mapping[str, str],
        cuda: bool,
        seed: int,
    ) -> None:
        nodes, per_node = shape
        self.count = nodes * per_node
        self.lost = ""
        pool = RayResourcePool([per_node] * nodes, use_gpu=cuda, max_colocate_count=1)
        # verl would wait for these places without a time limit.
        pool.pgs = cluster.places()
        with self._lost("start"):
            self._group: Any = RayWorkerGroup(
                pool,
                RayClassWithInitArgs(
                    ray.remote(VerlWorker), config, reference, cuda=cuda, seed=seed
                ),
                device_name="cuda" if cuda else "cpu",
                worker_env=dict(environment),
            )

    def begin(self, max_update_rms: float) -> dict[str, int]:
        """Call `VerlWorker.begin` on all workers."""
        counts: list[dict[str, int]] = self._all("begin", max_update_rms)
        return counts[0]

    def aim(self, actor: FSDPActorConfig, *, weighs_itself: bool) -> None:
        """Call `VerlWorker.aim` on all workers."""
        self._all("aim", actor, weighs_itself=weighs_itself)

    def score(self, rows: Sequence[TensorDict], *, reference: bool) -> list[Floats]:
        """Return [workers] logprobs of their rows, under the present weights or the reference."""
        logprobs: list[Floats] = self._all("score_reference" if reference else "score", list(rows))
        return logprobs

    def shorten(self, share: float) -> None:
        """Call `VerlWorker.shorten` on all workers."""
        self._all("shorten", share)

    def update(self, rows: Sequence[TensorDict], orders: Orders) -> list[MinibatchResult]:
        """Return [workers] results of `VerlWorker.update`."""
        results: list[MinibatchResult] = self._all("update", list(rows), [orders] * self.count)
        return results

    def keep(self) -> None:
        """Call `VerlWorker.keep` on all workers."""
        self._all("keep")

    def restore(self) -> None:
        """Call `VerlWorker.restore` on all workers."""
        self._all("restore")

    def is_finite(self) -> bool:
        """Return whether all weights are finite."""
        return all(self._all("is_finite"))

    def free(self) -> None:
        """Call `VerlWorker.free` on all workers."""
        self._all("free")

    def described(self, kind: Kind | None) -> dict[str, Described]:
        """Call `VerlWorker.describe` on all workers."""
        described: list[dict[str, Described]] = self._all("describe", kind)
        return described[0]

    def whole(self, kind: Kind | None) -> dict[str, torch.Tensor]:
        """Return whole tensors in the host memory of this process."""
        tensors: dict[str, torch.Tensor] = {}
        for names in _parcels(self.described(kind)):
            parcel: dict[str, Plain] = self._all("fetch", kind, names)[0]
            tensors.update({name: plain.tensor() for name, plain in parcel.items()})
        return tensors

    def put(self, kind: Kind, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replace weights or state with whole tensors."""
        for names in _parcels(self.described(kind)):
            parcel = {name: Plain.of(tensors[name]) for name in names}
            # Put the parcel into Ray's store once, not once for each worker.
            self._all("put", kind, ray.put(parcel))

    def _all(self, method: str, *arguments: object, **named: object) -> list[Any]:
        call: Callable[..., list[Any]] = getattr(self._group, method)
        with self._lost(method):
            return call(*arguments, **named)

    @contextmanager
    def _lost(self, method: str) -> Iterator[None]:
        """Raise `WeightsLostError` if a worker is gone, or failed while others succeeded."""
        try:
            yield
        except ray.exceptions.RayTaskError as error:
            failure = error.cause
            if isinstance(failure, WorkerFailure) and self.count == 1 and not failure.lost:
                raise WorkerFailure(failure.message, memory=failure.memory) from error
            reason = failure.message if isinstance(failure, WorkerFailure) else _last_line(error)
            self.lost = f"a worker failed in {method} ({reason})"
            raise WeightsLostError(
                f"{self.lost}, and not all {self.count} workers are in their initial state: "
                "continue from the last checkpoint. If memory ran out, set a smaller "
                "algorithm.token_budget"
            ) from error
        except ray.exceptions.RayError as error:
            self.lost = f"a worker or its node has ended in {method} ({_last_line(error)})"
            raise WeightsLostError(f"{self.lost}: continue from the last checkpoint") from error

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._group.workers:
            ray.kill(worker)


def _parcels(described: Mapping[str, Described]) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, tensor in described.items():
        if names and size + tensor.bytes > PARCEL_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += tensor.bytes
    if names:
        yield names


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
