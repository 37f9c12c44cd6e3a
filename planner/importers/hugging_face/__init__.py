"""Hugging Face's ``config.json``: the sizes of a transformer, turned into a network file.

A config states sizes and leaves the architecture to the code of its ``model_type``; this package knows that code for the types in
`ARCHITECTURES`. The result is a network file as plain values, with a block per kind of layer and their repetitions, so that
``planner import`` writes something to read and to edit.

What a config does not say
    *Positions of a sample*: the longest that the config states (``max_position_embeddings`` or what the type calls it); ``--seq``
    replaces it. *Samples of a step*: `TOKENS_PER_STEP` tokens, or `IMAGES_PER_STEP` images. Both are named in ``source``.
What has no weights and no layer of its own
    Rotary and ALiBi positions, scaling and soft-capping of scores and logits, the routers' losses.

To add an architecture, write a reader (fields, model type) -> `parts.Network` and list it in `ARCHITECTURES`.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, NamedTuple

from planner.errors import InputFileError, did_you_mean
from planner.files.documents import Document
from planner.importers.documents import ImportedDocument
from planner.importers.hugging_face.fields import Fields
from planner.importers.hugging_face.parts import Network

__all__ = ["ARCHITECTURES", "FORMAT", "IMAGES_PER_STEP", "TOKENS_PER_STEP", "convert", "detect"]

FORMAT = "Hugging Face config.json"

# 4 Mi: Llama 2 was trained with 4M tokens per step (arXiv:2307.09288, section 2.2), as many since.
TOKENS_PER_STEP = 4 * 2**20
# The vision transformer was pre-trained with batches of 4096 (arXiv:2010.11929, section 4.1).
IMAGES_PER_STEP = 4096

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_/@+-]")
_LONGEST_NAME = 64


class _Architecture(NamedTuple):
    config_class: str
    module: str  # imported on first use
    reader: str


_DECODERS = {
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "mixtral": "MixtralConfig",
    "qwen2": "Qwen2Config",
    "qwen2_moe": "Qwen2MoeConfig",
    "qwen3": "Qwen3Config",
    "qwen3_moe": "Qwen3MoeConfig",
    "gemma": "GemmaConfig",
    "gemma2": "Gemma2Config",
    "phi3": "Phi3Config",
}
# model_type -> config class, and the module and function that read it.
ARCHITECTURES: dict[str, _Architecture] = {
    **{name: _Architecture(config, "decoders", "read_decoder") for name, config in _DECODERS.items()},
    "deepseek_v2": _Architecture("DeepseekV2Config", "deepseek", "read_deepseek"),
    "deepseek_v3": _Architecture("DeepseekV3Config", "deepseek", "read_deepseek"),
    "gpt2": _Architecture("GPT2Config", "gpt", "read_gpt2"),
    "gpt_neox": _Architecture("GPTNeoXConfig", "gpt", "read_gpt_neox"),
    "opt": _Architecture("OPTConfig", "gpt", "read_opt"),
    "phi": _Architecture("PhiConfig", "gpt", "read_phi"),
    "bloom": _Architecture("BloomConfig", "gpt", "read_bloom"),
    "falcon": _Architecture("FalconConfig", "gpt", "read_falcon"),
    "mpt": _Architecture("MptConfig", "gpt", "read_mpt"),
    "bert": _Architecture("BertConfig", "encoders", "read_bert"),
    "vit": _Architecture("ViTConfig", "encoders", "read_vit"),
    "t5": _Architecture("T5Config", "t5", "read_t5"),
}


def detect(content: object) -> bool:
    """Whether parsed JSON looks like a config.json.

    Examples
    --------
    >>> detect({"model_type": "llama"}), detect({"architectures": ["LlamaModel"]}), detect({"layers": {}}), detect([])
    (True, True, False, False)
    """
    return (
        isinstance(content, dict)
        and ("model_type" in content or "architectures" in content)
        and "layers" not in content
    )


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
    >>> from planner.importers.documents import document_of
    >>> content = {"model_type": "gpt2", "n_layer": 2, "n_embd": 768, "n_head": 12}
    >>> network = convert(document_of(Path("tiny/config.json"), "", content)).content
    >>> network["name"], network["seq"], network["global_batch"], network["layers"][-1]["type"]
    ('tiny', 1024, 4096, 'softmax')
    """
    model_type = _model_type(document)
    architecture = ARCHITECTURES[model_type]
    module = importlib.import_module(f"planner.importers.hugging_face.{architecture.module}")
    fields = Fields(document, architecture.config_class)
    network: Network = getattr(module, architecture.reader)(fields, model_type)
    fields.check()
    architectures = document.value.get("architectures") or []
    network_class = str(architectures[0]) if architectures else architecture.config_class.removesuffix("Config")
    content: dict[str, Any] = {
        "schema_version": 1,
        "name": _name(document, model_type),
        "description": f"{network_class}: {network.summary}",
        **_step(network, network_class),
    }
    if network.blocks:
        content["blocks"] = network.blocks
    content["layers"] = network.layers
    return ImportedDocument(content=content, notes=tuple(fields.notes))


def _step(network: Network, network_class: str) -> dict[str, Any]:
    """Samples of a step and their length, which a config does not say."""
    source = f"{FORMAT} ({network_class})"
    assumed = "the global batch is an assumption"
    if network.seq is None:
        return {"source": f"{source}; {assumed}, {IMAGES_PER_STEP} images per step", "global_batch": IMAGES_PER_STEP}
    length = f"seq is {network.seq_source}, the longest sample"
    return {
        "source": f"{source}; {length}; {assumed}, {TOKENS_PER_STEP} tokens per step at that length",
        "global_batch": max(1, TOKENS_PER_STEP // network.seq),
        "seq": network.seq,
    }


def _model_type(document: Document) -> str:
    """Which architecture it is."""
    known = ", ".join(sorted(ARCHITECTURES))
    if "model_type" not in document.value:
        raise InputFileError([document.problem((), f"missing key 'model_type' (known: {known})")])
    model_type = document.value["model_type"]
    if not isinstance(model_type, str):
        raise InputFileError([document.problem(("model_type",), f"expected a word (known: {known})")])
    if model_type not in ARCHITECTURES:
        hint = did_you_mean(model_type, ARCHITECTURES)
        message = f"'{model_type[:60]}' is not known{hint} (known: {known})"
        raise InputFileError([document.problem(("model_type",), message)])
    return model_type


def _name(document: Document, model_type: str) -> str:
    """Name of the network: what the file says it is called, else its folder, else its type."""
    stated = document.value.get("_name_or_path")
    folder = document.path.parent.name
    names = (stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else "", folder, model_type)
    clean = (_NOT_IN_NAMES.sub("-", name)[:_LONGEST_NAME].strip("-/@+") for name in names)
    return next(name for name in clean if name)
