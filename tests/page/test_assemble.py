"""Pages are self-contained, and data cannot inject HTML or scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import celu
from celu.page.assemble import asset, linked_page, script_safe_json, standalone_page

HOSTILE = "</script><script>alert(1)</script><!-- & \u2028 '\""


def test_data_cannot_close_its_element_and_round_trips() -> None:
    text = script_safe_json({HOSTILE: [HOSTILE]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {HOSTILE: [HOSTILE]}


def test_numbers_that_json_lacks_become_null() -> None:
    text = script_safe_json([float("nan"), (float("inf"), 1.5), {"a": float("-inf")}])
    assert json.loads(text) == [None, [None, 1.5], {"a": None}]


def test_a_standalone_page_loads_nothing_and_escapes_its_title() -> None:
    text = standalone_page(HOSTILE, "<main></main>", {}, "")
    assert HOSTILE not in text and "<title>&lt;/script&gt;" in text
    assert "default-src 'none'" in text and "connect-src" not in text
    for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", text):
        assert "src=" not in tag and "http" not in tag, tag


def test_a_linked_page_links_only_to_its_server_and_has_no_inline_script() -> None:
    text = linked_page(HOSTILE, "<main></main>", "/assets", "own.css", "own.js")
    assert HOSTILE not in text and "<style" not in text and " style=" not in text
    tags = re.findall(r"<(?:script|link)\b[^>]*>(?:</script>)?", text)
    assert len(tags) == text.count("<script") + text.count("<link") == 10
    assert all(re.search(r'(src|href)="/assets/[\w/.]+">', tag) for tag in tags), tags
    assert all(tag.endswith("></script>") for tag in tags if tag.startswith("<script"))


def test_the_vendored_library_has_its_licence_and_version() -> None:
    folder = Path(celu.__file__).parent / "page" / "vendor"
    assert "Permission is hereby granted" in (folder / "LICENSE").read_text()
    version = re.search(r"\(v([\d.]+)\)", asset("celu.page", "vendor/uplot.js"))
    assert version and version[1] in (folder / "README.md").read_text()


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_series_and_text_have_enough_contrast(scheme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", asset("celu.page", "style.css"), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))

    def contrast(a: str, b: str) -> float:
        low, high = sorted((luminance(colours[a]), luminance(colours[b])))
        return (high + 0.05) / (low + 0.05)

    for background in ("paper", "sheet"):
        for name in ("ink", "faint", "good", "bad"):
            assert contrast(name, background) >= 4.5, name
        for name in [n for n in colours if n.startswith("series-")]:
            assert contrast(name, background) >= 3, name
    assert contrast("ink", "highlight") >= 4.5
