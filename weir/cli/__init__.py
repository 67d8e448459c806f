"""Weir's command line: run a pipeline and watch it, stop it and go back, look into checkpoints.

::

    arguments     what may be given, checked before anything heavy is imported
    run           a script as Python would run it, under the options that were given
    job_view      the fold of a job's events into what a reader wants to see (pure)
    plain         the same as lines of text, for logs (pure)
    table         the same as a table, for a terminal (pure)
    progress      the thread that shows either, so that the job never waits for a terminal
    event_log     every event as a line of JSON
    tracebacks    errors in terms of the user's code
    place         what a URI of checkpoint storage names
    savepoint     ask a running job for a savepoint, or to stop with one, and wait for it
    deletion      delete a savepoint that no job needs
    preview       what a restore into a pipeline would do
    compare       whether the outputs of two jobs are the same
    checkpoints   the jobs, checkpoints and savepoints in a storage
    inspect       one of them: who saved what, how long it took, what is in it

Results go to standard output, progress and errors to standard error.
"""
