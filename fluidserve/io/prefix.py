"""What a prefix cache could find in a trace that names the blocks of its prompts."""

import dataclasses

import numpy as np

from fluidserve.io.trace import Trace


@dataclasses.dataclass(frozen=True)
class PrefixReuse:
    """What an unlimited prefix cache finds, as shares of all prompts together.

    Attributes:
      blocks: share of the blocks.
      tokens: share of the tokens.
    """

    blocks: float
    tokens: float


def prefix_reuse(trace: Trace) -> PrefixReuse | None:
    """The hit rate of one cache that holds everything that was ever computed.

    Requests are taken one after the other; a request finds its blocks up to the first that no
    earlier one had. It is an upper bound: real caches are finite and are spread over instances, and
    requests that overlap in time cannot use each other's blocks yet.

    Returns:
      None when the trace has no block identities.
    """
    if trace.hash_ids is None or not any(len(ids) for ids in trace.hash_ids):
        return None
    seen: set[int] = set()
    found, blocks = np.zeros(len(trace)), np.array([len(ids) for ids in trace.hash_ids], float)
    for i, ids in enumerate(map(np.ndarray.tolist, trace.hash_ids)):
        found[i] = next((k for k, block in enumerate(ids) if block not in seen), len(ids))
        seen.update(ids)
    share = found / np.maximum(blocks, 1.0)
    tokens = np.minimum(found * _block_size(trace.n_in, blocks), trace.n_in)
    tokens = np.where(share == 1.0, trace.n_in, tokens)
    return PrefixReuse(
        blocks=float(found.sum() / blocks.sum()), tokens=float(tokens.sum() / trace.n_in.sum())
    )


def _block_size(n_in: np.ndarray, blocks: np.ndarray) -> np.ndarray | float:
    """Tokens of a block: the smallest power of two that explains all counts.

    Where none does, an even share of each prompt.
    """
    size = 1.0
    while size < n_in.max():
        size *= 2.0
        if np.array_equal(np.ceil(n_in / size), blocks):
            return size
    return n_in / np.maximum(blocks, 1.0)
