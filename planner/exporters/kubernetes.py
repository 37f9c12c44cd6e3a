"""Kubernetes manifests of servers that fit in a node each: a graph of NVIDIA Dynamo, and values of llm-d's chart.

Read from ai-dynamo/dynamo, examples/backends/*/deploy (DynamoGraphDeployment, nvidia.com/v1alpha1), and from
llm-d-incubation/llm-d-modelservice, charts/llm-d-modelservice (values.yaml, templates/_helpers.tpl: ``vllmServe`` adds the model, the
port, ``--tensor-parallel-size`` and ``--data-parallel-size``). ``${MODEL}`` and ``${IMAGE}`` are filled in by envsubst.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from planner.exporters.job import ServingJob
from planner.exporters.serving import replicas_that_share, server_devices
from planner.exporters.shell import comment

DYNAMO, LLM_D = "dynamo.yaml", "llm-d.yaml"
# File -> how it is applied, for the README.
APPLIED = {
    DYNAMO: (
        "Kubernetes with Dynamo's operator, MODEL and IMAGE (of its runtime) exported",
        f"envsubst '$MODEL $IMAGE' < {DYNAMO} | kubectl apply -f -",
    ),
    LLM_D: (
        "Kubernetes with llm-d's chart llm-d-modelservice, MODEL and IMAGE (with vLLM) exported",
        f"envsubst '$MODEL $IMAGE' < {LLM_D} > values.yaml && helm install model llm-d-modelservice/llm-d-modelservice -f values.yaml",
    ),
}
# The options of an engine in its worker.
MOUNTED = "/plan/llm_args.yaml"


def fits_pods(job: ServingJob) -> bool:
    """Whether every server is a pod of its own: none is larger than a node."""
    return server_devices(job) <= job.nodes.capacity


def _pods(job: ServingJob) -> int:
    return job.plan.dp // replicas_that_share(job)


def _quoted(words: Sequence[str], depth: int) -> list[str]:
    """Words as items of a YAML list, which takes JSON's strings."""
    return [f"{' ' * depth}- {json.dumps(word)}" for word in words]


def dynamo(
    job: ServingJob,
    head: Sequence[str],
    module: str,
    words: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> str:
    """A frontend, and workers that each are a server.

    Parameters
    ----------
    job : ServingJob
    head : sequence of str
        Comment at the top.
    module : str
        Of Dynamo, that starts the engine.
    words : sequence of str
        Its arguments.
    environment : mapping, optional
    options : sequence of str
        Lines of a file that lies in the worker as `MOUNTED`.
    """
    name = re.sub(r"[^a-z0-9]+", "-", job.origin.model.lower()).strip("-")[:40] or "plan"
    variables = environment or {}
    config = f"{name}-options"
    mapped = [
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        f"  name: {config}",
        "data:",
        "  llm_args.yaml: |",
        *(f"    {line}" for line in options),
        "---",
    ]
    lines = [
        *comment(head),
        *(mapped if options else []),
        "apiVersion: nvidia.com/v1alpha1",
        "kind: DynamoGraphDeployment",
        "metadata:",
        f"  name: {name}",
        "spec:",
        "  services:",
        "    Frontend:",
        "      componentType: frontend",
        "      replicas: 1",
        "      extraPodSpec:",
        "        mainContainer:",
        "          image: ${IMAGE}",
        "    Worker:",
        "      envFromSecret: hf-token-secret",
        "      componentType: worker",
        f"      replicas: {_pods(job)}",
        "      resources:",
        "        limits:",
        f'          gpu: "{server_devices(job)}"',
        "      extraPodSpec:",
        *([f"        volumes: [{{name: {config}, configMap: {{name: {config}}}}}]"] if options else []),
        "        mainContainer:",
        "          image: ${IMAGE}",
        *(
            [f"          volumeMounts: [{{name: {config}, mountPath: {MOUNTED.rpartition('/')[0]}}}]"]
            if options
            else []
        ),
        *(["          env:"] if variables else []),
        *(f"            - {{name: {key}, value: {json.dumps(value)}}}" for key, value in variables.items()),
        f"          command: [python3, -m, {module}]",
        "          args:",
        *_quoted(words, 12),
    ]
    return "\n".join(lines) + "\n"


def llm_d(job: ServingJob, head: Sequence[str], words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Values of the chart, of pods that read prompts and decode.

    Parameters
    ----------
    job : ServingJob
    head : sequence of str
        Comment at the top.
    words : sequence of str
        Arguments of `vllm serve` beside the model, the port, and tensor and data parallelism.
    environment : mapping
    """
    sharing, devices = replicas_that_share(job), server_devices(job)
    gpus = f'{{nvidia.com/gpu: "{devices}"}}'
    lines = [
        *comment(head),
        "# modelArtifacts.size is room for the weights; authSecretName names a secret with HF_TOKEN.",
        "multinode: false",
        "modelArtifacts:",
        "  name: ${MODEL}",
        "  uri: hf://${MODEL}",
        "  size: 1Ti",
        "  authSecretName: llm-d-hf-token",
        "routing:",
        "  servicePort: 8000",
        "  proxy: {enabled: false}",
        "prefill: {create: false}",
        "decode:",
        "  create: true",
        f"  replicas: {_pods(job)}",
        f"  parallelism: {{tensor: {job.plan.tp}, data: {sharing}, dataLocal: {sharing}, workers: 1}}",
        "  containers:",
        "    - name: vllm",
        "      image: ${IMAGE}",
        "      modelCommand: vllmServe",
        "      mountModelVolume: true",
        *(["      env:"] if environment else []),
        *(f"        - {{name: {key}, value: {json.dumps(value)}}}" for key, value in environment.items()),
        f"      resources: {{limits: {gpus}, requests: {gpus}}}",
        "      args:",
        *_quoted(words, 8),
    ]
    return "\n".join(lines) + "\n"
