"""job.toml and party.toml: what is accepted, and the errors for what is not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from celu.config.job import PRESETS, Job, read_job
from celu.config.party import PartySettings, check_names, read_party
from celu.config.reading import Settings, read_json
from celu.config.serving import Serving, read_serving
from celu.errors import ConfigError, DataError

JOB = """
rounds = 100
guest = "airline"
[hosts.weather]
z_width = 64
"""
GUEST = """
role = "guest"
name = "airline"
listen = "0.0.0.0:7443"
[peers.weather]
ca = "theirs.pem"
[keys]
certificate = "airline.pem"
key = "airline.key"
[data]
store = "store"
alignment = "/elsewhere/alignment"
inputs = { ids = ["origin", "dest"], numbers = ["distance"] }
[model]
bottom = { use = "wdl", hidden = [64] }
top = "wdl"
loss = "binary"
"""
HOST = """
role = "host"
name = "weather"
[peers.airline]
ca = "theirs.pem"
connect = "airline.example:7443"
[keys]
certificate = "weather.pem"
key = "weather.key"
[data]
store = "store"
aligned = true
inputs = { numbers = ["wind"] }
[model]
bottom = "mine:Bottom"
"""


def write(folder: Path, text: str, name: str = "settings.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def job(folder: Path, text: str) -> Job:
    return read_job(write(folder, text))


def party(folder: Path, text: str) -> PartySettings:
    return read_party(write(folder, text))


def edited(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


# The contract.


def test_a_short_contract_is_filled_in_with_defaults(tmp_path: Path) -> None:
    read = job(tmp_path, JOB)
    assert (read.rounds, read.epochs, read.guest) == (100, None, "airline")
    assert read.hosts["weather"].z_width == 64
    assert read.optimizer.name == "adagrad"
    assert read.num_rounds(rounds_per_epoch=7) == 100


def test_a_length_in_epochs_becomes_rounds(tmp_path: Path) -> None:
    assert job(tmp_path, edited(JOB, "rounds = 100", "epochs = 3")).num_rounds(7) == 21


def test_the_paper_preset_has_the_values_of_the_paper(tmp_path: Path) -> None:
    read = job(tmp_path, 'preset = "paper"\n' + JOB)
    assert read.batch_size == 4096
    tuning = read.tuning()
    assert tuning.for_role("guest") == tuning.for_role("host") == (5, 5)
    assert read.method.xi_of("guest") == read.method.xi_of("host") == 60.0
    assert (read.optimizer.lr, read.optimizer.initial_accumulator) == (0.05, 0.1)


def test_the_strong_preset_is_the_default(tmp_path: Path) -> None:
    assert job(tmp_path, 'preset = "strong"\n' + JOB) == job(tmp_path, JOB)


def test_a_preset_fills_in_only_what_is_absent(tmp_path: Path) -> None:
    given = "batch_size = 32\n[method]\nR = 2\ndepth = 4\n[optimizer]\nlr = 0.5\n"
    read = job(tmp_path, 'preset = "paper"\nrounds = 1\nhosts.b.z_width = 8\n' + given)
    assert read.batch_size == 32
    assert read.tuning().for_role("guest") == (5, 2)
    assert read.method.depth == 4
    assert (read.optimizer.lr, read.optimizer.initial_accumulator) == (0.5, 0.1)


def test_a_preset_sets_no_options_of_another_optimizer(tmp_path: Path) -> None:
    given = '[optimizer]\nname = "sgd"\nlr = 0.5\n'
    read = job(tmp_path, 'preset = "paper"\nrounds = 1\nhosts.b = {}\n' + given)
    assert (read.optimizer.lr, read.optimizer.initial_accumulator) == (0.5, None)
    assert read.batch_size == 4096


def test_reading_a_preset_does_not_change_it(tmp_path: Path) -> None:
    before = json.dumps(PRESETS)
    job(tmp_path, 'preset = "paper"\n' + JOB + "[method]\nW = 9\n")
    assert json.dumps(PRESETS) == before


def test_one_value_applies_to_both_roles(tmp_path: Path) -> None:
    read = job(tmp_path, JOB + "[method]\nW = 4\nR = { guest = 5, host = 2 }\nxi = 45\n")
    assert read.tuning().for_role("guest") == (4, 5)
    assert read.tuning().for_role("host") == (4, 2)
    assert read.method.xi_of("host") == 45.0


def test_settings_are_frozen(tmp_path: Path) -> None:
    read = job(tmp_path, JOB)
    with pytest.raises(ValueError, match="frozen"):
        read.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (edited(JOB, "rounds = 100", "rounds = 1.5"), "rounds", "got 1.5"),
        (edited(JOB, "rounds = 100", 'rounds = "100"'), "rounds", "got '100'"),
        (edited(JOB, "rounds = 100", "rounds = true"), "rounds", "got True"),
        (edited(JOB, "rounds = 100", "rounds = 0"), "rounds", "expected greater than 0, got 0"),
        (edited(JOB, "rounds = 100", "rounds = -3"), "rounds", "got -3"),
        (edited(JOB, "rounds = 100", ""), "rounds and epochs", "exactly one"),
        (edited(JOB, "rounds = 100", "rounds = 1\nepochs = 1"), "rounds and epochs", "exactly"),
        ("batchsize = 5\n" + JOB, "batchsize", "no such key; did you mean batch_size?"),
        ("W = 5\n" + JOB, "W", "no such key; did you mean W in [method]?"),
        ("weight_decay = 0.1\n" + JOB, "weight_decay", "did you mean weight_decay in [optimizer]?"),
        (
            JOB + "[optimizer]\nweight_decy = 1",
            "optimizer.weight_decy",
            "did you mean weight_decay?",
        ),
        (JOB + "[optimizer]\ndropout = 0.1", "optimizer.dropout", "the keys here are name, lr, "),
        ("batch_size = 0\n" + JOB, "batch_size", "got 0"),
        ("seed = -1\n" + JOB, "seed", "got -1"),
        (
            'preset = "weak"\n' + JOB,
            "preset",
            "expected 'strong', 'tabular' or 'paper', got 'weak'",
        ),
        ("preset = 3\n" + JOB, "preset", "got 3"),
        ("rounds = 5", "hosts", "got nothing; add it to the top of the file"),
        ("rounds = 5\nhosts = 3", "hosts", "got 3"),
        ("rounds = 5\nhosts.b = true", "hosts.b", "got True"),
        (edited(JOB, "z_width = 64", "z_width = 0"), "hosts.weather.z_width", "got 0"),
        (
            edited(JOB, "z_width = 64", "z_width = 6\nwidth = 1"),
            "hosts.weather.width",
            "no such key; did you mean z_width?",
        ),
        (edited(JOB, '"airline"', '"Airline"'), "guest", "got 'Airline'"),
        (edited(JOB, '"airline"', '"weather"'), "weather", "guest and host share the name"),
        (edited(JOB, "hosts.weather", 'hosts."w/x"'), "hosts.w/x", "expected "),
        (JOB + "[method]\nW = 0", "method.W.guest", "got 0"),
        (JOB + "[method]\nW = { guest = 3 }", "method.W.host", "expected a value"),
        (JOB + "[method]\nR = { guest = 3, host = 0 }", "method.R.host", "got 0"),
        (JOB + '[method]\nR = "many"', "method.R.guest", "got 'many'"),
        (JOB + "[method]\nxi = 181", "method.xi.guest", "got 181"),
        (JOB + "[method]\nxi = nan", "method.xi.guest", "got nan"),
        (JOB + "[method]\ndepth = 0", "method.depth", "got 0"),
        (JOB + "[method]\ndepth = 65", "method.depth", "got 65"),
        (JOB + "[method]\nworkset = 3", "method.workset", "no such key"),
        (JOB + '[optimizer]\nname = "lion"', "optimizer.name", "got 'lion'"),
        (JOB + "[optimizer]\nweight_decay = -1", "optimizer.weight_decay", "got -1"),
        (JOB + "[optimizer]\nclip_norm = 0", "optimizer.clip_norm", "got 0"),
        (JOB + "[optimizer]\nembedding_lr = 0", "optimizer.embedding_lr", "got 0"),
        (JOB + "[optimizer]\nparty_lr = 0.1", "optimizer.party_lr", "got 0.1"),
        (JOB + "[optimizer.party_lr]\nweather = 0", "optimizer.party_lr.weather", "got 0"),
        (
            JOB + "[optimizer.party_lr]\nbank = 0.1",
            "optimizer.party_lr",
            "expected parties of this job (airline, weather), got 'bank'",
        ),
        (JOB + '[optimizer]\nschedule = "cyclic"', "optimizer.schedule", "got 'cyclic'"),
        (JOB + '[optimizer]\nschedule = "step"', "optimizer", "expected step_rounds, too"),
        (
            JOB + "[optimizer]\nfinal_factor = 0.1",
            "optimizer",
            'final_factor is an option of schedule = "cosine" and "linear", '
            'not of schedule = "constant"',
        ),
        (
            JOB + '[optimizer]\nschedule = "cosine"\nstep_rounds = 5',
            "optimizer",
            'step_rounds is an option of schedule = "step", not of schedule = "cosine"',
        ),
        (JOB + "[optimizer]\nwarmup_rounds = -1", "optimizer.warmup_rounds", "got -1"),
        (
            JOB + "[optimizer]\nwarmup_rounds = 100",
            "optimizer.warmup_rounds",
            "expected fewer than the run's 100 rounds, got 100",
        ),
        (JOB + "[optimizer]\nlr = 0", "optimizer.lr", "got 0"),
        (JOB + "[optimizer]\nlr = inf", "optimizer.lr", "got inf"),
        (JOB + "[optimizer]\nlr = nan", "optimizer.lr", "got nan"),
        (JOB + "[optimizer]\nmomentum = 0.9", "optimizer", "momentum is an option of sgd"),
        (
            JOB + '[optimizer]\nname = "adam"\ninitial_accumulator = 0.1',
            "optimizer",
            "initial_accumulator is an option of adagrad, not of adam",
        ),
        (JOB + '[optimizer]\nname = "sgd"\nmomentum = 1.0', "optimizer.momentum", "got 1.0"),
        (JOB + "[evaluation]\nevery = 0", "evaluation.every", "got 0"),
        (JOB + '[evaluation]\nmetric = "own:f1"', "evaluation.metric", "got 'own:f1'"),
        (JOB + "[evaluation]\ntarget = nan", "evaluation.target", "got nan"),
        (JOB + '[evaluation]\ntarget = "best"', "evaluation.target", "got 'best'"),
    ],
)
def test_an_invalid_contract_is_refused_with_file_key_expected_and_got(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_job(path)
    line = next(line for line in str(error.value).splitlines() if key in line)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert "expected" in line or "exactly one" in line or "option of" in line or "share" in line


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        job(tmp_path, "seed = -1\nbatch_size = 0\nrounds = 1")
    assert [line.split(": ")[1] for line in str(error.value).splitlines()] == [
        "seed", "batch_size", "hosts",
    ]  # fmt: skip


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(ConfigError, match=f"{path}: expected a readable file, got: "):
            read_job(path)
    path = write(tmp_path, "rounds = = 3")
    with pytest.raises(ConfigError, match=rf"{path}: expected TOML, got: .*line 1"):
        read_job(path)
    for invalid in (b"rounds = \xff", b"rounds = " + b"9" * 5000, b"rounds = " + b"[" * 5000):
        path.write_bytes(invalid)
        with pytest.raises(ConfigError, match=f"{path}: expected TOML"):
            read_job(path)


# The fields that the handshake compares.


def leaves(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Every field of a model and of its nested models, by dotted name."""
    found: set[str] = set()
    for name, info in model.model_fields.items():
        inner = info.annotation
        args = [getattr(a, "__origin__", a) for a in getattr(inner, "__args__", ())]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= leaves(inner, f"{prefix}{name}.")
        elif args and isinstance(args[-1], type) and issubclass(args[-1], BaseModel):
            found |= leaves(args[-1], f"{prefix}{name}.*.")  # a table by name
        else:
            found.add(prefix + name)
    return found


