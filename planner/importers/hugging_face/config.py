"""Hugging Face's ``config.json``: the sizes of a transformer, turned into a network file.

A config states sizes and leaves the architecture to the code of its ``model_type``; this package knows that code for the types in
`ARCHITECTURES`. The result is a network file as plain values, with a block per kind of layer and their repetitions, so that
``planner import`` writes something to read and to edit.

What a config does not say
    *Positions of a sample*: the longest that the config states (``max_position_embeddings`` or what the type calls it); ``--seq``
    replaces it. *Samples of a step*: `TOKENS_PER_STEP` tokens, or `IMAGES_PER_STEP` images. Both are named in ``source``.
What has no weights and no layer of its own
    Rotary and ALiBi positions, scaling and soft-capping of scores and logits, the routers' losses.

To add a decoder of the kind of Llama, write the facts about it in `families.yaml`; for another architecture, write a reader
(fields, model type) -> `parts.Network` and list it there.
"""

from __future__ import annotations

import importlib
from typing import Any

from planner.core.errors import InputFileError, did_you_mean
from planner.files.documents import Document, Location
from planner.importers.drafts import LONGEST_NAME, NOT_IN_NAMES
from planner.importers.hugging_face.fields import (
    ARCHITECTURES,
    REFUSED,
    TEXT_PARTS,
    WITH_TEXT_PART,
    Fields,
    notes_of_quantization,
)
from planner.importers.hugging_face.parts import Network
from planner.importers.sources import ImportedDocument

FORMAT = "Hugging Face config.json"

# 4 Mi: Llama 2 was trained with 4M tokens per step (arXiv:2307.09288, section 2.2), as many since.
TOKENS_PER_STEP = 4 * 2**20
# The vision transformer was pre-trained with batches of 4096 (arXiv:2010.11929, section 4.1).
IMAGES_PER_STEP = 4096
# Readers of networks that generate text.
_GENERATE = frozenset({"decoders", "hybrids"})


