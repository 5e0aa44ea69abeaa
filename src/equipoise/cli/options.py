"""Options that several commands share: how tokens are sampled, from which model, and on which problems."""

from __future__ import annotations

from typing import Annotated, Any

import typer

MODELS = (
    "packaged, smollm2, a run folder, a .safetensors or .gguf file, what transformers loads, a server's URL, or "
    "proxy:base=MODEL,expert=MODEL,anti=MODEL,alpha=1"
)

Temperature = Annotated[float, typer.Option(help="of sampling; 0 is greedy", min=0)]
TopP = Annotated[float, typer.Option(help="share of the probability that is sampled from")]
MinP = Annotated[
    float | None, typer.Option(help="only tokens this share as likely as the most likely one", min=0, max=1)
]
TopNSigma = Annotated[
    float | None, typer.Option(help="only logits within so many standard deviations of the largest", min=0)
]
Edt = Annotated[
    float | None,
    typer.Option(help="colder where the model is sure: the temperature times 0.8^(EDT / entropy)", min=0),
]
Repel = Annotated[
    float | None,
    typer.Option(help="nats off a token for each completion of the same draw that took it, in the first tokens", min=0),
]
Problems = Annotated[
    int | None, typer.Option(help="problems of the task; default: 20, or all of a file that holds fewer", min=1)
]
Split = Annotated[
    str | None, typer.Option(help="of the task: train, tune, test or all; default: all of a file, else test")
]
Served = Annotated[str | None, typer.Option(help="which of a server's models; default: the one it has")]
Device = Annotated[str, typer.Option(help="cpu or cuda")]


def decoding_of(**given: Any) -> dict[str, Any]:
    """The settings that were given, for `decoding` of `sample`, `solve_task` and `live_pool`."""
    return {name: value for name, value in given.items() if value is not None}
