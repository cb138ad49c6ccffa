"""The image is built from its Dockerfile, and its containers run as compose.yml says.

Podman builds it. The base is Debian with its Python, not a download from a registry
of images. A container is a process in the root folder of the image, which is read-only,
with the image's user and no capability.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from keyturn.cli.demo_stack import environment, seed
from keyturn.gateway.config import Settings, SlackMode
from keyturn.gateway.policy_file import PolicyFile
from keyturn.sandbox.server import Sandbox
from tests.conftest import eventually
from tests.debian import find_or_install
from tests.packaging.test_wheel import ROOT
from tests.patience import WAIT_S
from tests.ports import free_port
from tests.store_secrets import SECRETS
from tests.topologies import DURABLE, Node, programs

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(1200),
    pytest.mark.xdist_group("image"),  # it is built once
]

DEPLOY = ROOT / "examples" / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
SERVICES: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text("utf-8"))[
    "services"
]
LONG_S = 6 * WAIT_S
MACHINE = [Path("/etc/ssl/certs"), Path("/etc/pip.conf")]
"""What pip may need to reach its index from inside the builder."""

CONTAINER = """
image=$1 user=$2 root=/mnt/root; shift 2
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work "$root"
layers="lowerdir=$image,upperdir=/mnt/upper,workdir=/mnt/work"
mount -t overlay -o "$layers" overlay "$root"
while [ "$1" != -- ]; do
    mkdir -p "$(dirname "$root$2")"
    [ -d "$1" ] && mkdir -p "$root$2" || touch "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done; shift
mount -o remount,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o noexec tmpfs "$root/tmp"
mount --bind /dev "$root/dev"
exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups \
    --no-new-privs --bounding-set -all --inh-caps -all -- env -i "$@"
"""


@dataclass
class Image:
    """A built image: its root folder and what its configuration says."""

    root: Path
    config: dict[str, Any]

    @property
    def user_id(self) -> int:
        """Return the user id that processes of the image have."""
        users = (self.root / "etc/passwd").read_text("utf-8").splitlines()
        ids = {one.split(":")[0]: int(one.split(":")[2]) for one in users}
        return ids[self.config.get("User") or "root"]

    def volume(self, folder: Path, place: str) -> None:
        """Make a new volume, owned like its place in the image, as Docker does."""
        folder.mkdir()
        there = self.root / place.lstrip("/")
        if there.exists():
            os.chown(folder, there.stat().st_uid, there.stat().st_gid)

    def command(
        self, words: list[str], env: Mapping[str, str], mounts: Mapping[str, Path]
    ) -> list[str]:
        """Return the command that runs words in a container."""
        pairs = [word for place, here in mounts.items() for word in (str(here), place)]
        given = [*self.config["Env"], *(f"{name}={env[name]}" for name in env)]
        return [
            *("unshare", "--mount", "--pid", "--fork"),
            *("sh", "-ec", CONTAINER, "sh", str(self.root), str(self.user_id)),
            *(*pairs, "--", *given, *words),
        ]


@pytest.fixture(scope="module")
def image() -> Generator[Image]:
    """Build the image of the Dockerfile."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount the image")
    for program in ("podman", "debootstrap"):
        if find_or_install(partial(shutil.which, program), program) is None:
            pytest.skip(f"{program} is missing, and apt-get did not install it")
    folder = Path(tempfile.mkdtemp(prefix="keyturn-image-", dir="/var/tmp"))
    podman = ["podman", "--root", f"{folder}/store", "--runroot", f"{folder}/run"]
    try:
        _import_base(podman, folder / "base")
        mounts = [f"--volume={one}:{one}:ro" for one in MACHINE if one.exists()]
        _run(
            *podman, "build", "--format=docker", "--layers=false", "--isolation=chroot",
            "--network=host", "--pull=never", *mounts,
            "-f", DOCKERFILE, "-t", "keyturn", ROOT,
        )  # fmt: skip
        [found] = json.loads(_run(*podman, "image", "inspect", "keyturn"))
        root = Path(_run(*podman, "image", "mount", "keyturn").strip())
        yield Image(root, {**found["Config"], "Test": found["Healthcheck"]["Test"]})
    finally:
        _run(*podman, "image", "unmount", "--all")
        shutil.rmtree(folder)


def _import_base(podman: list[str], base: Path) -> None:
    """Make the base image of the Dockerfile, with the Python of Debian."""
    text = DOCKERFILE.read_text("utf-8")
    [name] = {*re.findall(r"^FROM (\S+)", text, re.MULTILINE)}
    packages = "--include=python3,python3-venv,ca-certificates"
    _run("debootstrap", "--variant=minbase", packages, "stable", base)
    (base / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    archive = base.with_suffix(".tar")
    _run("tar", "-C", base, "-cf", archive, ".")
    _run(*podman, "import", archive, f"docker.io/library/{name}")


def _run(*words: str | Path) -> str:
    ran = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-5000:]
    return ran.stdout


