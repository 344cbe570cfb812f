"""Tests of conditions on the command line and on the pages."""

import click
import pytest

from expdb.text.conditions import condition_of, parse_query


@pytest.mark.parametrize(
    ("conditions", "positions"),
    [
        (["step = 1"], [1, 4]),
        (["step = 1 and task_id = a"], [1]),
        (["step = 0 or step = 2 and task_id = b"], [0, 3, 5]),
        (["step = 0 or step = 2", "task_id = b"], [3, 5]),
        (["task_id = b", "step > 0", "step < 2"], [4]),
        (['task_id = "a or b"'], []),
        ([], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_conditions_are_joined_with_and_and_or(buffer, conditions, positions):
    for task in "ab":
        for step in range(3):
            buffer.store(task_id=task, x=step, terminated=step == 2)
    for arguments in ((conditions, ()), ((), conditions)):
        query = condition_of(*arguments)
        matching = [batch["position"].tolist() for batch in buffer.scan(query, size=100)]
        assert (matching or [[]]) == [positions]


@pytest.mark.parametrize("text", ["", "a = 1 and", "a = 1 and b", "a = b or c", "and"])
def test_incomplete_conditions_are_refused(text):
    with pytest.raises(click.BadParameter, match="at character"):
        parse_query(f"{text} ")
