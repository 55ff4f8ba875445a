"""Process-wide settings: the cache on disk and the precision."""

import jax
import jax.numpy as jnp
import pytest

from fluidserve import runtime


@pytest.fixture
def updates(monkeypatch, tmp_path):
    """What would be set in ``jax.config``, with a cache directory of our own."""
    seen = {}
    monkeypatch.setattr(runtime.jax.config, "update", seen.__setitem__)
    monkeypatch.setattr(runtime.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(runtime.NO_CACHE, raising=False)
    return seen


def test_cache_lies_in_the_users_cache_directory(updates, tmp_path):
    directory = runtime.enable_cache()
    assert directory == tmp_path / "cache" / "fluidserve" / f"jax-{jax.__version__}"
    assert directory.is_dir()
    assert updates == {
        "jax_compilation_cache_dir": str(directory),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }


def test_cache_can_be_forbidden(updates, monkeypatch):
    monkeypatch.setenv(runtime.NO_CACHE, "1")
    assert runtime.enable_cache() is None
    assert updates == {}


def test_a_directory_that_cannot_be_written_is_skipped(updates, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert runtime.enable_cache() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(runtime.os, "access", lambda *_: False)
    assert runtime.enable_cache() is None
    assert updates == {}


@pytest.mark.parametrize(
    ("platform", "variable", "place"),
    [
        ("linux", None, ".cache/fluidserve"),
        ("darwin", None, "Library/Caches/fluidserve"),
        ("win32", None, "AppData/Local/fluidserve"),
        ("win32", "LOCALAPPDATA", "mine/fluidserve"),
        ("darwin", "XDG_CACHE_HOME", "mine/fluidserve"),
    ],
)
def test_cache_directory_of_each_platform(platform, variable, place, monkeypatch, tmp_path):
    monkeypatch.setattr(runtime.sys, "platform", platform)
    monkeypatch.setattr(runtime.Path, "home", lambda: tmp_path)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "mine"))
    assert runtime.cache_directory().parent == tmp_path / place


def test_precision():
    runtime.set_precision("f64")
    assert jnp.ones(()).dtype == "float64"
    runtime.set_precision("f32")
    assert jnp.ones(()).dtype == "float32"
