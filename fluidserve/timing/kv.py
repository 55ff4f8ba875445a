r"""How much KV a request holds and reads where layers differ in what they remember.

Everything counts in tokens of KV of *all* attention layers of an instance, so that a request of T
tokens of a model with full attention everywhere holds T and reads T. In general it holds

.. math::
   h(T) = T - (1-a)\,(T - w)_+ + s

tokens: layers with the share 1 - a of the bytes keep the last w tokens only (sliding windows), and
s stands for state whose size does not depend on T (linear attention, state-space layers). What a
decode step reads, and the pairs that attention computes, have the same form with other shares:
heads of global and local layers can differ in size, and sparse attention keeps all tokens but
attends the w that an index chooses.

Ignores: that a chunk (chunked attention) is half full on average, so that those layers attend up
to twice too much beyond the first chunk; pages of KV.
"""

from fluidserve._numerics import maximum, minimum
from fluidserve._pytree import pytree
from fluidserve._typing import Leaf, Number
from fluidserve.specs.model import ModelSpec
from fluidserve.timing.model import Work, prefill_work

_NO_WINDOW = 1e9


@pytree
class KvShape:
    """What a request holds and reads on an instance; see the module.

    Attributes:
      held: share a of a token's bytes that stays for good.
      read: share of a token's bytes that a decode step reads of every token of the context, the
        rest being read of at most `window` tokens.
      pairs: the same for the FLOP of attended pairs.
      window: w, tokens.
      state: s, what a request holds whatever its length, tokens.
    """

    held: Leaf
    read: Leaf
    pairs: Leaf
    window: Leaf
    state: Leaf

    def beyond(self, tokens: Number) -> Number:
        """Tokens of a context that lie outside the window."""
        return maximum(tokens - self.window, 0.0)

    def tokens_held(self, tokens: Number) -> Number:
        """What a request of so many tokens holds, tokens of all layers."""
        return tokens - (1.0 - self.held) * self.beyond(tokens) + self.state

    def tokens_read(self, context: Number, windowed: Number) -> Number:
        """What reading the KV of so many tokens amounts to, tokens of all layers.

        Args:
          context: tokens, or a sum of several contexts.
          windowed: the same, each at most the window.
        """
        return self.read * context + (1.0 - self.read) * windowed

    def causal_pairs(self, tokens: Number) -> Number:
        """Pairs of a causal prompt, each (new, attended) pair of all layers counted as one."""
        inside = minimum(tokens, self.window)
        limited = inside * (tokens - 0.5 * inside)
        return 0.5 * self.pairs * tokens * tokens + (1.0 - self.pairs) * limited

    def prefill_work(self, n_in: Number, prefix_hit: Number | None = None) -> Work:
        """One prompt; as `fluidserve.timing.model.prefill_work`. Its state is written once."""
        if prefix_hit is not None:
            cached = minimum(prefix_hit * n_in, n_in - 1.0)
            return self.chunk_work(cached, n_in - cached)
        pairs = self.causal_pairs(n_in)
        return Work(new=n_in, attended=pairs, kv_read=self.state, sequences=1.0, prompts=1.0)

    def chunk_work(self, before: Number, new: Number) -> Work:
        """A piece of a prompt that goes on from a state; as `fluidserve.timing.model.chunk_work`.

        The first piece of a prompt counts the read of a state that it does not have yet.
        """
        pairs = self.causal_pairs(before + new) - self.causal_pairs(before)
        read = self.tokens_read(before, minimum(before, self.window)) + 2.0 * self.state
        return Work(new=new, attended=pairs, kv_read=read, sequences=1.0, prompts=1.0)

    def decode_work(self, batch: Number, context: Number, windowed: Number) -> Work:
        """One decode step; every request's state is read and written.

        Args:
          batch: requests.
          context: sum of their contexts, tokens.
          windowed: sum of the same, each at most the window.
        """
        attended = self.pairs * context + (1.0 - self.pairs) * windowed
        kv_read = self.tokens_read(context, windowed) + 2.0 * self.state * batch
        return Work(new=batch, attended=attended, kv_read=kv_read, sequences=batch, prompts=0.0)


def tokens_held(kv: KvShape | None, tokens: Number) -> Number:
    """What a request of so many tokens holds; all of them where every layer keeps everything."""
    return tokens if kv is None else kv.tokens_held(tokens)


def prompt_work(model: ModelSpec, n_in: Number) -> Work:
    """What prefill of a prompt asks of a model, whatever it runs on."""
    kv = kv_shape(model)
    return prefill_work(n_in) if kv is None else kv.prefill_work(n_in)


def token_bytes(model: ModelSpec, tp: int = 1) -> float:
    """Bytes of one token's KV in all attention layers, on a tensor-parallel group of `tp` GPUs.

    Heads beyond one per GPU are stored more than once; see `ModelSpec.kv_copies`.
    """
    lasting = (model.kv_bytes_per_token + model.index_bytes_per_token) * model.kv_copies(tp)
    return float(lasting + _windowed_bytes(model, tp))


def kv_shape(model: ModelSpec, tp: int = 1) -> KvShape | None:
    """The shape of a model's KV on an instance; None where every layer keeps everything.

    State is spread over the GPUs of the group and never stored twice.
    """
    if not (model.window or model.sparse_tokens or model.state_bytes):
        return None
    total, windowed = token_bytes(model, tp), _windowed_bytes(model, tp)
    held = 1.0 - windowed / total
    return KvShape(
        held=held,
        read=held - model.chosen_bytes_per_token * model.kv_copies(tp) / total,
        pairs=1.0 - model.limited_attention_flop / model.attention_flop,
        window=float(model.window or model.sparse_tokens or _NO_WINDOW),
        state=model.state_bytes / total,
    )


def _windowed_bytes(model: ModelSpec, tp: int) -> float:
    """Bytes of one token's KV in the layers with a window."""
    if not model.window:
        return 0.0
    return model.kv_window_bytes / model.window * max(1.0, tp / model.window_kv_heads)
