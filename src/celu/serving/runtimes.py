"""Writes a party's modules for other runtimes: `torch.export` (.pt2) and ONNX (.onnx).

The number of rows is dynamic. The files hold the modules, their weights and no rows: the example
inputs are zeros. A .pt2 file contains a pickle, which may execute code when it is loaded. celu
writes such files and never loads one.
"""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from celu.errors import ConfigError, ModelError
from celu.label_map import LabelMap
from celu.models.user_code import name_of
from celu.serving.model import Model
from celu.serving.model_folder import ModelFacts
from celu.traceback_lines import last_lines

Format = Literal["pt2", "onnx"]
FORMATS: tuple[Format, ...] = get_args(Format)
_ONNX_PACKAGES = ("onnx", "onnxscript")
_EXAMPLE_ROWS, _CHECKED_ROWS = 2, 5  # torch.export treats 0 and 1 rows as constants
_TOLERANCE = 1e-5
_MAX_REASON = 500


def check_formats(formats: Sequence[str]) -> list[Format]:
    """The formats by name, each once; raises ConfigError for another name or a missing package."""
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"format: expected one or more of {', '.join(FORMATS)}, got {name!r}")
    missing = [name for name in _ONNX_PACKAGES if "onnx" in formats and find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"format onnx needs the package {' and '.join(missing)}; "
            'install it with: pip install "celu[onnx]"'
        )
    return [name for name in FORMATS if name in formats]


def write_modules(model: Model, folder: Path, formats: Sequence[Format]) -> list[str]:
    """Write a model's modules into a folder; returns the names of the files.

    Raises ModelError for a module that cannot be exported, such as one whose control flow depends
    on its input, and ConfigError for a file that cannot be written.
    """
    written = []
    with _quiet():
        for example in _examples(model):
            what = f"{model.facts.party}: the {example.name} model"
            program = _capture(example, what)
            _check(program, example, what)
            for format_ in formats:
                file = f"{example.name}.{format_}"
                write = _write_pt2 if format_ == "pt2" else _write_onnx
                try:
                    write(program, example, folder / file)
                except OSError as error:
                    raise ConfigError(
                        f"{folder / file}: cannot be written: {error.strerror}"
                    ) from error
                except Exception as error:
                    raise ModelError(
                        f"{what} cannot be exported as {format_}: {_reason(error)}"
                    ) from error
                written += [file, *([f"{file}.data"] if (folder / f"{file}.data").exists() else [])]
    return written


