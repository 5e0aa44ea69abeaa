"""Mind Evolution: a population of whole solutions on islands, written anew by what an evaluator says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from equipoise.base import Answer, Choice, Completion, Prompt, Question
from equipoise.errors import UsageError
from equipoise.infer.ballots import read_one
from equipoise.infer.best_of_n import best_with, pick_best
from equipoise.infer.checks import check_count
from equipoise.infer.conversations import (
    AUTHOR,
    CRITIC,
    SELECTOR,
    ask_author,
    ask_critic,
    ask_selector,
    read_selected,
)
from equipoise.infer.metered import GIVEN_UP, Metered, MeteredDraw
from equipoise.infer.population import (
    Candidate,
    Island,
    elites_of,
    migrate,
    pick_diverse,
    pick_parents,
    weakest,
)
from equipoise.infer.prompts import fill
from equipoise.infer.together import together
from equipoise.infer.weights import need_judge, score_of


@dataclass(frozen=True, slots=True)
class MindEvolution:
    """Evolution of whole solutions by critic, author and evaluator (https://arxiv.org/abs/2501.09891).

        generation 1   `conversations` proposals on each of `islands`, each refined over `turns` − 1 further turns
        later ones     parents by p_i ∝ exp(score_i / T): 0 of them with probability `no_parents`, else 1 to `parents`;
                       a critic reads them with their evaluations, an author writes one child; then `turns` − 1 turns on the child
        islands        in order; after each its best `emigrants` are cloned to the next, cyclically
        reset          after every `reset_every` generations the `reset_islands` with the lowest mean score start again from
                       `elites` that differ, chosen of the best `candidates` of all islands

    The evaluator is the question's judge: its reward, its feedback, its verdict. It ends at the first solution that the judge calls
    right, at the budget, or with the last generation. Ledger: authors are `answer`, critics `judge`, the selector of elites
    `probe`; replies that could not be read and were asked for again, up to `retries` times, are `retry`.

    A question with a form of its own for earlier tries (`Question.again`) is put in that form, for models that cannot read words: then
    the evaluator's feedback stands for the critic, and elites are told apart by their answers.

    generations=1, islands=1 is sequential revision in as many threads as `conversations`.
    """

    generations: int = 10
    islands: int = 4
    conversations: int = 5
    turns: int = 4
    parents: int = 5
    no_parents: float = 1 / 6
    emigrants: int = 5
    reset_every: int = 3
    reset_islands: int = 2
    elites: int = 5
    candidates: int = 15
    retries: int = 5
    selection_temperature: float = 0.1  # in units of the judge's reward
    critic_tokens: int = 1024  # of one critique; 0: no critic, the author reads the evaluations alone
    selector_tokens: int = 256  # 0: elites are told apart by their answers
    critic: str = CRITIC
    author: str = AUTHOR
    selector: str = SELECTOR

    def __post_init__(self) -> None:
        for name in ("generations", "islands", "conversations", "turns", "parents", "reset_every", "elites"):
            check_count(name, getattr(self, name))
        for name in ("emigrants", "reset_islands", "retries", "critic_tokens", "selector_tokens"):
            check_count(name, getattr(self, name), least=0)
        check_count("candidates", self.candidates, least=self.elites)
        if not 0 <= self.no_parents <= 1:
            raise UsageError(f"no_parents is a probability, found {self.no_parents}")
        if not self.selection_temperature > 0:
            raise UsageError(f"selection_temperature is above 0, found {self.selection_temperature}")
        fill(self.critic, question="", tries="")
        fill(self.selector, question="", tries="", number="")

    async def __call__(self, question: Question, metered: Metered) -> Choice:
        if question.judge is None:
            raise need_judge("an evolution's evaluations", question)
        search = _Search(self, question, metered)
        await search.evolve()
        return search.choose()


@dataclass(slots=True)
class _Search:
    """One question's population, and all that was written for it."""

    how: MindEvolution
    question: Question
    metered: Metered
    islands: list[Island] = field(default_factory=list)
    drawn: list[Completion] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)
    scores: list[float | None] = field(default_factory=list)
    right: Candidate | None = None
    out_of_budget: bool = False
    notes: list[str] = field(default_factory=list)

    async def evolve(self) -> None:
        how, random = self.how, Random(self.question.seed)
        self.islands = [Island() for _ in range(how.islands)]
        for generation in range(1, how.generations + 1):
            before = sum(answer is not None for answer in self.answers)
            for place, island in enumerate(self.islands):
                await self._converse(
                    island, [self._parents(island, generation, random) for _ in range(how.conversations)]
                )
                if self.ended:
                    return
                migrate(self.islands, place, emigrants=how.emigrants)
            if sum(answer is not None for answer in self.answers) == before:
                self.notes.append(f"no reply of generation {generation} held an answer: the search ended there")
                return
            if generation % how.reset_every == 0 and generation < how.generations:
                await self._reset()

    @property
    def ended(self) -> bool:
        return self.right is not None or self.out_of_budget or self.metered.interrupted

    def choose(self) -> Choice:
        votes = pick_best(self.answers, self.scores, seed=self.question.seed)
        chosen = best_with(votes.winner, self.answers, self.scores, self.drawn)
        if self.right is not None:
            votes, chosen = replace(votes, winner=self.right.answer, tied=()), self.right.completion
        stopped_by = "first_right" if self.right is not None else "budget" if self.out_of_budget else "finished"
        return self.metered.choice(
            votes.winner, self.drawn, votes, stopped_by=stopped_by, chosen=chosen, notes=self.notes
        )

    # --- one generation of one island

    def _parents(self, island: Island, generation: int, random: Random) -> list[Candidate]:
        if generation == 1:
            return []
        how = self.how
        parents = pick_parents(
            island, random, most=how.parents, no_parents=how.no_parents, temperature=how.selection_temperature
        )
        return sorted(parents, key=lambda parent: parent.score)  # the best last, next to what is written

    async def _converse(self, island: Island, tries: list[list[Candidate]]) -> None:
        """Every conversation a turn at a time, so that the numbers of the replies do not depend on which is faster."""
        for _ in range(self.how.turns):
            critiques = await self._criticise(tries)
            if self.ended:
                return
            children = await self._write([self._ask(*one) for one in zip(tries, critiques, strict=True)])
            for place, child in enumerate(children):
                if child is not None:
                    island.add(child)
                    tries[place] = [child]
            if self.ended:
                return

    async def _criticise(self, tries: Sequence[Sequence[Candidate]]) -> list[str | None]:
        critiques: list[str | None] = [None] * len(tries)
        asked = [place for place, shown in enumerate(tries) if shown]
        if not self.how.critic_tokens or self.question.again is not None or not asked:
            return critiques
        limit = replace(self.question.how, max_tokens=self.how.critic_tokens)
        draws = [
            self.metered.draw(
                self.question, kind="judge", prompt=ask_critic(self.question, tries[place], self.how.critic), how=limit
            )
            for place in asked
        ]
        replies = await together(draw.completions() for draw in draws)
        self.out_of_budget |= any(draw.out_of_budget for draw in draws)
        for place, reply in zip(asked, replies, strict=True):
            if reply and reply[0].finish != "error":
                critiques[place] = reply[0].text
        return critiques

    def _ask(self, tries: Sequence[Candidate], critique: str | None) -> Prompt:
        if not tries:
            return self.question.prompt
        if self.question.again is not None:
            own = self.question.again([(one.completion, one.grade) for one in tries])
            return self.question.prompt if own is None else own
        return ask_author(self.question, tries, critique, self.how.author)

    async def _write(self, prompts: Sequence[Prompt]) -> list[Candidate | None]:
        """One readable reply to each prompt, asked for again where it is none; None where there is none after all."""
        children: list[Candidate | None] = [None] * len(prompts)
        waiting = list(range(len(prompts)))
        for tried in range(self.how.retries + 1):
            draws = self._draw_alike(prompts, waiting)
            await together(self._judge_as_they_come(draw, places, draws, children) for draw, places in draws)
            self.out_of_budget |= any(draw.out_of_budget for draw, _ in draws)
            waiting = [place for place in waiting if children[place] is None]
            if not waiting or self.ended or tried == self.how.retries:
                break
            for draw, places in draws:
                for index, reply in draw.done.items():
                    if places[index] in waiting and reply.finish not in (*GIVEN_UP, "error"):
                        draw.tell_unusable(index)
        return children

    def _draw_alike(self, prompts: Sequence[Prompt], places: Sequence[int]) -> list[tuple[MeteredDraw, list[int]]]:
        """Equal prompts are one draw: they are read once, and a model in this process writes its replies together."""
        groups: list[tuple[Prompt, list[int]]] = []
        for place in places:
            same = next((group for prompt, group in groups if prompt == prompts[place]), None)
            if same is None:
                groups.append((prompts[place], [place]))
            else:
                same.append(place)
        return [(self.metered.draw(self.question, n=len(own), prompt=prompt), own) for prompt, own in groups]

    async def _judge_as_they_come(
        self,
        draw: MeteredDraw,
        places: Sequence[int],
        draws: Sequence[tuple[MeteredDraw, list[int]]],
        children: list[Candidate | None],
    ) -> None:
        """The first right solution ends what is still being written."""
        async with draw:
            async for index, reply in draw.finished():
                child = self._judge(reply)
                children[places[index]] = child
                if child is not None and child.grade.correct and self.right is None:
                    self.right = child
                    for other, _ in draws:
                        other.cancel_rest("cancelled")

    def _judge(self, reply: Completion) -> Candidate | None:
        assert self.question.judge is not None
        answer = read_one(self.question, reply)
        grade = None if answer is None else self.question.judge(reply)
        score = None if grade is None else score_of(grade)
        self.drawn.append(reply)
        self.answers.append(answer)
        self.scores.append(score)
        if answer is None or grade is None or score is None:
            return None
        return Candidate(reply, answer, grade, score)

    # --- reset

    async def _reset(self) -> None:
        """Overwrite the weakest islands with elites that differ from each other."""
        places = weakest(self.islands, self.how.reset_islands)
        if not places:
            return
        elites = await self._pick_elites(elites_of(self.islands, self.how.candidates))
        for place in places:
            self.islands[place] = Island({one.answer.text: one for one in elites})

    async def _pick_elites(self, best: Sequence[Candidate]) -> list[Candidate]:
        """As a model names them, filled up with those least alike where it names too few."""
        how = self.how
        if len(best) <= how.elites:
            return list(best)
        named: list[int] = []
        if how.selector_tokens and self.question.again is None:
            limit = replace(self.question.how, max_tokens=how.selector_tokens)
            prompt = ask_selector(self.question, best, how.elites, how.selector)
            draw = self.metered.draw(self.question, kind="probe", prompt=prompt, how=limit)
            reply = await draw.completions()
            named = read_selected(reply[0] if reply else None, len(best))[: how.elites]
        picked = [best[place] for place in named]
        return pick_diverse([*picked, *(one for one in best if one not in picked)], how.elites, keep=len(picked))
