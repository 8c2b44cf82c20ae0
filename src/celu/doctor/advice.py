"""From what was measured to words: each rule looks at one thing and says what to change.

Rules are pure functions of a `LinkFacts`, and see nothing that is not in it. Those about the parties
and about the line have files of their own; here is what they mean for the job, and all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from celu.doctor import link_rules, party_rules
from celu.doctor.facts import Finding, LinkFacts, seconds, size

_MOST_DEPTH = 4  # derivatives that come later than that are worth less
_WORTH = 1.25  # times faster: less is not worth a change


def rounds(case: LinkFacts) -> Iterator[Finding]:
    """What all this means for the job."""
    found, depth = case.forecast, case.depth
    now = found.seconds(depth)
    whole = ""
    if case.rounds is not None:
        whole = f"; {case.rounds:,} rounds take {seconds(case.rounds * now)}"
    yield Finding(
        "round",
        "ok",
        f"{found.codec}: at most {size(found.to_guest_bytes)} to the guest and "
        f"{size(found.to_host_bytes)} to the host a round; on this line {seconds(found.serial_s)} "
        f"one at a time, {seconds(found.full_s)} with {found.depth} in flight, "
        f"{seconds(now)} with {depth} as in job.toml{whole}; computing comes on top",
    )
    if now < 0.01:
        yield Finding("round", "ok", "the line is not what a run will wait for")
        return
    if case.auto:
        words = 'method = "auto" chooses them while it trains, but for those written in job.toml'
        yield from (Finding(what, "ok", words) for what in ("depth", "codec"))
        return
    yield from _depth(case, now)
    yield from _codec(case, now)


def _depth(case: LinkFacts, now: float) -> Iterator[Finding]:
    depth = min(case.forecast.depth, _MOST_DEPTH)
    then = case.forecast.seconds(depth)
    if depth <= case.depth or now < _WORTH * then:
        yield Finding("depth", "ok", f"depth = {case.depth} fills this line as far as it pays")
        return
    yield Finding(
        "depth",
        "warn",
        f"with depth = {case.depth} the line idles: {seconds(now)} a round, {seconds(then)} with "
        f"{depth} in flight ({case.forecast.depth} fill it)",
        f"Set depth = {depth} under [method] in job.toml, at all parties; derivatives then come "
        f"{depth - case.depth} rounds later. Or let local steps (R) use the wait, or choose "
        'method = "auto", which finds all of it.',
    )


def _codec(case: LinkFacts, now: float) -> Iterator[Finding]:
    depth = case.depth
    bf16, int8 = (case.codecs[name].seconds(depth) for name in ("bf16", "int8"))
    if now < _WORTH * int8:
        words = f"another codec than {case.forecast.codec} makes little difference on this line"
        yield Finding("codec", "ok", words)
        return
    name, then = ("bf16", bf16) if bf16 < _WORTH * int8 else ("int8", int8)
    yield Finding(
        "codec",
        "warn",
        f"bytes are what a round waits for: {seconds(now)} with {case.forecast.codec}, "
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
    *(link_rules.idleness, rounds),
)


def advise(case: LinkFacts) -> list[Finding]:
    """All findings, in the order in which a reader wants them."""
    return [finding for rule in RULES for finding in rule(case)]
