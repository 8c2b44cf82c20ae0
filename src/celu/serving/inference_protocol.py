"""The Open Inference Protocol, version 2: requests as Python values, answers as JSON.

https://github.com/kserve/open-inference-protocol. Tensors are JSON only. A request has an input
`id` (BYTES, [n]) and, if the client sends the guest's features itself, one input for each raw
column: FP64 for numbers, BYTES for categories.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from celu.errors import RequestError

ID = "id"
OUTPUTS = ("score", "degraded", "missing")
PLATFORM = "celu"
_MAX_ID = 65_536  # characters of one id, and of the request's own
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


@dataclass(frozen=True)
class InferRequest:
    """The rows of a request: ids, and values by raw column if the client sent any."""

    ids: list[str]
    values: dict[str, list[Any]] | None = None
    request_id: str | None = None
    outputs: tuple[str, ...] = OUTPUTS


@dataclass(frozen=True)
class Answer:
    """Scores, [n] or [n][K], and which hosts gave no Z for each row."""

    model: str
    scores: list[Any]
    missing: list[list[str]]


def parse_request(body: bytes, max_rows: int) -> InferRequest:
    """Parse and check a request; raises RequestError."""
    try:
        content = json.loads(body.decode())
    except (ValueError, RecursionError):
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
    if not all(isinstance(value, str) and _is_text(value) for value in ids):
        raise RequestError("inputs.id: expected datatype BYTES, text")
    if any(len(values) != len(ids) for values in inputs.values()):
        raise RequestError("inputs: expected as many rows in each as in id")
    request_id = content.get("id")
    if request_id is not None and not (isinstance(request_id, str) and _is_text(request_id)):
        raise RequestError("id: expected text")
    return InferRequest(ids, inputs or None, request_id, _parse_outputs(content.get("outputs")))


def _parse_input(tensor: Any, max_rows: int) -> tuple[str, list[Any]]:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
        raise RequestError("inputs: expected objects with a name")
    name, shape, data = tensor["name"], tensor.get("shape"), tensor.get("data")
    if (
        not isinstance(shape, list)
        or len(shape) not in (1, 2)
        or not _INTEGER.issuperset(map(type, shape))
        or shape[1:] not in ([], [1])
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


def _is_text(value: str) -> bool:
    """Whether it is short enough and can be encoded."""
    if len(value) > _MAX_ID:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def render_answer(name: str, request: InferRequest, answer: Answer) -> bytes:
    """The JSON of an answer."""
    num_rows = len(answer.missing)
    is_matrix = bool(answer.scores) and isinstance(answer.scores[0], list)
    tensors: dict[str, dict[str, Any]] = {
        "score": {
            "datatype": "FP64",
            "shape": [num_rows, len(answer.scores[0])] if is_matrix else [num_rows],
            "data": [x for row in answer.scores for x in row] if is_matrix else answer.scores,
        },
        "degraded": {
            "datatype": "BOOL",
            "shape": [num_rows],
            "data": [bool(hosts) for hosts in answer.missing],
        },
        "missing": {
            "datatype": "BYTES",
            "shape": [num_rows],
            "data": [",".join(hosts) for hosts in answer.missing],
        },
    }
    content: dict[str, Any] = {
        "model_name": name,
        "model_version": answer.model,
        "parameters": {"model": answer.model},
        "outputs": [{"name": output, **tensors[output]} for output in request.outputs],
    }
    if request.request_id is not None:
        content["id"] = request.request_id
    return _encode_json(content).encode()


def metadata(
    name: str, version: str, columns: Mapping[str, str], classes: int | None
) -> dict[str, Any]:
    """What a client has to know of a model. `columns` are numbers or categories."""
    inputs = [{"name": ID, "datatype": "BYTES", "shape": [-1]}]
    for column, kind in columns.items():
        datatype = "FP64" if kind == "number" else "BYTES"
        inputs.append({"name": column, "datatype": datatype, "shape": [-1]})
    shape: Sequence[int] = [-1] if classes is None else [-1, classes]
    return {
        "name": name,
        "versions": [version],
        "platform": PLATFORM,
        "inputs": inputs,
        "outputs": [
            {"name": "score", "datatype": "FP64", "shape": shape},
            {"name": "degraded", "datatype": "BOOL", "shape": [-1]},
            {"name": "missing", "datatype": "BYTES", "shape": [-1]},
        ],
    }


def render_error(message: str) -> bytes:
    """The JSON of an error."""
    return json.dumps({"error": message}).encode()
