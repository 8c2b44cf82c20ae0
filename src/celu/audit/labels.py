"""The guest's audit: what each host could learn of the labels from the dZ that it received.

The guest plays the attacker with its own labels. Half of the recorded rows have labels that the
attacker knows; the figures are those of the other half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from celu.audit import direct
from celu.audit.completion import complete, one_per_class
from celu.audit.leak import Bools, Floats, measure
from celu.audit.learner import linear, network
from celu.audit.recorder import Recorder
from celu.audit.result import Attack, Audit, LabelLeak, View
from celu.audit.threads import one_thread
from celu.metrics.names import Output

MIN_ROWS = 100  # of each kind: known and unknown
_MIN_CLASS_ROWS = 20  # known rows of a class, for it to be attacked by itself
_MAX_CLASSES = 10
NOT_COVERED = (
    "Attacks that are not listed, hosts that combine what they received, and rows outside the "
    "sample are not covered: the figures are what these attacks found, not a bound.",
    "Rows are taken one by one: what several rows of the same person reveal together is not "
    "covered.",
    "Model completion uses Z as the guest decodes it. A host has its exact Z, before codec and "
    "noise, and may find more.",
    "Z of the guest's own features never leaves it; what scores, metrics and answers of "
    "a served model reveal later is not covered.",
)


@dataclass(frozen=True)
class _Target:
    """What an attacker wants to know of each row: a class."""

    classes_N: Floats
    num_classes: int
    is_class_NC: Bools
    codes: list[int] | None = None  # of the classes in the model's outputs, if it has several


def audit_labels(
    party: str,
    recorder: Recorder,
    hosts: Sequence[str],
    kind: Output,
    labels_N: Tensor,
    held_out_labels_M: Tensor | None,
) -> Audit:
    """Attack what was recorded; `labels_N` are those of the sample's rows, by slot.

    Of labels with several values per row, and of too few rows, it returns only a note.
    """
    started = time.perf_counter()
    exposed = recorder.is_exposed
    sample = recorder.sample
    num_known = int((exposed & sample.is_known).sum())
    num_unknown = int((exposed & ~sample.is_known & ~sample.is_canary).sum())
    notes: list[str] = []
    labels: list[LabelLeak] = []
    if labels_N.dim() != 1:
        notes.append("labels with several values per row are not attacked")
    elif min(num_known, num_unknown) < MIN_ROWS:
        notes.append(
            f"expected at least {2 * MIN_ROWS} recorded rows to attack, got "
            f"{num_known + num_unknown}"
        )
    else:
        values_N = labels_N.double().cpu().numpy()
        held_out = None if held_out_labels_M is None else held_out_labels_M.double().cpu().numpy()
        with one_thread():
            labels, notes = _attack_all(recorder, hosts, kind, values_N, held_out)
    return Audit(
        party=party,
        rows=int(exposed.sum()),
        exposures=int(recorder.counts.max()) if len(sample) else 0,
        canaries=int((exposed & sample.is_canary).sum()),
        seconds=round(time.perf_counter() - started, 3),
        labels=labels,
        notes=notes,
        not_covered=list(NOT_COVERED),
    )


def _attack_all(
    recorder: Recorder,
    hosts: Sequence[str],
    kind: Output,
    labels_N: Floats,
    held_out_M: Floats | None,
) -> tuple[list[LabelLeak], list[str]]:
    known_N = recorder.is_exposed & recorder.sample.is_known
    target, held_out, notes = _target(kind, labels_N, held_out_M, known_N)
    if len(np.unique(target.classes_N[known_N])) < 2:
        return [], [*notes, "the known rows have one class only"]
    found = []
    for host in hosts:
        attacks = _attack_dz(recorder, host, target, known_N)
        completion = None
        if held_out is not None:
            unseen_MD = recorder.held_out(f"z.{host}")
            assert unseen_MD is not None  # recorded with their labels
            exposed = recorder.is_exposed
            completion = complete(
                recorder.exposures(f"latest.z.{host}")[:, 0].numpy()[exposed],
                target.classes_N[exposed],
                recorder.sample.is_canary[exposed],
                unseen_MD.numpy(),
                held_out,
                target.num_classes,
                recorder.sample.random(f"completion {host}"),
            )
        found.append(LabelLeak(host=host, attacks=attacks, completion=completion))
    return found, notes


def _attack_dz(recorder: Recorder, host: str, target: _Target, known_N: Bools) -> list[Attack]:
    """Every attack on every view of one host's dZ."""
    sample, exposed = recorder.sample, recorder.is_exposed
    unknown_N = exposed & ~sample.is_known & ~sample.is_canary
    canary_N = exposed & sample.is_canary
    seed = int(sample.random(f"network {host}").integers(2**31))
    attacks = []
    for view, x_NF, forecast_NC in _views(recorder, host, target):
        scored: dict[str, Floats] = {}
        if target.num_classes == 2 and view != "all exposures":
            is_positive_N = target.is_class_NC[:, 0]
            for attack in (direct.norm, direct.cosine, direct.spectral):
                scored[attack.__name__] = attack(x_NF, is_positive_N, known_N)[:, None]
        learned = (x_NF, target.classes_N, known_N, target.num_classes)
        scored["linear"] = linear(*learned)
        scored["network"] = network(*learned, seed)
        for name, scores_NC in scored.items():
            forecast = None if forecast_NC is None else forecast_NC[unknown_N]
            rows = measure(scores_NC[unknown_N], target.is_class_NC[unknown_N], forecast)
            canaries = None
            if canary_N.any():  # no forecast predicts a random label
                canaries = measure(scores_NC[canary_N], target.is_class_NC[canary_N], None)
            attacks.append(Attack(name=name, view=view, rows=rows, canaries=canaries))
    return attacks


