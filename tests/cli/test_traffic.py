"""Traffic on the command line: what is understood, and what the answer says about it."""

import numpy as np
import pytest

STEADY = {"app": None, "gpus": None, "max_gpus": "12"}


@pytest.fixture(scope="module")
def bursts(tmp_path_factory) -> str:
    """One request in 20 s, and 40 within 4 s after 10 minutes; every tenth is long."""
    times = np.sort(np.concatenate([np.arange(0.0, 1200.0, 20.0), 600.05 + 0.1 * np.arange(40)]))
    rows = [f"{t},{3000 if i % 10 == 9 else 400},20" for i, t in enumerate(times)]
    path = tmp_path_factory.mktemp("traces") / "bursts.csv"
    path.write_text("\n".join(["t_s,isl,osl", *rows]) + "\n")
    return str(path)


def test_no_hit_rate_is_the_plan_without_a_cache(ask):
    with_zero, without = (ask("plan", "--json", prefix_hit=hit).json for hit in ("0", None))
    assert with_zero["deployments"] == without["deployments"]
    assert with_zero["inputs"] == without["inputs"]
    assert without["inputs"]["prefix_hit"] == 0.0


def test_rates_of_a_trace_are_printed_and_planned_for(ask, bursts):
    mean = 99 / 1180
    first = ask("check", trace=bursts, app=None)
    text = " ".join(first.out.split())
    assert f"Traffic: {mean:.3g} requests/s on average" in text
    assert "0.717 over the busiest 60 s, 4.10 over the busiest 10 s" in text
    assert "--rate-of mean, peak-60s or peak-10s plans for one" in text
    for of, rate in (("mean", mean), ("peak-60s", 43 / 60), ("peak-10s", 4.1)):
        answer = ask("plan", "--json", rate_of=of, trace=bursts, ttft="2s", **STEADY).json
        assert answer["inputs"]["rate"] == pytest.approx(rate)
        assert answer["inputs"]["trace_rate"] == pytest.approx(mean)
        assert answer["traffic"]["mean_rate"] == pytest.approx(mean)
        assert answer["traffic"]["peak_10s"] == pytest.approx(4.1)
        assert answer["traffic"]["dispersion_60s"] > 4
        assert all(row["rate"] == pytest.approx(rate) for row in answer["deployments"])
        assert all(row["goodput"] >= 0.999 * rate for row in answer["deployments"])
        reasons = answer["deployments"][0]["confidence"]["reasons"]
        # the whole is too irregular for the formulas, its busiest 10 s by themselves are not
        irregular = any("irregular" in reason for reason in reasons)
        assert irregular == (of != "peak-10s"), reasons


def test_a_rate_of_the_traffic_is_a_rate(ask, bursts):
    """The same deployments as for the number itself."""
    named = ask("plan", "--json", rate_of="mean", trace=bursts, ttft="2s", **STEADY).json
    rate = repr(named["inputs"]["rate"])
    number = ask("plan", "--json", rate=rate, trace=bursts, ttft="2s", **STEADY).json
    assert named["deployments"] == number["deployments"]


def test_a_pattern_that_is_asked_for_holds_in_a_window_too(ask, bursts):
    flags = {"rate_of": "peak-10s", "arrival_cv": "1", "trace": bursts, "app": None}
    answer = ask("check", "--json", **flags).json
    assert answer["inputs"]["arrival_cv"] == 1
    assert answer["inputs"]["rate"] == pytest.approx(4.1)
    assert answer["traffic"]["dispersion_60s"] > 4


def test_bursts_are_told_and_replayed(ask, bursts):
    changes = {"trace": bursts, "ttft": "2s", "verify": "1", **STEADY}
    mean = " ".join(ask("plan", rate_of="mean", **changes).out.split())
    assert "BURSTY: gaps between arrivals have a cv of" in mean
    assert "The simulator replays the recorded arrivals" in mean
    peak = " ".join(ask("plan", rate_of="peak-10s", **changes).out.split())
    assert "BURSTY" not in peak
    assert "Replay: 100 recorded requests at their own speed, 0.0839 requests/s" in peak
    minute = " ".join(ask("plan", rate_of="peak-60s", **changes).out.split())
    assert "BURSTY: even inside the busiest window" in minute
    assert "no recording" not in minute
    row = ask("plan", "--json", rate_of="peak-10s", **changes).json["deployments"][0]
    assert row["replayed"]["requests"] == 100
    assert row["replayed"]["attainment"] > 0.9


