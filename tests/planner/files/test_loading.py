"""Reading YAML and JSON with places and limits; problems in the order of the file."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from planner.core.errors import ExitCode, FileProblem, InputFileError
from planner.files.documents import MAX_DEPTH, MAX_NODES, parse_document, read_json_file
from planner.files.loading import load_document
from planner.files.text import MAX_BYTES
from planner.schema.calibration import CalibrationFile
from planner.schema.common import FileModel, field_type
from tests.planner.files.bad_files import write


def parse(tmp_path: Path, content: str | bytes) -> Any:
    return parse_document(write(tmp_path, content)).value


def problems(tmp_path: Path, content: str | bytes) -> list[tuple[int, int, str]]:
    with pytest.raises(InputFileError) as caught:
        parse_document(write(tmp_path, content))
    return [(p.line, p.column, p.message) for p in caught.value.problems]


def problem(tmp_path: Path, content: str | bytes) -> tuple[int, int, str]:
    (only,) = problems(tmp_path, content)
    return only


# -- values -----------------------------------------------------------------------------------------------------------------


def test_scalars_follow_yaml_1_2(tmp_path: Path) -> None:
    text = """
      words: [yes, no, on, off, y, 1:30, 2001-01-01, 1_000, 0x10, 0o7, =, inf, nan, .5.5]
      numbers: [1, -2, +3, 010, 1e3, 1.5e-3, .5, 5., -0.0, 123456789012345678]
      booleans: [true, True, FALSE]
      nothing: [~, null, '', ]
      quoted: ['1', "true", !!str 5]
    """
    value = parse(tmp_path, text)
    assert all(isinstance(word, str) for word in value["words"])
    assert value["numbers"] == [1, -2, 3, 10, 1000.0, 0.0015, 0.5, 5.0, 0.0, 123456789012345678]
    assert [type(n) for n in value["numbers"][:5]] == [int, int, int, int, float]
    assert value["booleans"] == [True, True, False]
    assert value["nothing"] == [None, None, ""]
    assert value["quoted"] == ["1", "true", "5"]


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("on: 1\n1: 2\ntrue: 3\n~: 4\n", {"on": 1, "1": 2, "true": 3, "~": 4}),
        (b"\xef\xbb\xbfa: 1", {"a": 1}),
        ("a: &x {k: 1}\nb: [*x, *x]\nc: &y 7\nd: *y", {"a": {"k": 1}, "b": [{"k": 1}] * 2, "c": 7, "d": 7}),
    ],
    ids=["keys are words", "a byte order mark is skipped", "aliases are values"],
)
def test_documents(tmp_path: Path, content: str | bytes, value: dict[str, Any]) -> None:
    assert parse(tmp_path, content) == value


_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(value=st.dictionaries(st.text(min_size=1), _plain, min_size=1, max_size=4))
def test_json_is_read_as_written(tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("json") / "file"
    path.write_text(json.dumps(value, ensure_ascii=True, indent=1).replace("\\ud", "\\u0"))
    expected = json.loads(path.read_text())
    assert read_json_file(path).content == expected
    try:
        from_yaml = parse_document(path).value
    except InputFileError:
        return  # characters that YAML does not allow
    assert from_yaml == expected


@given(value=st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), _plain, min_size=1, max_size=4))
def test_every_value_has_its_place(tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("marks") / "file"
    path.write_text(yaml.safe_dump(value, allow_unicode=False), encoding="utf-8")  # other line breaks stay escaped
    lines = path.read_text(encoding="utf-8").split("\n")
    document = parse_document(path)
    for key in value:
        node, found, missing = document.find((key, "no such key"))
        assert (found, missing) == ((key,), ("no such key",))
        place = lines[node.key_line - 1][node.key_column - 1 :].lstrip("'\"")
        assert place.startswith(key)
        assert (node.line, node.column) > (node.key_line, node.key_column)


# -- what cannot be read -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line", "column", "message"),
    [
        (b"", 0, 0, "is empty"),
        (b"# only a comment\n", 0, 0, "is empty"),
        (b"a: 1\nb: \xe9", 2, 4, "is not UTF-8 text (byte 0xe9)"),
        ("a: 1".encode("utf-16"), 0, 0, "is UTF-16 text; save it as UTF-8"),
        (b"a: 1\n\tb: 2", 2, 1, "is not YAML: a tab indents this line; use spaces"),
        ("a: é\nb: \x01".encode(), 2, 4, "is not YAML: the character U+0001 is not allowed"),
        (b"a: b: c", 1, 5, "is not YAML: mapping values are not allowed in this context"),
        (b"a: [1, 2\nb: 3", 2, 2, "is not YAML: while parsing a flow sequence: did not find expected ',' or ']'"),
        (b"a: 1\n---\nb: 2", 2, 1, "a second document starts here; a file holds one"),
        (b"a: 1\na: 2", 2, 1, "duplicate key 'a' (first on line 1)"),
        (b"a: .nan", 1, 4, "'.nan' is not a finite number"),
        (b"a: [1, -.inf]", 1, 8, "'-.inf' is not a finite number"),
        (b"a: 1e999", 1, 4, "'1e999' is not a finite number"),
        (b"a: 99999999999999999999999", 1, 4, "the number 99999999999999999999999 is too large"),
        (
            b"a: !!python/object/apply:os.system [ls]",
            1,
            4,
            "tags such as 'tag:yaml.org,2002:python/object/apply:os.system' are not allowed",
        ),
        (b"? [a]\n: 1", 1, 3, "a key must be a single word"),
        (b"a: *b", 1, 4, "the alias '*b' names no anchor before it"),
        (b"a: &a [*a]", 1, 8, "the alias '*a' names no anchor before it"),
        (
            b"b: &b {a: 1}\nc:\n  <<: *b",
            3,
            3,
            "merge keys ('<<') are not supported; write the keys out, or use a block",
        ),
    ],
)
def test_one_clear_error(tmp_path: Path, content: bytes, line: int, column: int, message: str) -> None:
    assert problem(tmp_path, content) == (line, column, message)


def test_all_problems_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, "a: 1\nb: .nan\na: 2\nc: !x 3\n")
    assert [line for line, _, _ in found] == [2, 3, 4]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "none.yaml", "no such file"), (tmp_path, "is a folder, not a file")):
        with pytest.raises(InputFileError) as caught:
            parse_document(path)
        assert str(caught.value) == f"{path}: {message}"
        assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser reads every file")
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path, "a: 1")
    path.chmod(0)
    with pytest.raises(InputFileError, match="cannot be read"):
        parse_document(path)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 10_000_000,
        b"[" * (MAX_BYTES - 1),
        b"- " * (MAX_BYTES // 2 - 1),
        b"a: {" * (MAX_BYTES // 4 - 1),
        b"a: &a [x]\n"
        + b"".join(
            b"k%d: &k%d [%s]\n" % (i, i, b",".join([b"*k%d" % (i - 1) if i else b"*a"] * 10)) for i in range(30)
        ),
        b"a: &a [" + b"x," * 1000 + b"]\nb: [" + b"*a," * 1_000_000 + b"]\n",
        b"a: &k0 [1]\n" + b"".join(b"k%d: &k%d [*k%d]\n" % (i, i, i - 1) for i in range(1, MAX_DEPTH + 5)),
    ],
    ids=["10 MB of brackets", "brackets", "dashes", "mappings", "alias bomb", "long aliases", "deep aliases"],
)
def test_bombs_give_one_error(tmp_path: Path, content: bytes) -> None:
    _, _, message = problem(tmp_path, content)
    assert any(word in message for word in ("levels deep", "is larger than", f"more than {MAX_NODES:,} values"))


@given(data=st.binary(max_size=400) | st.text(max_size=200).map(lambda s: s.encode("utf-8", "surrogatepass")))
def test_any_bytes_give_a_value_or_problems(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "file"
    path.write_bytes(data)
    for read in (parse_document, read_json_file):
        found: tuple[FileProblem, ...] = ()
        try:
            read(path)
        except InputFileError as error:
            found = error.problems
        assert all(str(p).startswith(str(path)) and "\n" not in str(p) for p in found)


def test_same_tree_as_pyyaml(tmp_path: Path) -> None:
    """Structure against the library's own constructor, on a file without scalars that the two versions of YAML read differently."""
    rng = random.Random(5)

    def tree(depth: int) -> Any:
        if depth == 0:
            return rng.choice([1, 2.5, "word", True, None])
        return {f"k{i}": [tree(depth - 1) for _ in range(rng.randint(1, 3))] for i in range(rng.randint(1, 3))}

    value = tree(4)
    for style in (False, True):
        assert parse(tmp_path, yaml.safe_dump(value, default_flow_style=style)) == value


