"""Two parties that train over a link with outages while they are sampled."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from faults.parties import Federation, open_environment, wait_for
from faults.proxy import Proxy

from .judge import judge
from .outages import Outage, outages
from .report import PartyReport, Report
from .samples import Sample, Sampler
from .viewer import Viewer, viewing

# The default method, with local steps at the guest.
_JOB = """
seed = 1
batch_size = 32
rounds = {rounds}
guest = "guest"
codec = "4bit"
[method]
depth = 4
[checkpoint]
every = {checkpoint_every}
[evaluation]
every = {evaluate_every}
"""
STOPPED, PEER_STOPPED = 130, 12  # exit codes after Ctrl-C at the guest


@dataclass(frozen=True)
class Plan:
    """How long, and what happens meanwhile."""

    minutes: float
    num_outages: int
    max_outage_s: float
    sample_every_s: float
    view_s: float  # for which a dashboard is open, and then closed
    heartbeat_s: float
    mbps: float
    delay_ms: float
    jitter_ms: float
    checkpoint_every: int
    evaluate_every: int
    rounds: int  # more than there is time for
    carrier: str
    seed: int

    @staticmethod
    def of(
        minutes: float, num_outages: int | None = None, carrier: str = "grpc", seed: int = 1
    ) -> Plan:
        """By default an outage every two minutes, of up to half a minute; at least 2."""
        number = max(2, round(minutes / 2)) if num_outages is None else num_outages
        apart_s = minutes * 60 / (number + 1)
        return Plan(
            minutes=minutes,
            num_outages=number,
            max_outage_s=max(2.0, min(30.0, apart_s / 4)),
            sample_every_s=min(60.0, minutes * 60 / 40),
            view_s=min(60.0, apart_s / 2),
            heartbeat_s=min(5.0, apart_s / 8),
            mbps=20.0,
            delay_ms=150.0,
            jitter_ms=20.0,
            checkpoint_every=100 if minutes > 10 else 20,
            evaluate_every=200 if minutes > 10 else 40,
            rounds=max(1000, round(minutes * 60 * 16)),  # the delay allows 13 per second
            carrier=carrier,
            seed=seed,
        )


class Spawner:
    """Starts parties as an operator does: `celu run` in a new process."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, arguments: list[str], log: Path) -> int:
        """Start `celu` with these arguments; returns its process id."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "celu.cli.app", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes[process.pid] = process
        return process.pid

    def poll(self, pid: int) -> int | None:
        """The exit code of a process; None while it runs."""
        return self._processes[pid].poll()

    def stop(self) -> None:
        """Kill every party that still runs."""
        for process in self._processes.values():
            process.kill()
            process.wait()


def soak(plan: Plan, folder: Path, on_sample: Callable[[str], None] = lambda line: None) -> Report:
    """Train, with outages, and judge the samples; AssertionError if training does not start."""
    with ExitStack() as stack:
        environment = stack.enter_context(open_environment(folder / "environment", Spawner()))
        via = environment.free_port()
        job = _JOB.format(**asdict(plan))
        link = f"{{ mbps = {plan.mbps}, delay_ms = {plan.delay_ms}, jitter_ms = {plan.jitter_ms} }}"
        federation = environment.federation(
            folder / "federation",
            via=via,
            job_text=job,
            link=f"link = {link}",
            options=["--dashboard"],
            heartbeat_s=plan.heartbeat_s,
            carrier=plan.carrier,
        )
        proxy = stack.enter_context(Proxy(via, federation.port))
        federation.start()
        federation.wait_for_checkpoint(1)
        viewers = {
            name: stack.enter_context(viewing(party.log, plan.view_s, plan.view_s))
            for name, party in federation.parties.items()
        }
        within_s = plan.minutes * 60
        with outages(proxy, plan.num_outages, within_s, plan.max_outage_s, plan.seed) as made:
            samples = _sample(federation, plan, on_sample)
        failures = _stop(federation)
    return _report(plan, made, samples, viewers, federation, failures)


def _sample(
    federation: Federation, plan: Plan, on_sample: Callable[[str], None]
) -> dict[str, list[Sample]]:
    """Sample all parties until the time is over or one of them has ended."""
    began = time.monotonic()
    samples: dict[str, list[Sample]] = {name: [] for name in federation.parties}
    samplers = {
        name: Sampler(party.pid or 0, party.run, party.log)
        for name, party in federation.parties.items()
    }
    number = 0
    while time.monotonic() < began + plan.minutes * 60:
        for name, sampler in samplers.items():
            try:
                sample = sampler.sample((time.monotonic() - began) / 60)
            except (OSError, KeyError):  # it has ended: a process without memory
                return samples
            samples[name].append(sample)
            on_sample(f"{name}: {sample}")
        number += 1
        time.sleep(max(0.0, began + number * plan.sample_every_s - time.monotonic()))
    return samples


def _stop(federation: Federation) -> list[str]:
    """Ctrl-C at the guest; returns what was wrong with how the parties ended."""
    guest, host = federation.guest, federation.host
    guest.signal(signal.SIGINT)
    wait_for(lambda: not (guest.is_running or host.is_running), "the parties to stop")
    expected = {guest.name: STOPPED, host.name: PEER_STOPPED}
    return [
        f"{name} ended with {party.codes[-1]}, expected {expected[name]}:\n{party.output()[-3000:]}"
        for name, party in federation.parties.items()
        if party.codes[-1] != expected[name]
    ]


def _report(
    plan: Plan,
    made: list[Outage],
    samples: dict[str, list[Sample]],
    viewers: dict[str, Viewer],
    federation: Federation,
    failures: list[str],
) -> Report:
    failures = list(failures)
    if len(made) < plan.num_outages:
        failures.append(f"expected {plan.num_outages} outages, got {len(made)}")
    parties = {}
    for name, party in federation.parties.items():
        try:
            findings = judge(samples[name], plan.minutes)
        except ValueError as error:
            failures.append(f"{name}: {error}")
            findings = []
        failures += [f"{name}: {f.problem}" for f in findings if not f.is_flat]
        if findings and not _rounds_of_second_half(samples[name], plan.minutes):
            failures.append(f"{name}: no round was done in the second half")
        if party.events("restart"):
            failures.append(f"{name}: an outage restarted the session")
        if not viewers[name].updates:
            failures.append(f"{name}: the dashboard sent no update")
        parties[name] = PartyReport(
            samples[name], findings, viewers[name].pages, viewers[name].updates, party.codes[-1]
        )
    return Report(plan.minutes, asdict(plan), made, parties, failures)


def _rounds_of_second_half(samples: list[Sample], minutes: float) -> int:
    second = [sample.rounds for sample in samples if sample.minute >= minutes / 2]
    return second[-1] - second[0]
