"""A question as one object: which model, on what, for whom, promised what, run by which engine."""

import dataclasses
import functools
from typing import overload

import numpy as np

from fluidserve.specs.deployment import (
    Chunked,
    Colocated,
    Deployment,
    Disaggregated,
    Dispatch,
    KvPolicy,
    Pool,
)
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.lengths import LengthBins, length_bins
from fluidserve.specs.model import ModelSpec
from fluidserve.specs.slo import Slo
from fluidserve.specs.workload import Workload
from fluidserve.stages.prefill import MOST_TOGETHER
from fluidserve.timing.instance import AggregatedSystem, Instance, System, build_instance
from fluidserve.timing.kv import kv_shape, token_bytes
from fluidserve.timing.profile import FirstToken, Profile

PREFILL_TOKENS = 4096.0
"""Most prompt tokens of one iteration where prompts go first and nothing else is said."""


@dataclasses.dataclass(frozen=True)
class Engine:
    """How the serving engine behaves.

    Attributes:
      profile: time model and habits.
      first_token: where the first token leaves.
      memory_utilization: share of the memory taken for weights and KV.
      max_batch: most requests that a decode instance holds.
      link_bandwidth: of the one link between the pools, one direction, B/s; may be ``inf``.
      max_model_len: longest request that the engine takes, tokens; None for whatever comes. An
        instance must hold the KV of one such request.
      prefill_batch: most prompts that a prefill instance computes in one pass.
      prefill_tokens: most tokens that it computes in one pass of several prompts; a longer prompt
        is computed by itself. None for any number, and for `PREFILL_TOKENS` where decode waits for
        prompts.
      dispatch: how requests are spread over the instances of a pool.
      kv_policy: what of its KV a request needs before an instance that does both phases admits it.
    """

    profile: Profile
    first_token: FirstToken
    memory_utilization: float
    max_batch: int
    link_bandwidth: float
    prefill_batch: int = 1
    max_model_len: int | None = None
    prefill_tokens: int | None = None
    dispatch: Dispatch = "shared"
    kv_policy: KvPolicy = "reserve"


def engine_for(
    profile: Profile,
    gpu: GpuSpec,
    *,
    first_token: FirstToken | None = None,
    memory_utilization: float | None = None,
    max_batch: int = 1024,
    link_bandwidth: float | None = None,
    max_model_len: int | None = None,
    prefill_batch: int | None = None,
    prefill_tokens: int | None = None,
    dispatch: Dispatch = "shared",
    kv_policy: KvPolicy = "reserve",
) -> Engine:
    """An engine with the habits of a profile, except where told otherwise.

    The link defaults to the scale-out network of the GPU's node. Prefill computes one prompt at a
    time unless it is told how many, or how many tokens: then up to `MOST_TOGETHER` prompts.
    """
    if prefill_batch is None:
        prefill_batch = 1 if prefill_tokens is None else MOST_TOGETHER
    return Engine(
        profile=profile,
        first_token=first_token or profile.first_token,
        memory_utilization=memory_utilization or profile.memory_utilization,
        max_batch=max_batch,
        link_bandwidth=link_bandwidth or float(gpu.scale_out_bandwidth),
        max_model_len=max_model_len,
        prefill_batch=prefill_batch,
        prefill_tokens=prefill_tokens,
        dispatch=dispatch,
        kv_policy=kv_policy,
    )


@dataclasses.dataclass(frozen=True)
class Problem:
    """Everything that a deployment is judged by.

    Attributes:
      model: what is served.
      gpu: on what.
      workload: to whom.
      slo: with which promise.
      engine: by which engine.
      horizon: the first so many requests into an empty system are judged; None: steady state.
    """

    model: ModelSpec
    gpu: GpuSpec
    workload: Workload
    slo: Slo
    engine: Engine
    horizon: int | None = None

    @functools.cached_property
    def bins(self) -> LengthBins:
        """The workload's lengths, binned for the analysis."""
        return length_bins(self.workload.lengths)

    @property
    def longest(self) -> float:
        """Tokens of the longest request that an instance must hold."""
        return max(float(self.bins.longest), float(self.engine.max_model_len or 0))

    @property
    def mean_lengths(self) -> tuple[float, float]:
        """Mean prompt and output tokens."""
        bins = self.bins
        n_in = float(np.sum(bins.in_share * bins.in_mean))
        return n_in, 1.0 + float(np.sum(bins.out_share * bins.gap_mean))

    @property
    def prefix_hit(self) -> float | None:
        """Share of the prompt tokens found in the prefix cache; None when nothing is."""
        return float(self.workload.prefix_hit) or None

    @property
    def prefill_tokens(self) -> float | None:
        """Tokens of one pass of prefill, as a number that both paths take; None for any."""
        tokens = self.engine.prefill_tokens
        return None if tokens is None else float(tokens)

    def instance(self, tp: int, pp: int) -> Instance:
        """One instance of the model on ``tp * pp`` GPUs."""
        return build_instance(
            self.model,
            self.gpu,
            tp=tp,
            pp=pp,
            profile=self.engine.profile,
            utilization=self.engine.memory_utilization,
        )

    @overload
    def system(self, deployment: Disaggregated) -> System: ...

    @overload
    def system(self, deployment: Colocated | Chunked) -> AggregatedSystem: ...

    @overload
    def system(self, deployment: Deployment) -> System | AggregatedSystem: ...

    def system(self, deployment: Deployment) -> System | AggregatedSystem:
        """A deployment with its step times and memory, for either path."""

        def of(pool: Pool) -> Instance:
            return self.instance(pool.tp, pool.pp)

        if not isinstance(deployment, Disaggregated):
            pool = deployment.pool
            budget = deployment.token_budget if isinstance(deployment, Chunked) else None
            return AggregatedSystem(
                instance=of(pool),
                replicas=float(pool.replicas),
                max_batch=float(self.engine.max_batch),
                prefill_tokens=self.prefill_tokens or PREFILL_TOKENS,
                token_budget=None if budget is None else float(budget),
                dispatch=self.engine.dispatch,
                kv_policy=self.engine.kv_policy,
                prefix_hit=self.prefix_hit,
            )
        return System(
            prefill=of(deployment.prefill),
            decode=of(deployment.decode),
            n_prefill=float(deployment.prefill.replicas),
            n_decode=float(deployment.decode.replicas),
            kv_bytes_per_token=token_bytes(self.model),
            link_bandwidth=self.engine.link_bandwidth,
            handover_overhead=self.engine.profile.handover_overhead,
            max_batch=float(self.engine.max_batch),
            prefill_batch=self.engine.prefill_batch,
            prefill_tokens=self.prefill_tokens,
            first_token=self.engine.first_token,
            dispatch=self.engine.dispatch,
            prefix_hit=self.prefix_hit,
            kv=kv_shape(self.model),
        )