@dataclass
class Service:
    """A container of compose.yml, on ports and with addresses of the test."""

    name: str
    image: Image
    folder: Path
    addresses: dict[str, str]
    mounts: dict[str, Path] = field(default_factory=dict[str, Path])
    env: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        """Read the service's environment and make its volumes."""
        service = SERVICES[self.name]
        self.env = service["environment"] | self.addresses
        self.env["HEALTH_PORT"] = str(free_port())
        port = "KEYTURN_API_LISTEN" if self.name == "gateway" else "KEYTURN_SLACK_PORT"
        host = "127.0.0.1:" if self.name == "gateway" else ""
        self.env[port] = f"{host}{self.env['HEALTH_PORT']}"
        for volume in service["volumes"]:
            source, place, *_ = volume.split(":")
            here = DEPLOY / source if source[0] == "." else self.folder / source
            if not here.exists():
                self.image.volume(here, place)
            self.mounts[place] = here

    @property
    def url(self) -> str:
        """Return the address of the health endpoints."""
        return f"http://127.0.0.1:{self.env['HEALTH_PORT']}"

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        """Start words in a container; the log of the container gets their output."""
        command = self.image.command([*words], self.env, self.mounts)
        with (self.folder / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True
            )

    @asynccontextmanager
    async def started(self) -> AsyncGenerator[None]:
        """Run the service's command, ready inside the block and stopped after it."""
        process = self.run(*SERVICES[self.name]["command"])
        log = self.folder / f"{self.name}.log"

        async def is_ready() -> bool:
            assert process.poll() is None, log.read_text("utf-8")
            async with httpx.AsyncClient(trust_env=False) as client:
                try:
                    reply = await client.get(f"{self.url}/readyz")
                except httpx.TransportError:
                    return False
            return reply.is_success

        try:
            await eventually(is_ready, within_s=LONG_S)
            yield
            os.killpg(process.pid, signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, LONG_S) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def is_healthy(self) -> bool:
        """Return what the health check of the image finds."""
        kind, *words = self.image.config["Test"]
        assert kind == "CMD"
        return self.run(*words).wait() == 0


@pytest.fixture
async def services(
    image: Image, tmp_path: Path
) -> AsyncGenerator[Mapping[str, Service]]:
    """Give gateway and bot next to a store and a sandbox on this machine."""
    async with AsyncExitStack() as opened:
        node = Node(programs()["valkey"], tmp_path / "store", DURABLE)
        opened.callback(node.kill)
        node.start()
        sandbox = await opened.enter_async_context(Sandbox(port=0))
        settings = Settings.load(DEPLOY / "keyturn.yml", {})
        seed(sandbox.workspace, PolicyFile(settings.policy)())
        given = environment(sandbox, tmp_path, SlackMode.SOCKET, None)
        addresses = {
            "KEYTURN_REDIS_URL": node.url,
            "KEYTURN_SECRET": SECRETS[0].hex(),
            **{name: given[name] for name in ("SLACK_BOT_TOKEN", "SLACK_APP_TOKEN")},
            "KEYTURN_SLACK_API_URL": given["KEYTURN_SLACK_API_URL"],
        }
        yield {
            name: Service(name, image, tmp_path, addresses)
            for name in ("gateway", "bot")
        }


def test_the_image_has_another_user_than_root_and_a_command(image: Image) -> None:
    assert image.user_id != 0
    assert "keyturn" in _run(*image.command(image.config["Cmd"], {}, {}))


def test_a_container_cannot_write_to_its_root(image: Image) -> None:
    places = "/ /opt/keyturn /var/lib/keyturn /home/keyturn"
    words = f"for one in {places}; do test ! -w $one || echo $one; done"

    assert _run(*image.command(["sh", "-c", words], {}, {})) == ""


@pytest.mark.parametrize("name", ["gateway", "bot"])
def test_compose_starts_services_with_a_read_only_root_and_no_rights(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]  # noqa: S108 - a path in the container
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


async def test_gateway_and_bot_are_healthy(services: Mapping[str, Service]) -> None:
    gateway, bot = services["gateway"], services["bot"]
    assert not gateway.is_healthy()
    async with gateway.started(), bot.started():
        assert gateway.is_healthy()
        assert bot.is_healthy()
    assert not bot.is_healthy()
