"""Process-wide JAX settings; the only module that touches ``jax.config``.

Import it before anything else that imports JAX: the native libraries read their log level once.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Literal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no notes of the compiler on stderr
logging.getLogger("jax._src.xla_bridge").setLevel(logging.ERROR)  # nor on platforms not found

import jax  # noqa: E402

NO_CACHE = "FLUIDSERVE_NO_CACHE"
"""Environment variable that, set to anything but 0, keeps compiled programs out of the disk."""


def cache_directory() -> Path:
    """Where compiled programs are kept: fluidserve's place in the user's cache directory."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fluidserve" / f"jax-{jax.__version__}"


def enable_cache() -> Path | None:
    """Keeps compiled programs on disk, so that only the first question of a kind compiles.

    Returns:
      the directory; None where `NO_CACHE` forbids it or the directory cannot be written.
    """
    if os.environ.get(NO_CACHE, "0") not in ("", "0"):
        return None
    try:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    if not os.access(directory, os.W_OK | os.X_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return directory


def set_precision(precision: Literal["f32", "f64"]) -> None:
    """Chooses the width of floating-point numbers for everything that JAX computes from here on."""
    jax.config.update("jax_enable_x64", precision == "f64")
