"""`celu serve`: from settings files to a party that serves until it is stopped."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from celu import open_files
from celu.config.party import PartySettings
from celu.config.serving import Serving
from celu.data.alignment import read_alignment
from celu.data.store import Store, open_store
from celu.engine.device import find_device
from celu.errors import (
    CeluError,
    CertificateError,
    ConfigError,
    ContractMismatch,
    PeerLost,
)
from celu.events import ClientRejected, Event, LinkDown, LinkUp
from celu.launch.blas import limit_blas_threads
from celu.launch.endpoint import endpoint_of
from celu.launch.memory import retain_freed_memory
from celu.serving.answering import HostSession
from celu.serving.asking import HostAsks
from celu.serving.batching import Batcher
from celu.serving.cache import ZCache
from celu.serving.host_link import GuestParts, HostLink
from celu.serving.http import Health, HttpApp
from celu.serving.inference import Inference
from celu.serving.lookup import load_lookup
from celu.serving.loop_scoring import LoopScoring
from celu.serving.model_folder import read_facts
from celu.serving.model_shelf import ModelShelf, ServedModel, check_facts, load_served
from celu.serving.pushed_scores import PushedScores
from celu.serving.pushing import HostPush
from celu.serving.quota import Quota
from celu.serving.rollout import Rollout
from celu.serving.row_index import ServedRows
from celu.serving.serve_metrics import Sample, ServeMetrics
from celu.transport.sessions import Session, Sessions

_MAX_BATCH_ROWS = 1024  # of requests that are answered together
_POLL_S = 1.0


@dataclass
class ServeParty:
    """One party's settings and files; `say` is called with one line at each change of state."""

    settings: PartySettings
    serving: Serving
    source: Path  # the folder of party.toml, and of the user's own modules
    models: Path
    store: Path
    alignment: Path | None
    say: Callable[[str], None]
    listening: Callable[[int], None] = lambda port: None
    _problems: dict[str, str] = field(default_factory=dict)  # the last one of each peer

    @property
    def folder(self) -> Path:
        """What must survive a restart."""
        return self.settings.serve.folder or self.source / "serve"

    def open(self) -> tuple[Store, ServedRows, ModelShelf]:
        """The party's rows and models; raises CeluError."""
        retain_freed_memory()
        open_files.raise_limit()
        num_threads = self.settings.threads or 1  # batches are small
        torch.set_num_threads(num_threads)
        limit_blas_threads(num_threads)
        find_device(self.settings.device)
        store = open_store(self.store)
        alignment = None if self.alignment is None else read_alignment(self.alignment, store)
        shelf = ModelShelf(
            self.models,
            self.settings.name,
            tuple(self.serving.hosts),
            store,
            self.source,
            self.settings.device,
            self.say,
        )
        return store, ServedRows(store, alignment), shelf

    def sessions(self, session: Session, on_error: Callable[[str, CeluError], None]) -> Sessions:
        """The sessions with all peers."""
        endpoint = endpoint_of(self.settings, self._on_event)
        return Sessions(endpoint, session, on_error, self.listening)

    def report(self, peer: str, error: CeluError) -> None:
        """Say why a session with a peer ended, unless that was said already."""
        text = str(error)
        if isinstance(error, PeerLost) and peer not in self._problems:
            text = f"{text}; trying to reconnect"
        if self._problems.get(peer) != str(error):
            self._problems[peer] = str(error)
            self.say(f"{peer}: {text}")

    def connected(self, peer: str) -> None:
        """Note that a session with a peer began."""
        self._problems.pop(peer, None)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, LinkDown):
            self.say(f"the link to {event.peer} is down: {event.reason}")
        elif isinstance(event, ClientRejected):
            where = f" at {event.address}" if event.address else ""
            self.say(f"a client{where} could not connect: {event.reason}")
        elif isinstance(event, LinkUp):
            self.say(f"the link to {event.peer} is up again after {event.seconds:g} s")


