"""Whole runs that are audited: what they find, resuming, and that training stays the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import celu
from celu.audit.result import Attack, Audit, read_audit
from celu.audit.sample import RowSample
from celu.audit.tables import audit_content, notes_of, tables_of
from celu.checkpoint.generations import Checkpoints
from celu.config.audit import AuditSettings
from celu.engine.auditing import AuditOptions, with_canaries
from celu.errors import CheckpointError
from celu.events import Event
from celu.models.tops import WideDeepTop
from celu.models.tower import Tower
from celu.simulation import simulate_all
from celu.transport.message import Message
from federation import Federation, assert_same_bits
from twins import as_bytes, messages_to_hosts

ROWS, TRAIN = 2000, 1600


def audited(loss: str = "binary", rounds: int = 100, **job: Any) -> Federation:
    """A federation whose labels follow from the host's numbers, with held-out rows."""
    random = torch.Generator().manual_seed(7)
    numbers = {name: torch.randn(ROWS, 4, generator=random) for name in ("guest", "host")}
    signal = numbers["guest"][:, 0] + numbers["host"][:, 0]
    signal = signal + 0.8 * torch.randn(ROWS, generator=random)
    labels = {
        "binary": (signal > 0.8).float(),
        "multiclass": torch.bucketize(signal, torch.tensor([-0.5, 0.5])),
        "regression": signal,
    }[loss]

    def parts(name: str, labels: Any = None) -> dict[str, celu.Dataset]:
        cuts = {"train": slice(0, TRAIN), "test": slice(TRAIN, ROWS)}
        return {
            part: celu.Dataset(
                {"numbers": numbers[name][rows]}, labels if labels is None else labels[rows]
            )
            for part, rows in cuts.items()
        }

    torch.manual_seed(3)
    outputs = 3 if loss == "multiclass" else 1
    guest = celu.Guest(
        bottom=Tower(6, {"numbers": 4}, {}, hidden=(8,)),
        top=WideDeepTop([6, 6], outputs, hidden=(8,)),
        loss=loss,
        label_key=b"l" * 32,
        **parts("guest", labels),
    )
    host = celu.Host(bottom=Tower(6, {"numbers": 4}, {}, hidden=(8,)), **parts("host"))
    settings = {"rounds": rounds, "batch_size": 64, "hosts": {"host": celu.HostTerms(z_width=6)}}
    evaluation = celu.Evaluation(every=50, metric="loss")
    return Federation(
        celu.Job(**{**settings, "evaluation": evaluation, **job}), guest, {"host": host}
    )


def options(key: bytes = b"k" * 32, **settings: Any) -> AuditOptions:
    return AuditOptions(AuditSettings(**{"rows": 1200, **settings}), key)


def run(fed: Federation, option: AuditOptions, **more: Any) -> dict[str, celu.Result]:
    audits = dict.fromkeys(("guest", "host"), option)
    return simulate_all(fed.job, fed.guest, fed.hosts, audits=audits, **more)


def audit_of(result: celu.Result) -> Audit:
    assert result.audit is not None
    return result.audit


def attacks(audit: Audit, name: str) -> list[Attack]:
    return [attack for attack in audit.labels[0].attacks if attack.name == name]


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_without_a_defence_the_attacks_find_every_label(codec: str) -> None:
    fed = audited(codec=codec)
    found = run(fed, options())
    audit = audit_of(found["guest"])
    assert audit.rows == 1200
    assert audit.exposures == 4
    for name in ("linear", "network"):
        figures = [attack.rows for attack in attacks(audit, name)]
        assert all((leak.auc or 0) >= 0.99 for leak in figures), (name, figures)
    for name in ("cosine", "spectral"):  # one direction does not separate all rows of a deep top
        assert max(attack.rows.auc or 0 for attack in attacks(audit, name)) >= 0.95
    network = attacks(audit, "network")
    assert [attack.view for attack in network] == [
        "one exposure",
        "average of exposures",
        "all exposures",
    ]
    assert all((attack.rows.own_auc or 0) >= 0.99 for attack in network)
    completion = audit.labels[0].completion
    assert completion is not None and completion.unseen_auc is not None
    assert completion.unseen_auc > 0.6


def test_a_host_finds_the_column_that_its_z_reveals_most_first() -> None:
    audit = audit_of(run(audited(), options())["host"])
    shares = [max(column.one or 0, column.all or 0) for column in audit.columns]
    assert len(shares) == 4
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5


def test_random_labels_of_canaries_are_found_as_exactly_as_the_others() -> None:
    audit = audit_of(run(audited(), options(canaries=200))["guest"])
    assert audit.canaries == 200
    canaries = [attack.canaries for attack in attacks(audit, "network")]
    assert all(leak is not None and (leak.auc or 0) >= 0.95 for leak in canaries)


def test_canaries_are_random_and_only_among_training_rows() -> None:
    guest = audited().guest
    sample = RowSample(guest.train, b"k" * 32, 1200, 200)
    changed = with_canaries(guest, sample)
    assert changed.train.labels is not None and guest.train.labels is not None
    rows = torch.from_numpy(sample.row_numbers[:200])
    others = torch.ones(TRAIN, dtype=torch.bool)
    others[rows] = False
    assert torch.equal(changed.train.labels[others], guest.train.labels[others])
    assert 70 < int(changed.train.labels[rows].sum()) < 130
    assert changed.test is guest.test
    assert changed.label_key == guest.label_key == b"l" * 32
    other = with_canaries(guest, RowSample(guest.train, b"x" * 32, 1200, 200))
    assert other.train.labels is not None
    assert not torch.equal(changed.train.labels, other.train.labels)


