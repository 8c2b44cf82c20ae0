"""Answers name classes, and are in the units of the labels; a failing model is not shown."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from celu.errors import ModelError
from celu.label_map import LabelMap
from celu.models.user_code import name_of
from celu.serving.batching import Batcher, Job
from celu.serving.http import Health, HttpApp
from celu.serving.http_server import HttpServer
from celu.serving.inference import Inference
from celu.serving.inference_protocol import Answer, InferRequest
from celu.serving.model_shelf import ServedModel
from celu.serving.serve_metrics import ServeMetrics
from serving.guests import COMMON, Federated, federated
from serving.test_http import INFER, Client, body, settings_of


def with_label_map(parties: Federated, label_map: LabelMap) -> ServedModel:
    facts = parties.served.model.facts.model_copy(update={"label_map": label_map})
    return replace(parties.served, model=replace(parties.served.model, facts=facts))


def inference_of(parties: Federated, served: ServedModel) -> Inference:
    return Inference(lambda: served, parties.rows, list(parties.hosts.values()), "mean")


def scores(parties: Federated, served: ServedModel, ids: list[str]) -> Any:
    job = Job(InferRequest(ids), time.monotonic() + 60, lambda outcome: None)
    (answer,) = inference_of(parties, served).serve([job])
    assert isinstance(answer, Answer)
    return np.array(answer.scores)


@pytest.mark.parametrize("num_rows", [3, 60], ids=["few rows", "many rows"])
def test_a_number_is_answered_in_the_units_of_the_labels(tmp_path: Path, num_rows: int) -> None:
    parties = federated(tmp_path, loss="regression")
    ids = (COMMON * 2)[: num_rows * 2]  # more than 64 run with PyTorch
    plain = scores(parties, with_label_map(parties, LabelMap()), ids)
    scaled = scores(parties, with_label_map(parties, LabelMap(mean=5e4, deviation=2e4)), ids)
    assert scaled == pytest.approx(plain * 2e4 + 5e4, rel=1e-6)


class Server:
    """An HTTP server of one model."""

    def __init__(self, parties: Federated, served: ServedModel) -> None:
        self._served, self._inference = served, inference_of(parties, served)
        self.said: list[str] = []

    def call(self, *requests: tuple[str, str, bytes | None]) -> list[tuple[int, Any]]:
        settings = settings_of()
        health = Health(lambda: self._served, lambda: True, lambda: True)
        with Batcher(self._inference.serve, max_rows=100, max_jobs=100) as batcher:
            metrics = ServeMetrics(lambda: iter([]))
            app = HttpApp(settings, None, batcher, health, metrics, self.said.append)
            with HttpServer(settings, app) as server:
                client = Client(int(server.url.rsplit(":", 1)[1]))
                return [client.call(*request) for request in requests]


def test_answers_and_metadata_name_the_classes(tmp_path: Path) -> None:
    parties = federated(tmp_path, loss="multiclass")
    names = ["bronze", "gold", "silver"]
    server = Server(parties, with_label_map(parties, LabelMap(classes=list(names))))
    (status, found), (_, answer) = server.call(
        ("GET", "/v2/models/celu", None), ("POST", INFER, body(COMMON[:2]))
    )
    assert status == 200
    assert json.loads(found["outputs"][0]["parameters"]["classes"]) == names
    assert json.loads(answer["parameters"]["classes"]) == names
    assert answer["outputs"][0]["shape"] == [2, 3]


class Broken(nn.Module):
    def forward(self, *zs: Tensor) -> Tensor:
        secret_number = torch.tensor(float("nan"))
        raise ValueError(f"row {secret_number}")


def test_a_top_that_raises_is_reported_to_the_operator_and_not_to_clients(tmp_path: Path) -> None:
    parties = federated(tmp_path)
    served = replace(parties.served, model=replace(parties.served.model, top=Broken()))
    server = Server(parties, served)
    requests = [("POST", INFER, body(COMMON[:2]))] * 2
    for status, answer in server.call(*requests):
        assert status == 500
        assert answer == {"error": "the model failed; the server's output says why"}
    (said,) = server.said  # once
    assert name_of(Broken) in said and "raised ValueError: row nan" in said
    assert "in forward: raise ValueError" in said
    assert ModelError.exit_code == 5
