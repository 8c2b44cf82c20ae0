"""Parties on several machines: torchruns with addresses of their own, on this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from ranks_parties import Parties, wait


def test_two_torchruns_train_together_with_the_bits_of_two_slices(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    slices = parties.train("slices", {"slices": 2}, {"slices": 2})
    running = [
        process
        for role in ("guest", "host")
        for process in parties.start_machines(role, "machines", ["", ""], shard=True)
    ]
    codes = [wait(process) for process in running]
    logs = [parties.log(role, "machines").read_text(encoding="utf-8") for role in ("guest", "host")]
    assert codes == [0] * 4, "\n".join(logs)
    found = parties.weights("machines")
    assert found.keys() == slices.keys()
    assert [name for name in found if not torch.equal(found[name], slices[name])] == []
    for role in ("guest", "host"):
        assert list((tmp_path / role / "machines" / "checkpoints").glob("round-*/shard-1-of-2*"))


@pytest.mark.parametrize("has_own_key", [False, True], ids=["no key", "another key"])
def test_a_machine_with_another_key_of_labels_is_refused_before_the_first_batch(
    tmp_path: Path, has_own_key: bool
) -> None:
    parties = Parties(tmp_path, privacy="label_epsilon = 2.0")
    shutil.copytree(tmp_path / "guest", tmp_path / "guest-2")
    first, second = tmp_path / "guest" / "label.key", tmp_path / "guest-2" / "label.key"
    if has_own_key:
        second.write_text("ab" * 32)
        second.chmod(0o600)
    running = parties.start_machines("guest", "refused", ["", "-2"], restarts=0)
    assert all(wait(process) for process in running)
    log = parties.log("guest", "refused").read_text(encoding="utf-8")
    assert "label.key: expected the key of the first rank at all ranks" in log
    log = parties.log("guest-2", "refused").read_text(encoding="utf-8")
    got = "another" if has_own_key else "none"
    assert f"expected the key of the first rank at rank 1, got {got}; copy the file" in log
    assert first.exists() and second.exists() == has_own_key
    shutil.copy2(first, second)
    again = parties.start_machines("guest", "again", ["", "-2"], restarts=0)
    host = parties.start("host", "again")
    shown = parties.log("guest-2", "again").read_text(encoding="utf-8")
    assert [wait(process) for process in (*again, host)] == [0, 0, 0], shown
