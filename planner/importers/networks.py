"""Loads networks: files of this planner and of other programs, by path or by bundled name."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

from costmodel.network.graph import GraphError
from planner.core.errors import InputFileError, UsageError
from planner.files.documents import Document, parse_text
from planner.files.loading import KEPT_CHARACTERS, LoadedModel, json_problems, model_of, no_seq
from planner.files.resources import InMemory, resolve
from planner.files.text import failure, read_text

# What a config.json has whatever its architecture.
_CONFIG_KEYS = {"hidden_size", "num_hidden_layers", "architectures", "vocab_size", "n_embd", "d_model"}


def load_model(given: str, *, seq: int | None = None, assume_free: Collection[str] = ()) -> LoadedModel:
    """Load a network.

    Parameters
    ----------
    given : str
        Path of a network file (YAML, or another program's: `planner list importers`; a folder with a config.json), a bundled
        name with or without its suffix, or the content of a network file (`InMemory`).
    seq : int, optional
        Positions of a sample, in place of the file's ``seq``.
    assume_free : collection of str
        Operators of another program's file that are not known and are taken to cost nothing.

    Returns
    -------
    LoadedModel

    Raises
    ------
    UnknownName
        Neither a file nor a bundled name.
    InputFileError
        Every problem of the file.
    UsageError
        ``seq`` is given and the network has none; ``assume_free`` names what the file does not have.

    Examples
    --------
    >>> load_model("alexnet").graph.weight_count
    50303912
    """
    path = Path(given) if isinstance(given, InMemory) else network_path(resolve("models", given))
    suffix = path.suffix.lower()
    if assume_free and (isinstance(given, InMemory) or suffix in (".json", ".yaml", ".yml")):
        raise UsageError(
            f"--assume-free: {path.name} has no operators that are not known; ONNX, torch and Caffe files may have"
        )
    if isinstance(given, InMemory):
        return _network_in_memory(given.document, seq)
    if suffix not in (".yaml", ".yml"):
        from planner.importers.sources import imported_document

        made = imported_document(path, frozenset(assume_free))
        if made is not None:
            return model_of(*made, seq=seq)
        if suffix == ".json":
            if seq is not None:
                raise no_seq(path.stem)
            return _load_json(path)
    content, sha256 = read_text(path)
    read = _network if len(content) <= KEPT_CHARACTERS else _network.__wrapped__
    return read(path, content, sha256, seq)


@lru_cache(maxsize=32)
def _network(path: Path, text: str, sha256: str, seq: int | None) -> LoadedModel:
    return model_of(parse_text(path, text, sha256, keep_faults=True), seq=seq)


@lru_cache(maxsize=32)
def _network_in_memory(document: Document, seq: int | None) -> LoadedModel:
    return model_of(document, seq=seq)


def network_path(path: Path) -> Path:
    """The file that is meant: a folder stands for its ``config.json``, as published networks come.

    Raises
    ------
    InputFileError
        A folder without one.

    Examples
    --------
    >>> network_path(Path("alexnet.yaml")).name
    'alexnet.yaml'
    """
    if not path.is_dir():
        return path
    config = path / "config.json"
    if not config.is_file():
        raise failure(path, "is a folder without a config.json")
    return config


def _load_json(path: Path) -> LoadedModel:
    from planner.files.documents import read_json_file
    from planner.importers import paleo_json

    file = read_json_file(path)
    if not paleo_json.detect(file.content):
        message = "is JSON, but not a network in a format that is known here; networks of this planner are YAML files"
        if isinstance(file.content, dict) and _CONFIG_KEYS & file.content.keys():
            from planner.importers.hugging_face.fields import ARCHITECTURES

            message = f"looks like a Hugging Face config.json, but has no 'model_type' (known: {', '.join(sorted(ARCHITECTURES))})"
        raise failure(path, message)
    try:
        imported = paleo_json.convert(file.content)
    except GraphError as error:
        raise InputFileError(json_problems(file, error.problems)) from None
    return LoadedModel(
        graph=imported.graph,
        global_batch=imported.global_batch,
        name=path.stem,
        path=path,
        sha256=file.sha256,
        description=imported.graph.name,
        source=f"{paleo_json.FORMAT} {path.name}",
        notes=imported.notes,
    )


def import_network(path: Path, *, assume_free: Sequence[str] = ()) -> LoadedModel:
    """Read another program's network file.

    Parameters
    ----------
    path : Path
    assume_free : sequence of str
        Operators that are not known and are taken to cost nothing.

    Raises
    ------
    InputFileError
        Missing, no format that is known, or a network that cannot be used.
    UsageError
        ``assume_free`` names what the file does not have.
    """
    from planner.importers.sources import FORMATS, format_of

    if not path.exists():
        raise failure(path, "no such file")
    if path.suffix.lower() == ".json" or format_of(path) is not None:
        return load_model(str(path), assume_free=assume_free)
    known = "; ".join(f"{entry.description} ({entry.files})" for entry in FORMATS)
    raise failure(path, f"cannot be imported: its content is none of these: {known}")