def test_a_host_may_be_given_as_its_width_only(tmp_path: Path) -> None:
    short = job(tmp_path, "rounds = 5\n[hosts]\nb = 3")
    assert short == job(tmp_path, "rounds = 5\n[hosts.b]\nz_width = 3")


def test_every_field_of_the_contract_is_compared(tmp_path: Path) -> None:
    compared = job(tmp_path, JOB + "[optimizer.party_lr]\nweather = 0.1\n").contract()
    leaf = {key.replace("*", "weather") for key in leaves(Job)}
    leaf = {f"{key}.weather" if key == "optimizer.party_lr" else key for key in leaf}
    # Choices are compared by their hash; with `auto`, so are the fields that the user set.
    expected = {k for k in leaf if not k.startswith("choices")} | {"choices", "method.given"}
    expected -= {"privacy.z_noise", "privacy.dz_noise"}  # compared if there is any (test_contract)
    assert compared.keys() == expected
    assert {"method.W.guest", "method.xi.host", "hosts.weather.z_width", "seed"} <= expected


def test_the_compared_fields_are_plain_json_values(tmp_path: Path) -> None:
    compared = job(tmp_path, 'preset = "paper"\n' + JOB).contract()
    assert json.loads(json.dumps(compared, allow_nan=False)) == compared
    assert all(v is None or isinstance(v, int | float | str) for v in compared.values())
    assert not compared.keys() & {"protocol", "train_rows", "test_rows"}, "session.py adds these"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("seed = 2\n", "seed"),
        ("batch_size = 8\n", "batch_size"),
        ("method.R = 7\n", "method.R.guest"),
        ("method.xi = { guest = 60, host = 61 }\n", "method.xi.host"),
        ("optimizer.lr = 0.1\n", "optimizer.lr"),
        ("evaluation.rows = 10\n", "evaluation.rows"),
        ("hosts.bank.z_width = 4\n", "hosts.bank.z_width"),
        ("method.auto = true\n", "method.auto"),
        (
            "choices = [{round = 0, W = 5, R = 3, depth = 1, codec = 'int8'}]\n",
            "choices",
        ),
    ],
)
def test_a_field_that_differs_is_found_by_the_comparison(
    tmp_path: Path, change: str, key: str
) -> None:
    ours, theirs = job(tmp_path, JOB).contract(), job(tmp_path, change + JOB).contract()
    assert key in {k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k)}


