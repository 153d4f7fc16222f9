"""The Ray cluster that workers run on: started on this machine, or already running.

Ray's own variable `RAY_ADDRESS`, in the environment of the server, names a running cluster. Only
the operator can set it, because the choice of a cluster decides where code runs; it is not a
setting of a run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

import ray
import ray.exceptions
from ray._private.state import available_resources_per_node
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from ajet_backend_verl.surroundings import ADDRESS_VARIABLE, cluster_address
from ajet_core.errors import TrainerError

LOOPBACK = "127.0.0.1"
_READY_SECONDS = 10.0
_LOOK_SECONDS = 0.2
# Ray creates sockets in this directory, whose paths are limited to 107 characters; run directories
# may be too long.
_PLACE = "ajet-ray-"


class _Connection:
    """The only connection of a process to Ray, which all of its trainers share.

    :ivar directory: directory of a cluster that was started here, and ends with this process.
    """

    def __init__(self) -> None:
        self._users = 0
        self.directory: Path | None = None

    def open(self, workers: int, *, gpus: bool) -> None:
        """Connect to the operator's cluster, or start one with places for this many workers."""
        if not ray.is_initialized():
            if address := cluster_address():
                ray.init(address=address, logging_level="warning")
            else:
                self._start(workers, gpus=gpus)
        self._users += 1

    def _start(self, workers: int, *, gpus: bool) -> None:
        _remove_abandoned()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{_PLACE}{os.getpid()}-"))
        ray.init(
            address="local",
            # The task that finds a port for the workers needs a place too.
            num_cpus=workers + 1,
            num_gpus=None if gpus else 0,
            include_dashboard=False,
            logging_level="warning",
            _node_ip_address=LOOPBACK,
            _temp_dir=str(self.directory),
        )

    def close(self) -> None:
        """Release the connection; a cluster that was started here ends with its last user."""
        self._users -= 1
        if self._users <= 0:
            self.abandon()

    def abandon(self) -> None:
        """End the connection for all users."""
        self._users = 0
        ray.shutdown()
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None


_CONNECTION = _Connection()


class Cluster:
    """The places of a trainer's workers on a Ray cluster.

    :param nodes: number of machines.
    :param per_node: number of workers on each.
    :param gpus: whether each worker has a GPU.
    :param wait_seconds: how long to wait until the cluster has all places.
    :raises TrainerError: the cluster cannot be reached.
    """

    def __init__(self, nodes: int, per_node: int, *, gpus: bool, wait_seconds: float) -> None:
        self._nodes = nodes
        self._per_node = per_node
        self._resource = "GPU" if gpus else "CPU"
        self._wait_seconds = wait_seconds
        self._groups: list[PlacementGroup] = []
        address = cluster_address()
        if nodes > 1 and not address:
            raise TrainerError(
                f"trainer.settings.nodes is {nodes}, but a cluster that is started here has "
                "only one node. Start Ray on all machines (ray start), and name the first "
                f"one in the server's environment: {ADDRESS_VARIABLE}=HOST:PORT",
                param="trainer.settings.nodes",
            )
        try:
            _CONNECTION.open(nodes * per_node, gpus=gpus)
        except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            _CONNECTION.abandon()
            where = f"reach the Ray cluster {address}" if address else "start Ray on this machine"
            raise TrainerError(f"cannot {where}: {error}") from error

    def meeting(self) -> Path | None:
        """Return a new file for workers to find each other; None on a cluster that ran before."""
        directory = _CONNECTION.directory
        return None if directory is None else directory / f"meeting-{secrets.token_hex(8)}"

    def places(self) -> list[PlacementGroup]:
        """Return one placement group for the workers of each node, as soon as there is room.

        :raises TrainerError: there is not enough room in time.
        """
        until = time.monotonic() + self._wait_seconds
        while True:
            free = self._free()
            if len(free) >= self._nodes:
                self._groups = [self._place_on(node) for node in free[: self._nodes]]
                if self._are_there():
                    return self._groups
                # Another program took the places first.
                self._give_back()
            if time.monotonic() > until:
                raise self._too_small()
            time.sleep(_LOOK_SECONDS)

    def _free(self) -> list[str]:
        """Return the ids of the nodes with room for the workers of one node."""
        free = available_resources_per_node()
        return [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and self._has_room(free.get(node["NodeID"], {}))
        ]

    def _has_room(self, resources: dict[str, float]) -> bool:
        names = {"CPU", self._resource}
        return all(resources.get(name, 0) >= self._per_node for name in names)

    def _place_on(self, node: str) -> PlacementGroup:
        bundle = {"CPU": 1.0, self._resource: 1.0}
        bundles = [dict(bundle) for _ in range(self._per_node)]
        return placement_group(bundles, strategy="STRICT_PACK", _soft_target_node_id=node)

    def _are_there(self) -> bool:
        if not all(group.wait(_READY_SECONDS) for group in self._groups):
            return False
        nodes = [
            set(placement_group_table(group)["bundles_to_node_id"].values())
            for group in self._groups
        ]
        return len(set().union(*nodes)) == self._nodes

    def _too_small(self) -> TrainerError:
        free = available_resources_per_node()
        nodes = [
            f"{node['NodeManagerAddress']} with "
            f"{free.get(node['NodeID'], {}).get(self._resource, 0):g} of "
            f"{node['Resources'].get(self._resource, 0):g} free"
            for node in ray.nodes()
            if node["Alive"]
        ]
        return TrainerError(
            f"the Ray cluster has no free place for {self._per_node} workers on each of "
            f"{self._nodes} nodes, with a {self._resource} for each; nodes that are up: "
            f"{', '.join(nodes) or 'none'}. Start what is missing, wait longer "
            "(trainer.settings.start_seconds), or set trainer.settings.nodes and workers_per_node "
            "lower: checkpoints can be loaded by any number of workers",
            param="trainer.settings.nodes",
        )

    def _give_back(self) -> None:
        for group in self._groups:
            remove_placement_group(group)
        self._groups = []

    def close(self) -> None:
        """Release the places and the connection."""
        if ray.is_initialized():
            self._give_back()
            _CONNECTION.close()


def _remove_abandoned() -> None:
    """Remove the directories of processes that were killed."""
    if not Path("/proc/self").exists():
        return
    for path in Path(tempfile.gettempdir()).glob(f"{_PLACE}*"):
        pid = path.name.removeprefix(_PLACE).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(path, ignore_errors=True)
