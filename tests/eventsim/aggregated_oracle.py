"""One instance for both phases, served by loops over lists: nothing is kept up to date or skipped.

It shares step times with the simulator and nothing else: every iteration looks at every request.
"""

from fluidserve.timing.model import Work


class _Request:
    def __init__(self, index, arrival, n_in, n_out):
        self.index, self.arrival, self.n_in, self.n_out = index, arrival, n_in, n_out
        self.tokens = []  # when each left
        self.losses = 0
        self.decoding = False
        self.done = None  # tokens of the prefill that are there already; None: not begun

    @property
    def length(self):
        return self.n_in + len(self.tokens)


class Oracle:
    """Serves requests on one instance of one stage; the result is in `requests`."""

    def __init__(self, system, arrival, n_in, n_out):
        self.system = system
        self.kv = system.instance.kv
        rows = zip(arrival.tolist(), n_in.tolist(), n_out.tolist(), strict=True)
        self.requests = [_Request(i, *row) for i, row in enumerate(rows)]
        self.held = []  # in order of admission
        self.now = 0.0
        while any(len(r.tokens) < r.n_out for r in self.requests):
            self._iteration()

    def _iteration(self):
        coming = [r for r in self.requests if len(r.tokens) < r.n_out and r not in self.held]
        waiting = [r for r in coming if r.arrival <= self.now]
        if not self.held and not waiting:
            self.now = coming[0].arrival
            return
        while self._memory() > self.system.instance.kv_capacity:
            youngest = self.held.pop()
            youngest.losses += 1
            youngest.decoding, youngest.done = False, None
            waiting.insert(0, youngest)
        decoding = [r for r in self.held if r.decoding]
        if self.system.token_budget is None:
            prompts = self._prompts(waiting)
            decoding = [] if prompts else decoding
            works = [self._prefill(r) for r in prompts]
            finished = prompts
        else:
            works, finished = self._pieces(waiting, self.system.token_budget - len(decoding))
        works += [self._step(r.length) for r in decoding]
        total = Work(**{f: sum(getattr(w, f) for w in works) for f in vars(works[0])})
        self.now += self.system.instance.times.stage_time(total)
        for request in decoding + finished:
            request.tokens.append(self.now)
            request.decoding = True
            if len(request.tokens) == request.n_out:
                self.held.remove(request)

    def _prompts(self, waiting):
        prompts, tokens = [], 0.0
        while waiting and self._fits(waiting[0]):
            new = waiting[0].length - self._cached(waiting[0])
            if prompts and tokens + new > self.system.prefill_tokens:
                break
            tokens += new
            prompts.append(waiting.pop(0))
            self.held.append(prompts[-1])
        return prompts

    def _pieces(self, waiting, left):
        works, finished = [], []
        prompts = [r for r in self.held if not r.decoding]
        while left > 0:
            if not prompts:
                if not waiting or not self._fits(waiting[0]):
                    break
                prompts.append(waiting.pop(0))
                prompts[0].done = self._cached(prompts[0])
                self.held.append(prompts[0])
            request = prompts[0]
            new = min(left, request.length - request.done)
            works.append(self._chunk(request.done, new))
            request.done += new
            left -= new
            if request.done == request.length:
                finished.append(prompts.pop(0))
        return works, finished

    def _fits(self, request):
        room = self.system.instance.kv_capacity
        return (
            len(self.held) < self.system.max_batch and self._memory() + self._need(request) <= room
        )

    def _memory(self):
        return sum(self._need(r) for r in self.held)

    def _need(self, request):
        """What it takes, or will have taken at its last token."""
        full = self.system.kv_policy == "reserve"
        tokens = request.n_in + request.n_out if full else request.length
        if self.kv is None:
            return tokens
        within = min(tokens, self.kv.window)
        return self.kv.held * tokens + (1 - self.kv.held) * within + self.kv.state

    def _cached(self, request):
        if self.system.prefix_hit is None:
            return 0.0
        return min(self.system.prefix_hit * request.n_in, request.n_in - 1.0)

    def _prefill(self, request):
        cached = self._cached(request)
        whole = self.system.prefix_hit is None
        state = 0.0 if self.kv is None else self.kv.state
        work = self._chunk(cached, request.length - cached)
        return Work(**{**vars(work), "kv_read": state}) if whole else work

    def _chunk(self, before, new):
        pairs, read = new * (before + new / 2), before
        if self.kv is not None:
            w = self.kv.window
            inside = _area(w, before + new) - _area(w, before)
            pairs = self.kv.pairs * pairs + (1 - self.kv.pairs) * inside
            read = self.kv.read * before + (1 - self.kv.read) * min(before, w) + 2 * self.kv.state
        return Work(new=new, attended=pairs, kv_read=read, sequences=1.0, prompts=1.0)

    def _step(self, context):
        pairs = read = context
        if self.kv is not None:
            within = min(context, self.kv.window)
            pairs = self.kv.pairs * context + (1 - self.kv.pairs) * within
            read = self.kv.read * context + (1 - self.kv.read) * within + 2 * self.kv.state
        return Work(new=1.0, attended=pairs, kv_read=read, sequences=1.0, prompts=0.0)


def _area(window, tokens):
    """Area under ``min(t, window)`` from 0 to `tokens`."""
    if tokens <= window:
        return tokens * tokens / 2
    return window * window / 2 + window * (tokens - window)