# A party's own settings.


def test_a_guests_settings_are_read(tmp_path: Path) -> None:
    read = party(tmp_path, GUEST)
    assert (read.role, read.name, read.listen) == ("guest", "airline", "0.0.0.0:7443")
    assert read.data.inputs == {"ids": ["origin", "dest"], "numbers": ["distance"]}
    assert read.model.bottom is not None
    assert (read.model.bottom.use, read.model.bottom.options) == ("wdl", {"hidden": [64]})
    assert read.model.top is not None
    assert (read.model.top.use, read.model.top.options) == ("wdl", {})
    assert not read.insecure


@pytest.mark.parametrize(
    ("text", "expected"), [('"balanced"', "balanced"), ("{ 0 = 1, 1 = 2.5 }", {"0": 1.0, "1": 2.5})]
)
def test_class_weights_are_balanced_or_by_class(tmp_path: Path, text: str, expected: Any) -> None:
    read = party(tmp_path, GUEST + f"class_weights = {text}\n")
    assert read.model is not None and read.model.class_weights == expected
    assert json.loads(read.model_dump_json())["model"]["class_weights"] == expected


def test_a_hosts_settings_are_read(tmp_path: Path) -> None:
    read = party(tmp_path, HOST + "[link]\nmbps = 100\ndelay_ms = 15\n")
    assert read.peers["airline"].connect == "airline.example:7443"
    assert read.model.bottom is not None
    assert read.model.bottom.use == "mine:Bottom"
    assert read.link is not None
    assert (read.link.mbps, read.link.delay_ms) == (100.0, 15.0)


