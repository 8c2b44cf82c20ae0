"""The airline and the weather service in memory, with the models of their settings files."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import celu
from celu.config.party import PartySettings, read_party
from celu.config.templates import FLIGHTS_PAPER, write_settings
from celu.data.flights import write_flights
from celu.data.memory_map import StoreDatasets
from celu.launch.loading import load_party, read_datasets
from celu.party import Guest, Host


@dataclass(frozen=True)
class FlightsPair:
    """Datasets that are read once; each run builds new modules from the job's seed."""

    airline: PartySettings
    weather: PartySettings
    rows: dict[str, StoreDatasets]

    @staticmethod
    def load() -> FlightsPair:
        """Prepare the data; raises DataError if the package with it is not installed."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            write_flights(folder)
            write_settings(folder, FLIGHTS_PAPER)
            parties = {
                name: read_party(folder / name / "party.toml") for name in ("airline", "weather")
            }
            rows = {name: read_datasets(p) for name, p in parties.items()}
        return FlightsPair(parties["airline"], parties["weather"], rows)

    def simulate(self, job: celu.Job) -> celu.Result:
        """Train the pair, or the airline alone if the job has no hosts."""
        guest = load_party(self.airline, job, Path(), self.rows["airline"])
        assert isinstance(guest, Guest)
        hosts = {}
        if job.hosts:
            host = load_party(self.weather, job, Path(), self.rows["weather"])
            assert isinstance(host, Host)
            hosts["weather"] = host
        return celu.simulate(job, guest, hosts)


def flights_job(
    *,
    seed: int,
    rounds: int,
    method: celu.Method,
    optimizer: celu.Optimizer,
    evaluation: celu.Evaluation,
    alone: bool = False,
) -> celu.Job:
    """The job of the flights pair with this method and optimizer."""
    hosts = {} if alone else {FLIGHTS_PAPER.host: celu.HostTerms(z_width=FLIGHTS_PAPER.z_width)}
    return celu.Job(
        seed=seed,
        batch_size=FLIGHTS_PAPER.batch_size,
        rounds=rounds,
        guest=FLIGHTS_PAPER.guest,
        hosts=hosts,
        method=method,
        optimizer=optimizer,
        evaluation=evaluation,
    )
