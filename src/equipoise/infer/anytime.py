"""A vote that stops with a certificate: an error bound that holds however often one looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from equipoise.base import Answer, Choice, Question
from equipoise.errors import UsageError
from equipoise.infer.adaptive import vote_until
from equipoise.infer.checks import check_count
from equipoise.infer.metered import Metered
from equipoise.infer.stopping import count_answers, weigh_leader


@dataclass(frozen=True, slots=True)
class Anytime:
    """Votes until the leader is certified as the model's one most likely answer, with error at most `alpha`.

    The e-values and the proof are in `stopping.weigh_leader`: over questions, at most a share `alpha` is ever certified for an
    answer that is not the only mode, whatever the number of answers and looks. Eight votes do where all agree (at 0.05).

    The certificate is about the mode of this model with this sampling, not about correctness: a model that is mostly wrong is
    certified to be mostly wrong. It takes completions as independent samples of one distribution; what abstains is left out,
    so that the mode is that of the answers given. Without a certificate the answer is the most common one at the cap, and the
    choice notes how far the evidence went. See CITE, https://arxiv.org/abs/2605.05873, for an answer that is named beforehand.
    """

    alpha: float = 0.05
    cap: int = 64
    at_once: int = 1  # under way together; those not needed any more are cancelled, and their tokens were spent

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise UsageError(f"alpha={self.alpha}: use a probability between 0 and 1, as 0.05")
        check_count("cap", self.cap)
        check_count("at_once", self.at_once)

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        poll = await vote_until(question, metered, self._enough, cap=self.cap, at_once=self.at_once)
        notes = () if poll.stopped else (self._told(poll.answers),)
        return poll.choice(question, metered, stopped_by="certificate", notes=notes)

    def _enough(self, answers: Sequence[Answer | None]) -> bool:
        evidence = weigh_leader(count_answers(answers), alpha=self.alpha)
        return evidence is not None and evidence.enough

    def _told(self, answers: Sequence[Answer | None]) -> str:
        evidence = weigh_leader(count_answers(answers), alpha=self.alpha)
        return f"no certificate: {'no votes' if evidence is None else evidence.reading}"
