"""Make the image in which sandboxes of containers are tested: Debian's Python and a shell.

Debian packages are unpacked into a directory, which the container program imports: without a
registry, a Dockerfile or root's rights of ``debootstrap``. It needs ``apt-get`` and ``dpkg-deb``.
An image that is there stays.

    python -m tests.exec.container_image podman|docker
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

IMAGE = "localhost/ajet-test:1"
"""Its number changes with its packages."""
PACKAGES = ("coreutils", "dash", "python3")
_MERGED = ("bin", "lib", "lib64", "sbin")
_EMPTY = ("dev", "etc", "home", "proc", "root", "sys", "tmp", "var/tmp", "work")
_LEFT_OUT = ("./usr/share/doc", "./usr/share/locale", "./usr/share/man")


def has_image(client: str) -> bool:
    """Return whether a container program has the image."""
    command = [client, "image", "inspect", IMAGE]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def make_image(client: str) -> None:
    """Make the image, unless the container program has it.

    :raises RuntimeError: a command failed; the message has what it printed.
    """
    if has_image(client):
        return
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "root"
        _unpack(_download(Path(directory) / "apt"), root)
        _run("tar", "-C", str(root), "--owner=0", "--group=0", "-cf", f"{directory}/image.tar", ".")
        _run(client, "import", f"{directory}/image.tar", IMAGE)


def _download(place: Path) -> list[Path]:
    """Download the packages and all that they depend on, as if none was installed."""
    archives = place / "archives"
    (archives / "partial").mkdir(parents=True)
    (place / "status").touch()
    options = {
        "APT::Sandbox::User": "",
        "Debug::NoLocking": "1",
        "Dir::Cache::archives": str(archives),
        "Dir::State::status": str(place / "status"),
    }
    command = ["apt-get", "--yes", "--quiet", "--no-install-recommends", "--download-only"]
    for name, value in options.items():
        command += ["-o", f"{name}={value}"]
    _run(*command, "install", *PACKAGES)
    return sorted(archives.glob("*.deb"))


def _unpack(packages: list[Path], root: Path) -> None:
    for name in (*_EMPTY, *(f"usr/{name}" for name in _MERGED)):
        (root / name).mkdir(parents=True)
    for name in _MERGED:
        (root / name).symlink_to(f"usr/{name}")
    skipped = [f"--exclude={name}" for name in _LEFT_OUT]
    for package in packages:
        files = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", str(package)], check=True, capture_output=True
        ).stdout
        _run("tar", "-C", str(root), "--keep-directory-symlink", *skipped, "-x", content=files)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")


def _run(*command: str, content: bytes | None = None) -> None:
    done = subprocess.run(
        command, input=content, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()
        raise RuntimeError(f"{' '.join(command[:3])} ... failed: {said}")


if __name__ == "__main__":
    if sys.argv[1:] not in (["podman"], ["docker"]):
        sys.exit(__doc__)
    make_image(sys.argv[1])
