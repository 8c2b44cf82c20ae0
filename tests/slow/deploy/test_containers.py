"""deploy/Containerfile builds, and two companies train in containers with deploy/compose.yaml.

No image can be downloaded here, so the base image is this machine: /usr and Python are mounted, at
build time and in the containers, with the packages that the tests run with. What pip would install
is there already, so building needs no network; all else is as a user has it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from celu.config.templates import CRITEO, write_settings
from celu.data.clicks import write_clicks
from celu.testing import make_keys, read_events
from docs.blocks import read

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "deployment.md"
BUILD_S, TRAIN_S = 900.0, 900.0
USER = 10001  # of the image
LIMITS = {"nofile": 4096, "nproc": 4096}  # the default is more than a nested machine has
PARTIES = {"guest": "bank", "host": "shop"}


class Podman(NamedTuple):
    """podman with a storage of its own, and the machine as a base image."""

    env: dict[str, str]
    volumes: list[str]
    folder: Path

    def run(self, *command: str, timeout_s: float = BUILD_S) -> subprocess.CompletedProcess[str]:
        """Run a command of podman or podman-compose."""
        return subprocess.run(
            command,
            env=self.env,
            cwd=ROOT,
            timeout=timeout_s,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )

    @property
    def mounts(self) -> list[str]:
        return [option for volume in self.volumes for option in ("--volume", volume)]


def machine(folder: Path) -> tuple[Path, list[str]]:
    """The root folder of this machine as an image without content, and what to mount."""
    base = Path(sys.base_prefix)
    packages = folder / "packages"
    packages.mkdir()
    ours = Path(sysconfig.get_path("purelib"))
    for path in ours.iterdir():  # but celu: the image gets its own
        if not path.name.startswith(("celu", "__editable__", "_celu", "_editable")):
            (packages / path.name).symlink_to(Path("/packages") / path.name)
    site = sysconfig.get_path("purelib", vars={"base": str(base)})
    volumes = ["/usr:/usr:ro", f"{base}:{base}:ro", f"{ours}:/packages:ro", f"{packages}:{site}:ro"]
    root = folder / "root"
    for name in ("usr", "etc", "proc", "sys", "dev", "run", "var", "root", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(Path("usr") / name)
    shutil.copy("/etc/ld.so.cache", root / "etc")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    archive = folder / "base.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, ".")
    return archive, [v for v in dict.fromkeys(volumes) if not v.startswith("/usr:/usr:ro/")]


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    if os.getuid() != 0:
        pytest.skip("this test stores images in a folder of its own, which needs root")
    folder = tmp_path_factory.mktemp("podman")
    archive, volumes = machine(folder)
    limits = ", ".join(f'"{name}={limit}:{limit}"' for name, limit in LIMITS.items())
    runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
    (folder / "containers.conf").write_text(
        f'[containers]\ndefault_ulimits = [{limits}]\n[engine]\ncgroup_manager = "cgroupfs"\n'
        f'events_logger = "file"\n{runtime}'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n'
    )
    env = {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    made = Podman(env, volumes, folder)
    path = f"PATH={sys.base_prefix}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    tried = made.run("podman", "import", "--change", f"ENV {path}", str(archive), "machine")
    if tried.returncode == 0:
        tried = made.run("podman", "run", "--rm", *made.mounts, "machine", "python3", "--version")
    try:
        if tried.returncode != 0:
            pytest.skip(f"podman cannot run a container here: {tried.stdout[-500:]}")
        yield made
    finally:
        made.run("podman", "system", "reset", "--force")


def command(start: str) -> list[str]:
    """The command of the docs that starts with these words."""
    (found,) = [block.text for block in read(PAGE) if block.by and block.text.startswith(start)]
    return shlex.split(found)


@pytest.fixture(scope="module")
def image(podman: Podman) -> str:
    podman_, build, *options = command("podman build")
    options = ["BASE=machine" if option.startswith("BASE=") else option for option in options]
    built = podman.run(podman_, build, *podman.mounts, *options)
    assert built.returncode == 0, built.stdout[-3000:]
    return "localhost/celu"


def test_the_image_has_celu_and_neither_root_nor_an_installer(podman: Podman, image: str) -> None:
    run = ("podman", "run", "--rm", "--read-only", *podman.mounts)
    shown = podman.run(*run, image, "version")
    assert shown.returncode == 0 and "celu" in shown.stdout, shown.stdout
    script = (
        "import celu, os, pathlib, sys;"
        "print(os.getuid(), celu.__file__, pathlib.Path(sys.prefix, 'bin/pip').exists())"
    )
    shown = podman.run(*run, "--entrypoint", "python3", image, "-c", script)
    uid, file, has_pip = shown.stdout.split()
    assert (int(uid), has_pip) == (USER, "False") and file.startswith("/opt/celu/"), shown.stdout


def companies(folder: Path) -> None:
    """The folders bank and shop, as compose.yaml expects them."""
    write_clicks(folder, "criteo", rows=3000, seed=1, max_codes=100)
    write_settings(folder, CRITEO, local=False)
    make_keys(folder, list(PARTIES))
    job = (
        "batch_size = 256\nrounds = 8\n[hosts.host]\nz_width = 8\n"
        "[evaluation]\nevery = 4\nrows = 200\n"
    )
    for name, other in (("guest", "host"), ("host", "guest")):
        party = folder / name
        shutil.copy(folder / other / "certs" / "ca.pem", party / "certs" / "peer.pem")
        text = (party / "party.toml").read_text()
        text = text.replace("localhost:7443", "bank:7443")
        text = text.replace('run_dir = "run"', 'run_dir = "out/run"\nthreads = 1')
        text = text.replace(f"../{other}/certs/ca.pem", "certs/peer.pem")
        (party / "party.toml").write_text(text)
        (party / "job.toml").write_text(job)
        (party / "out").mkdir()
    for name, company in PARTIES.items():
        (folder / name).rename(folder / company)
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, USER, USER)


def test_two_companies_train_in_containers(podman: Podman, image: str, tmp_path: Path) -> None:
    if shutil.which("podman-compose") is None:
        pytest.skip("podman-compose is not installed")
    podman.run("podman", "network", "create", "probe")
    if '"dns_enabled": true' not in podman.run("podman", "network", "inspect", "probe").stdout:
        pytest.skip("podman's networks have no DNS: aardvark-dns or dnsname is not installed")
    companies(tmp_path)
    override = tmp_path / "machine.yaml"
    service = {"volumes": podman.volumes, "ulimits": LIMITS}
    override.write_text(json.dumps({"services": dict.fromkeys(PARTIES.values(), service)}))
    for name in PARTIES.values():
        podman.env[f"CELU_{name.upper()}"] = str(tmp_path / name)
    podman.env.update(CELU_IMAGE=image, CELU_MEMORY="2g")
    *compose, up = command("podman-compose")
    compose += ["--file", str(override)]
    try:
        ran = podman.run(*compose, up, timeout_s=TRAIN_S)
    finally:
        podman.run(*compose, "down")
    for name in PARTIES.values():
        run = tmp_path / name / "out" / "run"
        assert run.is_dir(), ran.stdout[-5000:]
        summary = json.loads((run / "summary.json").read_text())
        assert (summary["status"], summary["rounds"]) == ("done", 8), ran.stdout[-5000:]
        assert (run / "weights.safetensors").stat().st_uid == USER
        (connected,) = [e for e in read_events(run) if e["event"] == "connected"]
        assert connected["secure"]
