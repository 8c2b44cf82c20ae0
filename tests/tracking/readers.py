"""Reads back what the trackers' libraries wrote: metrics by name and round, and the settings."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Points = dict[str, dict[int, list[float]]]  # metric, round, all values in the order of writing
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}


def points(kind: str, folder: Path) -> Points:
    """The metrics of the one run in a folder."""
    return {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}[kind](folder)


def settings(kind: str, folder: Path) -> dict[str, str]:
    """The contract that a tracker recorded."""
    if kind == "mlflow":
        return dict(_mlflow_run(folder).data.params)
    if kind == "wandb":
        run = next(record.run for record in _wandb_records(folder) if record.HasField("run"))
        return {item.key: str(json.loads(item.value_json)) for item in run.config.update}
    text = _event_files(folder).Tensors("airline/text_summary")[-1].tensor_proto.string_val[0]
    rows = [line.split(" | ") for line in text.decode().splitlines()[2:]]
    return {key.strip("| "): value.strip("`| ") for key, value in rows}


def status(kind: str, folder: Path) -> str:
    """How the run ended, in the tracker's own words."""
    if kind == "mlflow":
        return str(_mlflow_run(folder).info.status)
    ends = [record.exit for record in _wandb_records(folder) if record.HasField("exit")]
    return f"exit {ends[-1].exit_code}"


def _event_files(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return found


def _tensorboard(folder: Path) -> Points:
    found, read = _event_files(folder), Points()
    for name in found.Tags()["scalars"]:
        for event in found.Scalars(name):
            read.setdefault(name, {}).setdefault(event.step, []).append(event.value)
    return read


def _mlflow_client(folder: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")


def _mlflow_run(folder: Path) -> Any:
    client = _mlflow_client(folder)
    experiment = client.get_experiment_by_name("celu")
    (run,) = client.search_runs([experiment.experiment_id])
    return run


def _mlflow(folder: Path) -> Points:
    client, run, read = _mlflow_client(folder), _mlflow_run(folder), Points()
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            read.setdefault(name, {}).setdefault(metric.step, []).append(metric.value)
    return read


def _wandb_records(folder: Path) -> list[Any]:
    """The records of all offline files, oldest first.

    A process of wandb writes them and closes each soon after the run ended.
    """
    until = time.monotonic() + 60
    while True:
        paths = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
        files = [list(_wandb_file(path)) for path in paths]
        if files and all(any(r.HasField("exit") for r in records) for records in files):
            return [record for records in files for record in records]
        assert time.monotonic() < until, f"no end of a run in {paths}"
        time.sleep(0.05)


def _wandb_file(path: Path) -> Iterator[Any]:
    """The records of a file: the log format of LevelDB, with protobuf inside."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:  # a block has no room for another header
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def _wandb(folder: Path) -> Points:
    read, ids = Points(), set()
    for record in _wandb_records(folder):
        if record.HasField("run"):
            ids.add(record.run.run_id)
        if record.HasField("history"):
            items = record.history.item
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}
            for name, value in row.items():
                if not name.startswith("_") and name != "round":
                    read.setdefault(name, {}).setdefault(row["round"], []).append(value)
    assert len(ids) == 1  # all attempts are one run
    return read