# -- JSON ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line", "column", "message"),
    [
        ('{"a": 1,\n "b" 2}', 2, 6, "is not JSON: Expecting ':' delimiter"),
        ('{"a": 1, "a": 2}', 1, 10, "duplicate key 'a' (first on line 1)"),
        ('{"\\ud83d": 1, "b": 1, "b": 2}', 1, 23, "duplicate key 'b' (first on line 1)"),
        ("[" * 50 + '{"a": 1, "a": 2}' + "]" * 50, 0, 0, "an object has a key twice"),
        ('{"a": NaN}', 0, 0, "'NaN' is not a finite number"),
        ('{"a": 1e999}', 0, 0, "'1e999' is not a finite number"),
        ('{"a": ' + "9" * 5000 + "}", 0, 0, f"the number {'9' * 24}... is too large"),
        ("[" * 1_000_000, 0, 0, "is nested too deeply"),
    ],
)
def test_json_errors(tmp_path: Path, content: str, line: int, column: int, message: str) -> None:
    with pytest.raises(InputFileError) as caught:
        read_json_file(write(tmp_path, content))
    (only,) = caught.value.problems
    assert (only.line, only.column, only.message) == (line, column, message)


def test_many_problems_are_counted_not_shown() -> None:
    error = InputFileError([FileProblem(path=Path("f"), line=i + 1, column=1, message="m") for i in range(80)])
    assert len(error.problems) == 80
    assert str(error).splitlines()[-1] == "... and 30 more problems"


def test_messages_cannot_steer_a_terminal() -> None:
    problem = FileProblem(path=Path("f"), line=1, column=1, where="\x1b[31m", message="line\nbreak \x07")
    assert str(problem) == "f:1:1: \\x1b[31m: line\\nbreak \\x07"


# --- Errors of pydantic in the words of the domain ----------------------------------------------------------------------------------------


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
