"""Has torch compute in one thread, in the processes that import this.

So little work is done sooner by one core than shared by several, and the threads of a test would
wait for work on the cores of the others.
"""

import torch

torch.set_num_threads(1)