@pytest.mark.parametrize("loss", ["multiclass", "regression"])
def test_classes_and_numbers_are_attacked_with_a_note(loss: str) -> None:
    audit = audit_of(run(audited(loss), options())["guest"])
    assert audit.notes
    found = [*attacks(audit, "linear"), *attacks(audit, "network")]
    assert max(attack.rows.auc or 0 for attack in found) > 0.85
    assert bool(attacks(audit, "norm")) == (loss == "regression")


def test_the_guests_audit_says_that_a_host_has_a_more_exact_z() -> None:
    audit = audit_of(run(audited(rounds=1), options())["guest"])
    assert any("A host has its exact Z" in sentence for sentence in notes_of(audit))


def conversation(fed: Federation, audit: AuditOptions | None) -> list[Any]:
    """The bytes of all messages in both directions."""
    messages: list[Message] = []
    messages_to_hosts(fed, messages, audit=audit, received=messages)
    return [as_bytes(message) for message in messages]


def test_an_audit_changes_no_bit_of_the_training_and_no_byte_on_the_wire() -> None:
    plain, recorded = audited(), audited()
    without = simulate_all(plain.job, plain.guest, plain.hosts)["guest"]
    events: list[Event] = []
    found = run(recorded, options(), callbacks=[events.append])["guest"]
    assert_same_bits(plain.weights(), recorded.weights())
    assert found.traffic == without.traffic
    assert conversation(audited(), None) == conversation(audited(), options())
    assert without.audit is None
    assert events[-1].event == "audit"


def test_randomized_labels_leave_an_attack_little_of_its_own() -> None:
    fed = audited(privacy={"label_epsilon": 0.4})
    audit = audit_of(run(fed, options(canaries=400))["guest"])
    own = [attack.rows.own_auc or 0 for attack in attacks(audit, "network")]
    canaries = [attack.canaries for attack in attacks(audit, "network")]
    assert max(own) < 0.8  # 0.61 to 0.77, by the labels that are drawn
    assert all(leak is not None and (leak.auc or 0) < 0.75 for leak in canaries)


def test_few_rows_are_a_note_and_no_error() -> None:
    audit = audit_of(run(audited(rounds=1), options())["guest"])
    assert not audit.labels
    assert "at least 200 recorded rows" in audit.notes[0]


class Killed(Exception):
    pass


def interrupted(fed: Federation, option: AuditOptions, folder: Path) -> dict[str, Checkpoints]:
    """Train until round 60, with checkpoints; a later run resumes."""

    def stop(event: Event) -> None:
        if event.event == "checkpoint" and getattr(event, "round", 0) >= 60:
            raise Killed

    def stores() -> dict[str, Checkpoints]:
        return {name: Checkpoints(folder / name) for name in ("guest", "host")}

    with pytest.raises(celu.CeluError, match="Killed"):
        run(copy.deepcopy(fed), option, checkpoints=stores(), callbacks=[stop])
    return stores()


def without_time(audit: Audit) -> Audit:
    return audit.model_copy(update={"seconds": 0.0})


def test_a_resumed_run_finds_the_same(tmp_path: Path) -> None:
    fed, option = audited(checkpoint=celu.Checkpoint(every=20)), options(canaries=100, exposures=2)
    stores = interrupted(fed, option, tmp_path)
    whole, resumed = copy.deepcopy(fed), copy.deepcopy(fed)
    expected = run(whole, option)
    found = run(resumed, option, checkpoints=stores)
    assert_same_bits(whole.weights(), resumed.weights())
    for name in expected:
        assert without_time(audit_of(expected[name])) == without_time(audit_of(found[name]))


def test_another_key_or_no_audit_is_refused_where_labels_have_canaries(tmp_path: Path) -> None:
    fed, option = audited(checkpoint=celu.Checkpoint(every=20)), options(canaries=100)
    stores = interrupted(fed, option, tmp_path)
    with pytest.raises(CheckpointError, match="audit has changed"):
        run(copy.deepcopy(fed), options(b"x" * 32, canaries=100), checkpoints=stores)
    with pytest.raises(CheckpointError, match="got no \\[audit\\]"):
        simulate_all(fed.job, fed.guest, fed.hosts, checkpoints=stores)


def test_an_audit_survives_its_file_and_a_damaged_one_is_a_note(tmp_path: Path) -> None:
    audit = audit_of(run(audited(), options(canaries=200))["guest"])
    (tmp_path / "audit.json").write_text(audit.to_json(), encoding="utf-8")
    assert read_audit(tmp_path) == audit
    table = tables_of(audit)[0]
    assert "canary AUC" in table.headings
    assert len(table.rows) == len(audit.labels[0].attacks)
    assert any("not covered" in note for note in notes_of(audit))
    assert b"k" * 8 not in audit.to_json().encode()
    (tmp_path / "audit.json").write_text("{}", encoding="utf-8")
    content = audit_content(tmp_path)
    assert content is not None and "expected an audit" in content["notes"][0]
    assert audit_content(tmp_path / "elsewhere") is None