def test_a_link_may_be_the_name_of_a_profile(tmp_path: Path) -> None:
    read = party(tmp_path, 'link = "lte"\n' + HOST)
    assert read.link is not None
    assert (read.link.mbps, read.link.jitter_ms) == (30.0, 15.0)


def test_relative_paths_are_relative_to_the_files_folder(tmp_path: Path) -> None:
    read = party(tmp_path, GUEST)
    assert read.data.store == tmp_path / "store"
    assert read.data.alignment == Path("/elsewhere/alignment")
    assert read.peers["weather"].ca == tmp_path / "theirs.pem"
    assert read.keys is not None
    assert (read.keys.certificate, read.keys.key) == (
        tmp_path / "airline.pem",
        tmp_path / "airline.key",
    )
    moved = party(tmp_path, 'run_dir = "mine"\n' + GUEST)
    assert moved.run_dir == tmp_path / "mine"


def test_an_insecure_party_needs_no_keys(tmp_path: Path) -> None:
    text = edited(GUEST, 'ca = "theirs.pem"', "")
    text = text.replace('[keys]\ncertificate = "airline.pem"\nkey = "airline.key"\n', "")
    read = party(tmp_path, "insecure = true\n" + text)
    assert (read.keys, read.peers["weather"].ca) == (None, None)


