"""The exported models in a folder: which there are, and the few that are loaded.

The folder is scanned again and again, so a model that is exported into it is served without a
restart. An export appears at once and complete, because it is renamed there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from celu.config.reading import PartyName
from celu.config.schema import ClassLabel
from celu.data.store import Store
from celu.errors import CeluError, ConfigError
from celu.serving.encoding import RowEncoder
from celu.serving.few_rows import FewRows
from celu.serving.model import Model
from celu.serving.model_folder import MODEL_FILE, ModelFacts, load_model, read_facts
from celu.serving.row_index import InputRows

MAX_MODELS = 1000  # in a folder; the newest are used
_Stamp = tuple[str, int, int]


@dataclass(frozen=True)
class ServedModel:
    """A loaded model, the rows of the store as its inputs, and its encoders of raw rows."""

    model: Model
    rows: InputRows
    encoder: RowEncoder | None  # None if the model was not trained on a store

    @cached_property
    def name(self) -> str:
        """The model's name, the same at all parties; hashed once."""
        return self.model.name

    @cached_property
    def class_names(self) -> tuple[ClassLabel, ...] | None:
        """The classes that the scores are of, if they are other than codes."""
        return self.model.facts.label_map.names

    @cached_property
    def few_rows(self) -> FewRows:
        """The model for the few rows of a request."""
        return FewRows(self.model)


@dataclass
class ModelShelf:
    """The models of one party in a folder. `say` is called once for each that cannot be used."""

    folder: Path
    party: PartyName
    hosts: tuple[PartyName, ...]
    store: Store
    modules: Path
    device: str = "cpu"
    say: Callable[[str], None] = lambda text: None
    _facts: dict[_Stamp, ModelFacts | None] = field(default_factory=dict)
    _found: dict[str, Path] = field(default_factory=dict)
    _widths: dict[str, dict[str, int]] = field(default_factory=dict)  # by host and model
    _loaded: dict[str, ServedModel] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def scan(self) -> list[str]:
        """The names of the models in the folder, the newest first; raises ConfigError."""
        with self._lock:
            known: dict[_Stamp, ModelFacts | None] = {}
            for stamp, folder in self._folders():
                known[stamp] = self._facts[stamp] if stamp in self._facts else self._read(folder)
            self._facts = known
            facts = {f.name: f for f in known.values() if f is not None}
            self._found = {f.name: Path(stamp[0]) for stamp, f in known.items() if f is not None}
            self._widths = {
                host: {n: f.hosts[host] for n, f in facts.items()} for host in self.hosts
            }
            newest = sorted(facts.values(), key=lambda f: f.identity.age_key, reverse=True)
            return [f.name for f in newest[:MAX_MODELS]]

    def load(self, name: str) -> ServedModel:
        """A model that `scan` found; loaded on first use.

        Raises ConfigError, DataError or ModelError for one that cannot be used.
        """
        with self._lock:
            if name not in self._loaded:
                if name not in self._found:
                    raise ConfigError(f"{self.folder}: expected model {name}, got none")
                self._loaded[name] = load_served(
                    self._found[name], self.store, self.modules, self.device
                )
            return self._loaded[name]

    def loaded(self, name: str) -> ServedModel | None:
        """A model if it is loaded."""
        return self._loaded.get(name)

    def widths_of(self, host: str) -> Callable[[], dict[str, int]]:
        """A function that returns the width of a host's Z, by model."""
        return lambda: self._widths.get(host, {})

    def unload_except(self, names: Iterable[str]) -> None:
        """Forget the models that are not among these."""
        with self._lock:
            retained = set(names)
            self._loaded = {n: m for n, m in self._loaded.items() if n in retained}

    def _folders(self) -> list[tuple[_Stamp, Path]]:
        try:
            folders = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            raise ConfigError(
                f"{self.folder}: expected a folder of exported models, got: {error.strerror}"
            ) from error
        found = []
        for path in sorted(folders):
            try:
                stat = (path / MODEL_FILE).stat()
            except OSError:  # not a model, or it was just removed
                continue
            found.append(((str(path), stat.st_mtime_ns, stat.st_ino), path))
        return found

    def _read(self, folder: Path) -> ModelFacts | None:
        try:
            facts = read_facts(folder)
            check_facts(folder, facts, self.party, self.hosts, self.store)
        except CeluError as error:
            self.say(f"a model is not used: {error}")
            return None
        return facts


def check_facts(
    folder: Path, facts: ModelFacts, party: str, hosts: Iterable[str], store: Store
) -> None:
    """Raise ConfigError unless a model is this party's part, with these hosts, for this store."""
    if facts.party != party or set(facts.hosts) != set(hosts):
        raise ConfigError(
            f"{folder}: expected {party}'s part of a model with the hosts "
            f"{', '.join(sorted(hosts)) or 'none'}, got {facts.party}'s with "
            f"{', '.join(sorted(facts.hosts)) or 'none'}"
        )
    if facts.schema_digest != store.schema.digest():
        raise ConfigError(
            f"{folder}: the store {store.path} has other columns or codes than the rows "
            'that the model was trained on; encode its rows with "celu prepare --like STORE"'
        )


def load_served(folder: Path, store: Store, modules: Path, device: str) -> ServedModel:
    """Load a model and open its rows; raises ConfigError, DataError or ModelError."""
    model = load_model(folder, modules=modules, device=device)
    inputs = model.facts.inputs
    if inputs and model.bottom is None:
        raise ConfigError(
            f"{folder}: the model has modules from Python; name them in [model] of party.toml "
            "and train again to serve it"
        )
    rows = InputRows(store, inputs)
    if rows.dataset is not None:
        model.check_rows(rows.dataset, str(store.path))
    encoder = None if model.schema is None else RowEncoder(model.schema, inputs)
    return ServedModel(model, rows, encoder)
