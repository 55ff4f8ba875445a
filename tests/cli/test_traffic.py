"""Traffic on the command line: what is understood, and what the answer says about it."""


def test_no_hit_rate_is_the_plan_without_a_cache(ask):
    with_zero, without = (ask("plan", "--json", prefix_hit=hit).json for hit in ("0", None))
    assert with_zero["deployments"] == without["deployments"]
    assert with_zero["inputs"] == without["inputs"]
    assert without["inputs"]["prefix_hit"] == 0.0


def test_a_hit_rate_names_the_traffic_that_has_it(ask):
    answer = ask("plan", prefix_hit="0.5", app=None, isl="600", osl="40")
    text = " ".join(answer.out.split())
    assert "Prefix cache: 50.0% of every prompt" in text
    assert "--random-prefix-len 300 --random-input-len 300 --random-output-len 40" in text
    assert "Prefix cache" not in ask("plan", app=None, isl="600", osl="40").out
