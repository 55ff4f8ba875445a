"""How long a prompt must be to keep the hardware busy."""

from fluidserve.timing.instance import Instance
from fluidserve.timing.model import Work

_SHARE = 0.9
_LARGEST = 2**17


def saturation_length(instance: Instance) -> int:
    """Smallest power of two of prompt tokens with 90 % of the saturated prefill throughput, L_m.

    Attention is left out, as its cost grows with the square of the prompt: with it, throughput
    falls again at long prompts and never saturates. Throughput counts tokens per time that one
    stage is busy; it is saturated at 131,072 tokens.

    Args:
      instance: one instance, not a batch.

    Returns:
      tokens.

    Source: DistServe (Zhong et al., OSDI 2024), section 3.1: beyond this length batching prompts
      no longer helps prefill. OPT-13B on one A100 has 1024 under the ``paper`` profile.
    """

    def throughput(tokens: float) -> float:
        work = Work(new=tokens, attended=0.0, kv_read=0.0, sequences=1.0, prompts=1.0)
        return tokens / float(instance.times.stage_time(work))

    wanted = _SHARE * throughput(float(_LARGEST))
    length = 1
    while throughput(float(length)) < wanted:
        length *= 2
    return length
