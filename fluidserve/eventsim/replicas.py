"""Instances that do both phases: their queues, their lanes, and what one iteration holds."""

from array import array
from collections import deque
from typing import NamedTuple

from fluidserve.eventsim.batch import Batch
from fluidserve.timing.kv import KvShape


class Piece(NamedTuple):
    """Tokens of a prompt that one iteration computes.

    Attributes:
      request: whose.
      before: tokens of it that are there already.
      new: tokens computed now.
    """

    request: int
    before: float
    new: float


class Iteration(NamedTuple):
    """What a lane did once, for those who want to look on.

    Attributes:
      lane: which; lanes are numbered through all instances.
      begin: the first stage begins, s.
      end: the last stage ends, s.
      decoding: requests that get a token of decode.
      context: sum of their contexts, tokens.
      pieces: of prompts.
      requests: those held by the instance.
      kv: tokens of KV held by the instance.
    """

    lane: int
    begin: float
    end: float
    decoding: int
    context: int
    pieces: tuple[Piece, ...]
    requests: int
    kv: float


class Lane(Batch):
    """A micro-batch of an instance, with an iteration under way or about to start.

    Attributes:
      index: its number among all lanes.
      replica: whose lane it is.
      running: whether it has an iteration under way or about to start.
      begin: when the first stage begins the iteration, s.
      steps: whether its decoding requests get a token in it.
      steady: whether the next iteration will be one of decode again, as nothing has changed.
      pieces: of prompts in the iteration.
      finishing: requests whose prompt the iteration completes.
      partial: the request whose prompt is computed in part, if there is one.
      fresh: requests that have not finished a decode iteration yet.
      leaving: requests by the decode iteration that is their last.
      members: all requests that it holds; kept where they may lose their memory.
      prompt_kv: KV held by requests that are not decoding, tokens.
      kv: KV held by all of its requests, tokens.
      ends: when decode iterations ended, s; kept where gaps are recorded.
    """

    __slots__ = (
        "begin",
        "ends",
        "finishing",
        "fresh",
        "index",
        "kv",
        "leaving",
        "members",
        "partial",
        "pieces",
        "prompt_kv",
        "replica",
        "running",
        "steady",
        "steps",
    )

    def __init__(self, index: int, replica: "Replica", kv: KvShape | None):
        super().__init__(kv)
        self.index = index
        self.replica = replica
        self.running = False
        self.begin = 0.0
        self.steps = False
        self.steady = False
        self.pieces: list[Piece] = []
        self.finishing: list[int] = []
        self.partial: int | None = None
        self.fresh: list[int] = []
        self.leaving: dict[int, list[int]] = {}
        self.members: set[int] = set()
        self.prompt_kv = 0.0
        self.kv = 0.0
        self.ends = array("d")


class Replica:
    """One instance: a queue in order of arrival, lanes that take from it, and their memory.

    Attributes:
      index: its number.
      stages: when each stage is free, s.
      lanes: as many as stages.
      queue: requests that wait.
      requests: those held by all lanes.
      waking: whether idle lanes are about to look at the queue.
      stalled: since when heads of the queue have lacked memory, s.
    """

    __slots__ = ("index", "lanes", "queue", "requests", "stages", "stalled", "waking")

    def __init__(self, index: int, stages: int, kv: KvShape | None):
        self.index = index
        self.stages = [0.0] * stages
        self.lanes = [Lane(index * stages + s, self, kv) for s in range(stages)]
        self.queue: deque[int] = deque()
        self.requests = 0
        self.waking = False
        self.stalled: dict[int, float] = {}

    @property
    def kv(self) -> float:
        """KV held, tokens of all layers."""
        return sum(lane.kv for lane in self.lanes)

    def unsettle(self) -> None:
        """Makes every lane look at the queue before its next iteration."""
        for lane in self.lanes:
            lane.steady = False

    def put_back(self, request: int) -> None:
        """Queues a request again, ahead of all that came after it."""
        queue = self.queue
        place = next((i for i, other in enumerate(queue) if other > request), len(queue))
        queue.insert(place, request)
