"""Rules about the link: what limits its speed, and which setting to change.

The thresholds are judgements; each rule names the numbers that it is based on.
"""

from __future__ import annotations

from collections.abc import Iterator

from celu.doctor.facts import Finding, LinkFacts, mbps, seconds, size

# The initial flow-control window of HTTP/2, in bytes (RFC 9113, 6.9.2).
WINDOW = 65535
_MIN_RTT_S = 0.002  # with a shorter round trip, such a window is no limit
_LOSS_BASED = ("cubic", "reno")


def emulation(facts: LinkFacts) -> Iterator[Finding]:
    """A measurement of an emulated link says nothing about the real one."""
    if facts.emulated:
        message = "this party emulates a slower link"
        yield Finding("link", "warn", message, "For a real run, remove link from party.toml.")


def latency(facts: LinkFacts) -> Iterator[Finding]:
    """With one round in flight, every late message delays training."""
    measured = facts.measured
    message = (
        f"round trip {seconds(measured.rtt_median_s)} "
        f"(min {seconds(measured.rtt_min_s)}, jitter {seconds(measured.jitter_s)})"
    )
    if measured.jitter_s > max(0.005, measured.rtt_median_s / 4) and facts.depth == 1:
        fix = "Set depth = 2 under [method] in job.toml: a late message then delays nothing."
        yield Finding("latency", "warn", message, fix)
    else:
        yield Finding("latency", "ok", message)


def duplex(facts: LinkFacts) -> Iterator[Finding]:
    """Several rounds in flight use both directions at once."""
    for name, _, direction in facts.directions():
        message = f"{name} {mbps(direction.mbps)}, {direction.share:.0%} of it in full duplex"
        if direction.share >= 0.7:
            yield Finding("bandwidth", "ok", message)
        else:
            yield Finding(
                "bandwidth",
                "warn",
                f"{message}: both directions share the bandwidth or a machine's CPUs",
                "More rounds in flight help less on this link; sending fewer bytes (codec in "
                "job.toml) helps fully.",
            )


def window(facts: LinkFacts) -> Iterator[Finding]:
    """A gateway that terminates HTTP/2 often passes only 64 KiB in each round trip."""
    rtt_s = facts.measured.rtt_min_s
    for name, _, direction in facts.directions():
        in_flight = direction.bytes_per_s * rtt_s
        if rtt_s >= _MIN_RTT_S and WINDOW / 2 <= in_flight <= WINDOW * 2:
            who = "our" if facts.connects else f"{facts.peer}'s"
            yield Finding(
                "gateway",
                "warn",
                f"{name} {mbps(direction.mbps)} with a round trip of {seconds(rtt_s)} is "
                f"{in_flight / 1024:.0f} KiB in flight: a gateway seems to limit HTTP/2 to its "
                "initial window of 64 KiB, unless the link is just that slow",
                f"Set streams = 32 in {who} party.toml (the side that connects), or carrier = "
                '"websocket", and measure again: if it is faster, the gateway was the limit.',
            )


def buffers(facts: LinkFacts) -> Iterator[Finding]:
    """A socket buffer needs about twice the bytes in flight."""
    rtt_s = facts.measured.rtt_median_s
    sides = (
        ("tcp_wmem", facts.machine.tcp_wmem, facts.sending, f"to {facts.peer}"),
        ("tcp_rmem", facts.machine.tcp_rmem, facts.receiving, f"from {facts.peer}"),
    )
    for name, sizes, direction, where in sides:
        if sizes is None:
            continue
        in_flight = direction.bytes_per_s * rtt_s
        message = f"{where} {size(in_flight)} in flight; net.ipv4.{name} allows {size(sizes[2])}"
        if in_flight < 0.4 * sizes[2]:
            yield Finding("buffers", "ok", message)
            continue
        wanted = max(16 << 20, 1 << int(4 * in_flight).bit_length())
        setting = f'sysctl -w net.ipv4.{name}="{sizes[0]} {sizes[1]} {wanted}"'
        yield Finding(
            "buffers", "warn", f"{message}, which is too small or nearly so", f"{setting}, here."
        )


def congestion(facts: LinkFacts) -> Iterator[Finding]:
    """Cubic and reno slow down after a lost packet; bbr does not."""
    control = facts.machine.congestion_control
    if control is None:
        return
    if control in _LOSS_BASED and facts.measured.rtt_min_s >= 0.01:
        yield Finding(
            "congestion",
            "ok",
            f"this machine uses {control}, which slows down at every lost packet; on a long link "
            "with 0.01% packet loss, bbr is nearly twice as fast",
            "If the link loses packets: sysctl -w net.ipv4.tcp_congestion_control=bbr, here.",
        )
    else:
        yield Finding("congestion", "ok", f"this machine uses {control}")


def idle_restart(facts: LinkFacts) -> Iterator[Finding]:
    """After a pause, TCP goes through slow start again."""
    for name, sender, direction in facts.directions():
        message = (
            f"{name} {size(direction.burst_bytes)} take {seconds(direction.burst_s)} in a stream "
            f"and {seconds(direction.idle_burst_s)} after a pause"
        )
        lost_s = direction.idle_burst_s - direction.burst_s
        is_small = lost_s < max(0.02, facts.measured.rtt_min_s)
        if direction.idle_burst_s < 1.5 * direction.burst_s or is_small:
            yield Finding("idle", "ok", message)
            continue
        depth = "more rounds in flight (depth under [method] in job.toml) avoid the pauses"
        if sender == facts.name and facts.machine.slow_start_after_idle is False:
            fix = f"{depth[0].upper()}{depth[1:]}."
        else:
            at = "here" if sender == facts.name else f"at {facts.peer}"
            fix = f"sysctl -w net.ipv4.tcp_slow_start_after_idle=0, {at}; or {depth}."
        yield Finding("idle", "warn", message, fix)
