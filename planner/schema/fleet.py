"""What `planner size --rate ... --json` prints: servers for requests that come at a rate."""

from __future__ import annotations

from typing import Any, Literal

from planner.schema.answer import ServingHead, cost_model
from planner.schema.records import Number, key, record, several

# Replicas of a plan.
_SERVERS: dict[str, tuple[Any, str]] = {
    "gpus": (int, "GPUs that are paid for, with the spare ones: whole nodes, or single GPUs inside one."),
    "replicas": (int, "As many as these GPUs hold."),
    "replicas_needed": (int, "That keep the limits at the highest rate."),
    "money_per_month": (Number | None, "In USD, of 730 hours; null where no price is stated."),
    "fleet_money_per_million_output_tokens": (Number | None, "In USD, of all replicas, at the mean rate."),
    "most_rate_per_s": (Number, "Requests per second at which all replicas would reach a limit."),
    "binds": (
        list[str],
        "Figures of the plan that would miss their limits with one replica fewer than needed; `load`: the share of what it can serve.",
    ),
    "replicas_by_hour": (list[int] | None, "That each hour needs, with the spare ones; null: the rate stays."),
    "gpu_hours_share": (Number | None, "GPU-hours of these over those of all replicas."),
    "cost": (cost_model("serving"), "The plan with the replicas that are needed, at the highest rate."),
}

ServersEntry = record(
    "ServersEntry", "Replicas of a plan.", **{name: key(kind, doc) for name, (kind, doc) in _SERVERS.items()}
)

FleetEntry = record(
    "FleetEntry",
    "Servers of one cluster; where there are none, everything but the cluster and the reason is null.",
    cluster=str,
    reason=key(str | None, "Why there are none; null: there are."),
    **{name: key(kind | None, doc, default=None) for name, (kind, doc) in _SERVERS.items()},
    surer=key(
        ServersEntry | None,
        "The fewest GPUs that keep each limit with a chance of 90 %, where the first do not.",
        default=None,
    ),
)

FleetDocument = record(
    "FleetDocument",
    "Answer of `planner size --json` with --rate, --requests or --demand.",
    schema_version=Literal[1],
    model=str,
    command_line=str,
    spares=key(int, "Replicas, or groups of them that share experts, in reserve.", ge=0),
    hours=key(list[float] | None, "Requests per second of every hour; null: the rate stays."),
    requests=key(ServingHead | None, "What is served; null where nothing is."),
    best=key(
        FleetEntry | None,
        "The cheapest, or where a price is missing the fewest GPUs; null: no cluster serves the demand.",
    ),
    clusters=key(several(FleetEntry), "In the order of the question."),
)
