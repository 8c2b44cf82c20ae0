"""The manifests in deploy/kubernetes: Kubernetes and celu accept them, and they fit together."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from celu.config.job import read_job
from celu.config.party import check_names, read_party
from celu.config.serving import read_serving
from celu.errors import ConfigError

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
RECIPES = sorted(path.parent.name for path in FOLDER.glob("*/kustomization.yaml"))
KUSTOMIZE = [
    command
    for command in (["kubectl", "kustomize"], ["kustomize", "build"])
    if shutil.which(command[0])
]


def documents(recipe: str) -> list[dict[str, Any]]:
    """The objects of a recipe, without those that kustomize generates."""
    folder = FOLDER / recipe
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((folder / name).read_text()) if one]


def workload(recipe: str) -> dict[str, Any]:
    (found,) = [one for one in documents(recipe) if one["kind"] in ("Job", "Deployment")]
    return found


def pod(recipe: str) -> dict[str, Any]:
    spec: dict[str, Any] = workload(recipe)["spec"]["template"]["spec"]
    return spec


def container(recipe: str) -> dict[str, Any]:
    (found,) = pod(recipe)["containers"]
    return dict(found)


def test_there_are_recipes() -> None:
    assert RECIPES == ["alignment", "serving", "training"]


@pytest.mark.skipif(not KUSTOMIZE, reason="neither kubectl nor kustomize is installed")
@pytest.mark.parametrize("recipe", RECIPES)
def test_kustomize_builds_a_recipe(recipe: str) -> None:
    command = [*KUSTOMIZE[0], str(FOLDER / recipe)]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kinds = [one["kind"] for one in yaml.safe_load_all(built)]
    assert sorted(kinds) == sorted(["ConfigMap", *(one["kind"] for one in documents(recipe))])


@pytest.mark.skipif(
    shutil.which("kubernetes-validate") is None, reason="kubernetes-validate is not installed"
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_schemas_of_kubernetes_accept_a_recipe(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(documents(recipe)))
    validate = ["kubernetes-validate", "--strict", str(tmp_path / "all.yaml")]
    checked = subprocess.run(validate, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_pod_is_no_root_writes_only_to_volumes_and_has_limits(recipe: str) -> None:
    spec, its = pod(recipe), container(recipe)
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert its["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert its["resources"]["limits"]["memory"] and its["resources"]["requests"]["cpu"]
    mounts = {mount["name"]: mount for mount in its["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in spec["volumes"]}
    for name in ("keys", "settings"):
        assert mounts[name]["readOnly"]
    (keys,) = [v["secret"] for v in spec["volumes"] if v["name"] == "keys"]
    assert keys["defaultMode"] == 0o440  # for fsGroup, and nobody else


@pytest.mark.parametrize("recipe", RECIPES)
def test_services_and_policies_select_the_pods_of_their_recipe(recipe: str) -> None:
    labels = workload(recipe)["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container(recipe)["ports"]}
    for one in documents(recipe):
        if one["kind"] == "Service":
            index = "batch.kubernetes.io/job-completion-index"  # Kubernetes adds this label
            selector = {k: v for k, v in one["spec"]["selector"].items() if k != index}
            assert selector == labels
            assert all(port["targetPort"] in ports for port in one["spec"]["ports"])
        if one["kind"] == "NetworkPolicy":
            assert one["spec"]["podSelector"]["matchLabels"] == labels


def test_the_number_of_pods_and_ranks_and_shards_is_one_number() -> None:
    for recipe, pattern in (("training", r"--nnodes=(\d+)"), ("alignment", r"--shard=.*/(\d+)")):
        spec = workload(recipe)["spec"]
        (count,) = [m[1] for arg in container(recipe)["args"] if (m := re.fullmatch(pattern, arg))]
        assert spec["completions"] == spec["parallelism"] == int(count)
    ports = [
        one["spec"]["ports"][0]["port"]
        for one in documents("alignment")
        if one["kind"] == "Service"
    ]
    assert ports == list(range(7000, 7000 + len(ports)))
    assert len(ports) == workload("alignment")["spec"]["completions"]


@pytest.mark.parametrize("recipe", ["alignment", "training"])
def test_a_pod_computes_with_as_many_threads_as_it_asks_for_cpus(recipe: str) -> None:
    threads = read_party(FOLDER / recipe / "party.toml").threads
    assert str(threads) == container(recipe)["resources"]["requests"]["cpu"]


def test_torchrun_lets_ranks_reach_a_checkpoint_while_kubernetes_waits() -> None:
    (limit,) = [
        one["value"]
        for one in container("training")["env"]
        if one["name"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    ]
    grace = pod("training")["terminationGracePeriodSeconds"]
    assert grace / 2 < int(limit) < grace


def test_ranks_meet_at_the_name_that_the_headless_service_gives_to_pod_0() -> None:
    job = workload("training")
    name, subdomain = job["metadata"]["name"], pod("training")["subdomain"]
    (headless,) = [
        one
        for one in documents("training")
        if one["kind"] == "Service" and one["spec"].get("clusterIP") == "None"
    ]
    assert headless["metadata"]["name"] == subdomain
    assert headless["spec"]["publishNotReadyAddresses"]
    args = container("training")["args"]
    (port,) = headless["spec"]["ports"]
    assert f"--rdzv-endpoint={name}-0.{subdomain}:{port['port']}" in args
    assert f"--local-addr={name}-$(POD_INDEX).{subdomain}" in args


@pytest.mark.parametrize("recipe", RECIPES)
def test_celu_accepts_the_settings_of_a_recipe_and_finds_them_where_they_are_mounted(
    recipe: str,
) -> None:
    folder = FOLDER / recipe
    settings = read_party(folder / "party.toml")
    (generated,) = yaml.safe_load((folder / "kustomization.yaml").read_text())["configMapGenerator"]
    for name in generated["files"]:
        assert f"settings/{name}" in container(recipe)["args"]
    if recipe == "serving":
        contract = read_serving(folder / "serving.toml")
        assert settings.serve is not None and settings.serve.listen == "0.0.0.0:8080"
        paths = {container(recipe)[p]["httpGet"]["path"] for p in ("livenessProbe", "startupProbe")}
        assert paths == {"/v2/health/live"}
    else:
        contract = read_job(folder / "job.toml")
    check_names(contract, settings, folder / "party.toml")
    mounted = [mount["mountPath"] for mount in container(recipe)["volumeMounts"]]
    for path in re.findall(r'"(/[^"]+)"', (folder / "party.toml").read_text()):
        assert any(path.startswith(f"{mount}/") for mount in mounted), path


def test_what_an_exit_code_stops_is_what_celu_would_only_repeat() -> None:
    (rule,) = [
        rule["onExitCodes"]
        for rule in workload("alignment")["spec"]["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    ]
    assert ConfigError.exit_code in rule["values"]
    assert not {0, 11, 12, 14, 130} & set(rule["values"])  # the peer, the disk and the operator


@pytest.mark.parametrize("peer", ["", "bank=bank.example.com"])
def test_a_shard_listens_or_connects_to_the_port_of_its_number(tmp_path: Path, peer: str) -> None:
    its = container("alignment")
    # As Kubernetes expands variables: $$ is an escaped $.
    words = [
        w.replace("$(POD_INDEX)", "3").replace("$$", "$") for w in its["command"] + its["args"]
    ]
    program = tmp_path / "celu"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PEER": peer, "POD_INDEX": "3"}
    assert {one["name"] for one in its["env"]} == {"PEER", "POD_INDEX"}
    ran = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    expected = ["align", "settings/party.toml", "--job", "settings/job.toml", "--shard=3/4"]
    connects = ["--connect", "bank=bank.example.com:7003"] if peer else []
    assert ran.stdout.split() == expected + connects
