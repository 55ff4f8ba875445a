"""How many prefill and decode instances, and what disaggregation gains on three applications.

``python -m experiments.03_ratios.run`` puts numbers into the README beside this file and draws its
pictures: OPT-13B and OPT-66B on A100, profile `paper`, no link time.
"""

import os
from pathlib import Path

from experiments.lecture import comparison, write_blocks

from . import applications, scales, splits

HERE = Path(__file__).parent


def main() -> None:
    """Writes the README's numbers and draws the pictures."""
    six = splits.both()
    found = [applications.search(a) for a in applications.APPLICATIONS]
    tight = scales.scales()
    ours: dict[str, float | str] = {
        **splits.gain(),
        "ratio-6gpu-short": six[0].best,
        "ratio-6gpu-chat": six[1].best,
        **splits.exercise(),
        **applications.rows_of(found),
        **scales.rows_of(tight),
    }
    gains = [one.gain for one in found]
    single = [one.per_gpu("disaggregated") / one.vllm for one in found]
    together, apart = (tight.named[label].scale for label in ("1C tp1", "1P1D tp2/tp1"))
    claim = (
        f"The best split of six GPUs is {six[0].best} for prompts of 512 and answers of 64 tokens, "
        f"and {six[1].best} for chat. Three GPUs as 2P1D serve {ours['2p1d-per-gpu-gain']:.2f} "
        f"times as much per GPU as colocated ones. On three applications the best disaggregated "
        f"deployment of {applications.GPUS} GPUs serves {min(single):.2f} to {max(single):.2f} "
        f"times as much per GPU as one colocated instance of the usual shape, but {min(gains):.2f} "
        f"to {max(gains):.2f} times the best deployment of as many GPUs of the other kinds. At "
        f"{scales.RATE:g} request/s per GPU it keeps limits {apart / together:.2f} times those of "
        "colocated serving on one GPU."
    )
    blocks = {
        "claim": claim,
        "splits": splits.split_table(six),
        "applications": applications.application_table(found),
        "singles": applications.single_table(found),
        "scales": scales.scale_table(tight),
        "rows": comparison(ours),
    }
    if folder := os.environ.get("FLUIDSERVE_DATA"):
        blocks["papers"] = applications.paper_table(found, Path(folder))
    write_blocks(HERE, blocks)
    splits.draw_splits(HERE / "splits.png", six)
    applications.draw_applications(HERE / "applications.png", found)
    scales.draw_scales(HERE / "scales.png", tight)


if __name__ == "__main__":
    main()
