"""Full disks: the party reports it, its peer stops as well, and with space again both resume."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from celu.checkpoint.generations import FOLDER
from faults.parties import Federation, Party
from slow.faults.conftest import Federate

# Above the events of a hundred rounds, and below the tensors of a checkpoint.
BELOW_TENSORS = 64_000


def limit_files(party: Party, num_bytes: int) -> None:
    """Like a full disk, without root: writing beyond `num_bytes` fails from now on."""
    assert party.is_running and party.pid is not None
    resource.prlimit(party.pid, resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def assert_nothing_is_half_written(party: Party) -> None:
    assert not list((party.run / FOLDER).glob(".*"))
    assert not list(party.run.glob("*.partial"))


def assert_printed(party: Party, *words: str) -> None:
    output = " ".join(party.output().split())
    assert "Traceback" not in output, output
    for word in words:
        assert word in output, output


@pytest.mark.parametrize("file", ["checkpoints", "events.jsonl"])
@pytest.mark.parametrize("full", ["guest", "host"])
def test_a_party_whose_file_cannot_grow_stops_with_its_peer_and_both_resume(
    federate: Federate, baseline: Federation, full: str, file: str
) -> None:
    federation = federate()
    federation.start()
    federation.wait_for_checkpoint(20)
    victim = federation.parties[full]
    events = (victim.run / "events.jsonl").stat().st_size
    assert events < BELOW_TENSORS // 2
    limit_files(victim, BELOW_TENSORS if file == "checkpoints" else events)
    federation.wait(*((14, 12) if full == "guest" else (12, 14)))
    for name, party in federation.parties.items():
        error = "CheckpointError" if name == full else "PeerFailed"
        assert_printed(party, error)
        assert_nothing_is_half_written(party)
    assert_printed(victim, file, "File too large", "start again")
    federation.start()
    federation.wait()
    federation.assert_same_bits(baseline)
    assert all(p.events("resumed")[0]["round"] >= 20 for p in federation.parties.values())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "celu-faults", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(file: Path) -> None:
    """Use up the space of a disk, while others write to it as well."""
    with file.open("wb", buffering=0) as left, pytest.raises(OSError, match="No space left"):
        while True:
            left.write(bytes(4096))


def test_a_disk_that_fills_up_ends_the_run_which_resumes_with_space_again(
    federate: Federate, baseline: Federation, small_disk: Path
) -> None:
    federation = federate()
    for name, party in federation.parties.items():
        (small_disk / name).mkdir()
        party.run.symlink_to(small_disk / name)
    federation.start()
    federation.wait_for_rounds(30)
    fill(small_disk / "other")
    for party in federation.parties.values():
        assert party.wait() in (12, 14)
    assert 14 in (federation.guest.codes + federation.host.codes)
    for party in federation.parties.values():
        assert_printed(party)
        assert_nothing_is_half_written(party)
        if party.codes == [14]:
            assert_printed(party, "CheckpointError", "No space left on device", "start again")
    federation.start()  # while the disk is still full: refused without losing anything
    refused = {party.wait() for party in federation.parties.values()}
    assert 14 in refused and refused <= {12, 14}  # 12: the other party failed first
    for party in federation.parties.values():
        assert_printed(party)
    (small_disk / "other").unlink()
    federation.start()
    federation.wait()
    federation.assert_same_bits(baseline)
