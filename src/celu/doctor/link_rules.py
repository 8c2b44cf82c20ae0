"""Rules about the line: where its speed goes, and which setting gives it back.

The thresholds are judgements; each rule says what it rests on.
"""

from __future__ import annotations

from collections.abc import Iterator

from celu.doctor.facts import Finding, LinkFacts, mbps, seconds, size

# What HTTP/2 lets a sender have unacknowledged before anybody says otherwise (RFC 9113, 6.9.2).
WINDOW = 65535
_DISTANT_S = 0.002  # below, a window of that size limits nobody
_LOSS_BASED = ("cubic", "reno")


def emulation(case: LinkFacts) -> Iterator[Finding]:
    """What is measured over an emulated line says nothing of the real one."""
    if case.emulated:
        words = "what this party sends is slowed down to an emulated line"
        yield Finding("line", "warn", words, "For a real run, remove link from party.toml.")


def latency(case: LinkFacts) -> Iterator[Finding]:
    """One round at a time waits for the slowest trip; rounds in flight do not."""
    found = case.measured
    words = (
        f"a trip there and back takes {seconds(found.rtt_median_s)} "
        f"(at least {seconds(found.rtt_min_s)}), give or take {seconds(found.jitter_s)}"
    )
    if found.jitter_s > max(0.005, found.rtt_median_s / 4) and case.depth == 1:
        change = "Set depth = 2 under [method] in job.toml: one late message then stops nobody."
        yield Finding("latency", "warn", words, change)
    else:
        yield Finding("latency", "ok", words)


def duplex(case: LinkFacts) -> Iterator[Finding]:
    """Rounds in flight use both ways at once."""
    for where, _, way in case.ways():
        words = f"{where} {mbps(way.mbps)}, and {way.share:.0%} of it with both ways in use"
        if way.share >= 0.7:
            yield Finding("bandwidth", "ok", words)
        else:
            yield Finding(
                "bandwidth",
                "warn",
                f"{words}: the two share a line, or the processors of one of the machines",
                "Rounds in flight gain less here than they could; fewer bytes (codec in job.toml) "
                "gain in full.",
            )


def window(case: LinkFacts) -> Iterator[Finding]:
    """A gateway that ends HTTP/2 itself often lets 64 KiB pass in each round trip, and no more."""
    rtt_s = case.measured.rtt_min_s
    for where, _, way in case.ways():
        in_flight = way.bytes_per_s * rtt_s
        if rtt_s >= _DISTANT_S and WINDOW / 2 <= in_flight <= WINDOW * 2:
            who = "our" if case.connects else f"{case.peer}'s"
            yield Finding(
                "gateway",
                "warn",
                f"{where} {mbps(way.mbps)} at {seconds(rtt_s)} a trip is {in_flight / 1024:.0f} "
                "KiB in flight: a gateway in between seems to keep HTTP/2's first window of 64 "
                "KiB, unless the line is just that slow",
                f"Set streams = 32 in {who} party.toml (the side that connects), or carrier = "
                '"websocket"; measure again: if it is faster, it was the gateway.',
            )


def buffers(case: LinkFacts) -> Iterator[Finding]:
    """The kernel keeps what is in flight, and about as much again for its own book-keeping."""
    rtt_s = case.measured.rtt_median_s
    sides = (
        ("tcp_wmem", case.machine.tcp_wmem, case.sending, f"to {case.peer}"),
        ("tcp_rmem", case.machine.tcp_rmem, case.receiving, f"from {case.peer}"),
    )
    for name, sizes, way, where in sides:
        if sizes is None:
            continue
        in_flight = way.bytes_per_s * rtt_s
        words = f"{where} {size(in_flight)} are in flight; net.ipv4.{name} allows {size(sizes[2])}"
        if in_flight < 0.4 * sizes[2]:
            yield Finding("buffers", "ok", words)
            continue
        most = max(16 << 20, 1 << int(4 * in_flight).bit_length())
        setting = f'sysctl -w net.ipv4.{name}="{sizes[0]} {sizes[1]} {most}"'
        yield Finding("buffers", "warn", f"{words}: too little, or nearly so", f"{setting}, here.")


def congestion(case: LinkFacts) -> Iterator[Finding]:
    """Cubic and reno take a lost packet for a full line; bbr does not."""
    control = case.machine.congestion_control
    if control is None:
        return
    if control in _LOSS_BASED and case.measured.rtt_min_s >= 0.01:
        yield Finding(
            "congestion",
            "ok",
            f"this machine sends by {control}, which slows down at every lost packet; on a long "
            "line that loses one in ten thousand, bbr carries nearly twice as much",
            "If the line loses packets: sysctl -w net.ipv4.tcp_congestion_control=bbr, here.",
        )
    else:
        yield Finding("congestion", "ok", f"this machine sends by {control}")


def idleness(case: LinkFacts) -> Iterator[Finding]:
    """A kernel forgets how fast a line is where nothing was sent for a while."""
    for where, sender, way in case.ways():
        words = (
            f"{where} {size(way.parcel_bytes)} take {seconds(way.parcel_s)} in a stream and "
            f"{seconds(way.rested_s)} after a rest"
        )
        lost_s = way.rested_s - way.parcel_s
        if way.rested_s < 1.5 * way.parcel_s or lost_s < max(0.02, case.measured.rtt_min_s):
            yield Finding("idle", "ok", words)
            continue
        depth = "more rounds in flight (depth under [method] in job.toml) keep the line warm"
        if sender == case.name and case.machine.slow_start_after_idle is False:
            change = f"{depth[0].upper()}{depth[1:]}."
        else:
            at = "here" if sender == case.name else f"at {case.peer}"
            change = f"sysctl -w net.ipv4.tcp_slow_start_after_idle=0, {at}; or {depth}."
        yield Finding("idle", "warn", words, change)
