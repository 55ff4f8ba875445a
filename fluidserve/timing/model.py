"""The contract of a time model: how long one stage of an instance needs for one batch.

An instance of `tp` x `pp` GPUs is `pp` stages in a row; a batch passes them one after the other,
and a stage takes the next batch as soon as it is free. All formulas use plain operators, so that
the event simulator evaluates them on Python floats and the engine on JAX arrays.
"""

from abc import abstractmethod

from fluidserve._numerics import minimum
from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number


@pytree
class Work:
    """What one batch asks of the hardware.

    Attributes:
      new: tokens computed in this pass.
      attended: (new, attended) token pairs: a prompt of L tokens has L**2 / 2, a decode step of
        one request has its context.
      kv_read: tokens whose KV cache is read from memory.
      sequences: requests in the batch.
      prompts: prompts being prefilled in this pass; 0 in a pure decode step.
    """

    new: Leaf
    attended: Leaf
    kv_read: Leaf
    sequences: Leaf
    prompts: Leaf

    def __add__(self, other: "Work") -> "Work":
        """Both in one pass."""
        return Work(
            new=self.new + other.new,
            attended=self.attended + other.attended,
            kv_read=self.kv_read + other.kv_read,
            sequences=self.sequences + other.sequences,
            prompts=self.prompts + other.prompts,
        )


class AbstractTimeModel:
    """Time of one stage for one `Work`. Concrete models are final pytrees of coefficients."""

    @abstractmethod
    def stage_time(self, work: Work) -> Number:
        """Time that one pipeline stage is busy with `work`, s; broadcasts over its fields."""


def prefill_work(n_in: Number, prefix_hit: Number | None = None) -> Work:
    """One prompt of `n_in` tokens.

    Tokens found in the prefix cache are neither computed nor attend again, but the new ones attend
    to them: ``L**2 / 2`` pairs less the ``C**2 / 2`` within the cached ``C = min(h L, L - 1)``,
    whose KV is read. The last token is always computed, as it makes the first one of the output.

    Args:
      n_in: L, tokens.
      prefix_hit: h, share of the tokens found in the cache, in [0, 1); None without a cache.
    """
    if prefix_hit is None:
        return Work(new=n_in, attended=0.5 * n_in * n_in, kv_read=0.0, sequences=1.0, prompts=1.0)
    cached = minimum(prefix_hit * n_in, n_in - 1.0)
    return chunk_work(cached, n_in - cached)


def chunk_work(before: Number, new: Number) -> Work:
    """A piece of a prompt: `new` tokens that follow `before` tokens whose KV is there already.

    They attend to all of these, and half of each other; the earlier KV is read once more (Agrawal
    et al., Sarathi-Serve, OSDI 2024).
    """
    pairs = new * (before + 0.5 * new)
    return Work(new=new, attended=pairs, kv_read=before, sequences=1.0, prompts=1.0)


def decode_work(batch: Number, context: Number) -> Work:
    """One decode step of `batch` requests whose contexts add up to `context` tokens."""
    return Work(new=batch, attended=context, kv_read=context, sequences=batch, prompts=0.0)


def prefill_time(
    model: AbstractTimeModel, n_in: Number, prefix_hit: Number | None = None
) -> Number:
    """Time of one stage for one prompt, s; a pass through `pp` stages takes `pp` times that."""
    return model.stage_time(prefill_work(n_in, prefix_hit))


def decode_time(model: AbstractTimeModel, batch: Number, context: Number) -> Number:
    """Time of one stage for one decode step, s."""
    return model.stage_time(decode_work(batch, context))
