"""Everything a user can get wrong: one clear line on stderr, exit code 2, nothing on stdout."""

import gzip

import pytest

FLAGS = [
    ({"ttft": "-1ms"}, "--ttft: -1ms must be greater than zero"),
    ({"ttft": "0s"}, "--ttft: 0s must be greater than zero"),
    ({"ttft": "nanms"}, "--ttft: nanms must be greater than zero"),
    ({"ttft": "1e30s"}, "--ttft: 1e30s is out of range"),
    ({"ttft": "300"}, "--ttft: '300' has no unit; write for example 300ms"),
    ({"tpot": "50MS"}, "units are case-sensitive, did you mean ms?"),
    ({"tpot": ""}, "--tpot: '' is not a quantity"),
    ({"ttft": None, "tpot": None}, "give at least one of --ttft, --tpot, --e2e and --itl"),
    ({"model": None}, "--model must be given"),
    ({"ttft": "p0:1s"}, "--ttft: 'p0:1s' begins with no percentile above p0 and below p100"),
    ({"tpot": "p100:1s"}, "--tpot: 'p100:1s' begins with no percentile above p0 and below p100"),
    ({"e2e": "p101:1s"}, "write for example p95:500ms"),
    ({"e2e": "95:1s"}, "--e2e: '95:1s' begins with no percentile"),
    ({"e2e": "pinf:1s"}, "--e2e: 'pinf:1s' begins with no percentile"),
    ({"ttft": "p95:"}, "--ttft: '' is not a quantity"),
    ({"ttft": "p95:500"}, "--ttft: '500' has no unit"),
    ({"ttft": "p95 500ms"}, "--ttft: 'p95 500ms' is not a quantity"),
    ({"itl": "100ms"}, "--itl: '100ms' names no percentile; a limit on ITL is for a share of all"),
    ({"itl": "100ms"}, "write for example p99:100ms"),
    ({"itl": "p99:0.1"}, "--itl: '0.1' has no unit"),
    ({"itl": "p99:100ms", "horizon": "100"}, "--itl and --horizon are given together"),
    ({"e2e": "inf"}, "--e2e: 'inf' has no unit"),
    (
        {"ttft": "p95:1s", "tpot": "p90:1s", "attainment": "0.9"},
        "--attainment is of limits without a percentile, and each limit has one",
    ),
    ({"attainment": "1.5"}, "--attainment: '1.5' must be below 1"),
    ({"horizon": "5"}, "--horizon: '5' must be at least 10"),
    ({"horizon": "many"}, "--horizon: 'many' must be a number"),
    ({"attainment": "0"}, "--attainment: '0' must be above 0"),
    ({"attainment": "nan"}, "--attainment: 'nan' must be a finite number"),
    ({"attainment": "most"}, "--attainment: 'most' must be a number"),
    ({"gpus": "-3"}, "--gpus: '-3' must be at least 1"),
    ({"gpus": "1e9"}, "--gpus: '1e9' must be at most 4,096"),
    ({"gpus": "2.5"}, "--gpus: '2.5' must be a whole number"),
    ({"gpus": "1"}, "a disaggregated deployment needs at least 2 GPUs"),
    ({"gpus": None}, "give --gpus N for the most goodput within N GPUs, or --rate R"),
    ({"gpus": None, "max_gpus": "8"}, "or --rate R"),
    ({"max_gpus": "8", "rate": "1"}, "--gpus and --max-gpus are given together"),
    ({"top": "0"}, "--top: '0' must be at least 1"),
    ({"verify": "-1"}, "--verify: '-1' must be at least 0"),
    ({"app": None}, "no traffic: give --isl and --osl, or --app, or --trace"),
    ({"app": None, "isl": "100"}, "--isl is given without --osl"),
    ({"app": None, "osl": "100"}, "--osl is given without --isl"),
    ({"app": None, "isl_cv": "1"}, "--isl-cv is given without --isl"),
    ({"app": None, "isl": "0", "osl": "5"}, "isl=0.0 is not a length"),
    ({"app": None, "isl": "5", "osl": "1e9"}, "osl=1000000000.0 is not a length"),
    ({"trace": "x.csv"}, "--app and --trace are given together"),
    ({"isl": "5", "osl": "5"}, "--isl and --app are given together"),
    ({"app": "chatty"}, "unknown application 'chatty', did you mean 'chatbot'?"),
    ({"model": "opt-13c"}, "did you mean OPT-13B"),
    ({"gpu": "a1000"}, "gpu 'a1000' is neither a .toml file nor in the catalog"),
    ({"profile": "nope"}, "neither a file nor one of default, paper"),
    ({"link": "0Gb/s"}, "--link: 0Gb/s must be greater than zero"),
    ({"link": "200gb/s"}, "did you mean GB/s or Gb/s?"),
    ({"rate": "-1"}, "--rate: -1 must be greater than zero"),
    ({"rate": "1e30"}, "--rate: 1e30 is out of range"),
    ({"first_token": "both"}, "--first-token: 'both' must be prefill or decode"),
    ({"weight_dtype": "fp2"}, "weight_dtype: 'fp2' must be one of"),
    ({"kv_dtype": "int4"}, "kv_dtype: 'int4' must be one of"),
    ({"memory_utilization": "0"}, "--memory-utilization: '0' must be above 0"),
    ({"memory_utilization": "2"}, "--memory-utilization: '2' must be at most 1"),
    ({"max_batch": "0"}, "--max-batch: '0' must be at least 1"),
    ({"concurrency": "0"}, "--concurrency: '0' must be at least 1"),
    ({"concurrency": "2.5"}, "--concurrency: '2.5' must be a whole number"),
    ({"concurrency": "8", "rate": "1"}, "--concurrency and --rate are given together"),
    ({"concurrency": "8", "arrival_cv": "1"}, "--concurrency and --arrival-cv are given together"),
    ({"concurrency": "8", "horizon": "50"}, "--concurrency and --horizon are given together"),
    ({"concurrency": "8", "plot": "x.png"}, "--concurrency and --plot are given together"),
    ({"arrival_cv": "-1"}, "--arrival-cv: '-1' must be at least 0"),
    ({"arrival_cv": "30"}, "--arrival-cv: '30' must be at most 10"),
    ({"prefix_hit": "1"}, "--prefix-hit: '1' must be below 1"),
    ({"prefix_hit": "-0.1"}, "--prefix-hit: '-0.1' must be at least 0"),
    ({"rate": "1", "rate_of": "mean"}, "--rate and --rate-of are given together"),
    ({"rate_of": "median"}, "--rate-of: 'median' must be mean, peak-60s or peak-10s"),
    ({"rate_of": "mean"}, "--rate-of mean: chatbot brings no arrival rate"),
    ({"rate_of": "mean", "app": None, "isl": "9", "osl": "9"}, "--rate-of needs traffic that has"),
    ({"max_model_len": "1"}, "--max-model-len: '1' must be at least 2"),
    ({"max_model_len": "2"}, "--max-model-len 2: every request is longer"),
    ({"csv": "no/such/folder/x.csv"}, "there is no directory"),
    ({"csv": "."}, "is not a regular file"),
    ({"dispatch": "fastest"}, "--dispatch: 'fastest' must be shared, jsq, round-robin or random"),
    ({"prefill_tokens": "0"}, "--prefill-tokens: '0' must be at least 1"),
    ({"prefill_tokens": "900", "prefill_batch": "1"}, "leaves --prefill-tokens nothing to do"),
]


