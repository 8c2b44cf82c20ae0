"""The key of randomized labels stays private, and is never replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from celu.errors import ConfigError
from celu.privacy.secret_key import LABELS, SecretKey


def test_a_key_is_created_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "label.key"
    key = SecretKey.read(path, LABELS)
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(key.secret) == 32
    assert SecretKey.read(str(path), LABELS) == key
    assert [file.name for file in tmp_path.iterdir()] == ["label.key"]


def test_two_keys_differ_and_so_do_their_fingerprints(tmp_path: Path) -> None:
    one, two = (
        SecretKey.read(tmp_path / "one.key", LABELS),
        SecretKey.read(tmp_path / "two.key", LABELS),
    )
    assert one.secret != two.secret
    assert one.fingerprint != two.fingerprint


def test_neither_fingerprint_nor_text_shows_the_key() -> None:
    key = SecretKey.read(bytes(range(32)), LABELS)
    for text in (repr(key), str(key), key.fingerprint):
        assert key.secret.hex() not in text and repr(key.secret) not in text


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "label.key"
    SecretKey.read(path, LABELS)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="only its owner can read, got mode 0640; chmod 600"):
        SecretKey.read(path, LABELS)


@pytest.mark.parametrize("content", ["", "zz", "00ff", "é" * 32, "0" * 2000])
def test_a_damaged_key_is_refused_and_not_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "label.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"label\.key: expected a key"):
        SecretKey.read(path, LABELS)
    assert path.read_text() == content


def test_short_bytes_and_no_key_are_refused() -> None:
    with pytest.raises(ConfigError, match="label_key: expected a key of 16 to 64 bytes, got 4"):
        SecretKey.read(b"1234", LABELS)
    with pytest.raises(ConfigError, match="label_key: expected a key for"):
        SecretKey.read(None, LABELS)


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone/label\.key: expected a key"):
        SecretKey.read(tmp_path / "gone" / "label.key", LABELS)
