"""Imports point one way, and no module that can execute data, such as pickle, is imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import celu

SOURCE = Path(celu.__file__).parent
# Low to high. A module may import from its own package and from the lines above its own, not from
# others on its line.
LAYERS = [
    ["text"],
    [
        "device_copy",
        "errors",
        "http_limits",
        "kernels",
        "open_files",
        "threads",
        "traceback_lines",
        "version",
    ],
    ["metrics"],
    ["config", "display", "http_thread", "page"],
    ["events", "label_map"],
    ["codecs", "data", "event_log", "model_identity", "models", "transport"],
    [
        "workset",
        "party",
        "certs",
        "run_folder",
        "record",
        "handshake",
        "prepare",
        "checkpoint",
        "privacy",
        "audit",
    ],
    ["ranks"],
    ["engine", "psi", "scores"],
    ["result"],
    ["session", "doctor"],
    ["serving"],
    ["simulation", "launch", "report", "dashboard", "tracking", "search"],
    ["__init__"],  # the public names
    ["testing"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FORBIDDEN = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "shelve", "joblib", "marshal"}
MODULES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))


def imports(module: Path) -> Iterator[tuple[str, int]]:
    """Every module that is imported anywhere in a file, by its dotted name, and the line."""
    package = ["celu", *module.parts[:-1]]
    for node in ast.walk(ast.parse((SOURCE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            if base == "celu":  # `from celu import errors` names a module, or a public name
                for alias in node.names:
                    known = (SOURCE / alias.name).is_dir() or alias.name in LEVEL
                    yield f"celu.{alias.name}" if known else "celu", node.lineno
            else:
                yield base, node.lineno


def layer(module: str) -> str:
    """The layer that a dotted name within celu belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def layer_of_file(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_imports_only_from_its_package_and_from_below(module: Path) -> None:
    here = layer_of_file(module)
    assert here in LEVEL, f"{here} is new: add it to LAYERS"
    for name, line in imports(module):
        if name.split(".")[0] != "celu":
            continue
        there = layer(name)
        assert there == here or LEVEL[there] < LEVEL[here], f"{module}:{line} imports {name}"


def test_every_layer_exists() -> None:
    assert set(LEVEL) == {layer_of_file(module) for module in MODULES}


def test_every_public_name_exists_and_is_imported_on_first_use() -> None:
    assert all(getattr(celu, name) is not None for name in celu.__all__)
    assert set(celu._HOME) | {"__version__"} == set(celu.__all__) == set(dir(celu))
    code = "import sys, celu.psi.workers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Low-level files, and the only modules of their own package that they may import.
LOW = {
    "config/reading.py": set(),
    "config/optimizer.py": {"reading"},
    "config/privacy.py": {"reading"},
    "config/job.py": {"reading", "optimizer", "privacy"},
    "config/job_toml.py": {"job"},
    "config/replay.py": {"job", "job_toml"},
    "config/space.py": {"job", "reading"},
    "config/columns.py": {"reading"},
    "config/schema.py": {"columns", "reading"},
    "config/link.py": {"reading"},
    "config/serving.py": {"reading"},
    "transport/message.py": set(),
    "transport/emulation.py": set(),
    "transport/tls.py": set(),
    "transport/handshakes.py": set(),
    "transport/preflight.py": {"message", "tls"},
    "transport/inner_tls_engine.py": {"message", "tls", "wire"},
    "transport/inner_tls.py": {"inner_tls_engine", "tls"},
    "transport/reconnect.py": set(),
    "transport/sessions.py": {
        "carrier",
        "connect",
        "link",
        "message",
        "reconnect",
        "stream",
        "tls",
    },
    "transport/link.py": {"message"},
    "transport/wire.py": {"message"},
    "transport/memory.py": {"emulation", "message", "virtual_clock", "wire"},
    "transport/virtual_clock.py": set(),
    "transport/delivery.py": {"message", "wire"},
    "transport/waits.py": set(),
    "transport/connection.py": {
        "delivery",
        "emulation",
        "inner_tls",
        "message",
        "reconnect",
        "waits",
    },
    "transport/uptime.py": set(),
    "transport/stream.py": {
        "connection",
        "delivery",
        "emulation",
        "message",
        "uptime",
        "waits",
        "wire",
    },
    "transport/ask.py": {"message", "stream"},
    "transport/asker.py": {"ask", "message", "stream"},
    "transport/carrier.py": {"connection", "inner_tls", "message", "preflight", "stream", "tls"},
    "transport/stripes.py": {"connection", "wire"},
    "transport/websocket_threads.py": {"connection"},
    "transport/websocket_clients.py": set(),
    "transport/websocket_socket.py": set(),
    "transport/websocket_carrier.py": {
        "carrier",
        "connection",
        "preflight",
        "message",
        "handshakes",
        "inner_tls",
        "tls",
        "websocket_clients",
        "websocket_socket",
        "websocket_threads",
    },
    "transport/grpc_carrier.py": {
        "carrier",
        "connection",
        "message",
        "handshakes",
        "inner_tls",
        "stripes",
        "tls",
    },
    "data/tags.py": set(),
    "data/parquet_footer.py": set(),
    "data/decoded_text.py": set(),
    "data/folder.py": set(),
    "data/order.py": set(),
    "data/parquet_sizes.py": {"parquet_footer"},
    # Store.datasets imports its modules when it is called.
    "data/store.py": {"alignment", "folder", "memory_map", "parquet_sizes", "tags"},
    "prepare/hashing.py": set(),
    "prepare/prefetch.py": set(),
    "prepare/number_text.py": set(),
    "prepare/text_format.py": set(),
    "prepare/id_warnings.py": set(),
    "prepare/parsing.py": {"number_text"},
    "prepare/delimited.py": {"number_text", "parsing", "prefetch"},
    "prepare/parquet.py": {"parsing"},
    "prepare/raw_file.py": {"delimited", "number_text", "parquet", "parsing", "text_format"},
    "prepare/guessing.py": {"encoders", "number_text", "parsing"},
    "prepare/draft.py": {
        "guessing",
        "number_text",
        "parquet",
        "parsing",
        "raw_file",
        "text_format",
    },
    "prepare/spill.py": set(),
    "prepare/encoders/encoder.py": {"parsing"},
    "prepare/encoders/statistics.py": set(),
    "prepare/encoders/filling.py": {"encoders"},
    "prepare/encoders/numbers.py": {"encoders", "parsing"},
    "prepare/encoders/dates.py": {"encoders", "parsing"},
    "prepare/encoders/quantiles.py": {"encoders", "parsing"},
    "prepare/encoders/categories.py": {"encoders", "hashing", "parsing"},
    "prepare/encoders/bags.py": {"encoders", "parsing"},
    "prepare/encoders/labels.py": {"encoders", "number_text", "parsing"},
    "data/arrays.py": set(),
    "data/table.py": {"tags"},
    "data/dataset.py": {"arrays", "table", "tags"},
    "data/batch_loader.py": {"order", "dataset"},
    "data/row_ids.py": {"alignment", "store", "tags"},
    "data/inputs.py": set(),
    "data/row_stream.py": {"dataset", "inputs", "store", "tags"},
    "checkpoint/disk.py": set(),
    "checkpoint/writer.py": set(),
    "checkpoint/identity.py": {"disk"},
    "checkpoint/tensors.py": {"disk"},
    "checkpoint/agreement.py": {"identity"},
    "models/losses.py": set(),
    "record/tail.py": set(),
    "record/compaction.py": set(),
    "record/settings.py": set(),
    "record/run.py": {"compaction", "settings", "tail"},
    "record/downsample.py": set(),
    "record/timeline.py": {"run"},
    "record/summary.py": {"run"},
    "record/series.py": {"downsample"},
    "record/folders.py": {"run"},
    "record/recent.py": set(),
    "dashboard/live.py": set(),
    "dashboard/metrics.py": {"live"},
    "dashboard/routes.py": {"metrics", "live"},
    "serving/cache.py": set(),
    "serving/quota.py": set(),
    "serving/encoding.py": set(),
    "serving/announcement.py": set(),
    "serving/inference_protocol.py": set(),
    "serving/serve_metrics.py": set(),
    "serving/row_index.py": set(),
    "serving/ask_rows.py": {"row_index"},
    "serving/batching.py": {"inference_protocol"},
    "serving/lookup.py": {"encoding"},
    "serving/few_rows.py": {"model", "row_index"},
    "serving/loop_scoring.py": {"batching"},
    "serving/model_shelf.py": {"encoding", "few_rows", "model", "model_folder", "row_index"},
    "serving/rollout.py": {"announcement", "model_shelf"},
    "report/clocks.py": set(),
    "serving/coding.py": set(),
    "serving/rows.py": {"model"},
    "serving/predict_session.py": {"coding", "model", "rows"},
    "serving/scoring_parts.py": {"predict_session", "rows"},
    "serving/predicting.py": {"model", "predict_session", "rows"},
    "metrics/names.py": set(),
    "metrics/values.py": {"names"},
    "metrics/ranking.py": set(),
    "metrics/own.py": {"names"},
    "metrics/measure.py": {"names", "own", "ranking", "values"},
    "scores/classes.py": set(),
    "scores/layout.py": {"classes"},
    "scores/file.py": {"layout"},
    "scores/bootstrap.py": set(),
    "scores/tables.py": set(),
    "scores/result.py": {"tables"},
    "scores/rows.py": {"classes", "file", "layout", "result"},
    "scores/arrays.py": {"classes", "result", "rows"},
    "scores/page.py": {"result"},
    "doctor/measurement.py": set(),
    "doctor/machine.py": set(),
    "doctor/probes.py": {"measurement"},
    "doctor/measure.py": {"measurement", "probes"},
    "doctor/estimate.py": {"measurement"},
    "doctor/party_rules.py": {"facts", "machine"},
    "doctor/link_rules.py": {"facts"},
    "doctor/live_rules.py": {"facts"},
}


@pytest.mark.parametrize("module", LOW)
def test_imports_within_a_package_point_one_way(module: str) -> None:
    package = Path(module).parts[0]
    used = {
        name.split(".")[2]
        for name, _ in imports(Path(module))
        if name.startswith(f"celu.{package}.")
    }
    assert used <= LOW[module]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_module_that_can_execute_data_is_imported(module: Path) -> None:
    for name, line in imports(module):
        assert not FORBIDDEN & set(name.split(".")), f"{module}:{line} imports {name}"


def forbidden_call(node: ast.Call) -> str | None:
    """The name of a call that would unpickle or execute, or None."""
    called = ast.unparse(node.func)
    unpickles = called in ("torch.load", "torch.export.load", "torch.jit.load")
    allows = any(k.arg == "allow_pickle" for k in node.keywords)
    executes = called in ("eval", "exec", "compile")
    return called if unpickles or allows or executes else None


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_nothing_unpickles_or_executes_text(module: Path) -> None:
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert forbidden_call(node) is None, f"{module}:{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            assert "load" not in {alias.name for alias in node.names}, f"{module}:{node.lineno}"


@pytest.mark.parametrize(
    "text",
    ["torch.load('f')", "torch.export.load('f')", "np.load('f', allow_pickle=True)", "eval('1')"],
)
def test_the_check_finds_a_forbidden_call(text: str) -> None:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert forbidden_call(call)