def serve_host(party: ServeParty, stop: threading.Event) -> None:
    """Answer the guest until `stop` is set.

    Raises CeluError if it cannot start, or the guest's contract or certificate differs: its only
    peer is not the one that it expects.
    """
    settings, serve = party.settings, party.settings.serve
    _, rows, shelf = party.open()
    if not shelf.scan():
        raise ConfigError(
            f"{party.models}: expected a model to serve, got none that can be used; "
            'write one with "celu export RUN --out FOLDER"'
        )
    if party.serving.mode == "pushed":
        for key in ("lookup", "rows_per_second", "distinct_rows_per_day"):
            if getattr(serve, key) is not None:
                raise ConfigError(
                    f'serve.{key}: expected none with mode = "pushed", which sends the Z of all '
                    "aligned rows"
                )
    by_tags = party.serving.asks == "tags"
    quota = Quota(
        party.folder,
        rows.num_rows if by_tags else rows.num_aligned,
        f"{rows.contract()} {party.serving.asks}",
        rows_per_second=serve.rows_per_second,
        distinct_rows_per_day=serve.distinct_rows_per_day,
    )
    lookup = None if serve.lookup is None else load_lookup(serve.lookup, party.source)
    session = HostSession(
        settings.name,
        party.serving,
        shelf,
        rows,
        quota,
        lookup,
        say=party.say,
        is_stopping=stop.is_set,
        on_connected=party.connected,
    )
    fatal: list[CeluError] = []

    def on_error(peer: str, error: CeluError) -> None:
        if isinstance(error, ContractMismatch | CertificateError | ConfigError):
            fatal.append(error)
            stop.set()
        else:
            party.report(peer, error)

    _freeze_memory()
    with party.sessions(session.run, on_error):
        _wait_for(stop)
        party.say("stopping")
    if fatal:
        raise fatal[0]


def serve_guest(party: ServeParty, stop: threading.Event) -> None:
    """Serve clients until `stop` is set; raises CeluError if it cannot start.

    No error of a host ends it.
    """
    from celu.serving.http_server import HttpServer, read_token

    settings, serve = party.settings, party.settings.serve
    token = read_token(serve.token_file)
    store, rows, shelf = party.open()
    cache = ZCache(serve.cache_mb * 2**20, serve.cache_s)
    parts = GuestParts(settings.name, party.serving, rows, party.say, on_connected=party.connected)
    hosts: list[HostLink] = [
        HostAsks(name, parts, shelf.widths_of(name), cache)
        if party.serving.mode == "asked"
        else HostPush(name, parts, shelf.widths_of(name), party.folder)
        for name in party.serving.hosts
    ]
    fallback = _fallback(party, store)
    rollout = Rollout(shelf, hosts, party.say, settle_s=serve.deadline_ms / 1000)
    pushed = [host for host in hosts if isinstance(host, HostPush)]
    known = None
    if pushed:
        known = PushedScores(lambda: rollout.current, rows, pushed, party.folder, party.say)

    def on_change() -> None:
        rollout.look()
        if known is not None:
            known.wake()

    parts.on_change = on_change
    inference = Inference(lambda: rollout.current, rows, hosts, fallback, known)

    def is_ready() -> bool:
        return rollout.current is not None and (fallback != "refuse" or rollout.is_complete)

    def samples() -> Iterator[Sample]:
        current = rollout.current
        if current is not None:
            yield "celu_serve_model", {"model": current.name}, 1
        for host in hosts:
            is_up = current is not None and host.has_z(current.name)
            yield "celu_serve_host_up", {"host": host.name}, float(is_up)
            for outcome, count in host.counts.items():
                yield "celu_serve_asks_total", {"host": host.name, "outcome": outcome}, count
        yield "celu_serve_cache_total", {"outcome": "hit"}, cache.hits
        yield "celu_serve_cache_total", {"outcome": "miss"}, cache.misses

    sessions_by_peer = {host.name: host.run for host in hosts}
    with ExitStack() as stack:
        stack.enter_context(rollout)
        if known is not None:
            stack.enter_context(known)
        if hosts:
            stack.enter_context(
                party.sessions(lambda link: sessions_by_peer[link.peer](link), party.report)
            )
        threads = stack.enter_context(
            Batcher(inference.serve, max_rows=_MAX_BATCH_ROWS, max_jobs=serve.max_requests)
        )
        scoring = LoopScoring(inference.begin, threads)
        health = Health(lambda: rollout.current, is_ready, lambda: rollout.is_complete)
        app = HttpApp(serve, token, scoring, health, ServeMetrics(samples), party.say)
        _freeze_memory()
        server = stack.enter_context(HttpServer(serve, app))
        party.say(f"{serve.name} at {server.url}/v2/models/{serve.name}")
        while not stop.wait(_POLL_S):
            if server.wait(0.0):
                raise CeluError("the HTTP server stopped unexpectedly; start again")
        party.say("stopping: requests in progress are answered")


def _freeze_memory() -> None:
    """Exclude what exists now from garbage collection: each full one took 10 ms and more."""
    gc.collect()
    gc.freeze()


def _fallback(party: ServeParty, store: Store) -> Literal["refuse", "mean"] | ServedModel:
    chosen = party.settings.serve.fallback
    if not isinstance(chosen, Path):
        return chosen
    check_facts(chosen, read_facts(chosen), party.settings.name, (), store)
    return load_served(chosen, store, party.source, party.settings.device)


def _wait_for(stop: threading.Event) -> None:
    """Wait on the main thread for an event that a signal's handler sets.

    With a timeout: the system may deliver a signal to another thread, which wakes no waiting one.
    """
    while not stop.wait(0.5):
        pass
