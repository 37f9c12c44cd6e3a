"""Which number format or recipe people mean: "bfloat16", "Float8CurrentScaling", "fp8_cs", "awq", "W4A16_AWQ", "QLoRA"."""

from __future__ import annotations

import difflib
import re
from functools import cache

from costmodel.precision import PRECISIONS, Precision

# Words that mean a recipe only with a framework or a device -> its candidates, the first that the device runs (NVIDIA Transformer Engine,
# pytorch/quantization.py, get_default_fp8_recipe).
BARE: dict[str, tuple[str, ...]] = {"fp8": ("mxfp8", "fp8-delayed"), "fp4": ("nvfp4", "mxfp4")}
# Name -> what else it is called; case and marks make no difference, nor does fp for float: NVIDIA Transformer Engine (common/recipe),
# Megatron-LM (--fp8-recipe, --fp8-format, and --fp8-hybrid of 2023), Megatron-Bridge (training/mixed_precision.py, where
# bf16_with_fp8_mixed is delayed scaling, and scripts/performance), torchao (recipe names, quantization/README.md) and torchtitan, vLLM and
# SGLang (--quantization), TensorRT-LLM (quantization/mode.py), compressed-tensors (PRESET_SCHEMES: W8A8 is int8), PEFT and bitsandbytes.
WORDS: dict[str, tuple[str, ...]] = {
    "fp32": ("float32", "float", "single", "32", "32-true"),
    "tf32": ("TensorFloat32",),
    "fp16": ("float16", "half", "16", "16-mixed", "16-true"),
    "bf16": ("bfloat16", "bf16-mixed"),
    "fp8": (
        *(
            "float8",
            "e4m3",
            "e5m2",
            "hybrid",
            "fp8-hybrid",
            "fp8_e4m3",
            "fp8_e5m2",
            "float8_e4m3fn",
            "W8A8-FP8",
            "FP8-W8A8",
        ),
        "modelopt_fp8",
    ),
    "fp4": ("float4", "e2m1"),
    "fp8-delayed": ("delayed", "DelayedScaling", "fp8_ds", "bf16_with_fp8_mixed"),
    "fp8-tensorwise": (
        "tensorwise",
        "Float8CurrentScaling",
        "CurrentScaling",
        "fp8_current",
        "fp8_cs",
        "fp8-per-tensor",
    ),
    "fp8-rowwise": (
        *("rowwise", "fp8-per-channel", "fp8_per_channel_per_token", "fp8_dynamic", "ptpc_fp8"),
        "float8_dynamic_activation_float8_weight",
    ),
    "fp8-rowwise-gw-hp": ("rowwise_with_gw_hp", "fp8_rowwise_with_gw_hp"),
    "fp8-blockwise": (
        *("blockwise", "Float8BlockScaling", "BlockScaling", "fp8_sc", "fp8_ss", "fp8_subchannel"),
        *("fp8_block_scales", "fp8_per_block", "fp8_block"),
    ),
    "fp8-deepseek": ("deepseek", "deepseek-v3"),
    "mxfp8": ("fp8_mx", "MXFP8BlockScaling", "modelopt_mxfp8"),
    "nvfp4": ("NVFP4BlockScaling", "modelopt_fp4", "modelopt_nvfp4", "nvfp4_online"),
    "mxfp4": (),
    "int8": (
        *(
            "W8A8",
            "W8A8-INT8",
            "INT8-W8A8",
            "aqt",
            "aqt_int8",
            "SmoothQuant",
            "w8a8_sq",
            "w8a8_sq_per_channel_per_token_plugin",
        ),
        "int8_dynamic_activation_int8_weight",
    ),
    "w8a16": (
        *("int8_weights", "experts_int8", "int8_wo", "int8_weight_only", "W8A16-GPTQ", "bitsandbytes-8bit", "bnb-8bit"),
        *("llm_int8", "load_in_8bit"),
    ),
    "w4a16": (
        *("int4", "awq", "awq_marlin", "gptq", "gptq_marlin", "W4A16_AWQ", "W4A16_GPTQ", "int4_wo", "int4_weight_only"),
        *("int4_awq", "int4_gptq", "moe_wna16", "marlin"),
    ),
    "nvfp4a16": ("W4A16-NVFP4",),
    "mxfp4a16": (),
    "w4a16-mxfp4": (),
    "w4a8": ("W4A8_AWQ", "w4afp8"),
    "nf4": ("bitsandbytes", "bnb", "bnb-4bit", "bitsandbytes-4bit", "load_in_4bit", "qlora"),
}


@cache
def _called() -> dict[str, str]:
    """Word without marks -> the name of what is meant."""
    return {_without_marks(word): name for name, words in WORDS.items() for word in (name, *words)}


@cache
def precision_called(text: str) -> str | None:
    """The name of what is meant, a key of `PRECISIONS` or of `BARE`; None where it is none that is known.

    Examples
    --------
    >>> [precision_called(text) for text in ("BFloat16", "fp8_cs", "bf16_with_fp8_current_scaling_mixed", "W4A16_AWQ", "fp7")]
    ['bf16', 'fp8-tensorwise', 'fp8-tensorwise', 'w4a16', None]
    """
    word = _without_marks(text)
    short = re.sub(r"^bf16with|(?<=.)(?:scaling)?(?:mixed|true|recipe)?$", "", word)
    return _called().get(word) or _called().get(short)


def _without_marks(text: str) -> str:
    """Letters and digits of a word, with fp for float.

    >>> _without_marks("torch.bfloat16"), _without_marks("Float8CurrentScaling")
    ('bfp16', 'fp8currentscaling')
    """
    word = re.sub(r"[^a-z0-9]", "", text.lower().removeprefix("torch."))
    return re.sub(r"float(?=[0-9])", "fp", word)


def nearest_precision(text: str) -> list[str]:
    """What a misspelt name may mean, one or none.

    >>> nearest_precision("float8_tensorwize"), nearest_precision("zzz")
    (['fp8-tensorwise'], [])
    """
    near = difflib.get_close_matches(_without_marks(text[:200]), _called(), n=1, cutoff=0.75)
    return [_called()[word] for word in near]


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
    served = dict.fromkeys(("fp8", "fp8-tensorwise", "fp8-rowwise"), "fp8")
    served |= {"mxfp4": "w4a16-mxfp4"} if experts else {}
    if serves and name in served:
        return (PRECISIONS[served[name]],)
    if adapters and name in _UNDER_ADAPTERS:
        return (PRECISIONS[_UNDER_ADAPTERS[name]],)
    usual = fp8.split() if name == "fp8" else ()
    return tuple(PRECISIONS[known] for known in usual or BARE.get(name, (name,)))
