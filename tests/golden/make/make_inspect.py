"""Run `inspect eval` with the mock provider: differing replies per epoch, log-probs, errors and a limit.

    python3.11 -m venv /tmp/golden-eval
    /tmp/golden-eval/bin/pip install inspect-ai==0.3.285
    mkdir -p /tmp/golden-run && cd /tmp/golden-run && /tmp/golden-eval/bin/python <repository>/tests/golden/make/make_inspect.py

Run outside any git checkout: inspect records the revision. Ids and times change from run to run, texts and scores do not.
"""

import json
import math
import random
import re
import shutil
import zipfile
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    Logprob,
    Logprobs,
    ModelOutput,
    ModelUsage,
    TopLogprob,
    get_model,
)
from inspect_ai.scorer import Score, Target, accuracy, match, mean, scorer, stderr
from inspect_ai.solver import TaskState, generate, system_message

OUT = Path(__file__).resolve().parent.parent / "inspect"
SUMS = [(2, 3), (7, 8), (12, 30), (9, 9), (40, 2), (5, 6)]


def logprob(token: str, p: float) -> Logprob:
    others = [(f"{token}'", (1 - p) * 0.7), ("?", (1 - p) * 0.2)]
    top = [TopLogprob(token=t, logprob=math.log(q), bytes=list(t.encode())) for t, q in [(token, p), *others]]
    return Logprob(token=token, logprob=math.log(p), bytes=list(token.encode()), top_logprobs=top)


class Replies:
    """Called by the mock provider once a generation; epoch order is fixed by running one sample at a time."""

    def __init__(self, *, logprobs: bool, fails_at: int | None):
        self.logprobs, self.fails_at, self.calls = logprobs, fails_at, 0
        self.rng = random.Random(11)

    def __call__(self, input, tools, tool_choice, config) -> ModelOutput:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("the provider gave up")
        a, b = map(int, re.findall(r"\d+", input[-1].text))
        p = self.rng.choice([0.9, 0.6, 0.5])
        answer = a + b if self.rng.random() < p else a + b + self.rng.choice([-1, 1, 10])
        cut = self.rng.random() < 0.15
        tokens = [f"{a}", "+", f"{b}", " makes"] if cut else [f"{a}", "+", f"{b}", " makes", " ", f"{answer}"]
        choice = ChatCompletionChoice(
            message=ChatMessageAssistant(content="".join(tokens), source="generate"),
            stop_reason="max_tokens" if cut else "stop",
            logprobs=Logprobs(content=[logprob(t, p if t == f"{answer}" else 0.95) for t in tokens])
            if self.logprobs
            else None,
        )
        usage = ModelUsage(input_tokens=12, output_tokens=len(tokens), total_tokens=12 + len(tokens))
        return ModelOutput(model="mockllm/model", choices=[choice], usage=usage)


def questions(n: int) -> MemoryDataset:
    samples = [
        Sample(id=f"sum-{i}", input=f"What is {a} + {b}?", target=str(a + b), metadata={"level": 1 + i % 3})
        for i, (a, b) in enumerate(SUMS[:n])
    ]
    return MemoryDataset(samples, name="sums")


@scorer(metrics=[mean(), stderr()])
def closeness():
    """1 / (1 + distance), with the parsed number as answer; no number scores 0 and has no answer."""

    async def score(state: TaskState, target: Target) -> Score:
        found = re.findall(r"makes (\d+)", state.output.completion)
        if not found:
            return Score(value=0.0, explanation="no number")
        return Score(value=1 / (1 + abs(int(found[-1]) - int(target.text))), answer=found[-1])

    return score


@scorer(metrics={"exact": [accuracy()], "length": [mean()]})
def several():
    """One scorer, a dictionary of values."""

    async def score(state: TaskState, target: Target) -> Score:
        text = state.output.completion
        return Score(
            value={"exact": "C" if text.endswith(f" {target.text}") else "I", "length": len(text)}, answer=text
        )

    return score


def run(name: str, task: Task, *, epochs: int, form: str, logprobs: bool = False, fails_at: int | None = None) -> None:
    scratch = Path("logs")
    shutil.rmtree(scratch, ignore_errors=True)
    model = get_model("mockllm/model", custom_outputs=Replies(logprobs=logprobs, fails_at=fails_at), memoize=False)
    log = eval(
        task,
        model=model,
        epochs=epochs,
        log_dir=str(scratch),
        log_format=form,
        max_samples=1,
        temperature=0.8,
        top_p=0.95,
        seed=1,
        fail_on_error=False,
        **({"logprobs": True, "top_logprobs": 3} if logprobs else {}),
        display="none",
    )[0]
    assert log.status == "success", log.error
    log = read_eval_log(log.location)
    log.eval.model_args = {}  # holds the address of the reply function
    log.eval.task_file = None
    for sample in log.samples:
        if sample.error:  # tracebacks name local files
            sample.error.traceback = sample.error.traceback_ansi = "removed"
            sample.events = [e for e in sample.events if e.event not in ("error", "model")]
    OUT.mkdir(exist_ok=True)
    write_eval_log(log, str(OUT / f"{name}.{form}"), format=form)


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    chain = [system_message("Add."), generate()]
    run(
        "match",
        Task(dataset=questions(6), solver=chain, scorer=match(), name="sums"),
        epochs=4,
        form="eval",
        logprobs=True,
    )
    run(
        "match",
        Task(dataset=questions(2), solver=chain, scorer=match(), name="sums"),
        epochs=2,
        form="json",
        fails_at=3,
    )
    numeric = Task(dataset=questions(3), solver=chain, scorer=[closeness(), several()], name="sums_numeric")
    run("numeric", numeric, epochs=2, form="eval")
    # Releases before the switch to Zstandard wrote deflated entries; the content is the same.
    with (
        zipfile.ZipFile(OUT / "numeric.eval") as new,
        zipfile.ZipFile(OUT / "numeric_deflated.eval", "w", zipfile.ZIP_DEFLATED) as old,
    ):
        for name in new.namelist():
            old.writestr(zipfile.ZipInfo(name), new.read(name), zipfile.ZIP_DEFLATED)
    for file in OUT.iterdir():
        text = json.dumps(read_eval_log(str(file)).model_dump(mode="json"))
        assert not re.search(r"/(root|home|tmp|work)/", text.replace(str(OUT), "")), file
