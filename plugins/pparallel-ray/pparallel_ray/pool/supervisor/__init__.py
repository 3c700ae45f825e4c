"""What runs where Ray has reserved room for workers: an actor that looks after their processes.

Ray does not say how a process has ended, nor which task it ran, nor can an actor's method be
stopped: so tasks run in children of an actor, which sees all three. One actor does so for all the
workers that a program has on one machine, and is kept, as a fork server is: a pool's workers are
forks of what it has loaded. The pool and its workers talk without the actor in between.
"""
