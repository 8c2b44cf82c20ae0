"""The soak runs: `python -m tests.soak` trains for hours, this test for half a minute."""

from __future__ import annotations

import json
from pathlib import Path

from soak.report import lines, to_json
from soak.run import PEER_STOPPED, STOPPED, Plan, soak


def test_two_parties_survive_outages_and_do_not_grow(tmp_path: Path) -> None:
    report = soak(Plan.of(minutes=0.5, num_outages=2), tmp_path)
    shown = "\n".join(lines(report))
    assert not report.failures, shown
    assert [outage.kind for outage in report.outages] == ["reset", "end"]
    codes = {name: party.exit_code for name, party in report.parties.items()}
    assert codes == {"guest": STOPPED, "host": PEER_STOPPED}
    for party in report.parties.values():
        last = party.samples[-1]
        assert last.links_down >= 1 and last.rounds > 0 and last.checkpoints > 0
        assert last.rss_mib > 50 and last.threads > 1 and last.descriptors > 3
    assert "rss_mib" in shown and "2 outages" in shown
    saved = json.loads(json.dumps(to_json(report, "python -m tests.soak")))
    assert len(saved["parties"]["guest"]["samples"]["rss_mib"]) == len(
        report.parties["guest"].samples
    )
    assert saved["figures"]["outages"] == 2
    assert saved["figures"]["host_rounds"] == report.parties["host"].samples[-1].rounds
