"""What limits a deployment, and how far its numbers can be trusted: codes with their sentences."""

import enum


class Binding(enum.IntEnum):
    """What keeps a deployment from a higher goodput.

    The names, in lower case, are the values of `binding` in results.
    """

    TTFT = 0
    TPOT = 1
    DECODE_SLOTS = 2
    PREFILL_CAPACITY = 3
    DECODE_CAPACITY = 4
    LINK = 5
    PREFILL_MEMORY = 6
    TTFT_UNREACHABLE = 7
    TPOT_UNREACHABLE = 8
    USERS = 9
    E2E = 10
    E2E_UNREACHABLE = 11
    CAPACITY = 12
    ITL = 13
    ITL_UNREACHABLE = 14

    @property
    def label(self) -> str:
        """Lower-case name, as results show it."""
        return self.name.lower()


ADVICE = {
    Binding.TTFT: "TTFT binds: add prefill instances or a larger prefill tp.",
    Binding.TPOT: "TPOT binds: add decode instances or a larger decode tp.",
    Binding.DECODE_SLOTS: "decode slots bind: requests wait for KV memory or the batch cap of the "
    "decode pool; add decode GPUs, or raise the cap.",
    Binding.PREFILL_CAPACITY: "the prefill pool is saturated: add prefill instances.",
    Binding.DECODE_CAPACITY: "the decode pool is saturated: add decode instances or KV memory.",
    Binding.LINK: "the KV link binds: use a faster network between the pools, or a model with less "
    "KV per token.",
    Binding.PREFILL_MEMORY: "prefill memory overflows with KV that waits for decode: add decode "
    "slots or bandwidth.",
    Binding.TTFT_UNREACHABLE: "even an idle system misses the TTFT limit for too many prompts: "
    "use a larger prefill tp, a faster GPU, or relax the limit.",
    Binding.TPOT_UNREACHABLE: "even an idle system misses the TPOT limit for too many requests: "
    "use a larger decode tp, a faster GPU, or relax the limit.",
    Binding.USERS: "no stage is full: throughput is what so many users ask for; more of them, or "
    "faster stages (a larger tp), raise it.",
    Binding.E2E: "end-to-end latency binds: most of it is decode time, so add decode instances or "
    "a larger decode tp; where TTFT is a large part of it, also prefill instances.",
    Binding.E2E_UNREACHABLE: "even an idle system misses the end-to-end limit for too many "
    "requests: use a larger decode tp, a faster GPU, or relax the limit.",
    Binding.ITL: "gaps between tokens bind: let fewer prompts come between them (a smaller token "
    "budget, more instances, or a pool for prefill), or shorten the steps (a larger tp).",
    Binding.ITL_UNREACHABLE: "even an idle system misses the ITL limit for too many gaps: use a "
    "larger decode tp, a faster GPU, or relax the limit.",
    Binding.CAPACITY: "the instances are saturated by prompts and decode together: add some.",
}


ADVICE_TOGETHER = ADVICE | {
    Binding.TTFT: "TTFT binds: add instances, use a larger tp or another token budget.",
    Binding.TPOT: "TPOT binds: add instances, use a larger tp or a smaller token budget.",
    Binding.DECODE_SLOTS: "slots bind: requests wait for KV memory or the batch cap; add GPUs, or "
    "raise the cap.",
    Binding.E2E: "end-to-end latency binds: add instances or use a larger tp.",
    Binding.TTFT_UNREACHABLE: "even an idle system misses the TTFT limit for too many prompts: "
    "use a larger tp or token budget, a faster GPU, or relax the limit.",
    Binding.TPOT_UNREACHABLE: "even an idle system misses the TPOT limit for too many requests: "
    "use a larger tp, a faster GPU, or relax the limit.",
    Binding.E2E_UNREACHABLE: "even an idle system misses the end-to-end limit for too many "
    "requests: use a larger tp, a faster GPU, or relax the limit.",
}
"""The same where one instance does both phases."""


