"""Which bundled device people mean: "NVIDIA A100-SXM4-80GB", "Tesla V100", "p4d.24xlarge", "8x H100 80GB HBM3"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from planner.files.naming import is_noise
from planner.files.resources import bundled


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """Names of a device.

    Attributes
    ----------
    pattern : str
        Searched in the name as `_spelled` writes it; the first of `KNOWN_DEVICES` that is found decides.
    device : str
        What it means where nothing else is said.
    cluster : str
        Bundled cluster that it usually stands in.
    by_memory : tuple of (GB, device)
        What it means by the memory that is stated.
    open_to : tuple of str
        The bundled devices that have this name, where they are several: `device` is good enough for a row of measurements, a question
        has to say which.
    """

    pattern: str
    device: str
    cluster: str
    by_memory: tuple[tuple[float, str], ...] = ()
    open_to: tuple[str, ...] = ()


# Better than none where the name of a device is known and its usual cluster is not bundled.
SPARE_CLUSTER = "dgx-h100"

_A100_SXM = ((40, "a100-40gb"), (80, "a100-80gb"))
_A100_PCIE = ((40, "a100-pcie-40gb"), (80, "a100-pcie-80gb"))
_V100_SXM = ((16, "v100-16gb"), (32, "v100-32gb"))
_V100_PCIE = ((16, "v100-pcie-16gb"), (32, "v100-pcie-32gb"))
_P100_PCIE = ((12, "p100-pcie-12gb"), (16, "p100-pcie-16gb"))
_H100 = ("h100-sxm", "h100-pcie", "h100-nvl")


def _of(*boards: tuple[tuple[float, str], ...]) -> tuple[str, ...]:
    return tuple(name for board in boards for _, name in board)


def _k(
    pattern: str,
    device: str,
    cluster: str,
    by_memory: tuple[tuple[float, str], ...] = (),
    open_to: tuple[str, ...] = (),
) -> KnownDevice:
    return KnownDevice(pattern=pattern, device=device, cluster=cluster, by_memory=by_memory, open_to=open_to)


# Instances of clouds: Amazon EC2 (P, G, Trn), Google Cloud (A2, A3, A4, G2) and Azure (ND), as their providers list them. Azure and
# a3-ultragpu have one InfiniBand or RoCE port per GPU, as a DGX has.
_INSTANCES = (
    _k(r"\bp6e|gb ?200 nvl ?72|\ba4x highgpu", "gb200", "gb200-nvl72"),
    _k(r"\bp6 b300", "b300", "dgx-b200"),
    _k(r"\bp6\b|\ba4 highgpu", "b200", "dgx-b200"),
    _k(r"\ba3 ultragpu|\bnd96isr h200", "h200", "dgx-h100"),
    _k(r"\bp5en?\b", "h200", "aws-p5"),
    _k(r"\bnd96isr h100", "h100-sxm", "dgx-h100"),
    _k(r"\bp5\b|h ?100\b.*\befa\b|\ba3 (?:high|mega|edge)gpu", "h100-sxm", "aws-p5"),
    _k(r"\bnd96am?sr a100", "a100-80gb", "dgx-a100"),
    _k(r"\bnd96asr", "a100-40gb", "dgx-a100"),
    _k(r"\bp4de\b", "a100-80gb", "aws-p4d"),
    _k(r"\ba2 ultragpu", "a100-80gb", "gcp-a2"),
    _k(r"\ba2 (?:high|mega)gpu", "a100-40gb", "gcp-a2"),
    _k(r"\bp4d\b", "a100-40gb", "aws-p4d"),
    _k(r"a ?100\b.*\befa\b", "a100-80gb", "aws-p4d", _A100_SXM, _of(_A100_SXM)),
    _k(r"\bp3dn\b", "v100-32gb", "aws-p3dn"),
    _k(r"\bnd40rs|\bndv2\b", "v100-32gb", "azure-ndv2"),
    _k(r"\bn1 (?:standard|high).*v ?100|\bv ?100.*\bn1 (?:standard|high)", "v100-16gb", "gcp-v100"),
    _k(r"\bnc\d+r?s v3|\bncv3\b", "v100-pcie-16gb", "pcie3-fdr"),
    _k(r"\bp3(?=[ .]|$)", "v100-16gb", "aws-p3"),
    _k(r"\bp2(?=[ .])", "k80", "k80-10gbe"),
    _k(r"\bg3s?(?=[ .])", "m60", "pcie3-fdr"),
    _k(r"\bg4dn\b", "t4", "aws-g4dn"),
    _k(r"\bg5(?=[ .])", "a10g", "aws-g5"),
    _k(r"\bg6e\b", "l40s", "pcie4-node"),
    _k(r"\bg6(?=[ .])|\bg2 standard", "l4", "pcie4-node"),
    _k(r"(?:trn|trainium) ?2.*\bneuron ?cores?\b|\bneuron ?core v3\b", "trainium2-core", "aws-trn2-cores"),
    _k(r"(?:trn|trainium) ?1.*\bneuron ?cores?\b|\bneuron ?cores?(?: v2)?\b", "trainium1-core", "aws-trn1-cores"),
    _k(r"\btrn2", "trainium2", "aws-trn2"),
    _k(r"\btrn1", "trainium1", "aws-trn1"),
)

# Names that begin with or contain another one come first: "gh200" before "h200", "p100" of an SXM board before any "p100".
_DATA_CENTER = (
    _k(r"\bgb ?300", "gb300", "gb200-nvl72"),
    _k(r"\bgb ?200", "gb200", "gb200-nvl72"),
    _k(r"\bgh ?200|grace hopper", "gh200", "dgx-h100"),
    _k(r"\bb ?300(?!\d)", "b300", "dgx-b200"),
    _k(r"\bb ?200(?!\d)", "b200", "dgx-b200"),
    _k(r"\bb ?100(?!\d)", "b100", "dgx-b200"),
    _k(r"\bh ?200(?!\d)", "h200", "dgx-h100"),
    _k(r"\bh ?20\b(?! ?gb)", "h20", "dgx-h100"),
    _k(r"\bh ?100(?!\d).*\bnvl\b|\bh ?100nvl", "h100-nvl", "pcie5-node"),
    _k(r"\bh ?100(?!\d).*(?:pcie|hbm2)", "h100-pcie", "pcie5-node"),
    _k(r"\bh ?800(?!\d)", "h100-sxm", "hgx-h800"),
    _k(r"\bh ?100(?!\d).*(?:sxm|hbm3|nvlink|nvswitch)|(?:dgx|hgx) ?h ?100", "h100-sxm", "dgx-h100"),
    _k(r"\bh ?100(?!\d)", "h100-sxm", "dgx-h100", open_to=_H100),
    _k(r"\ba ?800(?!\d)", "a100-80gb", "hgx-a800", _A100_SXM),
    _k(r"\ba ?100(?!\d).*pcie|\ba ?100x\b", "a100-pcie-80gb", "pcie4-node", _A100_PCIE, _of(_A100_PCIE)),
    _k(r"(?:dgx|hgx) ?a ?100|selene", "a100-80gb", "dgx-a100", _A100_SXM, _of(_A100_SXM)),
    _k(r"\ba ?100(?!\d)", "a100-80gb", "dgx-a100", _A100_SXM, _of(_A100_SXM, _A100_PCIE)),
    _k(r"\bv ?100s\b", "v100s", "pcie3-fdr"),
    _k(r"\bdgx ?2h?\b", "v100-32gb", "dgx1-v100"),  # sold with 512 GB in 16 GPUs (NVIDIA DGX-2 datasheet)
    _k(r"\bv ?100(?!\d).*(?:pcie|fhhl)", "v100-pcie-16gb", "pcie3-fdr", _V100_PCIE, _of(_V100_PCIE)),
    _k(r"\bv ?100(?!\d)", "v100-16gb", "dgx1-v100", _V100_SXM, _of(_V100_SXM, _V100_PCIE)),
    _k(r"\bp ?100(?!\d).*(?:dgx|sxm|nvlink)|(?:dgx|sxm|nvlink).*\bp ?100(?!\d)", "p100", "dgx1-p100"),
    _k(r"\bp ?100(?!\d).*pcie", "p100-pcie-16gb", "pcie3-fdr", _P100_PCIE, _of(_P100_PCIE)),
    _k(r"\bp ?100(?!\d)", "p100", "pcie3-fdr", open_to=("p100", *_of(_P100_PCIE))),
    # The machines had P100s first: they mean V100s where nothing is said.
    _k(r"\bdgx ?1v?\b|\bvolta\b", "v100-16gb", "dgx1-v100", _V100_SXM, _of(_V100_SXM, _V100_PCIE)),
    _k(r"\bp ?40\b", "p40", "pcie3-fdr"),
    _k(r"\b(?:tesla |nv )p ?4\b|^p4$", "p4", "pcie3-fdr"),
    _k(r"\bm ?40\b", "m40", "pcie3-fdr"),
    _k(r"\bm ?60\b", "m60", "pcie3-fdr"),
    _k(r"\bk ?80(?!\d)", "k80", "k80-10gbe"),
    _k(r"\bk ?40[cmst]?\b", "k40", "pcie3-fdr"),
    _k(r"\bk ?20 ?x", "k20x", "titan"),
    _k(r"\bk ?20[cm]?\b", "k20", "k20-pcie"),
    _k(r"\bl ?40 ?s\b", "l40s", "pcie4-node"),
    _k(r"\bl ?40\b", "l40", "pcie4-node"),
    _k(r"\bl ?4\b", "l4", "pcie4-node"),
    _k(r"\ba ?30\b", "a30", "pcie4-node"),
    _k(r"\ba ?40\b", "a40", "pcie4-node"),
    _k(r"\ba ?10g\b", "a10g", "pcie4-node"),
    _k(r"\ba ?10\b", "a10", "pcie4-node"),
    _k(r"\bt ?4\b(?! ?g\b)", "t4", "pcie3-fdr"),
)

_WORKSTATION = (
    _k(r"titan ?v(?! ?ceo)\b", "titan-v", "pcie3-fdr"),
    _k(r"titan ?xp\b", "titan-xp", "pcie3-fdr"),
    _k(r"titan ?x\b.*pascal|titan ?x ?pascal|pascal titan ?x\b|titan ?x ?p\b", "titan-x-pascal", "pcie3-fdr"),
    _k(r"titan ?rtx|rtx ?titan", "titan-rtx", "pcie3-fdr"),
    _k(r"titan ?black(?! x\b)", "titan-black", "pcie3-fdr"),
    _k(r"titan ?(?:x|black x)\b", "titan-x", "pcie3-fdr"),
    _k(r"^(?:nvidia |nv |geforce )*gtx ?titan(?: 6 ?gb)?$", "gtx-titan", "pcie3-fdr"),
    _k(r"(?:gtx|geforce) ?680\b", "gtx-680", "pcie3-fdr"),
    _k(r"(?:gtx|geforce) ?980 ?ti\b", "gtx-980ti", "pcie3-fdr"),
    _k(r"(?:gtx|geforce) ?1060\b(?! ?3)", "gtx-1060", "pcie3-fdr"),
    _k(r"(?:gtx|geforce) ?1070 ?ti\b", "gtx-1070ti", "pcie3-fdr"),
    _k(r"(?<!\d)1080 ?ti\b", "gtx-1080ti", "pcie3-fdr"),
    _k(r"(?:gtx|geforce) ?1080\b(?! ?ti)", "gtx-1080", "pcie3-fdr"),
    _k(r"(?:gtx|geforce) ?1070\b(?! ?ti)", "gtx-1070", "pcie3-fdr"),
    _k(r"(?:gtx|geforce) ?980\b(?! ?ti)", "gtx-980", "pcie3-fdr"),
    _k(r"(?<!\d)2080 ?ti\b", "rtx-2080ti", "pcie3-fdr"),
    _k(r"(?:rtx|geforce) ?2060\b(?! ?super)", "rtx-2060", "pcie3-fdr"),
    _k(r"(?:rtx|geforce) ?2070 ?super\b", "rtx-2070-super", "pcie3-fdr"),
    _k(r"(?:rtx|geforce) ?2070\b", "rtx-2070", "pcie3-fdr"),
    _k(r"(?:rtx|geforce) ?2080 ?super\b", "rtx-2080-super", "pcie3-fdr"),
    _k(r"(?:rtx|geforce) ?2080\b(?! ?ti)", "rtx-2080", "pcie3-fdr"),
    *(
        _k(rf"(?:rtx|geforce) ?{number} ?ti\b(?! ?super)", f"rtx-{number}ti", "pcie4-node")
        for number in (3060, 3070, 3080, 3090, 4070)
    ),
    _k(r"(?:rtx|geforce) ?4060 ?ti\b(?! ?16)", "rtx-4060ti", "pcie4-node"),
    _k(r"(?:rtx|geforce) ?3060\b(?! ?8 ?gb)", "rtx-3060", "pcie4-node"),
    _k(r"(?:rtx|geforce) ?4070\b(?! ?(?:ti|super))", "rtx-4070", "pcie4-node"),
    _k(r"(?:rtx|geforce) ?4080\b(?! ?super)", "rtx-4080", "pcie4-node"),
    _k(r"(?:rtx|geforce) ?5080\b", "rtx-5080", "pcie5-node"),
    _k(r"(?<!\d)3090\b(?! ?ti)", "rtx-3090", "pcie4-node"),
    _k(r"(?:rtx|geforce) ?3080\b(?! ?ti)", "rtx-3080", "pcie4-node"),
    _k(r"(?:rtx|geforce) ?3070\b(?! ?ti)", "rtx-3070", "pcie4-node"),
    _k(r"(?<!\d)4090\b(?! ?d\b)", "rtx-4090", "pcie4-node"),
    _k(r"(?<!\d)5090\b(?! ?d\b)", "rtx-5090", "pcie5-node"),
    _k(r"\brtx ?pro ?6000\b", "rtx-pro-6000", "pcie5-node"),
    _k(r"\b6000 ?ada|\bada ?6000|6000 .*\bada\b", "rtx-6000-ada", "pcie4-node"),
    _k(r"\bquadro ?p ?6000\b|^p6000$", "quadro-p6000", "pcie3-fdr"),
    _k(r"\bquadro ?p ?5000\b|^p5000$", "quadro-p5000", "pcie3-fdr"),
    _k(r"\bgv ?100\b", "quadro-gv100", "pcie3-fdr"),
    _k(r"\bquadro ?rtx ?5000\b", "quadro-rtx-5000", "pcie3-fdr"),
    _k(r"\brtx ?a ?4500\b|\ba4500\b", "rtx-a4500", "pcie4-node"),
    _k(r"\brtx ?a ?5500\b|\ba5500\b", "rtx-a5500", "pcie4-node"),
    _k(r"\brtx ?8000\b", "quadro-rtx-8000", "pcie3-fdr"),
    _k(r"\brtx ?6000\b(?!.*\b(?:pro|blackwell)\b)", "quadro-rtx-6000", "pcie3-fdr"),
    _k(r"\brtx ?a ?5000\b|\ba5000\b", "rtx-a5000", "pcie4-node"),
    _k(r"\brtx ?a ?4000\b|\ba4000\b", "rtx-a4000", "pcie4-node"),
    _k(r"\brtx ?a ?6000\b|\ba ?6000\b", "rtx-a6000", "pcie4-node"),
)

_OTHER_MAKERS = (
    _k(r"\bmi ?355", "mi355x", "mi300x-node"),
    _k(r"\bmi ?350", "mi350x", "mi300x-node"),
    _k(r"\bmi ?325", "mi325x", "mi300x-node"),
    _k(r"\bmi ?300 ?a\b", "mi300a", "mi300x-node"),
    _k(r"\bmi ?300(?! ?[ac]\b)", "mi300x", "mi300x-node"),
    _k(r"(?:^|gpu |intel )max ?1550|\bpvc\b|ponte ?vecchio", "max-1550", "pcie5-node"),
    _k(r"\bmi ?210\b", "mi210", "pcie4-node"),
    _k(r"\bmi ?250 ?x", "mi250x-gcd", "frontier", ((64, "mi250x-gcd"), (128, "mi250x-oam"))),
    _k(r"\bmi ?250\b", "mi250-gcd", "frontier", ((64, "mi250-gcd"), (128, "mi250-oam"))),
    _k(r"\bmi ?100\b", "mi100", "pcie4-node"),
    _k(r"\bmi ?60\b", "mi60", "pcie4-node"),
    _k(r"\bmi ?50\b", "mi50", "pcie4-node"),
    _k(r"\bvega ?(?:fe|frontier)\b", "vega-fe", "pcie3-fdr"),
    _k(r"\bvega ?64\b(?! ?liquid)", "rx-vega-64", "pcie3-fdr"),
    _k(r"\bvega ?56\b", "rx-vega-56", "pcie3-fdr"),
    _k(r"\bradeon ?vii\b(?! ?pro)(?<!pro vii)", "radeon-vii", "pcie3-fdr"),
    _k(r"\bknl(?: ?7250)?\b(?! ?\d)|\bphi ?7250\b", "xeon-phi-7250", "ethernet-10g"),
    _k(r"\bmi ?25\b", "mi25", "pcie3-fdr"),
    _k(r"gaudi ?3|hl ?325", "gaudi3", "gaudi3-node"),
    _k(r"gaudi ?2|hl ?225", "gaudi2", "gaudi2-node"),
    _k(r"trainium ?2", "trainium2", "aws-trn2"),
    _k(r"trainium(?: ?1)?\b", "trainium1", "aws-trn1"),
    _k(r"\btpu ?v?2\b|^v2 \d+$", "tpu-v2", "tpu-v3-pod"),
    _k(r"\btpu ?v?3\b|^v3 \d+$", "tpu-v3", "tpu-v3-pod"),
    _k(r"\btpu ?v?4\b(?! ?i\b)|^v4 \d+$", "tpu-v4", "tpu-v4-pod"),
    _k(r"\btpu ?v?5 ?p\b|^v5p(?: \d+)?$", "tpu-v5p", "tpu-v5p-pod"),
    _k(r"\btpu ?v?5 ?(?:e|lite|litepod)\b|^v5(?:e|litepod)(?: \d+)?$", "tpu-v5e", "tpu-v5e-pod"),
    _k(r"\btpu ?v?6 ?e?\b|\btrillium\b|^v6e(?: \d+)?$", "tpu-v6e", "tpu-v6e-pod"),
    _k(r"\btpu ?v?7 ?x?\b|\bironwood\b|^tpu7x(?: \d+)?$", "tpu-v7", "tpu-v7-pod"),
)

# Machines whose nodes are all of one kind, by the user guides of those who run them; what says more than their name is found above.
_MACHINES = (
    _k(r"^(?:olcf )?frontier\b|\blumi(?: g)?\b", "mi250x-gcd", "frontier"),
    _k(r"^(?:olcf )?summit\b", "v100-16gb", "dgx1-v100"),
    _k(r"\bpolaris\b|\bjuwels booster\b|\bperlmutter\b", "a100-40gb", "dgx-a100", _A100_SXM),
    _k(r"\beos\b", "h100-sxm", "dgx-h100"),
    _k(r"^alps\b|\bisambard ai\b|^jupiter\b", "gh200", "dgx-h100"),
    _k(r"\bel capitan\b", "mi300a", "mi300x-node"),
    _k(r"^aurora\b", "max-1550", "pcie5-node"),
    _k(r"\bpiz daint\b", "p100-pcie-16gb", "pcie3-fdr"),
)

KNOWN_DEVICES: tuple[KnownDevice, ...] = (*_INSTANCES, *_DATA_CENTER, *_WORKSTATION, *_OTHER_MAKERS, *_MACHINES)

# Chips of laptops and shares of a GPU bear the names of others.
_NONE_OF_THESE = re.compile(r"\b(?:laptop|mobile|max ?q|vgpu|mig|jetson|orin)\b")
_MEMORY = re.compile(r"(\d+) ?gi?b?\b")
_STATED_MEMORY = re.compile(r"(\d+) ?gi?b\b")  # "8g" at the end of an instance is a number of devices
# Sold by what two devices have together; or named after the memory of the host (NVIDIA's name of a GH200).
_TWO_ON_A_BOARD = frozenset({"k80", "m60", "mi250-gcd", "mi250x-gcd", "gb200", "h100-nvl"})
_OTHER_MEMORY = frozenset({"gh200 480"})
# What is said beside a name: makers, lines, forms, memories, numbers of devices and what they cost.
_BESIDE = re.compile(
    r"\b(?:nvidia|nv|tesla|xeon|edition|geforce|gtx|rtx|quadro|amd|instinct|radeon|rx|intel|habana|google|aws|amazon|ec2|dgx|hgx|selene|superpod|sxm\d?"
    r"|pcie\d?|pci|nvlink\d?|nvswitch|hbm\d?e?|gddr\d\w?|fhhl|oam|tensor|gen ?\d|v[45]|\d+ ?gi?b?|\d+ ?w|generation|class"
    r"|kepler|maxwell|pascal|volta|turing|ampere|hopper|ada|lovelace|blackwell|\d*xlarge|highgpu|megagpu|ultragpu|edgegpu|standard)\b"
)


def _spelled(text: str) -> str:
    """Lower case, words apart by single blanks, without a number of devices before or behind.

    >>> _spelled("8x NVIDIA_A100-SXM4-80GB"), _spelled("H100x8"), _spelled("GTX Titan X (Maxwell)")
    ('nvidia a100 sxm4 80gb', 'h100', 'gtx titan x maxwell')
    """
    word = re.sub(r"[^a-z0-9.]+", " ", text.lower()).strip()
    word = re.sub(r"^\d+ ?x ?(?=[a-z])", "", word)
    return re.sub(r"(?<=\d|b) ?x\d+\b", "", word).strip()


@cache
def device_called(text: str, memory_gb: float | None = None) -> tuple[str | None, str]:
    """Bundled device and usual cluster of a name as rows of measurements have it; the device is None where it is not known.

    Parameters
    ----------
    text : str
        May say more than the name: "A100-80GB SXM4 (Selene)".
    memory_gb : float, optional
        Where it is stated elsewhere.

    Examples
    --------
    >>> device_called("NVIDIA H100 80GB HBM3"), device_called("V100", 32.0), device_called("A1000")[0], device_called("10 A100")
    (('h100-sxm', 'dgx-h100'), ('v100-32gb', 'dgx1-v100'), None, ('a100-80gb', 'dgx-a100'))
    """
    devices = bundled("devices")
    word = _spelled(text)
    known = _found(word)
    if text in devices:
        return text, known.cluster if known else SPARE_CLUSTER
    if known is None:
        return None, SPARE_CLUSTER
    name = _by_memory(known, word, memory_gb)
    return (name if name in devices else None), known.cluster


def named_device(text: str) -> tuple[str | None, tuple[str, ...]]:
    """The bundled device that a name means and nothing else; and what it may mean, where it leaves that open, the likeliest first.

    >>> named_device("Tesla V100-SXM2-16GB"), named_device("a100"), named_device("my a100 box")
    (('v100-16gb', ()), (None, ('a100-80gb', 'a100-40gb', 'a100-pcie-40gb', 'a100-pcie-80gb')), (None, ()))
    """
    devices = bundled("devices")
    word = _spelled(text)
    same = next((name for name in devices if _bare(name) == _bare(word)), None)
    known = _found(word)
    if same is not None or known is None:
        return same, ()
    rest = _BESIDE.sub(" ", re.sub(known.pattern, " ", word, count=1))
    if not is_noise(rest.replace(".", " ")):
        return None, ()
    meant = tuple(one for one in known.open_to or (_by_memory(known, word, None),) if one in devices)
    size = _MEMORY.search(word)
    if len(meant) > 1 and size:
        meant = tuple(one for one in meant if _MEMORY.search(one) is None or one.endswith(f"{size[1]}gb")) or meant
    if len(meant) > 1 and "sxm" in word:
        meant = tuple(one for one in meant if "pcie" not in one)
    if len(meant) == 1 and has_memory(meant[0], text):
        return meant[0], ()
    likeliest = _by_memory(known, word, None)
    return None, tuple(sorted(meant, key=lambda name: (name != likeliest, name)))


# Boards that bear the name of another form, and parts of a chip: rows of measurements that say no more mean the other.
_STANDS_IN = {"p100": "dgx1-p100", "trainium1-core": "aws-trn1-cores", "trainium2-core": "aws-trn2-cores"}


def usual_cluster(text: str) -> str:
    """Bundled cluster that a device of this name usually stands in, since links belong to a board.

    >>> usual_cluster("rtx-4090"), usual_cluster("p100"), usual_cluster("my own device")
    ('pcie4-node', 'dgx1-p100', 'dgx-h100')
    """
    known, usual = device_called(text)
    return SPARE_CLUSTER if known is None else _STANDS_IN.get(known, usual)


def cluster_of_device(text: str) -> tuple[str, tuple[str, ...]] | None:
    """What a device's name means where a cluster is asked for: its usual cluster, and the devices that it may be, the likeliest first.

    None where it is no device's name, or says more than that.

    >>> cluster_of_device("h200"), cluster_of_device("MI300X"), cluster_of_device("my h100 box")
    (('dgx-h100', ('h200',)), ('mi300x-node', ('mi300x',)), None)
    >>> cluster_of_device("h100")
    ('dgx-h100', ('h100-sxm', 'h100-nvl', 'h100-pcie'))
    """
    name, several = named_device(text)
    likeliest = name or device_called(text)[0]
    if likeliest is None or not (name or several):
        return None
    return usual_cluster(name or text), tuple(dict.fromkeys((likeliest, *several)))


def has_memory(name: str, text: str) -> bool:
    """Whether a bundled device has the memory that people's name of it states: boards of one name differ, and memory decides what fits.

    >>> has_memory("rtx-3080", "RTX 3080"), has_memory("rtx-3080", "RTX 3080 12GB"), has_memory("k80", "k80 24GB")
    (True, False, True)
    >>> has_memory("h100-pcie", "H100-96GB HBM2e"), has_memory("h100-sxm", "NVIDIA H100 80GB HBM3")
    (False, True)
    """
    from planner.files.loading import load_device

    word = _spelled(text)
    size = _STATED_MEMORY.search(word)
    if size is None or f"{name} {size[1]}" in _OTHER_MEMORY:
        return True
    gib = load_device(name).device.memory_bytes / 2**30
    boards = (1, 2) if name in _TWO_ON_A_BOARD else (1,)
    # Makers mean 10^9 or 2^30 bytes, and firmware keeps some.
    return any(abs(int(size[1]) * unit / (gib * count) - 1) < 0.08 for unit in (1.0, 1e9 / 2**30) for count in boards)


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]|\bnvidia\b", "", name)


def _found(word: str) -> KnownDevice | None:
    if _NONE_OF_THESE.search(word):
        return None
    return next((known for known in KNOWN_DEVICES if re.search(known.pattern, word)), None)


def _by_memory(known: KnownDevice, word: str, memory_gb: float | None) -> str:
    # Makers name two dies by the memory of both, whichever are counted.
    named = [] if known.device in _TWO_ON_A_BOARD else _MEMORY.findall(word)
    stated = memory_gb or next((float(size) for size in named), None)
    if stated is None or not known.by_memory:
        return known.device
    return min(known.by_memory, key=lambda pair: abs(pair[0] - stated))[1]
