"""Which bundled network people mean: "meta-llama/Meta-Llama-3-8B", "llama3_8b", "GPT-3 175B", "gpt3 6p7b", "ResNet-50 v1.5"."""

from __future__ import annotations

import re
from functools import cache

from planner.core.errors import did_you_mean
from planner.files.naming import is_noise, plain
from planner.files.resources import bundled

_W = r"(?: [a-z][a-z0-9]*)*?"  # words between a family and its size
# Patterns are searched in the name as `plain` writes it; the first that is found and bundled decides. "{}" is the size, in the spelling
# of the dictionary where there is one. Sizes follow the family, so that "Llama 3.2 1B" is not taken for Llama 3, nor "A 7B" for any.
_TRANSFORMERS: tuple[tuple[str, str, dict[str, str]], ...] = (
    # Distilled ones are other networks with DeepSeek's answers (arXiv:2501.12948, table 14: Qwen2.5-Math and Llama 3).
    (r"deep ?seek r1 distill llama (8|70)b", "llama3-{}b", {}),
    (r"deep ?seek r1 distill qwen (1\.5|7|14|32)b", "qwen2.5-{}b", {}),
    (r"distill", "", {}),
    (r"deep ?seek(?: coder)? ?v2(?:\.5)?(?: \d+b)? ?lite", "deepseek-v2-lite", {}),
    (r"deep ?seek(?: coder)? ?v2(?:\.5)?\b", "deepseek-v2", {}),
    # torchtitan calls the widths of both by the later name (torchtitan/models/deepseek_v3).
    (r"deep ?seek ?v3(?:\.1)? 16b", "deepseek-v2-lite", {}),
    (r"deep ?seek ?v3(?:\.1)? 236b", "deepseek-v2", {}),
    (r"deep ?seek ?moe(?: 16b\b|$)", "deepseek-moe-16b", {}),
    (r"deep ?seek ?v3\.2(?: exp)?\b(?!\.)", "deepseek-v3.2", {}),
    (r"deep ?seek ?(?:v3|r1)(?:\.1)?\b(?!\.)|deep ?seek 671b", "deepseek-v3", {}),
    (r"deep ?seek (?:llm )?(7|67)b", "deepseek-llm-{}b", {}),
    (r"kimi ?k2\b(?!\.)", "kimi-k2", {}),
    (r"\bglm ?4[. ]5 ?air\b", "glm-4.5-air", {}),
    (r"\bglm ?4[. ][56]\b(?! ?(?:v|flash)\b)", "glm-4.5", {}),
    (rf"qwen ?3(?! ?(?:vl|omni|next)){_W} 235b(?: a22b)?", "qwen3-235b-a22b", {}),
    (rf"qwen ?3(?! ?(?:vl|omni|next)){_W} 30b(?: a3b)?", "qwen3-30b-a3b", {}),
    (rf"qwen ?3(?! ?(?:vl|omni|next)){_W} (0\.6|1\.7|4|8|14|32)b\b", "qwen3-{}b", {}),
    (r"qwen ?3 ?next(?: 80b(?: a3b)?)?\b", "qwen3-next-80b-a3b", {}),
    (r"qwen ?1\.5 moe|qwen\S*.*\ba2\.7b", "qwen1.5-moe-a2.7b", {}),
    (r"qwen ?(?:1\.5 ?)?(7|14|72)b\b", "qwen1.5-{}b", {}),
    (r"qwen ?1\.5 (32|110)b\b", "qwen1.5-{}b", {}),
    (r"qwen ?2 57b(?: a14b)?", "qwen2-57b-a14b", {}),
    (rf"qwen ?2(?:[. ]?5)?(?! ?(?:vl|audio|omni)){_W} (0\.5|1\.5|3|7|14|32|72)b\b", "qwen2.5-{}b", {}),
    (r"\bqwq(?: preview)? 32b", "qwen2.5-32b", {}),
    (r"mixtral\b.*\b8 ?x ?22b", "mixtral-8x22b", {}),
    (r"mixtral\b.*\b8 ?x ?7b", "mixtral-8x7b", {}),
    (r"mistral ?nemo(?!tron)|mistral 12b", "mistral-nemo-12b", {}),
    (r"mistral ?small\b.*\b24b|mistral ?small 3\b", "mistral-small-24b", {}),
    (r"mistral ?large\b(?! 3)|mistral 123b", "mistral-large-123b", {}),
    (r"(?:mistral|mathstral)(?: v[\d.]+)? ?7b|zephyr 7b", "mistral-7b", {}),
    (r"gpt ?oss ?(20|120)b", "gpt-oss-{}b", {}),
    # Llama and what has its shape
    (r"llama ?4\b(?:.*\bscout(?: 17b 16e)?|.*\b17b ?x? ?16e)", "llama4-scout", {}),
    (r"llama ?4\b(?:.*\bmaverick(?: 17b 128e)?|.*\b17b ?x? ?128e)", "llama4-maverick", {}),
    (r"tiny ?llama(?: 1\.1b)?", "tinyllama-1.1b", {}),
    (r"smol ?lm ?2?(?: v2)? (135m|360m|1\.7b)", "smollm2-{}", {}),
    (rf"code ?llama{_W} 34b", "codellama-34b", {}),
    (rf"code ?llama{_W} (7|13|70)b", "llama2-{}b", {}),
    (r"open ?llama(?: v2)? (7|13)b", "llama-{}b", {}),
    (r"\b(?:vicuna|alpaca) ?(7|13|30|33|65)b", "llama-{}b", {"33": "30"}),
    (rf"llama ?3[. ]?2(?! ?90|.*vision){_W} (1|3)b\b", "llama3.2-{}b", {}),
    (rf"llama ?(?:v )?3(?:[. ]?[013])?{_W} (8|70|405)b\b", "llama3-{}b", {}),
    (r"llama(?: ?3[. ]?1)? ?405b", "llama3-405b", {}),
    (rf"llama ?v?2{_W} (7|13|70)b\b", "llama2-{}b", {}),
    (r"llama ?(?:v?1 )?(7|13|30|33|65)b\b", "llama-{}b", {"33": "30"}),
    (r"\byi ?(?:1\.5 )?(6|34)b\b", "yi-{}b", {}),
    (r"\bolmoe(?: 1b(?: 7b)?)?\b", "olmoe-1b-7b", {}),
    (r"olmo ?2(?: \d{4})? (7|13|32)b", "olmo2-{}b", {}),
    (r"\bolmo ?(1|7)b\b", "olmo-{}b", {}),
    (r"star ?coder ?2 (3|7|15)b\b", "starcoder2-{}b", {}),
    (r"baichuan ?2 (7|13)b\b", "baichuan2-{}b", {}),
    (rf"intern ?lm ?2(?:[. ]5)?{_W} (1[. ]8|7|20)b\b", "internlm2-{}b", {"1 8": "1.8"}),
    (r"intern ?lm (?:chat )?(7|20)b\b", "internlm-{}b", {}),
    (r"code ?gemma (2|7)b", "gemma-{}b", {}),
    (rf"gemma ?3{_W} (1|4|12|27)b\b", "gemma3-{}b", {}),
    (rf"gemma ?2{_W} (2|9|27)b\b", "gemma2-{}b", {}),
    (r"gemma ?(?:1(?:\.1)? )?(2|7)b\b", "gemma-{}b", {}),
    (r"\bphi ?1[. ]5\b", "phi-1.5", {}),
    (r"\bphi ?2\b", "phi-2", {}),
    (r"\bphi ?3(?:[. ]5)? ?mini|\bphi ?3(?:[. ]5)? 3\.8b", "phi-3-mini", {}),
    (r"\bphi ?3 ?medium|\bphi ?3 14b", "phi-3-medium", {}),
    (r"\bphi ?4 ?mini", "phi-4-mini", {}),
    (r"\bphi ?4\b(?!.*multimodal)", "phi-4", {}),
    (r"nemotron ?h ?(8|56)b\b", "nemotron-h-{}b", {}),
    (r"nemotron ?v?3 ?nano(?: 30b(?: a3b)?)?\b", "nemotron-3-nano-30b", {}),
    (r"\bdbrx", "dbrx", {}),
    (r"(?:megatron|mt ?nlg)\b.*\b530b|megatron ?turing|\bmt ?nlg\b", "megatron-530b", {}),
    (r"megatron\b.*\b22b|\bgpt 22b", "megatron-22b", {}),
    (r"megatron\b.*\b(?:1t|1008b)|\bgpt (?:1t|1008b)\b", "megatron-1t", {}),
    (r"gpt ?neox(?:$| 20b)", "gpt-neox-20b", {}),
    (r"gpt ?neo (1\.3|2\.7)b\b", "gpt-neo-{}b", {}),
    (r"\bpythia (70m|160m|410m|1b|1\.4b|2\.8b|6\.9b|12b)", "pythia-{}", {}),
    (r"\bgpt ?j\b", "gpt-j-6b", {}),
    (r"\bgpt ?3 ?(?:xl|1\.3b)\b", "gpt3-1.3b", {}),
    (r"\bgpt ?3 ?(?:small|medium|large)\b", "gpt3-{}", {"small": "125m", "medium": "350m", "large": "760m"}),
    (
        rf"\bgpt ?3{_W} ?(125m|126m|350m|356m|760m|1\.3b|2\.7b|5b|6\.7b|13b|20b|175b)\b",
        "gpt3-{}",
        {"126m": "125m", "356m": "350m"},
    ),
    (r"\bgpt 175b\b|\bgpt ?3$", "gpt3-175b", {}),
    (r"\bgpt (125m|350m|760m|1\.3b|2\.7b|6\.7b|13b)\b", "gpt3-{}", {}),  # Alpa, DeepSpeed, Megatron-LM
    (r"\bgpt ?2 ?(?:xl|1\.5b|1\.56b|1558m|1\.6b)\b", "gpt2-1.5b", {}),
    (r"\bgpt ?2 ?(?:large|774m|762m|0\.8b)\b", "gpt2-774m", {}),
    (r"\bgpt ?2 ?(?:medium|345m|350m|355m)\b", "gpt2-355m", {}),
    (r"\bgpt ?2 ?(?:small|base|117m|124m|125m)\b|^(?:openai )?(?:openai community )?gpt ?2$", "gpt2-124m", {}),
    (r"\bopt ?(?:iml )?(?:max )?(125m|1\.3b|2\.7b|6\.7b|13b|30b|66b|175b)\b", "opt-{}", {}),
    (
        r"\bbloomz? ?(560m|1b1|1\.1b|1b7|1\.7b|3b|7b1|7\.1b|7b)\b",
        "bloom-{}",
        {"1.1b": "1b1", "1.7b": "1b7", "7.1b": "7b1", "7b": "7b1"},
    ),
    (r"\bbloomz?\b(?! ?\d)|\bbloomz? ?176b", "bloom-176b", {}),
    (r"\bfalcon ?(7|40|180)b\b", "falcon-{}b", {}),
    (r"\bmpt ?(\d+[bm])\b", "mpt-{}", {}),
    (r"(?<!xlm )\broberta ?(base|large)\b", "roberta-{}", {}),
    (r"\bbert(?: ?large| 33\dm| 34\dm| 24 ?layers?|.*\b24 ?layers?)\b", "bert-large", {}),
    (r"\bbert(?: ?base| 110m)\b", "bert-base", {}),
    # Versions 1.1 and Flan have gates and other widths.
    (
        r"\b(?:flan ?t5|t5 v?1[. ]1)(?: lm adapt)? (small|base|large|xl|xxl|3b|11b)\b",
        "t5-v1.1-{}",
        {"3b": "xl", "11b": "xxl"},
    ),
    (r"\b(?:flan|long|ul2|m)? ?t5\b.*\b(?:v1[. ]1|lm)\b|\b(?:flan|m) ?t5|\blong ?t5|\bt5 v1", "", {}),
    (r"\bt5 ?(small|base|large|3b|xl)\b", "t5-{}", {"xl": "3b"}),
    (r"\bt5 ?(?:11b|xxl)\b", "t5-11b", {}),
    (r"\bvit ?(?:b|base) ?(?:patch)? ?32(?!.*\b(?:384|448)\b)", "vit-b32", {}),
    (r"\b(?:vit|deit) ?(?:[a-z]+) ?(?:patch)? ?(?:8|14|32)\b(?<!h 14)(?<!huge 14)(?<!patch14)", "", {}),
    (r"\b(?:vit|deit)\b.*\b(?:384|448|512)\b", "", {}),  # pixels: other numbers of patches
    (r"\b(?:vit|deit) ?(?:ti\b|tiny|ti ?16)", "vit-ti16", {}),
    (r"\bvit ?(?:h\b|huge|h ?14)", "vit-h14", {}),
    (r"\bvit ?(?:l\b|large|l ?16)", "vit-l", {}),
    (r"\b(?:vit|deit) ?(?:b\b|base|b ?16)", "vit-b16", {}),
    (r"\b(?:vit|deit) ?(?:s\b|small|s ?16)", "vit-s16", {}),
)

