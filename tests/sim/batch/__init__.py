"""A batch in the simulator: the real `Run` of `quine xargs` on a real BatchCore, over simulated hosts that break.

    .venv/bin/python -m tests.sim --batch                the first thousand seeds
    .venv/bin/python -m tests.sim --batch --seed 4       one seed again, with all that happens
    .venv/bin/python -m tests.sim --batch --without NAME the product with a mutation; it must be caught
    make soak SECONDS=600 BATCH=1                        seeds that were never run

A seed is a course (`course`): two to four hosts with slots, or processors, up to forty items with their scripts, and
faults. Links are cut, hosts crash, stop, sleep, and come and go. The client is stopped, told to end, or killed, alone
or with its node, or by what it is about to write into its log or its journal; the next one goes on with `--resume`,
until one comes to its end. Items may have files and results, leave a process behind, or end the batch (`--halt`).

Real parts, beside those of `tests.sim`
    Run, Starter, Work, Items, Retries, Timers, Orphans, Search, Adopted, Joblog and Journal with their files, Sink,
    Output and Spool; BatchCore, Feed, BatchJob and JobCore; the choice of a host by Inventory.select. Files, Names,
    Cleanup, Bringing, and the judgement of an end by Staging; the launcher's folders of jobs.

Scripted parts
    `batch` is what surrounds the BatchCore: connection, clock and the poll. `streams` is the reader of the output.
    The world is run from within `Batch.turn`: the client is the one thread, and what it waits for is the world.
    `files` are the files here and there, and the jobs that move them. `tests.sim.folders` is the disk of the folders.
    Not simulated: agents and their races, requests of jobs, an inventory that is edited, a disk that is full.

Rules, beside those of `tests.sim`
    twice     an item runs once; again only if it has failed and may be tried again, or the batch was told to end it
    line      there is one line an item in the log at the end
    done      an item that is done has run to its own end, with status 0
    truth     a failed or killed item has the status of its last run; one that was never started has not run
    whole     the output of an item that is done was passed on, all of it
    bytes     in order, once, and unchanged
    lost      an item is lost only where a fault killed a node or lasted, and then it has run once at most
    slots     a host runs no more items at one time than it has slots; for each death at the origin as many again, since
              jobs of the client before are adopted beside new ones
    drains    a client comes to its end
    returns   an item that is done or has failed has its result here, the whole one of its last run, and none of before
    part      a part of a result is not here from a job that was told to end, or lost
    removed   no result of a job that has ended by itself is removed on its host before it is here,
              or that of a later try is, or the next try has begun if it was to replace the files of its item
    input     the input of an item is its own, and not the result of a try, nor the input of another
    folder    the folder of a job is not removed under a process that the job has left there
    orphans, held, defect    as for single jobs

To add a rule: a check in `judge`, and a row in `mutations` that breaks it.
"""
