"""Configs by the names of checkpoints on Hugging Face, where `huggingface_hub` is installed."""

import contextlib
import re
from pathlib import Path

from fluidserve.errors import InputError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z")


def is_repository(name: str) -> bool:
    """Whether a name has the form of a checkpoint's, ``organisation/name``.

    Example:
      >>> is_repository("Qwen/Qwen3-8B"), is_repository("opt-13b"), is_repository("a/b/c")
      (True, False, False)
    """
    return _REPOSITORY.match(name) is not None


def fetch_config(name: str, otherwise: str) -> Path:
    """The ``config.json`` of a checkpoint, from the local cache or the network.

    ``hf_quant_config.json`` is fetched beside it where there is one; weights never are.

    Args:
      name: ``organisation/name``.
      otherwise: what to say besides when nothing can be fetched.

    Raises:
      InputError: `huggingface_hub` is not installed, or it cannot fetch the file.
    """
    where = f"model {name!r} is neither a file nor in the catalog"
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportMissingImports]
        from huggingface_hub.errors import (  # pyright: ignore[reportMissingImports]
            EntryNotFoundError,
        )
    except ImportError:
        raise InputError(
            f"{where}, and huggingface_hub is not installed to fetch its config (pip install "
            f"huggingface_hub); {otherwise}"
        ) from None
    try:
        path = Path(hf_hub_download(repo_id=name, filename="config.json"))
        with contextlib.suppress(EntryNotFoundError):
            hf_hub_download(repo_id=name, filename="hf_quant_config.json")
    except Exception as error:  # whatever a network, a gate or a name can do
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{where}, and its config cannot be fetched from Hugging Face "
            f"({type(error).__name__}: {reason}); {otherwise}"
        ) from None
    return path
