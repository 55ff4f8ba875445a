r"""Whether a model fits: weights and room for KV of every way to split an instance.

An engine takes the share u of each GPU's memory M for weights and KV. On g = tp x pp GPUs with
weights of W bytes and k bytes of KV per token there is room for

.. math:: (u\,g\,M - W) / k

tokens, and for that over the tokens that a request holds so many requests: its context, or less
where layers forget what has left their window (`fluidserve.timing.kv`). Against 76 capacities
that DistServe measured on A100s this is off by 0.5% on average and 2.9% at most, with u = 0.92.

Ignores: that an engine stores KV in blocks; activations, compiled graphs and buffers of the
communication library, which must find their place in the share that is left.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

from fluidserve.errors import NoFeasibleDeployment
from fluidserve.search.grid import powers_of_two
from fluidserve.specs.hardware import GpuSpec
from fluidserve.specs.model import ModelSpec
from fluidserve.timing.instance import kv_capacity
from fluidserve.timing.kv import kv_shape, tokens_held
from fluidserve.timing.profile import Profile


@dataclasses.dataclass(frozen=True)
class Fit:
    """One way to split an instance, and what it holds; bytes are those of one GPU.

    Attributes:
      tp: tensor-parallel GPUs per pipeline stage.
      pp: pipeline stages.
      memory_bytes: what the engine takes for weights and KV.
      weight_bytes: weights.
      room: tokens of KV, of all layers, that fit on the instance; zero or below where the weights
        do not.
      context: tokens of a request.
      held: tokens of all layers that such a request holds.
    """

    tp: int
    pp: int
    memory_bytes: float
    weight_bytes: float
    room: float
    context: int
    held: float

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.tp * self.pp

    @property
    def free_bytes(self) -> float:
        """What a GPU has left for KV; negative where the weights do not fit."""
        return self.memory_bytes - self.weight_bytes

    @property
    def concurrency(self) -> float:
        """Requests of the context that fit at once, not rounded."""
        return max(self.room, 0.0) / self.held

    @property
    def kv_tokens(self) -> float:
        """Tokens of requests of the context that fit at once, as engines count them."""
        return self.concurrency * self.context

    @property
    def users(self) -> int:
        """Whole requests of the context that fit at once."""
        return math.floor(self.concurrency)


@dataclasses.dataclass(frozen=True)
class Question:
    """What is to fit on what.

    Attributes:
      model: the model.
      gpu: the accelerator.
      profile: tells which memory `utilization` is a share of.
      utilization: share of the memory that the engine takes for weights and KV.
      context: tokens of a request.
    """

    model: ModelSpec
    gpu: GpuSpec
    profile: Profile
    utilization: float
    context: int


def fits(question: Question, most_gpus: int) -> list[Fit]:
    """Every split of an instance of at most `most_gpus` GPUs, fewest first.

    tp is a power of two within a node that divides the attention heads; pp a power of two up to
    the layers. Of splits over as many GPUs the one with fewest stages comes first.
    """
    model, gpu, profile = question.model, question.gpu, question.profile
    memory = gpu.memory if profile.memory_of == "datasheet" else gpu.usable_memory
    found = []
    for tp in powers_of_two(min(gpu.gpus_per_node, most_gpus)):
        if model.heads % tp:
            continue
        for pp in powers_of_two(min(model.layers, most_gpus // tp)):
            tokens = kv_capacity(
                model, gpu, tp=tp, pp=pp, profile=profile, utilization=question.utilization
            )
            found.append(
                Fit(
                    tp=tp,
                    pp=pp,
                    memory_bytes=float(question.utilization * memory),
                    weight_bytes=float(model.weight_bytes) / (tp * pp),
                    room=tokens,
                    context=question.context,
                    held=float(tokens_held(kv_shape(model, tp), question.context)),
                )
            )
    return sorted(found, key=lambda fit: (fit.gpus, fit.pp))


def smallest(found: Sequence[Fit], users: int) -> Fit | None:
    """The split with fewest GPUs that holds so many requests at once; None where none does.

    Of splits over as many GPUs it is the one that holds most, then the one with fewest stages.
    """
    enough = [fit for fit in found if fit.users >= users]
    return min(enough, key=lambda fit: (fit.gpus, -fit.users, fit.pp)) if enough else None


def nothing_holds(question: Question, found: Sequence[Fit], users: int) -> NoFeasibleDeployment:
    """Why no split of `found` holds so many requests, and what comes closest.

    That is copies of an instance where one holds any request at all, else the smallest instance
    that does, however many nodes it takes.
    """
    model, gpu, context = question.model, question.gpu, question.context
    most = max(fit.gpus for fit in found)
    asked = f"{users:,} request{'s' if users > 1 else ''} of {context:,} tokens"
    reasons = Counter(
        "the weights do not fit into the memory"
        if fit.room <= 0
        else "the KV of one request does not fit beside the weights"
        if not fit.users
        else f"holds fewer than {users:,} requests"
        for fit in found
    )
    return NoFeasibleDeployment(
        f"no instance of {model.name} on at most {most} {gpu.name} holds {asked}",
        reasons=dict(reasons),
        nearest=_nearest(question, found, users),
        candidates=len(found),
    )


def _nearest(question: Question, found: Sequence[Fit], users: int) -> str:
    holding = [(math.ceil(users / fit.users), fit) for fit in found if fit.users]
    if holding:
        count, fit = min(holding, key=lambda pair: (pair[0] * pair[1].gpus, pair[0], pair[1].pp))
        return (
            f"{count} replicas of tp{fit.tp} pp{fit.pp}, {fit.users:,} requests each, on "
            f"{count * fit.gpus} GPUs"
        )
    gpu = question.gpu
    larger = smallest(fits(question, gpu.gpus_per_node * question.model.layers), 1)
    if larger is None:
        return f"{question.model.name} does not fit on {gpu.name} at any tp and pp tried"
    nodes = math.ceil(larger.gpus / gpu.gpus_per_node)
    return (
        f"an instance of {larger.gpus} GPUs (tp{larger.tp} pp{larger.pp}) on {nodes} "
        f"node{'s' if nodes > 1 else ''} holds {larger.users:,}"
    )
