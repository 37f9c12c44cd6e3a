"""Kubernetes manifests of servers that fit in a node each: a graph of NVIDIA Dynamo, and values of llm-d's chart.

Read from ai-dynamo/dynamo, examples/backends/*/deploy (DynamoGraphDeployment, nvidia.com/v1alpha1), and from
llm-d-incubation/llm-d-modelservice, charts/llm-d-modelservice (values.yaml, templates/_helpers.tpl: ``vllmServe`` adds the model, the
port, ``--tensor-parallel-size`` and ``--data-parallel-size``). ``${MODEL}`` and ``${IMAGE}`` are filled in by envsubst.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class Worker(NamedTuple):
    """Pods of one kind, each a server.

    Attributes
    ----------
    job : ServingJob
        Of one pool, where there are two.
    words : sequence of str
        Arguments of the program that the manifest starts.
    environment : mapping
    """

    job: ServingJob
    words: Sequence[str]
    environment: Mapping[str, str]


def _quoted(words: Sequence[str], depth: int) -> list[str]:
    """Words as items of a YAML list, which takes JSON's strings."""
    return [f"{' ' * depth}- {json.dumps(word)}" for word in words]


def dynamo(
    job: ServingJob,
    head: Sequence[str],
    module: str,
    workers: Sequence[Worker],
    *,
    options: Sequence[str] = (),
) -> str:
    """A frontend, and workers that each are a server; it takes requests through both kinds where there are two.

    Parameters
    ----------
    job : ServingJob
    head : sequence of str
        Comment at the top.
    module : str
        Of Dynamo, that starts the engine.
    workers : sequence of Worker
    options : sequence of str
        Lines of a file that lies in the worker as `MOUNTED`.
    """
    name = re.sub(r"[^a-z0-9]+", "-", job.origin.model.lower()).strip("-")[:40] or "plan"
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
        # Requests go where their beginning is cached, as far as the router remembers where it sent others (Dynamo, Router Guide).
        *(
            [
                "      envs:",
                "        - {name: DYN_ROUTER_MODE, value: kv}",
                '        - {name: DYN_ROUTER_USE_KV_EVENTS, value: "false"}',
            ]
            if job.cached_tokens
            else []
        ),
        "      extraPodSpec:",
        "        mainContainer:",
        "          image: ${IMAGE}",
        *(line for worker in workers for line in _service(worker, module, config if options else "")),
    ]
    return "\n".join(lines) + "\n"


def _service(worker: Worker, module: str, config: str) -> list[str]:
    """A kind of workers in Dynamo's graph; ``config`` names the map with their file of options, if they have one."""
    role = worker.job.role
    mount = f"          volumeMounts: [{{name: {config}, mountPath: {MOUNTED.rpartition('/')[0]}}}]"
    return [
        f"    {role.capitalize()}Worker:",
        "      envFromSecret: hf-token-secret",
        "      componentType: worker",
        *([f"      subComponentType: {role}"] if role else []),
        f"      replicas: {_pods(worker.job)}",
        "      resources:",
        "        limits:",
        f'          gpu: "{server_devices(worker.job)}"',
        "      extraPodSpec:",
        *([f"        volumes: [{{name: {config}, configMap: {{name: {config}}}}}]"] if config else []),
        "        mainContainer:",
        "          image: ${IMAGE}",
        *([mount] if config else []),
        *(["          env:"] if worker.environment else []),
        *(f"            - {{name: {key}, value: {json.dumps(value)}}}" for key, value in worker.environment.items()),
        f"          command: [python3, -m, {module}]",
        "          args:",
        *_quoted(worker.words, 12),
    ]


def llm_d(head: Sequence[str], workers: Sequence[Worker]) -> str:
    """Values of the chart, of pods that read prompts and decode, or of both kinds with the chart's router between them.

    Parameters
    ----------
    head : sequence of str
        Comment at the top.
    workers : sequence of Worker
        With the arguments of `vllm serve` beside the model, the port, and tensor and data parallelism.
    """
    apart = len(workers) > 1
    lines = [
        *comment(head),
        "# modelArtifacts.size is room for the weights; authSecretName names a secret with HF_TOKEN.",
        *(["# llm-d's scheduler must choose prefill pods, too: its profile for disaggregation."] if apart else []),
        "multinode: false",
        "modelArtifacts:",
        "  name: ${MODEL}",
        "  uri: hf://${MODEL}",
        "  size: 1Ti",
        "  authSecretName: llm-d-hf-token",
        "routing:",
        "  servicePort: 8000",
        f"  proxy: {{enabled: {'true, connector: nixlv2' if apart else 'false'}}}",
        *([] if apart else ["prefill: {create: false}"]),
        *(line for worker in workers for line in _values(worker)),
    ]
    return "\n".join(lines) + "\n"


def _values(worker: Worker) -> list[str]:
    """A kind of pods in the values of llm-d's chart."""
    job = worker.job
    sharing, devices = replicas_that_share(job), server_devices(job)
    gpus = f'{{nvidia.com/gpu: "{devices}"}}'
    variables = [f"        - {{name: {key}, value: {json.dumps(value)}}}" for key, value in worker.environment.items()]
    if job.role:  # the other kind of pods asks for caches there
        pod = "valueFrom: {fieldRef: {fieldPath: status.podIP}}"
        variables.append(f"        - {{name: VLLM_NIXL_SIDE_CHANNEL_HOST, {pod}}}")
    return [
        f"{job.role or 'decode'}:",
        "  create: true",
        f"  replicas: {_pods(job)}",
        f"  parallelism: {{tensor: {job.plan.tp}, data: {sharing}, dataLocal: {sharing}, workers: 1}}",
        "  containers:",
        "    - name: vllm",
        "      image: ${IMAGE}",
        "      modelCommand: vllmServe",
        "      mountModelVolume: true",
        *(["      env:"] if variables else []),
        *variables,
        f"      resources: {{limits: {gpus}, requests: {gpus}}}",
        "      args:",
        *_quoted(worker.words, 8),
    ]
