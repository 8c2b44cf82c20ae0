"""A result in a notebook: a table of its own, and curves."""

from __future__ import annotations

import sys

import pytest

import celu
from celu.errors import ConfigError
from federation import federation


@pytest.fixture(scope="module")
def result() -> celu.Result:
    fed = federation()
    return celu.simulate(fed.job, fed.guest, fed.hosts, link="lan")


def test_a_result_shows_its_metrics_as_html(result: celu.Result) -> None:
    text = result._repr_html_()
    assert f"<th>AUC</th><td>{result.metrics['auc']:.4f}</td>" in text
    assert f"<th>rounds</th><td>{result.rounds}</td>" in text and result.model.name in text


@pytest.mark.parametrize("over", ["round", "seconds", "bytes"])
def test_a_figure_has_the_points_of_each_metric(result: celu.Result, over: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra figures is absent")
    figure = result.plot("auc", "loss", over=over)
    for axes, name in zip(figure.axes, ("auc", "loss"), strict=True):
        x, y = axes.lines[0].get_data()
        assert list(y) == [e[name] for e in result.evaluations]
        if over == "bytes":
            assert x[-1] == pytest.approx(sum(result.traffic.values()) / 1e6, rel=0.2)
        else:
            assert list(x) == [e[over] for e in result.evaluations]
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_by_default_all_metrics_are_drawn(result: celu.Result) -> None:
    pytest.importorskip("matplotlib", reason="the extra figures is absent")
    assert len(result.plot().axes) == len(result.metrics)


def test_names_may_be_in_a_list_and_panels_are_wrapped(result: celu.Result) -> None:
    pytest.importorskip("matplotlib", reason="the extra figures is absent")
    assert [axes.get_ylabel() for axes in result.plot(["auc", "loss"]).axes] == ["AUC", "loss"]
    figure = result.plot(["auc", "loss"] * 3, "auc")
    assert len(figure.axes) == 7 and list(figure.get_size_inches()) == pytest.approx([13.5, 9.6])
    with pytest.raises(ConfigError, match=r"expected metrics of evaluations, .* got 3"):
        result.plot(3)  # type: ignore[arg-type]


def test_wrong_names_and_a_missing_package_are_named(
    result: celu.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"metrics: expected metrics of evaluations.* got r2"):
        result.plot("r2")
    with pytest.raises(ConfigError, match="over: expected one of round, seconds, bytes, got 'x'"):
        result.plot("auc", over="x")
    monkeypatch.delitem(sys.modules, "celu.display.figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install .celu\[figures\]"):
        result.plot("auc")
