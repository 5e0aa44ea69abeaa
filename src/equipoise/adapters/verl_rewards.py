"""A reward manager for verl 0.9 that adds terms over groups: exploration bonuses, penalties, proper scores.

    reward.reward_manager.source=importlib
    reward.reward_manager.module.path=pkg://equipoise.adapters.verl_rewards
    reward.reward_manager.name=ExplorationRewards
    +reward.reward_kwargs.equipoise.terms=["batch_exploration:weight=0.2"]

| verl | here |
| --- | --- |
| the reward function's score | kept as it is; the terms are added to it |
| its `acc`, else a score of 0 or 1 | correct |
| its `pred`, else the answer that the text states | answer |
| `uid`, `session_id` | the group and the completion in it |
| `data_source` and `extra_info.index`, else the prompt | the problem, for counts over training |
| `extra_info.split` | only "train" is counted and gets terms: validation has neither |
| `trainer.default_local_dir`, `trainer.save_freq` | where and how often the counts are kept; a resumed run takes them up |

Counts and groups are in one named Ray actor, `equipoise_outcomes`, for all of verl's reward workers. Two limits of this seam:
a term is part of the reward, so it is divided by the group's standard deviation unless that is off
(`algorithm.norm_adv_by_std_in_grpo=False`, or `equipoise_group_mean`), and it reaches the tokens of the answer too. A
completion waits for its group, up to `…equipoise.wait` seconds (1800) where a sibling never comes; a reward worker of verl holds
1000 completions at a time, and `reward.num_workers` must leave room for those that wait.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from equipoise.adapters.outcome_board import AT_A_TIME, WAIT, scored, shared_board, workers_needed
from equipoise.adapters.verl_settings import announce
from equipoise.adapters.versions import check_version
from equipoise.errors import UsageError
from equipoise.rollouts.rows import stable_id
from equipoise.text.answers import canonical, read_answer, read_confidence

EVERY = 0.2  # seconds between two looks at the board
SETTINGS = ("terms", "wait")


class ExplorationRewards(NaiveRewardManager):  # type: ignore[misc]
    """verl's own manager, and terms over the group on top of its score."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **more: Any) -> None:
        check_version("verl")
        super().__init__(config, tokenizer, compute_score, **more)  # type: ignore[no-untyped-call]
        if not config.trainer.get("use_v1", True):
            raise UsageError("equipoise's reward terms need verl's v1 trainer, which names groups: trainer.use_v1=True")
        given = _given(config)
        self.terms, self.wait = list(given["terms"]), float(given.get("wait", WAIT))
        self.size = int(config.actor_rollout_ref.rollout.n)
        self.validates = (
            bool(config.trainer.get("val_before_train", True)) or int(config.trainer.get("test_freq", -1)) > 0
        )
        _check_room(config)
        self.worker = f"{os.getpid()}-{uuid4().hex[:8]}"
        self.board = shared_board(
            self.terms,
            folder=str(Path(config.trainer.default_local_dir).absolute() / "equipoise"),
            save_every=int(config.trainer.get("save_freq", -1)),
            wait=self.wait,
        )
        self._waiting: dict[tuple[str, int], asyncio.Future[float]] = {}
        self._collector: asyncio.Task[None] | None = None
        announce("rewards", {"terms": self.terms, "wait": self.wait})

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        result: dict[str, Any] = await super().run_single(data)
        item = data[-1:][0]
        text, n_tokens = await self.loop.run_in_executor(None, self._read, item)
        extra = result["reward_extra_info"]
        answer = _answer(extra, text)
        term = 0.0
        if self._trains(item.non_tensor_batch.get("extra_info") or {}):
            columns = item.non_tensor_batch
            row = scored(
                prompt_id=_problem(columns),
                answer=answer,
                correct=_verdict(extra, result["reward_score"]),
                confidence=read_confidence(text),
                n_tokens=n_tokens,
                step=int(columns.get("global_steps", 0)),
            )
            term = await self._term(str(columns["uid"]), int(columns["session_id"]), row)
        # Every sample has the same keys: verl builds its columns by those of the first.
        extra = {**extra, "pred": extra.get("pred", "[INVALID]" if answer is None else answer), "equipoise_term": term}
        return {"reward_score": result["reward_score"] + term, "reward_extra_info": extra}

    async def _term(self, group: str, member: int, row: Mapping[str, Any]) -> float:
        """Post a completion, and wait for its group without holding the board up."""
        if (group, member) in self._waiting:  # a row that verl has padded its batch with
            return await self._waiting[group, member]
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting[group, member] = future
        await self.board.post.remote(self.worker, group, member, self.size, dict(row))
        if self._collector is None or self._collector.done():
            self._collector = asyncio.create_task(self._collect())
        return await future

    async def _collect(self) -> None:
        while self._waiting:
            try:
                found = await self.board.collect.remote(self.worker)
            except ray.exceptions.RayError as problem:  # the board is gone or refuses: whoever waits must hear of it
                waiting, self._waiting = self._waiting, {}
                for each in waiting.values():
                    if not each.done():
                        each.set_exception(problem)
                return
            for key, value in found.items():
                future = self._waiting.pop(key, None)
                if future is not None and not future.done():
                    future.set_result(value)
            await asyncio.sleep(EVERY)

    def _read(self, item: Any) -> tuple[str, int]:
        ids = item.batch["responses"]
        n_tokens = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())
        tokenizer: Any = self.tokenizer
        return str(tokenizer.decode(ids[:n_tokens], skip_special_tokens=True)), n_tokens

    def _trains(self, info: Mapping[str, Any]) -> bool:
        split = info.get("split")
        if split is None and self.validates:
            raise UsageError(
                "equipoise's reward terms need extra_info.split in the dataset, 'train' or another: verl does not tell its reward "
                "manager what is validation (or switch validation off: trainer.test_freq=-1 trainer.val_before_train=False)"
            )
        return split in (None, "train")