@pytest.mark.parametrize(("changes", "message"), FLAGS, ids=lambda x: str(x)[:40])
def test_flags(refused, changes, message):
    assert message in refused("plan", **changes)


def test_long_values_are_cut(refused):
    assert len(refused("plan", model="x" * 10_000)) < 1500


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--json", "--csv", "x.csv"], "--json and --csv are given together"),
        (["--gpuss", "3"], "--gpuss"),
        (["--gpus"], "requires an argument"),
        (["more"], "more"),
    ],
)
def test_usage(refused, extra, message):
    assert message in refused("plan", *extra)


TRACES = {
    "empty": (b"", "the file is empty"),
    "headless": (b"0.1,10,10\n0.2,10,3\n", "not the names of the columns"),
    "header only": (b"t_s,input_tokens,output_tokens\n", "a header and no rows"),
    "other columns": (b"a,b\n1,2\n", "no column of prompt tokens"),
    "cut row": (b"t_s,input_tokens,output_tokens\n0.1,9,9\n0.2,9\n", "line 3: 2 columns"),
    "cut gzip": (gzip.compress(b"t_s,input_tokens,output_tokens\n" * 99)[:40], "cut short"),
    "binary": (bytes(range(256)), "not UTF-8 text"),
}


@pytest.mark.parametrize("kind", TRACES)
def test_traces(refused, tmp_path, kind):
    content, message = TRACES[kind]
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    line = refused("plan", app=None, trace=str(path))
    assert message in line
    assert str(path) in line


