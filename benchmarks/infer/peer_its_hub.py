"""its_hub's adaptive self-consistency, run for real on recorded orders. For a Python that has its_hub 1.2, without equipoise:

    python benchmarks/infer/peer_its_hub.py orders.json outcomes.json

orders.json: [problem][repeat][sample] = [answer or null, tokens]. A recorded sample is one call of a language model, in turn. The
model says the answer itself, and an empty text where there is none; its_hub's own default, the text as it is, compares them.

Tokens are counted twice. `completed`: those of calls that ended, which is what its_hub's own usage counts. `generated`: also
those that a call had made when it was cancelled, where all calls in flight make one token at a time (AdaptiveSelfConsistency
cancels nothing). BetaSelfConsistency sends all calls at once, so it is run on two servers: one that works on all of them
together, and one that works on a single call at a time, which is the best case for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from importlib.metadata import version

from its_hub.api import AbstractLanguageModel
from its_hub.core.algorithms.adaptive_self_consistency import AdaptiveSelfConsistency
from its_hub.core.algorithms.beta_self_consistency import BetaSelfConsistency
from its_hub.core.orchestrator import LMOrchestrator

ADAPTIVE = (0.51, 0.55, 0.6, 0.67, 0.75, 0.8, 0.9, 1.0)
BETA = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995)
BETA_AT_ONCE = (0.9, 0.95, 0.99)
TURNS = 8  # of the event loop, for its_hub to see a reply before the next one comes


class Replay(AbstractLanguageModel):
    """Recorded samples: the first call gets the first of them."""

    def __init__(self, samples, *, slots):
        self.samples, self.slots = samples, slots
        self.calls, self.clock = [], 0
        self.work = None

    async def agenerate(self, messages, stop=None, **kwargs):
        raise NotImplementedError("batches go through the orchestrator")

    async def agenerate_single(self, messages, stop=None, usage_accumulator=None, **kwargs):
        index = len(self.calls)
        answer, tokens = self.samples[index]
        done = asyncio.get_running_loop().create_future()
        self.calls.append(done)
        if self.slots is None:
            done.set_result(None)
        elif self.work is None:
            self.work = asyncio.ensure_future(self._serve())
        await done
        if usage_accumulator is not None:
            usage_accumulator.add(0, tokens)
        return {"role": "assistant", "content": answer or ""}

    async def _serve(self):
        """One call after the other, or all together: then the shortest end first."""
        await self._turns()
        order = range(len(self.calls))
        if self.slots != 1:
            order = sorted(order, key=lambda i: (self.samples[i][1], i))
        for index in order:
            self.clock = self.samples[index][1]
            if not self.calls[index].done():
                self.calls[index].set_result(None)
            await self._turns()

    async def _turns(self):
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def generated(self, completed):
        if self.slots in (None, 1):
            return completed
        return sum(min(tokens, self.clock) for _, tokens in self.samples[: len(self.calls)])


async def one(algorithm, samples, slots):
    lm = Replay(samples, slots=slots)
    result = await algorithm.ainfer(lm, "q", budget=len(samples), return_response_only=False)
    if lm.work is not None:
        lm.work.cancel()
        await asyncio.gather(lm.work, return_exceptions=True)
    completed = result.usage.completion_tokens
    return {
        "answer": result.the_one["content"] or None,
        "samples": len(result.responses),
        "completed": completed,
        "generated": lm.generated(completed),
    }


async def run(orders):
    arms = [
        ("its_hub adaptive", t, AdaptiveSelfConsistency(threshold=t, orchestrator=_unlimited()), None) for t in ADAPTIVE
    ]
    for name, slots in (("its_hub beta, one at a time", 1), ("its_hub beta, all at once", 0)):
        arms += [(name, t, BetaSelfConsistency(confidence_threshold=t, orchestrator=_unlimited()), slots) for t in BETA]
    return [
        {
            "rule": name,
            "setting": setting,
            "outcomes": [[await one(algorithm, samples, slots) for samples in repeats] for repeats in orders],
        }
        for name, setting, algorithm, slots in arms
    ]


def _unlimited():
    # A limit below the number of calls leaks permits when calls are cancelled, and the program then hangs.
    return LMOrchestrator(max_concurrency=-1)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    random.seed(0)  # its_hub breaks ties with it
    with open(sys.argv[1]) as handle:
        orders = json.load(handle)
    found = {"version": version("its_hub"), "arms": asyncio.run(run(orders))}
    with open(sys.argv[2], "w") as handle:
        json.dump(found, handle)
