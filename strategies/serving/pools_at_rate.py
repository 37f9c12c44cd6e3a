"""Search over pairs of pools whose requests come at a rate, for the fewest devices: each pair with the least numbers that do.

The time to the first token depends on the prefill workers alone, and that per token on the replicas, but for the transfer of the cache
between them. More workers of a pool make nobody wait longer. So the least number of workers of every kind is found by bisection for its own
limits and load, as if caches came at once, and no pair has fewer of either. A pair is then asked how long its transfers take: a limit
on the time per token may need more replicas for them, and the links more of both. More devices may lie further apart, and hand caches over
later, never sooner. So from the least numbers on, those that the transfers ask for are taken until they ask for no more. That is the least
pair: whatever pair does has at least as many of either at every step.

Pairs are looked at in the order of the devices that the least numbers need, until no other can be among those that are shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.objectives import mean_of
from costmodel.serving.arrivals import Stream
from costmodel.serving.model import ServingModel
from costmodel.serving.percentiles import SHARES
from costmodel.serving.plan import POOL_SETTINGS, ServingBatch, ServingPlan
from costmodel.serving.pools import stations_of, transfers
from costmodel.serving.stations import Stations, decoded_at_rate, read_at_rate
from costmodel.serving.workload import Arrivals
from costmodel.tolerances import EQUAL
from strategies.serving.search import ServingSettings, least_that

_MOST_UNITS = 1 << 40  # workers; more bear no load at all


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsAtRate:
    """Kinds of workers of both pools, and what their requests at a rate ask for.

    Attributes
    ----------
    model : ServingModel
    settings : ServingSettings
    readers, decoders : ServingBatch
        Kinds of prefill workers, as plans of their own, and of replicas with their places.
    reading, decoding : Stations
        One unit of every kind of prefill workers, which are those that share experts, and one replica of every kind.
    """

    model: ServingModel
    settings: ServingSettings
    readers: ServingBatch
    decoders: ServingBatch
    reading: Stations
    decoding: Stations

    @classmethod
    def of(
        cls, model: ServingModel, settings: ServingSettings, readers: ServingBatch, decoders: ServingBatch
    ) -> PoolsAtRate:
        """With their passes timed."""
        any_one = ServingBatch.from_plans([ServingPlan(prefill_dp=1)])
        one = any_one.take(np.zeros(len(readers), dtype=np.int64))
        lone = joined(readers, one, prefill_dp=readers.sharing, draft_tokens=readers.draft_tokens)
        alone = joined(any_one.take(np.zeros(len(decoders), dtype=np.int64)), decoders, dp=np.ones_like(decoders.dp))
        return cls(
            model=model,
            settings=settings,
            readers=readers,
            decoders=decoders,
            reading=stations_of(model, lone),
            decoding=stations_of(model, alone),
        )

    @property
    def arrivals(self) -> Arrivals:
        """All requests."""
        assert self.model.workload.arrivals is not None
        return self.model.workload.arrivals

    @property
    def planned_per_s(self) -> float:
        """What a pool must be able to serve."""
        return self.arrivals.rate_per_s / min(self.settings.most_load, 1.0)

    def bears(self, most_per_s: FloatArray) -> BoolArray:
        """Whether so much is enough, as `strategies.serving.search.excess` has it."""
        load = self.arrivals.rate_per_s / most_per_s
        return np.asarray((load < 1.0) & (load / self.settings.most_load <= 1.0))

    def limited(self, time: str) -> dict[str, float | None]:
        """Limits on a time: the share of the requests that each is about, None for the mean."""
        return {name: SHARES.get(name.split("_")[1]) for name in self.settings.limits if mean_of(name) == f"{time}_s"}

    def reads(self, rows: IntArray, units: IntArray) -> BoolArray:
        """Whether so many prefill workers keep the limits on the first token and bear the load."""
        at = self.reading.take(rows)
        at = replace(at, groups=units.astype(np.float64))
        found = read_at_rate(at, self.stream(np.ones(len(rows), dtype=np.int64)))
        mean_s = found.wait_s + at.own_s(found.read)
        kept = self.bears(at.reads_per_s)
        for name, share in self.limited("ttft").items():
            kept &= (mean_s if share is None else found.first.quantile(share)) / self.settings.limits[name] <= 1.0
        return kept

    def decodes(self, rows: IntArray, dp: IntArray, transfer_s: FloatArray) -> BoolArray:
        """Whether so many replicas keep the limits on the time per token and bear the load, with caches that come so late."""
        tokens, at, real = self.model.workload.later_tokens, self.decoding.take(rows), np.float64
        if not tokens:
            return np.ones(len(rows), dtype=np.bool_)
        at = replace(
            at,
            decoders=dp.astype(real),
            transfer_s=transfer_s,
        )
        found = decoded_at_rate(at, self.stream(dp), tokens)
        mean_s = (transfer_s + found.seconds) / tokens
        kept = self.bears(at.decodes_per_s)
        for name, share in self.limited("tpot").items():
            kept &= (mean_s if share is None else found.token_s(share)) / self.settings.limits[name] <= 1.0
        return kept

    def stream(self, ways: IntArray) -> Stream:
        """Requests of one of so many workers among which they are split."""
        rate, variation = self.arrivals.of_replicas(ways)
        work = self.model.workload
        return Stream(
            rate_per_s=rate,
            variation=variation,
            prompt_variation=work.prompt_variation,
            output_variation=work.output_variation,
        )

    def least_readers(self, low: IntArray, most: IntArray) -> IntArray:
        """The fewest units of every kind of prefill workers, at least so many."""
        return least_that(self.reads, np.maximum(low, self._bearing(self.reading.reads_per_s)), most)

    def least_decoders(self, rows: IntArray, low: IntArray, most: IntArray, transfer_s: FloatArray) -> IntArray:
        """The fewest units of replicas of some kinds, at least so many, with caches that come so late."""
        unit = self.decoders.sharing[rows]
        if self.model.workload.later_tokens:
            low = np.maximum(low, -(-self._bearing(self.decoding.decodes_per_s[rows]) // unit))
        return least_that(lambda n, units: self.decodes(rows[n], units * unit[n], transfer_s[n]), low, most)

    def _bearing(self, each_per_s: FloatArray) -> IntArray:
        """The fewest that bear the load; a number that just does may be a rounding error below."""
        needed = np.maximum(np.ceil(self.planned_per_s / np.maximum(each_per_s, 1e-300) * (1.0 - EQUAL)), 1.0)
        return np.minimum(needed, _MOST_UNITS).astype(np.int64)

    def plans(self, reader: IntArray, decoder: IntArray, read: IntArray, decode: IntArray) -> ServingBatch:
        """Pairs of kinds with so many units of either."""
        return joined(
            self.readers.take(reader),
            self.decoders.take(decoder),
            prefill_dp=read * self.readers.sharing[reader],
            dp=decode * self.decoders.sharing[decoder],
        )

    @property
    def units(self) -> tuple[IntArray, IntArray]:
        """Devices of a unit of each kind of either pool."""
        reader, decoder = (plans.tp * plans.pp * plans.sharing for plans in (self.readers, self.decoders))
        return reader, decoder

    def least_pairs(
        self,
        reader: IntArray,
        decoder: IntArray,
        read: IntArray,
        decode: IntArray,
        highest: tuple[IntArray, IntArray],
    ) -> ServingBatch:
        """Pairs of kinds with the least units of either that they need, where there are as many.

        Parameters
        ----------
        reader, decoder : array (n,)
            The kinds.
        read, decode : array (n,)
            Units that they need at least.
        highest : pair of array
            Units that each kind of either pool may have.
        """
        read, decode, rows = read.copy(), decode.copy(), np.arange(len(reader))
        size = self.units[0][reader], self.units[1][decoder]
        unit = self.readers.sharing[reader], self.decoders.sharing[decoder]
        kept = rows < 0
        while len(rows):
            caches = transfers(self.model, self.plans(reader[rows], decoder[rows], read[rows], decode[rows]))
            asked = [
                np.ceil(self.planned_per_s * busy_s / of[rows] * (1.0 - EQUAL)).astype(np.int64)
                for busy_s, of in zip((caches.sent_s, caches.received_s), unit, strict=True)
            ]
            more_read, low = np.maximum(read[rows], asked[0]), np.maximum(decode[rows], asked[1])
            left = (self.settings.max_workers - size[0][rows] * more_read) // size[1][rows]
            most = np.minimum(highest[1][decoder[rows]], left)
            more = self.least_decoders(decoder[rows], low, most, caches.seconds)
            fits = (more_read <= highest[0][reader[rows]]) & (more <= most)
            same = (more_read == read[rows]) & (more == decode[rows])
            read[rows], decode[rows], kept[rows] = more_read, more, fits & same
            rows = rows[fits & ~same]
        return self.plans(reader[kept], decoder[kept], read[kept], decode[kept])


def fewest_workers(model: ServingModel, plan: ServingPlan, settings: ServingSettings) -> ServingPlan:
    """A plan of two pools with the least numbers of both that keep the limits, at most as many as it has; those where none do."""
    batch = ServingBatch.from_plans([plan])
    pools = PoolsAtRate.of(model, settings, batch.prefill_pool(batch.prefill_batch), batch)
    row, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    highest = batch.prefill_dp // pools.readers.sharing, batch.dp // batch.sharing
    read = pools.least_readers(one, highest[0])
    decode = pools.least_decoders(row, one, highest[1], np.zeros(1))
    found = pools.least_pairs(row, row, read, decode, highest)
    return found.plan(0) if len(found) else plan


def joined(readers: ServingBatch, decoders: ServingBatch, **numbers: IntArray) -> ServingBatch:
    """Replicas whose prompts are read by prefill workers that are plans of their own."""
    pool = {name: getattr(readers, name.removeprefix("prefill_")) for name in POOL_SETTINGS}
    chunks = {"prefill_chunk": readers.prefill_chunk, "prefill_batch": readers.prefill_batch}
    return replace(decoders, **{**chunks, **pool, **numbers})
