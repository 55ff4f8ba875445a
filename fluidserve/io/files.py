"""Files that an answer is written to: refused early, and complete or not there at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fluidserve.errors import InputError


def check_target(path: str, flag: str) -> None:
    """Refuses a file that could not be written, before anything is computed.

    Args:
      path: as the user gave it; a link stands for what it points to.
      flag: that named it, for the message.

    Raises:
      InputError: no such directory, not a regular file, or no permission.
    """
    target = Path(os.path.realpath(path))  # a link must not be replaced by the file
    folder = target.parent
    if not folder.is_dir():
        raise InputError(f"{flag} {path}: there is no directory {folder}")
    if target.exists() and not target.is_file():
        raise InputError(f"{flag} {path}: is not a regular file; give another name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{flag} {path}: the directory {folder} cannot be written to")


@contextlib.contextmanager
def complete_file(path: str, flag: str) -> Iterator[Path]:
    """A temporary file to fill, which takes the name `path` once the block ends without an error.

    Raises:
      InputError: the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        os.close(handle)
        try:
            yield Path(name)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise InputError(f"{flag} {path}: cannot be written ({error.strerror})") from None


def _umask() -> int:
    """The permissions that new files are denied, which can only be read by setting them."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