def convert(document: Document) -> ImportedDocument:
    """Turn a config into a network file.

    Parameters
    ----------
    document : Document
        The config, with the places of its values.

    Returns
    -------
    ImportedDocument

    Raises
    ------
    InputFileError
        Every problem of the config: a model type that is not known, missing keys, values that make no sense or contradict each other.

    Examples
    --------
    >>> from pathlib import Path
    >>> from planner.files.documents import document_of
    >>> content = {"model_type": "gpt2", "n_layer": 2, "n_embd": 768, "n_head": 12}
    >>> network = convert(document_of(Path("tiny/config.json"), "", content)).content
    >>> network["name"], network["seq"], network["global_batch"], network["layers"][-1]["type"]
    ('tiny', 1024, 4096, 'softmax')
    """
    model_type, base = _model_type(document)
    architecture = ARCHITECTURES[model_type]
    module = importlib.import_module(f"planner.importers.hugging_face.{architecture.module}")
    fields = Fields(document, architecture.config_class, base=base or (), is_part=base is not None)
    network: Network = getattr(module, architecture.reader)(fields, model_type)
    fields.check()
    fields.notes += fields.notes_of_unread(model_type)
    fields.notes += notes_of_quantization(document.value, str(base[0]) if base else None)
    network_class = architecture.config_class.removesuffix("Config")
    if base is not None:
        parts = [key for key, value in document.value.items() if key.endswith("_config") and isinstance(value, dict)]
        others = ", ".join(key for key in parts if key != "text_config" and "quant" not in key)
        fields.notes.append(f"the text part alone is read; left out: {others or 'what else the class has'}")
    elif document.value.get("architectures"):
        network_class = str(document.value["architectures"][0])
    source, assumed = f"{FORMAT} ({network_class})", "the global batch is an assumption"
    if network.seq is None:
        size: dict[str, Any] = {
            "source": f"{source}; {assumed}, {IMAGES_PER_STEP} images per step",
            "global_batch": IMAGES_PER_STEP,
        }
    else:
        length = f"seq is {network.seq_source}, the longest sample"
        size = {
            "source": f"{source}; {length}; {assumed}, {TOKENS_PER_STEP} tokens per step at that length",
            "global_batch": max(1, TOKENS_PER_STEP // network.seq),
            "seq": network.seq,
            **({"context": network.seq} if architecture.module in _GENERATE else {}),
        }
    content = {
        "schema_version": 1,
        "name": _name(document, model_type),
        "description": f"{network_class}: {network.summary}",
        **size,
        **({"blocks": network.blocks} if network.blocks else {}),
        "layers": network.layers,
    }
    return ImportedDocument(content=content, notes=tuple(fields.notes))


def _model_type(document: Document) -> tuple[str, Location | None]:
    """Which architecture it is, and where in the file its keys stand if it is the text part of a network of several parts."""
    model_type = _known_type(document, document.value, ())
    if model_type not in WITH_TEXT_PART:
        return model_type, None
    default = WITH_TEXT_PART[model_type]
    part = document.value.get("text_config")
    if part is None and "hidden_size" in document.value:  # as files of Qwen2-VL have it
        return default, ()
    if not isinstance(part, dict):
        place: Location = () if part is None else ("text_config",)
        what = "missing key 'text_config'" if part is None else "expected a mapping"
        raise InputFileError([document.problem(place, f"{what}: {model_type} keeps its text part there")])
    stated = part.get("model_type", default)
    own = TEXT_PARTS.get(stated, stated) if isinstance(stated, str) else stated
    return _known_type(document, {"model_type": own}, ("text_config",)), ("text_config",)


def _known_type(document: Document, values: dict[str, Any], base: Location) -> str:
    """Type of a config, or of the text part of one; any that cannot be read is a problem."""
    readable = [*ARCHITECTURES, *(() if base else WITH_TEXT_PART)]
    known = f"(known: {', '.join(sorted(readable))})"
    place = (*base, "model_type")
    model_type = values.get("model_type")
    if "model_type" not in values:
        raise InputFileError([document.problem((), f"missing key 'model_type' {known}")])
    if not isinstance(model_type, str):
        raise InputFileError([document.problem(place, f"expected a word {known}")])
    if model_type in REFUSED:
        message = f"'{model_type}' {REFUSED[model_type]}; import it with ONNX or torch.export, or write a network file"
        raise InputFileError([document.problem(place, message)])
    if model_type not in readable:
        hint = did_you_mean(model_type, readable) or _advice(values)
        raise InputFileError([document.problem(place, f"'{model_type[:60]}' is not known{hint} {known}")])
    return model_type


# Keys that a file has -> the type whose keys they are.
_LIKE = {
    ("kv_lora_rank",): "deepseek_v3",
    ("num_local_experts",): "mixtral",
    ("num_experts", "moe_intermediate_size"): "qwen3_moe",
    ("hidden_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps"): "llama",
    ("n_embd", "n_layer", "n_head"): "gpt2",
}


def _advice(values: dict[str, Any]) -> str:
    """Which type a network under a name of its own may be: that of its class, or one whose keys the file has."""
    classes = values.get("architectures")
    name = str(classes[0]) if isinstance(classes, list) and classes else ""
    for model_type, known in ARCHITECTURES.items():
        if name.startswith(f"{known.config_class.removesuffix('Config')}For"):
            return f"; its class {name[:60]} is that of '{model_type}': set model_type to '{model_type}' if it is one"
    like = next((kind for keys, kind in _LIKE.items() if values.keys() >= {*keys}), None)
    return f"; its keys are those of '{like}': set model_type to '{like}' if it is one" if like else ""


def _name(document: Document, model_type: str) -> str:
    """Name of the network: what the file says it is called, else its folder, else its type."""
    stated = document.value.get("_name_or_path")
    folder = document.path.absolute().parent.name  # the same from within the folder
    names = (stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else "", folder, model_type)
    clean = (NOT_IN_NAMES.sub("-", name)[:LONGEST_NAME].strip("-/@+") for name in names)
    return next(name for name in clean if name)