# Networks that look at images, in names without blanks and signs. Detectors and segmenters contain the names of what they are built on,
# networks with squeeze-and-excitation or a norm that VGG lacks those of what they changed.
_OTHERS = re.compile(
    r"rcnn|ssd|retina|yolo|detr|fcn|deeplab|.unet|unet(?!$|2d$|medical$)|fpn|segment|centernet|vgg(?!1[1369]bn$)\d*bn|bninception"
    r"|inception(?:bn|resnet(?!v2$))|se.?resn(?!et50$|ext(?:50|101)(?:32x4d?)?$)"
)
# Detectors that are bundled; where a row says nothing of what they are built on, what NVIDIA's examples train.
_DETECTORS: tuple[tuple[str, str], ...] = (
    (r"^ssd(?:300)?(?:v1|v11)?(?:with)?vgg(?:16)?$|^vgg16ssd(?:300)?$", "ssd300-vgg16"),
    (r"^ssd(?:300)?(?:v1|v11)?(?:with)?(?:rn|resnet)34(?:300)?$|^resnet34ssd(?:300)?$", "ssd300-resnet34"),
    (r"^ssd(?:300)?(?:v1|v11)?(?:(?:with)?(?:rn|resnet)50)?$|^resnet50ssd(?:300)?$", "ssd300-resnet50"),
    (r"^mask.?rcnn(?:(?:r|rn|resnet)50)?(?:fpn)?(?:coco|1x|3x)?$", "maskrcnn-resnet50-fpn"),
)
# RegNets by torchvision (400mf, 1_6gf) and by timm (004, 016).
_REGNETS = (
    ("400mf", "004"),
    ("800mf", "008"),
    ("1.6gf", "016"),
    ("3.2gf", "032"),
    ("8gf", "080"),
    ("16gf", "160"),
    ("32gf", "320"),
)
_IMAGES: tuple[tuple[str, str], ...] = (
    (r"alexnet.*torchvision", "alexnet-torchvision"),
    (r"alexnet", "alexnet"),
    (r"overfeat", "overfeat"),
    (r"oxfordnet.*a$|vgg.*(?:a|11)$", "vgg-a"),
    (r"vgg(11|13|16|19)bn$", "vgg{}-bn"),
    (r"vgg.?13|vggb$", "vgg13"),
    (r"vgg.?16|vggd", "vgg16"),
    (r"vgg.?19|vgge", "vgg19"),
    (r"googl?enet|inceptionv?1", "googlenet"),
    (r"inceptionv?3", "inception_v3"),
    (r"inceptionv?4", "inception_v4"),
    (r"inceptionresnetv2", "inception_resnet_v2"),
    (r"^xception$", "xception"),
    (r"^nasnet(?:a)?(?:mobile|41056|4at1056)?$", "nasnet-mobile"),  # "nasnet" of tf_cnn_benchmarks is the mobile one
    (r"^nasnet(?:a)?(?:large|64032|6at4032)$", "nasnet-large"),
    (r"seresnext(50|101)", "se-resnext{}-32x4d"),
    (r"seresnet50", "se-resnet50"),
    (r"resnext50", "resnext50-32x4d"),
    (r"resnext10132x4", "resnext101-32x4d"),
    (r"resnext10164x4", "resnext101-64x4d"),
    (r"resnext101(?:32x8d?)?$", "resnext101-32x8d"),
    (r"(?:wide|w)(?:rn|resnet|residualnet)50(?:2|x2)?", "wide-resnet50-2"),
    (r"(?:wide|w)(?:rn|resnet|residualnet)101(?:2|x2)?", "wide-resnet101-2"),
    (r"^(?:wide|w)(?:rn|resnet|residualnet)28(?:x)?10(?:cifar(?:100?)?)?$", "wide-resnet28-10-cifar"),
    (r"^(?:cifar(?:100?)?)?resnet(?:v1)?(20|32|44|56|110)(?:v1)?(?:cifar(?:100?)?)?$", "resnet{}-cifar"),
    (r"efficientnetwideseb([04])(?!\d)", "efficientnet-widese-b{}"),
    (r"wide|resnext", ""),
    (r"resnet(?:v[12])?.?50(?!\d)", "resnet50"),
    (r"resnet(?:v[12])?.?101(?!\d)", "resnet101"),
    (r"resnet(?:v[12])?.?152(?!\d)", "resnet152"),
    (r"resnet(?:v1)?.?200(?!\d)", "resnet200"),
    (r"resnet(?:v[12])?.?18$|resnet.?18v", "resnet18"),
    (r"resnet(?:v[12])?.?34$|resnet.?34v", "resnet34"),
    (r"densenet.?(?:bc)?(121|161|169|201)", "densenet{}"),
    (r"^mobilenet(?:s|v1|1|10)?(?:224)?$", "mobilenet-v1"),
    (r"mobilenetv?2(?!(?:0?35|0?50|0?75|05|025|110|120|13|14)\w*$)", "mobilenet-v2"),  # at width 1
    (r"^(?:tf)?mobilenetv3large(?:100|10|1)?(?:224)?$", "mobilenet-v3-large"),
    (r"^(?:tf)?mobilenetv3small(?:100|10|1)?(?:224)?$", "mobilenet-v3-small"),
    (r"^mnasnet(?:b1|100|10|1)?$", "mnasnet-b1"),
    (r"^shufflenetv?2(?:x?(?:1|10|1x|10x))?$", "shufflenet-v2"),
    (r"squeezenet(?:v)?(?:1|10)?$", "squeezenet-1.0"),
    (r"squeezenetv?11$", "squeezenet-1.1"),
    (r"efficientnet.?b([0-7])(?!\d)", "efficientnet-b{}"),
    (r"^(?:tf)?efficientnetv2([sml])$", "efficientnet-v2-{}"),
    *((rf"^regnet([xy])(?:{size.replace('.', 'p')}|{code})$", f"regnet-{{}}-{size}") for size, code in _REGNETS),
    *(
        (rf"^swin(?:transformer)?(?:{size}|{size[0]})(?:patch4window7)?(?:224)?$", f"swin-{size}")
        for size in ("tiny", "small", "base", "large")
    ),
    (r"^(?:mlp)?mixerb(?:16)?(?:224)?$", "mixer-b16"),
    (r"convnext(?:t$|tiny(?!v2))", "convnext-tiny"),
    (r"convnext(?:s$|small(?!v2))", "convnext-small"),
    (r"convnext(?:b$|base(?!v2))", "convnext-base"),
    (r"convnext(?:l$|large(?!v2))", "convnext-large"),
    (r"^unet(?:2d|medical)?$", "unet"),
    (r"^nin$|networkinnetwork", "nin"),
    (r"^lenet5$", "lenet-5"),
    # What is trained by samples like these: translation, speech, recommendation
    (r"^gnmt(?:v2)?$", "gnmt"),
    (
        r"^transformer(?:vaswani)?(?:wmt(?:14)?(?:ende|enfr)?)?(base|big)(?:t2t|wmt(?:14)?(?:ende)?|model)?$",
        "transformer-{}",
    ),
    (r"^(?:transformer|transfo)xl(base|large)(?:wt103|model)?$", "transformer-xl-{}"),
    (r"^transfoxlwt103$", "transformer-xl-large"),
    (r"^(?:ncf|neumf|neuralcf|neuralcollaborativefiltering)(?:ml20m)?$", "ncf"),
    (r"^waveglow(?:512(?:channels?)?)?$", "waveglow"),
    (r"^waveglow256(?:channels?)?$", "waveglow-256"),
    (r"^jasper(?:10x5(?:dr)?|large)?$", "jasper"),
    (r"^quartznet(?:15x5)?$", "quartznet"),
)