ADDRESS = 'connect = "airline.example:7443"\n'


def test_gateway_settings_are_read(tmp_path: Path) -> None:
    behind = party(tmp_path, "gateway = true\n" + GUEST)
    assert behind.gateway and behind.carrier == "grpc"
    route = 'streams = 8\nconnections = 4\ngateway = { ca = "g.pem", name = "gate.example" }\n'
    peer = party(tmp_path, edited(HOST, ADDRESS, ADDRESS + route)).peers["airline"]
    assert (peer.streams, peer.connections) == (8, 4)
    assert peer.gateway is not None
    assert (peer.gateway.ca, peer.gateway.name) == (tmp_path / "g.pem", "gate.example")
    sockets = 'carrier = "websocket"\n' + edited(
        HOST, ADDRESS, ADDRESS + 'gateway = { ca = "g.pem" }\n'
    )
    assert party(tmp_path, sockets).carrier == "websocket"


def test_a_guest_without_features_needs_no_bottom(tmp_path: Path) -> None:
    text = edited(GUEST, 'bottom = { use = "wdl", hidden = [64] }\n', "")
    text = edited(text, 'inputs = { ids = ["origin", "dest"], numbers = ["distance"] }\n', "")
    assert party(tmp_path, text).model.bottom is None


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (edited(GUEST, 'role = "guest"', 'role = "server"'), "role", "got 'server'"),
        (edited(GUEST, 'role = "guest"\n', ""), "role", "expected a value, got nothing"),
        (edited(GUEST, 'name = "airline"', 'name = "An Airline"'), "name", "got 'An Airline'"),
        (edited(GUEST, 'name = "airline"', "name = 3"), "name", "got 3"),
        (edited(HOST, "aligned = true\n", ""), "data", "expected either alignment"),
        (edited(HOST, "aligned = true", "aligned = false"), "data", "expected either alignment"),
        (
            edited(GUEST, "[data]\n", "[data]\naligned = true\n"),
            "data",
            "expected either alignment",
        ),
        (edited(GUEST, 'top = "wdl"\n', ""), "model.top", "missing: the guest needs both"),
        (edited(GUEST, 'loss = "binary"\n', ""), "model.loss", "missing: the guest needs both"),
        (edited(HOST, "[data]\n", '[data]\nlabel = "y"\n'), "data.label", "expected no such key"),
        (HOST + 'top = "wdl"\n', "model.top", "belongs to the guest, not to a host"),
        (HOST + 'loss = "binary"\n', "model.loss", "belongs to the guest, not to a host"),
        (edited(HOST, 'bottom = "mine:Bottom"\n', ""), "model.bottom", "is missing"),
        (edited(HOST, "{ numbers =", "{ tag ="), "data.inputs.tag", "got 'tag'"),
        (edited(HOST, "{ numbers =", '{ "a/b" ='), "data.inputs.a/b", "got 'a/b'"),
        (edited(HOST, '["wind"]', '"wind"'), "data.inputs.numbers", "got 'wind'"),
        (edited(HOST, '["wind"]', "[1]"), "data.inputs.numbers.0", "got 1"),
        (edited(HOST, '["wind"]', "[]"), "data.inputs.numbers", "got []"),
        (edited(HOST, 'store = "store"\n', ""), "data.store", "expected a value"),
        (edited(HOST, '"store"', "5"), "data.store", "got 5"),
        (HOST + "z_width = 0\n", "model.z_width", "got 0"),
        (HOST + 'hidden = "wdl"\n', "model.hidden", "expected no such key"),
        (edited(HOST, '"mine:Bottom"', "{ hidden = [3] }"), "model.bottom.use", "expected a v"),
        (edited(HOST, '"mine:Bottom"', "3"), "model.bottom", "got 3"),
        (edited(HOST, 'ca = "theirs.pem"\n', ""), "peers.airline.ca", "is missing"),
        (
            HOST.replace('[keys]\ncertificate = "weather.pem"\nkey = "weather.key"\n', ""),
            "keys",
            'is missing: create them with "celu certs party NAME"',
        ),
        (edited(HOST, 'key = "weather.key"\n', ""), "keys.key", "expected a value"),
        (
            edited(HOST, 'connect = "airline.example:7443"\n', ""),
            "peers.airline.connect",
            "and listen are both missing",
        ),
        (
            edited(HOST, "example:7443", "example"),
            "peers.airline.connect",
            "got 'airline.example'",
        ),
        (edited(HOST, "example:7443", "x:65536"), "peers.airline.connect", "65536"),
        (edited(HOST, "example:7443", "x:99999"), "peers.airline.connect", "99999"),
        (edited(GUEST, "0.0.0.0:7443", ":7443"), "listen", "got ':7443'"),
        (edited(HOST, "peers.airline", "peers.Airline"), "peers.Airline", "expected "),
        (GUEST + 'class_weights = "even"', "model.class_weights", "weights by class, got 'even'"),
        (GUEST + "class_weights = { a = 0 }", "model.class_weights", "above 0, got 0"),
        (HOST + 'class_weights = "balanced"', "model.class_weights", "belongs to the guest"),
        ("deadline_s = 0\n" + HOST, "deadline_s", "got 0"),
        ("deadline_s = inf\n" + HOST, "deadline_s", "got inf"),
        ("connect_s = -1\n" + HOST, "connect_s", "got -1"),
        ("threads = 0\n" + HOST, "threads", "got 0"),
        ('insecure = "yes"\n' + HOST, "insecure", "got 'yes'"),
        ("insecure = 1\n" + HOST, "insecure", "got 1"),
        (HOST + "[link]\nmbps = 0\n", "link.mbps", "got 0"),
        (HOST + "[link]\nmbps = inf\n", "link.mbps", "got inf"),
        (HOST + "[link]\nmbps = 1\ndelay_ms = -1\n", "link.delay_ms", "got -1"),
        (HOST + "[link]\ndelay_ms = 1\n", "link.mbps", "expected a value"),
        ('link = "isdn"\n' + HOST, "link", "expected one of wan-300"),
        (HOST + "[link]\nmbps = 1\noutage_s = 1\n", "link", "missing: give both"),
        (
            HOST + "[link]\nmbps = 1\noutage_s = 2\noutage_every_s = 2\n",
            "link",
            "expected outage_s shorter",
        ),
        ("batch_size = 3\n" + HOST, "batch_size", "expected no such key"),
        ('carrier = "pigeon"\n' + HOST, "carrier", "got 'pigeon'"),
        ('tracking = ["abacus"]\n' + HOST, "tracking", "got 'abacus'"),
        (edited(HOST, ADDRESS, ADDRESS + "streams = 0\n"), "peers.airline.streams", "got 0"),
        (edited(HOST, ADDRESS, ADDRESS + "streams = 65\n"), "peers.airline.streams", "got 65"),
        (
            edited(HOST, ADDRESS, ADDRESS + "connections = 17\n"),
            "peers.airline.connections",
            "got 17",
        ),
        (
            edited(HOST, ADDRESS, ADDRESS + "streams = 17\nconnections = 4\n"),
            "peers.airline",
            "at most 64, got 68",
        ),
        (
            edited(HOST, ADDRESS, ADDRESS + "streams = 5\n"),
            "peers.airline",
            "at most 4 without a gateway, got 5",
        ),
        (
            edited(GUEST, 'ca = "theirs.pem"\n', 'ca = "theirs.pem"\nstreams = 2\n'),
            "peers.weather.connect",
            "is missing: gateway, streams and connections",
        ),
        (
            edited(GUEST, 'ca = "theirs.pem"\n', 'ca = "t.pem"\ngateway = { ca = "g.pem" }\n'),
            "peers.weather.connect",
            "is missing: gateway, streams and connections",
        ),
        (edited(HOST, ADDRESS, ADDRESS + "gateway = true\n"), "peers.airline.gateway", "got True"),
        (
            edited(HOST, ADDRESS, ADDRESS + "gateway = {}\n"),
            "peers.airline.gateway.ca",
            "expected a value",
        ),
        (
            edited(HOST, ADDRESS, ADDRESS + 'gateway = { ca = "g.pem", name = "a b" }\n'),
            "peers.airline.gateway.name",
            "got 'a b'",
        ),
        (
            "insecure = true\n" + edited(HOST, ADDRESS, ADDRESS + 'gateway = { ca = "g.pem" }\n'),
            "peers.airline.gateway",
            "got insecure = true",
        ),
        (
            'carrier = "websocket"\n' + edited(HOST, ADDRESS, ADDRESS + "streams = 2\n"),
            "peers.airline.streams",
            'expected 1 with carrier = "websocket"',
        ),
        ("gateway = true\n" + HOST, "gateway", "expected listen, and a peer"),
        ("gateway = true\ninsecure = true\n" + GUEST, "gateway", "got insecure = true"),
    ],
)
def test_invalid_settings_are_refused_with_file_key_expected_and_got(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        read_party(path)
    line = next(line for line in str(error.value).splitlines() if key in line)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert "expected" in line or "missing" in line or "belongs to" in line


def names(folder: Path, party_text: str, job_text: str = JOB) -> None:
    check_names(job(folder, job_text), party(folder, party_text), folder / "party.toml")


def test_parties_that_the_contract_names_are_accepted(tmp_path: Path) -> None:
    names(tmp_path, GUEST)
    names(tmp_path, HOST)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (edited(GUEST, 'name = "airline"', 'name = "railway"'), "got railway (guest)"),
        (edited(GUEST, 'name = "airline"', 'name = "weather"'), "got weather (guest)"),
        (edited(HOST, 'name = "weather"', 'name = "airline"'), "got airline (host)"),
        (edited(GUEST, "peers.weather", "peers.bank"), "peers: expected weather, got bank"),
        (edited(HOST, "peers.airline", "peers.bank"), "peers: expected airline, got bank"),
        (GUEST + '[peers.bank]\nca = "b.pem"\n', "expected weather, got bank, weather"),
        (
            edited(GUEST, '[peers.weather]\nca = "theirs.pem"\n', ""),
            "peers: expected weather, got none",
        ),
    ],
)
def test_names_that_the_contract_does_not_have_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        names(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path / 'party.toml'}: ")
    assert message in str(error.value)


