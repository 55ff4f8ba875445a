"""An engine in plain Python, one iteration after the other: what the batched loop must equal."""

import numpy as np

from fluidserve.timing.model import Work, chunk_work, decode_work, prefill_work


def reference(system, rate, trace):
    """TTFT and TPOT of every request of a trace on one instance, s."""
    times, n = system.instance.times, len(trace)
    arrival = np.asarray(trace.arrival) / rate
    n_in, n_out = trace.n_in.tolist(), trace.n_out.tolist()
    room, slots, hit = float(system.instance.kv_capacity), system.max_batch, system.prefix_hit
    first, last = np.zeros(n), np.zeros(n)
    now, head, held, done = 0.0, 0, 0, None  # done: tokens of the head that is begun
    batch = {}  # request -> tokens made
    while head < n or batch:
        if not batch and done is None and arrival[head] > now:
            now = float(arrival[head])
        finished, prompts = [], Work(new=0.0, attended=0.0, kv_read=0.0, sequences=0.0, prompts=0.0)
        chunked = system.token_budget is not None
        left = (system.token_budget - len(batch)) if chunked else system.prefill_tokens
        while head < n:
            if done is None:
                total = n_in[head] + n_out[head]
                slot = len(batch) + len(finished) < slots
                if arrival[head] > now or not slot or held + total > room or left <= 0:
                    break
                work = prefill_work(n_in[head], hit)
                if not chunked and finished and work.new > left:
                    break
                held, done = held + total, 0.0 if hit is None else work.kv_read
            if left <= 0:
                break
            size = min(n_in[head] - done, left) if chunked else n_in[head] - done
            whole = size == n_in[head] - done
            prompts, left = prompts + chunk_work(done, size), left - size
            done += size
            if not whole:
                break
            finished.append(head)
            head, done = head + 1, None
        decoding = list(batch) if chunked or not prompts.prompts else []
        context = float(sum(n_in[r] + batch[r] for r in decoding))
        both = prompts + decode_work(float(len(decoding)), context) if decoding else prompts
        now += float(times.stage_time(both))
        for r in decoding:
            batch[r] += 1
        for r in finished:
            first[r], batch[r] = now, 1
        for r in [r for r in (*decoding, *finished) if batch[r] == n_out[r]]:
            last[r] = now
            held -= n_in[r] + n_out[r]
            del batch[r]
    return first - arrival, (last - first) / np.maximum(np.asarray(n_out) - 1, 1)
