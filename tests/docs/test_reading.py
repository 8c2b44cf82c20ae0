"""How the tests read and run pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.blocks import read
from docs.outputs import matches
from docs.shell import Reader

PAGE = """
# Page

Some words.

```sh
echo one
```

```text
one
```

## 2. Step

```toml file=a.toml
x = 1
```

The tests do not run this, because it is long.

```sh not-run
sleep 1000
```

```text sends
a -> b
```
"""


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text)
    return path


def test_the_kinds_of_blocks_are_recognized(tmp_path: Path) -> None:
    run, output, file, not_run, sends = read(page(tmp_path, PAGE))
    assert run.is_run and run.step == 0 and run.line == 6
    assert output.is_output
    assert file.file == "a.toml" and file.step == 2
    assert not_run.is_not_run and not_run.above.startswith("The tests do not")
    assert sends.sends == [("a", "b")]
    assert not any(block.problems() for block in (run, output, file, not_run, sends))


@pytest.mark.parametrize(
    "text",
    ["```\ncelu run\n```", "```text\n$ ls\n```", "```sh maybe\nls\n```", "```python\ncelu x\n```"],
)
def test_commands_in_a_block_that_is_not_run_are_reported(text: str, tmp_path: Path) -> None:
    (block,) = read(page(tmp_path, text))
    assert len(block.problems()) == 1


@pytest.mark.parametrize(
    ("shown", "printed", "equal"),
    [
        ("one\ntwo", "one\ntwo\n", True),
        ("one", "one\ntwo\n", False),
        ("one\n...", "one\ntwo\nthree", True),
        ("...\nthree", "one\ntwo\nthree", True),
        ("...\ntwo", "one\ntwo\nthree", False),
        ("auc 0.7... t", "auc   0.7431 t", True),
        ("auc 0.8... t", "auc 0.7431 t", False),
        ("a.c", "abc", False),
    ],
)
def test_output_is_compared_line_by_line(shown: str, printed: str, equal: bool) -> None:
    assert matches(shown, printed) is equal


def test_a_block_that_fails_or_prints_something_else_is_reported(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "reader")
    reader.follow(read(page(tmp_path, PAGE))[:3])
    assert (reader.folder / "a.toml").read_text() == "x = 1\n"
    for broken in (PAGE.replace("echo one", "echo two"), PAGE.replace("echo one", "false | true")):
        with pytest.raises(AssertionError, match=r"page\.md"):
            reader.follow(read(page(tmp_path, broken))[:3])


def test_only_hosts_and_ports_are_replaced(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "reader", {"7443": "20001"})
    assert (
        reader.localize("a.example.com:7443 17443 example.org")
        == "localhost:20001 17443 example.org"
    )