def test_environment_variables_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: dict[str, Any] = job(tmp_path, JOB).model_dump()
    for name in ("SEED", "CELU_SEED", "BATCH_SIZE", "CELU_BATCH_SIZE"):
        monkeypatch.setenv(name, "77")
    assert job(tmp_path, JOB).model_dump() == plain


def test_a_short_serving_contract_is_filled_in_with_defaults(tmp_path: Path) -> None:
    path = tmp_path / "serving.toml"
    path.write_text('guest = "airline"\nhosts = ["weather"]\n')
    assert read_serving(path).contract() == {
        "guest": "airline",
        "hosts": ["weather"],
        "codec": "fp32",
        "chunk_rows": 512,
        "asks": "numbers",
        "mode": "asked",
    }
    assert set(Serving.model_fields) == set(read_serving(path).contract())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "hosts: expected a value"),
        ('hosts = ["a", "a"]', "got 'a' twice"),
        ('hosts = ["guest"]', "got 'guest' twice"),
        ('hosts = ["A B"]', "hosts.0: "),
        ("hosts = []\nchunk_rows = 0", "chunk_rows: "),
        ("hosts = []\nchunk_rows = 65537", "chunk_rows: "),
        ('hosts = []\nasks = "ids"', "asks: "),
        ('hosts = []\nmode = "pulled"', "mode: "),
        ("hosts = []\nbatch_size = 3", "batch_size: expected no such key"),
    ],
)
def test_an_invalid_serving_contract_is_refused_by_its_key(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = tmp_path / "serving.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(expected)):
        read_serving(path)


def test_the_preset_for_tables_makes_no_local_steps_unless_auto_chooses() -> None:
    tables = Job(preset="tabular", rounds=10, hosts={"host": 8})
    assert tables.batch_size == 256
    assert [tables.tuning().for_role(role)[1] for role in ("guest", "host")] == [1, 1]
    own = Job(preset="tabular", rounds=10, hosts={"host": 8}, method={"R": 3}, batch_size=64)
    assert own.batch_size == 64 and own.tuning().for_role("host")[1] == 3
    auto = Job(preset="tabular", rounds=10, hosts={"host": 8}, method="auto")
    assert auto.auto and not auto.given()


def test_the_preset_for_tables_has_an_optimizer_that_a_job_may_replace() -> None:
    tables = Job(preset="tabular", rounds=10, hosts={"host": 8})
    assert (tables.optimizer.name, tables.optimizer.schedule) == ("adam", "cosine")
    assert tables.contract()["optimizer.lr"] == 0.002
    other = Job(
        preset="tabular", rounds=10, hosts={"host": 8}, optimizer={"name": "sgd", "lr": 0.1}
    )
    assert (other.optimizer.name, other.optimizer.schedule) == ("sgd", "constant")
    slower = Job(preset="tabular", rounds=10, hosts={"host": 8}, optimizer={"lr": 0.001})
    assert (slower.optimizer.name, slower.optimizer.lr) == ("adam", 0.001)


def test_a_damaged_json_file_is_refused_with_its_first_problems_and_never_its_content(
    tmp_path: Path,
) -> None:
    class Terms(Settings):
        rounds: int = 1

    path = tmp_path / "terms.json"
    with pytest.raises(
        DataError, match=r"terms\.json: expected terms, got: No such file.*; write it"
    ):
        read_json(Terms, path, "terms", "write it", DataError)
    path.write_text(json.dumps({f"key{number}": 1 for number in range(9)}))
    with pytest.raises(ConfigError, match=r"key4: .*; and 4 more; was the file edited") as caught:
        read_json(Terms, path, "terms", "write it")
    assert "key5" not in str(caught.value)
    path.write_text('{"secret"')
    with pytest.raises(ConfigError, match="expected terms, got: Invalid JSON") as caught:
        read_json(Terms, path, "terms", "write it")
    assert "secret" not in str(caught.value)