def transformer_called(text: str) -> str | None:
    """The bundled transformer that a row's text names; None where there is none.

    >>> [transformer_called(text) for text in ("Meta-Llama-3-8B", "Llama 3.2 1B", "llama3_70b", "Mistral-7B-v0.1", "ViT-L/14", "gpt5")]
    ['llama3-8b', 'llama3.2-1b', 'llama3-70b', 'mistral-7b', None, None]
    """
    return _transformer(plain(text))[0]


def image_network_called(text: str) -> str | None:
    """The bundled network for images that a row's text names; None where there is none.

    >>> [image_network_called(text) for text in ("ResNet-50 v1.5", "OxfordNet [Model-A]", "Faster R-CNN ResNet50", "WRN-50-2")]
    ['resnet50', 'vgg-a', None, 'wide-resnet50-2']
    """
    said = re.sub(r"\((?!\d+x\d+d\)|vgg|resn|256 ch).*?\)|\[fast\]", "", text.lower().replace("++", "plus"))
    return _image(_letters(said))[0]


def _letters(text: str) -> str:
    """A name in lower case without blanks and signs; the point of a number of GFLOP stays, as "p".

    >>> _letters("ResNet-50"), _letters("regnet_y_1_6gf"), _letters("RegNetY 16GF")
    ('resnet50', 'regnety1p6gf', 'regnety16gf')
    """
    return re.sub(r"[^a-z0-9]", "", re.sub(r"(?<![0-9])(\d)[._](\d ?gf)", r"\1p\2", text.lower()))


