"""The model card (`card.md`): what a model is, how it was trained, and what crossed the link.

For people, and private to the party: it holds metrics and column names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from celu.config.schema import StoreSchema
from celu.events import Protected
from celu.model_identity import TrainedModel
from celu.record.run import RunRecord
from celu.record.summary import summarize
from celu.serving.model_folder import ModelFacts
from celu.text import printable

_MAX_COLUMNS = 50  # that are listed of an input
_SPECIAL = frozenset("\\`*_[]<>#|~&$")  # characters with a meaning in Markdown
_OUTPUTS = {
    "binary": "the probability of the positive class",
    "multiclass": "a probability of each class",
    "regression": "a number",
}
_FALLBACK = (
    "For a row that a host does not hold, a prediction uses the mean of that host's Z. Such "
    "predictions are less accurate than others."
)
_LIMITS = (
    "The model predicts for rows like those it was trained on; nothing here says how it does for "
    "others. In training and in use a host's Z reaches the guest, and Z may reveal something of "
    "the host's features. The guest's derivatives may reveal labels to a host."
)
_NO_DEFENCE = "The contract had no defence against either."
_PROMISED = (
    "What the contract's defences promise of training is below. Z of rows that are predicted has "
    "no noise."
)
_PICKLE = (
    "A .pt2 file contains a pickle, which may execute code when it is loaded: load one only if you "
    "trust who had access to it. celu writes these files and never loads them. The output of "
    "`top` is a logit, not yet a probability, or a number in the units of the label."
)


def card(
    facts: ModelFacts,
    record: RunRecord,
    trained: TrainedModel,
    schema: StoreSchema | None,
    files: Sequence[str] = (),
) -> str:
    """The text of a model card; `files` are the modules for other runtimes."""
    identity = facts.identity
    sections = [
        f"# Model {facts.name}",
        f"The part of {facts.party} ({facts.role}). All parties of run {identity.run} hold a part; "
        f"each is named {facts.name}.",
        _table(
            "Identity",
            [
                ("trained", identity.trained_at),
                ("run", identity.run),
                ("round", f"{identity.round:,}"),
                *((f"weights of {name}", digest) for name, digest in identity.weights.items()),
            ],
        ),
        _table("Data", _data(facts, trained, schema)),
        _table("Model", _modules(facts, record)),
        _table("Metrics on held-out rows", _metrics(record)),
        _table("What crossed the link", _traffic(facts, record)),
        "## Limits",
        _limits(facts, record),
        _table("Files for other runtimes", ((file, _runtime(file)) for file in files)),
        _PICKLE if files else "",
        _table("Settings", sorted(_flat(record.job))),
        _table("Versions", sorted(record.versions.items())),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _limits(facts: ModelFacts, record: RunRecord) -> str:
    if not facts.hosts:
        return _LIMITS.partition(". ")[0] + "."
    promised = list(dict.fromkeys(e.promise for e in record.of_type(Protected)))
    lines = [_FALLBACK, f"{_LIMITS} {_PROMISED if promised else _NO_DEFENCE}"]
    return "\n".join(lines) + "".join(f"\n\n- {_cell(promise)}" for promise in promised)


def _data(
    facts: ModelFacts, trained: TrainedModel, schema: StoreSchema | None
) -> Iterable[tuple[str, Any]]:
    yield "training rows", f"{trained.train_rows:,}"
    if trained.validation_rows:
        yield "validation rows, which chose the round", f"{trained.validation_rows:,}"
    yield "held-out rows", f"{trained.test_rows:,}"
    if schema is not None:
        if schema.label is not None:
            yield "label", schema.label
        yield "schema", schema.digest()
    for name, columns in facts.inputs.items():
        shown = ", ".join(columns[:_MAX_COLUMNS])
        rest = len(columns) - _MAX_COLUMNS
        yield f"input {name}", shown + (f" and {rest:,} more" if rest > 0 else "")


def _modules(facts: ModelFacts, record: RunRecord) -> Iterable[tuple[str, Any]]:
    for name, spec in (("bottom", facts.bottom), ("top", facts.top)):
        if spec is not None:
            yield name, " ".join([spec.use, *(f"{k}={v}" for k, v in spec.options.items())])
    if facts.bottom is None and facts.top is None:
        yield "modules", "from Python"
    loss = (record.settings.get("party", {}).get("model") or {}).get("loss")
    if loss is not None:
        yield "loss", loss
    if facts.z_width is not None:
        yield "width of Z", facts.z_width
    for host, width in facts.hosts.items():
        if host != facts.party:
            yield f"width of the Z of {host}", width
    if facts.output is not None:
        yield "output", f"{facts.output}: {_OUTPUTS[facts.output]}"
        yield from _labels(facts)


def _labels(facts: ModelFacts) -> Iterable[tuple[str, Any]]:
    classes = facts.label_map.classes
    if classes is not None and facts.output == "binary":
        yield "positive class", classes[1]
    if facts.label_map.names is not None and facts.output == "multiclass":
        shown = ", ".join(map(str, facts.label_map.names[:_MAX_COLUMNS]))
        rest = len(facts.label_map.names) - _MAX_COLUMNS
        yield "classes", shown + (f" and {rest:,} more" if rest > 0 else "")
    if facts.label_map.is_scaled:
        yield "mean of the label", f"{facts.label_map.mean:g}"
        yield "deviation of the label", f"{facts.label_map.deviation:g}"


def _metrics(record: RunRecord) -> Iterable[tuple[str, Any]]:
    last = record.tested or next(reversed(record.evaluations), None)
    if last is not None:
        yield "round", f"{last.round:,}"
        for name, value in last.metrics.items():
            yield name, f"{value:.5f}"


def _traffic(facts: ModelFacts, record: RunRecord) -> Iterable[tuple[str, Any]]:
    if not facts.hosts:
        return
    yield "rounds", f"{facts.identity.round:,}"
    for kind, codec in _codecs(record).items():
        yield f"codec of {kind}", codec
    summary = summarize(record)
    sent, received = ("dZ", "Z") if facts.role == "guest" else ("Z", "dZ")
    named = {
        f"sent in training ({sent})": "bytes_sent",
        f"received in training ({received})": "bytes_received",
        "for evaluation (Z of held-out rows)": "evaluation_bytes",
    }
    for text, key in named.items():
        if summary[key] is not None:
            yield text, f"{summary[key]:,} bytes"
    progress = [*record.rounds[-1:], *record.evaluations[-1:]]
    if progress:
        yield "control messages", f"{max(e.control_bytes for e in progress):,} bytes"
    yield "encryption", _encryption(record)


def _codecs(record: RunRecord) -> dict[str, str]:
    """The codecs by what they encode; with `auto`, those of the last choice that is known here."""
    if record.choices:
        return dict(record.choices[-1].codec)
    if record.job.get("method", {}).get("auto"):
        return {"Z and dZ": "chosen by the guest (auto)"}
    codec = record.job.get("codec", {})
    return {str(kind): str(name) for kind, name in codec.items()}


def _encryption(record: RunRecord) -> str:
    if "simulated" in record.settings:
        return "none: all parties ran in one process"
    if record.settings.get("party", {}).get("insecure"):
        return "none: the party ran with insecure = true"
    return "mutual TLS 1.3"


def _runtime(file: str) -> str:
    return "ONNX" if ".onnx" in file else "torch.export"


def _flat(values: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None and value != []:
            yield prefix + key, value


def _table(title: str, rows: Iterable[tuple[str, Any]]) -> str:
    """A section with a table; empty if there are no rows."""
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *lines]) if lines else ""


def _cell(value: Any) -> str:
    """Text in a cell: names of columns may hold any character."""
    text = " ".join(str(value).split())
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in printable(text, len(text)))
