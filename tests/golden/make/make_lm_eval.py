"""Run the lm-eval command line on CPU: a tiny random model, a local JSON task, 4 repeats, two filters; and a multiple-choice task.

    # the environment of make_trl.py, then
    /tmp/golden-trl/bin/pip install lm-eval==0.4.13 "torch==2.13.0" "transformers>=5.5.3,<5.11,!=5.6"
    mkdir -p /tmp/golden-run && cd /tmp/golden-run && OMP_NUM_THREADS=1 /tmp/golden-trl/bin/python <repository>/tests/golden/make/make_lm_eval.py

Run outside any git checkout. Host description and times are removed from the results file.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tiny import tiny_model, tiny_tokenizer

OUT = Path(__file__).resolve().parent.parent / "lm_eval"
SUMS = [(2, 3), (7, 1), (4, 4), (9, 0), (1, 2)]

GENERATE = r"""
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
repeats: 4
generation_kwargs: {do_sample: true, temperature: 1.0, max_gen_toks: 6, until: ["\n"]}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
filter_list:
  - name: score-first
    filter: [{function: regex, regex_pattern: "(\\d)"}, {function: take_first}]
  - name: maj@4
    filter: [{function: regex, regex_pattern: "(\\d)"}, {function: majority_vote}, {function: take_first}]
metadata: {version: 1.0}
"""

CHOICE = r"""
task: sums_choice
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: 0
doc_to_choice: "{{[answer, '1', '0']}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
"""

HOST_KEYS = ("pretty_env_info", "git_hash", "upper_git_hash", "start_time", "end_time", "total_evaluation_time_seconds")


def main() -> None:
    tok = tiny_tokenizer("0123456789+=? \n")  # few letters, so that some answers are right
    tok.save_pretrained("tiny-model")
    tiny_model(tok).save_pretrained("tiny-model")
    Path("sums.jsonl").write_text(
        "".join(json.dumps({"question": f"{a}+{b}=?", "answer": str(a + b)}) + "\n" for a, b in SUMS)
    )
    Path("tasks").mkdir(exist_ok=True)
    Path("tasks/sums.yaml").write_text(GENERATE)
    Path("tasks/sums_choice.yaml").write_text(CHOICE)
    shutil.rmtree("lm-eval-out", ignore_errors=True)
    command = "-m lm_eval run --model hf --model_args pretrained=tiny-model,dtype=float32 --device cpu --batch_size 4"
    command += " --tasks sums,sums_choice --include_path tasks --seed 5 --log_samples --output_path lm-eval-out"
    subprocess.run(
        [sys.executable, *command.split()],
        check=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    stamp = "2026-01-02T03-04-05.678901"  # the tool's own pattern, one fixed time
    for file in Path("lm-eval-out").rglob("*.json*"):
        kind = file.name.rsplit("_", 1)[0]
        target = OUT / file.parent.name / f"{kind}_{stamp}{file.suffix}"
        target.parent.mkdir(exist_ok=True)
        text = file.read_text()
        if kind == "results":
            results = json.loads(text)
            text = json.dumps({k: ("removed" if k in HOST_KEYS else v) for k, v in results.items()}, indent=2)
        target.write_text(text)


if __name__ == "__main__":
    main()