def _given(config: Any) -> Mapping[str, Any]:
    given: Mapping[str, Any] = (config.reward.get("reward_kwargs") or {}).get("equipoise") or {}
    for name in given:
        if name not in SETTINGS:
            raise UsageError(f"reward.reward_kwargs.equipoise has '{name}': known are {', '.join(SETTINGS)}")
    if not given.get("terms"):
        raise UsageError(
            'equipoise\'s reward manager needs terms: +reward.reward_kwargs.equipoise.terms=["batch_exploration:weight=0.2"]'
        )
    return given


def _check_room(config: Any) -> None:
    flying = int(config.data.train_batch_size) * int(config.actor_rollout_ref.rollout.n)
    filtered = config.algorithm.get("filter_groups") or {}
    if filtered.get("enable"):
        flying *= max(1, int(filtered.get("max_inflight_gen_batches", 1)))
    workers = int(config.reward.num_workers)
    if workers < (needed := workers_needed(flying)):
        raise UsageError(
            f"{flying} completions wait for their groups and {workers} reward workers hold {AT_A_TIME} each, so that a step could "
            f"stand still: set reward.num_workers={needed}"
        )


def _answer(extra: Mapping[str, Any], text: str) -> str | None:
    stated = extra.get("pred")
    if stated is not None:
        return None if stated == "[INVALID]" else canonical(str(stated))
    found = read_answer(text)
    return None if found is None else found.text


def _verdict(extra: Mapping[str, Any], score: Any) -> bool | None:
    for value in (extra.get("acc"), score):
        if value is not None and float(value) in (0.0, 1.0):
            return bool(value)
    return None


def _problem(columns: Mapping[str, Any]) -> str:
    index = (columns.get("extra_info") or {}).get("index")
    return stable_id(str(columns.get("data_source")), str(columns.get("raw_prompt") if index is None else index))
