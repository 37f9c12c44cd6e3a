"""Logs as training programs write them, made for the tests: times that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# A warm-up, then steps whose median is 1.7 s.
TIMES_S = (9.2, 2.4, 1.71, 1.69, 1.70, 1.70, 1.72, 1.68, 1.70, 1.70)
MEDIAN_S = 1.70

# Llama 3 8B on 16 GPUs, tp 2, by the names of megatron/training/arguments.py.
ARGUMENTS: Mapping[str, object] = {
    "add_bias_linear": False,
    "bf16": True,
    "context_parallel_size": 1,
    "cp_comm_type": "['p2p']",
    "data_parallel_sharding_strategy": "no_shard",
    "data_parallel_size": 8,
    "exp_avg_dtype": "torch.float32",
    "expert_model_parallel_size": 1,
    "expert_tensor_parallel_size": 2,
    "ffn_hidden_size": 14336,
    "fp8": None,
    "fp8_recipe": "delayed",
    "global_batch_size": 32,
    "group_query_attention": True,
    "hidden_size": 4096,
    "kv_channels": 128,
    "micro_batch_size": 1,
    "moe_router_topk": 2,
    "num_attention_heads": 32,
    "num_distributed_optimizer_instances": 1,
    "num_experts": None,
    "num_layers": 32,
    "num_query_groups": 8,
    "optimizer": "adam",
    "padded_vocab_size": 128256,
    "pipeline_model_parallel_layout": None,
    "pipeline_model_parallel_size": 1,
    "recompute_granularity": None,
    "recompute_num_layers": None,
    "seq_length": 8192,
    "sequence_parallel": True,
    "sgd_momentum": 0.9,
    "swiglu": True,
    "tensor_model_parallel_size": 2,
    "untie_embeddings_and_output_weights": True,
    "use_distributed_optimizer": True,
    "world_size": 16,
}


def arguments_text(**changes: object) -> str:
    """The arguments as Megatron-LM prints them at its start."""
    values = {**ARGUMENTS, **changes}
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    return "\n".join(
        [
            "using world size: 16, data-parallel size: 8, context-parallel size: 1, tensor-model-parallel size: 2",
            "------------------------ arguments ------------------------",
            *lines,
            "-------------------- end of arguments ---------------------",
            "",
        ]
    )


def megatron_line(step: int, seconds: float, batch: int = 32) -> str:
    return (
        f" [2026-03-01 10:00:00.000000] iteration {step:8d}/     100 | consumed samples: {step * batch:12d} |"
        f" elapsed time per iteration (ms): {seconds * 1e3:.1f} | throughput per GPU (TFLOP/s/GPU): 410.3 |"
        f" learning rate: 1.200000E-04 | global batch size: {batch:5d} | lm loss: 8.114214E+00 | loss scale: 1.0 |"
        " grad norm: 0.042 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def timer_text(**timers: tuple[float, float]) -> str:
    """Timers in ms, of the fastest and the slowest rank."""
    lines = [
        f"    {(name.replace('_', '-') + ' ').ljust(48, '.')}: ({low:.2f}, {high:.2f})"
        for name, (low, high) in timers.items()
    ]
    return "\n".join(["(min, max) time across ranks (ms):", *lines])


def megatron_log(times_s: Sequence[float] = TIMES_S, *, timers: str = "", arguments: str | None = None) -> str:
    lines = [arguments_text() if arguments is None else arguments]
    for step, seconds in enumerate(times_s, 1):
        lines.append(megatron_line(step, seconds))
        if step == 1:
            lines.append(
                "[Rank 0] (after 1 iterations) memory (MB) | allocated: 21000.5 | max allocated: 43008.0 | reserved: 45000.0 |"
                " max reserved: 46080.0"
            )
        lines += [timers] if timers else []
    return "\n".join([*lines, ""])


def torchtitan_log(times_s: Sequence[float] = TIMES_S, *, batch: int = 32, seq: int = 8192, gpus: int = 16) -> str:
    prefix = "[rank0]:[titan] 2026-03-01 10:00:00,123 - root - INFO - "
    head = [
        "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=16, cp=1, tp=1, ep=1",
        "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.18GiB memory",
        "Model llama3 8B size: 8,030,261,248 total parameters",
        "Applied full activation checkpointing to the model",
        (
            f"Trainer is initialized with local batch size 2, global batch size {batch}, gradient accumulation steps 1, "
            f"sequence length {seq}, total steps 1000 (warmup 200)"
        ),
    ]
    steps = [
        f"\x1b[31mstep: {step:2}  \x1b[32mloss: {8.0:8.5f}  \x1b[38;2;180;60;0mgrad_norm: {1.3:7.4f}  \x1b[36mmemory: {41.5:5.2f}GiB"
        f"(52.41%)  \x1b[34mtps: {round(batch * seq / (seconds * gpus)):,}  \x1b[36mtflops: 412.30  \x1b[35mmfu: 41.69%\x1b[39m"
        for step, seconds in enumerate(times_s, 1)
    ]
    return "\n".join([*(prefix + line for line in (*head, *steps)), ""])


def deepspeed_log(times_s: Sequence[float] = TIMES_S, *, batch: int = 32, counted: float = 1.0) -> str:
    """Steps with a breakdown; `counted` is the share of the time between steps that DeepSpeed's own timer counts."""
    lines = [
        "[2026-03-01 10:00:00,000] [INFO] [config.py:1014:print]   world_size ................... 16",
        "[2026-03-01 10:00:00,000] [INFO] [config.py:1003:print_user_config]   json = {",
        f'    "train_batch_size": {batch}, ',
        '    "train_micro_batch_size_per_gpu": 1, ',
        '    "gradient_accumulation_steps": 2, ',
        '    "zero_optimization": {',
        '        "stage": 2',
        "    }, ",
        '    "bf16": {',
        '        "enabled": true',
        "    }",
        "}",
    ]
    at_ms = 0
    for step, seconds in enumerate(times_s, 1):
        at_ms += round(seconds * 1e3)
        stamp = f"[2026-03-01 10:{at_ms // 60000:02d}:{at_ms // 1000 % 60:02d},{at_ms % 1000:03d}] [INFO]"
        lines += [
            f"{stamp} [logging.py:96:log_dist] [Rank 0] time (ms) | fwd_microstep: 1.00 | bwd_microstep: 2.00",
            (
                f"{stamp} [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 450.00 | bwd: 1050.00 | bwd_inner: 950.00"
                " | bwd_allreduce: 100.00 | step: 90.00"
            ),
            (
                f"{stamp} [timer.py:260:stop] epoch=0/micro_step={2 * step}/global_step={step}, RunningAvgSamplesPerSec=18.1,"
                f" CurrSamplesPerSec={batch / (seconds * counted)}, MemAllocated=21.5GB, MaxMemAllocated=52.25GB"
            ),
        ]
    return "\n".join([*lines, ""])


