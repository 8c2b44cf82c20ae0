"""Advice about a measured link: each rule checks one thing and says what to change.

Rules are pure functions of a `LinkFacts`. Rules about the parties and about the link have their own
modules; this one has the rules about the job, and the list of all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from celu.doctor import link_rules, party_rules
from celu.doctor.facts import Finding, LinkFacts, seconds, size

_MAX_DEPTH = 4  # older derivatives slow down convergence
_MIN_SPEEDUP = 1.25  # that is worth a change


def rounds(facts: LinkFacts) -> Iterator[Finding]:
    """The estimated time of a round, and whether depth or codec should change."""
    estimate, depth = facts.estimate, facts.depth
    now = estimate.seconds(depth)
    total = ""
    if facts.rounds is not None:
        total = f"; {facts.rounds:,} rounds take {seconds(facts.rounds * now)}"
    yield Finding(
        "round",
        "ok",
        f"{estimate.codec}: at most {size(estimate.to_guest_bytes)} to the guest and "
        f"{size(estimate.to_host_bytes)} to the host per round; a round takes "
        f"{seconds(estimate.serial_s)} with 1 in flight, {seconds(estimate.full_s)} with "
        f"{estimate.depth} in flight and {seconds(now)} with {depth} as in job.toml{total}; "
        "computation is not included",
    )
    if now < 0.01:
        yield Finding("round", "ok", "the link is fast enough: a run will not wait for it")
        return
    if facts.auto:
        message = 'method = "auto" chooses it during the run, unless job.toml sets it'
        yield from (Finding(topic, "ok", message) for topic in ("depth", "codec"))
        return
    yield from _depth(facts, now)
    yield from _codec(facts, now)


def _depth(facts: LinkFacts, now: float) -> Iterator[Finding]:
    depth = min(facts.estimate.depth, _MAX_DEPTH)
    then = facts.estimate.seconds(depth)
    if depth <= facts.depth or now < _MIN_SPEEDUP * then:
        yield Finding("depth", "ok", f"depth = {facts.depth} is right for this link")
        return
    yield Finding(
        "depth",
        "warn",
        f"with depth = {facts.depth} the link is idle much of the time: {seconds(now)} per round, "
        f"{seconds(then)} with {depth} in flight ({facts.estimate.depth} fill the link)",
        f"Set depth = {depth} under [method] in job.toml, at all parties; derivatives then arrive "
        f"{depth - facts.depth} rounds later. Or use the waiting time for local steps (R), or set "
        'method = "auto", which chooses all of these.',
    )


def _codec(facts: LinkFacts, now: float) -> Iterator[Finding]:
    depth = facts.depth
    bf16, int8 = (facts.codecs[name].seconds(depth) for name in ("bf16", "int8"))
    if now < _MIN_SPEEDUP * int8:
        message = f"another codec than {facts.estimate.codec} makes little difference on this link"
        yield Finding("codec", "ok", message)
        return
    name, then = ("bf16", bf16) if bf16 < _MIN_SPEEDUP * int8 else ("int8", int8)
    yield Finding(
        "codec",
        "warn",
        f"bandwidth limits the rounds: {seconds(now)} per round with {facts.estimate.codec}, "
        f"{seconds(bf16)} with bf16, {seconds(int8)} with int8",
        f'Set codec = "{name}" in job.toml, at all parties: {now / then:.1f} times as fast.',
    )


Rule = Callable[[LinkFacts], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    *(party_rules.contract, party_rules.versions, party_rules.certificates, party_rules.clocks),
    *(
        link_rules.emulation,
        link_rules.latency,
        link_rules.duplex,
        link_rules.window,
        link_rules.buffers,
        link_rules.congestion,
    ),
    *(link_rules.idle_restart, rounds),
)


def advise(facts: LinkFacts) -> list[Finding]:
    """All findings, in the order in which they are printed."""
    return [finding for rule in RULES for finding in rule(facts)]
