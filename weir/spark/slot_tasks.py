"""The tasks of a Spark job as Spark's status store has them, and the executor of one."""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark import SparkContext

_TASKS_MAX = 100  # The newest of a stage.


def tasks_of(
    spark: SparkContext,
    group: str,
    is_wanted: Callable[[Any], bool] = lambda stage: True,
) -> Iterator[Any]:
    """Spark's ``TaskData`` of the tasks of a group's jobs, the newest of each stage first.

    ``is_wanted``: the stages; each look at a task asks Spark's JVM.
    """
    tracker, store = spark.statusTracker(), spark._jsc.sc().statusStore()
    for job_id in tracker.getJobIdsForGroup(group):
        job = tracker.getJobInfo(job_id)
        for stage_id in () if job is None else job.stageIds:
            stage = tracker.getStageInfo(stage_id)
            if stage is None or not is_wanted(stage):
                continue
            tasks = store.taskList(stage_id, stage.currentAttemptId, _TASKS_MAX)
            yield from map(tasks.apply, range(tasks.size()))


def replace_executor(spark: SparkContext, group: str, task_attempt: int) -> None:
    """Have the cluster end the executor of a task and start another one, where it can.

    A local master cannot: all runs in the driver's own machine.
    """
    for task in tasks_of(spark, group):
        if task.taskId() == task_attempt:
            spark._jsc.sc().killAndReplaceExecutor(task.executorId())
            return
