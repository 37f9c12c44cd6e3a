"""Which number format or recipe people mean: "bfloat16", "Float8CurrentScaling", "fp8_cs", "awq", "W4A16_AWQ", "QLoRA"."""

from __future__ import annotations

import re
from functools import cache

from costmodel.precision import PRECISIONS, Precision

__all__ = ["BARE", "WORDS", "meanings", "precision_called"]

# Words that mean a recipe only with a framework or a device -> its candidates, the first that the device runs (NVIDIA Transformer Engine,
# pytorch/quantization.py, get_default_fp8_recipe).
BARE: dict[str, tuple[str, ...]] = {"fp8": ("mxfp8", "fp8-delayed"), "fp4": ("nvfp4", "mxfp4")}
# Name -> what else it is called, without case and marks: NVIDIA Transformer Engine (common/recipe), Megatron-LM (--fp8-recipe),
# Megatron-Bridge (training/mixed_precision.py and scripts/performance), torchao and torchtitan (recipe names), vLLM and SGLang
# (--quantization), TensorRT-LLM (quantization/mode.py), compressed-tensors (PRESET_SCHEMES: W8A8 is int8), PEFT and bitsandbytes.
WORDS: dict[str, tuple[str, ...]] = {
    "fp32": ("float32", "float", "single", "32", "32true"),
    "tf32": ("tensorfloat32",),
    "fp16": ("float16", "half", "16", "16mixed", "16true"),
    "bf16": ("bfloat16",),
    "fp8": (
        *("float8", "e4m3", "hybrid", "float8e4m3", "float8e4m3fn", "fp8e4m3", "w8a8fp8", "fp8w8a8", "fp8pertensor"),
        *("fp8perchannel", "fp8perchannelpertoken", "fp8dynamic", "modeloptfp8", "ptpcfp8"),
    ),
    "fp4": ("float4", "e2m1"),
    "fp8-delayed": ("delayed", "fp8ds", "delayedscaling", "fp8delayedscaling"),
    "fp8-tensorwise": ("tensorwise", "fp8cs", "float8currentscaling", "fp8currentscaling", "currentscaling"),
    "fp8-rowwise": ("rowwise", "float8rowwise"),
    "fp8-rowwise-gw-hp": ("rowwisewithgwhp", "fp8rowwisewithgwhp"),
    "fp8-blockwise": (
        *("blockwise", "fp8sc", "fp8ss", "fp8subchannelscaling", "float8blockscaling", "blockscaling"),
        *("fp8blockscales", "fp8perblock", "fp8block", "fp8blockscaling"),
    ),
    "fp8-deepseek": ("deepseek", "deepseekv3"),
    "mxfp8": ("fp8mx", "mxfp8blockscaling", "modeloptmxfp8"),
    "nvfp4": ("nvfp4blockscaling", "modeloptfp4", "nvfp4online", "modeloptnvfp4"),
    "mxfp4": (),
    "int8": (
        "w8a8",
        "w8a8int8",
        "int8w8a8",
        "aqt",
        "aqtint8",
        "smoothquant",
        "w8a8sq",
        "w8a8sqperchannelpertokenplugin",
    ),
    "w8a16": (
        "int8weights",
        "expertsint8",
        "int8wo",
        "w8a16gptq",
        "bitsandbytes8bit",
        "bnb8bit",
        "llmint8",
        "loadin8bit",
    ),
    "w4a16": (
        "int4",
        "awq",
        "awqmarlin",
        "gptq",
        "gptqmarlin",
        "w4a16awq",
        "w4a16gptq",
        "int4wo",
        "int4awq",
        "int4gptq",
        "moewna16",
        "marlin",
    ),
    "nvfp4a16": ("w4a16nvfp4",),
    "mxfp4a16": (),
    "w4a16-mxfp4": (),
    "w4a8": ("w4a8awq", "w4afp8"),
    "nf4": ("bitsandbytes", "bnb", "bnb4bit", "bitsandbytes4bit", "loadin4bit", "qlora"),
}


@cache
def _called() -> dict[str, str]:
    """Word without marks -> the name of what is meant."""
    return {re.sub("-", "", word): name for name, words in WORDS.items() for word in (name, *words)}


@cache
def precision_called(text: str) -> str | None:
    """The name of what is meant, a key of `PRECISIONS` or of `BARE`; None where it is none that is known.

    Examples
    --------
    >>> [precision_called(text) for text in ("BFloat16", "fp8_cs", "bf16_with_fp8_current_scaling_mixed", "W4A16_AWQ", "fp7")]
    ['bf16', 'fp8-tensorwise', 'fp8-tensorwise', 'w4a16', None]
    """
    word = re.sub(r"[^a-z0-9]", "", text.lower().removeprefix("torch."))
    short = re.sub(r"^bf16with|(?<=.)(?:mixed|true|recipe)$", "", word)
    return _called().get(word) or _called().get(short)


# What means another recipe where all but adapters is frozen: 8-bit weights are kept so (PEFT with load_in_8bit; bitsandbytes,
# autograd/_functions.py, MatMul8bitLt, whose backward pass turns them to 16 bits). AQT's recipe is about weights that are trained.
_UNDER_ADAPTERS = {"int8": "w8a16"}


def meanings(
    name: str, fp8: str = "", *, serves: bool = False, experts: bool = True, adapters: bool = False
) -> tuple[Precision, ...]:
    """What a name of `precision_called` may mean, the first that the device runs.

    Parameters
    ----------
    name : str
    fp8 : str
        What a framework means by that (`Defaults.fp8`); empty: as Transformer Engine.
    serves : bool
        In serving, fp8 has a scale for a tensor or a row, and mxfp4 is that of the experts' weights (gpt-oss) where there are some.
    experts : bool
        Whether the network has experts.
    adapters : bool
        Whether all but adapters is frozen.

    Examples
    --------
    >>> [precision.name for precision in meanings("fp8")], [precision.name for precision in meanings("fp8", serves=True)]
    (['mxfp8', 'fp8-delayed'], ['fp8'])
    >>> meanings("int8", adapters=True)[0].name
    'w8a16'
    """
    served = {"fp8": "fp8", **({"mxfp4": "w4a16-mxfp4"} if experts else {})}
    if serves and name in served:
        return (PRECISIONS[served[name]],)
    if adapters and name in _UNDER_ADAPTERS:
        return (PRECISIONS[_UNDER_ADAPTERS[name]],)
    usual = fp8.split() if name == "fp8" else ()
    return tuple(PRECISIONS[known] for known in usual or BARE.get(name, (name,)))
