"""Finding bundled files and files beside others by name and path."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import planner
from planner.core.answer import assumption_text
from planner.core.errors import InputFileError, OutputError, PlannerError, UnknownName, did_you_mean
from planner.core.request import Request
from planner.exporters.export import write_folder
from planner.files.documents import parse_document
from planner.files.loading import load_algorithms, load_cluster, load_device
from planner.files.output import check_writable, write_atomically
from planner.files.resources import bundled, config_folder, resolve
from planner.question.resolve import resolve as resolve_request
from tests.planner.files.bad_files import write

# -- names ---------------------------------------------------------------------------------------------------------------------


def test_names_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = config_folder() / "models" / "alexnet.yaml"
    assert resolve("models", "alexnet") == resolve("models", "alexnet.yaml") == wanted
    assert resolve("models", str(wanted)) == wanted
    Path("alexnet.yaml").write_text("x")
    assert resolve("models", "alexnet.yaml") == Path("alexnet.yaml")  # a path wins
    assert resolve("models", "alexnet") == wanted
    Path("vgg16").mkdir()
    assert resolve("models", "vgg16").name == "vgg16.yaml"  # a folder of that name does not hide the model


def test_unknown_names_suggest() -> None:
    with pytest.raises(UnknownName) as caught:
        resolve("models", "alexnt")
    message = str(caught.value)
    assert message.startswith("model 'alexnt' is not known; did you mean 'alexnet'? (known: ")
    assert "planner list models" in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["./nowhere/net.yaml", "/nowhere/net.yaml", "nowhere/", "a/" + "b" * 5000, "x\0y/z"])
def test_missing_paths(text: str) -> None:
    with pytest.raises(InputFileError, match="no such model file"):
        resolve("models", text)


@pytest.mark.parametrize("text", ["", "x" * 5000, "\0"])
def test_strange_names(text: str) -> None:
    with pytest.raises(PlannerError):
        resolve("models", text)


def test_every_bundled_file_has_its_name() -> None:
    for kind in ("models", "devices", "clusters"):
        for name, path in bundled(kind).items():  # type: ignore[arg-type]
            assert parse_document(path).value["name"] == name


def test_an_installed_package_finds_the_files_inside_it(tmp_path: Path) -> None:
    """As a wheel lays it out; a neighbour called ``configs`` is someone else's."""
    source = Path(planner.__file__).parent
    shutil.copytree(source, tmp_path / "planner", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(config_folder(), tmp_path / "planner" / "_configs")
    for kind in ("models", "devices"):
        (tmp_path / "configs" / kind).mkdir(parents=True)
    code = "from planner.files.resources import bundled, config_folder; print(config_folder(), *bundled('models'))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, check=True, text=True
    )
    folder, *names = run.stdout.split()
    assert Path(folder) == (tmp_path / "planner" / "_configs").resolve()
    assert names == list(bundled("models"))


def test_did_you_mean_is_deterministic() -> None:
    names = ["ring", "rings", "tree", "RING"]
    assert len({did_you_mean("rnig", order) for order in itertools.permutations(names)}) == 1


# -- devices, clusters, algorithms -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(bundled("clusters")))
def test_bundled_clusters_load(name: str) -> None:
    loaded = load_cluster(name)
    assert loaded.cluster.name == name
    names = dict.fromkeys(group.device.name for group in loaded.cluster.groups)
    hashes = [load_device(name).sha256 for name in names]
    assert loaded.device_sha256.split(",") == hashes


def cluster_file(tmp_path: Path, device: str) -> str:
    path = tmp_path / "mine.yaml"
    level = "{name: node, size: 8, bandwidth: 8 GB/s, latency: 1 us}"
    path.write_text(f"schema_version: 1\nname: mine\ndevice: {device}\nlevels: [{level}]\nsource: {{}}\n")
    return str(path)