def test_a_measured_application_needs_no_trace(ask):
    changes = {"app": "azure-code", "gpus": None, "max_gpus": "64", "ttft": "2s"}
    answer = ask("plan", "--json", rate_of="peak-10s", **changes).json
    assert answer["inputs"]["rate"] == answer["traffic"]["peak_10s"] == 41.5
    assert answer["inputs"]["isl"] == pytest.approx(2048, abs=1)
    # nothing to replay, and independent gaps of this cv are no traffic: said, not simulated
    bursty = ask("plan", rate_of="mean", verify="1", **changes)
    assert "There is no recording to replay." in " ".join(bursty.out.split())
    assert "is not cross-checked: a cv of 13.2 between arrivals is too much" in bursty.err
    refused = ask("simulate", rate="1", deployment="1P1D tp1/tp1", app="azure-code")
    assert refused.code == 2


def test_long_requests_are_refused_and_counted(ask, bursts):
    answer = ask("check", "--json", max_model_len="1024", trace=bursts, app=None)
    assert "10 of 100 requests (10.00%) are longer than 1,024 tokens" in answer.err
    assert answer.json["traffic"]["refused_share"] == pytest.approx(0.1)
    assert answer.json["inputs"]["isl"] == 400
    assert answer.json["traffic"]["mean_rate"] == pytest.approx(0.9 * 99 / 1180, rel=0.02)
    text = " ".join(ask("check", max_model_len="1024", trace=bursts, app=None).out.split())
    assert "Refused: 10.00% of the requests are longer than 1,024 tokens" in text
    assert "Refused" not in ask("check", trace=bursts, app=None).out


def test_without_a_limit_long_requests_are_counted(ask, bursts):
    text = " ".join(ask("check", trace=bursts, app=None).out.split())
    assert "Long: 10.00% of the requests exceed the 2,048 tokens that OPT-13B was built" in text
    assert "--max-model-len 2048 refuses them" in text
    longer = ask("check", "--json", trace=bursts, app=None).json["traffic"]["longer_share"]
    assert longer == pytest.approx(0.1)
    for most in ("2048", "4096"):
        again = ask("check", trace=bursts, app=None, max_model_len=most).out
        assert ("Long:" in again) == (most == "4096")
        assert "refuses them" not in again


def test_an_instance_must_hold_the_longest_request_that_is_taken(ask):
    fine = ask("plan", "--json", max_model_len="3072").json["deployments"]
    assert fine == ask("plan", "--json").json["deployments"]
    answer = ask("plan", max_model_len="99999")
    assert answer.code == 3
    assert "the KV of the longest request does not fit" in answer.err


def test_an_overloaded_deployment_is_not_trusted(ask):
    changes = {"rate": "50", "deployment": "2P1D tp1/tp1", "requests": "500"}
    row = ask("simulate", "--json", **changes).json["deployments"][0]
    assert row["confidence"]["level"] == "red"
    assert any(reason.startswith("unstable") for reason in row["confidence"]["reasons"])
    changes["rate"] = "2"
    row = ask("simulate", "--json", **changes).json["deployments"][0]
    assert not any(reason.startswith("unstable") for reason in row["confidence"]["reasons"])


FILE = """
model = "opt-13b"
gpu = "a100"
max-gpus = 8
trace = "nowhere.csv"
rate = 3
arrival-cv = 1
ttft = "250ms"
tpot = "100ms"
profile = "paper"
csv = "out.csv"
"""


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"app": "chatbot"}, {"traffic": "chatbot", "max_gpus": 8, "rate": 3}),
        ({"isl": "100", "osl": "10"}, {"traffic": "100/10", "max_gpus": 8}),
        ({"app": "chatbot", "gpus": "4"}, {"gpus": 4, "max_gpus": None, "rate": 3}),
        ({"app": "azure-code", "rate_of": "mean"}, {"rate": 2.5664, "rate_of": "mean"}),
        ({"app": "chatbot", "concurrency": "9"}, {"rate": None, "concurrency": 9}),
    ],
)
def test_a_flag_replaces_what_a_file_says_in_other_ways(ask, tmp_path, flags, expected):
    path = tmp_path / "question.toml"
    path.write_text(FILE)
    nothing = dict.fromkeys(("model", "gpu", "gpus", "app", "ttft", "tpot", "profile", "verify"))
    answer = ask("check", "--json", config=str(path), **(nothing | flags))
    assert answer.code == 0, answer.err
    assert {name: answer.json["inputs"][name] for name in expected} == expected


def test_a_file_that_contradicts_itself_is_still_refused(refused, tmp_path):
    path = tmp_path / "question.toml"
    path.write_text(FILE + 'app = "chatbot"\n')
    assert "--app and --trace are given together" in refused("check", app=None, config=str(path))
