"""What chunked prefill reads again: each chunk attends to the KV of all chunks before it."""


def reread_tokens(n_in: int, chunk: int) -> int:
    """Tokens whose KV is read again when a prompt is prefilled in chunks.

    Chunk i (from 0) reads the ``i * chunk`` tokens before it. An unchunked prompt reads none again;
    the sum grows with the square of the number of chunks.

    Args:
      n_in: prompt tokens.
      chunk: tokens of a chunk; the last one may be shorter.

    Raises:
      ValueError: a count below one.

    Example:
      >>> reread_tokens(2048, 256)
      7168

    Source: Agrawal et al., Sarathi-Serve, OSDI 2024 (the overhead of chunked prefills).
    """
    if n_in < 1 or chunk < 1:
        raise ValueError(f"n_in={n_in} and chunk={chunk} must be at least 1")
    return sum(range(0, n_in, chunk))
