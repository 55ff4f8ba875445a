"""How much longer a decode step takes when it shares its iteration with a piece of a prompt."""

from fluidserve._numerics import minimum
from fluidserve._typing import Number
from fluidserve.timing.instance import Instance


def iteration_time(
    instance: Instance,
    batch: Number,
    context: Number,
    prompt_tokens: float = 0.0,
    *,
    before: Number = 0.0,
) -> Number:
    """Time of one iteration of an instance that holds a decode batch and a piece of a prompt, s.

    What every decoding request waits for its token: without a piece the decode step, with one what
    chunked prefill makes of it. Where prompts go first instead, the step and the prefill follow one
    another, and the request waits for the sum of both times.

    Args:
      instance: what computes it; an iteration passes its `pp` stages in order.
      batch: decoding requests.
      context: tokens of each of them, prompt and output so far.
      prompt_tokens: of the piece, in this iteration; not positive for none.
      before: tokens of the same prompt that are computed already.

    Source: Zhong et al., DistServe, OSDI 2024, section 2.3 (interference of the phases).
    """
    inside = context if instance.kv is None else minimum(context, instance.kv.window)
    work = instance.decode_work(batch, batch * context, batch * inside)
    if prompt_tokens > 0:
        work = work + instance.chunk_work(before, prompt_tokens)
    return instance.pp * instance.times.stage_time(work)
