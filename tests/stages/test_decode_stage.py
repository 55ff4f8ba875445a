"""The decode pool: moments by brute force, the sharing queue's closed form, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from analysis_helpers import affine_instance, quick_jit
from hypothesis import given, settings
from hypothesis import strategies as st

from fluidserve.search.score import as_arrays
from fluidserve.specs.applications import find_application, synthetic_workload
from fluidserve.specs.lengths import length_bins
from fluidserve.specs.workload import JointLengths
from fluidserve.stages.decode import decode_lengths, decode_state, step_time, tpot_within
from fluidserve.testing import assert_no_nan

FIXED, PER_REQUEST = 10e-3, 0.5e-3


def lengths_of(lengths, first_token="prefill"):
    return decode_lengths(as_arrays(length_bins(lengths)), first_token)


CHAT = lengths_of(find_application("chatbot").lengths)
_state = quick_jit(decode_state)


def state(instance, lengths, rate, *, replicas=1.0, max_batch=1e9, transfer=0.0, arrival_scv=1.0):
    replicas, rate, transfer = (jnp.array(float(x)) for x in (replicas, rate, transfer))
    return _state(
        instance,
        lengths,
        replicas,
        rate,
        max_batch=max_batch,
        transfer=transfer,
        arrival_scv=arrival_scv,
    )


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
def test_moments_of_requests_one_by_one(first_token):
    """3,000 pairs, every decode step of every request listed.

    Inside an output bin the prompt counts as independent of the output, and a second moment over
    steps as an integral: moments of both together are within 1 %, their variances
    within 10 %, even for lengths as correlated as these.
    """
    rng = np.random.default_rng(0)
    n_in = np.rint(rng.lognormal(6.0, 0.7, 3000)) + 1
    n_out = np.rint(n_in**0.5 * rng.lognormal(1.5, 0.8, 3000)) + 1
    n_out[::20] = 1
    extra = 0 if first_token == "prefill" else 1
    steps = (n_out - 1 + extra).astype(int)
    reserved = n_in + n_out
    contexts = np.concatenate(
        [prompt + np.arange(1, s + 1) - extra for prompt, s in zip(n_in, steps, strict=True)]
    )
    of_step = np.repeat(np.arange(3000), steps)
    got = lengths_of(JointLengths(n_in=n_in, n_out=n_out), first_token)

    assert float(got.mean_steps) == pytest.approx(steps.mean())
    assert float(got.context) == pytest.approx(contexts.mean(), rel=0.01)
    assert float(got.context_var) == pytest.approx(contexts.var(), rel=0.1)
    assert float(got.reserved) == pytest.approx(reserved[of_step].mean(), rel=0.01)
    assert float(got.reserved_var) == pytest.approx(reserved[of_step].var(), rel=0.1)
    held = reserved * steps
    assert float(got.hold_scv) == pytest.approx(held.var() / held.mean() ** 2, rel=0.1)
    assert float(got.steps_scv) == pytest.approx(steps.var() / steps.mean() ** 2, rel=1e-6)
    residual = (steps**2).mean() / (2 * steps.mean())
    assert float(got.residual) == pytest.approx(residual, rel=1e-9)
    leftover = (reserved**2).mean() / (2 * reserved.mean())
    assert float(got.leftover) == pytest.approx(leftover, rel=0.01)


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
def test_sharing_with_an_affine_step_time(load):
    """Product form: E n = p (a + b) / (b (1 - p)), TPOT (a + b) / (1 - p), p = lambda E[o] b.

    Cohen 1979: insensitive to the law of the output lengths; n is negative binomial with variance
    E n / (1 - p).
    """
    instance = affine_instance(FIXED, PER_REQUEST)
    demand = load / PER_REQUEST
    got = state(instance, CHAT, demand / float(CHAT.mean_steps))
    tpot = (FIXED + PER_REQUEST) / (1 - load)
    assert float(got.step) == pytest.approx(tpot, rel=1e-6)
    assert float(got.batch) == pytest.approx(demand * tpot, rel=1e-6)
    variance = demand * tpot / (1 - load)
    assert float(got.step_var) == pytest.approx(PER_REQUEST**2 * variance, rel=1e-6)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_product_form_summed_term_by_term(load):
    """P(n) is proportional to the product of a tau(i) / i: no closed form used."""
    demand = load / PER_REQUEST
    i = np.arange(1, 4000)
    logs = np.concatenate([[0.0], np.cumsum(np.log(demand * (FIXED + PER_REQUEST * i) / i))])
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    n = np.arange(4000)
    mean = weight @ n
    instance = affine_instance(FIXED, PER_REQUEST)
    got = state(instance, CHAT, demand / float(CHAT.mean_steps))
    assert float(got.batch) == pytest.approx(mean, rel=1e-6)
    variance = weight @ (n - mean) ** 2
    assert float(got.step_var) == pytest.approx(PER_REQUEST**2 * variance, rel=1e-6)
    off = state(instance, CHAT, 1.05 * demand / float(CHAT.mean_steps))
    assert float(off.batch) != pytest.approx(mean, rel=0.03)


def test_context_counts_in_the_step():
    """Time per token of KV read: a request of mean context c costs b + kv c."""
    per_kv = 1e-7
    instance = affine_instance(FIXED, PER_REQUEST, per_kv)
    b = PER_REQUEST + per_kv * float(CHAT.context)
    demand = 0.6 / b
    got = state(instance, CHAT, demand / float(CHAT.mean_steps))
    assert float(got.step) == pytest.approx((FIXED + b) / 0.4, rel=1e-6)
    spread = per_kv**2 * float(CHAT.context_var) * float(got.batch)
    variance = b**2 * float(got.batch) / 0.4
    assert float(got.step_var) == pytest.approx(variance + spread, rel=1e-6)


def test_step_of_a_pipeline():
    """Two lanes of half the batch, each passing two stages."""
    one, two = affine_instance(1e-3, 1e-4), affine_instance(1e-3, 1e-4, pp=2.0)
    batch = jnp.array(40.0)
    assert float(step_time(one, CHAT, batch)) == pytest.approx(1e-3 + 40e-4)
    assert float(step_time(two, CHAT, batch)) == pytest.approx(2 * (1e-3 + 20e-4))
    assert float(step_time(two, CHAT, jnp.array(1.0))) == pytest.approx(2 * (1e-3 + 1e-4))


def test_memory_and_cap_limit_the_slots():
    roomy = affine_instance(FIXED, PER_REQUEST, kv_capacity=50_000.0)
    got = state(roomy, CHAT, 1.0)
    expected = (50_000 - float(CHAT.leftover)) / float(CHAT.reserved)
    assert float(got.slots) == pytest.approx(expected)
    assert float(state(roomy, CHAT, 1.0, max_batch=8.0).slots) == 8.0
    full = 1.0 * float(CHAT.mean_steps) * (FIXED + PER_REQUEST * expected) / expected
    assert float(got.full) == pytest.approx(full)
    held = float(state(roomy, CHAT, 1.0, transfer=2.0).slots)
    assert held == pytest.approx(expected - 2.0)


def test_waits_for_a_slot_vanish_with_memory():
    rate = 0.6 / PER_REQUEST / float(CHAT.mean_steps)
    found = [
        float(state(affine_instance(FIXED, PER_REQUEST, kv_capacity=room), CHAT, rate).waits)
        for room in (4e4, 6e4, 1e12)
    ]
    assert found[0] > 0.1 > found[1] > found[2]
    assert found[2] == 0.0


def test_one_slot_is_a_queue_of_one_server():
    """max_batch 1: an M/G/1 queue; the chance of a wait is near its load."""
    steps = lengths_of(synthetic_workload(100, 101).lengths)
    instance = affine_instance(10e-3, 0.0)
    got = state(instance, steps, 0.5, max_batch=1.0)
    assert float(got.full) == pytest.approx(0.5)
    assert 0.2 < float(got.waits) < 0.9


def share(found, lengths, limit, *, handover=0.0, first_token="prefill"):
    return np.asarray(
        tpot_within(
            found,
            lengths,
            jnp.array(limit),
            handover=jnp.array(handover),
            handover_var=jnp.array(0.7 * handover**2),
            first_token=first_token,
        )
    )


def test_single_tokens_always_meet_tpot():
    n_out = np.concatenate([np.ones(100), np.arange(2, 400)])
    mixed = lengths_of(JointLengths(n_in=np.full(len(n_out), 9), n_out=n_out))
    found = state(affine_instance(FIXED, PER_REQUEST), mixed, 1.0)
    got = share(found, mixed, 1e-9)
    assert got[0] == 1.0
    assert (got[1:] < 1e-6).all()


def test_overload_meets_nothing_and_is_no_nan():
    small = affine_instance(FIXED, PER_REQUEST, kv_capacity=20_000.0)
    found = state(small, CHAT, 1e3)
    assert float(found.full) > 1
    assert_no_nan(found)
    assert (share(found, CHAT, 1e9) == 0.0).all()


def test_longer_requests_average_more():
    """At the mean step time half meet it; above, long requests are the surer ones."""
    found = state(affine_instance(FIXED, PER_REQUEST), CHAT, 0.7 / 0.5e-3 / 200)
    got = share(found, CHAT, 1.15 * float(found.step), first_token="decode")
    filled = np.asarray(CHAT.gaps) > 1
    assert (np.diff(got[filled]) >= -1e-9).all()
    middle = share(found, CHAT, float(found.step), first_token="decode")
    np.testing.assert_allclose(middle[filled], 0.5, atol=1e-6)


def test_handover_counts_in_tpot_only_when_prefill_sends_the_first_token():
    found = state(affine_instance(FIXED, PER_REQUEST), CHAT, 3.0)
    limit = 1.1 * float(found.step)
    with_it = share(found, CHAT, limit, handover=1.0)
    without = share(found, CHAT, limit, handover=0.0)
    assert (with_it[1:] <= without[1:]).all()
    assert with_it[2] < without[2]
    apart = [share(found, CHAT, limit, handover=h, first_token="decode") for h in (0.0, 1.0)]
    np.testing.assert_array_equal(*apart)


@settings(deadline=None, max_examples=60)
@given(
    load=st.floats(0.01, 0.97),
    replicas=st.integers(1, 16),
    room=st.floats(5e3, 1e7),
    limit=st.floats(0.013, 1.0),
    arrival_scv=st.floats(0.2, 4.0),
)
def test_share_within_falls_with_load_and_grows_with_the_limit(
    load, replicas, room, limit, arrival_scv
):
    instance = affine_instance(FIXED, PER_REQUEST, kv_capacity=room)
    rate = load * replicas / PER_REQUEST / float(CHAT.mean_steps)

    def at(factor):
        return state(instance, CHAT, factor * rate, replicas=replicas, arrival_scv=arrival_scv)

    one, more = at(1.0), at(1.03)
    assert_no_nan(one)
    got = share(one, CHAT, limit)
    assert ((got >= 0) & (got <= 1)).all()
    assert (share(one, CHAT, 1.1 * limit) >= got - 1e-9).all()
    assert (share(more, CHAT, limit) <= got + 1e-3).all()
    assert float(more.batch) >= float(one.batch) - 1e-9


@settings(deadline=None, max_examples=20)
@given(unit=st.floats(1e-3, 1e3))
def test_scales_with_the_unit_of_time(unit):
    small = affine_instance(FIXED, PER_REQUEST, 1e-8, kv_capacity=6e4)
    large = affine_instance(unit * FIXED, unit * PER_REQUEST, unit * 1e-8, kv_capacity=6e4)
    one, other = state(small, CHAT, 4.0), state(large, CHAT, 4.0 / unit)
    assert float(other.batch) == pytest.approx(float(one.batch), rel=1e-6)
    assert float(other.step) == pytest.approx(unit * float(one.step), rel=1e-6)
    assert float(other.waits) == pytest.approx(float(one.waits), rel=1e-4, abs=1e-9)


def test_two_instances_share_better_than_one_each():
    instance = affine_instance(FIXED, PER_REQUEST, kv_capacity=8e4)
    one, two = state(instance, CHAT, 5.0), state(instance, CHAT, 10.0, replicas=2.0)
    assert float(two.waits) < float(one.waits)
    assert float(two.full) == pytest.approx(float(one.full))


@pytest.mark.parametrize("first_token", ["prefill", "decode"])
@pytest.mark.parametrize("replicas", [1.0, 2.0])
def test_gradients_are_finite_everywhere(first_token, replicas):
    lengths = lengths_of(find_application("chatbot").lengths, first_token)

    @quick_jit
    def slopes(instance, rate, limit):
        def met(instance, rate, limit):
            found = decode_state(
                instance,
                lengths,
                jnp.array(replicas),
                rate,
                max_batch=jnp.array(256.0),
                transfer=jnp.array(0.01),
            )
            within = tpot_within(
                found,
                lengths,
                limit,
                handover=jnp.array(0.01),
                handover_var=jnp.array(7e-5),
                first_token=first_token,
            )
            return jnp.sum(within)

        return jax.grad(met, argnums=(0, 1, 2))(instance, rate, limit)

    instance = affine_instance(FIXED, PER_REQUEST, 1e-8, kv_capacity=6e4)
    for rate in (0.0, 1e-6, 2.0, 5.0, 10.0, 1e3):
        for limit in (1e-6, 0.0123, 1e6):
            assert_no_nan(slopes(instance, jnp.array(rate), jnp.array(limit)))


def test_a_batch_equals_its_members():
    instances = [affine_instance(FIXED, b, kv_capacity=c) for b, c in ((1e-4, 4e4), (9e-4, 9e4))]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *instances)
    rates, replicas, transfer = jnp.array([3.0, 4.0]), jnp.array([1.0, 3.0]), jnp.zeros(2)
    batch = _state(stacked, CHAT, replicas, rates, max_batch=64.0, transfer=transfer)
    for i, instance in enumerate(instances):
        one = state(instance, CHAT, rates[i], replicas=replicas[i], max_batch=64.0)
        assert jax.tree.structure(batch) == jax.tree.structure(one)
        for got, expected in zip(jax.tree.leaves(batch), jax.tree.leaves(one), strict=True):
            assert float(got[i]) == pytest.approx(float(expected), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("pp", [1.0, 2.0, 4.0])
def test_a_lone_request_waits_for_nobody(pp):
    """Its step is its own pass: no lane is slower, and no running step is waited for."""
    instance = affine_instance(FIXED / pp, PER_REQUEST / pp, per_kv=1e-7, pp=pp)
    idle = state(instance, CHAT, 1e-6)
    own = float(step_time(instance, CHAT, jnp.array(1.0)))
    assert float(idle.step) == pytest.approx(own, rel=1e-4)
    assert float(idle.joining()) < 1e-3 * own
    busy = state(instance, CHAT, 5.0)
    assert float(busy.joining()) == pytest.approx(0.5 * float(busy.step))
