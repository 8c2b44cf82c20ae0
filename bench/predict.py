"""`scripts/bench predict`: rows a second of `celu predict`, its use of a link, and its memory.

`predict_over_loop`: all parties in one process and one thread, over a plain PyTorch loop over the
whole model in one process and one thread, each with the chunks that are best for it. Both are
measured alternately, and the ratio is that of the fastest turns: on a shared machine other
processes can only make a turn slower. The other figures are of two processes over mutual TLS.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import celu
from bench.report import BenchResult, Log
from celu.config.link import find_link
from celu.config.schema import ID, LABEL, TAG, Split
from celu.config.templates import SettingsTemplate, write_settings
from celu.data.alignment import write_alignment
from celu.data.store import StoreWriter, coded_schema, open_store
from celu.data.tags import TAG_BYTES, ascending, make_tags
from celu.serving.model import Model
from celu.serving.model_folder import ModelFacts
from celu.testing import free_port, make_keys

PARTIES = ("guest", "host")
CHUNKS = (256, 512, 1024, 2048, 4096)
DEFAULT_CHUNK = 512  # of serving.toml
WIDTH, NUMBERS, FIELDS, CODES = 64, 13, 26, 10_000
COLUMNS = 8  # of each party's store, for the runs of two processes
SPLIT = Split(seed=1, test=0.0)
_CHUNK = 1 << 17
_TIMEOUT_S = 3000
_PARTY = "import sys; from bench.predict import run_party; run_party(*sys.argv[1:])"


def bench_predict(log: Log, *, rows: int, line_rows: int, turns: int) -> BenchResult:
    """Measure all three figures; memory at `rows` and at a tenth of them."""
    torch.set_num_threads(1)
    result = BenchResult("predict", [1])
    result.figures["predict_over_loop"] = _over_loop(log, result, turns)
    profile = "wan-300"
    with tempfile.TemporaryDirectory() as scratch:
        ran = _two_processes(Path(scratch), line_rows, 256, profile)["host"]
    mbps = ran["bytes_sent"] * 8 / 1e6 / ran["seconds"]
    result.figures["predict_line_use"] = mbps / find_link(profile).mbps
    result.rows.append({"what": f"{line_rows:,} rows over {profile}", "Mbps": mbps})
    log(f"over {profile}: {mbps:.0f} Mbps")
    peaks: dict[str, list[float]] = {name: [] for name in PARTIES}
    for count in (rows // 10, rows):
        with tempfile.TemporaryDirectory() as scratch:
            both = _two_processes(Path(scratch), count, 16, None)
        for name, ran in both.items():
            peaks[name].append(ran["peak_mib"])
            row = {"what": f"{count:,} rows, {name}", "peak MiB": ran["peak_mib"]}
            result.rows.append({**row, "rows a second": count / ran["seconds"]})
        log(f"{count:,} rows: peaks {[peaks[name][-1] for name in PARTIES]} MiB")
    growth = {name: large / small for name, (small, large) in peaks.items()}
    result.figures["predict_memory_growth"] = max(growth.values())
    result.notes.append(
        f"predict_over_loop: {NUMBERS} numbers at the guest and {FIELDS} categories at the host, "
        f"embedding 16, hidden 64, Z {WIDTH}, one thread. "
        f"predict_line_use: one linear layer of Z 256 in float32, {profile} emulated for what the "
        "host sends, from the connection to the last message. predict_memory_growth: the peak of "
        f"a process at {rows:,} rows over that at {rows // 10:,}, of the party where it is larger; "
        "a tenth of the rows is not aligned and gets the fallback."
    )
    return result


def _over_loop(log: Log, result: BenchResult, turns: int) -> float:
    rows = 200_000
    random = torch.Generator().manual_seed(1)
    numbers = torch.randn(rows, NUMBERS, generator=random)
    codes = torch.randint(0, CODES, (rows, FIELDS), generator=random)
    sizes = {"ids": (CODES,) * FIELDS}
    datasets = {
        "guest": celu.Dataset({"numbers": numbers}),
        "host": celu.Dataset({"ids": codes}, sizes=sizes),
    }
    torch.manual_seed(1)
    options: dict[str, Any] = {"embedding_dim": 16, "hidden": (64,)}
    bottoms = {
        "guest": celu.Tower(WIDTH, {"numbers": NUMBERS}, {}, **options).eval(),
        "host": celu.Tower(WIDTH, {"ids": FIELDS}, sizes, **options).eval(),
    }
    top = celu.WideDeepTop([WIDTH, WIDTH], 1, hidden=(64,)).eval()
    parts = {name: _part(name, bottoms[name], top, datasets[name]) for name in PARTIES}

    def loop(chunk: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        scores = []
        with torch.no_grad():
            for start in range(0, rows, chunk):
                own = bottoms["guest"](numbers=numbers[start : start + chunk])
                z = bottoms["host"](ids=codes[start : start + chunk])
                scores.append(top(own, z).reshape(-1).double().sigmoid())
        return torch.cat(scores).numpy()

    def predict(chunk: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        hosts = {"host": (parts["host"], datasets["host"])}
        return celu.predict(parts["guest"], datasets["guest"], hosts, chunk_rows=chunk).scores

    assert np.allclose(loop(DEFAULT_CHUNK), predict(DEFAULT_CHUNK), atol=1e-6)
    fastest: dict[tuple[str, int], float] = {}
    for _ in range(turns):
        for chunk in CHUNKS:
            for name, call in (("loop", loop), ("predict", predict)):
                key = (name, chunk)
                fastest[key] = min(fastest.get(key, 1e9), _seconds(call, chunk))
    for (name, chunk), seconds in fastest.items():
        row = {"what": f"{name}, chunks of {chunk}", "rows a second": rows / seconds}
        result.rows.append(row)
        log(f"{name}, chunks of {chunk}: {rows / seconds:,.0f} rows a second")
    best = {
        side: min(seconds for (name, _), seconds in fastest.items() if name == side)
        for side in ("loop", "predict")
    }
    return best["loop"] / best["predict"]


def _seconds(call: Callable[[int], object], chunk: int) -> float:
    started = time.perf_counter()
    call(chunk)
    return time.perf_counter() - started


def _part(name: str, bottom: torch.nn.Module, top: torch.nn.Module, rows: celu.Dataset) -> Model:
    """A party's part of a model that was not trained: the speed does not depend on the weights."""
    is_guest = name == "guest"
    facts = ModelFacts.model_validate(
        {
            "party": name,
            "role": name,
            "guest": "guest",
            "hosts": {"host": WIDTH},
            "identity": {
                "run": "0" * 32,
                "round": 0,
                "weights": dict.fromkeys(PARTIES, "0" * 64),
                "trained_at": "2026-01-01T00:00:00Z",
            },
            "inputs": {n: [f"{n}.{i}" for i in range(t.shape[1])] for n, t in rows.inputs.items()},
            "input_specs": {
                n: {
                    "shape": [t.shape[1]],
                    "dtype": "float32" if t.is_floating_point() else "int64",
                }
                for n, t in rows.inputs.items()
            },
            "sizes": {n: list(sizes) for n, sizes in rows.sizes.items()},
            "z_width": WIDTH,
            "bottom": None,
            "top": None,
            "output": "binary" if is_guest else None,
            "mean_z": {"host": [0.0] * WIDTH} if is_guest else {},
            "schema_digest": None,
        }
    )
    return Model(facts, bottom, top if is_guest else None, None, torch.device("cpu"))