def _human(number: float) -> str:
    """nanotron's human_format: three digits and K, M, B, T."""
    number, magnitude = float(f"{number:.3g}"), 0
    while abs(number) >= 1000:
        number, magnitude = number / 1000, magnitude + 1
    return f"{number:f}".rstrip("0").rstrip(".") + ["", "K", "M", "B", "T"][magnitude]


def nanotron_log(times_s: Sequence[float] = TIMES_S, *, batch: int = 32) -> str:
    prefix = "[default0]:03/01/2026 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: "
    lines = []
    for step, seconds in enumerate(times_s, 1):
        lines += [
            (
                f"{prefix}iteration: {step} / 100 | consumed_tokens: {_human(step * batch * 8192)} | elapsed_time_per_iteration_ms:"
                f" {_human(seconds * 1e3)} | tokens_per_sec: 154K | tokens_per_sec_per_gpu: 9.64K | global_batch_size: {batch} |"
                " lm_loss: 12.2 | lr: 0.0003 | model_tflops_per_gpu: 480 | hardware_tflops_per_gpu: 480 | grad_norm: 1.2"
            ),
            f"{prefix} Memory usage: 9000.00MiB. Peak allocated 43008.00MiB. Peak reserved: 46080.00MiB",
        ]
    return "\n".join([*lines, ""])


def nemo_log(times_s: Sequence[float] = TIMES_S, *, batch: int = 32) -> str:
    lines = [
        f"Training epoch 0, iteration {n}/99 | lr: 1.499e-07 | global_batch_size: {batch} | global_step: {n} | reduced_train_loss: 11.03 |"
        f" train_step_timing in s: {seconds:.4g} | consumed_samples: {(n + 1) * batch}"
        for n, seconds in enumerate(times_s)
    ]
    return "\n".join([*lines, ""])


def bridge_log(times_s: Sequence[float] = TIMES_S) -> str:
    lines = []
    for step, seconds in enumerate(times_s, 1):
        lines += [f"Step Time : {seconds:.2f}s GPU utilization: 410.3MODEL_TFLOP/s/GPU", megatron_line(step, seconds)]
        if step == 1:
            lines.append(
                "[Rank 0] (after 1 iterations) memory (GB) | mem-allocated-gigabytes: 21.07 | mem-max-allocated-gigabytes: 45.0 |"
                " mem-max-reserved-gigabytes: 48.0 | mem-alloc-retires: 0"
            )
    return "\n".join([*lines, ""])


def trainer_log(seconds: float = 2.0, steps: int = 100) -> str:
    """Progress bars of evaluation and training, and the summary, as the Trainer of Transformers writes them."""
    head = [
        "***** Running training *****",
        "  Num examples = 52,002",
        "  Instantaneous batch size per device = 2",
        "  Total train batch size (w. parallel, distributed & accumulation) = 64",
        "  Gradient Accumulation steps = 2",
        f"  Total optimization steps = {steps}",
    ]
    bars = []
    for n in range(steps + 1):
        elapsed = int(30 + n * seconds) if n else 0  # the first step took 30 s longer
        bars.append(
            f"{n:3d}%|###       | {n}/{steps} [{elapsed // 60:02d}:{elapsed % 60:02d}<05:12,  {seconds:.2f}s/it]"
        )
        if n == 50:
            bars.append("100%|##########| 20/20 [00:05<00:00,  4.00it/s]")  # an evaluation
    total = 30 + steps * seconds
    summary = (
        f"{{'train_runtime': {total:.4f}, 'train_samples_per_second': {64 * steps / total:.3f},"
        f" 'train_steps_per_second': {steps / total:.3f}, 'train_loss': 1.2, 'epoch': 1.0}}"
    )
    return "\n".join([*head, "\r".join(bars), summary, ""])