def test_a_cluster_names_devices_beside_it(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(bundled("devices")["k20"].read_text().replace("name: k20", "name: own"))
    for reference in ("./own.yaml", "own.yaml"):
        assert load_cluster(cluster_file(tmp_path, reference)).cluster.device.name == "own"
    assert load_cluster(cluster_file(tmp_path, "k20")).cluster.device.name == "k20"


def test_a_cluster_with_an_unknown_device(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"mine\.yaml:3:9: device: device 'k2' is not known; did you mean 'k20'\?"):
        load_cluster(cluster_file(tmp_path, "k2"))
    with pytest.raises(InputFileError, match=r"mine\.yaml:3:9: device: no such device file '\./k2\.yaml'"):
        load_cluster(cluster_file(tmp_path, "./k2.yaml"))


def test_a_cluster_with_a_bad_device_file(tmp_path: Path) -> None:
    text = bundled("devices")["k20"].read_text().replace("memory_bandwidth: 208 GB/s", "memory_bandwidth: 208")
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(InputFileError, match=r"own\.yaml:\d+:\d+: memory_bandwidth: '208' has no unit"):
        load_cluster(cluster_file(tmp_path, "./own.yaml"))


def test_algorithms(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "schema_version: 1\nalgorithms:\n  conv2: {forward: gemm, backward_input: fft_tiling, backward_weight: fft}\n"
        "  conv3: {forward: fft}\n",
    )
    assert load_algorithms(path) == {"conv2": ("gemm", "fft_tiling", "fft"), "conv3": ("fft", "gemm", "gemm")}
    with pytest.raises(InputFileError, match=r"4:3: algorithms.conv3: the network has no layer 'conv3'"):
        load_algorithms(path, ["conv2"])
    path.write_text(path.read_text().replace("fft_tiling", "fft_tilling"))
    with pytest.raises(InputFileError, match=r"3:42: .*'fft_tilling' is not known; did you mean 'fft_tiling'"):
        load_algorithms(path)


# --- Writing results: a file is either old or complete, and one that cannot be written is found at once -----------------------------------


def test_a_folder_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")  # what the system says; the superuser would never hear it

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OutputError, match="cannot be written: Permission denied"):
        check_writable(tmp_path / "x")


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        check_writable(tmp_path / name)


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "x\n")
    (tmp_path / "b").write_text("x\n", encoding="utf-8")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
    write_atomically(Path(os.devnull), "x")  # no regular file: written to, not replaced


@pytest.mark.parametrize(
    ("given", "cluster", "device"),
    [
        ("h100", "dgx-h100", "h100-sxm"),
        ("A100", "dgx-a100", "a100-80gb"),
        ("a100-40gb", "a100-40gb", "a100-40gb"),  # the links of dgx-a100, whose own have 80 GB
        ("b200", "dgx-b200", "b200"),
        ("h200", "h200", "h200"),
        ("mi300x", "mi300x-node", "mi300x"),
        ("gb200", "gb200-nvl72", "gb200"),
        ("v100", "dgx1-v100", "v100-16gb"),
        ("dgx-h100", "dgx-h100", "h100-sxm"),
    ],
)
def test_a_device_names_its_usual_cluster(given: str, cluster: str, device: str) -> None:
    found = load_cluster(given).cluster
    assert (found.name, found.device.name) == (cluster, device)
    assert load_cluster(found.name).cluster == found  # as a plan file names it


def test_what_is_assumed_says_which_cluster_a_device_names() -> None:
    def said(cluster: str) -> str:
        found = resolve_request(Request(model="alexnet", gpus=8, cluster=cluster)).assumptions
        return next(assumption_text(one) for one in found if one.name == "cluster")

    assert said("h100") == "cluster dgx-h100 (given as h100)"
    assert said("h200") == "cluster h200 (given, linked as dgx-h100)"
    assert said("dgx-h100") == "cluster dgx-h100 (given)"


def test_no_device_is_a_cluster_of_that_name_where_there_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = bundled("clusters")["dgx-a100"].read_text().replace("name: dgx-a100", "name: mine", 1)
    (tmp_path / "h100").write_text(text)
    assert load_cluster("h100").cluster.name == "mine"


def test_missing_folders_are_made_and_go_again_where_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a" / "b" / "plan.yaml"
    check_writable(path)
    assert list(tmp_path.iterdir()) == []  # nothing is left of the check
    write_atomically(path, "one")
    assert path.read_text() == "one"
    other = tmp_path / "a" / "c" / "d" / "plan.yaml"

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write_atomically(other, "two")
    with pytest.raises(OutputError, match="No space left"):
        write_folder(tmp_path / "x" / "y", {"README.md": "text"}, force=False)
    monkeypatch.undo()
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["a", "b", "plan.yaml"]
    write_folder(tmp_path / "x" / "y", {"README.md": "text"}, force=False)
    assert (tmp_path / "x" / "y" / "README.md").read_text() == "text"
