"""Collectives on torch.distributed: gloo and NCCL, each group with a process group of its own."""
