"""`celu serve` with real processes, mutual TLS and HTTP: answers, outages, limits, new models."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import pytest

from slow.serving.served import (
    COMMON,
    DEADLINE_S,
    GUEST,
    HOST,
    Inferred,
    Served,
    align,
    invoke,
    predicted,
    request_of,
)

IDS = [f"shared-{n}" for n in range(COMMON)]


def test_single_rows_online_have_the_scores_of_predict(served: Served) -> None:
    expected = predicted(served.folder, "1")
    guest, host = served.start_both()
    for row in IDS[:20]:
        found = served.infer([row])
        assert found.scores == pytest.approx([expected[row]], abs=1e-5)
        assert (found.degraded, found.missing) == ([False], [""])
    together = served.infer(IDS)
    assert together.scores == pytest.approx([expected[row] for row in IDS], abs=1e-5)
    own = [f"{GUEST}-only-{n}" for n in range(3)]
    alone = served.infer([*own, IDS[0]])  # rows that the host lacks get its mean Z, and a flag
    assert alone.scores == pytest.approx([expected[row] for row in [*own, IDS[0]]], abs=1e-5)
    assert alone.missing == [HOST, HOST, HOST, ""]
    assert (guest.end(), host.end()) == (0, 0)
    assert not [line for line in served.outputs().splitlines() if "shared-" in line]


def test_serving_needs_nothing_of_the_training_but_the_exported_model(served: Served) -> None:
    folder, expected = served.folder, predicted(served.folder, "1")
    for name in (GUEST, HOST):
        own = folder / name
        invoke("prepare", own / "raw.csv", "--like", own / "store", "--out", own / "new")
        for training in ("store", "alignment", "export1", "export2"):
            shutil.rmtree(own / training)
        for training in ("raw.csv", "schema.toml"):
            (own / training).unlink()
    for run in ("run1", "run2"):
        shutil.rmtree(folder / run)
    align(folder, store_name="new")
    for name in (GUEST, HOST):
        rows = "--store", folder / name / "new", "--alignment", folder / name / "alignment"
        served.start(name, *rows)
    served.wait_until_complete()
    found = served.infer(IDS)
    assert found.scores == pytest.approx([expected[row] for row in IDS], abs=1e-5)
    assert not any(found.degraded)
    columns = {"distance": [0.5], "seats": [50.0], "carrier": ["c1"]}
    assert not any(served.infer(IDS[:1], **columns).degraded)  # encoded with the model's schema


@pytest.mark.parametrize("codec", ["fp32", "int8"])
@pytest.mark.parametrize("asks", ["numbers", "tags"])
def test_asks_by_number_and_by_tag_have_the_same_answers(
    served: Served, asks: str, codec: str
) -> None:
    expected = predicted(served.folder, "1")
    serving = served.folder / "serving.toml"
    serving.write_text(serving.read_text() + f'asks = "{asks}"\ncodec = "{codec}"\n')
    served.start_both()
    found = served.infer(IDS[:50])
    tolerance = 1e-5 if codec == "fp32" else 0.05
    assert found.scores == pytest.approx([expected[row] for row in IDS[:50]], abs=tolerance)
    assert not any(found.degraded)
    own = f"{GUEST}-only-1"
    assert served.infer([IDS[0], own, IDS[1]]).missing == ["", HOST, ""]
    assert served.infer(IDS[:50]) == found  # rounding is to nearest: asking again reveals nothing


def test_a_clients_own_features_give_the_score_of_the_prepared_row(served: Served) -> None:
    import pyarrow.csv

    raw = pyarrow.csv.read_csv(served.folder / GUEST / "raw.csv").slice(0, 30).to_pydict()
    served.start_both()
    columns = {name: raw[name] for name in ("distance", "seats", "carrier")}
    assert any(value is None for value in columns["seats"])
    stored, sent = served.infer(raw["flight"]), served.infer(raw["flight"], **columns)
    assert sent.scores == pytest.approx(stored.scores, abs=1e-6)
    assert not any(sent.degraded)
    changed = served.infer(raw["flight"], **{**columns, "distance": [9.0] * 30})
    assert changed.scores != pytest.approx(stored.scores, abs=1e-3)
    new = served.infer(["new"], distance=[0.5], seats=[None], carrier=["never seen"])
    assert new.missing == [HOST]
    status, answer = served.post(request_of(["new"]))
    assert status == 404 and "store" in answer["error"] and "new" not in answer["error"][:12]


def test_a_killed_host_is_flagged_and_comes_back_by_itself(served: Served) -> None:
    guest, host = served.start_both()
    before = served.infer(IDS[:5])
    host.end(signal.SIGKILL)
    guest.wait_for("the link to weather is down")
    during = served.infer(IDS[:5])
    assert during.degraded == [True] * 5 and during.missing == [HOST] * 5
    assert during.scores != before.scores
    served.start(HOST)
    served.wait_until_complete()
    assert served.infer(IDS[:5]) == before
    assert guest.process.poll() is None


def test_a_host_that_does_not_answer_in_time_is_flagged(served: Served) -> None:
    served.serve[GUEST] = "deadline_ms = 10000\n"
    guest, host = served.start_both()
    before = served.infer(IDS[:5])
    host.process.suspend()
    during = served.infer(IDS[:5])
    assert during.degraded == [True] * 5
    host.process.send_signal(signal.SIGCONT)
    served.wait_until_complete()
    assert served.infer(IDS[:5]) == before
    assert guest.process.poll() is None
    # Right after a pause, another thread than the main one may receive the signal.
    host.process.send_signal(signal.SIGSTOP)
    host.process.send_signal(signal.SIGCONT)
    assert host.end() == 0


def test_a_guest_that_restarts_is_found_again_by_its_hosts(served: Served) -> None:
    guest, host = served.start_both()
    before = served.infer(IDS[:5])
    guest.end(signal.SIGKILL)
    served.start(GUEST)
    served.wait_until_complete()
    assert served.infer(IDS[:5]) == before
    assert host.process.poll() is None


def test_without_a_fallback_rows_are_refused_until_the_host_is_there(served: Served) -> None:
    served.serve[GUEST] = 'fallback = "refuse"\n'
    served.start(GUEST)
    assert served.get("/v2/health/ready")[0] == 503
    status, answer = served.post(request_of(IDS[:1]))
    assert status == 503 and HOST in answer["error"]
    served.start(HOST)
    served.wait_until_complete()
    assert served.get("/v2/health/ready")[0] == 200
    assert served.infer(IDS[:1]).degraded == [False]


def test_a_new_model_takes_over_under_load_without_a_failed_or_mixed_answer(
    served: Served,
) -> None:
    expected = {served.model(number): predicted(served.folder, number) for number in ("1", "2")}
    served.start_both()
    answers: list[Inferred] = []
    failures: list[BaseException] = []
    all_started, over = threading.Barrier(7), threading.Event()

    def client(row: str) -> None:
        try:
            answers.append(served.infer([row, IDS[0]]))
            all_started.wait(DEADLINE_S)
            while not over.is_set():
                answers.append(served.infer([row, IDS[0]]))
            answers.append(served.infer([row, IDS[0]]))  # begun after the change
        except BaseException as error:
            failures.append(error)
            all_started.abort()

    threads = [threading.Thread(target=client, args=(row,)) for row in IDS[:6]]
    for thread in threads:
        thread.start()
    try:
        all_started.wait(DEADLINE_S)
        served.add_model(GUEST, "2")  # alone it changes nothing: the host does not hold it
        assert served.infer(IDS[:1]).model == served.model("1")
        served.add_model(HOST, "2")
        served.wait_for_model(served.model("2"))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    assert {answer.model for answer in answers} == set(expected)
    assert not any(any(answer.degraded) for answer in answers)
    for answer in answers:
        scores = expected[answer.model]
        assert answer.scores[1] == pytest.approx(scores[IDS[0]], abs=1e-5)
    assert served.infer(IDS[:9]).scores == pytest.approx(
        [expected[served.model("2")][row] for row in IDS[:9]], abs=1e-5
    )


def test_parties_without_a_common_model_say_which_and_use_the_fallback(served: Served) -> None:
    (served.folder / HOST / "models" / "1").rename(served.folder / HOST / "older")
    served.add_model(HOST, "2")
    guest, host = served.start(GUEST), served.start(HOST)
    guest.wait_for(f"no model that all parties hold; {HOST} lacks {served.model('1')}")
    assert served.infer(IDS[:2]).missing == [HOST, HOST]
    served.add_model(GUEST, "2")
    served.wait_for_model(served.model("2"))
    assert served.infer(IDS[:2]).degraded == [False, False]
    assert host.process.poll() is None


def test_another_serving_contract_is_refused_by_name_at_both(served: Served) -> None:
    guest = served.start(GUEST)
    serving = served.folder / "serving.toml"
    serving.write_text(serving.read_text() + 'codec = "bf16"\n')
    host = served.start(HOST)
    assert host.process.wait(900) == 7
    assert 'codec: weather has "bf16", airline has "fp32"' in " ".join(host.output().split())
    guest.wait_for("codec: airline has")
    assert guest.process.poll() is None


def test_another_alignment_is_refused_by_name_at_both(served: Served) -> None:
    guest = served.start(GUEST)
    align(served.folder, drop=1)
    host = served.start(HOST)
    assert host.process.wait(900) == 7
    assert "train_ids" in host.output()
    guest.wait_for("train_ids")
    assert served.infer(IDS[:1]).degraded == [True]


def test_a_hosts_limits_survive_its_restart(served: Served) -> None:
    served.serve[HOST] = "distinct_rows_per_day = 10\n"
    _, host = served.start_both()
    assert not any(served.infer(IDS[:10]).degraded)
    assert served.infer(IDS[10:11]).missing == [HOST]
    assert served.infer(IDS[:10]).degraded == [False] * 10  # the same rows again are no new ones
    assert served.infer(IDS[8:12]).missing == ["", "", HOST, HOST]
    host.wait_for("the guest reached serve.distinct_rows_per_day")
    host.end(signal.SIGKILL)
    served.start(HOST)
    served.wait_until_complete()
    assert served.infer(IDS[10:11]).missing == [HOST]
    assert served.infer(IDS[3:4]).degraded == [False]


def test_a_cached_z_answers_while_the_host_is_gone(served: Served) -> None:
    served.serve[GUEST] = "cache_mb = 1\ncache_s = 100000.0\n"
    _, host = served.start_both()
    before = served.infer(IDS[:4])
    host.end(signal.SIGKILL)
    served.processes[0].wait_for("the link to weather is down")
    assert served.infer(IDS[:4]) == before
    mixed = served.infer(IDS[2:6])
    assert mixed.missing[2:] == [HOST, HOST]


def test_a_model_without_hosts_is_a_fallback(served: Served, tmp_path: Path) -> None:
    from slow.serving.served import invoke

    folder = served.folder
    text = (folder / GUEST / "party.toml").read_text()
    alone = text.replace(text[text.index("[peers") : text.index("[keys]")], "")
    (folder / GUEST / "alone.toml").write_text(alone)
    job = 'guest = "airline"\nrounds = 20\nbatch_size = 32\nhosts = {}\n'
    (folder / "alone-job.toml").write_text(job)
    run = folder / "alone-run"
    invoke(
        *("simulate", folder / GUEST / "alone.toml", "--job", folder / "alone-job.toml"),
        *("--out", run),
    )
    invoke("export", run, "--out", folder / GUEST / "alone-model")
    served.serve[GUEST] = 'fallback = "alone-model"\n'
    served.start(GUEST)
    found = served.infer(IDS[:8])
    assert found.missing == [HOST] * 8
    (folder / "alone-serving.toml").write_text('guest = "airline"\nhosts = []\n')
    import pyarrow.parquet as pq

    out = tmp_path / "alone.parquet"
    invoke(
        *("predict", folder / GUEST / "alone.toml", "--serving", folder / "alone-serving.toml"),
        *("--model", folder / GUEST / "alone-model", "--out", out),
    )
    table = pq.read_table(out)
    expected = dict(zip(table["id"].to_pylist(), table["score"].to_pylist(), strict=True))
    assert found.scores == pytest.approx([expected[row] for row in IDS[:8]], abs=1e-5)


def test_pushed_z_answers_without_the_host_and_is_pushed_again_for_a_new_model(
    served: Served,
) -> None:
    expected = {served.model(number): predicted(served.folder, number) for number in ("1", "2")}
    serving = served.folder / "serving.toml"
    serving.write_text(serving.read_text() + 'mode = "pushed"\nchunk_rows = 37\n')
    guest, host = served.start_both()
    first = served.model("1")

    def check_first() -> None:  # some scores were computed in advance, and differ in the last bits
        found = served.infer(IDS)
        assert found.model == first and not any(found.degraded)
        assert found.scores == pytest.approx([expected[first][row] for row in IDS], abs=1e-5)

    check_first()
    host.end(signal.SIGKILL)
    guest.wait_for("the link to weather is down")
    check_first()
    assert served.infer([f"{GUEST}-only-1"]).missing == [HOST]
    guest.end()
    served.start(GUEST)  # the pushed Z is still there
    check_first()
    host = served.start(HOST)
    for name in (GUEST, HOST):
        served.add_model(name, "2")
    served.wait_for_model(served.model("2"))
    assert not any(served.infer(IDS).degraded)
    assert served.infer(IDS).scores == pytest.approx(
        [expected[served.model("2")][row] for row in IDS], abs=1e-5
    )
    assert "pushed for model " + first not in host.output()  # the guest had it already
