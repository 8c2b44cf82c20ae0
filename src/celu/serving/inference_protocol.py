"""The Open Inference Protocol, version 2: requests as Python values, answers as JSON.

https://github.com/kserve/open-inference-protocol. Tensors are JSON only. A request has an input
`id` (BYTES, [n]) and, if the client sends the guest's features itself, one input for each raw
column: FP64 for numbers, BYTES for categories, dates and bags, as text of a raw file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType
from typing import Any

from pydantic_core import from_json

from celu.config.schema import ClassLabel
from celu.errors import RequestError

ID = "id"
OUTPUTS = ("score", "degraded", "missing")
PLATFORM = "celu"
_MAX_ID = 65_536  # characters of one id, and of the request's own
_TEXT: frozenset[type] = frozenset({str})
_INTEGER: frozenset[type] = frozenset({int})  # and not bool, which is a subclass
_NUMBER: frozenset[type] = frozenset({int, float, NoneType})
_NUMBERS = (*(f"FP{bits}" for bits in (16, 32, 64)), *(f"INT{bits}" for bits in (8, 16, 32, 64)))
# The types of the values of a datatype, as JSON has them.
_TYPES: dict[str, frozenset[type]] = {
    "BYTES": frozenset({str, NoneType}),
    "BOOL": frozenset({bool, NoneType}),
    **dict.fromkeys(_NUMBERS, _NUMBER),
    **{f"U{name}": _NUMBER for name in _NUMBERS if name.startswith("INT")},
}
_encode_json = json.JSONEncoder(allow_nan=False).encode
_SCORES = "\0"  # the place of the scores in a template; no name contains it
_SCORES_JSON = _encode_json(_SCORES)
_MAX_TEMPLATES = 64


@dataclass(slots=True)  # not frozen, here and below: that takes three times as long to create
class InferRequest:
    """The rows of a request: ids, and values by raw column if the client sent any."""

    ids: list[str]
    values: dict[str, list[Any]] | None = None
    request_id: str | None = None
    outputs: tuple[str, ...] = OUTPUTS


@dataclass(slots=True)
class Answer:
    """Scores, [n] or [n][K], and which hosts gave no Z for each row."""

    model: str
    scores: list[Any]
    missing: list[list[str]]
    classes: tuple[ClassLabel, ...] | None = None  # if they are other than codes


def parse_request(body: bytes, max_rows: int) -> InferRequest:
    """Parse and check a request; raises RequestError."""
    try:
        content = from_json(body)  # three times as fast as json.loads
    except ValueError:
        raise RequestError("expected a request in JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), list):
        raise RequestError("expected a JSON object with a list of inputs")
    inputs: dict[str, list[Any]] = {}
    for tensor in content["inputs"]:
        name, values = _parse_input(tensor, max_rows)
        if name in inputs:
            raise RequestError("inputs: expected each name once")
        inputs[name] = values
    ids = inputs.pop(ID, None)
    if ids is None:
        raise RequestError("inputs: expected an input named id")
    if not _TEXT.issuperset(map(type, ids)) or max(map(len, ids)) > _MAX_ID:
        raise RequestError("inputs.id: expected datatype BYTES, text")
    if inputs and any(len(values) != len(ids) for values in inputs.values()):
        raise RequestError("inputs: expected as many rows in each as in id")
    request_id = content.get("id")
    if request_id is not None and not (isinstance(request_id, str) and len(request_id) <= _MAX_ID):
        raise RequestError("id: expected text")
    return InferRequest(ids, inputs or None, request_id, _parse_outputs(content.get("outputs")))


def _parse_input(tensor: Any, max_rows: int) -> tuple[str, list[Any]]:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise RequestError("inputs: expected objects with a name")
    name, shape, data = tensor["name"], tensor.get("shape"), tensor.get("data")
    if (
        not isinstance(shape, list)
        or not _INTEGER.issuperset(map(type, shape))
        or (len(shape) != 1 and (len(shape) != 2 or shape[1] != 1))
    ):
        raise _input_error(name, "expected shape [n] or [n, 1]")
    if shape[0] > max_rows:
        raise _input_error(name, f"expected at most {max_rows} rows, got {shape[0]}", status=413)
    if not isinstance(data, list) or len(data) != shape[0] or not data:
        raise _input_error(name, "expected data with as many rows as the shape says")
    if isinstance(data[0], list) and all(isinstance(row, list) and len(row) == 1 for row in data):
        data = [row[0] for row in data]
    datatype = tensor.get("datatype")
    types = _TYPES.get(datatype) if isinstance(datatype, str) else None
    if types is None or not types.issuperset(map(type, data)):
        raise _input_error(name, "expected data of its datatype, BYTES, BOOL or a number")
    return name, data


def _input_error(name: str, problem: str, status: int = 400) -> RequestError:
    return RequestError(f"inputs.{name[:100]!r}: {problem}", status=status)


def _parse_outputs(outputs: Any) -> tuple[str, ...]:
    if outputs is None:
        return OUTPUTS
    if not isinstance(outputs, list) or not all(isinstance(o, dict) for o in outputs):
        raise RequestError("outputs: expected a list of objects")
    names = tuple(output.get("name") for output in outputs)
    if not names:
        return OUTPUTS
    if not all(name in OUTPUTS for name in names):
        raise RequestError(f"outputs: expected names among {', '.join(OUTPUTS)}")
    return names


def render_answer(name: str, request: InferRequest, answer: Answer) -> bytes:
    """The JSON of an answer, whose scores are finite."""
    model, missing, scores = answer.model, answer.missing, answer.scores
    num_classes = len(scores[0]) if scores and isinstance(scores[0], list) else None
    if any(missing) or request.outputs != OUTPUTS:
        text = _render(name, model, num_classes, missing, request.outputs, answer.classes)
    else:
        text = _template(name, model, num_classes, len(missing), answer.classes)
    if num_classes is not None:
        scores = [x for row in scores for x in row]
    text = text.replace(_SCORES_JSON, str(scores))  # Python writes floats as JSON does
    if request.request_id is not None:
        text = f'{text[:-1]}, "id": {_encode_json(request.request_id)}}}'
    return text.encode()


@lru_cache(_MAX_TEMPLATES)
def _template(
    name: str,
    model: str,
    num_classes: int | None,
    num_rows: int,
    classes: tuple[ClassLabel, ...] | None,
) -> str:
    """An answer for which no host is missing, without its scores."""
    return _render(name, model, num_classes, [[]] * num_rows, OUTPUTS, classes)


def _render(
    name: str,
    model: str,
    num_classes: int | None,
    missing: Sequence[Sequence[str]],
    outputs: Sequence[str],
    classes: Sequence[ClassLabel] | None,
) -> str:
    """The JSON of an answer with _SCORES in the place of its scores."""
    shape = [len(missing)]
    degraded = [bool(hosts) for hosts in missing]
    names = [",".join(hosts) for hosts in missing]
    score_shape = shape if num_classes is None else [*shape, num_classes]
    tensors: dict[str, dict[str, Any]] = {
        "score": {"datatype": "FP64", "shape": score_shape, "data": _SCORES},
        "degraded": {"datatype": "BOOL", "shape": shape, "data": degraded},
        "missing": {"datatype": "BYTES", "shape": shape, "data": names},
    }
    content: dict[str, Any] = {
        "model_name": name,
        "model_version": model,
        "parameters": {"model": model, **({"classes": _json_names(classes)} if classes else {})},
        "outputs": [{"name": output, **tensors[output]} for output in outputs],
    }
    return _encode_json(content)


def _json_names(classes: Sequence[ClassLabel]) -> str:
    """The classes as JSON: a parameter is text, a number or a boolean."""
    return _encode_json(list(classes))


def metadata(
    name: str,
    version: str,
    columns: Mapping[str, str],
    num_classes: int | None,
    classes: Sequence[ClassLabel] | None = None,
) -> dict[str, Any]:
    """What a client has to know of a model. `columns` has the kind of each raw one.

    `classes` are those of the labels, if they are other than codes.
    """
    inputs = [{"name": ID, "datatype": "BYTES", "shape": [-1]}]
    for column, kind in columns.items():
        datatype = "FP64" if kind == "number" else "BYTES"
        inputs.append({"name": column, "datatype": datatype, "shape": [-1]})
    shape: Sequence[int] = [-1] if num_classes is None else [-1, num_classes]
    names = {"parameters": {"classes": _json_names(classes)}} if classes else {}
    return {
        "name": name,
        "versions": [version],
        "platform": PLATFORM,
        "inputs": inputs,
        "outputs": [
            {"name": "score", "datatype": "FP64", "shape": shape, **names},
            {"name": "degraded", "datatype": "BOOL", "shape": [-1]},
            {"name": "missing", "datatype": "BYTES", "shape": [-1]},
        ],
    }


def render_error(message: str) -> bytes:
    """The JSON of an error."""
    return json.dumps({"error": message}).encode()
