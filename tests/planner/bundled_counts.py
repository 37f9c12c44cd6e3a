"""Numbers of parameters of bundled transformers, published for the released weights; tied matrices count once.

Known from the files of weights on Hugging Face (their metadata state the total), and compared exactly: a wrong width, bias or norm
shows. The pages were not opened for this file; Hugging Face transformers 5.23 counts the same parameters for the released configurations.
"""

RELEASED = {
    "baichuan2-13b": 13_896_668_160,
    "baichuan2-7b": 7_505_973_248,
    "bloom-1b1": 1_065_314_304,
    "bloom-1b7": 1_722_408_960,
    "bloom-3b": 3_002_557_440,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "codellama-34b": 33_743_970_304,
    "dbrx": 131_596_523_520,
    "deepseek-llm-67b": 67_425_001_472,
    "deepseek-llm-7b": 6_910_365_696,
    "deepseek-moe-16b": 16_375_728_128,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "falcon-180b": 178_557_088_768,  # the file has 179,522,565,120: the head as a copy of the embedding of 65,024 x 14,848
    "falcon-40b": 41_303_293_952,
    "falcon-7b": 6_921_720_704,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma2-27b": 27_227_128_320,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma3-12b": 11_766_034_176,
    "gemma3-1b": 999_885_952,
    "gemma3-27b": 27_009_346_304,
    "gemma3-4b": 3_880_263_168,  # without the part that reads images, this and the larger ones
    "glm-4.5": 352_797_829_024,  # without the layer for multi-token prediction, this and the smaller one
    "glm-4.5-air": 106_852_251_264,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neo-1.3b": 1_315_575_808,
    "gpt-neo-2.7b": 2_651_307_520,
    "gpt-neox-20b": 20_554_567_680,
    "gpt2-124m": 124_439_808,
    "gpt2-355m": 354_823_168,
    "gpt2-774m": 774_030_080,
    "internlm-20b": 20_088_714_240,
    "internlm-7b": 7_321_948_160,
    "internlm2-1.8b": 1_889_110_016,
    "internlm2-20b": 19_861_149_696,
    "internlm2-7b": 7_737_708_544,
    "kimi-k2": 1_026_408_232_448,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-7b": 6_738_415_616,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama4-maverick": 400_711_848_960,  # the files have 871,932,416 more, the part that reads images; so does the smaller one
    "llama4-scout": 107_769_861_120,
    "mistral-7b": 7_241_732_096,
    "mistral-large-123b": 122_610_069_504,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x22b": 140_630_071_296,
    "mpt-125m": 125_311_488,  # llm-foundry, tables of scripts/train/benchmarking, this and the other sizes of MPT
    "mpt-350m": 355_985_408,
    "mpt-3b": 2_651_837_440,
    "mpt-760m": 760_470_528,
    "olmo-1b": 1_176_764_416,
    "olmo-7b": 6_888_095_744,
    "olmo2-32b": 32_234_279_936,
    "olmoe-1b-7b": 6_919_161_856,
    "opt-1.3b": 1_315_758_080,
    "opt-125m": 125_239_296,
    "opt-13b": 12_853_473_280,
    "opt-2.7b": 2_651_596_800,
    "opt-175b": 174_604_468_224,
    "opt-30b": 29_974_540_288,
    "opt-6.7b": 6_658_473_984,
    "opt-66b": 65_719_701_504,
    "phi-1.5": 1_418_270_720,
    "phi-2": 2_779_683_840,
    "phi-3-medium": 13_960_238_080,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "phi-4-mini": 3_836_021_760,
    "pythia-1.4b": 1_414_647_808,
    "pythia-12b": 11_846_072_320,
    "pythia-160m": 162_322_944,
    "pythia-1b": 1_011_781_632,
    "pythia-2.8b": 2_775_208_960,
    "pythia-410m": 405_334_016,
    "pythia-6.9b": 6_857_302_016,
    "pythia-70m": 70_426_624,
    "qwen1.5-110b": 111_209_914_368,
    "qwen1.5-14b": 14_167_290_880,
    "qwen1.5-32b": 32_512_218_112,
    "qwen1.5-72b": 72_287_920_128,
    "qwen1.5-7b": 7_721_324_544,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,  # 57.41 billion on its page; the sum of Qwen2MoeForCausalLM's tensors
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "roberta-base": 124_697_433,  # with the head for masked words, this and the next
    "roberta-large": 355_412_057,
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "starcoder2-15b": 15_957_889_024,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "t5-3b": 2_851_598_336,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-v1.1-base": 247_577_856,  # this and the other sizes of version 1.1 as of Flan-T5
    "t5-v1.1-large": 783_150_080,
    "t5-v1.1-small": 76_961_152,
    "t5-v1.1-xl": 2_849_757_184,
    "t5-v1.1-xxl": 11_135_332_352,
    "t5-small": 60_506_624,  # transformers, google-t5
    "tinyllama-1.1b": 1_100_048_384,
    "vit-h14": 632_045_800,  # torchvision, vit_h_14 (at 224 x 224)
    "vit-s16": 22_050_664,  # timm, deit_small_patch16_224
    "yi-34b": 34_388_917_248,
    "yi-6b": 6_061_035_520,
}
# Billions, rounded in print.
ROUNDED = {
    "gpt3-125m": 0.12523,  # l (12 h^2 + 13 h) + (V + s) h + 2 h; the paper prints 125M, and so on
    "gpt3-350m": 0.35587,
    "gpt3-760m": 0.7603,
    "gpt3-2.7b": 2.6516,
    "gpt3-6.7b": 6.6584,
    "gpt3-5b": 5.05,  # NVIDIA says 5B
    "gpt3-20b": 20.26,  # the same, 20B
    "nemotron-3-nano-30b": 31.6,  # NVIDIA's report; the short convolutions and scalars that the file leaves out are 0.7 million
    "nemotron-h-8b": 8.1,  # arXiv:2504.03624
    "nemotron-h-56b": 56.3,  # 54 x 438.3 million of Mamba-2, 54 x 536.9 of feed-forward parts, 10 x 151 of attention, 2,147 of embeddings
    "qwen3-next-80b-a3b": 79.68,  # the files have 81.32 billion with a layer for multi-token prediction of 1.64
    "olmo2-7b": 7.2986,  # 7,298,617,344, see the file
    "olmo2-13b": 13.716,  # 13,716,198,400
}
