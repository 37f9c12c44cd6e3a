"""Bundled networks against published sizes, shapes, and PALEO's own listing of the same networks."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

from costmodel.network.graph import Graph
from costmodel.network.layers import Shape
from costmodel.network.layers.window import pair
from planner.files.loading import LoadedModel, load_model
from planner.files.resources import bundled

# Trainable parameters, biases included, normalisation excluded.
WEIGHTS = {
    "alexnet": 50_303_912,  # PALEO, nets/alex_v2.json
    "alexnet-cuda-convnet2": 49_566_504,  # PALEO, nets/alex_v2_1gpu.json
    # Worked out from alexnet_model.py: 23,296 + 307,392 + 663,936 + 1,327,488 + 884,992 + 37,752,832 + 16,781,312 + 4,097,000
    "alexnet-tf-cnn-benchmarks": 61_838_248,
    "alexnet-torchvision": 61_100_840,  # torchvision, AlexNet_Weights num_params
    "dcgan-discriminator": 2_765_568 - 1_792,  # pytorch/examples dcgan, less the scale and shift of 896 channels
    "dcgan-generator": 3_576_704 - 1_920,  # same, 960 channels
    "gnmt": 277_647_936,  # worked out in test_gnmt; Shazeer et al. (arXiv:1701.06538), table 2: 278 M
    "densenet121": 7_978_856 - 14_976,  # torchvision, less the scale and shift of 7,488 channels behind convolutions
    "densenet169": 14_149_480 - 21_120,  # torchvision, 10,560 channels
    "googlenet": 6_998_552,  # Caffe's bvlc_googlenet without the auxiliary heads
    "inception_v3": 27_161_264
    - 3_326_696
    - 34_432,  # torchvision, less its auxiliary head and scale and shift of 17,216 channels
    "mobilenet-v1": 4_231_976 - 21_888,  # Keras MobileNet, trainable, 10,944 channels
    "mobilenet-v2": 3_504_872 - 34_112,  # torchvision, 17,056 channels
    "mlp": 266_610,  # 784x300 + 300 + 300x100 + 100 + 100x10 + 10
    "nin": 7_595_176,  # PALEO, nets/nin.json
    "overfeat": 145_704_424,  # PALEO, nets/overfeat.json
    "overfeat-fast": 145_704_424 + 32 * (3 * 121 + 1) + 32 * 25 * 256,  # the same with 32 more filters in conv1
    "resnet18": 11_689_512 - 9_600,  # torchvision, 4,800 channels
    "resnet34": 21_797_672 - 17_024,  # torchvision, 8,512 channels
    "resnet101": 44_549_160 - 105_344,  # torchvision, 52,672 channels
    "resnet50": 25_557_032 - 53_120,  # torchvision, less the scale and shift of 26,560 channels
    "resnet152": 60_192_808 - 151_424,  # torchvision, 75,712 channels
    "densenet161": 28_681_000 - 30_144,  # torchvision, 15,072 channels, this and the following
    "densenet201": 20_013_928 - 25_216,  # 12,608
    "efficientnet-b0": 5_288_548 - 42_016,  # 21,008
    "efficientnet-b1": 7_794_184 - 62_048,  # 31,024
    "efficientnet-b2": 9_109_994 - 67_568,  # 33,784
    "efficientnet-b3": 12_233_232 - 87_296,  # 43,648
    "efficientnet-b4": 19_341_616 - 125_200,  # 62,600
    # 2 x inside + 1 more for every feature that is squeezed to, inside / 4 in place of inside / 24
    "efficientnet-widese-b0": 5_288_548 - 42_016 + 3_135_300,
    "efficientnet-widese-b4": 19_341_616 - 125_200 + 15_585_630,
    "efficientnet-b5": 30_389_784 - 172_736,  # 86,368
    "efficientnet-b6": 43_040_704 - 224_432,  # 112,216
    "efficientnet-b7": 66_347_960 - 310_720,  # 155,360
    "inception_v4": 42_679_816 - 63_168,  # timm, 31,584
    "resnext50-32x4d": 25_028_904 - 68_224,  # torchvision, 34,112, this and the following
    "resnext101-32x4d": 44_177_704 - 137_856,  # 68,928
    "se-resnext101-32x4d": 48_955_416 - 137_856,
    "resnext101-32x8d": 88_791_336 - 202_880,  # 101,440
    "resnext101-64x4d": 83_455_272 - 202_880,
    # torchvision, less the learned scales of the blocks and the scale and shift of the norms, which are layers of their own here
    "convnext-tiny": 28_589_128 - 6_624 - 2 * (6_624 + 96 + 96 + 192 + 384 + 768),
    "convnext-small": 50_223_688 - 13_536 - 2 * (13_536 + 96 + 96 + 192 + 384 + 768),
    "convnext-base": 88_591_464 - 18_048 - 2 * (18_048 + 128 + 128 + 256 + 512 + 1024),
    "convnext-large": 197_767_336 - 27_072 - 2 * (27_072 + 192 + 192 + 384 + 768 + 1536),
    # Keras U-Net of zhixuhao: 31,031,685, whose last two convolutions are 3x3 to 2 and 1x1 to 1 in place of 1x1 to 2
    "unet": 31_031_685 - (9 * 64 * 2 + 2) - 3 + (64 * 2 + 2),
    "squeezenet-1.0": 1_248_424,
    "squeezenet-1.1": 1_235_496,
    "vgg13": 133_047_848,
    "wide-resnet50-2": 68_883_240 - 68_224,  # 34,112
    "wide-resnet101-2": 126_886_696 - 137_856,  # 68,928
    "vgg-a": 132_863_336,  # torchvision vgg11
    "vgg16": 138_357_544,  # torchvision vgg16
    "vgg19": 143_667_240,  # torchvision vgg19
    "vgg16-bn": 138_365_992 - 8_448,  # torchvision, 4,224 channels
    "vgg19-bn": 143_678_248 - 11_008,  # 5,504
    # torchvision, num_params of the weights, less the scale and shift of channels behind convolutions
    "regnet-x-400mf": 5_495_976 - 37_856,
    "regnet-x-800mf": 7_259_656 - 37_312,
    "regnet-x-1.6gf": 9_190_136 - 43_504,
    "regnet-x-3.2gf": 15_296_552 - 62_560,
    "regnet-x-8gf": 39_572_648 - 90_464,
    "regnet-x-16gf": 54_278_536 - 111_168,
    "regnet-x-32gf": 107_811_560 - 162_016,
    "regnet-y-400mf": 4_344_144 - 27_152,
    "regnet-y-800mf": 6_432_512 - 30_432,
    "regnet-y-1.6gf": 11_202_430 - 52_672,
    "regnet-y-3.2gf": 19_436_338 - 66_160,
    "regnet-y-8gf": 39_381_472 - 86_528,
    "regnet-y-16gf": 83_590_140 - 122_816,
    "regnet-y-32gf": 145_046_770 - 158_288,
    "mobilenet-v3-large": 5_483_032 - 24_400,
    "mobilenet-v3-small": 2_542_856 - 12_112,
    "mnasnet-b1": 4_383_312 - 37_920,
    "shufflenet-v2": 2_278_604 - 16_180,
    "efficientnet-v2-s": 21_458_488 - 153_872,
    "efficientnet-v2-m": 54_139_356 - 292_032,
    "efficientnet-v2-l": 118_515_272 - 512_576,
    "vgg11-bn": 132_868_840 - 5_504,
    "vgg13-bn": 133_053_736 - 5_888,
    # the same, norms being layers
    "swin-tiny": 28_288_354,
    "swin-small": 49_606_258,
    "swin-base": 87_768_224,
    "swin-large": 196_532_476,  # timm, swin_large_patch4_window7_224
    "mixer-b16": 59_880_472,  # timm, mixer_b16_224
    "ssd300-vgg16": 35_641_826,  # torchvision, ssd300_vgg16
    "maskrcnn-resnet50-fpn": 44_401_393,  # torchvision, whose normalisations are fixed
    "resnet200": 64_673_832 - 176_000,  # timm, this and the following
    "se-resnet50": 28_088_024 - 53_120,
    "se-resnext50-32x4d": 27_559_896 - 68_224,
    "inception_resnet_v2": 55_843_464 - 60_544,
    "xception": 22_855_952 - 54_528,  # Keras, trainable, this and the following
    "nasnet-mobile": 5_289_978 - 36_078,
    "nasnet-large": 88_753_150 - 194_148,
    "lenet-5": 61_706,  # PyTorch's tutorial
    # He et al. (arXiv:1512.03385), table 6, print 0.27, 0.46, 0.66, 0.85 and 1.7 million; 688 to 4,048 channels are normalised
    "resnet20-cifar": 269_722 - 1_376,
    "resnet32-cifar": 464_154 - 2_272,
    "resnet44-cifar": 658_586 - 3_168,
    "resnet56-cifar": 853_018 - 4_064,
    "resnet110-cifar": 1_727_962 - 8_096,
    "wide-resnet28-10-cifar": 36_479_194,  # arXiv:1605.07146, table 4: 36.5 million
    "jasper": 332_632_349 - 122_112,  # arXiv:1904.03288, table 5: 333 million
    "quartznet": 18_924_381 - 77_312,  # arXiv:1910.10261, table 1: 18.9 million
    # Scales of weight normalisation, one per filter: 87,879,272, which papers print as 87.88 million
    "waveglow-256": 87_879_272 - 12 * (256 + 8 * (512 + 512) + 7 * 512 + 256),
    "waveglow": 267_999_848,  # 2 x 256 channels in the same test
    "ncf": 31_832_577,  # (138,493 + 26,744) x 192, 256 x 256 + 256 x 128 + 128 x 64 + 448, 129
    # "n_all_param" of Lambda Labs' logs; with clusters 3 x 513 and, worked out in test_transformer_xl, the large one
    "transformer-xl-base-full-softmax": 191_948_759,
    "transformer-xl-large-full-softmax": 519_963_095,
    "transformer-xl-base": 191_948_759 + 3 * 513,
    "transformer-xl-large": 285_167_482,
    # worked out in test_ssd300
    "ssd300-resnet50": 22_858_934,
    "ssd300-resnet34": 19_962_678,
}


@cache
def load(name: str) -> LoadedModel:
    return load_model(name)


def graph(name: str) -> Graph:
    return load(name).graph


def shape(name: str, layer: str) -> Shape:
    return graph(name).layers[graph(name).index(layer)].output_shape


def test_every_model_is_listed_here() -> None:
    """Transformers have a table of their own, in test_bundled_transformers."""
    attention = {"self_attention", "latent_attention"}
    others = {name for name in bundled("models") if not any(one.kind in attention for one in graph(name).layers)}
    assert set(WEIGHTS) == others


@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_count(name: str) -> None:
    assert graph(name).weight_count == WEIGHTS[name]


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("resnet50", 25_557_032),  # torchvision.models.resnet50
        ("resnext50-32x4d", 25_028_904),  # torchvision, this and the following
        ("resnext101-32x8d", 88_791_336),
        ("resnext101-64x4d", 83_455_272),
        ("vgg16-bn", 138_365_992),
        ("vgg19-bn", 143_678_248),
        ("efficientnet-b1", 7_794_184),
        ("efficientnet-b2", 9_109_994),
        ("efficientnet-b3", 12_233_232),
        ("efficientnet-b5", 30_389_784),
        ("efficientnet-b6", 43_040_704),
        ("wide-resnet50-2", 68_883_240),
        ("wide-resnet101-2", 126_886_696),
        ("densenet161", 28_681_000),
        ("densenet201", 20_013_928),
        ("efficientnet-b0", 5_288_548),
        ("efficientnet-b4", 19_341_616),
        ("efficientnet-b7", 66_347_960),
        ("inception_v4", 42_679_816),  # timm
        ("resnet18", 11_689_512),  # torchvision, this and the following
        ("resnet34", 21_797_672),
        ("resnet101", 44_549_160),
        ("densenet121", 7_978_856),
        ("densenet169", 14_149_480),
        ("mobilenet-v2", 3_504_872),
        ("resnet152", 60_192_808),  # torchvision.models.resnet152
        ("dcgan-generator", 3_576_704),  # pytorch/examples dcgan netG
        ("dcgan-discriminator", 2_765_568),  # pytorch/examples dcgan netD
        ("resnet20-cifar", 269_722),
        ("resnet110-cifar", 1_727_962),
        ("jasper", 332_632_349),
        ("quartznet", 18_924_381),
    ],
)
def test_count_with_normalisation(name: str, total: int) -> None:
    assert graph(name).weight_count + graph(name).norm_count == total


def test_inception_v3_is_the_published_network() -> None:
    """Scale and shift in place of biases: torchvision 27,161,264 less 3,326,696 of the auxiliary head."""
    net = graph("inception_v3")
    channels = sum(layer.output_shape[0] for layer in net.layers if layer.kind == "convolution")
    assert net.norm_count == 2 * channels == 34_432
    assert net.weight_count + net.norm_count == 27_161_264 - 3_326_696
    convolutions = sum(layer.kind == "convolution" for layer in net.layers)
    assert convolutions == 94


def multiply_adds(name: str) -> float:
    """Of convolutions, fully connected layers and products of one sample, forward."""
    total = 0
    for layer in graph(name).layers:
        out, into = layer.output_shape, layer.input_shapes[0] if layer.input_shapes else ()
        if layer.kind == "convolution":
            total += math.prod(out) * math.prod(pair(layer.params.kernel)) * into[0] // layer.params.groups
        elif layer.kind == "deconvolution":
            total += math.prod(into) * math.prod(pair(layer.params.kernel)) * out[0]
        elif layer.kind == "linear":
            total += math.prod(out) * (into[0] if len(into) == 2 else math.prod(into))
        elif layer.kind == "matmul":
            total += math.prod(out) * into[2]
    return float(total)


# Billions of multiplications with an addition, torchvision's GFLOPS of the weights ("_ops") unless it says otherwise.
MULTIPLY_ADDS = {
    "regnet-x-400mf": 0.414, "regnet-x-800mf": 0.8, "regnet-x-1.6gf": 1.603, "regnet-x-3.2gf": 3.177, "regnet-x-8gf": 7.995,
    "regnet-x-16gf": 15.941, "regnet-x-32gf": 31.736, "regnet-y-400mf": 0.402, "regnet-y-800mf": 0.834, "regnet-y-1.6gf": 1.612,
    "regnet-y-3.2gf": 3.176, "regnet-y-8gf": 8.473, "regnet-y-16gf": 15.912, "regnet-y-32gf": 32.28, "swin-tiny": 4.491,
    "swin-small": 8.741, "swin-base": 15.431, "mobilenet-v3-large": 0.217, "mobilenet-v3-small": 0.057, "mnasnet-b1": 0.314,
    "shufflenet-v2": 0.145, "vgg11-bn": 7.609, "vgg13-bn": 11.308, "ssd300-vgg16": 34.858,
    "resnet200": 15.07, "se-resnet50": 4.13, "se-resnext50-32x4d": 4.26, "inception_resnet_v2": 13.18, "xception": 8.40,  # timm
    "mixer-b16": 12.61, "nasnet-large": 23.89,  # timm
    "nasnet-mobile": 0.564,  # arXiv:1707.07012, table 3
}  # fmt: skip


@pytest.mark.parametrize(("name", "billions"), MULTIPLY_ADDS.items())
def test_multiply_adds(name: str, billions: float) -> None:
    assert multiply_adds(name) == pytest.approx(billions * 1e9, rel=0.03, abs=1e6)


@pytest.mark.parametrize(
    ("name", "backbone", "deep"), [("ssd300-resnet50", "resnet50", 1024), ("ssd300-resnet34", "resnet34", 256)]
)
def test_ssd300(name: str, backbone: str, deep: int) -> None:
    """The first stages of the backbone, additional convolutions, and heads for 8,732 boxes: 4 numbers and 81 classes for each."""
    stages = ("conv1", "stage2", "stage3", "stage4")
    weights = sum(layer.weight_count for layer in graph(backbone).layers if layer.name.startswith(stages))
    into = deep
    for narrow, wide in ((256, 512), (256, 512), (128, 256), (128, 256), (128, 256)):
        has_bias = backbone == "resnet34"  # the others are normalised
        weights += into * narrow + 9 * narrow * wide + (narrow + wide if has_bias else 0)
        into = wide
    boxes = (4, 6, 6, 6, 4, 4)
    for channels, each in zip((deep, 512, 512, 256, 256, 256), boxes, strict=True):
        weights += (9 * channels + 1) * each * (4 + 81)
    assert graph(name).weight_count == weights
    assert shape(name, "classes") == (
        81,
        sum(size * size * each for size, each in zip((38, 19, 10, 5, 3, 1), boxes, strict=True)),
    )
    if backbone == "resnet34":
        assert graph(name).weight_count == pytest.approx(20e6, rel=0.01)


@pytest.mark.parametrize("name", WEIGHTS)
def test_described_and_sourced(name: str) -> None:
    model = load(name)
    assert model.name == name
    assert model.description
    assert model.source
    assert model.global_batch >= 1
    assert model.path == bundled("models")[name]


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("vgg16", 256),
        ("resnet50", 256),
        ("overfeat", 128),
        ("dcgan-generator", 128),
        ("inception_v3", 1600),
        ("alexnet", 128),
    ],
)
def test_usual_global_batch(name: str, batch: int) -> None:
    assert load(name).global_batch == batch


SHAPES = [
    ("alexnet", "conv1", (64, 54, 54)),
    ("alexnet", "pool5", (256, 5, 5)),
    ("alexnet", "fc6", (4096, 1, 1)),
    ("alexnet-torchvision", "conv1", (64, 55, 55)),
    ("alexnet-torchvision", "pool5", (256, 6, 6)),
    ("alexnet-tf-cnn-benchmarks", "conv1", (64, 55, 55)),  # alexnet_model.py reshapes to 256 x 6 x 6
    ("alexnet-tf-cnn-benchmarks", "pool5", (256, 6, 6)),
    ("vgg16", "pool5", (512, 7, 7)),
    ("vgg-a", "conv4-2", (512, 28, 28)),
    ("nin", "cccp8", (1000, 5, 5)),
    ("nin", "pool4", (1000, 1, 1)),
    ("overfeat", "pool5", (1024, 6, 6)),
    ("squeezenet-1.0", "fire9.concat", (512, 13, 13)),  # arXiv:1602.07360, table 1
    ("inception_v4", "stem_5a.concat", (384, 35, 35)),  # arXiv:1602.07261, figures 3 and 9
    ("inception_v4", "reduction_a.concat", (1024, 17, 17)),
    ("inception_v4", "reduction_b.concat", (1536, 8, 8)),
    ("resnext50-32x4d", "stage5.3.relu", (2048, 7, 7)),  # arXiv:1611.05431, table 1
    ("efficientnet-b0", "conv2", (1280, 7, 7)),  # arXiv:1905.11946, table 1
    ("densenet161", "norm5", (2208, 7, 7)),
    # arXiv:1409.4842, table 1, column "output size"
    ("googlenet", "conv1", (64, 112, 112)),
    ("googlenet", "pool1", (64, 56, 56)),
    ("googlenet", "conv2", (192, 56, 56)),
    ("googlenet", "pool2", (192, 28, 28)),
    ("googlenet", "inception_3a.concat", (256, 28, 28)),
    ("googlenet", "inception_3b.concat", (480, 28, 28)),
    ("googlenet", "inception_4a.concat", (512, 14, 14)),
    ("googlenet", "inception_4d.concat", (528, 14, 14)),
    ("googlenet", "inception_4e.concat", (832, 14, 14)),
    ("googlenet", "inception_5b.concat", (1024, 7, 7)),
    # arXiv:1512.00567, table 1, and TensorFlow-Slim's end points
    ("inception_v3", "conv_2b", (64, 147, 147)),
    ("inception_v3", "pool_5a", (192, 35, 35)),
    ("inception_v3", "mixed_5b.concat", (256, 35, 35)),
    ("inception_v3", "mixed_5d.concat", (288, 35, 35)),
    ("inception_v3", "mixed_6a.concat", (768, 17, 17)),
    ("inception_v3", "mixed_6e.concat", (768, 17, 17)),
    ("inception_v3", "mixed_7a.concat", (1280, 8, 8)),
    ("inception_v3", "mixed_7c.concat", (2048, 8, 8)),
    # arXiv:1512.03385, table 1
    ("resnet50", "pool1", (64, 56, 56)),
    ("resnet50", "stage2.3.relu", (256, 56, 56)),
    ("resnet50", "stage3.4.relu", (512, 28, 28)),
    ("resnet50", "stage4.6.relu", (1024, 14, 14)),
    ("resnet152", "stage4.36.relu", (1024, 14, 14)),
    ("resnet152", "stage5.3.relu", (2048, 7, 7)),
    ("dcgan-generator", "deconv1", (512, 4, 4)),
    ("dcgan-generator", "deconv5", (3, 64, 64)),
    ("dcgan-discriminator", "conv4", (512, 4, 4)),
    ("dcgan-discriminator", "conv5", (1, 1, 1)),
    ("gnmt", "encoder1", (2048, 50)),
    ("gnmt", "attention", (1024, 50)),
    ("gnmt", "decoder.6.concat", (2048, 50)),
    ("gnmt", "fc", (32320, 50)),
    ("mlp", "fc3", (10,)),
]


@pytest.mark.parametrize(("name", "layer", "expected"), SHAPES)
def test_shapes(name: str, layer: str, expected: Shape) -> None:
    assert shape(name, layer) == expected


@pytest.mark.parametrize(
    "name",
    sorted(
        set(WEIGHTS)
        - {"gnmt", "dcgan-generator", "dcgan-discriminator", "mlp", "unet", "maskrcnn-resnet50-fpn"}
        - {
            "ssd300-resnet34",
            "ssd300-resnet50",
            "ssd300-vgg16",
            "ncf",
            "jasper",
            "quartznet",
            "waveglow",
            "waveglow-256",
        }
        - {
            name
            for name in WEIGHTS
            if name.startswith("transformer-xl") or name.endswith("-cifar") or name == "lenet-5"
        }
    ),
)
def test_image_classifiers_end_in_1000_classes(name: str) -> None:
    assert graph(name).layers[-1].output_shape[0] == 1000


@pytest.mark.parametrize(
    "name", ["alexnet", "alexnet-torchvision", "alexnet-cuda-convnet2", "vgg16", "vgg-a", "overfeat"]
)
def test_classifier_layers_match_fc(name: str) -> None:
    """One pattern selects the fully connected layers: ``--fix 'fc*:out_channels'``."""
    names = [layer.name for layer in graph(name).layers if layer.family.is_fully_connected(layer)]
    assert names == ["fc6", "fc7", "fc8"]


def gnmt_weights(layers: int) -> int:
    """Embeddings, encoder (first layer in both directions), decoder, attention, classifier; H = 1024."""
    hidden, vocabulary = 1024, 32_320
    embeddings = 2 * vocabulary * hidden
    cell = 4 * hidden * (hidden + hidden + 1)
    wide = 4 * hidden * (2 * hidden + hidden + 1)
    encoder = 2 * cell + wide + (layers - 2) * cell
    decoder = cell + (layers - 1) * wide
    attention = 2 * hidden * hidden + hidden
    return embeddings + encoder + decoder + attention + hidden * vocabulary + vocabulary


def test_gnmt(tmp_path: Path) -> None:
    """With four layers on each side it is the network of MLPerf, which has 160,671,297 parameters (NVIDIA apex, tests)."""
    assert gnmt_weights(8) == graph("gnmt").weight_count
    assert graph("gnmt").weight_count == pytest.approx(278e6, rel=0.002)  # arXiv:1701.06538, table 2
    text = bundled("models")["gnmt"].read_text()
    assert text.count("repeat: 6") == 2
    path = tmp_path / "gnmt4.yaml"
    path.write_text(text.replace("repeat: 6", "repeat: 2"))
    small = load_model(str(path)).graph
    assert small.weight_count == gnmt_weights(4)
    shared_embedding = 32_320 * 1024
    second_biases = 9 * 4 * 1024  # PyTorch's LSTM has two biases per gate: 5 cells in the encoder, 4 in the decoder
    normalised_attention = 1024 + 1  # a bias and a scale
    assert small.weight_count - shared_embedding + second_biases + normalised_attention == 160_671_297


def test_waveglow() -> None:
    """Upsampling; twelve mixtures of 8, 6 and 4 channels; in every flow eight layers over the signal and 640 conditions, and both ends."""

    def weights(channels: int) -> int:
        upsample = 80 * 80 * 1024 + 80
        layers = 8 * (channels * 2 * channels * 3 + 2 * channels + 640 * 2 * channels + 2 * channels)
        layers += 7 * (channels + 1) * 2 * channels + (channels + 1) * channels
        ends = 4 * sum(2 * half * 2 * half + (half + 1) * channels + (channels + 1) * 2 * half for half in (4, 3, 2))
        return upsample + 12 * layers + ends

    assert [graph(name).weight_count for name in ("waveglow", "waveglow-256")] == [weights(512), weights(256)]
    assert shape("waveglow", "condition") == (640, 1, 1000)
    assert load("waveglow").counts == {"audio_samples": 8000}


def test_transformer_xl() -> None:
    """18 layers of 13.6 million, tables of 1024, 256, 64 and 16 features, their matrices, that of the head, and biases of the words."""
    layers = 18 * (4 * 1024**2 + 1024**2 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024)
    assert layers == 245_532_672  # "n_nonemb_param" of Lambda Labs' logs
    clusters = {1024: 19_997, 256: 20_000, 64: 160_000, 16: 67_738}
    assert sum(clusters.values()) == 267_735
    tables = sum(width * words + 1024 * width for width, words in clusters.items())
    head = 1024**2 + 267_735 + 3 * 1025
    assert graph("transformer-xl-large").weight_count == layers + tables + head + 2 * 1024
    assert shape("transformer-xl-base", "layers.1.memory") == (512, 384)
    assert shape("transformer-xl-base", "layers.16.norm2") == (512, 192)
    longer = load_model("transformer-xl-base", seq=64).graph
    assert longer.layers[longer.index("layers.1.attention")].output_shape == (512, 64)


def test_speech_networks_halve_the_frames_once() -> None:
    for name in ("jasper", "quartznet"):
        assert shape(name, "features") == (64, 1, 1680)
        assert shape(name, "letters") == (29, 1, 840)
        assert load(name).counts == {"frames": 1680}