def _two_processes(
    folder: Path, rows: int, z_width: int, profile: str | None
) -> dict[str, Mapping[str, float]]:
    """Train a thin model on a few rows, and score `rows` rows with it; what each party measured."""
    thin = '{ use = "wdl", hidden = [] }'
    template = SettingsTemplate(
        guest="guest", host="host", bottom=thin, top='"wdl"', batch_size=64, z_width=z_width,
        rounds=4, evaluate_every=4,
    )  # fmt: skip
    _write_stores(folder, "store", 1000, labelled=True)
    _write_stores(folder, "new", rows, labelled=False)
    write_settings(folder, template, port=free_port(), local=True)
    make_keys(folder, list(PARTIES))
    if profile is not None:
        path = folder / "host" / "party.toml"
        path.write_text(f'link = "{profile}"\n{path.read_text(encoding="utf-8")}')
    settings = [str(folder / name / "party.toml") for name in PARTIES]
    command = [sys.executable, "-m", "celu.cli.app", "simulate", *settings]
    command += ["--job", str(folder / "job.toml"), "--out", str(folder / "run")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    celu.export(folder / "run", folder / "guest" / "model")
    celu.export(folder / "run" / "hosts" / "host", folder / "host" / "model")
    (folder / "serving.toml").write_text('hosts = ["host"]\n', encoding="utf-8")
    command = [sys.executable, "-c", _PARTY, str(folder)]
    processes = {
        name: subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in PARTIES
    }
    try:
        return {name: _measured(process) for name, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()


def _measured(process: subprocess.Popen[bytes]) -> Mapping[str, float]:
    """The last line that a party printed."""
    assert process.stdout is not None
    output = process.stdout.read()
    if process.wait(_TIMEOUT_S):
        raise celu.CeluError(f"a party of the bench ended with {process.returncode}")
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def run_party(folder: str, name: str) -> None:
    """Predict as one party; print the seconds since the peers connected, bytes sent and memory."""
    from celu.config.party import read_party
    from celu.config.serving import read_serving
    from celu.events import ignore
    from celu.launch.predict_files import PredictParty
    from celu.launch.predicting import predict_party

    own = Path(folder) / name
    out = own / "scores.parquet" if name == "guest" else None
    settings = read_party(own / "party.toml")
    party = PredictParty(settings, own, own / "model", own / "new", own / "new-alignment", out)
    serving = read_serving(Path(folder) / "serving.toml")
    done = predict_party(party, serving, "mean", lambda port: None, ignore)
    sent = sum(link.sent.total_bytes for link in done.traffic.values())
    # Not the kernel's ru_maxrss: a child starts with the peak of the process that forked it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak_mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    found = {"seconds": done.seconds, "bytes_sent": sent, "peak_mib": peak_mib}
    sys.stdout.write(json.dumps(found) + "\n")


def _write_stores(folder: Path, name: str, rows: int, *, labelled: bool) -> None:
    """Stores of both parties with the same ids, in the order of their tags, and alignments."""
    import pyarrow as pa

    ids = np.array([f"row-{row}" for row in range(rows)], object)
    tags = make_tags(ids.tolist(), SPLIT.seed)
    order = ascending(tags)
    for party in PARTIES:
        columns = [f"{party}{i}" for i in range(COLUMNS)]
        label = [LABEL] if party == "guest" else []
        schema = coded_schema([*columns, *label], {}, SPLIT)
        schema = schema.model_copy(update={"labelled": labelled or party == "host"})
        random = np.random.default_rng(1)
        with StoreWriter(folder / party / name, schema) as store:
            for start in range(0, rows, _CHUNK):
                chosen = order[start : start + _CHUNK]
                values = random.normal(size=(len(columns), len(chosen))).astype(np.float32)
                table = pa.table(dict(zip(columns, values, strict=True)))
                if labelled and label:
                    table = table.append_column(LABEL, pa.array((values[0] > 0).astype(np.float32)))
                texts = pa.array(ids[chosen], pa.string())
                marks = pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(TAG_BYTES), len(chosen), [None, pa.py_buffer(tags[chosen].tobytes())]
                )
                table = table.append_column(ID, texts).append_column(TAG, marks)
                if labelled:
                    store.write("train", table.slice(0, 900))
                    store.write("test", table.slice(900))
                else:
                    store.write("test", table)
        if not labelled:
            aligned = np.arange(rows)[np.arange(rows) % 10 != 0]
            write_alignment(
                folder / party / f"{name}-alignment",
                open_store(folder / party / name),
                {"train": np.zeros(0, np.int64), "test": aligned},
                peers={},
                common={},
            )