def _views(
    recorder: Recorder, host: str, target: _Target
) -> list[tuple[View, Floats, Floats | None]]:
    """dZ and the guest's forecast: of the newest exposure, averaged, and one after the other."""
    dz_NED = recorder.exposures(f"dz.{host}")
    forecast_NEC = recorder.exposures("forecast")
    counts_N1 = recorder.counts.clamp(min=1)[:, None]
    newest = _per_class(forecast_NEC[:, 0], target)
    views: list[tuple[View, Floats, Floats | None]] = [
        ("one exposure", dz_NED[:, 0].numpy(), newest)
    ]
    if int(recorder.counts.max()) > 1:
        mean = _per_class(forecast_NEC.sum(1) / counts_N1, target)
        views.append(("average of exposures", (dz_NED.sum(1) / counts_N1).numpy(), mean))
        views.append(("all exposures", dz_NED.flatten(1).numpy(), mean))
    return views


def _per_class(forecast_NK: Tensor, target: _Target) -> Floats | None:
    """The forecast of each class that is attacked; None if the model has other outputs."""
    if target.codes is None:
        return forecast_NK.numpy() if forecast_NK.shape[1] == 1 else None
    if forecast_NK.shape[1] <= max(target.codes):
        return None
    of_codes = torch.softmax(forecast_NK.double(), dim=1)[:, target.codes]
    per_class = torch.cat([of_codes, 1 - of_codes.sum(1, keepdim=True)], dim=1).numpy()
    return per_class[:, 1:2] if target.num_classes == 2 else per_class[:, : target.num_classes]


def _target(
    kind: Output, labels_N: Floats, held_out_M: Floats | None, known_N: Bools
) -> tuple[_Target, Floats | None, list[str]]:
    """What is attacked, for the sample and for held-out rows, and notes about it."""
    notes: list[str] = []
    codes: list[int] | None = None
    num_classes = 2

    classes_of: Callable[[Floats], Floats] = np.asarray
    if kind == "regression":
        middle = np.median(labels_N[known_N])
        notes.append("of a number, the attacks find whether it is above its median")
        classes_of = partial(_above, middle)
    elif kind == "multiclass":
        values, counts = np.unique(labels_N[known_N], return_counts=True)
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] >= _MIN_CLASS_ROWS][:_MAX_CLASSES]
        frequent = np.sort(values[order])
        codes = [int(value) for value in frequent]
        num_classes = max(2, len(frequent) + (len(frequent) < len(values)))
        notes.append("figures are means over the classes, each against the rest")
        if len(frequent) < len(values):
            notes.append(f"all but the {len(frequent)} most frequent classes count as one")
        classes_of = partial(_positions, frequent, num_classes - 1)
    classes_N = classes_of(labels_N)
    held_out = None if held_out_M is None else classes_of(held_out_M)
    is_class_NC = one_per_class(classes_N, num_classes)
    return _Target(classes_N, num_classes, is_class_NC, codes), held_out, notes


def _above(middle: float, labels_N: Floats) -> Floats:
    return (labels_N > middle).astype(np.float64)


def _positions(frequent: Floats, other: int, labels_N: Floats) -> Floats:
    """The position of each label among the frequent ones, or `other`."""
    position_N = np.searchsorted(frequent, labels_N).clip(max=len(frequent) - 1)
    return np.where(frequent[position_N] == labels_N, position_N, other)
