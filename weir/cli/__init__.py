"""Weir's command line: run a pipeline, take savepoints, restore from them, inspect checkpoints.

::

    arguments          the parser, which checks arguments before anything heavy is imported
    run                runs a script as Python would, under the options that were given
    job_view           the fold of a job's events into figures for display (pure)
    log_lines          those figures and events as lines of text, for logs (pure)
    table              those figures as a table, for a terminal (pure)
    progress           the thread that shows either, so that the job never waits for a terminal
    event_log          every event as a line of JSON
    uri                the storage, job, checkpoint or savepoint that a URI names
    savepoint          requests a savepoint of a running job, or a stop with one, and waits for it
    delete_savepoint   deletes a savepoint that no job needs
    preview            the effect of a restore into a pipeline
    compare            the differences between the outputs of two jobs
    checkpoints        the jobs, checkpoints and savepoints in a storage
    clean              deletes files of jobs that nothing needs
    inspect            one checkpoint or savepoint: subtasks, timings, pieces of state
    script_arguments   the division of a command line between Weir and the script
    doctor             the checks of this machine, and of a cluster's workers
    confirm            the question before a deletion
    output, formats    tables and JSON; sizes, durations and times in words

Results go to standard output, progress and errors to standard error.
"""
