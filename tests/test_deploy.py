"""The files in `deploy` are valid, and what they say starts a server that answers and ends."""

from __future__ import annotations

import asyncio
import fnmatch
import json
import os
import re
import signal
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import check_jsonschema  # type: ignore[import-untyped]
import httpx2
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from ajet_core import __version__
from ajet_server.processes import supervisor
from ajet_server.serve import _DRAIN_SECONDS
from tests.support.gateway_processes import SECRET, unused_port
from tests.support.processes import children

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE, KUBERNETES = "compose.yaml", "kubernetes.yaml"
GATEWAYS = "gateways.yaml"
FILES = (COMPOSE, KUBERNETES)
TOKENS = {
    "AJET_SERVER__CONTROL_TOKEN": "control-token-of-the-deploy-test",
    "AJET_SERVER__CLIENT_TOKEN": "client-token-of-the-deploy-test",
}
"""What the operator's file holds, which is not in the repository."""
PORT = 8642


def text_of(file: str, gpu: bool) -> str:
    text = (DEPLOY / file).read_text(encoding="utf-8")
    # As `sed '/# GPU$/d'`.
    return text if gpu else re.sub(r"^.*# GPU\n", "", text, flags=re.MULTILINE)


def documents(file: str, gpu: bool = True) -> list[dict[str, Any]]:
    return list(YAML(typ="safe", pure=True).load_all(text_of(file, gpu)))


def compose_service(gpu: bool = True) -> dict[str, Any]:
    (document,) = documents(COMPOSE, gpu)
    (service,) = document["services"].values()
    return service


def resource(kind: str) -> dict[str, Any]:
    (document,) = (one for one in documents(KUBERNETES) if one["kind"] == kind)
    return document["spec"]


def pod() -> dict[str, Any]:
    return resource("StatefulSet")["template"]["spec"]


def container() -> dict[str, Any]:
    (only,) = pod()["containers"]
    return only


@dataclass(frozen=True, slots=True)
class Deployed:
    """What a file says about the server.

    :ivar mounts: where volumes are, by path, and whether they are read-only.
    :ivar listens: the port that leads to the server.
    :ivar stop_seconds: how long the server may take to end.
    """

    image: str
    user: str
    arguments: list[str]
    env: dict[str, str]
    mounts: dict[str, bool]
    listens: int
    stop_seconds: int

    def option(self, name: str) -> str:
        return self.arguments[self.arguments.index(name) + 1]


def from_compose() -> Deployed:
    service = compose_service()
    (published,) = service["ports"]
    (env_file,) = service["env_file"]
    assert env_file["required"]
    return Deployed(
        image=service["image"],
        user=service["user"],
        arguments=service["command"],
        env={**service.get("environment", {}), **TOKENS},
        mounts={volume["target"]: volume.get("read_only", False) for volume in service["volumes"]},
        listens=int(published.rpartition(":")[2]),
        stop_seconds=int(service["stop_grace_period"].removesuffix("s")),
    )


def value_of(variable: dict[str, Any]) -> str | None:
    if "value" in variable:
        return str(variable["value"])
    secret = variable["valueFrom"]["secretKeyRef"]
    return TOKENS.get(secret["key"]) if secret.get("optional") else TOKENS[secret["key"]]


def from_kubernetes() -> Deployed:
    server, security = container(), pod()["securityContext"]
    (port,) = server["ports"]
    values = {variable["name"]: value_of(variable) for variable in server["env"]}
    return Deployed(
        image=server["image"],
        user=f"{security['runAsUser']}:{security['runAsGroup']}",
        arguments=server["args"],
        env={name: value for name, value in values.items() if value is not None},
        mounts={one["mountPath"]: one.get("readOnly", False) for one in server["volumeMounts"]},
        listens=port["containerPort"],
        stop_seconds=pod()["terminationGracePeriodSeconds"],
    )


DEPLOYED = {COMPOSE: from_compose, KUBERNETES: from_kubernetes}
each_file = pytest.mark.parametrize("file", FILES)


@pytest.mark.parametrize("gpu", [True, False])
def test_compose_file_is_valid(gpu: bool, tmp_path: Path) -> None:
    path = tmp_path / COMPOSE
    path.write_text(text_of(COMPOSE, gpu), encoding="utf-8")
    options = ["--builtin-schema", "vendor.compose-spec", str(path)]
    checked = CliRunner().invoke(check_jsonschema.main, options)
    assert checked.exit_code == 0, checked.output


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("version", [kubernetes_validate.latest_version(), "1.30"])
def test_manifests_are_valid(version: str, gpu: bool) -> None:
    for document in documents(KUBERNETES, gpu):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", [kubernetes_validate.latest_version(), "1.30"])
