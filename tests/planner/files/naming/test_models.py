"""What people call networks: Hugging Face, trainers' recipes, papers; and names of others that look alike."""

from __future__ import annotations

import pytest

from planner.core.errors import InputFileError, UnknownName
from planner.files.naming.models import image_network_called, named_model, transformer_called
from planner.files.resources import bundled, resolve

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
    "DeepSeekV3 (dropless)": "deepseek-v3", "DeepSeek-R1": "deepseek-v3", "DeepSeek-V2-Lite": "deepseek-v2-lite",
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
    "deepseek-v3.2", "deepseek-coder-6.7b", "DeepSeek-VL2", "Kimi-VL", "Kimi K2.5", "Megatron-LM 18.4B", "Megatron 8.3B", "Clippy", "7B",
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


@pytest.mark.parametrize("text", NO_TRANSFORMER)
def test_other_transformers_are_not_taken_for_these(text: str) -> None:
    assert transformer_called(text) is None
    assert named_model(text) is None


@pytest.mark.parametrize(("text", "name"), IMAGES.items())
def test_image_networks_of_rows(text: str, name: str | None) -> None:
    assert image_network_called(text) == name
    assert transformer_called(text) is None


@pytest.mark.parametrize("text", NO_IMAGES)
def test_other_image_networks_are_not_taken_for_these(text: str) -> None:
    assert image_network_called(text) is None
    assert named_model(text) is None


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
    ("text", "name"),
    [
        ("meta-llama/Meta-Llama-3-8B", "llama3-8b"),
        ("Llama-2-7b-hf", "llama2-7b"),
        ("llama3_8b", "llama3-8b"),
        ("gpt3_175b", "gpt3-175b"),
        ("ResNet-50", "resnet50"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
    ],
)
def test_a_question_names_the_file(text: str, name: str) -> None:
    assert resolve("models", text) == bundled("models")[name]


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