def nearest_models(text: str) -> str:
    """End of a sentence that suggests the bundled networks with the nearest names; empty where none is near.

    >>> nearest_models("Llama3_8bb"), nearest_models("abacus")
    ("; did you mean 'llama3-8b'?", '')
    """
    return did_you_mean(plain(text[:200]).replace(" ", "-"), bundled("models"))


def named_model(text: str) -> str | None:
    """The bundled network that a name means and nothing else; an organisation before a slash is no part of the name.

    >>> named_model("meta-llama/Meta-Llama-3-8B-Instruct"), named_model("ResNet 50"), named_model("my llama3-8b with a twist")
    ('llama3-8b', 'resnet50', None)
    """
    text = re.sub(
        r"(?<=[xyXY]_\d)_(?=\d ?[gG][fF])", ".", text.replace("++", "plus")
    )  # other networks; torchvision's regnet_y_1_6gf
    _, slash, rest = text.partition("/")
    word = plain(rest if slash and not rest[:1].isdigit() else text)  # "ViT-B/16" has no organisation
    bare = re.sub(r"[^a-z0-9.]", "", word)
    for name in bundled("models"):
        if re.sub(r"[^a-z0-9.]", "", name) == bare:
            return name
    found, beside = _transformer(word)
    if found is None:
        found, beside = _image(_letters(bare))
        return found if _IMAGE_RELEASE.fullmatch(beside) else None
    return found if is_noise(_GIVEN.sub(" ", beside)) else None


