"""Metrics of a serving guest in the Prometheus text format, version 0.0.4."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_METRICS = {
    "celu_serve_requests_total": ("counter", "Inference requests, by HTTP status."),
    "celu_serve_rows_total": ("counter", "Rows that were scored."),
    "celu_serve_degraded_rows_total": ("counter", "Rows that a host gave no Z for."),
    "celu_serve_seconds": ("histogram", "Time from a request to its answer."),
    "celu_serve_host_up": ("gauge", "1 while a host has Z of the model that is served."),
    "celu_serve_asks_total": ("counter", "Asks to a host, by outcome; asks are all of them."),
    "celu_serve_cache_total": ("counter", "Rows of Z looked up in the cache, by outcome."),
    "celu_serve_model": ("gauge", "1 for the model that is served."),
}
Sample = tuple[str, Mapping[str, str], float]  # metric, labels, value


class ServeMetrics:
    """Counts requests; `samples` returns the state of other parts when the metrics are read.

    For one thread: that of the HTTP server.
    """

    def __init__(self, samples: Callable[[], Iterator[Sample]]) -> None:
        self._samples = samples
        self._requests: Counter[int] = Counter()
        self._rows = 0
        self._degraded: Counter[str] = Counter()
        self._buckets = [0] * (len(_BUCKETS_S) + 1)
        self._seconds = 0.0

    def count(self, status: int, seconds: float, missing: list[list[str]] | None = None) -> None:
        """Count one request; `missing` has the hosts without Z of each row that was scored."""
        self._requests[status] += 1
        self._buckets[bisect_left(_BUCKETS_S, seconds)] += 1
        self._seconds += seconds
        if missing is not None:
            self._rows += len(missing)
            for hosts in missing:
                if hosts:
                    self._degraded.update(hosts)

    def text(self) -> str:
        """All metrics."""
        found: dict[str, list[str]] = {name: [] for name in _METRICS}
        for name, labels, value in [*self._own(), *self._samples()]:
            metric = next(known for known in _METRICS if name.startswith(known))
            # Names of parties and models need no escape: their patterns allow no special character.
            shown = ",".join(f'{key}="{label}"' for key, label in labels.items())
            found[metric].append(f"{name}{{{shown}}} {value!r}" if shown else f"{name} {value!r}")
        lines = []
        for name, (kind, help_text) in _METRICS.items():
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *found[name]]
        return "\n".join(lines) + "\n"

    def _own(self) -> Iterator[Sample]:
        for status, count in sorted(self._requests.items()):
            yield "celu_serve_requests_total", {"code": str(status)}, count
        yield "celu_serve_rows_total", {}, self._rows
        for host, count in sorted(self._degraded.items()):
            yield "celu_serve_degraded_rows_total", {"host": host}, count
        total = 0
        for bound, count in zip((*_BUCKETS_S, "+Inf"), self._buckets, strict=True):
            total += count
            yield "celu_serve_seconds_bucket", {"le": str(bound)}, total
        yield "celu_serve_seconds_sum", {}, self._seconds
        yield "celu_serve_seconds_count", {}, total
