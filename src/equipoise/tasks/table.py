"""The tasks by name: `find_task("countdown:numbers=4,largest=20")`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import Any

from equipoise.errors import UsageError, unknown_name
from equipoise.specs import read_spec
from equipoise.tasks.choices import Choices
from equipoise.tasks.task import Task


@dataclass(frozen=True, slots=True)
class TaskRow:
    name: str
    about: str
    target: str  # module:class, a frozen dataclass whose fields are the settings
    settings: Mapping[str, Any] = field(default_factory=dict)


# fmt: off
TASKS: tuple[TaskRow, ...] = (
    TaskRow("countdown", "reach a target from given numbers, each used once", "equipoise.tasks.countdown:Countdown"),
    TaskRow("game24", "Countdown with four numbers up to 13 and the target 24", "equipoise.tasks.countdown:Countdown",
            {"env": "game24", "largest": 13, "operators": "+-*/", "target_from": 24, "target_to": 24}),
    TaskRow("queens", "complete a board of N queens", "equipoise.tasks.queens:Queens"),
    TaskRow("colouring", "colour a graph", "equipoise.tasks.colouring:Colouring"),
    TaskRow("trips", "order cities so that flights and days fit", "equipoise.tasks.trips:Trips"),
    TaskRow("chains", "what a chain of sums comes to", "equipoise.tasks.chains:Chains"),
    TaskRow("retrieval", "a place that is several look-ups away, with a search to look up by",
            "equipoise.tasks.retrieval:Retrieval"),
    TaskRow("gsm8k", "grade-school word problems of a file", "equipoise.tasks.maths:Maths", {"env": "gsm8k"}),
    TaskRow("math", "competition problems of a file", "equipoise.tasks.maths:Maths", {"env": "math"}),
    TaskRow("gym", "a dataset of reasoning-gym", "equipoise.tasks.gym:Gym"),
)
# fmt: on
BY_NAME = {row.name: row for row in TASKS}


def find_task(spec: str, **settings: Any) -> Task:
    """The task that a spec names: `"name"`, `"name:setting=value,…"`, or `"module:Class"` for a task outside the package.

    With `options=4` the task is posed as multiple choice. Settings that `gym` does not know are reasoning-gym's own.
    """
    name, given = read_spec(spec, known=BY_NAME, what="task")
    given |= settings
    row = TaskRow(name, "", name) if ":" in name else BY_NAME.get(name)
    if row is None:
        raise unknown_name("task", name, BY_NAME)
    options = given.pop("options", None)
    task = _made(row, given)
    if options is None:
        return task
    if not isinstance(options, int):
        raise UsageError(f"options of {name} is a number of options, found '{options}'")
    return Choices(task, options)


def _made(row: TaskRow, given: dict[str, Any]) -> Task:
    module, _, name = row.target.partition(":")
    try:
        target = getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as problem:
        raise UsageError(f"there is no task '{row.target}': {problem}") from problem
    known = {its.name: None if its.default is MISSING else its.default for its in fields(target)}
    extra = {key: given.pop(key) for key in list(given) if key not in known} if "settings" in known else {}
    for key, value in given.items():
        if key not in known:
            raise unknown_name(f"setting of {row.name}", key, {*known, "options"} - {"env"})
        wanted = row.settings.get(key, known[key])
        if isinstance(wanted, int | float) and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UsageError(f"{key} of {row.name} takes a value such as {wanted}, found '{value}'")
        if isinstance(wanted, int) and not isinstance(value, int):
            raise UsageError(f"{key} of {row.name} is a whole number such as {wanted}, found {value}")
    task: Task = target(**{**row.settings, **given}, **({"settings": extra} if extra else {}))
    return task