_IMAGE_RELEASE = re.compile(r"(?:v\d\d?|torchvision|pytorch|tensorflow|keras|imagenet|net|224|100)?")
# What releases add to the name of a network without changing it, beside `planner.files.naming`.
_GIVEN = re.compile(
    r"\b(?:v\d+(?:\.\d+)?|\d{4}|\d+k|thinking|reasoning|deduped|python|preview|patch\d+|224|params?|in21k|1k|ft|finetune)\b"
)


@cache
def _transformer(word: str) -> tuple[str | None, str]:
    """Name, and the words beside those that it was found by."""
    known = bundled("models")
    for pattern, template, spelling in _TRANSFORMERS:
        found = re.search(pattern, word)
        if not found:
            continue
        if not template:
            return None, word
        size = found[1] if found.re.groups else next((key for key in spelling if key in found[0]), "")
        name = template.format(spelling.get(size, size))
        if name in known:
            return name, f"{word[: found.start()]} {word[found.end() :]}"
    return None, word


@cache
def _image(word: str) -> tuple[str | None, str]:
    """Name, and the letters beside those that it was found by."""
    known = bundled("models")
    for pattern, name in _DETECTORS:
        if re.search(pattern, word):
            return name, "" if re.search(r"vgg|rn|resnet|mask", word) else word
    if _OTHERS.search(word):
        return None, word
    for pattern, template in _IMAGES:
        found = re.search(pattern, word)
        if found:
            name = template.format(*found.groups())
            return (name if name in known else None), f"{word[: found.start()]}{word[found.end() :]}"
    return None, word