class Doubt(enum.IntFlag):
    """Reasons to trust a goodput less. `RED` holds the worse ones."""

    NONE = 0
    BURSTY_ARRIVALS = enum.auto()
    LENGTH_TAIL = enum.auto()
    FEW_SLOTS = enum.auto()
    BUSY_LINK = enum.auto()
    PREFILL_MEMORY = enum.auto()
    LATENCY_LEVERAGE = enum.auto()
    FLAT_CURVE = enum.auto()
    TIGHT_TTFT = enum.auto()
    BATCHED_PREFILL = enum.auto()
    UNSTABLE = enum.auto()
    ALIKE = enum.auto()
    SLOT_WAIT = enum.auto()
    CLOSE_LIMITS = enum.auto()
    OTHER_PREFILL = enum.auto()
    DECODE_BACKLOG = enum.auto()
    FULL_LINK = enum.auto()
    SCREENED = enum.auto()
    NOISY = enum.auto()
    BUBBLES = enum.auto()
    FEW_EXPERTS = enum.auto()


DOUBT_TEXT = {
    Doubt.BURSTY_ARRIVALS: "arrivals are more irregular than the formulas hold for",
    Doubt.LENGTH_TAIL: "goodput is set by the few prompts that cannot meet TTFT at all",
    Doubt.FEW_SLOTS: "a decode instance holds fewer than 10 requests",
    Doubt.BUSY_LINK: "the KV link is busier than 60%",
    Doubt.PREFILL_MEMORY: "KV waiting for decode may fill the prefill memory",
    Doubt.LATENCY_LEVERAGE: "goodput moves more than 4% when latencies are 1% off",
    Doubt.FLAT_CURVE: "attainment falls slowly with the rate, so a small error moves goodput far",
    Doubt.TIGHT_TTFT: "the TTFT limit is close to the prefill time of a typical prompt",
    Doubt.BATCHED_PREFILL: "prefill computes several prompts at once, which the formulas follow "
    "less closely",
    Doubt.UNSTABLE: "unstable: at this rate a stage is asked for more than it can do",
    Doubt.ALIKE: "requests are so alike that users stay in step; times depend on how they began",
    Doubt.SLOT_WAIT: "requests wait for decode slots, which short outputs feel more than the "
    "formulas say",
    Doubt.CLOSE_LIMITS: "limits 3% tighter or looser would change whether the SLO is met",
    Doubt.FULL_LINK: "users wait for the KV link, which is busy nearly all the time",
    Doubt.OTHER_PREFILL: "in a closed loop the formulas take single prompts from one shared queue",
    Doubt.SCREENED: "closed formulas of aggregated serving, several per cent off as a rule",
    Doubt.NOISY: "goodput differs by more than 3% between the sampled traces",
    Doubt.BUBBLES: "closed formulas of pipelines in which prompts and decode meet: they can be off "
    "by half and more",
    Doubt.FEW_EXPERTS: "so few requests decode together that each one more uses other experts, "
    "which makes a step much longer",
    Doubt.DECODE_BACKLOG: "decode is asked for more than it can sustain, which few requests allow",
}

RED = (
    Doubt.BURSTY_ARRIVALS
    | Doubt.LENGTH_TAIL
    | Doubt.PREFILL_MEMORY
    | Doubt.FLAT_CURVE
    | Doubt.UNSTABLE
    | Doubt.OTHER_PREFILL
    | Doubt.FULL_LINK
    | Doubt.BUBBLES
    | Doubt.FEW_EXPERTS
)
"""Doubts under which the formulas are known to fail; the others only make a result amber."""


def confidence_level(doubts: int) -> str:
    """``red``, ``amber`` or ``green``: the worst of the doubts raised.

    Example:
      >>> confidence_level(Doubt.NONE), confidence_level(Doubt.LENGTH_TAIL | Doubt.FLAT_CURVE)
      ('green', 'red')
    """
    if doubts & RED:
        return "red"
    return "amber" if doubts else "green"


def doubt_sentences(doubts: int) -> list[str]:
    """The doubts in words, one sentence each."""
    return [text for doubt, text in DOUBT_TEXT.items() if doubts & doubt]
