"""Metrics and goals: which way is better, and what reaches a value."""

from __future__ import annotations

import pytest

from offbeat.core.errors import SettingError
from offbeat.core.metric import LOSS, Goal, Metric, all_metrics, find, goal
from offbeat.core.until import Until

ACCURACY, RMSE = Metric("accuracy", higher=True, share=True), Metric("rmse")
NAN = float("nan")


def test_a_goal_is_reached_in_its_metrics_direction() -> None:
    assert [Goal(RMSE, 0.5).reached({"rmse": value}) for value in (0.6, 0.5, 0.4, NAN)] == [False, True, True, False]
    assert [Goal(ACCURACY, 0.5).reached({"accuracy": value}) for value in (0.4, 0.5, 0.6, NAN)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert not Goal(RMSE, 0.5).reached({"accuracy": 0.1})


@pytest.mark.parametrize(("metric", "value"), [(ACCURACY, 1.1), (ACCURACY, 0.0), (RMSE, NAN), (RMSE, float("inf"))])
def test_a_goal_that_no_model_reaches_or_every_model_does_is_refused(metric: Metric, value: float) -> None:
    with pytest.raises(SettingError, match=f"^{metric.name} = "):
        Goal(metric, value)


def test_an_evaluation_gives_the_tasks_own_metric_first_and_always_the_loss() -> None:
    assert all_metrics([RMSE]) == (RMSE, LOSS)
    assert all_metrics([]) == (LOSS,)
    assert all_metrics([LOSS, RMSE]) == (LOSS, RMSE)
    personal = all_metrics([ACCURACY], personal=True)
    assert [(m.name, m.higher, m.share) for m in personal[2:]] == [
        ("personal", True, True),
        ("personal_worst", True, True),
    ]


def test_an_unknown_metric_is_named_with_those_that_there_are() -> None:
    with pytest.raises(SettingError, match=r"^until\.mape: unknown; the task measures rmse, loss$"):
        find("mape", all_metrics([RMSE]), "until.mape")
    with pytest.raises(SettingError, match=r"^task\.a\.target\.rsme: unknown; did you mean 'rmse'\?$"):
        goal("rsme", 0.5, all_metrics([RMSE]), "task.a.target")


def test_an_end_has_goals_for_the_tasks_that_measure_them() -> None:
    until = Until(updates=9, rmse=0.5, loss=0.1)
    assert until.goals([all_metrics([RMSE]), all_metrics([ACCURACY])]) == [
        (Goal(RMSE, 0.5), Goal(LOSS, 0.1)),
        (Goal(LOSS, 0.1),),
    ]
    with pytest.raises(SettingError, match=r"^until\.rmse: unknown"):
        until.goals([all_metrics([ACCURACY])])


def test_ends_are_compared_and_shown_with_their_metrics() -> None:
    assert Until(time=1.0, rmse=0.5) == Until(time=1.0, rmse=0.5) != Until(time=1.0, rmse=0.4)
    assert hash(Until(time=1.0, rmse=0.5)) == hash(Until(time=1.0, rmse=0.5))
    assert "rmse" in repr(Until(time=1.0, rmse=0.5))
