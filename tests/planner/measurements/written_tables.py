"""Tables of training runs as text."""

from __future__ import annotations

HEADER = "style,hidden,layers,heads,device,gpus,global_batch,micro_batch,tp,pp,dp,precision,seq,step_time_ms,oom,memory_gib,suspect"
RUN = {
    "style": "gpt", "hidden": 2048, "layers": 24, "heads": 16, "device": "a100-80gb", "gpus": 8, "global_batch": 64, "micro_batch": 1,
    "tp": 1, "pp": 1, "dp": 8, "precision": "bf16", "seq": 2048, "step_time_ms": 1900,
}  # fmt: skip
GEMM = "device,precision,m,n,k,time_ms"


def row(**cells: object) -> str:
    return ",".join(str({**RUN, **cells}.get(name, "")) for name in HEADER.split(","))


def table(*rows: str, header: str = HEADER, end: str = "\n") -> str:
    return end.join([header, *rows]) + end
