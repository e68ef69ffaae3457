"""A simulator of nodes: real transport code, virtual time, scripted processes, and faults drawn from a seed.

    .venv/bin/python -m tests.sim                      the first thousand seeds
    .venv/bin/python -m tests.sim --seed 4             one seed again, with its scenario and everything that happens
    .venv/bin/python -m tests.sim --without late-hello the product with one fix taken back; it must be caught
    make soak SECONDS=600                              seeds that were never run, going on from the last soak

A seed is a scenario (`drawing`): two to five machines, jobs with their scripts, and up to four faults. The origin's
node dials the others; clients at the origin, and jobs elsewhere, ask for jobs. The same seed gives the same trace, on
any machine and with any PYTHONHASHSEED. A seed that fails is shrunk: faults, jobs and steps are left out as long as the
same rule is broken. The report has the least scenario and its trace.

Real parts
    Node, Hosts, Host, Slots, Link, Line, Session, Flow, Relay, Job, Source, Sink, Greeter; the client's Core and
    Services; the caller's end of a request (`requests._Call`). The pipes between a job and its process are the
    kernel's. Constants are scaled down (`simulation.SCALE`), so that little data meets every window.

Scripted parts
    Time: `world`. An event loop of asyncio for each node takes a turn when the world says so; its clock is its
    machine's, which stands still while that sleeps. Nothing waits, and there is no thread.
    Connections: `network`. Bytes take their time, can be late, cut at any byte, or vanish without a word.
    Processes: `process`, behind `transport.job.interface.Launcher`. They write, read, ask, fork, ignore TERM, and die.
    Machines: `machine`, and the guard of a node that is killed. `hostile` is a node that breaks the rules.
    Clients: `client` is what surrounds the Core: a stdin, a reader of its output that may be slow, signals.
    Chance and identity: os.urandom, and what `transport.node.host` draws, come from the seed (`simulation.patched`).
    Not simulated: ssh, the launcher's own process, terminals, lent descriptors, streaming requests, detached jobs.

Rules: the name that a violation begins with. `Simulation` checks them.
    whole     a client that reports `exited` or `signaled` has delivered what the process wrote before it ended
    bytes     in order, once, and unchanged; so was what the process read
    truth     with the status of the process; and not of one that its node ended
    twice     a spawn starts at most one process
    retry     nothing ran of what is said never to have been started, or denied: a caller may start it again
    lost      a job is lost only where a fault on its way lasted for its lease, or killed what it needed
    refused   a job is refused only where a fault on its way, or a bound, prevents it
    ends      a client ends within its lease and 15 s after the last fault on its way, beyond what its script takes;
              one without a fault on its way, whatever befalls the others, in the time that its script takes
    orphans   after the last client has ended, no process is alive that somebody should have ended
    held      then nodes hold no job, no slot, no channel and no bytes
    memory    at every step, what one link makes a node hold is within its bounds
    defect    the product logs no defect, and no callback raises

To add a fault: draw it in `drawing._fault`, with a weight; give Simulation a method of its name; say in
`scenario.Fault.outages` from when to when it prevents what, and in `Fault.kills` whether it may lose a job.

To add a rule: a check that raises Violation in Simulation._judge (of each client that has ended), _watch (after every
step) or at the end of `run`; and a row in `taken_back` that breaks it, or nobody knows that it works.

To add a fix that the simulator has to miss: a row in `taken_back`, which tests/sim/test_sim.py runs.
"""
