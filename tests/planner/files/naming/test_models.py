"""What people call networks: Hugging Face, trainers' recipes, papers; and names of others that look alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from planner.core.errors import InputFileError, UnknownName
from planner.files.naming.devices import KNOWN_DEVICES, device_called, named_device
from planner.files.naming.models import image_network_called, named_model, transformer_called
from planner.files.resources import Kind, bundled, resolve

TRANSFORMERS = {
    "meta-llama/Llama-2-7b-hf": "llama2-7b", "Llama-2-13b-chat-hf": "llama2-13b", "llama2_70b": "llama2-70b", "LLAMA2-70B": "llama2-70b",
    "llama-v2-7b": "llama2-7b", "meta-llama/Meta-Llama-3-8B": "llama3-8b", "Meta-Llama-3.1-8B-Instruct": "llama3-8b",
    "llama3_8b": "llama3-8b", "llama31_8b": "llama3-8b", "Llama 3 8B": "llama3-8b", "llama-3-70b": "llama3-70b",
    "LLAMA3.1_405B": "llama3-405b", "Llama-3.3-70B-Instruct": "llama3-70b", "llama3-405b": "llama3-405b", "Llama 405B": "llama3-405b",
    "meta-llama/Llama-3.2-1B": "llama3.2-1b", "llama3_2_3b": "llama3.2-3b", "llama32_1b": "llama3.2-1b", "LLaMA 7B": "llama-7b",
    "llama-13b": "llama-13b", "LLaMA-33B": "llama-30b", "huggyllama/llama-30b": "llama-30b", "LLaMA 65B": "llama-65b",
    "vicuna-7b": "llama-7b", "CodeLlama-34b-hf": "codellama-34b", "TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b",
    "HuggingFaceTB/SmolLM2-135M": "smollm2-135m", "SmolLM-1.7B": "smollm2-1.7b", "01-ai/Yi-34B": "yi-34b", "Yi-1.5-6B": "yi-6b",
    "deepseek-llm-7b-base": "deepseek-llm-7b", "DeepSeek-67B": "deepseek-llm-67b", "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "Mistral 7B": "mistral-7b", "mistral_nemo_12b": "mistral-nemo-12b", "Mistral-Small-24B-Base-2501": "mistral-small-24b",
    "Mistral-Large-Instruct-2407": "mistral-large-123b", "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b", "mixtral_8x7b": "mixtral-8x7b",
    "Mixtral 8x22B": "mixtral-8x22b", "mixtral 8 x 22b": "mixtral-8x22b", "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "qwen2_7b": "qwen2.5-7b", "Qwen2-0.5B": "qwen2.5-0.5b", "qwen2.5_72b": "qwen2.5-72b", "Qwen2.5-Coder-32B": "qwen2.5-32b",
    "QwQ-32B": "qwen2.5-32b", "Qwen/Qwen3-8B-Base": "qwen3-8b", "qwen3_0p6b": "qwen3-0.6b", "Qwen3 32B": "qwen3-32b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3-235B-A22B-Thinking-2507": "qwen3-235b-a22b", "Qwen1.5-MoE-A2.7B": "qwen1.5-moe-a2.7b",
    "google/gemma-2b": "gemma-2b", "gemma-7b-it": "gemma-7b", "gemma-2-9b": "gemma2-9b", "gemma2_27b": "gemma2-27b",
    "google/gemma-2-2b-it": "gemma2-2b", "gemma-3-27b-it": "gemma3-27b", "Gemma3 4B": "gemma3-4b", "microsoft/phi-1_5": "phi-1.5",
    "phi-2": "phi-2", "Phi-3-mini-4k-instruct": "phi-3-mini", "phi3-medium": "phi-3-medium", "microsoft/phi-4": "phi-4",
    "Phi-4-mini-instruct": "phi-4-mini", "tiiuae/falcon-7b": "falcon-7b", "Falcon 40B": "falcon-40b", "falcon-180B-chat": "falcon-180b",
    "EleutherAI/pythia-6.9b-deduped": "pythia-6.9b", "pythia-160m": "pythia-160m", "EleutherAI/gpt-neox-20b": "gpt-neox-20b",
    "GPT-NeoX-20B": "gpt-neox-20b", "EleutherAI/gpt-j-6B": "gpt-j-6b", "GPT-J": "gpt-j-6b", "gpt2": "gpt2-124m",
    "openai-community/gpt2": "gpt2-124m", "GPT-2 small": "gpt2-124m", "gpt2-medium": "gpt2-355m", "GPT2-345M": "gpt2-355m",
    "gpt2-large": "gpt2-774m", "gpt2-xl": "gpt2-1.5b", "GPT-2 1.5B": "gpt2-1.5b", "gpt3_175b": "gpt3-175b", "GPT-3 175B": "gpt3-175b",
    "GPT3": "gpt3-175b", "GPT 175B": "gpt3-175b", "GPT-3 6.7B": "gpt3-6.7b", "gpt3_6p7b": "gpt3-6.7b", "GPT-3 13B": "gpt3-13b",
    "gpt3-XL": "gpt3-1.3b", "GPT3-2.7B": "gpt3-2.7b", "gpt3 126m": "gpt3-125m", "GPT-3 Medium": "gpt3-350m", "GPT3-5B": "gpt3-5b",
    "GPT3-20B": "gpt3-20b", "facebook/opt-125m": "opt-125m", "OPT-6.7B": "opt-6.7b", "opt 13 billion": "opt-13b", "OPT 175B": "opt-175b",
    "facebook/opt-iml-max-30b": "opt-30b", "bigscience/bloom": "bloom-176b", "BLOOM-176B": "bloom-176b",
    "bigscience/bloom-7b1": "bloom-7b1", "BLOOM 7.1B": "bloom-7b1", "bloomz-560m": "bloom-560m", "bloom-1b7": "bloom-1b7",
    "mosaicml/mpt-7b": "mpt-7b", "MPT-30B": "mpt-30b", "MPT-125m": "mpt-125m", "bert-large-uncased": "bert-large",
    "BERT Large": "bert-large", "bert_base": "bert-base", "BERT-Large pretrain (LAMB)": "bert-large",
    "FacebookAI/roberta-base": "roberta-base", "RoBERTa Large": "roberta-large", "t5-11b": "t5-11b", "T5-3B": "t5-3b",
    "t5_base": "t5-base", "google-t5/t5-small": "t5-small", "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "DeepSeekV3 (dropless)": "deepseek-v3", "DeepSeek-R1": "deepseek-v3",
    "DeepSeek-V3.2-Exp": "deepseek-v3.2", "DeepSeek-V2-Lite": "deepseek-v2-lite",
    "deepseek_v2": "deepseek-v2", "DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b", "moonshotai/Kimi-K2-Instruct": "kimi-k2",
    "openai/gpt-oss-20b": "gpt-oss-20b", "GPT OSS 120B": "gpt-oss-120b", "databricks/dbrx-base": "dbrx",
    "allenai/OLMo-2-1124-7B": "olmo2-7b", "Megatron-Turing NLG 530B": "megatron-530b", "MT-NLG": "megatron-530b",
    "Megatron 22B": "megatron-22b", "ViT-B/16": "vit-b16", "vit_base_patch16_224": "vit-b16", "google/vit-large-patch16-224": "vit-l",
    "ViT-H/14": "vit-h14", "vit_huge_patch14": "vit-h14", "deit_small_patch16_224": "vit-s16", "ViT-S/16": "vit-s16",
    "ViT-B/32": "vit-b32", "vit_base_patch32_224": "vit-b32", "deit_tiny_patch16_224": "vit-ti16",
    "Qwen/Qwen-7B": "qwen1.5-7b", "Qwen1.5-14B-Chat": "qwen1.5-14b", "Qwen1.5-110B": "qwen1.5-110b", "qwen 72b": "qwen1.5-72b",
    "Qwen/Qwen2-57B-A14B": "qwen2-57b-a14b", "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama4-scout",
    "Llama4 Maverick": "llama4-maverick", "llama4_17bx16e": "llama4-scout", "Llama-4-Maverick-17B-128E": "llama4-maverick",
    "zai-org/GLM-4.5-Air": "glm-4.5-air",
    "GLM 4.5": "glm-4.5", "zai-org/GLM-4.6": "glm-4.5", "deepseek-ai/deepseek-moe-16b-base": "deepseek-moe-16b",
    "google/flan-t5-xl": "t5-v1.1-xl", "google/t5-v1_1-base": "t5-v1.1-base", "T5 v1.1 XXL": "t5-v1.1-xxl", "Flan-T5 11B": "t5-v1.1-xxl",
    "Qwen3-Next-80B-A3B": "qwen3-next-80b-a3b", "Qwen3 Next 80B": "qwen3-next-80b-a3b", "Nemotron_3_Nano": "nemotron-3-nano-30b",
    "NVIDIA-Nemotron-3-Nano-30B-A3B": "nemotron-3-nano-30b", "nvidia/Nemotron-H-56B-Base-8K": "nemotron-h-56b",
    "NemotronH 8B": "nemotron-h-8b",
    "DeepSeek-V3 16B": "deepseek-v2-lite", "deepseek_v3_236b": "deepseek-v2", "allenai/OLMo-7B-hf": "olmo-7b", "OLMo 1B": "olmo-1b",
    "allenai/OLMoE-1B-7B-0924": "olmoe-1b-7b", "allenai/OLMo-2-0325-32B": "olmo2-32b", "EleutherAI/gpt-neo-2.7B": "gpt-neo-2.7b",
    "GPT-Neo 1.3B": "gpt-neo-1.3b", "GPT-1T": "megatron-1t", "GPT 1.3B": "gpt3-1.3b",
    "bigcode/starcoder2-15b": "starcoder2-15b", "baichuan-inc/Baichuan2-13B-Base": "baichuan2-13b",
    "InternLM-7B": "internlm-7b", "internlm/internlm-chat-20b": "internlm-20b", "internlm/internlm2-chat-7b": "internlm2-7b",
    "InternLM2_20B": "internlm2-20b", "internlm2_5-7b-chat": "internlm2-7b", "internlm2-1_8b": "internlm2-1.8b",
}  # fmt: skip

NO_TRANSFORMER = (
    "Llama-3.2-11B-Vision", "Llama-3.2-90B", "llama4", "Llama-4-17B", "llama 70b", "Llama", "LLaMA-like 8B",
    "Llama-3.1-Nemotron-Super-49B", "Mixtral", "Mistral-22B", "Ministral 8B", "Qwen2-VL-7B", "Qwen3-VL-8B", "Qwen2.5-Omni-7B", "Qwen-VL-7B",
    "Qwen1.5-13B", "Qwen-110B", "GLM-4.5V", "GLM-4-9B", "GLM 4.5 flash", "ChatGLM2-6B", "OLMo 3 7B", "OLMo-13B", "starcoder2-13b",
    "InternLM-104B", "InternLM2-102B", "InternLM3-8B", "InternLM-XComposer2-7B", "internlm",
    "Baichuan-7B", "DeepSeek-MoE-145B", "Qwen3-480B", "Qwen3.5 80B", "Nemotron-H 47B", "Nemotron Nano 9B v2",
    "gemma-3n-E4B", "Gemma 5 2B", "PaliGemma-3B",
    "phi-3-small", "phi", "Phi-4-multimodal",
    "falcon-mamba-7b", "Falcon3-7B", "pythia", "GPT", "GPT-2 8B", "GPT2 4B", "GPT-3 4B", "gpt-4", "gpt-neo-125m", "opt", "OPT-2T",
    "adopt-13b", "bloom-13b", "BERT", "distilbert-base-uncased", "albert-base-v2", "mobilebert", "albert-large", "xlm-roberta-base",
    "flan-t5", "t5-v1.0-base", "mt5-small", "flan-ul2", "long-t5-base", "ViT-G/14", "ViT-L/14",
    "vit_small_patch32_224", "vit_base_patch16_384", "ViT-B/32 384", "swinv2-base",
    "deepseek-v3.3", "deepseek-coder-6.7b", "DeepSeek-VL2", "Kimi-VL", "Kimi K2.5", "Megatron-LM 18.4B", "Megatron 8.3B", "Clippy", "7B",
    "", "transformer", "nanoGPT", "BLOOMChat 7 layers", "gpt-oss-safeguard", "Nemotron-340B",
)  # fmt: skip

IMAGES = {
    "AlexNet": "alexnet", "OverFeat[fast]": "overfeat", "VGG Model-A": "vgg-a", "OxfordNet [Model-A]": "vgg-a", "VGG11": "vgg-a",
    "vgg-13": "vgg13", "VGG16": "vgg16", "VGG-16": "vgg16", "VGG-D": "vgg16", "VGG_19": "vgg19", "GoogleNet V1": "googlenet",
    "GoogLeNet": "googlenet", "Inception v1": "googlenet", "InceptionV3": "inception_v3", "inception-v3": "inception_v3",
    "Inception-v4": "inception_v4", "ResNet-50": "resnet50", "ResNet-50 v1.5": "resnet50", "resnet50_v1": "resnet50",
    "ResNet50v2": "resnet50", "RN50": None, "ResNet-101": "resnet101", "resnet 152": "resnet152", "resnet18": "resnet18",
    "ResNet-34": "resnet34", "ResNeXt-50 32x4d": "resnext50-32x4d", "resnext101_32x8d": "resnext101-32x8d",
    "ResNeXt101-32x4d": "resnext101-32x4d", "ResNeXt-101 (32x4d)": "resnext101-32x4d", "SE-ResNeXt101-32x4d": "se-resnext101-32x4d",
    "Wide ResNet-50-2": "wide-resnet50-2", "wide_resnet101_2": "wide-resnet101-2", "WRN-50-2": "wide-resnet50-2",
    "DenseNet-121": "densenet121", "densenet161": "densenet161", "DenseNet 201": "densenet201", "MobileNet": "mobilenet-v1",
    "mobilenet_v2": "mobilenet-v2", "MobileNetV2": "mobilenet-v2", "SqueezeNet": "squeezenet-1.0", "squeezenet1_1": "squeezenet-1.1",
    "EfficientNet-B0": "efficientnet-b0", "efficientnet_b4": "efficientnet-b4", "EfficientNet B7": "efficientnet-b7", "NiN": "nin",
    "Network in Network": "nin", "EfficientNet-B1": "efficientnet-b1", "efficientnet_b5": "efficientnet-b5", "vgg16_bn": "vgg16-bn",
    "VGG-19-BN": "vgg19-bn", "ResNeXt-101 64x4d": "resnext101-64x4d", "resnext101_64x4d": "resnext101-64x4d", "ConvNeXt-T": "convnext-tiny",
    "convnext_base": "convnext-base", "ConvNeXt Large": "convnext-large", "U-Net": "unet", "UNet": "unet", "GNMT": "gnmt",
    "UNet Medical": "unet", "EfficientNet-WideSE-B0": "efficientnet-widese-b0", "efficientnet-widese-b4": "efficientnet-widese-b4",
    "SSD300 v1.1 (ResNet-50)": "ssd300-resnet50", "SSD300": "ssd300-resnet50", "SSD-ResNet34": "ssd300-resnet34",
    "ssd300_vgg16": "ssd300-vgg16",
    "Mask R-CNN": "maskrcnn-resnet50-fpn", "Mask R-CNN ResNet50": "maskrcnn-resnet50-fpn", "maskrcnn_resnet50_fpn": "maskrcnn-resnet50-fpn",
    "regnetx_004": "regnet-x-400mf", "regnet_y_1_6gf": "regnet-y-1.6gf", "RegNetY-16GF": "regnet-y-16gf", "regnety_016": "regnet-y-1.6gf",
    "Swin-T": "swin-tiny", "swin_base_patch4_window7_224": "swin-base", "mobilenetv3_large_100": "mobilenet-v3-large",
    "MobileNetV3-Small": "mobilenet-v3-small", "mobilenetv2_100": "mobilenet-v2", "mnasnet1_0": "mnasnet-b1",
    "shufflenet_v2_x1_0": "shufflenet-v2", "efficientnet_v2_s": "efficientnet-v2-s", "Xception": "xception", "nasnet": "nasnet-mobile",
    "NASNet-A large": "nasnet-large", "Inception-ResNet-v2": "inception_resnet_v2", "SE-ResNet-50": "se-resnet50",
    "se_resnext50": "se-resnext50-32x4d", "ResNet-200": "resnet200", "vgg11_bn": "vgg11-bn", "VGG13-BN": "vgg13-bn",
    "mixer_b16_224": "mixer-b16", "ResNet-110": "resnet110-cifar", "resnet56": "resnet56-cifar", "resnet20_cifar10": "resnet20-cifar",
    "WRN-28-10": "wide-resnet28-10-cifar", "Wide-ResNet-28x10": "wide-resnet28-10-cifar", "LeNet-5": "lenet-5", "NCF": "ncf",
    "NeuMF": "ncf",
    "WaveGlow": "waveglow", "WaveGlow (256 channels)": "waveglow-256", "Jasper 10x5": "jasper", "QuartzNet15x5": "quartznet",
    "transformerxlbase": "transformer-xl-base", "Transformer-XL large": "transformer-xl-large", "transfo-xl-wt103": "transformer-xl-large",
    "Transformer big": "transformer-big", "transformer_wmt_en_de_big_t2t": "transformer-big", "Transformer-base": "transformer-base",
}  # fmt: skip

NO_IMAGES = (
    "Faster R-CNN ResNet50", "RetinaNet-ResNet50", "SSD512", "SSD-MobileNet", "SE-ResNet-101", "resnet1001", "Mask R-CNN ResNet101",
    "ResNet-1202", "vgg14_bn", "mobilenetv3_small_075", "mobilenetv2_140", "mnasnet0_5", "shufflenet_v2_x0_5", "xception41",
    "regnety_002", "regnet_y_12gf", "swinv2_tiny_window8_256", "efficientnetv2_rw_s", "tf_efficientnetv2_b0",
    "ConvNeXt V2 base", "convnext_xlarge",
    "3D U-Net", "unet3d", "Attention U-Net", "nnU-Net", "U-Net++", "UNet Industrial",
    "Inception-ResNet-v1", "BN-Inception", "inception_v2", "WRN-40-4",
    "ResNeXt-101 64x8d", "MobileNetV3", "EfficientNet-B8", "ShuffleNet", "LeNet", "U-Net (VGG16)",
    "EfficientNet-WideSE-B2", "EfficientNet-B0 WideSE",
    "DenseNet-264", "FCN-ResNet101", "DeepLabV3-ResNet50", "Transformer-XL", "Jasper 5x3", "Vision transformer base", "",
)  # fmt: skip


@pytest.mark.parametrize(("text", "name"), TRANSFORMERS.items())
def test_transformers_of_rows(text: str, name: str) -> None:
    assert transformer_called(text) == name


@pytest.mark.parametrize(
    ("called", "text"),
    [*((transformer_called, text) for text in NO_TRANSFORMER), *((image_network_called, text) for text in NO_IMAGES)],
)
def test_other_networks_are_not_taken_for_these(called: Callable[[str], str | None], text: str) -> None:
    assert called(text) is None
    assert named_model(text) is None


@pytest.mark.parametrize(("text", "name"), IMAGES.items())
def test_image_networks_of_rows(text: str, name: str | None) -> None:
    assert image_network_called(text) == name
    assert transformer_called(text) is None


def test_the_lists_are_long() -> None:
    assert len(TRANSFORMERS) + len(IMAGES) >= 150


@pytest.mark.parametrize("name", bundled("models"))
def test_every_bundled_network_is_called_by_its_own_name(name: str) -> None:
    """And is taken for one of the two kinds only, which tables of measurements tell apart by the name."""
    assert named_model(name.upper().replace("-", " ")) == name
    assert transformer_called(name) in (name, None)
    assert image_network_called(name) in (name, None) or name.startswith(
        ("alexnet-", "overfeat-")
    )  # their general names
    assert transformer_called(name) is None or image_network_called(name) is None


@pytest.mark.parametrize("text", [*TRANSFORMERS, *(text for text, name in IMAGES.items() if name)])
def test_a_question_may_use_most_of_them(text: str) -> None:
    """Names with words of their own beside them are not guessed."""
    name = TRANSFORMERS.get(text) or IMAGES[text]
    if text == "SSD300":
        assert named_model(text) is None  # three of them are bundled
    elif "[" not in text:  # "[fast]" is a network of its own
        assert named_model(text) in ((name, None) if "(" in text else (name,))


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("models", "meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("models", "Llama-2-7b-hf", "llama2-7b"),
        ("models", "llama3_8b", "llama3-8b"),
        ("models", "gpt3_175b", "gpt3-175b"),
        ("models", "ResNet-50", "resnet50"),
        ("models", "mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("devices", "NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("devices", "A100 80GB", "a100-80gb"),
        ("devices", "H100 80GB HBM3", "h100-sxm"),
        ("devices", "NVIDIA H100 PCIe", "h100-pcie"),
        ("devices", "Tesla V100-SXM2-16GB", "v100-16gb"),
        ("devices", "GeForce RTX 4090", "rtx-4090"),
        ("devices", "p4d.24xlarge", "a100-40gb"),
        ("devices", "MI300X", "mi300x"),
        ("devices", "RTX A6000", "rtx-a6000"),
        ("devices", "TPU v4", "tpu-v4"),
        # with the memory as makers state it
        ("devices", "K80 24GB", "k80"),
        ("devices", "MI250X 128GB", "mi250x-gcd"),
        ("devices", "B200 192GB", "b200"),
        ("devices", "NVIDIA GH200 480GB", "gh200"),
        ("devices", "T4 16GB", "t4"),
        ("clusters", "DGX-H100", "dgx-h100"),
        ("clusters", "dgx_a100", "dgx-a100"),
        ("clusters", "GB200 NVL72", "gb200-nvl72"),
    ],
)
def test_a_question_names_the_file(kind: Kind, text: str, name: str) -> None:
    assert resolve(kind, text) == bundled(kind)[name]


def test_a_path_is_a_path() -> None:
    with pytest.raises(InputFileError, match="no such model file"):
        resolve("models", "./llama3-8b")
    with pytest.raises(InputFileError, match="no such model file"):
        resolve("models", "nets/llama3-8b.yaml")
    with pytest.raises(UnknownName, match="did you mean 'llama3-8b'"):
        resolve("models", "llama3-8bb")


def test_a_name_of_hugging_face_that_is_not_bundled() -> None:
    with pytest.raises(InputFileError, match="meta-llama/Llama3-8bb: no such model file; did you mean 'llama3-8b'"):
        resolve("models", "meta-llama/Llama3-8bb")


# --- What people call devices: nvidia-smi, clouds, papers and tables of measurements; and names of others that look alike -----------------


# As rows of measurements have them, with the usual board where the name leaves it open.
ROWS = {
    "NVIDIA A100-SXM4-80GB": "a100-80gb", "A100-SXM4-40GB": "a100-40gb", "NVIDIA A100 80GB PCIe": "a100-pcie-80gb",
    "A100-PCIE-40GB": "a100-pcie-40gb", "A100": "a100-80gb", "a100_80g": "a100-80gb", "A100 40G": "a100-40gb", "8x A100": "a100-80gb",
    "8xA100-80GB": "a100-80gb", "A100x8": "a100-80gb", "DGX A100 (Selene)": "a100-80gb", "A100-SXM4-80GBx8": "a100-80gb",
    "Tesla A100": "a100-80gb", "NVIDIA A800-SXM4-80GB": "a100-80gb", "NVIDIA H100 80GB HBM3": "h100-sxm", "H100-80GB-HBM3": "h100-sxm",
    "H100 SXM5": "h100-sxm", "H100": "h100-sxm", "NVIDIA H100 PCIe": "h100-pcie", "H100-PCIE-80GB": "h100-pcie",
    "NVIDIA H100 NVL": "h100-nvl", "HGX H100": "h100-sxm", "DGX-H100": "h100-sxm", "H800": "h100-sxm", "NVIDIA H200": "h200",
    "H200 SXM 141GB": "h200", "NVIDIA H20": "h20", "H20-96GB": "h20", "NVIDIA GH200 480GB": "gh200", "B200": "b200",
    "NVIDIA B200": "b200", "DGX B200": "b200", "GB200 NVL72": "gb200", "NVIDIA GB200": "gb200", "B300": "b300", "GB300": "gb300",
    "Tesla V100-SXM2-16GB": "v100-16gb", "Tesla V100-SXM2-32GB": "v100-32gb", "V100": "v100-16gb",
    "Tesla V100-PCIE-16GB": "v100-pcie-16gb", "Tesla V100-PCIE-32GB": "v100-pcie-32gb", "V100S-PCIE-32GB": "v100s", "DGX-1": "v100-16gb",
    "DGX-2 (V100 32GB)": "v100-32gb", "v100 (32GB)": "v100-32gb", "Tesla P100-SXM2-16GB": "p100",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb", "Tesla P100-PCIE-12GB": "p100-pcie-12gb", "P100": "p100", "NV_P100": "p100",
    "P100 (DGX-1)": "p100", "DGX-1 (8x Tesla P100)": "p100",
    "Tesla T4": "t4", "NVIDIA T4 16GB": "t4", "Tesla P4": "p4", "Tesla P40": "p40", "Tesla M40": "m40", "NV_M40": "m40",
    "Tesla M40 24GB": "m40", "Tesla K80": "k80", "K80 (one GK210)": "k80", "Tesla K40m": "k40", "K40c": "k40", "Tesla K20Xm": "k20x",
    "Tesla K20c": "k20", "K20": "k20", "GeForce GTX TITAN X": "titan-x", "GTX Titan X (Maxwell)": "titan-x", "NV_TitanX": "titan-x",
    "TITAN X (Pascal)": "titan-x-pascal", "NVIDIA TITAN X Pascal": "titan-x-pascal", "TITAN Xp": "titan-xp", "NVIDIA TITAN V": "titan-v",
    "TITAN RTX": "titan-rtx", "GTX TITAN Black": "titan-black", "GeForce GTX 1080 Ti": "gtx-1080ti", "1080ti": "gtx-1080ti",
    "GTX1080": "gtx-1080", "GeForce GTX 1080": "gtx-1080", "GTX 1070": "gtx-1070", "GTX 980": "gtx-980",
    "GeForce RTX 2080 Ti": "rtx-2080ti", "RTX2080Ti": "rtx-2080ti", "NVIDIA GeForce RTX 3090": "rtx-3090", "RTX3090": "rtx-3090",
    "GeForce RTX 3080": "rtx-3080", "RTX 3070": "rtx-3070", "NVIDIA GeForce RTX 4090": "rtx-4090", "4090": "rtx-4090",
    "RTX 5090": "rtx-5090", "NVIDIA A10": "a10", "A10-24GB": "a10", "NVIDIA A10G": "a10g", "A10g 24GB": "a10g", "NVIDIA A30": "a30",
    "NVIDIA A40": "a40", "A40-48GB": "a40", "NVIDIA RTX A6000": "rtx-a6000", "A6000": "rtx-a6000", "RTX A5000": "rtx-a5000",
    "RTX A4000": "rtx-a4000", "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada", "RTX6000 Ada": "rtx-6000-ada",
    "Quadro RTX 6000": "quadro-rtx-6000", "Quadro RTX 8000": "quadro-rtx-8000", "NVIDIA L4": "l4", "L4 24GB": "l4", "NVIDIA L40": "l40",
    "NVIDIA L40S": "l40s", "L40S-48GB": "l40s", "AMD Instinct MI300X": "mi300x", "MI300X OAM 192GB": "mi300x", "AMD MI325X": "mi325x",
    "MI355X": "mi355x", "MI250": "mi250-gcd", "AMD Instinct MI250X": "mi250x-gcd", "MI210": "mi210", "AMD Instinct MI100": "mi100",
    "Radeon Instinct MI50": "mi50", "MI25": "mi25", "MI60": "mi60", "Gaudi2": "gaudi2", "Intel Gaudi 3": "gaudi3", "HL-225": "gaudi2",
    "TPU v3": "tpu-v3", "TPUv4": "tpu-v4", "TPU v5e": "tpu-v5e", "tpu-v5-lite": "tpu-v5e", "TPU v5p": "tpu-v5p",
    "TPU v6e (Trillium)": "tpu-v6e", "AWS Trainium": "trainium1", "Trainium2": "trainium2", "p3.16xlarge": "v100-16gb",
    "Vega FE": "vega-fe", "Intel Xeon Phi 7250": "xeon-phi-7250", "KNL7250": "xeon-phi-7250", "p3dn.24xlarge": "v100-32gb",
    "p4d.24xlarge": "a100-40gb", "p4de.24xlarge": "a100-80gb", "p5.48xlarge": "h100-sxm", "p5e.48xlarge": "h200", "p5en.48xlarge": "h200",
    "p2.16xlarge": "k80", "g4dn.12xlarge": "t4", "g5.48xlarge": "a10g", "g6.12xlarge": "l4", "g6e.48xlarge": "l40s",
    "trn1 NeuronCores": "trainium1-core", "NeuronCore-v2": "trainium1-core", "Trainium2 NeuronCore": "trainium2-core",
    "trn1.32xlarge": "trainium1", "a2-highgpu-8g": "a100-40gb", "a2-ultragpu-8g": "a100-80gb", "a3-highgpu-8g": "h100-sxm",
    "P100 (NVIDIA DGX-1)": "p100", "NVIDIA DGX-1 (P100)": "p100", "DGX-1 with Tesla P100": "p100", "DGX-2H": "v100-32gb",
    "DGX-1 (V100)": "v100-16gb", "v5p-128": "tpu-v5p", "v5litepod-16": "tpu-v5e", "KNL": "xeon-phi-7250",
    "MI250 128GB": "mi250-gcd", "MI250X (64 GB per GCD)": "mi250x-gcd", "V100 DGX-2": "v100-32gb",
    "NV_TitanXPascal": "titan-x-pascal", "NVIDIA B100": "b100", "HGX B100": "b100",
    "AMD Instinct MI300A": "mi300a", "TPU7x": "tpu-v7",
    "TPU v7 (Ironwood)": "tpu-v7", "tpu7x-128": "tpu-v7", "Ironwood": "tpu-v7", "Intel Data Center GPU Max 1550": "max-1550",
    "Intel Max 1550": "max-1550", "Ponte Vecchio": "max-1550", "PVC": "max-1550", "NVIDIA RTX PRO 6000 Blackwell": "rtx-pro-6000",
    "RTX PRO 6000": "rtx-pro-6000", "NDv2": "v100-32gb", "NCv3": "v100-pcie-16gb", "Standard_NC24rs_v3": "v100-pcie-16gb",
    "a4x-highgpu-4g": "gb200", "Frontier": "mi250x-gcd", "LUMI-G": "mi250x-gcd", "Summit": "v100-16gb", "Perlmutter": "a100-40gb",
    "Perlmutter A100 80GB": "a100-80gb", "Polaris": "a100-40gb", "Eos": "h100-sxm", "Isambard-AI": "gh200", "El Capitan": "mi300a",
    "Aurora": "max-1550", "Summit (V100)": "v100-16gb",
    "GeForce GTX Titan": "gtx-titan", "GTX 680": "gtx-680", "GTX 980 Ti": "gtx-980ti", "Tesla M60": "m60", "g3.4xlarge": "m60",
    "GTX 1060 6GB": "gtx-1060", "GTX 1070 Ti": "gtx-1070ti", "P6000": "quadro-p6000", "Quadro P5000": "quadro-p5000",
    "Quadro GV100": "quadro-gv100", "RTX 2060": "rtx-2060", "RTX 2070": "rtx-2070", "GeForce RTX 2070 SUPER": "rtx-2070-super",
    "RTX 2080": "rtx-2080", "RTX 2080 Super": "rtx-2080-super", "Quadro RTX 5000": "quadro-rtx-5000", "RTX 3060": "rtx-3060",
    "RTX 3060 Ti": "rtx-3060ti", "RTX 3070 Ti": "rtx-3070ti", "RTX 3080 Ti": "rtx-3080ti", "RTX 3090 Ti": "rtx-3090ti",
    "RTX A4500": "rtx-a4500", "A5500": "rtx-a5500", "RTX 4060 Ti": "rtx-4060ti", "RTX 4070": "rtx-4070", "RTX 4070 Ti": "rtx-4070ti",
    "RTX 4080": "rtx-4080", "NVIDIA GeForce RTX 5080": "rtx-5080", "Radeon VII": "radeon-vii", "Radeon RX Vega 64": "rx-vega-64",
    "Vega 56": "rx-vega-56",
    "a3-ultragpu-8g": "h200", "ND96amsr_A100_v4": "a100-80gb", "ND96isr_H100_v5": "h100-sxm", "ND40rs_v2": "v100-32gb",
}  # fmt: skip

# Other devices, and what is none.
NONE = (
    "A1000", "RTX A1000", "A16", "A2", "A400", "A3000", "H1000", "L400", "L2", "T400", "T40 24GB", "T1000", "P1000",
    "Quadro P4000", "P600", "M600", "M4000", "K4000", "K1", "V1000", "GTX 1080 Max-Q", "RTX 3080 Laptop GPU", "RTX 3080 Ti Laptop GPU",
    "RTX 4070 Ti Super", "RTX 4090 Laptop GPU", "RTX 2080 Max-Q", "RTX 4080 Super", "GTX 980M", "GTX 960", "Radeon Pro VII",
    "RTX PRO 4500 Blackwell", "MI300C", "MI8",
    "Max 1100", "Xeon Max 9480", "TPU v1", "TPU", "Ascend 910B", "Xeon", "abacus", "", "GPU", "A", "100", "Jetson Orin",
)  # fmt: skip


@pytest.mark.parametrize(("text", "name"), ROWS.items())
def test_devices_of_rows(text: str, name: str) -> None:
    found, cluster = device_called(text)
    assert found == name
    assert cluster in bundled("clusters")


@pytest.mark.parametrize(
    ("text", "cluster"),
    [
        ("ND96isr_H100_v5", "dgx-h100"), ("ND96isr_H200_v5", "dgx-h100"), ("a3-ultragpu-8g", "dgx-h100"), ("ND96amsr_A100_v4", "dgx-a100"),
        ("ND96asr_v4", "dgx-a100"), ("p4de.24xlarge", "aws-p4d"), ("p5en.48xlarge", "aws-p5"), ("a3-megagpu-8g", "aws-p5"),
    ],
)  # fmt: skip
def test_network_of_an_instance(text: str, cluster: str) -> None:
    """As fast as that of a DGX where each GPU has an InfiniBand or RoCE port."""
    assert device_called(text)[1] == cluster


@pytest.mark.parametrize("text", NONE)
def test_other_devices_are_not_taken_for_these(text: str) -> None:
    assert device_called(text)[0] is None
    assert named_device(text) == (None, ())


@pytest.mark.parametrize(
    ("text", "gigabytes", "device"),
    [
        ("A100", 40.0, "a100-40gb"),
        ("V100", 32.0, "v100-32gb"),
        ("MI250", 128.0, "mi250-oam"),  # counted by modules
        ("MI250X", 64.0, "mi250x-gcd"),
        ("A100 PCIe", 40.0, "a100-pcie-40gb"),
    ],
)
def test_memory_that_another_column_states(text: str, gigabytes: float, device: str) -> None:
    assert device_called(text, gigabytes)[0] == device


@pytest.mark.parametrize("name", bundled("devices"))
def test_every_bundled_device_is_called_by_its_own_name(name: str) -> None:
    assert device_called(name)[0] == name
    assert named_device(name.upper().replace("-", " ")) == (name, ())


@pytest.mark.parametrize("name", [name for name in bundled("devices") if not name.startswith(("paleo-", "cpu-"))])
def test_every_bundled_device_has_other_names(name: str) -> None:
    assert any(name in (known.device, *(one for _, one in known.by_memory)) for known in KNOWN_DEVICES)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("A100", ("a100-80gb", "a100-40gb", "a100-pcie-40gb", "a100-pcie-80gb")),
        ("NVIDIA A100 SXM4", ("a100-80gb", "a100-40gb")),
        ("A100 PCIe", ("a100-pcie-80gb", "a100-pcie-40gb")),
        ("H100", ("h100-sxm", "h100-nvl", "h100-pcie")),
        ("Tesla V100", ("v100-16gb", "v100-32gb", "v100-pcie-16gb", "v100-pcie-32gb")),
    ],
)
def test_a_question_has_to_say_which_board(text: str, meant: tuple[str, ...]) -> None:
    listed = " or ".join(f"'{one}'" for one in meant)
    with pytest.raises(UnknownName, match=f"device '{text}' is the name of several: say {listed} ") as error:
        resolve("devices", text)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "near"),
    [("RTX 3080 12GB", "rtx-3080"), ("Tesla M40 24GB", "m40"), ("GH200 144GB", "gh200"), ("T4 8GB", "t4")],
)
def test_a_board_with_another_memory_is_another_board(text: str, near: str) -> None:
    with pytest.raises(UnknownName, match=f"is not known; did you mean '{near}'"):
        resolve("devices", text)


@pytest.mark.parametrize("text", ["my a100 box", "a100 with a fan", "h100-sxm-oc", "a100.yaml", "some/a100-80gb"])
def test_a_question_is_not_guessed(text: str) -> None:
    with pytest.raises((UnknownName, InputFileError), match=r"not known|no such device file"):
        resolve("devices", text)