def test_the_manifests_of_gateways_are_valid(version: str) -> None:
    for document in documents(GATEWAYS):
        kubernetes_validate.validate(document, version, strict=True)


def test_gateways_reach_the_server_of_the_other_file() -> None:
    link, agents, deployment = documents(GATEWAYS)
    template = deployment["spec"]["template"]
    (gateway,) = template["spec"]["containers"]
    assert link["spec"]["selector"] == resource("StatefulSet")["selector"]["matchLabels"]
    assert agents["spec"]["selector"] == template["metadata"]["labels"]
    assert agents["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    name, port = link["metadata"]["name"], link["spec"]["ports"][0]["port"]
    assert gateway["args"][gateway["args"].index("--server") + 1] == f"{name}:{port}"
    assert gateway["image"] == container()["image"]
    assert template["spec"]["terminationGracePeriodSeconds"] > _DRAIN_SECONDS
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    assert {mount["name"] for mount in gateway["volumeMounts"]} == volumes
    # What its comment says of the other file.
    assert f"GATEWAYS_LISTEN=0.0.0.0:{port}\n" in text_of(GATEWAYS, gpu=True)
    text = re.sub(r"^.*# PROCESSES\n", "", text_of(KUBERNETES, gpu=True), flags=re.MULTILINE)
    assert "--processes" not in re.sub("#.*", "", text)


@pytest.mark.processes
@pytest.mark.skipif(not supervisor.SUPPORTED, reason="gateways need a server on Linux")
async def test_what_the_files_say_starts_a_server_with_a_gateway(tmp_path: Path) -> None:
    _, _, deployment = documents(GATEWAYS)
    (of_gateway,) = deployment["spec"]["template"]["spec"]["containers"]
    link, port = unused_port(), unused_port()
    secret = {"AJET_SERVER__GATEWAY_TOKEN": SECRET}
    deployed = from_kubernetes()
    at = deployed.arguments.index("--processes")
    alone = replace(
        deployed,
        arguments=[*deployed.arguments[:at], *deployed.arguments[at + 2 :]],
        env={
            **deployed.env,
            **secret,
            "AJET_SERVER__GATEWAYS_LISTEN": f"0.0.0.0:{link}",
            "AJET_SERVER__PUBLIC_URL": f"http://127.0.0.1:{port}",
        },
    )
    options = {"--server": f"127.0.0.1:{link}", "--url": f"http://127.0.0.1:{port}"}
    options["--port"] = str(port)
    arguments = list(of_gateway["args"])
    for name, value in options.items():
        arguments[arguments.index(name) + 1] = value
    async with started(alone, tmp_path):
        (entrypoint,) = re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.MULTILINE)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AJET_")}
        gateway = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name(*json.loads(entrypoint)),
            *arguments,
            env={**kept, **secret},
            cwd=tmp_path,
        )
        probe = of_gateway["readinessProbe"]["httpGet"]["path"]
        async with httpx2.AsyncClient(base_url=options["--url"]) as http:
            while True:
                with suppress(httpx2.TransportError):
                    if (await http.get(probe)).status_code == 200:
                        break
                await asyncio.sleep(0.05)
        gateway.send_signal(signal.SIGTERM)
        assert await gateway.wait() == 0


@each_file
def test_a_gpu_is_an_option(file: str) -> None:
    assert re.search("gpu", json.dumps(documents(file)))
    assert not re.search("gpu|nvidia", json.dumps(documents(file, gpu=False)))


@each_file
def test_the_image_is_that_of_this_version(file: str) -> None:
    image = f"agentjet:{__version__}"
    assert DEPLOYED[file]().image == image
    assert f"--tag {image} " in DOCKERFILE


@each_file
def test_the_server_runs_as_the_user_of_the_image(file: str) -> None:
    (user,) = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert user == DEPLOYED[file]().user
    assert "0" not in user.split(":")


@each_file
def test_the_server_has_time_to_end(file: str) -> None:
    assert DEPLOYED[file]().stop_seconds > supervisor._END_SECONDS


@each_file
def test_runs_are_kept_in_a_volume_and_models_are_only_read(file: str) -> None:
    deployed = DEPLOYED[file]()
    # The parent of the run directory: the server makes the directory itself, for its user alone.
    assert deployed.mounts[str(Path(deployed.option("--run-dir")).parent)] is False
    assert deployed.mounts[deployed.option("--model-root")] is True


@each_file
def test_no_file_holds_a_token(file: str) -> None:
    given = re.findall(r"^[^#\n]*TOKEN *[:=].*$", text_of(file, gpu=True), re.MULTILINE)
    assert given == []
    assert "TOKEN" not in DOCKERFILE


