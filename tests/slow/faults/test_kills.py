"""kill -9 at any party and any time: the run ends with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from celu.privacy.ledger import read_ledger
from faults.kills import VICTIMS, kill_many
from faults.parties import JOB, Environment, Federation
from slow.faults.conftest import Federate

KILLS = 24  # `python -m tests.faults --kills 600` for more


def test_runs_killed_at_random_points_and_restarted_end_with_the_same_bits(
    environment: Environment,
    baseline: Federation,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    report = kill_many(environment, tmp_path, baseline, kills=KILLS, seed=2)
    done = "; ".join(report.lines())
    record_property("done", done)
    assert report.kills.total() >= KILLS, done
    assert set(report.kills) == set(VICTIMS), done
    assert report.restarts > 0, done


def test_when_one_of_two_hosts_is_killed_the_other_parties_resume_by_themselves(
    environment: Environment, federate: Federate, tmp_path: Path
) -> None:
    baseline = environment.run_without_faults(tmp_path / "baseline", hosts=2)
    federation = federate(hosts=2)
    federation.start()
    for name in ("other", "host"):
        federation.wait_for_rounds(40)
        assert federation.parties[name].kill()
        federation.parties[name].start()
    federation.wait()
    federation.assert_same_bits(baseline)
    assert [len(party.codes) for party in federation.parties.values()] == [1, 2, 2]
    assert len(federation.guest.events("restart")) >= 2


def test_with_label_privacy_a_run_killed_at_each_party_ends_with_the_same_bits(
    environment: Environment, federate: Federate, tmp_path: Path
) -> None:
    text = JOB + "[privacy]\nlabel_epsilon = 1.0\n"
    baseline = environment.run_without_faults(tmp_path / "baseline", job_text=text)
    federation = federate(job_text=text)
    federation.start()
    for names in VICTIMS.values():
        federation.wait_for_rounds(40)
        for name in names:
            assert federation.parties[name].kill()
        federation.start()
    federation.wait()
    federation.assert_same_bits(baseline)
    assert read_ledger(environment.folder / "label.key").total == 1.0
