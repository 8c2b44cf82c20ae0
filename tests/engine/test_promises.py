"""What a run says that its defences promise: figures only where there is a proof."""

from __future__ import annotations

import copy
import re
from typing import Any

import celu
from celu.audit.tables import notes_of
from celu.config.audit import AuditSettings
from celu.engine.auditing import AuditOptions
from celu.engine.promises import promises
from celu.engine.schedule import Schedule
from celu.privacy.accountant import gaussian_epsilon, gaussian_mu
from federation import federation
from noises import GAUSSIAN, MARVELL, noisy_federation

SCHEDULE = Schedule(25, rounds_per_epoch=10, evaluate_every=10, test_rows=50, part_rows=32)


def job(**privacy: Any) -> celu.Job:
    return federation(privacy=privacy, rounds=25).job


def test_a_contract_without_a_defence_promises_nothing() -> None:
    assert promises(job(), SCHEDULE) == []
    alone = job(label_epsilon=1.0).model_copy(update={"hosts": {}})
    assert promises(alone, SCHEDULE) == []


def test_randomized_labels_have_the_epsilon_of_the_contract_and_noise_on_dz_none() -> None:
    (labels,) = promises(job(label_epsilon=0.5), SCHEDULE)
    assert labels.startswith("labels: epsilon 0.5 of label differential privacy for each row")
    for noise in (MARVELL, GAUSSIAN):
        (dz,) = promises(job(dz_noise=noise), SCHEDULE)
        assert f"{noise['name']} noise, no epsilon" in dz
        assert not re.search(r"epsilon \d", dz)


def test_a_row_of_z_is_counted_once_for_each_epoch_that_begins_and_in_the_mean() -> None:
    (z,) = promises(job(z_noise=GAUSSIAN), SCHEDULE)
    found = [float(n) for n in re.findall(r"(?:epsilon|row's) ([\d.]+)", z)]
    exact = [gaussian_epsilon(gaussian_mu(2.0, n), 1e-6) for n in (3 + 1 / 320, 3)]
    assert all(0 <= stated - epsilon <= 0.01 for stated, epsilon in zip(found, exact, strict=True))
    assert "at delta 1e-06, given the host's weights" in z


def test_delta_is_a_tenth_of_one_over_the_rows_at_most() -> None:
    found = {}
    for rows in (100_000, 100_001, 10_000_000):
        schedule = Schedule(10, rows, evaluate_every=10, test_rows=50, part_rows=1)
        (z,) = promises(job(z_noise=GAUSSIAN), schedule)
        found[rows] = re.findall(r"delta (\S+),", z)[0]
    assert found == {100_000: "1e-06", 100_001: "1e-07", 10_000_000: "1e-08"}


def test_a_run_and_its_audit_say_what_is_promised() -> None:
    fed = noisy_federation(z_noise=GAUSSIAN, dz_noise=MARVELL, rounds=8)
    events: list[celu.Event] = []
    audits = {"guest": AuditOptions(AuditSettings(rows=400), bytes(32))}
    plain = federation(rounds=8)
    result = celu.simulate(fed.job, fed.guest, fed.hosts, callbacks=[events.append], audits=audits)
    said = [e.fields["promise"] for e in events if e.event == "defence"]
    assert [text.partition(":")[0] for text in said] == ["Z", "dZ"]
    assert result.audit is not None and result.audit.promises == said
    assert any("Promised of dZ: marvell noise, no epsilon" in n for n in notes_of(result.audit))
    without = celu.simulate(plain.job, plain.guest, copy.deepcopy(plain.hosts), audits=audits)
    assert without.audit is not None
    assert "The contract has no defence: nothing is promised." in notes_of(without.audit)
