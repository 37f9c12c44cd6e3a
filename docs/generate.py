"""Writes docs/cli.md from the commands' own help, docs/json.md from the published schemas, and the marked lists of other pages.

Usage: ``python docs/generate.py``. A test fails when a page is out of date.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from costmodel.framework import LayerAssumptions
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.rules import RULES
from costmodel.serving.workload import ServingAssumptions
from planner.cli import make_app
from planner.core.notes import SENTENCES
from planner.measurements.columns import COLUMNS
from planner.measurements.kinds import KINDS
from planner.schema import json_schema

__all__ = [
    "PAGES",
    "cli_page",
    "cost_model_page",
    "extending_page",
    "inference_page",
    "json_page",
    "measurements_page",
    "transformers_page",
]

FOLDER = Path(__file__).resolve().parent
WIDTH = 100
ROOMS = ("costmodel", "strategies", "planner")

CLI_HEAD = """\
# Command line

Generated from `--help-all` by `python docs/generate.py`. `python -m planner` is the same program.

    planner COMMAND [OPTIONS] [ARGUMENTS]

- `--help` leaves out options that are rarely needed.
- The result goes to stdout (or to the file of `-o`), progress and remarks go to stderr. Colour and rules appear on a terminal only;
  `NO_COLOR`, `TERM=dumb` and a pipe give plain ASCII.
- `--format` is `table`, `json`, `csv`, `markdown` or `yaml`; without it the suffix of `-o` decides. JSON and CSV hold SI units and every
  digit, and are described in [json.md](json.md).
- Files appear complete or not at all, and a file that cannot be written is refused before the search starts.
- Ctrl-C prints the best plans so far.
- `planner --install-completion` has the shell complete commands, options, their words (`--schedule`, `--objective`, ...) and the bundled
  names of networks, clusters, devices and calibrations; `--show-completion` prints the script.
- Everything wrong with a command line, or with a file, is reported at once; places in files are `file:line:column`.

| exit code | meaning |
| --- | --- |
| 0 | answered |
| 1 | no plan fits; the nearest miss is named |
| 2 | an option, a name or a file cannot be used |
| 3 | a limit stopped the search before it had a plan |
| 70 | a defect of the planner |
| 130 | stopped by Ctrl-C |

"""

JSON_HEAD = """\
# Results as JSON

Generated from the schemas by `python docs/generate.py`. `--json` (or `--format json`, or `-o FILE.json`) prints the same answer as the
table, in SI units with the unit in the key, every digit, and `null` where there is no value (never NaN or infinity). `--format yaml` is
the same document; `--format csv` has one line per plan, layer or number of workers.

    planner optimize alexnet --gpus 16 --json | jq '.plans[0].step_time_s'
    planner schema result > result.schema.json

`schema_version` grows when a key changes its meaning or goes; keys may be added without that, so readers should ignore those that they do
not know. `space_size` is exact and may be larger than 64 bits.

"""

NOTES_HEAD = """## Codes of notes

