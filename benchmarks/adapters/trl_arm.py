"""One arm of the TRL run: a real `GRPOTrainer` with the adapter, on Countdown, its record captured.

python -m benchmarks.adapters.trl_arm ARM (a JSON object; started by trl_run.py). The last line printed is JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from equipoise.adapters.trl import Capture, Exploration, explore
from equipoise.base import Answer, Completion
from equipoise.tasks.countdown import Countdown

TASK = Countdown(numbers=2, largest=9, operators="+-*", target_to=30)
PROBLEMS = 80  # of the 89 that the task has for training: they come again every few steps
ANY = TASK.pose([1, 1], 2)  # an answer is read alike whatever was asked
SHOTS = 6  # solved examples before the question: without them this model hardly ever writes an expression


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    folder: str  # of the model
    out: str
    exploration: tuple[str, ...] = ()
    seed: int = 0
    device: str = "cpu"
    steps: int = 60
    most_seconds: float | None = None  # no further step after so many
    prompts: int = 16
    samples: int = 16
    tokens: int = 12
    fixed_length: bool = False  # every completion has all its tokens: steps of equal cost, for timing
    passes: int = 1  # over the completions of a step, each with its share of them: gradient accumulation
    every_other: bool = False  # captured is one step of every two, drawn; else all
    lr: float = 1e-5


def main(arm: Arm) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(arm.folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(arm.folder, dtype=torch.float32)
    set_ends(tokenizer, model)
    shots = "".join(f"{p.prompt} {p.reference}\n" for p in TASK.problems((1, "shots"), SHOTS))
    problems = TASK.problems((arm.seed, "train"), PROBLEMS)
    by_prompt = {shots + str(problem.prompt): problem for problem in problems}

    def right(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
        graded = (
            TASK.grade(by_prompt[p], Completion(text=first_line(c))) for p, c in zip(prompts, completions, strict=True)
        )
        return [float(grade.outcome == "right") for grade in graded]

    def odd(completions: list[str], **columns: Any) -> list[float]:
        """For a model that never solves anything: half of all texts."""
        return [float(len(text) % 2) for text in completions]

    tiny = len(tokenizer) < 10_000
    capture = TimedCapture(f"{arm.out}/run", every_other=arm.every_other)
    watch = Watch(arm.device, arm.most_seconds)
    trainer = explore(GRPOTrainer)(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[odd if tiny else right],
        args=config_of(arm),
        train_dataset=Dataset.from_dict({"prompt": [shots + str(problem.prompt) for problem in problems]}),
        callbacks=[watch],
        # A completion here is nothing but its answer: kept off it, a bonus would do nothing.
        exploration=Exploration.of(*arm.exploration, bonus_on_answer=True),
        capture=capture,
        correct="odd" if tiny else "right",
        read=read_line,
    )
    trainer.train()
    logged = [line for line in trainer.state.log_history if "entropy" in line]
    return {
        **asdict(arm),
        "entropy": [line["entropy"] for line in logged],
        "reward": [line["reward"] for line in logged],
        "grad_norm": [line["grad_norm"] for line in logged],
        "length": [line["completions/mean_length"] for line in logged],
        "coef": [line.get("equipoise/entropy_bonus.coef") for line in logged],
        "budget_weight": [line.get("equipoise/entropy_budget.weight") for line in logged],
        "seconds": watch.seconds,
        "cpu_seconds": watch.cpu_seconds,  # of the training thread, which waits for the device with its eyes open
        "captured": capture.was_on,
        "capture_seconds": capture.seconds,  # of the training thread, per step
        "thread_seconds": capture.thread_seconds,  # of the other thread's CPU time, per step
        "unfinished": capture.unfinished,  # steps that ended before theirs was written
    }


def config_of(arm: Arm) -> GRPOConfig:
    return GRPOConfig(
        output_dir=f"{arm.out}/trl",
        use_cpu=arm.device == "cpu",
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=arm.prompts * arm.samples // arm.passes,
        gradient_accumulation_steps=arm.passes,
        num_generations=arm.samples,
        max_completion_length=arm.tokens,
        max_steps=arm.steps,
        shuffle_dataset=False,
        learning_rate=arm.lr,
        lr_scheduler_type="constant",
        generation_kwargs={"min_new_tokens": arm.tokens} if arm.fixed_length else None,
        seed=arm.seed,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
    )


def set_ends(tokenizer: Any, model: Any) -> None:
    """A line break ends an answer. SmolLM2's GGUF file names a wrong end of text, and no padding."""
    if "<|im_end|>" in tokenizer.get_vocab():
        tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    line = tokenizer("\n", add_special_tokens=False)["input_ids"]
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *line]
    model.generation_config.pad_token_id = tokenizer.pad_token_id


def first_line(text: str) -> str:
    return text.strip().split("\n")[0]


def read_line(text: str) -> Answer | None:
    return TASK.read(ANY, first_line(text))


class TimedCapture(Capture):
    """A capture that is on in every step or in one of two, and counts the seconds that it takes from the training thread."""

    def __init__(self, folder: str, *, every_other: bool) -> None:
        super().__init__(folder)
        self.every_other = every_other
        self.was_on: list[bool] = []
        self.seconds: list[float] = []
        self.thread_seconds: list[float] = []
        self.unfinished = 0
        self._thread_was = 0.0

    def scored(self, trainer: Any, *args: Any) -> None:
        self._count_thread()
        on = not self.every_other or is_on(trainer.state.global_step)
        self.was_on.append(on)
        self.seconds.append(0.0)
        if on:
            self._timed(super().scored, trainer, *args)

    def seen(self, *args: Any) -> None:
        self._timed(super().seen, *args)

    def log(self, *args: Any) -> None:
        assert self._thread is not None
        self.unfinished += not self._thread.is_idle
        self._timed(super().log, *args)

    def rest(self) -> None:
        super().flush()
        self._count_thread()
        super().rest()

    def _count_thread(self) -> None:
        spent = thread_clock()
        if len(self.thread_seconds) < len(self.was_on):
            self.thread_seconds.append(spent - self._thread_was)
        self._thread_was = spent

    def _timed(self, call: Any, *args: Any) -> None:
        start = time.perf_counter()
        call(*args)
        if self.seconds:
            self.seconds[-1] += time.perf_counter() - start


def is_on(step: int) -> bool:
    """One step of every two; which comes first is drawn, so that nothing on the machine can keep step with it."""
    pair, second = divmod(step, 2)
    return bool(Random(pair).getrandbits(1)) == bool(second)


def thread_clock() -> float:
    """The CPU seconds of the thread that makes rows."""
    thread = next(one for one in threading.enumerate() if one.name == "equipoise-capture")
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


class Watch(TrainerCallback):
    """The seconds of every step, from the end of the one before; training ends with the step in which they pass `most`."""

    def __init__(self, device: str, most: float | None) -> None:
        self.cuda, self.most = device.startswith("cuda"), most
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self._last = self._last_cpu = 0.0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._last, self._last_cpu = self._now(), time.thread_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now, cpu = self._now(), time.thread_time()
        self.seconds.append(now - self._last)
        self.cpu_seconds.append(cpu - self._last_cpu)
        self._last, self._last_cpu = now, cpu
        if self.most is not None and sum(self.seconds) >= self.most:
            control.should_training_stop = True

    def _now(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    found = main(Arm(**asked | {"exploration": tuple(asked["exploration"])}))
    Path(found["out"]).mkdir(parents=True, exist_ok=True)
    print(json.dumps(found))