def test_manifests_name_what_exists() -> None:
    service, stateful = resource("Service"), resource("StatefulSet")
    labels = stateful["template"]["metadata"]["labels"]
    assert service["selector"] == labels == stateful["selector"]["matchLabels"]
    assert stateful["replicas"] == 1
    (port,) = service["ports"]
    assert [port["targetPort"]] == [one["name"] for one in container()["ports"]]
    templates = [claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]]
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    mounted = {mount["name"] for mount in container()["volumeMounts"]}
    assert mounted == {*templates, *volumes}
    (claim,) = (one for one in documents(KUBERNETES) if one["kind"] == "PersistentVolumeClaim")
    assert volumes["models"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


def test_the_image_is_built_from_all_packages() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    described = [project["project"]["readme"], *project["project"]["license-files"]]
    needed = [*packages, *described, "pyproject.toml", "plugins", "constraints"]
    assert [one for one in needed if not any(fnmatch.fnmatch(one, line) for line in kept)] == []


@dataclass(frozen=True, slots=True)
class Started:
    """A server as a file describes it, with directories for volumes and with a free port."""

    process: asyncio.subprocess.Process
    port: int


def placed(arguments: list[str], mounts: dict[str, bool], root: Path) -> Iterator[str]:
    """Arguments with the volumes below `root`."""
    for argument in arguments:
        in_volume = any(Path(argument).is_relative_to(mount) for mount in mounts)
        yield f"{root}{argument}" if in_volume else argument


async def port_of(process: asyncio.subprocess.Process, gateways: int) -> int:
    """Read its output until it listens and its gateway processes are connected."""
    assert process.stdout is not None
    output = ""
    while line := (await process.stdout.readline()).decode():
        output += line
        listening = re.search(r"listening on http://0\.0\.0\.0:(\d+),", output)
        if listening and len(re.findall(r"gateway process \d+ .*is connected", output)) == gateways:
            return int(listening.group(1))
    raise AssertionError(f"the server did not start:\n{output}")


@asynccontextmanager
async def started(deployed: Deployed, tmp_path: Path) -> AsyncIterator[Started]:
    (entrypoint,) = re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.MULTILINE)
    (program,) = json.loads(entrypoint)
    for mount in deployed.mounts:
        Path(f"{tmp_path}{mount}").mkdir(parents=True)
    arguments = list(placed(deployed.arguments, deployed.mounts, tmp_path))
    arguments[arguments.index("--port") + 1] = "0"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AJET_")}
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name(program),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**kept, **deployed.env, "XDG_STATE_HOME": str(tmp_path / "state")},
        # Without settings of the working directory.
        cwd=tmp_path,
    )
    try:
        divided = "--processes" in deployed.arguments
        port = await port_of(process, int(deployed.option("--processes")) if divided else 0)
        yield Started(process, port)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def compose_is_healthy(port: int) -> bool:
    kind, program, *arguments = compose_service()["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    here = [argument.replace(f":{PORT}/", f":{port}/") for argument in arguments]
    assert here != arguments
    check = await asyncio.create_subprocess_exec(sys.executable, *here)
    return await check.wait() == 0


async def kubernetes_is_healthy(port: int) -> bool:
    server = container()
    ports = {one["name"]: one["containerPort"] for one in server["ports"]}
    answers = []
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = server[probe]["httpGet"]
            assert ports[get["port"]] == PORT
            answers.append((await http.get(get["path"])).status_code)
    return answers == [200] * 3


HEALTHY = {COMPOSE: compose_is_healthy, KUBERNETES: kubernetes_is_healthy}


@pytest.mark.processes
@pytest.mark.skipif(not supervisor.SUPPORTED, reason="several processes need Linux")
@each_file
async def test_what_a_file_says_starts_a_server(file: str, tmp_path: Path) -> None:
    deployed = DEPLOYED[file]()
    assert deployed.listens == int(deployed.option("--port")) == PORT
    async with started(deployed, tmp_path) as server:
        assert await HEALTHY[file](server.port)
        # The server process and its gateway processes.
        processes = int(deployed.option("--processes"))
        assert processes > 1
        assert len(children(server.process.pid)) == 1 + processes
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as http:
            token = TOKENS["AJET_SERVER__CONTROL_TOKEN"]
            for secret, status in ((token, 200), (f"{token}-not", 401)):
                headers = {"authorization": f"Bearer {secret}"}
                assert (await http.get("/v1/status", headers=headers)).status_code == status
        assert (Path(f"{tmp_path}{deployed.option('--run-dir')}") / "server.json").is_file()
        server.process.send_signal(signal.SIGTERM)
        output, _ = await server.process.communicate()
        assert server.process.returncode == 0, output.decode()