`note_codes` of an answer has the code, the values and the sentence of every note in `notes`. In Python, a note of a result is a string
with `code` and `values`. Names in braces are the values. What stands in brackets is left out where a value in it is missing.
"""

SECTIONS = (
    ("result", "planner optimize"),
    ("breakdown", "planner explain, planner estimate"),
    ("compare", "planner compare"),
    ("why-not", "planner why-not"),
    ("check", "planner check"),
    ("validation", "planner validate"),
    ("measure", "planner measure"),
    ("detect", "planner detect"),
    ("calibrate", "planner calibrate"),
    ("place", "planner place, planner place check"),
    ("scale", "planner scale"),
    ("sweep", "planner sweep"),
    ("size", "planner size"),
    ("list", "planner list"),
    ("plan", "Plan files (--export, --plan, and `plan` inside results)"),
)


def cli_page() -> str:
    """Text of docs/cli.md."""
    group: Any = typer.main.get_command(make_app())
    root = typer.Context(group, info_name="planner", terminal_width=WIDTH)
    parts = [CLI_HEAD]
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        every = {"argv": ["--help-all"]}
        context = typer.Context(command, info_name=name, parent=root, terminal_width=WIDTH, obj=every)
        text = "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
        parts.append(f"## planner {name}\n\n```text\n{text}\n```\n\n")
    return "".join(parts).rstrip() + "\n"


def json_page() -> str:
    """Text of docs/json.md."""
    parts = [JSON_HEAD]
    seen: set[str] = set()
    for document, title in SECTIONS:
        schema = json_schema(document)
        table = f"{_table(schema)}\n" if "properties" in schema else ""  # a union has the tables of its members
        parts.append(f"## {title}\n\n`planner schema {document}` - {_first_line(schema)}\n\n{table}")
        definitions = schema.get("$defs", {})
        members = [str(entry["$ref"]).rpartition("/")[2] for entry in schema.get("anyOf", ())]
        for name in dict.fromkeys((*members, *definitions)):
            definition = definitions[name]
            if name in seen or "properties" not in definition or name == "PlanDocument":
                continue
            seen.add(name)
            parts.append(f"### {name}\n\n{_first_line(definition)}\n\n{_table(definition)}\n")
    sentences = {code: re.sub(r"{(\w+):[^}]*}", r"{\1}", sentence) for code, sentence in SENTENCES.items()}
    rows = [f"| `{code}` | {sentence} |" for code, sentence in sentences.items()]
    parts.append("\n".join([NOTES_HEAD, "| code | sentence |", "| --- | --- |", *rows, ""]))
    return "".join(parts).rstrip() + "\n"


def transformers_page() -> str:
    """Text of docs/transformers.md: the page as it is, with its marked lists written anew."""
    rules = ["| rule | what must hold |", "| --- | --- |", *(f"| {rule.name} | {rule.doc} |" for rule in RULES)]
    text = (FOLDER / "transformers.md").read_text(encoding="utf-8")
    return _marked(_marked(text, "rules", rules), "assumptions", _assumptions(MeshAssumptions))


def cost_model_page() -> str:
    """Text of docs/cost-model.md: the page as it is, with its list of assumptions written anew."""
    text = (FOLDER / "cost-model.md").read_text(encoding="utf-8")
    return _marked(text, "assumptions", _assumptions(LayerAssumptions))


def inference_page() -> str:
    """Text of docs/inference.md: the page as it is, with its list of assumptions written anew."""
    text = (FOLDER / "inference.md").read_text(encoding="utf-8")
    return _marked(text, "assumptions", _assumptions(ServingAssumptions))


def _assumptions(model: type[MeshAssumptions | LayerAssumptions | ServingAssumptions]) -> list[str]:
    rows = ["| name | default | meaning | source |", "| --- | --- | --- | --- |"]
    for item in fields(model):
        needs = f"; counts only with `{item.metadata['needs']}`" if item.metadata["needs"] else ""
        usual = item.metadata["as_run"]
        default = f"{item.default:g}" + (
            "" if usual == item.default else f"; {usual:g} under a framework that does not state it"
        )
        rows.append(f"| `{item.name}` | {default} | {item.metadata['doc']}{needs} | {item.metadata['source']} |")
    return rows


def measurements_page() -> str:
    """Text of docs/measurements.md: the page as it is, with its lists of kinds and columns written anew."""
    kinds = ["| kind | one row is | columns that it needs |", "| --- | --- | --- |"]
    for kind in KINDS:
        needed = (" or ".join(f"`{name}`" for name in names) for names in kind.columns)
        kinds.append(f"| `{kind.name}` | {kind.doc} | {', '.join(needed)} |")
    columns = ["| column | a cell says | it is | where it is empty |", "| --- | --- | --- | --- |"]
    columns += [f"| `{one.name}` | {one.doc} | {one.values} | {one.empty} |" for one in COLUMNS.values()]
    text = (FOLDER / "measurements.md").read_text(encoding="utf-8")
    return _marked(_marked(text, "kinds", kinds), "columns", columns)


def extending_page() -> str:
    """Text of docs/extending.md: the page as it is, with the map of the folders from what each says of itself."""
    lines = ["| folder | what is in it |", "| --- | --- |"]
    for room in ROOMS:
        for file in sorted((FOLDER.parent / room).rglob("__init__.py"), key=lambda path: path.parent.as_posix()):
            said = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            first = re.split(r"(?<=\.)\s", said.partition("\n\n")[0], maxsplit=1)[0]
            lines.append(
                f"| `{file.parent.relative_to(FOLDER.parent).as_posix()}/` | {first.rstrip('.').replace('``', '`')} |"
            )
    return _marked((FOLDER / "extending.md").read_text(encoding="utf-8"), "folders", lines)


def _marked(text: str, name: str, lines: list[str]) -> str:
    """Replace what stands between the two marks of a list."""
    begin, end = f"<!-- {name}: generated by python docs/generate.py -->", f"<!-- end of the {name} -->"
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    return "\n".join([before + begin, "", *lines, "", end + after])


def _first_line(schema: Mapping[str, Any]) -> str:
    return str(schema.get("description", "")).split("\n", maxsplit=1)[0]


def _table(schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    lines = ["| key | type | meaning |", "| --- | --- | --- |"]
    for key, entry in schema["properties"].items():
        optional = "" if key in required else " May be absent."
        lines.append(f"| `{key}` | {_type(entry)} | {entry.get('description', '')}{optional} |".replace("  ", " "))
    return "\n".join(lines) + "\n"


def _type(entry: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_types(entry)))


def _types(entry: Mapping[str, Any]) -> Iterator[str]:
    for member in (*entry.get("anyOf", ()), *entry.get("allOf", ())):
        yield from _types(member)
    if "$ref" in entry:
        yield str(entry["$ref"]).rpartition("/")[2]
    elif "const" in entry:
        yield f"`{entry['const']}`"
    elif "enum" in entry:
        yield from (f"`{value}`" for value in entry["enum"])
    elif entry.get("type") == "array":
        yield f"list of {_type(entry.get('items', {})) or 'any'}"
    elif entry.get("type") == "object":
        values = entry.get("additionalProperties")
        yield f"map to {_type(values)}" if isinstance(values, dict) and values else "map"
    elif "type" in entry:
        yield str(entry["type"])


PAGES = {
    FOLDER / "cli.md": cli_page,
    FOLDER / "json.md": json_page,
    FOLDER / "cost-model.md": cost_model_page,
    FOLDER / "transformers.md": transformers_page,
    FOLDER / "inference.md": inference_page,
    FOLDER / "extending.md": extending_page,
    FOLDER / "measurements.md": measurements_page,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8", newline="\n")
