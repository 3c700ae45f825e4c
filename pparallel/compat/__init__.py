"""The names of the systems that pparallel grew from: a program moves by its import lines.

``machin.parallel.X`` is ``pparallel.compat.machin.X``, ``gluonnlp.utils.parallel`` is
``pparallel.compat.gluonnlp``, ``torch_xla.distributed.xla_multiprocessing`` is
``pparallel.compat.torch_xla``, ``jactorch.parallel.comm`` is ``pparallel.compat.jactorch``, and
``torch.multiprocessing`` is ``pparallel.compat.torch_multiprocessing``. Each module translates; the
work is done by what ``pparallel.build`` makes.
"""
