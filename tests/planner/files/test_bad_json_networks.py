"""Networks in PALEO's JSON with faults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.core.errors import InputFileError
from planner.importers.networks import load_model

PALEO = """{
  "name": "net",
  "layers": {
    "data": {"parents": [], "type": "Input", "tensor": [16, 8, 8, 3]},
    "conv": {"parents": ["data"], "type": "Convolution", "filter": [3, 3, 3, 4], "strides": [1, 1, 1, 1], "padding": "SAME"},
    "softmax": {"parents": ["conv"], "type": "Softmax", "num_classes": 4}
  }
}
"""


def json_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "net.json"
    path.write_text(text)
    return path


def test_paleo_json_loads(tmp_path: Path) -> None:
    model = load_model(str(json_file(tmp_path, PALEO)))
    assert (model.name, model.global_batch, model.graph.weight_count) == ("net", 16, 3 * 3 * 3 * 4 + 4)
    assert len(model.sha256) == 64


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"parents": ["data"]', '"parents": ["dta"]', r":5:5: conv: input 'dta' does not exist; did you mean 'data'\?"),
        ("[3, 3, 3, 4]", "[9, 9, 3, 0]", r":5:5: conv: "),
        ('"type": "Softmax"', '"type": "Sotfmax"', r":6:5: softmax: "),
        ('"name": "net",', '"name": "net"', r":3:3: is not JSON: Expecting ',' delimiter"),
        ('"layers"', '"strata"', ": is JSON, but not a network in a format that is known here"),
    ],
)
def test_bad_paleo_json(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in PALEO
    path = json_file(tmp_path, PALEO.replace(old, new))
    with pytest.raises(InputFileError, match=re.escape(str(path)) + expected):
        load_model(str(path))


def test_a_number_that_is_not_finite_hides_no_other_problem(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(
        "schema_version: 1\nname: x\nglobal_batch: .inf\nlayers:\n"
        "  - {name: data, type: input, shape: [3, 8, 8]}\n"
        "  - {name: c, type: convolutoin, out_channels: 4, kernel: 3}\n"
    )
    with pytest.raises(InputFileError) as caught:
        load_model(str(path))
    assert [problem.line for problem in caught.value.problems] == [3, 6]