@dataclass(frozen=True)
class _Example:
    """A module, and how to call it: `inputs(rows)` are arguments by name, in order.

    `parameters` are the names of its arguments in a .pt2 file: the inputs of the bottom by keyword,
    each Z of the top by position. `inputs` have the names in an .onnx file.
    """

    name: str
    module: nn.Module
    inputs: Callable[[int], dict[str, Tensor]]
    is_called_by_keyword: bool
    output: str

    def arguments(self, rows: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Arguments for `parameters`."""
        inputs = self.inputs(rows)
        return ((), inputs) if self.is_called_by_keyword else (tuple(inputs.values()), {})

    @property
    def parameters(self) -> list[str]:
        """Python identifiers; a party's name is none."""
        names = list(self.inputs(1))
        return names if self.is_called_by_keyword else [f"z_{i}" for i in range(len(names))]


def _examples(model: Model) -> Iterator[_Example]:
    if model.bottom is not None:
        yield _Example("bottom", model.bottom, lambda n: _rows(model.facts, n), True, "z")
    if model.top is not None:
        widths = dict(model.facts.hosts)
        if model.bottom is not None:
            what = f"{model.facts.party}: the bottom model"
            z_BD = _call(model.bottom, (), _rows(model.facts, _EXAMPLE_ROWS), what)
            widths = {model.facts.guest: int(z_BD.shape[1]), **widths}

        def zs(rows: int) -> dict[str, Tensor]:
            random = torch.Generator().manual_seed(0)
            return {f"z_{n}": torch.randn(rows, w, generator=random) for n, w in widths.items()}

        top = model.top
        if model.facts.label_map.is_scaled:
            top = _InOwnUnits(top, model.facts.label_map).eval()
        yield _Example("top", top, zs, False, "output")


class _InOwnUnits(nn.Module):
    """A top whose output is in the units of the labels."""

    def __init__(self, top: nn.Module, label_map: LabelMap) -> None:
        super().__init__()
        self.top, self._label_map = top, label_map

    def forward(self, *zs: Tensor) -> Tensor:
        output: Tensor = self.top(*zs)
        return output * self._label_map.deviation + self._label_map.mean


def _rows(facts: ModelFacts, rows: int) -> dict[str, Tensor]:
    """Synthetic rows: numbers are random, codes within their sizes, other integers 0."""
    random = torch.Generator().manual_seed(0)
    inputs = {}
    for name, spec in facts.input_specs.items():
        values = spec.zeros(rows)
        if name in facts.sizes:
            sizes = torch.tensor(facts.sizes[name]).reshape(-1, *[1] * (values.ndim - 2))
            codes = (torch.rand(values.shape, generator=random) * sizes).long()
            inputs[name] = codes.minimum(sizes - 1)  # the product may be rounded up
        elif spec.dtype == "float32":
            inputs[name] = torch.randn(values.shape, generator=random)
        else:
            inputs[name] = values
    return inputs


class _Signature(nn.Module):
    """A module with named arguments: `torch.export` handles no `**inputs` with dynamic shapes."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module = module

        def forward(*args: Tensor, **kwargs: Tensor) -> Any:
            return module(*args, **kwargs)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        forward.__signature__ = signature  # type: ignore[attr-defined]
        self.forward = forward


def _capture(example: _Example, what: str) -> ExportedProgram:
    """The module as a graph, for any number of rows; raises ModelError."""
    args, kwargs = example.arguments(_EXAMPLE_ROWS)
    args, kwargs = (
        tuple(map(torch.zeros_like, args)),
        {name: torch.zeros_like(tensor) for name, tensor in kwargs.items()},
    )
    batch = torch.export.Dim("batch")
    try:
        # On failure torch also prints a graph, which helps its own developers.
        with torch.no_grad(), redirect_stderr(io.StringIO()):
            program = torch.export.export(
                _Signature(example.module, example.parameters).eval(),
                args,
                kwargs,
                dynamic_shapes={name: {0: batch} for name in example.parameters},
                strict=False,
            )
    except Exception as error:
        lines = "".join(f"\n  {line}" for line in last_lines(error))
        raise ModelError(
            f"{what} cannot be exported: {_reason(error)}. Its code must be the same for all "
            "inputs and numbers of rows; export without --format to use it in celu"
            f"\n  it is {name_of(example.module)}{lines}"
        ) from error
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # names files of this machine
    return program


def _check(program: ExportedProgram, example: _Example, what: str) -> None:
    """Raise ModelError unless the graph and the module return the same for synthetic rows."""
    args, kwargs = example.arguments(_CHECKED_ROWS)
    expected = _call(example.module, args, kwargs, what)
    got = _call(program.module(), args, kwargs, what)
    try:
        torch.testing.assert_close(got, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
    except AssertionError as error:
        raise ModelError(
            f"{what} cannot be exported: its graph returns other values: {_reason(error)}"
        ) from error


def _call(
    module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], what: str
) -> Tensor:
    """A module's output; raises ModelError."""
    try:
        with torch.no_grad():
            output: Tensor = module(*args, **kwargs)
    except Exception as error:
        where = "; ".join([_reason(error), *last_lines(error)])
        raise ModelError(
            f"{what}, {name_of(module)}, cannot be exported: it fails for synthetic rows: {where}"
        ) from error
    return output


def _write_pt2(program: ExportedProgram, example: _Example, path: Path) -> None:
    del example
    torch.export.save(program, path)


def _write_onnx(program: ExportedProgram, example: _Example, path: Path) -> None:
    """One file, unless the weights exceed 2 GB: then a second one, .onnx.data, has them."""
    from onnx import checker

    inputs = list(example.inputs(1))
    output = example.output + "_" * (example.output in inputs)  # names are unique in a graph
    converted = torch.onnx.export(
        program, dynamo=True, input_names=inputs, output_names=[output], verbose=False
    )
    assert converted is not None
    _name_rows(converted.model.graph)
    converted.save(path)
    checker.check_model(path)


def _name_rows(graph: Any) -> None:
    """Name the dynamic dimension; torch numbers its symbols."""
    from onnxscript import ir

    for value in (*graph.inputs, *graph.outputs):
        value.shape = ir.Shape([dim if isinstance(dim, int) else "batch" for dim in value.shape])


def _reason(error: BaseException) -> str:
    """The first lines of the error that caused the others."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join([f"{type(error).__name__}:", *lines[:2]])[:_MAX_REASON]


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch reports about its own parts while it exports."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.fx", "torch.export")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