CONFIGS = {
    "unknown key": (b"modle = 'opt-13b'", "modle is not an input; did you mean model?"),
    "unlike any key": (b"zzz = 1", "zzz is not an input; known are app, arrival-cv,"),
    "wrong type": (b"model = 3", "model: 3 must be text"),
    "truth value": (b"gpus = true", "gpus: True must be a number"),
    "number without unit": (b"ttft = 0.3", "ttft: '0.3' has no unit"),
    "out of range": (b"max-gpus = -3", "max-gpus: -3 must be at least 1"),
    "binary": (b"\xff\xfe\x00\x81", "is not text; give a TOML file"),
    "not TOML": (b"model: opt", "is not TOML"),
    "both spellings": (b"isl_cv = 1\nisl-cv = 1", "'isl-cv' is given twice"),
    "itself": (b"config = 'x'", "config is not an input"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_config_files(refused, tmp_path, kind):
    content, message = CONFIGS[kind]
    path = tmp_path / "in.toml"
    path.write_bytes(content)
    taken = {name: None for name in ("model", "gpus", "ttft")}
    line = refused("plan", config=str(path), **taken)
    assert message in line
    assert str(path) in line


def test_config_files_that_are_not_there(refused, tmp_path):
    assert "No such file" in refused("plan", config=str(tmp_path / "none.toml"))
    assert "directory" in refused("plan", config=str(tmp_path))


SIMULATIONS = [
    ({}, "--deployment must be given"),
    ({"deployment": "three"}, "'three' is not a label; write for example '3P1D tp2/tp4'"),
    ({"deployment": "0P1D tp1/tp1"}, "count of zero"),
    ({"deployment": "1P1D tp3/tp1"}, "prefill tp=3 does not divide 40 attention heads"),
    ({"deployment": "1P1D tp1/tp16"}, "decode tp=16 does not divide 40 attention heads"),
    ({"deployment": "1P1D tp1/tp20"}, "decode tp=20 exceeds the 8 GPUs of a node"),
    ({"deployment": "1P1D tp1pp64/tp1"}, "prefill pp=64 exceeds 40 layers"),
    ({"deployment": "3P1D tp1/tp1"}, "takes 4 GPUs; the budget is 3"),
    ({"deployment": "1P1D tp1/tp1", "requests": "3"}, "--requests: '3' must be at least 100"),
    ({"deployment": "1P1D tp1/tp1", "seed": "-1"}, "--seed: '-1' must be at least 0"),
]


@pytest.mark.parametrize(("changes", "message"), SIMULATIONS, ids=lambda x: str(x)[-30:])
def test_simulations(refused, changes, message):
    assert message in refused("simulate", **changes)


@pytest.mark.parametrize("command", ["models", "gpus"])
def test_catalog_names(capsys, command):
    from fluidserve.cli import main

    assert main([command, "nope"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "'nope' is neither a" in captured.err
