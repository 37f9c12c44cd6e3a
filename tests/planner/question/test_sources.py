"""Files of hardware that do not say where their numbers come from: they are used, and the answer says so."""

import re
from pathlib import Path

import planner
from planner.files.resources import bundled


def test_a_cluster_and_a_device_without_sources_are_used(tmp_path: Path) -> None:
    device = re.sub(r"(?s)^source:.*", "", bundled("devices")["h100-sxm"].read_text(), flags=re.MULTILINE)
    text = bundled("clusters")["dgx-h100"].read_text()
    cluster = text[: text.index("source:")].replace("device: h100-sxm", "device: mine.yaml")
    (tmp_path / "mine.yaml").write_text(device)
    (tmp_path / "cluster.yaml").write_text(cluster)
    path = str(tmp_path / "cluster.yaml")
    found, usual = planner.optimize("alexnet", gpus=2, cluster=path), planner.optimize("alexnet", gpus=2)
    assert [note.code for note in found.notes if note not in usual.notes] == ["numbers_without_source"]
    assert f"{path} has no 'source'" in "\n".join(found.notes)
    assert found.best.step_time_s == usual.best.step_time_s
    noted = planner.estimate("alexnet", gpus=1, family="one-device", device=str(tmp_path / "mine.yaml")).notes
    assert [note.code for note in noted] == ["numbers_without_source"]
    assert planner.estimate("alexnet", gpus=1, family="one-device", device="h100-sxm").notes == ()
