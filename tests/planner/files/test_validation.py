"""Errors of pydantic in the words of the domain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from planner.core.errors import InputFileError
from planner.files.loading import load_document
from planner.schema.calibration import CalibrationFile
from planner.schema.common import FileModel, field_type
from tests.planner.written_files import write


class Inner(FileModel):
    ratio: float = Field(strict=True, gt=0, lt=1)
    kind: Literal["ring", "tree"] = "ring"


class Outer(FileModel):
    name: Annotated[str, Field(strict=True)]
    count: int = Field(strict=True, ge=1, le=8)
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    table: dict[Annotated[str, Field(max_length=3)], Inner] = Field(default_factory=dict)
    size: field_type(int | tuple[int, int] | Literal["same"], 1) = 1  # type: ignore[valid-type]
    on: bool = Field(default=False, strict=True)


GOOD = "name: a\ncount: 2\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count: 2\n", "1:1: missing key 'name'"),
        ("nmae: a\ncount: 2\n", "1:1: nmae: unknown key 'nmae'; did you mean 'name'?"),
        (GOOD + "xyzzy: 1\n", "3:1: xyzzy: unknown key 'xyzzy'; allowed: name, count, inner, many, table, size, on"),
        ("name: 5\ncount: 2\n", "1:7: name: expected text, got 5; quote it: '5'"),
        ("name: a\ncount: 0\n", "2:8: count: must be at least 1, got 0"),
        ("name: a\ncount: 9\n", "2:8: count: must be at most 8, got 9"),
        ("name: a\ncount: 2.0\n", "2:8: count: expected a whole number, got 2.0; write 2"),
        ("name: a\ncount: 1_000\n", "2:8: count: expected a whole number, got '1_000'; write 1000"),
        ("name: a\ncount: true\n", "2:8: count: expected a whole number, got true"),
        ("name: a\ncount:\n", "2:7: count: expected a whole number, got nothing"),
        (GOOD + "inner: {ratio: 1}\n", "3:16: inner.ratio: must be less than 1.0, got 1"),
        (GOOD + "inner: {ratio: half}\n", "3:16: inner.ratio: expected a number, got 'half'"),
        (GOOD + "inner: {ratoi: 0.5}\n", "3:9: inner.ratoi: unknown key 'ratoi'; did you mean 'ratio'?"),
        (GOOD + "inner: [1]\n", "3:8: inner: expected a mapping (key: value), got a list"),
        (GOOD + "many: {a: 1}\n", "3:7: many: expected a list, got a mapping"),
        (
            GOOD + "many:\n  - {ratio: 0.5}\n  - {ratio: 0.5, kind: rnig}\n",
            "5:24: many[1].kind: expected 'ring' or 'tree', got 'rnig'; did you mean 'ring'?",
        ),
        (
            GOOD + "many:\n  - {ratio: 0.5, knid: ring}\n",
            "4:18: many[0].knid: unknown key 'knid'; did you mean 'kind'?",
        ),
        (GOOD + "table:\n  x: {}\n", "4:6: table.x: missing key 'ratio'"),
        (GOOD + "table:\n  long: {ratio: 0.5}\n", "4:3: table.long: is longer than 3 characters"),
        (GOOD + "size: [1, 0]\n", "3:11: size[1]: must be at least 1, got 0"),
        (GOOD + "size: [1]\n", "3:7: size: too few numbers"),
        (GOOD + "size: smae\n", "3:7: size: expected 'same', got 'smae'; did you mean 'same'?"),
        (GOOD + "size: true\n", "3:7: size: expected a number or [height, width] or 'same'"),
        (GOOD + "on: yes\n", "3:5: on: expected true or false, got 'yes'; write true"),
        ("- 1\n", "1:1: expected keys and values ('key: value' lines), got a list"),
        ("hello\n", "1:1: expected keys and values ('key: value' lines), got the single value 'hello'"),
    ],
)
def test_error_in_domain_words(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputFileError) as caught:
        load_document(path, Outer)
    assert str(caught.value) == f"{path}:{expected}"


def test_good_document(tmp_path: Path) -> None:
    loaded = load_document(write(tmp_path, GOOD + "size: [2, 3]\nmany: [{ratio: 0.5}]\n"), Outer)
    assert (loaded.content.name, loaded.content.size, loaded.content.many[0].ratio) == ("a", (2, 3), 0.5)
    place = loaded.document.problem(("many", 0, "ratio"), "too small")
    assert (place.line, place.column, place.where) == (4, 16, "many[0].ratio")
    assert len(loaded.document.sha256) == 64


def test_every_error_is_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "name: 1\ncount: 0\ninner: {ratio: 2}\nsize: 0\nbogus: 1\n")
    with pytest.raises(InputFileError) as caught:
        load_document(path, Outer)
    assert [p.line for p in caught.value.problems] == [1, 2, 3, 4, 5]
    assert len(str(caught.value).splitlines()) == 5


def test_every_fault_of_a_calibration_is_reported_where_it_stands(tmp_path: Path) -> None:
    path = write(
        tmp_path, "schema_version: 1\nname: x\nconstants:\n  matmul_rate: {value: a}\n  host_lunch: {value: 1}\n"
    )
    with pytest.raises(InputFileError) as caught:
        load_document(path, CalibrationFile)
    assert [(p.line, p.column) for p in caught.value.problems] == [(4, 24), (5, 3)]
    assert "did you mean 'host_launch'?" in str(caught.value)


def test_a_misspelt_key_is_suggested_for_the_one_that_it_means_only(tmp_path: Path) -> None:
    class Memory(FileModel):
        memory: int
        memory_bandwidth: int

    with pytest.raises(InputFileError) as error:
        load_document(write(tmp_path, "memory_bandwith: 3\n"), Memory)
    assert [problem.message for problem in error.value.problems] == [
        "missing key 'memory'",
        "unknown key 'memory_bandwith'; did you mean 'memory_bandwidth'?",
    ]
