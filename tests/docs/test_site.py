"""The site has no dead link, every page is in the navigation, and the reference is complete."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import celu
from celu import errors
from cli.test_commands import COMMANDS
from docs.blocks import ROOT
from handbook.reference import PARTS, python_names, regenerate, settings
from handbook.site import NAVIGATION, build


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "site"
    report = build(ROOT, out)
    assert report.dead == []
    assert report.num_pages > 20 and report.num_links > 50
    return out


class Links(HTMLParser):
    """The targets that a page links to, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.to: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.to.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def test_every_link_of_the_site_leads_to_a_file_and_anchor(site: Path) -> None:
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    for path, links in pages.items():
        for link in links.to:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme in ("http", "https", "mailto", "data"), link[:100]
                continue
            target = (path.parent / parts.path).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link}"
            assert not parts.fragment or parts.fragment in pages[target].anchors, link


def test_the_site_loads_nothing_from_the_network(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<(script|link|iframe)\b|@import|url\(|src=.https?:", text), path


def test_every_page_of_docs_is_in_the_navigation() -> None:
    docs = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert docs <= {name for name, _ in NAVIGATION}


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("nowhere.md", "no such file"),
        ("../../etc/passwd", "no such file"),
        ("data.md#no-such-heading", "no heading"),
        ("#nor-this", "no heading"),
    ],
)
def test_a_dead_link_is_reported(link: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "data.md", tmp_path / "docs")
    (tmp_path / "docs" / "page.md").write_text(f"# Page\n\nSee [this]({link}).\n")
    dead = [line for line in build(tmp_path, tmp_path / "site").dead if "page.md" in line]
    assert len(dead) == 1 and link in dead[0] and problem in dead[0]


def test_the_committed_reference_is_current() -> None:
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert text == regenerate(text), "run scripts/docs, and commit docs/reference.md"
    assert text.count("<!-- generated: ") == len(PARTS)


def test_the_reference_has_every_command_and_public_name(site: Path) -> None:
    text = (site / "reference.html").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert re.search(rf"<h3[^>]*>celu {command}\b", text), command
    for name in set(celu.__all__) - {"__version__"}:
        assert f">celu.{name}</h3>" in text, name
    for key in (
        *("method.R", "peers.NAME.gateway.ca", "categories.NAME.min_count"),
        *("asks", "low", "high", "step", "log", "embedding_dim", "pooling"),
    ):
        assert f"<code>{key}</code>" in text, key


def test_every_setting_in_the_reference_has_a_meaning() -> None:
    for part in (settings, python_names):
        for line in part():
            if line.startswith("| `") and line.count(" | ") == 3:
                assert re.match(r"\| `[^`]+` \| [^|]{9,}\. \|", line), line


def test_the_operations_page_covers_every_error_and_exit_code() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    for name, kind in vars(errors).items():
        if isinstance(kind, type):
            assert re.search(rf"^\| {kind.exit_code} \| [^|]*`{name}`", text, re.MULTILINE), name
    for code in (0, 2, 130):
        assert f"\n| {code} | " in text
