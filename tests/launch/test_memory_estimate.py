"""The memory that `celu check` estimates, on models whose sizes are known."""

from __future__ import annotations

from pathlib import Path

import celu
from celu.launch.memory_estimate import available_bytes, estimate_memory, resident_bytes
from celu.launch.trial import try_party
from celu.transport.wire import HEADER
from federation import BATCH, ROWS, federation

FLOAT = 4


def weight_bytes(party: celu.Guest | celu.Host) -> int:
    modules = [party.bottom, getattr(party, "top", None)]
    return sum(FLOAT * p.numel() for m in modules if m is not None for p in m.parameters())


def test_adagrad_takes_as_much_state_as_weights_and_the_table_holds_w_batches() -> None:
    fed = federation(method={"W": 4, "R": 3, "depth": 2})
    host = fed.hosts["host"]
    trial = try_party("host", host, fed.job, ROWS)
    estimate = estimate_memory("host", host, fed.job, trial, process=7)
    assert estimate.weights == estimate.optimizer == weight_bytes(host)
    batch = BATCH * (4 * FLOAT + 3 * 8)  # four numbers, and three codes as int64
    z = BATCH * 6 * FLOAT
    assert estimate.table == 4 * (batch + 2 * z)
    assert estimate.in_flight == 2 * (2 * (HEADER.size + z) + batch + z)
    assert estimate.copies == 2 * estimate.weights
    assert estimate.rows == 2 * host.train.num_bytes
    assert 7 + 3 * estimate.weights + estimate.table < estimate.total


def test_without_local_steps_there_is_no_table_and_sgd_has_no_state() -> None:
    fed = federation(method={"R": 1}, optimizer={"name": "sgd", "lr": 0.1})
    trial = try_party("guest", fed.guest, fed.job, ROWS)
    estimate = estimate_memory("guest", fed.guest, fed.job, trial, process=0)
    assert estimate.table == 0 and estimate.optimizer == 0
    assert trial.loss is not None and trial.metrics[:2] == ("loss", "auc")


def test_a_larger_batch_retains_a_larger_graph() -> None:
    graphs = []
    for batch_size in (16, 64):
        fed = federation(batch_size=batch_size)
        graphs.append(try_party("guest", fed.guest, fed.job, ROWS).graph_bytes)
    assert graphs[0] * 3 < graphs[1] < graphs[0] * 5


def test_blocks_count_two_windows_instead_of_all_rows() -> None:
    order = {"shuffle": "blocks", "block_rows": 8, "window_blocks": 4}
    fed = federation(order=order, batch_size=16)
    trial = try_party("guest", fed.guest, fed.job, ROWS)
    train = fed.guest.train.num_bytes
    estimate = estimate_memory("guest", fed.guest, fed.job, trial, process=0)
    assert estimate.rows == 2 * train * 32 // ROWS + train


def test_a_containers_limit_counts_where_it_is_lower_than_the_machines_memory(
    tmp_path: Path,
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert available_bytes(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert available_bytes(meminfo, tmp_path) == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(meminfo, tmp_path) == 5000 * 1024
    assert available_bytes(tmp_path / "absent", tmp_path / "absent") is None


def test_the_memory_of_this_process_is_that_of_python_with_torch() -> None:
    assert resident_bytes() > 50_000_000
