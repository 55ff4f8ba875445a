"""Looking things up by name the way people write names."""

import difflib
import re
from collections.abc import Iterable

_TUNED = re.compile(r"-(instruct|hf|chat)\Z")
_VENDOR = re.compile(r"\A(nvidia|amd|intel|google)-")


def normal_name(name: str) -> str:
    """A name regardless of case, of ``_``, ``-`` and spaces, and of a leading organisation.

    Example:
      >>> normal_name("NVIDIA/H100_SXM"), normal_name("Mistral  7B")
      ('h100-sxm', 'mistral-7b')
    """
    words = re.split(r"[\s_-]+", name.rsplit("/", 1)[-1].lower())
    return "-".join(word for word in words if word)


def normal_model_name(name: str) -> str:
    """`normal_name` without the endings of tuned variants, which have the same shapes.

    Example:
      >>> normal_model_name("meta-llama/Llama-2-7b-chat-hf")
      'llama-2-7b'
    """
    short = normal_name(name)
    while _TUNED.search(short):
        short = _TUNED.sub("", short)
    return short


def normal_gpu_name(name: str) -> str:
    """`normal_name` without the vendor.

    Example:
      >>> normal_gpu_name("NVIDIA A100-SXM4-80GB")
      'a100-sxm4-80gb'
    """
    return _VENDOR.sub("", normal_name(name))


def joined(normal: str) -> str:
    """A normal name written as one word, so that ``opt13b`` finds ``OPT-13B``.

    Example:
      >>> joined("h100-sxm")
      'h100sxm'
    """
    return normal.replace("-", "")


def suggestion(wanted: str, known: Iterable[str]) -> str:
    """The names closest to `wanted` as the end of an error message, or all of them.

    Args:
      wanted: a name in normal form.
      known: names as people should write them.
    """
    by_normal = {normal_name(name): name for name in known}
    close = difflib.get_close_matches(wanted, by_normal, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(by_normal[c] for c in close)}?"
    return f"known are {', '.join(by_normal.values())}"
