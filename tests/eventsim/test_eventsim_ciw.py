"""The prefill pool against Ciw, an independent general-purpose simulator."""

import math

import ciw
import numpy as np
import pytest
from eventsim_helpers import LinearTimes, batch_means, make_system

from fluidserve.eventsim import gamma_arrivals, run

CUSTOMERS = 30_000


def ciw_waits(servers, rate, service, seed):
    network = ciw.create_network(
        arrival_distributions=[ciw.dists.Exponential(rate)],
        service_distributions=[service],
        number_of_servers=[servers],
    )
    ciw.seed(seed)
    simulation = ciw.Simulation(network)
    simulation.simulate_until_max_customers(CUSTOMERS, method="Finish")
    records = sorted(simulation.get_all_records(), key=lambda r: r.arrival_date)
    return np.array([r.waiting_time for r in records])


def own_waits(servers, rate, service, seed):
    rng = np.random.default_rng(seed)
    arrival = gamma_arrivals(CUSTOMERS, rng, stratify=False) / rate
    system = make_system(LinearTimes(fixed=0.0, per_new=0.001), n_prefill=servers)
    n_in = 1000 * rng.choice(service[0], p=service[1], size=CUSTOMERS)
    records = run(system, arrival, n_in, np.ones(CUSTOMERS))
    return records.prefill_start - records.arrival


@pytest.mark.parametrize(
    ("servers", "rho", "service", "theirs"),
    [
        (3, 0.8, ([1], [1.0]), ciw.dists.Deterministic(1.0)),
        (2, 0.7, ([1, 2, 6], [0.5, 0.3, 0.2]), ciw.dists.Pmf([1, 2, 6], [0.5, 0.3, 0.2])),
    ],
    ids=["M/D/3", "M/G/2"],
)
def test_prefill_pool_agrees_with_ciw(servers, rho, service, theirs):
    rate = servers * rho / np.dot(*service)
    ours = own_waits(servers, rate, service, seed=21)
    other = ciw_waits(servers, rate, theirs, seed=22)
    for name, a, b in (("wait", ours, other), ("P(W>0)", ours > 1e-9, other > 1e-9)):
        (x, sx), (y, sy) = batch_means(a), batch_means(b)
        bound = 4 * math.hypot(sx, sy)
        assert bound < 0.35 * y, f"{name}: too few customers to tell"
        assert abs(x - y) <= bound, (name, x, y, bound)
